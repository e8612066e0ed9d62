// Read untrusted bytes: every rule of docs/deploy/bundle-format.md, in the
// order in which lbq.load_network checks them, and the bounds proven again. Throws ReadError.
#pragma once

#include "container.h"
#include "engine/network.h"

namespace lbq {

// A network and the bytes that its numbers are views of.
struct Model {
  Bundle bundle;
  Network network;
};

// All rules, and the bounds must be those that are proven.
Model read_model(Bundle bundle);

// All rules but the bounds.
Model read_rules(Bundle bundle);
// The overflow proof (proof.cc): the bound of every node that computes (bits 0 for the others), or LBQ_MODEL_BOUND. The
// same intervals as `prove` of src/lbq/graph/graph.py.
std::vector<Bound> prove(const Network& network);

}  // namespace lbq
