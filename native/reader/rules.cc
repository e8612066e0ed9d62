#include "rules.h"

#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "json.h"

namespace lbq {
namespace {

[[noreturn]] void refuse_with(lbq_model_status status, const char* format, va_list arguments) {
  ReadError error{};
  error.status = status;
  char* text = error.message.text;
  const int size = sizeof error.message.text;
  int length = std::vsnprintf(text, size, format, arguments);
  length = length < 0 ? 0 : length >= size ? size - 1 : length;
  for (int i = 0; i < length;) {  // names come from untrusted files: no control characters
    const int bytes = character_length({text + i, static_cast<size_t>(length - i)});
    if (bytes == 0 || static_cast<unsigned char>(text[i]) < 0x20 || text[i] == 0x7f) text[i] = '?';
    i += bytes == 0 ? 1 : bytes;
  }
  if (status >= LBQ_RULE_FILE)
    std::snprintf(text + length, size - length, " (rule %s)", lbq_model_status_name(status));
  throw error;
}

}  // namespace

void throw_error(lbq_model_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  refuse_with(status, format, arguments);
}

void require(bool holds, lbq_model_status rule, const char* format, ...) {
  if (holds) return;
  va_list arguments;
  va_start(arguments, format);
  refuse_with(rule, format, arguments);
}

}  // namespace lbq

extern "C" const char* lbq_model_status_name(lbq_model_status status) {
  static const char* const kStatuses[] = {
      "ok", "bad-argument", "no-memory", "read-failed", "real-numbers", "bound", "sequence-over", "failed"};
  static const char* const kRules[] = {
      "file", "magic", "version", "reserved", "length", "digest", "known-digest", "manifest-size", "table-size",
      "json", "keys", "value", "count", "name", "kind", "order", "unread", "timesteps", "max-level", "contiguous",
      "tensors", "dtype", "shape", "size", "signal", "max-input", "finite", "bits", "thresholds", "decay", "reset"};
  static_assert(std::size(kStatuses) == LBQ_MODEL_FAILED + 1 && std::size(kRules) == LBQ_RULE_RESET - LBQ_RULE_FILE + 1);
  const size_t number = status, rule = number - LBQ_RULE_FILE;
  if (number < std::size(kStatuses)) return kStatuses[number];
  return rule < std::size(kRules) ? kRules[rule] : nullptr;
}
