// The cost of levels one value at a time: the reference.
#include "scalar.h"
#include "scan_kernels.h"

namespace lbq {
namespace {

void sums(const lbq_level_cost& c, double* sums, int64_t block) {
  const uint8_t* levels = c.levels + block * c.size;
  sums[0] = sums[1] = sums[2] = 0;
  for (int64_t i = 0; i < c.size; ++i) {
    const int level = levels[i];
    sums[0] += c.table[level] * c.fan_out[i];
    sums[1] += c.slope[level] * c.fan_out[i] * static_cast<float>(level);
    sums[2] += level != 0;
  }
}

void backward(const lbq_level_cost& c, const void* grad, float scale, void* grad_out, int64_t block) {
  const int64_t first = block * c.size;
  for (int64_t i = 0; i < c.size; ++i) {
    const float push = scale * (c.slope[c.levels[first + i]] * c.fan_out[i]);
    store(grad_out, c.dtype, first + i, load(grad, c.dtype, first + i) + push);
  }
}

}  // namespace

const CostKernels scalar::kCost{sums, backward};

}  // namespace lbq
