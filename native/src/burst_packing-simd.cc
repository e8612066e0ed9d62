// Packed bursts in vectors: a block's levels as bytes first, then as digits.
#include "vectors.h"

namespace lbq {
namespace {

constexpr int64_t kMostLevels = 8 * kPackedBlockBytes;

inline Words bits_of(const float* from) { return load_raw<Words>(from); }
inline Halves bits_of(const uint16_t* from) { return load_raw<Halves>(from); }

inline Ints ints_of(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  return __builtin_convertvector(load_raw<Bytes>(bytes), Ints);
#endif
}
inline Floats floats_of(const uint8_t* bytes) { return __builtin_convertvector(ints_of(bytes), Floats); }

// One step and few levels: the bits of all bursts in one register.
#if defined(__AVX2__)
constexpr bool kHasTable = true;
#else
constexpr bool kHasTable = false;
#endif

inline Words look_up(Words table, Ints index) {  // by the low bits of the index
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_permutexvar_epi32(0xffff, (__m512i)index, (__m512i)table);
#elif defined(__AVX2__)
  return (Words)_mm256_permutevar8x32_epi32((__m256i)table, (__m256i)index);
#else
  (void)index;
  return table;
#endif
}

inline Words wide_bits(const float* from) { return load_raw<Words>(from); }
inline Words wide_bits(const uint16_t* from) { return widened(load_raw<Halves>(from)); }
inline Floats value_of(Words bits, const float*) { return (Floats)bits; }
inline Floats value_of(Words bits, const uint16_t*) { return (Floats)(bits << 16); }
inline void store_bits(float* to, Words bits) { std::memcpy(to, &bits, sizeof bits); }
inline void store_bits(uint16_t* to, Words bits) {
  const Halves halves = narrowed(bits);
  std::memcpy(to, &halves, sizeof halves);
}

template <class Value>
Words table_of(float step, int32_t max_level) {
  Words table{};
  for (int64_t level = 0; level < kLanes; ++level) {
    Value bursts[kLanes];
    store(bursts, broadcast(step * static_cast<float>(level)));
    table[level] = level <= max_level ? wide_bits(bursts)[0] : ~0u;  // no burst has these bits
  }
  return table;
}

// As read_levels. Nothing is clipped: a ratio beyond the levels looks up other bits.
template <class Value>
bool read_by_table(const Value* bursts, int64_t count, float step, int32_t max_level, uint8_t* levels) {
  const Words table = table_of<Value>(step, max_level);
  const Floats inverse = broadcast(1 / step);
  Words difference{};
  const auto read = [&](const Value* from, uint8_t* to) {
    const Words bits = wide_bits(from);
    const Ints whole = __builtin_convertvector(value_of(bits, from) * inverse + 0.5f, Ints);
    difference |= look_up(table, whole) ^ bits;
    const Bytes bytes = bytes_of(whole);
    std::memcpy(to, &bytes, sizeof bytes);
  };
  const int64_t whole = count - count % kLanes, rest = count - whole;
  for (int64_t i = 0; i < whole; i += kLanes) read(bursts + i, levels + i);
  if (rest) {
    Value values[kLanes] = {};
    uint8_t bytes[kLanes];
    store_bits(values, table[0] + Words{});  // zero, or what a NaN step gives
    std::memcpy(values, bursts + whole, rest * sizeof(Value));
    read(values, bytes);
    std::memcpy(levels + whole, bytes, rest);
  }
  const Words none{};
  return std::memcmp(&difference, &none, sizeof none) == 0;
}

template <class Value>
void write_by_table(const uint8_t* levels, int64_t count, float step, int32_t max_level, Value* bursts) {
  const Words table = table_of<Value>(step, max_level);
  const int64_t whole = count - count % kLanes, rest = count - whole;
  for (int64_t i = 0; i < whole; i += kLanes) store_bits(bursts + i, look_up(table, ints_of(levels + i)));
  if (!rest) return;
  uint8_t bytes[kLanes] = {};
  Value values[kLanes];
  std::memcpy(bytes, levels + whole, rest);
  store_bits(values, look_up(table, ints_of(bytes)));
  std::memcpy(bursts + whole, values, rest * sizeof(Value));
}

bool uses_table(const lbq_packing& p) { return kHasTable && p.num_steps == 1 && p.max_level < kLanes; }

// The bytes of `count` levels; returns whether all values are bursts. Levels are rounded, since a burst in bf16 may lie
// below its multiple of the step.
template <bool kStepPerValue, class Value>
bool read_levels(const Value* bursts, int64_t count, const float* steps, float max_level, uint8_t* levels) {
  decltype(bits_of(bursts)) difference{};
  Floats step = broadcast(*steps), inverse = 1 / step;
  const auto read = [&](const Value* from, const float* step_from, uint8_t* to) {
    if (kStepPerValue) {
      step = load(step_from);
      inverse = 1 / step;
    }
    const Ints whole = level_of(load(from) * inverse + 0.5f, max_level);
    Value again[kLanes];
    store(again, step * __builtin_convertvector(whole, Floats));
    difference |= bits_of(again) ^ bits_of(from);
    const Bytes bytes = bytes_of(whole);
    std::memcpy(to, &bytes, sizeof bytes);
  };
  const int64_t whole = count - count % kLanes, rest = count - whole;
  for (int64_t i = 0; i < whole; i += kLanes) read(bursts + i, steps + i, levels + i);
  if (rest) {
    Value values[kLanes] = {};
    float own_steps[kLanes] = {};
    uint8_t bytes[kLanes];
    std::memcpy(values, bursts + whole, rest * sizeof(Value));
    if (kStepPerValue) std::memcpy(own_steps, steps + whole, rest * sizeof(float));
    read(values, own_steps, bytes);
    std::memcpy(levels + whole, bytes, rest);
  }
  const decltype(difference) none{};
  return std::memcmp(&difference, &none, sizeof none) == 0;
}

template <bool kStepPerValue, class Value>
void write_bursts(const uint8_t* levels, int64_t count, const float* steps, Value* bursts) {
  const Floats one_step = broadcast(*steps);
  const int64_t whole = count - count % kLanes, rest = count - whole;
  for (int64_t i = 0; i < whole; i += kLanes)
    store(bursts + i, (kStepPerValue ? load(steps + i) : one_step) * floats_of(levels + i));
  if (!rest) return;
  uint8_t bytes[kLanes] = {};
  std::memcpy(bytes, levels + whole, rest);
  const Floats step = kStepPerValue ? load_some(steps + whole, rest) : one_step;
  store_some(bursts + whole, step * floats_of(bytes), rest);
}

template <bool kStepPerValue, class Value>
bool pack_block(const lbq_packing& p, const void* from, uint8_t* packed, int64_t index) {
  const PackedBlock block = packed_block(p, index);
  const Value* bursts = static_cast<const Value*>(from) + block.first;
  uint8_t levels[kMostLevels];
  bool are_bursts = true;
  if (uses_table(p))
    are_bursts = read_by_table(bursts, block.count, *p.step, p.max_level, levels);
  else
    each_stretch(p, block.first, block.count, [&](int64_t i, int64_t length, const float* steps) {
      are_bursts = are_bursts && read_levels<kStepPerValue>(bursts + i, length, steps, p.max_level, levels + i);
    });
  if (!are_bursts) return false;
  const int64_t all = block.bytes * block.per_byte;
  for (int64_t i = block.count; i < all; ++i) levels[i] = 0;
  uint8_t* to = packed + block.first_byte;
  std::memcpy(to, levels + all - block.bytes, block.bytes);
  const uint8_t base = static_cast<uint8_t>(p.max_level + 1);  // 0 for 256, with one level per byte
  for (int64_t digit = block.per_byte - 2; digit >= 0; --digit) {
    const uint8_t* next = levels + digit * block.bytes;
    for (int64_t j = 0; j < block.bytes; ++j) to[j] = static_cast<uint8_t>(to[j] * base + next[j]);
  }
  return true;
}

template <bool kStepPerValue, class Value>
void unpack_block(const lbq_packing& p, const uint8_t* packed, void* to, int64_t index) {
  const PackedBlock block = packed_block(p, index);
  Value* bursts = static_cast<Value*>(to) + block.first;
  uint8_t levels[kMostLevels], rest[kPackedBlockBytes];
  std::memcpy(rest, packed + block.first_byte, block.bytes);
  const uint16_t base = static_cast<uint16_t>(p.max_level + 1);
  const uint16_t inverse = static_cast<uint16_t>(65536 / base + 1);  // exact for dividends below 256
  for (int64_t digit = 0; digit + 1 < block.per_byte; ++digit) {
    uint8_t* found = levels + digit * block.bytes;
    for (int64_t j = 0; j < block.bytes; ++j) {
      const uint16_t quotient = static_cast<uint16_t>(static_cast<uint32_t>(rest[j]) * inverse >> 16);
      found[j] = static_cast<uint8_t>(rest[j] - quotient * base);
      rest[j] = static_cast<uint8_t>(quotient);
    }
  }
  std::memcpy(levels + (block.per_byte - 1) * block.bytes, rest, block.bytes);
  if (uses_table(p)) return write_by_table(levels, block.count, *p.step, p.max_level, bursts);
  each_stretch(p, block.first, block.count, [&](int64_t i, int64_t length, const float* steps) {
    write_bursts<kStepPerValue>(levels + i, length, steps, bursts + i);
  });
}

template <bool kStepPerValue>
bool pack_of(const lbq_packing& p, const void* bursts, uint8_t* packed, int64_t block) {
  return p.dtype == LBQ_F32 ? pack_block<kStepPerValue, float>(p, bursts, packed, block)
                            : pack_block<kStepPerValue, uint16_t>(p, bursts, packed, block);
}

template <bool kStepPerValue>
void unpack_of(const lbq_packing& p, const uint8_t* packed, void* bursts, int64_t block) {
  p.dtype == LBQ_F32 ? unpack_block<kStepPerValue, float>(p, packed, bursts, block)
                     : unpack_block<kStepPerValue, uint16_t>(p, packed, bursts, block);
}

}  // namespace

const PackingKernels LBQ_ISA::kPacking{
    [](const lbq_packing& p, const void* bursts, uint8_t* packed, int64_t block) {
      return has_step_per_value(p) ? pack_of<true>(p, bursts, packed, block) : pack_of<false>(p, bursts, packed, block);
    },
    [](const lbq_packing& p, const uint8_t* packed, void* bursts, int64_t block) {
      has_step_per_value(p) ? unpack_of<true>(p, packed, bursts, block) : unpack_of<false>(p, packed, bursts, block);
    }};

}  // namespace lbq
