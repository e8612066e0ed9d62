#include "interpreter.h"

#include <algorithm>

namespace lbq {
namespace {

using Values = std::vector<int64_t>;

// Outputs along an axis whose window sees the input at tap `tap`: first..last - 1.
struct Range {
  int64_t first, last;
};
Range seen(const Window& window, int axis, int64_t tap, int64_t from, int64_t to) {
  const int64_t stride = window.stride[axis], start = tap * window.dilation[axis] - window.padding[axis];
  const int64_t first = start >= 0 ? 0 : (-start + stride - 1) / stride;
  const int64_t last = from - start <= 0 ? 0 : (from - start + stride - 1) / stride;
  return {first, std::min(last, to)};
}

// Call use(output, input) for every place that sees the input of one channel through one tap.
template <class Use>
void for_places(const Node& node, int64_t row, int64_t column, Use use) {
  const Window& window = node.window;
  const Range rows = seen(window, 0, row, node.from.height, node.to.height);
  const Range columns = seen(window, 1, column, node.from.width, node.to.width);
  const int64_t stride = window.stride[1], count = columns.last - columns.first;
  const int64_t left = columns.first * stride + column * window.dilation[1] - window.padding[1];
  for (int64_t y = rows.first; y < rows.last; ++y) {
    const int64_t above = y * window.stride[0] + row * window.dilation[0] - window.padding[0];
    const int64_t out = y * node.to.width + columns.first, in = above * node.from.width + left;
    for (int64_t x = 0; x < count; ++x) use(out + x, in + x * stride);
  }
}

void add_bias(const Node& node, Values& currents) {
  if (node.bias.count == 0) return;
  const int64_t places = node.to.height * node.to.width;
  const bool is_map = node.bias.count == node.to.size();
  for (int64_t i = 0; i < node.to.size(); ++i)
    currents[i] += is_map ? integer_at(node.bias, i) : of_channel(node.bias, i / places);
}

template <class Weight>
void convolve(const Node& node, const Weight* weight, const Values& input, Values& currents) {
  const int64_t places_in = node.from.height * node.from.width, places_out = node.to.height * node.to.width;
  const int64_t outputs = node.to.channels, channels = node.from.channels / node.groups;
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t group = o / (outputs / node.groups);
    int64_t* to = currents.data() + o * places_out;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t* from = input.data() + (group * channels + c) * places_in;
      for (int64_t row = 0; row < node.window.kernel[0]; ++row)
        for (int64_t column = 0; column < node.window.kernel[1]; ++column) {
          const int64_t w = *weight++;
          if (w != 0)
            for_places(node, row, column, [=](int64_t out, int64_t in) { to[out] += w * from[in]; });
        }
    }
  }
}

void synapse(const Node& node, const Values& input, Values& currents) {
  std::fill(currents.begin(), currents.end(), 0);
  with_type(node.weight, [&](const auto* weight) {
    if (!node.is_linear) return convolve(node, weight, input, currents);
    for (int64_t& current : currents)
      for (const int64_t value : input) current += *weight++ * value;
  });
  add_bias(node, currents);
}

void shortcut(const Node& node, const Values& input, Values& currents) {
  const int64_t places = node.to.height * node.to.width;
  for (int64_t i = 0; i < node.to.size(); ++i) currents[i] = of_channel(node.weight, i / places) * input[i];
  add_bias(node, currents);
}

void pool(const Node& node, const Values& input, Values& pooled) {
  const int64_t places_in = node.from.height * node.from.width, places_out = node.to.height * node.to.width;
  const bool is_max = node.pools_max;
  std::fill(pooled.begin(), pooled.end(), is_max ? INT64_MIN : 0);
  for (int64_t c = 0; c < node.to.channels; ++c) {
    const int64_t* from = input.data() + c * places_in;
    int64_t* to = pooled.data() + c * places_out;
    for (int64_t row = 0; row < node.window.kernel[0]; ++row)
      for (int64_t column = 0; column < node.window.kernel[1]; ++column)
        for_places(node, row, column, [=](int64_t out, int64_t in) {
          to[out] = is_max ? std::max(to[out], from[in]) : to[out] + from[in];
        });
  }
}

