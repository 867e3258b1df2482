/* serve/program_calls.h - the calls of a step program: their arguments, the memory in which
 * these lie, and one bound call for each combination of sizes. It knows nothing of steps in
 * flight.
 */
#ifndef ACCRT_SERVE_PROGRAM_CALLS_H_
#define ACCRT_SERVE_PROGRAM_CALLS_H_

#include "serve/program_adapters.h"
#include "serve/step_program.h"

#define MOST_ARGUMENTS 20u
#define TOP ACCRT_SERVE_MAX_LOGPROBS
#define PLANS 1024u
#define SLOTS 2u
#define ELEMENT_BYTES 4u
#define ALIGNMENT UINT64_C(64)

enum {
  TOKENS = ACCSV_TOKENS,
  ROWS = ACCSV_ROWS,
  SAMPLES = ACCSV_SAMPLES,
  CHANGES = ACCSV_CHANGES,
  EDITS = ACCSV_EDITS,
  SIZE_COUNT = ACCSV_SIZE_COUNT
};

/* What arguments lie in. */
enum { INPUTS, UPDATES, COPIES, RESULTS, LOGITS, MASKS, EMBED_INPUTS, HIDDEN, AREA_COUNT };

/* Positions of arguments, in the order of list_arguments. */
enum {
  TOKEN_IDS,
  POSITIONS,
  SLOT_IDS,
  TOKEN_ROWS,
  ROW_STARTS,
  ROW_IDS,
  KV_LENGTHS,
  CHANGE_SLOTS,
  CHANGE_PAGES,
  SAMPLE_TOKENS,
  STEP_LOGITS,
  STEP_HIDDEN = STEP_LOGITS, /* of `embed` */
  TOKEN_ADAPTERS
};
enum {
  SAMPLED_LOGITS,
  SAMPLE_ROWS,
  TEMPERATURE,
  TOP_K,
  TOP_P,
  MIN_P,
  SEED,
  SAMPLE_POSITIONS,
  EDIT_STARTS,
  MASK_ROWS,
  EDIT_TOKENS,
  EDIT_MULTIPLY,
  EDIT_ADD,
  MASK_BITS,
  TOKEN,
  LOGPROB,
  RANK,
  TOP_IDS,
  TOP_LOGPROBS
};
enum { GREEDY_TOKEN = 2 };

/* All elements have 4 bytes. */
typedef struct accsv_argument {
  const char* name;
  accrt_dtype_t dtype;
  uint32_t size, plus; /* index of the size that is its first dimension; elements beyond it */
  uint32_t columns;    /* 0: one dimension */
  uint32_t area;
} accsv_argument_t;

/* A call that is bound for some sizes. */
typedef struct accsv_bound {
  accrt_call_t* call;
  uint64_t offsets[MOST_ARGUMENTS]; /* in their areas */
  uint64_t begin, end;              /* of its part of the inputs, or of the updates */
  uint64_t results_end;
} accsv_bound_t;

typedef struct accsv_function {
  const char* name;
  accsv_argument_t arguments[MOST_ARGUMENTS];
  uint32_t indices[MOST_ARGUMENTS];
  uint32_t count;
  uint32_t strides[SIZE_COUNT]; /* of `bound`, by index of the size; 0: it does not have it */
  uint32_t bound_count;
  accsv_bound_t** bound;
} accsv_function_t;

typedef struct accsv_area {
  accrt_buffer_t* device;      /* what calls are bound to */
  accrt_buffer_t* host[SLOTS]; /* its images in host memory; NULL: it has none, or is its own */
  unsigned char* at[SLOTS];    /* what the host writes and reads */
  uint64_t size_bytes;
} accsv_area_t;

/* What a step in flight gives. */
typedef struct accsv_pending {
  uint64_t offsets[MOST_ARGUMENTS]; /* of the results */
  bool has_logprobs, has_top;
} accsv_pending_t;

typedef struct accsv_shape {
  uint32_t sizes[SIZE_COUNT];
} accsv_shape_t;

typedef struct accsv_program_model {
  accrt_program_t* program;
  accrt_device_t* device;
  accrt_session_t* session;
  accrt_stream_t* stream; /* the session's */
  accrt_event_t* events[SLOTS];
  bool is_host;
  uint32_t slots; /* steps in flight */
  accsv_description_t description;
  accrt_serve_memory_t memory;
  accsv_function_t step, plain, update, copy, sample, greedy, embed; /* plain: without adapters */
  uint32_t calls;                                                    /* that are bound */
  accsv_area_t areas[AREA_COUNT];
  /* Inputs of `step` and `plain` end here, and those of samplers begin: both are copied at once,
   * whatever their sizes are. */
  uint64_t middle;
  uint64_t gathered; /* where in the results those of a step in parts lie */
  accsv_program_adapters_t adapters;
  accsv_pending_t pending[SLOTS];
  accsv_shape_t* shapes; /* that steps have on a device of its own memory */
  uint32_t shape_count, shapes_most, prepared;
} accsv_program_model_t;

/* Names, types and places of all arguments, by the bundle's description. */
void accsv_program_list_arguments(accsv_program_model_t* model);
/* Where a function's arguments lie for some sizes. */
void accsv_program_lay(const accsv_program_model_t* model, const accsv_function_t* function,
                       const uint32_t* sizes, accsv_bound_t* out);
void accsv_program_release_area(accsv_area_t* area);
/* Memory of `size_bytes` for arguments, with images in host memory where the device has its own. */
accrt_status_t accsv_program_make_area(const accsv_program_model_t* model, uint64_t size_bytes,
                                       bool has_images, accsv_area_t* out);
/* The largest of each size that a step may have. */
void accsv_program_largest_sizes(const accsv_program_model_t* model, uint32_t* sizes);
/* Memory for the largest step. */
accrt_status_t accsv_program_make_areas(accsv_program_model_t* model);
/* Copies a range between an area and its image, in the stream's order. */
accrt_status_t accsv_program_copy(accsv_program_model_t* model, uint32_t index, uint32_t slot,
                                  uint64_t begin, uint64_t end, bool to_device);
accrt_status_t accsv_program_make_function(accsv_program_model_t* model,
                                           accsv_function_t* function);
void accsv_program_release_calls(accsv_function_t* function);
accrt_status_t accsv_program_bind_argument(const accsv_program_model_t* model,
                                           const accsv_function_t* function,
                                           const accsv_bound_t* bound, uint32_t index,
                                           const uint32_t* sizes, uint64_t shift);
/* The call for these sizes; it is made and bound when there is none. */
accrt_status_t accsv_program_find_bound(accsv_program_model_t* model, accsv_function_t* function,
                                        const uint32_t* sizes, accsv_bound_t** out_bound);
/* Submits a bound call. */
accrt_status_t accsv_program_go(const accsv_program_model_t* model, const accsv_bound_t* bound);

#endif /* ACCRT_SERVE_PROGRAM_CALLS_H_ */
