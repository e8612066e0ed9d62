#include "check_network.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "plan.h"

namespace lbq {
namespace {

constexpr int64_t kMaxValues = int64_t{1} << 24;  // of one sample at one instant
constexpr int64_t kMaxWindow = int64_t{1} << 24;  // size, stride, padding or dilation of a window
constexpr int64_t kMaxTimesteps = 4096;
constexpr int32_t kMaxLevel = 255, kMaxShift = 30;
constexpr const char* kKindNames[] = {"synapse", "shortcut", "merge", "pool", "repeat", "neuron", "readout"};

bool has_size(const Shape& shape) {
  const int64_t sizes[] = {shape.channels, shape.height, shape.width};
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size < 1 || size > kMaxValues) return false;
    product *= size;
    if (product > kMaxValues) return false;
  }
  return true;
}

class Checker {
 public:
  explicit Checker(const Network& network) : network_(network) {}

  void check() {
    require(network_.timesteps >= 1 && network_.timesteps <= kMaxTimesteps,
            "the network has %" PRId64 " timesteps, expected 1..%" PRId64, network_.timesteps, kMaxTimesteps);
    require(has_size(network_.input), "the input has no size, or more than 2^24 values");
    require(!network_.nodes.empty(), "the network has no nodes");
    for (index_ = 0; index_ < static_cast<int32_t>(network_.nodes.size()); ++index_) check_node();
  }

 private:
  // The output of a node.
  struct OutputInfo {
    Shape shape;
    bool has_time;
    int64_t largest;  // of levels and their sums; -1: unknown (currents, inputs)
  };

  [[gnu::format(printf, 3, 4)]] void require(bool is_right, const char* format, ...) const {
    if (is_right) return;
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::string where = "lbq: ";
    if (index_ >= 0) {
      const Node& node = network_.nodes[index_];
      where += "node " + std::to_string(index_) + (node.path.empty() ? "" : " (" + node.path + ")") + ": ";
    }
    throw BadNetwork(where + text);
  }

  const Node& node() const { return network_.nodes[index_]; }
  OutputInfo output_of(int32_t from) const {
    if (from == kInput) return {network_.input, network_.takes_frames, -1};
    return outputs_[from];
  }

  void check_node() {
    require(node().kind <= Kind::kReadout, "no such kind, %d", static_cast<int>(node().kind));
    check_inputs();
    const OutputInfo first = output_of(node().inputs[0]);
    require(node().from == first.shape, "it says that it reads another shape than its input has");
    OutputInfo gives = first;
    switch (node().kind) {
      case Kind::kSynapse: gives = synapse(first); break;
      case Kind::kShortcut: gives = shortcut(first); break;
      case Kind::kMerge: gives.largest = -1; break;
      case Kind::kPool: gives = pool(first); break;
      case Kind::kRepeat: gives.has_time = true; break;
      case Kind::kNeuron: gives = neuron(first); break;
      case Kind::kReadout: break;
    }
    check_time(first);
    require(node().to == gives.shape, "it says that it gives %" PRId64 " x %" PRId64 " x %" PRId64
            " values, expected %" PRId64 " x %" PRId64 " x %" PRId64, node().to.channels, node().to.height,
            node().to.width, gives.shape.channels, gives.shape.height, gives.shape.width);
    require(has_size(gives.shape), "it gives more than 2^24 values");
    require(node().kind == Kind::kReadout || node().has_time == gives.has_time,
            "it says that it gives %s, expected %s", node().has_time ? "a sequence" : "one instant",
            gives.has_time ? "a sequence" : "one instant");
    const Bound& bound = node().bound;
    require((bound.bits == 0 || bound.bits == 16 || bound.bits == 32) && bound.low <= bound.high,
            "a bound of %d bits from %" PRId64 " to %" PRId64, bound.bits, bound.low, bound.high);
    outputs_.push_back(gives);
  }

  void check_inputs() const {
    const size_t count = node().inputs.size();
    const char* kind = kKindNames[static_cast<int>(node().kind)];
    require(node().kind == Kind::kMerge ? count >= 1 : count == 1, "a %s reads %zu inputs", kind, count);
    for (int32_t input : node().inputs) {
      require(input >= kInput && input < index_, "it reads node %d, which is not before it", input);
      const OutputInfo other = output_of(input), first = output_of(node().inputs[0]);
      require(other.shape == first.shape && other.has_time == first.has_time,
              "it adds values of different shapes, or one instant to a sequence");
    }
    const bool is_last = index_ + 1 == static_cast<int32_t>(network_.nodes.size());
    require((node().kind == Kind::kReadout) == is_last,
            is_last ? "the last node is a %s, expected the readout"
                    : "a %s that is not the last node; the answer is written once",
            kind);
  }

