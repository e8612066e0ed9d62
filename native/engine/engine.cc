#include "engine.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "operators.h"
#include "stage.h"

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

// From channels first to channels last with zero padding.
void load_input(const uint8_t* from, const Value& value, const Answers& answers, const Chunk& chunk, uint8_t* to) {
  const int64_t pixels = value.shape.height * value.shape.width, channels = value.shape.channels;
  const int64_t timesteps = value.has_time ? chunk.timesteps : 1;
  std::memset(to, 0, timesteps * chunk.batch * value.instant_size());
  for (int64_t t = 0; t < timesteps; ++t)
    for (int64_t image = 0; image < chunk.batch; ++image, to += value.instant_size()) {
      const uint8_t* planes = from + (t * answers.batch + answers.first_image + image) * channels * pixels;
      for (int64_t channel = 0; channel < channels; ++channel)
        for (int64_t pixel = 0; pixel < pixels; ++pixel)
          to[pixel * value.stride + channel] = planes[channel * pixels + pixel];
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
    for (const Value& value : plan.values) largest = std::max(largest, value.instant_size());
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

  void run_chunk(const uint8_t* inputs, const ChunkContext& context, std::vector<StageRecord>* records) const;
};

void Engine::Impl::run_chunk(const uint8_t* inputs, const ChunkContext& context, std::vector<StageRecord>* records) const {
  Workspace& space = context.space;
  space.place.assign(plan.values.size(), -1);
  space.is_taken.assign(space.pages.size(), false);
  const auto take = [&](int32_t node) {
    const Value& value = plan.value(node);
    return space.take(node, context.chunk.instants(value.has_time) * value.instant_size() * value.bytes());
  };
  load_input(inputs, plan.value(kInput), context.answers, context.chunk, reinterpret_cast<uint8_t*>(take(kInput)));
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    const Stage& stage = plan.stages[index];
    const bool is_output = network.nodes[stage.node].is_output();
    StageRecord record;
    record.node = stage.node;
    const double begin = records ? thread_cpu_seconds() : 0;
    if (!is_output) take(stage.node);
    stage.execute(context, stage, record);
    record.seconds = records ? thread_cpu_seconds() - begin : 0;
    if (records && !is_output) records->push_back(record);
    for (int32_t node : stage.reads)
      if (plan.value(node).last_use == index) space.give_back(node);
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
  for (size_t i = 0; i < state.carries.size(); ++i)
    if (operator_of(impl_->network.nodes[i].kind).step)
      state.carries[i].assign(batch * impl_->plan.values[i].instant_size(), 0);
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
      const Answers written{answers, batch, first, t, timesteps, options.levels};
      const Chunk chunk{count, std::min(steps, timesteps - t)};
      impl_->run_chunk(inputs + skipped, {network, impl_->plan, impl_->kernels, impl_->choice, space, chunk, written, state},
                       options.records);
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
