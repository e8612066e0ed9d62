// A declared neuron: its equations and the passes over a block, for any number of lanes. -scalar.cc includes this for one
// lane, -simd.cc for those of its instruction set.
//
// The forward pass rounds its products explicitly, as burst_scan-simd.cc does. The backward pass computes the membranes
// again from the currents.
#pragma once

#include <vector>

#include "vectors.h"

namespace lbq {
namespace {

inline Floats one_where(Ints mask) { return mask ? broadcast(1.0f) : Floats{}; }

// The coefficients of a vector of neurons; thresholds lie in memory.
struct Lanes {
  Floats scale, decay, amount, tail;
  const Floats *edges, *centres;
};

// The gradients of the coefficients, before what is common to a column; those of thresholds lie in memory.
struct NeuronSums {
  Floats scale{}, decay{}, amount{}, tail{};
};

// Whether no level is larger than 1, so that a reset for each event is one for each level.
inline bool is_single(const lbq_neuron& n) {
  if (!n.edges) return n.scan.max_level == 1;
  float above = 0, below = 0;
  for (int j = 0; j < n.num_above; ++j) above += n.jumps[j];
  for (int j = 0; j < n.num_below; ++j) below += n.jumps[n.num_above + j];
  return above <= 1 && below <= 1;
}

// A neuron whose settings are locals, which no store to memory can change. A basic one is not signed, and its reset is
// before the decay and without gradient.
template <bool kUniform, bool kWindows, bool kBasic>
struct Neuron {
  const float* jumps;
  int num_above, num_all;
  float max_level, lo, hi, width;
  lbq_window window;
  lbq_reset_mode reset;
  bool has_table, has_signs, resets_late, passes_gradient, has_tail, wants_thresholds, detach_carry;

  explicit Neuron(const lbq_neuron& n)
      : jumps(n.jumps), num_above(n.num_above), num_all(n.num_above + n.num_below),
        max_level(static_cast<float>(n.scan.max_level)), lo(n.scan.lo), hi(n.scan.hi), width(n.width), window(n.window),
        reset(n.scan.reset_mode == LBQ_RESET_EVENT && is_single(n) ? LBQ_RESET_LEVEL : n.scan.reset_mode),
        has_table(n.edges != nullptr), has_signs(n.is_signed), resets_late(n.after_decay),
        passes_gradient(n.resets_with_gradient), has_tail(n.scan.tail != nullptr),
        wants_thresholds(n.wants_thresholds), detach_carry(n.scan.detach_carry) {}

  bool is_signed() const { return !kBasic && has_signs; }
  bool after_decay() const { return !kBasic && resets_late; }
  bool passes_with_reset() const { return !kBasic && passes_gradient; }

  // Where thresholds are compared: in steps for a uniform neuron.
  Floats position(Floats membrane, const Lanes& c) const { return kUniform ? membrane / c.scale : membrane; }

  Floats level(Floats x, const Lanes& c) const {
    Floats level{};
    if (kUniform && !has_table) {
      level = __builtin_convertvector(level_of(x, max_level), Floats);
      return is_signed() ? level - __builtin_convertvector(level_of(-x, max_level), Floats) : level;
    }
    for (int j = 0; j < num_above; ++j) level += x >= c.edges[j] ? broadcast(jumps[j]) : Floats{};
    for (int j = num_above; j < num_all; ++j) level -= -x >= c.edges[j] ? broadcast(jumps[j]) : Floats{};
    return level;
  }

  // What the reset takes, in amounts.
  Floats removed(Floats level) const {
    if (reset == LBQ_RESET_LEVEL) return level;
    if (reset != LBQ_RESET_EVENT) return Floats{};
    return is_signed() ? one_where(level > 0) - one_where(level < 0) : one_where(level > 0);
  }
  Floats carry(Floats membrane, Floats level, const Lanes& c) const {
    if (after_decay() || reset == LBQ_RESET_NONE) return membrane;
    if (reset == LBQ_RESET_ZERO) return membrane * one_where(level == 0);
    return membrane - round_product(c.amount * removed(level));
  }
  Floats membrane(Floats carry, Floats level_before, Floats current, const Lanes& c) const {
    const Floats membrane = round_product(c.decay * carry) + current;
    return after_decay() ? membrane - round_product(c.amount * removed(level_before)) : membrane;
  }
  // Of the initial carry, for a reset after the decay.
  Floats first_level(Floats carry, const Lanes& c) const { return after_decay() ? level(position(carry, c), c) : Floats{}; }

