// Convolution by bit planes: one addition per set bit of a level (Eq. 15).
#pragma once

#include <vector>

#include "plan.h"

namespace lbq {

struct PlaneCounts {
  int64_t additions = 0;  // of one weight to one sum
  int64_t shifts = 0;     // of one sum by one bit
};

// Adds the weights of every channel and tap whose level has the bit.
inline int64_t add_plane(const Node& node, const Window& window, const uint8_t* levels, int bit, std::vector<int64_t>& sums) {
  const int64_t inputs = node.from.channels / node.groups, outputs = node.to.channels / node.groups;
  const int64_t taps = window.kernel[0] * window.kernel[1];
  int64_t additions = 0;
  for (int64_t output = 0; output < node.to.channels; ++output)
    for (int64_t row = 0; row < node.to.height; ++row)
      for (int64_t column = 0; column < node.to.width; ++column)
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t i = tap / window.kernel[1], j = tap % window.kernel[1];
          const int64_t y = row * window.stride[0] - window.padding[0] + i * window.dilation[0];
          const int64_t x = column * window.stride[1] - window.padding[1] + j * window.dilation[1];
          if (y < 0 || y >= node.from.height || x < 0 || x >= node.from.width) continue;
          for (int64_t channel = 0; channel < inputs; ++channel) {
            const int64_t from = output / outputs * inputs + channel;
            if (!(levels[(from * node.from.height + y) * node.from.width + x] >> bit & 1)) continue;
            sums[(output * node.to.height + row) * node.to.width + column] +=
                integer_at(node.weight, (output * inputs + channel) * taps + tap);
            ++additions;
          }
        }
  return additions;
}

// One instant: levels [C, H, W] to currents [O, H', W'], bias included. Horner's rule: highest plane
// first, sums doubled before the next one.
inline PlaneCounts multiply_planes(const Node& synapse, const uint8_t* levels, int32_t* currents) {
  const Window window = window_of(synapse);
  PlaneCounts counts;
  std::vector<int64_t> sums(synapse.to.size(), 0);
  int planes = 0;
  while (synapse.max_input >> planes) ++planes;
  for (int bit = planes - 1; bit >= 0; --bit) {
    if (bit < planes - 1) {
      for (int64_t& sum : sums) sum *= 2;
      counts.shifts += synapse.to.size();
    }
    counts.additions += add_plane(synapse, window, levels, bit, sums);
  }
  const int64_t pixels = synapse.to.height * synapse.to.width;
  for (int64_t i = 0; i < synapse.to.size(); ++i) {
    const bool is_map = synapse.bias.count > synapse.to.channels;
    const int64_t bias = synapse.bias.count == 0 ? 0 : integer_at(synapse.bias, is_map ? i : i / pixels);
    currents[i] = static_cast<int32_t>(sums[i] + bias);
  }
  return counts;
}

}  // namespace lbq
