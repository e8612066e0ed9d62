// The neuron: a carry that decays, thresholds, a reset.

#include "operators/operator_base.h"
#include "stage.h"

namespace lbq {
namespace {

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
  require_rule(!node.resets_after_decay || (thresholds.shape[0] == 1 && node.reset == LBQ_RESET_EVENT), LBQ_RULE_RESET,
               "it resets after its decay: one threshold, one event");
  node.max_level = static_cast<int32_t>(thresholds.shape[0]);
  value.max_level = node.max_level;
  return value;
}

// One channel of a neuron: its thresholds, decay and reset.
class Membrane {
 public:
  Membrane(const Node& node, int64_t channel) : node_(node), reset_amount_(of_channel(node.reset_amount, channel)) {
    thresholds_.reserve(node.max_level);
    for (int64_t index = 0; index < node.max_level; ++index) thresholds_.push_back(threshold(node, index, channel));
  }

  // The hull of all membranes, carries, products of the decay, and intermediate values.
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
      if (carried == before || !hull.fits()) break;  // a fixed point, or an overflow
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
      if (level > 0 && node_.reset == LBQ_RESET_ZERO) part = {0, 0};
      const int64_t units = node_.reset == LBQ_RESET_LEVEL   ? level
                            : node_.reset == LBQ_RESET_EVENT ? std::min<int64_t>(level, 1)
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

void step_neuron(const Node& node, const int64_t* currents, int64_t* carry, int64_t* levels) {
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
    if (node.reset == LBQ_RESET_ZERO) carry[i] = 0;
    if (node.reset == LBQ_RESET_EVENT) carry[i] -= reset_amount;
    if (node.reset == LBQ_RESET_LEVEL) carry[i] -= reset_amount * level;
  }
}

// ---- in the engine ----

struct PackedNeuron {
  std::vector<int32_t> thresholds, reset_amount;  // [N][stride], [stride]

  explicit PackedNeuron(const Node& node) {
    const int64_t stride = channel_stride(node.to.channels);
    thresholds.assign(node.max_level * stride, INT32_MAX);  // padded channels never fire
    reset_amount.assign(stride, 0);
    for (int64_t channel = 0; channel < node.to.channels; ++channel) {
      for (int64_t n = 0; n < node.max_level; ++n)
        thresholds[n * stride + channel] = static_cast<int32_t>(threshold(node, n, channel));
      reset_amount[channel] = static_cast<int32_t>(of_channel(node.reset_amount, channel));
    }
  }
};

// Copy the levels to the caller of RunOptions::levels.
void write_levels(const ChunkContext& context, const Stage& stage) {
  const Answers& answers = context.answers;
  uint8_t* const to = answers.levels ? answers.levels[stage.node] : nullptr;
  if (to == nullptr) return;
  const NodeValue held = context.value(stage.node);
  const int64_t pixels = held.value.shape.height * held.value.shape.width, channels = held.value.shape.channels;
  for (int64_t t = 0; t < context.chunk.timesteps; ++t)
    for (int64_t image = 0; image < context.chunk.batch; ++image) {
      uint8_t* planes =
          to + ((answers.first_timestep + t) * answers.batch + answers.first_image + image) * channels * pixels;
      const int64_t from = (t * context.chunk.batch + image) * held.value.instant_size();
      for (int64_t pixel = 0; pixel < pixels; ++pixel)
        for (int64_t channel = 0; channel < channels; ++channel)
          planes[channel * pixels + pixel] = static_cast<uint8_t>(held.at(from + pixel * held.value.stride + channel));
    }
}

void execute_neuron(const PackedNeuron& packed, const ChunkContext& context, const Stage& stage, StageRecord& record) {
  const Node& node = context.network.nodes[stage.node];
  const Value& value = context.plan.value(stage.node);
  uint8_t* levels = reinterpret_cast<uint8_t*>(context.space.of(stage.node));
  const auto [carries, first] = context.state;
  int32_t* carry = carries ? carries->carries[stage.node].data() + first * value.instant_size() : nullptr;
  const auto fire = [&](const CurrentBlock& block, int64_t position, int64_t output) {
    const int64_t at = position * value.stride + output;
    context.kernels.fire(block, {packed.thresholds.data() + output,
                                 packed.reset_amount.data() + output,
                                 value.stride,
                                 node.max_level,
                                 node.multiplier,
                                 node.shift,
                                 node.reset,
                                 node.resets_after_decay,
                                 carry ? carry + at : nullptr,
                                 levels + at,
                                 context.chunk.batch * value.instant_size(),
                                 value.stride});
  };
  run_sum(context, stage, fire, record);
  write_levels(context, stage);
}

void plan_neuron(Planner& planner, Stage& stage) {
  const Node& node = planner.at(stage.node);
  stage.sum.has_time = planner.plan.value(node.inputs[0]).has_time;
  planner.add_term(stage, node.inputs[0]);
  stage.execute = [packed = PackedNeuron(node)](const ChunkContext& context, const Stage& stage, StageRecord& record) {
    execute_neuron(packed, context, stage, record);
  };
}

}  // namespace

const Operator operators::kIntegerNeuron = {
    .name = "integer_neuron", .has_bound = true, .infer = infer_neuron, .bound = bound_neuron,
    .visits = [](const Node& node, int64_t timesteps) { return node.max_level * timesteps * node.to.channels; },
    .step = step_neuron, .check = check_thresholds, .plan = plan_neuron,
    .settings = {number("multiplier", store_number<int32_t, &Node::multiplier>, 0, kSide),
                 number("shift", store_number<int32_t, &Node::shift>, 0, 16),
                 word("reset", store_number<lbq_reset_mode, &Node::reset>, {"event", LBQ_RESET_EVENT},
                      {"level", LBQ_RESET_LEVEL}, {"none", LBQ_RESET_NONE}, {"zero", LBQ_RESET_ZERO}),
                 flag("resets_after_decay", store_flag<&Node::resets_after_decay>)},
    .roles = {{"thresholds", &Node::thresholds, 4, false}, {"reset_amount", &Node::reset_amount, 4, false}}};

}  // namespace lbq
