// The burst neuron over random scans.
#include "tester.h"

namespace {

struct Case : RandomScan {
  std::vector<float> carry, grad_last_carry;
  Values currents, grad_bursts;

  Case() {
    scan.timesteps = pick<int64_t>({1, 2, 4, 10});
    scan.saved = pick({LBQ_SAVE_MEMBRANES, LBQ_SAVE_CURRENTS});
    scan.max_level = pick<int32_t>({1, 2, 5, 20, 255});
    const int64_t channels = pick<int64_t>({1, 3, 16, 37}), positions = pick<int64_t>({1, 5, 49, 5000});
    scan.size = pick<int64_t>({1, 2}) * channels * positions;
    const int way = rng()() % 3;
    scan.run = way == 0 ? scan.size : (way == 1 ? positions : 1);
    const float gamma = std::pow(10.0f, 8 * uniform() - 4);
    draw_steps(way == 0 && scan.run != 1 ? 1 : channels, 0.5f, gamma);
    scan.hi = scan.max_level + pick({0.0f, 0.5f});
    const bool is_repeated = chance(4);
    scan.current_stride = is_repeated ? 0 : scan.size;
    currents = Values((is_repeated ? 1 : scan.timesteps) * scan.size, gamma * scan.max_level);
    grad_bursts = Values(scan.timesteps * scan.size, 1);
    if (chance(2)) carry = normals(scan.size, gamma);
    if (chance(2)) grad_last_carry = normals(scan.size, 1);
  }
};

struct Result {
  std::vector<uint8_t> bursts, levels, saved, grad_currents;
  std::vector<float> last_carry, grad_carry;
  std::vector<double> step, other;
};

Result run(const Case& c, int threads) {
  const lbq_scan& scan = c.scan;
  const int64_t n = scan.timesteps * scan.size, width = scan.dtype == LBQ_BF16 ? 2 : 4;
  Result r;
  r.bursts.resize(n * width);
  r.grad_currents.resize(n * width);
  r.levels.resize(n);
  const bool saves_currents = scan.saved == LBQ_SAVE_CURRENTS;
  r.saved.resize(saves_currents ? 0 : n * 4);
  r.last_carry.resize(scan.size);
  r.grad_carry.resize(scan.size);
  const float* carry = c.carry.empty() ? nullptr : c.carry.data();
  const int64_t blocks = lbq_num_blocks(&scan);
  const lbq_forward_buffers forward{c.currents.as(scan.dtype), carry,         r.bursts.data(),
                                    r.levels.data(),           saves_currents ? nullptr : r.saved.data(),
                                    r.last_carry.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_burst_forward(&scan, &forward, a, b); });
  std::vector<double> step_sums(blocks * lbq_block_steps(&scan)), other_sums(blocks * 3);
  const lbq_backward_buffers backward{
      c.grad_bursts.as(scan.dtype), c.grad_last_carry.empty() ? nullptr : c.grad_last_carry.data(),
      saves_currents ? c.currents.as(scan.dtype) : r.saved.data(), carry,
      r.grad_currents.data(),       carry ? r.grad_carry.data() : nullptr,
      step_sums.data(),             other_sums.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_burst_backward(&scan, &backward, a, b); });
  r.step.resize(scan.num_steps);
  r.other.resize(3);
  lbq_sum_blocks(&scan, &backward, r.step.data(), r.other.data());
  return r;
}

bool agrees(const Case& c, const Result& reference, const Result& got) {
  if (got.levels != reference.levels || got.bursts != reference.bursts) return false;
  if (got.saved != reference.saved || got.last_carry != reference.last_carry) return false;
  if (!are_close(c.scan, reference.grad_currents, got.grad_currents)) return false;
  for (size_t i = 0; i < reference.grad_carry.size(); ++i)
    if (!(std::fabs(got.grad_carry[i] - reference.grad_carry[i]) <= 1e-5f * (1 + std::fabs(reference.grad_carry[i])))) return false;
  const int64_t n = c.scan.timesteps * c.scan.size;
  const double terms =
      n * (1.0 + c.scan.max_level) * (1 + c.step[0]) * (1 + std::fabs(c.currents.floats[0]));
  return worst(got.step, reference.step) < 1e-6 * terms && worst(got.other, reference.other) < 1e-6 * terms;
}

