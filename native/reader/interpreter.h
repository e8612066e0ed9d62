// Runs a network as docs/deploy/bundle-format.md defines it, one value after another in int64. It is the slow reference
// that faster engines are compared with.
#pragma once

#include <vector>

#include "engine/network.h"

namespace lbq {

// The state of a batch of sequences between two timesteps.
struct State {
  State(const Network& network, int64_t batch);
  void reset();

  int64_t timestep = 0;                       // how many are over
  std::vector<std::vector<int64_t>> carries;  // of every node that is a neuron, [B, C * H * W]
  std::vector<int64_t> sums;                  // of all readouts over time, each [B, C * H * W]
};

// Without a state, run whole sequences from rest: inputs [T, B, ...] or still [B, ...]; logits [B, n] of every output,
// concatenated, or [T, B, n] for a network that returns the sequence. With a state, run the next timestep: inputs
// [B, ...], logits [B, n], the sum so far or this timestep's own. The caller must not run more than network.timesteps.
void run(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits,
         State* state = nullptr);

}  // namespace lbq
