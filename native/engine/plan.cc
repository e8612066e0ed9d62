// Builds the plan: terms with a single reader are added in the stage of that reader.
#include "plan.h"

#include <algorithm>

#include "operators.h"
#include "stage.h"

namespace lbq {

constexpr int64_t kByte = 255;

int32_t origin_of(const Network& network, int32_t node) {
  while (node != kInput && operator_of(network.nodes[node].kind).is_view) node = network.nodes[node].inputs[0];
  return node;
}

// ---- sums ----

Sum::Sum(const Shape& shape, bool has_time)
    : has_time(has_time), shape(shape), stride(channel_stride(shape.channels)), outputs(outputs_per_block(shape.channels)) {}

void Sum::add_bias(const Integers& added) {
  if (added.count == 0) return;
  const int64_t channels = shape.channels, pixels = shape.height * shape.width;
  const bool is_map = added.count != channels && added.count != 1;
  if (bias.empty()) bias.assign(stride, 0);
  if (is_map && !bias_is_map) {
    std::vector<int32_t> map;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) map.insert(map.end(), bias.begin(), bias.end());
    bias = std::move(map);
    bias_is_map = true;
  }
  for (int64_t pixel = 0; pixel < (bias_is_map ? pixels : 1); ++pixel)
    for (int64_t channel = 0; channel < channels; ++channel) {
      const int64_t value = is_map ? integer_at(added, channel * pixels + pixel) : of_channel(added, channel);
      bias[pixel * stride + channel] += static_cast<int32_t>(value);
    }
}

// ---- stages ----

Planner::Planner(const Network& network, const EngineKernels& kernels, Plan& plan)
    : network(network),
      kernels(kernels),
      plan(plan),
      stages_(plan.stages),
      num_readers_(network.nodes.size(), 0),
      is_read_(network.nodes.size(), false) {
  describe_values(plan.values);
  for (const Node& node : network.nodes)
    for (int32_t input : node.inputs)
      if (origin_of(network, input) != kInput && !operator_of(node.kind).is_view) ++num_readers_[origin_of(network, input)];
}

void Planner::describe_values(std::vector<Value>& values) const {
  const auto describe = [&](const ValueInfo& info, bool has_time) {
    const bool are_levels = info.max_level != kCurrents && info.max_level <= kByte;
    return Value{are_levels, has_time, info.shape, channel_stride(info.shape.channels), 0};
  };
  values.assign(network.nodes.size() + 1, describe(network.value(kInput), network.takes_frames));
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    const Node& node = network.nodes[i];
    bool has_time = operator_of(node.kind).step != nullptr;  // repeated values are computed once
    for (int32_t input : node.inputs) has_time = has_time || plan.value(input).has_time;
    values[i] = describe(network.value(static_cast<int32_t>(i)), has_time);
  }
}

void Planner::add_stages() {
  for (int32_t node = static_cast<int32_t>(network.nodes.size()) - 1; node >= 0; --node)
    if (is_read_[node] || at(node).is_output()) add_stage(node);
  std::reverse(stages_.begin(), stages_.end());
}

void Planner::add_stage(int32_t node) {
  const Operator& op = operator_of(at(node).kind);
  Stage stage{node, {}, {at(node).to, plan.value(node).has_time}, {}};
  if (const int32_t product = product_of(node); product != kInput) {
    plan_product(*this, stage, product);
  } else if (op.add && op.add(*this, stage, node)) {
    stage.execute = store_sum;
  } else {
    op.plan(*this, stage);
  }
  stages_.push_back(std::move(stage));
}

int32_t Planner::read(Stage& stage, int32_t node) {
  node = origin_of(network, node);
  if (node != kInput) is_read_[node] = true;
  stage.reads.push_back(node);
  return node;
}

void Planner::add_term(Stage& stage, int32_t node) {
  node = origin_of(network, node);
  const bool is_separate = num_readers_[node] > 1 || plan.value(node).has_time != stage.sum.has_time;
  const auto add = is_separate ? nullptr : operator_of(at(node).kind).add;
  if (add == nullptr || !add(*this, stage, node)) stage.sum.extras.push_back({read(stage, node), {}});
}

int32_t Planner::product_of(int32_t node) const {
  const Node& here = at(node);
  if (has_fast_product(network, node)) return node;
  if (!operator_of(here.kind).is_move || here.from.size() != here.to.size()) return kInput;
  const int32_t input = origin_of(network, here.inputs[0]);
  return input != kInput && num_readers_[input] == 1 && has_fast_product(network, input) ? input : kInput;
}

Plan::Plan(const Network& network, const EngineKernels& kernels) {
  Planner(network, kernels, *this).add_stages();
  for (size_t i = 0; i < stages.size(); ++i)
    for (int32_t node : stages[i].reads) value(node).last_use = i;
}

}  // namespace lbq
