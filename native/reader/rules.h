// The limits of the bundle format. Inside the reader a broken rule is a thrown ReadError; the C functions of
// lbq_model.h turn it into a status and a line of text.
#pragma once

#include <cstdint>

#include "lbq_model.h"

namespace lbq {

constexpr int64_t kMaxManifest = 1 << 20;  // bytes of the manifest, and of the table of tensors
constexpr int64_t kMaxNodes = 4096;
constexpr int64_t kMaxTensors = 4 * kMaxNodes;
constexpr int64_t kMaxName = 256;  // bytes
constexpr int64_t kMaxOffset = int64_t{1} << 62;
constexpr int64_t kMaxProof =
    1 << 25;  // timesteps times thresholds that the overflow proof may have to visit

// It holds its text itself: throwing must work where no memory is left.
struct ReadError {
  lbq_model_status status;
  lbq_error_message message;
};

[[noreturn]] void throw_error(lbq_model_status status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Throw ReadError unless the condition holds.
void require(bool holds, lbq_model_status rule, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace lbq
