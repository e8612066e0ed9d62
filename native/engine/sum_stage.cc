// Sums of synapses and other terms: by events or by dense products.
#include <algorithm>
#include <cstring>

#include "stage.h"

namespace lbq {
namespace {

constexpr int64_t kSumBytes = 512 * 1024;  // of the L2 cache
constexpr int64_t kFewSumBytes = 64 * 1024, kSumsPerWeight = 4;  // where weights are few, sums stay near the L1 cache
constexpr double kHysteresis = 0.04;
constexpr int64_t kCountedRow = 3;  // one row of so many is counted to estimate the activity of a layer
constexpr int64_t kLine = 64, kSlack = 64;  // bytes of a cache line; entries that vectors write beyond a list

// Positions and outputs of one task: sums[block][instant][position][outputs].
struct Region {
  int64_t first_image, last_image, first_row, last_row;
  int64_t first_block, last_block;  // of outputs
  int64_t instants, positions;      // positions of one instant
  bool are_int16;
};

// Positions per task: rows of one image, or whole images.
struct Blocks {
  int64_t images, rows;  // of one block
  int64_t per_image, count;

  Blocks(const Sum& sum, const Chunk& chunk, int64_t instants_per_image, int64_t sum_bytes) {
    const int64_t row_bytes = instants_per_image * sum.shape.width * sum.stride * 4;
    rows = std::clamp<int64_t>(sum_bytes / row_bytes, 1, sum.shape.height);
    per_image = (sum.shape.height + rows - 1) / rows;
    rows = (sum.shape.height + per_image - 1) / per_image;
    images = per_image > 1 ? 1 : std::clamp<int64_t>(sum_bytes / (row_bytes * sum.shape.height), 1, chunk.batch);
    count = per_image * ((chunk.batch + images - 1) / images);
  }
};

// Bytes of sums of one task. More sums per task amortise reading the weights, up to a limit for dense products.
int64_t bytes_of_sums(const Sum& sum, const std::vector<bool>& is_dense) {
  int64_t weights = 0;
  for (size_t i = 0; i < sum.synapses.size(); ++i) {
    if (!is_dense[i]) return kSumBytes;
    weights += static_cast<int64_t>(sum.synapses[i]->dense.size());
  }
  return std::clamp(kSumsPerWeight * weights, kFewSumBytes, kSumBytes);
}

// Whether dense products are predicted to be faster. Hysteresis keeps layers near break-even from switching back and
// forth.
bool choose_dense(const ChunkContext& context, const PackedSynapse& synapse, double density) {
  if (synapse.dense.size() == 0 || context.choice == Choice::kEvents) return false;
  if (context.choice == Choice::kDense) return true;
  const bool has_time = context.plan.value(synapse.node_input).has_time;
  const double ratio = events_over_dense(*context.kernels.costs, synapse, context.chunk.instants(has_time), density);
  const bool was_dense = synapse.was_dense.load(std::memory_order_relaxed);
  const bool is_dense = ratio > (was_dense ? 1 - kHysteresis : 1 + kHysteresis);
  synapse.was_dense.store(is_dense, std::memory_order_relaxed);
  return is_dense;
}

// The share of active pairs, estimated from some of the rows.
double pair_density(const ChunkContext& context, const PackedSynapse& synapse) {
  const Value& value = context.plan.value(synapse.node_input);
  const int64_t rows = context.chunk.instants(value.has_time) * value.shape.height;
  const int64_t row_bytes = value.shape.width * value.stride;
  const uint8_t* levels = reinterpret_cast<const uint8_t*>(context.space.of(synapse.node_input));
  int64_t active = 0, pixels = 0;
  for (int64_t row = 0; row < rows; row += kCountedRow, pixels += value.shape.width)
    active += context.kernels.count_pairs(levels + row * row_bytes, row_bytes);
  return static_cast<double>(active) / static_cast<double>(pixels * ((value.shape.channels + 1) / 2));
}

// ---- events: lists of active pairs, and the visits that multiply them by tiles of weights ----

bool is_seen(const std::vector<int32_t>& outputs, int64_t taps, int64_t size, int64_t pixel) {
  for (int64_t tap = 0; tap < taps; ++tap)
    if (outputs[tap * size + pixel] >= 0) return true;
  return false;
}

// Whether a row of the input contributes to rows of the region.
bool meets(const PackedSynapse& synapse, const Region& region, int64_t row) {
  for (int64_t tap = 0; tap < synapse.rows; ++tap) {
    const int64_t output = synapse.row_of[tap * synapse.from.height + row];
    if (output >= region.first_row && output < region.last_row) return true;
  }
  return false;
}

// Sort the pixels with a list that contribute to the region by the length of their lists.
void sort_pixels(const ChunkContext& context, const PackedSynapse& synapse, const PairLists& lists, const Region& region,
                 int64_t block, ThreadScratch& scratch) {
  const int64_t height = synapse.from.height, width = synapse.from.width;
  scratch.candidates.clear();
  scratch.histogram.assign(synapse.block_channels / 2 + 2, 0);
  for (int64_t t = 0; t < region.instants; ++t)
    for (int64_t image = region.first_image; image < region.last_image; ++image) {
      const int64_t instant = t * context.chunk.batch + image;
      const int64_t first = (instant * synapse.channel_blocks + block) * height * width;
      const int64_t image_positions = region.positions / (region.last_image - region.first_image);
      const int64_t base = t * region.positions + (image - region.first_image) * image_positions;
      for (int64_t row = 0; row < height; ++row) {
        if (!meets(synapse, region, row)) continue;
        for (int64_t column = 0; column < width; ++column) {
          const int64_t pixel = first + row * width + column;
          if (lists.length[pixel] == 0) continue;
          scratch.candidates.push_back({lists.start[pixel], static_cast<uint32_t>(base), static_cast<uint32_t>(row),
                                      static_cast<uint32_t>(column), lists.length[pixel]});
          ++scratch.histogram[lists.length[pixel] + 1];
        }
      }
    }
  for (size_t i = 1; i < scratch.histogram.size(); ++i) scratch.histogram[i] += scratch.histogram[i - 1];
  scratch.sorted.resize(scratch.candidates.size());
  for (const Candidate& candidate : scratch.candidates) scratch.sorted[scratch.histogram[candidate.length]++] = candidate;
}

// The visits of one tap: pixels whose output lies in the region, in the same order.
void find_visits(const PackedSynapse& synapse, const Region& region, int64_t tap, ThreadScratch& scratch) {
  const int32_t* rows = &synapse.row_of[tap / synapse.columns * synapse.from.height];
  const int32_t* columns = &synapse.column_of[tap % synapse.columns * synapse.from.width];
  const int64_t width = synapse.to.width, bytes = synapse.outputs * (region.are_int16 ? 2 : 4);
  const int64_t first = region.first_row, num_rows = region.last_row - region.first_row;
  scratch.visits.resize(scratch.sorted.size() + 1);
  scratch.runs.clear();
  Visit* visit = scratch.visits.data();
  const Visit* counted = visit;
  const Candidate* last = scratch.sorted.data() + scratch.sorted.size();
  for (const Candidate* candidate = scratch.sorted.data(); candidate < last;) {
    const uint32_t length = candidate->length;
    for (; candidate < last && candidate->length == length; ++candidate) {
      const int64_t row = rows[candidate->row] - first, column = columns[candidate->column];
      *visit = {static_cast<uint32_t>((candidate->base + row * width + column) * bytes), candidate->list};
      visit += static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows) && column >= 0;
    }
    if (visit > counted) scratch.runs.push_back({length, static_cast<uint32_t>(visit - counted)});
    counted = visit;
  }
  scratch.visits.resize(visit - scratch.visits.data());
}

void list_all_pairs(const ChunkContext& context, const PackedSynapse& synapse, PairLists& lists) {
  const Value& value = context.plan.value(synapse.node_input);
  const uint8_t* levels = reinterpret_cast<const uint8_t*>(context.space.of(synapse.node_input));
  const int64_t height = value.shape.height, width = value.shape.width, pixels = height * width;
  const int64_t instants = context.chunk.instants(value.has_time), blocks = synapse.channel_blocks;
  const int64_t whole = (value.shape.channels + kChannelStep - 1) / kChannelStep * kChannelStep;
  lists.capacity = pixels * (synapse.block_channels / 2) + kSlack;
  if (lists.levels.size() < instants * blocks * lists.capacity * 4) {
    lists.levels = AlignedBuffer(instants * blocks * lists.capacity * 4);
    lists.rows = AlignedBuffer(instants * blocks * lists.capacity * 2);
  }
  lists.start.resize(instants * blocks * pixels);
  lists.length.resize(instants * blocks * pixels);
  context.space.pool.parallel_for(instants * blocks, [&](int64_t task, int) {
    const int64_t instant = task / blocks, first = task % blocks * synapse.block_channels;
    const int64_t count = std::min(synapse.block_channels, whole - first);
    const uint8_t* pixel = levels + instant * pixels * value.stride + first;
    int64_t start = task * lists.capacity, index = task * pixels;
    for (int64_t row = 0; row < height; ++row) {
      const bool row_is_seen = is_seen(synapse.row_of, synapse.rows, height, row);
      for (int64_t column = 0; column < width; ++column, ++index, pixel += value.stride) {
        int64_t length = 0;
        if (row_is_seen && is_seen(synapse.column_of, synapse.columns, width, column))
          length = context.kernels.list_pairs(pixel, count, synapse.is_wide, synapse.row_bytes,
                                              lists.levels.as<uint32_t>() + start, lists.rows.as<uint16_t>() + start);
        lists.start[index] = static_cast<uint32_t>(start);
        lists.length[index] = static_cast<uint16_t>(length);
        start += length;
      }
    }
  });
}

void add_pairs(const ChunkContext& context, const PackedSynapse& synapse, const PairLists& lists, const Region& region,
               ThreadScratch& scratch) {
  const int64_t block_bytes = region.instants * region.positions * synapse.outputs * (region.are_int16 ? 2 : 4);
  const PairMode mode = synapse.is_wide     ? PairMode::kWide
                          : region.are_int16 ? PairMode::kNarrowTo16
                                              : PairMode::kNarrowToInt32;
  PairTile tile{};
  tile.levels = reinterpret_cast<const uint32_t*>(lists.levels.data());
  tile.rows = reinterpret_cast<const uint16_t*>(lists.rows.data());
  for (int64_t channels = 0; channels < synapse.channel_blocks; ++channels) {
    sort_pixels(context, synapse, lists, region, channels, scratch);
    for (int64_t tap = 0; tap < synapse.taps; ++tap) {
      find_visits(synapse, region, tap, scratch);
      if (scratch.visits.empty()) continue;
      tile.visits = scratch.visits.data();
      tile.runs = scratch.runs.data();
      tile.num_runs = static_cast<int64_t>(scratch.runs.size());
      const int64_t visits = static_cast<int64_t>(scratch.visits.size());
      for (int64_t block = region.first_block; block < region.last_block; ++block) {
        const int64_t index = (channels * synapse.taps + tap) * synapse.out_blocks + block;
        if (!synapse.tile_is_used[index]) continue;
        const bool is_last = block + 1 == region.last_block;
        const int64_t next = index + 1 + (is_last ? synapse.out_blocks - region.last_block + region.first_block : 0);
        const bool has_next = next < static_cast<int64_t>(synapse.tile_is_used.size());
        tile.weights = synapse.tiles.data() + index * synapse.tile_bytes;
        tile.next = synapse.tiles.data() + (has_next ? next : index) * synapse.tile_bytes;
        tile.lines_per_visit = (synapse.tile_bytes / kLine + visits - 1) / visits;
        tile.sums = scratch.sums.data() + (block - region.first_block) * block_bytes;
        context.kernels.pair_tile(mode, synapse.outputs, tile);
      }
    }
  }
}

// ---- dense and depthwise: the inputs of a region ----

// The levels that a region reads, with zeros around them where the window has padding.
struct Seen {
  const uint8_t* levels;          // of the first instant and image, from the corner of the first window on
  int64_t image_size, time_size;  // bytes between two images, two instants
  int64_t row_step, column_step;  // bytes between the windows of neighbouring outputs
};

// Copy the part of an image that a region reads, with zeros around it: [rows][columns][stride].
void copy_padded(const PackedSynapse& synapse, const Value& value, const uint8_t* image, int64_t first_row, int64_t rows,
                 int64_t columns, uint8_t* to) {
  const int64_t left = synapse.window.padding[1], stride = value.stride;
  const int64_t begin = std::min(left, columns), end = std::clamp(value.shape.width + left, begin, columns);
  for (int64_t row = first_row; row < first_row + rows; ++row, to += columns * stride) {
    const bool is_there = row >= 0 && row < value.shape.height;
    std::memset(to, 0, (is_there ? begin : columns) * stride);
    if (!is_there) continue;
    std::memcpy(to + begin * stride, image + row * value.shape.width * stride, (end - begin) * stride);
    std::memset(to + end * stride, 0, (columns - end) * stride);
  }
}

Seen find_seen(const ChunkContext& context, const PackedSynapse& synapse, const Region& region, ThreadScratch& scratch) {
  const Window& window = synapse.window;
  const Value& value = context.plan.value(synapse.node_input);
  const auto* levels = reinterpret_cast<const uint8_t*>(context.space.of(synapse.node_input));
  const int64_t stride = value.stride, image = value.shape.height * value.shape.width * stride;
  const int64_t images = region.last_image - region.first_image, instant = context.chunk.batch * image;
  const bool is_padded = window.padding[0] > 0 || window.padding[1] > 0;
  const auto reach = [&](int axis, int64_t count) {
    return (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1;
  };
  const int64_t rows = reach(0, region.last_row - region.first_row);
  const int64_t columns = is_padded ? reach(1, synapse.to.width) : value.shape.width;
  const int64_t first_row = region.first_row * window.stride[0] - window.padding[0];
  scratch.taps_at.clear();
  for (int64_t i = 0; i < window.kernel[0]; ++i)
    for (int64_t j = 0; j < window.kernel[1]; ++j)
      scratch.taps_at.push_back((i * window.dilation[0] * columns + j * window.dilation[1]) * stride);
  Seen seen{levels + region.first_image * image + first_row * columns * stride, image, instant,
            window.stride[0] * columns * stride, window.stride[1] * stride};
  if (!is_padded) return seen;
  seen.image_size = rows * columns * stride;
  seen.time_size = images * seen.image_size;
  const size_t bytes = region.instants * seen.time_size + kSlack;
  if (scratch.padded.size() < bytes) scratch.padded.resize(bytes);
  seen.levels = scratch.padded.data();
  for (int64_t t = 0; t < region.instants; ++t)
    for (int64_t i = 0; i < images; ++i)
      copy_padded(synapse, value, levels + t * instant + (region.first_image + i) * image, first_row, rows, columns,
                  scratch.padded.data() + t * seen.time_size + i * seen.image_size);
  return seen;
}

void add_dense(const ChunkContext& context, const PackedSynapse& synapse, const Region& region, bool overwrites,
               ThreadScratch& scratch) {
  const Seen seen = find_seen(context, synapse, region, scratch);
  const int64_t count = region.instants * region.positions;
  scratch.pixels.resize(count);
  const uint8_t** pixel = scratch.pixels.data();
  for (int64_t t = 0; t < region.instants; ++t)
    for (int64_t image = 0; image < region.last_image - region.first_image; ++image)
      for (int64_t row = 0; row < region.last_row - region.first_row; ++row) {
        const uint8_t* from = seen.levels + t * seen.time_size + image * seen.image_size + row * seen.row_step;
        for (int64_t column = 0; column < synapse.to.width; ++column) *pixel++ = from + column * seen.column_step;
      }
  scratch.quads_at.clear();
  for (size_t tap = 0; context.kernels.dense_is_narrow && tap < scratch.taps_at.size(); ++tap)
    for (int64_t channel = 0; channel < synapse.dense_channels; channel += 4)
      scratch.quads_at.push_back(scratch.taps_at[tap] + channel);
  const int64_t step = synapse.to.width % 2 == 0 ? seen.column_step : 0;
  DenseBlock block{scratch.pixels.data(), scratch.taps_at.data(), scratch.quads_at.data(), synapse.narrow_quads, step,
                   synapse.taps, count, synapse.dense_channels, reinterpret_cast<const int8_t*>(synapse.dense.data()),
                   region.last_block - region.first_block, synapse.outputs,
                   synapse.to.channels - region.first_block * synapse.outputs,
                   scratch.sums.as<int32_t>(), overwrites};
  block.weights = block.panel_of(region.first_block, 0);
  context.kernels.dense_block(block);
}

void add_depthwise(const ChunkContext& context, const PackedSynapse& synapse, const Region& region, ThreadScratch& scratch) {
  const Seen seen = find_seen(context, synapse, region, scratch);
  const int64_t rows = region.last_row - region.first_row, first = region.first_block * synapse.outputs;
  int32_t* sums = scratch.sums.as<int32_t>();
  for (int64_t t = 0; t < region.instants; ++t)
    for (int64_t image = 0; image < region.last_image - region.first_image; ++image) {
      context.kernels.depthwise_block({seen.levels + t * seen.time_size + image * seen.image_size + first, rows,
                                       synapse.to.width, seen.row_step, seen.column_step, synapse.taps,
                                       scratch.taps_at.data(), synapse.depthwise.data() + 2 * first, synapse.out_stride,
                                       region.last_block - region.first_block, synapse.outputs, sums,
                                       region.instants * region.positions * synapse.outputs});
      sums += rows * synapse.to.width * synapse.outputs;
    }
}

// Call the epilogue for every block and image of a region.
void run_epilogue(const ChunkContext& context, const Stage& stage, const Region& region, ThreadScratch& scratch,
                  const Epilogue& use) {
  const Sum& sum = stage.sum;
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
      currents.timesteps = context.plan.value(stage.node).has_time ? context.chunk.timesteps : 1;
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

void run_sum(const ChunkContext& context, const Stage& stage, const Epilogue& use, StageRecord& record) {
  const Sum& sum = stage.sum;
  const size_t num_synapses = sum.synapses.size();
  Workspace& space = context.space;
  if (space.lists.size() < num_synapses) space.lists.resize(num_synapses);
  std::vector<bool> is_dense(num_synapses);
  bool are_int16 = sum.fits_int16();
  for (size_t i = 0; i < num_synapses; ++i) {
    const double density = pair_density(context, *sum.synapses[i]);
    is_dense[i] = choose_dense(context, *sum.synapses[i], density);
    are_int16 = are_int16 && !is_dense[i];
    if (i == 0) record.pair_density = density, record.is_dense = is_dense[i];
  }
  for (size_t i = 0; i < num_synapses; ++i)
    if (!is_dense[i] && sum.synapses[i]->depthwise.empty()) list_all_pairs(context, *sum.synapses[i], space.lists[i]);

  const int64_t instants = sum.has_time ? context.chunk.timesteps : 1;
  const Blocks blocks(sum, context.chunk, instants, bytes_of_sums(sum, is_dense));
  const int64_t out_blocks = sum.stride / sum.outputs;
  const int64_t wanted = blocks.count >= space.pool.size() ? 1 : space.pool.size();
  const int64_t splits = std::min(out_blocks, wanted);  // of the outputs, where there are fewer positions than threads
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
      if (!is_dense[0]) std::memset(scratch.sums.data(), 0, bytes);  // the first dense synapse overwrites
    }
    for (size_t i = 0; i < num_synapses; ++i) {
      if (!sum.synapses[i]->depthwise.empty()) {
        add_depthwise(context, *sum.synapses[i], region, scratch);
      } else if (is_dense[i]) {
        add_dense(context, *sum.synapses[i], region, i == 0, scratch);
      } else {
        add_pairs(context, *sum.synapses[i], space.lists[i], region, scratch);
      }
    }
    run_epilogue(context, stage, region, scratch, use);
  });
}

void store_sum(const ChunkContext& context, const Stage& stage, StageRecord& record) {
  const Value& value = context.plan.value(stage.node);
  int32_t* to = reinterpret_cast<int32_t*>(context.space.of(stage.node));
  const int64_t time_stride = context.chunk.batch * value.instant_size();
  const auto store = [&](const CurrentBlock& block, int64_t position, int64_t output) {
    context.kernels.store(block, to + position * value.stride + output, time_stride, value.stride);
  };
  run_sum(context, stage, store, record);
}

}  // namespace lbq
