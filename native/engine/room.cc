#include "room.h"

#include <algorithm>

#include "plan.h"

namespace lbq {
namespace {

constexpr int64_t kWeights = int64_t{1} << 23, kEntries = int64_t{1} << 25;  // so many are always fine
constexpr int64_t kPadding = 8;       // times what is really there is fine as well
constexpr int64_t kPositions = 4096;  // that are added up together, about

int64_t padded(const Shape& shape) { return channel_stride(shape.channels) * shape.height * shape.width; }

// What one node takes; none is larger than the rules of the format and the size of its file allow.
struct Needs {
  int64_t packed = 0, tables = 0;

  explicit Needs(const Node& node) {
    if (node.kind != Kind::kSynapse) return;
    const int64_t taps = node.weight.count / (node.to.channels * (node.from.channels / node.groups));
    const int64_t rows = node.is_linear ? node.from.height : node.window.kernel[0];
    const int64_t columns = node.is_linear ? node.from.width : node.window.kernel[1];
    packed = channel_stride(node.to.channels) * channel_stride(node.from.channels) * taps;
    tables = rows * (node.from.height + node.to.height) + columns * (node.from.width + node.to.width) +
             taps * std::min(node.to.height * node.to.width, kPositions);
  }
};

bool is_huge(const Window& window) {
  return window.kernel[0] > kEntries || window.kernel[1] > kEntries || window.kernel[0] * window.kernel[1] > kEntries;
}

}  // namespace

bool has_room(const Network& network) {
  int64_t packed = 0, weights = 0, tables = 0, values = padded(network.input), given = network.input.size();
  for (const Node& node : network.nodes) {
    if (node.kind == Kind::kPool && is_huge(node.window)) return false;
    const Needs needs(node);
    packed += needs.packed;
    tables += needs.tables;
    weights += node.weight.count;
    values += padded(node.to);
    given += node.to.size();
  }
  return packed <= std::max(kWeights, kPadding * weights) && tables <= kEntries &&
         values <= std::max(kEntries, kPadding * given);
}

}  // namespace lbq
