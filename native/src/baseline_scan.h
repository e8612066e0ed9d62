// Neurons of other papers: their equations and the passes over a block, for any number of lanes. -scalar.cc includes this
// for one lane, -simd.cc for those of its instruction set.
//
// A neuron has its membrane, level and carry, and `back`: from dL/dburst and dL/dV[t] to dL/dU[t]. The forward pass rounds
// its products explicitly, as burst_scan-simd.cc does.
#pragma once

#include <vector>

#include "vectors.h"

namespace lbq {
namespace {

template <class Mask>
inline Floats one_where(Mask mask) {
  return mask ? broadcast(1.0f) : Floats{};
}

// What most of the neurons share; K is the index of the membrane.
struct Membrane {
  static constexpr bool kHasMany = false;  // one membrane per threshold
  float decay;

  Membrane(const lbq_baseline_scan& b, int64_t) : decay(b.scan.decay) {}
  Floats membrane(Floats carry, Floats current) const { return round_product(decay * carry) + current; }
};

// The slope of an arctangent around the threshold.
struct Arctangent {
  float threshold, half, bend;

  Arctangent(const lbq_baseline_scan& b, int64_t k)
      : threshold(b.thresholds[k]), half(b.sharpness / 2), bend(1.57079633f * b.sharpness) {}
  Floats slope(Floats membrane) const {
    const Floats x = bend * (membrane - threshold);
    return half / (1 + x * x);
  }
};

struct Binary : Membrane {
  Arctangent soft;
  float removed;

  Binary(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), soft(b, k), removed(b.scan.reset * soft.threshold) {}
  Floats membrane(Floats carry, Floats current) const {  // Eq. 1
    return Membrane::membrane(carry, current) - (carry > soft.threshold ? broadcast(removed) : Floats{});
  }
  Floats level(Floats membrane, Floats) const { return one_where(membrane > soft.threshold); }  // Eq. 2
  Floats carry(Floats membrane, Floats, Floats) const { return membrane; }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    sums.burst += grad * level;
    return grad * step * soft.slope(membrane) + state;
  }
};

struct HardReset : Membrane {
  Arctangent soft;

  HardReset(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), soft(b, k) {}
  Floats level(Floats membrane, Floats) const { return one_where(membrane >= soft.threshold); }
  Floats carry(Floats membrane, Floats level, Floats) const { return membrane * (1 - level); }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    sums.burst += grad * level;
    return grad * step * soft.slope(membrane) + state * (1 - level);
  }
};

// A quotient of floats is below 1 exactly where the membrane is smaller than the step, so no division is needed.
struct Ternary : Membrane {
  Coefficients c;
  bool has_tail;

  Ternary(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), c(b.scan), has_tail(b.scan.tail != nullptr) {}
  Floats level(Floats membrane, Floats step) const {
    return absolute(membrane) >= step ? with_sign_of(broadcast(1.0f), membrane) : Floats{};
  }
  Floats carry(Floats membrane, Floats level, Floats step) const {
    return c.mode == LBQ_RESET_NONE ? membrane : membrane - round_product(c.reset * step * level);
  }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    const Floats ratio = absolute(membrane) / step;
    Floats slope = one_where((ratio >= c.lo) & (ratio <= c.hi));
    if (has_tail) {
      const Floats excess = ratio - min_of(max_of(ratio, broadcast(c.lo)), broadcast(c.hi));
      const Floats fade = exp_of_minus(absolute(excess));
      const Floats bend = with_sign_of(1 - fade, excess);
      slope = excess == 0 ? slope : c.tail * fade;
      sums.bend += grad * (membrane > 0 ? bend : membrane < 0 ? -bend : Floats{});
    }
    slope = membrane == 0 ? Floats{} : slope;  // zero has no sign
    sums.burst += grad * (level - with_sign_of(ratio, membrane) * slope);
    if (c.mode != LBQ_RESET_NONE) sums.removed += state * level;
    return grad * slope + state;
  }
};

struct OriginalTernary : Membrane {
  float threshold;

  OriginalTernary(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), threshold(b.thresholds[k]) {}
  Floats level(Floats membrane, Floats) const {
    return absolute(membrane) >= threshold ? with_sign_of(broadcast(1.0f), membrane) : Floats{};
  }
  Floats carry(Floats membrane, Floats level, Floats) const { return membrane * (1 - absolute(level)); }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    const Floats slope = one_where(absolute(membrane) <= 1);
    sums.burst += grad * level;
    return grad * step * slope + state * (1 - absolute(level) - membrane * level * slope);
  }
};

