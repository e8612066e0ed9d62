// Builds networks for tests and benchmarks; owns their integers.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "operators.h"

struct NetworkBuilder {
  lbq::Network network;
  std::vector<std::shared_ptr<void>> memory;

  // A node that reads this one, with the widest bound.
  lbq::Node start(lbq::Kind kind, int32_t input) const {
    lbq::Node node;
    node.kind = kind;
    node.inputs = {input};
    node.from = node.to = network.value(input).shape;
    node.bound = {INT32_MIN, INT32_MAX, 32};
    node.has_time = network.value(input).has_time;
    return node;
  }
  int32_t add(lbq::Node node) {
    std::vector<lbq::ValueInfo> inputs;
    for (int32_t input : node.inputs) inputs.push_back(network.value(input));
    lbq::infer(node, inputs, network.timesteps);
    network.nodes.push_back(std::move(node));
    return static_cast<int32_t>(network.nodes.size()) - 1;
  }
  template <class Number>
  lbq::Integers keep(std::vector<Number> numbers, const std::vector<int64_t>& shape) {
    const auto kept = std::make_shared<std::vector<Number>>(std::move(numbers));
    memory.push_back(kept);
    lbq::Integers integers{kept->data(), sizeof(Number), static_cast<int64_t>(kept->size()), 0, {}};
    for (const int64_t size : shape) integers.shape[integers.num_dims++] = size;
    return integers;
  }
};
