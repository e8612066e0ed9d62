// Neurons of other papers one value at a time: the reference.
#define LBQ_LANES 1
#include "baseline_scan.h"

namespace lbq {

const BaselineKernels scalar::kBaseline = {forward, backward};

}  // namespace lbq
