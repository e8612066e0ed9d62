// Registers the C interface with torch through its stable ABI (torch >= 2.10).
//
// Tensors arrive dense, in the memory order that lbq.kernels determined, with all buffers allocated. Blocks run on
// torch's own threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
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

// Run blocks on torch's threads.
template <class Run>
void for_blocks(int64_t blocks, Run run) {
  torch::stable::parallel_for(0, blocks, kBlocksPerTask, [&](int64_t first, int64_t last) {
    if (run(first, last) != LBQ_OK) throw std::runtime_error("lbq: invalid sizes for a kernel");
  });
}

void put(const std::vector<double>& values, const Tensor& to) {
  for (size_t i = 0; i < values.size(); ++i) write<float>(to)[i] = static_cast<float>(values[i]);
}

lbq_scan describe(const Tensor& sequence, const Tensor& step, const std::optional<Tensor>& tail,
                  const Tensor& decay, const Tensor& reset, int64_t run, int64_t max_level,
                  int64_t reset_mode, double lo, double hi) {
  lbq_scan scan{};
  scan.timesteps = sequence.size(0);
  scan.size = sequence.numel() / scan.timesteps;
  scan.current_stride = scan.timesteps > 1 ? sequence.stride(0) : scan.size;
  scan.run = run > 0 ? run : (scan.size > 0 ? scan.size : 1);  // 0: one step for the layer
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
                   int64_t reset_mode, const Tensor bursts, const Tensor levels,
                   const std::optional<Tensor> saved, const Tensor last_carry) {
  const lbq_scan scan = describe(currents, step, std::nullopt, decay, reset, run, max_level, reset_mode, 0, 0);
  const lbq_forward_buffers buffers{currents.const_data_ptr(), read<float>(carry),
                                    bursts.mutable_data_ptr(), write<uint8_t>(levels),
                                    saved ? saved->mutable_data_ptr() : nullptr, write<float>(last_carry)};
  for_blocks(lbq_num_blocks(&scan), [&](int64_t first, int64_t last) {
    return lbq_burst_forward(&scan, &buffers, first, last);
  });
}

// The contributions of the blocks to the gradients of the coefficients.
struct BlockSums {
  std::vector<double> step, other;

  BlockSums(const lbq_scan& scan, int64_t blocks) : step(blocks * lbq_block_steps(&scan)), other(blocks * 3) {}
  void put(const lbq_scan& scan, const lbq_backward_buffers& buffers, const Tensor& grad_step,
           const Tensor& grad_other) const {
    std::vector<double> steps(scan.num_steps), others(3);
    lbq_sum_blocks(&scan, &buffers, steps.data(), others.data());
    ::put(steps, grad_step);
    ::put(others, grad_other);
  }
};

void burst_backward(const Tensor grad_bursts, const std::optional<Tensor> grad_last_carry,
                    const Tensor saved, bool saved_currents, const Tensor step, const std::optional<Tensor> tail,
                    const Tensor decay, const Tensor reset, const std::optional<Tensor> carry, int64_t run,
                    int64_t max_level, int64_t reset_mode, double lo, double hi, bool detach_reset,
                    bool detach_carry, const Tensor grad_currents, const std::optional<Tensor> grad_carry,
                    const Tensor grad_step, const Tensor grad_other) {
  lbq_scan scan = describe(grad_bursts, step, tail, decay, reset, run, max_level, reset_mode, lo, hi);
  scan.detach_reset = detach_reset;
  scan.detach_carry = detach_carry;
  scan.saved = saved_currents ? LBQ_SAVE_CURRENTS : LBQ_SAVE_MEMBRANES;
  if (saved_currents && scan.timesteps > 1) scan.current_stride = saved.stride(0);
  const int64_t blocks = lbq_num_blocks(&scan);
  BlockSums sums(scan, blocks);
  const lbq_backward_buffers buffers{grad_bursts.const_data_ptr(),
                                     read<float>(grad_last_carry),
                                     saved.const_data_ptr(),
                                     read<float>(carry),
                                     grad_currents.mutable_data_ptr(),
                                     grad_carry ? write<float>(*grad_carry) : nullptr,
                                     sums.step.data(),
                                     sums.other.data()};
  for_blocks(blocks, [&](int64_t first, int64_t last) {
    return lbq_burst_backward(&scan, &buffers, first, last);
  });
  sums.put(scan, buffers, grad_step, grad_other);
}

