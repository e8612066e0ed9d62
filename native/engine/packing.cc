// Packs the weights of a synapse in the order in which its kernels read them.
#include <algorithm>
#include <cstring>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

#include "plan.h"

namespace lbq {

namespace {

constexpr int64_t kPage = 4096, kHugePage = int64_t{1} << 21;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Weight of an output, a channel of the whole input and a tap; zero outside of the output's group.
struct Weights {
  const Node& node;
  int64_t inputs, outputs, taps;

  explicit Weights(const Node& node)
      : node(node),
        inputs(node.from.channels / node.groups),
        outputs(node.to.channels / node.groups),
        taps(node.weight.count / (node.to.channels * (node.from.channels / node.groups))) {}
  int64_t operator()(int64_t output, int64_t channel, int64_t tap) const {
    if (output >= node.to.channels || channel / inputs != output / outputs || channel >= node.from.channels) return 0;
    return integer_at(node.weight, (output * inputs + channel % inputs) * taps + tap);
  }
};

// Whether the sums of every tile and output fit 16 bits for all levels.
bool tiles_fit_int16(const Weights& weights, int64_t max_input, int64_t block_channels) {
  const Node& node = weights.node;
  for (int64_t output = 0; output < node.to.channels; ++output)
    for (int64_t tap = 0; tap < weights.taps; ++tap)
      for (int64_t first = 0; first < node.from.channels; first += block_channels) {
        int64_t low = 0, high = 0;
        const int64_t last = std::min(first + block_channels, node.from.channels);
        for (int64_t channel = first; channel < last; ++channel) {
          const int64_t most = max_input * weights(output, channel, tap);
          (most < 0 ? low : high) += most;
        }
        if (low < INT16_MIN || high > INT16_MAX) return false;
      }
  return true;
}

// The number of consecutive quads, in the order of the dense weights, whose products can be added up in 16 bits for all
// levels. The products of channels 0 and 1 of each quad are added separately from those of channels 2 and 3.
int64_t quads_in_int16(const Weights& weights, int64_t max_input, int64_t channels) {
  const int64_t quads = weights.taps * channels / 4;
  int64_t most = quads;
  std::vector<int64_t> low(quads), high(quads);
  for (int64_t output = 0; output < weights.node.to.channels; ++output)
    for (int64_t half = 0; half < 4; half += 2) {
      int64_t below = 0, above = 0, first = 0;  // of the quads from `first` on
      for (int64_t quad = 0; quad < quads; ++quad) {
        const int64_t tap = 4 * quad / channels, channel = 4 * quad % channels + half;
        low[quad] = high[quad] = 0;
        for (int64_t i = 0; i < 2; ++i) {
          const int64_t product = max_input * weights(output, channel + i, tap);
          (product < 0 ? low : high)[quad] += product;
        }
        below += low[quad];
        above += high[quad];
        for (; below < INT16_MIN || above > INT16_MAX; ++first) {
          most = std::min(most, quad - first);
          below -= low[first];
          above -= high[first];
        }
      }
    }
  return most;
}

// The L1 bytes of a tile, beside sums and lists.
int64_t bytes_of_tiles() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const long cache = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  return cache >= 48 * 1024 ? 32 * 1024 : 16 * 1024;
#else
  return 16 * 1024;
#endif
}

bool fit_int8(const Integers& weight) {
  for (int64_t i = 0; i < weight.count; ++i)
    if (integer_at(weight, i) < INT8_MIN || integer_at(weight, i) > INT8_MAX) return false;
  return true;
}

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t bytes) : size_(bytes) {
  const int64_t page = bytes < kHugePage / 4 ? kPage : kHugePage;
  const int64_t whole = round_up(bytes + kPage, page);  // vector loads may read beyond the end
  const std::align_val_t alignment{static_cast<size_t>(page)};
  bytes_ = {static_cast<char*>(::operator new(whole, alignment)), Free{alignment}};
#if defined(MADV_HUGEPAGE)
  if (page == kHugePage) madvise(data(), whole, MADV_HUGEPAGE);  // fewer TLB misses
#endif
}

int64_t outputs_per_block(int64_t channels) {
  int64_t best = 128, least = INT64_MAX;
  for (int64_t outputs : {128, 64, 32}) {
    const int64_t cost = round_up(channels, outputs) / outputs * (outputs + 32);  // a visit costs as 32 outputs
    if (cost < least) best = outputs, least = cost;
  }
  return best;
}

int64_t channel_stride(int64_t channels) { return round_up(channels, outputs_per_block(channels)); }

PackedSynapse::PackedSynapse(const Node& node, const EngineKernels& kernels)
    : node_input(node.inputs[0]),
      from(node.from),
      to(node.to),
      window(window_of(node)),
      out_stride(channel_stride(node.to.channels)),
      dense_channels(round_up(node.from.channels, 4)),
      outputs(outputs_per_block(node.to.channels)),
      out_blocks(out_stride / outputs) {
  find_outputs(window);
  pack(node, kernels);
}

