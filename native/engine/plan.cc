// Builds the plan: terms with a single reader are added in the stage of that reader.
#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "operators/level_product.h"

namespace lbq {

int32_t origin_of(const Network& network, int32_t node) {
  while (node != kInput && network.nodes[node].kind == Kind::kRepeat) node = network.nodes[node].inputs[0];
  return node;
}

namespace {

constexpr int64_t kByte = 255;

class Planner {
 public:
  Planner(const Network& network, const EngineKernels& kernels, Plan& plan)
      : network_(network), kernels_(kernels), plan_(plan) {}

  void plan() {
    describe_values();
    find_products();
    find_materialized();
    for (int32_t node = 0; node < count(); ++node) add_stage(node);
    for (size_t stage = 0; stage < plan_.stages.size(); ++stage) record_last_use(static_cast<int64_t>(stage));
    check();
  }

 private:
  int32_t count() const { return static_cast<int32_t>(network_.nodes.size()); }
  const Node& at(int32_t node) const { return network_.nodes[node]; }
  Value& value(int32_t node) { return node == kInput ? plan_.values.back() : plan_.values[node]; }
  int32_t origin(int32_t node) const { return origin_of(network_, node); }

  void describe_values() {
    plan_.values.resize(count() + 1);
    plan_.values.back() = {true, network_.takes_frames, network_.input, channel_stride(network_.input.channels), 0};
    for (int32_t i = 0; i < count(); ++i) {
      const Node& node = at(i);
      Value made;
      made.shape = node.to;
      made.stride = channel_stride(node.to.channels);
      made.has_time = node.kind == Kind::kIntegerNeuron;  // what repeats give is computed once
      for (int32_t input : node.inputs) made.has_time = made.has_time || value(input).has_time;
      made.are_levels = node.largest != kCurrents && node.largest <= kByte;
      plan_.values[i] = made;
    }
  }

  // Which node stores the values of a fast product: the only rearrangement that reads it, or itself.
  void find_products() {
    plan_.product_of.assign(count(), kInput);
    std::vector<int32_t> reader(count(), kInput), num_readers(count(), 0);
    for (int32_t i = 0; i < count(); ++i)
      for (int32_t input : at(i).inputs)
        if (origin(input) != kInput) reader[origin(input)] = i, ++num_readers[origin(input)];
    for (int32_t i = 0; i < count(); ++i) {
      if (!has_fast_product(network_, i)) continue;
      const bool is_moved = num_readers[i] == 1 && at(reader[i]).kind == Kind::kRearrange;
      plan_.product_of[is_moved ? reader[i] : i] = i;
    }
  }
  bool is_product(int32_t node) const { return plan_.product_of[node] != kInput; }

  // Which nodes need a buffer: those with several readers, those read by a node that does not add, and terms without
  // time in a sum with time.
  void find_materialized() {
    is_materialized_.assign(count(), false);
    std::vector<int> readers(count(), 0);
    for (int32_t i = 0; i < count(); ++i)
      for (int32_t input : at(i).inputs)
        if (origin(input) != kInput && at(i).kind != Kind::kRepeat && ++readers[origin(input)] > 1)
          is_materialized_[origin(input)] = true;
    for (int32_t i = count() - 1; i >= 0; --i) {
      const Kind kind = at(i).kind;
      if (is_product(i)) {
        for (int32_t input : at(plan_.product_of[i]).inputs) materialize(MovedValue(network_, plan_, input).value);
        continue;
      }
      if (has_fast_product(network_, i)) continue;  // stored by the rearrangement that reads it
      if (!is_current(kind) && kind != Kind::kIntegerNeuron && kind != Kind::kRepeat)
        for (int32_t input : at(i).inputs) materialize(input);
      if (kind == Kind::kIntegerNeuron) mark_terms(at(i).inputs[0], value(at(i).inputs[0]).has_time, false);
      if (is_materialized_[i] && is_current(kind)) mark_terms(i, value(i).has_time, true);
    }
  }

