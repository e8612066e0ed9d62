// The forward pass on vectors. Floating-point contraction is off in these files: a fused multiply-add
// would round once where torch rounds twice, and a membrane at a threshold would land on another level.
#include "vectors.h"

namespace lbq {
namespace {

inline void keep(lbq_keep what, void* kept, int64_t at, Floats membrane, Floats ratio) {
  if (what == LBQ_KEEP_MEMBRANES) return store(static_cast<float*>(kept) + at, membrane);
  const Shorts residues = residues_of(ratio);
  std::memcpy(static_cast<int16_t*>(kept) + at, &residues, sizeof residues);
}

template <class Value>
void forward_lanes(const lbq_scan& scan, const Spread& c, const lbq_forward_buffers& b, int64_t i,
                   Floats step) {
  const Value* currents = static_cast<const Value*>(b.currents) + i;
  Value* bursts = static_cast<Value*>(b.bursts) + i;
  Floats carry = b.carry ? load(b.carry + i) : Floats{};
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const Floats current = load(currents + t * scan.current_stride);
    const Floats membrane = t == 0 && !b.carry ? current : c.decay * carry + current;
    const Floats ratio = membrane / step;
    const Ints whole = level_of(ratio, c.max_level);
    const Floats level = __builtin_convertvector(whole, Floats);
    const Bytes bytes = bytes_of(whole);
    store(bursts + t * scan.size, membrane == membrane ? step * level : membrane);  // a NaN stays one
    std::memcpy(b.levels + t * scan.size + i, &bytes, sizeof bytes);
    if (b.kept) keep(scan.keep, b.kept, t * scan.size + i, membrane, ratio);
    carry = c.carry(membrane, level, step);
  }
  store(b.last_carry + i, carry);
}

template <class Value>
void forward_block(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  const Spread coefficients(scan);
  const int64_t whole = block.count - block.count % kLanes;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t first = block.first + row * block.count;
    for (int64_t j = 0; j < whole; j += kLanes) {
      const Floats step = block.step_per_column ? load(block.step + j) : all(*block.step);
      forward_lanes<Value>(scan, coefficients, buffers, first + j, step);
    }
    for (int64_t j = whole; j < block.count; ++j)
      forward_value(scan, buffers, first + j, block.step[block.step_per_column ? j : 0]);
  }
}

void forward(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index) {
  scan.dtype == LBQ_F32 ? forward_block<float>(scan, buffers, index)
                        : forward_block<uint16_t>(scan, buffers, index);
}

}  // namespace
}  // namespace lbq
