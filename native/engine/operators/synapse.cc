// Weights: convolutions and linear layers, and shortcuts with one weight per channel.
#include <algorithm>

#include "operators/operator_base.h"
#include "plan.h"

namespace lbq {
namespace {

bool is_shape(const Integers& tensor, const Shape& shape) {
  bool is_same = tensor.num_dims == shape.rank;
  for (int axis = 0; axis < shape.rank; ++axis) is_same = is_same && tensor.shape[axis] == shape[axis];
  return is_same;
}

void check_weighted(const Node& node, const ValueInfo& value) {
  check_time(node, value);
  // levels only; the overflow proof bounds the currents
  require_rule(value.max_level == kCurrents || node.max_input >= value.max_level, LBQ_RULE_MAX_INPUT,
               "it says that levels to %" PRId64 " enter, but they reach %" PRId64, node.max_input, value.max_level);
}

bool are_all(const PerAxis& sizes, int64_t value) {
  return std::all_of(sizes.values, sizes.values + sizes.count, [=](int64_t size) { return size == value; });
}

ValueInfo infer_synapse(Node& node, const Values& inputs, int64_t) {
  const ValueInfo& value = inputs[0];
  const Integers& weight = node.weight;
  check_weighted(node, value);
  Shape to{weight.shape[0], 1, 1, 1};
  node.is_linear = weight.num_dims == 2;
  if (node.is_linear) {
    const Window& window = node.window;
    require_rule(node.groups == 1 && are_all(window.stride, 1) && are_all(window.dilation, 1) &&
                     are_all(window.padding, 0),
                 LBQ_RULE_SHAPE, "it is a linear layer with stride, padding, dilation or groups");
    require_rule(weight.shape[1] == saturating_size(value.shape), LBQ_RULE_SHAPE,
                 "its weights read %" PRId64 " values", weight.shape[1]);
  } else {
    require_rule(weight.num_dims > 2 && weight.num_dims == value.shape.rank + 1, LBQ_RULE_SHAPE,
                 "its weights do not fit what it reads");
    require_rule(weight.shape[1] * node.groups == value.shape.channels && weight.shape[0] % node.groups == 0,
                 LBQ_RULE_SHAPE, "%" PRId64 " outputs, %" PRId64 " channels in %" PRId64 " groups, it reads %" PRId64,
                 weight.shape[0], weight.shape[1], node.groups, value.shape.channels);
    node.window.kernel.count = weight.num_dims - 2;
    for (int axis = 0; axis < weight.num_dims - 2; ++axis) node.window.kernel[axis] = weight.shape[2 + axis];
    to = slide(node.window, value.shape);
    to.channels = weight.shape[0];
  }
  const Integers& bias = node.bias;
  require_rule(bias.num_dims == 0 || is_vector(bias, to.channels) || is_shape(bias, to), LBQ_RULE_SHAPE,
               "its bias does not fit what it gives");
  return {to, value.has_time, kCurrents};
}

ValueInfo infer_shortcut(Node& node, const Values& inputs, int64_t) {
  const ValueInfo& value = inputs[0];
  check_weighted(node, value);
  node.weight_bits = 16;
  for (const Integers* tensor : {&node.weight, &node.bias})
    require_rule(tensor->num_dims == 0 || is_vector(*tensor, 1) || is_vector(*tensor, value.shape.channels),
                 LBQ_RULE_SHAPE, "it has neither one weight nor one for each of %" PRId64 " channels",
                 value.shape.channels);
  return {value.shape, value.has_time, kCurrents};
}

// The interval of the sums: the largest input times all negative weights, and times all positive weights.
Interval bound_weighted(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const Interval all = hull_of(*inputs[0].intervals);
  require_rule(node.max_input > 0 && all.low >= 0 && all.high <= node.max_input, LBQ_MODEL_BOUND,
               "max_input is %" PRId64 ", but its inputs lie in %" PRId64 "..%" PRId64, node.max_input, all.low,
               all.high);
  const int64_t rows = node.weight.shape[0], length = node.weight.count / rows;
  const int64_t biases = node.bias.num_dims == 0 ? 1 : node.bias.shape[0], per_bias = node.bias.count / biases;
  return for_channels(std::max(rows, biases), gives, [&](int64_t channel, Interval& inner) {
    const int64_t row = rows == 1 ? 0 : channel;
    Interval sums = with_type(node.weight, [&](const auto* weights) {
      Interval found;
      for (int64_t i = row * length; i < (row + 1) * length; ++i)
        (weights[i] < 0 ? found.low : found.high) += weights[i];
      return found;
    });
    sums = sums * node.max_input;
    inner = sums;
    if (node.bias.count == 0) return sums;
    const int32_t* bias = static_cast<const int32_t*>(node.bias.data) + (biases == 1 ? 0 : channel * per_bias);
    const auto [low, high] = std::minmax_element(bias, bias + per_bias);
    const Interval currents = sums + Interval{*low, *high};
    inner = sums.hull(currents);
    return currents;
  });
}

void add_bias(const Node& node, int64_t* currents) {
  if (node.bias.count == 0) return;
  const int64_t places = node.to.height * node.to.width;
  const bool is_map = node.bias.count == node.to.size();
  for (int64_t i = 0; i < node.to.size(); ++i)
    currents[i] += is_map ? integer_at(node.bias, i) : of_channel(node.bias, i / places);
}

template <class Weight>
void convolve(const Node& node, const Weight* weight, const int64_t* input, int64_t* currents) {
  const int64_t places_in = node.from.height * node.from.width, places_out = node.to.height * node.to.width;
  const int64_t outputs = node.to.channels, channels = node.from.channels / node.groups;
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t group = o / (outputs / node.groups);
    int64_t* to = currents + o * places_out;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t* from = input + (group * channels + c) * places_in;
      for (int64_t row = 0; row < node.window.kernel[0]; ++row)
        for (int64_t column = 0; column < node.window.kernel[1]; ++column) {
          const int64_t w = *weight++;
          if (w != 0)
            for_places(node, row, column, [=](int64_t out, int64_t in) { to[out] += w * from[in]; });
        }
    }
  }
}