void PackedSynapse::find_outputs(const Window& window) {
  rows = window.kernel[0];
  columns = window.kernel[1];
  taps = rows * columns;
  const auto follow = [&window](int axis, int64_t taken, int64_t size, int64_t made, std::vector<int32_t>& of,
                                std::vector<int32_t>& seen) {
    of.assign(taken * size, -1);
    seen.assign(taken * made, -1);
    for (int64_t tap = 0; tap < taken; ++tap)
      for (int64_t output = 0; output < made; ++output) {
        const int64_t pixel = output * window.stride[axis] - window.padding[axis] + tap * window.dilation[axis];
        if (pixel < 0 || pixel >= size) continue;
        of[tap * size + pixel] = static_cast<int32_t>(output);
        seen[tap * made + output] = static_cast<int32_t>(pixel);
      }
  };
  follow(0, rows, from.height, to.height, row_of, row_seen);
  follow(1, columns, from.width, to.width, column_of, column_seen);
  const auto num_seen = [](const std::vector<int32_t>& seen) {
    return std::count_if(seen.begin(), seen.end(), [](int32_t pixel) { return pixel >= 0; });
  };
  encounters = num_seen(row_seen) * num_seen(column_seen);
  const auto num_distinct = [&](std::vector<int32_t> seen) {
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    return num_seen(seen);
  };
  pixels_seen = num_distinct(row_seen) * num_distinct(column_seen);
}

void PackedSynapse::pack(const Node& node, const EngineKernels& kernels) {
  const Weights weights(node);
  if (node.groups > 1 && node.groups == from.channels && node.groups == to.channels) {
    is_wide = true;
    depthwise.assign((taps + 1) / 2 * out_stride * 2, 0);
    for (int64_t channel = 0; channel < to.channels; ++channel)
      for (int64_t tap = 0; tap < taps; ++tap)
        depthwise[tap / 2 * out_stride * 2 + kernels.depthwise_offset(channel, tap % 2)] =
            static_cast<int16_t>(weights(channel, channel, tap));
    return;
  }
  const bool is_int8 = fit_int8(node.weight);
  is_wide = true;
  const int64_t whole = round_up(from.channels, kChannelStep);
  for (block_channels = std::min(bytes_of_tiles() / outputs, whole); block_channels >= kChannelStep;
       block_channels = block_channels == kChannelStep ? 0 : round_up(block_channels / 2, kChannelStep)) {
    if (!is_int8 || node.max_input > kernels.max_narrow_level) break;
    is_wide = !tiles_fit_int16(weights, node.max_input, block_channels);
    if (!is_wide) break;
  }
  if (is_wide) block_channels = std::min(bytes_of_tiles() / (2 * outputs), whole);
  block_channels = block_channels / kChannelStep * kChannelStep;
  channel_blocks = (whole + block_channels - 1) / block_channels;
  row_bytes = outputs * (is_wide ? 4 : 2);
  tile_bytes = block_channels / 2 * row_bytes;
  const int64_t num_tiles = channel_blocks * taps * out_blocks;
  tiles = AlignedBuffer(num_tiles * tile_bytes);
  std::memset(tiles.data(), 0, tiles.size());
  tile_is_used.assign(num_tiles, 0);
  const bool has_dense = kernels.dense_block && is_int8 && !(kernels.dense_is_narrow && is_wide);
  if (has_dense) {
    dense = AlignedBuffer(out_stride * taps * dense_channels);
    std::memset(dense.data(), 0, dense.size());
    if (kernels.dense_is_narrow) narrow_quads = quads_in_int16(weights, node.max_input, dense_channels);
  }
  for (int64_t output = 0; output < to.channels; ++output)
    for (int64_t channel = 0; channel < from.channels; ++channel)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t weight = weights(output, channel, tap);
        if (weight == 0) continue;
        const int64_t block = output / outputs, lane = output % outputs;
        const int64_t tile = (channel / block_channels * taps + tap) * out_blocks + block;
        tile_is_used[tile] = 1;
        char* row = tiles.data() + tile * tile_bytes + channel % block_channels / 2 * row_bytes;
        if (is_wide) {
          const int16_t half = static_cast<int16_t>(weight);
          std::memcpy(row + 2 * kernels.wide_offset(lane, channel % 2), &half, 2);
        } else {
          row[kernels.narrow_offset(lane, channel % 2)] = static_cast<char>(weight);
        }
        if (has_dense) {
          const int64_t panel = kernels.dense_panel, first = output / panel * panel;  // its first output
          const int64_t quads = tap * dense_channels + channel / 4 * 4;  // before this one, times four
          dense.data()[first * taps * dense_channels + quads * panel + 4 * (output - first) + channel % 4] =
              static_cast<char>(weight);
        }
      }
}

}  // namespace lbq
