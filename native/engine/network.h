// An integer network in memory: made by the reader or the C API, run by the interpreter and the engine.
// docs/deploy/bundle-format.md defines what every kind computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lbq {

enum class Kind : uint8_t { kSynapse, kShortcut, kMerge, kPool, kRepeat, kNeuron, kReadout };
enum class Reset : uint8_t { kEvent, kLevel, kZero, kNone };

// One sample at one instant; features have height = width = 1.
struct Shape {
  int64_t channels = 0, height = 1, width = 1;
  int64_t size() const { return channels * height * width; }
  bool operator==(const Shape& other) const {
    return channels == other.channels && height == other.height && width == other.width;
  }
};

// All sums, carries and outputs of the node lie in low..high.
struct Bound {
  int64_t low = 0, high = 0;
  int32_t bits = 0;  // 16 or 32; 0: no bound
};

// A view of integers of 1, 2 or 4 bytes, in C order.
struct Integers {
  const void* data = nullptr;
  int32_t width = 0;  // bytes per integer
  int64_t count = 0;  // 0: absent
};

// Call use(pointer to the integers in their own type).
template <class Use>
auto with_type(const Integers& integers, Use use) {
  if (integers.width == 1) return use(static_cast<const int8_t*>(integers.data));
  if (integers.width == 2) return use(static_cast<const int16_t*>(integers.data));
  return use(static_cast<const int32_t*>(integers.data));
}
inline int64_t integer_at(const Integers& integers, int64_t index) {
  return with_type(integers, [=](const auto* values) { return static_cast<int64_t>(values[index]); });
}
// One integer per channel, or one for all.
inline int64_t of_channel(const Integers& integers, int64_t channel) {
  return integer_at(integers, integers.count == 1 ? 0 : channel);
}

// Rows, then columns.
struct Window {
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
};

constexpr int32_t kInput = -1;  // as an input of a node: the network's input

struct Node {
  Kind kind = Kind::kMerge;
  std::string path;
  std::vector<int32_t> inputs;  // numbers of earlier nodes, or kInput
  Shape from, to;               // of its first input and of its output
  bool has_time = true;         // of its output: [T, B, ...]; otherwise [B, ...]
  Bound bound;

  // synapse, pool: the window; a linear layer has is_linear and reads the flattened input in C order
  Window window;
  bool is_linear = false;
  int64_t groups = 1;
  int32_t weight_bits = 8;  // 4, 8 or 16; 4-bit weights use one byte each
  int64_t max_input = 0;    // synapse, shortcut: the largest input value
  Integers weight;          // synapse [O, I / groups, kh, kw] or [O, I]; shortcut [C] or [1]
  Integers bias;            // none, [O], or of the output's shape (C, H, W)
  bool pools_max = false;   // otherwise a sum

  // neuron: thresholds [levels, C] or [levels, 1]; reset_amount [C] or [1]
  Integers thresholds, reset_amount;
  int32_t max_level = 0;
  int32_t multiplier = 0, shift = 0;  // the decay
  Reset reset = Reset::kEvent;
  bool resets_after_decay = false;

  bool sums_over_time = false;  // readout; otherwise its output is the sequence
};

// The threshold of level `index` + 1.
inline int64_t threshold(const Node& neuron, int64_t index, int64_t channel) {
  const int64_t columns = neuron.thresholds.count / neuron.max_level;
  return integer_at(neuron.thresholds, index * columns + (columns == 1 ? 0 : channel));
}

// The window of a synapse; that of a linear layer covers its input.
inline Window window_of(const Node& node) {
  if (!node.is_linear) return node.window;
  Window window;
  window.kernel[0] = node.from.height;
  window.kernel[1] = node.from.width;
  return window;
}

struct Network {
  int64_t timesteps = 1;
  Shape input;
  bool takes_frames = false;  // input uint8 [T, B, ...]; otherwise [B, ...]
  double logit_scale = 1;
  std::vector<Node> nodes;  // in execution order; the last one is the only readout
};

}  // namespace lbq
