#define LBQ_LANES 16
#include "burst_forward-simd.h"

namespace lbq {
const ForwardBlock kBurstForwardAvx512 = forward;
}  // namespace lbq
