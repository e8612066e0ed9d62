// What an instruction set offers for the fused batch norm, shortcut and neuron: one block of each pass.
#pragma once

#include "lbq.h"

namespace lbq {

struct NormedKernels {
  void (*moments)(const lbq_normed_scan&, double* sums, int64_t block);
  void (*forward)(const lbq_normed_scan&, void* bursts, uint8_t* levels, int64_t block);
  void (*backward)(const lbq_normed_scan&, const lbq_normed_grads&, int64_t block);
  void (*norm_backward)(const lbq_normed_scan&, const lbq_norm_grad_coefficients&, const void* grad_normed,
                        void* grad_currents, int64_t block);
};

extern const NormedKernels kNormedScalar, kNormedAvx2, kNormedAvx512, kNormedAvx512Bf16,
    kNormedNeon;

constexpr int64_t kNormedBlockValues = 8192;

struct Rows {
  int64_t first, last, all;
};

static inline int64_t normed_rows_per_block(const lbq_normed_scan& normed) {
  const int64_t rows = kNormedBlockValues / normed.channels;
  return rows > 0 ? rows : 1;
}

// The rows of a block at every timestep.
static inline Rows normed_rows(const lbq_normed_scan& normed, int64_t block) {
  const int64_t all = normed.scan.size / normed.channels, count = normed_rows_per_block(normed);
  const int64_t first = block * count;
  return {first, all - first < count ? all : first + count, all};
}

}  // namespace lbq
