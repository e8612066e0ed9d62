// Random integer networks on every instruction set, by events and dense products, with 1, 2 and 3 threads and as streams,
// against simple int64 arithmetic.
#include "engine.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "check_network.h"
#include "random_network.h"

namespace {

constexpr int64_t kMostProducts = 2000000;

// ---- the oracle: NCHW, int64 ----

struct Oracle {
  const Case& c;
  std::vector<Longs> values;
  bool fits = true;

  explicit Oracle(const Case& c) : c(c) {
    for (const Node& node : c.network.nodes) values.push_back(answer(node));
  }
  Longs value(int32_t node) const {
    return node == lbq::kInput ? Longs(c.inputs.begin(), c.inputs.end()) : values[node];
  }
  int64_t checked(int64_t value) {
    fits = fits && value >= INT32_MIN && value <= INT32_MAX;
    return value;
  }
  Longs answer(const Node& node) {
    const Longs x = value(node.inputs[0]);
    const int64_t size = node.from.size(), instants = static_cast<int64_t>(x.size()) / size;
    Longs made;
    if (node.kind == Kind::kRepeat) {
      for (int64_t t = 0; t < c.network.timesteps; ++t) made.insert(made.end(), x.begin(), x.end());
    } else if (node.kind == Kind::kMerge) {
      made = x;
      for (size_t k = 1; k < node.inputs.size(); ++k) {
        const Longs other = value(node.inputs[k]);
        for (size_t i = 0; i < made.size(); ++i) made[i] = checked(made[i] + other[i]);
      }
    } else if (node.kind == Kind::kShortcut) {
      const int64_t pixels = node.from.height * node.from.width;
      for (size_t i = 0; i < x.size(); ++i) {
        const int64_t channel = static_cast<int64_t>(i) / pixels % node.from.channels;
        made.push_back(x[i] * lbq::of_channel(node.weight, channel) +
                       (node.bias.count ? lbq::of_channel(node.bias, channel) : 0));
      }
    } else if (node.kind == Kind::kIntegerNeuron) {
      made = neuron(node, x);
    } else if (node.is_output()) {
      if (!node.sums_over_time()) return x;
      made.assign(x.size() / c.network.timesteps, 0);
      for (size_t i = 0; i < x.size(); ++i) made[i % made.size()] = checked(made[i % made.size()] + x[i]);
    } else if (node.kind == Kind::kSynapse || node.kind == Kind::kPool) {
      for (int64_t instant = 0; instant < instants; ++instant) window(node, &x[instant * size], made);
    } else {
      std::vector<Longs> read;
      for (int32_t input : node.inputs) read.push_back(value(input));
      for (int64_t instant = 0; instant < instants; ++instant)
        for (int64_t ch = 0; ch < node.to.channels; ++ch)
          for (int64_t y = 0; y < node.to.height; ++y)
            for (int64_t column = 0; column < node.to.width; ++column)
              made.push_back(checked(place(node, read, instant, {ch, y, column})));
    }
    return made;
  }

  // One value of a node that moves, adds a constant or multiplies.
  int64_t place(const Node& node, const std::vector<Longs>& read, int64_t instant, Longs at) const {
    // the value of an input at a place; axes of length 1 are repeated
    const auto see = [&](size_t input, const Longs& from) {
      const lbq::Shape shape = c.shape_of(node.inputs[input]);
      int64_t index = instant;
      for (int axis = 0; axis < 3; ++axis) index = index * shape[axis] + (shape[axis] == 1 ? 0 : from[axis]);
      return read[input][index];
    };
    const size_t axis = node.axis;
    switch (node.kind) {
      case Kind::kConcat:
        for (size_t input = 0;; ++input) {
          const int64_t length = c.shape_of(node.inputs[input])[static_cast<int>(axis)];
          if (at[axis] < length) return see(input, at);
          at[axis] -= length;
        }
      case Kind::kSlice: at[axis] = node.start + at[axis] * node.step; return see(0, at);
      case Kind::kRoll: {
        const int64_t length = node.to[static_cast<int>(axis)];
        at[axis] = (node.start + node.step * at[axis] + length) % length;
        return see(0, at);
      }
      case Kind::kRearrange: {
        int64_t index = (at[0] * node.to.height + at[1]) * node.to.width + at[2], from = 0;
        int64_t digits[8] = {};
        for (int i = node.order.count - 1; i >= 0; --i) {
          digits[node.order[i]] = index % node.sizes[node.order[i]];
          index /= node.sizes[node.order[i]];
        }
        for (int i = 0; i < node.sizes.count; ++i) from = from * node.sizes[i] + digits[i];
        return read[0][instant * node.from.size() + from];
      }
      case Kind::kUpsample:
        for (int i = 0; i < node.factors.count; ++i) {
          if (node.fills_zeros && at[1 + i] % node.factors[i] != 0) return 0;
          at[1 + i] /= node.factors[i];
        }
        return see(0, at);
      case Kind::kZeroPad:
        for (int i = 0; i < node.before.count; ++i) {
          at[1 + i] -= node.before[i];
          if (at[1 + i] < 0 || at[1 + i] >= node.from[1 + i]) return 0;
        }
        return see(0, at);
      case Kind::kOffset: {
        int64_t index = 0;
        for (int i = 0; i < node.bias.num_dims; ++i)
          index = index * node.bias.shape[i] + (node.bias.shape[i] == 1 ? 0 : at[i]);
        return see(0, at) + lbq::integer_at(node.bias, index);
      }
      case Kind::kMultiply: return see(0, at) * see(1, at);
      default: {  // matmul
        int64_t sum = 0;
        for (int64_t k = 0; k < node.from.width; ++k) sum += see(0, {at[0], at[1], k}) * see(1, {at[0], k, at[2]});
        return sum;
      }
    }
  }

