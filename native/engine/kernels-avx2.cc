#include "kernels-simd.h"

namespace lbq {
extern const EngineKernels kEngineAvx2;
const EngineKernels kEngineAvx2 = {"avx2", 255, narrow_offset, wide_offset, pair_tile, list_pairs,
                          count_pairs, dense_block, kPanel, true, &kAvx2Costs, fire, store};
}  // namespace lbq
