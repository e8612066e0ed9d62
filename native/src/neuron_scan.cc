// The C interface of declared neurons: checks, blocks and their sums.
#include "scan_kernels.h"

namespace lbq {
namespace {

bool is_valid(const lbq_neuron* n, int64_t first, int64_t last) {
  if (!n || !n->coefficients || n->coefficients != n->scan.step) return false;
  lbq_scan sizes = n->scan;
  if (sizes.reset_mode == LBQ_RESET_ZERO) sizes.reset_mode = LBQ_RESET_NONE;
  if (!is_valid_scan(&sizes, first, last) || n->num_above < 0 || n->num_below < 0) return false;
  if (n->num_above + n->num_below > 2 * 255 || n->window > LBQ_WINDOW_GAUSSIAN || !(n->width > 0)) return false;
  const bool needs_thresholds = !n->is_uniform || n->has_windows;
  if (needs_thresholds && (!n->edges || n->num_above < 1)) return false;
  return (n->edges != nullptr) == (n->jumps != nullptr) && !(n->is_uniform && n->wants_thresholds);
}

}  // namespace
}  // namespace lbq

extern "C" {

int64_t lbq_neuron_rows(const lbq_neuron* n) {
  return LBQ_NEURON_ROWS + (n->wants_thresholds ? n->num_above + n->num_below : 0);
}

lbq_status lbq_neuron_forward(const lbq_neuron* neuron, const lbq_forward_buffers* buffers, int64_t first, int64_t last) {
  if (!lbq::is_valid(neuron, first, last)) return LBQ_BAD_ARGUMENT;
  const auto forward = lbq::scan_kernels().neuron.forward;
  for (int64_t block = first; block < last; ++block) forward(*neuron, *buffers, block);
  return LBQ_OK;
}

lbq_status lbq_neuron_backward(const lbq_neuron* neuron, const lbq_backward_buffers* buffers, int64_t first,
                               int64_t last) {
  if (!lbq::is_valid(neuron, first, last)) return LBQ_BAD_ARGUMENT;
  const auto backward = lbq::scan_kernels().neuron.backward;
  for (int64_t block = first; block < last; ++block) backward(*neuron, *buffers, block);
  return LBQ_OK;
}

void lbq_sum_neuron_blocks(const lbq_neuron* n, const double* sums, double* total) {
  const lbq_scan& scan = n->scan;
  const int64_t rows = lbq_neuron_rows(n), steps = lbq_block_steps(&scan), blocks = lbq_num_blocks(&scan);
  for (int64_t i = 0; i < rows * scan.num_steps; ++i) total[i] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = lbq_block_first_step(&scan, block);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < steps; ++i) total[row * scan.num_steps + first + i] += *sums++;
  }
}

}  // extern "C"
