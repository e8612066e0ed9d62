// Computes a Sum: chooses events or dense products per synapse and runs the epilogue (neuron or store) per block.
#pragma once

#include <functional>

#include "engine.h"
#include "workspace.h"

namespace lbq {

struct SumContext {
  const Plan& plan;
  const EngineKernels& kernels;
  Choice choice;
  Workspace& space;
  Chunk chunk;
};

// Consumes the currents of one block: neighbouring positions from `position` on (counted over images and pixels) and
// outputs from `output` on.
using Epilogue = std::function<void(const CurrentBlock& block, int64_t position, int64_t output)>;

void run_sum(const SumContext& context, const Sum& sum, const Epilogue& use, StageRecord* record);

}  // namespace lbq
