#include "reader.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "payload.h"
#include "rules.h"

namespace lbq {
namespace {

// Throw if a node's path is the folder of an earlier one, or the tensor of another.
void check_free(const Manifest& manifest) {
  using Place = std::pair<std::string_view, size_t>;
  std::vector<Place> places;
  places.reserve(manifest.entries.size());
  for (size_t i = 0; i < manifest.entries.size(); ++i) places.emplace_back(manifest.entries[i].node.path, i);
  std::sort(places.begin(), places.end());
  std::string folder;
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    const Node& node = manifest.entries[i].node;
    folder.assign(node.path).append(".");
    auto inside = std::lower_bound(places.begin(), places.end(), Place(folder, 0));
    for (; inside != places.end() && inside->first.substr(0, folder.size()) == folder; ++inside) {
      require(inside->second > i, LBQ_RULE_NAME, "%s is taken, other nodes lie in it", node.path.c_str());
      std::string_view part = inside->first.substr(folder.size());
      part = part.substr(0, part.find('.'));
      for (const char* const* role = roles(node.kind); *role != nullptr; ++role)
        require(part != *role, LBQ_RULE_NAME, "%s in %s is taken by a tensor", *role, node.path.c_str());
    }
  }
}

}  // namespace

Model read_rules(Bundle bundle) {
  Manifest manifest;
  {
    const Document document(bundle.manifest(), bundle.num_manifest, "manifest");
    manifest = read_manifest(document.root());
  }
  check_graph(manifest);
  attach_tensors(manifest, bundle);
  check_free(manifest);
  Model model;
  Network& network = model.network;
  network.nodes.reserve(manifest.entries.size());
  for (Entry& entry : manifest.entries) {
    check_values(entry.node);
    network.nodes.push_back(std::move(entry.node));
  }
  network.timesteps = manifest.timesteps;
  const bool has_places = manifest.num_input_dims == 3;
  network.input = {manifest.input_shape[0], has_places ? manifest.input_shape[1] : 1,
                   has_places ? manifest.input_shape[2] : 1};
  network.takes_frames = manifest.takes_frames;
  network.logit_scale = manifest.logit_scale;
  model.bundle = std::move(bundle);
  return model;
}

Model read_model(Bundle bundle) {
  Model model = read_rules(std::move(bundle));
  const std::vector<Bound> proven = prove(model.network);
  for (size_t i = 0; i < proven.size(); ++i) {
    const Node& node = model.network.nodes[i];
    require(node.bound.low == proven[i].low && node.bound.high == proven[i].high, LBQ_MODEL_BOUND,
            "%s claims %" PRId64 "..%" PRId64 ", but its integers lie in %" PRId64 "..%" PRId64
            "; the file is wrong, do not use it",
            node.path.c_str(), node.bound.low, node.bound.high, proven[i].low, proven[i].high);
  }
  return model;
}

}  // namespace lbq