// The neurons of other papers. `sequence` is dense; the currents may repeat one timestep.
lbq_baseline_scan describe_baseline(const Tensor& sequence, const Tensor& currents, const Tensor& step,
                                    const std::optional<Tensor>& tail, const Tensor& decay,
                                    const std::optional<Tensor>& reset, const std::optional<Tensor>& thresholds,
                                    const std::optional<Tensor>& mixture, int64_t run, int64_t neuron,
                                    int64_t max_level, int64_t reset_mode, double lo, double hi, double sharpness) {
  lbq_scan scan = describe(sequence, step, tail, decay, decay, run, max_level, reset_mode, lo, hi);
  scan.reset = reset ? value_of(*reset) : 0;
  if (scan.timesteps > 1) scan.current_stride = currents.stride(0);
  return {scan, static_cast<lbq_baseline>(neuron), read<float>(thresholds), read<float>(mixture),
          static_cast<float>(sharpness)};
}

void baseline_forward(const Tensor currents, const Tensor step, const Tensor decay, const std::optional<Tensor> reset,
                      const std::optional<Tensor> thresholds, const std::optional<Tensor> mixture,
                      const std::optional<Tensor> carry, int64_t run, int64_t neuron, int64_t max_level,
                      int64_t reset_mode, const Tensor bursts, const Tensor levels, const Tensor last_carry) {
  const lbq_baseline_scan baseline = describe_baseline(bursts, currents, step, std::nullopt, decay, reset, thresholds,
                                                       mixture, run, neuron, max_level, reset_mode, 0, 0, 0);
  const lbq_forward_buffers buffers{currents.const_data_ptr(), read<float>(carry), bursts.mutable_data_ptr(),
                                    write<uint8_t>(levels),    nullptr,            write<float>(last_carry)};
  for_blocks(lbq_num_blocks(&baseline.scan), [&](int64_t first, int64_t last) {
    return lbq_baseline_forward(&baseline, &buffers, first, last);
  });
}

void baseline_backward(const Tensor grad_bursts, const std::optional<Tensor> grad_last_carry, const Tensor currents,
                       const Tensor step, const std::optional<Tensor> tail, const Tensor decay,
                       const std::optional<Tensor> reset, const std::optional<Tensor> thresholds,
                       const std::optional<Tensor> mixture, const std::optional<Tensor> carry, int64_t run,
                       int64_t neuron, int64_t max_level, int64_t reset_mode, double lo, double hi, double sharpness,
                       const Tensor grad_currents, const std::optional<Tensor> grad_carry, const Tensor grad_step,
                       const Tensor grad_other, const std::optional<Tensor> grad_mixture) {
  const lbq_baseline_scan baseline =
      describe_baseline(grad_bursts, currents, step, tail, decay, reset, thresholds, mixture, run, neuron, max_level,
                        reset_mode, lo, hi, sharpness);
  const int64_t blocks = lbq_num_blocks(&baseline.scan);
  BlockSums sums(baseline.scan, blocks);
  std::vector<double> mixture_sums(mixture ? blocks * mixture->numel() : 0);
  const lbq_backward_buffers buffers{grad_bursts.const_data_ptr(),
                                     read<float>(grad_last_carry),
                                     currents.const_data_ptr(),
                                     read<float>(carry),
                                     grad_currents.mutable_data_ptr(),
                                     grad_carry ? write<float>(*grad_carry) : nullptr,
                                     sums.step.data(),
                                     sums.other.data()};
  for_blocks(blocks, [&](int64_t first, int64_t last) {
    return lbq_baseline_backward(&baseline, &buffers, mixture ? mixture_sums.data() : nullptr, first, last);
  });
  sums.put(baseline.scan, buffers, grad_step, grad_other);
  if (!grad_mixture) return;
  std::vector<double> total(grad_mixture->numel());
  lbq_add_blocks(mixture_sums.data(), blocks, grad_mixture->numel(), total.data());
  put(total, *grad_mixture);
}

// Batch norm as scale and shift, and the scan after it.
struct Normed {
  std::vector<float> affine;
  lbq_norm norm;
  lbq_normed_scan scan;

