// Values of nodes without SIMD kernels: pools (operators/pool.cc), and all that have the exact kernel only.
#pragma once

#include "workspace.h"

namespace lbq {

// A value in memory: [instants, pixels, stride], bytes or int32.
struct NodeValue {
  const Value& value;
  char* data;
  int64_t instant_size() const { return value.shape.height * value.shape.width * value.stride; }
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

void pool(const Node& node, const NodeValue& from, const NodeValue& to, int64_t instants);

// The exact kernel of operators.h on every instant. Inputs without time are the same at all timesteps.
void run_plain(const Node& node, const std::vector<NodeValue>& inputs, const NodeValue& to, const Chunk& chunk,
               Workspace& space);

}  // namespace lbq
