// Random integer networks on every instruction set, by events and densely, with 1, 2 and 3 threads and in
// pieces of time, against int64 arithmetic written to be clear.
#include "engine.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "plane_conv.h"
#include "tester.h"

namespace {

using lbq::Kind;
using lbq::Node;
using lbq::Reset;
using Longs = std::vector<int64_t>;

constexpr int64_t kLargest = INT32_MAX, kMostProducts = 2000000;

int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(rng()() % (high - low + 1)); }

// A network and the integers that it points at.
struct Case {
  lbq::Network net;
  std::vector<std::unique_ptr<std::vector<char>>> memory;
  std::vector<uint8_t> inputs;
  std::vector<int64_t> largest;  // value that a node gives, if it gives levels or counts
  int64_t batch = 1, max_input = 1;

  Case();
  lbq::Integers keep(const Longs& values, int32_t width) {
    memory.push_back(std::make_unique<std::vector<char>>(values.size() * width));
    for (size_t i = 0; i < values.size(); ++i) std::memcpy(&(*memory.back())[i * width], &values[i], width);
    return {memory.back()->data(), width, static_cast<int64_t>(values.size())};
  }
  int32_t add(Node node, int64_t most) {
    net.nodes.push_back(std::move(node));
    largest.push_back(most);
    return static_cast<int32_t>(net.nodes.size()) - 1;
  }
  lbq::Shape shape_of(int32_t node) const { return node == lbq::kInput ? net.input : net.nodes[node].to; }
  int64_t most_of(int32_t node) const { return node == lbq::kInput ? max_input : largest[node]; }
  bool still(int32_t node) const { return node == lbq::kInput ? !net.takes_frames : net.nodes[node].is_still; }

  Node start(Kind kind, int32_t input) const {
    Node node;
    node.kind = kind;
    node.inputs = {input};
    node.from = node.to = shape_of(input);
    node.is_still = still(input);
    return node;
  }
  int32_t add_synapse(int32_t input, const lbq::Shape* wanted);
  int32_t add_shortcut(int32_t input);
  int32_t add_pool(int32_t input);
  int32_t add_neuron(int32_t input);
  int32_t add_repeat(int32_t input);
  int32_t merge(std::vector<int32_t> inputs);
  int64_t products() const {
    int64_t sum = 0;
    for (const Node& node : net.nodes)
      if (node.kind == Kind::kSynapse)
        sum += node.to.height * node.to.width * node.weight.count * batch * (node.is_still ? 1 : net.timesteps);
    return sum;
  }
};

int64_t draw_weight(int32_t bits, bool is_extreme) {
  const int64_t most = (int64_t{1} << (bits - 1)) - 1;
  if (is_extreme) return chance(2) ? most : -most - (bits > 4);
  return between(-most, most);
}

