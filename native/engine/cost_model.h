// The one place that knows what the two roads of a synapse cost: skipping pairs that are zero, or not looking.
//
// A visit costs the same for a list of two pairs as for one of twenty, so narrow layers need more silence than
// wide ones. `native/bench/fit_cost_model.cc` measures the nanoseconds; only their ratios count, so they are
// good for machines that are slower or faster throughout.
#pragma once

#include <cstdint>

namespace lbq {

struct PackedSynapse;

struct KernelCosts {
  // Events.
  double list;     // 32 channels of a pixel, looked through for pairs
  double pixel;    // a pixel and block of channels, listed and sorted
  double search;   // a pixel with a list and a tap: is there an output?
  double visit;    // a list that meets a tile
  double sums;     // 32 of the sums that it adds to
  double pair;     // an active pair that meets a row of a tile
  double product;  // 32 outputs of that row
  double fetch;    // a line of weights (64 bytes), brought near
  // Dense.
  double gather;    // a position and a tap: where the channels lie
  double panel;    // a position and 32 outputs
  double quad;     // that, for a tap and 4 channels
  double tile;     // that, for a tap and 64 channels in tiles; 0: there are none
  double stream;   // a line of weights
  // Whoever uses the sums: a position and 32 outputs. The same on both roads.
  double epilogue;
};
constexpr int kNumCosts = sizeof(KernelCosts) / sizeof(double);

// How often each of these is paid, on one road.
typedef KernelCosts KernelCounts;
KernelCounts counts_of_events(const PackedSynapse& synapse, int64_t instants, double density);
KernelCounts counts_of_dense(const PackedSynapse& synapse, int64_t instants, bool has_tiles);

double total(const KernelCosts& costs, const KernelCounts& counts);

// Nanoseconds by events over nanoseconds by dense products, with this share of pairs active.
double events_over_dense(const PackedSynapse& synapse, const KernelCosts& costs, int64_t instants, double density);

}  // namespace lbq
