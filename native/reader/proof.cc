#include <algorithm>
#include <cinttypes>

#include "reader.h"
#include "rules.h"

namespace lbq {
namespace {

// Further than anything that fits. Intervals stop there: nothing brings them back, so they are refused.
constexpr int64_t kBeyond = int64_t{1} << 62;
constexpr int64_t kPixelMax = 255;

int64_t clamped(__int128 value) {
  return static_cast<int64_t>(value > kBeyond ? kBeyond : value < -kBeyond ? -kBeyond : value);
}
int64_t plus(int64_t one, int64_t other) { return clamped(__int128{one} + other); }
int64_t times(int64_t one, int64_t other) { return clamped(__int128{one} * other); }

struct Interval {
  int64_t low = 0, high = 0;

  Interval operator+(Interval other) const { return {plus(low, other.low), plus(high, other.high)}; }
  Interval operator*(int64_t factor) const {
    return {times(low, factor), times(high, factor)};
  }  // not negative
  Interval hull(Interval other) const { return {std::min(low, other.low), std::max(high, other.high)}; }
  // Zero, and so every partial sum.
  Interval with_rest() const { return hull({0, 0}); }
  bool operator==(Interval other) const { return low == other.low && high == other.high; }
  bool fits() const { return low >= INT32_MIN && high <= INT32_MAX; }
};

// What is known of a node. Intervals per channel exist for one channel at a time.
struct Known {
  int64_t channels = 1;  // that differ; 1: all are alike
  Interval gives;        // in this channel
  Interval all_given;    // in all channels so far
  Interval inner;        // of everything that it computes
  bool is_begun = false;
};

// Partial sums, then currents, of one channel of a synapse or shortcut.
Interval weighted(const Node& node, int64_t channel, Interval& inner) {
  const int64_t rows = node.kind == Kind::kSynapse ? node.to.channels : node.weight.count;
  const int64_t length = node.weight.count / rows, row = rows == 1 ? 0 : channel;
  Interval sums = with_type(node.weight, [&](const auto* weights) {
    Interval found;
    for (int64_t i = row * length; i < (row + 1) * length; ++i)
      (weights[i] < 0 ? found.low : found.high) += weights[i];
    return found;
  });
  sums = sums * node.max_input;
  inner = sums;
  if (node.bias.count == 0) return sums;
  const int64_t count = node.kind == Kind::kSynapse ? node.bias.count / node.to.channels : 1;
  const int32_t* bias = static_cast<const int32_t*>(node.bias.data);
  const int64_t first = node.bias.count == 1 ? 0 : channel * count;
  const auto [low, high] = std::minmax_element(bias + first, bias + first + count);
  const Interval currents = sums + Interval{*low, *high};
  inner = sums.hull(currents);
  return currents;
}

// One channel of a neuron: its thresholds, and how it forgets.
class Membrane {
 public:
  Membrane(const Node& node, int64_t channel) : node_(node), reset_amount_(of_channel(node.reset_amount, channel)) {
    thresholds_.reserve(node.max_level);
    for (int64_t index = 0; index < node.max_level; ++index) thresholds_.push_back(threshold(node, index, channel));
  }

  // The hull of all membranes, products of the decay and carries, and of all that is formed on the way.
  Interval follow(Interval currents, int64_t timesteps) const {
    if (!currents.fits()) return currents;
    Interval carried, hull;
    for (int64_t t = 0; t < timesteps; ++t) {
      const Interval product = carried * node_.multiplier;
      const bool resets_now = node_.resets_after_decay && t > 0;
      const Interval left = resets_now ? reset(carried, true) : decayed(carried);
      const Interval membrane = left + currents;
      const Interval before = carried;
      carried = node_.resets_after_decay ? membrane : reset(membrane, false);
      hull = hull.hull(membrane).hull(product).hull(left).hull(decayed(before) + currents).hull(carried);
      if (carried == before || !hull.fits()) break;  // all later timesteps are the same, or it is over
    }
    return hull;
  }

 private:
  Interval decayed(Interval carried) const {
    return {carried.low * node_.multiplier >> node_.shift, carried.high * node_.multiplier >> node_.shift};
  }

  // The hull, over all levels that may be emitted, of the membranes that emit them, after their reset.
  Interval reset(Interval membrane, bool decays) const {
    Interval hull{kBeyond, -kBeyond};
    for (int64_t level = 0; level <= node_.max_level; ++level) {
      Interval part{level == 0 ? membrane.low : std::max(membrane.low, thresholds_[level - 1]),
                    level == node_.max_level ? membrane.high : std::min(membrane.high, thresholds_[level] - 1)};
      if (part.low > part.high) continue;
      if (decays) part = decayed(part);
      if (level > 0 && node_.reset == Reset::kZero) part = {0, 0};
      const int64_t units = node_.reset == Reset::kLevel   ? level
                            : node_.reset == Reset::kEvent ? std::min<int64_t>(level, 1)
                                                           : 0;
      hull = hull.hull({part.low - units * reset_amount_, part.high - units * reset_amount_});
    }
    return hull;
  }

