// Checks that the engine can run a network.
#pragma once

#include <stdexcept>

#include "network.h"

namespace lbq {

// The message names the node, what it has and what is expected.
struct BadNetwork : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Fill in the output of every node. Check that every node reads earlier nodes with fitting values, that its tensors are
// present, and that every readout is an output. Throws BadNetwork. The caller proves that sums fit 32 bits.
void check_network(Network& network);

// Whether the packed network needs about as much memory as its file. Packing pads channels and builds tables, which
// costs little for real networks. A malicious small file could need gigabytes; such networks run in the interpreter.
bool fits_packed(const Network& network);

}  // namespace lbq
