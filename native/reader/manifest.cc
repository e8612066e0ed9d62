#include "manifest.h"

#include <cinttypes>


namespace lbq {
namespace {

constexpr int64_t kSide = 1 << 16;  // largest stride, padding, dilation, window or number of groups
constexpr int64_t kLargest = INT32_MAX;
constexpr int64_t kFarthest = int64_t{1} << 62;  // offset

// In the order of Kind.
const char* const kKinds[] = {"synapse", "shortcut", "merge", "pool", "repeat", "integer_neuron", "readout"};
const char* const kWeighted[] = {"weight", "bias", nullptr};
const char* const kNeuron[] = {"thresholds", "reset_amount", nullptr};
const char* const kNoTensors[] = {nullptr};

bool has_bound(Kind kind) { return kind != Kind::kPool && kind != Kind::kRepeat; }

void check_name(std::string_view path) {
  require(!path.empty() && path.size() <= static_cast<size_t>(kMaxName) && is_utf8(path), LBQ_RULE_NAME,
          "\"%.*s\" has %zu bytes, or is no UTF-8", shown(path), path.data(), path.size());
  const bool has_empty = path.front() == '.' || path.back() == '.' || path.find("..") != path.npos;
  require(!has_empty, LBQ_RULE_NAME, "\"%.*s\" has an empty part", shown(path), path.data());
}

Kind read_kind(Value value, std::string_view path) {
  const std::string_view name = read_string(value, {"the kind", path});
  for (size_t i = 0; i < sizeof kKinds / sizeof *kKinds; ++i)
    if (name == kKinds[i]) return static_cast<Kind>(i);
  throw_error(LBQ_RULE_KIND, "%.*s is a \"%.*s\" in an integer network", shown(path), path.data(), shown(name),
         name.data());
}

int64_t optional_max_input(Value value, std::string_view path) {
  return is_null(value) ? 0 : read_int(value, 1, kLargest, {"max_input", path});
}

void read_synapse(Value settings, Entry& entry) {
  Node& node = entry.node;
  const std::string_view path = node.path;
  const auto [max_input, has_time, stride, padding, dilation, groups, bits] =
      check_keys(settings, {"max_input", "has_time", "stride", "padding", "dilation", "groups", "bits"},
                 {"settings", path});
  node.max_input = optional_max_input(max_input, path);
  node.has_time = read_bool(has_time, {"has_time", path});
  read_pair(stride, 1, kSide, node.window.stride, {"stride", path});
  read_pair(padding, 0, kSide, node.window.padding, {"padding", path});
  read_pair(dilation, 1, kSide, node.window.dilation, {"dilation", path});
  node.groups = read_int(groups, 1, kSide, {"groups", path});
  node.weight_bits = is_null(bits) ? 0 : static_cast<int32_t>(read_int(bits, 4, 16, {"bits", path}));
  const bool is_known =
      node.weight_bits == 0 || node.weight_bits == 4 || node.weight_bits == 8 || node.weight_bits == 16;
  require(is_known, LBQ_RULE_VALUE, "bits of %s is %d", node.path.c_str(), node.weight_bits);
}

void read_shortcut(Value settings, Entry& entry) {
  const std::string_view path = entry.node.path;
  const auto [max_input, has_time] = check_keys(settings, {"max_input", "has_time"}, {"settings", path});
  entry.node.max_input = optional_max_input(max_input, path);
  entry.node.has_time = read_bool(has_time, {"has_time", path});
  entry.node.weight_bits = 16;
}

void read_pool(Value settings, Entry& entry) {
  Node& node = entry.node;
  const std::string_view path = node.path;
  const auto [kind, kernel, stride, padding, has_time] =
      check_keys(settings, {"kind", "kernel", "stride", "padding", "has_time"}, {"settings", path});
  node.pools_max = read_choice(kind, {"max", "sum"}, {"kind", path}) == 0;
  read_pair(kernel, 1, kSide, node.window.kernel, {"kernel", path});
  read_pair(stride, 1, kSide, node.window.stride, {"stride", path});
  read_pair(padding, 0, kSide, node.window.padding, {"padding", path});
  node.has_time = read_bool(has_time, {"has_time", path});
}

void read_neuron(Value settings, Entry& entry) {
  Node& node = entry.node;
  const std::string_view path = node.path;
  const auto [multiplier, shift, reset, resets_after_decay] =
      check_keys(settings, {"multiplier", "shift", "reset", "resets_after_decay"}, {"settings", path});
  node.multiplier = static_cast<int32_t>(read_int(multiplier, 0, 1 << 16, {"multiplier", path}));
  node.shift = static_cast<int32_t>(read_int(shift, 0, 16, {"shift", path}));
  node.reset = static_cast<Reset>(read_choice(reset, {"event", "level", "zero", "none"}, {"reset", path}));
  node.resets_after_decay = read_bool(resets_after_decay, {"resets_after_decay", path});
}

void read_settings(Value settings, Entry& entry) {
  const std::string_view path = entry.node.path;
  switch (entry.node.kind) {
    case Kind::kSynapse: return read_synapse(settings, entry);
    case Kind::kShortcut: return read_shortcut(settings, entry);
    case Kind::kPool: return read_pool(settings, entry);
    case Kind::kNeuron: return read_neuron(settings, entry);
    case Kind::kMerge: return check_keys(settings, nullptr, 0, nullptr, {"settings", path});
    case Kind::kRepeat:
      entry.repeats =
          read_int(check_keys(settings, {"timesteps"}, {"settings", path})[0], 1, kLargest, {"timesteps", path});
      return;
    case Kind::kReadout:
      const Value over_time = check_keys(settings, {"over_time"}, {"settings", path})[0];
      entry.over_time = read_choice(over_time, {"mean", "sum", "none"}, {"over_time", path});
      entry.node.sums_over_time = entry.over_time == kSum;
  }
}

bool fits_role(Type type, Kind kind, int role) {
  if (role == 1 || kind == Kind::kNeuron) return type == Type::kI32;
  return type == Type::kI16 || (kind == Kind::kSynapse && type == Type::kI8);
}

Region read_region(Value value, const Node& node, int role) {
  const char* name = roles(node.kind)[role];
  const std::string_view path = node.path;
  if (is_null(value)) {
    require(node.kind != Kind::kNeuron && role == 1, LBQ_RULE_TENSORS, "%s of %s is missing", name,
            node.path.c_str());
    return {};
  }
  const auto [type, shape, offset] = check_keys(value, {"dtype", "shape", "offset"}, {name, path});
  Region region;
  region.type = read_type(type, path);
  region.num_dims = read_shape(shape, region.shape, {"the shape of a tensor", path});
  region.offset = read_int(offset, 0, kFarthest, {"the offset of a tensor", path});
  require(fits_role(region.type, node.kind, role), LBQ_RULE_DTYPE,
          "%s of %s has a type that no such tensor has", name, node.path.c_str());
  return region;
}

void read_tensors(Value tensors, Entry& entry) {
  const char* const* names = roles(entry.node.kind);
  const Where where{"tensors", entry.node.path};
  if (names[0] == nullptr) return check_keys(tensors, nullptr, 0, nullptr, where);
  Value found[2];
  check_keys(tensors, names, 2, found, where);
  for (int role = 0; role < 2; ++role) entry.tensors[role] = read_region(found[role], entry.node, role);
}

void read_bound(Value value, Node& node) {
  const std::string_view path = node.path;
  if (!has_bound(node.kind)) {
    require(is_null(value), LBQ_RULE_VALUE, "%s has a bound where nothing is proven", node.path.c_str());
    return;
  }
  const auto [low, high, bits] = check_keys(value, {"low", "high", "bits"}, {"the bound", path});
  Bound& bound = node.bound;
  bound.low = read_int(low, INT64_MIN, INT64_MAX, {"low", path});
  bound.high = read_int(high, INT64_MIN, INT64_MAX, {"high", path});
  const int64_t num_bits = read_int(bits, INT64_MIN, INT64_MAX, {"the bits of the bound", path});
  const bool is_narrow = bound.low >= INT16_MIN && bound.high <= INT16_MAX;
  const bool is_wide = bound.low >= INT32_MIN && bound.high <= INT32_MAX;
  require(is_wide, LBQ_MODEL_BOUND, "%s can reach %" PRId64 "..%" PRId64 ", which no 32-bit integer holds",
          node.path.c_str(), bound.low, bound.high);
  bound.bits = is_narrow ? 16 : 32;
  require(num_bits == bound.bits, LBQ_RULE_VALUE, "the bound of %s has %d bits", node.path.c_str(), bound.bits);
}

void read_entry(Value value, Entry& entry) {
  const auto [path, kind, inputs, settings, tensors, bound] = check_keys(
      value, {"path", "kind", "inputs", "settings", "tensors", "bound"}, {"a node", "the manifest"});
  const std::string_view name = read_string(path, {"a path", "the manifest"});
  check_name(name);
  Node& node = entry.node;
  node.path = name;
  node.kind = read_kind(kind, name);
  check_list(inputs, 1, node.kind == Kind::kMerge ? 1 << 16 : 1, {"inputs", name});
  entry.reads.reserve(inputs.count());
  Value input = inputs.first();
  for (uint32_t i = 0; i < inputs.count(); ++i, input = input.next())
    entry.reads.push_back(read_string(input, {"an input", name}));
  read_settings(settings, entry);
  read_tensors(tensors, entry);
  read_bound(bound, node);
}

double read_scale(Value value) {
  if (is_null(value))
    throw_error(LBQ_MODEL_REAL_NUMBERS,
           "a network of real numbers; only those of integers run here (lbq.to_fixed_point makes one)");
  require(value.kind() == Json::kReal && value.real() > 0, LBQ_RULE_VALUE,
          "logit_scale is no positive real number");
  return value.real();
}

}  // namespace

int64_t num_bytes(Type type) {
  const int64_t bytes[] = {1, 2, 4, 4, 8};
  return bytes[static_cast<int>(type)];
}

int64_t saturating_product(int64_t one, int64_t other) {
  int64_t product;
  return __builtin_mul_overflow(one, other, &product) ? INT64_MAX : product;
}

bool Region::is(std::initializer_list<int64_t> sizes) const {
  if (num_dims != static_cast<int>(sizes.size())) return false;
  int place = 0;
  for (int64_t size : sizes)
    if (shape[place++] != size) return false;
  return true;
}

int64_t Region::num_values() const {
  int64_t count = 1;
  for (int i = 0; i < num_dims; ++i) count = saturating_product(count, shape[i]);
  return count;
}

int64_t Region::num_bytes() const { return saturating_product(num_values(), lbq::num_bytes(type)); }

bool operator==(const Region& one, const Region& other) {
  bool is_same = one.type == other.type && one.num_dims == other.num_dims && one.offset == other.offset;
  for (int i = 0; i < one.num_dims && is_same; ++i) is_same = one.shape[i] == other.shape[i];
  return is_same;
}

const char* const* roles(Kind kind) {
  if (kind == Kind::kSynapse || kind == Kind::kShortcut) return kWeighted;
  return kind == Kind::kNeuron ? kNeuron : kNoTensors;
}

Type read_type(Value value, std::string_view owner) {
  return static_cast<Type>(read_choice(value, {"I8", "I16", "I32", "F32", "F64"}, {"the type of a tensor", owner}));
}

Manifest read_manifest(Value document) {
  const std::string_view owner = "the manifest";
  const auto [timesteps, input_shape, takes_frames, logit_scale, origin, nodes] =
      check_keys(document, {"timesteps", "input_shape", "takes_frames", "logit_scale", "origin", "nodes"},
                 {"the outline", owner});
  Manifest manifest;
  manifest.timesteps = read_int(timesteps, INT64_MIN, INT64_MAX, {"timesteps", owner});
  require(manifest.timesteps >= 1 && manifest.timesteps <= kMaxTimesteps, LBQ_RULE_TIMESTEPS,
          "timesteps is %" PRId64, manifest.timesteps);
  check_list(nodes, 0, INT64_MAX, {"nodes", owner});
  require(nodes.count() >= 1 && nodes.count() <= kMaxNodes, LBQ_RULE_COUNT, "there are %u nodes",
          nodes.count());
  manifest.logit_scale = read_scale(logit_scale);
  manifest.num_input_dims = read_shape(input_shape, manifest.input_shape, {"input_shape", owner});
  manifest.takes_frames = read_bool(takes_frames, {"takes_frames", owner});
  require(origin.kind() == Json::kObject, LBQ_RULE_VALUE, "origin of the manifest is no object");
  manifest.entries.resize(nodes.count());
  Value node = nodes.first();
  for (Entry& entry : manifest.entries) {
    read_entry(node, entry);
    node = node.next();
  }
  return manifest;
}

}  // namespace lbq
