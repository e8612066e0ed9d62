// The forward pass on vectors. Floating-point contraction is off in these files: a fused multiply-add
// would round once where torch rounds twice, and a membrane at a threshold would land on another level.
#include "vectors.h"

namespace lbq {
namespace {

// Beyond this many bytes, membranes would leave the cache long before the backward reads them.
constexpr int64_t kLargeBytes = 8 << 20;

bool can_store_nontemporal(const lbq_scan& scan, const lbq_forward_buffers& b) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(b.saved) % sizeof(Floats) == 0 && scan.size % kLanes == 0;
  return is_aligned && b.saved && scan.saved == LBQ_SAVE_MEMBRANES && 4 * scan.timesteps * scan.size > kLargeBytes;
}

inline void keep(const lbq_scan& scan, bool nontemporal, void* saved, int64_t at, Floats membrane, Floats ratio) {
  if (nontemporal) return store_nontemporal(static_cast<float*>(saved) + at, membrane);
  if (scan.saved == LBQ_SAVE_MEMBRANES) return store(static_cast<float*>(saved) + at, membrane);
  const Shorts residues = residues_of(ratio);
  std::memcpy(static_cast<int16_t*>(saved) + at, &residues, sizeof residues);
}

template <class Value>
void forward_lanes(const lbq_scan& scan, const Coefficients& c, const lbq_forward_buffers& b, int64_t i,
                   Floats step, bool nontemporal) {
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
    if (b.saved) keep(scan, nontemporal, b.saved, t * scan.size + i, membrane, ratio);
    carry = c.carry(membrane, level, step);
  }
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

}  // namespace
}  // namespace lbq
