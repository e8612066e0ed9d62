// Event-driven products in vectors: a tile of weights stays in the first cache while all pixels whose
// channels meet it pass by; a pixel's sums stay in registers while its list lasts.
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace lbq {
namespace {

inline void fetch_next(const char*& next, int64_t lines) {
  for (int64_t line = 0; line < lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
}

template <int64_t kOutputs, bool kTo16>
void narrow_tile(const PairTile& tile) {
  constexpr int64_t kPart = kOutputs < Lanes::kNarrowPart ? kOutputs : Lanes::kNarrowPart;
  constexpr int64_t kVectors = kPart / (2 * Lanes::kHalf), kBytes = 4 * Lanes::kHalf;
  const Visit* visit = tile.visits;
  const char* next = tile.next;
  for (const Run* run = tile.runs; run < tile.runs + tile.num_runs; ++run) {
    const int64_t length = run->length;
    for (const Visit* last = visit + run->count; visit < last; ++visit) {
      fetch_next(next, tile.lines_per_visit);
      const uint32_t* levels = tile.levels + visit->list;
      const uint16_t* rows = tile.rows + visit->list;
      for (int64_t part = 0; part < kOutputs / kPart; ++part) {
        const char* weights = tile.weights + part * 2 * kPart;
        char* to = tile.sums + visit->place + part * kPart * (kTo16 ? 2 : 4);
        Lanes::Sum16 sum[kVectors];
        for (int64_t v = 0; v < kVectors; ++v) sum[v] = kTo16 ? Lanes::load16(to + v * kBytes) : Lanes::zero16();
        for (int64_t entry = 0; entry < length; ++entry) {
          const Lanes::Pair pair = Lanes::spread(levels[entry]);
          const char* row = weights + rows[entry];
          for (int64_t v = 0; v < kVectors; ++v) sum[v] = Lanes::add16(sum[v], pair, row + v * kBytes);
        }
        for (int64_t v = 0; v < kVectors; ++v) {
          if (kTo16) {
            Lanes::store16(to + v * kBytes, sum[v]);
          } else {
            Lanes::widen_onto(to + v * 2 * kBytes, sum[v]);
          }
        }
      }
    }
  }
}

template <int64_t kOutputs>
void wide_tile(const PairTile& tile) {
  constexpr int64_t kPart = kOutputs < Lanes::kWidePart ? kOutputs : Lanes::kWidePart;
  constexpr int64_t kVectors = kPart / Lanes::kHalf, kBytes = 4 * Lanes::kHalf;
  const Visit* visit = tile.visits;
  const char* next = tile.next;
  for (const Run* run = tile.runs; run < tile.runs + tile.num_runs; ++run) {
    const int64_t length = run->length;
    for (const Visit* last = visit + run->count; visit < last; ++visit) {
      fetch_next(next, tile.lines_per_visit);
      const uint32_t* levels = tile.levels + visit->list;
      const uint16_t* rows = tile.rows + visit->list;
      for (int64_t part = 0; part < kOutputs / kPart; ++part) {
        const char* weights = tile.weights + part * 4 * kPart;
        char* to = tile.sums + visit->place + part * 4 * kPart;
        Lanes::Sum32 sum[kVectors];
        for (int64_t v = 0; v < kVectors; ++v) sum[v] = Lanes::load32(to + v * kBytes);
        for (int64_t entry = 0; entry < length; ++entry) {
          const Lanes::Pair pair = Lanes::spread(levels[entry]);
          const char* row = weights + rows[entry];
          for (int64_t v = 0; v < kVectors; ++v) sum[v] = Lanes::add32(sum[v], pair, row + v * kBytes);
        }
        for (int64_t v = 0; v < kVectors; ++v) Lanes::store32(to + v * kBytes, sum[v]);
      }
    }
  }
}

template <int64_t kOutputs>
void any_tile(PairMode mode, const PairTile& tile) {
  if (mode == PairMode::kWide) return wide_tile<kOutputs>(tile);
  if (mode == PairMode::kNarrowTo16) return narrow_tile<kOutputs, true>(tile);
  narrow_tile<kOutputs, false>(tile);
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
  const int64_t half = Lanes::kHalf, within = output % (2 * half);
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
