// What the engine asks of an instruction set, and the set in use.
//
// Levels lie as bytes, channels last; a pixel's channels are padded with zeros to a multiple of 32. What
// synapses add up lies in blocks of 32, 64 or 128 outputs: sums[position][outputs], int16 or int32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cost_model.h"

namespace lbq {

constexpr int64_t kChannelStep = 32;  // channels of levels come in multiples of this

// ---- event-driven: pairs of channels that are not both zero ----

// One pixel whose pairs meet one tile of weights: where its sums lie (bytes), where its list begins.
struct Visit {
  uint32_t place, list;
};
// Visits whose lists are equally long follow each other, so that branches are foreseen.
struct Run {
  uint32_t length, count;
};

// How a tile multiplies. Narrow: int8 weights, int16 sums while a list lasts, which the packer proved
// to fit. Wide: int16 weights, int32 sums, which fit always.
enum class PairMode : uint8_t { kNarrowTo16, kNarrowToInt32, kWide };

struct PairTile {
  const uint32_t* levels;  // of every entry, as `pair_levels` writes them
  const uint16_t* rows;    // of every entry: the byte in the tile where its weights begin
  const Visit* visits;
  const Run* runs;
  int64_t num_runs;
  const char* weights;
  const char* next;         // the tile that follows, to be fetched meanwhile
  int64_t lines_per_visit;  // how much of it
  char* sums;
};

// ---- dense: every channel ----

struct DenseBlock {
  const uint8_t* const* pixels;  // [taps][positions]: where the channels lie that a position sees
  int64_t taps, positions, channels;
  const int8_t* weights;    // [blocks][outputs / panel][taps][channels / 4][panel][4]
  int64_t blocks, outputs;  // outputs of a block: 32, 64 or 128
  int64_t used;             // outputs of all blocks that are there; the rest is padding
  int32_t* sums;            // [blocks][positions][outputs], added to, or written where
  bool overwrites;           // nothing was added to them yet

  // The panel that begins with this output.
  const int8_t* panel_of(int64_t block, int64_t output) const {
    return weights + (block * outputs + output) * taps * channels;
  }
  int32_t* sums_of(int64_t block) const { return sums + block * positions * outputs; }
};

// ---- what comes behind the sums ----

// A term that is not in the sums: levels or currents, times a weight.
struct Extra {
  const uint8_t* levels;    // [T][positions][channels], or
  const int32_t* currents;  // the same
  const int32_t* weight;    // [channels]; null: one
  int64_t time_stride;      // elements; 0: the same at every timestep
  int64_t position_stride;  // elements
};

struct CurrentBlock {
  int64_t timesteps, positions, outputs;
  int64_t used;            // outputs that are there; the rest is padding, whose levels are zero
  const char* sums;        // null: only the other terms
  bool are_int16;          // otherwise int32
  int64_t sum_stride;      // bytes between timesteps; 0: still
  const int32_t* bias;     // [channels] or [positions][channels]; null: none
  int64_t bias_stride;     // 0, or elements between positions
  const Extra* extras;
  int64_t num_extras;
};

struct NeuronBlock {
  const int32_t* thresholds;   // [N][channels]
  const int32_t* reset_amount;  // [channels]
  int64_t channels;        // between two rungs
  int32_t max_level, multiplier, shift, reset;  // reset: as enum class Reset
  bool resets_after_decay;
  int32_t* carry;          // [positions][stride], in and out
  uint8_t* levels;         // [T][positions][stride]
  int64_t time_stride, position_stride;
};

struct EngineKernels {
  const char* isa;
  int64_t max_narrow_level;  // narrow tiles take no larger ones
  // Where a row of a tile keeps the weight of an output and of the pair's first or second channel.
  int64_t (*narrow_offset)(int64_t output, int64_t channel);
  int64_t (*wide_offset)(int64_t output, int64_t channel);
  void (*pair_tile)(PairMode mode, int64_t outputs, const PairTile& tile);
  // Write the list of one pixel, `count` channels (a multiple of 32): its length. May write 32 entries more.
  int64_t (*list_pairs)(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                        uint16_t* rows);
  // How many pairs of these bytes (a multiple of 32) are not both zero.
  int64_t (*count_pairs)(const uint8_t* bytes, int64_t count);
  void (*dense_block)(const DenseBlock& block);
  int64_t dense_panel;  // outputs that it takes at once
  // Pairs of weights that would not fit 16 bits are refused by instruction sets that add them up there.
  bool dense_adds_pairs;
  const KernelCosts* costs;  // null: there is no dense road
  void (*fire)(const CurrentBlock& currents, const NeuronBlock& neuron);
  void (*store)(const CurrentBlock& currents, int32_t* to, int64_t time_stride, int64_t position_stride);
};

// The best of this machine that is not better than LBQ_ISA, or the one of that name; null if there is none.
const EngineKernels* engine_kernels(const char* isa_or_null);

}  // namespace lbq
