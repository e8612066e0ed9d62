#define LBQ_LANES 16
#include "normed_scan-simd.h"

namespace lbq {
const NormedKernels kNormedAvx512Bf16 = kNormed;
}  // namespace lbq