bool same_bits(const Result& a, const Result& b) {
  return a.bursts == b.bursts && a.levels == b.levels && a.saved == b.saved && a.last_carry == b.last_carry &&
         a.grad_currents == b.grad_currents && a.grad_carry == b.grad_carry && a.step == b.step &&
         a.other == b.other;
}

// Membranes that the backward pass recomputes from currents give the gradients of saved ones, bit for bit.
bool currents_give_the_same_bits(Case& c) {
  c.scan.saved = LBQ_SAVE_MEMBRANES;
  Result saved = run(c, 1);
  c.scan.saved = LBQ_SAVE_CURRENTS;
  saved.saved.clear();
  return same_bits(run(c, 1), saved);
}

// 1 on the closed plateau and the tail's slope outside (Eq. 11), however close to an edge the membrane lies.
bool slopes_change_at_edges(lbq_saved saved, float lo, float hi, int32_t max_level) {
  Case c;
  c.tail = 0.1f;
  c.step = {4.0f};
  c.carry.clear();
  c.grad_last_carry.clear();
  c.currents = c.grad_bursts = Values();
  for (int repeats = 0; repeats < 3; ++repeats)  // 36 values: whole vectors and a remainder
    for (float edge : {0.0f, lo, hi, static_cast<float>(max_level)})
      for (float ratio : {std::nextafter(edge, -INFINITY), edge, std::nextafter(edge, INFINITY)})
        c.currents.floats.push_back(4 * ratio);
  c.grad_bursts.floats.assign(c.currents.floats.size(), 1.0f);
  lbq_scan& scan = c.scan;
  scan.timesteps = scan.num_steps = 1;
  scan.size = scan.current_stride = scan.run = static_cast<int64_t>(c.currents.floats.size());
  scan.step = c.step.data();
  scan.tail = &c.tail;
  scan.lo = lo;
  scan.hi = hi;
  scan.max_level = max_level;
  scan.dtype = LBQ_F32;
  scan.saved = saved;
  const Result r = run(c, 1);
  for (int64_t i = 0; i < scan.size; ++i) {
    const float ratio = c.currents.floats[i] / 4, slope = value_at(r.grad_currents, LBQ_F32, i);
    const float distance = ratio < lo ? lo - ratio : (ratio > hi ? ratio - hi : 0);
    const bool is_right = distance == 0 ? slope == 1 : std::fabs(slope - c.tail * std::exp(-distance)) < 1e-3f;
    if (!is_right) return false;
  }
  return true;
}

void test_edges(Report& report) {
  for (const std::string& isa : usable_isas()) {
    lbq_set_isa(isa.c_str());
    for (lbq_saved saved : {LBQ_SAVE_MEMBRANES, LBQ_SAVE_CURRENTS})
      report(slopes_change_at_edges(saved, 1, 5, 5) && slopes_change_at_edges(saved, 0, 5, 5) &&
                 slopes_change_at_edges(saved, 0.5, 5.5, 5) && slopes_change_at_edges(saved, 1, 1, 1) &&
                 slopes_change_at_edges(saved, 1, 20, 20),
             isa + ": slopes at the edges of the plateau");
  }
}

bool rejects_invalid_arguments() {
  const Case c;
  const lbq_forward_buffers none{};
  const auto refuses = [&](auto change, int64_t last = 0) {
    lbq_scan scan = c.scan;
    change(scan);
    return lbq_burst_forward(&scan, &none, 0, last) == LBQ_BAD_ARGUMENT;
  };
  return lbq_burst_forward(nullptr, &none, 0, 0) == LBQ_BAD_ARGUMENT &&
         refuses([](lbq_scan&) {}, lbq_num_blocks(&c.scan) + 1) &&
         refuses([](lbq_scan& scan) { scan.max_level = 256; }) &&
         refuses([](lbq_scan& scan) { scan.timesteps = 0; }) && lbq_set_isa("sse") == LBQ_BAD_ARGUMENT;
}

}  // namespace

void test_burst_scan(int cases, Report& report) {
  report(rejects_invalid_arguments(), "invalid arguments are refused");
  test_edges(report);
  for (int i = 0; i < cases; ++i) {
    Case c;
    compare_isas(c, i, run, agrees, same_bits, report);
    for (const std::string& isa : usable_isas()) {
      lbq_set_isa(isa.c_str());
      report(currents_give_the_same_bits(c), isa + ": recomputed membranes, case " + std::to_string(i));
    }
  }
}
