// Depthwise convolutions: every channel has a window of its own. Two taps are multiplied at once.
#pragma once

#include "integer_neuron-simd.h"

namespace lbq {
namespace {

#if defined(__AVX2__)

constexpr int64_t kGroup = 2 * kWords;  // channels of two vectors

#if defined(__AVX512BW__)
// Channels 0..7 and 16..23 in the first vector, the others in the second: bytes are interleaved in halves.
int64_t depthwise_offset(int64_t channel, int64_t tap) {
  const int64_t within = channel % kGroup, part = within / 8;
  return 2 * (channel - within + part % 2 * kWords + part / 2 * 8 + within % 8) + tap;
}

struct TapSums {
  __m512i first, second;
  explicit TapSums(const int32_t* from)
      : first(halves(from, from + 16)), second(halves(from + 8, from + 24)) {}
  static __m512i halves(const int32_t* low, const int32_t* high) {
    const __m512i whole = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
    return _mm512_maskz_inserti64x4(0xff, whole, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
  }
  void add(const uint8_t* one, const uint8_t* other, const int16_t* weights) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(one));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other));
    first = add_products(first, words_of_bytes(_mm256_unpacklo_epi8(a, b)), load_vector(weights));
    second = add_products(second, words_of_bytes(_mm256_unpackhi_epi8(a, b)), load_vector(weights + 2 * kWords));
  }
  static __m512i words_of_bytes(__m256i bytes) { return _mm512_maskz_cvtepu8_epi16(~__mmask32{0}, bytes); }
  void store(int32_t* to) const {
    const auto put = [](int32_t* place, __m256i half) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), half); };
    put(to, _mm512_maskz_extracti64x4_epi64(0xff, first, 0));
    put(to + 8, _mm512_maskz_extracti64x4_epi64(0xff, second, 0));
    put(to + 16, _mm512_maskz_extracti64x4_epi64(0xff, first, 1));
    put(to + 24, _mm512_maskz_extracti64x4_epi64(0xff, second, 1));
  }
};
#else
int64_t depthwise_offset(int64_t channel, int64_t tap) { return 2 * channel + tap; }

struct TapSums {
  __m256i first, second;
  explicit TapSums(const int32_t* from) : first(load_vector(from)), second(load_vector(from + kWords)) {}
  void add(const uint8_t* one, const uint8_t* other, const int16_t* weights) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(other));
    first = add_products(first, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), load_vector(weights));
    second = add_products(second, _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), load_vector(weights + 2 * kWords));
  }
  void store(int32_t* to) const {
    store_vector(to, first);
    store_vector(to + kWords, second);
  }
};
#endif

#else

constexpr int64_t kGroup = kWords;

int64_t depthwise_offset(int64_t channel, int64_t tap) { return channel / kWords * 2 * kWords + tap * kWords + channel % kWords; }

struct TapSums {
  Words sums;
  explicit TapSums(const int32_t* from) : sums(load_words(from)) {}
  void add(const uint8_t* one, const uint8_t* other, const int16_t* weights) {
    typedef int16_t Halves __attribute__((vector_size(2 * kWords)));
    Halves first, second;
    std::memcpy(&first, weights, sizeof first);
    std::memcpy(&second, weights + kWords, sizeof second);
    sums += words_of(one) * __builtin_convertvector(first, Words) + words_of(other) * __builtin_convertvector(second, Words);
  }
  void store(int32_t* to) const { store_words(to, sums); }
};

#endif

void depthwise_block(const DepthwiseBlock& block) {
  const int64_t last = block.taps - 1;
  for (int64_t b = 0; b < block.blocks; ++b) {
    int32_t* to = block.sums + b * block.block_size;
    for (int64_t row = 0; row < block.rows; ++row)
      for (int64_t column = 0; column < block.columns; ++column, to += block.outputs) {
        const uint8_t* corner = block.levels + row * block.row_step + column * block.column_step + b * block.outputs;
        for (int64_t output = 0; output < block.outputs; output += kGroup) {
          const int16_t* weights = block.weights + 2 * (b * block.outputs + output);
          TapSums sums(to + output);
          for (int64_t tap = 0; tap <= last; tap += 2, weights += 2 * block.stride)
            sums.add(corner + output + block.taps_at[tap], corner + output + block.taps_at[std::min(tap + 1, last)], weights);
          sums.store(to + output);
        }
      }
  }
}

}  // namespace
}  // namespace lbq
