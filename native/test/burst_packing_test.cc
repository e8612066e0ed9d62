// Packed bursts: the same bytes on every instruction set, the same bits back, and other values refused.
#include <atomic>

#include "tester.h"

namespace {

struct Case {
  lbq_packing packing{};
  std::vector<float> step;
  Values bursts;
  int64_t width;

  Case() {
    packing.max_level = pick<int32_t>({1, 2, 3, 5, 6, 15, 16, 100, 255});
    packing.dtype = pick({LBQ_F32, LBQ_BF16});
    width = packing.dtype == LBQ_F32 ? 4 : 2;
    const int64_t channels = pick<int64_t>({1, 3, 16, 37}), positions = pick<int64_t>({1, 5, 49, 3000});
    packing.size = pick<int64_t>({0, 1, 2}) * channels * positions;
    const int way = rng()() % 3;
    packing.run = way == 0 ? std::max<int64_t>(packing.size, 1) : (way == 1 ? positions : 1);
    packing.num_steps = way == 0 ? 1 : channels;
    const float scale = std::pow(10.0f, 8 * uniform() - 4);
    for (int64_t i = 0; i < packing.num_steps; ++i) step.push_back(scale * (0.5f + uniform()));
    packing.step = step.data();
    bursts = Values(packing.size, 1);
    for (int64_t i = 0; i < packing.size; ++i) draw(i);
  }
  Case(const Case&) = delete;  // the packing points at its steps

  // bf16 levels up to 127: beyond, neighbouring levels may share their bits
  void draw(int64_t i) {
    const int most = packing.dtype == LBQ_F32 ? packing.max_level : std::min(packing.max_level, 127);
    const float gamma = step[i / packing.run % packing.num_steps];
    const float burst = gamma * static_cast<float>(rng()() % (most + 1));
    bursts.floats[i] = burst;
    uint32_t bits;
    std::memcpy(&bits, &burst, sizeof bits);
    bursts.halves[i] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

struct Result {
  bool are_bursts;
  std::vector<uint8_t> packed, unpacked;
};

Result run(const Case& c, int threads) {
  Result r;
  r.packed.resize(lbq_packed_bytes(&c.packing));
  r.unpacked.resize(c.packing.size * c.width);
  std::atomic<bool> are_bursts{true};
  const int64_t blocks = lbq_packing_num_blocks(&c.packing);
  const void* bursts = c.bursts.as(c.packing.dtype);
  spread(blocks, threads, [&](int64_t a, int64_t b) {
    if (lbq_pack_bursts(&c.packing, bursts, r.packed.data(), a, b) == LBQ_NOT_BURSTS) are_bursts = false;
    lbq_unpack_bursts(&c.packing, r.packed.data(), r.unpacked.data(), a, b);
  });
  r.are_bursts = are_bursts;
  return r;
}

bool gives_the_bits_back(const Case& c, const Result& reference, const Result& got) {
  return got.are_bursts && got.packed == reference.packed &&
         (c.packing.size == 0 || std::memcmp(got.unpacked.data(), c.bursts.as(c.packing.dtype), got.unpacked.size()) == 0);
}

bool same_bits(const Result& a, const Result& b) {
  return a.are_bursts == b.are_bursts && a.packed == b.packed && a.unpacked == b.unpacked;
}

// One value that is no burst, at any place, is found by every instruction set.
void refuse_others(Case& c, int index, Report& report) {
  if (c.packing.size == 0) return;
  const int64_t at = rng()() % c.packing.size;
  const float gamma = c.step[at / c.packing.run % c.packing.num_steps];
  for (const float other : {std::nanf(""), -0.0f, -gamma, gamma * 0.4f, gamma * (c.packing.max_level * 2.0f + 1)}) {
    c.bursts.floats[at] = other;
    c.bursts.halves[at] = to_bf16({other})[0];
    for (const std::string& isa : usable_isas()) {
      lbq_set_isa(isa.c_str());
      report(!run(c, 1).are_bursts,
             isa + ", case " + std::to_string(index) + ": takes " + std::to_string(other / gamma) + " steps");
    }
  }
}

}  // namespace

void test_burst_packing(int cases, Report& report) {
  for (int i = 0; i < cases; ++i) {
    Case c;
    compare_isas(c, i, run, gives_the_bits_back, same_bits, report);
    refuse_others(c, i, report);
    const int64_t blocks = lbq_packing_num_blocks(&c.packing);
    report(lbq_pack_bursts(&c.packing, nullptr, nullptr, 0, blocks + 1) == LBQ_BAD_ARGUMENT, "too many blocks are taken");
    lbq_packing wrong = c.packing;
    wrong.max_level = 256;
    report(lbq_unpack_bursts(&wrong, nullptr, nullptr, 0, 0) == LBQ_BAD_ARGUMENT, "level 256 is taken");
  }
}
