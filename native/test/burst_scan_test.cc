// Every instruction set of this build against the scalar truth, over random scans; no framework, so that
// it also runs under sanitizers, valgrind and qemu. Prints "N passed, M failed".
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lbq.h"

namespace {

std::mt19937 rng(1);

template <class T>
T pick(std::initializer_list<T> choices) {
  return *(choices.begin() + rng() % choices.size());
}
float normal(float scale) { return scale * std::normal_distribution<float>()(rng); }
float uniform() { return std::uniform_real_distribution<float>()(rng); }

std::vector<float> normals(int64_t count, float scale) {
  std::vector<float> values(count);
  for (float& value : values) value = normal(scale);
  return values;
}

std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    halves[i] = static_cast<uint16_t>(bits >> 16);
  }
  return halves;
}

// A scan with its inputs, and what one run of it gives.
struct Case {
  lbq_scan scan{};
  std::vector<float> step, currents, carry, grad_bursts, grad_last_carry;
  std::vector<uint16_t> half_currents, half_grads;
  float tail = 0.5f;

  Case() {
    scan.timesteps = pick<int64_t>({1, 2, 4, 10});
    scan.max_level = pick<int32_t>({1, 2, 5, 20, 255});
    const int64_t channels = pick<int64_t>({1, 3, 16, 37}), positions = pick<int64_t>({1, 5, 49, 5000});
    const int64_t batch = pick<int64_t>({1, 2});
    scan.size = batch * channels * positions;
    const int way = rng() % 3;
    scan.num_steps = way == 0 ? 1 : channels;
    scan.run = way == 0 ? scan.size : (way == 1 ? positions : 1);
    if (scan.run == 1) scan.num_steps = channels;
    const float gamma = std::pow(10.0f, 8 * uniform() - 4);
    for (int64_t i = 0; i < scan.num_steps; ++i) step.push_back(gamma * (0.5f + uniform()));
    scan.step = step.data();
    scan.tail = rng() % 2 ? &tail : nullptr;
    scan.decay = uniform();
    scan.reset = uniform();
    scan.lo = pick({0.0f, 0.5f, 1.0f});
    scan.hi = scan.max_level + 0.5f;
    scan.reset_mode = pick({LBQ_RESET_EVENT, LBQ_RESET_LEVEL, LBQ_RESET_NONE});
    scan.detach_reset = rng() % 4 == 0;
    scan.detach_carry = rng() % 4 == 0;
    scan.dtype = rng() % 2 ? LBQ_F32 : LBQ_BF16;
    const bool is_repeated = rng() % 4 == 0;
    scan.current_stride = is_repeated ? 0 : scan.size;
    currents = normals((is_repeated ? 1 : scan.timesteps) * scan.size, gamma * scan.max_level);
    grad_bursts = normals(scan.timesteps * scan.size, 1);
    if (rng() % 2) carry = normals(scan.size, gamma);
    if (rng() % 2) grad_last_carry = normals(scan.size, 1);
    half_currents = to_bf16(currents);
    half_grads = to_bf16(grad_bursts);
  }
};

struct Result {
  std::vector<uint8_t> bursts, levels, grad_currents;
  std::vector<float> membranes, last_carry, grad_carry;
  std::vector<double> step, other;
};

// Split the blocks over threads, as a caller would.
template <class Run>
void spread(int64_t blocks, int threads, Run run) {
  std::vector<std::thread> workers;
  for (int w = 0; w < threads; ++w)
    workers.emplace_back([=] { run(blocks * w / threads, blocks * (w + 1) / threads); });
  for (std::thread& worker : workers) worker.join();
}

