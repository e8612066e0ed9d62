// Builds fixed networks for the benchmarks, with pseudorandom weights; owns their integers.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "network.h"

inline uint32_t draw() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

struct NetworkBuilder {
  static constexpr int32_t kMaxLevel = 5;
  lbq::Network network;
  std::vector<std::shared_ptr<void>> memory;

  lbq::Node start(lbq::Kind kind, int32_t input) const {
    const bool is_input = input == lbq::kInput;
    lbq::Node node;
    node.kind = kind;
    node.inputs = {input};
    node.from = node.to = is_input ? network.input : network.nodes[input].to;
    node.bound = {INT32_MIN, INT32_MAX, 32};
    node.has_time = kind == lbq::Kind::kNeuron || (is_input ? network.takes_frames : network.nodes[input].has_time);
    return node;
  }
  int32_t add(const lbq::Node& node) {
    network.nodes.push_back(node);
    return static_cast<int32_t>(network.nodes.size()) - 1;
  }
  template <class Number>
  lbq::Integers keep(std::vector<Number> numbers) {
    const auto kept = std::make_shared<std::vector<Number>>(std::move(numbers));
    memory.push_back(kept);
    return {kept->data(), sizeof(Number), static_cast<int64_t>(kept->size())};
  }

  // A convolution with "same" padding and weights in -max_weight..max_weight.
  int32_t add_synapse(int32_t input, int64_t outputs, int64_t kernel, int64_t stride, int64_t max_input,
                      int max_weight) {
    lbq::Node node = start(lbq::Kind::kSynapse, input);
    node.max_input = max_input;
    for (int axis : {0, 1}) {
      node.window.kernel[axis] = kernel;
      node.window.stride[axis] = stride;
      node.window.padding[axis] = kernel / 2;
    }
    node.to = {outputs, (node.from.height - 1) / stride + 1, (node.from.width - 1) / stride + 1};
    std::vector<int8_t> weights(outputs * node.from.channels * kernel * kernel);
    for (int8_t& weight : weights)
      weight = static_cast<int8_t>(static_cast<int>(draw() % (2 * max_weight + 1)) - max_weight);
    node.weight = keep(std::move(weights));
    return add(node);
  }
  // Thresholds at multiples of `step`, decay multiplier / 2^shift.
  int32_t add_neuron(int32_t input, int32_t step, int32_t multiplier = 1, int32_t shift = 1,
                     lbq::Reset reset = lbq::Reset::kEvent) {
    lbq::Node node = start(lbq::Kind::kNeuron, input);
    node.max_level = kMaxLevel;
    node.multiplier = multiplier;
    node.shift = shift;
    node.reset = reset;
    std::vector<int32_t> thresholds;
    for (int32_t level = 1; level <= kMaxLevel; ++level) thresholds.push_back(level * step);
    node.thresholds = keep(std::move(thresholds));
    node.reset_amount = keep(std::vector<int32_t>{step});
    return add(node);
  }
  int32_t add_shortcut(int32_t input, int16_t weight, int64_t max_input) {
    lbq::Node node = start(lbq::Kind::kShortcut, input);
    node.max_input = max_input;
    node.weight = keep(std::vector<int16_t>{weight});
    return add(node);
  }
  void add_readout(int32_t input) {
    lbq::Node readout = start(lbq::Kind::kReadout, input);
    readout.sums_over_time = true;
    add(readout);
  }
};
