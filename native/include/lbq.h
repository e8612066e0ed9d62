/* lbq: kernels of the multi-step burst neuron. Plain C, no torch, no threads of its own.
 *
 * The caller splits the work into blocks and runs ranges of blocks on any number of threads. Results do not depend on
 * the number of threads, bit for bit.
 */
#ifndef LBQ_H
#define LBQ_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  LBQ_OK = 0,
  LBQ_BAD_ARGUMENT = 1, /* an invalid size, level or range */
  LBQ_NOT_BURSTS = 2,   /* values that cannot be packed */
} lbq_status;

typedef enum { LBQ_F32 = 0, LBQ_BF16 = 1 } lbq_dtype;

/* The amount that a reset subtracts: one step, one step per level, nothing, or the whole membrane. Only neurons of
 * integer networks support the last one (zero); scans do not. */
typedef enum { LBQ_RESET_EVENT = 0, LBQ_RESET_LEVEL = 1, LBQ_RESET_NONE = 2, LBQ_RESET_ZERO = 3 } lbq_reset_mode;

/* The values saved for the backward pass: float32 membranes, or the currents. From currents the backward pass
 * recomputes the membranes bit for bit, and the forward pass writes nothing. */
typedef enum { LBQ_SAVE_MEMBRANES = 0, LBQ_SAVE_CURRENTS = 1 } lbq_saved;

/* One multi-step burst neuron over a dense instant of `size` values, repeated `timesteps` times.
 *
 * Values are numbered in memory order. Steps come in one of three ways:
 *   run = size, num_steps = 1          one step for the layer
 *   run = height * width               channels first: consecutive runs of values share a step
 *   run = 1                            channels last: consecutive values cycle through the steps
 */
typedef struct {
  int64_t timesteps;
  int64_t size;
  int64_t current_stride; /* values between two timesteps of the currents: size, or 0 if repeated */
  int64_t run;
  int64_t num_steps;
  const float* step;  /* gamma */
  const float* tail;  /* lambda, one value; NULL for a box */
  float decay;        /* beta */
  float reset;        /* alpha */
  float lo, hi;       /* the surrogate's plateau, in steps */
  int32_t max_level;  /* N, 1..255 */
  lbq_dtype dtype;    /* of currents, bursts and their gradients; everything else is float32 */
  lbq_reset_mode reset_mode;
  lbq_saved saved;
  int32_t detach_reset, detach_carry;
} lbq_scan;

typedef struct {
  const void* currents; /* [T, size] */
  const float* carry;   /* [size] or NULL: zero */
  void* bursts;         /* [T, size] */
  uint8_t* levels;      /* [T, size] */
  void* saved;           /* [T, size], or NULL if no backward follows or currents are saved */
  float* last_carry;    /* [size] */
} lbq_forward_buffers;

/* The sums are the contributions of every block to the gradients of the coefficients. */
typedef struct {
  const void* grad_bursts;      /* [T, size] */
  const float* grad_last_carry; /* [size] or NULL: zero */
  const void* saved;             /* [T, size]; currents with their stride */
  const float* carry;           /* [size] or NULL: zero */
  void* grad_currents;          /* [T, size] */
  float* grad_carry;            /* [size] or NULL: not computed */
  double* step_sums;            /* [blocks, lbq_block_steps] */
  double* other_sums;           /* [blocks, 3]: tail, decay, reset */
} lbq_backward_buffers;

/* The number of blocks, and the number of steps that a block uses. */
int64_t lbq_num_blocks(const lbq_scan* scan);
int64_t lbq_block_steps(const lbq_scan* scan);
/* The first step that a block uses. */
int64_t lbq_block_first_step(const lbq_scan* scan, int64_t block);

lbq_status lbq_burst_forward(const lbq_scan* scan, const lbq_forward_buffers* buffers, int64_t first_block,
                             int64_t last_block);
lbq_status lbq_burst_backward(const lbq_scan* scan, const lbq_backward_buffers* buffers,
                              int64_t first_block, int64_t last_block);

/* Add up the blocks' sums, in block order: step [num_steps], other [3]. */
void lbq_sum_blocks(const lbq_scan* scan, const lbq_backward_buffers* buffers, double* step,
                    double* other);

