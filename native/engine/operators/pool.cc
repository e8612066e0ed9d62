// Pools: the largest value of a window, or their sum.

#include "operators/operator_base.h"
#include "stage.h"

namespace lbq {
namespace {

ValueInfo infer_pool(Node& node, const Values& inputs, int64_t) {
  ValueInfo value = inputs[0];
  check_time(node, value);
  Window& window = node.window;
  window.dilation.count = window.kernel.count;
  value.shape = slide(window, value.shape);
  for (int axis = 0; axis < window.kernel.count; ++axis)
    require_rule(2 * window.padding[axis] <= window.kernel[axis], LBQ_RULE_SHAPE,
                 "it pads more than half of its window");
  if (value.max_level != kCurrents && !node.pools_max)
    value.max_level = saturating_product(value.max_level, window.kernel[0] * window.kernel[1]);
  return value;
}

Interval bound_pool(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const bool adds = !node.pools_max, has_border = node.window.padding[0] > 0 || node.window.padding[1] > 0;
  const int64_t area = node.window.kernel[0] * node.window.kernel[1];
  return change_each(inputs, gives, [=](Interval interval) {
    if (adds) interval = interval * area;
    return adds && has_border ? interval.with_zero() : interval;  // sums at the border have fewer terms
  });
}

void run_pool(const Node& node, const Operands& inputs, int64_t* pooled) {
  const int64_t places_in = node.from.height * node.from.width, places_out = node.to.height * node.to.width;
  const bool is_max = node.pools_max;
  std::fill(pooled, pooled + node.to.size(), is_max ? INT64_MIN : 0);
  for (int64_t c = 0; c < node.to.channels; ++c) {
    const int64_t* from = inputs[0].data + c * places_in;
    int64_t* to = pooled + c * places_out;
    for (int64_t row = 0; row < node.window.kernel[0]; ++row)
      for (int64_t column = 0; column < node.window.kernel[1]; ++column)
        for_places(node, row, column, [=](int64_t out, int64_t in) {
          to[out] = is_max ? std::max(to[out], from[in]) : to[out] + from[in];
        });
  }
}

// Call seen(pixel) for every pixel of the image in an output's window.
template <class Seen>
void look(const Window& window, const Shape& from, int64_t row, int64_t column, Seen seen) {
  for (int64_t i = 0; i < window.kernel[0]; ++i) {
    const int64_t y = row * window.stride[0] - window.padding[0] + i * window.dilation[0];
    if (y < 0 || y >= from.height) continue;
    for (int64_t j = 0; j < window.kernel[1]; ++j) {
      const int64_t x = column * window.stride[1] - window.padding[1] + j * window.dilation[1];
      if (x >= 0 && x < from.width) seen(y * from.width + x);
    }
  }
}

void execute_pool(const ChunkContext& context, const Stage& stage, StageRecord&) {
  const Node& node = context.network.nodes[stage.node];
  const NodeValue from = context.value(stage.reads[0]), to = context.value(stage.node);
  const int64_t made = node.to.height * node.to.width, pixels = node.from.height * node.from.width;
  const int64_t stride = to.value.stride;
  std::vector<int64_t> found(stride);
  for (int64_t instant = 0; instant < context.chunk.instants(to.value.has_time); ++instant)
    for (int64_t place = 0; place < made; ++place) {
      std::fill(found.begin(), found.end(), 0);
      std::fill(found.begin(), found.begin() + node.to.channels, node.pools_max ? INT64_MIN : 0);
      look(node.window, node.from, place / node.to.width, place % node.to.width, [&](int64_t pixel) {
        const int64_t at = (instant * pixels + pixel) * from.value.stride;
        for (int64_t channel = 0; channel < node.to.channels; ++channel) {
          const int64_t value = from.at(at + channel);
          found[channel] = node.pools_max ? std::max(found[channel], value) : found[channel] + value;
        }
      });
      const int64_t at = (instant * made + place) * stride;
      for (int64_t channel = 0; channel < stride; ++channel) to.put(at + channel, found[channel]);
    }
}

}  // namespace

const Operator operators::kPool = {
    .name = "pool", .infer = infer_pool, .bound = bound_pool, .run = run_pool, .plan = plan_stage<execute_pool>,
    .settings = {word("kind", store_flag<&Node::pools_max>, {"max", true}, {"sum", false}),
                 list("kernel", store_window<&Window::kernel>, 1, kSide, 2), kStride, kPadding, kHasTime}};

}  // namespace lbq
