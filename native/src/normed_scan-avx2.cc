#define LBQ_LANES 8
#include "normed_scan-simd.h"

namespace lbq {
const NormedKernels kNormedAvx2 = kNormed;
}  // namespace lbq