// Draw weights until everything that may be added up fits 32 bits.
int32_t Case::add_synapse(int32_t input, const lbq::Shape* wanted) {
  Node node = start(Kind::kSynapse, input);
  node.max_input = most_of(input);
  const lbq::Shape from = node.from;
  if (wanted != nullptr) {  // a window that gives this shape: one by one, or linear
    node.to = *wanted;
    node.is_linear = wanted->height != from.height || wanted->width != from.width;
  } else {
    node.to.channels = pick<int64_t>({1, 3, 8, 17, 32, 40, 64, 96, 130});
    node.is_linear = chance(6);
    for (int axis : {0, 1}) {
      node.window.kernel[axis] = pick<int64_t>({1, 2, 3, 3, 5});
      node.window.stride[axis] = pick<int64_t>({1, 1, 2, 3});
      node.window.padding[axis] = between(0, node.window.kernel[axis] / 2 + 1);
      node.window.dilation[axis] = pick<int64_t>({1, 1, 2});
      const int64_t size = axis == 0 ? from.height : from.width;
      if (node.window.dilation[axis] * (node.window.kernel[axis] - 1) + 1 > size + 2 * node.window.padding[axis])
        node.window.kernel[axis] = 1;
      const int64_t reach = node.window.dilation[axis] * (node.window.kernel[axis] - 1) + 1;
      (axis == 0 ? node.to.height : node.to.width) =
          (size + 2 * node.window.padding[axis] - reach) / node.window.stride[axis] + 1;
    }
    if (!node.is_linear && chance(4)) {
      node.groups = chance(2) ? from.channels : (from.channels % 2 == 0 ? 2 : 1);
      node.to.channels = node.groups * pick<int64_t>({1, 2});
    }
  }
  if (node.is_linear) {
    node.window = lbq::Window{};
    node.to.height = node.to.width = 1;
    node.groups = 1;
  }
  const int64_t taps = node.is_linear ? from.height * from.width : node.window.kernel[0] * node.window.kernel[1];
  const int64_t inputs = from.channels / node.groups * taps;
  node.weight_bits = pick({4, 8, 8, 8, 16});
  const bool is_extreme = chance(4);
  Longs weights(node.to.channels * inputs), bias;
  for (;;) {
    int64_t low = 0, high = 0;
    for (int64_t output = 0; output < node.to.channels; ++output) {
      int64_t negative = 0, positive = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t weight = weights[output * inputs + i] = draw_weight(node.weight_bits, is_extreme);
        (weight < 0 ? negative : positive) += weight * node.max_input;
      }
      low = std::min(low, negative);
      high = std::max(high, positive);
    }
    node.bound = {low - 1000, high + 1000, low - 1000 >= INT16_MIN && high + 1000 <= INT16_MAX ? 16 : 32};
    if (low - 1000 > -kLargest / 8 && high + 1000 < kLargest / 8) break;
    node.weight_bits = node.weight_bits == 16 ? 8 : 4;
    if (node.max_input * inputs * 8 > kLargest / 8) std::fill(weights.begin(), weights.end(), 0);
  }
  node.weight = keep(weights, node.weight_bits == 16 ? 2 : 1);
  const bool is_map = !node.is_linear && chance(3);
  if (chance(2)) {
    bias.resize(node.to.channels * (is_map ? node.to.height * node.to.width : 1));
    for (int64_t& value : bias) value = between(-1000, 1000);
    node.bias = keep(bias, 4);
  }
  return add(node, 0);
}

int32_t Case::add_shortcut(int32_t input) {
  Node node = start(Kind::kShortcut, input);
  node.max_input = most_of(input);
  Longs weight(chance(2) ? 1 : node.to.channels);
  for (int64_t& value : weight) value = between(-500, 500);
  node.weight = keep(weight, 2);
  node.bound = {-500 * node.max_input - 9, 500 * node.max_input + 9, 32};
  if (chance(3)) node.bias = keep(Longs(node.to.channels, 9), 4);
  return add(node, 0);
}

int32_t Case::add_pool(int32_t input) {
  Node node = start(Kind::kPool, input);
  node.pools_max = chance(2);
  for (int axis : {0, 1}) {
    const int64_t size = axis == 0 ? node.from.height : node.from.width;
    node.window.kernel[axis] = std::min<int64_t>(size, between(1, 3));
    node.window.stride[axis] = between(1, 2);
    node.window.padding[axis] = node.window.kernel[axis] > 1 ? between(0, 1) : 0;
    (axis == 0 ? node.to.height : node.to.width) =
        (size + 2 * node.window.padding[axis] - node.window.kernel[axis]) / node.window.stride[axis] + 1;
  }
  return add(node, most_of(input) * (node.pools_max ? 1 : node.window.kernel[0] * node.window.kernel[1]));
}

