#define LBQ_LANES 4
#include "burst_backward-simd.h"

namespace lbq {
const BackwardBlock kBurstBackwardNeon = backward;
}  // namespace lbq
