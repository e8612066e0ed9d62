// What a bundle must keep to be read. Inside the reader a broken rule is a thrown ReadError; the C functions
// of lbq_model.h turn it into a status and a line of text.
#pragma once

#include <cstdint>

#include "lbq_model.h"

namespace lbq {

constexpr int64_t kMaxManifest = 1 << 20;  // bytes of the manifest, and of the table of tensors
constexpr int64_t kMaxNodes = 4096;
constexpr int64_t kMaxTensors = 4 * kMaxNodes;
constexpr int64_t kMaxName = 256;  // bytes
constexpr int64_t kMaxTimesteps = 4096;
constexpr int64_t kMaxLevel = 255;
constexpr int64_t kMaxValues = 1 << 24;  // that a node may give for one sample at one instant
constexpr int64_t kMaxProof =
    1 << 25;  // timesteps times thresholds that the overflow proof may have to visit

// It carries its text itself: refusing must work where no memory is left.
struct ReadError {
  lbq_model_status status;
  lbq_error_message message;
};

[[noreturn]] void throw_error(lbq_model_status status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Say no unless the rule is kept.
void require(bool is_kept, lbq_model_status rule, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace lbq
