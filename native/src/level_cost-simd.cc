// The cost of levels in vectors: one look-up per value, in a register where the levels are few.
#include "vectors.h"

namespace lbq {
namespace {

typedef double Doubles __attribute__((vector_size(8 * LBQ_LANES)));

inline Ints ints_of(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  return __builtin_convertvector(load_raw<Bytes>(bytes), Ints);
#endif
}

// table[index]; if all indices are below the number of lanes, `table` is one vector.
template <bool kFew>
inline Floats look_up(const float* table, Ints index) {
#if defined(__AVX512F__)
  if (kFew) return (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, (__m512)load(table));
  return (Floats)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, (__m512i)index, table, 4);
#elif defined(__AVX2__)
  if (kFew) return (Floats)_mm256_permutevar8x32_ps((__m256)load(table), (__m256i)index);
  return (Floats)_mm256_i32gather_ps(table, (__m256i)index, 4);
#else
  Floats found;
  for (int64_t lane = 0; lane < kLanes; ++lane) found[lane] = table[index[lane]];
  return found;
#endif
}

// Vectors summed before their sums are widened: products stay below 2^24, so 64 of them fit 32 bits.
constexpr int64_t kPart = 64 * kLanes;

bool is_whole(const lbq_level_cost& c) {
  for (int32_t level = 0; level <= c.max_level; ++level)
    if (c.table[level] != static_cast<float>(static_cast<int32_t>(c.table[level]))) return false;
  return true;
}

// Costs are summed exactly: as integers where the table is whole, else as doubles.
template <bool kFew, class Costs>
void sums_of(const lbq_level_cost& c, double* sums, int64_t block) {
  const uint8_t* levels = c.levels + block * c.size;
  sums[0] = sums[1] = sums[2] = 0;
  const int64_t whole = c.size - c.size % kLanes;
  for (int64_t first = 0; first < whole; first += kPart) {
    const int64_t last = whole - first < kPart ? whole : first + kPart;
    Costs cost{};
    Floats moved{};
    Ints active{};
    for (int64_t i = first; i < last; i += kLanes) {
      const Ints level = ints_of(levels + i);
      const Floats fan_out = load(c.fan_out + i);
      cost += __builtin_convertvector(look_up<kFew>(c.table, level) * fan_out, Costs);
      moved += look_up<kFew>(c.slope, level) * fan_out * __builtin_convertvector(level, Floats);
      active -= level != 0;
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[0] += cost[lane];
      sums[1] += moved[lane];
      sums[2] += active[lane];
    }
  }
  for (int64_t i = whole; i < c.size; ++i) {
    const int level = levels[i];
    sums[0] += c.table[level] * c.fan_out[i];
    sums[1] += c.slope[level] * c.fan_out[i] * static_cast<float>(level);
    sums[2] += level != 0;
  }
}

template <bool kFew>
void sums_for(const lbq_level_cost& c, double* sums, int64_t block) {
  is_whole(c) ? sums_of<kFew, Ints>(c, sums, block) : sums_of<kFew, Doubles>(c, sums, block);
}

template <bool kFew, class Value>
void backward_of(const lbq_level_cost& c, const void* grad, float scale, void* grad_out, int64_t block) {
  const uint8_t* levels = c.levels + block * c.size;
  const Value* from = static_cast<const Value*>(grad) + block * c.size;
  Value* to = static_cast<Value*>(grad_out) + block * c.size;
  int64_t i = 0;
  for (; i + kLanes <= c.size; i += kLanes) {
    const Floats push = look_up<kFew>(c.slope, ints_of(levels + i)) * load(c.fan_out + i);
    store(to + i, load(from + i) + round_product(scale * round_product(push)));
  }
  if (i == c.size) return;
  const int64_t rest = c.size - i;
  Floats push{};
  for (int64_t lane = 0; lane < rest; ++lane) push[lane] = c.slope[levels[i + lane]] * c.fan_out[i + lane];
  store_some(to + i, load_some(from + i, rest) + round_product(scale * round_product(push)), rest);
}

template <bool kFew>
void backward_for(const lbq_level_cost& c, const void* grad, float scale, void* grad_out, int64_t block) {
  c.dtype == LBQ_F32 ? backward_of<kFew, float>(c, grad, scale, grad_out, block)
                     : backward_of<kFew, uint16_t>(c, grad, scale, grad_out, block);
}

}  // namespace

const CostKernels LBQ_ISA::kCost{
    [](const lbq_level_cost& c, double* sums, int64_t block) {
      c.max_level < kLanes ? sums_for<true>(c, sums, block) : sums_for<false>(c, sums, block);
    },
    [](const lbq_level_cost& c, const void* grad, float scale, void* grad_out, int64_t block) {
      c.max_level < kLanes ? backward_for<true>(c, grad, scale, grad_out, block)
                           : backward_for<false>(c, grad, scale, grad_out, block);
    }};

}  // namespace lbq
