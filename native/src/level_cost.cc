#include "scan_kernels.h"

namespace lbq {
namespace {

bool is_valid(const lbq_level_cost* c, int64_t first, int64_t last) {
  return c->instants >= 0 && c->size >= 0 && c->max_level >= 1 && c->max_level <= 255 && first >= 0 &&
         first <= last && last <= c->instants;
}

}  // namespace
}  // namespace lbq

extern "C" {

lbq_status lbq_cost_sums(const lbq_level_cost* cost, double* sums, int64_t first_block, int64_t last_block) {
  if (!lbq::is_valid(cost, first_block, last_block)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first_block; block < last_block; ++block)
    lbq::scan_kernels().cost.sums(*cost, sums + 3 * block, block);
  return LBQ_OK;
}

lbq_status lbq_cost_backward(const lbq_level_cost* cost, const void* grad, float scale, void* grad_out,
                             int64_t first_block, int64_t last_block) {
  if (!lbq::is_valid(cost, first_block, last_block)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first_block; block < last_block; ++block)
    lbq::scan_kernels().cost.backward(*cost, grad, scale, grad_out, block);
  return LBQ_OK;
}

}  // extern "C"
