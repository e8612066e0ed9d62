#include "sum_step.h"

#include <algorithm>
#include <cstring>

#include "pair_step.h"

namespace lbq {
namespace {

constexpr int64_t kSumBytes = 512 * 1024;  // of the second cache
constexpr double kHysteresis = 0.04;

// Neighbouring positions that are added up together: rows of one image, or whole images.
struct Blocks {
  int64_t images, rows;  // of one block
  int64_t per_image, count;

  Blocks(const Sum& sum, const Chunk& chunk, int64_t instants_per_image) {
    const int64_t row_bytes = instants_per_image * sum.shape.width * sum.stride * 4;
    rows = std::clamp<int64_t>(kSumBytes / row_bytes, 1, sum.shape.height);
    per_image = (sum.shape.height + rows - 1) / rows;
    rows = (sum.shape.height + per_image - 1) / per_image;
    images = per_image > 1 ? 1 : std::clamp<int64_t>(kSumBytes / (row_bytes * sum.shape.height), 1, chunk.batch);
    count = per_image * ((chunk.batch + images - 1) / images);
  }
};

// Whether so many levels are active that skipping the others costs more than it saves. A layer near the
// break-even keeps to what it did before.
bool choose_dense(const SumContext& context, const PackedSynapse& synapse, double density) {
  if (synapse.dense.size() == 0 || context.choice == Choice::kEvents) return false;
  if (context.choice == Choice::kDense) return true;
  const bool has_time = context.plan.value(synapse.node_input).has_time;
  const double ratio = events_over_dense(synapse, *context.kernels.costs, context.chunk.instants(has_time), density);
  const bool was_dense = synapse.was_dense.load(std::memory_order_relaxed);
  const bool is_dense = ratio > (was_dense ? 1 - kHysteresis : 1 + kHysteresis);
  synapse.was_dense.store(is_dense, std::memory_order_relaxed);
  return is_dense;
}

double pair_density(const SumContext& context, const PackedSynapse& synapse) {
  const Value& value = context.plan.value(synapse.node_input);
  const int64_t pixels = context.chunk.instants(value.has_time) * value.shape.height * value.shape.width;
  const uint8_t* levels = reinterpret_cast<const uint8_t*>(context.space.of(synapse.node_input));
  const int64_t active = context.kernels.count_pairs(levels, pixels * value.stride);
  return static_cast<double>(active) / static_cast<double>(pixels * ((value.shape.channels + 1) / 2));
}

void add_dense(const SumContext& context, const PackedSynapse& synapse, const Region& region, bool overwrites,
                 ThreadScratch& scratch) {
  const Value& value = context.plan.value(synapse.node_input);
  const uint8_t* levels = reinterpret_cast<const uint8_t*>(context.space.of(synapse.node_input));
  const int64_t pixels = value.shape.height * value.shape.width;
  scratch.nothing.resize(std::max<size_t>(scratch.nothing.size(), value.stride), 0);
  scratch.pixels.resize(synapse.taps * region.instants * region.positions);
  const uint8_t** seen = scratch.pixels.data();
  for (int64_t tap = 0; tap < synapse.taps; ++tap) {
    const int32_t* rows = &synapse.row_seen[tap / synapse.columns * synapse.to.height];
    const int32_t* columns = &synapse.column_seen[tap % synapse.columns * synapse.to.width];
    const auto is_there = [](int32_t pixel) { return pixel >= 0; };
    const int32_t *end = columns + synapse.to.width, *begin = std::find_if(columns, end, is_there);
    const int64_t first = begin - columns;  // those that see a pixel follow each other, evenly spaced
    const int64_t last = std::find_if_not(begin, end, is_there) - columns;
    const int64_t step = last - first > 1 ? (begin[1] - begin[0]) * value.stride : 0;
    for (int64_t t = 0; t < region.instants; ++t)
      for (int64_t image = region.first_image; image < region.last_image; ++image) {
        const uint8_t* instant = levels + (t * context.chunk.batch + image) * pixels * value.stride;
        for (int64_t row = region.first_row; row < region.last_row; ++row, seen += synapse.to.width) {
          const bool is_outside = rows[row] < 0 || first == last;
          const int64_t from = is_outside ? synapse.to.width : first;
          for (int64_t column = 0; column < from; ++column) seen[column] = scratch.nothing.data();
          if (is_outside) continue;
          const uint8_t* pixel = instant + (rows[row] * value.shape.width + *begin) * value.stride;
          for (int64_t column = first; column < last; ++column) seen[column] = pixel + (column - first) * step;
          for (int64_t column = last; column < synapse.to.width; ++column) seen[column] = scratch.nothing.data();
        }
      }
  }
  const int64_t count = region.instants * region.positions;
  DenseBlock block{scratch.pixels.data(), synapse.taps, count, synapse.dense_channels,
                   reinterpret_cast<const int8_t*>(synapse.dense.data()), region.last_block - region.first_block,
                   synapse.outputs, synapse.to.channels - region.first_block * synapse.outputs,
                   scratch.sums.as<int32_t>(), overwrites};
  block.weights = block.panel_of(region.first_block, 0);
  context.kernels.dense_block(block);
}

// Hand the finished sums of a region to whoever uses them, with all terms that come behind them.
void run_epilogue(const SumContext& context, const Sum& sum, const Region& region, ThreadScratch& scratch, const Epilogue& use) {
  const int64_t pixels = sum.shape.height * sum.shape.width, width = region.are_int16 ? 2 : 4;
  const int64_t instant_bytes = region.positions * sum.outputs * width;
  std::vector<Extra> extras(sum.extras.size());
  for (int64_t block = region.first_block; block < region.last_block; ++block)
    for (int64_t image = region.first_image; image < region.last_image; ++image) {
      const int64_t first = image * pixels + region.first_row * sum.shape.width, output = block * sum.outputs;
      const int64_t count = (region.last_row - region.first_row) * sum.shape.width;
      for (size_t i = 0; i < extras.size(); ++i) {
        const Value& value = context.plan.value(sum.extras[i].value);
        const char* from = context.space.of(sum.extras[i].value);
        const int64_t at = first * value.stride + output;
        const auto& weight = sum.extras[i].weight;
        extras[i] = {value.are_levels ? reinterpret_cast<const uint8_t*>(from) + at : nullptr,
                     value.are_levels ? nullptr : reinterpret_cast<const int32_t*>(from) + at,
                     weight.empty() ? nullptr : weight.data() + output,
                     value.has_time ? context.chunk.batch * pixels * value.stride : 0, value.stride};
      }
      CurrentBlock currents{};
      currents.timesteps = context.chunk.timesteps;
      currents.positions = count;
      currents.outputs = sum.outputs;
      currents.used = std::min(sum.outputs, sum.shape.channels - output);
      currents.are_int16 = region.are_int16;
      if (!sum.synapses.empty())
        currents.sums = scratch.sums.data() + (block - region.first_block) * region.instants * instant_bytes +
                        (image - region.first_image) * count * sum.outputs * width;
      currents.sum_stride = sum.has_time ? instant_bytes : 0;
      if (!sum.bias.empty())
        currents.bias = sum.bias.data() + output + (sum.bias_is_map ? first % pixels * sum.stride : 0);
      currents.bias_stride = sum.bias_is_map ? sum.stride : 0;
      currents.extras = extras.data();
      currents.num_extras = static_cast<int64_t>(extras.size());
      use(currents, first, output);
    }
}

}  // namespace

void run_sum(const SumContext& context, const Sum& sum, const Epilogue& use, StepRecord* record) {
  const size_t num_synapses = sum.synapses.size();
  Workspace& space = context.space;
  if (space.lists.size() < num_synapses) space.lists.resize(num_synapses);
  std::vector<bool> is_dense(num_synapses);
  bool are_int16 = sum.fits_int16;
  for (size_t i = 0; i < num_synapses; ++i) {
    const double density = pair_density(context, *sum.synapses[i]);
    is_dense[i] = choose_dense(context, *sum.synapses[i], density);
    are_int16 = are_int16 && !is_dense[i];
    if (record && i == 0) record->pair_density = density, record->is_dense = is_dense[i];
  }
  for (size_t i = 0; i < num_synapses; ++i)
    if (!is_dense[i]) list_all_pairs(context, *sum.synapses[i], space.lists[i]);

  const int64_t instants = sum.has_time ? context.chunk.timesteps : 1;
  const Blocks blocks(sum, context.chunk, instants);
  const int64_t out_blocks = sum.stride / sum.outputs;
  const int64_t wanted = blocks.count >= space.pool.size() ? 1 : space.pool.size();
  const int64_t splits = std::min(out_blocks, wanted);  // of the outputs, where positions do not keep all busy
  space.pool.parallel_for(blocks.count * splits, [&](int64_t task, int worker) {
    const int64_t block = task / splits, split = task % splits;
    ThreadScratch& scratch = space.scratches[worker];
    Region region{};
    region.first_image = block / blocks.per_image * blocks.images;
    region.last_image = std::min(region.first_image + blocks.images, context.chunk.batch);
    region.first_row = block % blocks.per_image * blocks.rows;
    region.last_row = std::min(region.first_row + blocks.rows, sum.shape.height);
    region.first_block = out_blocks * split / splits;
    region.last_block = out_blocks * (split + 1) / splits;
    region.instants = instants;
    region.positions =
        (region.last_image - region.first_image) * (region.last_row - region.first_row) * sum.shape.width;
    region.are_int16 = are_int16;
    if (num_synapses > 0) {
      const int64_t bytes = (region.last_block - region.first_block) * instants * region.positions * sum.outputs *
                            (are_int16 ? 2 : 4);
      if (scratch.sums.size() < bytes) scratch.sums = AlignedBuffer(bytes);
      if (!is_dense[0]) std::memset(scratch.sums.data(), 0, bytes);  // dense products write what nobody wrote before
    }
    for (size_t i = 0; i < num_synapses; ++i) {
      if (is_dense[i]) {
        add_dense(context, *sum.synapses[i], region, i == 0, scratch);
      } else {
        add_pairs(context, *sum.synapses[i], space.lists[i], region, scratch);
      }
    }
    run_epilogue(context, sum, region, scratch, use);
  });
}

}  // namespace lbq
