// Batch norm, shortcut and neuron on vectors of neighbouring channels. Both passes compute membranes by the same inlined
// function, so the backward pass sees the levels that the forward pass emitted.
#include "vectors.h"

namespace lbq {
namespace {

// Channels whose sums stay in the cache over the rows of a block.
constexpr int64_t kTileChannels = 256;

struct Tile {
  int64_t first, count;

  // Call `visit` for every vector of channels of the tile.
  template <class Visit>
  void each_vector(Visit visit) const {
    const int64_t end = first + count, whole = end - count % kLanes;
    for (int64_t c = first; c < whole; c += kLanes) visit(Columns<true>{c, kLanes});
    if (whole < end) visit(Columns<false>{whole, end - whole});
  }
};

template <class Visit>
inline void each_tile(int64_t channels, Visit visit) {
  for (int64_t first = 0; first < channels; first += kTileChannels)
    visit(Tile{first, channels - first < kTileChannels ? channels - first : kTileChannels});
}

template <class C>
inline Floats steps_of(const lbq_scan& scan, const C& columns) {
  return scan.num_steps > 1 ? columns.read(scan.step + columns.first, 1.0f) : broadcast(*scan.step);
}

// Run a vector of neurons over time from zero: visit(t, current before the norm, membrane, ratio, level, carry before).
template <class Value, class C, class Visit>
inline void forward_in_time(const lbq_normed_scan& n, const Coefficients& spread, const C& columns, int64_t first,
                         Floats step, Visit visit) {
  const Value* currents = static_cast<const Value*>(n.currents) + first;
  const Value* shortcut = n.shortcut ? static_cast<const Value*>(n.shortcut) + first : nullptr;
  const Floats scale = columns.read(n.scale + columns.first), shift = columns.read(n.shift + columns.first);
  Floats carry{};
  for (int64_t t = 0; t < n.scan.timesteps; ++t) {
    const Floats before = columns.read(currents + t * n.scan.size);
    Floats current = round_product(before * scale) + shift;
    if (shortcut) current = current + columns.read(shortcut + t * n.scan.size);
    const Floats membrane = t == 0 ? current : round_product(spread.decay * carry) + current;
    const Floats ratio = membrane / step;
    const Ints whole = level_of(ratio, spread.max_level);
    visit(t, before, membrane, ratio, whole, carry);
    carry = spread.carry(membrane, __builtin_convertvector(whole, Floats), step);
  }
}

template <class Value>
void moments(const lbq_normed_scan& n, double* sums, int64_t block) {
  const Rows rows = normed_rows(n, block);
  const Value* currents = static_cast<const Value*>(n.currents);
  double* block_sums = sums + 2 * block * n.channels;
  for (int64_t i = 0; i < 2 * n.channels; ++i) block_sums[i] = 0;
  for (int64_t t = 0; t < n.scan.timesteps; ++t)
    each_tile(n.channels, [&](const Tile& tile) {
      float values[kTileChannels] = {}, squares[kTileChannels] = {};  // short sums, then doubles
      for (int64_t row = rows.first; row < rows.last; ++row)
        tile.each_vector([&](const auto& columns) {
          const int64_t c = columns.first;
          const Floats value = columns.read(currents + t * n.scan.size + row * n.channels + c) -
                               columns.read(currents + c);
          columns.add(&values[c - tile.first], value);
          columns.add(&squares[c - tile.first], value * value);
        });
      for (int64_t c = 0; c < tile.count; ++c) {
        block_sums[tile.first + c] += values[c];
        block_sums[n.channels + tile.first + c] += squares[c];
      }
    });
}

template <class Value>
void forward(const lbq_normed_scan& n, void* to, uint8_t* levels, int64_t block) {
  const Rows rows = normed_rows(n, block);
  const Coefficients spread(n.scan);
  const Tile all_channels{0, n.channels};
  for (int64_t row = rows.first; row < rows.last; ++row)
    all_channels.each_vector([&](const auto& columns) {
      const int64_t first = row * n.channels + columns.first;
      const Floats step = steps_of(n.scan, columns);
      Value* bursts = static_cast<Value*>(to) + first;
      forward_in_time<Value>(
          n, spread, columns, first, step,
          [&](int64_t t, Floats, Floats membrane, Floats, Ints whole, Floats) {
            const Floats burst = step * __builtin_convertvector(whole, Floats);
            columns.write(bursts + t * n.scan.size, membrane == membrane ? burst : membrane);
            if (!levels) return;
            const Bytes bytes = bytes_of(whole);
            std::memcpy(levels + t * n.scan.size + first, &bytes, columns.count);
          });
    });
}

// Backpropagate a vector of neurons through time; returns its contribution to the sums of a block.
struct NormSums {
  Floats grad{}, product{};  // of dL/dU, and of dL/dU (current - mean)
  Sums sums;
};

template <class Value, class C>
inline NormSums backward_in_time(const lbq_normed_scan& n, const lbq_normed_grads& g, const Coefficients& spread,
                          const C& columns, int64_t first, Floats step) {
  const lbq_scan& scan = n.scan;
  Floats ratios[LBQ_MAX_NORMED_TIMESTEPS], levels[LBQ_MAX_NORMED_TIMESTEPS],
      carries[LBQ_MAX_NORMED_TIMESTEPS], distances[LBQ_MAX_NORMED_TIMESTEPS];
  const Floats mean = columns.read(n.mean + columns.first);
  forward_in_time<Value>(n, spread, columns, first, step,
                      [&](int64_t t, Floats before, Floats, Floats ratio, Ints whole, Floats carry) {
                        distances[t] = before - mean;
                        ratios[t] = ratio;
                        levels[t] = __builtin_convertvector(whole, Floats);
                        carries[t] = carry;
                      });
  Floats state{};
  NormSums found;
  for (int64_t t = scan.timesteps - 1; t >= 0; --t) {
    const int64_t at = t * scan.size + first;
    const Floats grad = columns.read(static_cast<const Value*>(g.grad_bursts) + at);
    const Floats slope = step_back(spread, ratios[t], levels[t], grad, state, found.sums);
    columns.write(static_cast<Value*>(g.grad_normed) + at, slope);
    found.grad += slope;
    found.product += slope * distances[t];
    found.sums.decay += slope * carries[t];
    state = scan.detach_carry ? Floats{} : spread.decay * slope;
  }
  return found;
}

template <class Value>
void backward(const lbq_normed_scan& n, const lbq_normed_grads& g, int64_t block) {
  const Rows rows = normed_rows(n, block);
  const Coefficients spread(n.scan);
  const bool has_many_steps = n.scan.num_steps > 1;
  double* norm_sums = g.norm_sums + 2 * block * n.channels;
  double* step_sums = g.step_sums + block * n.scan.num_steps;
  Floats one_step{}, tail{}, decay{}, reset{};
  each_tile(n.channels, [&](const Tile& tile) {
    float grads[kTileChannels] = {}, products[kTileChannels] = {}, steps[kTileChannels] = {};
    for (int64_t row = rows.first; row < rows.last; ++row)  // in memory order
      tile.each_vector([&](const auto& columns) {
        const int64_t first = row * n.channels + columns.first, c = columns.first - tile.first;
        const Floats step = steps_of(n.scan, columns);
        const NormSums found = backward_in_time<Value>(n, g, spread, columns, first, step);
        columns.add(&grads[c], found.grad);
        columns.add(&products[c], found.product);
        if (has_many_steps)
          columns.add(&steps[c], found.sums.step(n.scan));
        else
          one_step += found.sums.step(n.scan);
        tail += found.sums.tail(step);
        decay += found.sums.decay;
        reset += found.sums.reset(step);
      });
    for (int64_t c = 0; c < tile.count; ++c) {
      norm_sums[tile.first + c] = grads[c];
      norm_sums[n.channels + tile.first + c] = products[c];
      if (has_many_steps) step_sums[tile.first + c] = steps[c];
    }
  });
  if (!has_many_steps) *step_sums = horizontal_sum(one_step);
  double* other = g.other_sums + block * 3;
  other[0] = horizontal_sum(tail);
  other[1] = horizontal_sum(decay);
  other[2] = horizontal_sum(reset);
}

template <class Value>
void norm_backward(const lbq_normed_scan& n, const lbq_norm_grad_coefficients& slope, const void* grad_normed,
                   void* grad_currents, int64_t block) {
  const Rows rows = normed_rows(n, block);
  const Value* grads = static_cast<const Value*>(grad_normed);
  const Value* currents = static_cast<const Value*>(n.currents);
  const Tile all_channels{0, n.channels};
  for (int64_t t = 0; t < n.scan.timesteps; ++t)
    for (int64_t row = rows.first; row < rows.last; ++row)
      all_channels.each_vector([&](const auto& columns) {
        const int64_t c = columns.first, at = t * n.scan.size + row * n.channels + c;
        const Floats distance = columns.read(currents + at) - columns.read(n.mean + c);
        const Floats grad = columns.read(grads + at) * columns.read(slope.of_grad + c);
        columns.write(static_cast<Value*>(grad_currents) + at,
                      grad + columns.read(slope.of_current + c) * distance +
                          columns.read(slope.constant + c));
      });
}

}  // namespace

// One pass of each kind, for the dtype of the currents.
const NormedKernels LBQ_ISA::kNormed{
    [](const lbq_normed_scan& n, double* sums, int64_t block) {
      n.scan.dtype == LBQ_F32 ? moments<float>(n, sums, block) : moments<uint16_t>(n, sums, block);
    },
    [](const lbq_normed_scan& n, void* bursts, uint8_t* levels, int64_t block) {
      n.scan.dtype == LBQ_F32 ? forward<float>(n, bursts, levels, block)
                              : forward<uint16_t>(n, bursts, levels, block);
    },
    [](const lbq_normed_scan& n, const lbq_normed_grads& grads, int64_t block) {
      n.scan.dtype == LBQ_F32 ? backward<float>(n, grads, block) : backward<uint16_t>(n, grads, block);
    },
    [](const lbq_normed_scan& n, const lbq_norm_grad_coefficients& slope, const void* grad_normed, void* grad_currents,
       int64_t block) {
      n.scan.dtype == LBQ_F32 ? norm_backward<float>(n, slope, grad_normed, grad_currents, block)
                              : norm_backward<uint16_t>(n, slope, grad_normed, grad_currents, block);
    }};

}  // namespace lbq
