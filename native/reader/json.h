// Strict JSON and checked values: UTF-8, no key twice, no NaN, no infinity, no recursion. Common JSON libraries build
// trees many times as large as the text, but this reader limits its memory.
//
// A document is one flat array with 16 bytes per value. Strings are decoded in place, so the text must live as long as
// the document and is not JSON any more afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "rules.h"

namespace lbq {

enum class Json : uint32_t { kNull, kFalse, kTrue, kInteger, kHuge, kReal, kText, kArray, kObject };

struct JsonSlot {
  Json kind;
  uint32_t end;  // index behind the last slot of this value
  union {
    int64_t integer;
    double real;
    struct {
      uint32_t start, size;
    } text;
    struct {
      uint32_t count, parent;  // members; the container around this one
    } children;
  };
};

class Document;

// A value in a document. The children of an array are consecutive. The children of an object are texts (its keys), each
// followed by its value.
class Value {
 public:
  Value() = default;
  Value(const Document* document, uint32_t index) : document_(document), index_(index) {}

  Json kind() const { return slot().kind; }
  int64_t integer() const { return slot().integer; }
  double real() const { return slot().real; }
  std::string_view text() const;
  uint32_t count() const { return slot().children.count; }
  Value first() const { return Value(document_, index_ + 1); }
  Value next() const { return Value(document_, slot().end); }

 private:
  const JsonSlot& slot() const;

  const Document* document_ = nullptr;
  uint32_t index_ = 0;
};

class Document {
 public:
  // Throws (rule "json") unless the text is strict JSON; `what` names the text in the message.
  Document(char* text, size_t size, const char* what);

  Value root() const { return Value(this, 0); }

 private:
  friend class Value;
  friend class JsonParser;

  const char* text_;
  std::vector<JsonSlot> slots_;
};

// For error messages: "padding of stem.conv".
struct Where {
  const char* what;
  std::string_view owner;
};

// For printf's %.*s: at most 80 bytes of a name.
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
// The index of a text among these words.
int read_choice(Value value, std::initializer_list<const char*> words, Where where);
// Two integers: rows, columns.
void read_pair(Value value, int64_t low, int64_t high, int64_t* found, Where where);
// Up to four positive sizes; returns how many.
int read_shape(Value value, int64_t* found, Where where);
// Throw unless a value is a list of `low` to `high` members.
void check_list(Value value, int64_t low, int64_t high, Where where);

inline bool is_null(Value value) { return value.kind() == Json::kNull; }

// Whether bytes are UTF-8: shortest forms only, no surrogates.
bool is_utf8(std::string_view bytes);
// Number of bytes of the first character; 0 if it is invalid.
int character_length(std::string_view bytes);

}  // namespace lbq