void neuron(const Node& node, const Values& currents, int64_t* carry, Values& levels) {
  const int64_t places = node.to.height * node.to.width;
  for (int64_t i = 0; i < node.to.size(); ++i) {
    const int64_t channel = i / places, reset_amount = of_channel(node.reset_amount, channel);
    int64_t membrane = (carry[i] * node.multiplier >> node.shift) + currents[i];
    if (node.resets_after_decay && carry[i] >= threshold(node, 0, channel)) membrane -= reset_amount;
    int64_t level = 0;
    while (level < node.max_level && membrane >= threshold(node, level, channel)) ++level;
    levels[i] = level;
    carry[i] = membrane;
    if (node.resets_after_decay || level == 0) continue;
    if (node.reset == Reset::kZero) carry[i] = 0;
    if (node.reset == Reset::kEvent) carry[i] -= reset_amount;
    if (node.reset == Reset::kLevel) carry[i] -= reset_amount * level;
  }
}

// One sample at one instant, through all nodes.
class Instant {
 public:
  explicit Instant(const Network& network) : network_(network), input_(network.input.size()) {
    values_.reserve(network.nodes.size());
    for (const Node& node : network.nodes) values_.emplace_back(node.to.size());
  }

  void see(const uint8_t* sample) { std::copy(sample, sample + input_.size(), input_.begin()); }

  // What the readout reads. Still nodes need to run once per image.
  const Values& advance(bool is_new_image, State& state, int64_t sample) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const Node& node = network_.nodes[i];
      if (!node.has_time && !is_new_image) continue;
      const Values& first = value(node.inputs[0]);
      switch (node.kind) {
        case Kind::kSynapse: synapse(node, first, values_[i]); break;
        case Kind::kShortcut: shortcut(node, first, values_[i]); break;
        case Kind::kPool: pool(node, first, values_[i]); break;
        case Kind::kNeuron:
          neuron(node, first, state.carries[i].data() + sample * node.to.size(), values_[i]);
          break;
        case Kind::kMerge: merge(node, values_[i]); break;
        case Kind::kRepeat:
        case Kind::kReadout: values_[i] = first;
      }
    }
    return values_.back();
  }

 private:
  const Values& value(int32_t input) const { return input == kInput ? input_ : values_[input]; }

  void merge(const Node& node, Values& sum) const {
    sum = value(node.inputs[0]);
    for (size_t k = 1; k < node.inputs.size(); ++k)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += value(node.inputs[k])[i];
  }

  const Network& network_;
  Values input_;
  std::vector<Values> values_;
};

void run_sequence(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits) {
  const Node& readout = network.nodes.back();
  const int64_t size_in = network.input.size(), size_out = readout.to.size();
  Instant instant(network);
  State state(network, 1);
  if (readout.sums_over_time) std::fill(logits, logits + batch * size_out, 0);
  for (int64_t b = 0; b < batch; ++b) {
    state.reset();
    for (int64_t t = 0; t < network.timesteps; ++t) {
      const bool is_new_image = t == 0 || network.takes_frames;
      if (is_new_image) instant.see(inputs + (t * batch + b) * size_in);
      const Values& given = instant.advance(is_new_image, state, 0);
      int64_t* to = logits + (readout.sums_over_time ? b : t * batch + b) * size_out;
      for (int64_t i = 0; i < size_out; ++i) to[i] = readout.sums_over_time ? to[i] + given[i] : given[i];
    }
  }
}

void run_timestep(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits,
                  State& state) {
  const Node& readout = network.nodes.back();
  const int64_t size_out = readout.to.size();
  Instant instant(network);
  for (int64_t b = 0; b < batch; ++b) {
    instant.see(inputs + b * network.input.size());
    const Values& given = instant.advance(true, state, b);
    for (int64_t i = 0; i < size_out; ++i) {
      int64_t& sum = state.sums[b * size_out + i];
      sum = readout.sums_over_time ? sum + given[i] : given[i];
      logits[b * size_out + i] = sum;
    }
  }
  ++state.timestep;
}

}  // namespace

State::State(const Network& network, int64_t batch) : sums(batch * network.nodes.back().to.size()) {
  carries.reserve(network.nodes.size());
  for (const Node& node : network.nodes)
    carries.emplace_back(node.kind == Kind::kNeuron ? batch * node.to.size() : 0);
}

void State::reset() {
  timestep = 0;
  for (auto& carry : carries) std::fill(carry.begin(), carry.end(), 0);
  std::fill(sums.begin(), sums.end(), 0);
}

void run(const Network& network, const uint8_t* inputs, int64_t batch, int64_t* logits, State* state) {
  if (state == nullptr) return run_sequence(network, inputs, batch, logits);
  run_timestep(network, inputs, batch, logits, *state);
}

}  // namespace lbq
