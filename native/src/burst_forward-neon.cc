#define LBQ_LANES 4
#include "burst_forward-simd.h"

namespace lbq {
const ForwardBlock kBurstForwardNeon = forward;
}  // namespace lbq
