// The C interface of batch norm, shortcut and neuron in one: checks, blocks and sums.
#include "scan_kernels.h"

#include <cmath>

#include "scalar.h"

namespace lbq {
namespace {

double inverse_deviation(const lbq_norm& norm, int64_t channel) {
  return 1 / std::sqrt(norm.variance[channel] + norm.eps);
}

bool is_valid(const lbq_normed_scan* n, int64_t first, int64_t last) {
  if (!n || n->channels < 1 || n->scan.size < 0 || n->scan.size % n->channels != 0) return false;
  if (n->scan.timesteps < 1 || n->scan.timesteps > LBQ_MAX_NORMED_TIMESTEPS) return false;
  if (n->scan.num_steps != 1 && n->scan.num_steps != n->channels) return false;
  if (n->scan.max_level < 1 || n->scan.max_level > 255) return false;
  return first >= 0 && last <= lbq_normed_num_blocks(n);
}

}  // namespace
}  // namespace lbq

extern "C" {

int64_t lbq_normed_num_blocks(const lbq_normed_scan* n) {
  const int64_t rows = n->scan.size / n->channels, per_block = lbq::normed_rows_per_block(*n);
  return (rows + per_block - 1) / per_block;
}

lbq_status lbq_moment_sums(const lbq_normed_scan* n, double* sums, int64_t first, int64_t last) {
  if (!lbq::is_valid(n, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block) lbq::scan_kernels().normed.moments(*n, sums, block);
  return LBQ_OK;
}

void lbq_moments(const lbq_normed_scan* n, const double* sums, float* mean, float* variance) {
  const int64_t blocks = lbq_normed_num_blocks(n), channels = n->channels;
  const double count = static_cast<double>(n->scan.timesteps * (n->scan.size / channels));
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      sum += sums[2 * block * channels + c];
      squares += sums[(2 * block + 1) * channels + c];
    }
    const double distance = sum / count, spread = squares / count - distance * distance;
    mean[c] = static_cast<float>(lbq::load(n->currents, n->scan.dtype, c) + distance);
    variance[c] = static_cast<float>(spread > 0 || spread != spread ? spread : 0);
  }
}

void lbq_norm_affine(const lbq_norm* norm, int64_t channels, float* scale, float* shift) {
  for (int64_t c = 0; c < channels; ++c) {
    const float weight = norm->weight ? norm->weight[c] : 1.0f, bias = norm->bias ? norm->bias[c] : 0.0f;
    scale[c] = static_cast<float>(weight * lbq::inverse_deviation(*norm, c));
    shift[c] = static_cast<float>(bias - static_cast<double>(norm->mean[c]) * scale[c]);
  }
}

lbq_status lbq_normed_forward(const lbq_normed_scan* n, void* bursts, uint8_t* levels, int64_t first,
                              int64_t last) {
  if (!lbq::is_valid(n, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block) lbq::scan_kernels().normed.forward(*n, bursts, levels, block);
  return LBQ_OK;
}

lbq_status lbq_normed_backward(const lbq_normed_scan* n, const lbq_normed_grads* grads, int64_t first,
                               int64_t last) {
  if (!lbq::is_valid(n, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block) lbq::scan_kernels().normed.backward(*n, *grads, block);
  return LBQ_OK;
}

void lbq_add_blocks(const double* sums, int64_t blocks, int64_t count, double* total) {
  for (int64_t i = 0; i < count; ++i) total[i] = 0;
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t i = 0; i < count; ++i) total[i] += sums[block * count + i];
}

void lbq_norm_gradients(const lbq_normed_scan* n, const lbq_norm* norm, const double* sums,
                        lbq_norm_grad_coefficients* slope, float* grad_weight, float* grad_bias) {
  const int64_t channels = n->channels;
  const double count = static_cast<double>(n->scan.timesteps * (n->scan.size / channels));
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = lbq::inverse_deviation(*norm, c), of_grad = n->scale[c];
    const double of_batch = norm->uses_batch_stats ? of_grad / count : 0;
    slope->of_grad[c] = static_cast<float>(of_grad);
    slope->of_current[c] = static_cast<float>(-of_batch * inverse * inverse * sums[channels + c]);
    slope->constant[c] = static_cast<float>(-of_batch * sums[c]);
    grad_weight[c] = static_cast<float>(sums[channels + c] * inverse);
    grad_bias[c] = static_cast<float>(sums[c]);
  }
}

lbq_status lbq_norm_backward(const lbq_normed_scan* n, const lbq_norm_grad_coefficients* slope, const void* grad_normed,
                             void* grad_currents, int64_t first, int64_t last) {
  if (!lbq::is_valid(n, first, last)) return LBQ_BAD_ARGUMENT;
  for (int64_t block = first; block < last; ++block)
    lbq::scan_kernels().normed.norm_backward(*n, *slope, grad_normed, grad_currents, block);
  return LBQ_OK;
}

}  // extern "C"
