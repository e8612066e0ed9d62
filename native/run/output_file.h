// Writes answers as rows of CSV or .npy, to files that appear only when complete.
#pragma once

#include <string>
#include <vector>

#include "lbq_model.h"

enum class Format { kCsv, kNpy };

// The rows of one batch after another, as bytes. A row is: sample, timestep (for a sequence only), class and logits of
// every output. An .npy file has axes instead of the columns sample and timestep.
class OutputRows {
 public:
  OutputRows(Format format, const lbq_model* model, const lbq_model_info& info);

  std::string header(int64_t num_samples) const;
  // `logits` is [B, n] or [T, B, n] for every output, concatenated.
  std::string of_batch(int64_t first, int64_t count, const int64_t* logits) const;

 private:
  void append(std::string& bytes, const int64_t* logits, int64_t count) const;

  Format format_;
  const lbq_model_info& info_;
  std::vector<int64_t> sizes_;  // of the outputs
};

// Write all of these bytes, or throw InputError.
void write_all(int descriptor, const std::string& bytes, const std::string& path);

// One file of answers. A worker writes a locked temporary file. If the worker is killed, the lock is released and the
// next worker starts the file again. `finish` flushes the temporary file and renames it to the final name.
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
