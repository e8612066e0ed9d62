// What the tests of the reader share. LBQ_CORPUS is the folder of native/fuzz/corpus.
#pragma once

#include <string>
#include <vector>

#include "lbq_model.h"
#include "reader/sha256.h"
#include "tester.h"

void test_rules(Report& report);
void test_documents(Report& report);
void test_model(Report& report);
void test_runner(Report& report);

inline std::string corpus(const std::string& name) { return std::string(LBQ_CORPUS) + "/" + name; }

const char* const kSound[] = {"tiny-event", "tiny-level", "tiny-zero", "tiny-none",
                              "tiny-late",  "frames",     "features",  "attention", "unet"};

inline lbq_model_status status_of(const std::string& file, std::string* message = nullptr) {
  lbq_model* model = nullptr;
  lbq_error_message found;
  const lbq_model_status status = lbq_model_from_bytes(file.data(), file.size(), &model, &found);
  if (message != nullptr) *message = found.text;
  lbq_model_free(model);
  return status;
}

inline std::string hex_digest(const std::string& bytes) {
  lbq::Sha256 sha256;
  sha256.update(bytes.data(), bytes.size());
  char hex[65];
  lbq::to_hex(sha256.finish(), hex);
  return hex;
}

// Three samples of the pattern that the corpus was answered for, and memory for the logits.
struct Batch {
  static constexpr int64_t kSize = 3;
  lbq_model_info info;
  std::vector<uint8_t> inputs;
  std::vector<int64_t> logits;

  explicit Batch(const lbq_model* model) {
    lbq_model_get_info(model, &info);
    const int64_t instant = info.channels * info.height * info.width;
    inputs.resize(kSize * instant * (info.takes_frames ? info.timesteps : 1));
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<uint8_t>(37 * i + 11);
    logits.resize(kSize * info.num_logits * (info.gives_sequence ? info.timesteps : 1));
  }
  lbq_model_status run(const lbq_model* model) {
    return lbq_model_run(model, kSize, inputs.data(), inputs.size(), logits.data(), logits.size(), nullptr);
  }
  size_t num_answers() const { return kSize * info.num_logits; }  // of one timestep
  lbq_model_status step(lbq_stream* stream, int64_t t, int64_t* to) const {
    const size_t size = kSize * info.channels * info.height * info.width;
    return lbq_stream_step(stream, inputs.data() + (info.takes_frames ? t * size : 0), size, to, num_answers(), nullptr);
  }
};
