// Packed bursts one value at a time: the reference.
#include "scalar.h"
#include "scan_kernels.h"

namespace lbq {
namespace {

float step_of(const lbq_packing& p, int64_t at) { return p.step[at / p.run % p.num_steps]; }

bool has_bits_of(const lbq_packing& p, const void* bursts, int64_t at, float burst) {
  const size_t width = p.dtype == LBQ_F32 ? 4 : 2;
  char bytes[4];
  store(bytes, p.dtype, 0, burst);
  return std::memcmp(bytes, static_cast<const char*>(bursts) + at * width, width) == 0;
}

bool pack(const lbq_packing& p, const void* bursts, uint8_t* packed, int64_t index) {
  const PackedBlock block = packed_block(p, index);
  for (int64_t j = 0; j < block.bytes; ++j) packed[block.first_byte + j] = 0;
  int digit = 1;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t at = block.first + i;
    const float step = step_of(p, at), level = level_of(load(bursts, p.dtype, at) / step + 0.5f, p.max_level);
    if (!has_bits_of(p, bursts, at, step * level)) return false;
    packed[block.first_byte + i % block.bytes] += static_cast<uint8_t>(digit * static_cast<int>(level));
    if ((i + 1) % block.bytes == 0) digit *= p.max_level + 1;
  }
  return true;
}

void unpack(const lbq_packing& p, const uint8_t* packed, void* bursts, int64_t index) {
  const PackedBlock block = packed_block(p, index);
  int digit = 1;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t at = block.first + i;
    const int level = packed[block.first_byte + i % block.bytes] / digit % (p.max_level + 1);
    store(bursts, p.dtype, at, step_of(p, at) * static_cast<float>(level));
    if ((i + 1) % block.bytes == 0) digit *= p.max_level + 1;
  }
}

}  // namespace

const PackingKernels scalar::kPacking{pack, unpack};

}  // namespace lbq