void run_synapse(const Node& node, const Operands& inputs, int64_t* currents) {
  const int64_t* input = inputs[0].data;
  const int64_t size = node.from.size();
  std::fill(currents, currents + node.to.size(), 0);
  with_type(node.weight, [&](const auto* weight) {
    if (!node.is_linear) return convolve(node, weight, input, currents);
    for (int64_t o = 0; o < node.to.channels; ++o, weight += size)
      for (int64_t i = 0; i < size; ++i) currents[o] += weight[i] * input[i];
  });
  add_bias(node, currents);
}

void run_shortcut(const Node& node, const Operands& inputs, int64_t* currents) {
  const int64_t places = node.to.height * node.to.width;
  for (int64_t i = 0; i < node.to.size(); ++i) currents[i] = of_channel(node.weight, i / places) * inputs[0].data[i];
  add_bias(node, currents);
}

// Its kernels read bytes.
bool add_synapse(Planner& planner, Stage& stage, int32_t node) {
  const Node& here = planner.at(node);
  if (!planner.plan.value(here.inputs[0]).are_levels) return false;
  Sum& sum = stage.sum;
  sum.add_bias(here.bias);
  sum.synapses.push_back(std::make_unique<PackedSynapse>(here, planner.kernels));
  sum.synapses.back()->node_input = planner.read(stage, here.inputs[0]);
  sum.has_wide = sum.has_wide || sum.synapses.back()->is_wide;
  const bool is_bounded = here.bound.bits != 0;
  sum.low += is_bounded ? here.bound.low : INT32_MIN;
  sum.high += is_bounded ? here.bound.high : INT32_MAX;
  return true;
}

bool add_shortcut(Planner& planner, Stage& stage, int32_t node) {
  const Node& here = planner.at(node);
  ExtraTerm extra{planner.read(stage, here.inputs[0]), std::vector<int32_t>(stage.sum.stride)};
  for (int64_t channel = 0; channel < here.to.channels; ++channel)
    extra.weight[channel] = static_cast<int32_t>(of_channel(here.weight, channel));
  stage.sum.extras.push_back(std::move(extra));
  stage.sum.add_bias(here.bias);
  return true;
}

void store_bits(Node& node, const SettingValue& value) {
  const int64_t bits = value.is_null ? 0 : value.numbers[0];
  require_rule(bits == 0 || bits == 4 || bits == 8 || bits == 16, LBQ_RULE_VALUE, "its bits are %" PRId64, bits);
  node.weight_bits = static_cast<int32_t>(bits);
}

constexpr Setting kMaxInput = number("max_input", store_number<int64_t, &Node::max_input>, 1, INT32_MAX, true);
constexpr Role kBias{"bias", &Node::bias, 4, true};

}  // namespace

const Operator operators::kSynapse = {
    .name = "synapse", .has_bound = true, .infer = infer_synapse, .bound = bound_weighted, .run = run_synapse,
    .add = add_synapse,
    .settings = {kMaxInput, kHasTime, kStride, kPadding,
                 list("dilation", store_window<&Window::dilation>, 1, kSide, 2),
                 number("groups", store_number<int64_t, &Node::groups>, 1, kSide), number("bits", store_bits, 4, 16, true)},
    .roles = {{"weight", &Node::weight, 1 | 2, false}, kBias}};

const Operator operators::kShortcut = {
    .name = "shortcut", .has_bound = true, .infer = infer_shortcut, .bound = bound_weighted, .run = run_shortcut,
    .add = add_shortcut, .settings = {kMaxInput, kHasTime}, .roles = {{"weight", &Node::weight, 2, false}, kBias}};

}  // namespace lbq
