// Sums of currents, and constants added to them.

#include "operators/operator_base.h"

namespace lbq {
namespace {

ValueInfo infer_merge(Node&, const Values& inputs, int64_t) { return check_currents(inputs); }

Interval bound_merge(const Node&, const Entries& inputs, int64_t, Intervals& gives) {
  size_t channels = 1;
  for (const Entering& input : inputs) channels = std::max(channels, input.intervals->size());
  return for_channels(channels, gives, [&](int64_t channel, Interval& inner) {
    Interval sum = of(*inputs[0].intervals, channel);
    inner = sum.with_zero();
    for (size_t i = 1; i < inputs.size(); ++i) {
      const Interval more = of(*inputs[i].intervals, channel);
      sum = sum + more;
      inner = inner + more.with_zero();
    }
    return sum;
  });
}

void run_merge(const Node& node, const Operands& inputs, int64_t* sum) {
  std::copy(inputs[0].data, inputs[0].data + node.to.size(), sum);
  for (size_t k = 1; k < inputs.size(); ++k)
    for (int64_t i = 0; i < node.to.size(); ++i) sum[i] += inputs[k].data[i];
}

ValueInfo infer_offset(Node& node, const Values& inputs, int64_t) {
  const ValueInfo& value = check_currents(inputs);
  bool fits = node.bias.num_dims == value.shape.rank;
  for (int axis = 0; axis < value.shape.rank && fits; ++axis)
    fits = node.bias.shape[axis] == 1 || node.bias.shape[axis] == value.shape[axis];
  require_rule(fits, LBQ_RULE_SHAPE, "its constant does not fit what it is added to");
  return value;
}

Interval bound_offset(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  const int64_t rows = node.bias.shape[0], length = node.bias.count / rows;
  return for_channels(std::max<size_t>(rows, from.size()), gives, [&](int64_t channel, Interval& inner) {
    const int32_t* bias = static_cast<const int32_t*>(node.bias.data) + (rows == 1 ? 0 : channel * length);
    const auto [low, high] = std::minmax_element(bias, bias + length);
    const Interval sum = of(from, channel) + Interval{*low, *high};
    inner = sum.with_zero();
    return sum;
  });
}

void run_offset(const Node& node, const Operands& inputs, int64_t* output) {
  Shape bias{1, 1, 1, node.bias.num_dims};
  for (int axis = 0; axis < node.bias.num_dims; ++axis) bias[axis] = node.bias.shape[axis];
  for_broadcast(node.to, node.to, bias, [&](int64_t to, int64_t from, int64_t at) {
    output[to] = inputs[0].data[from] + integer_at(node.bias, at);
  });
}

}  // namespace

const Operator operators::kMerge = {
    "merge", 1, kManyInputs, true, infer_merge, bound_merge, run_merge, {}, {}};

const Operator operators::kOffset = {
    "offset", 1, 1, true, infer_offset, bound_offset, run_offset, {}, {{"bias", &Node::bias, 4, false}}};

}  // namespace lbq
