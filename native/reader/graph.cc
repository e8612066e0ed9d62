#include <algorithm>
#include <cinttypes>
#include <unordered_map>

#include "manifest.h"
#include "rules.h"

namespace lbq {
namespace {

constexpr int64_t kPixelMax = 255;
constexpr int64_t kCurrents = -1;  // instead of a largest level

// What a node gives: for one sample at one instant, values of this shape.
struct ValueInfo {
  Shape shape;
  bool has_places = false;  // [C, H, W]; otherwise [C]
  bool has_time = false;
  int64_t max_level = kCurrents;  // largest size of levels, or of sums of them
};

const char* name(const Entry& entry) { return entry.node.path.c_str(); }

void check_size(const Shape& shape, const char* path) {
  const int64_t size = saturating_product(saturating_product(shape.channels, shape.height), shape.width);
  require(size <= kMaxValues, LBQ_RULE_SIZE, "%s gives more than 2^24 values", path);
}

// How many positions the window has along an axis.
int64_t slide(const Entry& entry, int axis, int64_t size) {
  const Window& window = entry.node.window;
  const int64_t reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
  const int64_t rest = size + 2 * window.padding[axis] - reach;
  require(rest >= 0, LBQ_RULE_SHAPE, "the window of %s is wider than what it reads", name(entry));
  return rest / window.stride[axis] + 1;
}

void check_max_input(const Entry& entry, const ValueInfo& first) {
  // how large currents get, the proof knows
  require(first.max_level == kCurrents || entry.node.max_input >= first.max_level, LBQ_RULE_MAX_INPUT,
          "%s says that levels to %" PRId64 " enter, but they reach %" PRId64, name(entry),
          entry.node.max_input, first.max_level);
}

void check_linear(const Entry& entry, const ValueInfo& first) {
  const Node& node = entry.node;
  require(entry.tensors[0].shape[1] == first.shape.size(), LBQ_RULE_SHAPE,
          "weight of %s reads another number of values", name(entry));
  bool is_plain = node.groups == 1;
  for (int axis = 0; axis < 2; ++axis)
    is_plain = is_plain && node.window.stride[axis] == 1 && node.window.padding[axis] == 0 &&
               node.window.dilation[axis] == 1;
  require(is_plain, LBQ_RULE_SHAPE, "%s is a linear layer with stride, padding, dilation or groups",
          name(entry));
}

ValueInfo synapse(Entry& entry, const ValueInfo& first) {
  const Region &weight = entry.tensors[0], &bias = entry.tensors[1];
  Node& node = entry.node;
  ValueInfo flow{{weight.shape[0], 1, 1}, false, first.has_time, kCurrents};
  if (weight.num_dims == 2) {
    node.is_linear = true;
    check_linear(entry, first);
  } else {
    require(weight.num_dims == 4 && first.has_places, LBQ_RULE_SHAPE,
            "weight of %s does not fit what it reads", name(entry));
    require(weight.shape[1] * node.groups == first.shape.channels, LBQ_RULE_SHAPE,
            "%s reads %" PRId64 " channels in %" PRId64 " groups, there are %" PRId64, name(entry),
            weight.shape[1], node.groups, first.shape.channels);
    require(weight.shape[0] % node.groups == 0, LBQ_RULE_SHAPE, "%s: %" PRId64 " outputs, %" PRId64 " groups",
            name(entry), weight.shape[0], node.groups);
    for (int axis = 0; axis < 2; ++axis) node.window.kernel[axis] = weight.shape[2 + axis];
    flow.has_places = true;
    flow.shape.height = slide(entry, 0, first.shape.height);
    flow.shape.width = slide(entry, 1, first.shape.width);
  }
  const Shape& to = flow.shape;
  const bool is_map = flow.has_places && bias.is({to.channels, to.height, to.width});
  require(!bias.exists() || bias.is({to.channels}) || is_map, LBQ_RULE_SHAPE,
          "the bias of %s does not fit what it gives", name(entry));
  return flow;
}

ValueInfo shortcut(const Entry& entry, const ValueInfo& first) {
  for (const Region& region : entry.tensors)
    require(!region.exists() || region.is({1}) || region.is({first.shape.channels}), LBQ_RULE_SHAPE,
            "%s has neither one weight nor one for each of %" PRId64 " channels", name(entry),
            first.shape.channels);
  ValueInfo flow = first;
  flow.max_level = kCurrents;
  return flow;
}

ValueInfo pool(const Entry& entry, const ValueInfo& first) {
  const Window& window = entry.node.window;
  require(first.has_places, LBQ_RULE_SHAPE, "%s pools what has no places", name(entry));
  for (int axis = 0; axis < 2; ++axis)
    require(2 * window.padding[axis] <= window.kernel[axis], LBQ_RULE_SHAPE,
            "%s pads more than half of its window", name(entry));
  ValueInfo flow = first;
  flow.shape.height = slide(entry, 0, first.shape.height);
  flow.shape.width = slide(entry, 1, first.shape.width);
  if (first.max_level != kCurrents && !entry.node.pools_max)
    flow.max_level = saturating_product(first.max_level, window.kernel[0] * window.kernel[1]);
  return flow;
}

ValueInfo neuron(Entry& entry, const ValueInfo& first) {
  const Region &thresholds = entry.tensors[0], &reset_amount = entry.tensors[1];
  const int64_t channels = first.shape.channels;
  Node& node = entry.node;
  require(thresholds.num_dims == 2 && (thresholds.shape[1] == 1 || thresholds.shape[1] == channels), LBQ_RULE_SHAPE,
          "the thresholds of %s do not fit %" PRId64 " channels", name(entry), channels);
  require(thresholds.shape[0] <= kMaxLevel, LBQ_RULE_MAX_LEVEL, "%s has %" PRId64 " levels", name(entry),
          thresholds.shape[0]);
  require(reset_amount.is({1}) || reset_amount.is({channels}), LBQ_RULE_SHAPE,
          "what %s removes does not fit %" PRId64 " channels", name(entry), channels);
  require(node.multiplier <= 1 << node.shift, LBQ_RULE_DECAY, "%s multiplies its carry by more than one",
          name(entry));
  if (node.resets_after_decay)
    require(thresholds.shape[0] == 1 && node.reset == Reset::kEvent, LBQ_RULE_RESET,
            "%s resets after its decay: one threshold, one event", name(entry));
  node.max_level = static_cast<int32_t>(thresholds.shape[0]);
  ValueInfo flow = first;
  flow.max_level = node.max_level;
  return flow;
}

ValueInfo give(Entry& entry, const std::vector<const ValueInfo*>& entering, const Manifest& manifest) {
  const ValueInfo& first = *entering[0];
  const Kind kind = entry.node.kind;
  if (kind == Kind::kSynapse || kind == Kind::kShortcut || kind == Kind::kPool)
    require(entry.node.has_time == first.has_time, LBQ_RULE_SIGNAL,
            "has_time of %s contradicts what it reads", name(entry));
  if (kind == Kind::kSynapse || kind == Kind::kShortcut) {
    check_max_input(entry, first);
    return kind == Kind::kSynapse ? synapse(entry, first) : shortcut(entry, first);
  }
  if (kind == Kind::kPool) return pool(entry, first);
  for (const ValueInfo* flow : entering) {
    require(flow->max_level == kCurrents, LBQ_RULE_SIGNAL, "%s takes currents, it reads levels", name(entry));
    const bool is_alike = flow->shape == first.shape && flow->has_places == first.has_places &&
                          flow->has_time == first.has_time;
    require(is_alike, LBQ_RULE_SHAPE, "%s reads several shapes, or mixes still and moving", name(entry));
  }
  if (kind == Kind::kMerge) return first;
  const bool is_timed = kind != Kind::kRepeat;
  require(first.has_time == is_timed, LBQ_RULE_SIGNAL, "%s takes %s", name(entry),
          is_timed ? "a sequence" : "one instant");
  if (kind == Kind::kRepeat) {
    require(entry.repeats == manifest.timesteps, LBQ_RULE_TIMESTEPS, "%s repeats %" PRId64 " times",
            name(entry), entry.repeats);
    ValueInfo flow = first;
    flow.has_time = true;
    return flow;
  }
  if (kind == Kind::kReadout) {
    require(entry.over_time != kMean, LBQ_RULE_SIGNAL, "%s takes the mean over time", name(entry));
    return first;
  }
  return neuron(entry, first);
}

ValueInfo input_flow(const Manifest& manifest) {
  const int64_t* shape = manifest.input_shape;
  const int num_dims = manifest.num_input_dims;
  require(num_dims == 1 || num_dims == 3, LBQ_RULE_SHAPE, "input_shape has %d dimensions", num_dims);
  const bool has_places = num_dims == 3;
  const ValueInfo flow{{shape[0], has_places ? shape[1] : 1, has_places ? shape[2] : 1},
                  has_places,
                  manifest.takes_frames,
                  kPixelMax};
  check_size(flow.shape, "the input");
  return flow;
}

void check_ends(const Manifest& manifest, const std::vector<bool>& is_read) {
  for (size_t i = 0; i + 1 < manifest.entries.size(); ++i) {
    const Entry& entry = manifest.entries[i];
    require(is_read[i] && entry.node.kind != Kind::kReadout, LBQ_RULE_UNREAD, "no node reads %s", name(entry));
  }
  const Entry& last = manifest.entries.back();
  require(last.node.kind == Kind::kReadout, LBQ_RULE_UNREAD, "the last node, %s, is no readout", name(last));
}

void check_proof(const Manifest& manifest) {
  int64_t work = 0;
  for (const Entry& entry : manifest.entries) {
    const Node& node = entry.node;
    const bool is_neuron = node.kind == Kind::kNeuron;
    const int64_t visits = is_neuron ? node.max_level * manifest.timesteps : int64_t(node.inputs.size());
    work += visits * node.to.channels;
  }
  require(work <= kMaxProof, LBQ_RULE_SIZE, "%" PRId64 " inputs, thresholds and timesteps to prove", work);
}

void check_types(const Manifest& manifest) {
  for (const Entry& entry : manifest.entries) {
    if (entry.node.kind != Kind::kSynapse) continue;
    const int32_t bits = entry.node.weight_bits;
    const bool fits = bits != 0 && (entry.tensors[0].type == Type::kI16) == (bits == 16);
    require(fits, LBQ_RULE_DTYPE, "the type of %s's weights does not hold %d bits", name(entry), bits);
  }
}

}  // namespace

void check_graph(Manifest& manifest) {
  std::vector<Entry>& entries = manifest.entries;
  std::vector<ValueInfo> flows(1 + entries.size());  // the input first
  std::vector<const ValueInfo*> entering;
  std::vector<bool> is_read(entries.size());
  std::unordered_map<std::string_view, int32_t> known;
  known.reserve(1 + entries.size());
  known.emplace("input", kInput);
  flows[0] = input_flow(manifest);
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    require(known.find(entry.node.path) == known.end(), LBQ_RULE_NAME, "two nodes are called %s",
            name(entry));
    entering.clear();
    entry.node.inputs.reserve(entry.reads.size());
    for (std::string_view path : entry.reads) {
      const auto found = known.find(path);
      require(found != known.end(), LBQ_RULE_ORDER, "%s reads a node that is not before it", name(entry));
      entry.node.inputs.push_back(found->second);
      entering.push_back(&flows[1 + found->second]);
      if (found->second != kInput) is_read[found->second] = true;
    }
    ValueInfo& flow = flows[1 + i];
    flow = give(entry, entering, manifest);
    check_size(flow.shape, name(entry));
    entry.node.from = entering[0]->shape;
    entry.node.to = flow.shape;
    entry.node.has_time = flow.has_time;
    known.emplace(entry.node.path, static_cast<int32_t>(i));
  }
  check_ends(manifest, is_read);
  check_proof(manifest);
  check_types(manifest);
}

}  // namespace lbq
