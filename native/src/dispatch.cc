// The choice of an instruction set.
#include <cstdlib>
#include <cstring>

#include "dispatch.h"

namespace lbq {
namespace {

// Best first. What was not compiled in, or what the machine lacks, is skipped.
const Kernels kAll[] = {
#if defined(__x86_64__)
    {"avx512bf16", kBurstForwardAvx512Bf16, kBurstBackwardAvx512Bf16, kNormedAvx512Bf16},
    {"avx512", kBurstForwardAvx512, kBurstBackwardAvx512, kNormedAvx512},
    {"avx2", kBurstForwardAvx2, kBurstBackwardAvx2, kNormedAvx2},
#elif defined(__aarch64__)
    {"neon", kBurstForwardNeon, kBurstBackwardNeon, kNormedNeon},
#endif
    {"scalar", kBurstForwardScalar, kBurstBackwardScalar, kNormedScalar}};

bool runs_here(const char* isa) {
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx512bf16"))
    return runs_here("avx512") && __builtin_cpu_supports("avx512bf16");
  if (!std::strcmp(isa, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  (void)isa;
  return true;  // scalar everywhere, NEON on every aarch64
}

// Sets that only the engine tells apart are capped at what they contain.
const char* known_cap() {
  const char* cap = std::getenv("LBQ_ISA");
  if (cap != nullptr && !std::strcmp(cap, "amx")) return "avx512bf16";
  if (cap != nullptr && !std::strcmp(cap, "avx512vnni")) return "avx512";
  if (cap != nullptr && !std::strcmp(cap, "avx2vnni")) return "avx2";
  return cap;
}

// The best that runs here and is not better than LBQ_ISA.
const Kernels* choose() {
  const char* cap = known_cap();
  bool is_allowed = cap == nullptr || *cap == 0;
  for (const Kernels& kernels : kAll) {
    is_allowed = is_allowed || !std::strcmp(kernels.isa, cap);
    if (is_allowed && runs_here(kernels.isa)) return &kernels;
  }
  return &kAll[sizeof kAll / sizeof *kAll - 1];  // an unknown cap: scalar
}

const Kernels*& chosen() {
  static const Kernels* kernels = choose();
  return kernels;
}

}  // namespace

const Kernels& kernels() { return *chosen(); }

}  // namespace lbq

extern "C" {

const char* lbq_isa(void) { return lbq::chosen()->isa; }

lbq_status lbq_set_isa(const char* name) {
  for (const lbq::Kernels& kernels : lbq::kAll)
    if (!std::strcmp(kernels.isa, name) && lbq::runs_here(name)) {
      lbq::chosen() = &kernels;
      return LBQ_OK;
    }
  return LBQ_BAD_ARGUMENT;
}

}  // extern "C"
