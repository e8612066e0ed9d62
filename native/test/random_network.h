// Random integer networks for tests of the engine: any window, groups, pools, merges, resets and widths.
#pragma once

#include <algorithm>
#include <memory>

#include "check_network.h"
#include "network_builder.h"
#include "tester.h"

namespace {

using lbq::Kind;
using lbq::Node;
using Longs = std::vector<int64_t>;

constexpr int64_t kLargest = INT32_MAX;
const char* const kIsas[] = {"scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "amx", "neon"};

int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(rng()() % (high - low + 1)); }

// A network and its inputs.
struct Case : NetworkBuilder {
  std::vector<uint8_t> inputs;
  int64_t batch = 1;

  Case();
  // Two frames that need two chunks: padded to 32 channels, together they have too many values for one.
  static Case longer_than_one_chunk(int64_t batch);
  static Case as_large_as_allowed();
  // Integers of so many bytes and a shape; without one, a vector.
  lbq::Integers keep(const Longs& values, int32_t width, Longs shape = {}) {
    if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
    if (width == 1) return NetworkBuilder::keep(std::vector<int8_t>(values.begin(), values.end()), shape);
    if (width == 2) return NetworkBuilder::keep(std::vector<int16_t>(values.begin(), values.end()), shape);
    return NetworkBuilder::keep(std::vector<int32_t>(values.begin(), values.end()), shape);
  }
  lbq::Shape shape_of(int32_t node) const { return network.value(node).shape; }
  int64_t most_of(int32_t node) const { return network.value(node).max_level; }
  bool still(int32_t node) const { return !network.value(node).has_time; }

