// The choice of an instruction set for the engine.
#include "kernels.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lbq {

extern const EngineKernels kEngineScalar;
#if defined(__x86_64__)
extern const EngineKernels kEngineAvx2, kEngineAvx2Vnni, kEngineAvx512, kEngineAvx512Vnni, kEngineAmx;
#elif defined(__aarch64__)
extern const EngineKernels kEngineNeon;
#endif

namespace {

// Best first.
const EngineKernels* const kAll[] = {
#if defined(__x86_64__)
    &kEngineAmx, &kEngineAvx512Vnni, &kEngineAvx512, &kEngineAvx2Vnni, &kEngineAvx2,
#elif defined(__aarch64__)
    &kEngineNeon,
#endif
    &kEngineScalar};

#if defined(__x86_64__)
// Tiles are there if the processor has them and the system lets this process use them.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & (kTile | kInt8)) != (kTile | kInt8)) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
#else
  return false;
#endif
}
#endif

bool runs_here(const char* isa) {
#if defined(__x86_64__)
  if (!std::strcmp(isa, "amx")) return runs_here("avx512vnni") && has_tiles();
  if (!std::strcmp(isa, "avx512vnni")) return runs_here("avx512") && __builtin_cpu_supports("avx512vnni");
  if (!std::strcmp(isa, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!std::strcmp(isa, "avx2vnni")) return runs_here("avx2") && __builtin_cpu_supports("avxvnni");
  if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  (void)isa;
  return true;  // scalar everywhere, NEON on every aarch64
}

}  // namespace

const EngineKernels* engine_kernels(const char* isa_or_null) {
  if (isa_or_null != nullptr) {
    for (const EngineKernels* kernels : kAll)
      if (!std::strcmp(kernels->isa, isa_or_null) && runs_here(isa_or_null)) return kernels;
    return nullptr;
  }
  const char* cap = std::getenv("LBQ_ISA");
  if (cap != nullptr && !std::strcmp(cap, "avx512bf16")) cap = "amx";  // the name of the best that training has
  bool is_allowed = cap == nullptr || *cap == 0;
  for (const EngineKernels* kernels : kAll) {
    is_allowed = is_allowed || !std::strcmp(kernels->isa, cap);
    if (is_allowed && runs_here(kernels->isa)) return kernels;
  }
  return &kEngineScalar;  // an unknown cap
}

}  // namespace lbq
