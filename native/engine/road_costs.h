// The one place that knows what the two roads of a synapse cost: skipping pairs that are zero, or not looking.
//
// A visit costs the same for a list of two pairs as for one of twenty, so narrow layers need more silence than
// wide ones. `native/bench/fit_roads.cc` measures the nanoseconds; only their ratios count, so they are
// good for machines that are slower or faster throughout.
#pragma once

#include <cstdint>

namespace lbq {

struct PackedSynapse;

struct RoadCosts {
  // Events.
  double list;     // 32 channels of a pixel, looked through for pairs
  double pixel;    // a pixel and block of channels, listed and sorted
  double search;   // a pixel with a list and a tap: is there an output?
  double visit;    // a list that meets a tile
  double sums;     // 32 of the sums that it adds to
  double pair;     // an active pair that meets a row of a tile
  double product;  // 32 outputs of that row
  // Dense.
  double sight;    // a position and a tap: where the channels lie
  double panel;    // a position and 32 outputs
  double quad;     // that, for a tap and 4 channels
  double tile;     // that, for a tap and 64 channels in tiles; 0: there are none
  // Whoever uses the sums: a position and 32 outputs. The same on both roads.
  double use;
};
constexpr int kNumCosts = sizeof(RoadCosts) / sizeof(double);

// As measured on a server CPU with AVX-512 VNNI and AMX, in the order above:
constexpr RoadCosts kAvx2Costs = {8.24, 0, 6.43, 3.72, 2.48, 0.106, 1.03, 3.06, 24.3, 2.04, 0, 28.1};
constexpr RoadCosts kAvx2VnniCosts = {9.2, 0, 6.38, 3.87, 2.15, 0.0661, 1.04, 2.45, 24.4, 1, 0, 29.3};
constexpr RoadCosts kAvx512Costs = {5.44, 1.46, 5.95, 2.34, 2.22, 0.408, 0.518, 2.52, 20.8, 1.32, 0, 15.6};
constexpr RoadCosts kAvx512VnniCosts = {7.97, 11.3, 1.93, 0, 5.34, 0.394, 0.47, 1.84, 25.8, 0.589, 0, 3.81};
constexpr RoadCosts kAmxCosts = {5.3, 0.881, 5.88, 2.71, 1.91, 0.372, 0.504, 3.23, 17.7, 0.474, 6.48, 16};
constexpr RoadCosts kNeonCosts = {};  // has no dense road
constexpr RoadCosts kScalarCosts = {22.4, 14.6, 6.39, 0, 0, 0, 27, 0, 81.8, 63.7, 0, 173};

// How often each of these is paid, on one road.
typedef RoadCosts RoadCounts;
RoadCounts counts_of_events(const PackedSynapse& synapse, int64_t instants, double density);
RoadCounts counts_of_dense(const PackedSynapse& synapse, int64_t instants, bool has_tiles);

double total(const RoadCosts& costs, const RoadCounts& counts);

// Nanoseconds by events over nanoseconds by dense products, with this share of pairs active.
double events_over_dense(const PackedSynapse& synapse, const RoadCosts& costs, int64_t instants, double density);

}  // namespace lbq
