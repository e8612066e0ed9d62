// Neurons of other papers: their equations and the passes over a block, for any number of lanes. -scalar.cc includes
// this for one lane, -simd.cc for those of its instruction set.
//
// A neuron has its membrane, level and carry, and `back`: from dL/dburst and dL/dV[t] to dL/dU[t]. The forward pass
// rounds its products explicitly, as burst_scan-simd.cc does.
#pragma once

#include <vector>

#include "vectors.h"

namespace lbq {
namespace {

template <class Mask>
inline Floats one_where(Mask mask) {
  return mask ? broadcast(1.0f) : Floats{};
}

// The base of most neurons.
struct Membrane {
  static constexpr bool kHasMany = false;  // one membrane per threshold; then k is its index
  static constexpr bool kIsMixed = false;  // the currents are mixed, and no gradient passes between timesteps
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

struct Mixed : Membrane {
  static constexpr bool kIsMixed = true;
  Coefficients c;

  Mixed(const lbq_baseline_scan& b, int64_t k) : Membrane(b, k), c(b.scan) {}
  Floats level(Floats membrane, Floats step) const {
    return __builtin_convertvector(level_of(membrane / step, c.max_level), Floats);
  }
  Floats carry(Floats membrane, Floats level, Floats step) const { return membrane - round_product(step * level); }
  Floats back(Floats membrane, Floats level, Floats step, Floats grad, Floats, Sums& sums) const {
    const Floats ratio = membrane / step, slope = one_where((ratio >= c.lo) & (ratio <= c.hi));
    sums.burst += grad * (level - ratio * slope);
    return grad * slope;
  }
};

// The sizes of a scan as locals, which no store to memory can change.
struct Sizes {
  int64_t timesteps, size, current_stride, membranes;

  template <class Neuron>
  static Sizes of(const lbq_baseline_scan& b) {
    return {b.scan.timesteps, b.scan.size, b.scan.current_stride, Neuron::kHasMany ? b.scan.max_level : 1};
  }
};

// The currents of a vector of neurons.
template <class Neuron, class Value, class C>
struct Input {
  const C columns;
  const Sizes n;
  const Value* currents;
  const float* mixture;

