// Runs a network as docs/deploy/bundle-format.md defines it: one value after another, every number an int64.
// Slow; the reference that faster engines are compared with.
#pragma once

#include <vector>

#include "engine/network.h"

namespace lbq {

// What a batch of sequences carries from one timestep to the next.
struct State {
  State(const Network& network, int64_t batch);
  void reset();

  int64_t timestep = 0;                       // how many are over
  std::vector<std::vector<int64_t>> carries;  // of every node that is a neuron, [B, C * H * W]
  std::vector<int64_t> sums;                  // of all readouts over time, each [B, C * H * W]
};

// Without a state, answer whole sequences from rest: inputs [T, B, ...] or still [B, ...]; logits [B, n] of every
// output, one behind the other, or [T, B, n] from a network that gives the sequence. With one, answer the next
// timestep: inputs [B, ...], logits [B, n], the sum so far or this timestep's own. More than network.timesteps of them
// the caller must not ask for.
void run(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits,
         State* state = nullptr);

}  // namespace lbq
