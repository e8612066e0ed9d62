// Sums of currents, and constants added to them.

#include "operators/operator_base.h"
#include "plan.h"

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

bool add_merge(Planner& planner, Stage& stage, int32_t node) {
  for (int32_t input : planner.at(node).inputs) planner.add_term(stage, input);
  return true;
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

// Call use(place, constant) for every value.
template <class Use>
void for_offsets(const Node& node, Use use) {
  Shape bias{1, 1, 1, node.bias.num_dims};
  for (int axis = 0; axis < node.bias.num_dims; ++axis) bias[axis] = node.bias.shape[axis];
  for_broadcast(node.to, node.to, bias, [&](int64_t to, int64_t, int64_t at) { use(to, integer_at(node.bias, at)); });
}

void run_offset(const Node& node, const Operands& inputs, int64_t* output) {
  for_offsets(node, [&](int64_t to, int64_t bias) { output[to] = inputs[0].data[to] + bias; });
}

bool add_offset(Planner& planner, Stage& stage, int32_t node) {
  const Node& here = planner.at(node);
  std::vector<int32_t> map(here.to.size());
  for_offsets(here, [&](int64_t to, int64_t bias) { map[to] = static_cast<int32_t>(bias); });
  stage.sum.add_bias({map.data(), 4, here.to.size(), 0, {}});
  planner.add_term(stage, here.inputs[0]);
  return true;
}

}  // namespace

const Operator operators::kMerge = {
    .name = "merge", .most_inputs = kManyInputs, .has_bound = true, .infer = infer_merge, .bound = bound_merge,
    .run = run_merge, .add = add_merge};

const Operator operators::kOffset = {
    .name = "offset", .has_bound = true, .infer = infer_offset, .bound = bound_offset, .run = run_offset,
    .add = add_offset, .roles = {{"bias", &Node::bias, 4, false}}};

}  // namespace lbq