  // The slope of a soft spike at a distance from its threshold.
  Floats window_at(Floats u) const {
    switch (window) {
      case LBQ_WINDOW_BOX: return absolute(u) <= width / 2 ? broadcast(1 / width) : Floats{};
      case LBQ_WINDOW_TRIANGLE: return max_of(1 - absolute(u) / width, Floats{}) / width;
      case LBQ_WINDOW_ARCTANGENT: {
        const Floats x = (1.57079633f / width) * u;
        return (0.5f / width) / (1 + x * x);
      }
      case LBQ_WINDOW_SIGMOID: {
        const Floats fade = exp_of_minus(absolute(u) / width), all = 1 + fade;
        return fade / (all * all * width);
      }
      case LBQ_WINDOW_GAUSSIAN: {
        const Floats x = u / width;
        return exp_of_minus(0.5f * x * x) * (0.398942280f / width);
      }
    }
    return Floats{};
  }

  // One timestep backward: from dL/doutput and dL/dV to dL/dU. `pull` is what the amount receives.
  Floats back(Floats membrane, Floats level, Floats grad, Floats state, Floats pull, const Lanes& c, NeuronSums& sums,
              Floats* threshold_sums) const {
    const Floats x = position(membrane, c);
    Floats through = kUniform ? grad : grad * c.scale;  // dL/dB, in steps if uniform
    Floats by_reset{};
    if (passes_with_reset()) {
      by_reset = reset == LBQ_RESET_ZERO ? -state * membrane * (is_signed() ? level : broadcast(1.0f)) : -pull * c.amount;
      if (reset == LBQ_RESET_NONE) by_reset = Floats{};
      if (kUniform) by_reset = by_reset / c.scale;
      through += by_reset;
    }
    Floats slope{};
    if (kWindows) {
      for (int j = 0; j < num_all; ++j) {
        const bool is_above = j < num_above;
        const Floats part = jumps[j] * window_at((is_above ? x : -x) - c.centres[j]);
        slope += part;
        if (wants_thresholds) threshold_sums[j] += is_above ? -through * part : through * part;
      }
    } else {
      const Floats size = is_signed() ? absolute(x) : x;
      const Floats excess = size - min_of(max_of(size, broadcast(lo)), broadcast(hi));
      slope = one_where(excess == 0);
      if (has_tail) {
        const Floats fade = exp_of_minus(absolute(excess));
        const Floats bend = with_sign_of(1 - fade, excess);
        slope = excess == 0 ? slope : c.tail * fade;
        const Floats signed_bend = !is_signed() ? bend : x > 0 ? bend : x < 0 ? -bend : Floats{};
        sums.tail += through * (kUniform ? c.scale * signed_bend : signed_bend);
      }
      if (is_signed() && lo >= 0) slope = x == 0 ? Floats{} : slope;  // zero has no sign
    }
    sums.scale += kUniform ? grad * (level - x * slope) : grad * level;
    if (kUniform && passes_with_reset()) sums.scale -= by_reset * x * slope;
    sums.amount -= pull * removed(level);
    return through * slope + (reset == LBQ_RESET_ZERO ? state * one_where(level == 0) : state);
  }
};

// The sizes of a scan as locals, as the settings of a neuron.
struct Sizes {
  int64_t timesteps, size, current_stride;

