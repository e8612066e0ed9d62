#include "generic_nodes.h"

#include <algorithm>
#include <type_traits>

#include "operators.h"

namespace lbq {
namespace {

// Call use(pointer to the numbers of a value in their own type).
template <class Use>
void with_numbers(const NodeValue& value, Use use) {
  if (value.value.are_levels) return use(reinterpret_cast<uint8_t*>(value.data));
  use(reinterpret_cast<int32_t*>(value.data));
}

// Between [pixels, stride] and channels first.
void unpack(const NodeValue& from, int64_t first, int64_t* to) {
  const int64_t pixels = from.value.shape.height * from.value.shape.width, stride = from.value.stride;
  with_numbers(from, [&](const auto* numbers) {
    for (int64_t channel = 0; channel < from.value.shape.channels; ++channel)
      for (int64_t pixel = 0; pixel < pixels; ++pixel) *to++ = numbers[first + pixel * stride + channel];
  });
}
void pack(const int64_t* from, const NodeValue& to, int64_t first) {
  const int64_t pixels = to.value.shape.height * to.value.shape.width, stride = to.value.stride;
  const int64_t channels = to.value.shape.channels;
  with_numbers(to, [&](auto* numbers) {
    numbers += first;
    for (int64_t pixel = 0; pixel < pixels; ++pixel, numbers += stride) {
      for (int64_t channel = 0; channel < channels; ++channel)
        numbers[channel] = static_cast<std::decay_t<decltype(*numbers)>>(from[channel * pixels + pixel]);
      std::fill(numbers + channels, numbers + stride, 0);
    }
  });
}

}  // namespace

void run_plain(const Node& node, const std::vector<NodeValue>& inputs, const NodeValue& to, const Chunk& chunk,
               Workspace& space) {
  int64_t total = node.to.size();
  for (const NodeValue& input : inputs) total += input.value.shape.size();
  space.pool.parallel_for(chunk.instants(to.value.has_time), [&](int64_t instant, int worker) {
    std::vector<int64_t>& numbers = space.scratches[worker].numbers;
    if (static_cast<int64_t>(numbers.size()) < total) numbers.resize(total);
    std::vector<Operand> operands;
    int64_t* free = numbers.data() + node.to.size();
    for (const NodeValue& input : inputs) {
      const int64_t seen = input.value.has_time ? instant : instant % chunk.batch;
      unpack(input, seen * input.instant_size(), free);
      operands.push_back({free, input.value.shape});
      free += input.value.shape.size();
    }
    operator_of(node.kind).run(node, operands, numbers.data());
    pack(numbers.data(), to, instant * to.instant_size());
  });
}

}  // namespace lbq
