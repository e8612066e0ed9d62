#define LBQ_LANES 16
#include "normed_scan-simd.h"

namespace lbq {
const NormedKernels kNormedAvx512 = kNormed;
}  // namespace lbq
