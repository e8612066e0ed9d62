// The N-th allocation fails, the N-th read fails, for every N: an error code each time, and nothing leaks.
// And no file, however contrived, takes more than twice its size, 16 MB, and 16 bytes per channel in the proof.
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "counted_memory.h"
#include "editable_bundle.h"
#include "engine/engine.h"
#include "random_network.h"
#include "reader/container.h"
#include "reader/reader.h"
#include "reader/rules.h"
#include "reader_tester.h"

namespace {

using counted::allocations_left, counted::live, counted::live_bytes, counted::peak_bytes;

// A timestep failed half way: the stream says so until it is reset, and then goes on.
bool recovers(lbq_stream* stream, Batch& batch) {
  allocations_left = -1;
  const bool says_so = batch.step(stream, 0, batch.logits.data()) == LBQ_MODEL_SEQUENCE_OVER;
  lbq_stream_reset(stream);
  return says_so && batch.step(stream, 0, batch.logits.data()) == LBQ_MODEL_OK;
}

// Open, run and stream a file; the first status that is not OK.
lbq_model_status use(const std::string& path, Batch& batch) {
  lbq_model* model = nullptr;
  lbq_stream* stream = nullptr;
  lbq_model_status status = lbq_model_open(path.c_str(), nullptr, &model, nullptr);
  if (status == LBQ_MODEL_OK) status = batch.run(model);
  if (status == LBQ_MODEL_OK) status = lbq_stream_new(model, Batch::kSize, &stream, nullptr);
  if (status == LBQ_MODEL_OK) status = batch.step(stream, 0, batch.logits.data());
  if (stream != nullptr && status == LBQ_MODEL_NO_MEMORY && !recovers(stream, batch)) status = LBQ_MODEL_BOUND;
  lbq_stream_free(stream);
  lbq_model_free(model);
  return status;
}

void test_allocations(const std::string& name, Report& report) {
  const std::string path = corpus(name + ".lbq");
  lbq_model* model = nullptr;
  lbq_model_open(path.c_str(), nullptr, &model, nullptr);
  Batch batch(model);
  lbq_model_free(model);
  const int64_t before = live;
  lbq_model_status status = LBQ_MODEL_NO_MEMORY;
  int64_t count = 0;
  for (; status != LBQ_MODEL_OK && count < 100000; ++count) {
    allocations_left = count;
    status = use(path, batch);
    allocations_left = -1;
    if (status != LBQ_MODEL_OK && status != LBQ_MODEL_NO_MEMORY) break;
    if (live != before) break;
  }
  const bool is_clean = status == LBQ_MODEL_OK && live == before;
  report(is_clean, path + ": allocation " + std::to_string(count));
  report(count > 50, path + " allocates");
}

// What the disk does: bytes of one read, and which read fails how.
struct {
  size_t piece;
  int64_t left;
  bool ends;
} disk;

ssize_t failing_read(int descriptor, void* to, size_t size) {
  if (disk.left-- == 0) {
    errno = EIO;
    return disk.ends ? 0 : -1;
  }
  if (disk.left % 3 == 0) {  // an interruption now and then
    errno = EINTR;
    return -1;
  }
  return ::read(descriptor, to, std::min(size, disk.piece));
}

lbq_model_status read_with_faults(const std::string& path) {
  try {
    lbq::read_model(lbq::read_bundle(path.c_str(), nullptr, failing_read));
    return LBQ_MODEL_OK;
  } catch (const lbq::ReadError& error) {
    return error.status;
  }
}

void test_reads(const std::string& name, size_t piece, bool ends, Report& report) {
  const std::string path = corpus(name + ".lbq");
  const int64_t before = live;
  int64_t count = 0;
  for (; count < 100000; ++count) {
    disk = {piece, count, ends};
    const lbq_model_status status = read_with_faults(path);
    if (status == LBQ_MODEL_OK) break;
    const bool has_little = count < 4;  // not even a magic
    const bool is_told = !ends ? status == LBQ_MODEL_READ_FAILED
                               : status == LBQ_RULE_LENGTH || (status == LBQ_RULE_MAGIC && has_little);
    report(is_told, path + ": read " + std::to_string(count) + " fails: " + lbq_model_status_name(status));
  }
  const bool is_clean = live == before;
  report(is_clean, path + " leaks");
  report(count < 100000 && count >= 2, path + " is read");
}

// `channels`: of all nodes whose intervals the proof holds at once.
void test_memory(const std::string& file, lbq_model_status expected, const char* name, Report& report,
                 int64_t channels = 0) {
  const int64_t before = peak_bytes = live_bytes;
  lbq_error_message message;
  lbq_model* model = nullptr;
  const lbq_model_status status = lbq_model_from_bytes(file.data(), file.size(), &model, &message);
  lbq_model_free(model);
  report(status == expected, std::string(name) + ": " + message.text);
  const int64_t taken = peak_bytes - before, allowed = 2 * static_cast<int64_t>(file.size()) + (16 << 20) + 16 * channels;
  report(taken <= allowed,
         std::string(name) + " takes " + std::to_string(taken) + " of " + std::to_string(allowed));
}

// A linear layer with very many outputs, and merges behind it.
std::string wide_network(int64_t outputs, int merges) {
  const std::string bound = R"("bound": {"low": 0, "high": 0, "bits": 16}})", count = std::to_string(outputs);
  EditableBundle draft(read_whole(corpus("features.lbq")));
  draft.table = R"({"fc.weight":{"dtype":"I8","shape":[)" + count + R"(,1],"data_offsets":[0,)" + count + "]}}";
  draft.numbers.assign(outputs, 0);
  draft.first_size = 0;
  draft.manifest = R"({"timesteps": 1, "input_shape": [1], "takes_frames": true, "logit_scale": 1.0, "origin": {}, )"
                   R"("nodes": [{"path": "fc", "kind": "synapse", "inputs": ["input"], )"
                   R"("settings": {"max_input": 255, "has_time": true, "stride": [1, 1], "padding": [0, 0], )"
                   R"("dilation": [1, 1], "groups": 1, "bits": 8}, )"
                   R"("tensors": {"weight": {"dtype": "I8", "shape": [)" +
                   count + R"(, 1], "offset": 8}, "bias": null}, )" + bound;
  std::string last = "fc";
  for (int i = 0; i <= merges; ++i) {
    const std::string path = std::to_string(i), kind = i == merges ? "readout" : "merge";
    draft.manifest += R"(, {"path": ")" + path + R"(", "kind": ")" + kind + R"(", "inputs": [")" + last +
                      R"("], "settings": {)" + (i == merges ? R"("over_time": "sum")" : "") + R"(}, "tensors": {}, )" +
                      bound;
    last = path;
  }
  draft.manifest += "]}";
  return draft.pack();
}