  Normed(const lbq_scan& burst, const Tensor& currents, const std::optional<Tensor>& shortcut,
         const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const Tensor& mean,
         const Tensor& variance, double eps, bool uses_batch_stats) {
    norm = {read<float>(mean), read<float>(variance), read<float>(weight), read<float>(bias), eps, uses_batch_stats};
    const int64_t channels = currents.size(2);
    affine.resize(2 * channels);
    scan = {burst,
            channels,
            currents.const_data_ptr(),
            shortcut ? shortcut->const_data_ptr() : nullptr,
            norm.mean,
            affine.data(),
            affine.data() + channels};
  }
  int64_t num_blocks() const { return lbq_normed_num_blocks(&scan); }
  void compute_affine() { lbq_norm_affine(&norm, scan.channels, affine.data(), affine.data() + scan.channels); }
};

void normed_forward(const Tensor currents, const std::optional<Tensor> shortcut,
                    const std::optional<Tensor> weight, const std::optional<Tensor> bias, double eps,
                    bool uses_batch_stats, const Tensor step, const Tensor decay, const Tensor reset,
                    int64_t max_level, int64_t reset_mode, const Tensor mean, const Tensor variance,
                    const Tensor bursts, const std::optional<Tensor> levels) {
  const lbq_scan burst = describe(currents, step, std::nullopt, decay, reset, 1, max_level, reset_mode, 0, 0);
  Normed normed(burst, currents, shortcut, weight, bias, mean, variance, eps, uses_batch_stats);
  const int64_t blocks = normed.num_blocks();
  if (uses_batch_stats) {
    std::vector<double> sums(2 * blocks * normed.scan.channels);
    for_blocks(blocks, [&](int64_t first, int64_t last) {
      return lbq_moment_sums(&normed.scan, sums.data(), first, last);
    });
    lbq_moments(&normed.scan, sums.data(), write<float>(mean), write<float>(variance));
  }
  normed.compute_affine();
  uint8_t* levels_or_null = levels ? write<uint8_t>(*levels) : nullptr;
  for_blocks(blocks, [&](int64_t first, int64_t last) {
    return lbq_normed_forward(&normed.scan, bursts.mutable_data_ptr(), levels_or_null, first, last);
  });
}

void normed_backward(const Tensor grad_bursts, const Tensor currents, const std::optional<Tensor> shortcut,
                     const std::optional<Tensor> weight, const std::optional<Tensor> bias, const Tensor mean,
                     const Tensor variance, double eps, bool uses_batch_stats, const Tensor step,
                     const std::optional<Tensor> tail, const Tensor decay, const Tensor reset,
                     int64_t max_level, int64_t reset_mode, double lo, double hi, bool detach_reset,
                     bool detach_carry, const Tensor grad_normed, const Tensor grad_currents,
                     const Tensor grad_norm, const Tensor grad_step, const Tensor grad_other) {
  lbq_scan burst = describe(currents, step, tail, decay, reset, 1, max_level, reset_mode, lo, hi);
  burst.detach_reset = detach_reset;
  burst.detach_carry = detach_carry;
  Normed normed(burst, currents, shortcut, weight, bias, mean, variance, eps, uses_batch_stats);
  normed.compute_affine();
  const int64_t blocks = normed.num_blocks(), channels = normed.scan.channels;
  std::vector<double> norm_sums(2 * blocks * channels), step_sums(blocks * burst.num_steps),
      other_sums(3 * blocks);
  const lbq_normed_grads grads{grad_bursts.const_data_ptr(), grad_normed.mutable_data_ptr(),
                               norm_sums.data(), step_sums.data(), other_sums.data()};
  for_blocks(blocks, [&](int64_t first, int64_t last) {
    return lbq_normed_backward(&normed.scan, &grads, first, last);
  });
  std::vector<double> sums(2 * channels), steps(burst.num_steps), other(3);
  lbq_add_blocks(norm_sums.data(), blocks, 2 * channels, sums.data());
  lbq_add_blocks(step_sums.data(), blocks, burst.num_steps, steps.data());
  lbq_add_blocks(other_sums.data(), blocks, 3, other.data());
  std::vector<float> lines(3 * channels);
  lbq_norm_grad_coefficients slope{lines.data(), lines.data() + channels, lines.data() + 2 * channels};
  lbq_norm_gradients(&normed.scan, &normed.norm, sums.data(), &slope, write<float>(grad_norm),
                     write<float>(grad_norm) + channels);
  for_blocks(blocks, [&](int64_t first, int64_t last) {
    return lbq_norm_backward(&normed.scan, &slope, grad_normed.const_data_ptr(),
                             grad_currents.mutable_data_ptr(), first, last);
  });
  put(steps, grad_step);
  put(other, grad_other);
}

