// One forward and one backward pass of a fixed scan, for counting instructions with callgrind.
#include <cstdio>
#include <vector>

#include "lbq.h"

int main() {
  const float step = 0.3f, tail = 0.5f;
  lbq_scan scan{};
  scan.timesteps = 4;
  scan.size = scan.current_stride = scan.run = 1 << 16;
  scan.num_steps = 1;
  scan.step = &step;
  scan.tail = &tail;
  scan.decay = 0.5f;
  scan.reset = 1.0f;
  scan.lo = 1.0f;
  scan.hi = 5.0f;
  scan.max_level = 5;
  const int64_t n = scan.timesteps * scan.size, blocks = lbq_num_blocks(&scan);
  std::vector<float> currents(n), bursts(n), membranes(n), carry(scan.size), grads(n);
  std::vector<uint8_t> levels(n);
  for (int64_t i = 0; i < n; ++i) currents[i] = static_cast<float>(i * 7919 % 2048) / 512 - 1;
  std::vector<double> step_sums(blocks), other_sums(3 * blocks);
  const lbq_forward_buffers forward{currents.data(), nullptr,          bursts.data(),
                                    levels.data(),   membranes.data(), carry.data()};
  const lbq_backward_buffers backward{bursts.data(), nullptr, membranes.data(),  nullptr,
                                      grads.data(),  nullptr, step_sums.data(), other_sums.data()};
  const bool ok = lbq_burst_forward(&scan, &forward, 0, blocks) == LBQ_OK &&
                  lbq_burst_backward(&scan, &backward, 0, blocks) == LBQ_OK;
  double sum = 0, other[3];
  lbq_sum_blocks(&scan, &backward, &sum, other);
  std::printf("%s: dL/dstep %.6g\n", lbq_isa(), sum);
  return !ok;
}
