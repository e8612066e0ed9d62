// The manifest: a network without its numbers.
#pragma once

#include <vector>

#include "engine/network.h"
#include "json.h"

namespace lbq {

enum class Type : uint8_t { kI8, kI16, kI32, kF32, kF64 };
int64_t num_bytes(Type type);

// What a tensor is and where it lies, from the beginning of the payload. No dimensions: there is none.
struct Region {
  Type type = Type::kI8;
  int num_dims = 0;
  int64_t shape[4] = {};
  int64_t offset = 0;

  bool exists() const { return num_dims > 0; }
  bool is(std::initializer_list<int64_t> sizes) const;
  int64_t num_values() const;  // saturates
  int64_t num_bytes() const;   // saturates
};
bool operator==(const Region& one, const Region& other);

// A product that stays at the largest integer where it would pass it; for sizes, which are not negative.
int64_t saturating_product(int64_t one, int64_t other);

// Words of the settings, by their place in the reader's lists.
enum OverTime { kMean, kSum, kSequence };

struct Entry {
  Node node;  // kind, path, settings and the claimed bound; the graph fills in the rest
  std::vector<std::string_view> reads;
  Region tensors[2];  // weight, bias; or thresholds, reset_amount
  int64_t repeats = 0;
  int over_time = 0;
};

struct Manifest {
  int64_t timesteps = 0;
  int num_input_dims = 0;
  int64_t input_shape[4] = {};
  bool takes_frames = false;
  double logit_scale = 0;
  std::vector<Entry> entries;
};

// The names of a kind's tensors, as many as it has; nullptr behind them.
const char* const* roles(Kind kind);

Type read_type(Value value, std::string_view owner);
// Each node for itself.
Manifest read_manifest(Value document);
// What flows from node to node (graph.cc): order, shapes, time, levels and currents. Fills in every node's inputs,
// shapes, window and levels; no tensor is read.
void check_graph(Manifest& manifest);

}  // namespace lbq