  explicit Sizes(const lbq_scan& scan)
      : timesteps(scan.timesteps), size(scan.size), current_stride(scan.current_stride) {}
};

template <class Value, class Neuron, class C>
inline void neuron_forward_lanes(const Sizes scan, const lbq_forward_buffers& f, const Neuron neuron, const C columns,
                                 const Lanes c) {
  const int64_t i = columns.first;
  const Value* currents = static_cast<const Value*>(f.currents) + i;
  Value* bursts = static_cast<Value*>(f.bursts) + i;
  uint8_t* levels = f.levels + i;
  Floats carry = f.carry ? columns.read(f.carry + i) : Floats{};
  Floats level = neuron.first_level(carry, c);
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const Floats membrane = neuron.membrane(carry, level, columns.read(currents + t * scan.current_stride), c);
    level = neuron.level(neuron.position(membrane, c), c);
    carry = neuron.carry(membrane, level, c);
    const Bytes bytes = bytes_of(__builtin_convertvector(level, Ints) & 255);
    std::memcpy(levels + t * scan.size, &bytes, columns.count);
    columns.write(bursts + t * scan.size, membrane == membrane ? c.scale * level : membrane);  // a NaN stays one
  }
  columns.write(f.last_carry + i, carry);
}

// `scratch` holds three vectors per timestep.
template <class Value, class Neuron, class C>
inline void neuron_backward_lanes(const Sizes scan, const lbq_backward_buffers& g, const Neuron neuron,
                                  const C columns, const Lanes c, Floats* scratch, NeuronSums& all_sums,
                                  Floats* threshold_sums) {
  const int64_t i = columns.first, last = scan.timesteps - 1;
  Floats *membranes = scratch, *carries = membranes + scan.timesteps, *levels = carries + scan.timesteps;
  const Value* currents = static_cast<const Value*>(g.saved) + i;
  const Value* grads = static_cast<const Value*>(g.grad_bursts) + i;
  Value* grad_currents = static_cast<Value*>(g.grad_currents) + i;
  Floats carry = g.carry ? columns.read(g.carry + i) : Floats{};
  const Floats first_level = neuron.first_level(carry, c);
  for (int64_t t = 0; t <= last; ++t) {
    carries[t] = carry;
    membranes[t] = neuron.membrane(carry, t > 0 ? levels[t - 1] : first_level,
                                   columns.read(currents + t * scan.current_stride), c);
    levels[t] = neuron.level(neuron.position(membranes[t], c), c);
    carry = neuron.carry(membranes[t], levels[t], c);
  }
  NeuronSums sums;
  Floats state = g.grad_last_carry && !neuron.detach_carry ? columns.read(g.grad_last_carry + i) : Floats{};
  Floats pull = neuron.after_decay() ? Floats{} : state;
  for (int64_t t = last; t >= 0; --t) {
    const Floats grad = columns.read(grads + t * scan.size);
    const Floats grad_membrane = neuron.back(membranes[t], levels[t], grad, state, pull, c, sums, threshold_sums);
    columns.write(grad_currents + t * scan.size, grad_membrane);
    sums.decay += grad_membrane * carries[t];
    state = neuron.detach_carry && t > 0 ? Floats{} : c.decay * grad_membrane;
    pull = neuron.after_decay() ? grad_membrane : state;
  }
  if (neuron.after_decay()) sums.amount -= pull * neuron.removed(first_level);
  if (g.grad_carry) columns.write(g.grad_carry + i, state);
  all_sums.scale += sums.scale;
  all_sums.decay += sums.decay;
  all_sums.amount += sums.amount;
  all_sums.tail += sums.tail;
}

// Call visit(columns, the coefficients) for all vectors of a block, column by column, and finish(j, count) after each.
template <class Visit, class Finish>
inline void each_vector(const lbq_neuron& n, const Block& block, Visit visit, Finish finish) {
  const int64_t channel = block.step - n.scan.step, channels = n.scan.num_steps;
  const int num_thresholds = n.edges ? n.num_above + n.num_below : 0;
  std::vector<Floats> edges(num_thresholds), centres(num_thresholds);
  const float* all_centres = n.is_uniform ? n.edges : n.coefficients + LBQ_NEURON_ROWS * channels;
  for (int64_t j = 0; j < block.count; j += kLanes) {
    const int64_t count = block.count - j < kLanes ? block.count - j : kLanes;
    const auto read = [&](const float* rows, int64_t row, float rest) {
      const float* from = rows + row * channels + channel;
      return block.step_per_column ? load_some(from + j, count, rest) : broadcast(*from);
    };
    if (j == 0 || block.step_per_column)
      for (int k = 0; k < num_thresholds; ++k) edges[k] = read(n.edges, k, 0), centres[k] = read(all_centres, k, 0);
    const Lanes lanes{read(n.coefficients, 0, 1), read(n.coefficients, 1, 0), read(n.coefficients, 2, 0),
                      read(n.coefficients, 3, 0), edges.data(), centres.data()};
    const auto visit_rows = [&](auto columns) {
      for (int64_t row = 0; row < block.rows; ++row) {
        columns.first = block.first + row * block.count + j;
        visit(columns, lanes);
      }
    };
    kLanes == 1 || count == kLanes ? visit_rows(Columns<true>{0, kLanes}) : visit_rows(Columns<false>{0, count});
    finish(j, count);
  }
}

template <class Value, class Neuron>
void neuron_forward_block(const lbq_neuron& n, const lbq_forward_buffers& buffers, const Neuron neuron, int64_t index) {
  const Sizes scan(n.scan);
  each_vector(
      n, block_at(n.scan, index),
      [&](const auto& columns, const Lanes& lanes) {
        neuron_forward_lanes<Value>(scan, buffers, neuron, columns, lanes);
      },
      [](int64_t, int64_t) {});
}

template <class Value, class Neuron>
void neuron_backward_block(const lbq_neuron& n, const lbq_backward_buffers& buffers, const Neuron neuron, int64_t index) {
  const Sizes scan(n.scan);
  const Block block = block_at(n.scan, index);
  const int64_t steps = lbq_block_steps(&n.scan);
  const int num_thresholds = neuron.wants_thresholds ? neuron.num_all : 0;
  double* out = buffers.step_sums + index * steps * (LBQ_NEURON_ROWS + num_thresholds);
  std::vector<Floats> memory(3 * scan.timesteps + num_thresholds);
  Floats* threshold_sums = memory.data() + 3 * scan.timesteps;
  NeuronSums sums;
  const auto finish = [&](int64_t j, int64_t count) {
    if (!block.step_per_column && j + count < block.count) return;
    const auto put = [&](int64_t row, Floats& values) {
      double* to = out + row * steps;
      if (block.step_per_column)
        for (int64_t lane = 0; lane < count; ++lane) to[j + lane] += values[lane];
      else
        *to += horizontal_sum(values);
      values = Floats{};
    };
    put(0, sums.scale);
    put(1, sums.decay);
    put(2, sums.amount);
    put(3, sums.tail);
    for (int k = 0; k < num_thresholds; ++k) put(LBQ_NEURON_ROWS + k, threshold_sums[k]);
  };
  each_vector(
      n, block,
      [&](const auto& columns, const Lanes& lanes) {
        neuron_backward_lanes<Value>(scan, buffers, neuron, columns, lanes, memory.data(), sums, threshold_sums);
      },
      finish);
}

// Call visit(a neuron) for the kind of neuron; `kWindows` where its surrogate matters.
template <bool kUniform, bool kWindows, class Visit>
inline void with_neuron(const lbq_neuron& n, Visit visit) {
  const bool is_basic = !n.is_signed && !n.after_decay && !n.resets_with_gradient;
  is_basic ? visit(Neuron<kUniform, kWindows, true>(n)) : visit(Neuron<kUniform, kWindows, false>(n));
}

void forward(const lbq_neuron& n, const lbq_forward_buffers& buffers, int64_t index) {
  const auto run = [&](auto neuron) {
    n.scan.dtype == LBQ_F32 ? neuron_forward_block<float>(n, buffers, neuron, index)
                            : neuron_forward_block<uint16_t>(n, buffers, neuron, index);
  };
  n.is_uniform ? with_neuron<true, false>(n, run) : with_neuron<false, false>(n, run);
}

void backward(const lbq_neuron& n, const lbq_backward_buffers& buffers, int64_t index) {
  const auto run = [&](auto neuron) {
    n.scan.dtype == LBQ_F32 ? neuron_backward_block<float>(n, buffers, neuron, index)
                            : neuron_backward_block<uint16_t>(n, buffers, neuron, index);
  };
  if (n.has_windows)
    n.is_uniform ? with_neuron<true, true>(n, run) : with_neuron<false, true>(n, run);
  else
    n.is_uniform ? with_neuron<true, false>(n, run) : with_neuron<false, false>(n, run);
}

}  // namespace
}  // namespace lbq
