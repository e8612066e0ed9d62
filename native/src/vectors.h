// Vectors of LBQ_LANES floats in the compiler's own vector types, and what both passes need of them. A
// file per instruction set and pass sets the width and includes its pass once; the flags of that file
// do the rest. Everything here has internal linkage: one shared copy could hold instructions that the
// machine lacks.
#pragma once

#include <cstring>

#include "burst_scan.h"

namespace lbq {
namespace {

constexpr int64_t kLanes = LBQ_LANES;
typedef float Floats __attribute__((vector_size(4 * LBQ_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LBQ_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LBQ_LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LBQ_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LBQ_LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LBQ_LANES)));

inline Floats all(float value) { return value - Floats{}; }
inline Floats least(Floats a, Floats b) { return a < b ? a : b; }
inline Floats most(Floats a, Floats b) { return a > b ? a : b; }

template <class Vector, class Value>
inline Vector load_raw(const Value* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline Floats load(const float* from) { return load_raw<Floats>(from); }
inline Floats load(const uint16_t* from) {  // bf16
  return (Floats)(__builtin_convertvector(load_raw<Halves>(from), Words) << 16);
}
inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }
inline void store(uint16_t* to, Floats values) {  // to nearest, ties to even
  const Words bits = (Words)values;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = values == values ? rounded : Words{} + 0x7fc0;
  const Halves halves = __builtin_convertvector(quiet, Halves);
  std::memcpy(to, &halves, sizeof halves);
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

// A product that is rounded before anything is added to it, whatever the file's flags: the compiler
// may not look through this.
inline Floats rounded(Floats product) {
#if defined(__x86_64__)
  __asm__("" : "+v"(product));
#elif defined(__aarch64__)
  __asm__("" : "+w"(product));
#endif
  return product;
}

// clip(floor(r), 0, N) is the truncation of the clipped ratio.
inline Ints level_of(Floats ratio, float max_level) {
  return __builtin_convertvector(least(most(ratio, Floats{}), all(max_level)), Ints);
}

// Ratios in 1/1024 of a step, rounded down, so that their whole part is still the level.
inline Shorts residues_of(Floats ratio) {
  const Floats scaled = least(most(ratio * 1024.0f, all(-32768.0f)), all(32767.0f));
  const Ints truncated = __builtin_convertvector(scaled, Ints);
  const Ints is_above = scaled < __builtin_convertvector(truncated, Floats);  // -1 where it is
  return __builtin_convertvector(truncated + is_above, Shorts);
}
inline Floats ratios_of(Shorts residues) {
  return (__builtin_convertvector(__builtin_convertvector(residues, Ints), Floats) + 0.5f) / 1024.0f;
}

// exp(x) for x <= 0: powers of two times a Taylor series on [-ln2 / 2, ln2 / 2], error below 1e-7.
inline Floats exp_of(Floats x) {
  x = most(x, all(-87.0f));
  const Ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, Ints);
  const Floats k = __builtin_convertvector(n, Floats);
  const Floats f = (x - k * 0.693145752f) - k * 1.42860677e-6f;
  Floats p = all(1.0f / 5040);
  p = p * f + 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return p * (Floats)((n + 127) << 23);
}

inline float add_up(Floats values) {
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
  return sum;
}

// The coefficients of a scan, spread over the lanes.
struct Spread {
  float decay, reset, lo, hi, tail, max_level;
  lbq_reset_mode mode;

  explicit Spread(const lbq_scan& scan)
      : decay(scan.decay), reset(scan.reset), lo(scan.lo), hi(scan.hi),
        tail(scan.tail ? *scan.tail : 0.0f), max_level(static_cast<float>(scan.max_level)),
        mode(scan.reset_mode) {}

  Floats removed(Floats level) const {
    if (mode == LBQ_RESET_LEVEL) return level;
    return mode == LBQ_RESET_EVENT ? (level > 0 ? all(1.0f) : Floats{}) : Floats{};
  }
  Floats carry(Floats membrane, Floats level, Floats step) const {
    return mode == LBQ_RESET_NONE ? membrane : membrane - rounded(reset * step * removed(level));
  }
};

// What a walk back through time adds to the gradients of the coefficients.
struct Sums {
  Floats step{}, tail{}, decay{}, reset{};
};

// One timestep of that walk: takes dL/dburst and dL/dV[t], returns dL/dU[t].
inline Floats step_back(const lbq_scan& scan, const Spread& c, Floats step, Floats ratio, Floats level,
                        Floats grad, Floats state, Sums& sums) {
  const Floats excess = ratio - least(most(ratio, all(c.lo)), all(c.hi));
  const Floats fade = exp_of(excess < 0 ? excess : -excess);
  const Floats slope = excess == 0 ? all(1.0f) : c.tail * fade;
  const Floats bend = excess < 0 ? fade - 1 : 1 - fade;
  const Floats removed = state * c.removed(level);
  sums.step += grad * (level - ratio * slope);
  sums.tail += grad * step * bend;
  if (!scan.detach_reset) sums.step -= c.reset * removed;
  sums.reset -= step * removed;
  return grad * slope + state;
}

}  // namespace
}  // namespace lbq
