// Repetition over time, and the readout.

#include "operators/operator_base.h"
#include "stage.h"

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

// Add to the answers of earlier chunks, or store those of every timestep.
void execute_readout(const ChunkContext& context, const Stage& stage, StageRecord&) {
  const Node& node = context.network.nodes[stage.node];
  const Answers& answers = context.answers;
  const NodeValue held = context.value(stage.reads[0]);
  const int64_t pixels = node.to.height * node.to.width, size = node.to.size();
  const bool adds = node.sums_over_time();
  const int64_t first = context.network.output_size(stage.node);  // of its answers, for one sample at one instant
  int32_t* const output = answers.to + first * answers.batch * (adds ? 1 : answers.timesteps);
  for (int64_t t = 0; t < context.chunk.timesteps; ++t)
    for (int64_t image = 0; image < context.chunk.batch; ++image) {
      const int64_t row = answers.first_image + image;
      int32_t* to = output + (adds ? row : (answers.first_timestep + t) * answers.batch + row) * size;
      const int64_t from = ((held.value.has_time ? t * context.chunk.batch : 0) + image) * held.value.instant_size();
      for (int64_t channel = 0; channel < node.to.channels; ++channel)
        for (int64_t pixel = 0; pixel < pixels; ++pixel) {
          const int32_t current = static_cast<int32_t>(held.at(from + pixel * held.value.stride + channel));
          int32_t& answer = to[channel * pixels + pixel];
          answer = adds ? answer + current : current;
        }
    }
}

}  // namespace

const Operator operators::kRepeat = {
    .name = "repeat", .infer = infer_repeat, .bound = keep_bound, .run = run_copy, .is_view = true,
    .settings = {number("timesteps", store_number<int64_t, &Node::repeats>, 1, INT64_MAX)}};

const Operator operators::kReadout = {
    .name = "readout", .has_bound = true, .infer = infer_readout, .bound = bound_readout, .run = run_copy,
    .plan = plan_stage<execute_readout>,
    .settings = {word("over_time", store_number<OverTime, &Node::over_time>, {"mean", OverTime::kMean},
                      {"sum", OverTime::kSum}, {"none", OverTime::kNone})}};

}  // namespace lbq
