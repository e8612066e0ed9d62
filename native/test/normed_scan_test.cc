// Batch norm, shortcut and neuron in one, over random shapes.
#include "tester.h"

namespace {

struct Case : RandomScan {
  int64_t channels, rows;
  std::vector<float> scale, shift, slope[3];
  Values currents, shortcut, grad_bursts;
  bool has_shortcut;

  Case() {
    channels = pick<int64_t>({1, 3, 16, 24, 37, 64, 300});
    rows = pick<int64_t>({1, 2, 49, 600});
    scan.timesteps = pick<int64_t>({1, 2, 4, 32});
    scan.max_level = pick<int32_t>({1, 2, 5, 20, 255});
    scan.size = rows * channels;
    draw_steps(chance(2) ? 1 : channels, 0.1f, 1);
    scan.hi = scan.max_level + 0.5f;
    const int64_t n = scan.timesteps * scan.size;
    currents = Values(n, 1);
    grad_bursts = Values(n, 1);
    has_shortcut = chance(2);
    if (has_shortcut) shortcut = Values(n, 1);
    scale = normals(channels, 1);
    shift = normals(channels, 1);
    for (auto& part : slope) part = normals(channels, 1);
    if (scan.num_steps == channels && !has_shortcut && chance(2)) land_on_thresholds();
  }

  // Every first membrane is exactly one step, if product and sum are rounded one after the other.
  void land_on_thresholds() {
    for (int64_t i = 0; i < scan.timesteps * scan.size; ++i) currents.floats[i] = currents.floats[i % channels];
    currents.halves = to_bf16(currents.floats);
    scan.dtype = LBQ_F32;
    for (int64_t c = 0; c < channels; ++c) {
      const float product = currents.floats[c] * scale[c];
      step[c] = std::fabs(product + shift[c]);
    }
  }
};

struct Result {
  std::vector<float> mean, variance;
  std::vector<uint8_t> bursts, levels, grad_normed, grad_currents;
  std::vector<double> norm, step, other;
};

Result run(const Case& c, int threads) {
  const int64_t n = c.scan.timesteps * c.scan.size, width = c.scan.dtype == LBQ_BF16 ? 2 : 4;
  Result r;
  r.mean.resize(c.channels);
  r.variance.resize(c.channels);
  for (auto* bytes : {&r.bursts, &r.grad_normed, &r.grad_currents}) bytes->resize(n * width);
  r.levels.resize(n);
  lbq_normed_scan normed{c.scan,
                         c.channels,
                         c.currents.as(c.scan.dtype),
                         c.has_shortcut ? c.shortcut.as(c.scan.dtype) : nullptr,
                         nullptr,
                         c.scale.data(),
                         c.shift.data()};
  const int64_t blocks = lbq_normed_num_blocks(&normed);
  std::vector<double> moment_sums(2 * blocks * c.channels), norm_sums(2 * blocks * c.channels),
      step_sums(blocks * c.scan.num_steps), other_sums(blocks * 3);
  spread(blocks, threads,
         [&](int64_t a, int64_t b) { lbq_moment_sums(&normed, moment_sums.data(), a, b); });
  lbq_moments(&normed, moment_sums.data(), r.mean.data(), r.variance.data());
  normed.mean = r.mean.data();
  spread(blocks, threads, [&](int64_t a, int64_t b) {
    lbq_normed_forward(&normed, r.bursts.data(), r.levels.data(), a, b);
  });
  const lbq_normed_grads grads{c.grad_bursts.as(c.scan.dtype), r.grad_normed.data(), norm_sums.data(),
                               step_sums.data(), other_sums.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_normed_backward(&normed, &grads, a, b); });
  std::vector<float> of_grad = c.slope[0], of_current = c.slope[1], constant = c.slope[2];
  const lbq_norm_grad_coefficients slope{of_grad.data(), of_current.data(), constant.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) {
    lbq_norm_backward(&normed, &slope, c.grad_bursts.as(c.scan.dtype), r.grad_currents.data(), a, b);
  });
  r.norm.resize(2 * c.channels);
  r.step.resize(c.scan.num_steps);
  r.other.resize(3);
  lbq_add_blocks(norm_sums.data(), blocks, 2 * c.channels, r.norm.data());
  lbq_add_blocks(step_sums.data(), blocks, c.scan.num_steps, r.step.data());
  lbq_add_blocks(other_sums.data(), blocks, 3, r.other.data());
  return r;
}

bool agrees(const Case& c, const Result& reference, const Result& got) {
  if (got.levels != reference.levels || got.bursts != reference.bursts) return false;
  for (int64_t i = 0; i < c.channels; ++i) {
    if (!(std::fabs(got.mean[i] - reference.mean[i]) <= 1e-5f)) return false;
    if (!(std::fabs(got.variance[i] - reference.variance[i]) <= 1e-5f * (1 + reference.variance[i]))) return false;
  }
  const double terms = c.scan.timesteps * c.rows * 10.0, all_terms = terms * c.channels * (1.0 + c.scan.max_level);
  return are_close(c.scan, reference.grad_normed, got.grad_normed) && are_close(c.scan, reference.grad_currents, got.grad_currents) &&
         worst(got.norm, reference.norm) < 1e-5 * terms && worst(got.step, reference.step) < 1e-5 * all_terms &&
         worst(got.other, reference.other) < 1e-5 * all_terms;
}

bool same_bits(const Result& a, const Result& b) {
  return a.mean == b.mean && a.variance == b.variance && a.bursts == b.bursts && a.levels == b.levels &&
         a.grad_normed == b.grad_normed && a.grad_currents == b.grad_currents && a.norm == b.norm &&
         a.step == b.step && a.other == b.other;
}

bool rejects_invalid_arguments() {
  const Case c;
  lbq_normed_scan normed{c.scan, c.channels, nullptr, nullptr, nullptr, nullptr, nullptr};
  bool ok = lbq_normed_forward(nullptr, nullptr, nullptr, 0, 0) == LBQ_BAD_ARGUMENT;
  ok = ok && lbq_normed_forward(&normed, nullptr, nullptr, 0, 1 << 20) == LBQ_BAD_ARGUMENT;
  normed.scan.timesteps = LBQ_MAX_NORMED_TIMESTEPS + 1;
  ok = ok && lbq_normed_forward(&normed, nullptr, nullptr, 0, 0) == LBQ_BAD_ARGUMENT;
  normed.scan.timesteps = 1;
  normed.scan.num_steps = c.channels + 1;
  return ok && lbq_normed_forward(&normed, nullptr, nullptr, 0, 0) == LBQ_BAD_ARGUMENT;
}

}  // namespace

void test_normed_scan(int cases, Report& report) {
  report(rejects_invalid_arguments(), "invalid arguments are refused (normed)");
  for (int i = 0; i < cases; ++i)
    compare_isas(Case(), i, run, agrees, same_bits, report);
}
