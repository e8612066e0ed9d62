#include "cost_model.h"

#include <cmath>

#include "plan.h"

namespace lbq {
namespace {

constexpr int64_t kVector = 32;        // outputs per unit of cost
constexpr int64_t kLine = 64;          // bytes of a cache line
constexpr int64_t kTileChannels = 64;  // per AMX tile

double real(int64_t count) { return static_cast<double>(count); }

}  // namespace

// In the order of KernelCosts, measured on a server CPU with AVX-512 VNNI and AMX (2.6 GHz) by native/bench/fit_cost_model.cc.
#define LBQ_COSTS(isa, ...)            \
  namespace isa {                      \
  extern const KernelCosts kCosts;     \
  const KernelCosts kCosts = {__VA_ARGS__}; \
  }
LBQ_COSTS(scalar, 29.6, 0, 5.74, 0, 0, 4.34, 23.5, 0, 73.7, 79.7, 62.1, 0, 0, 179)
LBQ_COSTS(avx2, 6.11, 13, 4.04, 0.32, 3.22, 0.347, 0.787, 0.91, 0, 0, 1.39, 0, 8.14, 22.6)
LBQ_COSTS(avx2vnni, 4.77, 5.72, 2.45, 0.415, 1.1, 0.229, 0.46, 0.864, 0.348, 7.14, 0.699, 0, 3.23, 16.4)
LBQ_COSTS(avx512, 5.13, 8.32, 4.54, 0, 2.42, 0.369, 0.522, 0.842, 0, 0, 0.909, 0, 2.37, 17.1)
LBQ_COSTS(avx512vnni, 3.7, 10.1, 4.18, 1.5, 1.84, 0.364, 0.492, 0.817, 0.192, 0.0698, 0.465, 0, 3.6, 17.6)
LBQ_COSTS(amx, 3.55, 6.6, 2.21, 0, 1.29, 0.422, 0.277, 0.731, 0.894, 0.212, 0.355, 1.25, 3.57, 11.4)
#undef LBQ_COSTS

KernelCounts counts_of_events(const PackedSynapse& synapse, int64_t instants, double density) {
  const double pixels = real(instants * synapse.pixels_seen);
  const double blocks = real(synapse.channel_blocks), channels = real(synapse.from.channels);
  const double vectors = real(synapse.row_bytes) / (2 * kVector);  // rows of wide tiles have twice as many
  // The share of pixels with a nonempty list, if pairs are active independently.
  const double listed = 1 - std::pow(1 - density, channels / 2 / blocks);
  const double encounters = real(instants * synapse.encounters * synapse.out_blocks);
  KernelCounts counts{};
  counts.list = pixels * channels / kVector;
  counts.pixel = pixels * blocks;
  counts.search = pixels * blocks * listed * real(synapse.taps);
  counts.visit = encounters * blocks * listed;
  counts.sums = counts.visit * vectors;
  counts.pair = encounters * density * channels / 2;
  counts.product = counts.pair * vectors;
  counts.fetch = blocks * real(synapse.taps * synapse.out_blocks * synapse.tile_bytes) / kLine;
  return counts;
}

KernelCounts counts_of_dense(const PackedSynapse& synapse, int64_t instants, bool has_tiles) {
  const double positions = real(instants * synapse.to.height * synapse.to.width), taps = real(synapse.taps);
  const bool is_tiled = has_tiles && synapse.dense_channels % kTileChannels == 0;
  const int64_t step = is_tiled ? kVector : kVector / 2;  // padding beyond it is not multiplied
  const double outputs = real((synapse.to.channels + step - 1) / step * step);
  KernelCounts counts{};
  counts.gather = positions * taps;
  counts.panel = positions * outputs / kVector;
  const double steps = counts.panel * taps * real(synapse.dense_channels) / (is_tiled ? kTileChannels : 4);
  (is_tiled ? counts.tile : counts.quad) = steps;
  counts.stream = outputs * taps * real(synapse.dense_channels) / kLine;
  return counts;
}

double total(const KernelCosts& costs, const KernelCounts& counts) {
  const double* cost = &costs.list;
  const double* count = &counts.list;
  double sum = 0;
  for (int i = 0; i < kNumCosts; ++i) sum += cost[i] * count[i];
  return sum;
}

double events_over_dense(const PackedSynapse& synapse, const KernelCosts& costs, int64_t instants, double density) {
  return total(costs, counts_of_events(synapse, instants, density)) /
         total(costs, counts_of_dense(synapse, instants, costs.tile > 0));
}

}  // namespace lbq
