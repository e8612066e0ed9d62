// All kernels of the engine, compiled once per instruction set (native/compile_flags.txt).
#include "dense_conv-simd.h"
#include "depthwise-simd.h"
#include "integer_neuron-simd.h"
#include "pair_conv-simd.h"

#if defined(__AMX_INT8__)
#include "dense_conv-amx.h"
#endif

#define LBQ_QUOTE(name) #name
#define LBQ_NAME_OF(isa) LBQ_QUOTE(isa)

namespace lbq {
namespace LBQ_ISA {

extern const KernelCosts kCosts;  // cost_model.cc
extern const EngineKernels kEngine;

#if defined(__aarch64__)  // signed bytes only, no dense kernel
const EngineKernels kEngine = {LBQ_NAME_OF(LBQ_ISA), 127, narrow_offset, wide_offset, pair_tile, list_pairs_scalar,
                               count_pairs_scalar, nullptr, 1, false, nullptr, depthwise_offset, depthwise_block, fire, store};
#else
const EngineKernels kEngine = {LBQ_NAME_OF(LBQ_ISA), 255, narrow_offset, wide_offset, pair_tile, list_pairs, count_pairs,
                               dense_block, kPanel, kDenseIsNarrow, &kCosts, depthwise_offset, depthwise_block, fire, store};
#endif

}  // namespace LBQ_ISA
}  // namespace lbq
