#include "container.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "rules.h"

namespace lbq {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are views of little-endian bytes");

const uint8_t kMagic[8] = {0x89, 'L', 'B', 'Q', '\r', '\n', 0x1a, '\n'};
constexpr size_t kHeader = 64, kHashed = 32, kAlignment = 64;
constexpr uint32_t kVersion = 2;
constexpr size_t kPiece = 1 << 20;  // bytes of one read

template <class T>
T number_at(const uint8_t* bytes) {
  T number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

struct Lengths {
  uint32_t manifest;
  uint64_t payload;
};

// Checks all but the digest. The version is checked before the lengths, because another version may differ from there
// on.
Lengths check_header(const uint8_t* header, size_t have, uint64_t size) {
  require(have >= sizeof kMagic && std::memcmp(header, kMagic, sizeof kMagic) == 0, LBQ_RULE_MAGIC,
          "the file does not begin like a bundle");
  require(have == kHeader, LBQ_RULE_LENGTH, "the file has %zu bytes, a header 64", have);
  const uint32_t version = number_at<uint32_t>(header + 8);
  require(version == kVersion, LBQ_RULE_VERSION,
          "unsupported version %u; this library reads version %u, take the one that wrote the file", version,
          kVersion);
  require(number_at<uint64_t>(header + 24) == 0, LBQ_RULE_RESERVED, "the reserved bytes are not zero");
  const Lengths lengths{number_at<uint32_t>(header + 12), number_at<uint64_t>(header + 16)};
  require(lengths.manifest <= kMaxManifest, LBQ_RULE_MANIFEST_SIZE, "the manifest has %u bytes",
          lengths.manifest);
  const uint64_t before = kHeader + lengths.manifest;
  require(before <= size && lengths.payload == size - before && lengths.manifest % kAlignment == 0,
          LBQ_RULE_LENGTH,
          "the header says %" PRIu64 " bytes after %" PRIu64 ", the file has %" PRIu64 ": it was cut or extended",
          lengths.payload, before, size);
  return lengths;
}

void check(Bundle& bundle) {
  const Lengths lengths = check_header(bundle.bytes.get(), std::min(bundle.size, kHeader), bundle.size);
  bundle.num_manifest = lengths.manifest;
  bundle.num_payload = lengths.payload;
  Sha256 sha256;
  sha256.update(bundle.bytes.get(), kHashed);
  sha256.update(bundle.bytes.get() + kHeader, bundle.size - kHeader);
  bundle.digest = sha256.finish();
  require(std::memcmp(bundle.digest.data(), bundle.bytes.get() + kHashed, bundle.digest.size()) == 0,
          LBQ_RULE_DIGEST,
          "the SHA-256 of the bytes is not the one in the header: the file is damaged, take "
          "another copy");
}

void check_known(const Bundle& bundle, const char* sha256) {
  Sha256 whole;
  whole.update(bundle.bytes.get(), bundle.size);
  char hex[65];
  to_hex(whole.finish(), hex);
  require(strcasecmp(hex, sha256) == 0, LBQ_RULE_KNOWN_DIGEST, "the file has SHA-256 %s, expected %.64s", hex,
          sha256);
}

class File {
 public:
  // Without waiting for a writer, if it is a pipe.
  explicit File(const char* path) : descriptor_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) throw_error(LBQ_MODEL_READ_FAILED, "%.300s: %s", path, std::strerror(errno));
  }
  File(const File&) = delete;
  ~File() { ::close(descriptor_); }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Read until the buffer or the file ends; returns the number of bytes.
size_t fill(int descriptor, uint8_t* to, size_t size, ReadBytes read_bytes) {
  size_t have = 0;
  while (have < size) {
    const ssize_t got = read_bytes(descriptor, to + have, std::min(size - have, kPiece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(LBQ_MODEL_READ_FAILED, "the file cannot be read: %s", std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  return have;
}

}  // namespace

Bundle read_bundle(const char* path, const char* sha256, ReadBytes read_bytes) {
  const File file(path);
  struct stat info;
  if (::fstat(file.descriptor(), &info) != 0)
    throw_error(LBQ_MODEL_READ_FAILED, "%.300s: %s", path, std::strerror(errno));
  require(S_ISREG(info.st_mode), LBQ_RULE_FILE, "%.300s is not a regular file", path);
  uint8_t header[kHeader];
  const size_t have = fill(file.descriptor(), header, kHeader, read_bytes);
  const uint64_t claimed = static_cast<uint64_t>(info.st_size);
  if (sha256 == nullptr) check_header(header, have, claimed);  // before memory is taken
  if (claimed > SIZE_MAX / 2) throw_error(LBQ_MODEL_NO_MEMORY, "the file is larger than any memory");
  Bundle bundle;
  bundle.size = static_cast<size_t>(claimed);
  require(have == std::min(bundle.size, kHeader), LBQ_RULE_LENGTH, "%zu bytes could be read", have);
  bundle.bytes.reset(new uint8_t[bundle.size]);
  std::memcpy(bundle.bytes.get(), header, have);
  const size_t found =
      have + fill(file.descriptor(), bundle.bytes.get() + have, bundle.size - have, read_bytes);
  require(found == bundle.size, LBQ_RULE_LENGTH, "%zu of %zu bytes could be read", found, bundle.size);
  if (sha256 != nullptr) check_known(bundle, sha256);
  check(bundle);
  return bundle;
}

Bundle copy_bundle(const void* data, size_t size) {
  check_header(static_cast<const uint8_t*>(data), std::min(size, kHeader), size);  // before memory is taken
  Bundle bundle;
  bundle.size = size;
  bundle.bytes.reset(new uint8_t[size]);
  std::memcpy(bundle.bytes.get(), data, size);
  check(bundle);
  return bundle;
}

}  // namespace lbq
