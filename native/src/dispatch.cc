// The C interface: checks, blocks, and the choice of an instruction set.
#include <cstdlib>
#include <cstring>

#include "burst_scan.h"

namespace lbq {
namespace {

struct Kernels {
  const char* isa;
  const ForwardBlock& forward;
  const BackwardBlock& backward;
};

// Best first. What was not compiled in, or what the machine lacks, is skipped.
const Kernels kAll[] = {
#if defined(__x86_64__)
    {"avx512", kBurstForwardAvx512, kBurstBackwardAvx512},
    {"avx2", kBurstForwardAvx2, kBurstBackwardAvx2},
#elif defined(__aarch64__)
    {"neon", kBurstForwardNeon, kBurstBackwardNeon},
#endif
    {"scalar", kBurstForwardScalar, kBurstBackwardScalar}};

bool runs_here(const char* isa) {
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  (void)isa;
  return true;  // scalar everywhere, NEON on every aarch64
}

// The best that runs here and is not better than LBQ_ISA.
const Kernels* choose() {
  const char* cap = std::getenv("LBQ_ISA");
  bool is_allowed = cap == nullptr || *cap == 0;
  for (const Kernels& kernels : kAll) {
    is_allowed = is_allowed || !std::strcmp(kernels.isa, cap);
    if (is_allowed && runs_here(kernels.isa)) return &kernels;
  }
  return &kAll[sizeof kAll / sizeof *kAll - 1];  // an unknown cap: scalar
}

const Kernels*& chosen() {
  static const Kernels* kernels = choose();
  return kernels;
}

bool is_valid(const lbq_scan* scan, int64_t first, int64_t last) {
  if (!scan || scan->timesteps < 1 || scan->size < 0 || scan->num_steps < 1 || !scan->step) return false;
  if (scan->max_level < 1 || scan->max_level > 255) return false;
  if (scan->current_stride != 0 && scan->current_stride != scan->size) return false;
  if (scan->size > 0 && (scan->run < 1 || scan->size % scan->run != 0)) return false;
  if (scan->run == 1 && scan->size % scan->num_steps != 0) return false;
  return first >= 0 && last <= lbq_num_blocks(scan);
}

}  // namespace
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
  if (!lbq::is_valid(scan, first, last)) return LBQ_BAD_ARGUMENT;
  const lbq::ForwardBlock forward = lbq::chosen()->forward;
  for (int64_t block = first; block < last; ++block) forward(*scan, *buffers, block);
  return LBQ_OK;
}

lbq_status lbq_burst_backward(const lbq_scan* scan, const lbq_backward_buffers* buffers, int64_t first,
                              int64_t last) {
  if (!lbq::is_valid(scan, first, last)) return LBQ_BAD_ARGUMENT;
  const lbq::BackwardBlock backward = lbq::chosen()->backward;
  for (int64_t block = first; block < last; ++block) backward(*scan, *buffers, block);
  return LBQ_OK;
}

void lbq_sum_blocks(const lbq_scan* scan, const lbq_backward_buffers* buffers, double* step,
                    double* other) {
  const int64_t blocks = lbq_num_blocks(scan), steps = lbq_block_steps(scan);
  for (int64_t i = 0; i < scan->num_steps; ++i) step[i] = 0;
  for (int64_t i = 0; i < 3; ++i) other[i] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = lbq_block_first_step(scan, block);
    for (int64_t i = 0; i < steps; ++i) step[first + i] += buffers->step_sums[block * steps + i];
    for (int64_t i = 0; i < 3; ++i) other[i] += buffers->other_sums[block * 3 + i];
  }
}

const char* lbq_isa(void) { return lbq::chosen()->isa; }

lbq_status lbq_set_isa(const char* name) {
  for (const lbq::Kernels& kernels : lbq::kAll)
    if (!std::strcmp(kernels.isa, name) && lbq::runs_here(name)) {
      lbq::chosen() = &kernels;
      return LBQ_OK;
    }
  return LBQ_BAD_ARGUMENT;
}

}  // extern "C"
