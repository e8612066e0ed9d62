// The scalar reference of all kernels.
#include <cstring>

#include "kernels.h"
#include "network.h"

namespace lbq {
namespace {

template <class Value>
Value at(const char* bytes, int64_t index) {
  Value value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

template <class Value>
void add(char* bytes, int64_t index, int64_t term) {
  const Value sum = static_cast<Value>(at<Value>(bytes, index) + term);
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof sum), &sum, sizeof sum);
}

int64_t offset(int64_t output, int64_t channel) { return 2 * output + channel; }

// The product of one list entry for one output.
int64_t product(PairMode mode, uint32_t levels, const char* row, int64_t output) {
  if (mode == PairMode::kWide)
    return int64_t{levels & 0xffff} * at<int16_t>(row, 2 * output) +
           int64_t{levels >> 16} * at<int16_t>(row, 2 * output + 1);
  return int64_t{levels & 0xff} * at<int8_t>(row, 2 * output) +
         int64_t{levels >> 8 & 0xff} * at<int8_t>(row, 2 * output + 1);
}

void pair_tile(PairMode mode, int64_t outputs, const PairTile& tile) {
  const Visit* visit = tile.visits;
  for (int64_t run = 0; run < tile.num_runs; ++run)
    for (const Visit* last = visit + tile.runs[run].count; visit < last; ++visit)
      for (int64_t entry = 0; entry < tile.runs[run].length; ++entry) {
        const char* row = tile.weights + tile.rows[visit->list + entry];
        const uint32_t levels = tile.levels[visit->list + entry];
        for (int64_t output = 0; output < outputs; ++output) {
          const int64_t term = product(mode, levels, row, output);
          if (mode == PairMode::kNarrowTo16) {
            add<int16_t>(tile.sums + visit->place, output, term);
          } else {
            add<int32_t>(tile.sums + visit->place, output, term);
          }
        }
      }
}

void dense_block(const DenseBlock& block) {
  if (block.overwrites) std::memset(block.sums, 0, 4 * block.blocks * block.positions * block.outputs);
  for (int64_t b = 0; b < block.blocks; ++b)
    for (int64_t position = 0; position < block.positions; ++position)
      for (int64_t tap = 0; tap < block.taps; ++tap) {
        const uint8_t* pixel = block.pixels[position] + block.taps_at[tap];
        for (int64_t channel = 0; channel < block.channels; ++channel)
          for (int64_t output = 0; output < block.outputs; ++output) {
            const int8_t* weights = block.panel_of(b, output) + tap * block.channels;  // of one output: its panel
            block.sums_of(b)[position * block.outputs + output] += pixel[channel] * weights[channel];
          }
      }
}

void depthwise_block(const DepthwiseBlock& block) {
  for (int64_t b = 0; b < block.blocks; ++b)
    for (int64_t position = 0; position < block.rows * block.columns; ++position) {
      const int64_t row = position / block.columns, column = position % block.columns;
      const uint8_t* corner = block.levels + row * block.row_step + column * block.column_step + b * block.outputs;
      int32_t* sums = block.sums + b * block.block_size + position * block.outputs;
      for (int64_t tap = 0; tap < block.taps; ++tap) {
        const int16_t* weights = block.weights + 2 * (tap / 2 * block.stride + b * block.outputs) + tap % 2;
        for (int64_t output = 0; output < block.outputs; ++output)
          sums[output] += corner[block.taps_at[tap] + output] * weights[2 * output];
      }
    }
}

int32_t current(const CurrentBlock& block, int64_t t, int64_t position, int64_t output) {
  int64_t sum = 0;
  if (block.sums) {
    const char* sums = block.sums + t * block.sum_stride;
    const int64_t index = position * block.outputs + output;
    sum = block.are_int16 ? at<int16_t>(sums, index) : at<int32_t>(sums, index);
  }
  if (block.bias) sum += block.bias[position * block.bias_stride + output];
  for (const Extra* extra = block.extras; extra < block.extras + block.num_extras; ++extra) {
    const int64_t index = t * extra->time_stride + position * extra->position_stride + output;
    const int64_t term = extra->currents ? extra->currents[index] : extra->levels[index];
    sum += term * (extra->weight ? extra->weight[output] : 1);
  }
  return static_cast<int32_t>(sum);
}

void fire(const CurrentBlock& block, const NeuronBlock& neuron) {
  const lbq_reset_mode reset = neuron.reset;
  for (int64_t position = 0; position < block.positions; ++position)
    for (int64_t output = 0; output < block.outputs; ++output) {
      const int64_t place = position * neuron.position_stride + output;
      const int32_t reset_amount = neuron.reset_amount[output];
      int32_t carry = neuron.carry ? neuron.carry[place] : 0;
      for (int64_t t = 0; t < block.timesteps; ++t) {
        int32_t membrane = ((carry * neuron.multiplier) >> neuron.shift) + current(block, t, position, output);
        if (neuron.resets_after_decay && carry >= neuron.thresholds[output]) membrane -= reset_amount;
        int32_t level = 0;
        while (level < neuron.max_level && membrane >= neuron.thresholds[level * neuron.channels + output]) ++level;
        neuron.levels[t * neuron.time_stride + place] = static_cast<uint8_t>(level);
        carry = membrane;
        if (neuron.resets_after_decay || level == 0) continue;
        if (reset == LBQ_RESET_EVENT) carry -= reset_amount;
        if (reset == LBQ_RESET_LEVEL) carry -= reset_amount * level;
        if (reset == LBQ_RESET_ZERO) carry = 0;
      }
      if (neuron.carry) neuron.carry[place] = carry;
    }
}

void store(const CurrentBlock& block, int32_t* to, int64_t time_stride, int64_t position_stride) {
  for (int64_t t = 0; t < block.timesteps; ++t)
    for (int64_t position = 0; position < block.positions; ++position)
      for (int64_t output = 0; output < block.outputs; ++output)
        to[t * time_stride + position * position_stride + output] = current(block, t, position, output);
}

}  // namespace

// Without branches: the entry of a pair of zeros is overwritten.
int64_t list_pairs_scalar(const uint8_t* pixel, int64_t count, bool is_wide, int64_t row_bytes, uint32_t* levels,
                          uint16_t* rows) {
  int64_t length = 0;
  for (int64_t pair = 0; pair < count / 2; ++pair) {
    const uint32_t a = pixel[2 * pair], b = pixel[2 * pair + 1];
    levels[length] = is_wide ? a | b << 16 : (a | b << 8) * 0x10001u;  // as a row multiplies it
    rows[length] = static_cast<uint16_t>(pair * row_bytes);
    length += (a | b) != 0;
  }
  return length;
}

int64_t count_pairs_scalar(const uint8_t* bytes, int64_t count) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < count; i += 2) pairs += (bytes[i] | bytes[i + 1]) != 0;
  return pairs;
}

namespace scalar {
extern const KernelCosts kCosts;  // cost_model.cc
extern const EngineKernels kEngine;
const EngineKernels kEngine = {"scalar",   255, offset, offset,   pair_tile, list_pairs_scalar, count_pairs_scalar,
                               dense_block, 1,  false,  &kCosts, offset, depthwise_block, fire, store};
}  // namespace scalar

}  // namespace lbq
