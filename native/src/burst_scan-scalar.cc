// The burst neuron one value at a time: the reference.
#include <vector>

#include "scan_kernels.h"
#include "scalar.h"

namespace lbq {
namespace {

// Run a neuron over time: visit(t, membrane, ratio, level); returns the last carry.
template <class Visit>
float run_in_time(const lbq_scan& scan, const void* currents, const float* start, int64_t i, float step, Visit visit) {
  float carry = start ? start[i] : 0.0f;
  for (int64_t t = 0; t < scan.timesteps; ++t) {
    const float current = load(currents, scan.dtype, t * scan.current_stride + i);
    const float membrane = t == 0 && !start ? current : scan.decay * carry + current;  // Eq. 7
    const float ratio = membrane / step, level = level_of(ratio, scan.max_level);
    visit(t, membrane, ratio, level);
    carry = carry_of(scan, membrane, level, step);
  }
  return carry;
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
  const auto visit = [&](int64_t t, float membrane, float, float level) {
    const int64_t at = t * scan.size + i;
    store(b.bursts, scan.dtype, at, std::isnan(membrane) ? membrane : step * level);  // Eq. 5
    b.levels[at] = static_cast<uint8_t>(level);
    if (b.saved) static_cast<float*>(b.saved)[at] = membrane;
  };
  b.last_carry[i] = run_in_time(scan, b.currents, b.carry, i, step, visit);
}

void backward_value(const lbq_scan& scan, const lbq_backward_buffers& b, int64_t i, float step,
                    double& step_sum, double* other) {
  std::vector<float> membranes;
  if (scan.saved == LBQ_SAVE_CURRENTS)
    run_in_time(scan, b.saved, b.carry, i, step,
                [&](int64_t, float membrane, float, float) { membranes.push_back(membrane); });
  const auto saved_at = [&](int64_t t) -> Saved {
    const bool is_recomputed = scan.saved == LBQ_SAVE_CURRENTS;
    const float membrane = is_recomputed ? membranes[t] : static_cast<const float*>(b.saved)[t * scan.size + i];
    return {membrane / step, membrane};
  };
  const auto grad_at = [&](int64_t t) { return load(b.grad_bursts, scan.dtype, t * scan.size + i); };
  const auto put = [&](int64_t t, float grad_membrane) {
    store(b.grad_currents, scan.dtype, t * scan.size + i, grad_membrane);
    if (t == 0 && b.grad_carry) b.grad_carry[i] = scan.decay * grad_membrane;
  };
  backward_in_time(scan, step, b.carry ? b.carry + i : nullptr, b.grad_last_carry ? b.grad_last_carry[i] : 0.0f,
            saved_at, grad_at, put, step_sum, other);
}

const BurstKernels scalar::kBurst = {forward, backward};

}  // namespace lbq
