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

#if defined(__AVX2__)

#if defined(__AVX512BW__)
#define LBQ_MM(operation) _mm512_##operation
#define LBQ_WHOLE(operation) _mm512_##operation##_si512
typedef __m512i Vector;
#else
#define LBQ_MM(operation) _mm256_##operation
#define LBQ_WHOLE(operation) _mm256_##operation##_si256
typedef __m256i Vector;
#endif
constexpr int64_t kWords = sizeof(Vector) / 4;  // int32 lanes
typedef Vector Pair;                            // the levels of a pair of channels, in every lane

inline Vector load_vector(const void* from) { return LBQ_WHOLE(loadu)(static_cast<const Vector*>(from)); }
inline void store_vector(void* to, Vector vector) { LBQ_WHOLE(storeu)(static_cast<Vector*>(to), vector); }
inline Vector broadcast(uint32_t word) { return LBQ_MM(set1_epi32)(static_cast<int>(word)); }
inline Pair spread_pair(uint32_t levels) { return broadcast(levels); }
inline Vector add_words(Vector a, Vector b) { return LBQ_MM(add_epi32)(a, b); }

// sum + pairs of int16 products.
inline Vector add_products(Vector sum, Vector a, Vector b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
  return add_words(sum, LBQ_MM(madd_epi16)(a, b));
#endif
}

// sum + pairs of products of levels (u8) and weights (int8), in 16 bits.
inline Vector add_pair_products(Vector sum, Vector levels, Vector weights) {
  const Vector products = LBQ_MM(maddubs_epi16)(levels, weights);
  __asm__("vpaddw %1, %0, %0" : "+v"(sum) : "v"(products));  // GCC would copy sums, or keep them in memory
  return sum;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
// sum + four products of levels (u8) and weights (int8).
inline Vector add_dots(Vector sum, Vector levels, Vector weights) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, levels, weights);
#else
  return _mm256_dpbusd_avx_epi32(sum, levels, weights);
#endif
}
#else
inline Vector widen_narrow_dots(Vector sum) { return LBQ_MM(madd_epi16)(sum, LBQ_MM(set1_epi16)(1)); }
#endif

// Sums of narrow tiles. Lane 2i is output i, lane 2i + 1 output kWords + i: even and odd lanes widen to ordered halves.
struct NarrowLanes {
  typedef Vector Sum;
  static constexpr int64_t kLanes = 2 * kWords, kPart = 128;  // kPart: outputs that fit the registers
  static Vector load(const char* from) { return load_vector(from); }
  static void store(char* to, Vector sum) { store_vector(to, sum); }
  static Vector add(Vector sum, Pair pair, const char* weights) {
    return add_pair_products(sum, pair, load_vector(weights));
  }
  static void widen_onto(char* to, Vector sum) {
    store_vector(to, add_products(load_vector(to), sum, broadcast(1)));
    to += sizeof sum;
    store_vector(to, add_products(load_vector(to), sum, broadcast(1 << 16)));
  }
};

// Sums of wide tiles.
struct WideLanes {
  typedef Vector Sum;
  static constexpr int64_t kLanes = kWords, kPart = 8 * kWords;
  static Vector load(const char* from) { return load_vector(from); }
  static void store(char* to, Vector sum) { store_vector(to, sum); }
  static Vector add(Vector sum, Pair pair, const char* weights) { return add_products(sum, pair, load_vector(weights)); }
};

#undef LBQ_MM
#undef LBQ_WHOLE

#elif defined(__aarch64__)

constexpr int64_t kWords = 4;

struct Pair {
  int8x8_t first, second;
  int16x4_t wide_first, wide_second;
};
inline Pair spread_pair(uint32_t levels) {
  return {vdup_n_s8(static_cast<int8_t>(levels)), vdup_n_s8(static_cast<int8_t>(levels >> 8)),
          vdup_n_s16(static_cast<int16_t>(levels)), vdup_n_s16(static_cast<int16_t>(levels >> 16))};
}

// A row holds the first channel of 8 outputs, then the second.
struct NarrowLanes {
  typedef int16x8_t Sum;
  static constexpr int64_t kLanes = 8, kPart = 64;
  static Sum load(const char* from) { return vld1q_s16(reinterpret_cast<const int16_t*>(from)); }
  static void store(char* to, Sum sum) { vst1q_s16(reinterpret_cast<int16_t*>(to), sum); }
  static Sum add(Sum sum, Pair pair, const char* weights) {
    const int8x16_t both = vld1q_s8(reinterpret_cast<const int8_t*>(weights));
    return vmlal_s8(vmlal_s8(sum, vget_low_s8(both), pair.first), vget_high_s8(both), pair.second);
  }
  static void widen_onto(char* to, Sum sum) {
    int32_t* words = reinterpret_cast<int32_t*>(to);
    vst1q_s32(words, vaddw_s16(vld1q_s32(words), vget_low_s16(sum)));
    vst1q_s32(words + 4, vaddw_s16(vld1q_s32(words + 4), vget_high_s16(sum)));
  }
};

// The same for 4 outputs.
struct WideLanes {
  typedef int32x4_t Sum;
  static constexpr int64_t kLanes = 4, kPart = 32;
  static Sum load(const char* from) { return vld1q_s32(reinterpret_cast<const int32_t*>(from)); }
  static void store(char* to, Sum sum) { vst1q_s32(reinterpret_cast<int32_t*>(to), sum); }
  static Sum add(Sum sum, Pair pair, const char* weights) {
    const int16x8_t both = vld1q_s16(reinterpret_cast<const int16_t*>(weights));
    return vmlal_s16(vmlal_s16(sum, vget_low_s16(both), pair.wide_first), vget_high_s16(both), pair.wide_second);
  }
};

#endif

}  // namespace
}  // namespace lbq
