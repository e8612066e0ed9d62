#include "scan_kernels.h"

#include "isa.h"

namespace lbq {
namespace {

#define LBQ_SCAN_KERNELS(isa) \
  const ScanKernels k_##isa = {#isa, isa::kBurst, isa::kBaseline, isa::kNormed, isa::kCost, isa::kPacking};
LBQ_SCAN_KERNELS(scalar)
#if defined(__x86_64__)
LBQ_SCAN_KERNELS(avx2)
LBQ_SCAN_KERNELS(avx512)
LBQ_SCAN_KERNELS(avx512bf16)
const ScanKernels* const kBestFirst[] = {&k_avx512bf16, &k_avx512, &k_avx2, &k_scalar};
#elif defined(__aarch64__)
LBQ_SCAN_KERNELS(neon)
const ScanKernels* const kBestFirst[] = {&k_neon, &k_scalar};
#else
const ScanKernels* const kBestFirst[] = {&k_scalar};
#endif
#undef LBQ_SCAN_KERNELS

const ScanKernels*& chosen() {
  static const ScanKernels* kernels = choose_kernels(kBestFirst, nullptr);
  return kernels;
}

}  // namespace

const ScanKernels& scan_kernels() { return *chosen(); }

}  // namespace lbq

extern "C" {

const char* lbq_isa(void) { return lbq::chosen()->isa; }

lbq_status lbq_set_isa(const char* name) {
  const lbq::ScanKernels* kernels = lbq::choose_kernels(lbq::kBestFirst, name);
  if (kernels == nullptr) return LBQ_BAD_ARGUMENT;
  lbq::chosen() = kernels;
  return LBQ_OK;
}

}  // extern "C"
