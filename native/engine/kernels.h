// The kernels of the engine for one instruction set.
//
// Levels are bytes, channels last; a pixel's channels are padded with zeros to a multiple of 32. Sums of synapses are
// stored in blocks of 32, 64 or 128 outputs: sums[position][outputs], int16 or int32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cost_model.h"
#include "lbq.h"

namespace lbq {

constexpr int64_t kChannelStep = 32;  // channels are padded to a multiple of this

// ---- event-driven: pairs of channels with a nonzero level ----

// A pixel that multiplies its list by one tile of weights: byte offset of its sums, first entry of its list.
struct Visit {
  uint32_t place, list;
};
// Consecutive visits with lists of the same length, so that branches are predicted.
struct Run {
  uint32_t length, count;
};

// Narrow: int8 weights, int16 sums within a list, proven to fit when the weights were packed. Wide: int16 weights,
// int32 sums.
enum class PairMode : uint8_t { kNarrowTo16, kNarrowToInt32, kWide };

struct PairTile {
  const uint32_t* levels;  // per entry, as list_pairs writes them
  const uint16_t* rows;    // per entry: byte offset of its weights in the tile
  const Visit* visits;
  const Run* runs;
  int64_t num_runs;
  const char* weights;
  const char* next;         // the next tile, to be prefetched
  int64_t lines_per_visit;  // cache lines to prefetch per visit
  char* sums;
};

// EngineKernels::list_pairs and count_pairs without vectors (kernels-scalar.cc).
int64_t list_pairs_scalar(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                          uint16_t* rows);
int64_t count_pairs_scalar(const uint8_t* bytes, int64_t count);

// ---- dense: every channel ----

struct DenseBlock {
  const uint8_t* const* pixels;  // [positions]: the channels that a position reads through a tap,
  const int64_t* taps_at;        // this many bytes from there
  const int64_t* quads_at;       // [taps * channels / 4]: the same for every four channels; only where dense_is_narrow
  int64_t narrow_quads;          // quads whose products add up in 16 bits
  int64_t step;                  // bytes between positions 2i and 2i + 1; 0: it differs
  int64_t taps, positions, channels;
  const int8_t* weights;    // [blocks][outputs / panel][taps][channels / 4][panel][4]
  int64_t blocks, outputs;  // outputs of a block: 32, 64 or 128
  int64_t used;             // outputs of all blocks without padding
  int32_t* sums;            // [blocks][positions][outputs]; those of padding may stay unwritten
  bool overwrites;          // store to `sums` instead of adding to them

  // The panel that begins with this output.
  const int8_t* panel_of(int64_t block, int64_t output) const {
    return weights + (block * outputs + output) * taps * channels;
  }
  int32_t* sums_of(int64_t block) const { return sums + block * positions * outputs; }
};

// ---- depthwise: one window per channel ----

struct DepthwiseBlock {
  const uint8_t* levels;  // of an image with its padding, from the first block's channel on
  int64_t rows, columns;  // of the outputs
  int64_t row_step, column_step;  // bytes between the windows of neighbouring outputs
  int64_t taps;
  const int64_t* taps_at;  // bytes from the corner of a window to each tap
  const int16_t* weights;  // [taps / 2][stride][2] by depthwise_offset, from the first block's channel on
  int64_t stride, blocks, outputs;
  int32_t* sums;       // [blocks][rows][columns][outputs], added to
  int64_t block_size;  // numbers between two blocks of sums
};

// ---- epilogue: currents, neurons ----

// A term that is not in the sums: levels or currents, times a weight.
struct Extra {
  const uint8_t* levels;    // [T][positions][channels], or
  const int32_t* currents;  // the same
  const int32_t* weight;    // [channels]; null: all 1
  int64_t time_stride;      // elements; 0: the same at every timestep
  int64_t position_stride;  // elements
};

struct CurrentBlock {
  int64_t timesteps, positions, outputs;
  int64_t used;            // outputs without padding; levels and currents of padding become zero
  const char* sums;        // null: only the other terms
  bool are_int16;          // otherwise int32
  int64_t sum_stride;      // bytes between timesteps; 0: no time
  const int32_t* bias;     // [channels] or [positions][channels]; null: none
  int64_t bias_stride;     // 0, or elements between positions
  const Extra* extras;
  int64_t num_extras;
};

struct NeuronBlock {
  const int32_t* thresholds;   // [N][channels]
  const int32_t* reset_amount;  // [channels]
  int64_t channels;        // between two thresholds
  int32_t max_level, multiplier, shift;
  lbq_reset_mode reset;
  bool resets_after_decay;
  int32_t* carry;          // [positions][stride], in and out
  uint8_t* levels;         // [T][positions][stride]
  int64_t time_stride, position_stride;
};

struct EngineKernels {
  const char* isa;
  int64_t max_narrow_level;  // largest level that narrow tiles support
  // Index, in a row of a tile, of the weight of an output and the first or second channel of the pair.
  int64_t (*narrow_offset)(int64_t output, int64_t channel);
  int64_t (*wide_offset)(int64_t output, int64_t channel);
  void (*pair_tile)(PairMode mode, int64_t outputs, const PairTile& tile);
  // Write the list of one pixel with `count` channels (a multiple of 32) and return its length. May write 32 entries
  // more.
  int64_t (*list_pairs)(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                        uint16_t* rows);
  // Count the pairs of bytes that are not both zero; `count` is a multiple of 32.
  int64_t (*count_pairs)(const uint8_t* bytes, int64_t count);
  void (*dense_block)(const DenseBlock& block);
  int64_t dense_panel;  // outputs per panel of weights
  // Whether the dense kernel adds up products in 16 bits; synapses with larger sums get no dense kernel.
  bool dense_is_narrow;
  const KernelCosts* costs;  // null: no dense kernel
  // Index of the weight of a channel and of the first or second tap of two.
  int64_t (*depthwise_offset)(int64_t channel, int64_t tap);
  void (*depthwise_block)(const DepthwiseBlock& block);
  void (*fire)(const CurrentBlock& currents, const NeuronBlock& neuron);
  void (*store)(const CurrentBlock& currents, int32_t* to, int64_t time_stride, int64_t position_stride);
};

// The kernels for the instruction set of this name, or the best ones that LBQ_ISA allows; null if not available.
const EngineKernels* engine_kernels(const char* isa_or_null);

}  // namespace lbq
