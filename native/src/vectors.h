// Vectors of floats in the compiler's vector types, as wide as the instruction set being compiled. Everything here has
// internal linkage: one shared copy could hold instructions that the machine lacks.
#pragma once

#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "scan_kernels.h"

#if defined(LBQ_LANES)  // one lane, for a reference
#elif defined(__AVX512F__)
#define LBQ_LANES 16
#elif defined(__AVX2__)
#define LBQ_LANES 8
#else
#define LBQ_LANES 4
#endif

namespace lbq {
namespace {

constexpr int64_t kLanes = LBQ_LANES;
typedef float Floats __attribute__((vector_size(4 * LBQ_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LBQ_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LBQ_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LBQ_LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LBQ_LANES)));

inline Floats broadcast(float value) { return value - Floats{}; }
// a < b ? a : b and a > b ? a : b, also where one of them is a NaN: then b.
inline Floats min_of(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
inline Floats max_of(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// Conversions between lane widths: one instruction each, where __builtin_convertvector compiles to several. Masked forms,
// because GCC 12 warns in its unmasked ones.
inline Words widened(Halves halves) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)halves);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#else
  return __builtin_convertvector(halves, Words);
#endif
}
inline Halves narrowed(Words words) {  // values below 65536
#if defined(__AVX512F__)
  return (Halves)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)words);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)words, (__m256i)words);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(words, Halves);
#endif
}
inline Bytes bytes_of(Ints ints) {  // values 0..255
#if defined(__AVX512F__)
  return (Bytes)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)ints);
#elif defined(__AVX2__)
  const __m128i halves = (__m128i)narrowed((Words)ints);
  const int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
  Bytes vector;
  std::memcpy(&vector, &bytes, sizeof vector);
  return vector;
#else
  return __builtin_convertvector(ints, Bytes);
#endif
}

template <class Vector, class Value>
inline Vector load_raw(const Value* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline Floats load(const float* from) { return load_raw<Floats>(from); }
inline Floats load(const uint16_t* from) {  // bf16
  return (Floats)(widened(load_raw<Halves>(from)) << 16);
}
inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }
inline void store(uint16_t* to, Floats values) {  // to nearest, ties to even
#if defined(__AVX512BF16__)
  const __m256bh converted = _mm512_maskz_cvtneps_pbh(0xffff, (__m512)values);
  std::memcpy(to, &converted, sizeof converted);
#else
  const Words bits = (Words)values;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = values == values ? rounded : Words{} + 0x7fc0;
  const Halves halves = narrowed(quiet);
  std::memcpy(to, &halves, sizeof halves);
#endif
}

// A non-temporal store; `to` is aligned to the vector.
inline void store_nontemporal(float* to, Floats values) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)values);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, (__m256)values);
#else
  store(to, values);
#endif
}
inline void fence_nontemporal() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// The first `count` of a vector's values; the other lanes are `rest`.
template <class Value>
inline Floats load_some(const Value* from, int64_t count, float rest = 0) {
  Value values[kLanes] = {};
  std::memcpy(values, from, count * sizeof(Value));
  Floats vector = load(values);
  for (int64_t lane = count; lane < kLanes; ++lane) vector[lane] = rest;
  return vector;
}
template <class Value>
inline void store_some(Value* to, Floats vector, int64_t count) {
  Value values[kLanes];
  store(values, vector);
  std::memcpy(to, values, count * sizeof(Value));
}

// Neighbouring values: all lanes, or the `count` left at the end of a row.
template <bool kIsWhole>
struct Columns {
  int64_t first, count;

  template <class Value>
  Floats read(const Value* from, float rest = 0) const {
    return kIsWhole ? load(from) : load_some(from, count, rest);
  }
  template <class Value>
  void write(Value* to, Floats values) const {
    kIsWhole ? store(to, values) : store_some(to, values, count);
  }
  void add(float* to, Floats values) const { write(to, read(to) + values); }
};

// Keeps the compiler from fusing this product with an addition.
inline Floats round_product(Floats product) {
#if LBQ_LANES == 1  // compiled without fusing
#elif defined(__x86_64__)
  __asm__("" : "+v"(product));
#elif defined(__aarch64__)
  __asm__("" : "+w"(product));
#endif
  return product;
}

// clip(floor(r), 0, N) is the truncation of the clipped ratio.
inline Ints level_of(Floats ratio, float max_level) {
  return __builtin_convertvector(min_of(max_of(ratio, Floats{}), broadcast(max_level)), Ints);
}

// exp(-x) for x >= 0: powers of two times a polynomial on [-ln2 / 2, ln2 / 2], error below 2e-7.
inline Floats exp_of_minus(Floats x) {
  x = min_of(x, broadcast(87.0f));
  const Ints n = __builtin_convertvector(x * 1.44269504f + 0.5f, Ints);
  const Floats f = __builtin_convertvector(n, Floats) * 0.693147181f - x;
  Floats p = broadcast(8.37312452e-3f);
  p = p * f + 4.16695364e-2f;
  p = p * f + 1.66664720e-1f;
  p = p * f + 4.99999851e-1f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return p * (Floats)((127 - n) << 23);
}

inline float horizontal_sum(Floats values) {
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
  return sum;
}

// The coefficients of a scan.
struct Coefficients {
  float decay, reset, lo, hi, tail, max_level;
  lbq_reset_mode mode;

  explicit Coefficients(const lbq_scan& scan)
      : decay(scan.decay), reset(scan.reset), lo(scan.lo), hi(scan.hi),
        tail(scan.tail ? *scan.tail : 0.0f), max_level(static_cast<float>(scan.max_level)),
        mode(scan.reset_mode) {}

  Floats removed(Floats level) const {
    if (mode == LBQ_RESET_LEVEL) return level;
    return mode == LBQ_RESET_EVENT ? (level > 0 ? broadcast(1.0f) : Floats{}) : Floats{};
  }
  Floats carry(Floats membrane, Floats level, Floats step) const {
    return mode == LBQ_RESET_NONE ? membrane : membrane - round_product(reset * step * removed(level));
  }
};

// Sums for the gradients of the coefficients, before their common factors.
struct Sums {
  Floats burst{}, bend{}, removed{}, decay{};

  Sums& operator+=(const Sums& other) {
    burst += other.burst;
    bend += other.bend;
    removed += other.removed;
    decay += other.decay;
    return *this;
  }
  Floats step(const lbq_scan& scan) const {
    return scan.detach_reset ? burst : burst - scan.reset * removed;
  }
  Floats tail(Floats step) const { return step * bend; }
  Floats reset(Floats step) const { return -step * removed; }
};

inline Floats absolute(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }
inline Floats with_sign_of(Floats size, Floats sign) {
  return (Floats)((Words)size | ((Words)sign & 0x80000000u));
}

// One timestep backward: from dL/dburst and dL/dV[t] to dL/dU[t].
inline Floats step_back(const Coefficients& c, Floats ratio, Floats level, Floats grad, Floats state, Sums& sums) {
  const Floats excess = ratio - min_of(max_of(ratio, broadcast(c.lo)), broadcast(c.hi));
  const Floats fade = exp_of_minus(absolute(excess));
  const Floats slope = excess == 0 ? broadcast(1.0f) : c.tail * fade;
  sums.burst += grad * (level - ratio * slope);
  sums.bend += grad * with_sign_of(1 - fade, excess);
  sums.removed += state * c.removed(level);
  return grad * slope + state;
}

}  // namespace
}  // namespace lbq
