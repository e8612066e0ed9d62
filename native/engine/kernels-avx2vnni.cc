#include "kernels-simd.h"

namespace lbq {
extern const EngineKernels kEngineAvx2Vnni;
const EngineKernels kEngineAvx2Vnni = {"avx2vnni", 255, narrow_offset, wide_offset, pair_tile, list_pairs,
                          count_pairs, dense_block, kPanel, false, &kAvx2VnniCosts, fire, store};
}  // namespace lbq
