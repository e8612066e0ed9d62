// The C functions of lbq_model.h: check sizes, catch exceptions.
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <new>
#include <stdexcept>

#include "manifest.h"
#include "reader.h"
#include "rules.h"
#include "runner.h"

struct lbq_model {
  lbq::Model model;
  mutable std::mutex mutex;
  mutable std::shared_ptr<const lbq::Runner> runner;  // empty before the first run: many files are only read

  std::shared_ptr<const lbq::Runner> prepared() const {
    std::lock_guard<std::mutex> lock(mutex);
    if (!runner) runner = std::make_shared<const lbq::Runner>(model.network, nullptr, 1);
    return runner;
  }
};

struct lbq_stream {
  const lbq::Network* network;
  int64_t batch;
  std::shared_ptr<const lbq::Runner> runner;
  lbq::Progress progress;
};

namespace lbq {
namespace {

constexpr int kMaxThreads = 1024;

lbq_model_status failed(lbq_error_message* message, lbq_model_status status, const char* text) {
  if (message != nullptr) std::snprintf(message->text, sizeof message->text, "%s", text);
  return status;
}

// Call a function that may throw; return its status.
template <class Do>
lbq_model_status guarded(lbq_error_message* message, Do act) {
  if (message != nullptr) message->text[0] = 0;
  try {
    act();
    return LBQ_MODEL_OK;
  } catch (const ReadError& error) {
    if (message != nullptr) *message = error.message;
    return error.status;
  } catch (const std::bad_alloc&) {
    return failed(message, LBQ_MODEL_NO_MEMORY, "there is no memory left");
  } catch (const std::length_error&) {  // no memory has such a size
    return failed(message, LBQ_MODEL_NO_MEMORY, "there is no memory left");
  } catch (const std::exception& error) {
    return failed(message, LBQ_MODEL_FAILED, error.what());
  }
}

void check_size(int64_t found, int64_t batch, int64_t each, const char* what) {
  const int64_t expected = saturating_product(batch, each);
  require(found == expected, LBQ_MODEL_BAD_ARGUMENT,
          "%" PRId64 " %s for a batch of %" PRId64 ", expected %" PRId64, found, what, batch, expected);
}

void check_batch(const Network& network, int64_t batch, const uint8_t* inputs, size_t num_inputs,
                 const int64_t* logits, size_t num_logits, bool is_whole) {
  require(batch >= 1 && inputs != nullptr && logits != nullptr, LBQ_MODEL_BAD_ARGUMENT,
          "a batch has at least one sample, and inputs and logits are not NULL");
  const bool gives_sequence = is_whole && !network.sums_over_time(),
             takes_sequence = is_whole && network.takes_frames;
  check_size(static_cast<int64_t>(num_inputs), batch,
             network.input.size() * (takes_sequence ? network.timesteps : 1), "bytes");
  check_size(static_cast<int64_t>(num_logits), batch,
             network.output_size() * (gives_sequence ? network.timesteps : 1), "logits");
}

template <class Open>
lbq_model_status open_model(lbq_model** model, lbq_error_message* message, Open open) {
  if (model != nullptr) *model = nullptr;
  return guarded(message, [&] {
    require(model != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there is no place for the model");
    *model = new lbq_model{read_model(open()), {}, {}};
  });
}

}  // namespace
}  // namespace lbq

extern "C" {

lbq_model_status lbq_model_open(const char* path, const char* sha256, lbq_model** model,
                                lbq_error_message* message) {
  return lbq::open_model(model, message, [&] {
    lbq::require(path != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there is no path");
    return lbq::read_bundle(path, sha256);
  });
}

lbq_model_status lbq_model_from_bytes(const void* data, size_t size, lbq_model** model,
                                      lbq_error_message* message) {
  return lbq::open_model(model, message, [&] {
    lbq::require(data != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there are no bytes");
    return lbq::copy_bundle(data, size);
  });
}

void lbq_model_free(lbq_model* model) { delete model; }

void lbq_model_get_info(const lbq_model* model, lbq_model_info* info) {
  const lbq::Network& network = model->model.network;
  *info = {};
  info->timesteps = network.timesteps;
  info->channels = network.input.channels;
  info->height = network.input.height;
  info->width = network.input.width;
  info->rank = network.input.rank;
  info->takes_frames = network.takes_frames;
  info->gives_sequence = !network.sums_over_time();
  info->num_logits = network.output_size();
  info->logit_scale = network.logit_scale;
  info->num_nodes = static_cast<int64_t>(network.nodes.size());
  info->num_values = network.input.size();
  for (const lbq::Node& node : network.nodes) {
    info->num_values += node.to.size();
    info->num_outputs += node.is_output();
  }
  lbq::to_hex(model->model.bundle.digest, info->digest);
}

int64_t lbq_model_output_size(const lbq_model* model, int64_t output) {
  for (const lbq::Node& node : model->model.network.nodes)
    if (node.is_output() && output-- == 0) return node.to.size();
  return 0;
}

lbq_model_status lbq_model_prepare(lbq_model* model, const char* isa, int32_t threads,
                                   lbq_error_message* message) {
  return lbq::guarded(message, [&] {
    lbq::require(model != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there is no model");
    lbq::require(threads >= 1 && threads <= lbq::kMaxThreads, LBQ_MODEL_BAD_ARGUMENT,
                 "%" PRId32 " threads, expected 1..%d", threads, lbq::kMaxThreads);
    auto runner = std::make_shared<const lbq::Runner>(model->model.network, isa, threads);
    std::lock_guard<std::mutex> lock(model->mutex);
    model->runner = std::move(runner);
  });
}

const char* lbq_model_isa(const lbq_model* model) {
  std::lock_guard<std::mutex> lock(model->mutex);
  return model->runner ? model->runner->isa() : nullptr;
}

lbq_model_status lbq_model_run(const lbq_model* model, int64_t batch, const uint8_t* inputs,
                               size_t num_inputs, int64_t* logits, size_t num_logits,
                               lbq_error_message* message) {
  return lbq::guarded(message, [&] {
    lbq::require(model != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there is no model");
    const lbq::Network& network = model->model.network;
    lbq::check_batch(network, batch, inputs, num_inputs, logits, num_logits, true);
    model->prepared()->run(inputs, batch, logits);
  });
}

lbq_model_status lbq_stream_new(const lbq_model* model, int64_t batch, lbq_stream** stream,
                                lbq_error_message* message) {
  if (stream != nullptr) *stream = nullptr;
  return lbq::guarded(message, [&] {
    lbq::require(model != nullptr && stream != nullptr, LBQ_MODEL_BAD_ARGUMENT,
                 "there is no model, or no place");
    // the size of carries cannot overflow up to this batch
    lbq::require(batch >= 1 && batch <= INT32_MAX, LBQ_MODEL_BAD_ARGUMENT, "a batch of %" PRId64, batch);
    std::shared_ptr<const lbq::Runner> runner = model->prepared();
    lbq::Progress progress = runner->at_rest(batch);
    *stream = new lbq_stream{&model->model.network, batch, std::move(runner), std::move(progress)};
  });
}

lbq_model_status lbq_stream_step(lbq_stream* stream, const uint8_t* inputs, size_t num_inputs,
                                 int64_t* logits, size_t num_logits, lbq_error_message* message) {
  return lbq::guarded(message, [&] {
    lbq::require(stream != nullptr, LBQ_MODEL_BAD_ARGUMENT, "there is no stream");
    const lbq::Network& network = *stream->network;
    lbq::check_batch(network, stream->batch, inputs, num_inputs, logits, num_logits, false);
    lbq::require(stream->progress.timestep < network.timesteps, LBQ_MODEL_SEQUENCE_OVER,
                 "%" PRId64 " timesteps are over, and no more were proven not to overflow, or one failed: reset the stream",
                 network.timesteps);
    stream->runner->step(inputs, stream->batch, logits, stream->progress);
  });
}

void lbq_stream_reset(lbq_stream* stream) { stream->progress.reset(); }

void lbq_stream_free(lbq_stream* stream) { delete stream; }

}  // extern "C"
