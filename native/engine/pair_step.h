// The event-driven road of one synapse: lists of active pairs, and visits of the tiles that they meet.
#pragma once

#include "sum_step.h"

namespace lbq {

// Positions and outputs that one task adds up: sums[block][instant][position][outputs].
struct Region {
  int64_t first_image, last_image, first_row, last_row;
  int64_t first_block, last_block;  // of outputs
  int64_t instants, positions;      // positions of one instant
  bool are_int16;
};

void list_all_pairs(const SumContext& context, const PackedSynapse& synapse, PairLists& lists);
void add_pairs(const SumContext& context, const PackedSynapse& synapse, const PairLists& lists, const Region& region,
               ThreadScratch& scratch);

}  // namespace lbq