void test_memories(Report& report) {
  const EditableBundle good(read_whole(corpus("tiny-event.lbq")));
  std::string ones = "\"a\": [1", keys = "\"a\": 1", inputs = "\"block.conv\"";
  for (int i = 0; i < 500000; ++i) ones += ",1";
  for (int i = 0; keys.size() < 1000000; ++i) keys += ",\"" + std::to_string(i) + "\":1";
  for (int i = 0; i < 65000; ++i) inputs += ",\"block.conv\"";
  const auto test = [&](const char* name, lbq_model_status expected, auto change) {
    EditableBundle draft = good;
    change(draft);
    test_memory(draft.pack(), expected, name, report);
  };
  const std::string commas = "[" + std::string(900000, ',');
  test("half a million values", LBQ_MODEL_OK, [&](auto& d) { d.edit("\"accuracy\": 0.5", ones + "]"); });
  test("commas", LBQ_RULE_JSON, [&](auto& d) { d.manifest = commas; });
  test("commas in the table", LBQ_RULE_JSON, [&](auto& d) { d.table = commas; });
  test("a hundred thousand keys", LBQ_MODEL_OK, [&](auto& d) { d.edit("\"accuracy\": 0.5", keys); });
  test("a merge of 65,000 currents", LBQ_MODEL_BOUND,
       [&](auto& d) { d.edit("block.merge", "\"block.conv\"", inputs); });
  test_memory(wide_network(1 << 20, 30), LBQ_MODEL_OK, "a million channels", report, 2 << 20);
  test_memory(wide_network(64, 4000), LBQ_MODEL_OK, "four thousand nodes", report);
}

// What neurons keep between two walks of a sequence is that of the images at hand, not of the batch.
void test_carries_between_walks(Report& report) {
  int64_t taken[2];
  for (const int64_t batch : {1, 4}) {
    const Case c = Case::longer_than_one_chunk(batch);
    const lbq::Engine engine(c.network);
    std::vector<int32_t> answers(batch * c.network.input.size());
    const int64_t before = peak_bytes = live_bytes;
    engine.run(c.inputs.data(), batch, answers.data());
    taken[batch > 1] = peak_bytes - before;
  }
  report(taken[1] < 1.2 * taken[0], "4 images take " + std::to_string(taken[1]) + " bytes, one " + std::to_string(taken[0]));
}

}  // namespace

int main() {
  Report report;
  test_carries_between_walks(report);
  test_memories(report);
  for (const char* name : kSound) {
    test_allocations(name, report);
    for (const bool ends : {false, true})
      for (const size_t piece : {size_t{5}, size_t{100}, size_t{1} << 20})
        test_reads(name, piece, ends, report);
  }
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
