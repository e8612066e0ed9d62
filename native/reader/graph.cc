#include <cinttypes>
#include <unordered_map>

#include "manifest.h"
#include "rules.h"

namespace lbq {
namespace {

// Number the nodes that every node reads.
void find_inputs(Manifest& manifest) {
  std::unordered_map<std::string_view, int32_t> known;
  known.reserve(1 + manifest.entries.size());
  known.emplace("input", kInput);
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    Node& node = manifest.network.nodes[i];
    require(known.find(node.path) == known.end(), LBQ_RULE_NAME, "two nodes are called %s", node.path.c_str());
    node.inputs.reserve(manifest.entries[i].reads.size());
    for (std::string_view path : manifest.entries[i].reads) {
      const auto found = known.find(path);
      require(found != known.end(), LBQ_RULE_ORDER, "%s reads a node that is not before it", node.path.c_str());
      node.inputs.push_back(found->second);
    }
    known.emplace(node.path, static_cast<int32_t>(i));
  }
}

// Limit the work of the overflow proof, which visits every channel of every node.
void check_proof(const Network& network) {
  int64_t work = 0;
  for (const Node& node : network.nodes) {
    const auto visits = operator_of(node.kind).visits;
    work += visits ? visits(node, network.timesteps) : static_cast<int64_t>(node.inputs.size()) * node.to.channels;
  }
  require(work <= kMaxProof, LBQ_RULE_SIZE, "%" PRId64 " inputs, thresholds and timesteps to prove", work);
}

void check_types(const Network& network) {
  for (const Node& node : network.nodes) {
    const int32_t bits = node.weight_bits;
    require(node.weight.count == 0 || (bits != 0 && (node.weight.width == 2) == (bits == 16)), LBQ_RULE_DTYPE,
            "the type of %s's weights does not hold %d bits", node.path.c_str(), bits);
  }
}

}  // namespace

void check_graph(Manifest& manifest) {
  Network& network = manifest.network;
  find_inputs(manifest);
  require(network.input.rank <= 3, LBQ_RULE_SHAPE, "input_shape has %d dimensions", network.input.rank);
  std::vector<ValueInfo> inputs;
  for (Node& node : network.nodes) {
    inputs.clear();
    for (int32_t input : node.inputs) inputs.push_back(network.value(input));
    for (const ValueInfo& input : inputs)
      require(saturating_size(input.shape) <= kMaxValues, LBQ_RULE_SIZE, "%s reads more than 2^24 values",
              node.path.c_str());
    with_path(node, [&] { infer(node, inputs, network.timesteps); });
  }
  with_path(network.nodes.back(), [&] { check_outputs(network); });
  check_proof(network);
  check_types(network);
}

}  // namespace lbq
