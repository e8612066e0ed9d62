// Predicts the time of a synapse by events and by dense products, to choose the faster kernel.
//
// The cost of a visit does not depend on the length of its list, so in narrow layers events are faster only for sparser
// levels. `native/bench/fit_cost_model.cc` fits the nanoseconds; only their ratios matter.
#pragma once

#include <cstdint>

namespace lbq {

struct PackedSynapse;

struct KernelCosts {
  // Events.
  double list = 0;     // searching 32 channels of a pixel for pairs
  double pixel = 0;    // listing and sorting a pixel, per block of channels
  double search = 0;   // finding the output of a pixel with a list under a tap
  double visit = 0;    // a list multiplied by a tile
  double sums = 0;     // loading and storing 32 of its sums
  double pair = 0;     // an active pair and a row of a tile
  double product = 0;  // 32 outputs of that row
  double fetch = 0;    // a cache line of weights
  // Dense.
  double gather = 0;   // a position and a tap: the address of the channels
  double panel = 0;    // a position and 32 outputs
  double quad = 0;     // that, for a tap and 4 channels
  double tile = 0;     // that, for a tap and 64 channels in AMX tiles; 0: no tiles
  double stream = 0;   // a cache line of weights
  // Neuron or store, a position and 32 outputs: the same for both kernels.
  double epilogue = 0;
};

// Predicted times without the epilogue; `density` is the share of active pairs.
double time_of_events(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, double density);
double time_of_dense(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, bool has_tiles);

double events_over_dense(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, double density);

}  // namespace lbq