  // Whether it is a term of a sum, or a sum.
  static bool is_current(Kind kind) { return is_weighted(kind) || kind == Kind::kMerge || kind == Kind::kOffset; }
  static bool is_weighted(Kind kind) { return kind == Kind::kSynapse || kind == Kind::kShortcut; }
  void materialize(int32_t node) {
    if (origin(node) != kInput) is_materialized_[origin(node)] = true;
  }
  bool is_separate(int32_t node, bool has_time) const {
    return node == kInput || !is_current(at(node).kind) || is_materialized_[node] || plan_.value(node).has_time != has_time;
  }

  // Whether it reads what no fast kernel takes.
  bool is_plain(const Node& node) const {
    return node.kind == Kind::kSynapse && !plan_.value(node.inputs[0]).are_levels;
  }

  void mark_terms(int32_t node, bool has_time, bool is_root) {
    node = origin(node);
    if (!is_root && is_separate(node, has_time)) return materialize(node);
    const Node& here = at(node);
    if (is_weighted(here.kind)) {
      materialize(here.inputs[0]);
      if (is_plain(here) && !is_root) materialize(node);
      return;
    }
    for (int32_t input : here.inputs) mark_terms(input, has_time, false);
  }

  void add_stage(int32_t i) {
    const Node& node = at(i);
    Stage stage{};
    stage.node = i;
    if (node.kind == Kind::kIntegerNeuron) {
      stage.op = Stage::Op::kFire;
      start(stage.sum, node.to, value(node.inputs[0]).has_time);
      gather(stage.sum, node.inputs[0], false);
      pack(node, stage.neuron);
    } else if (node.kind == Kind::kPool) {
      stage.op = Stage::Op::kPool;
    } else if (node.kind == Kind::kReadout) {
      stage.op = Stage::Op::kReadout;
      stage.first_answer = num_answers_;
      num_answers_ += node.to.size();
    } else if (node.kind == Kind::kRepeat || !is_materialized_[i]) {
      return;
    } else if (is_product(i)) {
      stage.op = Stage::Op::kProduct;
      stage.product = std::make_unique<LevelProduct>(network_, plan_, kernels_, plan_.product_of[i], i);
    } else if (!is_current(node.kind) || is_plain(node)) {
      stage.op = Stage::Op::kPlain;
    } else {
      stage.op = Stage::Op::kStore;
      start(stage.sum, node.to, value(i).has_time);
      gather(stage.sum, i, true);
    }
    finish(stage.sum);
    plan_.stages.push_back(std::move(stage));
  }

  void start(Sum& sum, const Shape& shape, bool has_time) {
    sum.shape = shape;
    sum.stride = channel_stride(shape.channels);
    sum.outputs = outputs_per_block(shape.channels);
    sum.has_time = has_time;
    low_ = high_ = 0;
  }

  void gather(Sum& sum, int32_t node, bool is_root) {
    node = origin(node);
    if (!is_root && is_separate(node, sum.has_time)) {
      sum.extras.push_back({node, {}});
      return;
    }
    const Node& here = at(node);
    if (here.kind == Kind::kOffset) {
      add_offset(sum, here.bias);
    } else {
      add_bias(sum, here.bias);
    }
    if (!is_weighted(here.kind)) {
      for (int32_t input : here.inputs) gather(sum, input, false);
      return;
    }
    if (here.kind == Kind::kShortcut) {
      ExtraTerm extra{origin(here.inputs[0]), std::vector<int32_t>(sum.stride)};
      for (int64_t channel = 0; channel < sum.shape.channels; ++channel)
        extra.weight[channel] = static_cast<int32_t>(of_channel(here.weight, channel));
      sum.extras.push_back(std::move(extra));
      return;
    }
    sum.synapses.push_back(std::make_unique<PackedSynapse>(here, kernels_));
    sum.synapses.back()->node_input = origin(here.inputs[0]);
    const bool is_bounded = here.bound.bits != 0;
    low_ += is_bounded ? here.bound.low : INT32_MIN;
    high_ += is_bounded ? here.bound.high : INT32_MAX;
  }

