// Nodes without SIMD kernels: pools, and synapses whose inputs exceed a byte.
#pragma once

#include "workspace.h"

namespace lbq {

// A value in memory: [instants, pixels, stride], bytes or int32.
struct NodeValue {
  const Value& value;
  char* data;
  int64_t at(int64_t index) const {
    return value.are_levels ? reinterpret_cast<const uint8_t*>(data)[index] : reinterpret_cast<const int32_t*>(data)[index];
  }
};

// A convolution or a linear layer in int64.
void generic_conv(const Node& node, const NodeValue& from, const NodeValue& to, int64_t instants);
void pool(const Node& node, const NodeValue& from, const NodeValue& to, int64_t instants);

}  // namespace lbq
