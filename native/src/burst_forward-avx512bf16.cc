#define LBQ_LANES 16
#include "burst_forward-simd.h"

namespace lbq {
const ForwardBlock kBurstForwardAvx512Bf16 = forward;
}  // namespace lbq
