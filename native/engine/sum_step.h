// Adding up everything that one neuron, or one reader of currents, waits for.
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

// Called for one block of outputs of neighbouring positions, with pointers and strides filled in:
// `position` is the first of them, counted over images and pixels; `output` the first channel.
using Epilogue = std::function<void(const CurrentBlock& block, int64_t position, int64_t output)>;

void run_sum(const SumContext& context, const Sum& sum, const Epilogue& use, StepRecord* record);

}  // namespace lbq