/* Neurons of other papers. The backward pass recomputes the membranes from the currents, so nothing else is saved. U is
 * the membrane, V the carry; U = decay V + current unless noted. */
typedef enum {
  LBQ_BINARY = 0,           /* U > threshold; V = U, reset * threshold is subtracted after the decay; arctangent */
  LBQ_HARD_RESET = 1,       /* U >= threshold; V = 0 after a spike; arctangent */
  LBQ_TERNARY = 2,          /* the sign of U where |U| >= step; soft reset of |U|; plateau and tail */
  LBQ_ORIGINAL_TERNARY = 3, /* the sign of U where |U| >= threshold; V = 0, with gradient; box of |U| <= 1 */
  LBQ_INTEGER = 4,          /* U rounded half to even, in 0..max_level; V = U - level; box over 0..max_level */
  LBQ_MULTI_LEVEL = 5,      /* max_level membranes, each U > its threshold; V = 0; box within 0.5 of the threshold */
  LBQ_MIXED = 6,            /* a mixture of all timesteps' currents; the burst neuron's level; V = U - step * level,
                               without gradient; box over lo..hi */
} lbq_baseline;

/* `scan.step` scales the levels, `scan.tail` and `scan.reset_mode` are the ternary neuron's, `scan.lo` and `scan.hi`
 * its and the mixed neuron's; `scan.saved` and `scan.detach_*` are ignored. */
typedef struct {
  lbq_scan scan;
  lbq_baseline neuron;
  const float* thresholds; /* max_level of them, rising; NULL for the ternary, the integer and the mixed neuron */
  const float* mixture;    /* [T, T], current[t] = sum of mixture[t][j] * currents[j]; NULL for the others */
  float sharpness;         /* of the arctangent */
} lbq_baseline_scan;

/* Buffers as for lbq_burst_forward with `saved` ignored, and as for lbq_burst_backward with the currents as `saved`.
 * Levels of ternary neurons are int8. Carries of the multi-level neuron and their gradients are [max_level, size]. The
 * blocks and their sums are those of `scan`; mixture_sums is [blocks, T, T], NULL without a mixture. */
lbq_status lbq_baseline_forward(const lbq_baseline_scan* baseline, const lbq_forward_buffers* buffers,
                                int64_t first_block, int64_t last_block);
lbq_status lbq_baseline_backward(const lbq_baseline_scan* baseline, const lbq_backward_buffers* buffers,
                                 double* mixture_sums, int64_t first_block, int64_t last_block);

/* Batch norm, an added shortcut and a burst neuron in one, channels last, from zero. Only the currents before the norm
 * are saved for the backward pass, which recomputes the membranes.
 *
 * `scan.size` is rows * channels; `scan.num_steps` is 1 or channels; `scan.run` and `scan.current_stride` are
 * ignored. */
enum { LBQ_MAX_NORMED_TIMESTEPS = 32 };

typedef struct {
  lbq_scan scan;
  int64_t channels;
  const void* currents;              /* [T, rows, channels], before the norm */
  const void* shortcut;              /* the same shape, added after the norm; or NULL */
  const float *mean, *scale, *shift; /* [channels]; the norm is currents * scale + shift */
} lbq_normed_scan;

typedef struct {
  const void* grad_bursts; /* [T, rows, channels] */
  void* grad_normed;       /* [T, rows, channels], after the norm: the shortcut's gradient too */
  double* norm_sums;       /* [blocks, 2, channels]: of grad_normed, and of it times currents - mean */
  double* step_sums;       /* [blocks, num_steps] */
  double* other_sums;      /* [blocks, 3]: tail, decay, reset */
} lbq_normed_grads;

int64_t lbq_normed_num_blocks(const lbq_normed_scan* normed);

/* Sums of (currents - first row) and of its square: sums [blocks, 2, channels]. Needs no norm yet. */
lbq_status lbq_moment_sums(const lbq_normed_scan* normed, double* sums, int64_t first_block,
                           int64_t last_block);
/* The mean and the (biased) variance of every channel from these sums. */
void lbq_moments(const lbq_normed_scan* normed, const double* sums, float* mean, float* variance);

