// The burst neuron on vectors, compiled once per instruction set (native/compile_flags.txt).
//
// The forward pass rounds its products explicitly: a fused multiply-add would round once where torch rounds twice, and
// a membrane at a threshold would get another level.
#include <vector>

#include "vectors.h"

namespace lbq {
namespace {

// Beyond this many bytes, membranes would leave the cache long before the backward reads them.
constexpr int64_t kLargeBytes = 8 << 20;

bool can_store_nontemporal(const lbq_scan& scan, const lbq_forward_buffers& b) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(b.saved) % sizeof(Floats) == 0 && scan.size % kLanes == 0;
  return is_aligned && b.saved && 4 * scan.timesteps * scan.size > kLargeBytes;
}

inline void save(bool nontemporal, void* saved, int64_t at, Floats membrane) {
  float* place = static_cast<float*>(saved) + at;
  nontemporal ? store_nontemporal(place, membrane) : store(place, membrane);
}

// Run a vector of neurons over time: visit(t, membrane, level, level as a float); returns the last carry.
template <class Value, class Visit>
inline Floats run_in_time(const lbq_scan& scan, const Coefficients& c, const void* from, const float* start, int64_t i,
                          Floats step, Visit visit) {
  const Value* currents = static_cast<const Value*>(from) + i;
  Floats carry = start ? load(start + i) : Floats{};
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const Floats current = load(currents + t * scan.current_stride);
    const Floats membrane = t == 0 && !start ? current : round_product(c.decay * carry) + current;
    const Ints whole = level_of(membrane / step, c.max_level);
    const Floats level = __builtin_convertvector(whole, Floats);
    visit(t, membrane, whole, level);
    carry = c.carry(membrane, level, step);
  }
  return carry;
}

template <class Value>
void forward_lanes(const lbq_scan& scan, const Coefficients& c, const lbq_forward_buffers& b, int64_t i,
                   Floats step, bool nontemporal) {
  Value* bursts = static_cast<Value*>(b.bursts) + i;
  const Floats carry = run_in_time<Value>(
      scan, c, b.currents, b.carry, i, step,
      [&](int64_t t, Floats membrane, Ints whole, Floats level) {
        const Bytes bytes = bytes_of(whole);
        store(bursts + t * scan.size, membrane == membrane ? step * level : membrane);  // a NaN stays one
        std::memcpy(b.levels + t * scan.size + i, &bytes, sizeof bytes);
        if (b.saved) save(nontemporal, b.saved, t * scan.size + i, membrane);
      });
  store(b.last_carry + i, carry);
}

template <class Value>
void forward_block(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  const Coefficients coefficients(scan);
  const int64_t whole = block.count - block.count % kLanes;
  const bool nontemporal = whole == block.count && block.first % kLanes == 0 && can_store_nontemporal(scan, buffers);
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t first = block.first + row * block.count;
    for (int64_t j = 0; j < whole; j += kLanes) {
      const Floats step = block.step_per_column ? load(block.step + j) : broadcast(*block.step);
      forward_lanes<Value>(scan, coefficients, buffers, first + j, step, nontemporal);
    }
    for (int64_t j = whole; j < block.count; ++j)
      forward_value(scan, buffers, first + j, block.step[block.step_per_column ? j : 0]);
  }
  if (nontemporal) fence_nontemporal();
}

void forward(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index) {
  scan.dtype == LBQ_F32 ? forward_block<float>(scan, buffers, index)
                        : forward_block<uint16_t>(scan, buffers, index);
}

// ---- backward: nothing here decides a level by more than a division ----

struct Saved {
  Floats ratio, membrane, level;
};

inline Saved saved_at(const Coefficients& c, const void* saved, int64_t at, Floats step) {
  Saved k;
  k.membrane = load(static_cast<const float*>(saved) + at);
  k.ratio = k.membrane / step;
  k.level = __builtin_convertvector(level_of(k.ratio, c.max_level), Floats);
  return k;
}

