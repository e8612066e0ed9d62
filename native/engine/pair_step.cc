#include "pair_step.h"

#include <algorithm>

namespace lbq {
namespace {

constexpr int64_t kLine = 64, kSlack = 64;  // bytes of a cache line; entries that vectors write beyond a list

bool is_seen(const std::vector<int32_t>& outputs, int64_t taps, int64_t size, int64_t pixel) {
  for (int64_t tap = 0; tap < taps; ++tap)
    if (outputs[tap * size + pixel] >= 0) return true;
  return false;
}

// Rows of the input that meet rows of the region.
bool meets(const PackedSynapse& synapse, const Region& region, int64_t row) {
  for (int64_t tap = 0; tap < synapse.rows; ++tap) {
    const int64_t output = synapse.row_of[tap * synapse.from.height + row];
    if (output >= region.first_row && output < region.last_row) return true;
  }
  return false;
}

// All pixels with a list that the region sees, the shortest lists first.
void sort_pixels(const SumContext& context, const PackedSynapse& synapse, const PairLists& lists, const Region& region,
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

// The visits of one tap: pixels whose output lies in the region, still in the order of their lengths.
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

}  // namespace

void list_all_pairs(const SumContext& context, const PackedSynapse& synapse, PairLists& lists) {
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

void add_pairs(const SumContext& context, const PackedSynapse& synapse, const PairLists& lists, const Region& region,
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

}  // namespace lbq
