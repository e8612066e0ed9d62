// Whether bytes are UTF-8: shortest forms only, no halves of pairs.
#pragma once

#include <string_view>

namespace lbq {

bool is_utf8(std::string_view bytes);
// Bytes of the character in front; 0 if there is none.
int character_length(std::string_view bytes);

}  // namespace lbq
