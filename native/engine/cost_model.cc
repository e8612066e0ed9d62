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

// Measured on a server CPU with AVX-512 VNNI and AMX (2.6 GHz) by native/bench/fit_cost_model.cc.
#define LBQ_COSTS(isa, ...)                 \
  namespace isa {                           \
  extern const KernelCosts kCosts;          \
  const KernelCosts kCosts = {__VA_ARGS__}; \
  }
LBQ_COSTS(scalar, .list = 29.6, .search = 5.74, .pair = 4.34, .product = 23.5, .gather = 73.7, .panel = 79.7, .quad = 62.1,
          .epilogue = 179)
LBQ_COSTS(avx2, .list = 6.11, .pixel = 13, .search = 4.04, .visit = 0.32, .sums = 3.22, .pair = 0.347, .product = 0.787,
          .fetch = 0.91, .quad = 1.39, .stream = 8.14, .epilogue = 22.6)
LBQ_COSTS(avx2vnni, .list = 4.77, .pixel = 5.72, .search = 2.45, .visit = 0.415, .sums = 1.1, .pair = 0.229,
          .product = 0.46, .fetch = 0.864, .gather = 0.348, .panel = 7.14, .quad = 0.699, .stream = 3.23, .epilogue = 16.4)
LBQ_COSTS(avx512, .list = 5.13, .pixel = 8.32, .search = 4.54, .sums = 2.42, .pair = 0.369, .product = 0.522,
          .fetch = 0.842, .quad = 0.909, .stream = 2.37, .epilogue = 17.1)
LBQ_COSTS(avx512vnni, .list = 3.7, .pixel = 10.1, .search = 4.18, .visit = 1.5, .sums = 1.84, .pair = 0.364,
          .product = 0.492, .fetch = 0.817, .gather = 0.192, .panel = 0.0698, .quad = 0.465, .stream = 3.6, .epilogue = 17.6)
LBQ_COSTS(amx, .list = 3.55, .pixel = 6.6, .search = 2.21, .sums = 1.29, .pair = 0.422, .product = 0.277, .fetch = 0.731,
          .gather = 0.894, .panel = 0.212, .quad = 0.355, .tile = 1.25, .stream = 3.57, .epilogue = 11.4)
#undef LBQ_COSTS

double time_of_events(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, double density) {
  const double pixels = real(instants * synapse.pixels_seen), taps = real(synapse.taps);
  const double blocks = real(synapse.channel_blocks), channels = real(synapse.from.channels);
  const double vectors = real(synapse.row_bytes) / (2 * kVector);  // rows of wide tiles have twice as many
  // The share of pixels with a nonempty list, if pairs are active independently.
  const double listed = 1 - std::pow(1 - density, channels / 2 / blocks);
  const double encounters = real(instants * synapse.encounters * synapse.out_blocks);
  const double visits = encounters * blocks * listed, pairs = encounters * density * channels / 2;
  const double weights = blocks * real(synapse.taps * synapse.out_blocks * synapse.tile_bytes);
  return costs.list * (pixels * channels / kVector) + costs.pixel * (pixels * blocks) +
         costs.search * (pixels * blocks * listed * taps) + costs.visit * visits + costs.sums * (visits * vectors) +
         costs.pair * pairs + costs.product * (pairs * vectors) + costs.fetch * (weights / kLine);
}

double time_of_dense(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, bool has_tiles) {
  const double positions = real(instants * synapse.to.height * synapse.to.width), taps = real(synapse.taps);
  const double channels = real(synapse.dense_channels);
  const bool is_tiled = has_tiles && synapse.dense_channels % kTileChannels == 0;
  const int64_t step = is_tiled ? kVector : kVector / 2;  // padding beyond it is not multiplied
  const double outputs = real((synapse.to.channels + step - 1) / step * step);
  const double panels = positions * outputs / kVector;
  const double steps = panels * taps * channels / (is_tiled ? kTileChannels : 4);
  return costs.gather * (positions * taps) + costs.panel * panels + (is_tiled ? costs.tile : costs.quad) * steps +
         costs.stream * (outputs * taps * channels / kLine);
}

double events_over_dense(const KernelCosts& costs, const PackedSynapse& synapse, int64_t instants, double density) {
  return time_of_events(costs, synapse, instants, density) / time_of_dense(costs, synapse, instants, costs.tile > 0);
}

}  // namespace lbq
