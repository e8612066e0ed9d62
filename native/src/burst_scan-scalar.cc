// The burst neuron one number at a time, as the equations stand: the truth for the other files.
#include <cmath>
#include <cstring>

#include "burst_scan.h"

namespace lbq {
namespace {

float load(const void* values, lbq_dtype dtype, int64_t index) {
  if (dtype == LBQ_F32) return static_cast<const float*>(values)[index];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(values)[index]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(void* values, lbq_dtype dtype, int64_t index, float value) {
  if (dtype == LBQ_F32) {
    static_cast<float*>(values)[index] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  static_cast<uint16_t*>(values)[index] = std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>(rounded);
}

float level_of(float ratio, int32_t max_level) {  // Eq. 6
  const float level = std::floor(ratio);
  return level > 0 ? (level < max_level ? level : max_level) : 0;
}

float steps_removed(float level, lbq_reset_mode mode) {
  if (mode == LBQ_RESET_LEVEL) return level;
  return mode == LBQ_RESET_EVENT && level > 0 ? 1.0f : 0.0f;
}

float carry_of(const lbq_scan& scan, float membrane, float level, float step) {  // Eq. 8
  if (scan.reset_mode == LBQ_RESET_NONE) return membrane;
  return membrane - scan.reset * step * steps_removed(level, scan.reset_mode);
}

void forward(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  for (int64_t i = 0; i < block.rows * block.count; ++i)
    forward_value(scan, buffers, block.first + i,
                  block.step[block.step_per_column ? i % block.count : 0]);
}

void backward(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index) {
  const Block block = block_at(scan, index);
  double* step_sums = buffers.step_sums + index * lbq_block_steps(&scan);
  for (int64_t i = 0; i < block.rows * block.count; ++i) {
    const int64_t column = block.step_per_column ? i % block.count : 0;
    backward_value(scan, buffers, block.first + i, block.step[column], step_sums[column],
                   buffers.other_sums + index * 3);
  }
}

}  // namespace

void forward_value(const lbq_scan& scan, const lbq_forward_buffers& b, int64_t i, float step) {
  float carry = b.carry ? b.carry[i] : 0.0f;
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const float current = load(b.currents, scan.dtype, t * scan.current_stride + i);
    const float membrane = t == 0 && !b.carry ? current : scan.decay * carry + current;  // Eq. 7
    const float level = level_of(membrane / step, scan.max_level);
    const float burst = std::isnan(membrane) ? membrane : step * level;  // Eq. 5; a NaN stays one
    store(b.bursts, scan.dtype, t * scan.size + i, burst);
    b.levels[t * scan.size + i] = static_cast<uint8_t>(level);
    if (b.membranes) b.membranes[t * scan.size + i] = membrane;
    carry = carry_of(scan, membrane, level, step);
  }
  b.last_carry[i] = carry;
}

void backward_value(const lbq_scan& scan, const lbq_backward_buffers& b, int64_t i, float step,
                    double& step_sum, double* other) {
  const float tail = scan.tail ? *scan.tail : 0.0f;
  float grad_state = b.grad_last_carry && !scan.detach_carry ? b.grad_last_carry[i] : 0.0f;
  for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
    const float grad = load(b.grad_bursts, scan.dtype, t * scan.size + i);
    const float ratio = b.membranes[t * scan.size + i] / step;
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
      const float before = b.membranes[(t - 1) * scan.size + i];
      const float level_before = level_of(before / step, scan.max_level);
      other[1] += grad_membrane * carry_of(scan, before, level_before, step);
    } else if (b.carry) {
      other[1] += grad_membrane * b.carry[i];
    }
    store(b.grad_currents, scan.dtype, t * scan.size + i, grad_membrane);
    if (t == 0 && b.grad_carry) b.grad_carry[i] = scan.decay * grad_membrane;
    grad_state = scan.detach_carry ? 0.0f : scan.decay * grad_membrane;
  }
}

const ForwardBlock kBurstForwardScalar = forward;
const BackwardBlock kBurstBackwardScalar = backward;

}  // namespace lbq
