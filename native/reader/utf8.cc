#include "utf8.h"

#include <cstddef>
#include <cstdint>

namespace lbq {

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
  if (lead < 0xc2) return 0;  // a follower, or longer than needed
  if (lead < 0xe0) return follows(1) ? 2 : 0;
  if (lead == 0xe0 && at(1) < 0xa0) return 0;   // longer than needed
  if (lead == 0xed && at(1) >= 0xa0) return 0;  // half of a pair
  if (lead < 0xf0) return follows(1) && follows(2) ? 3 : 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) >= 0x90) return 0;  // beyond Unicode
  return lead < 0xf5 && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

}  // namespace lbq
