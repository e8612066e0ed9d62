#include "kernels.h"

#include "isa.h"

namespace lbq {

#define LBQ_ENGINE_KERNELS(isa)       \
  namespace isa {                     \
  extern const EngineKernels kEngine; \
  }
LBQ_ENGINE_KERNELS(scalar)
#if defined(__x86_64__)
LBQ_ENGINE_KERNELS(avx2)
LBQ_ENGINE_KERNELS(avx2vnni)
LBQ_ENGINE_KERNELS(avx512)
LBQ_ENGINE_KERNELS(avx512vnni)
LBQ_ENGINE_KERNELS(amx)
#elif defined(__aarch64__)
LBQ_ENGINE_KERNELS(neon)
#endif

const EngineKernels* engine_kernels(const char* isa_or_null) {
  static const EngineKernels* const kBestFirst[] = {
#if defined(__x86_64__)
      &amx::kEngine, &avx512vnni::kEngine, &avx512::kEngine, &avx2vnni::kEngine, &avx2::kEngine,
#elif defined(__aarch64__)
      &neon::kEngine,
#endif
      &scalar::kEngine};
  return choose_kernels(kBestFirst, isa_or_null);
}

}  // namespace lbq