lbq_packing describe_packing(const Tensor& bursts, const Tensor& step, int64_t run, int64_t max_level) {
  const lbq_dtype dtype = bursts.scalar_type() == Scalar::Float ? LBQ_F32 : LBQ_BF16;
  return {bursts.numel(), run > 0 ? run : bursts.numel(), step.numel(), read<float>(step),
          static_cast<int32_t>(max_level), dtype};
}

bool pack_bursts(const Tensor bursts, const Tensor step, int64_t run, int64_t max_level, const Tensor packed) {
  const lbq_packing packing = describe_packing(bursts, step, run, max_level);
  if (packed.numel() != lbq_packed_bytes(&packing)) throw std::runtime_error("lbq: invalid sizes for a kernel");
  std::atomic<bool> are_bursts{true};
  for_blocks(lbq_packing_num_blocks(&packing), [&](int64_t first, int64_t last) {
    if (!are_bursts) return LBQ_OK;
    const lbq_status status = lbq_pack_bursts(&packing, bursts.const_data_ptr(), write<uint8_t>(packed), first, last);
    if (status != LBQ_NOT_BURSTS) return status;
    are_bursts = false;
    return LBQ_OK;
  });
  return are_bursts;
}

void unpack_bursts(const Tensor packed, const Tensor step, int64_t run, int64_t max_level, const Tensor bursts) {
  const lbq_packing packing = describe_packing(bursts, step, run, max_level);
  if (packed.numel() != lbq_packed_bytes(&packing)) throw std::runtime_error("lbq: invalid sizes for a kernel");
  for_blocks(lbq_packing_num_blocks(&packing), [&](int64_t first, int64_t last) {
    return lbq_unpack_bursts(&packing, read<uint8_t>(packed), bursts.mutable_data_ptr(), first, last);
  });
}

std::string isa() { return lbq_isa(); }

bool set_isa(std::string name) { return lbq_set_isa(name.c_str()) == LBQ_OK; }

lbq_level_cost describe_cost(const Tensor& levels, const Tensor& fan_out, const Tensor& table, const Tensor& slope,
                             int64_t max_level, lbq_dtype dtype) {
  return {levels.size(0) * levels.size(1), fan_out.numel(), read<uint8_t>(levels), read<float>(fan_out),
          read<float>(table), read<float>(slope), static_cast<int32_t>(max_level), dtype};
}

void cost_sums(const Tensor levels, const Tensor fan_out, const Tensor table, const Tensor slope, int64_t max_level,
               const Tensor sums) {
  const lbq_level_cost cost = describe_cost(levels, fan_out, table, slope, max_level, LBQ_F32);
  std::vector<double> parts(3 * cost.instants);
  for_blocks(cost.instants,
             [&](int64_t first, int64_t last) { return lbq_cost_sums(&cost, parts.data(), first, last); });
  lbq_add_blocks(parts.data(), cost.instants, 3, write<double>(sums));
}

