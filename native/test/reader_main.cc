// The reader of bundles and who runs their networks. Prints "N passed, M failed".
#include "reader_tester.h"

int main() {
  Report report;
  test_documents(report);
  test_rules(report);
  test_model(report);
  test_runner(report);
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
