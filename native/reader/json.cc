#include "json.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "rules.h"
#include "utf8.h"

namespace lbq {
namespace {

constexpr int kMaxDepth = 500;
constexpr int kMaxDigits = 4300;  // of an integer, as in Python

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// No value without one of these in front of it, but for the first: room for so many is enough.
size_t count_values(const char* text, size_t size) {
  size_t count = 1;
  bool is_inside = false;  // of a string
  for (size_t i = 0; i < size; ++i) {
    const char c = text[i];
    if (is_inside && c == '\\') ++i;
    if (c == '"') is_inside = !is_inside;
    if (!is_inside) count += c == ',' || c == ':' || c == '[' || c == '{';
  }
  return count;
}

}  // namespace

const JsonSlot& Value::slot() const { return document_->slots_[index_]; }

std::string_view Value::text() const {
  const auto& place = slot().text;
  return std::string_view(document_->text_ + place.start, place.size);
}

class JsonParser {
 public:
  JsonParser(char* text, size_t size, const char* what, std::vector<JsonSlot>& slots)
      : text_(text), size_(size), what_(what), slots_(slots) {}

  void parse() {
    bool has_value = false;  // behind a value, inside of `open_`
    do {
      if (!has_value) {
        has_value = value();
      } else if (peek() == ',') {
        ++at_;
        if (slots_[open_].kind == Json::kObject) key();
        has_value = false;
      } else {
        close();
      }
    } while (!has_value || open_ != kNone);
    if (peek() != kEnd) fail("something follows the value");
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kEnd = -1;

  [[noreturn]] void fail(const char* why) const {
    throw_error(LBQ_RULE_JSON, "the %s is not strict JSON: %s (byte %zu)", what_, why, at_);
  }

  int peek() {
    while (at_ < size_ && is_space(text_[at_])) ++at_;
    return at_ < size_ ? static_cast<uint8_t>(text_[at_]) : kEnd;
  }

  char raw() const { return at_ < size_ ? text_[at_] : 0; }  // zero is not part of any value

  JsonSlot& add(Json kind) {
    slots_.push_back({});
    slots_.back().kind = kind;
    slots_.back().end = static_cast<uint32_t>(slots_.size());
    return slots_.back();
  }

  // Read one value; false if it is a container that still waits for its first one.
  bool value() {
    const int c = peek();
    if (open_ != kNone) ++slots_[open_].children.count;
    if (c == '{' || c == '[') return open(c == '{' ? Json::kObject : Json::kArray);
    if (c == '"') {
      string();
    } else if (c == '-' || is_digit(static_cast<char>(c))) {
      number();
    } else if (!word("null", Json::kNull) && !word("true", Json::kTrue) && !word("false", Json::kFalse)) {
      fail(c == kEnd ? "it ends too early" : "no value begins like this");
    }
    return true;
  }

  bool word(const char* spelling, Json kind) {
    const size_t length = std::strlen(spelling);
    if (size_ - at_ < length || std::memcmp(text_ + at_, spelling, length) != 0) return false;
    at_ += length;
    add(kind);
    return true;
  }

  bool open(Json kind) {
    if (++depth_ > kMaxDepth) fail("it is nested too deeply");
    ++at_;
    JsonSlot& slot = add(kind);
    slot.children = {0, open_};
    open_ = static_cast<uint32_t>(slots_.size() - 1);
    const int c = peek();
    if (c == (kind == Json::kObject ? '}' : ']')) {
      close();
      return true;
    }
    if (kind == Json::kObject) key();
    return false;
  }

  void close() {
    JsonSlot& slot = slots_[open_];
    if (peek() != (slot.kind == Json::kObject ? '}' : ']')) fail("a comma or an end is missing");
    ++at_;
    --depth_;
    slot.end = static_cast<uint32_t>(slots_.size());
    if (slot.kind == Json::kObject) check_unique(open_);
    open_ = slot.children.parent;
  }

  void key() {
    if (peek() != '"') fail("a key is missing");
    string();
    if (peek() != ':') fail("a colon is missing");
    ++at_;
  }

  void check_unique(uint32_t object) {
    keys_.clear();
    for (uint32_t i = object + 1; i < slots_[object].end; i = slots_[i + 1].end) keys_.push_back(i);
    const auto text = [&](uint32_t i) {
      return std::string_view(text_ + slots_[i].text.start, slots_[i].text.size);
    };
    std::sort(keys_.begin(), keys_.end(), [&](uint32_t a, uint32_t b) { return text(a) < text(b); });
    for (size_t i = 1; i < keys_.size(); ++i)
      if (text(keys_[i - 1]) == text(keys_[i])) fail("a key comes twice");
  }

  void number() {
    const size_t start = at_;
    const bool is_negative = raw() == '-';
    if (is_negative) ++at_;
    const size_t first = at_;
    while (is_digit(raw())) ++at_;
    const size_t digits = at_ - first;
    if (digits == 0 || (text_[first] == '0' && digits > 1)) fail("no number is written like this");
    bool is_real = false;
    if (raw() == '.') {
      is_real = true;
      ++at_;
      if (!is_digit(raw())) fail("no number is written like this");
      while (is_digit(raw())) ++at_;
    }
    if (raw() == 'e' || raw() == 'E') {
      is_real = true;
      ++at_;
      if (raw() == '+' || raw() == '-') ++at_;
      if (!is_digit(raw())) fail("no number is written like this");
      while (is_digit(raw())) ++at_;
    }
    is_real ? real(start) : integer(first, digits, is_negative);
  }

  void integer(size_t first, size_t digits, bool is_negative) {
    if (digits > kMaxDigits) fail("an integer has thousands of digits");
    constexpr uint64_t kLimit = uint64_t{1} << 63;
    uint64_t size = 0;
    bool is_huge = digits > 19;
    for (size_t i = 0; i < digits && !is_huge; ++i) {
      size = 10 * size + (text_[first + i] - '0');  // 19 digits fit
      is_huge = size > kLimit;
    }
    // 2^63 itself becomes the number before it: both are beyond everything that we accept
    const int64_t near = static_cast<int64_t>(std::min(size, kLimit - 1));
    add(is_huge ? Json::kHuge : Json::kInteger).integer = is_negative ? -near - (size == kLimit) : near;
  }

  void real(size_t start) {
    double number = 0;
    const auto end = std::from_chars(text_ + start, text_ + at_, number);
    if (end.ec == std::errc::result_out_of_range) {
      if (is_large(start)) fail("a number is too large");
      number = 0;
    }
    add(Json::kReal).real = number;
  }

  // Whether a number that no double holds is too large; otherwise it is too small, which means zero.
  bool is_large(size_t start) const {
    int64_t magnitude = 0, exponent = 0;
    bool has_point = false, has_digit = false;
    size_t i = start + (text_[start] == '-');
    for (; i < at_ && text_[i] != 'e' && text_[i] != 'E'; ++i) {
      if (text_[i] == '.') {
        has_point = true;
        continue;
      }
      has_digit = has_digit || text_[i] != '0';
      if (has_digit && !has_point) ++magnitude;
      if (!has_digit && has_point) --magnitude;
    }
    const bool is_small = i + 1 < at_ && text_[i + 1] == '-';
    for (; i < at_; ++i)
      if (is_digit(text_[i])) exponent = std::min<int64_t>(10 * exponent + (text_[i] - '0'), INT32_MAX);
    return magnitude + (is_small ? -exponent : exponent) > 0;
  }

  void string() {
    const size_t start = ++at_;
    size_t to = start;
    while (raw() != '"') {
      if (at_ >= size_) fail("a string does not end");
      if (static_cast<uint8_t>(text_[at_]) < 0x20) fail("a string holds a control character");
      if (text_[at_] == '\\') {
        escape(to);
      } else {
        text_[to++] = text_[at_++];
      }
    }
    ++at_;
    JsonSlot& slot = add(Json::kText);
    slot.text = {static_cast<uint32_t>(start), static_cast<uint32_t>(to - start)};
  }

  // Decode one escape and append it at `to`, which never overtakes `at_`.
  void escape(size_t& to) {
    ++at_;
    static const char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
    const char c = raw();
    const char* found = c == 0 ? nullptr : std::strchr(kFrom, c);
    if (found != nullptr) {
      ++at_;
      text_[to++] = kTo[found - kFrom];
      return;
    }
    if (c != 'u') fail("an escape is unknown");
    ++at_;
    uint32_t point = hex4();
    if (point >= 0xd800 && point < 0xdc00 && size_ - at_ >= 6 && text_[at_] == '\\' &&
        text_[at_ + 1] == 'u') {
      const size_t before = at_;
      at_ += 2;
      const uint32_t low = hex4();
      if (low >= 0xdc00 && low < 0xe000) {
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
      } else {
        at_ = before;
      }
    }
    encode(point, to);
  }

  uint32_t hex4() {
    uint32_t point = 0;
    if (size_ - at_ < 4) fail("an escape is cut");
    const auto end = std::from_chars(text_ + at_, text_ + at_ + 4, point, 16);
    if (end.ptr != text_ + at_ + 4) fail("an escape has no four digits");
    at_ += 4;
    return point;
  }

  // Half of a pair alone becomes three bytes that are no UTF-8: whoever needs a name refuses it.
  void encode(uint32_t point, size_t& to) {
    const auto put = [&](uint32_t byte) { text_[to++] = static_cast<char>(byte); };
    if (point < 0x80) return put(point);
    if (point < 0x800) {
      put(0xc0 | point >> 6);
    } else {
      if (point < 0x10000) {
        put(0xe0 | point >> 12);
      } else {
        put(0xf0 | point >> 18);
        put(0x80 | (point >> 12 & 0x3f));
      }
      put(0x80 | (point >> 6 & 0x3f));
    }
    put(0x80 | (point & 0x3f));
  }

  char* text_;
  size_t size_;
  const char* what_;
  std::vector<JsonSlot>& slots_;
  std::vector<uint32_t> keys_;
  size_t at_ = 0;
  uint32_t open_ = kNone;  // the innermost container
  int depth_ = 0;
};

Document::Document(char* text, size_t size, const char* what) : text_(text) {
  require(is_utf8({text, size}), LBQ_RULE_JSON, "the %s is not UTF-8", what);
  slots_.reserve(count_values(text, size));
  JsonParser(text, size, what, slots_).parse();
}

}  // namespace lbq