  // All outputs, one behind the other.
  Longs answers() const {
    Longs all;
    for (size_t i = 0; i < values.size(); ++i)
      if (c.network.nodes[i].is_output()) all.insert(all.end(), values[i].begin(), values[i].end());
    return all;
  }

  void window(const Node& node, const int64_t* x, Longs& made) {
    const lbq::Window w = window_of(node);
    const bool is_pool = node.kind == Kind::kPool;
    const int64_t inputs = is_pool ? 1 : node.from.channels / node.groups;
    const int64_t group = is_pool ? 1 : node.to.channels / node.groups;
    for (int64_t o = 0; o < node.to.channels; ++o)
      for (int64_t y = 0; y < node.to.height; ++y)
        for (int64_t column = 0; column < node.to.width; ++column) {
          int64_t sum = is_pool && node.pools_max ? INT64_MIN : 0;
          for (int64_t k = 0; k < inputs; ++k)
            for (int64_t i = 0; i < w.kernel[0]; ++i)
              for (int64_t j = 0; j < w.kernel[1]; ++j) {
                const int64_t yy = y * w.stride[0] - w.padding[0] + i * w.dilation[0];
                const int64_t xx = column * w.stride[1] - w.padding[1] + j * w.dilation[1];
                if (yy < 0 || yy >= node.from.height || xx < 0 || xx >= node.from.width) continue;
                const int64_t seen = x[((o / group * inputs + k) * node.from.height + yy) * node.from.width + xx];
                if (!is_pool) {
                  sum += seen * lbq::integer_at(node.weight, ((o * inputs + k) * w.kernel[0] + i) * w.kernel[1] + j);
                } else {
                  sum = node.pools_max ? std::max(sum, seen) : sum + seen;
                }
              }
          if (node.bias.count)
            sum += lbq::integer_at(node.bias, node.bias.count == node.to.channels
                                     ? o
                                     : (o * node.to.height + y) * node.to.width + column);
          made.push_back(checked(sum));
        }
  }

