#define LBQ_LANES 16
#include "burst_backward-simd.h"

namespace lbq {
const BackwardBlock kBurstBackwardAvx512Bf16 = backward;
}  // namespace lbq
