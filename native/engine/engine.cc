#include "engine.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "generic_nodes.h"
#include "operators/level_product.h"
#include "sum_stage.h"

namespace lbq {
namespace {

constexpr int64_t kImages = 4;                      // per chunk: they share weights in the caches
constexpr int64_t kChunkValues = int64_t{1} << 24;  // of a node per chunk, at most

// CPU time of this thread: less affected by co-running jobs than wall time.
double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The carries before and after a chunk; `first` is the chunk's first image in them.
struct ChunkCarries {
  Carries* carries;  // null: start at zero, discard the last carries
  int64_t first;
};

struct Answers {
  int32_t* to;
  int64_t batch, first_image;  // of the whole run, and of this chunk in it
  int64_t first_timestep, timesteps;  // of this chunk, and of the whole run
  uint8_t* const* levels;      // see RunOptions
};

// From channels first to channels last with zero padding.
void load_input(const uint8_t* from, const Value& value, int64_t batch, int64_t first_image, const Chunk& chunk, uint8_t* to) {
  const int64_t pixels = value.shape.height * value.shape.width, channels = value.shape.channels;
  const int64_t timesteps = value.has_time ? chunk.timesteps : 1;
  std::memset(to, 0, timesteps * chunk.batch * pixels * value.stride);
  for (int64_t t = 0; t < timesteps; ++t)
    for (int64_t image = 0; image < chunk.batch; ++image, to += pixels * value.stride) {
      const uint8_t* planes = from + (t * batch + first_image + image) * channels * pixels;
      for (int64_t channel = 0; channel < channels; ++channel)
        for (int64_t pixel = 0; pixel < pixels; ++pixel)
          to[pixel * value.stride + channel] = planes[channel * pixels + pixel];
    }
}

void write_levels(const Answers& answers, const Chunk& chunk, const NodeValue& held, int32_t node) {
  uint8_t* to = answers.levels ? answers.levels[node] : nullptr;
  if (to == nullptr) return;
  const int64_t pixels = held.value.shape.height * held.value.shape.width, channels = held.value.shape.channels;
  for (int64_t t = 0; t < chunk.timesteps; ++t)
    for (int64_t image = 0; image < chunk.batch; ++image) {
      uint8_t* planes =
          to + ((answers.first_timestep + t) * answers.batch + answers.first_image + image) * channels * pixels;
      const int64_t from = (t * chunk.batch + image) * pixels * held.value.stride;
      for (int64_t pixel = 0; pixel < pixels; ++pixel)
        for (int64_t channel = 0; channel < channels; ++channel)
          planes[channel * pixels + pixel] = static_cast<uint8_t>(held.at(from + pixel * held.value.stride + channel));
    }
}

// The readout adds to the answers of earlier chunks. `first`: of its answers, for one sample at one instant.
void write_answers(const Node& node, int64_t first, const NodeValue& held, const Chunk& chunk, const Answers& answers) {
  const int64_t pixels = node.to.height * node.to.width, size = node.to.size();
  const bool adds = node.sums_over_time();
  int32_t* const output = answers.to + first * answers.batch * (adds ? 1 : answers.timesteps);
  for (int64_t t = 0; t < chunk.timesteps; ++t)
    for (int64_t image = 0; image < chunk.batch; ++image) {
      const int64_t row = answers.first_image + image;
      int32_t* to = output + (adds ? row : (answers.first_timestep + t) * answers.batch + row) * size;
      const int64_t from = ((held.value.has_time ? t * chunk.batch : 0) + image) * pixels * held.value.stride;
      for (int64_t channel = 0; channel < node.to.channels; ++channel)
        for (int64_t pixel = 0; pixel < pixels; ++pixel) {
          const int32_t current = static_cast<int32_t>(held.at(from + pixel * held.value.stride + channel));
          int32_t& answer = to[channel * pixels + pixel];
          answer = adds ? answer + current : current;
        }
    }
}

}  // namespace

struct Engine::Impl {
  const Network& network;
  const EngineKernels& kernels;
  const Choice choice;
  const Plan plan;
  int64_t largest;  // values of one instant of one image
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;

  Impl(const Network& network, const EngineKernels& kernels, Choice choice)
      : network(network), kernels(kernels), choice(choice), plan(network, kernels), largest(1) {
    for (const Value& value : plan.values)
      largest = std::max(largest, value.stride * value.shape.height * value.shape.width);
  }

