// The instruction sets: what this processor supports and what LBQ_ISA allows.
#pragma once

#include <cstddef>
#include <cstring>

namespace lbq {

bool isa_is_supported(const char* name);

// Whether a set is supported and not better than the one named by LBQ_ISA. Without LBQ_ISA all are allowed, with an
// unknown name only "scalar".
bool isa_is_allowed(const char* name);

// The kernels named `isa`, or the best allowed ones if it is null; null if that set is unknown or not supported.
template <class Kernels, size_t kCount>
const Kernels* choose_kernels(const Kernels* const (&best_first)[kCount], const char* isa) {
  for (const Kernels* kernels : best_first) {
    const bool is_it = isa ? !std::strcmp(kernels->isa, isa) && isa_is_supported(isa) : isa_is_allowed(kernels->isa);
    if (is_it) return kernels;
  }
  return nullptr;
}

}  // namespace lbq
