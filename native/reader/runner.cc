#include "runner.h"

#include <algorithm>
#include <cstring>

#include "engine/kernels.h"
#include "engine/check_network.h"
#include "rules.h"

namespace lbq {

void Progress::reset() {
  timestep = 0;
  std::fill(sums.begin(), sums.end(), 0);
  for (auto& carry : carries.carries) std::fill(carry.begin(), carry.end(), 0);
  if (state) state->reset();
}

Runner::Runner(const Network& network, const char* isa, int threads) : network_(network), threads_(threads) {
  if (isa != nullptr && !std::strcmp(isa, kInterpreter)) return;
  if (!fits_packed(network)) {
    require(isa == nullptr, LBQ_MODEL_BAD_ARGUMENT,
            "padded for %s, this network would become far larger than it is; take \"%s\"", isa, kInterpreter);
    return;
  }
  require(engine_kernels(isa) != nullptr, LBQ_MODEL_BAD_ARGUMENT, "this machine or build has no instruction set %s", isa);
  engine_ = std::make_unique<Engine>(network, EngineOptions{isa});
}

void Runner::run(const uint8_t* inputs, int64_t batch, int64_t* logits) const {
  if (!engine_) return lbq::run(network_, inputs, batch, logits);
  const int64_t rows = batch * (network_.sums_over_time() ? 1 : network_.timesteps);
  std::vector<int32_t> answers(rows * network_.output_size());
  RunOptions options;
  options.threads = threads_;
  engine_->run(inputs, batch, answers.data(), options);
  std::copy(answers.begin(), answers.end(), logits);
}

void Runner::step(const uint8_t* inputs, int64_t batch, int64_t* logits, Progress& progress) const {
  const int64_t next = progress.timestep + 1;
  progress.timestep = network_.timesteps;  // should it fail half way, only a reset helps
  if (!engine_) {
    lbq::run(network_, inputs, batch, logits, progress.state.get());
  } else {
    std::vector<int32_t> answers(progress.sums.size());
    RunOptions options;
    options.timesteps = 1;
    options.threads = threads_;
    options.state = &progress.carries;
    engine_->run(inputs, batch, answers.data(), options);
    const bool adds = network_.sums_over_time();
    for (size_t i = 0; i < answers.size(); ++i)
      logits[i] = progress.sums[i] = adds ? progress.sums[i] + answers[i] : answers[i];
  }
  progress.timestep = next;
}

Progress Runner::at_rest(int64_t batch) const {
  Progress progress;
  if (engine_) {
    progress.carries = engine_->at_rest(batch);
    progress.sums.resize(batch * network_.output_size());
  } else {
    progress.state = std::make_unique<State>(network_, batch);
  }
  return progress;
}

}  // namespace lbq
