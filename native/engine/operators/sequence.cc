// Time: its beginning, where one instant is repeated, and its end, the readout.

#include "operators/operator_base.h"

namespace lbq {
namespace {

ValueInfo infer_repeat(Node& node, const Values& inputs, int64_t timesteps) {
  ValueInfo value = check_currents(inputs);
  require_rule(!value.has_time, LBQ_RULE_SIGNAL, "it takes one instant, and repeats what has time");
  require_rule(node.repeats == timesteps, LBQ_RULE_TIMESTEPS, "it repeats %" PRId64 " times", node.repeats);
  value.has_time = true;
  return value;
}

ValueInfo infer_readout(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = check_currents(inputs);
  const bool keeps = node.over_time == OverTime::kNone;
  require_rule(value.has_time || keeps, LBQ_RULE_SIGNAL, "it takes a sequence, and reads one instant");
  value.has_time = value.has_time && keeps;
  return value;
}

Interval bound_readout(const Node& node, const Entries& inputs, int64_t timesteps, Intervals& gives) {
  change_each(inputs, gives, [&](Interval interval) { return interval * (node.sums_over_time() ? timesteps : 1); });
  return hull_of(gives).with_zero();
}

}  // namespace

const Operator operators::kRepeat = {
    "repeat", 1, 1, false, infer_repeat, keep_bound, run_copy,
    {number("timesteps", store_number<int64_t, &Node::repeats>, 1, INT64_MAX)}, {}};

const Operator operators::kReadout = {
    "readout", 1, 1, true, infer_readout, bound_readout, run_copy,
    {word("over_time", store_number<OverTime, &Node::over_time>, {"mean", OverTime::kMean},
          {"sum", OverTime::kSum}, {"none", OverTime::kNone})},
    {}};

}  // namespace lbq
