#define LBQ_LANES 4
#include "normed_scan-simd.h"

namespace lbq {
const NormedKernels kNormedNeon = kNormed;
}  // namespace lbq
