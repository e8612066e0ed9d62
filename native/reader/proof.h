// The overflow proof: which integers can appear anywhere in a network, at most. The same intervals as
// src/lbq/deploy/bounds.py, followed channel by channel so that memory does not grow with the channels.
#pragma once

#include <vector>

#include "engine/network.h"

namespace lbq {

// The bound of every node that computes (bits 0 for the others), or a error: LBQ_MODEL_BOUND.
std::vector<Bound> prove(const Network& network);

}  // namespace lbq
