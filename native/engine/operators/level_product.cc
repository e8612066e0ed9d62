#include "operators/level_product.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "operators.h"

namespace lbq {
namespace {

constexpr int64_t kTileBytes = 32 * 1024;  // of the L1 cache

// Whether a node only moves the values of one other node.
bool is_move(Kind kind) {
  return kind == Kind::kRearrange || kind == Kind::kSlice || kind == Kind::kZeroPad || kind == Kind::kUpsample;
}

// Where the values of a node lie in memory, from C order.
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

// Call use(index, value) for the values of a node at one instant, of which `table` says where they lie; -1: zero.
template <class Use>
void gather(const Value& value, const char* instant, const std::vector<int32_t>& table, int64_t first, int64_t count,
            Use use) {
  const auto read = [&](const auto* values) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t from = table[first + i];
      use(i, from < 0 ? 0 : static_cast<int32_t>(values[from]));
    }
  };
  if (value.are_levels) return read(reinterpret_cast<const uint8_t*>(instant));
  read(reinterpret_cast<const int32_t*>(instant));
}

const char* instant_of(const Plan& plan, Workspace& space, int32_t node, int64_t instant, const Chunk& chunk) {
  const Value& value = plan.value(node);
  const int64_t seen = value.has_time ? instant : instant % chunk.batch;
  const int64_t size = value.shape.height * value.shape.width * value.stride;
  return space.of(node) + seen * size * (value.are_levels ? 1 : 4);
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

MovedValue::MovedValue(const Network& network, const Plan& plan, int32_t node) {
  std::vector<int32_t> moves;
  const auto is_passed = [&](int32_t at) {
    return at != kInput && is_move(network.nodes[at].kind) && plan.product_of[at] == kInput;
  };
  for (node = origin_of(network, node); is_passed(node); node = origin_of(network, network.nodes[node].inputs[0]))
    moves.push_back(node);
  value = node;
  const std::vector<int32_t> places = places_of(plan.value(node));
  std::vector<int64_t> numbers(places.size());
  std::iota(numbers.begin(), numbers.end(), 1);  // 0 stands for a zero that a move put there
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) numbers = moved(network.nodes[*move], numbers);
  for (int64_t number : numbers) table.push_back(number == 0 ? -1 : places[number - 1]);
}

LevelProduct::LevelProduct(const Network& network, const Plan& plan, const EngineKernels& kernels, int32_t product,
                           int32_t written)
    : left(network, plan, network.nodes[product].inputs[0]), right(network, plan, network.nodes[product].inputs[1]) {
  const Node& node = network.nodes[product];
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
  places = places_of(plan.value(written));
  if (written == product) {
    place_rows = rows_of(places, columns);
    return;
  }
  // What is written is the product in another order: the place of each product.
  std::vector<int64_t> numbers(node.to.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<int64_t> order = moved(network.nodes[written], numbers);
  std::vector<int32_t> moved_places(places.size());
  for (size_t i = 0; i < order.size(); ++i) moved_places[order[i]] = places[i];
  places = std::move(moved_places);
  place_rows = rows_of(places, columns);
}

namespace {

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

}  // namespace

void run_product(const Plan& plan, const EngineKernels& kernels, const Stage& stage, const Chunk& chunk, Workspace& space) {
  const LevelProduct& product = *stage.product;
  const Value& value = plan.value(stage.node);
  const int64_t instants = chunk.instants(value.has_time), bytes = value.are_levels ? 1 : 4;
  const int64_t instant_bytes = value.shape.height * value.shape.width * value.stride * bytes;
  char* const made = space.of(stage.node);
  std::memset(made, 0, instants * instant_bytes);
  const int64_t outputs = product.outputs, row_bytes = 4 * outputs;
  space.pool.parallel_for(instants * product.groups, [&](int64_t task, int worker) {
    const int64_t instant = task / product.groups, group = task % product.groups;
    ThreadScratch& scratch = space.scratches[worker];
    const int64_t packed = product.blocks * product.pairs * outputs * 2;
    scratch.packed.resize(packed);
    const Value& right = plan.value(product.right.value);
    const char* from = instant_of(plan, space, product.right.value, instant, chunk);
    if (!product.has_right_rows) {
      gather(right, from, product.right.table, group * packed, packed,
             [&](int64_t i, int32_t number) { scratch.packed[i] = static_cast<int16_t>(number); });
    } else if (right.are_levels) {
      pack_rows(product, reinterpret_cast<const uint8_t*>(from), group, scratch.packed.data());
    } else {
      pack_rows(product, reinterpret_cast<const int32_t*>(from), group, scratch.packed.data());
    }
    const int64_t count = product.rows * product.terms;
    scratch.left.resize(count);
    gather(plan.value(product.left.value), instant_of(plan, space, product.left.value, instant, chunk),
           product.left.table, group * count, count, [&](int64_t i, int32_t number) { scratch.left[i] = number; });
    const int64_t sum_bytes = product.blocks * product.rows * row_bytes;
    if (scratch.sums.size() < sum_bytes) scratch.sums = AlignedBuffer(sum_bytes);
    std::memset(scratch.sums.data(), 0, sum_bytes);
    for (int64_t first = 0; first < product.pairs; first += product.tile_pairs) {
      const int64_t last = std::min(first + product.tile_pairs, product.pairs);
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
        tile.weights = reinterpret_cast<const char*>(scratch.packed.data() + (block * product.pairs + first) * outputs * 2);
        tile.next = tile.weights;
        tile.sums = scratch.sums.data() + block * product.rows * row_bytes;
        kernels.pair_tile(PairMode::kWide, outputs, tile);
      }
    }
    char* const to = made + instant * instant_bytes;
    if (bytes == 1) {
      store_sums(product, scratch.sums.as<int32_t>(), group, reinterpret_cast<uint8_t*>(to));
    } else {
      store_sums(product, scratch.sums.as<int32_t>(), group, reinterpret_cast<int32_t*>(to));
    }
  });
}

}  // namespace lbq
