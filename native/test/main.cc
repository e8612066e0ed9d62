// Every instruction set of this build against the scalar reference. Prints "N passed, M failed".
//   lbq_test [cases] [burst_scan | baseline_scan | normed_scan | level_cost | burst_packing | engine]
#include <cstdlib>
#include <string>

#include "tester.h"

namespace {

// The vector units of this processor must be found, or nothing would be compared with scalar.
void test_dispatch(Report& report) {
  const std::vector<std::string> found = usable_isas();
  const auto has = [&](const char* isa) { return std::find(found.begin(), found.end(), isa) != found.end(); };
  for (const std::string& isa : found) std::printf("%s ", isa.c_str());
  std::printf("run here\n");
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  report(has("avx2") || !has_avx2, "this processor has AVX2, but it is not used");
  report(has("avx512") || !has_avx512, "this processor has AVX-512, but it is not used");
#elif defined(__aarch64__)
  report(has("neon"), "every such processor has NEON, but it is not used");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  const std::string only = argc > 2 ? argv[2] : "";
  Report report;
  test_dispatch(report);
  if (only.empty() || only == "burst_scan") test_burst_scan(cases, report);
  if (only.empty() || only == "baseline_scan") test_baseline_scan(cases, report);
  if (only.empty() || only == "normed_scan") test_normed_scan(cases, report);
  if (only.empty() || only == "level_cost") test_level_cost(cases, report);
  if (only.empty() || only == "burst_packing") test_burst_packing(cases, report);
  if (only.empty() || only == "engine") test_engine(cases, report);
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
