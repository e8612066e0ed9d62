// Products of levels: element by element, and of matrices.
#include <cstring>
#include <numeric>

#include "operators/operator_base.h"
#include "stage.h"

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

// The interval of products of levels, and of sums of `terms` products.
Interval bound_terms(int64_t terms, const Entries& inputs, Intervals& gives) {
  const Intervals &left = *inputs[0].intervals, &right = *inputs[1].intervals;
  return for_channels(std::max(left.size(), right.size()), gives, [&](int64_t channel, Interval& inner) {
    const Interval sum = of(left, channel) * of(right, channel) * terms;
    inner = sum.with_zero();
    return sum;
  });
}

Interval bound_multiply(const Node&, const Entries& inputs, int64_t, Intervals& gives) {
  return bound_terms(1, inputs, gives);
}

Interval bound_matmul(const Node& node, const Entries& inputs, int64_t, Intervals& gives) {
  return bound_terms(node.from.width, inputs, gives);
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

// ---- in the engine: the right operand is packed like the weights of a synapse, the left one becomes lists of pairs
// with a nonzero level, and the kernel of synapses multiplies them ----

constexpr int64_t kTileBytes = 32 * 1024;  // of the L1 cache

// The place in memory of every value of a node, in C order.
std::vector<int32_t> places_of(const Value& value) {
  const int64_t pixels = value.shape.height * value.shape.width;
  std::vector<int32_t> places;
  places.reserve(value.shape.size());
  for (int64_t channel = 0; channel < value.shape.channels; ++channel)
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      places.push_back(static_cast<int32_t>(pixel * value.stride + channel));
  return places;
}

// Apply a move to numbers.
std::vector<int64_t> moved(const Node& node, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> made(node.to.size());
  operator_of(node.kind).run(node, {{numbers.data(), node.from}}, made.data());
  return made;
}

// Which of the rows of a table lie side by side in memory: their first place, or -1.
std::vector<int32_t> rows_of(const std::vector<int32_t>& table, int64_t columns) {
  std::vector<int32_t> rows;
  for (size_t first = 0; first < table.size(); first += columns) {
    bool is_whole = table[first] >= 0;
    for (int64_t i = 1; i < columns && is_whole; ++i) is_whole = table[first + i] == table[first] + i;
    rows.push_back(is_whole ? table[first] : -1);
  }
  return rows;
}

// Call use(index, value) for the values of one instant, of which `table` says where they lie; -1: zero.
template <class Use>
void gather(const NodeValue& from, const std::vector<int32_t>& table, int64_t first, int64_t count, Use use) {
  with_numbers(from, [&](const auto* numbers) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t place = table[first + i];
      use(i, place < 0 ? 0 : static_cast<int32_t>(numbers[place]));
    }
  });
}

// The values of a node behind moves, as places in the memory of another node.
struct MovedValue {
  MovedValue(Planner& planner, Stage& stage, int32_t node);
  int32_t value;               // the node whose values are read
  std::vector<int32_t> table;  // places in the memory of one instant; -1: zero
};

MovedValue::MovedValue(Planner& planner, Stage& stage, int32_t node) {
  std::vector<int32_t> moves;
  const auto is_passed = [&](int32_t at) {
    return at != kInput && operator_of(planner.at(at).kind).is_move && planner.product_of(at) == kInput;
  };
  for (node = origin_of(planner.network, node); is_passed(node); node = origin_of(planner.network, planner.at(node).inputs[0]))
    moves.push_back(node);
  value = planner.read(stage, node);
  const std::vector<int32_t> places = places_of(planner.plan.value(node));
  std::vector<int64_t> numbers(places.size());
  std::iota(numbers.begin(), numbers.end(), 1);  // 0 stands for a zero that a move put there
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) numbers = moved(planner.at(*move), numbers);
  for (int64_t number : numbers) table.push_back(number == 0 ? -1 : places[number - 1]);
}

struct LevelProduct {
  // The stage stores the product, or what a move makes of it.
  LevelProduct(Planner& planner, Stage& stage, int32_t product);
  MovedValue left, right;  // [groups][rows][terms]; packed in tiles, [groups][blocks][pairs][outputs][2]
  int64_t groups, rows, columns, terms;
  int64_t pairs, outputs, blocks, tile_pairs;
  std::vector<int32_t> right_rows;  // [groups][terms]: where rows of the right operand lie, if all lie side by side
  bool has_right_rows;
  std::vector<int32_t> places, place_rows;  // of every product in the memory of one instant; of whole rows, or -1
};

