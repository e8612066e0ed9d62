// Runs an integer network: each layer by events where few levels are active, by dense products otherwise.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "network.h"

namespace lbq {

enum class Choice : uint8_t { kMeasured, kEvents, kDense };

struct EngineOptions {
  const char* isa = nullptr;  // null: the best one that LBQ_ISA allows
  Choice choice = Choice::kMeasured;
};

// The carries of all neurons between two calls of a stream.
struct Carries {
  int64_t batch = 0;
  std::vector<std::vector<int32_t>> carries;  // per node; empty unless it is a neuron
};

// Time and kernel of one stage of a run.
struct StageRecord {
  int32_t node = 0;
  double seconds = 0;        // CPU time of the thread
  double pair_density = -1;  // share of channel pairs with a nonzero level, in a sample of rows; -1: no synapse
  bool is_dense = false;
};

struct RunOptions {
  int64_t timesteps = 0;                       // of this call, at most the network's; 0: the network's
  int threads = 1;
  Carries* state = nullptr;                    // in and out; null: start at zero
  uint8_t* const* levels = nullptr;            // per node: null, or the output buffer of its levels, [T, B, C, H, W]
  std::vector<StageRecord>* records = nullptr;  // one per stage; needs one thread and at most 4 images
};

// Immutable: any number of threads may call run() at once. The network must outlive it.
class Engine {
 public:
  // `network`: one that check_network or the reader accepted. Throws std::invalid_argument for an instruction set that
  // is not available.
  explicit Engine(const Network& network, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // inputs: [B, C, H, W], or [T, B, C, H, W] for frames. answers: all outputs concatenated, each [B, ...], or
  // [T, B, ...] if the readouts do not sum. With a state, the answers cover the timesteps of this call only; the caller
  // adds up the answers of all calls.
  // Throws std::invalid_argument for options that do not fit the network or each other.
  void run(const uint8_t* inputs, int64_t batch, int32_t* answers, const RunOptions& options = {}) const;
  const char* isa() const;
  Carries at_rest(int64_t batch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lbq
