// The kernels of one instruction set, and the set in use.
#pragma once

#include "burst_scan.h"
#include "normed_scan.h"

namespace lbq {

struct Kernels {
  const char* isa;
  const ForwardBlock& forward;
  const BackwardBlock& backward;
  const NormedKernels& normed;
};

const Kernels& kernels();

}  // namespace lbq
