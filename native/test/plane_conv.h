// Convolution by bit planes: one addition per set bit of a level (Eq. 15).
#pragma once

#include "network.h"

namespace lbq {

struct PlaneCounts {
  int64_t additions = 0;  // of one weight to one sum
  int64_t shifts = 0;     // of one sum by one bit
};

// One instant: levels [C, H, W] to currents [O, H', W'], bias included. Horner's rule: highest plane
// first, sums doubled before the next one.
PlaneCounts multiply_planes(const Node& synapse, const uint8_t* levels, int32_t* currents);

}  // namespace lbq