struct Integer : Membrane {
  float max_level;

  Integer(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), max_level(static_cast<float>(b.scan.max_level)) {}
  Floats level(Floats membrane, Floats) const {
    constexpr float kWhole = 1 << 23;  // from here on floats are integers, so an addition rounds half to even
    return (min_of(max_of(membrane, Floats{}), broadcast(max_level)) + kWhole) - kWhole;
  }
  Floats carry(Floats membrane, Floats level, Floats) const { return membrane - level; }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    sums.burst += grad * level;
    return grad * step * one_where((membrane >= 0) & (membrane <= max_level)) + state;
  }
};

struct MultiLevel : Membrane {
  static constexpr bool kHasMany = true;
  float threshold;

  MultiLevel(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), threshold(b.thresholds[k]) {}
  Floats level(Floats membrane, Floats) const { return one_where(membrane > threshold); }
  Floats carry(Floats membrane, Floats level, Floats) const { return membrane * (1 - level); }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats state, Sums& sums) const {
    sums.burst += grad * level;
    return grad * step * one_where(absolute(membrane - threshold) <= 0.5f) + state * (1 - level);
  }
};

template <class Neuron>
inline int64_t num_membranes(const lbq_baseline_scan& b) {
  return Neuron::kHasMany ? b.scan.max_level : 1;
}

template <class Neuron, class Value, class C>
inline void forward_lanes(const lbq_baseline_scan& b, const lbq_forward_buffers& f, const C& columns, Floats step) {
  const lbq_scan& scan = b.scan;
  const int64_t i = columns.first, last = num_membranes<Neuron>(b) - 1;
  const Value* currents = static_cast<const Value*>(f.currents) + i;
  Value* bursts = static_cast<Value*>(f.bursts) + i;
  for (int64_t k = 0; k <= last; ++k) {
    const Neuron neuron(b, k);
    Floats carry = f.carry ? columns.read(f.carry + k * scan.size + i) : Floats{};
    for (int64_t t = 0; t < scan.timesteps; ++t) {
      const Floats membrane = neuron.membrane(carry, columns.read(currents + t * scan.current_stride));
      const Floats level = neuron.level(membrane, step);
      Floats count = membrane == membrane ? level : membrane;  // a NaN stays one
      if (k > 0) count += columns.read(bursts + t * scan.size);
      if (k == last) {
        const Bytes bytes = bytes_of(__builtin_convertvector(count, Ints) & 255);
        std::memcpy(f.levels + t * scan.size + i, &bytes, columns.count);
        count *= step;
      }
      columns.write(bursts + t * scan.size, count);
      carry = neuron.carry(membrane, level, step);
    }
    columns.write(f.last_carry + k * scan.size + i, carry);
  }
}

// `scratch` holds three vectors per timestep.
template <class Neuron, class Value, class C>
inline void backward_lanes(const lbq_baseline_scan& b, const lbq_backward_buffers& g, const C& columns, Floats step,
                           float* scratch, Sums& all_sums) {
  const lbq_scan& scan = b.scan;
  const int64_t i = columns.first, stride = scan.timesteps * kLanes;
  float *membranes = scratch, *carries = scratch + stride, *grads = scratch + 2 * stride;
  const Value* currents = static_cast<const Value*>(g.saved) + i;
  const Value* grad_bursts = static_cast<const Value*>(g.grad_bursts) + i;
  Value* grad_currents = static_cast<Value*>(g.grad_currents) + i;
  Sums sums;
  for (int64_t k = 0; k < num_membranes<Neuron>(b); ++k) {
    const Neuron neuron(b, k);
    Floats carry = g.carry ? columns.read(g.carry + k * scan.size + i) : Floats{};
    for (int64_t t = 0; t < scan.timesteps; ++t) {
      const Floats membrane = neuron.membrane(carry, columns.read(currents + t * scan.current_stride));
      store(membranes + t * kLanes, membrane);
      store(carries + t * kLanes, carry);
      carry = neuron.carry(membrane, neuron.level(membrane, step), step);
    }
    Floats state = g.grad_last_carry ? columns.read(g.grad_last_carry + k * scan.size + i) : Floats{};
    for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
      const Floats membrane = load(membranes + t * kLanes), grad = columns.read(grad_bursts + t * scan.size);
      const Floats grad_membrane = neuron.back(membrane, neuron.level(membrane, step), step, grad, state, sums);
      sums.decay += grad_membrane * load(carries + t * kLanes);
      state = neuron.decay * grad_membrane;
      if (Neuron::kHasMany)
        store(grads + t * kLanes, k == 0 ? grad_membrane : grad_membrane + load(grads + t * kLanes));
      else
        columns.write(grad_currents + t * scan.size, grad_membrane);
    }
    if (g.grad_carry) columns.write(g.grad_carry + k * scan.size + i, state);
  }
  for (int64_t t = 0; Neuron::kHasMany && t < scan.timesteps; ++t)
    columns.write(grad_currents + t * scan.size, load(grads + t * kLanes));
  all_sums += sums;
}

