// What levels cost, and its gradient, against plain loops over random tables, fan-outs and levels.
#include "tester.h"

namespace {

struct Case {
  lbq_level_cost cost{};
  std::vector<uint8_t> levels;
  std::vector<float> fan_out, table, slope;
  Values grad;
  float scale = normal(1);

  Case() : table(256), slope(256) {
    cost.instants = pick<int64_t>({0, 1, 2, 6});
    cost.size = pick<int64_t>({1, 7, 16, 63, 64, 1000, 5003});
    cost.max_level = pick<int32_t>({1, 2, 5, 15, 16, 20, 255});
    cost.dtype = pick({LBQ_F32, LBQ_BF16});
    const float unit = pick({1.f, 0.25f});
    for (int32_t i = 1; i <= cost.max_level; ++i) table[i] = unit * static_cast<float>(rng()() % 9);
    for (int32_t i = 0; i < cost.max_level; ++i) slope[i] = table[i + 1] - table[i];
    for (int64_t i = 0; i < cost.size; ++i) fan_out.push_back(static_cast<float>(rng()() % 5000));
    for (int64_t i = 0; i < cost.instants * cost.size; ++i)
      levels.push_back(static_cast<uint8_t>(rng()() % (cost.max_level + 1)));
    grad = Values(cost.instants * cost.size, 1);
    cost.levels = levels.data();
    cost.fan_out = fan_out.data();
    cost.table = table.data();
    cost.slope = slope.data();
  }
  Case(const Case&) = delete;  // the cost points at its arrays
};

struct Result {
  std::vector<double> sums;
  std::vector<uint8_t> grad;
};

Result run(const Case& c, int threads) {
  Result r;
  r.sums.resize(3 * c.cost.instants);
  r.grad.resize(c.levels.size() * (c.cost.dtype == LBQ_BF16 ? 2 : 4));
  spread(c.cost.instants, threads, [&](int64_t a, int64_t b) {
    lbq_cost_sums(&c.cost, r.sums.data(), a, b);
    lbq_cost_backward(&c.cost, c.grad.as(c.cost.dtype), c.scale, r.grad.data(), a, b);
  });
  return r;
}

bool equals_a_loop(const Case& c, const Result& got) {
  const float tolerance = c.cost.dtype == LBQ_F32 ? 1e-5f : 1e-2f;
  for (int64_t t = 0; t < c.cost.instants; ++t) {
    double sums[3] = {0, 0, 0}, moved = 0;
    for (int64_t i = 0; i < c.cost.size; ++i) {
      const size_t at = t * c.cost.size + i;
      const uint8_t level = c.levels[at];
      sums[0] += static_cast<double>(c.table[level]) * c.fan_out[i];
      sums[1] += static_cast<double>(c.slope[level]) * level * c.fan_out[i];
      sums[2] += level != 0;
      moved += std::fabs(static_cast<double>(c.slope[level]) * level * c.fan_out[i]);
      const float given = c.cost.dtype == LBQ_F32 ? c.grad.floats[at] : [&] {
        const uint32_t bits = static_cast<uint32_t>(c.grad.halves[at]) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
      }();
      const float added = c.scale * c.slope[level] * c.fan_out[i], expected = given + added;
      const float error = std::fabs(value_at(got.grad, c.cost.dtype, at) - expected);
      if (!(error <= tolerance * (1 + std::fabs(given) + std::fabs(added)))) return false;
    }
    const double* found = &got.sums[3 * t];
    if (found[0] != sums[0] || found[2] != sums[2]) return false;  // counts are exact
    if (std::fabs(found[1] - sums[1]) > 1e-6 * moved) return false;
  }
  return true;
}

bool same_bits(const Result& a, const Result& b) { return a.sums == b.sums && a.grad == b.grad; }

}  // namespace

void test_level_cost(int cases, Report& report) {
  for (int i = 0; i < cases; ++i) {
    const Case c;
    compare_isas(
        c, i, run, [](const Case& k, const Result&, const Result& got) { return equals_a_loop(k, got); }, same_bits,
        report);
    double sums[3];
    report(lbq_cost_sums(&c.cost, sums, 0, c.cost.instants + 1) == LBQ_BAD_ARGUMENT, "too many blocks are taken");
    lbq_level_cost wrong = c.cost;
    wrong.max_level = 256;
    report(lbq_cost_backward(&wrong, nullptr, 1, nullptr, 0, 0) == LBQ_BAD_ARGUMENT, "level 256 is taken");
  }
}
