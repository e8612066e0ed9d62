// Every instruction set of this build against the scalar truth. Prints "N passed, M failed".
//   lbq_test [cases] [burst_scan | normed_scan | engine]
#include <cstdlib>
#include <string>

#include "tester.h"

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  const std::string only = argc > 2 ? argv[2] : "";
  Report report;
  if (only.empty() || only == "burst_scan") test_burst_scan(cases, report);
  if (only.empty() || only == "normed_scan") test_normed_scan(cases, report);
  if (only.empty() || only == "engine") test_engine(cases, report);
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
