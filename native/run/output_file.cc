#include "output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sample_file.h"

namespace {

[[noreturn]] void fail(const std::string& path) { throw InputError{path + ": " + std::strerror(errno)}; }

bool exists(const std::string& path) {
  struct stat found;
  if (::stat(path.c_str(), &found) == 0) return true;
  if (errno != ENOENT) fail(path);
  return false;
}

// Whether the path still names the open file; another worker may have renamed or removed it before we had the lock.
bool is_same_file(int descriptor, const std::string& path) {
  struct stat ours, there;
  return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

// Returns false if another worker holds the lock. Prints a warning if files cannot be locked.
bool lock(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  static bool is_told = false;
  if (!is_told)
    std::fprintf(stderr,
                 "lbq-run: files cannot be locked here (%s); give every worker shards of its own (--shard)\n",
                 std::strerror(errno));
  is_told = true;
  return true;
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(folder);
  const int failed = ::fsync(descriptor);
  ::close(descriptor);
  if (failed && errno != EINVAL) fail(folder);  // some file systems neither support nor need it
}

}  // namespace

void write_all(int descriptor, const std::string& bytes, const std::string& path) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t put = ::write(descriptor, bytes.data() + at, bytes.size() - at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(path);
    at += put;
  }
}

OutputRows::OutputRows(Format format, const lbq_model* model, const lbq_model_info& info)
    : format_(format), info_(info) {
  for (int64_t i = 0; i < info.num_outputs; ++i) sizes_.push_back(lbq_model_output_size(model, i));
}

std::string OutputRows::header(int64_t num_samples) const {
  std::string text;
  if (format_ == Format::kCsv) {
    text = info_.gives_sequence ? "sample,timestep" : "sample";
    for (size_t k = 0; k < sizes_.size(); ++k) {
      const std::string output = sizes_.size() == 1 ? "" : "_" + std::to_string(k);
      text += ",class" + output;
      for (int64_t i = 0; i < sizes_[k]; ++i) text += ",logit" + output + "_" + std::to_string(i);
    }
    return text + "\n";
  }
  std::string shape = std::to_string(num_samples) + ", ";
  if (info_.gives_sequence) shape += std::to_string(info_.timesteps) + ", ";
  shape += std::to_string(info_.num_outputs + info_.num_logits);
  text = "{'descr': '<i8', 'fortran_order': False, 'shape': (" + shape + "), }";
  text.append(63 - (10 + text.size()) % 64, ' ').push_back('\n');
  std::string start("\x93NUMPY\x01\x00", 8);
  start.push_back(static_cast<char>(text.size() & 255));
  start.push_back(static_cast<char>(text.size() >> 8));
  return start + text;
}

void OutputRows::append(std::string& bytes, const int64_t* logits, int64_t count) const {
  const int64_t largest = std::max_element(logits, logits + count) - logits;  // the first of equals
  if (format_ == Format::kNpy) {
    bytes.append(reinterpret_cast<const char*>(&largest), sizeof largest);
    bytes.append(reinterpret_cast<const char*>(logits), count * sizeof *logits);
    return;
  }
  bytes += "," + std::to_string(largest);
  for (int64_t i = 0; i < count; ++i) bytes += "," + std::to_string(logits[i]);
}

std::string OutputRows::of_batch(int64_t first, int64_t count, const int64_t* logits) const {
  std::string bytes;
  const int64_t timesteps = info_.gives_sequence ? info_.timesteps : 1;
  for (int64_t b = 0; b < count; ++b)
    for (int64_t t = 0; t < timesteps; ++t) {
      if (format_ == Format::kCsv) bytes += std::to_string(first + b);
      if (format_ == Format::kCsv && info_.gives_sequence) bytes += "," + std::to_string(t);
      const int64_t* output = logits;
      for (const int64_t size : sizes_) {
        append(bytes, output + (t * count + b) * size, size);
        output += timesteps * count * size;
      }
      if (format_ == Format::kCsv) bytes += "\n";
    }
  return bytes;
}

OutputFile::OutputFile(std::string folder, const std::string& name)
    : folder_(std::move(folder)), path_(folder_ + "/" + name), temporary_(folder_ + "/." + name + ".tmp") {}

OutputFile::~OutputFile() {
  if (is_ours_) ::unlink(temporary_.c_str());
  release();
}

void OutputFile::release() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  is_ours_ = false;
}

OutputFile::Claim OutputFile::claim() {
  do {
    release();
    const bool is_done = exists(path_);
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CLOEXEC | (is_done ? 0 : O_CREAT), 0666);
    if (descriptor_ < 0 && is_done && errno == ENOENT) return Claim::kDone;
    if (descriptor_ < 0) fail(temporary_);
    if (!lock(descriptor_)) {
      release();
      return is_done ? Claim::kDone : Claim::kBusy;
    }
  } while (!is_same_file(descriptor_, temporary_));
  is_ours_ = true;
  if (exists(path_)) {  // another worker finished it before we had the lock
    ::unlink(temporary_.c_str());
    release();
    return Claim::kDone;
  }
  if (::ftruncate(descriptor_, 0) != 0) fail(temporary_);
  return Claim::kOurs;
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_);
  release();
  sync_folder(folder_);
}
