// A network of integers as it lies in memory: what the reader makes, the interpreter runs and the
// engine packs. docs/deploy/bundle-format.md says what every kind computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lbq {

enum class Kind : uint8_t { kSynapse, kShortcut, kMerge, kPool, kRepeat, kNeuron, kReadout };
enum class Reset : uint8_t { kEvent, kLevel, kZero, kNone };

// One sample at one instant; features without places have height = width = 1.
struct Shape {
  int64_t channels = 0, height = 1, width = 1;
  int64_t size() const { return channels * height * width; }
};

// Nothing that the node adds up, keeps or gives ever leaves low..high.
struct Bound {
  int64_t low = 0, high = 0;
  int32_t bits = 0;  // 16 or 32; 0: the node has none
};

// Integers of 1, 2 or 4 bytes each, in C order, inside the bytes that the network owns.
struct Integers {
  const void* data = nullptr;
  int32_t width = 0;  // bytes of one
  int64_t count = 0;  // 0: there are none
};

// Rows, then columns.
struct Window {
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
};

constexpr int32_t kInput = -1;  // what a node reads instead of another node

struct Node {
  Kind kind = Kind::kMerge;
  std::string path;
  std::vector<int32_t> inputs;  // numbers of earlier nodes, or kInput
  Shape from, to;               // of its first input, and of what it gives
  bool has_time = true;         // gives [T, B, ...]; otherwise [B, ...]
  Bound bound;

  // synapse, pool: the window; a linear layer has is_linear and reads the flattened input in C order
  Window window;
  bool is_linear = false;
  int64_t groups = 1;
  int32_t weight_bits = 8;  // 4, 8 or 16; 4 lie one to a byte
  int64_t max_input = 0;    // synapse, shortcut: the largest value that enters
  Integers weight;          // synapse [O, I / groups, kh, kw] or [O, I]; shortcut [C] or [1]
  Integers bias;            // none, [O], or of the output's shape (C, H, W)
  bool pools_max = false;   // otherwise a sum

  // neuron: thresholds [levels, C] or [levels, 1]; reset_amount [C] or [1]
  Integers thresholds, reset_amount;
  int32_t max_level = 0;
  int32_t multiplier = 0, shift = 0;  // the decay
  Reset reset = Reset::kEvent;
  bool resets_after_decay = false;

  bool sums_over_time = false;  // readout; otherwise it gives the sequence
};

struct Network {
  int64_t timesteps = 1;
  Shape input;
  bool takes_frames = false;  // uint8 [T, B, ...]; otherwise still uint8 [B, ...]
  double logit_scale = 1;
  std::vector<Node> nodes;  // in running order; the last one is the only readout
};

}  // namespace lbq
