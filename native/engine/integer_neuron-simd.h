// The epilogue on vectors: add up the terms of the currents, run the neuron over time with its carry in a register.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "lanes.h"
#include "network.h"

namespace lbq {
namespace {

typedef int32_t Words __attribute__((vector_size(4 * kWords)));
typedef uint32_t UnsignedWords __attribute__((vector_size(4 * kWords)));
typedef uint8_t WordBytes __attribute__((vector_size(kWords)));
constexpr int32_t kMaxLinearSearch = 24;  // thresholds; above, a binary search per lane

inline Words load_words(const void* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
inline void store_words(void* to, Words words) { std::memcpy(to, &words, sizeof words); }

inline Words words_of(const uint8_t* bytes) {
#if defined(__AVX512BW__)
  return (Words)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  WordBytes some;
  std::memcpy(&some, bytes, sizeof some);
  return __builtin_convertvector(some, Words);
#endif
}

inline void store_bytes(uint8_t* to, Words words) {
#if defined(__AVX512BW__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)words));
#elif defined(__AVX2__)
  const __m256i halves = _mm256_packus_epi32((__m256i)words, (__m256i)words);
  const __m128i ordered = _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(ordered, ordered));
#else
  const WordBytes some = __builtin_convertvector(words, WordBytes);
  std::memcpy(to, &some, sizeof some);
#endif
}

// Arithmetic right shift with the count in a register.
struct Shift {
#if defined(__AVX512BW__)
  __m128i count;
  explicit Shift(int32_t bits) : count(_mm_cvtsi32_si128(bits)) {}
  Words operator()(Words words) const { return (Words)_mm512_maskz_sra_epi32(0xffff, (__m512i)words, count); }
#else
  int32_t bits;
  explicit Shift(int32_t bits) : bits(bits) {}
  Words operator()(Words words) const { return words >> bits; }
#endif
};

// level - 1 where the membrane is below the threshold, else level.
inline Words counted(Words level, Words membrane, Words threshold) {
#if defined(__AVX512BW__)
  const __mmask16 is_below = _mm512_cmpgt_epi32_mask((__m512i)threshold, (__m512i)membrane);
  return (Words)_mm512_mask_add_epi32((__m512i)level, is_below, (__m512i)level, _mm512_set1_epi32(-1));
#else
  return level + (threshold > membrane);
#endif
}

inline Words level_of(const NeuronBlock& neuron, Words membrane, int64_t channel) {
  const int32_t* thresholds = neuron.thresholds + channel;
  Words level = Words{} + neuron.max_level;
  if (neuron.max_level <= kMaxLinearSearch) {
    for (int32_t n = 0; n < neuron.max_level; ++n, thresholds += neuron.channels)
      level = counted(level, membrane, load_words(thresholds));
    return level;
  }
  for (int64_t lane = 0; lane < kWords; ++lane) {
    int32_t low = 0, high = neuron.max_level;  // the level lies in low..high
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (membrane[lane] >= thresholds[middle * neuron.channels + lane]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    level[lane] = low;
  }
  return level;
}

// The type of a block's sums.
enum class Sums : uint8_t { kNone, kInt16, kInt32 };

// Two vectors of sums, in the order of their outputs.
template <Sums kSums>
inline void load_sums(const char* sums, int64_t index, Words (&half)[2]) {
  if (kSums == Sums::kInt32) {
    for (int h = 0; h < 2; ++h) half[h] = load_words(sums + 4 * (index + h * kWords));
  } else if (kSums == Sums::kInt16) {
#if defined(__aarch64__)
    const int16x8_t both = NarrowLanes::load(sums + 2 * index);
    half[0] = (Words)vmovl_s16(vget_low_s16(both));
    half[1] = (Words)vmovl_s16(vget_high_s16(both));
#else
    const Words both = load_words(sums + 2 * index);  // low and high halves: see NarrowLanes
    half[0] = (Words)((UnsignedWords)both << 16) >> 16;
    half[1] = both >> 16;
#endif
  } else {
    half[0] = half[1] = Words{};
  }
}

// Vectors from `output` on that are not only padding: 1 or 2.
inline int halves_of(const CurrentBlock& block, int64_t output) { return block.used - output > kWords ? 2 : 1; }

// The currents of one timestep and position, from `output` on.
template <Sums kSums>
inline void load_currents(const CurrentBlock& block, int64_t t, int64_t position, int64_t output, int halves,
                          const Words (&bias)[2], Words (&half)[2]) {
  const char* sums = kSums == Sums::kNone ? nullptr : block.sums + t * block.sum_stride;
  load_sums<kSums>(sums, position * block.outputs + output, half);
  for (int h = 0; h < halves; ++h) half[h] += bias[h];
  for (int64_t i = 0; i < block.num_extras; ++i) {
    const Extra& extra = block.extras[i];
    const int64_t at = t * extra.time_stride + position * extra.position_stride + output;
    for (int h = 0; h < halves; ++h) {
      const int64_t from = at + h * kWords;
      Words term = extra.currents ? load_words(extra.currents + from) : words_of(extra.levels + from);
      if (extra.weight) term *= load_words(extra.weight + output + h * kWords);
      half[h] += term;
    }
  }
}

inline void load_bias(const CurrentBlock& block, int64_t position, int64_t output, Words (&bias)[2]) {
  for (int h = 0; h < 2; ++h)
    bias[h] = block.bias ? load_words(block.bias + position * block.bias_stride + output + h * kWords) : Words{};
}

// `reset_amount` where the membrane has reached the first threshold.
inline Words reset_if_fired(Words membrane, Words first, Words reset_amount) {
#if defined(__AVX512BW__)
  return (Words)_mm512_maskz_mov_epi32(_mm512_cmpge_epi32_mask((__m512i)membrane, (__m512i)first), (__m512i)reset_amount);
#else
  return reset_amount & ~(first > membrane);
#endif
}

// Levels of padding are zero, whatever its sums hold.
inline void clear_padding(const CurrentBlock& block, const NeuronBlock& neuron, int64_t first, int64_t last) {
  const int64_t stride = neuron.position_stride, count = last - first;
  for (int64_t output = (block.used + kWords - 1) / kWords * kWords; output < block.outputs; output += kWords)
    for (int64_t t = 0; t < block.timesteps; ++t) {
      uint8_t* levels = neuron.levels + t * neuron.time_stride + first * stride + output;
      for (int64_t i = 0; i < count; ++i) std::memset(levels + i * stride, 0, kWords);
    }
}

template <Sums kSums, lbq_reset_mode kReset, bool kAfterDecay>
void fire_as(const CurrentBlock& block, const NeuronBlock& neuron) {
  for (int64_t position = 0; position < block.positions; ++position)
    for (int64_t output = 0; output < block.used; output += 2 * kWords) {
      const int halves = halves_of(block, output);
      int32_t* kept = neuron.carry ? neuron.carry + position * neuron.position_stride + output : nullptr;
      uint8_t* levels = neuron.levels + position * neuron.position_stride + output;
      Words bias[2], carry[2] = {}, current[2];
      load_bias(block, position, output, bias);
      if (kept)
        for (int h = 0; h < halves; ++h) carry[h] = load_words(kept + h * kWords);
      for (int64_t t = 0; t < block.timesteps; ++t) {
        load_currents<kSums>(block, t, position, output, halves, bias, current);
        for (int h = 0; h < halves; ++h) {
          const int64_t channel = output + h * kWords;
          const Words first = load_words(neuron.thresholds + channel), reset_amount = load_words(neuron.reset_amount + channel);
          const Words scaled = neuron.multiplier == 1 ? carry[h] : carry[h] * neuron.multiplier;  // common: decay 1/2
          Words membrane = current[h] + (scaled >> neuron.shift);
          if (kAfterDecay) membrane -= reset_if_fired(carry[h], first, reset_amount);  // the carry is the last membrane
          const Words level = level_of(neuron, membrane, channel);
          store_bytes(levels + t * neuron.time_stride + h * kWords, level);
          carry[h] = membrane;
          if (kAfterDecay) continue;
          if (kReset == LBQ_RESET_EVENT) carry[h] -= reset_if_fired(membrane, first, reset_amount);
          if (kReset == LBQ_RESET_LEVEL) carry[h] -= level * reset_amount;
          if (kReset == LBQ_RESET_ZERO) carry[h] -= reset_if_fired(membrane, first, membrane);
        }
      }
      if (kept)
        for (int h = 0; h < halves; ++h) store_words(kept + h * kWords, carry[h]);
    }
  clear_padding(block, neuron, 0, block.positions);
}

constexpr int32_t kNoBias[kWords] = {};
constexpr int64_t kNear = 16;  // positions whose sums and levels fit the L1 cache

// The common case with thresholds in registers: int32 sums, no initial carry, event reset, few levels, at most one
// identity shortcut. Fields are copied to locals because stores to levels (bytes) may alias them.
template <int kLevels, bool kHasShortcut, bool kOnce>
void fire_near(const CurrentBlock& block, const NeuronBlock& neuron, int64_t first, int64_t last) {
  const Extra shortcut = kHasShortcut ? block.extras[0] : Extra{};
  const int64_t timesteps = kOnce ? 1 : block.timesteps, used = block.used, sum_stride = block.sum_stride;
  const int64_t time_stride = neuron.time_stride, position_stride = neuron.position_stride;
  const int64_t sum_step = 4 * block.outputs, bias_step = block.bias_stride;
  const int32_t multiplier = neuron.multiplier;
  const Shift shift(neuron.shift);
  for (int64_t output = 0; output < used; output += kWords) {
    Words thresholds[kLevels];
    for (int n = 0; n < kLevels; ++n) thresholds[n] = load_words(neuron.thresholds + n * neuron.channels + output);
    const Words reset_amount = load_words(neuron.reset_amount + output);
    const Words weight = kHasShortcut ? load_words(shortcut.weight + output) : Words{};
    const int32_t* bias = block.bias ? block.bias + output + first * bias_step : kNoBias;
    const char* from = block.sums + first * sum_step + 4 * output;
    const uint8_t* before = kHasShortcut ? shortcut.levels + first * shortcut.position_stride + output : nullptr;
    uint8_t* to = neuron.levels + first * position_stride + output;
    for (int64_t position = first; position < last; ++position) {
      Words carry = {};
      for (int64_t t = 0; t < timesteps; ++t) {
        Words membrane = load_words(from + t * sum_stride) + load_words(bias);
        if (kHasShortcut) membrane += words_of(before + t * shortcut.time_stride) * weight;
        if (!kOnce) membrane += shift(multiplier == 1 ? carry : carry * multiplier);
        Words level = Words{} + kLevels;
        for (int n = 0; n < kLevels; ++n) level = counted(level, membrane, thresholds[n]);
        store_bytes(to + t * time_stride, level);
        if (!kOnce) carry = membrane - reset_if_fired(membrane, thresholds[0], reset_amount);
      }
      bias += bias_step;
      from += sum_step;
      to += position_stride;
      if (kHasShortcut) before += shortcut.position_stride;
    }
  }
  clear_padding(block, neuron, first, last);
}

template <int kLevels, bool kHasShortcut>
void fire_few(const CurrentBlock& block, const NeuronBlock& neuron) {
  for (int64_t first = 0; first < block.positions; first += kNear) {
    const int64_t last = std::min(first + kNear, block.positions);
    block.timesteps == 1 ? fire_near<kLevels, kHasShortcut, true>(block, neuron, first, last)
                         : fire_near<kLevels, kHasShortcut, false>(block, neuron, first, last);
  }
}

template <bool kHasShortcut>
bool fire_if_few(const CurrentBlock& block, const NeuronBlock& neuron) {
  switch (neuron.max_level) {
    case 1: return fire_few<1, kHasShortcut>(block, neuron), true;
    case 2: return fire_few<2, kHasShortcut>(block, neuron), true;
    case 3: return fire_few<3, kHasShortcut>(block, neuron), true;
    case 4: return fire_few<4, kHasShortcut>(block, neuron), true;
    case 5: return fire_few<5, kHasShortcut>(block, neuron), true;
    case 7: return fire_few<7, kHasShortcut>(block, neuron), true;
    default: return false;
  }
}

bool fire_if_common(const CurrentBlock& block, const NeuronBlock& neuron) {
  if (!block.sums || block.are_int16 || neuron.carry || neuron.resets_after_decay) return false;
  if (neuron.reset != LBQ_RESET_EVENT || block.num_extras > 1) return false;
  if (block.num_extras == 0) return fire_if_few<false>(block, neuron);
  return block.extras[0].levels && block.extras[0].weight && fire_if_few<true>(block, neuron);
}

template <Sums kSums>
void fire_from(const CurrentBlock& block, const NeuronBlock& neuron) {
  if (neuron.resets_after_decay) return fire_as<kSums, LBQ_RESET_EVENT, true>(block, neuron);
  switch (neuron.reset) {
    case LBQ_RESET_EVENT: return fire_as<kSums, LBQ_RESET_EVENT, false>(block, neuron);
    case LBQ_RESET_LEVEL: return fire_as<kSums, LBQ_RESET_LEVEL, false>(block, neuron);
    case LBQ_RESET_ZERO: return fire_as<kSums, LBQ_RESET_ZERO, false>(block, neuron);
    case LBQ_RESET_NONE: return fire_as<kSums, LBQ_RESET_NONE, false>(block, neuron);
  }
}

void fire(const CurrentBlock& block, const NeuronBlock& neuron) {
  if (fire_if_common(block, neuron)) return;
  if (!block.sums) return fire_from<Sums::kNone>(block, neuron);
  block.are_int16 ? fire_from<Sums::kInt16>(block, neuron) : fire_from<Sums::kInt32>(block, neuron);
}

template <Sums kSums>
void store_from(const CurrentBlock& block, int32_t* to, int64_t time_stride, int64_t position_stride) {
  for (int64_t t = 0; t < block.timesteps; ++t)
    for (int64_t position = 0; position < block.positions; ++position)
      for (int64_t output = 0; output < block.outputs; output += 2 * kWords) {
        Words bias[2], current[2];
        load_bias(block, position, output, bias);
        const int halves = output < block.used ? halves_of(block, output) : 0;
        load_currents<kSums>(block, t, position, output, halves, bias, current);
        int32_t* at = to + t * time_stride + position * position_stride + output;
        for (int h = 0; h < 2; ++h) store_words(at + h * kWords, h < halves ? current[h] : Words{});
      }
}

void store(const CurrentBlock& block, int32_t* to, int64_t time_stride, int64_t position_stride) {
  if (!block.sums) return store_from<Sums::kNone>(block, to, time_stride, position_stride);
  block.are_int16 ? store_from<Sums::kInt16>(block, to, time_stride, position_stride)
                  : store_from<Sums::kInt32>(block, to, time_stride, position_stride);
}

}  // namespace
}  // namespace lbq
