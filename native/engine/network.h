// An integer network in memory. The reader and the C API build it; the interpreter and the engine run it.
// docs/deploy/bundle-format.md defines what every kind computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lbq.h"

namespace lbq {

// Every operator; `operators/` defines what it does.
#define LBQ_OPERATORS(with)                                                                                     \
  with(Synapse) with(Shortcut) with(Merge) with(Offset) with(Multiply) with(Matmul) with(Pool) with(Repeat)     \
  with(Readout) with(IntegerNeuron) with(Concat) with(Slice) with(Roll) with(Rearrange) with(Upsample) with(ZeroPad)

enum class Kind : uint8_t {
#define LBQ_KIND(name) k##name,
  LBQ_OPERATORS(LBQ_KIND)
#undef LBQ_KIND
};

// The shape of one sample at one timestep, channels first: features have rank 1, sequences of features rank 2. Axes
// beyond the rank have length 1.
struct Shape {
  int64_t channels = 0, height = 1, width = 1;
  int32_t rank = 3;
  int64_t size() const { return channels * height * width; }
  int64_t& operator[](int axis) { return axis == 0 ? channels : axis == 1 ? height : width; }
  int64_t operator[](int axis) const { return const_cast<Shape&>(*this)[axis]; }
  bool operator==(const Shape& other) const {
    return channels == other.channels && height == other.height && width == other.width && rank == other.rank;
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
};

constexpr int64_t kCurrents = -1;  // instead of a largest level

// Describes the output of a node, or the input.
struct ValueInfo {
  Shape shape;
  bool has_time = false;          // [T, B, ...]; otherwise [B, ...]
  int64_t max_level = kCurrents;  // largest level, or largest sum or product of levels
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
  int32_t num_dims = 0;
  int64_t shape[4] = {};
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

// A setting that is a list of integers.
template <int kMost>
struct List {
  int32_t count = 0;
  int64_t values[kMost] = {};
  int64_t& operator[](int64_t index) { return values[index]; }
  int64_t operator[](int64_t index) const { return values[index]; }
};
// One number for every spatial axis: rows, then columns. A value of rank 2 has one axis.
using PerAxis = List<2>;
using Factors = List<8>;

struct Window {
  PerAxis kernel{2, {1, 1}}, stride{2, {1, 1}}, padding{2, {0, 0}}, dilation{2, {1, 1}};
};

constexpr int32_t kInput = -1;  // as an input of a node: the network's input

enum class OverTime : uint8_t { kMean, kSum, kNone };

// An operator (operators.h) with its settings and tensors.
struct Node {
  Kind kind = Kind::kMerge;
  std::string path;
  std::vector<int32_t> inputs;  // numbers of earlier nodes, or kInput
  Bound bound;

  // Filled in by infer() of operators.h, as are the kernel and `is_linear` of a synapse and the levels of a neuron.
  Shape from, to;        // shapes of its first input and its output
  bool has_time = true;  // whether its output has time; for most operators a setting, which must match the inputs
  int64_t largest = kCurrents;  // largest level of its output

  // synapse, pool: the window; a linear layer has is_linear and reads the flattened input in C order
  Window window;
  bool is_linear = false;
  int64_t groups = 1;
  int32_t weight_bits = 8;  // 4, 8 or 16; a shortcut has 16; 4-bit weights use one byte each
  int64_t max_input = 0;    // synapse, shortcut: the largest input value
  Integers weight;          // synapse [O, I / groups, *kernel] or [O, I]; shortcut [C] or [1]
  Integers bias;            // absent, [O], or the output's shape; offset: the output's rank, each axis as long or 1
  bool pools_max = false;   // otherwise a sum

  // neuron: thresholds [levels, C] or [levels, 1]; reset_amount [C] or [1]
  Integers thresholds, reset_amount;
  int32_t max_level = 0;
  int32_t multiplier = 0, shift = 0;  // the decay
  lbq_reset_mode reset = LBQ_RESET_EVENT;
  bool resets_after_decay = false;

  int64_t repeats = 0;                   // repeat: the number of timesteps
  OverTime over_time = OverTime::kSum;   // readout

  int64_t axis = 0, start = 0, stop = 0, step = 1;  // concat, slice
  Factors sizes, order, shape;                      // rearrange
  PerAxis factors;                                  // upsample
  bool fills_zeros = false;
  PerAxis before, after;  // zero_pad

  bool is_output() const { return kind == Kind::kReadout; }
  bool sums_over_time() const { return over_time == OverTime::kSum; }
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
  std::vector<Node> nodes;  // in execution order; every readout is an output, and the last node is one

  bool sums_over_time() const { return nodes.back().sums_over_time(); }  // as all readouts do
  ValueInfo value(int32_t node) const {
    if (node == kInput) return {input, takes_frames, 255};
    return {nodes[node].to, nodes[node].has_time, nodes[node].largest};
  }
  // Number of output values for one sample and timestep, of the readouts among the first nodes or of all.
  int64_t output_size(size_t num_nodes) const {
    int64_t size = 0;
    for (size_t i = 0; i < num_nodes; ++i)
      if (nodes[i].is_output()) size += nodes[i].to.size();
    return size;
  }
  int64_t output_size() const { return output_size(nodes.size()); }
};

}  // namespace lbq
