// The C interface of the burst neuron: checks and blocks.
#include "scan_kernels.h"

namespace lbq {

bool is_valid_scan(const lbq_scan* scan, int64_t first, int64_t last) {
  if (!scan || scan->timesteps < 1 || scan->size < 0 || scan->num_steps < 1 || !scan->step) return false;
  if (scan->max_level < 1 || scan->max_level > 255 || scan->reset_mode > LBQ_RESET_NONE) return false;
  if (scan->current_stride != 0 && scan->current_stride != scan->size) return false;
  if (scan->size > 0 && (scan->run < 1 || scan->size % scan->run != 0)) return false;
  if (scan->run == 1 && scan->size % scan->num_steps != 0) return false;
  return first >= 0 && last <= lbq_num_blocks(scan);
}

}  // namespace lbq

extern "C" {

int64_t lbq_num_blocks(const lbq_scan* scan) {
  if (scan->size == 0) return 0;
  if (scan->run == 1) {
    const int64_t rows = scan->size / scan->num_steps;
    const int64_t fit = lbq::kBlockValues / scan->num_steps;
    const int64_t per_block = fit > 0 ? fit : 1;
    return (rows + per_block - 1) / per_block;
  }
  return scan->size / scan->run * ((scan->run + lbq::kBlockValues - 1) / lbq::kBlockValues);
}

int64_t lbq_block_steps(const lbq_scan* scan) { return scan->run == 1 ? scan->num_steps : 1; }

int64_t lbq_block_first_step(const lbq_scan* scan, int64_t block) {
  return lbq::block_at(*scan, block).step - scan->step;
}

lbq_status lbq_burst_forward(const lbq_scan* scan, const lbq_forward_buffers* buffers, int64_t first,
                             int64_t last) {
  if (!lbq::is_valid_scan(scan, first, last)) return LBQ_BAD_ARGUMENT;
  const auto forward = lbq::scan_kernels().burst.forward;
  for (int64_t block = first; block < last; ++block) forward(*scan, *buffers, block);
  return LBQ_OK;
}

lbq_status lbq_burst_backward(const lbq_scan* scan, const lbq_backward_buffers* buffers, int64_t first,
                              int64_t last) {
  if (!lbq::is_valid_scan(scan, first, last)) return LBQ_BAD_ARGUMENT;
  const auto backward = lbq::scan_kernels().burst.backward;
  for (int64_t block = first; block < last; ++block) backward(*scan, *buffers, block);
  return LBQ_OK;
}

void lbq_sum_blocks(const lbq_scan* scan, const lbq_backward_buffers* buffers, double* step,
                    double* other) {
  const int64_t blocks = lbq_num_blocks(scan), steps = lbq_block_steps(scan);
  for (int64_t i = 0; i < scan->num_steps; ++i) step[i] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = lbq_block_first_step(scan, block);
    for (int64_t i = 0; i < steps; ++i) step[first + i] += buffers->step_sums[block * steps + i];
  }
  lbq_add_blocks(buffers->other_sums, blocks, 3, other);
}

}  // extern "C"