LevelProduct::LevelProduct(Planner& planner, Stage& stage, int32_t product)
    : left(planner, stage, planner.at(product).inputs[0]), right(planner, stage, planner.at(product).inputs[1]) {
  const EngineKernels& kernels = planner.kernels;
  const Node& node = planner.at(product);
  groups = node.to.channels, rows = node.to.height, columns = node.to.width, terms = node.from.width;
  pairs = (terms + 1) / 2;
  outputs = outputs_per_block(columns);
  blocks = channel_stride(columns) / outputs;
  tile_pairs = kTileBytes / (4 * outputs);
  const bool pairs_lie_together = kernels.wide_offset(0, 1) == 1 && kernels.wide_offset(1, 0) == 2;
  if (pairs_lie_together) right_rows = rows_of(right.table, columns);
  has_right_rows = pairs_lie_together && std::count(right_rows.begin(), right_rows.end(), -1) == 0;
  // The right operand in the order of tiles: [groups][blocks][pairs][outputs][2].
  std::vector<int32_t> packed(groups * blocks * pairs * outputs * 2, -1);
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t term = 0; term < terms; ++term)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t row = (group * blocks + column / outputs) * pairs + term / 2;
        const int64_t lane = kernels.wide_offset(column % outputs, term % 2);
        packed[row * outputs * 2 + lane] = right.table[(group * terms + term) * columns + column];
      }
  right.table = std::move(packed);
  places = places_of(planner.plan.value(stage.node));
  if (stage.node == product) {
    place_rows = rows_of(places, columns);
    return;
  }
  // What is written is the product in another order: the place of each product.
  std::vector<int64_t> numbers(node.to.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<int64_t> order = moved(planner.at(stage.node), numbers);
  std::vector<int32_t> moved_places(places.size());
  for (size_t i = 0; i < order.size(); ++i) moved_places[order[i]] = places[i];
  places = std::move(moved_places);
  place_rows = rows_of(places, columns);
}

// Pack the rows of the right operand that lie side by side in memory, two by two.
template <class Number>
void pack_rows(const LevelProduct& product, const Number* values, int64_t group, int16_t* packed) {
  const int32_t* rows = product.right_rows.data() + group * product.terms;
  for (int64_t pair = 0; pair < product.pairs; ++pair) {
    const Number* first = values + rows[2 * pair];
    const Number* second = 2 * pair + 1 < product.terms ? values + rows[2 * pair + 1] : nullptr;
    for (int64_t block = 0; block < product.blocks; ++block) {
      int16_t* to = packed + (block * product.pairs + pair) * product.outputs * 2;
      const int64_t begin = block * product.outputs, count = std::min(product.outputs, product.columns - begin);
      for (int64_t i = 0; i < count; ++i) {
        to[2 * i] = static_cast<int16_t>(first[begin + i]);
        to[2 * i + 1] = second ? static_cast<int16_t>(second[begin + i]) : int16_t{0};
      }
      std::fill(to + 2 * count, to + 2 * product.outputs, int16_t{0});
    }
  }
}

