// The corpus gives the integers that torch gave: whole, one timestep at a time, and from eight threads at once.
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "editable_bundle.h"
#include "reader_tester.h"

namespace {

using ModelPointer = std::unique_ptr<lbq_model, void (*)(lbq_model*)>;

ModelPointer open(const std::string& name) {
  lbq_model* model = nullptr;
  lbq_error_message message;
  if (lbq_model_open(corpus(name + ".lbq").c_str(), nullptr, &model, &message) != LBQ_MODEL_OK)
    std::printf("%s\n", message.text);
  return {model, lbq_model_free};
}

std::vector<int64_t> committed(const std::string& name) {
  std::ifstream file(corpus(name + ".txt"));
  std::vector<int64_t> answers;
  for (int64_t answer; file >> answer;) answers.push_back(answer);
  return answers;
}

// The same answers, one timestep at a time; false if they differ.
bool streams_alike(const lbq_model* model, const Batch& whole) {
  const lbq_model_info& info = whole.info;
  lbq_stream* stream = nullptr;
  if (lbq_stream_new(model, Batch::kSize, &stream, nullptr) != LBQ_MODEL_OK) return false;
  std::vector<int64_t> logits(whole.num_answers());
  bool is_alike = true;
  for (int life = 0; life < 2; ++life) {  // the second one starts from zero
    for (int64_t t = 0; t < info.timesteps; ++t) {
      is_alike = is_alike && whole.step(stream, t, logits.data()) == LBQ_MODEL_OK;
      if (!info.gives_sequence && t + 1 < info.timesteps) continue;
      const int64_t *now = logits.data(), *all = whole.logits.data();
      for (int64_t output = 0; output < info.num_outputs; ++output) {
        const int64_t size = Batch::kSize * lbq_model_output_size(model, output);
        is_alike = is_alike && std::equal(now, now + size, all + (info.gives_sequence ? t * size : 0));
        now += size;
        all += size * (info.gives_sequence ? info.timesteps : 1);
      }
    }
    is_alike = is_alike && whole.step(stream, 0, logits.data()) == LBQ_MODEL_SEQUENCE_OVER;
    lbq_stream_reset(stream);
  }
  lbq_stream_free(stream);
  return is_alike;
}

void test_arguments(const lbq_model* model, Report& report) {
  Batch batch(model);
  const auto run = [&](int64_t size, size_t inputs, size_t logits) {
    return lbq_model_run(model, size, batch.inputs.data(), inputs, batch.logits.data(), logits, nullptr);
  };
  const size_t inputs = batch.inputs.size(), logits = batch.logits.size();
  report(run(Batch::kSize, inputs, logits) == LBQ_MODEL_OK, "a batch");
  for (int64_t size : {int64_t{0}, int64_t{-1}, int64_t{2}, INT64_MAX, INT64_MIN})
    report(run(size, inputs, logits) == LBQ_MODEL_BAD_ARGUMENT, "a batch of another size");
  report(run(Batch::kSize, inputs - 1, logits) == LBQ_MODEL_BAD_ARGUMENT, "a byte too few");
  report(run(Batch::kSize, inputs, logits + 1) == LBQ_MODEL_BAD_ARGUMENT, "a logit too many");
  report(lbq_model_run(nullptr, 1, nullptr, 0, nullptr, 0, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "no model");
  report(lbq_model_open(nullptr, nullptr, nullptr, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "nothing at all");
  lbq_model* none = nullptr;
  report(lbq_model_from_bytes(nullptr, 0, &none, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "no bytes");
  lbq_stream* stream = nullptr;
  report(lbq_stream_new(model, INT64_MAX, &stream, nullptr) == LBQ_MODEL_BAD_ARGUMENT && !stream,
         "a stream of all samples");
  lbq_model_free(nullptr);
  lbq_stream_free(nullptr);
}

void test_threads(const lbq_model* model, Report& report) {
  Batch one(model);
  one.run(model);
  std::vector<std::thread> threads;
  std::vector<int> is_alike(8);
  for (size_t i = 0; i < is_alike.size(); ++i)
    threads.emplace_back([&, i] {
      Batch mine(model);
      bool is_same = true;
      for (int again = 0; again < 20; ++again)
        is_same = is_same && mine.run(model) == LBQ_MODEL_OK && mine.logits == one.logits;
      is_alike[i] = is_same && streams_alike(model, mine);
    });
  for (std::thread& thread : threads) thread.join();
  report(is_alike == std::vector<int>(8, 1), "eight threads, one model");
}

// Other instruction sets and threads give the same integers.
void test_preparing(lbq_model* model, const Batch& known, Report& report) {
  report(lbq_model_prepare(model, "abacus", 1, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "no such instruction set");
  report(lbq_model_prepare(model, nullptr, 0, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "no threads");
  report(lbq_model_prepare(nullptr, nullptr, 1, nullptr) == LBQ_MODEL_BAD_ARGUMENT, "nothing to prepare");
  for (const char* isa : {"interpreter", "scalar"}) {
    report(lbq_model_prepare(model, isa, 2, nullptr) == LBQ_MODEL_OK && !std::strcmp(lbq_model_isa(model), isa), isa);
    Batch batch(model);
    report(batch.run(model) == LBQ_MODEL_OK && batch.logits == known.logits, "the same integers");
  }
  test_threads(model, report);  // eight callers, two threads each
}

}  // namespace

void test_model(Report& report) {
  for (const char* name : kSound) {
    const ModelPointer model = open(name);
    report(model != nullptr, name);
    if (!model) continue;
    Batch batch(model.get());
    report(batch.run(model.get()) == LBQ_MODEL_OK && batch.logits == committed(name),
           std::string(name) + " answers as torch did");
    report(streams_alike(model.get(), batch), std::string(name) + " streams");
    report(std::string(batch.info.digest).size() == 64, "a digest");
    test_threads(model.get(), report);
    test_preparing(model.get(), batch, report);
  }
  test_arguments(open("frames").get(), report);
}