/* Statistics and parameters of the batch norm. NULL weights are ones, NULL biases zeros. */
typedef struct {
  const float *mean, *variance, *weight, *bias; /* [channels] */
  double eps;
  int32_t uses_batch_stats; /* gradients pass through the statistics */
} lbq_norm;

/* The norm as scale and shift, [channels] each. */
void lbq_norm_affine(const lbq_norm* norm, int64_t channels, float* scale, float* shift);

lbq_status lbq_normed_forward(const lbq_normed_scan* normed, void* bursts, uint8_t* levels_or_null,
                              int64_t first_block, int64_t last_block);
lbq_status lbq_normed_backward(const lbq_normed_scan* normed, const lbq_normed_grads* grads,
                               int64_t first_block, int64_t last_block);
/* Add up `count` sums of every block, in block order. */
void lbq_add_blocks(const double* sums, int64_t blocks, int64_t count, double* total);

/* grad_currents = of_grad * grad_normed + of_current * (currents - mean) + constant, per channel;
 * grad_currents may be grad_normed. */
typedef struct {
  float *of_grad, *of_current, *constant; /* [channels] */
} lbq_norm_grad_coefficients;

/* These coefficients, and the gradients of weight and bias, from the sums of all blocks [2, channels]. */
void lbq_norm_gradients(const lbq_normed_scan* normed, const lbq_norm* norm, const double* sums,
                        lbq_norm_grad_coefficients* slope, float* grad_weight, float* grad_bias);
lbq_status lbq_norm_backward(const lbq_normed_scan* normed, const lbq_norm_grad_coefficients* slope,
                             const void* grad_normed, void* grad_currents, int64_t first_block,
                             int64_t last_block);

/* The cost of levels: the sum over all values of table[level] times fan-out, each product below 2^24. A block is one
 * timestep of one sample. */
typedef struct {
  int64_t instants;     /* samples times timesteps */
  int64_t size;         /* values of an instant */
  const uint8_t* levels; /* [instants, size] */
  const float* fan_out; /* [size] */
  const float* table;   /* [256]; exact if all its products with fan-outs are integers below 2^24 */
  const float* slope;   /* [256]: how the cost grows with the level */
  int32_t max_level;    /* 1..255 */
  lbq_dtype dtype;      /* of the gradients */
} lbq_level_cost;

/* sums [blocks, 3]: the cost, slope[level] * level * fan_out, and the number of levels above 0. */
lbq_status lbq_cost_sums(const lbq_level_cost* cost, double* sums, int64_t first_block, int64_t last_block);
/* grad_out = grad + scale * slope[level] * fan_out, both [instants, size]. */
lbq_status lbq_cost_backward(const lbq_level_cost* cost, const void* grad, float scale, void* grad_out,
                             int64_t first_block, int64_t last_block);

/* Bursts packed as levels. A byte holds as many levels as it has digits in base max_level + 1 (3 for max_level = 5, 8
 * for 1). Steps are given as in lbq_scan. Blocks are independent. */
typedef struct {
  int64_t size;
  int64_t run;
  int64_t num_steps;
  const float* step;
  int32_t max_level; /* 1..255 */
  lbq_dtype dtype;   /* of the bursts */
} lbq_packing;

int64_t lbq_packed_bytes(const lbq_packing* packing);
int64_t lbq_packing_num_blocks(const lbq_packing* packing);
/* LBQ_NOT_BURSTS at the first block with a value whose bits are not those of step * level, level in 0..max_level. */
lbq_status lbq_pack_bursts(const lbq_packing* packing, const void* bursts, uint8_t* packed, int64_t first_block,
                           int64_t last_block);
/* Restores the packed bursts bit for bit. */
lbq_status lbq_unpack_bursts(const lbq_packing* packing, const uint8_t* packed, void* bursts, int64_t first_block,
                             int64_t last_block);

/* The instruction set in use: "scalar", "avx2", "avx512", "avx512bf16" or "neon". LBQ_ISA limits it at load time;
 * "avx2vnni", "avx512vnni" and "amx" differ only for the engine. */
const char* lbq_isa(void);
/* Select an instruction set, for tests; LBQ_BAD_ARGUMENT if the machine or the build does not support it. */
lbq_status lbq_set_isa(const char* name);

#ifdef __cplusplus
}
#endif
#endif