  Floats raw(int64_t t) const { return columns.read(currents + t * n.current_stride); }
  Floats at(int64_t t) const {
    if (!Neuron::kIsMixed) return raw(t);
    const float* row = mixture + t * n.timesteps;
    Floats sum = round_product(row[0] * raw(0));
    for (int64_t j = 1; j < n.timesteps; ++j) sum = sum + round_product(row[j] * raw(j));
    return sum;
  }
  // The gradients of the raw currents and of the mixture, from those of the mixed currents.
  template <class Put>
  void back(const float* grads, float* mixture_sums, Put put) const {
    for (int64_t j = 0; j < n.timesteps; ++j) {
      const Floats current = raw(j);
      Floats grad{};
      for (int64_t t = 0; t < n.timesteps; ++t) {
        const Floats mixed = load(grads + t * kLanes);
        float* sum = mixture_sums + (t * n.timesteps + j) * kLanes;
        grad += mixture[t * n.timesteps + j] * mixed;
        store(sum, load(sum) + mixed * current);
      }
      put(j, grad);
    }
  }
};

// `first` is the neuron of membrane 0.
template <class Value, class Neuron, class C>
inline void forward_lanes(const lbq_baseline_scan& b, const lbq_forward_buffers& f, const Neuron first, const Sizes n,
                          const C columns, Floats step) {
  const int64_t i = columns.first;
  const Input<Neuron, Value, C> input{columns, n, static_cast<const Value*>(f.currents) + i, b.mixture};
  const float* start = f.carry ? f.carry + i : nullptr;
  Value* bursts = static_cast<Value*>(f.bursts) + i;
  uint8_t* levels = f.levels + i;
  float* last = f.last_carry + i;
  Floats carry = start ? columns.read(start) : Floats{};
  for (int64_t t = 0; t < n.timesteps; ++t) {
    const Floats current = input.at(t);
    Floats count{};
    for (int64_t k = 0; k < n.membranes; ++k) {
      const Neuron neuron = k == 0 ? first : Neuron(b, k);
      if (Neuron::kHasMany)  // carries stay in memory
        carry = t > 0 ? columns.read(last + k * n.size) : start ? columns.read(start + k * n.size) : Floats{};
      const Floats membrane = neuron.membrane(carry, current), level = neuron.level(membrane, step);
      const Floats seen = membrane == membrane ? level : membrane;  // keeps NaNs
      count = k == 0 ? seen : count + seen;
      carry = neuron.carry(membrane, level, step);
      if (Neuron::kHasMany) columns.write(last + k * n.size, carry);
    }
    const Bytes bytes = bytes_of(__builtin_convertvector(count, Ints) & 255);
    std::memcpy(levels + t * n.size, &bytes, columns.count);
    columns.write(bursts + t * n.size, step * count);
  }
  if (!Neuron::kHasMany) columns.write(last, carry);
}

// `scratch` holds three vectors per timestep, `mixture_sums` one per pair of timesteps.
template <class Value, class Neuron, class C>
inline void backward_lanes(const lbq_baseline_scan& b, const lbq_backward_buffers& g, const Neuron first, const Sizes n,
                           const C columns, Floats step, float* scratch, float* mixture_sums, Sums& all_sums) {
  const int64_t i = columns.first, stride = n.timesteps * kLanes;
  float *membranes = scratch, *carries = scratch + stride, *grads = scratch + 2 * stride;
  const Input<Neuron, Value, C> input{columns, n, static_cast<const Value*>(g.saved) + i, b.mixture};
  const Value* grad_bursts = static_cast<const Value*>(g.grad_bursts) + i;
  Value* grad_currents = static_cast<Value*>(g.grad_currents) + i;
  const auto put = [&](int64_t t, Floats grad) { columns.write(grad_currents + t * n.size, grad); };
  Sums sums;
  for (int64_t k = 0; k < n.membranes; ++k) {
    const Neuron neuron = k == 0 ? first : Neuron(b, k);
    Floats carry = g.carry ? columns.read(g.carry + k * n.size + i) : Floats{};
    for (int64_t t = 0; t < n.timesteps; ++t) {
      const Floats membrane = neuron.membrane(carry, input.at(t));
      store(membranes + t * kLanes, membrane);
      store(carries + t * kLanes, carry);
      carry = neuron.carry(membrane, neuron.level(membrane, step), step);
    }
    Floats state = g.grad_last_carry ? columns.read(g.grad_last_carry + k * n.size + i) : Floats{};
    for (int64_t t = n.timesteps - 1; t >= 0; --t) {
      const Floats membrane = load(membranes + t * kLanes), grad = columns.read(grad_bursts + t * n.size);
      const Floats grad_membrane = neuron.back(membrane, neuron.level(membrane, step), step, grad, state, sums);
      sums.decay += grad_membrane * load(carries + t * kLanes);
      state = neuron.decay * grad_membrane;
      if (Neuron::kHasMany || Neuron::kIsMixed)
        store(grads + t * kLanes, k == 0 ? grad_membrane : grad_membrane + load(grads + t * kLanes));
      else
        put(t, grad_membrane);
    }
    if (g.grad_carry) columns.write(g.grad_carry + k * n.size + i, state);
  }
  for (int64_t t = 0; Neuron::kHasMany && t < n.timesteps; ++t) put(t, load(grads + t * kLanes));
  if (Neuron::kIsMixed) input.back(grads, mixture_sums, put);
  all_sums += sums;
}

// Call visit(columns, step) for the vectors of a block that start in column j, down the rows.
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

template <class Value, class Neuron>
void forward_block(const lbq_baseline_scan& b, const lbq_forward_buffers& buffers, const Neuron neuron, int64_t index) {
  const Block block = block_at(b.scan, index);
  const Sizes sizes = Sizes::of<Neuron>(b);
  for (int64_t j = 0; j < block.count; j += kLanes)
    each_row(block, j, [&](const auto& columns, Floats step) {
      forward_lanes<Value>(b, buffers, neuron, sizes, columns, step);
    });
}

// The first multiple of a vector's size: a vector across two cache lines takes twice as long.
inline float* aligned(float* memory) {
  return memory + (-reinterpret_cast<uintptr_t>(memory) % sizeof(Floats)) / sizeof(float);
}

template <class Value, class Neuron>
void backward_block(const lbq_baseline_scan& b, const lbq_backward_buffers& buffers, double* all_mixture_sums,
                    const Neuron neuron, int64_t index) {
  const Sizes sizes = Sizes::of<Neuron>(b);
  const Block block = block_at(b.scan, index);
  double* step_sums = buffers.step_sums + index * lbq_block_steps(&b.scan);
  double* other = buffers.other_sums + index * 3;
  const int64_t pairs = Neuron::kIsMixed ? sizes.timesteps * sizes.timesteps : 0;
  std::vector<float> memory((3 * sizes.timesteps + pairs + 1) * kLanes);
  float* scratch = aligned(memory.data());
  float* mixture_sums = scratch + 3 * sizes.timesteps * kLanes;
  Sums sums;
  const auto put = [&](Floats step) {
    other[0] += horizontal_sum(sums.tail(step));
    other[1] += horizontal_sum(sums.decay);
    other[2] += horizontal_sum(sums.reset(step));
  };
  for (int64_t j = 0; j < block.count; j += kLanes) {
    Floats steps{};
    each_row(block, j, [&](const auto& columns, Floats step) {
      backward_lanes<Value>(b, buffers, neuron, sizes, columns, step, scratch, mixture_sums, sums);
      steps = step;
    });
    if (!block.step_per_column) continue;
    const Floats found = sums.step(b.scan);
    for (int64_t lane = 0; lane < kLanes && j + lane < block.count; ++lane) step_sums[j + lane] += found[lane];
    put(steps);
    sums = Sums{};
  }
  for (int64_t pair = 0; pair < pairs; ++pair)
    all_mixture_sums[index * pairs + pair] = horizontal_sum(load(mixture_sums + pair * kLanes));
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
    case LBQ_MIXED: return visit(Mixed(b, 0));
  }
}

void forward(const lbq_baseline_scan& b, const lbq_forward_buffers& buffers, int64_t index) {
  with_neuron(b, [&](auto neuron) {
    b.scan.dtype == LBQ_F32 ? forward_block<float>(b, buffers, neuron, index)
                            : forward_block<uint16_t>(b, buffers, neuron, index);
  });
}

void backward(const lbq_baseline_scan& b, const lbq_backward_buffers& buffers, double* mixture_sums, int64_t index) {
  with_neuron(b, [&](auto neuron) {
    b.scan.dtype == LBQ_F32 ? backward_block<float>(b, buffers, mixture_sums, neuron, index)
                            : backward_block<uint16_t>(b, buffers, mixture_sums, neuron, index);
  });
}

}  // namespace
}  // namespace lbq
