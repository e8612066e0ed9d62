#include <algorithm>
#include <cinttypes>

#include "engine/operators.h"
#include "manifest.h"
#include "reader.h"
#include "rules.h"

namespace lbq {

std::vector<Bound> prove(const Network& network) {
  const size_t count = network.nodes.size();
  std::vector<size_t> last_use(count);
  for (size_t i = 0; i < count; ++i)
    for (int32_t input : network.nodes[i].inputs)
      if (input != kInput) last_use[input] = i;
  const Intervals pixels = {{0, 255}};
  std::vector<Intervals> known(count);
  std::vector<Bound> bounds(count);
  std::vector<Entering> entering;
  for (size_t i = 0; i < count; ++i) {
    const Node& node = network.nodes[i];
    const Operator& op = operator_of(node.kind);
    entering.clear();
    for (int32_t input : node.inputs)
      entering.push_back({network.value(input), input == kInput ? &pixels : &known[input]});
    Interval inner;
    with_path(node, [&] { inner = op.bound(node, entering, network.timesteps, known[i]); });
    if (op.has_bound) {
      const auto [low, high] = inner;
      require(inner.fits(), LBQ_MODEL_BOUND, "%s can reach %" PRId64 "..%" PRId64 ", which no 32-bit integer holds",
              node.path.c_str(), low, high);
      bounds[i] = {low, high, low >= INT16_MIN && high <= INT16_MAX ? 16 : 32};
    }
    for (int32_t input : node.inputs)
      if (input != kInput && last_use[input] == i) Intervals().swap(known[input]);
  }
  return bounds;
}

}  // namespace lbq
