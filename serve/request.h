/* serve/request.h - a request inside the engine: its parameters, and what each of its sequences has
 * beside what the scheduler knows.
 */
#ifndef ACCRT_SERVE_REQUEST_H_
#define ACCRT_SERVE_REQUEST_H_

#include "accrt/serve.h"
#include "serve/adapters.h"
#include "serve/outbox.h"
#include "serve/sampling.h"
#include "serve/sequence.h"
#include "serve/text.h"

typedef struct accsv_generation {
  _Alignas(64) accsv_sequence_t sequence; /* first: the scheduler's pointer is this one's */
  struct accsv_request* request;
  uint32_t index;
  accsv_sampler_t sampler;
  accsv_text_t text;
  accsv_node_t* last_node;          /* for its last event, so that no failure can lose it */
  uint64_t last_token_ns;           /* 0: no token yet */
  void* constraint_state;           /* NULL: any token may come */
  accrt_status_t constraint_status; /* why its last mask could not be made */
  double* embedding;                /* the sum of the rows that came; NULL: it has none */
  uint32_t embedded;                /* tokens whose rows have come */
} accsv_generation_t;

typedef struct accsv_request {
  uint64_t id;
  accrt_serve_request_t parameters; /* its pointers are to memory of the request */
  uint64_t arrival_ns;
  uint32_t count;    /* generations */
  uint32_t going_on; /* those that have not ended */
  bool released;     /* generations after the first may start */
  bool started;      /* it has been admitted once */
  accsv_stops_t stops;
  accsv_salt_t* salt;       /* until the scheduler has it */
  accsv_adapter_t* adapter; /* held; NULL: none */
  /* The event of its prompt's log probabilities, until all are there; NULL: none is wanted, or it
   * has been given. The first generation's scores go there. */
  accsv_node_t* prompt_node;
  uint32_t heap_place; /* among those with deadlines */

  /* Under the engine's lock. */
  struct accsv_request* next;         /* in the inbox; of those that ended in this step */
  struct accsv_request* next_started; /* of those admitted for the first time in this step */
  struct accsv_request* next_cancel;  /* among those that were cancelled */
  struct accsv_request* other;        /* in its bucket of the registry */
  bool cancelled;
  bool listed;           /* in the registry */
  uint8_t shown_started; /* for snapshots */

  char* memory; /* of copies */
  size_t memory_bytes;
  accsv_generation_t generations[];
} accsv_request_t;

static inline accsv_generation_t* accsv_generation_of(const accsv_sequence_t* sequence) {
  return (accsv_generation_t*)(uintptr_t)sequence;
}

/* So many drafts are refused where a model cannot take tokens back. */
accrt_status_t accsv_check_drafts(uint32_t drafts, const accrt_serve_model_info_t* info);
/* Checks a request against the model and fills in what is 0 for a default. `request` is this
 * library's copy of the caller's struct. */
accrt_status_t accsv_request_check(accrt_serve_request_t* request,
                                   const accrt_serve_model_info_t* info);
/* Makes a request with all memory that it needs until it ends, but for its text and its events.
 * `request` was checked; `adapter` (NULL: none) is held, and is the request's if this succeeds.
 * `lookup` says how drafts are found. */
accrt_status_t accsv_request_new(const accrt_allocator_t* allocator,
                                 const accrt_serve_request_t* request, accsv_adapter_t* adapter,
                                 const accrt_serve_model_info_t* info, const accsv_lookup_t* lookup,
                                 uint64_t seed, accsv_request_t** out_request);
void accsv_request_free(const accrt_allocator_t* allocator, accsv_request_t* request);
/* Whether a step in flight has one of its sequences. */
static inline bool accsv_request_in_flight(const accsv_request_t* request) {
  for (uint32_t i = 0; i < request->count; ++i) {
    if (request->generations[i].sequence.in_flight > 0)
      return true;
  }
  return false;
}
/* Entries of log probabilities of a token. */
static inline uint32_t accsv_request_logprobs(const accsv_request_t* request) {
  return (request->parameters.flags & ACCRT_SERVE_LOGPROBS) != 0
             ? 1 + request->parameters.top_logprobs
             : 0;
}

/* Entries of log probabilities of a token of the prompt, if those are wanted. */
static inline uint32_t accsv_request_prompt_logprobs(const accsv_request_t* request) {
  return 1 + request->parameters.prompt_top_logprobs;
}
/* Does every token of the generation take a plain argmax, and nothing beside it? */
bool accsv_generation_is_plain(const accsv_generation_t* generation);

#endif /* ACCRT_SERVE_REQUEST_H_ */
