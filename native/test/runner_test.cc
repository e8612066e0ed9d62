// The engine against the interpreter on random networks: whole, one timestep at a time, on all instruction sets;
// and what is not worth packing is left to the interpreter.
#include "reader/runner.h"

#include "engine/check_network.h"
#include "lbq_model.h"
#include "random_network.h"
#include "reader/reader.h"
#include "reader/rules.h"
#include "reader_tester.h"

namespace {

constexpr int kCases = 60;
constexpr int64_t kMostProducts = 500000;

// A network that the reader would let through, with the bounds that it proves; false if there is none.
bool becomes_sound(Case& c) {
  if (c.products() > kMostProducts) return false;
  try {
    const std::vector<lbq::Bound> bounds = lbq::prove(c.network);
    for (size_t i = 0; i < bounds.size(); ++i) c.network.nodes[i].bound = bounds[i];
    return true;
  } catch (const lbq::ReadError&) {
    return false;
  }
}

Longs whole(const lbq::Runner& runner, const Case& c) {
  Longs logits(c.batch * c.network.output_size() * (c.network.sums_over_time() ? 1 : c.network.timesteps));
  runner.run(c.inputs.data(), c.batch, logits.data());
  return logits;
}

// What every timestep answers, one behind the other, in the second life of a stream.
Longs streamed(const lbq::Runner& runner, const Case& c) {
  Longs all, logits(c.batch * c.network.output_size());
  lbq::Progress progress = runner.at_rest(c.batch);
  for (int life = 0; life < 2; ++life, all.clear(), progress.reset())
    for (int64_t t = 0; t < c.network.timesteps; ++t) {
      const int64_t first = c.network.takes_frames ? t * c.batch * c.network.input.size() : 0;
      runner.step(c.inputs.data() + first, c.batch, logits.data(), progress);
      all.insert(all.end(), logits.begin(), logits.end());
      if (life == 1 && t + 1 == c.network.timesteps) return all;
    }
  return all;
}

// As many channels as groups: small in a file, and their square when packed.
void test_room(Report& report) {
  Case c;
  const int64_t channels = 1 << 16;
  c.network = {};
  c.network.input = {channels, 1, 1};
  c.network.takes_frames = true;
  Node node = c.start(Kind::kSynapse, lbq::kInput);
  node.groups = channels;
  node.max_input = 255;
  node.weight = c.keep(Longs(channels, 1), 1, {channels, 1, 1, 1});
  node.bound = {0, 255, 16};
  c.add(c.start(Kind::kReadout, c.add(node)));
  report(!lbq::fits_packed(c.network), "too large to be packed");
  const lbq::Runner runner(c.network, nullptr, 1);
  report(std::string(runner.isa()) == lbq::kInterpreter, "it is left to the interpreter");
  for (const char* isa : {"scalar", "no-such-set"}) try {
      lbq::Runner(c.network, isa, 1);
      report(false, "an instruction set cannot be forced upon it");
    } catch (const lbq::ReadError& error) {
      report(error.status == LBQ_MODEL_BAD_ARGUMENT, "an instruction set cannot be forced upon it");
    }
}

}  // namespace

void test_runner(Report& report) {
  test_room(report);
  for (int index = 0; index < kCases;) {
    Case c;
    if (!becomes_sound(c)) continue;
    const lbq::Runner reference(c.network, lbq::kInterpreter, 1);
    const Longs expected = whole(reference, c), expected_stream = streamed(reference, c);
    for (const char* isa : kIsas)
      for (int threads : {1, 3}) {
        std::unique_ptr<lbq::Runner> runner;
        try {
          runner = std::make_unique<lbq::Runner>(c.network, isa, threads);
        } catch (const lbq::ReadError&) {
          continue;  // not on this machine
        }
        const std::string name = std::string("runner, ") + isa + ", case " + std::to_string(index);
        report(whole(*runner, c) == expected, name + " differs");
        report(streamed(*runner, c) == expected_stream, name + " streams differently");
      }
    ++index;
  }
}
