// Code shared by several operators: parts of shape rules, bound rules and exact kernels, and settings.
#pragma once

#include <algorithm>
#include <cinttypes>

#include "operators.h"

namespace lbq {

// The operators of this folder, by their names in Kind.
namespace operators {
#define LBQ_DECLARE(name) extern const Operator k##name;
LBQ_OPERATORS(LBQ_DECLARE)
#undef LBQ_DECLARE
}  // namespace operators

constexpr int64_t kSide = 1 << 16;  // largest stride, padding, dilation, window or number of groups
constexpr int64_t kManyInputs = 1 << 16;

using Values = std::vector<ValueInfo>;
using Entries = std::vector<Entering>;
using Operands = std::vector<Operand>;

// ---- shape rules ----

inline bool is_vector(const Integers& tensor, int64_t length) {
  return tensor.num_dims == 1 && tensor.shape[0] == length;
}

inline void check_time(const Node& node, const ValueInfo& value) {
  require_rule(node.has_time == value.has_time, LBQ_RULE_SIGNAL, "has_time contradicts what it reads");
}

const ValueInfo& check_currents(const Values& inputs);

// The output of a window that slides over every spatial axis.
Shape slide(const Window& window, Shape shape);

// ---- bound rules ----

inline const Interval& of(const Intervals& intervals, int64_t channel) {
  return intervals[intervals.size() == 1 ? 0 : channel];
}

// The intervals of `count` channels, or one for all: gives[channel] = make(channel). Returns the hull of all `inner`.
template <class Make>
Interval for_channels(size_t count, Intervals& gives, Make make) {
  gives.resize(count);
  Interval hull;
  for (size_t channel = 0; channel < count; ++channel) {
    Interval inner;
    gives[channel] = make(static_cast<int64_t>(channel), inner);
    hull = channel == 0 ? inner : hull.hull(inner);
  }
  return hull;
}

// Change the interval of every channel, for an operator that computes no new integers.
template <class Change>
Interval change_each(const Entries& inputs, Intervals& gives, Change change) {
  gives = *inputs[0].intervals;
  for (Interval& interval : gives) interval = change(interval);
  return {};
}

inline Interval keep_bound(const Node&, const Entries& inputs, int64_t, Intervals& gives) {
  return change_each(inputs, gives, [](Interval interval) { return interval; });
}

// ---- exact kernels ----

// Outputs along an axis whose window sees the input at tap `tap`: first..last - 1.
struct Range {
  int64_t first, last;
};
inline Range seen(const Window& window, int axis, int64_t tap, int64_t from, int64_t to) {
  const int64_t stride = window.stride[axis], start = tap * window.dilation[axis] - window.padding[axis];
  const int64_t first = start >= 0 ? 0 : (-start + stride - 1) / stride;
  const int64_t last = from - start <= 0 ? 0 : (from - start + stride - 1) / stride;
  return {first, std::min(last, to)};
}

// Call use(output, input) for every place that sees the input of one channel through one tap.
template <class Use>
void for_places(const Node& node, int64_t row, int64_t column, Use use) {
  const Window& window = node.window;
  const Range rows = seen(window, 0, row, node.from.height, node.to.height);
  const Range columns = seen(window, 1, column, node.from.width, node.to.width);
  const int64_t stride = window.stride[1], count = columns.last - columns.first;
  const int64_t left = columns.first * stride + column * window.dilation[1] - window.padding[1];
  for (int64_t y = rows.first; y < rows.last; ++y) {
    const int64_t above = y * window.stride[0] + row * window.dilation[0] - window.padding[0];
    const int64_t out = y * node.to.width + columns.first, in = above * node.from.width + left;
    for (int64_t x = 0; x < count; ++x) use(out + x, in + x * stride);
  }
}

inline void run_copy(const Node& node, const Operands& inputs, int64_t* output) {
  std::copy(inputs[0].data, inputs[0].data + node.to.size(), output);
}

// Call use(output, left, right) with the index in the output and in two operands whose axes of length 1 are repeated.
template <class Use>
void for_broadcast(const Shape& to, const Shape& left, const Shape& right, Use use) {
  const auto place = [](const Shape& shape, int64_t c, int64_t y, int64_t x) {
    const int64_t row = (shape.channels == 1 ? 0 : c) * shape.height + (shape.height == 1 ? 0 : y);
    return row * shape.width + (shape.width == 1 ? 0 : x);
  };
  int64_t output = 0;
  for (int64_t c = 0; c < to.channels; ++c)
    for (int64_t y = 0; y < to.height; ++y)
      for (int64_t x = 0; x < to.width; ++x) use(output++, place(left, c, y, x), place(right, c, y, x));
}

// ---- settings ----

using Form = Setting::Form;

template <bool Node::*kMember>
void store_flag(Node& node, const SettingValue& value) {
  node.*kMember = value.numbers[0] != 0;
}
template <class Number, Number Node::*kMember>
void store_number(Node& node, const SettingValue& value) {
  node.*kMember = static_cast<Number>(value.is_null ? 0 : value.numbers[0]);
}
template <int kMost>
void store_list(const SettingValue& value, List<kMost>& list) {
  list.count = value.numbers.count;
  std::copy(value.numbers.values, value.numbers.values + list.count, list.values);
}
template <class ListType, ListType Node::*kMember>
void store_list(Node& node, const SettingValue& value) {
  store_list(value, node.*kMember);
}
template <PerAxis Window::*kMember>
void store_window(Node& node, const SettingValue& value) {
  store_list(value, node.window.*kMember);
}

constexpr Setting number(const char* name, void (*store)(Node&, const SettingValue&), int64_t low, int64_t high,
                         bool is_optional = false) {
  return {name, Form::kNumber, store, low, high, 1, 1, is_optional, {}};
}
constexpr Setting list(const char* name, void (*store)(Node&, const SettingValue&), int64_t low, int64_t high,
                       int32_t most) {
  return {name, Form::kList, store, low, high, 1, most, false, {}};
}

constexpr Setting word(const char* name, void (*store)(Node&, const SettingValue&), Word first, Word second,
                       Word third = {}, Word fourth = {}) {
  return {name, Form::kWord, store, 0, 1, 1, 1, false, {first, second, third, fourth}};
}
constexpr Setting flag(const char* name, void (*store)(Node&, const SettingValue&)) {
  return {name, Form::kFlag, store, 0, 1, 1, 1, false, {}};
}

constexpr Setting kHasTime = flag("has_time", store_flag<&Node::has_time>);
constexpr Setting kStride = list("stride", store_window<&Window::stride>, 1, kSide, 2);
constexpr Setting kPadding = list("padding", store_window<&Window::padding>, 0, kSide, 2);

}  // namespace lbq
