// Dense products in AMX tiles: 32 positions times 32 outputs, 64 channels a step. Everything else is that
// of AVX-512 VNNI.
#include <vector>

#include "kernels-simd.h"

namespace lbq {
namespace {

constexpr int64_t kTileRows = 16, kTileChannels = 64;

// Rows of 64 bytes, evenly spaced: the channels that 16 positions see through one tap.
struct Rows {
  const uint8_t* first;
  int64_t stride;
};

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Positions of one row of an image lie evenly spaced already; where a border or a new row comes between
// them they are copied.
void line_up(const DenseBlock& block, int64_t tiles, std::vector<Rows>& rows, std::vector<uint8_t>& copies) {
  rows.resize(block.taps * tiles);
  copies.resize(block.taps * tiles * kTileRows * block.channels);
  uint8_t* to = copies.data();
  for (int64_t tap = 0; tap < block.taps; ++tap)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const uint8_t* const* pixels = block.pixels + tap * block.positions + tile * kTileRows;
      const int64_t stride = reinterpret_cast<intptr_t>(pixels[1]) - reinterpret_cast<intptr_t>(pixels[0]);
      bool is_even = true;
      for (int64_t row = 1; row < kTileRows; ++row)
        is_even = is_even && reinterpret_cast<intptr_t>(pixels[row]) - reinterpret_cast<intptr_t>(pixels[row - 1]) == stride;
      rows[tap * tiles + tile] = is_even ? Rows{pixels[0], stride} : Rows{to, block.channels};
      if (is_even) continue;
      for (int64_t row = 0; row < kTileRows; ++row, to += block.channels) std::memcpy(to, pixels[row], block.channels);
    }
}

// One or two tiles of positions from `tile` on, 32 outputs from `output` on. Sums are tiles 0 to 3.
template <bool kTwo>
void multiply_tiles(const DenseBlock& block, const Rows* rows, int64_t tiles, int64_t tile, int64_t b, int64_t output) {
  const int64_t stride = 4 * block.outputs;
  int32_t* sums = block.sums_of(b) + tile * kTileRows * block.outputs + output;
  int32_t* more = sums + kTileRows * block.outputs;
  const int8_t* weights = block.panel_of(b, output);
  _tile_loadd(0, sums, stride);
  _tile_loadd(1, sums + 16, stride);
  if (kTwo) {
    _tile_loadd(2, more, stride);
    _tile_loadd(3, more + 16, stride);
  }
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const Rows one = rows[tap * tiles + tile], two = rows[tap * tiles + tile + (kTwo ? 1 : 0)];
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
      weights += kTileChannels * kPanel;
    }
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + 16, stride);
  if (kTwo) {
    _tile_stored(2, more, stride);
    _tile_stored(3, more + 16, stride);
  }
}

void tile_block(const DenseBlock& block) {
  const int64_t tiles = block.channels % kTileChannels == 0 ? block.positions / kTileRows : 0;
  if (tiles > 0) {
    thread_local std::vector<Rows> rows;
    thread_local std::vector<uint8_t> copies;
    line_up(block, tiles, rows, copies);
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
    for (int64_t b = 0; b < block.blocks; ++b)
      for (int64_t output = 0; output < block.outputs; output += kPanel) {
        int64_t tile = 0;
        for (; tile + 2 <= tiles; tile += 2) multiply_tiles<true>(block, rows.data(), tiles, tile, b, output);
        if (tile < tiles) multiply_tiles<false>(block, rows.data(), tiles, tile, b, output);
      }
    _tile_release();
  }
  dense_from(block, tiles * kTileRows);
}

}  // namespace

extern const EngineKernels kEngineAmx;
const EngineKernels kEngineAmx = {"amx", 255, narrow_place, wide_place, pair_tile, list_pairs,
                                  count_pairs, tile_block, kPanel, false, 0.13, fire, store};

}  // namespace lbq
