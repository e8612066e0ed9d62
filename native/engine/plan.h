// An execution plan: synapses packed for an instruction set, and steps. All terms of a sum (synapses, shortcuts, biases)
// are added in the step of the neuron or value that reads the sum.
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
  int64_t rows, columns, taps;            // of the window
  std::vector<int32_t> row_of, column_of;  // [rows][height], [columns][width]: output of a pixel under a tap, or -1
  std::vector<int32_t> row_seen, column_seen;  // [rows][height'], [columns][width']: its inverse, or -1
  int64_t encounters, pixels_seen;  // per image: (position, tap) pairs inside of it; pixels read by any tap
  int64_t out_stride, dense_channels, outputs, out_blocks;

  bool is_wide;
  int64_t block_channels, channel_blocks, row_bytes, tile_bytes;
  AlignedBuffer tiles;                        // [channel_blocks][taps][out_blocks]
  std::vector<uint8_t> tile_is_used;  // the same
  AlignedBuffer dense;                        // [out_stride / panel][taps][dense_channels / 4][panel][4]; empty: no dense kernel

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

struct Step {
  enum class Op : uint8_t { kFire, kStore, kPlain, kPool, kReadout } op;
  int32_t node;
  int64_t first_answer;  // kReadout: values of earlier outputs, of one sample at one instant
  Sum sum;              // kFire, kStore
  PackedNeuron neuron;  // kFire
};

struct Plan {
  Plan(const Network& network, const EngineKernels& kernels);
  std::vector<Value> values;  // of every node; the last one is the input's
  std::vector<Step> steps;
  const Value& value(int32_t node) const { return node == kInput ? values.back() : values[node]; }
};

// The node that computes these values: repeats are views of their input.
int32_t origin_of(const Network& network, int32_t node);

}  // namespace lbq