  int32_t add_synapse(int32_t input, const lbq::Shape* wanted);
  int32_t add_shortcut(int32_t input);
  int32_t add_pool(int32_t input);
  int32_t add_neuron(int32_t input);
  int32_t add_repeat(int32_t input);
  int32_t add_move(int32_t input);
  int32_t add_slice(int32_t input, int axis);
  int32_t add_offset(int32_t input);
  int32_t add_product(int32_t input);
  int32_t merge(std::vector<int32_t> inputs);
  int64_t products() const {
    int64_t sum = 0;
    for (const Node& node : network.nodes)
      if (node.kind == Kind::kMatmul) {
        sum += node.to.size() * node.from.width * batch * (node.has_time ? network.timesteps : 1);
      } else if (node.kind == Kind::kSynapse)
        sum += node.to.height * node.to.width * node.weight.count * batch * (node.has_time ? network.timesteps : 1);
    return sum;
  }
};

// The output size of a node along an axis.
void set_size(Node& node, int axis) {
  const lbq::Window& w = node.window;
  const int64_t size = axis == 0 ? node.from.height : node.from.width;
  (axis == 0 ? node.to.height : node.to.width) =
      (size + 2 * w.padding[axis] - w.dilation[axis] * (w.kernel[axis] - 1) - 1) / w.stride[axis] + 1;
}

int64_t draw_weight(int32_t bits, bool is_extreme) {
  const int64_t most = (int64_t{1} << (bits - 1)) - 1;
  if (is_extreme) return chance(2) ? most : -most - (bits > 4);
  return between(-most, most);
}

// Draw weights until everything that may be added up fits 32 bits.
int32_t Case::add_synapse(int32_t input, const lbq::Shape* wanted) {
  Node node = start(Kind::kSynapse, input);
  node.max_input = most_of(input);
  const lbq::Shape from = node.from;
  if (wanted != nullptr) {  // a window with this output shape: 1x1, or linear
    node.to = *wanted;
    node.is_linear = wanted->rank == 1;
    node.window.kernel.count = node.window.stride.count = node.window.padding.count = node.window.dilation.count =
        from.rank - 1;
  } else {
    node.to.channels = pick<int64_t>({1, 3, 8, 17, 32, 40, 64, 96, 130});
    node.is_linear = chance(6) || from.rank == 1;
    node.window.kernel.count = node.window.stride.count = node.window.padding.count = node.window.dilation.count =
        from.rank - 1;
    for (int axis = 0; axis < from.rank - 1; ++axis) {
      node.window.kernel[axis] = pick<int64_t>({1, 2, 3, 3, 5});
      node.window.stride[axis] = pick<int64_t>({1, 1, 2, 3});
      node.window.padding[axis] = between(0, node.window.kernel[axis] / 2 + 1);
      node.window.dilation[axis] = pick<int64_t>({1, 1, 2});
      const int64_t size = axis == 0 ? from.height : from.width;
      if (node.window.dilation[axis] * (node.window.kernel[axis] - 1) + 1 > size + 2 * node.window.padding[axis])
        node.window.kernel[axis] = 1;
      set_size(node, axis);
    }
    if (!node.is_linear && chance(4)) {
      node.groups = chance(2) ? from.channels : (from.channels % 2 == 0 ? 2 : 1);
      node.to.channels = node.groups * pick<int64_t>({1, 2});
    }
  }
  if (node.is_linear) {
    node.window = lbq::Window{};
    node.to = {node.to.channels, 1, 1, 1};
    node.groups = 1;
  }
  const int64_t taps = node.is_linear ? from.height * from.width : node.window.kernel[0] * node.window.kernel[1];
  const int64_t inputs = from.channels / node.groups * taps;
  node.weight_bits = pick({4, 8, 8, 8, 16});
  const bool is_extreme = chance(4);
  Longs weights(node.to.channels * inputs), bias;
  for (;;) {
    int64_t low = 0, high = 0;
    for (int64_t output = 0; output < node.to.channels; ++output) {
      int64_t negative = 0, positive = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t weight = weights[output * inputs + i] = draw_weight(node.weight_bits, is_extreme);
        (weight < 0 ? negative : positive) += weight * node.max_input;
      }
      low = std::min(low, negative);
      high = std::max(high, positive);
    }
    node.bound = {low - 1000, high + 1000, low - 1000 >= INT16_MIN && high + 1000 <= INT16_MAX ? 16 : 32};
    if (low - 1000 > -kLargest / 8 && high + 1000 < kLargest / 8) break;
    node.weight_bits = node.weight_bits == 16 ? 8 : 4;
    if (node.max_input * inputs * 8 > kLargest / 8) std::fill(weights.begin(), weights.end(), 0);
  }
  Longs shape = {node.to.channels, node.is_linear ? inputs : from.channels / node.groups};
  for (int axis = 0; axis < from.rank - 1 && !node.is_linear; ++axis) shape.push_back(node.window.kernel[axis]);
  node.weight = keep(weights, node.weight_bits == 16 ? 2 : 1, shape);
  const bool is_map = !node.is_linear && chance(3);
  if (chance(2)) {
    bias.resize(node.to.channels * (is_map ? node.to.height * node.to.width : 1));
    for (int64_t& value : bias) value = between(-1000, 1000);
    node.bias = keep(bias, 4);
    const Longs sizes = {node.to.channels, node.to.height, node.to.width};
    if (is_map) node.bias = keep(bias, 4, Longs(sizes.begin(), sizes.begin() + from.rank));
  }
  return add(node);
}

int32_t Case::add_shortcut(int32_t input) {
  Node node = start(Kind::kShortcut, input);
  node.max_input = most_of(input);
  Longs weight(chance(2) ? 1 : node.to.channels);
  for (int64_t& value : weight) value = between(-500, 500);
  node.weight = keep(weight, 2);
  node.bound = {-500 * node.max_input - 9, 500 * node.max_input + 9, 32};
  if (chance(3)) node.bias = keep(Longs(node.to.channels, 9), 4);
  return add(node);
}

int32_t Case::add_pool(int32_t input) {
  Node node = start(Kind::kPool, input);
  node.pools_max = chance(2);
  node.window.kernel.count = node.window.stride.count = node.window.padding.count = node.from.rank - 1;
  for (int axis = 0; axis < node.from.rank - 1; ++axis) {
    const int64_t size = axis == 0 ? node.from.height : node.from.width;
    node.window.kernel[axis] = std::min<int64_t>(size, between(1, 3));
    node.window.stride[axis] = between(1, 2);
    node.window.padding[axis] = node.window.kernel[axis] > 1 ? between(0, 1) : 0;
  }
  return add(node);
}

