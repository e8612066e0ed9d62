// Values of a document, checked before they are used: rules "keys" and "value".
#pragma once

#include <array>
#include <initializer_list>

#include "json.h"
#include "rules.h"

namespace lbq {

// For complaints: "padding of stem.conv".
struct Where {
  const char* what;
  std::string_view owner;
};

// For printf's %.*s: names as long as they are, but no stories.
inline int shown(std::string_view text) { return static_cast<int>(text.size() < 80 ? text.size() : 80); }

// The members of an object that has exactly these keys, in their order.
void check_keys(Value value, const char* const* keys, size_t count, Value* found, Where where);

template <size_t N>
std::array<Value, N> check_keys(Value value, const char* const (&keys)[N], Where where) {
  std::array<Value, N> found;
  check_keys(value, keys, N, found.data(), where);
  return found;
}

int64_t read_int(Value value, int64_t low, int64_t high, Where where);
bool read_bool(Value value, Where where);
std::string_view read_string(Value value, Where where);
// The place of a text among these words.
int read_choice(Value value, std::initializer_list<const char*> words, Where where);
// Two integers: rows, columns.
void read_pair(Value value, int64_t low, int64_t high, int64_t* found, Where where);
// Up to four positive sizes; returns how many.
int read_shape(Value value, int64_t* found, Where where);
// Refuse a value that is no list of between `low` and `high` members.
void check_list(Value value, int64_t low, int64_t high, Where where);

inline bool is_null(Value value) { return value.kind() == Json::kNull; }

}  // namespace lbq
