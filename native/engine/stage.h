// The context in which stages execute: the values of a chunk of images and timesteps; and the functions that compute a
// sum of terms, or an operator by its exact kernel.
#pragma once

#include "engine.h"
#include "workspace.h"

namespace lbq {

// A value in memory: [instants, pixels, stride], bytes or int32.
struct NodeValue {
  const Value& value;
  char* data;
  int64_t at(int64_t index) const {
    return value.are_levels ? reinterpret_cast<const uint8_t*>(data)[index] : reinterpret_cast<const int32_t*>(data)[index];
  }
  void put(int64_t index, int64_t number) const {
    if (value.are_levels) {
      reinterpret_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(number);
    } else {
      reinterpret_cast<int32_t*>(data)[index] = static_cast<int32_t>(number);
    }
  }
};

// Call use(pointer to the numbers of a value in their own type).
template <class Use>
void with_numbers(const NodeValue& value, Use use) {
  if (value.value.are_levels) return use(reinterpret_cast<uint8_t*>(value.data));
  use(reinterpret_cast<int32_t*>(value.data));
}

// The carries before and after a chunk; `first` is the chunk's first image in them.
struct ChunkCarries {
  Carries* carries;  // null: start at zero, discard the last carries
  int64_t first;
};

struct Answers {
  int32_t* to;
  int64_t batch, first_image;  // of the whole run, and of this chunk in it
  int64_t first_timestep, timesteps;  // of this chunk, and of the whole run
  uint8_t* const* levels;      // see RunOptions
};

struct ChunkContext {
  const Network& network;
  const Plan& plan;
  const EngineKernels& kernels;
  Choice choice;
  Workspace& space;
  Chunk chunk;
  Answers answers;
  ChunkCarries state;

  // Of the input, or of a node whose values a stage stores.
  NodeValue value(int32_t node) const { return {plan.value(node), space.of(node)}; }
  // One instant of it: without time, all timesteps are the same.
  NodeValue instant(int32_t node, int64_t index) const {
    const Value& all = plan.value(node);
    return {all, space.of(node) + (all.has_time ? index : index % chunk.batch) * all.instant_size() * all.bytes()};
  }
};

using Execute = void(const ChunkContext& context, const Stage& stage, StageRecord& record);

// The plan of an operator that reads its inputs.
template <Execute* kExecute>
void plan_stage(Planner& planner, Stage& stage) {
  for (int32_t input : planner.at(stage.node).inputs) planner.read(stage, input);
  stage.execute = kExecute;
}

// Consumes the currents of one block: neighbouring positions from `position` on (counted over images and pixels) and
// outputs from `output` on.
using Epilogue = std::function<void(const CurrentBlock& block, int64_t position, int64_t output)>;

// Compute a stage's sum: choose events or dense products per synapse and run the epilogue (neuron or store) per block.
void run_sum(const ChunkContext& context, const Stage& stage, const Epilogue& use, StageRecord& record);
Execute store_sum;

}  // namespace lbq
