// The C interface of packed bursts: checks and blocks.
#include "scan_kernels.h"

namespace lbq {
namespace {

bool is_valid(const lbq_packing* p, int64_t first, int64_t last) {
  if (!p || p->size < 0 || p->run < 1 || p->num_steps < 1 || !p->step) return false;
  if (p->max_level < 1 || p->max_level > 255) return false;
  return first >= 0 && first <= last && last <= lbq_packing_num_blocks(p);
}

}  // namespace
}  // namespace lbq

extern "C" {

int64_t lbq_packing_num_blocks(const lbq_packing* p) {
  const int64_t per_block = lbq::kPackedBlockBytes * lbq::levels_per_byte(p->max_level);
  return (p->size + per_block - 1) / per_block;
}

int64_t lbq_packed_bytes(const lbq_packing* p) {
  const int64_t per_byte = lbq::levels_per_byte(p->max_level);
  return (p->size + per_byte - 1) / per_byte;
}

lbq_status lbq_pack_bursts(const lbq_packing* p, const void* bursts, uint8_t* packed, int64_t first, int64_t last) {
  if (!lbq::is_valid(p, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block)
    if (!lbq::scan_kernels().packing.pack(*p, bursts, packed, block)) return LBQ_NOT_BURSTS;
  return LBQ_OK;
}

lbq_status lbq_unpack_bursts(const lbq_packing* p, const uint8_t* packed, void* bursts, int64_t first, int64_t last) {
  if (!lbq::is_valid(p, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block) lbq::scan_kernels().packing.unpack(*p, packed, bursts, block);
  return LBQ_OK;
}

}  // extern "C"
