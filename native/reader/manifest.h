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

// What a tensor is and where it lies, from the beginning of the payload. No dimensions: there is none.
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

// A network without its numbers: paths, kinds, settings, shapes of tensors and the claimed bounds; and of every node,
// what it reads and where its tensors lie.
struct Manifest {
  Network network;
  std::vector<Entry> entries;
};

// Do something to a node; a GraphError becomes a ReadError with its path.
template <class Do>
void with_path(const Node& node, Do act) {
  try {
    act();
  } catch (const GraphError& error) {
    throw_error(error.rule, "%.200s: %s", node.path.c_str(), error.text);
  }
}

Type read_type(Value value, std::string_view owner);
// Each node for itself.
Manifest read_manifest(Value document);
// Whether nodes fit together (graph.cc): names, order, and the shape rules of operators.h, which fill in the nodes; no
// tensor is read.
void check_graph(Manifest& manifest);

}  // namespace lbq
