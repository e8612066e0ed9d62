// Vector operations of the instruction set being compiled: pairs of u8 levels times int8 weights in int16 lanes, pairs
// of int16 in int32 lanes. Internal linkage: see vectors.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lbq {
namespace {

#if defined(__AVX512BW__)

// Lane 2i of a sum is output i, lane 2i + 1 output 16 + i: even and odd lanes widen to ordered halves.
struct Lanes {
  typedef __m512i Pair;  // a pair's levels in every lane
  typedef __m512i Sum16;
  typedef __m512i Sum32;
  static constexpr int64_t kHalf = 16;                        // int32 lanes
  static constexpr int64_t kNarrowPart = 128, kWidePart = 128;  // outputs that fit the registers
  static Pair spread(uint32_t levels) { return _mm512_set1_epi32(static_cast<int>(levels)); }
  static Sum16 zero16() { return _mm512_setzero_si512(); }
  static Sum16 load16(const char* from) { return _mm512_loadu_si512(from); }
  static void store16(char* to, Sum16 sum) { _mm512_storeu_si512(to, sum); }
  static Sum16 add16(Sum16 sum, Pair pair, const char* weights) {
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(pair, _mm512_loadu_si512(weights)));
  }
  static Sum32 load32(const char* from) { return _mm512_loadu_si512(from); }
  static void store32(char* to, Sum32 sum) { _mm512_storeu_si512(to, sum); }
  static Sum32 add32(Sum32 sum, Pair pair, const char* weights) {
    return add_products(sum, pair, _mm512_loadu_si512(weights));
  }
  static void widen_onto(char* to, Sum16 sum) {
    store32(to, add_products(load32(to), sum, _mm512_set1_epi32(1)));
    store32(to + 64, add_products(load32(to + 64), sum, _mm512_set1_epi32(1 << 16)));
  }
  static Sum32 add_products(Sum32 sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
  }
};

#elif defined(__AVX2__)

struct Lanes {
  typedef __m256i Pair;
  typedef __m256i Sum16;
  typedef __m256i Sum32;
  static constexpr int64_t kHalf = 8;
  static constexpr int64_t kNarrowPart = 128, kWidePart = 64;
  static Pair spread(uint32_t levels) { return _mm256_set1_epi32(static_cast<int>(levels)); }
  static Sum16 zero16() { return _mm256_setzero_si256(); }
  static Sum16 load16(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store16(char* to, Sum16 sum) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum); }
  static Sum16 add16(Sum16 sum, Pair pair, const char* weights) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(pair, load16(weights)));
  }
  static Sum32 load32(const char* from) { return load16(from); }
  static void store32(char* to, Sum32 sum) { store16(to, sum); }
  static Sum32 add32(Sum32 sum, Pair pair, const char* weights) {
    return add_products(sum, pair, load16(weights));
  }
  static void widen_onto(char* to, Sum16 sum) {
    store32(to, add_products(load32(to), sum, _mm256_set1_epi32(1)));
    store32(to + 32, add_products(load32(to + 32), sum, _mm256_set1_epi32(1 << 16)));
  }
  static Sum32 add_products(Sum32 sum, __m256i a, __m256i b) {
#if defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
  }
};

#elif defined(__aarch64__)

// A row holds the first channel of 8 outputs, then the second.
struct Lanes {
  struct Pair {
    int8x8_t first, second;
    int16x4_t wide_first, wide_second;
  };
  typedef int16x8_t Sum16;
  typedef int32x4_t Sum32;
  static constexpr int64_t kHalf = 4;
  static constexpr int64_t kNarrowPart = 64, kWidePart = 32;
  static Pair spread(uint32_t levels) {
    return {vdup_n_s8(static_cast<int8_t>(levels)), vdup_n_s8(static_cast<int8_t>(levels >> 8)),
            vdup_n_s16(static_cast<int16_t>(levels)), vdup_n_s16(static_cast<int16_t>(levels >> 16))};
  }
  static Sum16 zero16() { return vdupq_n_s16(0); }
  static Sum16 load16(const char* from) { return vld1q_s16(reinterpret_cast<const int16_t*>(from)); }
  static void store16(char* to, Sum16 sum) { vst1q_s16(reinterpret_cast<int16_t*>(to), sum); }
  static Sum16 add16(Sum16 sum, Pair pair, const char* weights) {
    const int8x16_t both = vld1q_s8(reinterpret_cast<const int8_t*>(weights));
    return vmlal_s8(vmlal_s8(sum, vget_low_s8(both), pair.first), vget_high_s8(both), pair.second);
  }
  static Sum32 load32(const char* from) { return vld1q_s32(reinterpret_cast<const int32_t*>(from)); }
  static void store32(char* to, Sum32 sum) { vst1q_s32(reinterpret_cast<int32_t*>(to), sum); }
  static Sum32 add32(Sum32 sum, Pair pair, const char* weights) {
    const int16x8_t both = load16(weights);
    return vmlal_s16(vmlal_s16(sum, vget_low_s16(both), pair.wide_first), vget_high_s16(both),
                     pair.wide_second);
  }
  static void widen_onto(char* to, Sum16 sum) {
    store32(to, vaddw_s16(load32(to), vget_low_s16(sum)));
    store32(to + 16, vaddw_s16(load32(to + 16), vget_high_s16(sum)));
  }
};

#endif

}  // namespace
}  // namespace lbq
