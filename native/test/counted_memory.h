// Counts every allocation of a program that links counted_memory.cc, and can make one fail.
#pragma once

#include <cstdint>

namespace counted {

extern int64_t allocations_left;  // until one fails; -1: none fails
extern int64_t live;              // allocations that were not freed
extern int64_t live_bytes, peak_bytes;

}  // namespace counted