  const Node& node_;
  int64_t reset_amount_;
  std::vector<int64_t> thresholds_;
};

class Proof {
 public:
  explicit Proof(const Network& network) : network_(network), known_(network.nodes.size()) {
    for (size_t i = 0; i < known_.size(); ++i) known_[i].channels = differing(network.nodes[i]);
  }

  std::vector<Bound> run() {
    std::vector<size_t> active(known_.size());  // nodes whose channels are not all done
    for (size_t i = 0; i < active.size(); ++i) active[i] = i;
    for (int64_t channel = 0; !active.empty(); ++channel) {
      for (size_t i : active) visit(i, channel);
      const auto is_done = [&](size_t i) { return known_[i].channels <= channel + 1; };
      active.erase(std::remove_if(active.begin(), active.end(), is_done), active.end());
    }
    std::vector<Bound> bounds(known_.size());
    for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = conclude(i);
    return bounds;
  }

 private:
  // In how many channels a node has something of its own to say; for a neuron, in how many it computes so.
  int64_t differing(const Node& node) const {
    if (node.kind == Kind::kSynapse) return node.to.channels;
    int64_t channels = std::max<int64_t>({1, node.weight.count, node.bias.count, node.reset_amount.count});
    if (node.kind == Kind::kNeuron) channels = std::max(channels, node.thresholds.count / node.max_level);
    if (node.kind == Kind::kShortcut) return channels;
    for (int32_t input : node.inputs)
      if (input != kInput && network_.nodes[input].kind != Kind::kNeuron)
        channels = std::max(channels, known_[input].channels);
    return channels;
  }

  Interval entering(int32_t input) const {
    return input == kInput ? Interval{0, kPixelMax} : known_[input].gives;
  }

  void visit(size_t index, int64_t channel) {
    const Node& node = network_.nodes[index];
    Known& known = known_[index];
    Interval inner;
    Interval gives = entering(node.inputs[0]);
    if (node.kind == Kind::kSynapse || node.kind == Kind::kShortcut) {
      gives = weighted(node, channel, inner);
    } else if (node.kind == Kind::kMerge) {
      inner = gives.with_rest();
      for (size_t i = 1; i < node.inputs.size(); ++i) {
        const Interval more = entering(node.inputs[i]);
        gives = gives + more;
        inner = inner + more.with_rest();
      }
    } else if (node.kind == Kind::kNeuron) {
      inner = Membrane(node, channel).follow(gives, network_.timesteps).with_rest();
      gives = {0, node.max_level};
    } else if (node.kind == Kind::kReadout) {
      gives = gives * (node.sums_over_time ? network_.timesteps : 1);
      inner = gives.with_rest();
    } else if (node.kind == Kind::kPool && !node.pools_max) {
      gives = gives * (node.window.kernel[0] * node.window.kernel[1]);
      if (node.window.padding[0] > 0 || node.window.padding[1] > 0) gives = gives.with_rest();  // less at borders
    }
    known.gives = gives;
    known.all_given = known.is_begun ? known.all_given.hull(gives) : gives;
    known.inner = known.is_begun ? known.inner.hull(inner) : inner;
    known.is_begun = true;
  }

  Bound conclude(size_t index) const {
    const Node& node = network_.nodes[index];
    const char* path = node.path.c_str();
    if (node.kind == Kind::kSynapse || node.kind == Kind::kShortcut) {
      const int32_t input = node.inputs[0];
      const Interval all = input == kInput ? Interval{0, kPixelMax} : known_[input].all_given;
      require(node.max_input > 0 && all.low >= 0 && all.high <= node.max_input, LBQ_MODEL_BOUND,
              "%s says that 0..%" PRId64 " enters, but what it reads lies in %" PRId64 "..%" PRId64, path,
              node.max_input, all.low, all.high);
    }
    if (node.kind == Kind::kPool || node.kind == Kind::kRepeat) return {};
    const auto [low, high] = known_[index].inner;
    require(known_[index].inner.fits(), LBQ_MODEL_BOUND,
            "%s can reach %" PRId64 "..%" PRId64 ", which no 32-bit integer holds", path, low, high);
    return {low, high, low >= INT16_MIN && high <= INT16_MAX ? 16 : 32};
  }

  const Network& network_;
  std::vector<Known> known_;
};

}  // namespace

std::vector<Bound> prove(const Network& network) { return Proof(network).run(); }

}  // namespace lbq
