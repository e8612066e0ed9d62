#include "kernels-simd.h"

namespace lbq {
extern const EngineKernels kEngineAvx512Vnni;
const EngineKernels kEngineAvx512Vnni = {"avx512vnni", 255, narrow_offset, wide_offset, pair_tile, list_pairs,
                          count_pairs, dense_block, kPanel, false, &kAvx512VnniCosts, fire, store};
}  // namespace lbq
