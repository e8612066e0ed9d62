// Batch norm, shortcut and neuron one value at a time: the reference.
#include "scan_kernels.h"
#include "scalar.h"

namespace lbq {
namespace {

float current_of(const lbq_normed_scan& n, int64_t index, int64_t channel) {
  const float normed = load(n.currents, n.scan.dtype, index) * n.scale[channel] + n.shift[channel];
  return n.shortcut ? normed + load(n.shortcut, n.scan.dtype, index) : normed;
}

// The membranes of one neuron at all timesteps.
void membranes_of(const lbq_normed_scan& n, int64_t first, int64_t channel, float step, float* membranes) {
  const lbq_scan& scan = n.scan;
  float carry = 0;
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const float current = current_of(n, t * scan.size + first, channel);
    membranes[t] = t == 0 ? current : scan.decay * carry + current;
    carry = carry_of(scan, membranes[t], level_of(membranes[t] / step, scan.max_level), step);
  }
}

void moments(const lbq_normed_scan& n, double* sums, int64_t block) {
  const Rows rows = normed_rows(n, block);
  for (int64_t c = 0; c < n.channels; ++c) {
    const float origin = load(n.currents, n.scan.dtype, c);
    double sum = 0, squares = 0;
    for (int64_t t = 0; t < n.scan.timesteps; ++t)
      for (int64_t row = rows.first; row < rows.last; ++row) {
        const int64_t index = t * n.scan.size + row * n.channels + c;
        const double value = load(n.currents, n.scan.dtype, index) - origin;
        sum += value;
        squares += value * value;
      }
    sums[2 * block * n.channels + c] = sum;
    sums[(2 * block + 1) * n.channels + c] = squares;
  }
}

void forward(const lbq_normed_scan& n, void* bursts, uint8_t* levels, int64_t block) {
  const Rows rows = normed_rows(n, block);
  float membranes[LBQ_MAX_NORMED_TIMESTEPS];
  for (int64_t i = rows.first * n.channels; i < rows.last * n.channels; ++i) {
    const int64_t channel = i % n.channels;
    const float step = n.scan.step[n.scan.num_steps > 1 ? channel : 0];
    membranes_of(n, i, channel, step, membranes);
    for (int64_t t = 0; t < n.scan.timesteps; ++t) {
      const float level = level_of(membranes[t] / step, n.scan.max_level);
      const float burst = std::isnan(membranes[t]) ? membranes[t] : step * level;
      store(bursts, n.scan.dtype, t * n.scan.size + i, burst);
      if (levels) levels[t * n.scan.size + i] = static_cast<uint8_t>(level);
    }
  }
}

void backward(const lbq_normed_scan& n, const lbq_normed_grads& g, int64_t block) {
  const lbq_scan& scan = n.scan;
  const Rows rows = normed_rows(n, block);
  double* sums = g.norm_sums + 2 * block * n.channels;
  float membranes[LBQ_MAX_NORMED_TIMESTEPS];
  for (int64_t i = rows.first * n.channels; i < rows.last * n.channels; ++i) {
    const int64_t channel = i % n.channels, which = scan.num_steps > 1 ? channel : 0;
    const float step = scan.step[which];
    membranes_of(n, i, channel, step, membranes);
    const auto saved_at = [&](int64_t t) { return Saved{membranes[t] / step, membranes[t]}; };
    const auto grad_at = [&](int64_t t) { return load(g.grad_bursts, scan.dtype, t * scan.size + i); };
    const auto put = [&](int64_t t, float grad) {
      const float distance = load(n.currents, scan.dtype, t * scan.size + i) - n.mean[channel];
      store(g.grad_normed, scan.dtype, t * scan.size + i, grad);
      sums[channel] += grad;
      sums[n.channels + channel] += grad * distance;
    };
    backward_in_time(scan, step, nullptr, 0.0f, saved_at, grad_at, put,
              g.step_sums[block * scan.num_steps + which], g.other_sums + block * 3);
  }
}

void norm_backward(const lbq_normed_scan& n, const lbq_norm_grad_coefficients& slope, const void* grad_normed,
                   void* grad_currents, int64_t block) {
  const Rows rows = normed_rows(n, block);
  for (int64_t t = 0; t < n.scan.timesteps; ++t)
    for (int64_t i = rows.first * n.channels; i < rows.last * n.channels; ++i) {
      const int64_t c = i % n.channels, index = t * n.scan.size + i;
      const float distance = load(n.currents, n.scan.dtype, index) - n.mean[c];
      const float grad = load(grad_normed, n.scan.dtype, index);
      store(grad_currents, n.scan.dtype, index,
            slope.of_grad[c] * grad + slope.of_current[c] * distance + slope.constant[c]);
    }
}

}  // namespace

const NormedKernels scalar::kNormed = {moments, forward, backward, norm_backward};

}  // namespace lbq