  std::unique_ptr<Workspace> acquire(int threads) const {
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (auto& space : idle)
        if (space->pool.size() == threads) {
          std::swap(space, idle.back());
          std::unique_ptr<Workspace> found = std::move(idle.back());
          idle.pop_back();
          return found;
        }
    }
    return std::make_unique<Workspace>(threads);
  }
  void release(std::unique_ptr<Workspace> space) const {
    std::lock_guard<std::mutex> lock(mutex);
    idle.push_back(std::move(space));
  }

  void run_chunk(const uint8_t* inputs, const Chunk& chunk, Workspace& space, const Answers& answers, ChunkCarries state,
            std::vector<StageRecord>* records) const;
  void fire(const Stage& stage, const SumContext& context, ChunkCarries state, StageRecord* record) const;
};

void Engine::Impl::fire(const Stage& stage, const SumContext& context, ChunkCarries state, StageRecord* record) const {
  const Node& node = network.nodes[stage.node];
  const Value& value = plan.values[stage.node];
  const int64_t pixels = value.shape.height * value.shape.width;
  uint8_t* levels = reinterpret_cast<uint8_t*>(context.space.of(stage.node));
  int32_t* carry =
      state.carries ? state.carries->carries[stage.node].data() + state.first * pixels * value.stride : nullptr;
  run_sum(
      context, stage.sum,
      [&](const CurrentBlock& block, int64_t position, int64_t output) {
        const int64_t at = position * value.stride + output;
        const NeuronBlock neuron{stage.neuron.thresholds.data() + output,
                                 stage.neuron.reset_amount.data() + output,
                                 value.stride,
                                 node.max_level,
                                 node.multiplier,
                                 node.shift,
                                 node.reset,
                                 node.resets_after_decay,
                                 carry ? carry + at : nullptr,
                                 levels + at,
                                 context.chunk.batch * pixels * value.stride,
                                 value.stride};
        kernels.fire(block, neuron);
      },
      record);
}

void Engine::Impl::run_chunk(const uint8_t* inputs, const Chunk& chunk, Workspace& space, const Answers& answers,
                         ChunkCarries state, std::vector<StageRecord>* records) const {
  space.place.assign(plan.values.size(), -1);
  space.is_taken.assign(space.pages.size(), false);
  const auto bytes_of = [&](const Value& value) {
    return chunk.instants(value.has_time) * value.shape.height * value.shape.width * value.stride *
           (value.are_levels ? 1 : 4);
  };
  const Value& input = plan.value(kInput);
  load_input(inputs, input, answers.batch, answers.first_image, chunk,
             reinterpret_cast<uint8_t*>(space.take(kInput, bytes_of(input))));
  const SumContext context{plan, kernels, choice, space, chunk};
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    const Stage& stage = plan.stages[index];
    const Node& node = network.nodes[stage.node];
    const Value& value = plan.values[stage.node];
    StageRecord record;
    record.node = stage.node;
    const double begin = records ? thread_cpu_seconds() : 0;
    const auto input_of = [&](int32_t input) {
      const int32_t from = origin_of(network, input);
      return NodeValue{plan.value(from), space.of(from)};
    };
    if (stage.op == Stage::Op::kReadout) {
      write_answers(node, stage.first_answer, input_of(node.inputs[0]), chunk, answers);
      continue;
    }
    const NodeValue made{value, space.take(stage.node, bytes_of(value))};
    if (stage.op == Stage::Op::kFire) {
      fire(stage, context, state, &record);
      write_levels(answers, chunk, made, stage.node);
    } else if (stage.op == Stage::Op::kStore) {
      int32_t* to = reinterpret_cast<int32_t*>(made.data);
      const int64_t time_stride = chunk.batch * value.shape.height * value.shape.width * value.stride;
      const Chunk once{chunk.batch, value.has_time ? chunk.timesteps : 1};
      run_sum({plan, kernels, choice, space, once}, stage.sum,
              [&](const CurrentBlock& block, int64_t position, int64_t output) {
                kernels.store(block, to + position * value.stride + output, time_stride, value.stride);
              },
              &record);
    } else if (stage.op == Stage::Op::kProduct) {
      run_product(plan, kernels, stage, chunk, space);
    } else if (stage.op == Stage::Op::kPool) {
      pool(node, input_of(node.inputs[0]), made, chunk.instants(value.has_time));
    } else {
      std::vector<NodeValue> inputs;
      for (int32_t input : node.inputs) inputs.push_back(input_of(input));
      run_plain(node, inputs, made, chunk, space);
    }
    record.seconds = records ? thread_cpu_seconds() - begin : 0;
    if (records) records->push_back(record);
    for (size_t i = 0; i < plan.values.size(); ++i)
      if (space.place[i] >= 0 && plan.values[i].last_use <= static_cast<int64_t>(index))
        space.give_back(i + 1 == plan.values.size() ? kInput : static_cast<int32_t>(i));
  }
}

