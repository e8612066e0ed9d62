// Every instruction set of this build against the scalar truth. Prints "N passed, M failed".
#include <cstdlib>

#include "tester.h"

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  Report report;
  test_burst_scan(cases, report);
  test_normed_scan(cases, report);
  test_engine(cases, report);
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
