// The memory of one call: values between stages, lists of pairs, sums. It grows and is reused.
#pragma once

#include <vector>

#include "thread_pool.h"
#include "plan.h"

namespace lbq {

// Images and timesteps that pass through all stages together.
struct Chunk {
  int64_t batch, timesteps;
  int64_t instants(bool has_time) const { return has_time ? batch * timesteps : batch; }
};

// Lists of active pairs of all pixels that a synapse reads, grouped by instant and block of channels.
struct PairLists {
  AlignedBuffer levels, rows;
  int64_t capacity = 0;  // entries of one instant and block
  std::vector<uint32_t> start;
  std::vector<uint16_t> length;  // [instants][channel blocks][pixels]
};

// A pixel with a nonempty list, to be sorted by the list's length.
struct Candidate {
  uint32_t list, base, row, column, length;
};

// Buffers of one thread.
struct ThreadScratch {
  AlignedBuffer sums;
  std::vector<Candidate> candidates, sorted;
  std::vector<uint32_t> histogram;
  std::vector<Visit> visits;
  std::vector<Run> runs;
  std::vector<const uint8_t*> pixels;
  std::vector<int64_t> taps_at, quads_at;
  std::vector<uint8_t> padded;
  std::vector<int64_t> numbers;  // operands and result of an exact kernel
  std::vector<int16_t> packed;   // of a product of levels: the right operand,
  std::vector<int32_t> left;     // the left one,
  std::vector<uint32_t> pair_levels;  // and its pairs
  std::vector<uint16_t> pair_rows;
};

struct Workspace {
  explicit Workspace(int threads) : pool(threads), scratches(threads) {}

  // The buffer of a value: allocated by the stage that writes it, released after the last stage that reads it.
  char* take(int32_t value, int64_t bytes);
  void give_back(int32_t value);
  char* of(int32_t value) { return pages[place[slot(value)]].data(); }
  size_t slot(int32_t value) const { return value == kInput ? place.size() - 1 : static_cast<size_t>(value); }

  ThreadPool pool;
  std::vector<ThreadScratch> scratches;
  std::vector<PairLists> lists;  // of every synapse of a sum
  std::vector<AlignedBuffer> pages;
  std::vector<bool> is_taken;
  std::vector<int> place;  // of every value: index into `pages`
};

inline char* Workspace::take(int32_t value, int64_t bytes) {
  size_t best = pages.size();
  for (size_t i = 0; i < pages.size(); ++i)  // the smallest that is large enough, or else the largest
    if (!is_taken[i] && (best == pages.size() ||
                         (pages[i].size() >= bytes ? pages[best].size() < bytes || pages[i].size() < pages[best].size()
                                                   : pages[best].size() < bytes && pages[i].size() > pages[best].size())))
      best = i;
  if (best == pages.size()) {
    pages.emplace_back();
    is_taken.push_back(false);
  }
  if (pages[best].size() < bytes) pages[best] = AlignedBuffer(bytes);
  is_taken[best] = true;
  place[slot(value)] = static_cast<int>(best);
  return pages[best].data();
}

inline void Workspace::give_back(int32_t value) {
  if (place[slot(value)] >= 0) is_taken[place[slot(value)]] = false;
  place[slot(value)] = -1;
}

}  // namespace lbq