// Call visit(columns, step, first column) for the vectors of a block that start in column j, down the rows.
template <class Visit>
inline void each_row(const Block& block, int64_t j, Visit visit) {
  const int64_t count = block.count - j < kLanes ? block.count - j : kLanes;
  const auto visit_rows = [&](auto columns) {
    const Floats step = block.step_per_column ? columns.read(block.step + j, 1.0f) : broadcast(*block.step);
    for (int64_t row = 0; row < block.rows; ++row) {
      columns.first = block.first + row * block.count + j;
      visit(columns, step);
    }
  };
  kLanes == 1 || count == kLanes ? visit_rows(Columns<true>{0, kLanes}) : visit_rows(Columns<false>{0, count});
}

template <class Neuron, class Value>
void forward_block(const lbq_baseline_scan& b, const lbq_forward_buffers& buffers, int64_t index) {
  const Block block = block_at(b.scan, index);
  for (int64_t j = 0; j < block.count; j += kLanes)
    each_row(block, j, [&](const auto& columns, Floats step) {
      forward_lanes<Neuron, Value>(b, buffers, columns, step);
    });
}

template <class Neuron, class Value>
void backward_block(const lbq_baseline_scan& b, const lbq_backward_buffers& buffers, int64_t index) {
  const Block block = block_at(b.scan, index);
  double* step_sums = buffers.step_sums + index * lbq_block_steps(&b.scan);
  double* other = buffers.other_sums + index * 3;
  std::vector<float> scratch(3 * b.scan.timesteps * kLanes);
  Sums sums;
  const auto put = [&](Floats step) {
    other[0] += horizontal_sum(sums.tail(step));
    other[1] += horizontal_sum(sums.decay);
    other[2] += horizontal_sum(sums.reset(step));
  };
  for (int64_t j = 0; j < block.count; j += kLanes) {
    Floats steps{};
    each_row(block, j, [&](const auto& columns, Floats step) {
      backward_lanes<Neuron, Value>(b, buffers, columns, step, scratch.data(), sums);
      steps = step;
    });
    if (!block.step_per_column) continue;
    const Floats found = sums.step(b.scan);
    for (int64_t lane = 0; lane < kLanes && j + lane < block.count; ++lane) step_sums[j + lane] += found[lane];
    put(steps);
    sums = Sums{};
  }
  if (block.step_per_column) return;
  step_sums[0] += horizontal_sum(sums.step(b.scan));
  put(broadcast(*block.step));
}

// Call visit(a neuron) for the kind of neuron.
template <class Visit>
inline void with_neuron(const lbq_baseline_scan& b, Visit visit) {
  switch (b.neuron) {
    case LBQ_BINARY: return visit(Binary(b, 0));
    case LBQ_HARD_RESET: return visit(HardReset(b, 0));
    case LBQ_TERNARY: return visit(Ternary(b, 0));
    case LBQ_ORIGINAL_TERNARY: return visit(OriginalTernary(b, 0));
    case LBQ_INTEGER: return visit(Integer(b, 0));
    case LBQ_MULTI_LEVEL: return visit(MultiLevel(b, 0));
  }
}

void forward(const lbq_baseline_scan& b, const lbq_forward_buffers& buffers, int64_t index) {
  with_neuron(b, [&](auto neuron) {
    using Neuron = decltype(neuron);
    b.scan.dtype == LBQ_F32 ? forward_block<Neuron, float>(b, buffers, index)
                            : forward_block<Neuron, uint16_t>(b, buffers, index);
  });
}

void backward(const lbq_baseline_scan& b, const lbq_backward_buffers& buffers, int64_t index) {
  with_neuron(b, [&](auto neuron) {
    using Neuron = decltype(neuron);
    b.scan.dtype == LBQ_F32 ? backward_block<Neuron, float>(b, buffers, index)
                            : backward_block<Neuron, uint16_t>(b, buffers, index);
  });
}

}  // namespace
}  // namespace lbq
