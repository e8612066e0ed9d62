// What an instruction set offers the dispatcher: one block of each pass.
#pragma once

#include "lbq.h"

namespace lbq {

using ForwardBlock = void (*)(const lbq_scan&, const lbq_forward_buffers&, int64_t block);
using BackwardBlock = void (*)(const lbq_scan&, const lbq_backward_buffers&, int64_t block);

// burst_scan-scalar.cc: the truth that the others are tested against.
extern const ForwardBlock kBurstForwardScalar, kBurstForwardAvx2, kBurstForwardAvx512,
    kBurstForwardAvx512Bf16, kBurstForwardNeon;
extern const BackwardBlock kBurstBackwardScalar, kBurstBackwardAvx2, kBurstBackwardAvx512,
    kBurstBackwardAvx512Bf16, kBurstBackwardNeon;

constexpr int64_t kBlockValues = 4096;

// The values of a block: `rows` rows of `count` consecutive values. All of them share one step, or
// every column has its own (channels last).
struct Block {
  int64_t first, rows, count;
  const float* step;
  bool step_per_column;
};

// Static, like everything that files of several instruction sets include: one shared copy could hold
// instructions that the machine lacks.
static inline Block block_at(const lbq_scan& scan, int64_t index) {
  if (scan.run == 1) {  // rows of num_steps values, as many as make a block
    const int64_t all_rows = scan.size / scan.num_steps;
    const int64_t per_block = kBlockValues / scan.num_steps > 0 ? kBlockValues / scan.num_steps : 1;
    const int64_t row = index * per_block;
    const int64_t rows = all_rows - row < per_block ? all_rows - row : per_block;
    return {row * scan.num_steps, rows, scan.num_steps, scan.step, true};
  }
  const int64_t per_run = (scan.run + kBlockValues - 1) / kBlockValues;
  const int64_t run = index / per_run, begin = index % per_run * kBlockValues;
  const int64_t count = scan.run - begin < kBlockValues ? scan.run - begin : kBlockValues;
  return {run * scan.run + begin, 1, count, scan.step + run % scan.num_steps, false};
}

// One value through all timesteps, for what does not fill a vector. `other` is tail, decay, reset.
void forward_value(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index, float step);
void backward_value(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index, float step,
                    double& step_sum, double* other);

}  // namespace lbq
