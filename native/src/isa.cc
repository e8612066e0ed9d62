#include "isa.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lbq {
namespace {

bool always() { return true; }

#if defined(__x86_64__)

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx2vnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Linux must grant a process the use of AMX tiles.
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if (!has_avx512vnni() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & (kTile | kInt8)) != (kTile | kInt8)) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
#else
  return false;
#endif
}

#endif

struct Isa {
  const char* name;
  int rank;  // LBQ_ISA allows every set of the same or a lower rank
  bool (*is_supported)();
};

constexpr Isa kIsas[] = {{"scalar", 0, always},
#if defined(__x86_64__)
                         {"avx2", 1, has_avx2},
                         {"avx2vnni", 2, has_avx2vnni},
                         {"avx512", 3, has_avx512},
                         {"avx512vnni", 4, has_avx512vnni},
                         {"avx512bf16", 5, has_avx512bf16},
                         {"amx", 5, has_amx}
#elif defined(__aarch64__)
                         {"neon", 1, always}
#endif
};

const Isa* find(const char* name) {
  for (const Isa& isa : kIsas)
    if (!std::strcmp(isa.name, name)) return &isa;
  return nullptr;
}

}  // namespace

bool isa_is_supported(const char* name) {
  const Isa* isa = find(name);
  return isa != nullptr && isa->is_supported();
}

bool isa_is_allowed(const char* name) {
  const char* cap = std::getenv("LBQ_ISA");
  if (cap == nullptr || *cap == 0) return isa_is_supported(name);
  const Isa* best = find(cap);
  return find(name)->rank <= (best ? best->rank : 0) && isa_is_supported(name);
}

}  // namespace lbq
