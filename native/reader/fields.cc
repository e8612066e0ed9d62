#include "fields.h"

#include <cinttypes>

namespace lbq {
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

}  // namespace lbq
