#include "rules.h"

#include <cstdarg>
#include <cstdio>

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
  switch (status) {
    case LBQ_MODEL_OK: return "ok";
    case LBQ_MODEL_BAD_ARGUMENT: return "bad-argument";
    case LBQ_MODEL_NO_MEMORY: return "no-memory";
    case LBQ_MODEL_READ_FAILED: return "read-failed";
    case LBQ_MODEL_REAL_NUMBERS: return "real-numbers";
    case LBQ_MODEL_BOUND: return "bound";
    case LBQ_MODEL_SEQUENCE_OVER: return "sequence-over";
    case LBQ_MODEL_FAILED: return "failed";
    case LBQ_RULE_FILE: return "file";
    case LBQ_RULE_MAGIC: return "magic";
    case LBQ_RULE_VERSION: return "version";
    case LBQ_RULE_RESERVED: return "reserved";
    case LBQ_RULE_LENGTH: return "length";
    case LBQ_RULE_DIGEST: return "digest";
    case LBQ_RULE_KNOWN_DIGEST: return "known-digest";
    case LBQ_RULE_MANIFEST_SIZE: return "manifest-size";
    case LBQ_RULE_TABLE_SIZE: return "table-size";
    case LBQ_RULE_JSON: return "json";
    case LBQ_RULE_KEYS: return "keys";
    case LBQ_RULE_VALUE: return "value";
    case LBQ_RULE_COUNT: return "count";
    case LBQ_RULE_NAME: return "name";
    case LBQ_RULE_KIND: return "kind";
    case LBQ_RULE_ORDER: return "order";
    case LBQ_RULE_UNREAD: return "unread";
    case LBQ_RULE_TIMESTEPS: return "timesteps";
    case LBQ_RULE_MAX_LEVEL: return "max-level";
    case LBQ_RULE_CONTIGUOUS: return "contiguous";
    case LBQ_RULE_TENSORS: return "tensors";
    case LBQ_RULE_DTYPE: return "dtype";
    case LBQ_RULE_SHAPE: return "shape";
    case LBQ_RULE_SIZE: return "size";
    case LBQ_RULE_SIGNAL: return "signal";
    case LBQ_RULE_MAX_INPUT: return "max-input";
    case LBQ_RULE_FINITE: return "finite";
    case LBQ_RULE_BITS: return "bits";
    case LBQ_RULE_THRESHOLDS: return "thresholds";
    case LBQ_RULE_DECAY: return "decay";
    case LBQ_RULE_RESET: return "reset";
  }
  return nullptr;
}
