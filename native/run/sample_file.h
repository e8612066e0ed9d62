// Samples as they come in: .npy files of uint8, raw bytes in files or in a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lbq_model.h"

// Something that a person can put right: said in one line, exit code 1.
struct InputError {
  std::string text;
};

// How many bytes a sample has: all of its frames, or its still image.
struct SampleSize {
  explicit SampleSize(const lbq_model_info& info);
  int64_t instant, frames;
  int64_t bytes() const { return instant * frames; }
};

// A file of samples: .npy holds [B, ...] or, of frames, [T, B, ...]; .u8 one sample behind the other.
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

// What was read of a stream: whole samples, and bytes of one that the stream ended in.
struct StreamPart {
  int64_t samples, rest;
};

// Up to `count` samples of a stream, as a batch.
StreamPart read_stream(int descriptor, const SampleSize& size, int64_t count, std::vector<uint8_t>& batch);
