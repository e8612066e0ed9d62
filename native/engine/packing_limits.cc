#include "packing_limits.h"

#include <algorithm>

#include "plan.h"

namespace lbq {
namespace {

// Counts are doubles: they may be wrong in the last digit, but never overflow.
constexpr double kWeights = 1 << 23, kEntries = 1 << 25;  // so many are always fine
constexpr double kPadding = 8;                            // times what is really there is fine as well
constexpr double kPositions = 4096;                       // that are added up together, about

double padded(const Shape& shape) {
  return static_cast<double>(channel_stride(shape.channels) * shape.height * shape.width);
}

// What one node takes.
struct Needs {
  double packed = 0, tables = 0;

  explicit Needs(const Node& node) {
    if (node.kind != Kind::kSynapse) return;
    const double taps = static_cast<double>(node.weight.count / (node.to.channels * (node.from.channels / node.groups)));
    const int64_t rows = node.is_linear ? node.from.height : node.window.kernel[0];
    const int64_t columns = node.is_linear ? node.from.width : node.window.kernel[1];
    packed = taps * static_cast<double>(channel_stride(node.to.channels)) *
             static_cast<double>(channel_stride(node.from.channels));
    tables = static_cast<double>(rows) * static_cast<double>(node.from.height + node.to.height) +
             static_cast<double>(columns) * static_cast<double>(node.from.width + node.to.width) +
             taps * std::min(static_cast<double>(node.to.height * node.to.width), kPositions);
  }
};

bool is_huge(const Window& window) {
  return static_cast<double>(window.kernel[0]) * static_cast<double>(window.kernel[1]) > kEntries;
}

}  // namespace

bool fits_packed(const Network& network) {
  double packed = 0, tables = 0, values = padded(network.input);
  int64_t weights = 0, given = network.input.size();
  for (const Node& node : network.nodes) {
    if (node.kind == Kind::kPool && is_huge(node.window)) return false;
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
