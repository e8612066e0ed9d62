#include "check_network.h"

#include <algorithm>
#include <string>

#include "operators.h"
#include "plan.h"

namespace lbq {
namespace {

void check_tensors(const Node& node) {
  for (const Role& role : operator_of(node.kind).roles) {
    if (role.name == nullptr) break;
    const Integers& tensor = node.*role.tensor;
    require_rule(tensor.count > 0 || role.is_optional, LBQ_RULE_TENSORS, "its %s is missing", role.name);
    if (tensor.count == 0) continue;
    int64_t count = 1;
    for (int i = 0; i < tensor.num_dims; ++i) count = saturating_product(count, tensor.shape[i]);
    require_rule(tensor.num_dims >= 1 && count == tensor.count && tensor.data != nullptr, LBQ_RULE_SHAPE,
                 "its %s has %lld integers, its shape more or less", role.name, static_cast<long long>(tensor.count));
    const bool is_width = tensor.width == 1 || tensor.width == 2 || tensor.width == 4;
    require_rule(is_width && (tensor.width & role.widths) != 0, LBQ_RULE_DTYPE, "its %s has integers of %d bytes",
                 role.name, tensor.width);
  }
}

void check_node(Network& network, size_t index, std::vector<ValueInfo>& inputs) {
  Node& node = network.nodes[index];
  const Operator& op = operator_of(node.kind);
  const int64_t count = static_cast<int64_t>(node.inputs.size());
  require_rule(count >= op.least_inputs && count <= op.most_inputs, LBQ_RULE_VALUE, "a %s reads %d inputs", op.name,
               static_cast<int>(count));
  inputs.clear();
  for (int32_t input : node.inputs) {
    require_rule(input >= kInput && input < static_cast<int32_t>(index), LBQ_RULE_ORDER,
                 "it reads node %d, which is not before it", input);
    inputs.push_back(network.value(input));
  }
  check_tensors(node);
  require_rule(saturating_size(infer(node, inputs, network.timesteps).shape) <= kMaxValues, LBQ_RULE_SIZE,
               "it gives more than 2^24 values");
  if (op.check) op.check(node);
  const Bound& bound = node.bound;
  require_rule((bound.bits == 0 || bound.bits == 16 || bound.bits == 32) && bound.low <= bound.high, LBQ_RULE_VALUE,
               "a bound of %d bits", bound.bits);
}

// ---- fits_packed ----

// Counts are doubles, which cannot overflow.
constexpr double kWeights = 1 << 23, kEntries = 1 << 25;  // always accepted
constexpr double kPadding = 8;                            // accepted growth by padding
constexpr double kPositions = 4096;                       // per block, about

double padded(const Shape& shape) {
  return static_cast<double>(channel_stride(shape.channels) * shape.height * shape.width);
}

// Packed weights and table entries of one node.
struct Needs {
  double packed = 0, tables = 0;

  explicit Needs(const Node& node) {
    if (node.weight.num_dims < 2) return;  // not of a synapse
    const double taps = static_cast<double>(node.weight.count / (node.to.channels * (node.from.channels / node.groups)));
    const Window window = window_of(node);
    packed = taps * static_cast<double>(channel_stride(node.to.channels)) *
             static_cast<double>(channel_stride(node.from.channels));
    tables = static_cast<double>(window.kernel[0]) * static_cast<double>(node.from.height + node.to.height) +
             static_cast<double>(window.kernel[1]) * static_cast<double>(node.from.width + node.to.width) +
             taps * std::min(static_cast<double>(node.to.height * node.to.width), kPositions);
  }
};

bool is_huge(const Window& window) {
  return static_cast<double>(window.kernel[0]) * static_cast<double>(window.kernel[1]) > kEntries;
}

}  // namespace

void check_network(Network& network) {
  std::string where = "lbq: ";
  try {
    require_rule(network.timesteps >= 1 && network.timesteps <= kMaxTimesteps, LBQ_RULE_TIMESTEPS,
                 "the network has %lld timesteps", static_cast<long long>(network.timesteps));
    const Shape& input = network.input;
    require_rule(std::min({input.channels, input.height, input.width}) >= 1 && saturating_size(input) <= kMaxValues,
                 LBQ_RULE_SIZE, "the input has no size, or more than 2^24 values");
    require_rule(!network.nodes.empty(), LBQ_RULE_COUNT, "the network has no nodes");
    std::vector<ValueInfo> inputs;
    for (size_t i = 0; i < network.nodes.size(); ++i) {
      const std::string& path = network.nodes[i].path;
      where = "lbq: node " + std::to_string(i) + (path.empty() ? "" : " (" + path + ")") + ": ";
      check_node(network, i, inputs);
    }
    where = "lbq: ";
    check_outputs(network);
  } catch (const GraphError& error) {
    throw BadNetwork(where + error.text);
  }
}

bool fits_packed(const Network& network) {
  double packed = 0, tables = 0, values = padded(network.input);
  int64_t weights = 0, given = network.input.size();
  for (const Node& node : network.nodes) {
    if (is_huge(node.window)) return false;
    const Needs needs(node);
    packed += needs.packed;
    tables += needs.tables;
    weights += node.weight.count;
    values += padded(node.to);
    given += node.to.size();
  }
  return packed <= std::max(kWeights, kPadding * static_cast<double>(weights)) && tables <= kEntries &&
         values <= std::max(kEntries, kPadding * static_cast<double>(given));
}

}  // namespace lbq
