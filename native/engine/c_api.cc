#include "c_api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "check_network.h"
#include "engine.h"
#include "operators.h"

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

  lbq::Integers keep(const lbq_tensor& tensor);
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

template <class Named, size_t kCount>
const Named& find(const Named (&table)[kCount], const char* name, const char* kind) {
  for (const Named& found : table)
    if (found.name != nullptr && !std::strcmp(found.name, name)) return found;
  throw lbq::BadNetwork("lbq: a " + std::string(kind) + " has no " + name);
}

}  // namespace

lbq::Integers lbq_engine::keep(const lbq_tensor& tensor) {
  lbq::Integers kept;
  kept.width = checked_cast<int32_t>(tensor.width, 1, 4, "the width of integers");
  kept.num_dims = checked_cast<int32_t>(tensor.num_dims, 1, 4, "a number of axes");
  kept.count = 1;
  for (int i = 0; i < kept.num_dims; ++i) {
    kept.shape[i] = checked_cast<int64_t>(tensor.shape[i], 1, int64_t{1} << 40, "the length of an axis");
    kept.count = lbq::saturating_product(kept.count, kept.shape[i]);
  }
  checked_cast<int64_t>(kept.count, 1, int64_t{1} << 40, "a number of integers");
  if (tensor.data == nullptr) throw lbq::BadNetwork("lbq: integers without data");
  const char* bytes = static_cast<const char*>(tensor.data);
  memory.emplace_back(bytes, bytes + kept.count * kept.width);
  kept.data = memory.back().data();
  return kept;
}

lbq::Node lbq_engine::copy(const lbq_node& from) {
  lbq::Node node;
  node.path = from.path;
  const lbq::Operator* op = lbq::find_operator(from.kind, node.kind);
  if (op == nullptr) throw lbq::BadNetwork("lbq: " + node.path + " is a " + from.kind + ", which is no operator");
  const int64_t num_inputs = checked_cast<int64_t>(from.num_inputs, 0, int64_t{1} << 20, "a number of inputs");
  node.inputs.assign(from.inputs, from.inputs + num_inputs);
  node.bound = {from.low, from.high, to_int32(from.bits, "a number of bits")};
  for (int64_t i = 0; i < from.num_settings; ++i) {
    const lbq_setting& setting = from.settings[i];
    lbq::SettingValue value;
    value.is_null = setting.word == nullptr && setting.count == 0;
    if (setting.word != nullptr) value.word = setting.word;
    value.numbers.count = checked_cast<int32_t>(setting.count, 0, 8, "a number of integers");
    std::copy(setting.numbers, setting.numbers + setting.count, value.numbers.values);
    try {
      lbq::store_setting(node, find(op->settings, setting.name, op->name), value);
    } catch (const lbq::GraphError& error) {
      throw lbq::BadNetwork("lbq: " + node.path + ": " + error.text);
    }
  }
  for (int64_t i = 0; i < from.num_tensors; ++i)
    node.*find(op->roles, from.tensors[i].name, op->name).tensor = keep(from.tensors[i]);
  return node;
}

extern "C" {

lbq_engine* lbq_engine_new(const lbq_description* description, const char* isa, int64_t choice) {
  std::unique_ptr<lbq_engine> made;
  const lbq_engine_status status = guarded([&] {
    made = std::make_unique<lbq_engine>();
    made->network.timesteps = description->timesteps;
    made->network.takes_frames = description->takes_frames != 0;
    const int64_t(&input)[3] = description->input;
    made->network.input = {input[0], input[1], input[2], checked_cast<int32_t>(description->rank, 1, 3, "the rank")};
    for (int64_t i = 0; i < description->num_nodes; ++i)
      made->network.nodes.push_back(made->copy(description->nodes[i]));
    lbq::check_network(made->network);
    const lbq::EngineOptions options{isa, checked_cast<lbq::Choice>(choice, 0, static_cast<int64_t>(lbq::Choice::kDense), "the choice")};
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
                       int64_t threads, lbq_engine_state* state, uint8_t* const* levels, lbq_stage_record* records,
                       int64_t num_records, int32_t* answers) {
  return guarded([&] {
    std::vector<lbq::StageRecord> stages;
    lbq::RunOptions options;
    options.timesteps = timesteps;
    options.threads = to_int32(threads, "a number of threads");
    options.state = state ? &state->state : nullptr;
    options.levels = levels;
    options.records = records ? &stages : nullptr;
    engine->engine->run(inputs, batch, answers, options);
    const int64_t seen = std::min<int64_t>(num_records, static_cast<int64_t>(stages.size()));
    for (int64_t i = 0; i < seen; ++i)
      records[i] = {stages[i].node, stages[i].is_dense, stages[i].seconds, stages[i].pair_density};
  });
}

const char* lbq_engine_error(void) { return last_error; }

}  // extern "C"
