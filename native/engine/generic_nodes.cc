#include "generic_nodes.h"

#include <algorithm>
#include <cstring>

namespace lbq {
namespace {

// Call seen(tap, pixel) for every tap of an output's window inside the image.
template <class Seen>
void look(const Window& window, const Shape& from, int64_t row, int64_t column, Seen seen) {
  for (int64_t i = 0; i < window.kernel[0]; ++i) {
    const int64_t y = row * window.stride[0] - window.padding[0] + i * window.dilation[0];
    if (y < 0 || y >= from.height) continue;
    for (int64_t j = 0; j < window.kernel[1]; ++j) {
      const int64_t x = column * window.stride[1] - window.padding[1] + j * window.dilation[1];
      if (x >= 0 && x < from.width) seen(i * window.kernel[1] + j, y * from.width + x);
    }
  }
}

}  // namespace

void generic_conv(const Node& node, const NodeValue& from, const NodeValue& to, int64_t instants) {
  const Window window = window_of(node);
  const int64_t inputs = node.from.channels / node.groups, outputs = node.to.channels / node.groups;
  const int64_t taps = window.kernel[0] * window.kernel[1], made = node.to.height * node.to.width;
  const int64_t pixels = node.from.height * node.from.width;
  int32_t* currents = reinterpret_cast<int32_t*>(to.data);
  std::memset(currents, 0, instants * made * to.value.stride * 4);
  for (int64_t instant = 0; instant < instants; ++instant)
    for (int64_t place = 0; place < made; ++place)
      for (int64_t output = 0; output < node.to.channels; ++output) {
        int64_t sum = 0;
        if (node.bias.count > 0)
          sum = integer_at(node.bias, node.bias.count == node.to.channels ? output : output * made + place);
        const int64_t first = output / outputs * inputs;
        look(window, node.from, place / node.to.width, place % node.to.width, [&](int64_t tap, int64_t pixel) {
          const int64_t at = (instant * pixels + pixel) * from.value.stride + first;
          for (int64_t channel = 0; channel < inputs; ++channel)
            sum += from.at(at + channel) * integer_at(node.weight, (output * inputs + channel) * taps + tap);
        });
        currents[(instant * made + place) * to.value.stride + output] = static_cast<int32_t>(sum);
      }
}

void pool(const Node& node, const NodeValue& from, const NodeValue& to, int64_t instants) {
  const int64_t made = node.to.height * node.to.width, pixels = node.from.height * node.from.width;
  const int64_t stride = to.value.stride;
  std::vector<int64_t> found(stride);
  for (int64_t instant = 0; instant < instants; ++instant)
    for (int64_t place = 0; place < made; ++place) {
      std::fill(found.begin(), found.end(), 0);
      std::fill(found.begin(), found.begin() + node.to.channels, node.pools_max ? INT64_MIN : 0);
      look(node.window, node.from, place / node.to.width, place % node.to.width, [&](int64_t, int64_t pixel) {
        const int64_t at = (instant * pixels + pixel) * from.value.stride;
        for (int64_t channel = 0; channel < node.to.channels; ++channel) {
          const int64_t value = from.at(at + channel);
          found[channel] = node.pools_max ? std::max(found[channel], value) : found[channel] + value;
        }
      });
      const int64_t at = (instant * made + place) * stride;
      for (int64_t channel = 0; channel < stride; ++channel) {
        if (to.value.are_levels) {
          reinterpret_cast<uint8_t*>(to.data)[at + channel] = static_cast<uint8_t>(found[channel]);
        } else {
          reinterpret_cast<int32_t*>(to.data)[at + channel] = static_cast<int32_t>(found[channel]);
        }
      }
    }
}

}  // namespace lbq
