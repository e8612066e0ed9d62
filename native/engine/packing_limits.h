// Whether a network is worth packing. Rows of channels are padded and tables are drawn up, which costs real
// networks little; a contrived one could make gigabytes of a small file, and is left to the interpreter.
#pragma once

#include "network.h"

namespace lbq {

bool fits_packed(const Network& network);

}  // namespace lbq
