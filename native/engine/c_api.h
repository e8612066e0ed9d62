/* The engine's C API, used from Python. It copies all data that a description points to. Invalid networks return an
 * error (check_network.h), but sums beyond 32 bits are not detected: the caller must prove the bounds (lbq.graph, the
 * reader). */
#ifndef LBQ_ENGINE_C_API_H
#define LBQ_ENGINE_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LBQ_API __attribute__((visibility("default")))

/* A setting of a node: integers, or a word; `count` 0 without a word is null. */
typedef struct {
  const char* name;
  const char* word; /* NULL: integers */
  int64_t count;
  int64_t numbers[8];
} lbq_setting;

typedef struct {
  const char* name;
  const void* data;
  int64_t width, num_dims; /* bytes per integer */
  int64_t shape[4];
} lbq_tensor;

/* Names of kinds, settings and tensors are those of a bundle (docs/deploy/bundle-format.md). */
typedef struct {
  const char *path, *kind;
  int64_t num_inputs, num_settings, num_tensors;
  const int32_t* inputs; /* numbers of nodes before it, or -1 for the network's input */
  const lbq_setting* settings;
  const lbq_tensor* tensors;
  int64_t low, high, bits; /* the bound */
} lbq_node;

typedef struct {
  int64_t timesteps, takes_frames;
  int64_t rank, input[3]; /* axes of one sample at one instant; those that it lacks are 1 */
  int64_t num_nodes;
  const lbq_node* nodes;
} lbq_description;

typedef struct lbq_engine lbq_engine;
typedef struct lbq_engine_state lbq_engine_state;

typedef struct {
  int64_t node, is_dense;
  double seconds, pair_density; /* a density of -1: no synapse */
} lbq_stage_record;

typedef enum {
  LBQ_ENGINE_OK = 0,
  LBQ_ENGINE_BAD_ARGUMENT = 1, /* a network that the engine does not run, or sizes that do not fit it */
  LBQ_ENGINE_NO_MEMORY = 2,
  LBQ_ENGINE_FAILED = 3, /* anything else, for example a thread that could not be started */
} lbq_engine_status;

/* isa: NULL for the best one; choice: 0 measured, 1 events, 2 dense. Returns NULL on failure: see lbq_engine_error. */
LBQ_API lbq_engine* lbq_engine_new(const lbq_description* description, const char* isa, int64_t choice);
LBQ_API void lbq_engine_free(lbq_engine* engine);
LBQ_API const char* lbq_engine_isa(const lbq_engine* engine);
LBQ_API lbq_engine_state* lbq_engine_state_new(const lbq_engine* engine, int64_t batch);
LBQ_API void lbq_engine_state_free(lbq_engine_state* state);

/* Returns a lbq_engine_status. `answers` receives all outputs, concatenated. `state` may be NULL (start at zero),
 * `levels` too (per node: NULL or [T, B, C, H, W]), and `records` (one thread and at most 4 images: the first
 * `num_records` stages). */
LBQ_API int64_t lbq_engine_run(const lbq_engine* engine, const uint8_t* inputs, int64_t batch, int64_t timesteps,
                                int64_t threads, lbq_engine_state* state, uint8_t* const* levels,
                                lbq_stage_record* records, int64_t num_records, int32_t* answers);
/* The error message of this thread's last failed call. */
LBQ_API const char* lbq_engine_error(void);

#ifdef __cplusplus
}
#endif
#endif
