#include "operators.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "operators/operator_base.h"

namespace lbq {

void require_rule(bool holds, lbq_model_status rule, const char* format, ...) {
  if (holds) return;
  GraphError error{rule, {}};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error.text, sizeof error.text, format, arguments);
  va_end(arguments);
  throw error;
}

int64_t saturating_product(int64_t one, int64_t other) {
  int64_t product;
  return __builtin_mul_overflow(one, other, &product) ? INT64_MAX : product;
}

int64_t saturating_size(const Shape& shape) {
  return saturating_product(saturating_product(shape.channels, shape.height), shape.width);
}

void store_setting(Node& node, const Setting& setting, const SettingValue& value) {
  SettingValue stored = value;
  const Factors& numbers = value.numbers;
  bool is_right = value.is_null ? setting.is_optional
                                : numbers.count >= setting.least && numbers.count <= setting.most && value.word.empty();
  if (setting.form == Setting::Form::kWord) {
    is_right = false;
    for (const Word& word : setting.words)
      if (word.text != nullptr && value.word == word.text) stored.numbers = {1, {word.number}}, is_right = true;
  }
  for (int32_t i = 0; i < numbers.count; ++i)
    is_right = is_right && numbers[i] >= setting.low && numbers[i] <= setting.high;
  require_rule(is_right, LBQ_RULE_VALUE, "its setting %s is not in its range", setting.name);
  setting.store(node, stored);
}

// ---- intervals ----

namespace {

int64_t clamped(__int128 value) {
  return static_cast<int64_t>(value > kBeyond ? kBeyond : value < -kBeyond ? -kBeyond : value);
}
int64_t plus(int64_t one, int64_t other) { return clamped(__int128{one} + other); }
int64_t times(int64_t one, int64_t other) { return clamped(__int128{one} * other); }

}  // namespace

Interval Interval::operator+(Interval other) const { return {plus(low, other.low), plus(high, other.high)}; }
Interval Interval::operator*(int64_t factor) const { return {times(low, factor), times(high, factor)}; }
Interval Interval::hull(Interval other) const { return {std::min(low, other.low), std::max(high, other.high)}; }

Interval Interval::operator*(Interval other) const {
  const auto [least, most] =
      std::minmax({times(low, other.low), times(low, other.high), times(high, other.low), times(high, other.high)});
  return {least, most};
}

Interval hull_of(const Intervals& intervals) {
  Interval hull = intervals[0];
  for (const Interval& interval : intervals) hull = hull.hull(interval);
  return hull;
}

// ---- shared by several operators ----

const ValueInfo& check_currents(const Values& inputs) {
  for (const ValueInfo& value : inputs) {
    require_rule(value.max_level == kCurrents, LBQ_RULE_SIGNAL, "it takes currents, it reads levels");
    require_rule(value.shape == inputs[0].shape && value.has_time == inputs[0].has_time, LBQ_RULE_SHAPE,
                 "it reads several shapes, or some without time");
  }
  return inputs[0];
}

Shape slide(const Window& window, Shape shape) {
  const int axes = shape.rank - 1;
  for (const PerAxis* sizes : {&window.kernel, &window.stride, &window.padding, &window.dilation})
    require_rule(sizes->count == axes, LBQ_RULE_SHAPE, "its window has other axes than what it reads");
  for (int axis = 0; axis < axes; ++axis) {
    const int64_t reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
    const int64_t rest = shape[1 + axis] + 2 * window.padding[axis] - reach;
    require_rule(rest >= 0, LBQ_RULE_SHAPE, "its window is wider than what it reads");
    shape[1 + axis] = rest / window.stride[axis] + 1;
  }
  return shape;
}

// ---- the table ----

namespace {

#define LBQ_ADDRESS(name) &operators::k##name,
const Operator* const kOperators[] = {LBQ_OPERATORS(LBQ_ADDRESS)};
#undef LBQ_ADDRESS

}  // namespace

const Operator& operator_of(Kind kind) { return *kOperators[static_cast<int>(kind)]; }

const Operator* find_operator(std::string_view name, Kind& kind) {
  int8_t number = 0;
  for (const Operator* found : kOperators) {
    kind = static_cast<Kind>(number++);
    if (name == found->name) return found;
  }
  return nullptr;
}

ValueInfo infer(Node& node, const std::vector<ValueInfo>& inputs, int64_t timesteps) {
  const ValueInfo gives = operator_of(node.kind).infer(node, inputs, timesteps);
  node.from = inputs[0].shape;
  node.to = gives.shape;
  node.has_time = gives.has_time;
  node.largest = gives.max_level;
  return gives;
}

void check_outputs(const Network& network) {
  std::vector<bool> is_read(network.nodes.size());
  for (const Node& node : network.nodes)
    for (int32_t input : node.inputs)
      if (input != kInput) is_read[input] = true;
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    const Node& node = network.nodes[i];
    const bool is_output = node.is_output();
    require_rule(is_read[i] != is_output, LBQ_RULE_UNREAD, "%s reads %.100s, a %s", is_output ? "a node" : "no node",
                 node.path.c_str(), operator_of(node.kind).name);
  }
  for (const Node& node : network.nodes) {
    if (!node.is_output()) continue;
    require_rule(node.has_time || node.sums_over_time(), LBQ_RULE_SIGNAL,
                 "%.100s takes the mean over time, or reads one instant", node.path.c_str());
    require_rule(node.over_time == network.nodes.back().over_time, LBQ_RULE_SIGNAL,
                 "%.100s is summed over time, or not, unlike the last readout", node.path.c_str());
  }
}

}  // namespace lbq