int32_t Case::add_neuron(int32_t input) {
  Node node = start(Kind::kIntegerNeuron, input);
  node.has_time = true;
  node.max_level = pick({1, 2, 5, 5, 15, 40, 255});
  node.shift = pick({0, 1, 4, 8});
  node.multiplier = static_cast<int32_t>(between(0, int64_t{1} << node.shift));
  node.reset = pick({LBQ_RESET_EVENT, LBQ_RESET_LEVEL, LBQ_RESET_ZERO, LBQ_RESET_NONE});
  const int64_t step = pick<int64_t>({1, 40, 700, 20000});
  const bool is_shared = chance(3);
  const int64_t channels = is_shared ? 1 : node.to.channels;
  if (chance(4)) {
    node.resets_after_decay = true;
    node.reset = LBQ_RESET_EVENT;
    node.max_level = 1;
  }
  Longs thresholds(node.max_level * channels), reset_amount(channels);
  for (int64_t channel = 0; channel < channels; ++channel) {
    int64_t threshold = between(1, step);
    for (int32_t n = 0; n < node.max_level; ++n, threshold += between(0, step)) thresholds[n * channels + channel] = threshold;
    reset_amount[channel] = between(0, step);
  }
  node.thresholds = keep(thresholds, 4, {node.max_level, channels});
  node.reset_amount = keep(reset_amount, 4);
  node.bound = {-kLargest, kLargest, 32};
  return add(node);
}

int32_t Case::add_repeat(int32_t input) {
  Node node = start(Kind::kRepeat, input);
  node.repeats = network.timesteps;
  return add(node);
}

int32_t Case::merge(std::vector<int32_t> inputs) {
  if (inputs.size() == 1) return inputs[0];
  Node node = start(Kind::kMerge, inputs[0]);
  node.inputs = inputs;
  node.bound = {-kLargest, kLargest, 32};
  return add(node);
}

// Any operator that moves values, or two.
int32_t Case::add_move(int32_t input) {
  const lbq::Shape shape = shape_of(input);
  const int axes = shape.rank - 1;
  Node node = start(pick({Kind::kConcat, Kind::kSlice, Kind::kRoll, Kind::kRearrange, Kind::kUpsample, Kind::kZeroPad}), input);
  if (axes == 0 && (node.kind == Kind::kUpsample || node.kind == Kind::kZeroPad)) node.kind = Kind::kSlice;
  node.axis = between(0, axes);
  const int axis = static_cast<int>(node.axis);
  if (node.kind == Kind::kConcat) {
    const int copies = shape.channels > 100 ? 2 : pick({2, 3});
    for (int i = 1; i < copies; ++i) node.inputs.push_back(chance(2) ? input : add_slice(input, axis));
  } else if (node.kind == Kind::kSlice) {
    return add_slice(input, axis);
  } else if (node.kind == Kind::kRoll) {
    node.start = between(0, shape[axis] - 1);
    node.step = pick({-1, 1});
  } else if (node.kind == Kind::kRearrange) {
    for (int i = 0; i < shape.rank; ++i) {  // split an axis in two where that is possible
      const int64_t part = shape[i] % 2 == 0 ? 2 : 1;
      node.sizes[node.sizes.count++] = part;
      node.sizes[node.sizes.count++] = shape[i] / part;
    }
    for (int i = 0; i < node.sizes.count; ++i) node.order[node.order.count++] = i;
    std::shuffle(node.order.values, node.order.values + node.order.count, rng());
    const int rank = static_cast<int>(between(1, 3));
    node.shape = {rank, {1, 1, 1}};
    for (int i = 0; i < node.order.count; ++i) node.shape[i * rank / node.order.count] *= node.sizes[node.order[i]];
  } else {
    node.fills_zeros = chance(2);
    node.factors.count = node.before.count = node.after.count = axes;
    for (int i = 0; i < axes; ++i) {
      node.factors[i] = between(1, 3);
      node.before[i] = between(0, 2);
      node.after[i] = between(0, 2);
    }
  }
  return add(node);
}

