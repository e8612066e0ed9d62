#include "door.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"

struct lbq_engine {
  lbq::Network network;
  std::vector<std::vector<char>> memory;
  std::unique_ptr<lbq::Engine> engine;

  lbq::Integers keep(const lbq_integers& integers) {
    if (integers.count == 0) return {};
    const char* bytes = static_cast<const char*>(integers.data);
    memory.emplace_back(bytes, bytes + integers.count * integers.width);
    return {memory.back().data(), static_cast<int32_t>(integers.width), integers.count};
  }
  lbq::Node copy(const lbq_node& from);
};

struct lbq_engine_state {
  lbq::Carries state;
};

namespace {

thread_local std::string last_error;

template <class Result, class Run>
Result guarded(Result failed, Run run) {
  try {
    return run();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failed;
  }
}

lbq::Shape shape_of(const int64_t (&sizes)[3]) { return {sizes[0], sizes[1], sizes[2]}; }

}  // namespace

lbq::Node lbq_engine::copy(const lbq_node& from) {
  lbq::Node node;
  node.kind = static_cast<lbq::Kind>(from.kind);
  node.inputs.assign(from.inputs, from.inputs + from.num_inputs);
  node.from = shape_of(from.from);
  node.to = shape_of(from.to);
  node.is_still = from.is_still != 0;
  node.bound = {from.low, from.high, static_cast<int32_t>(from.bits)};
  for (int axis : {0, 1}) {
    node.window.kernel[axis] = from.kernel[axis];
    node.window.stride[axis] = from.stride[axis];
    node.window.padding[axis] = from.padding[axis];
    node.window.dilation[axis] = from.dilation[axis];
  }
  node.is_linear = from.is_linear != 0;
  node.groups = from.groups;
  node.weight_bits = static_cast<int32_t>(from.weight_bits);
  node.max_input = from.max_input;
  node.weight = keep(from.weight);
  node.bias = keep(from.bias);
  node.pools_max = from.pools_max != 0;
  node.ladder = keep(from.ladder);
  node.removed = keep(from.removed);
  node.max_level = static_cast<int32_t>(from.max_level);
  node.multiplier = static_cast<int32_t>(from.multiplier);
  node.shift = static_cast<int32_t>(from.shift);
  node.reset = static_cast<lbq::Reset>(from.reset);
  node.resets_after_decay = from.resets_after_decay != 0;
  node.sums_over_time = from.sums_over_time != 0;
  return node;
}

extern "C" {

lbq_engine* lbq_engine_new(const lbq_description* description, const char* isa, int64_t choice) {
  return guarded<lbq_engine*>(nullptr, [&] {
    auto made = std::make_unique<lbq_engine>();
    made->network.timesteps = description->timesteps;
    made->network.takes_frames = description->takes_frames != 0;
    made->network.input = shape_of(description->input);
    for (int64_t i = 0; i < description->num_nodes; ++i)
      made->network.nodes.push_back(made->copy(description->nodes[i]));
    made->engine =
        std::make_unique<lbq::Engine>(made->network, lbq::EngineOptions{isa, static_cast<lbq::Choice>(choice)});
    return made.release();
  });
}

void lbq_engine_free(lbq_engine* engine) { delete engine; }

const char* lbq_engine_isa(const lbq_engine* engine) { return engine->engine->isa(); }

lbq_engine_state* lbq_engine_state_new(const lbq_engine* engine, int64_t batch) {
  return guarded<lbq_engine_state*>(nullptr,
                                    [&] { return new lbq_engine_state{engine->engine->at_rest(batch)}; });
}

void lbq_engine_state_free(lbq_engine_state* state) { delete state; }

int64_t lbq_engine_run(const lbq_engine* engine, const uint8_t* inputs, int64_t batch, int64_t timesteps,
                       int64_t threads, lbq_engine_state* state, uint8_t* const* levels, lbq_step_record* records,
                       int64_t num_records, int32_t* answers) {
  return guarded<int64_t>(1, [&]() -> int64_t {
    std::vector<lbq::StepRecord> steps;
    lbq::RunOptions options;
    options.timesteps = timesteps;
    options.threads = static_cast<int>(threads);
    options.state = state ? &state->state : nullptr;
    options.levels = levels;
    options.records = records ? &steps : nullptr;
    engine->engine->run(inputs, batch, answers, options);
    const int64_t seen = std::min<int64_t>(num_records, static_cast<int64_t>(steps.size()));
    for (int64_t i = 0; i < seen; ++i)
      records[i] = {steps[i].node, steps[i].is_dense, steps[i].seconds, steps[i].pair_density};
    return 0;
  });
}

const char* lbq_engine_error(void) { return last_error.c_str(); }

}  // extern "C"
