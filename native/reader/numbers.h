// The numbers in a bundle's tensors: within their bits, thresholds that never fall.
#pragma once

#include "engine/network.h"

namespace lbq {

// Call use(pointer to the numbers in their own type).
template <class Use>
auto with_type(const Integers& integers, Use use) {
  if (integers.width == 1) return use(static_cast<const int8_t*>(integers.data));
  if (integers.width == 2) return use(static_cast<const int16_t*>(integers.data));
  return use(static_cast<const int32_t*>(integers.data));
}

inline int64_t number_at(const Integers& integers, int64_t index) {
  return with_type(integers, [=](const auto* numbers) { return static_cast<int64_t>(numbers[index]); });
}

// One number per channel, or one for all.
inline int64_t of_channel(const Integers& integers, int64_t channel) {
  return number_at(integers, integers.count == 1 ? 0 : channel);
}

// The threshold of level `rung` + 1.
inline int64_t threshold(const Node& neuron, int64_t rung, int64_t channel) {
  const int64_t columns = neuron.thresholds.count / neuron.max_level;
  return number_at(neuron.thresholds, rung * columns + (columns == 1 ? 0 : channel));
}

// Complain about numbers that no lowered network has.
void check_values(const Node& node);

}  // namespace lbq
