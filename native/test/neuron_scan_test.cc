// Declared neurons over random declarations.
#include "tester.h"

namespace {

struct Case : RandomScan {
  lbq_neuron neuron{};
  std::vector<float> carry, grad_last_carry, coefficients, edges, jumps;
  Values currents, grad_bursts;

  Case() {
    neuron.is_uniform = chance(2);
    neuron.is_signed = chance(3);
    neuron.has_windows = chance(2);
    neuron.window = pick({LBQ_WINDOW_BOX, LBQ_WINDOW_TRIANGLE, LBQ_WINDOW_ARCTANGENT, LBQ_WINDOW_SIGMOID,
                          LBQ_WINDOW_GAUSSIAN});
    neuron.width = 0.5f + uniform();
    scan.max_level = pick<int32_t>({1, 3, 20});
    scan.reset_mode = pick({LBQ_RESET_EVENT, LBQ_RESET_LEVEL, LBQ_RESET_NONE, LBQ_RESET_ZERO});
    scan.hi = scan.max_level + pick({0.0f, 0.5f});
    neuron.after_decay = scan.reset_mode <= LBQ_RESET_LEVEL && chance(3);
    neuron.resets_with_gradient = chance(4) && !neuron.after_decay;
    draw_sizes();
    draw_thresholds();
    const bool is_repeated = chance(4);
    scan.current_stride = is_repeated ? 0 : scan.size;
    currents = Values((is_repeated ? 1 : scan.timesteps) * scan.size, pick({1.0f, 2.0f * scan.max_level}));
    if (chance(2))  // on thresholds and edges
      for (float& value : currents.floats) value = std::round(4 * value) / 4;
    grad_bursts = Values(scan.timesteps * scan.size, 1);
    if (chance(2)) carry = normals(scan.size, 1);
    if (chance(2)) grad_last_carry = normals(scan.size, 1);
    neuron.scan = scan;
  }

 private:
  void draw_sizes() {
    scan.timesteps = pick<int64_t>({1, 2, 4, 10});
    const int64_t channels = pick<int64_t>({1, 3, 16, 37}), positions = pick<int64_t>({1, 5, 49, 3000});
    scan.size = pick<int64_t>({1, 2}) * channels * positions;
    const int way = rng()() % 3;
    scan.run = way == 0 ? scan.size : (way == 1 ? positions : 1);
    scan.num_steps = way == 0 && scan.run != 1 ? 1 : channels;
  }
  void draw_thresholds() {
    const bool has_edges = !neuron.is_uniform || neuron.has_windows || chance(3);
    neuron.num_above = has_edges ? scan.max_level : 0;
    neuron.num_below = has_edges && neuron.is_signed ? scan.max_level : 0;
    neuron.wants_thresholds = !neuron.is_uniform && neuron.has_windows;
    const int64_t thresholds = neuron.num_above + neuron.num_below;
    for (int64_t i = 0; i < LBQ_NEURON_ROWS * scan.num_steps; ++i) coefficients.push_back(0.25f + uniform());
    for (int64_t k = 0; k < thresholds; ++k) {
      jumps.push_back(static_cast<float>(pick({1, 1, 2, 0})));
      for (int64_t i = 0; i < scan.num_steps; ++i)
        edges.push_back(k % scan.max_level + (neuron.is_uniform ? 1 : pick({0.5f, 0.6f})));
    }
    if (!neuron.is_uniform) coefficients.insert(coefficients.end(), edges.begin(), edges.end());
    neuron.coefficients = scan.step = coefficients.data();
    neuron.edges = has_edges ? edges.data() : nullptr;
    neuron.jumps = has_edges ? jumps.data() : nullptr;
  }
};

struct Result {
  std::vector<uint8_t> bursts, levels, grad_currents;
  std::vector<float> last_carry, grad_carry;
  std::vector<double> coefficients;
};

Result run(const Case& c, int threads) {
  const lbq_scan& scan = c.neuron.scan;
  const int64_t n = scan.timesteps * scan.size, width = scan.dtype == LBQ_BF16 ? 2 : 4;
  Result r;
  r.bursts.resize(n * width);
  r.grad_currents.resize(n * width);
  r.levels.resize(n);
  r.last_carry.resize(scan.size);
  r.grad_carry.resize(scan.size);
  const float* carry = c.carry.empty() ? nullptr : c.carry.data();
  const int64_t blocks = lbq_num_blocks(&scan), rows = lbq_neuron_rows(&c.neuron);
  const lbq_forward_buffers forward{c.currents.as(scan.dtype), carry,   r.bursts.data(),
                                    r.levels.data(),           nullptr, r.last_carry.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_neuron_forward(&c.neuron, &forward, a, b); });
  std::vector<double> sums(blocks * rows * lbq_block_steps(&scan));
  const lbq_backward_buffers backward{
      c.grad_bursts.as(scan.dtype), c.grad_last_carry.empty() ? nullptr : c.grad_last_carry.data(),
      c.currents.as(scan.dtype),    carry,
      r.grad_currents.data(),       carry ? r.grad_carry.data() : nullptr,
      sums.data(),                  nullptr};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_neuron_backward(&c.neuron, &backward, a, b); });
  r.coefficients.resize(rows * scan.num_steps);
  lbq_sum_neuron_blocks(&c.neuron, sums.data(), r.coefficients.data());
  return r;
}

