#include "interpreter.h"

#include <algorithm>

#include "engine/operators.h"

namespace lbq {
namespace {

using Values = std::vector<int64_t>;

// Run all nodes for one sample and timestep.
class Instant {
 public:
  explicit Instant(const Network& network) : network_(network), input_(network.input.size()) {
    values_.reserve(network.nodes.size());
    operands_.resize(network.nodes.size());
    for (const Node& node : network.nodes) {
      for (int32_t input : node.inputs)
        operands_[values_.size()].push_back({value(input).data(), network.value(input).shape});
      values_.emplace_back(node.to.size());
    }
  }

  void see(const uint8_t* sample) { std::copy(sample, sample + input_.size(), input_.begin()); }
  const Values& value(int32_t node) const { return node == kInput ? input_ : values_[node]; }

  // Nodes without time need to run once per image.
  void advance(bool is_new_image, State& state, int64_t sample) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const Node& node = network_.nodes[i];
      if (!node.has_time && !is_new_image && !node.is_output()) continue;
      const Operator& op = operator_of(node.kind);
      if (op.step) {
        op.step(node, operands_[i][0].data, state.carries[i].data() + sample * node.to.size(), values_[i].data());
      } else {
        op.run(node, operands_[i], values_[i].data());
      }
    }
  }

 private:
  const Network& network_;
  Values input_;
  std::vector<Values> values_;
  std::vector<std::vector<Operand>> operands_;
};

// Write the outputs of all readouts for one row of `rows`; outputs are concatenated.
void write_outputs(const Network& network, const Instant& instant, int64_t rows, int64_t row, bool adds,
                   int64_t* logits) {
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    if (!network.nodes[i].is_output()) continue;
    const Values& given = instant.value(static_cast<int32_t>(i));
    const int64_t size = static_cast<int64_t>(given.size());
    for (int64_t k = 0; k < size; ++k) logits[row * size + k] = given[k] + (adds ? logits[row * size + k] : 0);
    logits += rows * size;
  }
}

void run_sequence(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits) {
  const bool adds = network.sums_over_time();
  const int64_t size_in = network.input.size(), rows = batch * (adds ? 1 : network.timesteps);
  Instant instant(network);
  State state(network, 1);
  std::fill(logits, logits + rows * network.output_size(), 0);
  for (int64_t b = 0; b < batch; ++b) {
    state.reset();
    for (int64_t t = 0; t < network.timesteps; ++t) {
      const bool is_new_image = t == 0 || network.takes_frames;
      if (is_new_image) instant.see(inputs + (t * batch + b) * size_in);
      instant.advance(is_new_image, state, 0);
      write_outputs(network, instant, rows, adds ? b : t * batch + b, adds, logits);
    }
  }
}

void run_timestep(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits,
                  State& state) {
  Instant instant(network);
  for (int64_t b = 0; b < batch; ++b) {
    instant.see(inputs + b * network.input.size());
    instant.advance(true, state, b);
    write_outputs(network, instant, batch, b, network.sums_over_time(), state.sums.data());
  }
  std::copy(state.sums.begin(), state.sums.end(), logits);
  ++state.timestep;
}

}  // namespace

State::State(const Network& network, int64_t batch) : sums(batch * network.output_size()) {
  carries.reserve(network.nodes.size());
  for (const Node& node : network.nodes)
    carries.emplace_back(operator_of(node.kind).step ? batch * node.to.size() : 0);
}

void State::reset() {
  timestep = 0;
  for (auto& carry : carries) std::fill(carry.begin(), carry.end(), 0);
  std::fill(sums.begin(), sums.end(), 0);
}

void run(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits, State* state) {
  if (state == nullptr) return run_sequence(network, inputs, batch, logits);
  run_timestep(network, inputs, batch, logits, *state);
}

}  // namespace lbq
