// Dense products in AMX tiles: 32 positions times 32 outputs, 64 channels a step.
#pragma once

#include <algorithm>
#include <vector>

#include "dense_conv-simd.h"

namespace lbq {
namespace {

constexpr int64_t kTileRows = 16, kTileChannels = 64;
constexpr int64_t kFirstCache = 40 * 1024;  // L1 bytes for positions

// 16 evenly spaced rows of 64 bytes: the channels that 16 positions read through one tap.
struct Rows {
  const uint8_t* first;
  int64_t stride;
};

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Find the rows of `count` tiles from `first` on: rows[tap][tile]. Positions of different image rows are copied to be
// evenly spaced.
void line_up(const DenseBlock& block, int64_t first, int64_t count, std::vector<Rows>& rows,
             std::vector<uint8_t>& copies) {
  rows.resize(block.taps * count);
  copies.resize(block.taps * count * kTileRows * block.channels);
  uint8_t* to = copies.data();
  for (int64_t tap = 0; tap < block.taps; ++tap)
    for (int64_t tile = 0; tile < count; ++tile) {
      const uint8_t* const* pixels = block.pixels + (first + tile) * kTileRows;
      const int64_t at = block.taps_at[tap];
      const int64_t stride = reinterpret_cast<intptr_t>(pixels[1]) - reinterpret_cast<intptr_t>(pixels[0]);
      bool is_even = true;
      for (int64_t row = 1; row < kTileRows; ++row)
        is_even &= reinterpret_cast<intptr_t>(pixels[row]) - reinterpret_cast<intptr_t>(pixels[row - 1]) == stride;
      rows[tap * count + tile] = is_even ? Rows{pixels[0] + at, stride} : Rows{to, block.channels};
      if (is_even) continue;
      for (int64_t row = 0; row < kTileRows; ++row)
        for (int64_t channel = 0; channel < block.channels; channel += kTileChannels, to += kTileChannels)
          store_vector(to, load_vector(pixels[row] + at + channel));
    }
}

// Consecutive tiles of positions, out of `of`.
struct Group {
  const Rows* rows;  // [tap][count]
  int64_t first, count, of;
};

// One or two tiles of positions from the group's `tile` on, the panel that begins with `output`. Sums are tiles 0 to 3.
// Prefetches a share of the next panel; all positions together prefetch all of it.
template <bool kTwo>
void multiply_tiles(const DenseBlock& block, const Group& group, int64_t tile, int64_t b, int64_t output) {
  const int64_t stride = 4 * block.outputs, step_bytes = kTileChannels * kPanel;
  const int64_t fetch_first = step_bytes * (group.first + tile) / group.of / 64 * 64;
  const int64_t fetch_last = step_bytes * std::min(group.first + tile + 2, group.of) / group.of / 64 * 64;
  const int64_t ahead = kPanel * block.taps * block.channels;
  int32_t* sums = block.sums_of(b) + (group.first + tile) * kTileRows * block.outputs + output;
  int32_t* more = sums + kTileRows * block.outputs;
  const int8_t* weights = block.panel_of(b, output);
  if (block.overwrites) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, stride);
    _tile_loadd(1, sums + 16, stride);
    if (kTwo) {
      _tile_loadd(2, more, stride);
      _tile_loadd(3, more + 16, stride);
    }
  }
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const Rows* rows = group.rows + tap * group.count + tile;
    const Rows one = rows[0], two = rows[kTwo ? 1 : 0];
    for (int64_t channel = 0; channel < block.channels; channel += kTileChannels) {
      _tile_loadd(4, one.first + channel, one.stride);
      _tile_loadd(6, weights, 4 * kPanel);
      _tile_dpbusd(0, 4, 6);
      _tile_loadd(7, weights + 64, 4 * kPanel);
      _tile_dpbusd(1, 4, 7);
      if (kTwo) {
        _tile_loadd(5, two.first + channel, two.stride);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
      }
      for (int64_t byte = fetch_first; byte < fetch_last; byte += 64) __builtin_prefetch(weights + ahead + byte, 0, 2);
      weights += step_bytes;
    }
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + 16, stride);
  if (kTwo) {
    _tile_stored(2, more, stride);
    _tile_stored(3, more + 16, stride);
  }
}

void multiply_panel(const DenseBlock& block, const Group& group, int64_t panel) {
  const int64_t b = panel * kPanel / block.outputs, output = panel * kPanel % block.outputs;
  if (panel * kPanel >= block.used) return;
  int64_t tile = 0;
  for (; tile + 2 <= group.count; tile += 2) multiply_tiles<true>(block, group, tile, b, output);
  if (tile < group.count) multiply_tiles<false>(block, group, tile, b, output);
}

void dense_block(const DenseBlock& block) {
  const int64_t tiles = block.channels % kTileChannels == 0 ? block.positions / kTileRows : 0;
  if (tiles > 0) {
    thread_local std::vector<Rows> rows;
    thread_local std::vector<uint8_t> copies;
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
    const int64_t panels = block.blocks * block.outputs / kPanel;
    // Keep two tiles of positions in the L1 cache for all panels, or a panel in the L2 cache for all positions.
    const bool positions_stay = 2 * kTileRows * block.taps * block.channels <= kFirstCache;
    Group group{nullptr, 0, positions_stay ? 2 : tiles, tiles};
    for (; group.first < tiles; group.first += group.count) {
      group.count = std::min(group.count, tiles - group.first);
      line_up(block, group.first, group.count, rows, copies);
      group.rows = rows.data();
      for (int64_t panel = 0; panel < panels; ++panel) multiply_panel(block, group, panel);
    }
    _tile_release();
  }
  dense_from(block, tiles * kTileRows);
}

}  // namespace
}  // namespace lbq
