#include "c_api.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "check_network.h"
#include "engine.h"

namespace {

thread_local char last_error[512];

template <class To>
To checked_cast(int64_t value, int64_t low, int64_t high, const char* what) {
  if (value >= low && value <= high) return static_cast<To>(value);
  throw lbq::BadNetwork("lbq: " + std::string(what) + " is " + std::to_string(value) + ", expected " +
                        std::to_string(low) + ".." + std::to_string(high));
}

int32_t to_int32(int64_t value, const char* what) {
  return checked_cast<int32_t>(value, INT32_MIN, INT32_MAX, what);
}

}  // namespace

struct lbq_engine {
  lbq::Network network;
  std::vector<std::vector<char>> memory;
  std::unique_ptr<lbq::Engine> engine;

  lbq::Integers keep(const lbq_integers& integers) {
    if (integers.count == 0) return {};
    const int64_t count = checked_cast<int64_t>(integers.count, 0, int64_t{1} << 40, "a number of integers");
    const int32_t width = checked_cast<int32_t>(integers.width, 1, 4, "the width of integers");
    if (integers.data == nullptr) throw lbq::BadNetwork("lbq: integers without data");
    const char* bytes = static_cast<const char*>(integers.data);
    memory.emplace_back(bytes, bytes + count * width);
    return {memory.back().data(), width, count};
  }
  lbq::Node copy(const lbq_node& from);
};

struct lbq_engine_state {
  lbq::Carries state;
};

namespace {

lbq_engine_status failed(lbq_engine_status status, const char* text) {
  std::snprintf(last_error, sizeof last_error, "%s", text);  // no allocation here
  return status;
}

template <class Run>
lbq_engine_status guarded(Run run) {
  try {
    run();
    return LBQ_ENGINE_OK;
  } catch (const std::bad_alloc&) {
    return failed(LBQ_ENGINE_NO_MEMORY, "lbq: there is no memory left; a smaller batch needs less");
  } catch (const std::length_error&) {  // a vector larger than max_size()
    return failed(LBQ_ENGINE_NO_MEMORY, "lbq: there is no memory left; a smaller batch needs less");
  } catch (const std::invalid_argument& error) {
    return failed(LBQ_ENGINE_BAD_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return failed(LBQ_ENGINE_FAILED, error.what());
  }
}

lbq::Shape shape_of(const int64_t (&sizes)[3]) { return {sizes[0], sizes[1], sizes[2]}; }

}  // namespace

lbq::Node lbq_engine::copy(const lbq_node& from) {
  lbq::Node node;
  node.kind = checked_cast<lbq::Kind>(from.kind, 0, static_cast<int64_t>(lbq::Kind::kReadout), "the kind of a node");
  const int64_t num_inputs = checked_cast<int64_t>(from.num_inputs, 0, int64_t{1} << 20, "a number of inputs");
  node.inputs.assign(from.inputs, from.inputs + num_inputs);
  node.from = shape_of(from.from);
  node.to = shape_of(from.to);
  node.has_time = from.has_time != 0;
  node.bound = {from.low, from.high, to_int32(from.bits, "a number of bits")};
  for (int axis : {0, 1}) {
    node.window.kernel[axis] = from.kernel[axis];
    node.window.stride[axis] = from.stride[axis];
    node.window.padding[axis] = from.padding[axis];
    node.window.dilation[axis] = from.dilation[axis];
  }
  node.is_linear = from.is_linear != 0;
  node.groups = from.groups;
  node.weight_bits = to_int32(from.weight_bits, "a number of bits");
  node.max_input = from.max_input;
  node.weight = keep(from.weight);
  node.bias = keep(from.bias);
  node.pools_max = from.pools_max != 0;
  node.thresholds = keep(from.thresholds);
  node.reset_amount = keep(from.reset_amount);
  node.max_level = to_int32(from.max_level, "max_level");
  node.multiplier = to_int32(from.multiplier, "a multiplier");
  node.shift = to_int32(from.shift, "a shift");
  node.reset = checked_cast<lbq::Reset>(from.reset, 0, static_cast<int64_t>(lbq::Reset::kNone), "a reset");
  node.resets_after_decay = from.resets_after_decay != 0;
  node.sums_over_time = from.sums_over_time != 0;
  return node;
}

extern "C" {

lbq_engine* lbq_engine_new(const lbq_description* description, const char* isa, int64_t choice) {
  std::unique_ptr<lbq_engine> made;
  const lbq_engine_status status = guarded([&] {
    made = std::make_unique<lbq_engine>();
    made->network.timesteps = description->timesteps;
    made->network.takes_frames = description->takes_frames != 0;
    made->network.input = shape_of(description->input);
    for (int64_t i = 0; i < description->num_nodes; ++i)
      made->network.nodes.push_back(made->copy(description->nodes[i]));
    const lbq::EngineOptions options{isa, checked_cast<lbq::Choice>(choice, 0, 2, "the choice")};
    made->engine = std::make_unique<lbq::Engine>(made->network, options);
  });
  return status == LBQ_ENGINE_OK ? made.release() : nullptr;
}

void lbq_engine_free(lbq_engine* engine) { delete engine; }

const char* lbq_engine_isa(const lbq_engine* engine) { return engine->engine->isa(); }

lbq_engine_state* lbq_engine_state_new(const lbq_engine* engine, int64_t batch) {
  lbq_engine_state* made = nullptr;
  guarded([&] { made = new lbq_engine_state{engine->engine->at_rest(batch)}; });
  return made;
}

void lbq_engine_state_free(lbq_engine_state* state) { delete state; }

int64_t lbq_engine_run(const lbq_engine* engine, const uint8_t* inputs, int64_t batch, int64_t timesteps,
                       int64_t threads, lbq_engine_state* state, uint8_t* const* levels, lbq_step_record* records,
                       int64_t num_records, int32_t* answers) {
  return guarded([&] {
    std::vector<lbq::StepRecord> steps;
    lbq::RunOptions options;
    options.timesteps = timesteps;
    options.threads = to_int32(threads, "a number of threads");
    options.state = state ? &state->state : nullptr;
    options.levels = levels;
    options.records = records ? &steps : nullptr;
    engine->engine->run(inputs, batch, answers, options);
    const int64_t seen = std::min<int64_t>(num_records, static_cast<int64_t>(steps.size()));
    for (int64_t i = 0; i < seen; ++i)
      records[i] = {steps[i].node, steps[i].is_dense, steps[i].seconds, steps[i].pair_density};
  });
}

const char* lbq_engine_error(void) { return last_error; }

}  // extern "C"
