// The tensors of a bundle: a safetensors payload whose table must agree with the manifest, and their values.
#pragma once

#include "container.h"
#include "manifest.h"

namespace lbq {

// Give every node views of its tensors, or throw ReadError.
void attach_tensors(Manifest& manifest, const Bundle& bundle);

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

// The threshold of level `index` + 1.
inline int64_t threshold(const Node& neuron, int64_t index, int64_t channel) {
  const int64_t columns = neuron.thresholds.count / neuron.max_level;
  return number_at(neuron.thresholds, index * columns + (columns == 1 ? 0 : channel));
}

// Throw unless weights fit their bits and thresholds never fall.
void check_values(const Node& node);

}  // namespace lbq
