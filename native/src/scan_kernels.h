// What an instruction set provides for the burst neuron: each pass over one block, and how work is split into blocks.
#pragma once

#include "lbq.h"

namespace lbq {

struct BurstKernels {
  void (*forward)(const lbq_scan&, const lbq_forward_buffers&, int64_t block);
  void (*backward)(const lbq_scan&, const lbq_backward_buffers&, int64_t block);
};

struct BaselineKernels {
  void (*forward)(const lbq_baseline_scan&, const lbq_forward_buffers&, int64_t block);
  void (*backward)(const lbq_baseline_scan&, const lbq_backward_buffers&, double* mixture_sums, int64_t block);
};

// Batch norm, shortcut and neuron in one.
struct NormedKernels {
  void (*moments)(const lbq_normed_scan&, double* sums, int64_t block);
  void (*forward)(const lbq_normed_scan&, void* bursts, uint8_t* levels, int64_t block);
  void (*backward)(const lbq_normed_scan&, const lbq_normed_grads&, int64_t block);
  void (*norm_backward)(const lbq_normed_scan&, const lbq_norm_grad_coefficients&, const void* grad_normed,
                        void* grad_currents, int64_t block);
};

// The cost of levels.
struct CostKernels {
  void (*sums)(const lbq_level_cost&, double* sums, int64_t block);
  void (*backward)(const lbq_level_cost&, const void* grad, float scale, void* grad_out, int64_t block);
};

// Bursts as packed levels; `pack` returns whether all values are bursts.
struct PackingKernels {
  bool (*pack)(const lbq_packing&, const void* bursts, uint8_t* packed, int64_t block);
  void (*unpack)(const lbq_packing&, const uint8_t* packed, void* bursts, int64_t block);
};

// One namespace per instruction set; "scalar" is the reference that the others are tested against.
#define LBQ_SCAN_KERNELS(isa)             \
  namespace isa {                         \
  extern const BurstKernels kBurst;       \
  extern const BaselineKernels kBaseline; \
  extern const NormedKernels kNormed;     \
  extern const CostKernels kCost;         \
  extern const PackingKernels kPacking;   \
  }
LBQ_SCAN_KERNELS(scalar)
LBQ_SCAN_KERNELS(avx2)
LBQ_SCAN_KERNELS(avx512)
LBQ_SCAN_KERNELS(avx512bf16)
LBQ_SCAN_KERNELS(neon)
#undef LBQ_SCAN_KERNELS

struct ScanKernels {
  const char* isa;
  const BurstKernels& burst;
  const BaselineKernels& baseline;
  const NormedKernels& normed;
  const CostKernels& cost;
  const PackingKernels& packing;
};

// The kernels in use: lbq_isa, lbq_set_isa.
const ScanKernels& scan_kernels();

// Whether a scan has valid sizes and this range of blocks (burst_scan.cc).
bool is_valid_scan(const lbq_scan* scan, int64_t first_block, int64_t last_block);

// Everything below has internal linkage: files of several instruction sets include it, and one shared copy could hold
// instructions that the machine lacks.

constexpr int64_t kBlockValues = 4096;

// The values of a block: `rows` rows of `count` consecutive values. All of them share one step, or
// every column has its own (channels last).
struct Block {
  int64_t first, rows, count;
  const float* step;
  bool step_per_column;
};

static inline Block block_at(const lbq_scan& scan, int64_t index) {
  if (scan.run == 1) {  // rows of num_steps values, as many as make a block
    const int64_t all_rows = scan.size / scan.num_steps;
    const int64_t per_block = kBlockValues / scan.num_steps > 0 ? kBlockValues / scan.num_steps : 1;
    const int64_t row = index * per_block;
    const int64_t rows = all_rows - row < per_block ? all_rows - row : per_block;
    return {row * scan.num_steps, rows, scan.num_steps, scan.step, true};
  }
  const int64_t per_run = (scan.run + kBlockValues - 1) / kBlockValues;
  const int64_t run = index / per_run, begin = index % per_run * kBlockValues;
  const int64_t count = scan.run - begin < kBlockValues ? scan.run - begin : kBlockValues;
  return {run * scan.run + begin, 1, count, scan.step + run % scan.num_steps, false};
}

constexpr int64_t kNormedBlockValues = 8192;

// The rows of a block of a normed scan, at every timestep.
struct Rows {
  int64_t first, last;
};

static inline int64_t normed_rows_per_block(const lbq_normed_scan& normed) {
  const int64_t rows = kNormedBlockValues / normed.channels;
  return rows > 0 ? rows : 1;
}

static inline Rows normed_rows(const lbq_normed_scan& normed, int64_t block) {
  const int64_t all = normed.scan.size / normed.channels, count = normed_rows_per_block(normed);
  const int64_t first = block * count;
  return {first, all - first < count ? all : first + count};
}

constexpr int64_t kPackedBlockBytes = 1024;

// The values of a block of packed bursts. Byte j holds the levels j, j + bytes, j + 2 bytes, ..., the first of them as
// the lowest digit.
struct PackedBlock {
  int64_t first, count, first_byte, bytes, per_byte;
};

static inline int64_t levels_per_byte(int32_t max_level) {
  int64_t per_byte = 1;
  for (int64_t values = max_level + 1; values * (max_level + 1) <= 256; values *= max_level + 1) ++per_byte;
  return per_byte;
}

static inline PackedBlock packed_block(const lbq_packing& p, int64_t index) {
  const int64_t per_byte = levels_per_byte(p.max_level), first = index * kPackedBlockBytes * per_byte;
  const int64_t rest = p.size - first, whole = kPackedBlockBytes * per_byte, count = rest < whole ? rest : whole;
  return {first, count, index * kPackedBlockBytes, (count + per_byte - 1) / per_byte, per_byte};
}

// Call visit(i, length, steps) for every stretch of the values first + i that has one step, or one per value if they
// cycle (channels last).
template <class Visit>
static inline void each_stretch(const lbq_packing& p, int64_t first, int64_t count, Visit visit) {
  for (int64_t i = 0, length; i < count; i += length) {
    const int64_t at = first + i, step = at / p.run % p.num_steps;
    length = p.run > 1 ? p.run - at % p.run : p.num_steps - step;
    if (p.num_steps == 1 || length > count - i) length = count - i;
    visit(i, length, p.step + step);
  }
}

static inline bool has_step_per_value(const lbq_packing& p) { return p.run == 1 && p.num_steps > 1; }

// One value through all timesteps, for what does not fill a vector (burst_scan-scalar.cc). `other` is tail, decay, reset.
void forward_value(const lbq_scan& scan, const lbq_forward_buffers& buffers, int64_t index, float step);
void backward_value(const lbq_scan& scan, const lbq_backward_buffers& buffers, int64_t index, float step,
                    double& step_sum, double* other);

}  // namespace lbq