  void check_time(const OutputInfo& first) const {
    const Kind kind = node().kind;
    const bool needs_time = kind == Kind::kNeuron || kind == Kind::kReadout;
    require(!needs_time || first.has_time, "a %s reads a sequence, this is one instant",
            kKindNames[static_cast<int>(kind)]);
    require(kind != Kind::kRepeat || !first.has_time, "a repeat reads one instant, this is a sequence");
  }

  void check_integers(const Integers& integers, std::initializer_list<int64_t> counts, const char* what) const {
    const bool fits = std::find(counts.begin(), counts.end(), integers.count) != counts.end();
    require(fits, "%s has %" PRId64 " integers, expected %" PRId64, what, integers.count, *counts.begin());
    require(integers.count == 0 || integers.data != nullptr, "%s has no integers", what);
    const int32_t width = integers.width;
    require(integers.count == 0 || width == 1 || width == 2 || width == 4, "%s has integers of %d bytes", what, width);
  }

  // Positions of the window along an axis.
  int64_t slide(int axis, int64_t size, const int64_t (&kernel)[2]) const {
    const Window& window = node().window;
    const auto is_in = [](int64_t value, int64_t least) { return value >= least && value <= kMaxWindow; };
    require(is_in(kernel[axis], 1) && is_in(window.stride[axis], 1) && is_in(window.dilation[axis], 1) &&
                is_in(window.padding[axis], 0),
            "a window of size %" PRId64 ", stride %" PRId64 ", dilation %" PRId64 " and padding %" PRId64, kernel[axis],
            window.stride[axis], window.dilation[axis], window.padding[axis]);
    const int64_t rest = size + 2 * window.padding[axis] - window.dilation[axis] * (kernel[axis] - 1) - 1;
    require(rest >= 0, "its window is wider than what it reads");
    return rest / window.stride[axis] + 1;
  }

  void check_max_input(const OutputInfo& first) const {
    require(first.largest <= node().max_input, "it says that 0..%" PRId64 " enters, but levels reach %" PRId64, node().max_input, first.largest);
  }

  OutputInfo synapse(const OutputInfo& first) const {
    check_max_input(first);
    const Shape& from = first.shape;
    const int64_t outputs = node().to.channels, groups = node().groups;
    require(outputs >= 1 && outputs <= kMaxValues, "%" PRId64 " outputs", outputs);
    require(groups >= 1 && from.channels % groups == 0 && outputs % groups == 0,
            "%" PRId64 " channels and %" PRId64 " outputs in %" PRId64 " groups", from.channels, outputs, groups);
    Shape to{outputs, 1, 1};
    int64_t taps = from.height * from.width;
    if (node().is_linear) {
      require(groups == 1, "a linear layer in %" PRId64 " groups", groups);
    } else {
      to.height = slide(0, from.height, node().window.kernel);
      to.width = slide(1, from.width, node().window.kernel);
      taps = node().window.kernel[0] * node().window.kernel[1];  // at most 2^48
      require(taps <= kMaxWindow, "a window of %" PRId64 " values", taps);
    }
    const int64_t inputs = from.channels / groups;  // of one output and tap
    require(node().weight.count / outputs / inputs == taps && node().weight.count % (outputs * inputs) == 0,
            "%" PRId64 " weights, expected %" PRId64 " for each of %" PRId64 " x %" PRId64, node().weight.count, taps,
            outputs, inputs);
    check_integers(node().weight, {node().weight.count}, "the weight");
    require(node().weight.width <= 2, "weights of %d bytes, expected 1 or 2", node().weight.width);
    check_integers(node().bias, {outputs, 0, outputs * to.height * to.width}, "the bias");
    return {to, first.has_time, -1};
  }

  OutputInfo shortcut(const OutputInfo& first) const {
    check_max_input(first);
    const int64_t channels = first.shape.channels;
    check_integers(node().weight, {channels, 1}, "the weight");
    check_integers(node().bias, {channels, 1, 0}, "the bias");
    return {first.shape, first.has_time, -1};
  }

