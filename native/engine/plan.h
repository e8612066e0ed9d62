// An execution plan: synapses packed for an instruction set, and stages. All terms of a sum (synapses, shortcuts,
// biases) are added in the stage of the neuron or value that reads the sum.
#pragma once

#include <atomic>
#include <functional>
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
  std::vector<int32_t> row_seen, column_seen;  // [rows][height'], [columns][width']: the inverse, or -1
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
  int64_t stride = 0;
  size_t last_use = 0;  // the last stage that reads it
  int64_t instant_size() const { return shape.height * shape.width * stride; }
  int64_t bytes() const { return are_levels ? 1 : 4; }  // of a number
};

struct ExtraTerm {
  int32_t value;
  std::vector<int32_t> weight;  // [stride]; empty: all 1
};

// A sum of synapses, other terms and a bias.
struct Sum {
  Sum(const Shape& shape, bool has_time);
  // One number, one per channel, or one per value.
  void add_bias(const Integers& bias);
  // Intermediate 16-bit sums may wrap around as long as the result fits; biases are added in 32 bits.
  bool fits_int16() const { return low >= INT16_MIN && high <= INT16_MAX && !has_wide; }

  bool has_time;
  Shape shape;
  int64_t stride, outputs;
  std::vector<std::unique_ptr<PackedSynapse>> synapses;
  int64_t low = 0, high = 0;  // of the synapses
  bool has_wide = false;      // whether one of them is wide
  std::vector<ExtraTerm> extras;
  std::vector<int32_t> bias;  // [stride], [height * width][stride], or empty
  bool bias_is_map = false;
};

struct ChunkContext;
struct StageRecord;

// Computes the values of a node, or the outputs of the network.
struct Stage {
  int32_t node;
  std::vector<int32_t> reads;  // the nodes whose values it reads
  Sum sum;                     // of terms, if any
  std::function<void(const ChunkContext& context, const Stage& stage, StageRecord& record)> execute;  // stage.h
};

struct Plan {
  Plan(const Network& network, const EngineKernels& kernels);
  std::vector<Value> values;  // of every node; the last one is the input's
  std::vector<Stage> stages;
  const Value& value(int32_t node) const { return node == kInput ? values.back() : values[node]; }
  Value& value(int32_t node) { return node == kInput ? values.back() : values[node]; }
};

// The node that computes these values: views are those of their input.
int32_t origin_of(const Network& network, int32_t node);

// Plans from the last node to the first, so that only values that a later stage reads are stored.
class Planner {
 public:
  Planner(const Network& network, const EngineKernels& kernels, Plan& plan);
  void add_stages();

  const Node& at(int32_t node) const { return network.nodes[node]; }
  // Let a stage read the values of a node; returns the node that computes them.
  int32_t read(Stage& stage, int32_t node);
  // Add the currents of a node to the sum of a stage: as a term, or the values that another stage stores.
  void add_term(Stage& stage, int32_t node);
  // The product of matrices whose values are stored for this node: its own, or those of the product that it alone reads
  // and rearranges; kInput if there is none.
  int32_t product_of(int32_t node) const;

  const Network& network;
  const EngineKernels& kernels;
  const Plan& plan;

 private:
  void describe_values(std::vector<Value>& values) const;
  void add_stage(int32_t node);

  std::vector<Stage>& stages_;
  std::vector<int32_t> num_readers_;
  std::vector<bool> is_read_;  // by a stage
};

// operators/level_products.cc: whether a product has a kernel for its levels, and the plan of a stage that stores it.
bool has_fast_product(const Network& network, int32_t node);
void plan_product(Planner& planner, Stage& stage, int32_t product);

}  // namespace lbq
