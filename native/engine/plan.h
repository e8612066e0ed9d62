// An execution plan: synapses packed for an instruction set, and stages. All terms of a sum (synapses, shortcuts, biases)
// are added in the stage of the neuron or value that reads the sum.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"
#include "network.h"

namespace lbq {

// Uninitialised memory, aligned to a page.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes);
  char* data() { return bytes_.get(); }
  const char* data() const { return bytes_.get(); }
  int64_t size() const { return size_; }
  template <class Value>
  Value* as() {
    return reinterpret_cast<Value*>(data());
  }

 private:
  struct Free {
    std::align_val_t alignment;
    void operator()(char* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<char[], Free> bytes_;
  int64_t size_ = 0;
};

// Outputs per block of sums, and elements between two pixels, for a number of channels.
int64_t outputs_per_block(int64_t channels);
int64_t channel_stride(int64_t channels);

// A synapse that reads levels. A linear layer is a convolution whose window covers the input.
struct PackedSynapse {
  PackedSynapse(const Node& node, const EngineKernels& kernels);

  int32_t node_input;  // the node whose levels it reads
  Shape from, to;
  Window window;
  int64_t rows, columns, taps;            // of the window
  std::vector<int32_t> row_of, column_of;  // [rows][height], [columns][width]: output of a pixel under a tap, or -1
  std::vector<int32_t> row_seen, column_seen;  // [rows][height'], [columns][width']: its inverse, or -1
  int64_t encounters, pixels_seen;  // per image: (position, tap) pairs inside of it; pixels read by any tap
  int64_t out_stride, dense_channels, outputs, out_blocks;

  bool is_wide;
  std::vector<int16_t> depthwise;  // [taps / 2][out_stride][2]: one input and output per group; the rest is empty then
  int64_t block_channels, channel_blocks, row_bytes, tile_bytes;
  AlignedBuffer tiles;                        // [channel_blocks][taps][out_blocks]
  std::vector<uint8_t> tile_is_used;  // the same
  AlignedBuffer dense;                        // [out_stride / panel][taps][dense_channels / 4][panel][4]; empty: no dense kernel

  int64_t narrow_quads = 0;  // products of so many quads of a panel, one after the other, fit 16 bits

  // The last choice, for the hysteresis of choose_dense().
  mutable std::atomic<bool> was_dense{false};

 private:
  void find_outputs(const Window& window);
  void pack(const Node& node, const EngineKernels& kernels);
};

// The values of a node: levels, currents or counts [T, B, height * width, stride]; without time [B, ...].
struct Value {
  bool are_levels = false;  // bytes; otherwise int32
  bool has_time = true;
  Shape shape;
  int64_t stride = 0, last_use = 0;
};

struct ExtraTerm {
  int32_t value;
  std::vector<int32_t> weight;  // [stride]; empty: one
};

// A sum of synapses, other terms and a bias.
struct Sum {
  bool has_time = true, fits_int16 = false;
  Shape shape;
  int64_t stride = 0, outputs = 0;
  std::vector<std::unique_ptr<PackedSynapse>> synapses;
  std::vector<ExtraTerm> extras;
  std::vector<int32_t> bias;  // [stride], [height * width][stride], or empty
  bool bias_is_map = false;
};

struct PackedNeuron {
  std::vector<int32_t> thresholds, reset_amount;  // [N][stride], [stride]
};

// The values of a node behind moves: which value lies where.
struct MovedValue {
  MovedValue(const Network& network, const struct Plan& plan, int32_t node);
  int32_t value;               // the node whose values are read
  std::vector<int32_t> table;  // places in the memory of one instant; -1: zero
};

// A product of matrices of levels, level_product.h.
struct LevelProduct {
  // `written`: the node whose value is stored, the product itself or a rearrangement of it.
  LevelProduct(const Network& network, const struct Plan& plan, const EngineKernels& kernels, int32_t product,
               int32_t written);
  MovedValue left, right;  // [groups][rows][terms]; packed in tiles, [groups][blocks][pairs][outputs][2]
  int64_t groups, rows, columns, terms;
  int64_t pairs, outputs, blocks, tile_pairs;
  std::vector<int32_t> right_rows;  // [groups][terms]: where rows of the right operand lie, if all lie side by side
  bool has_right_rows;
  std::vector<int32_t> places, place_rows;  // of every product in the memory of one instant; of whole rows, or -1
};

struct Stage {
  enum class Op : uint8_t { kFire, kStore, kPlain, kProduct, kPool, kReadout } op;
  int32_t node;
  int64_t first_answer;  // kReadout: values of earlier outputs, of one sample at one instant
  Sum sum;              // kFire, kStore
  PackedNeuron neuron;  // kFire
  std::unique_ptr<LevelProduct> product;  // kProduct
};

struct Plan {
  Plan(const Network& network, const EngineKernels& kernels);
  std::vector<Value> values;  // of every node; the last one is the input's
  std::vector<int32_t> product_of;  // per node: the fast product whose values it stores, or kInput
  std::vector<Stage> stages;
  const Value& value(int32_t node) const { return node == kInput ? values.back() : values[node]; }
};

// The node that computes these values: repeats are views of their input.
int32_t origin_of(const Network& network, int32_t node);

}  // namespace lbq
