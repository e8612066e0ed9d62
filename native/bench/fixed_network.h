// Builds fixed networks for the benchmarks, with pseudorandom weights.
#pragma once

#include "../test/network_builder.h"

inline uint32_t draw() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

struct FixedNetwork : NetworkBuilder {
  static constexpr int32_t kMaxLevel = 5;

  // A convolution with "same" padding and weights in -max_weight..max_weight.
  int32_t add_synapse(int32_t input, int64_t outputs, int64_t kernel, int64_t stride, int64_t max_input,
                      int max_weight) {
    lbq::Node node = start(lbq::Kind::kSynapse, input);
    node.max_input = max_input;
    for (int axis : {0, 1}) {
      node.window.stride[axis] = stride;
      node.window.padding[axis] = kernel / 2;
    }
    std::vector<int8_t> weights(outputs * node.from.channels * kernel * kernel);
    for (int8_t& weight : weights)
      weight = static_cast<int8_t>(static_cast<int>(draw() % (2 * max_weight + 1)) - max_weight);
    node.weight = keep(std::move(weights), {outputs, node.from.channels, kernel, kernel});
    return add(node);
  }
  // Thresholds at multiples of `step`, decay multiplier / 2^shift.
  int32_t add_neuron(int32_t input, int32_t step, int32_t multiplier = 1, int32_t shift = 1,
                     lbq_reset_mode reset = LBQ_RESET_EVENT) {
    lbq::Node node = start(lbq::Kind::kIntegerNeuron, input);
    node.multiplier = multiplier;
    node.shift = shift;
    node.reset = reset;
    std::vector<int32_t> thresholds;
    for (int32_t level = 1; level <= kMaxLevel; ++level) thresholds.push_back(level * step);
    node.thresholds = keep(std::move(thresholds), {kMaxLevel, 1});
    node.reset_amount = keep(std::vector<int32_t>{step}, {1});
    return add(node);
  }
  int32_t add_shortcut(int32_t input, int16_t weight, int64_t max_input) {
    lbq::Node node = start(lbq::Kind::kShortcut, input);
    node.max_input = max_input;
    node.weight = keep(std::vector<int16_t>{weight}, {1});
    return add(node);
  }
  void add_readout(int32_t input) {
    add(start(lbq::Kind::kReadout, input));
  }
};
