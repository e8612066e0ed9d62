#include "kernels-simd.h"

namespace lbq {
extern const EngineKernels kEngineAvx512;
const EngineKernels kEngineAvx512 = {"avx512", 255, narrow_offset, wide_offset, pair_tile, list_pairs,
                          count_pairs, dense_block, kPanel, true, &kAvx512Costs, fire, store};
}  // namespace lbq
