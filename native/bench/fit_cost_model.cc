// Fits the costs of engine/cost_model.cc to measured times of this machine:
//   fit_cost_model [rounds [isa...]]
// Layers of many shapes run by events, with 2 to 70 % of active levels, and by dense products. Non-negative least squares
// on relative errors; the costs are printed as that file has them. "Regret" is how much longer the chosen kernel takes
// than the faster one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "fixed_network.h"
#include "plan.h"

namespace {

using lbq::KernelCosts;
using lbq::Node;

constexpr struct {
  const char* name;
  double KernelCosts::*cost;
} kCosts[] = {{"list", &KernelCosts::list},       {"pixel", &KernelCosts::pixel},   {"search", &KernelCosts::search},
              {"visit", &KernelCosts::visit},     {"sums", &KernelCosts::sums},     {"pair", &KernelCosts::pair},
              {"product", &KernelCosts::product}, {"fetch", &KernelCosts::fetch},   {"gather", &KernelCosts::gather},
              {"panel", &KernelCosts::panel},     {"quad", &KernelCosts::quad},     {"tile", &KernelCosts::tile},
              {"stream", &KernelCosts::stream},   {"epilogue", &KernelCosts::epilogue}};
constexpr int kNumCosts = std::size(kCosts);
static_assert(sizeof(KernelCosts) == kNumCosts * sizeof(double), "every cost is fitted");

constexpr int64_t kTimesteps = 2;
constexpr int kInARow = 3;  // runs in a row, so that sums and lists are in the caches as in a network
constexpr double kShares[] = {0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.7};

struct Layer {
  int64_t channels, outputs, side, kernel, stride;
};
constexpr Layer kLayers[] = {
    {16, 16, 32, 3, 1},   {16, 32, 32, 3, 2},   {32, 32, 16, 3, 1},   {32, 64, 16, 3, 2},  {64, 64, 8, 3, 1},
    {64, 64, 16, 3, 1},   {24, 24, 16, 3, 1},   {48, 96, 16, 3, 1},   {32, 32, 32, 3, 1},  {64, 64, 32, 3, 1},
    {64, 128, 16, 3, 2},  {128, 128, 8, 3, 1},  {128, 128, 16, 3, 1}, {128, 128, 32, 3, 1}, {128, 256, 32, 3, 2},
    {256, 256, 16, 3, 1}, {256, 512, 16, 3, 2}, {512, 512, 8, 3, 1},  {64, 128, 16, 1, 2},  {128, 256, 16, 1, 1},
    {256, 64, 16, 1, 1}};
constexpr int64_t kMostScalarProducts = 10000000;  // for the scalar kernels

// Neurons whose levels equal the inputs 0..5, a synapse, neurons.
struct OneLayer : FixedNetwork {
  static constexpr int32_t kSynapse = 2, kNeuron = 3;

  explicit OneLayer(const Layer& layer) {
    network.timesteps = kTimesteps;
    network.takes_frames = true;
    network.input = {layer.channels, layer.side, layer.side};
    const int32_t levels = add_neuron(add_shortcut(lbq::kInput, 1, 255), 1, 0, 0, LBQ_RESET_NONE);
    const int32_t currents = add_synapse(levels, layer.outputs, layer.kernel, layer.stride, kMaxLevel, 60);
    add_readout(add_shortcut(add_neuron(currents, 3000), 1, kMaxLevel));
  }
};

std::vector<uint8_t> levels_of(const lbq::Network& network, double share) {
  std::vector<uint8_t> levels(kTimesteps * network.input.size());
  for (uint8_t& level : levels) level = draw() % 1000 < 1000 * share ? static_cast<uint8_t>(1 + draw() % FixedNetwork::kMaxLevel) : 0;
  return levels;
}

// One layer, one share of active levels, one kernel.
struct Sample {
  std::shared_ptr<lbq::Engine> engine;
  std::vector<uint8_t> levels;
  std::vector<int32_t> answers;
  double counts[kNumCosts] = {};  // how often each cost occurs
  double density = 0, nanoseconds = INFINITY;
  std::string name;

