"""The loops of exported C; ``X`` is the type of inputs, ``W`` of weights, ``Y`` of results."""

WINDOW = """/* A window that slides over a map: sizes are rows, columns. */
struct window {
    int32_t channels, height, width;
    int32_t made, made_height, made_width;
    int32_t kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    int32_t groups;
};

"""
SHIFT = """struct neuron {
    int32_t channels, positions, levels, thresholds_differ, resets_differ;
    int32_t multiplier, shift;
    int32_t reset; /* once, once per level, never, to zero */
    int32_t resets_after_decay;
};

/* Shift to the right, rounding down: C leaves negative numbers open. */
static int32_t shift_down(int32_t value, int32_t bits)
{
    return value >= 0 ? value >> bits : ~(~value >> bits);
}

"""
KERNELS = {
    "clear": """static void NAME(X *values, int32_t count)
{
    for (int32_t i = 0; i < count; ++i) {
        values[i] = 0;
    }
}
""",
    "start": """static void NAME(X *values, const int32_t *bias, int32_t count, int32_t repeats)
{
    for (int32_t c = 0; c < count; ++c) {
        for (int32_t i = 0; i < repeats; ++i) {
            *values++ = (X)bias[c];
        }
    }
}
""",
    "convolve": """static void NAME(const struct window *s, const X *x, const W *w, Y *y)
{
    const int32_t per_group = s->channels / s->groups;
    const int32_t made_per_group = s->made / s->groups;
    for (int32_t o = 0; o < s->made; ++o) {
        const X *group = x + o / made_per_group * per_group * s->height * s->width;
        for (int32_t oy = 0; oy < s->made_height; ++oy) {
            const int32_t at_y = oy * s->stride_y - s->pad_y;
            int32_t first_y = 0, end_y = s->kernel_y; /* the rows of the kernel inside the map */
            while (at_y + first_y * s->dilation_y < 0) {
                ++first_y;
            }
            while (end_y > first_y && at_y + (end_y - 1) * s->dilation_y >= s->height) {
                --end_y;
            }
            for (int32_t ox = 0; ox < s->made_width; ++ox) {
                const int32_t at_x = ox * s->stride_x - s->pad_x;
                int32_t first_x = 0, end_x = s->kernel_x;
                while (at_x + first_x * s->dilation_x < 0) {
                    ++first_x;
                }
                while (end_x > first_x && at_x + (end_x - 1) * s->dilation_x >= s->width) {
                    --end_x;
                }
                int32_t sum = *y;
                for (int32_t c = 0; c < per_group; ++c) {
                    for (int32_t ky = first_y; ky < end_y; ++ky) {
                        const int32_t row = c * s->height + at_y + ky * s->dilation_y;
                        const int32_t start = row * s->width + at_x;
                        const W *weight = w + (c * s->kernel_y + ky) * s->kernel_x;
                        for (int32_t kx = first_x; kx < end_x; ++kx) {
                            sum += (int32_t)weight[kx] * group[start + kx * s->dilation_x];
                        }
                    }
                }
                *y++ = (Y)sum;
            }
        }
        w += per_group * s->kernel_y * s->kernel_x;
    }
}
""",
    "convolve_events": """static void NAME(const struct window *s, const X *x, const W *w, Y *y)
{
    const int32_t per_group = s->channels / s->groups;
    const int32_t made_per_group = s->made / s->groups;
    const int32_t taps = s->kernel_y * s->kernel_x;
    const int32_t positions = s->made_height * s->made_width;
    for (int32_t c = 0; c < s->channels; ++c) {
        const int32_t first = c / per_group * made_per_group;
        const W *of_channel = w + (first * per_group + c % per_group) * taps;
        for (int32_t iy = 0; iy < s->height; ++iy) {
            for (int32_t ix = 0; ix < s->width; ++ix) {
                const int32_t level = *x++;
                if (level == 0) {
                    continue;
                }
                for (int32_t ky = 0; ky < s->kernel_y; ++ky) {
                    const int32_t at_y = iy + s->pad_y - ky * s->dilation_y;
                    const int32_t oy = at_y / s->stride_y;
                    if (at_y < 0 || at_y % s->stride_y != 0 || oy >= s->made_height) {
                        continue;
                    }
                    for (int32_t kx = 0; kx < s->kernel_x; ++kx) {
                        const int32_t at_x = ix + s->pad_x - kx * s->dilation_x;
                        const int32_t ox = at_x / s->stride_x;
                        if (at_x < 0 || at_x % s->stride_x != 0 || ox >= s->made_width) {
                            continue;
                        }
                        const W *weight = of_channel + ky * s->kernel_x + kx;
                        Y *sum = y + first * positions + oy * s->made_width + ox;
                        for (int32_t o = 0; o < made_per_group; ++o) {
                            *sum = (Y)(*sum + level * *weight);
                            sum += positions;
                            weight += per_group * taps;
                        }
                    }
                }
            }
        }
    }
}
""",
    "scale": """static void NAME(const X *x, const W *w, Y *y, int32_t channels, int32_t positions)
{
    for (int32_t c = 0; c < channels; ++c) {
        for (int32_t i = 0; i < positions; ++i, ++x, ++y) {
            *y = (Y)(*y + (int32_t)w[c] * *x);
        }
    }
}
""",
    "pool_max": """static void NAME(const struct window *s, const X *x, Y *y)
{
    for (int32_t c = 0; c < s->channels; ++c, x += s->height * s->width) {
        for (int32_t oy = 0; oy < s->made_height; ++oy) {
            for (int32_t ox = 0; ox < s->made_width; ++ox) {
                int32_t most = INT32_MIN;
                for (int32_t ky = 0; ky < s->kernel_y; ++ky) {
                    const int32_t iy = oy * s->stride_y + ky - s->pad_y;
                    for (int32_t kx = 0; kx < s->kernel_x; ++kx) {
                        const int32_t ix = ox * s->stride_x + kx - s->pad_x;
                        if (iy >= 0 && iy < s->height && ix >= 0 && ix < s->width &&
                            x[iy * s->width + ix] > most) {
                            most = x[iy * s->width + ix];
                        }
                    }
                }
                *y++ = (Y)most;
            }
        }
    }
}
""",
    "pool_sum": """static void NAME(const struct window *s, const X *x, Y *y)
{
    for (int32_t c = 0; c < s->channels; ++c, x += s->height * s->width) {
        for (int32_t oy = 0; oy < s->made_height; ++oy) {
            for (int32_t ox = 0; ox < s->made_width; ++ox) {
                int32_t sum = 0;
                for (int32_t ky = 0; ky < s->kernel_y; ++ky) {
                    const int32_t iy = oy * s->stride_y + ky - s->pad_y;
                    for (int32_t kx = 0; kx < s->kernel_x; ++kx) {
                        const int32_t ix = ox * s->stride_x + kx - s->pad_x;
                        if (iy >= 0 && iy < s->height && ix >= 0 && ix < s->width) {
                            sum += x[iy * s->width + ix];
                        }
                    }
                }
                *y++ = (Y)sum;
            }
        }
    }
}
""",
    "multiply": """static void NAME(const X *x, const W *w, Y *y, int32_t groups, int32_t rows,
                 int32_t terms, int32_t columns)
{
    for (int32_t g = 0; g < groups; ++g, w += terms * columns) {
        for (int32_t r = 0; r < rows; ++r, x += terms) {
            for (int32_t c = 0; c < columns; ++c) {
                int32_t sum = 0;
                for (int32_t i = 0; i < terms; ++i) {
                    sum += (int32_t)x[i] * w[i * columns + c];
                }
                *y++ = (Y)sum;
            }
        }
    }
}
""",
    "emit": """static void NAME(const struct neuron *s, const X *currents,
                 const int32_t *thresholds, const int32_t *resets, W *carry, Y *levels)
{
    for (int32_t c = 0; c < s->channels; ++c) {
        const int32_t *reached = thresholds + (s->thresholds_differ ? c * s->levels : 0);
        const int32_t reset = resets[s->resets_differ ? c : 0];
        for (int32_t i = 0; i < s->positions; ++i) {
            const int32_t before = carry ? *carry : 0;
            int32_t membrane = shift_down(before * s->multiplier, s->shift) + *currents++;
            int32_t level = 0;
            if (s->resets_after_decay && before >= reached[0]) {
                membrane -= reset;
            }
            while (level < s->levels && membrane >= reached[level]) {
                ++level;
            }
            *levels++ = (Y)level;
            if (carry) {
                if (level == 0 || s->resets_after_decay) {
                    /* nothing is removed now */
                } else if (s->reset == RESET_ZERO) {
                    membrane = 0;
                } else if (s->reset != RESET_NONE) {
                    membrane -= reset * (s->reset == RESET_EVENT ? 1 : level);
                }
                *carry++ = (W)membrane;
            }
        }
    }
}
""",
}
"""The loops by name; a file contains those that it needs, once per combination of types."""
