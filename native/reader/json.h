// Strict JSON from strangers: UTF-8, no key twice, no NaN, no infinity, no recursion. Our own: parsers in
// common use build trees of many times the text, and here memory is promised.
//
// A document is one flat array with 16 bytes per value. Strings are decoded where they stand, so the text
// must live as long as the document and is no JSON any more afterwards.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lbq {

enum class Json : uint32_t { kNull, kFalse, kTrue, kInteger, kHuge, kReal, kText, kArray, kObject };

struct JsonSlot {
  Json kind;
  uint32_t end;  // one behind the last slot of this value
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

// A place in a document. Children of an array lie one behind the other; those of an object are texts (its
// keys), each followed by its value.
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
  // Refuses (rule "json") what is not strict JSON; `what` names the text in the message.
  Document(char* text, size_t size, const char* what);

  Value root() const { return Value(this, 0); }

 private:
  friend class Value;
  friend class JsonParser;

  const char* text_;
  std::vector<JsonSlot> slots_;
};

}  // namespace lbq
