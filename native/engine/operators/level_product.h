// Products of matrices of levels. The right operand is packed like the weights of a synapse, the left one becomes lists
// of pairs that are not both zero, and the kernel of synapses multiplies them.
#pragma once

#include "workspace.h"

namespace lbq {

// Whether a product has this kernel: its operands fit 16 bits.
bool has_fast_product(const Network& network, int32_t node);

void run_product(const Plan& plan, const EngineKernels& kernels, const Stage& stage, const Chunk& chunk, Workspace& space);

}  // namespace lbq
