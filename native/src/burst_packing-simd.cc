// Packed bursts in vectors: a block's levels as bytes first, then as digits.
#include "vectors.h"

namespace lbq {
namespace {

constexpr int64_t kMostLevels = 8 * kPackedBlockBytes;

inline Words bits_of(const float* from) { return load_raw<Words>(from); }
inline Halves bits_of(const uint16_t* from) { return load_raw<Halves>(from); }

inline Floats floats_of(const uint8_t* bytes) {
#if defined(__AVX512F__)
  const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  return __builtin_convertvector((Ints)_mm512_maskz_cvtepu8_epi32(0xffff, loaded), Floats);
#elif defined(__AVX2__)
  const __m128i loaded = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return __builtin_convertvector((Ints)_mm256_cvtepu8_epi32(loaded), Floats);
#else
  return __builtin_convertvector(load_raw<Bytes>(bytes), Floats);
#endif
}

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
