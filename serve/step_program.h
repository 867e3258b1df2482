/* serve/step_program.h - what a bundle with a step program says of itself (docs/serving-model.md),
 * and the memory that a model over it takes. It runs nothing.
 */
#ifndef ACCRT_SERVE_STEP_PROGRAM_H_
#define ACCRT_SERVE_STEP_PROGRAM_H_

#include "accrt/accrt.h"
#include "accrt/serve.h"
#include "serve/base.h"

#define ACCSV_MOST_BUCKETS 64u
#define ACCSV_MOST_EOS 64u

/* Sizes of calls. */
enum { ACCSV_TOKENS, ACCSV_ROWS, ACCSV_SAMPLES, ACCSV_CHANGES, ACCSV_EDITS, ACCSV_SIZE_COUNT };

typedef struct accsv_buckets {
  uint32_t sizes[ACCSV_MOST_BUCKETS]; /* ascending */
  uint32_t count;
} accsv_buckets_t;

typedef struct accsv_description {
  const char* name;
  uint32_t vocab_size, page_size, max_position;
  uint64_t kv_bytes_per_token;
  uint32_t adapters;    /* places; 0: none */
  uint32_t hidden_size; /* of the rows that `embed` gives; 0: there is no such function */
  bool copies_rows;     /* it has a function for that */
  bool states_of_pages; /* a page says what all tokens up to its last one have made */
  bool has_plain;       /* it has a step without adapters beside the one with places for them */
  bool host_invariant;  /* on hosts a row's results do not depend on what else is in a step */
  bool invariant;       /* nor on other devices */
  int32_t eos[ACCSV_MOST_EOS];
  uint32_t eos_count;
  accsv_buckets_t buckets[ACCSV_SIZE_COUNT];
  const void* token_bytes;
  uint64_t token_bytes_size_bytes;
} accsv_description_t;

accrt_status_t accsv_description_read(accrt_bundle_t* bundle, accsv_description_t* out);
/* The index of the smallest size that is at least `needed`; of the largest if there is none. */
uint32_t accsv_bucket(const accsv_buckets_t* buckets, uint32_t needed);
/* That size itself. */
uint32_t accsv_round_up(const accsv_description_t* description, uint32_t size, uint32_t needed);
uint32_t accsv_largest(const accsv_description_t* description, uint32_t size);

/* Whether the device's memory is the host's. */
accrt_status_t accsv_is_host(accrt_device_t* device, bool* out_is_host);
/* Bytes for keys and values of a card unless the caller says how many: a small model is not
 * given all of it. Four times its weights, and 1 GiB or a sequence of the greatest length,
 * whichever is more. */
uint64_t accsv_enough_kv_bytes(const accrt_serve_memory_t* memory);
/* What a model over the program takes. `options` is complete. ACCRT_ERROR_INVALID_ARGUMENT: the
 * device is not the program's. */
accrt_status_t accsv_plan_memory(accrt_device_t* device, accrt_program_t* program,
                                 const accrt_serve_program_options_t* options,
                                 const accsv_description_t* description,
                                 accrt_serve_memory_t* out_memory);

#endif /* ACCRT_SERVE_STEP_PROGRAM_H_ */
