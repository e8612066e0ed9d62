// The equations of the burst neuron on single values, for the reference.
#pragma once

#include <cmath>
#include <cstring>

#include "lbq.h"

namespace lbq {
namespace {

inline float load(const void* values, lbq_dtype dtype, int64_t index) {
  if (dtype == LBQ_F32) return static_cast<const float*>(values)[index];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(values)[index]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void store(void* values, lbq_dtype dtype, int64_t index, float value) {
  if (dtype == LBQ_F32) {
    static_cast<float*>(values)[index] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  static_cast<uint16_t*>(values)[index] = std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>(rounded);
}

inline float level_of(float ratio, int32_t max_level) {  // Eq. 6
  const float level = std::floor(ratio);
  return level > 0 ? (level < max_level ? level : max_level) : 0;
}

inline float steps_removed(float level, lbq_reset_mode mode) {
  if (mode == LBQ_RESET_LEVEL) return level;
  return mode == LBQ_RESET_EVENT && level > 0 ? 1.0f : 0.0f;
}

inline float carry_of(const lbq_scan& scan, float membrane, float level, float step) {  // Eq. 8
  if (scan.reset_mode == LBQ_RESET_NONE) return membrane;
  return membrane - scan.reset * step * steps_removed(level, scan.reset_mode);
}

struct Saved {
  float ratio, membrane;
};

// Backpropagate one neuron through time. `saved_at(t)` and `grad_at(t)` read, `put(t, dL/dU)` writes; gradients of the
// coefficients are added to the sums (tail, decay, reset in `other`). `carry` is the initial state, NULL for zero.
template <class SavedAt, class GradAt, class Put>
void backward_in_time(const lbq_scan& scan, float step, const float* carry, float grad_state, SavedAt saved_at,
               GradAt grad_at, Put put, double& step_sum, double* other) {
  const float tail = scan.tail ? *scan.tail : 0.0f;
  if (scan.detach_carry) grad_state = 0;
  for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
    const float grad = grad_at(t), ratio = saved_at(t).ratio;
    const float level = level_of(ratio, scan.max_level);
    const float nearest = ratio < scan.lo ? scan.lo : (ratio > scan.hi ? scan.hi : ratio);
    const float excess = ratio - nearest;
    const float fade = std::exp(-std::fabs(excess));
    const float slope = excess == 0 ? 1.0f : tail * fade;  // Eq. 11
    const float removed = grad_state * steps_removed(level, scan.reset_mode);
    step_sum += grad * (level - ratio * slope);  // Eq. 12
    if (!scan.detach_reset) step_sum -= scan.reset * removed;
    other[0] += grad * step * (excess < 0 ? fade - 1 : 1 - fade);
    other[2] -= step * removed;
    const float grad_membrane = grad * slope + grad_state;
    if (t > 0) {
      const Saved before = saved_at(t - 1);
      const float level_before = level_of(before.ratio, scan.max_level);
      other[1] += grad_membrane * carry_of(scan, before.membrane, level_before, step);
    } else if (carry) {
      other[1] += grad_membrane * *carry;
    }
    put(t, grad_membrane);
    grad_state = scan.detach_carry ? 0.0f : scan.decay * grad_membrane;
  }
}

}  // namespace
}  // namespace lbq