  OutputInfo pool(const OutputInfo& first) const {
    OutputInfo gives = first;
    const Window& window = node().window;
    gives.shape.height = slide(0, first.shape.height, window.kernel);
    gives.shape.width = slide(1, first.shape.width, window.kernel);
    for (int axis : {0, 1})
      require(window.dilation[axis] == 1 && 2 * window.padding[axis] <= window.kernel[axis],
              "a pool with a dilation, or with padding of more than half of its window");
    const int64_t area = window.kernel[0] * window.kernel[1];
    require(area <= kMaxWindow, "a window of %" PRId64 " values", area);
    if (first.largest >= 0 && !node().pools_max) gives.largest = std::min(first.largest, kMaxValues) * area;
    return gives;
  }

  OutputInfo neuron(const OutputInfo& first) const {
    const int64_t channels = first.shape.channels;
    const int32_t levels = node().max_level, shift = node().shift;
    require(levels >= 1 && levels <= kMaxLevel, "%d levels, expected 1..%d", levels, kMaxLevel);
    require(shift >= 0 && shift <= kMaxShift && node().multiplier >= 0 && node().multiplier <= int32_t{1} << shift,
            "a carry times %d / 2^%d, expected 0..1", node().multiplier, shift);
    require(node().reset <= Reset::kNone, "no such reset, %d", static_cast<int>(node().reset));
    require(!node().resets_after_decay || (levels == 1 && node().reset == Reset::kEvent),
            "a reset after the decay needs one level and an event");
    check_integers(node().thresholds, {levels * channels, levels}, "the thresholds");
    check_integers(node().reset_amount, {channels, 1}, "what a reset removes");
    const int64_t columns = node().thresholds.count / levels;
    for (int64_t i = 0; i < node().thresholds.count; ++i)
      require(integer_at(node().thresholds, i) >= (i < columns ? 1 : integer_at(node().thresholds, i - columns)),
              "its thresholds are not above zero, or fall");
    for (int64_t i = 0; i < node().reset_amount.count; ++i)
      require(integer_at(node().reset_amount, i) >= 0, "a reset removes %" PRId64, integer_at(node().reset_amount, i));
    return {first.shape, true, levels};
  }

  const Network& network_;
  std::vector<OutputInfo> outputs_;
  int32_t index_ = -1;  // the node being checked
};

// ---- fits_packed ----

// Counts are doubles, which cannot overflow.
constexpr double kWeights = 1 << 23, kEntries = 1 << 25;  // always accepted
constexpr double kPadding = 8;                            // accepted growth by padding
constexpr double kPositions = 4096;                       // per block, about

double padded(const Shape& shape) {
  return static_cast<double>(channel_stride(shape.channels) * shape.height * shape.width);
}

// Packed weights and table entries of one node.
struct Needs {
  double packed = 0, tables = 0;

  explicit Needs(const Node& node) {
    if (node.kind != Kind::kSynapse) return;
    const double taps = static_cast<double>(node.weight.count / (node.to.channels * (node.from.channels / node.groups)));
    const Window window = window_of(node);
    packed = taps * static_cast<double>(channel_stride(node.to.channels)) *
             static_cast<double>(channel_stride(node.from.channels));
    tables = static_cast<double>(window.kernel[0]) * static_cast<double>(node.from.height + node.to.height) +
             static_cast<double>(window.kernel[1]) * static_cast<double>(node.from.width + node.to.width) +
             taps * std::min(static_cast<double>(node.to.height * node.to.width), kPositions);
  }
};

bool is_huge(const Window& window) {
  return static_cast<double>(window.kernel[0]) * static_cast<double>(window.kernel[1]) > kEntries;
}

}  // namespace

void check_network(const Network& network) { Checker(network).check(); }

bool fits_packed(const Network& network) {
  double packed = 0, tables = 0, values = padded(network.input);
  int64_t weights = 0, given = network.input.size();
  for (const Node& node : network.nodes) {
    if (node.kind == Kind::kPool && is_huge(node.window)) return false;
    const Needs needs(node);
    packed += needs.packed;
    tables += needs.tables;
    weights += node.weight.count;
    values += padded(node.to);
    given += node.to.size();
  }
  return packed <= std::max(kWeights, kPadding * static_cast<double>(weights)) && tables <= kEntries &&
         values <= std::max(kEntries, kPadding * static_cast<double>(given));
}

}  // namespace lbq
