// Which networks the engine runs.
#pragma once

#include <stdexcept>

#include "network.h"

namespace lbq {

// The message names the node, what it has and what is expected.
struct BadNetwork : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Fill in what every node gives, and check that it reads nodes before it whose values fit, that its tensors are there,
// and that every readout is an output. Throws BadNetwork. That sums fit 32 bits is proven by the caller.
void check_network(Network& network);

// Whether the packed network takes about as much memory as its file. Packing pads channels and builds tables, which
// costs little for real networks; a contrived one could make gigabytes of a small file, and runs in the interpreter.
bool fits_packed(const Network& network);

}  // namespace lbq
