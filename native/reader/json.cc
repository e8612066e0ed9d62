#include "json.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstring>

namespace lbq {
namespace {

constexpr int kMaxDepth = 500;  // as MAX_DEPTH in config_io.py
constexpr int kMaxDigits = 4300;  // of an integer, as in Python

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Every value but the first follows one of these characters, so their number bounds the number of slots.
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

  size_t skip_digits() {
    const size_t first = at_;
    while (is_digit(raw())) ++at_;
    if (at_ == first) fail("no number is written like this");
    return at_ - first;
  }

  void number() {
    const size_t start = at_;
    const bool is_negative = raw() == '-';
    if (is_negative) ++at_;
    const size_t first = at_;
    const size_t digits = skip_digits();
    if (text_[first] == '0' && digits > 1) fail("no number is written like this");
    bool is_real = false;
    if (raw() == '.') {
      is_real = true;
      ++at_;
      skip_digits();
    }
    if (raw() == 'e' || raw() == 'E') {
      is_real = true;
      ++at_;
      if (raw() == '+' || raw() == '-') ++at_;
      skip_digits();
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
    // 2^63 becomes 2^63 - 1; both are beyond all accepted values
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

  // Whether a number out of the range of doubles is too large; otherwise it is too small and becomes zero.
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

  // A single surrogate becomes three bytes that are not UTF-8; names reject it.
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

namespace {

constexpr int64_t kLargestSize = int64_t{1} << 40;

[[noreturn]] void throw_value_error(Value value, Where where) {
  static const char* const kKinds[] = {
      "null",          "false",  "true",   "an integer", "an integer of more than 64 bits",
      "a real number", "a text", "a list", "an object"};
  const int length = shown(where.owner);
  if (value.kind() == Json::kInteger)
    throw_error(LBQ_RULE_VALUE, "%s of %.*s is %" PRId64, where.what, length, where.owner.data(), value.integer());
  if (value.kind() == Json::kText)
    throw_error(LBQ_RULE_VALUE, "%s of %.*s is \"%.*s\"", where.what, length, where.owner.data(),
           shown(value.text()), value.text().data());
  throw_error(LBQ_RULE_VALUE, "%s of %.*s is %s", where.what, length, where.owner.data(),
         kKinds[static_cast<int>(value.kind())]);
}

}  // namespace

void check_keys(Value value, const char* const* keys, size_t count, Value* found, Where where) {
  if (value.kind() != Json::kObject) throw_value_error(value, where);
  uint64_t seen = 0;
  Value key = value.first();
  for (uint32_t i = 0; i < value.count(); ++i) {
    const std::string_view name = key.text();
    size_t place = 0;
    while (place < count && name != keys[place]) ++place;
    require(place < count, LBQ_RULE_KEYS, "%s of %.*s has the unknown key \"%.*s\"", where.what,
            shown(where.owner), where.owner.data(), shown(name), name.data());
    seen |= uint64_t{1} << place;
    found[place] = key.next();
    key = key.next().next();
  }
  for (size_t place = 0; place < count; ++place)
    require(seen >> place & 1, LBQ_RULE_KEYS, "%s of %.*s lacks the key \"%s\"", where.what,
            shown(where.owner), where.owner.data(), keys[place]);
}

int64_t read_int(Value value, int64_t low, int64_t high, Where where) {
  if (value.kind() != Json::kInteger || value.integer() < low || value.integer() > high)
    throw_value_error(value, where);
  return value.integer();
}

bool read_bool(Value value, Where where) {
  if (value.kind() != Json::kTrue && value.kind() != Json::kFalse) throw_value_error(value, where);
  return value.kind() == Json::kTrue;
}

std::string_view read_string(Value value, Where where) {
  if (value.kind() != Json::kText) throw_value_error(value, where);
  return value.text();
}

int read_choice(Value value, std::initializer_list<const char*> words, Where where) {
  int place = 0;
  for (const char* one : words) {
    if (value.kind() == Json::kText && value.text() == one) return place;
    ++place;
  }
  throw_value_error(value, where);
}

void check_list(Value value, int64_t low, int64_t high, Where where) {
  if (value.kind() != Json::kArray) throw_value_error(value, where);
  require(low <= value.count() && value.count() <= high, LBQ_RULE_VALUE, "%s of %.*s is a list of %u",
          where.what, shown(where.owner), where.owner.data(), value.count());
}

void read_pair(Value value, int64_t low, int64_t high, int64_t* found, Where where) {
  check_list(value, 2, 2, where);
  found[0] = read_int(value.first(), low, high, where);
  found[1] = read_int(value.first().next(), low, high, where);
}

int read_shape(Value value, int64_t* found, Where where) {
  check_list(value, 1, 4, where);
  Value size = value.first();
  for (uint32_t i = 0; i < value.count(); ++i, size = size.next())
    found[i] = read_int(size, 1, kLargestSize, where);
  return static_cast<int>(value.count());
}

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const int length = character_length(bytes.substr(i));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

int character_length(std::string_view bytes) {
  const auto at = [&](size_t i) { return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0; };
  const auto follows = [&](size_t i) { return (at(i) & 0xc0) == 0x80; };
  const int lead = at(0);
  if (bytes.empty()) return 0;
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;  // a continuation byte, or longer than needed
  if (lead < 0xe0) return follows(1) ? 2 : 0;
  if (lead == 0xe0 && at(1) < 0xa0) return 0;   // longer than needed
  if (lead == 0xed && at(1) >= 0xa0) return 0;  // a surrogate
  if (lead < 0xf0) return follows(1) && follows(2) ? 3 : 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) >= 0x90) return 0;  // beyond Unicode
  return lead < 0xf5 && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

}  // namespace lbq