void cost_backward(const Tensor grad, const Tensor levels, const Tensor fan_out, const Tensor table, const Tensor slope,
                   int64_t max_level, double scale, const Tensor grad_out) {
  const lbq_dtype dtype = grad.scalar_type() == Scalar::Float ? LBQ_F32 : LBQ_BF16;
  const lbq_level_cost cost = describe_cost(levels, fan_out, table, slope, max_level, dtype);
  for_blocks(cost.instants, [&](int64_t first, int64_t last) {
    return lbq_cost_backward(&cost, grad.const_data_ptr(), static_cast<float>(scale), grad_out.mutable_data_ptr(),
                             first, last);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY(lbq, m) {
  m.def(
      "burst_forward(Tensor currents, Tensor step, Tensor decay, Tensor reset, Tensor? carry, int run, "
      "int max_level, int reset_mode, Tensor(a!) bursts, Tensor(b!) levels, Tensor(c!)? saved, "
      "Tensor(d!) last_carry) -> ()");
  m.def(
      "burst_backward(Tensor grad_bursts, Tensor? grad_last_carry, Tensor saved, bool saved_currents, Tensor step, "
      "Tensor? tail, Tensor decay, Tensor reset, Tensor? carry, int run, int max_level, int reset_mode, "
      "float lo, float hi, bool detach_reset, bool detach_carry, Tensor(a!) grad_currents, "
      "Tensor(b!)? grad_carry, Tensor(c!) grad_step, Tensor(d!) grad_other) -> ()");
  m.def(
      "baseline_forward(Tensor currents, Tensor step, Tensor decay, Tensor? reset, Tensor? thresholds, "
      "Tensor? mixture, Tensor? carry, int run, int neuron, int max_level, int reset_mode, Tensor(a!) bursts, "
      "Tensor(b!) levels, Tensor(c!) last_carry) -> ()");
  m.def(
      "baseline_backward(Tensor grad_bursts, Tensor? grad_last_carry, Tensor currents, Tensor step, Tensor? tail, "
      "Tensor decay, Tensor? reset, Tensor? thresholds, Tensor? mixture, Tensor? carry, int run, int neuron, "
      "int max_level, int reset_mode, float lo, float hi, float sharpness, Tensor(a!) grad_currents, "
      "Tensor(b!)? grad_carry, Tensor(c!) grad_step, Tensor(d!) grad_other, Tensor(e!)? grad_mixture) -> ()");
  m.def(
      "normed_forward(Tensor currents, Tensor? shortcut, Tensor? weight, Tensor? bias, float eps, "
      "bool uses_batch_stats, Tensor step, Tensor decay, Tensor reset, int max_level, int reset_mode, "
      "Tensor(a!) mean, Tensor(b!) variance, Tensor(c!) bursts, Tensor(d!)? levels) -> ()");
  m.def(
      "normed_backward(Tensor grad_bursts, Tensor currents, Tensor? shortcut, Tensor? weight, Tensor? bias, "
      "Tensor mean, Tensor variance, float eps, bool uses_batch_stats, Tensor step, Tensor? tail, Tensor decay, "
      "Tensor reset, int max_level, int reset_mode, float lo, float hi, bool detach_reset, "
      "bool detach_carry, Tensor(a!) grad_normed, Tensor(b!) grad_currents, Tensor(c!) grad_norm, "
      "Tensor(d!) grad_step, Tensor(e!) grad_other) -> ()");
  m.def(
      "cost_sums(Tensor levels, Tensor fan_out, Tensor table, Tensor slope, int max_level, Tensor(a!) sums) -> ()");
  m.def(
      "cost_backward(Tensor grad, Tensor levels, Tensor fan_out, Tensor table, Tensor slope, int max_level, "
      "float scale, Tensor(a!) grad_out) -> ()");
  m.def("pack_bursts(Tensor bursts, Tensor step, int run, int max_level, Tensor(a!) packed) -> bool");
  m.def("unpack_bursts(Tensor packed, Tensor step, int run, int max_level, Tensor(a!) bursts) -> ()");
  m.def("isa() -> str");
  m.def("set_isa(str name) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(lbq, CPU, m) {
  m.impl("burst_forward", TORCH_BOX(&burst_forward));
  m.impl("burst_backward", TORCH_BOX(&burst_backward));
  m.impl("baseline_forward", TORCH_BOX(&baseline_forward));
  m.impl("baseline_backward", TORCH_BOX(&baseline_backward));
  m.impl("normed_forward", TORCH_BOX(&normed_forward));
  m.impl("normed_backward", TORCH_BOX(&normed_backward));
  m.impl("cost_sums", TORCH_BOX(&cost_sums));
  m.impl("cost_backward", TORCH_BOX(&cost_backward));
  m.impl("pack_bursts", TORCH_BOX(&pack_bursts));
  m.impl("unpack_bursts", TORCH_BOX(&unpack_bursts));
}

STABLE_TORCH_LIBRARY_IMPL(lbq, CompositeExplicitAutograd, m) {
  m.impl("isa", TORCH_BOX(&isa));
  m.impl("set_isa", TORCH_BOX(&set_isa));
}
