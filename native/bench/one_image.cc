// One image through a fixed small network, for counting instructions with callgrind. It has so few channels that tiles
// do not depend on the cache sizes of the machine.
#include <cstdio>

#include "engine.h"
#include "fixed_network.h"

namespace {

lbq::Network& build(FixedNetwork& builder) {
  builder.network.timesteps = 2;
  builder.network.input = {3, 16, 16};
  const auto add_synapse = [&](int32_t input, int64_t outputs, int64_t kernel, int64_t stride, int64_t max_input = 5) {
    return builder.add_synapse(input, outputs, kernel, stride, max_input, 10);
  };
  lbq::Node repeat = builder.start(lbq::Kind::kRepeat, add_synapse(lbq::kInput, 32, 3, 1, 255));
  repeat.repeats = builder.network.timesteps;
  const int32_t first = builder.add_neuron(builder.add(repeat), 6000);
  int32_t last = builder.add_neuron(add_synapse(first, 32, 3, 1), 60);
  lbq::Node merge = builder.start(lbq::Kind::kMerge, add_synapse(last, 32, 3, 1));
  merge.inputs.push_back(builder.add_shortcut(first, 20, 5));
  last = builder.add_neuron(builder.add(merge), 40);
  last = builder.add_neuron(add_synapse(last, 64, 3, 2), 10);
  last = builder.add_neuron(add_synapse(last, 64, 3, 1), 50);
  builder.add_readout(add_synapse(last, 10, 1, 1));
  return builder.network;
}

}  // namespace

extern "C" __attribute__((noinline)) void run_one_image(const lbq::Engine* engine, const uint8_t* image,
                                                        int32_t* answers, const lbq::RunOptions* options) {
  engine->run(image, 1, answers, *options);
}

int main() {
  FixedNetwork builder;
  const lbq::Network& network = build(builder);
  const lbq::Engine engine(network);
  std::vector<uint8_t> image(network.input.size());
  for (uint8_t& pixel : image) pixel = static_cast<uint8_t>(draw());
  std::vector<int32_t> answers(network.nodes.back().to.size());
  std::vector<lbq::StageRecord> records;
  lbq::RunOptions options;
  options.records = &records;
  engine.run(image.data(), 1, answers.data(), options);  // allocates the workspace
  options.records = nullptr;
  run_one_image(&engine, image.data(), answers.data(), &options);
  for (const lbq::StageRecord& record : records)
    std::printf("node %d: %.0f %% of pairs, %s\n", record.node, 100 * record.pair_density,
                record.is_dense ? "dense" : "events");
  int64_t sum = 0;
  for (size_t i = 0; i < answers.size(); ++i) sum += static_cast<int64_t>(i % 7 + 1) * answers[i];
  std::printf("%s: checksum of the logits %lld\n", engine.isa(), static_cast<long long>(sum));
  return 0;
}
