// Event-driven products: a tile of weights stays in the L1 cache for all visits, a pixel's sums in registers for its list.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "lanes.h"

namespace lbq {
namespace {

// ---- lists of the pairs of channels that are not both zero, and their number ----

#if defined(__AVX512BW__)

int64_t list_pairs(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                   uint16_t* rows) {
  __m512i row = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                   _mm512_set1_epi32(static_cast<int>(row_bytes)));
  const __m512i step = _mm512_set1_epi32(static_cast<int>(16 * row_bytes));
  const __m128i shift = _mm_cvtsi32_si128(is_wide ? 8 : 16);
  int64_t length = 0;
  for (int64_t channel = 0; channel < count; channel += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pixel + channel));
    const __mmask16 active = _mm256_test_epi16_mask(bytes, bytes);
    const __m512i pairs = _mm512_maskz_cvtepu16_epi32(0xffff, bytes);  // a | b << 8
    const __m512i doubled = _mm512_or_si512(pairs, _mm512_maskz_sll_epi32(0xffff, pairs, shift));
    const __m512i spread = is_wide ? _mm512_and_si512(doubled, _mm512_set1_epi32(0x00ff00ff)) : doubled;
    _mm512_storeu_si512(levels + length, _mm512_maskz_compress_epi32(active, spread));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + length),
                        _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_maskz_compress_epi32(active, row)));
    row = _mm512_add_epi32(row, step);
    length += __builtin_popcount(active);
  }
  return length;
}

int64_t count_pairs(const uint8_t* bytes, int64_t count) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < count; i += 32) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + i));
    pairs += __builtin_popcount(_mm256_test_epi16_mask(some, some));
  }
  return pairs;
}

#elif defined(__AVX2__)

// For every mask of 8 lanes, the indices of its set lanes.
struct Compressions {
  uint8_t lanes[256][8];
  constexpr Compressions() : lanes() {
    for (int mask = 0; mask < 256; ++mask)
      for (int lane = 0, length = 0; lane < 8; ++lane)
        if (mask >> lane & 1) lanes[mask][length++] = static_cast<uint8_t>(lane);
  }
};
constexpr Compressions kCompressions;

int64_t list_pairs(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                   uint16_t* rows) {
  const __m128i scale = _mm_set1_epi16(static_cast<int16_t>(row_bytes));
  int64_t length = 0;
  for (int64_t channel = 0; channel < count; channel += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel + channel));
    const __m128i is_zero = _mm_cmpeq_epi16(bytes, _mm_setzero_si128());
    const int active = ~_mm_movemask_epi8(_mm_packs_epi16(is_zero, is_zero)) & 0xff;
    const __m256i pairs = _mm256_cvtepu16_epi32(bytes);  // a | b << 8
    const __m256i doubled = _mm256_or_si256(pairs, _mm256_slli_epi32(pairs, is_wide ? 8 : 16));
    const __m256i spread = is_wide ? _mm256_and_si256(doubled, _mm256_set1_epi32(0x00ff00ff)) : doubled;
    const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompressions.lanes[active]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + length),
                        _mm256_permutevar8x32_epi32(spread, _mm256_cvtepu8_epi32(lanes)));
    const __m128i row = _mm_add_epi16(_mm_cvtepu8_epi16(lanes), _mm_set1_epi16(static_cast<int16_t>(channel / 2)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rows + length), _mm_mullo_epi16(row, scale));
    length += __builtin_popcount(active);
  }
  return length;
}

int64_t count_pairs(const uint8_t* bytes, int64_t count) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < count; i += 32) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + i));
    const __m256i is_zero = _mm256_cmpeq_epi16(some, _mm256_setzero_si256());
    pairs += 16 - __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_epi8(is_zero))) / 2;
  }
  return pairs;
}

#endif

// ---- products ----

inline void fetch_next(const char*& next, int64_t lines) {
  for (int64_t line = 0; line < lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
}

template <int64_t kOutputs, PairMode kMode>
void tile_in_mode(const PairTile& tile) {
  typedef std::conditional_t<kMode == PairMode::kWide, WideLanes, NarrowLanes> Lanes;
  constexpr bool kWidens = kMode == PairMode::kNarrowToInt32;
  constexpr int64_t kPart = kOutputs < Lanes::kPart ? kOutputs : Lanes::kPart, kVectors = kPart / Lanes::kLanes;
  constexpr int64_t kBytes = 4 * kWords, kSumBytes = Lanes::kLanes * (kMode == PairMode::kNarrowTo16 ? 2 : 4);
  const Visit* visit = tile.visits;
  const char* next = tile.next;
  for (const Run* run = tile.runs; run < tile.runs + tile.num_runs; ++run) {
    const int64_t length = run->length;
    for (const Visit* last = visit + run->count; visit < last; ++visit) {
      fetch_next(next, tile.lines_per_visit);
      const uint32_t* levels = tile.levels + visit->list;
      const uint16_t* rows = tile.rows + visit->list;
      for (int64_t part = 0; part < kOutputs / kPart; ++part) {
        const char* weights = tile.weights + part * kVectors * kBytes;
        char* to = tile.sums + visit->place + part * kVectors * kSumBytes;
        typename Lanes::Sum sum[kVectors];
        for (int64_t v = 0; v < kVectors; ++v)
          sum[v] = kWidens ? typename Lanes::Sum{} : Lanes::load(to + v * kSumBytes);
        for (int64_t entry = 0; entry < length; ++entry) {
          const Pair pair = spread_pair(levels[entry]);
          const char* row = weights + rows[entry];
          __asm__("" : "+r"(row));  // an address of one register: with an index loads and products are not fused
          for (int64_t v = 0; v < kVectors; ++v) sum[v] = Lanes::add(sum[v], pair, row + v * kBytes);
        }
        for (int64_t v = 0; v < kVectors; ++v) {
          if constexpr (kWidens) {
            Lanes::widen_onto(to + v * kSumBytes, sum[v]);
          } else {
            Lanes::store(to + v * kSumBytes, sum[v]);
          }
        }
      }
    }
  }
}

template <int64_t kOutputs>
void any_tile(PairMode mode, const PairTile& tile) {
  if (mode == PairMode::kWide) return tile_in_mode<kOutputs, PairMode::kWide>(tile);
  if (mode == PairMode::kNarrowTo16) return tile_in_mode<kOutputs, PairMode::kNarrowTo16>(tile);
  tile_in_mode<kOutputs, PairMode::kNarrowToInt32>(tile);
}

void pair_tile(PairMode mode, int64_t outputs, const PairTile& tile) {
  if (outputs == 32) return any_tile<32>(mode, tile);
  if (outputs == 64) return any_tile<64>(mode, tile);
  any_tile<128>(mode, tile);
}

int64_t narrow_offset(int64_t output, int64_t channel) {
#if defined(__aarch64__)
  return output / 8 * 16 + channel * 8 + output % 8;
#else
  const int64_t half = kWords, within = output % (2 * half);
  const int64_t lane = within < half ? 2 * within : 2 * (within - half) + 1;
  return 2 * (output - within + lane) + channel;
#endif
}

int64_t wide_offset(int64_t output, int64_t channel) {
#if defined(__aarch64__)
  return output / 4 * 8 + channel * 4 + output % 4;
#else
  return 2 * output + channel;
#endif
}

}  // namespace
}  // namespace lbq
