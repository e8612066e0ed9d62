// The neurons of other papers over random scans.
#include "tester.h"

namespace {

struct Case : RandomScan {
  lbq_baseline_scan baseline{};
  std::vector<float> carry, grad_last_carry, thresholds, mixture;
  Values currents, grad_bursts;
  int64_t membranes;

  Case() {
    baseline.neuron = pick({LBQ_BINARY, LBQ_HARD_RESET, LBQ_TERNARY, LBQ_ORIGINAL_TERNARY, LBQ_INTEGER, LBQ_MULTI_LEVEL,
                            LBQ_MIXED});
    const bool has_levels = baseline.neuron >= LBQ_INTEGER;
    scan.timesteps = pick<int64_t>({1, 2, 4, 10});
    scan.max_level = has_levels ? pick<int32_t>({1, 3, 20}) : 1;
    membranes = baseline.neuron == LBQ_MULTI_LEVEL ? scan.max_level : 1;
    const int64_t channels = pick<int64_t>({1, 3, 16, 37}), positions = pick<int64_t>({1, 5, 49, 3000});
    scan.size = pick<int64_t>({1, 2}) * channels * positions;
    const int way = rng()() % 3;
    scan.run = way == 0 ? scan.size : (way == 1 ? positions : 1);
    draw_steps(way == 0 && scan.run != 1 ? 1 : channels, 0.5f, 1);
    scan.hi = 1 + pick({0.0f, 0.5f});
    const bool is_repeated = chance(4);
    scan.current_stride = is_repeated ? 0 : scan.size;
    currents = Values((is_repeated ? 1 : scan.timesteps) * scan.size, pick({1.0f, 2.0f * scan.max_level}));
    if (chance(2))  // on thresholds and edges
      for (float& value : currents.floats) value = std::round(4 * value) / 4;
    grad_bursts = Values(scan.timesteps * scan.size, 1);
    if (chance(2)) carry = normals(membranes * scan.size, 1);
    if (chance(2)) grad_last_carry = normals(membranes * scan.size, 1);
    for (int32_t k = 0; k < scan.max_level; ++k) thresholds.push_back(pick({0.5f, 0.6f}) + k);
    baseline.thresholds = thresholds.data();
    if (baseline.neuron == LBQ_MIXED) mixture = normals(scan.timesteps * scan.timesteps, 1);
    baseline.mixture = mixture.data();
    baseline.sharpness = 1 + uniform();
    baseline.scan = scan;
  }
};

struct Result {
  std::vector<uint8_t> bursts, levels, grad_currents;
  std::vector<float> last_carry, grad_carry;
  std::vector<double> step, other, mixture;
};

Result run(const Case& c, int threads) {
  const lbq_scan& scan = c.scan;
  const int64_t n = scan.timesteps * scan.size, width = scan.dtype == LBQ_BF16 ? 2 : 4;
  Result r;
  r.bursts.resize(n * width);
  r.grad_currents.resize(n * width);
  r.levels.resize(n);
  r.last_carry.resize(c.membranes * scan.size);
  r.grad_carry.resize(c.membranes * scan.size);
  const float* carry = c.carry.empty() ? nullptr : c.carry.data();
  const int64_t blocks = lbq_num_blocks(&scan);
  const lbq_forward_buffers forward{c.currents.as(scan.dtype), carry,   r.bursts.data(),
                                    r.levels.data(),           nullptr, r.last_carry.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_baseline_forward(&c.baseline, &forward, a, b); });
  const int64_t pairs = static_cast<int64_t>(c.mixture.size());
  std::vector<double> step_sums(blocks * lbq_block_steps(&scan)), other_sums(blocks * 3), mixture_sums(blocks * pairs);
  const lbq_backward_buffers backward{
      c.grad_bursts.as(scan.dtype), c.grad_last_carry.empty() ? nullptr : c.grad_last_carry.data(),
      c.currents.as(scan.dtype),    carry,
      r.grad_currents.data(),       carry ? r.grad_carry.data() : nullptr,
      step_sums.data(),             other_sums.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { 
    lbq_baseline_backward(&c.baseline, &backward, pairs ? mixture_sums.data() : nullptr, a, b);
  });
  r.step.resize(scan.num_steps);
  r.other.resize(3);
  lbq_sum_blocks(&scan, &backward, r.step.data(), r.other.data());
  r.mixture.resize(pairs);
  lbq_add_blocks(mixture_sums.data(), blocks, pairs, r.mixture.data());
  return r;
}

bool agrees(const Case& c, const Result& reference, const Result& got) {
  if (got.levels != reference.levels || got.bursts != reference.bursts) return false;
  if (got.last_carry != reference.last_carry) return false;
  if (!are_close(c.scan, reference.grad_currents, got.grad_currents)) return false;
  for (size_t i = 0; i < reference.grad_carry.size(); ++i)
    if (!(std::fabs(got.grad_carry[i] - reference.grad_carry[i]) <= 1e-5f * (1 + std::fabs(reference.grad_carry[i])))) return false;
  const double terms = c.scan.timesteps * c.scan.size * (1.0 + c.scan.max_level) * c.membranes;
  return worst(got.step, reference.step) < 1e-6 * terms && worst(got.other, reference.other) < 1e-5 * terms &&
         worst(got.mixture, reference.mixture) <= 1e-5 * terms;
}

bool same_bits(const Result& a, const Result& b) {
  return a.bursts == b.bursts && a.levels == b.levels && a.last_carry == b.last_carry &&
         a.grad_currents == b.grad_currents && a.grad_carry == b.grad_carry && a.step == b.step && a.other == b.other &&
         a.mixture == b.mixture;
}

bool rejects_invalid_arguments() {
  const Case c;
  const lbq_forward_buffers none{};
  const lbq_backward_buffers no_grads{};
  const auto refuses = [&](auto change, int64_t last = 0) {
    lbq_baseline_scan b = c.baseline;
    change(b);
    return lbq_baseline_forward(&b, &none, 0, last) == LBQ_BAD_ARGUMENT &&
           lbq_baseline_backward(&b, &no_grads, nullptr, 0, last) == LBQ_BAD_ARGUMENT;
  };
  return lbq_baseline_forward(nullptr, &none, 0, 0) == LBQ_BAD_ARGUMENT &&
         refuses([](lbq_baseline_scan&) {}, lbq_num_blocks(&c.scan) + 1) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = static_cast<lbq_baseline>(7); }) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = LBQ_BINARY, b.scan.max_level = 2; }) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = LBQ_TERNARY, b.scan.max_level = 2; }) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = LBQ_INTEGER, b.scan.max_level = 256; }) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = LBQ_MULTI_LEVEL, b.thresholds = nullptr; }) &&
         refuses([](lbq_baseline_scan& b) { b.neuron = LBQ_MIXED, b.mixture = nullptr; }) &&
         refuses([](lbq_baseline_scan& b) { b.scan.timesteps = 0; });
}

}  // namespace

void test_baseline_scan(int cases, Report& report) {
  report(rejects_invalid_arguments(), "invalid arguments of baselines are refused");
  for (int i = 0; i < cases; ++i) compare_isas(Case(), i, run, agrees, same_bits, report);
}
