/* Reads integer networks from .lbq files, checks every rule of docs/deploy/bundle-format.md, and runs them. Plain C.
 *
 * A model is immutable, so any number of threads may describe, run and stream it at once. No function throws, aborts,
 * prints, or keeps a pointer of the caller's. docs/deploy/lbq-run.md has an example.
 */
#ifndef LBQ_MODEL_H
#define LBQ_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* These numbers never change; new ones are added at the end. */
typedef enum {
  LBQ_MODEL_OK = 0,
  LBQ_MODEL_BAD_ARGUMENT = 1,  /* a NULL, or a size that does not fit the model */
  LBQ_MODEL_NO_MEMORY = 2,     /* out of memory for the file or its values */
  LBQ_MODEL_READ_FAILED = 3,   /* the system could not open or read the file */
  LBQ_MODEL_REAL_NUMBERS = 4,  /* a network of real numbers; only integer networks can run here */
  LBQ_MODEL_BOUND = 5,         /* its integers could overflow, or differ from the bounds that it states */
  LBQ_MODEL_SEQUENCE_OVER = 6, /* a stream has run all timesteps that the proof covers, or one failed: reset it */
  LBQ_MODEL_FAILED = 7,        /* any other failure, such as a thread that could not start; see the message */

  /* the rules of the format, by their names */
  LBQ_RULE_FILE = 16,
  LBQ_RULE_MAGIC,
  LBQ_RULE_VERSION,
  LBQ_RULE_RESERVED,
  LBQ_RULE_LENGTH,
  LBQ_RULE_DIGEST,
  LBQ_RULE_KNOWN_DIGEST,
  LBQ_RULE_MANIFEST_SIZE,
  LBQ_RULE_TABLE_SIZE,
  LBQ_RULE_JSON,
  LBQ_RULE_KEYS,
  LBQ_RULE_VALUE,
  LBQ_RULE_COUNT,
  LBQ_RULE_NAME,
  LBQ_RULE_KIND,
  LBQ_RULE_ORDER,
  LBQ_RULE_UNREAD,
  LBQ_RULE_TIMESTEPS,
  LBQ_RULE_MAX_LEVEL,
  LBQ_RULE_CONTIGUOUS,
  LBQ_RULE_TENSORS,
  LBQ_RULE_DTYPE,
  LBQ_RULE_SHAPE,
  LBQ_RULE_SIZE,
  LBQ_RULE_SIGNAL,
  LBQ_RULE_MAX_INPUT,
  LBQ_RULE_FINITE, /* for real numbers only: no integer network can break it */
  LBQ_RULE_BITS,
  LBQ_RULE_THRESHOLDS,
  LBQ_RULE_DECAY,
  LBQ_RULE_RESET
} lbq_model_status;

/* "max-level" for LBQ_RULE_MAX_LEVEL, as in the format's table of rules; "no-memory" and the like for the
 * others; NULL for a number that is not a status. */
const char* lbq_model_status_name(lbq_model_status status);

/* What was found, and where: one line of UTF-8 without control characters. Always ends in a zero byte. */
typedef struct {
  char text[512];
} lbq_error_message;

typedef struct lbq_model lbq_model;

/* Read a file once, into memory of the same size, and check it completely. `sha256` is the expected hexadecimal digest
 * of the whole file, or NULL. On failure *model is NULL. `message` may be NULL. */
lbq_model_status lbq_model_open(const char* path, const char* sha256, lbq_model** model,
                                lbq_error_message* message);
/* The same for bytes in memory, which are copied. */
lbq_model_status lbq_model_from_bytes(const void* data, size_t size, lbq_model** model,
                                      lbq_error_message* message);
/* Free a model that no thread and no stream uses any more; NULL is allowed. */
void lbq_model_free(lbq_model* model);

typedef struct {
  int64_t timesteps;               /* T */
  int64_t channels, height, width; /* of one sample at one instant; axes that it lacks have length 1 */
  int32_t rank;                    /* axes of a sample: [channels], [channels, height] or all three */
  int32_t takes_frames;            /* 1: uint8 [T, B, ...]; 0: still uint8 [B, ...] */
  int32_t gives_sequence;          /* 1: every output is int64 [T, B, n]; 0: its sum over time, [B, n] */
  int64_t num_outputs;             /* n of each: lbq_model_output_size */
  int64_t num_logits;              /* of all outputs */
  double logit_scale; /* a logit times this is in real units */
  int64_t num_nodes;
  int64_t num_values; /* that all nodes hold for one sample at one instant */
  char digest[65];    /* the SHA-256 in the file's header: two files with one digest are one model */
} lbq_model_info;

void lbq_model_get_info(const lbq_model* model, lbq_model_info* info);
/* Logits of one output, 0 <= output < num_outputs; 0 for any other number. */
int64_t lbq_model_output_size(const lbq_model* model, int64_t output);

/* Pack the network for an instruction set ("avx2", "neon", "scalar", ...; NULL for the best one that the variable
 * LBQ_ISA allows), and set the number of threads of a run. "interpreter" is the slow reference; it also runs networks
 * that padding would make far too large. Without this call, the first run packs with NULL and 1. Runs and streams that
 * have begun are not affected. */
lbq_model_status lbq_model_prepare(lbq_model* model, const char* isa, int32_t threads, lbq_error_message* message);
/* The instruction set that the model is packed for; NULL before packing. */
const char* lbq_model_isa(const lbq_model* model);

/* Run a batch from rest. Reads `num_inputs` bytes (batch * channels * height * width, times T for frames) and writes
 * `num_logits` integers (batch * info.num_logits, times T for a sequence), all outputs concatenated. Other numbers
 * return LBQ_MODEL_BAD_ARGUMENT. */
lbq_model_status lbq_model_run(const lbq_model* model, int64_t batch, const uint8_t* inputs,
                               size_t num_inputs, int64_t* logits, size_t num_logits,
                               lbq_error_message* message);

/* Runs a batch of sequences one timestep at a time. It refers to its model. One thread at a time may use it. */
typedef struct lbq_stream lbq_stream;

lbq_model_status lbq_stream_new(const lbq_model* model, int64_t batch, lbq_stream** stream,
                                lbq_error_message* message);
/* Run one timestep. Reads [B, ...]; a network of still images reads its image again at every timestep. Writes [B, n]
 * for every output: the sum of all timesteps so far, or this timestep's values if the model returns a sequence. */
lbq_model_status lbq_stream_step(lbq_stream* stream, const uint8_t* inputs, size_t num_inputs,
                                 int64_t* logits, size_t num_logits, lbq_error_message* message);
/* Start again from rest. */
void lbq_stream_reset(lbq_stream* stream);
void lbq_stream_free(lbq_stream* stream);

#ifdef __cplusplus
}
#endif
#endif
