// The backward pass on vectors. Nothing here decides a level by more than a division, so the compiler
// may fuse multiplications and additions.
#include "vectors.h"

namespace lbq {
namespace {

struct Kept {
  Floats ratio, membrane, level;
};

template <lbq_keep kKeep>
inline Kept kept_at(const Spread& c, const void* kept, int64_t at, Floats step) {
  Kept k;
  if (kKeep == LBQ_KEEP_MEMBRANES) {
    k.membrane = load(static_cast<const float*>(kept) + at);
    k.ratio = k.membrane / step;
  } else {
    k.ratio = ratios_of(load_raw<Shorts>(static_cast<const int16_t*>(kept) + at));
    k.membrane = k.ratio * step;
  }
  k.level = __builtin_convertvector(level_of(k.ratio, c.max_level), Floats);
  return k;
}

template <class Value, lbq_keep kKeep>
void backward_lanes(const lbq_scan& scan, const Spread& c, const lbq_backward_buffers& b, int64_t i,
                    Floats step, Sums& all_sums) {
  const Value* grads = static_cast<const Value*>(b.grad_bursts) + i;
  Value* grad_currents = static_cast<Value*>(b.grad_currents) + i;
  Floats state = b.grad_last_carry && !scan.detach_carry ? load(b.grad_last_carry + i) : Floats{};
  Sums sums;
  Kept kept = kept_at<kKeep>(c, b.kept, (scan.timesteps - 1) * scan.size + i, step);
  for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
    const Floats grad = load(grads + t * scan.size);
    const Floats grad_membrane = step_back(c, kept.ratio, kept.level, grad, state, sums);
    store(grad_currents + t * scan.size, grad_membrane);
    state = scan.detach_carry ? Floats{} : c.decay * grad_membrane;
    if (t > 0) {  // the timestep before: its carry for the decay's gradient, the rest for the next turn
      kept = kept_at<kKeep>(c, b.kept, (t - 1) * scan.size + i, step);
      sums.decay += grad_membrane * c.carry(kept.membrane, kept.level, step);
    } else {
      if (b.carry) sums.decay += grad_membrane * load(b.carry + i);
      if (b.grad_carry) store(b.grad_carry + i, c.decay * grad_membrane);
    }
  }
  all_sums += sums;
}

template <class Value, lbq_keep kKeep>
void backward_block(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  const Spread coefficients(scan);
  double* step_sums = buffers.step_sums + index * lbq_block_steps(&scan);
  double* other = buffers.other_sums + index * 3;
  const int64_t whole = block.count - block.count % kLanes;
  const auto put = [&](const Sums& sums, Floats step) {
    other[0] += add_up(sums.tail(step));
    other[1] += add_up(sums.decay);
    other[2] += add_up(sums.reset(step));
  };
  Sums sums;
  for (int64_t j = 0; j < whole; j += kLanes) {  // down the columns, so that their sums stay in registers
    const Floats step = block.step_per_column ? load(block.step + j) : all(*block.step);
    for (int64_t row = 0; row < block.rows; ++row)
      backward_lanes<Value, kKeep>(scan, coefficients, buffers, block.first + row * block.count + j, step,
                                   sums);
    if (block.step_per_column) {
      const Floats found = sums.step(scan);
      for (int64_t lane = 0; lane < kLanes; ++lane) step_sums[j + lane] += found[lane];
      put(sums, step);
      sums = Sums{};
    }
  }
  if (!block.step_per_column) {
    step_sums[0] += add_up(sums.step(scan));
    put(sums, all(*block.step));
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
  scan.keep == LBQ_KEEP_MEMBRANES ? backward_block<Value, LBQ_KEEP_MEMBRANES>(scan, buffers, index)
                                  : backward_block<Value, LBQ_KEEP_RESIDUES>(scan, buffers, index);
}

void backward(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  scan.dtype == LBQ_F32 ? backward_of<float>(scan, buffers, index)
                        : backward_of<uint16_t>(scan, buffers, index);
}

}  // namespace
}  // namespace lbq
