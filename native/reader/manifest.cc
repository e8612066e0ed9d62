#include "manifest.h"

#include <cinttypes>

namespace lbq {
namespace {

void check_name(std::string_view path) {
  require(!path.empty() && path.size() <= static_cast<size_t>(kMaxName) && is_utf8(path), LBQ_RULE_NAME,
          "\"%.*s\" has %zu bytes, or is no UTF-8", shown(path), path.data(), path.size());
  const bool has_empty = path.front() == '.' || path.back() == '.' || path.find("..") != path.npos;
  require(!has_empty, LBQ_RULE_NAME, "\"%.*s\" has an empty part", shown(path), path.data());
}

const Operator& read_kind(Value value, Node& node) {
  const std::string_view name = read_string(value, {"the kind", node.path});
  const Operator* found = find_operator(name, node.kind);
  require(found != nullptr, LBQ_RULE_KIND, "%.80s is a \"%.*s\" in an integer network", node.path.c_str(), shown(name),
          name.data());
  return *found;
}

SettingValue read_setting(Value value, const Setting& setting, Where where) {
  SettingValue found;
  found.is_null = is_null(value);
  if (found.is_null) return found;
  found.numbers.count = 1;
  switch (setting.form) {
    case Setting::Form::kFlag: found.numbers[0] = read_bool(value, where); break;
    case Setting::Form::kNumber: found.numbers[0] = read_int(value, INT64_MIN, INT64_MAX, where); break;
    case Setting::Form::kWord: found.word = read_string(value, where), found.numbers.count = 0; break;
    case Setting::Form::kList:
      check_list(value, setting.least, setting.most, where);
      found.numbers.count = static_cast<int32_t>(value.count());
      value = value.first();
      for (int32_t i = 0; i < found.numbers.count; ++i, value = value.next())
        found.numbers[i] = read_int(value, INT64_MIN, INT64_MAX, where);
  }
  return found;
}

void read_settings(Value settings, const Operator& op, Node& node) {
  const char* names[kMaxSettings];
  Value found[kMaxSettings];
  size_t count = 0;
  while (count < kMaxSettings && op.settings[count].name != nullptr) names[count] = op.settings[count].name, ++count;
  check_keys(settings, names, count, found, {"settings", node.path});
  for (size_t i = 0; i < count; ++i) {
    const Setting& setting = op.settings[i];
    store_setting(node, setting, read_setting(found[i], setting, {setting.name, node.path}));
  }
}

Region read_region(Value value, const Role& role, Node& node) {
  const std::string_view path = node.path;
  if (is_null(value)) {
    require(role.is_optional, LBQ_RULE_TENSORS, "%s of %s is missing", role.name, node.path.c_str());
    return {};
  }
  const auto [type, shape, offset] = check_keys(value, {"dtype", "shape", "offset"}, {role.name, path});
  Region region;
  region.type = read_type(type, path);
  region.num_dims = read_shape(shape, region.shape, {"the shape of a tensor", path});
  region.offset = read_int(offset, 0, kMaxOffset, {"the offset of a tensor", path});
  const bool is_integer = region.type <= Type::kI32;
  require(is_integer && (num_bytes(region.type) & role.widths) != 0, LBQ_RULE_DTYPE,
          "%s of %s has a type that no such tensor has", role.name, node.path.c_str());
  Integers& tensor = node.*role.tensor;
  tensor.width = static_cast<int32_t>(num_bytes(region.type));
  tensor.num_dims = region.num_dims;
  tensor.count = region.num_values();
  for (int i = 0; i < region.num_dims; ++i) tensor.shape[i] = region.shape[i];
  return region;
}

void read_tensors(Value tensors, const Operator& op, Node& node, Entry& entry) {
  const char* names[kMaxRoles];
  Value found[kMaxRoles];
  size_t count = 0;
  while (count < kMaxRoles && op.roles[count].name != nullptr) names[count] = op.roles[count].name, ++count;
  check_keys(tensors, names, count, found, {"tensors", node.path});
  for (size_t i = 0; i < count; ++i) entry.tensors[i] = read_region(found[i], op.roles[i], node);
}

void read_bound(Value value, const Operator& op, Node& node) {
  const std::string_view path = node.path;
  if (!op.has_bound) {
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

void read_node(Value value, Node& node, Entry& entry) {
  const auto [path, kind, inputs, settings, tensors, bound] = check_keys(
      value, {"path", "kind", "inputs", "settings", "tensors", "bound"}, {"a node", "the manifest"});
  const std::string_view name = read_string(path, {"a path", "the manifest"});
  check_name(name);
  node.path = name;
  const Operator& op = read_kind(kind, node);
  check_list(inputs, op.least_inputs, op.most_inputs, {"inputs", name});
  entry.reads.reserve(inputs.count());
  Value input = inputs.first();
  for (uint32_t i = 0; i < inputs.count(); ++i, input = input.next())
    entry.reads.push_back(read_string(input, {"an input", name}));
  with_path(node, [&, &chosen = settings] { read_settings(chosen, op, node); });
  read_tensors(tensors, op, node, entry);
  read_bound(bound, op, node);
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
#define LBQ_BYTES(name, bytes) bytes,
  const int64_t bytes_of[] = {LBQ_TYPES(LBQ_BYTES)};
#undef LBQ_BYTES
  return bytes_of[static_cast<int>(type)];
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

Type read_type(Value value, std::string_view owner) {
#define LBQ_NAME(name, bytes) #name,
  return static_cast<Type>(read_choice(value, {LBQ_TYPES(LBQ_NAME)}, {"the type of a tensor", owner}));
#undef LBQ_NAME
}

Manifest read_manifest(Value document) {
  const std::string_view owner = "the manifest";
  const auto [timesteps, input_shape, takes_frames, logit_scale, origin, nodes] =
      check_keys(document, {"timesteps", "input_shape", "takes_frames", "logit_scale", "origin", "nodes"},
                 {"the outline", owner});
  Manifest manifest;
  Network& network = manifest.network;
  network.timesteps = read_int(timesteps, INT64_MIN, INT64_MAX, {"timesteps", owner});
  require(network.timesteps >= 1 && network.timesteps <= kMaxTimesteps, LBQ_RULE_TIMESTEPS, "timesteps is %" PRId64,
          network.timesteps);
  check_list(nodes, 0, INT64_MAX, {"nodes", owner});
  require(nodes.count() >= 1 && nodes.count() <= kMaxNodes, LBQ_RULE_COUNT, "there are %u nodes",
          nodes.count());
  network.logit_scale = read_scale(logit_scale);
  int64_t sizes[4] = {1, 1, 1, 1};
  network.input.rank = read_shape(input_shape, sizes, {"input_shape", owner});
  for (int axis = 0; axis < 3; ++axis) network.input[axis] = sizes[axis];
  network.takes_frames = read_bool(takes_frames, {"takes_frames", owner});
  require(origin.kind() == Json::kObject, LBQ_RULE_VALUE, "origin of the manifest is no object");
  network.nodes.resize(nodes.count());
  manifest.entries.resize(nodes.count());
  Value node = nodes.first();
  for (size_t i = 0; i < manifest.entries.size(); ++i, node = node.next())
    read_node(node, network.nodes[i], manifest.entries[i]);
  return manifest;
}

}  // namespace lbq
