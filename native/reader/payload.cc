#include "payload.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace lbq {
namespace {

constexpr size_t kLength = 8;

struct Named {
  std::string_view name;
  Region region;
};

Named read_tensor(std::string_view name, Value value, int64_t start) {
  require(name.size() <= static_cast<size_t>(kMaxName), LBQ_RULE_NAME, "\"%.*s\" is a long name", shown(name),
          name.data());
  const auto [type, shape, offsets] =
      check_keys(value, {"dtype", "shape", "data_offsets"}, {"the entry", name});
  Region region;
  region.type = read_type(type, name);
  region.num_dims = read_shape(shape, region.shape, {"the shape", name});
  int64_t ends[2];
  read_pair(offsets, 0, kMaxOffset, ends, {"data_offsets", name});
  region.offset = start + ends[0];
  require(ends[1] - ends[0] == region.num_bytes(), LBQ_RULE_CONTIGUOUS,
          "tensor %.*s has %" PRId64 " bytes, its shape more or less", shown(name), name.data(),
          ends[1] - ends[0]);
  return {name, region};
}

// Throw for gaps, overlaps, unused bytes and unaligned tensors.
void check_places(std::vector<Named>& table, int64_t start, int64_t size) {
  std::sort(table.begin(), table.end(),
            [](const Named& a, const Named& b) { return a.region.offset < b.region.offset; });
  int64_t end = start;
  for (const Named& tensor : table) {
    const Region& region = tensor.region;
    const int length = shown(tensor.name);
    require(region.offset == end && region.num_bytes() <= size - end, LBQ_RULE_CONTIGUOUS,
            "tensor %.*s begins at byte %" PRId64 ", the one before ends at %" PRId64 " of %" PRId64, length,
            tensor.name.data(), region.offset, end, size);
    require(region.offset % num_bytes(region.type) == 0, LBQ_RULE_CONTIGUOUS,
            "tensor %.*s begins at byte %" PRId64 ", across its words", length, tensor.name.data(),
            region.offset);
    end += region.num_bytes();
  }
  require(end == size, LBQ_RULE_CONTIGUOUS, "the tensors end at byte %" PRId64 " of a payload of %" PRId64,
          end, size);
}

std::vector<Named> read_table(Value document, int64_t start, int64_t size) {
  require(document.kind() == Json::kObject, LBQ_RULE_VALUE, "the table of tensors is no object");
  require(document.count() <= kMaxTensors, LBQ_RULE_COUNT, "there are %u tensors", document.count());
  std::vector<Named> table;
  table.reserve(document.count());
  Value key = document.first();
  for (uint32_t i = 0; i < document.count(); ++i, key = key.next().next())
    table.push_back(read_tensor(key.text(), key.next(), start));
  check_places(table, start, size);
  std::sort(table.begin(), table.end(), [](const Named& a, const Named& b) { return a.name < b.name; });
  return table;
}

}  // namespace

void attach_tensors(Manifest& manifest, const Bundle& bundle) {
  uint8_t* payload = bundle.payload();
  uint64_t length = 0;
  if (bundle.num_payload >= kLength) std::memcpy(&length, payload, kLength);
  const bool fits = bundle.num_payload >= kLength &&
                    length <= std::min<uint64_t>(kMaxManifest, bundle.num_payload - kLength);
  require(fits, LBQ_RULE_TABLE_SIZE, "the table of tensors does not fit the payload, or has more than 1 MiB");
  const Document document(reinterpret_cast<char*>(payload) + kLength, length, "table of tensors");
  const std::vector<Named> table = read_table(document.root(), static_cast<int64_t>(kLength + length),
                                              static_cast<int64_t>(bundle.num_payload));
  size_t used = 0;
  std::string full;
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    Node& node = manifest.network.nodes[i];
    for (int role = 0; role < kMaxRoles; ++role) {
      const Region& region = manifest.entries[i].tensors[role];
      if (!region.exists()) continue;
      const Role& known = operator_of(node.kind).roles[role];
      full.assign(node.path).append(".").append(known.name);
      const auto found = std::lower_bound(table.begin(), table.end(), full,
                                          [](const Named& a, const std::string& b) { return a.name < b; });
      const bool is_there = found != table.end() && found->name == full && found->region == region;
      require(is_there, LBQ_RULE_TENSORS, "%.300s is not where the manifest says", full.c_str());
      ++used;
      (node.*known.tensor).data = payload + region.offset;
    }
  }
  require(used == table.size(), LBQ_RULE_TENSORS, "no node uses %zu tensors", table.size() - used);
}

namespace {

void check_bits(const Node& node) {
  const int64_t largest = (int64_t{1} << (node.weight_bits - 1)) - 1;
  const bool fits = with_type(node.weight, [&](const auto* weights) {
    const auto [low, high] = std::minmax_element(weights, weights + node.weight.count);
    return *low >= -largest && *high <= largest;
  });
  require(fits, LBQ_RULE_BITS, "weights of %s do not lie in their %d bits", node.path.c_str(), node.weight_bits);
}

}  // namespace

void check_values(const Node& node) {
  if (node.weight.count > 0) check_bits(node);
  if (const auto check = operator_of(node.kind).check) with_path(node, [&] { check(node); });
}

}  // namespace lbq