// Store the sums of one group, [blocks][rows][outputs].
template <class Number>
void store_sums(const LevelProduct& product, const int32_t* sums, int64_t group, Number* to) {
  for (int64_t row = 0; row < product.rows; ++row) {
    const int64_t index = group * product.rows + row;
    const int32_t* places = product.places.data() + index * product.columns;
    const int32_t place = product.place_rows[index];
    for (int64_t block = 0; block < product.blocks; ++block) {
      const int32_t* from = sums + (block * product.rows + row) * product.outputs;
      const int64_t begin = block * product.outputs, count = std::min(product.outputs, product.columns - begin);
      if (place >= 0) {
        for (int64_t i = 0; i < count; ++i) to[place + begin + i] = static_cast<Number>(from[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) to[places[begin + i]] = static_cast<Number>(from[i]);
      }
    }
  }
}

// Pack the right operand of one group.
void pack_right(const LevelProduct& product, const NodeValue& right, int64_t group, std::vector<int16_t>& packed) {
  const int64_t count = product.blocks * product.pairs * product.outputs * 2;
  packed.resize(count);
  if (product.has_right_rows)
    return with_numbers(right, [&](const auto* numbers) { pack_rows(product, numbers, group, packed.data()); });
  gather(right, product.right.table, group * count, count,
         [&](int64_t i, int32_t number) { packed[i] = static_cast<int16_t>(number); });
}

// Add the products of the pairs from `first` on that fit a tile.
void add_tile(const LevelProduct& product, const EngineKernels& kernels, int64_t first, ThreadScratch& scratch) {
  const int64_t last = std::min(first + product.tile_pairs, product.pairs), row_bytes = 4 * product.outputs;
  scratch.pair_levels.clear();
  scratch.pair_rows.clear();
  scratch.visits.clear();
  scratch.runs.clear();
  for (int64_t row = 0; row < product.rows; ++row) {
    const int32_t* numbers = scratch.left.data() + row * product.terms;
    const uint32_t start = static_cast<uint32_t>(scratch.pair_levels.size());
    for (int64_t pair = first; pair < last; ++pair) {
      const uint32_t a = static_cast<uint32_t>(numbers[2 * pair]);
      const uint32_t b = 2 * pair + 1 < product.terms ? static_cast<uint32_t>(numbers[2 * pair + 1]) : 0;
      if ((a | b) == 0) continue;
      scratch.pair_levels.push_back(a | b << 16);
      scratch.pair_rows.push_back(static_cast<uint16_t>((pair - first) * row_bytes));
    }
    const uint32_t length = static_cast<uint32_t>(scratch.pair_levels.size()) - start;
    if (length == 0) continue;
    scratch.visits.push_back({static_cast<uint32_t>(row * row_bytes), start});
    scratch.runs.push_back({length, 1});
  }
  PairTile tile{};
  tile.levels = scratch.pair_levels.data();
  tile.rows = scratch.pair_rows.data();
  tile.visits = scratch.visits.data();
  tile.runs = scratch.runs.data();
  tile.num_runs = static_cast<int64_t>(scratch.runs.size());
  for (int64_t block = 0; block < product.blocks; ++block) {
    const int64_t row = block * product.pairs + first;
    tile.weights = reinterpret_cast<const char*>(scratch.packed.data() + row * product.outputs * 2);
    tile.next = tile.weights;
    tile.sums = scratch.sums.data() + block * product.rows * row_bytes;
    kernels.pair_tile(PairMode::kWide, product.outputs, tile);
  }
}

void execute_product(const LevelProduct& product, const ChunkContext& context, const Stage& stage) {
  Workspace& space = context.space;
  const Value& value = context.plan.value(stage.node);
  const int64_t instants = context.chunk.instants(value.has_time);
  std::memset(space.of(stage.node), 0, instants * value.instant_size() * value.bytes());
  space.pool.parallel_for(instants * product.groups, [&](int64_t task, int worker) {
    const int64_t instant = task / product.groups, group = task % product.groups;
    ThreadScratch& scratch = space.scratches[worker];
    pack_right(product, context.instant(product.right.value, instant), group, scratch.packed);
    const int64_t count = product.rows * product.terms;
    scratch.left.resize(count);
    gather(context.instant(product.left.value, instant), product.left.table, group * count, count,
           [&](int64_t i, int32_t number) { scratch.left[i] = number; });
    const int64_t sum_bytes = product.blocks * product.rows * 4 * product.outputs;
    if (scratch.sums.size() < sum_bytes) scratch.sums = AlignedBuffer(sum_bytes);
    std::memset(scratch.sums.data(), 0, sum_bytes);
    for (int64_t first = 0; first < product.pairs; first += product.tile_pairs)
      add_tile(product, context.kernels, first, scratch);
    with_numbers(context.instant(stage.node, instant),
                 [&](auto* numbers) { store_sums(product, scratch.sums.as<int32_t>(), group, numbers); });
  });
}

}  // namespace

bool has_fast_product(const Network& network, int32_t node) {
  const Node& here = network.nodes[node];
  const auto fits = [&](int32_t input) {
    const int64_t largest = network.value(input).max_level;
    return largest != kCurrents && largest <= INT16_MAX;
  };
  return here.kind == Kind::kMatmul && fits(here.inputs[0]) && fits(here.inputs[1]);
}

void plan_product(Planner& planner, Stage& stage, int32_t product) {
  auto made = std::make_shared<const LevelProduct>(planner, stage, product);
  stage.execute = [made](const ChunkContext& context, const Stage& stage, StageRecord&) {
    execute_product(*made, context, stage);
  };
}

const Operator operators::kMultiply = {
    .name = "multiply", .least_inputs = 2, .most_inputs = 2, .has_bound = true, .infer = infer_multiply,
    .bound = bound_multiply, .run = run_multiply};

const Operator operators::kMatmul = {
    .name = "matmul", .least_inputs = 2, .most_inputs = 2, .has_bound = true, .infer = infer_matmul,
    .bound = bound_matmul, .run = run_matmul};

}  // namespace lbq
