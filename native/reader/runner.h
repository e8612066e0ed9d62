// Runs a model by the engine, or by the interpreter on request or if packed data would be too large.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "interpreter.h"

namespace lbq {

constexpr char kInterpreter[] = "interpreter";

// The state of a batch of sequences between timesteps, of the engine or of the interpreter.
struct Progress {
  int64_t timestep = 0;       // number of finished timesteps
  std::vector<int32_t> sums;  // of the engine's readouts over time, each [B, C * H * W]
  Carries carries;
  std::unique_ptr<State> state;

  void reset();
};

// Immutable: any number of threads may use it. The network must outlive it.
class Runner {
 public:
  // isa: nullptr for the best, "interpreter", or an instruction set; throws if it is not available.
  Runner(const Network& network, const char* isa, int threads);

  const char* isa() const { return engine_ ? engine_->isa() : kInterpreter; }
  // Both as lbq::run of the interpreter.
  void run(const uint8_t* inputs, int64_t batch, int64_t* logits) const;
  void step(const uint8_t* inputs, int64_t batch, int64_t* logits, Progress& progress) const;
  Progress at_rest(int64_t batch) const;

 private:
  const Network& network_;
  const int threads_;
  std::unique_ptr<Engine> engine_;  // null: the interpreter
};

}  // namespace lbq