template <class Value, lbq_saved kSaved>
void backward_lanes(const lbq_scan& scan, const Coefficients& c, const lbq_backward_buffers& b, int64_t i,
                    Floats step, float* membranes, Sums& all_sums) {
  constexpr bool kRecomputes = kSaved == LBQ_SAVE_CURRENTS;
  if (kRecomputes)
    run_in_time<Value>(scan, c, b.saved, b.carry, i, step, [&](int64_t t, Floats membrane, Ints, Floats) {
      store(membranes + t * kLanes, membrane);
    });
  const void* from = kRecomputes ? membranes : b.saved;
  const int64_t first = kRecomputes ? 0 : i, stride = kRecomputes ? kLanes : scan.size;
  const Value* grads = static_cast<const Value*>(b.grad_bursts) + i;
  Value* grad_currents = static_cast<Value*>(b.grad_currents) + i;
  Floats state = b.grad_last_carry && !scan.detach_carry ? load(b.grad_last_carry + i) : Floats{};
  Sums sums;
  Saved saved = saved_at(c, from, first + (scan.timesteps - 1) * stride, step);
  for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
    const Floats grad = load(grads + t * scan.size);
    const Floats grad_membrane = step_back(c, saved.ratio, saved.level, grad, state, sums);
    store(grad_currents + t * scan.size, grad_membrane);
    state = scan.detach_carry ? Floats{} : c.decay * grad_membrane;
    if (t > 0) {  // the timestep before: its carry for the decay's gradient, the rest for the next turn
      saved = saved_at(c, from, first + (t - 1) * stride, step);
      sums.decay += grad_membrane * c.carry(saved.membrane, saved.level, step);
    } else {
      if (b.carry) sums.decay += grad_membrane * load(b.carry + i);
      if (b.grad_carry) store(b.grad_carry + i, c.decay * grad_membrane);
    }
  }
  all_sums += sums;
}

template <class Value, lbq_saved kSaved>
void backward_block(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  const Coefficients coefficients(scan);
  double* step_sums = buffers.step_sums + index * lbq_block_steps(&scan);
  double* other = buffers.other_sums + index * 3;
  const int64_t whole = block.count - block.count % kLanes;
  const auto put = [&](const Sums& sums, Floats step) {
    other[0] += horizontal_sum(sums.tail(step));
    other[1] += horizontal_sum(sums.decay);
    other[2] += horizontal_sum(sums.reset(step));
  };
  Sums sums;
  std::vector<float> membranes(kSaved == LBQ_SAVE_CURRENTS ? scan.timesteps * kLanes : 0);
  for (int64_t j = 0; j < whole; j += kLanes) {  // down the columns, so that their sums stay in registers
    const Floats step = block.step_per_column ? load(block.step + j) : broadcast(*block.step);
    for (int64_t row = 0; row < block.rows; ++row)
      backward_lanes<Value, kSaved>(scan, coefficients, buffers, block.first + row * block.count + j, step,
                                   membranes.data(), sums);
    if (block.step_per_column) {
      const Floats found = sums.step(scan);
      for (int64_t lane = 0; lane < kLanes; ++lane) step_sums[j + lane] += found[lane];
      put(sums, step);
      sums = Sums{};
    }
  }
  if (!block.step_per_column) {
    step_sums[0] += horizontal_sum(sums.step(scan));
    put(sums, broadcast(*block.step));
  }
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t j = whole; j < block.count; ++j) {
      const int64_t column = block.step_per_column ? j : 0;
      backward_value(scan, buffers, block.first + row * block.count + j, block.step[column],
                     step_sums[column], other);
    }
}

template <class Value>
void backward_of(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  if (scan.saved == LBQ_SAVE_CURRENTS) return backward_block<Value, LBQ_SAVE_CURRENTS>(scan, buffers, index);
  backward_block<Value, LBQ_SAVE_MEMBRANES>(scan, buffers, index);
}

void backward(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  scan.dtype == LBQ_F32 ? backward_of<float>(scan, buffers, index)
                        : backward_of<uint16_t>(scan, buffers, index);
}

}  // namespace

const BurstKernels LBQ_ISA::kBurst = {forward, backward};

}  // namespace lbq