int32_t Case::add_slice(int32_t input, int axis) {
  Node node = start(Kind::kSlice, input);
  node.axis = axis;
  node.start = between(0, node.from[axis] - 1);
  node.stop = between(node.start + 1, node.from[axis]);
  node.step = between(1, 3);
  return add(node);
}

int32_t Case::add_offset(int32_t input) {
  Node node = start(Kind::kOffset, input);
  Longs shape, bias(1);
  for (int axis = 0; axis < node.from.rank; ++axis) {
    shape.push_back(chance(2) ? 1 : node.from[axis]);
    bias.resize(bias.size() * shape.back());
  }
  for (int64_t& value : bias) value = between(-1000, 1000);
  node.bias = keep(bias, 4, shape);
  node.bound = {-kLargest, kLargest, 32};
  return add(node);
}

// Products with itself: element by element, with a broadcast part, or as matrices.
int32_t Case::add_product(int32_t input) {
  const lbq::Shape shape = shape_of(input);
  if (most_of(input) * most_of(input) * shape.width > 1 << 20) return input;
  Node node = start(chance(2) ? Kind::kMultiply : Kind::kMatmul, input);
  int32_t other = input;
  if (node.kind == Kind::kMatmul) {
    Node turn = start(Kind::kRearrange, input);
    turn.sizes = turn.shape = {3, {shape.channels, shape.height, shape.width}};
    turn.order = {3, {0, 2, 1}};
    std::swap(turn.shape[1], turn.shape[2]);
    if (shape.rank < 3) {
      Node widen = start(Kind::kRearrange, input);
      widen.sizes = {1, {shape.size()}};
      widen.order = {1, {0}};
      widen.shape = {3, {shape.channels, shape.height, shape.width}};
      node.inputs[0] = turn.inputs[0] = add(widen);
    }
    other = add(turn);
  } else if (chance(2)) {
    Node part = start(Kind::kSlice, input);
    part.axis = between(0, shape.rank - 1);
    part.stop = 1;
    other = add(part);
  }
  node.inputs.push_back(other);
  node.bound = {0, kLargest, 32};
  return add(node);
}

Case::Case() {
  network.timesteps = pick<int64_t>({1, 2, 3});
  network.takes_frames = chance(2);
  network.input = {pick<int64_t>({1, 2, 3, 7, 32, 33, 64, 100, 300}), between(1, 9), between(1, 9)};
  if (chance(5)) network.input = {network.input.channels, between(1, 30), 1, 2};
  batch = pick<int64_t>({1, 1, 2, 3, 9});
  const int64_t largest = pick<int64_t>({1, 3, 5, 5, 60, 127, 128, 255});
  const int sparsity = pick({1, 2, 4, 7, 30});
  inputs.resize((network.takes_frames ? network.timesteps : 1) * batch * network.input.size());
  for (uint8_t& level : inputs)
    level = chance(sparsity) ? static_cast<uint8_t>(chance(3) ? largest : between(0, largest)) : 0;
  int32_t first = chance(4) ? add_pool(lbq::kInput) : lbq::kInput;
  if (chance(4)) first = add_move(first);
  std::vector<int32_t> terms = {add_synapse(first, nullptr)};
  if (still(terms[0]) && chance(2)) terms[0] = add_repeat(terms[0]);
  const lbq::Shape made = shape_of(terms[0]), before = shape_of(first);
  const bool is_same = made.rank == before.rank && made.height == before.height && made.width == before.width;
  if ((is_same || made.rank == 1) && chance(2)) terms.push_back(add_synapse(first, &made));
  if (made == before) terms.push_back(add_shortcut(first));
  for (int32_t& term : terms)
    if (still(term) && !still(terms[0])) term = add_repeat(term);
  int32_t sum = merge(terms);
  if (chance(4)) sum = add_offset(sum);
  if (chance(5) && made.rank > 1) sum = add_pool(sum);  // of currents
  if (chance(4)) sum = add_move(sum);
  if (still(sum)) sum = add_repeat(sum);
  int32_t last = sum;
  if (!chance(4)) {
    int32_t levels = add_neuron(sum);
    if (chance(3)) levels = add_move(levels);
    if (chance(3)) levels = add_product(levels);
    if (chance(3) && shape_of(levels).rank > 1) levels = add_pool(levels);
    last = chance(5) ? add_shortcut(levels) : add_synapse(levels, nullptr);
    if (chance(4)) {  // currents with two readers
      const int32_t more = add_neuron(last);
      last = merge({last, add_shortcut(more)});
    }
  }
  Node readout = start(Kind::kReadout, last);
  readout.over_time = chance(2) ? lbq::OverTime::kSum : lbq::OverTime::kNone;
  if (chance(3)) {
    Node more = readout;
    more.inputs = {sum};
    add(more);
  }
  add(readout);
  lbq::check_network(network);
}