Result run(const Case& c, int threads) {
  const lbq_scan& scan = c.scan;
  const bool is_half = scan.dtype == LBQ_BF16;
  const int64_t n = scan.timesteps * scan.size, width = is_half ? 2 : 4;
  Result r;
  r.bursts.resize(n * width);
  r.grad_currents.resize(n * width);
  r.levels.resize(n);
  r.membranes.resize(n);
  r.last_carry.resize(scan.size);
  r.grad_carry.resize(scan.size);
  const float* carry = c.carry.empty() ? nullptr : c.carry.data();
  const int64_t blocks = lbq_num_blocks(&scan);
  const lbq_forward_buffers forward{
      is_half ? static_cast<const void*>(c.half_currents.data()) : c.currents.data(), carry,
      r.bursts.data(), r.levels.data(), r.membranes.data(), r.last_carry.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_burst_forward(&scan, &forward, a, b); });
  std::vector<double> step_sums(blocks * lbq_block_steps(&scan)), other_sums(blocks * 3);
  const lbq_backward_buffers backward{
      is_half ? static_cast<const void*>(c.half_grads.data()) : c.grad_bursts.data(),
      c.grad_last_carry.empty() ? nullptr : c.grad_last_carry.data(), r.membranes.data(), carry,
      r.grad_currents.data(), carry ? r.grad_carry.data() : nullptr, step_sums.data(), other_sums.data()};
  spread(blocks, threads, [&](int64_t a, int64_t b) { lbq_burst_backward(&scan, &backward, a, b); });
  r.step.resize(scan.num_steps);
  r.other.resize(3);
  lbq_sum_blocks(&scan, &backward, r.step.data(), r.other.data());
  return r;
}

double worst(const std::vector<double>& a, const std::vector<double>& b, double scale) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) error = std::fmax(error, std::fabs(a[i] - b[i]));
  return error / scale;
}

bool agrees(const Case& c, const Result& truth, const Result& got) {
  if (got.levels != truth.levels || got.bursts != truth.bursts) return false;
  if (got.membranes != truth.membranes || got.last_carry != truth.last_carry) return false;
  const int64_t n = c.scan.timesteps * c.scan.size;
  const double terms = n * (1.0 + c.scan.max_level) * (1 + c.step[0]) * (1 + std::fabs(c.currents[0]));
  return worst(got.step, truth.step, terms) < 1e-5 && worst(got.other, truth.other, terms) < 1e-5;
}

bool same_bits(const Result& a, const Result& b) {
  return a.bursts == b.bursts && a.levels == b.levels && a.membranes == b.membranes &&
         a.last_carry == b.last_carry && a.grad_currents == b.grad_currents &&
         a.grad_carry == b.grad_carry && a.step == b.step && a.other == b.other;
}

bool refuses_nonsense() {
  Case c;
  const lbq_forward_buffers none{};
  lbq_scan scan = c.scan;
  bool ok = lbq_burst_forward(nullptr, &none, 0, 0) == LBQ_BAD_ARGUMENT;
  ok = ok && lbq_burst_forward(&scan, &none, 0, lbq_num_blocks(&scan) + 1) == LBQ_BAD_ARGUMENT;
  scan.max_level = 256;
  ok = ok && lbq_burst_forward(&scan, &none, 0, 0) == LBQ_BAD_ARGUMENT;
  scan = c.scan;
  scan.timesteps = 0;
  ok = ok && lbq_burst_forward(&scan, &none, 0, 0) == LBQ_BAD_ARGUMENT;
  return ok && lbq_set_isa("sse") == LBQ_BAD_ARGUMENT;
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  int passed = 0, failed = 0;
  const auto report = [&](bool ok, const std::string& what) {
    ok ? ++passed : ++failed;
    if (!ok) std::printf("failed: %s\n", what.c_str());
  };
  report(refuses_nonsense(), "nonsense is refused");
  for (int i = 0; i < cases; ++i) {
    const Case c;
    lbq_set_isa("scalar");
    const Result truth = run(c, 1);
    for (const char* isa : {"scalar", "avx2", "avx512", "neon"}) {
      if (lbq_set_isa(isa) != LBQ_OK) continue;
      const Result one = run(c, 1);
      const std::string name = std::string(isa) + ", case " + std::to_string(i);
      report(agrees(c, truth, one), name + ": differs from scalar");
      report(same_bits(one, run(c, 2)) && same_bits(one, run(c, 3)), name + ": threads change bits");
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
