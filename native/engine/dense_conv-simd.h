// Dense products: a register tile of positions times outputs, over four channels of a tap at a time.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "lanes.h"

namespace lbq {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int64_t kDensePositions = 14, kHalfPositions = 16;
#else
constexpr int64_t kDensePositions = 6, kHalfPositions = 8;
#endif

// Without VNNI, products are added up in 16 bits.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kDenseIsNarrow = false;
#else
constexpr bool kDenseIsNarrow = true;
#endif

constexpr int64_t kQuadVectors = 2, kPanel = kQuadVectors * kWords;

inline Vector spread_quad(const uint8_t* levels) {
  uint32_t quad;
  std::memcpy(&quad, levels, 4);
  return broadcast(quad);
}

inline void finish_quads(bool overwrites, int32_t* to, Vector sum) {
  store_vector(to, overwrites ? sum : add_words(load_vector(to), sum));
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

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// One register tile: `kPositions` from `position` on, `kVectors` of the panel of block `b` at `output`.
template <int64_t kPositions, int64_t kVectors, bool kIsEven>
void dense_tile(const DenseBlock& block, int64_t b, int64_t position, int64_t output) {
  Vector sum[kPositions][kVectors];
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kVectors; ++v) sum[p][v] = Vector{};
  const int8_t* weights = block.panel_of(b, output);
  const TilePixels<kPositions, kIsEven> pixels(block, position);
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const int64_t last = block.taps_at[tap] + block.channels;
    for (int64_t at = block.taps_at[tap]; at < last; at += 4, weights += 4 * kPanel) {
      Vector weight[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) weight[v] = load_vector(weights + 4 * v * kWords);
      for (int64_t p = 0; p < kPositions; ++p) {
        const Vector levels = pixels.quad(p, at);
        for (int64_t v = 0; v < kVectors; ++v) sum[p][v] = add_dots(sum[p][v], levels, weight[v]);
      }
    }
  }
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kVectors; ++v)
      finish_quads(block.overwrites, block.sums_of(b) + (position + p) * block.outputs + output + v * kWords, sum[p][v]);
}

#else

// One register tile: `kPositions` from `position` on, `kVectors` of the panel of block `b` at `output`. Products of
// `narrow_quads` quads add up in 16 bits, which was proven when the weights were packed.
template <int64_t kPositions, int64_t kVectors, bool kIsEven>
void dense_tile(const DenseBlock& block, int64_t b, int64_t position, int64_t output) {
  const int8_t* weights = block.panel_of(b, output);
  const TilePixels<kPositions, kIsEven> pixels(block, position);
  const int64_t quads = block.taps * block.channels / 4;
  int32_t* to = block.sums_of(b) + position * block.outputs + output;
  for (int64_t first = 0; first < quads; first += block.narrow_quads) {
    const int64_t last = std::min(first + block.narrow_quads, quads);
    Vector sum[kPositions][kVectors];
    for (int64_t p = 0; p < kPositions; ++p)
      for (int64_t v = 0; v < kVectors; ++v) sum[p][v] = Vector{};
    for (int64_t quad = first; quad < last; ++quad, weights += 4 * kPanel) {
      const int64_t at = block.quads_at[quad];
      Vector weight[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) weight[v] = load_vector(weights + 4 * v * kWords);
      for (int64_t p = 0; p < kPositions; ++p) {
        const Vector levels = pixels.quad(p, at);
        for (int64_t v = 0; v < kVectors; ++v) sum[p][v] = add_pair_products(sum[p][v], levels, weight[v]);
      }
    }
    for (int64_t p = 0; p < kPositions; ++p)
      for (int64_t v = 0; v < kVectors; ++v)
        finish_quads(block.overwrites && first == 0, to + p * block.outputs + v * kWords, widen_narrow_dots(sum[p][v]));
  }
}

#endif

template <int64_t kPositions, bool kIsHalf, bool kIsEven>
int64_t dense_tiles(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  for (; first + kPositions <= block.positions; first += kPositions) {
    dense_tile<kPositions, kIsHalf ? 1 : kQuadVectors, kIsEven>(block, b, first, output);
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
