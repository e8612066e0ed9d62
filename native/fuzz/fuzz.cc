// Any bytes as a model: refused with a code, or run. Build it with LBQ_SANITIZE=address,undefined.
//
//   lbq_fuzz --seconds 120 --seed 1 [--count N] [--first K]
//
// Mutant K of a seed is always the same one: whatever goes wrong is said with its number, and
// `--first K --count 1` does it again.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>

#include "mutate.h"
#include "reader/interpreter.h"
#include "reader/reader.h"
#include "reader/rules.h"
#include "reader/runner.h"
#include "test/counted_memory.h"
#include "test/editable_bundle.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif

namespace {

constexpr double kSeconds = 1;          // that one mutant may take
constexpr int64_t kSlack = 16 << 20;    // bytes that reading may take beyond twice the file
constexpr int64_t kRunnable = 1 << 17;  // values of all nodes and timesteps that are run here
constexpr int64_t kMultiplications = 1 << 24;

uint64_t seed = 1, number = 0;

void say_where() {
  std::fprintf(stderr,
               "\nmutant %" PRIu64 " of seed %" PRIu64 ": lbq_fuzz --seed %" PRIu64 " --first %" PRIu64 " --count 1\n",
               number, seed, seed, number);
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  say_where();
  std::exit(1);
}

bool is_small(const lbq::Network& network) {
  int64_t values = 0, multiplications = 0;
  for (const lbq::Node& node : network.nodes) {
    values += node.to.size() * static_cast<int64_t>(node.inputs.size());
    const int64_t places = node.to.height * node.to.width;
    multiplications += node.kind == lbq::Kind::kPool
                           ? node.to.size() * node.window.kernel[0] * node.window.kernel[1]
                           : places * node.weight.count;
    if (node.kind == lbq::Kind::kMatmul) multiplications += node.to.size() * node.from.width;
  }
  return (values + network.input.size()) * network.timesteps <= kRunnable &&
         multiplications * network.timesteps <= kMultiplications;
}

// Every output of a timestep as in the whole sequence, and within the bound that was proven.
void compare_outputs(const lbq::Network& network, int64_t t, int64_t batch, const std::vector<int64_t>& step,
                     const std::vector<int64_t>& whole) {
  const bool gives_sum = network.sums_over_time();
  auto now = step.begin();
  auto all = whole.begin();
  for (const lbq::Node& node : network.nodes) {
    if (!node.is_output()) continue;
    const int64_t size = batch * node.to.size();
    if ((!gives_sum || t + 1 == network.timesteps) && !std::equal(now, now + size, all + (gives_sum ? 0 : t * size)))
      fail("streaming gives other integers");
    const auto leaves = [&](int64_t logit) { return logit < node.bound.low || logit > node.bound.high; };
    if (std::any_of(now, now + size, leaves)) fail("a logit leaves its bound");
    now += size;
    all += size * (gives_sum ? 1 : network.timesteps);
  }
}

// Run it whole and step by step, plainly and by the engine: the same integers, within the bound that was proven.
void run_all(const lbq::Network& network, Rng& rng) {
  const int64_t batch = 2, size = network.output_size(), instant = batch * network.input.size();
  const bool gives_sum = network.sums_over_time();
  std::vector<uint8_t> inputs(instant * (network.takes_frames ? network.timesteps : 1));
  const bool is_extreme = rng() % 2;
  for (uint8_t& input : inputs) input = is_extreme ? (rng() % 2 ? 255 : 0) : static_cast<uint8_t>(rng());
  std::vector<int64_t> whole(batch * size * (gives_sum ? 1 : network.timesteps)), step(batch * size);
  lbq::run(network, inputs.data(), batch, whole.data());
  const lbq::Runner runner(network, nullptr, 1);
  std::vector<int64_t> fast(whole.size()), fast_step(step.size());
  runner.run(inputs.data(), batch, fast.data());
  if (fast != whole) fail(std::string(runner.isa()) + " gives other integers");
  lbq::Progress progress = runner.at_rest(batch);
  lbq::State state(network, batch);
  for (int64_t t = 0; t < network.timesteps; ++t) {
    const uint8_t* seen = inputs.data() + (network.takes_frames ? t * instant : 0);
    lbq::run(network, seen, batch, step.data(), &state);
    runner.step(seen, batch, fast_step.data(), progress);
    if (fast_step != step) fail(std::string(runner.isa()) + " streams other integers");
    compare_outputs(network, t, batch, step, whole);
  }
}

// How it ended, in a word.
std::string attempt(const std::string& file, Rng& rng) {
  lbq::Model model;
  const int64_t before = counted::peak_bytes = counted::live_bytes;
  const auto check_memory = [&] {
    const int64_t taken = counted::peak_bytes - before;
    if (taken > 2 * static_cast<int64_t>(file.size()) + kSlack)
      fail("reading takes " + std::to_string(taken) + " bytes for " + std::to_string(file.size()));
  };
  try {
    model = lbq::read_model(lbq::copy_bundle(file.data(), file.size()));
  } catch (const lbq::ReadError& error) {
    check_memory();
    return lbq_model_status_name(error.status);
  }
  check_memory();
  if (!is_small(model.network)) return "sound, too large to run here";
  run_all(model.network, rng);
  return "ran";
}

struct Limits {
  double seconds = 10;
  uint64_t first = 0, count = UINT64_MAX;
};

Limits read_options(int argc, char** argv) {
  Limits limits;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") limits.seconds = std::atof(argv[i + 1]);
    if (flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--first") limits.first = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--count") limits.count = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return limits;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(say_where);
#endif
  const Limits limits = read_options(argc, argv);
  std::vector<std::string> files;
  for (const char* name :
       {"tiny-event", "tiny-level", "tiny-zero", "tiny-none", "tiny-late", "frames", "features", "attention", "unet",
        "real"})
    files.push_back(read_whole(std::string(LBQ_CORPUS) + "/" + name + ".lbq"));
  std::map<std::string, uint64_t> outcomes;
  double slowest = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  uint64_t done = 0;
  for (; done < limits.count && elapsed() < limits.seconds; ++done) {
    number = limits.first + done;
    Rng rng(seed * 0x9e3779b97f4a7c15u + number);
    const std::string file = mutate(files, rng);
    const double before = cpu_seconds();
    ++outcomes[attempt(file, rng)];
    const double took = cpu_seconds() - before;
    slowest = std::max(slowest, took);
    if (took > kSeconds) fail("it takes " + std::to_string(took) + " s");
#if defined(__SANITIZE_ADDRESS__)
    if (done % 10000 == 0 && __lsan_do_recoverable_leak_check()) fail("it leaks");
#endif
  }
  for (const auto& [outcome, count] : outcomes)
    std::printf("%10" PRIu64 " %s\n", count, outcome.c_str());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%" PRIu64 " mutants of seed %" PRIu64 " in %.0f s, the slowest %.3f s, peak memory of the process %ld MB\n",
              done, seed, elapsed(), slowest, usage.ru_maxrss / 1024);
  return 0;
}
