// Dense products: a register tile of positions times outputs, over four channels of a tap at a time.
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace lbq {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int64_t kDensePositions = 14, kHalfPositions = 16;
#elif defined(__AVXVNNI__)
constexpr int64_t kDensePositions = 6, kHalfPositions = 8;
#else
constexpr int64_t kDensePositions = 4, kHalfPositions = 4;
#endif

// Without VNNI, two products are added up in 16 bits, with saturation.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kDenseAddsPairs = false;
#else
constexpr bool kDenseAddsPairs = true;
#endif

constexpr int64_t kQuadVectors = 2, kPanel = kQuadVectors * kWords;

inline Vector spread_quad(const uint8_t* levels) {
  uint32_t quad;
  std::memcpy(&quad, levels, 4);
  return broadcast(quad);
}

inline void finish_quads(const DenseBlock& block, int32_t* to, Vector sum) {
  store_vector(to, block.overwrites ? sum : add_words(load_vector(to), sum));
}

// The pixels of the positions of a tile. Evenly spaced pairs need one pointer: one for each position would not fit the
// registers.
template <int64_t kPositions, bool kIsEven>
struct TilePixels {
  static constexpr int64_t kGroup = kIsEven ? 2 : 1;
  const uint8_t* first[kPositions / kGroup];
  int64_t step;

  TilePixels(const DenseBlock& block, int64_t position) : step(block.step) {
    for (int64_t g = 0; g < kPositions / kGroup; ++g) first[g] = block.pixels[position + g * kGroup];
  }
  Vector quad(int64_t p, int64_t at) const { return spread_quad(first[p / kGroup] + at + p % kGroup * step); }
};

// One register tile: `kPositions` from `position` on, the panel of block `b` at `output`.
template <int64_t kPositions, bool kIsEven>
void dense_tile(const DenseBlock& block, int64_t b, int64_t position, int64_t output) {
  Vector sum[kPositions][kQuadVectors];
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kQuadVectors; ++v) sum[p][v] = Vector{};
  const int8_t* weights = block.panel_of(b, output);
  const TilePixels<kPositions, kIsEven> pixels(block, position);
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const int64_t last = block.taps_at[tap] + block.channels;
    for (int64_t at = block.taps_at[tap]; at < last; at += 4, weights += 4 * kPanel) {
      const Vector weight[kQuadVectors] = {load_vector(weights), load_vector(weights + 4 * kWords)};
      for (int64_t p = 0; p < kPositions; ++p) {
        const Vector levels = pixels.quad(p, at);
        for (int64_t v = 0; v < kQuadVectors; ++v) sum[p][v] = add_dots(sum[p][v], levels, weight[v]);
      }
    }
  }
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kQuadVectors; ++v)
      finish_quads(block, block.sums_of(b) + (position + p) * block.outputs + output + v * kWords, sum[p][v]);
}

// The same for a panel whose second half is padding.
template <int64_t kPositions, bool kIsEven>
void half_tile(const DenseBlock& block, int64_t b, int64_t position, int64_t output) {
  Vector sum[kPositions];
  for (int64_t p = 0; p < kPositions; ++p) sum[p] = Vector{};
  const int8_t* weights = block.panel_of(b, output);
  const TilePixels<kPositions, kIsEven> pixels(block, position);
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const int64_t last = block.taps_at[tap] + block.channels;
    for (int64_t at = block.taps_at[tap]; at < last; at += 4, weights += 4 * kPanel) {
      const Vector weight = load_vector(weights);
      for (int64_t p = 0; p < kPositions; ++p) sum[p] = add_dots(sum[p], pixels.quad(p, at), weight);
    }
  }
  for (int64_t p = 0; p < kPositions; ++p)
    finish_quads(block, block.sums_of(b) + (position + p) * block.outputs + output, sum[p]);
}

template <int64_t kPositions, bool kIsHalf, bool kIsEven>
int64_t dense_tiles(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  for (; first + kPositions <= block.positions; first += kPositions) {
    if (kIsHalf) {
      half_tile<kPositions, kIsEven>(block, b, first, output);
    } else {
      dense_tile<kPositions, kIsEven>(block, b, first, output);
    }
  }
  return first;
}

template <bool kIsHalf, bool kIsEven>
int64_t large_tiles(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  first = dense_tiles<kIsHalf ? kHalfPositions : kDensePositions, kIsHalf, kIsEven>(block, b, first, output);
  return dense_tiles<4, kIsHalf, kIsEven>(block, b, first, output);
}

template <bool kIsHalf>
void dense_panel(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  first = block.step ? large_tiles<kIsHalf, true>(block, b, first, output)
                     : large_tiles<kIsHalf, false>(block, b, first, output);
  dense_tiles<1, kIsHalf, false>(block, b, first, output);
}

// All positions from `start` on, without padding.
void dense_from(const DenseBlock& block, int64_t start) {
  for (int64_t b = 0; b < block.blocks; ++b)
    for (int64_t output = 0; output < block.outputs; output += kPanel) {
      const int64_t used = block.used - b * block.outputs - output;
      if (used > kWords) {
        dense_panel<false>(block, b, start, output);
      } else if (used > 0) {
        dense_panel<true>(block, b, start, output);
      }
    }
}

#if !defined(__AMX_INT8__)
void dense_block(const DenseBlock& block) { dense_from(block, 0); }
#endif

#endif

}  // namespace
}  // namespace lbq
