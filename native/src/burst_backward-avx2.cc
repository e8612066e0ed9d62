#define LBQ_LANES 8
#include "burst_backward-simd.h"

namespace lbq {
const BackwardBlock kBurstBackwardAvx2 = backward;
}  // namespace lbq
