#include "reader.h"

#include <cinttypes>
#include <utility>

#include "payload.h"
#include "rules.h"

namespace lbq {
Model read_rules(Bundle bundle) {
  Manifest manifest;
  {
    const Document document(bundle.manifest(), bundle.num_manifest, "manifest");
    manifest = read_manifest(document.root());
  }
  check_graph(manifest);
  attach_tensors(manifest, bundle);
  for (const Node& node : manifest.network.nodes) check_values(node);
  Model model;
  model.network = std::move(manifest.network);
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
