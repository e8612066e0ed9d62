// Dense products: a register tile of positions times outputs, over four channels of a tap at a time.
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace lbq {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512BW__)
typedef __m512i Quads;
constexpr int64_t kDensePositions = 14, kHalfPositions = 16;
inline Quads load_quads(const void* from) { return _mm512_loadu_si512(from); }
inline void store_quads(void* to, Quads quads) { _mm512_storeu_si512(to, quads); }
inline Quads spread_quad(const uint8_t* levels) {
  int quad;
  std::memcpy(&quad, levels, 4);
  return _mm512_set1_epi32(quad);
}
inline Quads add_quads(Quads a, Quads b) { return _mm512_add_epi32(a, b); }
inline Quads add_dots(Quads sum, Quads levels, Quads weights) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, levels, weights);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(levels, weights), _mm512_set1_epi16(1)));
#endif
}
#else
typedef __m256i Quads;
inline Quads load_quads(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store_quads(void* to, Quads quads) { _mm256_storeu_si256(static_cast<__m256i*>(to), quads); }
inline Quads spread_quad(const uint8_t* levels) {
  int quad;
  std::memcpy(&quad, levels, 4);
  return _mm256_set1_epi32(quad);
}
inline Quads add_quads(Quads a, Quads b) { return _mm256_add_epi32(a, b); }
#if defined(__AVXVNNI__)
constexpr int64_t kDensePositions = 6, kHalfPositions = 8;
inline Quads add_dots(Quads sum, Quads levels, Quads weights) {
  return _mm256_dpbusd_avx_epi32(sum, levels, weights);
}
#else
constexpr int64_t kDensePositions = 4, kHalfPositions = 4;
inline Quads add_dots(Quads sum, Quads levels, Quads weights) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(levels, weights), _mm256_set1_epi16(1)));
}
#endif
#endif

// Without VNNI, two products are added up in 16 bits, with saturation.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kDenseAddsPairs = false;
#else
constexpr bool kDenseAddsPairs = true;
#endif

constexpr int64_t kQuadLanes = Lanes::kHalf, kQuadVectors = 2, kPanel = kQuadVectors * kQuadLanes;

inline void finish_quads(const DenseBlock& block, int32_t* to, Quads sum) {
  store_quads(to, block.overwrites ? sum : add_quads(load_quads(to), sum));
}

// One register tile: `kPositions` from `first` on, the panel of block `b` at `output`.
template <int64_t kPositions>
void dense_tile(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  Quads sum[kPositions][kQuadVectors];
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kQuadVectors; ++v) sum[p][v] = Quads{};
  const int8_t* weights = block.panel_of(b, output);
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const uint8_t* const* pixels = block.pixels + tap * block.positions + first;
    for (int64_t channel = 0; channel < block.channels; channel += 4, weights += 4 * kPanel) {
      const Quads weight[kQuadVectors] = {load_quads(weights), load_quads(weights + 4 * kQuadLanes)};
      for (int64_t p = 0; p < kPositions; ++p) {
        const Quads levels = spread_quad(pixels[p] + channel);
        for (int64_t v = 0; v < kQuadVectors; ++v) sum[p][v] = add_dots(sum[p][v], levels, weight[v]);
      }
    }
  }
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t v = 0; v < kQuadVectors; ++v)
      finish_quads(block, block.sums_of(b) + (first + p) * block.outputs + output + v * kQuadLanes, sum[p][v]);
}

// The same for a panel whose second half is padding. Sixteen channels at once amortise the load of a pixel's address.
template <int64_t kPositions>
void half_tile(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  constexpr int64_t kAtOnce = 4;
  Quads sum[kPositions];
  for (int64_t p = 0; p < kPositions; ++p) sum[p] = Quads{};
  const int8_t* weights = block.panel_of(b, output);
  for (int64_t tap = 0; tap < block.taps; ++tap) {
    const uint8_t* const* pixels = block.pixels + tap * block.positions + first;
    int64_t channel = 0;
    for (; channel + 4 * kAtOnce <= block.channels; channel += 4 * kAtOnce, weights += kAtOnce * 4 * kPanel) {
      Quads weight[kAtOnce];
      for (int64_t q = 0; q < kAtOnce; ++q) weight[q] = load_quads(weights + q * 4 * kPanel);
      for (int64_t p = 0; p < kPositions; ++p) {
        const uint8_t* levels = pixels[p] + channel;
        for (int64_t q = 0; q < kAtOnce; ++q) sum[p] = add_dots(sum[p], spread_quad(levels + 4 * q), weight[q]);
      }
    }
    for (; channel < block.channels; channel += 4, weights += 4 * kPanel) {
      const Quads weight = load_quads(weights);
      for (int64_t p = 0; p < kPositions; ++p) sum[p] = add_dots(sum[p], spread_quad(pixels[p] + channel), weight);
    }
  }
  for (int64_t p = 0; p < kPositions; ++p)
    finish_quads(block, block.sums_of(b) + (first + p) * block.outputs + output, sum[p]);
}

template <int64_t kPositions, bool kIsHalf>
int64_t dense_tiles(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  for (; first + kPositions <= block.positions; first += kPositions) {
    if (kIsHalf) {
      half_tile<kPositions>(block, b, first, output);
    } else {
      dense_tile<kPositions>(block, b, first, output);
    }
  }
  return first;
}

template <bool kIsHalf>
void dense_panel(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  first = dense_tiles<kIsHalf ? kHalfPositions : kDensePositions, kIsHalf>(block, b, first, output);
  first = dense_tiles<4, kIsHalf>(block, b, first, output);
  dense_tiles<1, kIsHalf>(block, b, first, output);
}

// Zero the sums of padding, from `output` to the end of its panel.
inline void clear_padding(const DenseBlock& block, int64_t b, int64_t first, int64_t output) {
  if (!block.overwrites) return;
  for (; first < block.positions; ++first)
    for (int64_t lane = output; lane < (output / kPanel + 1) * kPanel; lane += kQuadLanes)
      store_quads(block.sums_of(b) + first * block.outputs + lane, Quads{});
}

// All positions from `start` on, without padding.
void dense_from(const DenseBlock& block, int64_t start) {
  for (int64_t b = 0; b < block.blocks; ++b)
    for (int64_t output = 0; output < block.outputs; output += kPanel) {
      const int64_t used = block.used - b * block.outputs - output;
      if (used > kQuadLanes) {
        dense_panel<false>(block, b, start, output);
      } else if (used > 0) {
        dense_panel<true>(block, b, start, output);
        clear_padding(block, b, start, output + kQuadLanes);
      } else {
        clear_padding(block, b, start, output);
      }
    }
}

#if !defined(__AMX_INT8__)
void dense_block(const DenseBlock& block) { dense_from(block, 0); }
#endif

#endif

}  // namespace
}  // namespace lbq
