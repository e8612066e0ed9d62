// Neurons of other papers on vectors, compiled once per instruction set (native/compile_flags.txt).
#include "baseline_scan.h"

namespace lbq {

const BaselineKernels LBQ_ISA::kBaseline = {forward, backward};

}  // namespace lbq
