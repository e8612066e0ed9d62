// Reads samples: .npy files of uint8, raw bytes from files or a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lbq_model.h"

// An error that the user can correct: a message of one line, exit code 1.
struct InputError {
  std::string text;
};

// The bytes of a sample: all of its frames, or its still image.
struct SampleSize {
  explicit SampleSize(const lbq_model_info& info);
  int64_t instant, frames;
  int64_t bytes() const { return instant * frames; }
};

// A file of samples: .npy holds [B, ...], or [T, B, ...] for frames; .u8 holds consecutive samples.
class SampleFile {
 public:
  SampleFile(const std::string& path, const lbq_model_info& info);
  SampleFile(const SampleFile&) = delete;
  ~SampleFile();

  int64_t num_samples() const { return num_samples_; }
  // Samples first..first + count - 1 as a batch: [B, ...] or [T, B, ...].
  void read(int64_t first, int64_t count, std::vector<uint8_t>& batch);

 private:
  void read_header(const lbq_model_info& info, int64_t size);
  void read_at(int64_t offset, uint8_t* to, int64_t size) const;

  std::string path_;
  int descriptor_;
  SampleSize size_;
  int64_t start_ = 0, num_samples_ = 0;
  bool has_time_first_ = false;
};

// Whether the name is that of a file of samples.
bool is_sample_file(const std::string& name);

// The result of reading a stream: the number of whole samples, and the bytes of an incomplete last one.
struct StreamPart {
  int64_t samples, rest;
};

// Up to `count` samples of a stream, as a batch.
StreamPart read_stream(int descriptor, const SampleSize& size, int64_t count, std::vector<uint8_t>& batch);