  // A constant whose axes are as long as those of the sum, or 1.
  void add_offset(Sum& sum, const Integers& bias) {
    const Shape& to = sum.shape;
    std::vector<int32_t> map;
    map.reserve(to.size());
    const auto axis = [&](int i) { return i < bias.num_dims ? bias.shape[i] : 1; };
    for (int64_t c = 0; c < to.channels; ++c)
      for (int64_t y = 0; y < to.height; ++y)
        for (int64_t x = 0; x < to.width; ++x) {
          const int64_t row = (axis(0) == 1 ? 0 : c) * axis(1) + (axis(1) == 1 ? 0 : y);
          map.push_back(static_cast<int32_t>(integer_at(bias, row * axis(2) + (axis(2) == 1 ? 0 : x))));
        }
    add_bias(sum, {map.data(), 4, to.size(), 0, {}});
  }

  void add_bias(Sum& sum, const Integers& bias) {
    if (bias.count == 0) return;
    const int64_t channels = sum.shape.channels, pixels = sum.shape.height * sum.shape.width;
    const bool is_map = bias.count != channels && bias.count != 1;
    if (sum.bias.empty()) sum.bias.assign(sum.stride, 0);
    if (is_map && !sum.bias_is_map) {
      std::vector<int32_t> map;
      for (int64_t pixel = 0; pixel < pixels; ++pixel) map.insert(map.end(), sum.bias.begin(), sum.bias.end());
      sum.bias = std::move(map);
      sum.bias_is_map = true;
    }
    for (int64_t pixel = 0; pixel < (sum.bias_is_map ? pixels : 1); ++pixel)
      for (int64_t channel = 0; channel < channels; ++channel) {
        const int64_t value = is_map ? integer_at(bias, channel * pixels + pixel) : of_channel(bias, channel);
        sum.bias[pixel * sum.stride + channel] += static_cast<int32_t>(value);
      }
  }

  // Intermediate 16-bit sums may wrap around as long as the result fits; biases are added in 32 bits.
  void finish(Sum& sum) {
    sum.fits_int16 = low_ >= INT16_MIN && high_ <= INT16_MAX;
    for (const auto& synapse : sum.synapses) sum.fits_int16 = sum.fits_int16 && !synapse->is_wide;
  }

  void pack(const Node& node, PackedNeuron& neuron) const {
    const int64_t stride = channel_stride(node.to.channels), channels = node.to.channels;
    neuron.thresholds.assign(node.max_level * stride, INT32_MAX);  // padded channels never fire
    neuron.reset_amount.assign(stride, 0);
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t n = 0; n < node.max_level; ++n)
        neuron.thresholds[n * stride + channel] = static_cast<int32_t>(threshold(node, n, channel));
      neuron.reset_amount[channel] = static_cast<int32_t>(of_channel(node.reset_amount, channel));
    }
  }

  // Call read(node) for every value that a stage reads.
  template <class Read>
  void for_reads(const Stage& stage, Read read) const {
    if (stage.product) {
      read(stage.product->left.value);
      read(stage.product->right.value);
    }
    if (stage.op == Stage::Op::kPool || stage.op == Stage::Op::kReadout || stage.op == Stage::Op::kPlain)
      for (int32_t input : at(stage.node).inputs) read(origin(input));
    for (const auto& synapse : stage.sum.synapses) read(synapse->node_input);
    for (const ExtraTerm& extra : stage.sum.extras) read(extra.value);
  }

  void record_last_use(int64_t stage) {
    value(plan_.stages[stage].node).last_use = stage;
    for_reads(plan_.stages[stage], [&](int32_t node) { value(node).last_use = stage; });
  }

  // Every value is written before it is read.
  void check() const {
    std::vector<bool> is_written(count(), false);
    for (const Stage& stage : plan_.stages) {
      for_reads(stage, [&](int32_t node) {
        if (node != kInput && !is_written[node])
          throw std::logic_error("lbq: node " + std::to_string(stage.node) + " reads node " + std::to_string(node) +
                                 ", which no stage before it writes");
      });
      is_written[stage.node] = stage.op != Stage::Op::kReadout;
    }
  }

  const Network& network_;
  const EngineKernels& kernels_;
  Plan& plan_;
  std::vector<bool> is_materialized_;
  int64_t low_ = 0, high_ = 0, num_answers_ = 0;
};

}  // namespace

Plan::Plan(const Network& network, const EngineKernels& kernels) { Planner(network, kernels, *this).plan(); }

}  // namespace lbq
