#include "numbers.h"

#include <algorithm>

#include "rules.h"

namespace lbq {
namespace {

void check_bits(const Node& node) {
  const int64_t largest = (int64_t{1} << (node.weight_bits - 1)) - 1;
  const bool fits = with_type(node.weight, [&](const auto* weights) {
    const auto [low, high] = std::minmax_element(weights, weights + node.weight.count);
    return *low >= -largest && *high <= largest;
  });
  require(fits, LBQ_RULE_BITS, "weights of %s do not lie in their %d bits", node.path.c_str(),
          node.weight_bits);
}

void check_neuron(const Node& node) {
  const int32_t* thresholds = static_cast<const int32_t*>(node.thresholds.data);
  const int32_t* reset_amount = static_cast<const int32_t*>(node.reset_amount.data);
  const int64_t columns = node.thresholds.count / node.max_level;
  for (int64_t i = 0; i < node.thresholds.count; ++i) {
    require(thresholds[i] > 0 || i >= columns, LBQ_RULE_THRESHOLDS, "%s has a threshold at or below zero",
            node.path.c_str());
    require(i < columns || thresholds[i] >= thresholds[i - columns], LBQ_RULE_THRESHOLDS, "the thresholds of %s fall",
            node.path.c_str());
  }
  const bool removes = std::all_of(reset_amount, reset_amount + node.reset_amount.count, [](int32_t r) { return r >= 0; });
  require(removes, LBQ_RULE_RESET, "%s adds where it should remove", node.path.c_str());
}

}  // namespace

void check_values(const Node& node) {
  if (node.weight.count > 0) check_bits(node);
  if (node.kind == Kind::kNeuron) check_neuron(node);
}

}  // namespace lbq
