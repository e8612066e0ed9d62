// Bundles taken apart: change the texts and the numbers, and `pack` them with a digest that is right.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "reader/sha256.h"

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) std::printf("cannot read %s\n", path.c_str()), std::exit(2);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A header of any kind, with the digest that belongs to it.
inline std::string pack_bundle(std::string manifest, const std::string& payload, uint32_t version = 2,
                        uint64_t reserved = 0) {
  manifest.append((64 - manifest.size() % 64) % 64, ' ');
  std::string start("\x89LBQ\r\n\x1a\n", 8);
  const auto put = [&](const auto& number) {
    start.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  put(version);
  put(static_cast<uint32_t>(manifest.size()));
  put(static_cast<uint64_t>(payload.size()));
  put(reserved);
  lbq::Sha256 sha256;
  for (const std::string& part : {start, manifest, payload}) sha256.update(part.data(), part.size());
  const lbq::Digest digest = sha256.finish();
  return start + std::string(digest.begin(), digest.end()) + manifest + payload;
}

struct EditableBundle {
  std::string manifest, table, numbers;
  size_t first_size;  // of the table, when the manifest's offsets were right

  explicit EditableBundle(const std::string& file) {
    uint32_t num_manifest;
    uint64_t length;
    std::memcpy(&num_manifest, &file[12], 4);
    manifest = file.substr(64, num_manifest);
    manifest.erase(manifest.find_last_not_of(' ') + 1);
    std::memcpy(&length, &file[64 + num_manifest], 8);
    table = file.substr(72 + num_manifest, length);
    table.erase(table.find_last_not_of(' ') + 1);
    numbers = file.substr(72 + num_manifest + length);
    first_size = length;
  }

  std::string payload() const {
    std::string text = table;
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text + numbers;
  }

  std::string pack() const { return pack_bundle(moved_manifest(), payload()); }

  // The manifest with its tensors as far away as the table made them.
  std::string moved_manifest() const {
    const long distance =
        static_cast<long>(payload().size() - numbers.size() - 8) - static_cast<long>(first_size);
    const std::string key = "\"offset\": ";
    std::string moved = manifest;
    for (size_t at = moved.find(key); at != moved.npos; at = moved.find(key, at + 1)) {
      const size_t first = at + key.size(), size = moved.find_first_not_of("0123456789", first) - first;
      if (size > 0 && size < 10)
        moved.replace(first, size, std::to_string(std::stol(moved.substr(first, size)) + distance));
    }
    return moved;
  }

  // Change the first `from` behind `after` in a text; a test that changes nothing tests nothing.
  static void replace(std::string& text, const std::string& from, const std::string& to,
                      const std::string& after = "") {
    const size_t start = text.find(after),
                 at = start == text.npos ? start : text.find(from, start + after.size());
    if (at == text.npos) std::printf("no \"%s\" behind \"%s\"\n", from.c_str(), after.c_str()), std::exit(2);
    text.replace(at, from.size(), to);
  }
  void edit(const std::string& from, const std::string& to) { replace(manifest, from, to); }
  void edit(const std::string& path, const std::string& from, const std::string& to) {
    replace(manifest, from, to, "\"path\": \"" + path + "\"");
  }

  // Where a tensor begins among the numbers.
  size_t place(const std::string& name) const {
    const std::string key = "\"data_offsets\":[";
    const size_t at = table.find(key, table.find("\"" + name + "\""));
    if (at == table.npos) std::printf("no tensor %s\n", name.c_str()), std::exit(2);
    return std::stoul(table.substr(at + key.size(), 12));
  }
  template <class T>
  void set(const std::string& name, int64_t index, T value) {
    std::memcpy(&numbers[place(name) + index * sizeof(T)], &value, sizeof value);
  }
};
