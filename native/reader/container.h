// The bytes of a bundle: a header of 64 bytes with the SHA-256 of all others, manifest, payload.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>

#include "sha256.h"

namespace lbq {

// A file in memory. Tensors are views of it; the two JSON texts in it are decoded in place.
struct Bundle {
  std::unique_ptr<uint8_t[]> bytes;
  size_t size = 0;
  size_t num_manifest = 0, num_payload = 0;
  Digest digest{};  // the verified digest

  char* manifest() const { return reinterpret_cast<char*>(bytes.get()) + 64; }
  uint8_t* payload() const { return bytes.get() + 64 + num_manifest; }
};

// Reads bytes; tests pass a function that fails.
using ReadBytes = ssize_t (*)(int descriptor, void* to, size_t size);

// Read a file and check header and digest. `sha256`: expected digest of the whole file, hexadecimal, or nullptr.
Bundle read_bundle(const char* path, const char* sha256, ReadBytes read_bytes = ::read);
// The same for bytes in memory, which are copied.
Bundle copy_bundle(const void* data, size_t size);

}  // namespace lbq
