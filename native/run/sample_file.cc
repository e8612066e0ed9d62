#include "sample_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace {

bool ends_in(const std::string& name, const char* ending) {
  const size_t length = std::strlen(ending);
  return name.size() > length && name.compare(name.size() - length, length, ending) == 0;
}

[[noreturn]] void fail(const std::string& path, const std::string& why) { throw InputError{path + ": " + why}; }

// From consecutive samples to [T, B, ...].
void put_time_first(std::vector<uint8_t>& batch, const SampleSize& size, int64_t count) {
  if (size.frames == 1 || count == 1) return;
  std::vector<uint8_t> moved(batch.size());
  for (int64_t b = 0; b < count; ++b)
    for (int64_t t = 0; t < size.frames; ++t)
      std::memcpy(&moved[(t * count + b) * size.instant], &batch[(b * size.frames + t) * size.instant],
                  size.instant);
  batch.swap(moved);
}

std::string written(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// The shape in the header of an .npy file: {'descr': '|u1', 'fortran_order': False, 'shape': (5, 3, 32, 32),
// }
std::vector<int64_t> npy_shape(const std::string& path, const std::string& header) {
  const bool is_bytes = header.find("'descr': '|u1'") != header.npos;
  const bool is_ordered = header.find("'fortran_order': False") != header.npos;
  size_t at = header.find("'shape': (");
  if (!is_bytes || !is_ordered || at == header.npos)
    fail(path, "expected uint8 in C order, as numpy.save writes it");
  std::vector<int64_t> shape;
  for (at += std::strlen("'shape': ("); at < header.size() && header[at] != ')'; ++at) {
    if (header[at] == ',' || header[at] == ' ') continue;
    int64_t size = 0;
    const size_t first = at;
    for (; at < header.size() && header[at] >= '0' && header[at] <= '9' && at - first < 12; ++at)
      size = 10 * size + (header[at] - '0');
    if (at == first || shape.size() == 8) fail(path, "its shape cannot be read");
    shape.push_back(size);
    --at;
  }
  return shape;
}

}  // namespace

SampleSize::SampleSize(const lbq_model_info& info)
    : instant(info.channels * info.height * info.width),
      frames(info.takes_frames ? info.timesteps : 1) {}

bool is_sample_file(const std::string& name) {
  return name[0] != '.' && (ends_in(name, ".npy") || ends_in(name, ".u8"));
}

SampleFile::SampleFile(const std::string& path, const lbq_model_info& info)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), size_(info) {
  struct stat found;
  try {
    if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0) fail(path, std::strerror(errno));
    if (!S_ISREG(found.st_mode)) fail(path, "is no file");
    if (ends_in(path, ".npy")) {
      read_header(info, found.st_size);
      return;
    }
    if (found.st_size % size_.bytes() != 0)
      fail(path, "has " + std::to_string(found.st_size) + " bytes, which is no multiple of a sample's " +
                     std::to_string(size_.bytes()));
    num_samples_ = found.st_size / size_.bytes();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

SampleFile::~SampleFile() { ::close(descriptor_); }

void SampleFile::read_header(const lbq_model_info& info, int64_t size) {
  uint8_t start[12] = {};
  if (size < 12) fail(path_, "is no .npy file");
  read_at(0, start, sizeof start);
  if (std::memcmp(start, "\x93NUMPY", 6) != 0 || start[6] < 1 || start[6] > 3) fail(path_, "is no .npy file");
  const bool is_short = start[6] == 1;
  const int64_t length =
      start[8] | start[9] << 8 | (is_short ? 0 : int64_t{start[10]} << 16 | int64_t{start[11]} << 24);
  start_ = (is_short ? 10 : 12) + length;
  if (start_ > size || length > 1 << 16) fail(path_, "is no .npy file");
  std::string header(length, 0);
  read_at(start_ - length, reinterpret_cast<uint8_t*>(&header[0]), length);

  const std::vector<int64_t> shape = npy_shape(path_, header);
  std::vector<int64_t> sample = {info.channels, info.height, info.width};
  sample.resize(info.rank);
  std::vector<int64_t> expected = sample;
  const size_t batch_axis = info.takes_frames ? 1 : 0;
  num_samples_ = shape.size() > batch_axis ? shape[batch_axis] : 0;
  expected.insert(expected.begin(), num_samples_);
  if (info.takes_frames) expected.insert(expected.begin(), info.timesteps);
  if (shape != expected)
    fail(path_, "has shape " + written(shape) + ", the network takes " +
                    (info.takes_frames ? std::to_string(info.timesteps) + " frames of B samples of "
                                        : "B samples of ") +
                    written(sample));
  has_time_first_ = info.takes_frames;
  if ((size - start_) / size_.bytes() != num_samples_ || (size - start_) % size_.bytes() != 0)
    fail(path_, "was cut or extended");
}

void SampleFile::read_at(int64_t offset, uint8_t* to, int64_t size) const {
  while (size > 0) {
    const ssize_t got = ::pread(descriptor_, to, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, std::strerror(errno));
    if (got == 0) fail(path_, "was cut while it was read");
    to += got, offset += got, size -= got;
  }
}

void SampleFile::read(int64_t first, int64_t count, std::vector<uint8_t>& batch) {
  batch.resize(count * size_.bytes());
  if (!has_time_first_) {
    read_at(start_ + first * size_.bytes(), batch.data(), count * size_.bytes());
    return put_time_first(batch, size_, count);
  }
  for (int64_t t = 0; t < size_.frames; ++t)
    read_at(start_ + (t * num_samples_ + first) * size_.instant, &batch[t * count * size_.instant],
            count * size_.instant);
}

StreamPart read_stream(int descriptor, const SampleSize& size, int64_t count, std::vector<uint8_t>& batch) {
  batch.resize(count * size.bytes());
  int64_t have = 0;
  const int64_t wanted = static_cast<int64_t>(batch.size());
  while (have < wanted) {
    const ssize_t got = ::read(descriptor, batch.data() + have, wanted - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("standard input", std::strerror(errno));
    if (got == 0) break;
    have += got;
  }
  const StreamPart part{have / size.bytes(), have % size.bytes()};
  batch.resize(have - part.rest);
  put_time_first(batch, size, part.samples);
  return part;
}