Engine::Engine(const Network& network, const EngineOptions& options) {
  const EngineKernels* kernels = engine_kernels(options.isa);
  if (kernels == nullptr) throw std::invalid_argument("lbq: no such instruction set here");
  impl_ = std::make_unique<Impl>(network, *kernels, options.choice);
}

Engine::~Engine() = default;
const char* Engine::isa() const { return impl_->kernels.isa; }

Carries Engine::at_rest(int64_t batch) const {
  if (batch < 0) throw std::invalid_argument("lbq: a batch of " + std::to_string(batch));
  if (batch > INT32_MAX) throw std::length_error("lbq: a batch of " + std::to_string(batch));
  Carries state{batch, std::vector<std::vector<int32_t>>(impl_->network.nodes.size())};
  for (const Stage& stage : impl_->plan.stages) {
    const Value& value = impl_->plan.values[stage.node];
    if (stage.op == Stage::Op::kFire)
      state.carries[stage.node].assign(batch * value.shape.height * value.shape.width * value.stride, 0);
  }
  return state;
}

void Engine::run(const uint8_t* inputs, int64_t batch, int32_t* answers, const RunOptions& options) const {
  const Network& network = impl_->network;
  const int64_t timesteps = options.timesteps > 0 ? options.timesteps : network.timesteps;
  if (batch < 0 || (options.state && options.state->batch != batch))
    throw std::invalid_argument("lbq: the state is of another batch");
  if (options.timesteps < 0 || timesteps > network.timesteps)
    throw std::invalid_argument("lbq: more timesteps than the network has");
  if (options.records && options.threads > 1) throw std::invalid_argument("lbq: stages are timed on one thread");
  const int64_t instants_per_chunk = std::max<int64_t>(1, kChunkValues / impl_->largest);
  const int64_t images = std::clamp<int64_t>(instants_per_chunk / timesteps, 1, kImages);
  const int64_t steps = std::min(timesteps, instants_per_chunk);
  const int64_t chunks = (batch + images - 1) / images;
  if (network.sums_over_time()) std::memset(answers, 0, batch * network.output_size() * 4);
  const int threads = static_cast<int>(std::min<int64_t>(chunks, std::max(options.threads, 1)));
  const bool share_chunks = threads > 1 && chunks >= options.threads;

  const auto run_all_timesteps = [&](int64_t index, Workspace& space) {
    const int64_t first = index * images, count = std::min(images, batch - first);
    Carries own;
    ChunkCarries state{options.state, first};
    if (options.state == nullptr && steps < timesteps) own = at_rest(count), state = {&own, 0};
    for (int64_t t = 0; t < timesteps; t += steps) {
      const int64_t skipped = network.takes_frames ? t * batch * network.input.size() : 0;
      impl_->run_chunk(inputs + skipped, {count, std::min(steps, timesteps - t)}, space,
                   {answers, batch, first, t, timesteps, options.levels}, state, options.records);
    }
  };
  if (!share_chunks) {
    auto space = impl_->acquire(std::max(options.threads, 1));
    for (int64_t index = 0; index < chunks; ++index) run_all_timesteps(index, *space);
    return impl_->release(std::move(space));
  }
  ThreadPool pool(options.threads);
  pool.parallel_for(chunks, [&](int64_t index, int) {
    auto space = impl_->acquire(1);
    run_all_timesteps(index, *space);
    impl_->release(std::move(space));
  });
}

}  // namespace lbq