Case Case::longer_than_one_chunk(int64_t batch) {
  Case c;
  c.network = {};
  c.network.timesteps = 2;
  c.network.takes_frames = true;
  c.network.input = {1, 512, 513};
  c.batch = batch;
  c.inputs.resize(c.network.timesteps * batch * c.network.input.size());
  for (size_t i = 0; i < c.inputs.size(); ++i) c.inputs[i] = static_cast<uint8_t>(i * 37 % 251);
  Node shortcut = c.start(Kind::kShortcut, lbq::kInput);
  shortcut.max_input = 255;
  shortcut.weight = c.keep({1}, 2);
  shortcut.bound = {0, 255, 16};
  Node neuron = c.start(Kind::kIntegerNeuron, c.add(shortcut));
  neuron.multiplier = 1;
  neuron.thresholds = c.keep({300}, 4, {1, 1});  // one frame never reaches it
  neuron.reset_amount = c.keep({300}, 4);
  neuron.bound = {0, 1000, 16};
  shortcut.inputs = {c.add(neuron)};
  c.add(c.start(Kind::kReadout, c.add(shortcut)));
  return c;
}

// Every level is the largest one and every weight as well: sums of 32 channels just fit 16 bits, those of 36 do not.
Case Case::as_large_as_allowed() {
  Case c;
  c.network = {};
  c.network.timesteps = 1;
  c.network.input = {32, 6, 7};
  c.batch = 2;
  c.inputs.assign(c.batch * c.network.input.size(), 255);
  Node shortcut = c.start(Kind::kShortcut, lbq::kInput);
  shortcut.max_input = 255;
  shortcut.weight = c.keep({1}, 2);
  shortcut.bound = {0, 255, 16};
  Node neuron = c.start(Kind::kIntegerNeuron, c.add_repeat(c.add(shortcut)));
  neuron.multiplier = 1;
  neuron.thresholds = c.keep({1, 2, 3, 4, 5, 6, 7, 8}, 4, {8, 1});
  neuron.reset_amount = c.keep({1}, 4);
  neuron.bound = {0, 1000, 16};
  Node synapse = c.start(Kind::kSynapse, c.add(neuron));
  synapse.max_input = 8;
  synapse.to.channels = 20;
  lbq::Window& window = synapse.window;
  window.kernel.count = window.stride.count = window.padding.count = window.dilation.count = 2;
  for (int axis = 0; axis < 2; ++axis) {
    window.kernel[axis] = 3;
    window.stride[axis] = window.padding[axis] = window.dilation[axis] = 1;
  }
  Longs weights;
  for (int64_t output = 0; output < 20; ++output)
    for (int64_t i = 0; i < 32 * 9; ++i) weights.push_back(output % 3 == 0 ? 127 : output % 3 == 1 ? -128 : i % 5 * 60 - 120);
  synapse.weight = c.keep(weights, 1, {20, 32, 3, 3});
  synapse.bound = {-300000, 300000, 32};
  c.add(c.start(Kind::kReadout, c.add(synapse)));
  lbq::check_network(c.network);
  return c;
}

}  // namespace