int32_t Case::add_neuron(int32_t input) {
  Node node = start(Kind::kNeuron, input);
  node.is_still = false;
  node.max_level = pick({1, 2, 5, 5, 15, 40, 255});
  node.shift = pick({0, 1, 4, 8});
  node.multiplier = static_cast<int32_t>(between(0, int64_t{1} << node.shift));
  node.reset = pick({Reset::kEvent, Reset::kLevel, Reset::kZero, Reset::kNone});
  const int64_t step = pick<int64_t>({1, 40, 700, 20000});
  const bool is_shared = chance(3);
  const int64_t channels = is_shared ? 1 : node.to.channels;
  if (chance(4)) {
    node.resets_after_decay = true;
    node.reset = Reset::kEvent;
    node.max_level = 1;
  }
  Longs ladder(node.max_level * channels), removed(channels);
  for (int64_t channel = 0; channel < channels; ++channel) {
    int64_t rung = between(1, step);
    for (int32_t n = 0; n < node.max_level; ++n, rung += between(0, step)) ladder[n * channels + channel] = rung;
    removed[channel] = between(0, step);
  }
  node.ladder = keep(ladder, 4);
  node.removed = keep(removed, 4);
  node.bound = {-kLargest, kLargest, 32};
  return add(node, node.max_level);
}

int32_t Case::add_repeat(int32_t input) {
  Node node = start(Kind::kRepeat, input);
  node.is_still = false;
  return add(node, most_of(input));
}

int32_t Case::merge(std::vector<int32_t> inputs) {
  if (inputs.size() == 1) return inputs[0];
  Node node = start(Kind::kMerge, inputs[0]);
  node.inputs = inputs;
  node.bound = {-kLargest, kLargest, 32};
  return add(node, 0);
}

Case::Case() {
  net.timesteps = pick<int64_t>({1, 2, 3});
  net.takes_frames = chance(2);
  net.input = {pick<int64_t>({1, 2, 3, 7, 32, 33, 64, 100, 300}), between(1, 9), between(1, 9)};
  batch = pick<int64_t>({1, 1, 2, 3, 9});
  max_input = pick<int64_t>({1, 3, 5, 5, 60, 127, 128, 255});
  const int sparsity = pick({1, 2, 4, 7, 30});
  inputs.resize((net.takes_frames ? net.timesteps : 1) * batch * net.input.size());
  for (uint8_t& level : inputs)
    level = chance(sparsity) ? static_cast<uint8_t>(chance(3) ? max_input : between(0, max_input)) : 0;
  const bool pools_first = chance(4);
  const int32_t first = pools_first ? add_pool(lbq::kInput) : lbq::kInput;
  std::vector<int32_t> terms = {add_synapse(first, nullptr)};
  if (still(terms[0]) && chance(2)) terms[0] = add_repeat(terms[0]);
  const lbq::Shape made = shape_of(terms[0]);
  const bool is_same = made.height == shape_of(first).height && made.width == shape_of(first).width;
  const bool is_one = made.height == 1 && made.width == 1;
  if ((is_same || is_one) && chance(2)) {
    int32_t side = add_synapse(first, &made);
    if (still(side) && !still(terms[0])) side = add_repeat(side);
    terms.push_back(side);
  }
  if (is_same && made.channels == shape_of(first).channels) {
    int32_t side = add_shortcut(first);
    if (still(side) && !still(terms[0])) side = add_repeat(side);
    terms.push_back(side);
  }
  int32_t sum = merge(terms);
  if (still(sum)) sum = add_repeat(sum);
  int32_t last = sum;
  if (!chance(4)) {
    const int32_t levels = add_neuron(sum);
    const int32_t pooled = chance(3) ? add_pool(levels) : levels;
    last = chance(5) ? pooled : add_synapse(pooled, nullptr);
    if (chance(4)) {  // currents that two read
      const int32_t more = add_neuron(last);
      last = merge({last, add_shortcut(more)});
    }
  }
  Node readout = start(Kind::kReadout, last);
  readout.sums_over_time = chance(2);
  readout.is_still = readout.sums_over_time;
  add(readout, 0);
}

// ---- the oracle: NCHW, int64 ----

struct Oracle {
  const Case& c;
  std::vector<Longs> values;
  bool fits = true;

