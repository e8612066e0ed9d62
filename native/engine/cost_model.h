// Predicts the time of a synapse by events and by dense products, to choose the faster kernel.
//
// The cost of a visit does not depend on the length of its list, so events need sparser levels in narrow layers.
// `native/bench/fit_cost_model.cc` fits the nanoseconds; only their ratios matter.
#pragma once

#include <cstdint>

namespace lbq {

struct PackedSynapse;

struct KernelCosts {
  // Events.
  double list;     // searching 32 channels of a pixel for pairs
  double pixel;    // listing and sorting a pixel and block of channels
  double search;   // finding the output of a pixel with a list under a tap
  double visit;    // a list multiplied by a tile
  double sums;     // loading and storing 32 of its sums
  double pair;     // an active pair and a row of a tile
  double product;  // 32 outputs of that row
  double fetch;    // a cache line of weights
  // Dense.
  double gather;   // a position and a tap: the address of the channels
  double panel;    // a position and 32 outputs
  double quad;     // that, for a tap and 4 channels
  double tile;     // that, for a tap and 64 channels in AMX tiles; 0: no tiles
  double stream;   // a cache line of weights
  // Neuron or store, a position and 32 outputs: the same for both kernels.
  double epilogue;
};
constexpr int kNumCosts = sizeof(KernelCosts) / sizeof(double);

// How often each cost occurs in one kernel.
typedef KernelCosts KernelCounts;
KernelCounts counts_of_events(const PackedSynapse& synapse, int64_t instants, double density);
KernelCounts counts_of_dense(const PackedSynapse& synapse, int64_t instants, bool has_tiles);

double total(const KernelCosts& costs, const KernelCounts& counts);

// Predicted time by events over predicted time by dense products; `density` is the share of active pairs.
double events_over_dense(const PackedSynapse& synapse, const KernelCosts& costs, int64_t instants, double density);

}  // namespace lbq