  void run() {
    std::vector<lbq::StageRecord> records;
    lbq::RunOptions options;
    options.records = &records;
    engine->run(levels.data(), 1, answers.data(), options);
    for (const lbq::StageRecord& record : records)
      if (record.node == OneLayer::kNeuron) {
        nanoseconds = std::min(nanoseconds, 1e9 * record.seconds);
        density = record.pair_density;
      }
  }
};

// Non-negative least squares on relative errors by coordinate descent.
KernelCosts fit(const std::vector<Sample>& samples) {
  double square[kNumCosts][kNumCosts] = {}, right[kNumCosts] = {};
  for (const Sample& sample : samples) {
    const double* counts = sample.counts;
    for (int i = 0; i < kNumCosts; ++i) {
      right[i] += counts[i] / sample.nanoseconds;
      for (int j = 0; j < kNumCosts; ++j) square[i][j] += counts[i] * counts[j] / (sample.nanoseconds * sample.nanoseconds);
    }
  }
  double cost[kNumCosts] = {};
  for (int turn = 0; turn < 200000; ++turn)
    for (int i = 0; i < kNumCosts; ++i) {
      if (square[i][i] == 0) continue;
      double rest = right[i];
      for (int j = 0; j < kNumCosts; ++j) rest -= j == i ? 0 : square[i][j] * cost[j];
      cost[i] = std::max(0.0, rest / square[i][i]);
    }
  KernelCosts costs;
  for (int i = 0; i < kNumCosts; ++i) costs.*kCosts[i].cost = cost[i];
  return costs;
}

void fit_isa(const lbq::EngineKernels& kernels, int rounds) {
  const bool is_scalar = std::string(kernels.isa) == "scalar";
  std::vector<std::unique_ptr<OneLayer>> layers;
  std::vector<std::unique_ptr<lbq::PackedSynapse>> packed;
  std::vector<Sample> samples;  // of a layer: one dense, then one for every share
  for (const Layer& layer : kLayers) {
    layers.push_back(std::make_unique<OneLayer>(layer));
    const lbq::Network& network = layers.back()->network;
    const Node& synapse = network.nodes[OneLayer::kSynapse];
    if (is_scalar && synapse.to.height * synapse.to.width * synapse.weight.count > kMostScalarProducts) continue;
    packed.push_back(std::make_unique<lbq::PackedSynapse>(synapse, kernels));
    const auto make = [&](lbq::Choice choice) {
      return std::make_shared<lbq::Engine>(network, lbq::EngineOptions{kernels.isa, choice});
    };
    const auto events = make(lbq::Choice::kEvents), dense = make(lbq::Choice::kDense);
    const std::string name = std::to_string(layer.channels) + " to " + std::to_string(layer.outputs) + " at " +
                             std::to_string(layer.side) + ", window " + std::to_string(layer.kernel) + ", stride " +
                             std::to_string(layer.stride);
    const size_t size = network.nodes.back().to.size();
    samples.push_back({dense, levels_of(network, 0.2), std::vector<int32_t>(size), {}, 0, INFINITY, name});
    for (double share : kShares)
      samples.push_back({events, levels_of(network, share), std::vector<int32_t>(size), {}, 0, INFINITY, name});
  }
  for (int round = 0; round < rounds; ++round)
    for (Sample& sample : samples)
      for (int i = 0; i < kInARow; ++i) sample.run();

  constexpr size_t kPerLayer = 1 + std::size(kShares);
  for (size_t i = 0; i < samples.size(); ++i) {
    Sample& sample = samples[i];
    const lbq::PackedSynapse& synapse = *packed[i / kPerLayer];
    const double positions = static_cast<double>(kTimesteps * synapse.to.height * synapse.to.width);
    for (int cost = 0; cost < kNumCosts; ++cost) {  // the time if nothing else costs anything
      KernelCosts one;
      one.*kCosts[cost].cost = 1;
      sample.counts[cost] = i % kPerLayer == 0
                                ? lbq::time_of_dense(one, synapse, kTimesteps, kernels.costs->tile > 0)
                                : lbq::time_of_events(one, synapse, kTimesteps, sample.density);
      sample.counts[cost] += one.epilogue * positions * static_cast<double>(synapse.out_stride) / 32;
    }
  }
  const KernelCosts costs = fit(samples);
  double worst_fitted = 0, worst_now = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample &sample = samples[i], &dense = samples[i - i % kPerLayer];
    const bool is_dense = i % kPerLayer == 0;
    const auto regret = [&](const KernelCosts& some) {
      const double ratio = lbq::events_over_dense(some, *packed[i / kPerLayer], kTimesteps, sample.density);
      const double taken = ratio > 1 ? dense.nanoseconds : sample.nanoseconds;
      return is_dense ? 0.0 : taken / std::min(dense.nanoseconds, sample.nanoseconds) - 1;
    };
    double explained = 0;
    for (int cost = 0; cost < kNumCosts; ++cost) explained += costs.*kCosts[cost].cost * sample.counts[cost];
    std::printf("%-44s %s %5.3f  %9.1f us, explained %5.2f, regret %4.2f, committed %4.2f\n", sample.name.c_str(),
                is_dense ? "dense " : "events", sample.density, 1e-3 * sample.nanoseconds,
                explained / sample.nanoseconds, regret(costs), regret(*kernels.costs));
    worst_fitted = std::max(worst_fitted, regret(costs));
    worst_now = std::max(worst_now, regret(*kernels.costs));
  }
  std::printf("%s: worst regret %.2f, of the committed costs %.2f\nLBQ_COSTS(%s", kernels.isa, worst_fitted, worst_now,
              kernels.isa);
  for (const auto& [name, cost] : kCosts)
    if (costs.*cost != 0) std::printf(", .%s = %.3g", name, costs.*cost);
  std::printf(")\n");
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 15;
  const std::vector<std::string> all = {"scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "amx"};
  const std::vector<std::string> asked(words + std::min(count, 2), words + count);
  for (const std::string& isa : asked.empty() ? all : asked) {
    const lbq::EngineKernels* kernels = lbq::engine_kernels(isa.c_str());
    if (kernels != nullptr) fit_isa(*kernels, rounds);
  }
  return 0;
}
