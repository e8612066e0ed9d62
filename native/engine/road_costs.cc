#include "road_costs.h"

#include <cmath>

#include "plan.h"

namespace lbq {
namespace {

constexpr int64_t kVector = 32;        // outputs that costs are counted in
constexpr int64_t kTileChannels = 64;  // that a tile takes at once

double real(int64_t count) { return static_cast<double>(count); }

}  // namespace

RoadCounts counts_of_events(const PackedSynapse& synapse, int64_t instants, double density) {
  const double pixels = real(instants * synapse.pixels_seen);
  const double blocks = real(synapse.channel_blocks), channels = real(synapse.from.channels);
  const double vectors = real(synapse.row_bytes) / (2 * kVector);  // rows of wide tiles have twice as many
  // As if pairs were active independently of each other: the share of pixels that have a list at all.
  const double listed = 1 - std::pow(1 - density, channels / 2 / blocks);
  const double encounters = real(instants * synapse.encounters * synapse.out_blocks);
  RoadCounts counts{};
  counts.list = pixels * channels / kVector;
  counts.pixel = pixels * blocks;
  counts.search = pixels * blocks * listed * real(synapse.taps);
  counts.visit = encounters * blocks * listed;
  counts.sums = counts.visit * vectors;
  counts.pair = encounters * density * channels / 2;
  counts.product = counts.pair * vectors;
  return counts;
}

RoadCounts counts_of_dense(const PackedSynapse& synapse, int64_t instants, bool has_tiles) {
  const double positions = real(instants * synapse.to.height * synapse.to.width), taps = real(synapse.taps);
  RoadCounts counts{};
  counts.sight = positions * taps;
  counts.panel = positions * real(synapse.out_stride) / kVector;
  const bool is_tiled = has_tiles && synapse.dense_channels % kTileChannels == 0;
  const double steps = counts.panel * taps * real(synapse.dense_channels) / (is_tiled ? kTileChannels : 4);
  (is_tiled ? counts.tile : counts.quad) = steps;
  return counts;
}

double total(const RoadCosts& costs, const RoadCounts& counts) {
  const double* cost = &costs.list;
  const double* count = &counts.list;
  double sum = 0;
  for (int i = 0; i < kNumCosts; ++i) sum += cost[i] * count[i];
  return sum;
}

double events_over_dense(const PackedSynapse& synapse, const RoadCosts& costs, int64_t instants, double density) {
  return total(costs, counts_of_events(synapse, instants, density)) /
         total(costs, counts_of_dense(synapse, instants, costs.tile > 0));
}

}  // namespace lbq
