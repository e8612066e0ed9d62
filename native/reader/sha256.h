// SHA-256 (FIPS 180-4), so that the reader needs no dependency.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lbq {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(const void* data, size_t size);
  // The digest of all bytes so far; call once.
  Digest finish();

 private:
  void block(const uint8_t* bytes);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t rest_[64] = {};
  uint64_t size_ = 0;
};

// As sha256sum prints it; `text` holds 65 bytes.
void to_hex(const Digest& digest, char* text);

}  // namespace lbq
