// The manifest: a network without its numbers.
#pragma once

#include <vector>

#include "engine/operators.h"
#include "json.h"

namespace lbq {

// Types of tensors, and their bytes.
#define LBQ_TYPES(with) with(I8, 1) with(I16, 2) with(I32, 4) with(F32, 4) with(F64, 8)

enum class Type : uint8_t {
#define LBQ_TYPE(name, bytes) k##name,
  LBQ_TYPES(LBQ_TYPE)
#undef LBQ_TYPE
};
int64_t num_bytes(Type type);

// Type, shape and offset of a tensor, from the beginning of the payload. Without dimensions, the tensor is absent.
struct Region {
  Type type = Type::kI8;
  int num_dims = 0;
  int64_t shape[4] = {};
  int64_t offset = 0;

  bool exists() const { return num_dims > 0; }
  int64_t num_values() const;  // saturates
  int64_t num_bytes() const;   // saturates
};
bool operator==(const Region& one, const Region& other);

struct Entry {
  std::vector<std::string_view> reads;
  Region tensors[kMaxRoles];
};

// A network without its numbers: paths, kinds, inputs and settings of nodes, the bounds that the file states, and the
// regions of the tensors.
struct Manifest {
  Network network;
  std::vector<Entry> entries;
};

// Call a function on a node; a GraphError becomes a ReadError with the path of the node.
template <class Do>
void with_path(const Node& node, Do act) {
  try {
    act();
  } catch (const GraphError& error) {
    throw_error(error.rule, "%.200s: %s", node.path.c_str(), error.text);
  }
}

Type read_type(Value value, std::string_view owner);
// Checks each node separately.
Manifest read_manifest(Value document);
// Checks that nodes fit together (graph.cc): names, order, and the shape rules of operators.h, which fill in the nodes.
// Reads no tensor.
void check_graph(Manifest& manifest);

}  // namespace lbq