  explicit Oracle(const Case& c) : c(c) {
    for (const Node& node : c.net.nodes) values.push_back(answer(node));
  }
  Longs value(int32_t node) const {
    return node == lbq::kInput ? Longs(c.inputs.begin(), c.inputs.end()) : values[node];
  }
  static int64_t at(const lbq::Integers& integers, int64_t i) {
    const char* from = static_cast<const char*>(integers.data) + i * integers.width;
    if (integers.width == 1) return *reinterpret_cast<const int8_t*>(from);
    int16_t half;
    int32_t word;
    if (integers.width == 2) return std::memcpy(&half, from, 2), half;
    return std::memcpy(&word, from, 4), word;
  }
  int64_t checked(int64_t value) {
    fits = fits && value >= INT32_MIN && value <= INT32_MAX;
    return value;
  }
  static int64_t per_channel(const lbq::Integers& integers, int64_t channel) {
    return at(integers, integers.count == 1 ? 0 : channel);
  }

  Longs answer(const Node& node) {
    const Longs x = value(node.inputs[0]);
    const int64_t size = node.from.size(), instants = static_cast<int64_t>(x.size()) / size;
    Longs made;
    if (node.kind == Kind::kRepeat) {
      for (int64_t t = 0; t < c.net.timesteps; ++t) made.insert(made.end(), x.begin(), x.end());
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
        made.push_back(x[i] * per_channel(node.weight, channel) +
                       (node.bias.count ? per_channel(node.bias, channel) : 0));
      }
    } else if (node.kind == Kind::kNeuron) {
      made = neuron(node, x);
    } else if (node.kind == Kind::kReadout) {
      if (!node.sums_over_time) return x;
      made.assign(x.size() / c.net.timesteps, 0);
      for (size_t i = 0; i < x.size(); ++i) made[i % made.size()] = checked(made[i % made.size()] + x[i]);
    } else {
      for (int64_t instant = 0; instant < instants; ++instant) window(node, &x[instant * size], made);
    }
    return made;
  }

  void window(const Node& node, const int64_t* x, Longs& made) {
    lbq::Window w = node.window;
    if (node.is_linear) w.kernel[0] = node.from.height, w.kernel[1] = node.from.width;
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
                  sum += seen * at(node.weight, ((o * inputs + k) * w.kernel[0] + i) * w.kernel[1] + j);
                } else {
                  sum = node.pools_max ? std::max(sum, seen) : sum + seen;
                }
              }
          if (node.bias.count)
            sum += at(node.bias, node.bias.count == node.to.channels
                                     ? o
                                     : (o * node.to.height + y) * node.to.width + column);
          made.push_back(checked(sum));
        }
  }

  Longs neuron(const Node& node, const Longs& x) {
    const int64_t size = static_cast<int64_t>(x.size()) / c.net.timesteps;
    const int64_t pixels = node.from.height * node.from.width, rungs = node.ladder.count / node.max_level;
    Longs levels(x.size());
    for (int64_t i = 0; i < size; ++i) {
      const int64_t channel = i / pixels % node.from.channels, removed = per_channel(node.removed, channel);
      int64_t carry = 0, level = 0;
      for (int64_t t = 0; t < c.net.timesteps; ++t) {
        int64_t membrane = (checked(node.multiplier * carry) >> node.shift) + x[t * size + i];
        if (node.resets_after_decay && level > 0) membrane -= removed;
        checked(membrane);
        level = 0;
        for (int64_t n = 0; n < node.max_level; ++n) level += membrane >= at(node.ladder, n * rungs + (rungs == 1 ? 0 : channel));
        levels[t * size + i] = level;
        carry = membrane;
        if (node.resets_after_decay || level == 0) continue;
        if (node.reset == Reset::kEvent) carry -= removed;
        if (node.reset == Reset::kLevel) carry -= removed * level;
        if (node.reset == Reset::kZero) carry = 0;
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

// Timestep by timestep, with the state passed on by hand.
std::vector<int32_t> run_stream(const lbq::Engine& engine, const Case& c, size_t size) {
  const bool sums = c.net.nodes.back().sums_over_time;
  std::vector<int32_t> whole;
  if (sums) whole.assign(size, 0);
  lbq::State state = engine.at_rest(c.batch);
  for (int64_t t = 0; t < c.net.timesteps; ++t) {
    lbq::RunOptions options;
    options.timesteps = 1;
    options.state = &state;
    std::vector<int32_t> piece(sums ? size : size / c.net.timesteps);
    engine.run(c.inputs.data() + (c.net.takes_frames ? t * c.batch * c.net.input.size() : 0), c.batch, piece.data(), options);
    if (!sums) whole.insert(whole.end(), piece.begin(), piece.end());
    for (size_t i = 0; sums && i < size; ++i) whole[i] += piece[i];
  }
  return whole;
}

// One engine, several callers at once.
bool is_shared_safely(const lbq::Engine& engine, const Case& c, const Longs& truth) {
  std::vector<std::thread> callers;
  std::vector<char> is_right(4, 0);
  for (size_t i = 0; i < is_right.size(); ++i)
    callers.emplace_back([&, i] { is_right[i] = equal(run(engine, c, 1 + i % 2, truth.size()), truth); });
  for (std::thread& caller : callers) caller.join();
  return std::count(is_right.begin(), is_right.end(), 1) == 4;
}

// Bit planes give the same currents, with one addition for every bit of a level and output that it meets.
void test_planes(const Case& c, const Oracle& oracle, const std::string& name, Report& report) {
  for (size_t i = 0; i < c.net.nodes.size(); ++i) {
    const Node& node = c.net.nodes[i];
    if (node.kind != Kind::kSynapse || node.max_input > 255) continue;
    const Longs x = oracle.value(node.inputs[0]);
    const std::vector<uint8_t> levels(x.begin(), x.begin() + node.from.size());
    std::vector<int32_t> currents(node.to.size());
    const lbq::PlaneCounts counts = lbq::multiply_planes(node, levels.data(), currents.data());
    report(std::equal(currents.begin(), currents.end(), oracle.values[i].begin()), name + ": planes differ");
    // The same synapse with weights of one, on the number of bits instead of the levels: what it adds.
    const std::vector<char> ones(node.weight.count, 1);
    Node counting = node;
    counting.weight = {ones.data(), 1, node.weight.count};
    counting.bias = {};
    Longs bits(levels.size()), total;
    for (size_t k = 0; k < levels.size(); ++k) bits[k] = __builtin_popcount(levels[k]);
    Oracle(oracle).window(counting, bits.data(), total);
    int64_t sum = 0;
    for (int64_t part : total) sum += part;
    report(counts.additions == sum, name + ": planes are counted wrongly");
  }
}

}  // namespace

void test_engine(int cases, Report& report) {
  for (int index = 0; index < cases;) {
    const Case c;
    if (c.products() > kMostProducts) continue;  // many small ones find more
    const Oracle oracle(c);
    if (!oracle.fits) continue;  // not a network that anybody would have let through
    const Longs& truth = oracle.values.back();
    if (index % 4 == 0) test_planes(c, oracle, "engine, case " + std::to_string(index), report);
    for (const char* isa : {"scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "amx", "neon"})
      for (lbq::Choice choice : {lbq::Choice::kMeasured, lbq::Choice::kEvents, lbq::Choice::kDense}) {
        std::unique_ptr<lbq::Engine> engine;
        try {
          engine = std::make_unique<lbq::Engine>(c.net, lbq::EngineOptions{isa, choice});
        } catch (const std::invalid_argument&) {
          continue;  // not on this machine
        }
        const std::string name = std::string("engine, ") + isa + ", choice " + std::to_string(static_cast<int>(choice)) +
                                 ", case " + std::to_string(index);
        for (int threads : {1, 2, 3})
          report(equal(run(*engine, c, threads, truth.size()), truth), name + ": differs, threads " + std::to_string(threads));
        report(equal(run_stream(*engine, c, truth.size()), truth), name + ": a stream differs");
        if (index % 16 == 0 && choice == lbq::Choice::kMeasured)
          report(is_shared_safely(*engine, c, truth), name + ": callers disturb each other");
      }
    ++index;
  }
}
