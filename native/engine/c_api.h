/* The engine's door for callers in C and Python: plain structs in, integers out. Everything that a
 * description points at is copied. What does not fit together is refused (check_network.h), but for sums that leave
 * 32 bits: the caller proved its bounds (lbq.deploy.prove, or the reader). */
#ifndef LBQ_ENGINE_C_API_H
#define LBQ_ENGINE_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LBQ_API __attribute__((visibility("default")))

/* Numbers of lbq::Kind and lbq::Reset are those of network.h. */
typedef struct {
  const void* data;
  int64_t width, count;
} lbq_integers;

typedef struct {
  int64_t kind, num_inputs;
  const int32_t* inputs;
  int64_t from[3], to[3]; /* channels, height, width */
  int64_t has_time;
  int64_t low, high, bits; /* the bound */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t is_linear, groups, weight_bits, max_input, pools_max;
  lbq_integers weight, bias, thresholds, reset_amount;
  int64_t max_level, multiplier, shift, reset, resets_after_decay;
  int64_t sums_over_time;
} lbq_node;

typedef struct {
  int64_t timesteps, takes_frames;
  int64_t input[3];
  int64_t num_nodes;
  const lbq_node* nodes;
} lbq_description;

typedef struct lbq_engine lbq_engine;
typedef struct lbq_engine_state lbq_engine_state;

typedef struct {
  int64_t node, is_dense;
  double seconds, pair_density; /* a density of -1: no synapse */
} lbq_step_record;

typedef enum {
  LBQ_ENGINE_OK = 0,
  LBQ_ENGINE_BAD_ARGUMENT = 1, /* a network that the engine does not run, or sizes that do not fit it */
  LBQ_ENGINE_NO_MEMORY = 2,
  LBQ_ENGINE_FAILED = 3, /* anything else, a thread that could not be started for one */
} lbq_engine_status;

/* isa: NULL for the best; choice: 0 measured, 1 events, 2 dense. NULL if it failed: see lbq_engine_error. */
LBQ_API lbq_engine* lbq_engine_new(const lbq_description* description, const char* isa, int64_t choice);
LBQ_API void lbq_engine_free(lbq_engine* engine);
LBQ_API const char* lbq_engine_isa(const lbq_engine* engine);
LBQ_API lbq_engine_state* lbq_engine_state_new(const lbq_engine* engine, int64_t batch);
LBQ_API void lbq_engine_state_free(lbq_engine_state* state);

/* A lbq_engine_status. `state` may be NULL (rest), `levels` too (per node: NULL or [T, B, C, H, W]), and
 * `records` (with one thread and at most 4 images: of all steps, at most `num_records`). */
LBQ_API int64_t lbq_engine_run(const lbq_engine* engine, const uint8_t* inputs, int64_t batch, int64_t timesteps,
                                int64_t threads, lbq_engine_state* state, uint8_t* const* levels,
                                lbq_step_record* records, int64_t num_records, int32_t* answers);
/* What went wrong in this thread's last call. */
LBQ_API const char* lbq_engine_error(void);

#ifdef __cplusplus
}
#endif
#endif
