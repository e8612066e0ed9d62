// Every allocation of a program that links counted_memory.cc: counted, and failing when it is told to.
#pragma once

#include <cstdint>

namespace counted {

extern int64_t allocations_left;  // until one fails; -1: none ever does
extern int64_t live;              // pieces that nobody has freed
extern int64_t live_bytes, peak_bytes;

}  // namespace counted
