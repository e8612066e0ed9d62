// Runs operators that have no other kernel: the exact kernel of operators.h at every timestep.
#include <algorithm>
#include <type_traits>

#include "operators.h"
#include "stage.h"

namespace lbq {
namespace {

// Between [pixels, stride] and channels first.
void unpack(const NodeValue& from, int64_t* to) {
  const int64_t pixels = from.value.shape.height * from.value.shape.width, stride = from.value.stride;
  with_numbers(from, [&](const auto* numbers) {
    for (int64_t channel = 0; channel < from.value.shape.channels; ++channel)
      for (int64_t pixel = 0; pixel < pixels; ++pixel) *to++ = numbers[pixel * stride + channel];
  });
}
void pack(const int64_t* from, const NodeValue& to) {
  const int64_t pixels = to.value.shape.height * to.value.shape.width, stride = to.value.stride;
  const int64_t channels = to.value.shape.channels;
  with_numbers(to, [&](auto* numbers) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel, numbers += stride) {
      for (int64_t channel = 0; channel < channels; ++channel)
        numbers[channel] = static_cast<std::decay_t<decltype(*numbers)>>(from[channel * pixels + pixel]);
      std::fill(numbers + channels, numbers + stride, 0);
    }
  });
}

void execute_exact(const ChunkContext& context, const Stage& stage, StageRecord&) {
  const Node& node = context.network.nodes[stage.node];
  const Value& value = context.plan.value(stage.node);
  int64_t total = node.to.size();
  for (int32_t input : stage.reads) total += context.plan.value(input).shape.size();
  context.space.pool.parallel_for(context.chunk.instants(value.has_time), [&](int64_t instant, int worker) {
    std::vector<int64_t>& numbers = context.space.scratches[worker].numbers;
    if (static_cast<int64_t>(numbers.size()) < total) numbers.resize(total);
    std::vector<Operand> operands;
    int64_t* free = numbers.data() + node.to.size();
    for (int32_t read : stage.reads) {
      const NodeValue input = context.instant(read, instant);
      unpack(input, free);
      operands.push_back({free, input.value.shape});
      free += input.value.shape.size();
    }
    operator_of(node.kind).run(node, operands, numbers.data());
    pack(numbers.data(), context.instant(stage.node, instant));
  });
}

}  // namespace

void plan_exact(Planner& planner, Stage& stage) { plan_stage<execute_exact>(planner, stage); }

}  // namespace lbq
