#include "operators.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

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
    for (int64_t i = 0; i <= setting.high; ++i)
      if (!value.word.empty() && value.word == setting.words[i]) stored.numbers = {1, {i}}, is_right = true;
  }
  for (int32_t i = 0; i < stored.numbers.count; ++i)
    is_right = is_right && stored.numbers[i] >= setting.low && stored.numbers[i] <= setting.high;
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

const Interval& of(const Intervals& intervals, int64_t channel) {
  return intervals[intervals.size() == 1 ? 0 : channel];
}

}  // namespace

Interval Interval::operator+(Interval other) const { return {plus(low, other.low), plus(high, other.high)}; }
Interval Interval::operator*(int64_t factor) const { return {times(low, factor), times(high, factor)}; }
Interval Interval::hull(Interval other) const { return {std::min(low, other.low), std::max(high, other.high)}; }

Interval hull_of(const Intervals& intervals) {
  Interval hull = intervals[0];
  for (const Interval& interval : intervals) hull = hull.hull(interval);
  return hull;
}

namespace {

constexpr int64_t kSide = 1 << 16;  // largest stride, padding, dilation, window or number of groups
constexpr int64_t kPerSum = int64_t{1} << 31;  // sums of products stay below

using Values = std::vector<ValueInfo>;
using Entries = std::vector<Entering>;
using Operands = std::vector<Operand>;

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

// ---- shape rules ----

bool is_shape(const Integers& tensor, const Shape& shape) {
  bool is_same = tensor.num_dims == shape.rank;
  for (int axis = 0; axis < shape.rank; ++axis) is_same = is_same && tensor.shape[axis] == shape[axis];
  return is_same;
}
bool is_vector(const Integers& tensor, int64_t length) {
  return tensor.num_dims == 1 && tensor.shape[0] == length;
}

void check_time(const Node& node, const ValueInfo& value) {
  require_rule(node.has_time == value.has_time, LBQ_RULE_SIGNAL, "has_time contradicts what it reads");
}

const ValueInfo& check_currents(const Values& inputs) {
  for (const ValueInfo& value : inputs) {
    require_rule(value.max_level == kCurrents, LBQ_RULE_SIGNAL, "it takes currents, it reads levels");
    require_rule(value.shape == inputs[0].shape && value.has_time == inputs[0].has_time, LBQ_RULE_SHAPE,
                 "it reads several shapes, or some without time");
  }
  return inputs[0];
}

// Fill in the output of a window that slides over every spatial axis.
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

void check_weighted(const Node& node, const ValueInfo& value) {
  check_time(node, value);
  // how large currents get, the proof knows
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
  for (const Integers* tensor : {&node.weight, &node.bias})
    require_rule(tensor->num_dims == 0 || is_vector(*tensor, 1) || is_vector(*tensor, value.shape.channels),
                 LBQ_RULE_SHAPE, "it has neither one weight nor one for each of %" PRId64 " channels",
                 value.shape.channels);
  return {value.shape, value.has_time, kCurrents};
}

ValueInfo infer_merge(Node&, const Values& inputs, int64_t) { return check_currents(inputs); }

ValueInfo infer_pool(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  Window& window = node.window;
  window.dilation.count = window.kernel.count;
  value.shape = slide(window, value.shape);
  for (int axis = 0; axis < window.kernel.count; ++axis)
    require_rule(2 * window.padding[axis] <= window.kernel[axis], LBQ_RULE_SHAPE,
                 "it pads more than half of its window");
  if (value.max_level != kCurrents && !node.pools_max)
    value.max_level = saturating_product(value.max_level, window.kernel[0] * window.kernel[1]);
  return value;
}

ValueInfo infer_repeat(Node& node, const Values& inputs, int64_t timesteps) {
  ValueInfo value = check_currents(inputs);
  require_rule(!value.has_time, LBQ_RULE_SIGNAL, "it takes one instant, and repeats what has time");
  require_rule(node.repeats == timesteps, LBQ_RULE_TIMESTEPS, "it repeats %" PRId64 " times", node.repeats);
  value.has_time = true;
  return value;
}

ValueInfo infer_neuron(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = check_currents(inputs);
  require_rule(value.has_time, LBQ_RULE_SIGNAL, "it takes a sequence, and reads an input without time");
  const Integers& thresholds = node.thresholds;
  const int64_t channels = value.shape.channels;
  require_rule(thresholds.num_dims == 2 && (thresholds.shape[1] == 1 || thresholds.shape[1] == channels),
               LBQ_RULE_SHAPE, "its thresholds do not fit %" PRId64 " channels", channels);
  require_rule(is_vector(node.reset_amount, 1) || is_vector(node.reset_amount, channels), LBQ_RULE_SHAPE,
               "its reset amount does not fit %" PRId64 " channels", channels);
  require_rule(thresholds.shape[0] <= kMaxLevel, LBQ_RULE_MAX_LEVEL, "it has %" PRId64 " levels", thresholds.shape[0]);
  require_rule(node.multiplier <= 1 << node.shift, LBQ_RULE_DECAY, "it multiplies its carry by more than one");
  require_rule(!node.resets_after_decay || (thresholds.shape[0] == 1 && node.reset == Reset::kEvent), LBQ_RULE_RESET,
               "it resets after its decay: one threshold, one event");
  node.max_level = static_cast<int32_t>(thresholds.shape[0]);
  value.max_level = node.max_level;
  return value;
}

ValueInfo infer_readout(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = check_currents(inputs);
  const bool keeps = node.over_time == OverTime::kNone;
  require_rule(value.has_time || keeps, LBQ_RULE_SIGNAL, "it takes a sequence, and reads one instant");
  value.has_time = value.has_time && keeps;
  return value;
}

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

ValueInfo infer_slice(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  const int axis = static_cast<int>(node.axis);
  require_rule(axis < value.shape.rank && node.start < node.stop && node.stop <= value.shape[axis], LBQ_RULE_SHAPE,
               "it takes %" PRId64 ":%" PRId64 " of axis %d", node.start, node.stop, axis);
  value.shape[axis] = (node.stop - node.start + node.step - 1) / node.step;
  return value;
}

ValueInfo infer_roll(Node& node, const Values& inputs, int64_t) {
  const ValueInfo value = inputs[0];
  check_time(node, value);
  const int axis = static_cast<int>(node.axis);
  require_rule(axis < value.shape.rank && node.start < value.shape[axis] && node.step != 0, LBQ_RULE_SHAPE,
               "it reads axis %d from %" PRId64 " by %" PRId64, axis, node.start, node.step);
  return value;
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

ValueInfo infer_offset(Node& node, const Values& inputs, int64_t) {
  const ValueInfo& value = check_currents(inputs);
  bool fits = node.bias.num_dims == value.shape.rank;
  for (int axis = 0; axis < value.shape.rank && fits; ++axis)
    fits = node.bias.shape[axis] == 1 || node.bias.shape[axis] == value.shape[axis];
  require_rule(fits, LBQ_RULE_SHAPE, "its constant does not fit what it is added to");
  return value;
}

int64_t largest_product(const Values& inputs, int64_t terms) {
  const ValueInfo &left = inputs[0], &right = inputs[1];
  require_rule(left.max_level != kCurrents && right.max_level != kCurrents, LBQ_RULE_SIGNAL,
               "it takes levels, it reads currents");
  require_rule(left.has_time == right.has_time, LBQ_RULE_SHAPE, "one of its inputs has no time");
  const int64_t most = saturating_product(saturating_product(left.max_level, right.max_level), terms);
  require_rule(most < kPerSum, LBQ_RULE_MAX_LEVEL, "its products reach %" PRId64 ", beyond 32 bits", most);
  return most;
}

ValueInfo infer_multiply(Node&, const Values& inputs, int64_t) {
  const Shape &left = inputs[0].shape, &right = inputs[1].shape;
  const int64_t most = largest_product(inputs, 1);
  bool fits = left.rank == right.rank;
  Shape to = left;
  for (int axis = 0; axis < 3; ++axis) {
    fits = fits && (left[axis] == right[axis] || left[axis] == 1 || right[axis] == 1);
    to[axis] = std::max(left[axis], right[axis]);
  }
  require_rule(fits, LBQ_RULE_SHAPE, "it multiplies shapes whose axes are neither equal nor 1");
  return {to, inputs[0].has_time, most};
}

ValueInfo infer_matmul(Node&, const Values& inputs, int64_t) {
  const Shape &left = inputs[0].shape, &right = inputs[1].shape;
  require_rule(left.rank == 3 && right.rank == 3 && left.channels == right.channels && left.width == right.height,
               LBQ_RULE_SHAPE, "it multiplies matrices that do not fit");
  const int64_t most = largest_product(inputs, left.width);
  return {{left.channels, left.height, right.width}, inputs[0].has_time, most};
}

// ---- bound rules ----

// The largest input times all negative, or all positive, weights.
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

// Change the interval of every channel; it computes nothing.
template <class Change>
Interval change_each(const Entries& inputs, Intervals& gives, Change change) {
  gives = *inputs[0].intervals;
  for (Interval& interval : gives) interval = change(interval);
  return {};
}

Interval bound_pool(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const bool adds = !node.pools_max, has_border = node.window.padding[0] > 0 || node.window.padding[1] > 0;
  const int64_t area = node.window.kernel[0] * node.window.kernel[1];
  return change_each(inputs, gives, [=](Interval interval) {
    if (adds) interval = interval * area;
    return adds && has_border ? interval.with_zero() : interval;  // a sum holds less at the border
  });
}

Interval keep_bound(const Node&, const Entries& inputs, int64_t, Intervals& gives) {
  return change_each(inputs, gives, [](Interval interval) { return interval; });
}

Interval bound_readout(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  change_each(inputs, gives, [&](Interval interval) { return interval * (node.sums_over_time() ? timesteps : 1); });
  return hull_of(gives).with_zero();
}

// One channel of a neuron: its thresholds, and how it forgets.
class Membrane {
 public:
  Membrane(const Node& node, int64_t channel) : node_(node), reset_amount_(of_channel(node.reset_amount, channel)) {
    thresholds_.reserve(node.max_level);
    for (int64_t index = 0; index < node.max_level; ++index) thresholds_.push_back(threshold(node, index, channel));
  }

  // The hull of all membranes, products of the decay and carries, and of all that is formed on the way.
  Interval follow(Interval currents, int64_t timesteps) const {
    if (!currents.fits()) return currents;
    Interval carried, hull;
    for (int64_t t = 0; t < timesteps; ++t) {
      const Interval product = carried * node_.multiplier;
      const bool resets_now = node_.resets_after_decay && t > 0;
      const Interval left = resets_now ? reset(carried, true) : decayed(carried);
      const Interval membrane = left + currents;
      const Interval before = carried;
      carried = node_.resets_after_decay ? membrane : reset(membrane, false);
      hull = hull.hull(membrane).hull(product).hull(left).hull(decayed(before) + currents).hull(carried);
      if (carried == before || !hull.fits()) break;  // all later timesteps are the same, or it is over
    }
    return hull;
  }

 private:
  Interval decayed(Interval carried) const {
    return {carried.low * node_.multiplier >> node_.shift, carried.high * node_.multiplier >> node_.shift};
  }

  // The hull, over all levels that may be emitted, of the membranes that emit them, after their reset.
  Interval reset(Interval membrane, bool decays) const {
    Interval hull{kBeyond, -kBeyond};
    for (int64_t level = 0; level <= node_.max_level; ++level) {
      Interval part{level == 0 ? membrane.low : std::max(membrane.low, thresholds_[level - 1]),
                    level == node_.max_level ? membrane.high : std::min(membrane.high, thresholds_[level] - 1)};
      if (part.low > part.high) continue;
      if (decays) part = decayed(part);
      if (level > 0 && node_.reset == Reset::kZero) part = {0, 0};
      const int64_t units = node_.reset == Reset::kLevel   ? level
                            : node_.reset == Reset::kEvent ? std::min<int64_t>(level, 1)
                                                           : 0;
      hull = hull.hull({part.low - units * reset_amount_, part.high - units * reset_amount_});
    }
    return hull;
  }

  const Node& node_;
  int64_t reset_amount_;
  std::vector<int64_t> thresholds_;
};

Interval bound_neuron(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const int64_t columns = std::max(node.thresholds.shape[1], node.reset_amount.count);
  const int64_t channels = std::max<int64_t>(columns, static_cast<int64_t>(inputs[0].intervals->size()));
  Interval hull;
  for (int64_t channel = 0; channel < channels; ++channel)
    hull = hull.hull(Membrane(node, channel).follow(of(*inputs[0].intervals, channel), timesteps));
  gives = {{0, node.max_level}};
  return hull;
}

// Channels of several inputs meet: the hull of all.
Interval mix_channels(const Entries& inputs, Intervals& gives) {
  Interval all = hull_of(*inputs[0].intervals);
  for (const Entering& input : inputs) all = all.hull(hull_of(*input.intervals));
  gives = {all};
  return {};
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

Interval bound_slice(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  if (node.axis != 0 || from.size() == 1) return keep_bound(node, inputs, timesteps, gives);
  return for_channels(node.to.channels, gives,
                      [&](int64_t channel, Interval&) { return from[node.start + channel * node.step]; });
}

// Where a roll reads what it gives at this place of its axis, which has this length.
int64_t around(const Node& node, int64_t place, int64_t length) {
  return (node.start + node.step * place + length) % length;
}

Interval bound_roll(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  const Intervals& from = *inputs[0].intervals;
  if (node.axis != 0 || from.size() == 1) return keep_bound(node, inputs, timesteps, gives);
  return for_channels(node.to.channels, gives,
                      [&](int64_t channel, Interval&) { return from[around(node, channel, node.to.channels)]; });
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

Interval bound_with_zero(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const bool has_zeros = node.kind == Kind::kZeroPad || node.fills_zeros;
  return change_each(inputs, gives, [=](Interval interval) { return has_zeros ? interval.with_zero() : interval; });
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

// Products of levels, and sums of so many.
Interval bound_products(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const Intervals &left = *inputs[0].intervals, &right = *inputs[1].intervals;
  const int64_t terms = node.kind == Kind::kMatmul ? node.from.width : 1;
  return for_channels(std::max(left.size(), right.size()), gives, [&](int64_t channel, Interval& inner) {
    const Interval a = of(left, channel), b = of(right, channel);
    const auto [low, high] =
        std::minmax({times(a.low, b.low), times(a.low, b.high), times(a.high, b.low), times(a.high, b.high)});
    const Interval sum = Interval{low, high} * terms;
    inner = sum.with_zero();
    return sum;
  });
}

// ---- exact kernels ----

// Outputs along an axis whose window sees the input at tap `tap`: first..last - 1.
struct Range {
  int64_t first, last;
};
Range seen(const Window& window, int axis, int64_t tap, int64_t from, int64_t to) {
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

void run_merge(const Node& node, const Operands& inputs, int64_t* sum) {
  std::copy(inputs[0].data, inputs[0].data + node.to.size(), sum);
  for (size_t k = 1; k < inputs.size(); ++k)
    for (int64_t i = 0; i < node.to.size(); ++i) sum[i] += inputs[k].data[i];
}

void run_pool(const Node& node, const Operands& inputs, int64_t* pooled) {
  const int64_t places_in = node.from.height * node.from.width, places_out = node.to.height * node.to.width;
  const bool is_max = node.pools_max;
  std::fill(pooled, pooled + node.to.size(), is_max ? INT64_MIN : 0);
  for (int64_t c = 0; c < node.to.channels; ++c) {
    const int64_t* from = inputs[0].data + c * places_in;
    int64_t* to = pooled + c * places_out;
    for (int64_t row = 0; row < node.window.kernel[0]; ++row)
      for (int64_t column = 0; column < node.window.kernel[1]; ++column)
        for_places(node, row, column, [=](int64_t out, int64_t in) {
          to[out] = is_max ? std::max(to[out], from[in]) : to[out] + from[in];
        });
  }
}

void run_copy(const Node& node, const Operands& inputs, int64_t* output) {
  std::copy(inputs[0].data, inputs[0].data + node.to.size(), output);
}

// Sizes of what lies before and behind an axis.
struct Sides {
  int64_t before = 1, behind = 1;
  Sides(const Shape& shape, int64_t axis) {
    for (int i = 0; i < 3; ++i) (i < axis ? before : behind) *= i == axis ? 1 : shape[i];
  }
};

void run_concat(const Node& node, const Operands& inputs, int64_t* output) {
  const Sides sides(node.to, node.axis);
  for (int64_t i = 0; i < sides.before; ++i)
    for (const Operand& input : inputs) {
      const int64_t count = input.shape[static_cast<int>(node.axis)] * sides.behind;
      output = std::copy(input.data + i * count, input.data + (i + 1) * count, output);
    }
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

void run_roll(const Node& node, const Operands& inputs, int64_t* output) {
  const Sides sides(node.to, node.axis);
  const int64_t length = node.to[static_cast<int>(node.axis)];
  for (int64_t i = 0; i < sides.before; ++i)
    for (int64_t k = 0; k < length; ++k) {
      const int64_t* from = inputs[0].data + (i * length + around(node, k, length)) * sides.behind;
      output = std::copy(from, from + sides.behind, output);
    }
}

void run_rearrange(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t* input = inputs[0].data;
  for_rearranged(node, [=](int64_t to, int64_t from) { output[to] = input[from]; });
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

void run_zero_pad(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t above = node.before[0], left = node.before.count == 2 ? node.before[1] : 0;
  std::fill(output, output + node.to.size(), 0);
  for (int64_t c = 0; c < node.to.channels; ++c)
    for (int64_t y = 0; y < node.from.height; ++y) {
      const int64_t* from = inputs[0].data + (c * node.from.height + y) * node.from.width;
      std::copy(from, from + node.from.width, output + (c * node.to.height + above + y) * node.to.width + left);
    }
}

// Call use(output, left, right): the place in the output, and in two operands whose axes of length 1 are repeated.
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

void run_offset(const Node& node, const Operands& inputs, int64_t* output) {
  Shape bias{1, 1, 1, node.bias.num_dims};
  for (int axis = 0; axis < node.bias.num_dims; ++axis) bias[axis] = node.bias.shape[axis];
  for_broadcast(node.to, node.to, bias, [&](int64_t to, int64_t from, int64_t at) {
    output[to] = inputs[0].data[from] + integer_at(node.bias, at);
  });
}

void run_multiply(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t *left = inputs[0].data, *right = inputs[1].data;
  for_broadcast(node.to, inputs[0].shape, inputs[1].shape,
                [=](int64_t to, int64_t a, int64_t b) { output[to] = left[a] * right[b]; });
}

void run_matmul(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t terms = node.from.width, columns = node.to.width;
  std::fill(output, output + node.to.size(), 0);
  for (int64_t row = 0; row < node.to.channels * node.to.height; ++row, output += columns)
    for (int64_t k = 0; k < terms; ++k) {
      const int64_t left = inputs[0].data[row * terms + k];
      if (left == 0) continue;
      const int64_t* right = inputs[1].data + (row / node.to.height * terms + k) * columns;
      for (int64_t column = 0; column < columns; ++column) output[column] += left * right[column];
    }
}

// ---- the table ----

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

void store_bits(Node& node, const SettingValue& value) {
  const int64_t bits = value.is_null ? 0 : value.numbers[0];
  require_rule(bits == 0 || bits == 4 || bits == 8 || bits == 16, LBQ_RULE_VALUE, "its bits are %" PRId64, bits);
  node.weight_bits = static_cast<int32_t>(bits);
}

constexpr Setting number(const char* name, void (*store)(Node&, const SettingValue&), int64_t low, int64_t high,
                         bool is_optional = false) {
  return {name, Form::kNumber, store, low, high, 1, 1, is_optional, {}};
}
constexpr Setting list(const char* name, void (*store)(Node&, const SettingValue&), int64_t low, int64_t high,
                       int32_t most) {
  return {name, Form::kList, store, low, high, 1, most, false, {}};
}

constexpr Setting kHasTime{"has_time", Form::kFlag, store_flag<&Node::has_time>, 0, 1, 1, 1, false, {}};
constexpr Setting kMaxInput = number("max_input", store_number<int64_t, &Node::max_input>, 1, INT32_MAX, true);
constexpr Setting kStride = list("stride", store_window<&Window::stride>, 1, kSide, 2);
constexpr Setting kPadding = list("padding", store_window<&Window::padding>, 0, kSide, 2);
constexpr Setting kAxis = number("axis", store_number<int64_t, &Node::axis>, 0, 2);
constexpr Role kWeight{"weight", &Node::weight, 1 | 2, false}, kShortcutWeight{"weight", &Node::weight, 2, false},
    kBias{"bias", &Node::bias, 4, true};
constexpr int64_t kManyInputs = 1 << 16;

// In the order of Kind; behind them, operators that nothing here asks for by name.
const Operator kOperators[] = {
    {"synapse", 1, 1, true, infer_synapse, bound_weighted, run_synapse,
     {kMaxInput, kHasTime, kStride, kPadding, list("dilation", store_window<&Window::dilation>, 1, kSide, 2),
      number("groups", store_number<int64_t, &Node::groups>, 1, kSide), number("bits", store_bits, 4, 16, true)},
     {kWeight, kBias}},
    {"shortcut", 1, 1, true, infer_shortcut, bound_weighted, run_shortcut, {kMaxInput, kHasTime},
     {kShortcutWeight, kBias}},
    {"merge", 1, kManyInputs, true, infer_merge, bound_merge, run_merge, {}, {}},
    {"pool", 1, 1, false, infer_pool, bound_pool, run_pool,
     {{"kind", Form::kWord, [](Node& node, const SettingValue& value) { node.pools_max = value.numbers[0] == 0; }, 0, 1,
       1, 1, false, {"max", "sum"}},
      list("kernel", store_window<&Window::kernel>, 1, kSide, 2), kStride, kPadding, kHasTime},
     {}},
    {"repeat", 1, 1, false, infer_repeat, keep_bound, run_copy,
     {number("timesteps", store_number<int64_t, &Node::repeats>, 1, INT64_MAX)}, {}},
    {"integer_neuron", 1, 1, true, infer_neuron, bound_neuron, nullptr,
     {number("multiplier", store_number<int32_t, &Node::multiplier>, 0, kSide),
      number("shift", store_number<int32_t, &Node::shift>, 0, 16),
      {"reset", Form::kWord, store_number<Reset, &Node::reset>, 0, 3, 1, 1, false, {"event", "level", "zero", "none"}},
      {"resets_after_decay", Form::kFlag, store_flag<&Node::resets_after_decay>, 0, 1, 1, 1, false, {}}},
     {{"thresholds", &Node::thresholds, 4, false}, {"reset_amount", &Node::reset_amount, 4, false}}},
    {"readout", 1, 1, true, infer_readout, bound_readout, run_copy,
     {{"over_time", Form::kWord, store_number<OverTime, &Node::over_time>, 0, 2, 1, 1, false, {"mean", "sum", "none"}}},
     {}},
    {"concat", 2, kManyInputs, false, infer_concat, bound_concat, run_concat, {kAxis, kHasTime}, {}},
    {"slice", 1, 1, false, infer_slice, bound_slice, run_slice,
     {kAxis, number("start", store_number<int64_t, &Node::start>, 0, kMaxValues),
      number("stop", store_number<int64_t, &Node::stop>, 0, kMaxValues),
      number("step", store_number<int64_t, &Node::step>, 1, kSide), kHasTime},
     {}},
    {"rearrange", 1, 1, false, infer_rearrange, bound_rearrange, run_rearrange,
     {list("sizes", store_list<Factors, &Node::sizes>, 1, kMaxValues, 8),
      list("order", store_list<Factors, &Node::order>, 0, 7, 8),
      list("shape", store_list<Factors, &Node::shape>, 1, kMaxValues, 3), kHasTime},
     {}},
    {"upsample", 1, 1, false, infer_upsample, bound_with_zero, run_upsample,
     {list("factors", store_list<PerAxis, &Node::factors>, 1, kSide, 2),
      {"fill", Form::kWord, store_flag<&Node::fills_zeros>, 0, 1, 1, 1, false, {"nearest", "zeros"}}, kHasTime},
     {}},
    {"zero_pad", 1, 1, false, infer_zero_pad, bound_with_zero, run_zero_pad,
     {list("before", store_list<PerAxis, &Node::before>, 0, kSide, 2),
      list("after", store_list<PerAxis, &Node::after>, 0, kSide, 2), kHasTime},
     {}},
    {"offset", 1, 1, true, infer_offset, bound_offset, run_offset, {}, {{"bias", &Node::bias, 4, false}}},
    {"multiply", 2, 2, true, infer_multiply, bound_products, run_multiply, {}, {}},
    {"matmul", 2, 2, true, infer_matmul, bound_products, run_matmul, {}, {}},
    {"roll", 1, 1, false, infer_roll, bound_roll, run_roll,
     {kAxis, number("start", store_number<int64_t, &Node::start>, 0, kMaxValues),
      number("step", store_number<int64_t, &Node::step>, -1, 1), kHasTime},
     {}},
};
static_assert(sizeof kOperators / sizeof *kOperators > static_cast<int>(Kind::kMatmul), "every kind has a row");

}  // namespace

const Operator& operator_of(Kind kind) { return kOperators[static_cast<int>(kind)]; }

const Operator* find_operator(std::string_view name, Kind& kind) {
  for (const Operator& found : kOperators)
    if (name == found.name) {
      kind = static_cast<Kind>(&found - kOperators);
      return &found;
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
    const bool is_output = node.kind == Kind::kReadout;
    require_rule(is_read[i] != is_output, LBQ_RULE_UNREAD, "%s reads %.100s, a %s", is_output ? "a node" : "no node",
                 node.path.c_str(), operator_of(node.kind).name);
  }
  for (const Node& node : network.nodes) {
    if (node.kind != Kind::kReadout) continue;
    require_rule(node.has_time || node.sums_over_time(), LBQ_RULE_SIGNAL,
                 "%.100s takes the mean over time, or reads one instant", node.path.c_str());
    require_rule(node.over_time == network.nodes.back().over_time, LBQ_RULE_SIGNAL,
                 "%.100s is summed over time, or not, unlike the last readout", node.path.c_str());
  }
}

void check_thresholds(const Node& node) {
  const int64_t columns = node.thresholds.count / node.max_level;
  for (int64_t i = 0; i < node.thresholds.count; ++i) {
    const int64_t here = integer_at(node.thresholds, i);
    require_rule(here > 0 || i >= columns, LBQ_RULE_THRESHOLDS, "it has a threshold at or below zero");
    require_rule(i < columns || here >= integer_at(node.thresholds, i - columns), LBQ_RULE_THRESHOLDS,
                 "its thresholds fall");
  }
  for (int64_t i = 0; i < node.reset_amount.count; ++i)
    require_rule(integer_at(node.reset_amount, i) >= 0, LBQ_RULE_RESET, "its reset adds instead of removing");
}

void run_neuron(const Node& node, const int64_t* currents, int64_t* carry, int64_t* levels) {
  const int64_t places = node.to.height * node.to.width;
  for (int64_t i = 0; i < node.to.size(); ++i) {
    const int64_t channel = i / places, reset_amount = of_channel(node.reset_amount, channel);
    int64_t membrane = (carry[i] * node.multiplier >> node.shift) + currents[i];
    if (node.resets_after_decay && carry[i] >= threshold(node, 0, channel)) membrane -= reset_amount;
    int64_t level = 0;
    while (level < node.max_level && membrane >= threshold(node, level, channel)) ++level;
    levels[i] = level;
    carry[i] = membrane;
    if (node.resets_after_decay || level == 0) continue;
    if (node.reset == Reset::kZero) carry[i] = 0;
    if (node.reset == Reset::kEvent) carry[i] -= reset_amount;
    if (node.reset == Reset::kLevel) carry[i] -= reset_amount * level;
  }
}

}  // namespace lbq