  Longs neuron(const Node& node, const Longs& x) {
    const int64_t size = static_cast<int64_t>(x.size()) / c.network.timesteps;
    const int64_t pixels = node.from.height * node.from.width;
    Longs levels(x.size());
    for (int64_t i = 0; i < size; ++i) {
      const int64_t channel = i / pixels % node.from.channels, reset_amount = lbq::of_channel(node.reset_amount, channel);
      int64_t carry = 0, level = 0;
      for (int64_t t = 0; t < c.network.timesteps; ++t) {
        int64_t membrane = (checked(node.multiplier * carry) >> node.shift) + x[t * size + i];
        if (node.resets_after_decay && level > 0) membrane -= reset_amount;
        checked(membrane);
        level = 0;
        for (int64_t n = 0; n < node.max_level; ++n) level += membrane >= lbq::threshold(node, n, channel);
        levels[t * size + i] = level;
        carry = membrane;
        if (node.resets_after_decay || level == 0) continue;
        if (node.reset == LBQ_RESET_EVENT) carry -= reset_amount;
        if (node.reset == LBQ_RESET_LEVEL) carry -= reset_amount * level;
        if (node.reset == LBQ_RESET_ZERO) carry = 0;
        checked(carry);
      }
    }
    return levels;
  }
};

bool equal(const std::vector<int32_t>& a, const Longs& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

std::vector<int32_t> run(const lbq::Engine& engine, const Case& c, int threads, size_t size) {
  std::vector<int32_t> answers(size);
  lbq::RunOptions options;
  options.threads = threads;
  engine.run(c.inputs.data(), c.batch, answers.data(), options);
  return answers;
}

// Timestep by timestep, passing the state.
std::vector<int32_t> run_stream(const lbq::Engine& engine, const Case& c, size_t size) {
  const bool sums = c.network.sums_over_time();
  std::vector<int32_t> whole(size);
  lbq::Carries state = engine.at_rest(c.batch);
  for (int64_t t = 0; t < c.network.timesteps; ++t) {
    lbq::RunOptions options;
    options.timesteps = 1;
    options.state = &state;
    std::vector<int32_t> piece(sums ? size : size / c.network.timesteps);
    engine.run(c.inputs.data() + (c.network.takes_frames ? t * c.batch * c.network.input.size() : 0), c.batch, piece.data(), options);
    for (size_t i = 0; sums && i < size; ++i) whole[i] += piece[i];
    int64_t first = 0, given = 0;  // of an output, in whole and in piece
    for (const Node& node : c.network.nodes) {
      if (sums || !node.is_output()) continue;
      const int64_t count = c.batch * node.to.size();
      std::copy_n(piece.begin() + given, count, whole.begin() + first + t * count);
      first += count * c.network.timesteps, given += count;
    }
  }
  return whole;
}

// One engine, several callers at once.
bool is_shared_safely(const lbq::Engine& engine, const Case& c, const Longs& reference) {
  std::vector<std::thread> callers;
  std::vector<char> is_right(4, 0);
  for (size_t i = 0; i < is_right.size(); ++i)
    callers.emplace_back([&, i] { is_right[i] = equal(run(engine, c, 1 + i % 2, reference.size()), reference); });
  for (std::thread& caller : callers) caller.join();
  return std::count(is_right.begin(), is_right.end(), 1) == 4;
}

// A sequence longer than one chunk: chunks pass on the carries of their own images.
void test_long_sequence(Report& report) {
  const Case c = Case::longer_than_one_chunk(2);
  const Longs reference = Oracle(c).answers();
  const lbq::Engine engine(c.network);
  report(std::count(reference.begin(), reference.end(), 0) < static_cast<int64_t>(reference.size()), "long sequence: some neurons fire");
  for (int threads : {1, 2}) report(equal(run(engine, c, threads, reference.size()), reference), "long sequence: differs");
}

// Kernels that add up in 16 bits stop in time.
void test_large_sums(Report& report) {
  const Case c = Case::as_large_as_allowed();
  const Longs reference = Oracle(c).answers();
  for (const char* isa : kIsas)
    for (lbq::Choice choice : {lbq::Choice::kEvents, lbq::Choice::kDense}) {
      try {
        const lbq::Engine engine(c.network, lbq::EngineOptions{isa, choice});
        report(equal(run(engine, c, 1, reference.size()), reference), std::string("large sums differ, ") + isa);
      } catch (const std::invalid_argument&) {
        continue;  // not on this machine
      }
    }
}

// Networks that check_network refuses.
template <class Change>
void expect_refusal(const char* what, Report& report, Change change) {
  Case c;
  c.network = {};
  c.network.input = {2, 4, 4};
  Node synapse = c.start(Kind::kSynapse, lbq::kInput);
  synapse.max_input = 255;
  synapse.weight = c.keep(Longs(3 * 2 * 9, 1), 1, {3, 2, 3, 3});
  synapse.bound = {0, 5000, 16};
  Node neuron = c.start(Kind::kIntegerNeuron, c.add_repeat(c.add(synapse)));
  neuron.thresholds = c.keep({10, 20}, 4, {2, 1});
  neuron.reset_amount = c.keep({10}, 4);
  Node shortcut = c.start(Kind::kShortcut, c.add(neuron));
  shortcut.max_input = 2;
  shortcut.weight = c.keep({1}, 2);
  c.add(c.start(Kind::kReadout, c.add(shortcut)));
  lbq::check_network(c.network);  // unchanged, it is valid
  try {
    change(c, c.network.nodes);
    lbq::check_network(c.network);
    report(false, std::string("not refused: ") + what);
  } catch (const lbq::BadNetwork& error) {
    report(std::strstr(error.what(), what) != nullptr, std::string(error.what()) + ", expected: " + what);
  }
}

void test_refusals(Report& report) {
  using Nodes = std::vector<Node>;
  const auto expect = [&](const char* what, auto change) { expect_refusal(what, report, change); };
  expect("no nodes", [](Case&, Nodes& nodes) { nodes.clear(); });
  expect("no node reads", [](Case&, Nodes& nodes) { nodes.pop_back(); });
  expect("a node reads", [](Case& c, Nodes& nodes) {
    nodes[4].over_time = lbq::OverTime::kNone;
    nodes[4].has_time = true;
    Node merge = c.start(Kind::kMerge, 4);
    merge.inputs = {4, 3};
    nodes.push_back(merge);
    c.add(c.start(Kind::kReadout, 5));
  });
  expect("unlike the last readout", [](Case& c, Nodes& nodes) {
    nodes[4].over_time = lbq::OverTime::kNone;
    c.add(c.start(Kind::kReadout, 3));
  });
  expect("not before it", [](Case&, Nodes& nodes) { nodes[1].inputs = {1}; });
  expect("not before it", [](Case&, Nodes& nodes) { nodes[1].inputs = {-2}; });
  expect("reads 0 inputs", [](Case&, Nodes& nodes) { nodes[1].inputs.clear(); });
  expect("reads 2 inputs", [](Case&, Nodes& nodes) { nodes[2].inputs = {1, 1}; });
  expect("reads an input without time", [](Case&, Nodes& nodes) { nodes[2].inputs = {0}; });
  expect("repeats what has time", [](Case& c, Nodes&) { c.network.takes_frames = true, c.network.nodes[0].has_time = true; });
  expect("contradicts", [](Case&, Nodes& nodes) { nodes[0].has_time = true; });
  expect("repeats 2 times", [](Case&, Nodes& nodes) { nodes[1].repeats = 2; });
  expect("wider than what it reads", [](Case&, Nodes& nodes) { nodes[0].window.dilation[0] = 2; });
  expect("other axes", [](Case&, Nodes& nodes) { nodes[0].window.stride.count = 1; });
  expect("its weight has 53", [](Case&, Nodes& nodes) { nodes[0].weight.count = 53; });
  expect("integers of 4 bytes", [](Case& c, Nodes& nodes) { nodes[0].weight = c.keep(Longs(54, 1), 4, {3, 2, 3, 3}); });
  expect("its bias does not fit", [](Case& c, Nodes& nodes) { nodes[0].bias = c.keep({1, 2}, 4); });
  expect("they reach 2", [](Case&, Nodes& nodes) { nodes[3].max_input = 1; });
  expect("thresholds fall", [](Case& c, Nodes& nodes) { nodes[2].thresholds = c.keep({20, 10}, 4, {2, 1}); });
  expect("below zero", [](Case& c, Nodes& nodes) { nodes[2].thresholds = c.keep({0, 10}, 4, {2, 1}); });
  expect("its reset adds", [](Case& c, Nodes& nodes) { nodes[2].reset_amount = c.keep({-1}, 4); });
  expect("more than one", [](Case&, Nodes& nodes) { nodes[2].multiplier = 2; });
  expect("2^24", [](Case& c, Nodes&) { c.network.input = {1, 1 << 13, 1 << 13}; });
}

}  // namespace

void test_engine(int cases, Report& report) {
  test_refusals(report);
  test_long_sequence(report);
  test_large_sums(report);
  for (int index = 0; index < cases;) {
    const Case c;
    if (c.products() > kMostProducts) continue;  // small networks find more per second
    const Oracle oracle(c);
    if (!oracle.fits) continue;  // sums beyond 32 bits would be refused by the caller
    const Longs reference = oracle.answers();
    for (const char* isa : kIsas)
      for (lbq::Choice choice : {lbq::Choice::kMeasured, lbq::Choice::kEvents, lbq::Choice::kDense}) {
        std::unique_ptr<lbq::Engine> engine;
        try {
          engine = std::make_unique<lbq::Engine>(c.network, lbq::EngineOptions{isa, choice});
        } catch (const std::invalid_argument&) {
          continue;  // not on this machine
        }
        const std::string name = std::string("engine, ") + isa + ", choice " + std::to_string(static_cast<int>(choice)) +
                                 ", case " + std::to_string(index);
        for (int threads : {1, 2, 3})
          report(equal(run(*engine, c, threads, reference.size()), reference), name + ": differs, threads " + std::to_string(threads));
        report(equal(run_stream(*engine, c, reference.size()), reference), name + ": a stream differs");
        if (index % 16 == 0 && choice == lbq::Choice::kMeasured)
          report(is_shared_safely(*engine, c, reference), name + ": callers disturb each other");
      }
    ++index;
  }
}
