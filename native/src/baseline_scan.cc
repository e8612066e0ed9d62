// The C interface of the neurons of other papers: checks and blocks.
#include "scan_kernels.h"

namespace lbq {
namespace {

bool is_valid(const lbq_baseline_scan* b, int64_t first, int64_t last) {
  if (!b || !is_valid_scan(&b->scan, first, last)) return false;
  switch (b->neuron) {
    case LBQ_INTEGER: return true;
    case LBQ_TERNARY: return b->scan.max_level == 1;
    case LBQ_MIXED: return b->mixture != nullptr;
    case LBQ_MULTI_LEVEL: return b->thresholds != nullptr;
    case LBQ_BINARY:
    case LBQ_HARD_RESET:
    case LBQ_ORIGINAL_TERNARY: return b->thresholds != nullptr && b->scan.max_level == 1;
  }
  return false;
}

}  // namespace
}  // namespace lbq

extern "C" {

lbq_status lbq_baseline_forward(const lbq_baseline_scan* baseline, const lbq_forward_buffers* buffers, int64_t first,
                                int64_t last) {
  if (!lbq::is_valid(baseline, first, last)) return LBQ_BAD_ARGUMENT;
  const auto forward = lbq::scan_kernels().baseline.forward;
  for (int64_t block = first; block < last; ++block) forward(*baseline, *buffers, block);
  return LBQ_OK;
}

lbq_status lbq_baseline_backward(const lbq_baseline_scan* baseline, const lbq_backward_buffers* buffers,
                                 double* mixture_sums, int64_t first, int64_t last) {
  if (!lbq::is_valid(baseline, first, last)) return LBQ_BAD_ARGUMENT;
  if ((baseline->neuron == LBQ_MIXED) != (mixture_sums != nullptr)) return LBQ_BAD_ARGUMENT;
  const auto backward = lbq::scan_kernels().baseline.backward;
  for (int64_t block = first; block < last; ++block) backward(*baseline, *buffers, mixture_sums, block);
  return LBQ_OK;
}

}  // extern "C"
