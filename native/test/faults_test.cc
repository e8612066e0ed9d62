// The N-th allocation fails, the N-th read fails, for every N: an error code each time, and nothing leaks.
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>

#include "draft.h"
#include "reader/container.h"
#include "reader/reader.h"
#include "reader/rules.h"
#include "reader_tester.h"

namespace {

int64_t allocations_left = -1;  // -1: never fail
int64_t live = 0;

void* allocate(size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++live;
  return memory;
}

void release(void* memory) {
  live -= memory != nullptr;
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }

namespace {

// Open, run and stream a file; the first status that is not OK.
lbq_model_status use(const std::string& path, Batch& batch) {
  lbq_model* model = nullptr;
  lbq_stream* stream = nullptr;
  const lbq_model_facts& facts = batch.facts;
  const int64_t num_inputs = Batch::kSize * facts.channels * facts.height * facts.width, num_logits = Batch::kSize * facts.num_logits;
  lbq_model_status status = lbq_model_open(path.c_str(), nullptr, &model, nullptr);
  if (status == LBQ_MODEL_OK) status = batch.run(model);
  if (status == LBQ_MODEL_OK) status = lbq_stream_new(model, Batch::kSize, &stream, nullptr);
  if (status == LBQ_MODEL_OK) status = lbq_stream_step(stream, batch.inputs.data(), num_inputs, batch.logits.data(), num_logits, nullptr);
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
  report(status == LBQ_MODEL_OK && live == before, path + ": allocation " + std::to_string(count));
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
  } catch (const lbq::Refusal& refusal) {
    return refusal.status;
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
    const bool is_told = ends ? status == LBQ_RULE_LENGTH || (status == LBQ_RULE_MAGIC && count * piece < 64) : status == LBQ_MODEL_READ_FAILED;
    report(is_told, path + ": read " + std::to_string(count) + " fails: " + lbq_model_status_name(status));
  }
  report(count < 100000 && count >= 2, path + " is read");
  report(live == before, path + " leaks");
}

}  // namespace

int main() {
  Report report;
  for (const char* name : kSound) {
    test_allocations(name, report);
    for (const bool ends : {false, true})
      for (const size_t piece : {size_t{5}, size_t{100}, size_t{1} << 20}) test_reads(name, piece, ends, report);
  }
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed != 0;
}
