// Runs a network of integers: event-driven where few levels are active, densely where many are.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "network.h"

namespace lbq {

enum class Choice : uint8_t { kMeasured, kEvents, kDense };

struct EngineOptions {
  const char* isa = nullptr;  // the best one that LBQ_ISA allows
  Choice choice = Choice::kMeasured;
};

// What neurons keep between the chunks of a stream; empty: rest.
struct Carries {
  int64_t batch = 0;
  std::vector<std::vector<int32_t>> carries;  // of every node; empty where it is no neuron
};

// How one step of a run went.
struct StepRecord {
  int32_t node = 0;
  double seconds = 0;        // of the thread's work
  double pair_density = -1;  // share of pairs of channels that were not both zero; -1: no synapse
  bool is_dense = false;
};

struct RunOptions {
  int64_t timesteps = 0;                       // of this chunk, at most the network's; 0: the network's
  int threads = 1;
  Carries* state = nullptr;                      // in and out; null: from rest
  uint8_t* const* levels = nullptr;            // of every node: null, or where its levels go, [T, B, C, H, W]
  std::vector<StepRecord>* records = nullptr;  // of all steps; needs one thread and one chunk of the batch
};

// Constant after it was made: any number of threads may call run() at once. The network must outlive it.
class Engine {
 public:
  // Throws BadNetwork (check_network.h), or std::invalid_argument for an instruction set that is not here.
  explicit Engine(const Network& network, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // inputs: [B, C, H, W], or [T, B, C, H, W] for frames; answers: [B, classes], or [T, B, classes] if the
  // readout does not sum. With a state, the answer to a chunk: a sum over time is the sum of all chunks.
  // Throws std::invalid_argument for options that do not fit the network or each other.
  void run(const uint8_t* inputs, int64_t batch, int32_t* answers, const RunOptions& options = {}) const;
  const Network& network() const;
  const char* isa() const;
  Carries at_rest(int64_t batch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lbq
