#include "kernels-simd.h"

namespace lbq {
extern const EngineKernels kEngineNeon;
const EngineKernels kEngineNeon = {"neon", 127, narrow_offset, wide_offset, pair_tile, list_pairs,
                          count_pairs, nullptr, 1, false, nullptr, fire, store};
}  // namespace lbq
