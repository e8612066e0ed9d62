// Answers as they go out: rows of CSV or .npy, in a file that is whole or not there.
#pragma once

#include <string>
#include <vector>

#include "lbq_model.h"

enum class Format { kCsv, kNpy };

// The rows of one batch after another, as bytes. A row is: sample, timestep (of a sequence only), class and logits of
// every output; an .npy file has no column for sample and timestep, it has axes.
class OutputRows {
 public:
  OutputRows(Format format, const lbq_model* model, const lbq_model_info& info);

  std::string header(int64_t num_samples) const;
  // `logits` is [B, n] or [T, B, n] of every output, one behind the other.
  std::string of_batch(int64_t first, int64_t count, const int64_t* logits) const;

 private:
  void append(std::string& bytes, const int64_t* logits, int64_t count) const;

  Format format_;
  const lbq_model_info& info_;
  std::vector<int64_t> sizes_;  // of the outputs
};

// Write all of these bytes, or throw InputError.
void write_all(int descriptor, const std::string& bytes, const std::string& path);

// One file of answers. The temporary file is locked while someone writes it: a kill unlocks it, and the next
// one begins it anew. Until `finish` has flushed and renamed it, there is no file under its own name.
class OutputFile {
 public:
  enum class Claim { kOurs, kDone, kBusy };

  OutputFile(std::string folder, const std::string& name);
  OutputFile(const OutputFile&) = delete;
  // Removes the temporary file, if it is ours and was not finished.
  ~OutputFile();

  Claim claim();
  void write(const std::string& bytes) { write_all(descriptor_, bytes, path_); }
  void finish();

 private:
  void release();

  std::string folder_, path_, temporary_;
  int descriptor_ = -1;
  bool is_ours_ = false;
};
