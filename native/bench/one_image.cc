// One image through a fixed small network, for counting instructions with callgrind. It has so few channels that tiles
// do not depend on the cache sizes of the machine.
#include <cstdio>
#include <memory>
#include <vector>

#include "engine.h"

namespace {

using lbq::Kind;
using lbq::Node;

constexpr int64_t kSide = 16, kTimesteps = 2;

uint32_t draw() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

class Pocket {
 public:
  Pocket() {
    network_.timesteps = kTimesteps;
    network_.input = {3, kSide, kSide};
    Node repeat = start(Kind::kRepeat, add_synapse(lbq::kInput, 32, 3, 1, 255));
    repeat.has_time = true;
    int32_t last = add_neuron(add(repeat), 6000);
    const int32_t first = last;
    last = add_neuron(add_synapse(last, 32, 3, 1, 5), 60);
    last = add_neuron(add_merge(add_synapse(last, 32, 3, 1, 5), add_shortcut(first)), 40);
    last = add_neuron(add_synapse(last, 64, 3, 2, 5), 10);
    last = add_neuron(add_synapse(last, 64, 3, 1, 5), 50);
    Node readout = start(Kind::kReadout, add_synapse(last, 10, 1, 1, 5));
    readout.sums_over_time = true;
    network_.nodes.push_back(readout);
  }
  const lbq::Network& network() const { return network_; }

 private:
  Node start(Kind kind, int32_t input) const {
    Node node;
    node.kind = kind;
    node.inputs = {input};
    node.from = node.to = input == lbq::kInput ? network_.input : network_.nodes[input].to;
    node.bound = {INT32_MIN, INT32_MAX, 32};
    node.has_time = input != lbq::kInput && (kind == Kind::kNeuron || network_.nodes[input].has_time);
    return node;
  }
  int32_t add(const Node& node) {
    network_.nodes.push_back(node);
    return static_cast<int32_t>(network_.nodes.size()) - 1;
  }
  template <class Number>
  lbq::Integers keep(std::vector<Number> numbers) {
    const auto kept = std::make_shared<std::vector<Number>>(std::move(numbers));
    memory_.push_back(kept);
    return {kept->data(), sizeof(Number), static_cast<int64_t>(kept->size())};
  }

  int32_t add_synapse(int32_t input, int64_t outputs, int64_t kernel, int64_t stride, int64_t max_input) {
    Node node = start(Kind::kSynapse, input);
    node.max_input = max_input;
    for (int axis : {0, 1}) {
      node.window.kernel[axis] = kernel;
      node.window.stride[axis] = stride;
      node.window.padding[axis] = kernel / 2;
    }
    node.to = {outputs, (node.from.height - 1) / stride + 1, (node.from.width - 1) / stride + 1};
    std::vector<int8_t> weights(outputs * node.from.channels * kernel * kernel);
    for (int8_t& weight : weights) weight = static_cast<int8_t>(static_cast<int>(draw() % 21) - 10);
    node.weight = keep(std::move(weights));
    return add(node);
  }
  int32_t add_neuron(int32_t input, int32_t step) {
    Node node = start(Kind::kNeuron, input);
    node.max_level = 5;
    node.multiplier = 1;
    node.shift = 1;
    std::vector<int32_t> thresholds;
    for (int32_t threshold = 1; threshold <= node.max_level; ++threshold) thresholds.push_back(threshold * step);
    node.thresholds = keep(std::move(thresholds));
    node.reset_amount = keep(std::vector<int32_t>{step});
    return add(node);
  }
  int32_t add_shortcut(int32_t input) {
    Node node = start(Kind::kShortcut, input);
    node.max_input = 5;
    node.weight = keep(std::vector<int16_t>{20});
    return add(node);
  }
  int32_t add_merge(int32_t one, int32_t other) {
    Node node = start(Kind::kMerge, one);
    node.inputs.push_back(other);
    return add(node);
  }

  lbq::Network network_;
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace

extern "C" __attribute__((noinline)) void run_one_image(const lbq::Engine* engine, const uint8_t* image,
                                                        int32_t* answers, const lbq::RunOptions* options) {
  engine->run(image, 1, answers, *options);
}

int main() {
  const Pocket pocket;
  const lbq::Engine engine(pocket.network());
  std::vector<uint8_t> image(pocket.network().input.size());
  for (uint8_t& pixel : image) pixel = static_cast<uint8_t>(draw());
  std::vector<int32_t> answers(pocket.network().nodes.back().to.size());
  std::vector<lbq::StepRecord> records;
  lbq::RunOptions options;
  options.records = &records;
  engine.run(image.data(), 1, answers.data(), options);  // allocates the workspace
  options.records = nullptr;
  run_one_image(&engine, image.data(), answers.data(), &options);
  for (const lbq::StepRecord& record : records)
    std::printf("node %d: %.0f %% of pairs, %s\n", record.node, 100 * record.pair_density,
                record.is_dense ? "dense" : "events");
  int64_t sum = 0;
  for (size_t i = 0; i < answers.size(); ++i) sum += static_cast<int64_t>(i % 7 + 1) * answers[i];
  std::printf("%s: checksum of the logits %lld\n", engine.isa(), static_cast<long long>(sum));
  return 0;
}
