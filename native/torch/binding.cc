// The one file that knows torch: binds the C interface through torch's stable ABI (torch >= 2.10).
//
// Tensors arrive dense, in the memory order that kernels/native.py worked out; buffers are allocated
// there too. Blocks are spread over torch's own threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lbq.h"

namespace {

using torch::stable::Tensor;
using Scalar = torch::headeronly::ScalarType;

constexpr int64_t kBlocksPerTask = 8;

float value_of(const Tensor& coefficient) { return *static_cast<const float*>(coefficient.const_data_ptr()); }

template <class T>
const T* read(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

template <class T>
T* write(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

void check(lbq_status status) {
  if (status != LBQ_OK) throw std::runtime_error("lbq: sizes that no burst scan can have");
}

lbq_scan describe(const Tensor& sequence, const Tensor& step, const std::optional<Tensor>& tail,
                  const Tensor& decay, const Tensor& reset, int64_t run, int64_t max_level,
                  int64_t reset_mode, double lo, double hi) {
  lbq_scan scan{};
  scan.timesteps = sequence.size(0);
  scan.size = sequence.numel() / scan.timesteps;
  scan.current_stride = scan.timesteps > 1 ? sequence.stride(0) : scan.size;
  scan.run = run;
  scan.num_steps = step.numel();
  scan.step = static_cast<const float*>(step.const_data_ptr());
  scan.tail = read<float>(tail);
  scan.decay = value_of(decay);
  scan.reset = value_of(reset);
  scan.lo = static_cast<float>(lo);
  scan.hi = static_cast<float>(hi);
  scan.max_level = static_cast<int32_t>(max_level);
  scan.dtype = sequence.scalar_type() == Scalar::Float ? LBQ_F32 : LBQ_BF16;
  scan.reset_mode = static_cast<lbq_reset_mode>(reset_mode);
  return scan;
}

void burst_forward(const Tensor currents, const Tensor step, const Tensor decay, const Tensor reset,
                   const std::optional<Tensor> carry, int64_t run, int64_t max_level,
                   int64_t reset_mode, const Tensor bursts, const Tensor levels, const Tensor membranes,
                   const Tensor last_carry) {
  const lbq_scan scan =
      describe(currents, step, std::nullopt, decay, reset, run, max_level, reset_mode, 0, 0);
  const lbq_forward_buffers buffers{currents.const_data_ptr(), read<float>(carry),
                                    bursts.mutable_data_ptr(), write<uint8_t>(levels),
                                    write<float>(membranes),   write<float>(last_carry)};
  torch::stable::parallel_for(0, lbq_num_blocks(&scan), kBlocksPerTask, [&](int64_t first, int64_t last) {
    check(lbq_burst_forward(&scan, &buffers, first, last));
  });
}

void burst_backward(const Tensor grad_bursts, const std::optional<Tensor> grad_last_carry,
                    const Tensor membranes, const Tensor step, const std::optional<Tensor> tail,
                    const Tensor decay, const Tensor reset, const std::optional<Tensor> carry, int64_t run,
                    int64_t max_level, int64_t reset_mode, double lo, double hi, bool detach_reset,
                    bool detach_carry, const Tensor grad_currents, const std::optional<Tensor> grad_carry,
                    const Tensor grad_step, const Tensor grad_other) {
  lbq_scan scan = describe(grad_bursts, step, tail, decay, reset, run, max_level, reset_mode, lo, hi);
  scan.detach_reset = detach_reset;
  scan.detach_carry = detach_carry;
  const int64_t blocks = lbq_num_blocks(&scan);
  std::vector<double> step_sums(blocks * lbq_block_steps(&scan)), other_sums(blocks * 3);
  const lbq_backward_buffers buffers{grad_bursts.const_data_ptr(),
                                     read<float>(grad_last_carry),
                                     static_cast<const float*>(membranes.const_data_ptr()),
                                     read<float>(carry),
                                     grad_currents.mutable_data_ptr(),
                                     grad_carry ? write<float>(*grad_carry) : nullptr,
                                     step_sums.data(),
                                     other_sums.data()};
  torch::stable::parallel_for(0, blocks, kBlocksPerTask, [&](int64_t first, int64_t last) {
    check(lbq_burst_backward(&scan, &buffers, first, last));
  });
  std::vector<double> steps(scan.num_steps);
  double other[3];
  lbq_sum_blocks(&scan, &buffers, steps.data(), other);
  for (int64_t i = 0; i < scan.num_steps; ++i) write<float>(grad_step)[i] = static_cast<float>(steps[i]);
  for (int64_t i = 0; i < 3; ++i) write<float>(grad_other)[i] = static_cast<float>(other[i]);
}

std::string isa() { return lbq_isa(); }

bool set_isa(std::string name) { return lbq_set_isa(name.c_str()) == LBQ_OK; }

}  // namespace

STABLE_TORCH_LIBRARY(lbq, m) {
  m.def(
      "burst_forward(Tensor currents, Tensor step, Tensor decay, Tensor reset, Tensor? carry, int run, "
      "int max_level, int reset_mode, Tensor(a!) bursts, Tensor(b!) levels, Tensor(c!) membranes, "
      "Tensor(d!) last_carry) -> ()");
  m.def(
      "burst_backward(Tensor grad_bursts, Tensor? grad_last_carry, Tensor membranes, Tensor step, "
      "Tensor? tail, Tensor decay, Tensor reset, Tensor? carry, int run, int max_level, int reset_mode, "
      "float lo, float hi, bool detach_reset, bool detach_carry, Tensor(a!) grad_currents, "
      "Tensor(b!)? grad_carry, Tensor(c!) grad_step, Tensor(d!) grad_other) -> ()");
  m.def("isa() -> str");
  m.def("set_isa(str name) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(lbq, CPU, m) {
  m.impl("burst_forward", TORCH_BOX(&burst_forward));
  m.impl("burst_backward", TORCH_BOX(&burst_backward));
}

STABLE_TORCH_LIBRARY_IMPL(lbq, CompositeExplicitAutograd, m) {
  m.impl("isa", TORCH_BOX(&isa));
  m.impl("set_isa", TORCH_BOX(&set_isa));
}