bool agrees(const Case& c, const Result& reference, const Result& got) {
  if (got.levels != reference.levels || got.bursts != reference.bursts) return false;
  if (got.last_carry != reference.last_carry) return false;
  float scale = 1;  // of gradients: those of the reset are products of many
  for (float grad : reference.grad_carry) scale = std::fmax(scale, std::fabs(grad));
  for (double sum : reference.coefficients) scale = std::fmax(scale, static_cast<float>(std::fabs(sum)));
  for (size_t i = 0; i < reference.grad_carry.size(); ++i)
    if (!(std::fabs(got.grad_carry[i] - reference.grad_carry[i]) <= 1e-5f * scale)) return false;
  const float tolerance = c.scan.dtype == LBQ_F32 ? 1e-5f : 1e-2f;
  for (int64_t i = 0; i < c.scan.timesteps * c.scan.size; ++i) {
    const float x = value_at(reference.grad_currents, c.scan.dtype, i), y = value_at(got.grad_currents, c.scan.dtype, i);
    if (!(std::fabs(x - y) <= tolerance * (scale + std::fabs(x)))) return false;
  }
  const double terms = c.scan.timesteps * c.scan.size * (1.0 + c.scan.max_level);
  return worst(got.coefficients, reference.coefficients) <= 1e-5 * (terms + scale);
}

bool same_bits(const Result& a, const Result& b) {
  return a.bursts == b.bursts && a.levels == b.levels && a.last_carry == b.last_carry &&
         a.grad_currents == b.grad_currents && a.grad_carry == b.grad_carry && a.coefficients == b.coefficients;
}

bool rejects_invalid_arguments() {
  const Case c;
  const lbq_forward_buffers none{};
  const lbq_backward_buffers no_grads{};
  const auto refuses = [&](auto change, int64_t last = 0) {
    lbq_neuron n = c.neuron;
    change(n);
    return lbq_neuron_forward(&n, &none, 0, last) == LBQ_BAD_ARGUMENT &&
           lbq_neuron_backward(&n, &no_grads, 0, last) == LBQ_BAD_ARGUMENT;
  };
  return lbq_neuron_forward(nullptr, &none, 0, 0) == LBQ_BAD_ARGUMENT &&
         refuses([](lbq_neuron&) {}, lbq_num_blocks(&c.scan) + 1) &&
         refuses([](lbq_neuron& n) { n.coefficients = nullptr; }) &&
         refuses([](lbq_neuron& n) { n.window = static_cast<lbq_window>(5); }) &&
         refuses([](lbq_neuron& n) { n.width = 0; }) && refuses([](lbq_neuron& n) { n.num_below = -1; }) &&
         refuses([](lbq_neuron& n) { n.is_uniform = 0, n.edges = nullptr; }) &&
         refuses([](lbq_neuron& n) { n.is_uniform = n.wants_thresholds = 1; }) &&
         refuses([](lbq_neuron& n) { n.scan.max_level = 256; }) &&
         refuses([](lbq_neuron& n) { n.scan.timesteps = 0; });
}

}  // namespace

void test_neuron_scan(int cases, Report& report) {
  report(rejects_invalid_arguments(), "invalid arguments of declared neurons are refused");
  for (int i = 0; i < cases; ++i) compare_isas(Case(), i, run, agrees, same_bits, report);
}
