#define LBQ_LANES 8
#include "burst_forward-simd.h"

namespace lbq {
const ForwardBlock kBurstForwardAvx2 = forward;
}  // namespace lbq
