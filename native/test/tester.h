// Shared by the tests: random values, threads, a count of passes. No framework, so that they also run under sanitizers,
// valgrind and qemu.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lbq.h"

struct Report {
  int passed = 0, failed = 0;
  void operator()(bool ok, const std::string& what) {
    ok ? ++passed : ++failed;
    if (!ok) std::printf("failed: %s\n", what.c_str());
  }
};

void test_burst_scan(int cases, Report& report);
void test_baseline_scan(int cases, Report& report);
void test_normed_scan(int cases, Report& report);
void test_level_cost(int cases, Report& report);
void test_burst_packing(int cases, Report& report);
void test_engine(int cases, Report& report);

inline std::mt19937& rng() {
  static std::mt19937 generator(1);
  return generator;
}

template <class T>
T pick(std::initializer_list<T> choices) {
  return *(choices.begin() + rng()() % choices.size());
}
inline bool chance(int one_in) { return rng()() % one_in == 0; }
inline float normal(float scale) { return scale * std::normal_distribution<float>()(rng()); }
inline float uniform() { return std::uniform_real_distribution<float>()(rng()); }

inline std::vector<float> normals(int64_t count, float scale) {
  std::vector<float> values(count);
  for (float& value : values) value = normal(scale);
  return values;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    halves[i] = static_cast<uint16_t>(bits >> 16);
  }
  return halves;
}

// A sequence as floats and as bf16, to be read as the scan's dtype says.
struct Values {
  std::vector<float> floats;
  std::vector<uint16_t> halves;

  Values() = default;
  Values(int64_t count, float scale) : floats(normals(count, scale)), halves(to_bf16(floats)) {}
  const void* as(lbq_dtype dtype) const {
    return dtype == LBQ_BF16 ? static_cast<const void*>(halves.data()) : floats.data();
  }
};

// A scan with random coefficients; its sizes are the caller's.
struct RandomScan {
  lbq_scan scan{};
  std::vector<float> step;
  float tail = 0.5f;

  RandomScan() {
    scan.tail = chance(2) ? &tail : nullptr;
    scan.decay = uniform();
    scan.reset = uniform();
    scan.lo = pick({0.0f, 0.5f, 1.0f});
    scan.reset_mode = pick({LBQ_RESET_EVENT, LBQ_RESET_LEVEL, LBQ_RESET_NONE});
    scan.detach_reset = chance(4);
    scan.detach_carry = chance(4);
    scan.dtype = pick({LBQ_F32, LBQ_BF16});
  }
  RandomScan(const RandomScan&) = delete;  // the scan points at its coefficients
  void draw_steps(int64_t count, float least, float scale) {
    for (int64_t i = 0; i < count; ++i) step.push_back(scale * (least + uniform()));
    scan.step = step.data();
    scan.num_steps = count;
  }
};

// Split the blocks over threads, as a caller would.
template <class Run>
void spread(int64_t blocks, int threads, Run run) {
  std::vector<std::thread> workers;
  for (int w = 0; w < threads; ++w)
    workers.emplace_back([=] { run(blocks * w / threads, blocks * (w + 1) / threads); });
  for (std::thread& worker : workers) worker.join();
}

// The largest difference; NaN if any value is NaN.
inline double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (const double here = std::fabs(a[i] - b[i]); !(here <= error)) error = here;
  return error;
}

inline float value_at(const std::vector<uint8_t>& bytes, lbq_dtype dtype, size_t index) {
  uint32_t bits = 0;
  if (dtype == LBQ_F32) {
    std::memcpy(&bits, &bytes[4 * index], 4);
  } else {
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, &bytes[2 * index], 2);
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Whether two sequences agree up to rounding; NaN agrees with nothing.
inline bool are_close(const lbq_scan& scan, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  const float tolerance = scan.dtype == LBQ_F32 ? 1e-5f : 1e-2f;
  for (int64_t i = 0; i < scan.timesteps * scan.size; ++i) {
    const float x = value_at(a, scan.dtype, i), y = value_at(b, scan.dtype, i);
    if (!(std::fabs(x - y) <= tolerance * (1 + std::fabs(x)))) return false;
  }
  return true;
}

// The instruction sets of this build that run on this processor.
inline std::vector<std::string> usable_isas() {
  std::vector<std::string> found;
  for (const char* isa : {"scalar", "avx2", "avx512", "avx512bf16", "neon"})
    if (lbq_set_isa(isa) == LBQ_OK) found.push_back(isa);
  return found;
}

// Run a case on every instruction set of this build: against scalar, and with 1, 2 and 3 threads.
template <class Case, class Run, class Agrees, class SameBits>
void compare_isas(const Case& c, int index, Run run, Agrees agrees, SameBits same_bits, Report& report) {
  lbq_set_isa("scalar");
  const auto reference = run(c, 1);
  for (const std::string& isa : usable_isas()) {
    lbq_set_isa(isa.c_str());
    const auto one = run(c, 1);
    const std::string name = isa + ", case " + std::to_string(index);
    report(agrees(c, reference, one), name + ": differs from scalar");
    report(same_bits(one, run(c, 2)) && same_bits(one, run(c, 3)), name + ": threads change bits");
  }
}
