// Moves: operators that reorder or select values, or put zeros between them.

#include "operators/operator_base.h"

namespace lbq {
namespace {

constexpr Setting kAxis = number("axis", store_number<int64_t, &Node::axis>, 0, 2);

// The hull of the channels of several inputs.
Interval mix_channels(const Entries& inputs, Intervals& gives) {
  Interval all = hull_of(*inputs[0].intervals);
  for (const Entering& input : inputs) all = all.hull(hull_of(*input.intervals));
  gives = {all};
  return {};
}

// Number of values before and behind an axis.
struct Sides {
  int64_t before = 1, behind = 1;
  Sides(const Shape& shape, int64_t axis) {
    for (int i = 0; i < 3; ++i) (i < axis ? before : behind) *= i == axis ? 1 : shape[i];
  }
};

ValueInfo infer_concat(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  for (const ValueInfo& input : inputs) check_time(node, input);
  const int axis = static_cast<int>(node.axis);
  require_rule(axis < value.shape.rank, LBQ_RULE_SHAPE, "it joins along axis %d", axis);
  int64_t length = 0;
  for (const ValueInfo& input : inputs) {
    Shape other = input.shape;
    length += other[axis];
    other[axis] = value.shape[axis];
    require_rule(other == value.shape, LBQ_RULE_SHAPE, "it joins shapes that differ beside axis %d", axis);
  }
  for (const ValueInfo& input : inputs) {
    require_rule((input.max_level == kCurrents) == (value.max_level == kCurrents), LBQ_RULE_SIGNAL,
                 "it joins levels and currents");
    value.max_level = std::max(value.max_level, input.max_level);
  }
  value.shape[axis] = length;
  return value;
}

Interval bound_concat(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  bool are_alike = true;
  for (const Entering& input : inputs)
    are_alike = are_alike && input.intervals->size() == 1 && (*input.intervals)[0] == (*inputs[0].intervals)[0];
  if (node.axis != 0 || are_alike) return mix_channels(inputs, gives);
  gives.clear();
  gives.reserve(node.to.channels);
  for (const Entering& input : inputs)
    for (int64_t channel = 0; channel < input.value.shape.channels; ++channel)
      gives.push_back(of(*input.intervals, channel));
  return {};
}

void run_concat(const Node& node, const Operands& inputs, int64_t* output) {
  const Sides sides(node.to, node.axis);
  for (int64_t i = 0; i < sides.before; ++i)
    for (const Operand& input : inputs) {
      const int64_t count = input.shape[static_cast<int>(node.axis)] * sides.behind;
      output = std::copy(input.data + i * count, input.data + (i + 1) * count, output);
    }
}

ValueInfo infer_slice(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  const int axis = static_cast<int>(node.axis);
  require_rule(axis < value.shape.rank && node.start < node.stop && node.stop <= value.shape[axis], LBQ_RULE_SHAPE,
               "it takes %" PRId64 ":%" PRId64 " of axis %d", node.start, node.stop, axis);
  value.shape[axis] = (node.stop - node.start + node.step - 1) / node.step;
  return value;
}

Interval bound_slice(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  if (node.axis != 0 || from.size() == 1) return keep_bound(node, inputs, timesteps, gives);
  return for_channels(node.to.channels, gives,
                      [&](int64_t channel, Interval&) { return from[node.start + channel * node.step]; });
}

void run_slice(const Node& node, const Operands& inputs, int64_t* output) {
  const Sides sides(node.to, node.axis);
  const int axis = static_cast<int>(node.axis);
  for (int64_t i = 0; i < sides.before; ++i)
    for (int64_t k = 0; k < node.to[axis]; ++k) {
      const int64_t* from = inputs[0].data + (i * node.from[axis] + node.start + k * node.step) * sides.behind;
      output = std::copy(from, from + sides.behind, output);
    }
}

ValueInfo infer_roll(Node& node, const Values& inputs, int64_t) {
  const ValueInfo value = inputs[0];
  check_time(node, value);
  const int axis = static_cast<int>(node.axis);
  require_rule(axis < value.shape.rank && node.start < value.shape[axis] && node.step != 0, LBQ_RULE_SHAPE,
               "it reads axis %d from %" PRId64 " by %" PRId64, axis, node.start, node.step);
  return value;
}

// The index that a roll reads for index `place` of its axis of this length.
int64_t around(const Node& node, int64_t place, int64_t length) {
  return (node.start + node.step * place + length) % length;
}

Interval bound_roll(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  if (node.axis != 0 || from.size() == 1) return keep_bound(node, inputs, timesteps, gives);
  return for_channels(node.to.channels, gives,
                      [&](int64_t channel, Interval&) { return from[around(node, channel, node.to.channels)]; });
}

void run_roll(const Node& node, const Operands& inputs, int64_t* output) {
  const Sides sides(node.to, node.axis);
  const int64_t length = node.to[static_cast<int>(node.axis)];
  for (int64_t i = 0; i < sides.before; ++i)
    for (int64_t k = 0; k < length; ++k) {
      const int64_t* from = inputs[0].data + (i * length + around(node, k, length)) * sides.behind;
      output = std::copy(from, from + sides.behind, output);
    }
}

// Call use(output, input) for every value of a rearrangement, in the order of the output.
template <class Use>
void for_rearranged(const Node& node, Use use) {
  const int count = node.sizes.count;
  int64_t strides[8], place[8] = {}, stride = 1;
  for (int i = count - 1; i >= 0; --i) strides[i] = stride, stride *= node.sizes[i];
  int64_t from = 0;
  for (int64_t to = 0; to < stride; ++to) {
    use(to, from);
    for (int i = count - 1; i >= 0; --i) {  // the next place, last axis of the output first
      const int64_t axis = node.order[i];
      from += strides[axis];
      if (++place[i] < node.sizes[axis]) break;
      from -= strides[axis] * place[i];
      place[i] = 0;
    }
  }
}

ValueInfo infer_rearrange(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  const int32_t count = node.sizes.count;
  bool is_order = node.order.count == count;
  uint32_t seen = 0;
  for (int32_t i = 0; i < node.order.count; ++i) seen |= 1u << node.order[i];
  is_order = is_order && seen == (1u << count) - 1;
  int64_t size = 1;
  for (int32_t i = 0; i < count; ++i) size = saturating_product(size, node.sizes[i]);
  Shape to{1, 1, 1, node.shape.count};
  for (int32_t axis = 0; axis < node.shape.count; ++axis) to[axis] = node.shape[axis];
  const int64_t before = saturating_size(value.shape);
  require_rule(is_order && size == before && saturating_size(to) == before, LBQ_RULE_SHAPE,
               "it arranges %" PRId64 " values as %" PRId64, before, size);
  value.shape = to;
  return value;
}

Interval bound_rearrange(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  if (from.size() == 1) return keep_bound(node, inputs, timesteps, gives);
  const int64_t inner = node.from.height * node.from.width, inner_to = node.to.height * node.to.width;
  std::vector<int64_t> source(node.to.channels, -1);
  bool is_whole = true;  // each channel comes from one channel
  for_rearranged(node, [&](int64_t to, int64_t at) {
    int64_t& channel = source[to / inner_to];
    if (channel < 0) channel = at / inner;
    is_whole = is_whole && channel == at / inner;
  });
  if (!is_whole) return mix_channels(inputs, gives);
  return for_channels(node.to.channels, gives, [&](int64_t channel, Interval&) { return from[source[channel]]; });
}

void run_rearrange(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t* input = inputs[0].data;
  for_rearranged(node, [=](int64_t to, int64_t from) { output[to] = input[from]; });
}

ValueInfo infer_upsample(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  require_rule(node.factors.count == value.shape.rank - 1, LBQ_RULE_SHAPE, "%d factors for a value of rank %d",
               node.factors.count, value.shape.rank);
  const int64_t less = node.fills_zeros ? 1 : 0;
  for (int axis = 0; axis < node.factors.count; ++axis) {
    int64_t& length = value.shape[1 + axis];
    length = (length - less) * node.factors[axis] + less;
  }
  return value;
}

Interval bound_with_zero(const Node&, const Entries& inputs, int64_t, Intervals& gives) {
  return change_each(inputs, gives, [](Interval interval) { return interval.with_zero(); });
}

Interval bound_upsample(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  return (node.fills_zeros ? bound_with_zero : keep_bound)(node, inputs, timesteps, gives);
}

void run_upsample(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t rows = node.factors[0], columns = node.factors.count == 2 ? node.factors[1] : 1;
  for (int64_t c = 0; c < node.to.channels; ++c)
    for (int64_t y = 0; y < node.to.height; ++y)
      for (int64_t x = 0; x < node.to.width; ++x) {
        const bool is_zero = node.fills_zeros && (y % rows != 0 || x % columns != 0);
        const int64_t at = (c * node.from.height + y / rows) * node.from.width + x / columns;
        *output++ = is_zero ? 0 : inputs[0].data[at];
      }
}

ValueInfo infer_zero_pad(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  const int axes = value.shape.rank - 1;
  require_rule(node.before.count == axes && node.after.count == axes, LBQ_RULE_SHAPE,
               "zeros along %d and %d axes of a value of rank %d", node.before.count, node.after.count, axes + 1);
  for (int axis = 0; axis < axes; ++axis)
    value.shape[1 + axis] += node.before[axis] + node.after[axis];
  return value;
}

void run_zero_pad(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t above = node.before[0], left = node.before.count == 2 ? node.before[1] : 0;
  std::fill(output, output + node.to.size(), 0);
  for (int64_t c = 0; c < node.to.channels; ++c)
    for (int64_t y = 0; y < node.from.height; ++y) {
      const int64_t* from = inputs[0].data + (c * node.from.height + y) * node.from.width;
      std::copy(from, from + node.from.width, output + (c * node.to.height + above + y) * node.to.width + left);
    }
}

}  // namespace

const Operator operators::kConcat = {
    .name = "concat", .least_inputs = 2, .most_inputs = kManyInputs, .infer = infer_concat, .bound = bound_concat,
    .run = run_concat, .settings = {kAxis, kHasTime}};

const Operator operators::kSlice = {
    .name = "slice", .infer = infer_slice, .bound = bound_slice, .run = run_slice, .is_move = true,
    .settings = {kAxis, number("start", store_number<int64_t, &Node::start>, 0, kMaxValues),
                 number("stop", store_number<int64_t, &Node::stop>, 0, kMaxValues),
                 number("step", store_number<int64_t, &Node::step>, 1, kSide), kHasTime}};

const Operator operators::kRoll = {
    .name = "roll", .infer = infer_roll, .bound = bound_roll, .run = run_roll, .is_move = true,
    .settings = {kAxis, number("start", store_number<int64_t, &Node::start>, 0, kMaxValues),
                 number("step", store_number<int64_t, &Node::step>, -1, 1), kHasTime}};

const Operator operators::kRearrange = {
    .name = "rearrange", .infer = infer_rearrange, .bound = bound_rearrange,
    .visits = [](const Node& node, int64_t) { return node.to.size(); }, .run = run_rearrange, .is_move = true,
    .settings = {list("sizes", store_list<Factors, &Node::sizes>, 1, kMaxValues, 8),
                 list("order", store_list<Factors, &Node::order>, 0, 7, 8),
                 list("shape", store_list<Factors, &Node::shape>, 1, kMaxValues, 3), kHasTime}};

const Operator operators::kUpsample = {
    .name = "upsample", .infer = infer_upsample, .bound = bound_upsample, .run = run_upsample, .is_move = true,
    .settings = {list("factors", store_list<PerAxis, &Node::factors>, 1, kSide, 2),
                 word("fill", store_flag<&Node::fills_zeros>, {"nearest", false}, {"zeros", true}), kHasTime}};

const Operator operators::kZeroPad = {
    .name = "zero_pad", .infer = infer_zero_pad, .bound = bound_with_zero, .run = run_zero_pad, .is_move = true,
    .settings = {list("before", store_list<PerAxis, &Node::before>, 0, kSide, 2),
                 list("after", store_list<PerAxis, &Node::after>, 0, kSide, 2), kHasTime}};

}  // namespace lbq
