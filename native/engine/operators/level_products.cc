// Products of levels: of values one by one, and of matrices.

#include "operators/operator_base.h"

namespace lbq {
namespace {

constexpr int64_t kPerSum = int64_t{1} << 31;  // sums of products stay below

int64_t largest_product(const Values& inputs, int64_t terms) {
  const ValueInfo &left = inputs[0], &right = inputs[1];
  require_rule(left.max_level != kCurrents && right.max_level != kCurrents, LBQ_RULE_SIGNAL,
               "it takes levels, it reads currents");
  require_rule(left.has_time == right.has_time, LBQ_RULE_SHAPE, "one of its inputs has no time");
  const int64_t most = saturating_product(saturating_product(left.max_level, right.max_level), terms);
  require_rule(most < kPerSum, LBQ_RULE_MAX_LEVEL, "its products reach %" PRId64 ", beyond 32 bits", most);
  return most;
}

ValueInfo infer_multiply(Node&, const Values& inputs, int64_t) {
  const Shape &left = inputs[0].shape, &right = inputs[1].shape;
  const int64_t most = largest_product(inputs, 1);
  bool fits = left.rank == right.rank;
  Shape to = left;
  for (int axis = 0; axis < 3; ++axis) {
    fits = fits && (left[axis] == right[axis] || left[axis] == 1 || right[axis] == 1);
    to[axis] = std::max(left[axis], right[axis]);
  }
  require_rule(fits, LBQ_RULE_SHAPE, "it multiplies shapes whose axes are neither equal nor 1");
  return {to, inputs[0].has_time, most};
}

ValueInfo infer_matmul(Node&, const Values& inputs, int64_t) {
  const Shape &left = inputs[0].shape, &right = inputs[1].shape;
  require_rule(left.rank == 3 && right.rank == 3 && left.channels == right.channels && left.width == right.height,
               LBQ_RULE_SHAPE, "it multiplies matrices that do not fit");
  const int64_t most = largest_product(inputs, left.width);
  return {{left.channels, left.height, right.width}, inputs[0].has_time, most};
}

// Products of levels, and sums of so many.
Interval bound_products(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  const Intervals &left = *inputs[0].intervals, &right = *inputs[1].intervals;
  const int64_t terms = node.kind == Kind::kMatmul ? node.from.width : 1;
  return for_channels(std::max(left.size(), right.size()), gives, [&](int64_t channel, Interval& inner) {
    const Interval sum = of(left, channel) * of(right, channel) * terms;
    inner = sum.with_zero();
    return sum;
  });
}

void run_multiply(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t *left = inputs[0].data, *right = inputs[1].data;
  for_broadcast(node.to, inputs[0].shape, inputs[1].shape,
                [=](int64_t to, int64_t a, int64_t b) { output[to] = left[a] * right[b]; });
}

void run_matmul(const Node& node, const Operands& inputs, int64_t* output) {
  const int64_t terms = node.from.width, columns = node.to.width;
  std::fill(output, output + node.to.size(), 0);
  for (int64_t row = 0; row < node.to.channels * node.to.height; ++row, output += columns)
    for (int64_t k = 0; k < terms; ++k) {
      const int64_t left = inputs[0].data[row * terms + k];
      if (left == 0) continue;
      const int64_t* right = inputs[1].data + (row / node.to.height * terms + k) * columns;
      for (int64_t column = 0; column < columns; ++column) output[column] += left * right[column];
    }
}

}  // namespace

const Operator operators::kMultiply = {
    "multiply", 2, 2, true, infer_multiply, bound_products, run_multiply, {}, {}};

const Operator operators::kMatmul = {
    "matmul", 2, 2, true, infer_matmul, bound_products, run_matmul, {}, {}};

}  // namespace lbq
