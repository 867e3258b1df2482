/* accrt/serve.h - all of libaccrt_serve: an engine that generates tokens for many requests at once.
 *
 * It uses libaccrt (accrt/accrt.h); link both: `-laccrt_serve -laccrt`, pkg-config accrt_serve, or
 * CMake's find_package(accrt COMPONENTS serve) and accrt::serve. The rules of accrt/base.h hold
 * here too: accrt_last_error has the full record of a failure. docs/serving.md explains the
 * scheduler.
 *
 * A *request* is a prompt with its parameters. It has one *sequence* of tokens, or `n` sequences
 * that share the prompt. A *model* computes one *step*: it takes tokens of many sequences, and
 * gives the next token of each sequence that needs one. An *engine* decides what each step
 * computes. New tokens and ends of requests come as *events*.
 *
 *   accrt_serve_engine_create(model, &options, &engine);
 *   accrt_serve_engine_submit(engine, &request, &id);
 *   while (accrt_serve_engine_step(engine) == ACCRT_OK)
 *     while (accrt_serve_engine_poll(engine, events, sizeof *events, 16, &count) == ACCRT_OK) ...
 *
 * With ACCRT_SERVE_ENGINE_THREAD the engine steps on a thread of its own: wait for events with
 * accrt_serve_engine_event_fd, or with accrt_serve_engine_wait.
 *
 * Handles can be validated: checked before they are used. A handle that was released, is of another
 * type, or is released twice is then ACCRT_ERROR_INVALID_ARGUMENT with the function that made it,
 * and a line on standard error (docs/concepts.md). Handles that a validated handle makes or lends
 * are validated, too. One of three things asks for validation: ACCRT_SERVE_VALIDATE in the flags
 * with which a handle is made; for a model of a program, the option validate.handles of the
 * program's instance; for handles that are made from no other handle, ACCRT_VALIDATE=handles in the
 * environment. If only the environment can ask, another word in ACCRT_VALIDATE is
 * ACCRT_ERROR_INVALID_ARGUMENT.
 */
#ifndef ACCRT_SERVE_H_
#define ACCRT_SERVE_H_

#include "accrt/instance.h"
#include "accrt/program.h"

ACCRT_BEGIN

typedef struct accrt_serve_model accrt_serve_model_t;
typedef struct accrt_serve_engine accrt_serve_engine_t;
typedef struct accrt_serve_constraint accrt_serve_constraint_t;
typedef struct accrt_serve_grammars accrt_serve_grammars_t;

/** Version of libaccrt_serve, as ACCRT_MAKE_VERSION. Its minor version must be that of libaccrt
 * (accrt_version). Since: 0.4 */
ACCRT_API uint32_t accrt_serve_version(void);

/** Flag in `flags` of the functions of models and constraints, and of the options of models,
 * engines and servers: the handle that is made with them is validated, and so are the handles that
 * it makes. */
#define ACCRT_SERVE_VALIDATE 0x80000000u

/* ---- Time ---- */

/** A clock for an engine. Any thread may call the function; no lock is held then. Its values never
 * decrease. Frozen. */
typedef struct accrt_serve_clock {
  void* self;
  uint64_t (*now_ns)(void* self);
} accrt_serve_clock_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_clock_t, now_ns, 16);

/** The system's monotonic clock in nanoseconds. Engines use it, and compare deadlines with it,
 * unless their options name another clock. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API uint64_t accrt_serve_now_ns(void);

/* ---- Models ---- */

/** Most alternatives of a token that a model reports. */
#define ACCRT_SERVE_MAX_LOGPROBS 20u
/** Most drafts of a sequence in a step. */
#define ACCRT_SERVE_MAX_DRAFTS 32u
/** Most bytes of a stop string of a request. */
#define ACCRT_SERVE_MAX_STOP_BYTES 4096u

/** What a model can do. All its pointers are lent: valid while the model is. */
typedef struct accrt_serve_model_info {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_SERVE_MODEL_* */
  void* next;     /**< NULL */
  const char* name;
  uint32_t vocab_size; /**< token ids are [0, vocab_size) */
  uint32_t page_size;  /**< tokens of a page of the KV cache */
  uint32_t page_count; /**< pages of the KV cache */
  uint32_t max_rows;   /**< most sequences of a step; rows of the page table */
  uint32_t max_tokens; /**< most tokens of a step; at least max_rows */
  uint32_t max_length; /**< most tokens of a sequence, prompt and new ones together */
  uint32_t row_pages;  /**< pages that a row of the page table has room for */
  uint32_t eos_count;
  const int32_t* eos; /**< tokens that end a sequence unless a request ignores them */
  /** the bytes that each token stands for, as docs/serving-model.md describes; NULL: unknown. Then
   * events have no text */
  const void* token_bytes;
  uint64_t token_bytes_size_bytes;
  uint64_t kv_bytes_per_token; /**< device memory of one token's keys and values; 0: unknown */
  uint32_t adapter_count;      /**< LoRA adapters that it has places for */
  uint32_t max_samples;        /**< most samples of a step; at least max_rows; 0: max_rows */
  uint32_t embedding_size;     /**< numbers of an embedding; 0: the model gives none */
  /** least tokens of a page whose keys and values are worth a copy to another page (`copy_count` of
   * a step); 0: the model copies none */
  uint32_t min_copy_tokens;
} accrt_serve_model_info_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_model_info_t, min_copy_tokens, 104);
#define ACCRT_SERVE_MODEL_INFO_INIT ACCRT_STRUCT_INIT(accrt_serve_model_info_t)

/** the engine may submit a step before it has waited for the previous step. The model replaces
 * token id -1 by the last token that was sampled for the row */
#define ACCRT_SERVE_MODEL_OVERLAP 1u
/** the results of a row do not depend, in any bit, on the other rows of its step, nor on how its
 * tokens are divided among steps */
#define ACCRT_SERVE_MODEL_BATCH_INVARIANT 2u
/** the model keeps a state for each page, which all tokens up to the page's last one have made. So
 * tokens cannot be taken back, and there are no drafts. Only later steps share a page that a step
 * fills. Since: 0.4 */
#define ACCRT_SERVE_MODEL_STATES_OF_PAGES 4u

/** every sample is a plain argmax: the model ignores the arrays of parameters and edits */
#define ACCRT_SERVE_STEP_GREEDY 1u
/** at least one sample needs log probabilities */
#define ACCRT_SERVE_STEP_LOGPROBS 2u
/** at least one sample has a constraint: `submit` samples nothing, and the engine then calls
 * `sample` with the masks. The step's arrays are valid until `sample` returns */
#define ACCRT_SERVE_STEP_MASKS 4u

/** Edits of a sample's logits. Penalties, biases and a least length become such edits. No token
 * occurs twice. Frozen. */
typedef struct accrt_serve_edits {
  const int32_t* tokens; /**< [count] */
  /** [count]: a logit above 0 is divided by it, any other is multiplied by it; 1: no change */
  const float* multiply;
  const float* add; /**< [count]: then added to the logit; -infinity bans the token */
  uint32_t count;
  uint32_t reserved; /**< 0 */
} accrt_serve_edits_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_edits_t, reserved, 32);

/** One step of a model. The arrays are valid until `submit` returns. Rows are the sequences of the
 * step; the tokens of row r are [row_starts[r], row_starts[r + 1]), and its last ones are the last
 * tokens of its `kv_lengths[r]` keys. A row may have any number of samples, one for each of its
 * last tokens. */
typedef struct accrt_serve_step {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_SERVE_STEP_* */
  const accrt_chain_t* next;
  uint64_t number; /**< from 1; counts up */
  uint32_t token_count, row_count, sample_count;
  uint32_t change_count;       /**< of the page table; made before anything else */
  uint32_t edit_count;         /**< of all samples */
  uint32_t top_count;          /**< most alternatives that a sample of the step wants */
  const int32_t* token_ids;    /**< [token_count]; -1: the last token sampled for its row */
  const int32_t* positions;    /**< [token_count], from 0 in each sequence */
  const int32_t* slots;        /**< [token_count]: page * page_size + offset of its key and value */
  const int32_t* token_rows;   /**< [token_count]: index of its row in the step */
  const int32_t* row_starts;   /**< [row_count + 1] */
  const int32_t* row_ids;      /**< [row_count]: row of the page table */
  const int32_t* kv_lengths;   /**< [row_count]: keys after this step's are written */
  const uint64_t* row_keys;    /**< [row_count]: identifies the sequence; for tests only */
  const int32_t* change_slots; /**< [change_count]: row * row_pages + index */
  const int32_t* change_pages; /**< [change_count]: the new page of that entry */
  const int32_t* sample_tokens; /**< [sample_count]: index of the token whose logits are sampled */
  /** [sample_count]: the row of the page table whose last token this becomes; -1: none */
  const int32_t* sample_rows;
  const float* temperature;         /**< [sample_count]; 0: argmax */
  const int32_t* top_k;             /**< [sample_count]; 0: off */
  const float* top_p;               /**< [sample_count]; 1: off */
  const float* min_p;               /**< [sample_count]; 0: off */
  const uint32_t* seeds;            /**< [2 * sample_count]: low and high words */
  const int32_t* sample_positions;  /**< [sample_count]: position of the token to be drawn */
  const accrt_serve_edits_t* edits; /**< [sample_count] */
  /** [row_count]: the place of the row's adapter; -1: none. NULL: no row has one */
  const int32_t* row_adapters;
  /** how many of the rows compute an embedding and sample nothing. They are the last rows, and
   * their tokens come after all others */
  uint32_t embed_row_count;
  uint32_t embed_count;
  const int32_t* embed_tokens; /**< [embed_count]: index of the token whose hidden row is given */
  /** [copy_count]: before the step computes anything, the model copies keys and values of
   * `copy_tokens[i]` slots, from slot `copy_from[i]` on to slot `copy_to[i]` on. The source slots
   * lie in one page, and earlier steps have written them. No other copy of the step, and no other
   * sequence, uses the target's page */
  const int32_t* copy_from;
  const int32_t* copy_to;
  const int32_t* copy_tokens;
  uint32_t copy_count;
  uint32_t reserved; /**< 0 */
} accrt_serve_step_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_step_t, reserved, 256);

/** Which tokens are allowed for the samples of a step. Valid until `sample` returns. */
typedef struct accrt_serve_masks {
  uint32_t struct_size;
  uint32_t count; /**< masks */
  const accrt_chain_t* next;
  const int32_t* rows;  /**< [sample_count]: the mask of each sample; -1: all tokens are allowed */
  const uint32_t* bits; /**< [count * words]: bit t % 32 of word t / 32 is 1: token t is allowed */
  uint32_t words;       /**< of a mask: (vocab_size + 31) / 32 */
  uint32_t reserved;    /**< 0 */
} accrt_serve_masks_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_masks_t, reserved, 40);

/** The results of a step. A model fills it in `wait`; its arrays are valid until the model's next
 * `wait`. A request fails with ACCRT_ERROR_KERNEL if its token is outside [0, vocab_size), or if an
 * array that it wants is NULL; without `tokens` the step fails, also with ACCRT_ERROR_KERNEL. */
typedef struct accrt_serve_results {
  uint32_t struct_size;
  uint32_t top_count;        /**< alternatives of each sample in top_tokens and top_logprobs */
  void* next;                /**< NULL */
  const int32_t* tokens;     /**< [sample_count] */
  const float* logprobs;     /**< [sample_count] of the chosen token; NULL: not asked for */
  const int32_t* ranks;      /**< [sample_count]: 1 for the most probable token; may be NULL */
  const int32_t* top_tokens; /**< [sample_count * top_count], the most probable first */
  const float* top_logprobs; /**< [sample_count * top_count] */
  /** [embed_count * embedding_size]: hidden rows, as the head gets them */
  const float* embeddings;
} accrt_serve_results_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_results_t, embeddings, 64);

/** One tensor of an adapter, for one of the tensors that the model has for adapters. Frozen. */
typedef struct accrt_serve_adapter_tensor {
  const char* name; /**< of a step program: the state that holds it for all adapters */
  const void* data; /**< one adapter's row of that state */
  uint64_t size_bytes;
} accrt_serve_adapter_tensor_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_adapter_tensor_t, size_bytes, 24);

/** The functions of a model. The engine calls them from one thread at a time, not under a lock. If
 * `submit` or `wait` fails, the step ends: the engine calls `reset` and computes the step's
 * sequences again. */
typedef struct accrt_serve_model_functions {
  uint32_t struct_size;
  uint32_t flags; /**< 0 or ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  void* self;
  /** fills in what the model can do; called once, when it is wrapped */
  accrt_status_t (*info)(void* self, accrt_serve_model_info_t* out_info);
  /** begins a step; may return before it is complete */
  accrt_status_t (*submit)(void* self, const accrt_serve_step_t* step);
  /** waits for the oldest step that was submitted and not waited for; `number` is its number */
  accrt_status_t (*wait)(void* self, uint64_t number, accrt_serve_results_t* out_results);
  /** after a failure: drops all steps; keys and values may be lost. NULL: the model cannot be
   * reset, and the engine ends with its first failure */
  accrt_status_t (*reset)(void* self);
  void (*destroy)(void* self); /**< with the last reference; NULL: nothing to do */
  /** draws the samples of the step that was submitted last, whose flags have
   * ACCRT_SERVE_STEP_MASKS; may return before it is complete. NULL: the model takes no masks, and
   * requests with a constraint are refused */
  accrt_status_t (*sample)(void* self, const accrt_serve_step_t* step,
                           const accrt_serve_masks_t* masks);
  /** as accrt_serve_model_prepare; NULL: nothing is prepared */
  accrt_status_t (*prepare)(void* self, uint32_t* out_left);
  /** Puts an adapter into a place that no step in flight uses. Parts of the place that no tensor
   * names become zeros; without any tensor, the place is emptied. The function checks everything
   * before it changes anything. `reset` keeps adapters. NULL: the model has no adapters */
  accrt_status_t (*set_adapter)(void* self, uint32_t place,
                                const accrt_serve_adapter_tensor_t* tensors, uint32_t tensor_count);
} accrt_serve_model_functions_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_model_functions_t, set_adapter, 88);
#define ACCRT_SERVE_MODEL_FUNCTIONS_INIT ACCRT_STRUCT_INIT(accrt_serve_model_functions_t)

/** Makes a model of the caller's functions. `functions` is copied. If this function fails,
 * `destroy` is not called.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (`info` gives values that do not fit together);
 *   ACCRT_ERROR_OUT_OF_MEMORY; the status of `info`. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_model_wrap(const accrt_serve_model_functions_t* functions,
                                                accrt_serve_model_t** out_model);
/** Adds a reference; returns its argument. Since: 0.4 */
ACCRT_API accrt_serve_model_t* accrt_serve_model_retain(accrt_serve_model_t* model);
/** Drops a reference; NULL is allowed. Since: 0.4 */
ACCRT_API void accrt_serve_model_release(accrt_serve_model_t* model);
/** What the model can do. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_model_info(accrt_serve_model_t* model,
                                                accrt_serve_model_info_t* out_info);

/** Prepares one kind of step: on a GPU, the plan and the graph for one combination of numbers of
 * tokens and rows. If a kind is not prepared, the first step that needs it prepares it. Call this
 * function before you make an engine of the model, until `*out_left` is 0.
 * @param out_left kinds that are not prepared yet.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (an engine has the model); what the model returns.
 *   Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_model_prepare(accrt_serve_model_t* model, uint32_t* out_left);

/** Options of a model over a bundle's step program. Zeros are good defaults. */
typedef struct accrt_serve_program_options {
  uint32_t struct_size;
  uint32_t flags; /**< 0 or ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  uint32_t max_rows;   /**< sequences at once; 0: the bundle's maximum */
  uint32_t max_tokens; /**< tokens of a step; 0: the bundle's maximum */
  uint32_t max_length; /**< tokens of a sequence; 0: the bundle's maximum */
  uint32_t pages;      /**< for keys and values; 0: as many as `kv_bytes` holds */
  /** memory for keys and values. 0: on hosts a quarter of the memory, at most 1 GiB; on a device
   * with memory of its own four times the program's weights, but at least 1 GiB and at least what
   * one sequence of max_length takes, and never more than nine tenths of that memory, less what the
   * process already uses there and what a step needs. There are never more pages than max_rows
   * sequences of max_length can use */
  uint64_t kv_bytes;
} accrt_serve_program_options_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_program_options_t, kv_bytes, 40);
#define ACCRT_SERVE_PROGRAM_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_serve_program_options_t)

/** What a model over a step program takes, in bytes, and its sizes. */
typedef struct accrt_serve_memory {
  uint32_t struct_size;
  uint32_t max_rows, max_tokens, max_length; /**< as in the options, with the defaults */
  uint32_t pages, row_pages;
  uint64_t page_bytes;
  uint64_t kv_bytes;        /**< pages * page_bytes */
  uint64_t state_bytes;     /**< of the session: keys and values, and the page table */
  uint64_t transient_bytes; /**< of the largest step */
  uint64_t result_bytes;    /**< of the largest step */
  uint64_t weight_bytes;    /**< of the program; already allocated */
  uint32_t max_samples;     /**< of a step */
  uint32_t reserved;        /**< 0 */
} accrt_serve_memory_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_memory_t, reserved, 80);
#define ACCRT_SERVE_MEMORY_INIT ACCRT_STRUCT_INIT(accrt_serve_memory_t)

/** Tells how much memory accrt_serve_model_open_program would allocate. Nothing stays allocated.
 * @param options NULL for the defaults.
 * @return as accrt_serve_model_open_program. Thread-safe. Blocks: it makes a plan. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_program_memory(accrt_device_t* device,
                                                    accrt_program_t* program,
                                                    const accrt_serve_program_options_t* options,
                                                    accrt_serve_memory_t* out_memory);

/** Makes a model of a bundle's step program (docs/serving-model.md). It has a session of its own,
 * whose keys and values are allocated here. Retains the program.
 * @param device the program's device; any other is ACCRT_ERROR_INVALID_ARGUMENT. On one with
 *   memory of its own the model overlaps steps (ACCRT_SERVE_MODEL_OVERLAP).
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (metadata or a function that a step program has);
 *   ACCRT_ERROR_INVALID_FORMAT (metadata with wrong values); ACCRT_ERROR_VERSION_MISMATCH (a step
 *   program of another version); ACCRT_ERROR_OUT_OF_RANGE (an option is above the bundle's);
 *   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY (no page fits); ACCRT_ERROR_OUT_OF_MEMORY; as
 *   accrt_session_create. Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_model_open_program(
    accrt_device_t* device, accrt_program_t* program, const accrt_serve_program_options_t* options,
    accrt_serve_model_t** out_model);

/** Options of accrt_serve_model_create_simulated. Zeros are good defaults. */
typedef struct accrt_serve_simulation {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_SERVE_MODEL_*, ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  uint32_t vocab_size; /**< 0: 256. Token t below 256 stands for byte t, others for "<t>" */
  uint32_t page_size;  /**< 0: 16 */
  uint32_t page_count; /**< 0: 4096 */
  uint32_t max_rows;   /**< 0: 256 */
  uint32_t max_tokens; /**< 0: 2048 */
  uint32_t max_length; /**< 0: 4096 */
  int32_t eos;         /**< a token that ends sequences; -1: none. Without options: none */
  uint32_t fail_every; /**< one of this many steps fails; 0: none */
  uint64_t step_ns;    /**< time of a step, without its tokens */
  uint64_t token_ns;   /**< time of each token of a step, in addition */
  /** a step adds its time here instead of sleeping; an engine's clock may read it; may be NULL */
  uint64_t* time_ns;
  /** places for adapters. A tensor of an adapter may have any name; its bytes change the next
   * token */
  uint32_t adapter_count;
  uint32_t max_samples; /**< 0: the smaller of 512 and max_tokens, but at least max_rows */
  /** above 0: a token depends only on the one before it, so that texts repeat themselves; but one
   * of this many tokens depends on all tokens before it */
  uint32_t repeat;
  uint32_t embedding_size;  /**< at most 4,096; 0: no embeddings */
  uint32_t min_copy_tokens; /**< as in the model's info */
} accrt_serve_simulation_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_simulation_t, min_copy_tokens, 96);
#define ACCRT_SERVE_SIMULATION_INIT ACCRT_STRUCT_INIT(accrt_serve_simulation_t)

/** Makes a model that computes nothing: the next token is a hash of the tokens before it, which it
 * finds through the page table as attention would. It writes the sequence's history into each page
 * and fails a step that reads what another sequence wrote, so it finds faults of the scheduler. For
 * tests and for simulation in virtual time.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (a vocabulary of more than 2^18 tokens, more than 2^22
 *   slots, 2^12 rows, 2^20 tokens of a step, or 2^26 tokens of all rows together);
 *   ACCRT_ERROR_INVALID_ARGUMENT (flags, or inconsistent options); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_model_create_simulated(const accrt_serve_simulation_t* options,
                                                            accrt_serve_model_t** out_model);

/* ---- Engines ---- */

/** the engine steps on a thread of its own; accrt_serve_engine_step is refused */
#define ACCRT_SERVE_ENGINE_THREAD 1u
/** no prefix cache: each request computes its whole prompt */
#define ACCRT_SERVE_ENGINE_NO_CACHE 2u
/** wait for each step before the next one is scheduled, even if the model could overlap them */
#define ACCRT_SERVE_ENGINE_NO_OVERLAP 4u
/** a request with a seed gets the same tokens and log probabilities, bit for bit, alone and beside
 * any other requests: the model must have ACCRT_SERVE_MODEL_BATCH_INVARIANT */
#define ACCRT_SERVE_ENGINE_BATCH_INVARIANT 8u

/** Options of accrt_serve_engine_create. Zeros are good defaults. */
typedef struct accrt_serve_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_SERVE_ENGINE_*, ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  const accrt_allocator_t* allocator; /**< copied; NULL: the C library's */
  const accrt_serve_clock_t* clock;   /**< copied; NULL: accrt_serve_now_ns */
  uint32_t max_step_tokens;           /**< tokens of a step; 0: the model's maximum */
  uint32_t max_running;               /**< sequences at once; 0: the model's maximum */
  uint32_t max_chunk_tokens;  /**< of one prompt in a step; 0: as many as the step has room for */
  uint32_t max_queued;        /**< requests that wait; 0: 1024 */
  uint64_t max_queued_tokens; /**< prompt tokens of requests that wait; 0: no limit */
  /** how often a sequence is preempted before other sequences are preferred as victims; 0: 3 */
  uint32_t max_preemptions;
  uint32_t max_failures; /**< failed steps that a request survives; 0: 1 */
  uint32_t fair_tokens;  /**< tokens of a tenant's turn; 0: 2048 */
  /** for requests that do not set it: how many tokens a step guesses from the sequence's own text
   * and computes along with the last token. The sampled tokens do not change. 0: none */
  uint32_t num_speculative_tokens;
  uint64_t seed; /**< of requests without a seed; 0: a random one */
  /** target time of a step in which a sequence samples tokens. The engine measures steps, and makes
   * chunks of prompts so small that a step keeps to this time, but at least 16 tokens (or a page,
   * if that is less). 0: no limit, and the content of a step does not depend on time */
  uint64_t max_step_ns;
  /** to guess, the engine looks for the last tokens of the text at an earlier place: for at most
   * `prompt_lookup_max` of them (0: 4) and at least `prompt_lookup_min` (0: 2, or the maximum if
   * that is less); both at most 32 */
  uint32_t prompt_lookup_max, prompt_lookup_min;
} accrt_serve_options_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_options_t, prompt_lookup_min, 96);
#define ACCRT_SERVE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_serve_options_t)

/** Makes an engine. Retains the model, which must have no other one (ACCRT_ERROR_INVALID_STATE).
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (a limit is above the model's, or a step has fewer
 *   tokens than sequences); ACCRT_ERROR_INVALID_FORMAT (the model's token bytes);
 *   ACCRT_ERROR_UNSUPPORTED (the model is not batch-invariant, and the options demand it);
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_IO (no descriptor, no thread). Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_create(accrt_serve_model_t* model,
                                                   const accrt_serve_options_t* options,
                                                   accrt_serve_engine_t** out_engine);
/** Adds a reference; returns its argument. Since: 0.4 */
ACCRT_API accrt_serve_engine_t* accrt_serve_engine_retain(accrt_serve_engine_t* engine);
/** The flags of its options. ACCRT_SERVE_VALIDATE is among them if the engine is validated, no
 * matter what asked for it. 0 for NULL. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API uint32_t accrt_serve_engine_flags(accrt_serve_engine_t* engine);
/** Drops a reference; NULL is allowed. The last one ends the engine's thread after its step, drops
 * all requests without sending events, and frees the engine. Blocks. Since: 0.4 */
ACCRT_API void accrt_serve_engine_release(accrt_serve_engine_t* engine);
/** The engine's model, lent. Since: 0.4 */
ACCRT_API accrt_serve_model_t* accrt_serve_engine_model(accrt_serve_engine_t* engine);
/** The instance in whose registry (accrt/counters.h) the engine's counters are, lent: that of the
 * model's program. If the caller's functions or a simulation are the model, the engine has an
 * instance of its own, without drivers. The group is named "accrt_serve_engine", and its `self` is
 * the engine. docs/server.md lists the counters. NULL for NULL. Since: 0.4 */
ACCRT_API accrt_instance_t* accrt_serve_engine_instance(accrt_serve_engine_t* engine);

/* ---- Constraints ---- */

/** The functions of a constraint, such as a grammar: it says which tokens a sequence may have. Each
 * sequence has a *state*; one thread at a time calls functions with it. A constraint does not
 * handle end tokens: it says where the sequence may end. */
typedef struct accrt_serve_constraint_functions {
  uint32_t struct_size;
  uint32_t flags; /**< 0 or ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  void* self;
  /** makes the state of a sequence without tokens; called by any thread */
  accrt_status_t (*start)(void* self, void** out_state);
  /** Says which tokens may come next: sets bit t % 32 of mask[t / 32] for token t. Called by any
   * thread.
   * @param mask `words` words, all 0 before.
   * @param out_may_end 1: the sequence may end here. */
  accrt_status_t (*mask)(void* state, uint32_t* mask, uint32_t words, uint32_t* out_may_end);
  /** takes a token that the mask allowed; `out_ended` 1: no token may follow, so the sequence
   * ends */
  accrt_status_t (*advance)(void* state, int32_t token, uint32_t* out_ended);
  void (*stop)(void* state);   /**< the state is not used any more; called by any thread */
  void (*destroy)(void* self); /**< with the last reference; NULL: nothing to do */
} accrt_serve_constraint_functions_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_constraint_functions_t, destroy, 64);
#define ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT ACCRT_STRUCT_INIT(accrt_serve_constraint_functions_t)

/** Makes a constraint of the caller's functions, for any number of requests. `functions` is copied.
 * If this function fails, `destroy` is not called.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (a function is missing);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_constraint_create(
    const accrt_serve_constraint_functions_t* functions, accrt_serve_constraint_t** out_constraint);
/** Adds a reference; returns its argument. Since: 0.4 */
ACCRT_API accrt_serve_constraint_t*
accrt_serve_constraint_retain(accrt_serve_constraint_t* constraint);
/** Drops a reference; NULL is allowed. Since: 0.4 */
ACCRT_API void accrt_serve_constraint_release(accrt_serve_constraint_t* constraint);

/** What a grammar is written in. */
#define ACCRT_SERVE_GRAMMAR_JSON_SCHEMA 1u
#define ACCRT_SERVE_GRAMMAR_REGEX 2u /**< as Rust's crate `regex` has it; the whole text matches */
#define ACCRT_SERVE_GRAMMAR_LARK 3u  /**< llguidance's variant of Lark's grammars */

/** Opens llguidance, a separate library that computes masks of grammars, for a model's tokens.
 * Retains the model.
 * @param path the library: an absolute path, or a name without slashes, which the system looks for;
 *   NULL: `libllguidance.so`. The Python package `llguidance` has it as its extension module, which
 *   a process with Python can open. The library is checked like a kernel pack: the file and the
 *   folders above it must belong to root, to this user or to the owner of this library's file, and
 *   no other user may write to them.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (there is no such library, it lacks a function, or the
 *   model has no token bytes); ACCRT_ERROR_INVALID_ARGUMENT (a relative path);
 *   ACCRT_ERROR_PERMISSION_DENIED (others may write to the library or to a folder above it, or
 *   LD_LIBRARY_PATH leads to it through a folder that is no absolute path or that others may write
 *   to); ACCRT_ERROR_IO (the path cannot be examined); ACCRT_ERROR_INVALID_FORMAT (token bytes that
 *   llguidance refuses; a library that is no shared object of this machine, or is cut);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Blocks: it reads the vocabulary. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_grammars_open(accrt_serve_model_t* model, const char* path,
                                                   accrt_serve_grammars_t** out_grammars);
/** Adds a reference; returns its argument. Since: 0.4 */
ACCRT_API accrt_serve_grammars_t* accrt_serve_grammars_retain(accrt_serve_grammars_t* grammars);
/** Drops a reference; NULL is allowed. Each constraint has a reference, too. Since: 0.4 */
ACCRT_API void accrt_serve_grammars_release(accrt_serve_grammars_t* grammars);
/** Makes a constraint of a grammar, for any number of requests of engines of that model.
 * @param kind ACCRT_SERVE_GRAMMAR_*; @param text UTF-8, at most 256 KiB.
 * @param out_constraint owned.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_FORMAT (the grammar: the message says what is wrong with
 *   it); ACCRT_ERROR_OUT_OF_MEMORY. Thread-safe. Blocks: it compiles the grammar, on a thread of
 *   its own. Long expressions take time with the square of their length. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_grammars_constraint(accrt_serve_grammars_t* grammars,
                                                         uint32_t kind, const char* text,
                                                         accrt_serve_constraint_t** out_constraint);

/* ---- Adapters ---- */

/** Puts a LoRA adapter into one of the model's places, between two steps. From then on, requests
 * may name it. Adapters share no pages of the prefix cache, not even with an earlier adapter of the
 * same name. Thread-safe if the engine has a thread, else as accrt_serve_engine_step.
 * @param name UTF-8; copied.
 * @param tensors the adapter's tensors; copied. Parts of the place that no tensor names become
 *   zeros.
 * @param tensor_size_bytes sizeof(accrt_serve_adapter_tensor_t).
 * @return ACCRT_OK; ACCRT_ERROR_ALREADY_EXISTS (one of that name is loaded, or is being loaded);
 *   ACCRT_ERROR_NOT_READY (all places are taken); ACCRT_ERROR_UNSUPPORTED (the model has no
 *   places); ACCRT_ERROR_INVALID_ARGUMENT (an empty name); ACCRT_ERROR_INVALID_STATE (called by
 *   the model in a step); ACCRT_ERROR_POISONED; ACCRT_ERROR_OUT_OF_MEMORY; what the model's
 *   `set_adapter` returns: of a step program ACCRT_ERROR_NOT_FOUND (a tensor that it has no place
 *   for) and ACCRT_ERROR_SHAPE_MISMATCH (one of another size). Blocks on a step that is under way.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_load_adapter(
    accrt_serve_engine_t* engine, const char* name, const accrt_serve_adapter_tensor_t* tensors,
    uint32_t tensor_count, uint32_t tensor_size_bytes);
/** Removes an adapter when no request uses it. From now on requests that name it are refused. If
 * requests still use it at the time limit, the adapter stays, and requests may name it again. If
 * the engine has no thread of its own, the function does not wait, because no request would end
 * meanwhile. Thread-safe if the engine has a thread, else as accrt_serve_engine_step.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (no adapter of that name is loaded);
 *   ACCRT_ERROR_NOT_READY (requests use it still). Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_unload_adapter(accrt_serve_engine_t* engine,
                                                           const char* name, uint64_t timeout_ns);
/** Writes the names that requests may have now, each with its NUL, in the order of their places. It
 * writes as many bytes as fit.
 * @param names may be NULL if capacity_bytes is 0; @param out_size_bytes the size of all names;
 *   @param out_count how many there are. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_adapters(accrt_serve_engine_t* engine, char* names,
                                                     uint64_t capacity_bytes,
                                                     uint64_t* out_size_bytes, uint32_t* out_count);

/* ---- Requests ---- */

#define ACCRT_SERVE_IGNORE_EOS 1u /**< the model's end tokens do not end a sequence */
#define ACCRT_SERVE_SEED 2u       /**< `seed` is set */
#define ACCRT_SERVE_LOGPROBS 4u   /**< events have log probabilities */
#define ACCRT_SERVE_NO_CACHE 8u   /**< the request shares no pages with other requests */
#define ACCRT_SERVE_KEEP_STOP 16u /**< a stop string that was found is part of the text */
/** special tokens are part of the text, except those that end it */
#define ACCRT_SERVE_SPECIAL 32u
#define ACCRT_SERVE_PROMPT_LOGPROBS                                                                \
  64u /**< an event has the log probabilities of the prompt's own tokens */
#define ACCRT_SERVE_SCORE_ONLY                                                                     \
  128u /**< with ACCRT_SERVE_PROMPT_LOGPROBS and max_new_tokens 0: nothing is generated */
#define ACCRT_SERVE_NO_SPECULATION 256u /**< no drafts, even if the engine's options ask for them */

/** the embedding is not divided by its norm */
#define ACCRT_SERVE_EMBED_RAW 512u

/** How the rows of a prompt's tokens become one embedding. */
#define ACCRT_SERVE_EMBED_LAST 1u /**< the row of the last token */
#define ACCRT_SERVE_EMBED_MEAN 2u /**< the mean of all rows; no page is taken from the cache */

/** Least and greatest priority number. Lower numbers are served first. */
#define ACCRT_SERVE_PRIORITY_FIRST (-8)
#define ACCRT_SERVE_PRIORITY_LAST 7

/** A number that is added to a token's logit. Frozen. */
typedef struct accrt_serve_bias {
  int32_t token;
  float bias; /**< -infinity bans the token */
} accrt_serve_bias_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_bias_t, bias, 8);

/** What to generate. If all fields but the size, the prompt and max_new_tokens are zero, decoding
 * is greedy. Everything that the struct points to is copied. */
typedef struct accrt_serve_request {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_SERVE_* above */
  const accrt_chain_t* next;
  const int32_t* prompt;           /**< token ids */
  uint32_t prompt_count;           /**< at least 1 */
  uint32_t max_new_tokens;         /**< 0: as many as the model's length allows */
  uint32_t min_new_tokens;         /**< no end token and no stop token comes before this many */
  uint32_t n;                      /**< sequences of this prompt; 0: 1 */
  const int32_t* stop_tokens;      /**< end a sequence, and are its last token */
  uint32_t stop_token_count;       /**< at most 1,024 */
  uint32_t stop_string_count;      /**< at most 1,024 */
  const char* const* stop_strings; /**< UTF-8; the text ends before the first one that appears */
  float temperature;               /**< 0: argmax */
  float top_p;                     /**< 0, 1: off */
  float min_p;                     /**< 0: off */
  int32_t top_k;                   /**< 0: off */
  float repetition_penalty;        /**< of tokens in prompt and output; 0, 1: off */
  float presence_penalty;          /**< taken from the logit of tokens in the output */
  float frequency_penalty;         /**< the same for each time that the token was drawn */
  uint32_t bias_count;
  const accrt_serve_bias_t* biases; /**< no token twice */
  uint64_t seed; /**< with ACCRT_SERVE_SEED: the same tokens each time, beside any other requests */
  uint32_t top_logprobs; /**< alternatives of each token, with ACCRT_SERVE_LOGPROBS */
  int32_t priority;      /**< ACCRT_SERVE_PRIORITY_FIRST to _LAST */
  uint64_t tenant;       /**< the user that it is for: tenants share the engine fairly */
  /** on the engine's clock; 0: none. The request ends at that time. If it still waits, it ends as
   * soon as it could no longer be complete in time, judged by the last requests */
  uint64_t deadline_ns;
  /** a request shares pages only with requests that have the same text here; NULL: with those that
   * have none */
  const char* cache_salt;
  void* user_data; /**< its events carry it */
  /** which tokens each of its sequences may have; retained; NULL: any. End and stop tokens come
   * only where a sequence may end, and end it even with ACCRT_SERVE_IGNORE_EOS or before
   * min_new_tokens if nothing else may come */
  accrt_serve_constraint_t* constraint;
  const char* adapter; /**< the name of a loaded adapter; NULL: none */
  /** alternatives of each of the prompt's tokens, with ACCRT_SERVE_PROMPT_LOGPROBS */
  uint32_t prompt_top_logprobs;
  uint32_t num_speculative_tokens; /**< as the engine's option; 0: the engine's value */
  /** ACCRT_SERVE_EMBED_*: nothing is generated, and the prompt's embedding comes with the event
   * that ends the request. 0: the prompt is continued */
  uint32_t embed;
  uint32_t embed_dimensions; /**< how many of the embedding's first numbers are given; 0: all */
} accrt_serve_request_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_request_t, embed_dimensions, 184);
#define ACCRT_SERVE_REQUEST_INIT ACCRT_STRUCT_INIT(accrt_serve_request_t)

/** Puts a request into the queue. Thread-safe. It waits for no step.
 * @param out_id the request's number, from 1, never used again; may be NULL.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_READY (the queue is full: try again later; the message has the
 *   limit); ACCRT_ERROR_OUT_OF_RANGE (a token id, a parameter outside its range, or more tokens
 *   than the model's length or its pages hold: the message says which); ACCRT_ERROR_UNSUPPORTED
 *   (stop strings, and the model has no token bytes; a constraint, and the model takes no masks);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a constraint of another model's grammars);
 *   ACCRT_ERROR_NOT_FOUND (no adapter of that name is loaded); what the constraint's `start`
 *   returns; ACCRT_ERROR_TIMEOUT (the deadline is past);
 *   ACCRT_ERROR_INVALID_STATE (the engine drains); ACCRT_ERROR_POISONED (the engine has failed);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_submit(accrt_serve_engine_t* engine,
                                                   const accrt_serve_request_t* request,
                                                   uint64_t* out_id);
/** Ends a request. Its sequences get their last events at the next step, and their pages are free
 * then, or one step later if the model overlaps steps. Thread-safe, never blocks.
 * @return ACCRT_OK (also for a request that was cancelled before); ACCRT_ERROR_NOT_FOUND (there is
 *   no such request, or it has ended). Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_cancel(accrt_serve_engine_t* engine, uint64_t id);

/* ---- Events ---- */

#define ACCRT_SERVE_EVENT_TOKENS 1u   /**< new tokens of a sequence, with their text */
#define ACCRT_SERVE_EVENT_FINISHED 2u /**< its last tokens, and why it ended */
#define ACCRT_SERVE_EVENT_FAILED 3u   /**< it ended with a failure: see `status` */
/** comes once for a request with ACCRT_SERVE_PROMPT_LOGPROBS, before its tokens. `tokens` are those
 * of the prompt. `logprobs` has 1 + top_count entries for each, its own first. The entries of the
 * first token are 0 and mean nothing, because no token is before it. A token that the model cannot
 * give has -infinity */
#define ACCRT_SERVE_EVENT_PROMPT 4u

#define ACCRT_SERVE_FINISH_STOP 1u      /**< an end or stop token, a stop string; an embedding */
#define ACCRT_SERVE_FINISH_LENGTH 2u    /**< max_new_tokens; a prompt that was only scored */
#define ACCRT_SERVE_FINISH_CANCELLED 3u /**< accrt_serve_engine_cancel */
#define ACCRT_SERVE_FINISH_DEADLINE 4u  /**< deadline_ns has passed */
#define ACCRT_SERVE_FINISH_FAILED 5u    /**< in events of ACCRT_SERVE_EVENT_FAILED */

/** The log probability of a token. Frozen. */
typedef struct accrt_serve_logprob {
  int32_t token;
  float logprob; /**< natural logarithm, of the logits as the model gave them */
} accrt_serve_logprob_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_logprob_t, logprob, 8);

/** An event of a sequence. The tokens and the text of all its events, one after the other, are its
 * output. Text is valid UTF-8. Text that may be part of a stop string is held back until later
 * tokens show whether it is, so tokens may come before their text. */
typedef struct accrt_serve_event {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_SERVE_EVENT_* */
  void* next;    /**< NULL */
  uint64_t request;
  void* user_data;       /**< of the request */
  uint32_t sequence;     /**< 0 to n - 1 */
  uint32_t last;         /**< 1: the last event of the request */
  const int32_t* tokens; /**< lent until the next poll */
  const char* text;      /**< lent until the next poll; not NUL-terminated */
  uint32_t token_count;
  uint32_t text_size_bytes;
  /** with ACCRT_SERVE_LOGPROBS: for each token 1 + top_count entries, the sampled token first; lent
   * until the next poll; else NULL. In events of ACCRT_SERVE_EVENT_PROMPT, those of the prompt */
  const accrt_serve_logprob_t* logprobs;
  uint32_t top_count;
  uint32_t finish_reason; /**< ACCRT_SERVE_FINISH_*; 0: it goes on */
  int32_t stop_token;     /**< the token that ended it; -1: none did */
  int32_t stop_string;    /**< index of the stop string that ended it; -1: none did */
  /** of ACCRT_SERVE_EVENT_FAILED. ACCRT_ERROR_KERNEL: a kernel failed, or the model gave an invalid
   * token, or numbers that are not finite (for example, if its weights have NaN or infinity) */
  accrt_status_t status;
  uint32_t prompt_tokens; /**< in the last event of a sequence: tokens of the prompt */
  uint32_t cached_tokens; /**< of prompt_tokens: those in the cache when the sequence began */
  uint32_t output_tokens; /**< tokens of this sequence */
  uint64_t time_ns;       /**< when it was made, on the engine's clock */
  const float* embedding; /**< of a request with `embed`; lent until the next poll; else NULL */
  uint32_t embedding_size;
  uint32_t reserved; /**< 0 */
} accrt_serve_event_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_event_t, reserved, 128);

/** Takes events, the oldest first. Pointers in the events of the previous call are invalid from
 * then on. Externally synchronized: one thread at a time polls; other threads may call all other
 * functions meanwhile.
 * @param events filled in; @param event_size_bytes sizeof(accrt_serve_event_t).
 * @return ACCRT_OK; ACCRT_ERROR_NOT_READY (there is none). Never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_poll(accrt_serve_engine_t* engine,
                                                 accrt_serve_event_t* events,
                                                 uint32_t event_size_bytes, uint32_t capacity,
                                                 uint32_t* out_count);
/** A descriptor that is readable while events wait, and once when the engine has failed. The engine
 * owns it: use it with poll or epoll only. -1 for NULL. Since: 0.4 */
ACCRT_API int accrt_serve_engine_event_fd(accrt_serve_engine_t* engine);
/** Waits until there are events.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_POISONED (the engine has failed, and no events
 *   wait). Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_wait(accrt_serve_engine_t* engine, uint64_t timeout_ns);

/* ---- Steps ---- */

/** If there is work, schedules a step, submits it to the model, and takes the results of the oldest
 * step in flight. Externally synchronized.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_READY (nothing to do: no request waits or runs);
 *   ACCRT_ERROR_INVALID_STATE (the engine has a thread, or is in a step, on another thread or below
 *   this call); ACCRT_ERROR_POISONED (the model has failed and could not be reset, now or before).
 *   Blocks on the model. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_step(accrt_serve_engine_t* engine);
/** Refuses requests from now on and waits until the present ones have ended. If the engine has no
 * thread of its own, this function makes its steps. Thread-safe if the engine has a thread, else as
 * accrt_serve_engine_step. Events remain to be polled.
 * @return ACCRT_OK (all have ended); ACCRT_ERROR_TIMEOUT (they go on); ACCRT_ERROR_INVALID_STATE
 *   (the engine is in a step, on another thread or below this call: it takes requests as before);
 *   ACCRT_ERROR_POISONED. Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_drain(accrt_serve_engine_t* engine,
                                                  uint64_t timeout_ns);

/* ---- Figures ---- */

#define ACCRT_SERVE_HISTOGRAM_BUCKETS 24u
/** A histogram of times. Bucket b counts times up to 2^b times 62.5 us that are in no earlier
 * bucket; the last bucket counts all longer times. Frozen. */
typedef struct accrt_serve_histogram {
  uint64_t count;
  uint64_t sum_ns;
  uint64_t buckets[24]; /**< ACCRT_SERVE_HISTOGRAM_BUCKETS */
} accrt_serve_histogram_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_histogram_t, buckets, 208);

/** What an engine has and what it has done. Tokens and sequences are counted from its start. */
typedef struct accrt_serve_stats {
  uint32_t struct_size;
  uint32_t healthy;   /**< 0: the model has failed, or work waits and no step has ended for 30 s */
  void* next;         /**< NULL */
  uint32_t running;   /**< sequences that have pages */
  uint32_t waiting;   /**< requests in the queue */
  uint32_t preempted; /**< sequences that had pages and wait for them again */
  uint32_t max_running;    /**< as in the options */
  uint32_t pages;          /**< of the KV cache */
  uint32_t pages_free;     /**< without contents */
  uint32_t pages_cached;   /**< free, with contents that a prompt may share */
  uint32_t pages_pending;  /**< given back; a step in flight still uses them */
  uint64_t waiting_tokens; /**< prompt tokens of requests in the queue */
  uint64_t steps;
  uint64_t step_failures;
  uint64_t submitted; /**< requests */
  uint64_t refused;   /**< requests that found the queue full */
  uint64_t finished_stop, finished_length, finished_cancelled, finished_deadline, finished_failed;
  uint64_t preemptions;
  uint64_t prompt_tokens; /**< of all sequences, counted when each is admitted for the first time */
  uint64_t cached_tokens; /**< those of them that the cache had */
  uint64_t computed_tokens; /**< tokens of all steps */
  uint64_t output_tokens;
  uint64_t wasted_tokens; /**< sampled after a sequence's end was found, or lost to failures */
  uint64_t schedule_ns;   /**< time that the engine itself took in all steps */
  uint64_t model_ns;      /**< time in the model's functions */
  accrt_serve_histogram_t queue_time;  /**< from submission until the first step */
  accrt_serve_histogram_t first_token; /**< from submission until the first token */
  accrt_serve_histogram_t next_token;  /**< between tokens of a sequence */
  accrt_serve_histogram_t total_time;  /**< from submission until the end of a sequence */
  uint64_t hopeless; /**< of finished_deadline: never begun, since it could not end in time */
  /** estimate of the time until all waiting requests have begun; 0: not known */
  uint64_t queue_ns;
  uint32_t step_tokens;   /**< of a step in which a sequence draws tokens, by max_step_ns; 0: any */
  uint32_t adapters;      /**< that are loaded */
  uint64_t adapter_loads; /**< that succeeded */
  uint32_t adapter_places;  /**< for adapters */
  accrt_status_t failure;   /**< that ended the engine; ACCRT_OK: none */
  uint64_t drafts;          /**< times that a sequence had drafts in a step that has ended */
  uint64_t draft_tokens;    /**< tokens of those */
  uint64_t accepted_tokens; /**< of these: those that were drawn */
  uint64_t partial_hits;    /**< times that a sequence began with a copy of a part of a page */
  uint64_t copied_tokens;   /**< tokens of these copies */
} accrt_serve_stats_t;
ACCRT_ASSERT_LAYOUT(accrt_serve_stats_t, copied_tokens, 1104);
#define ACCRT_SERVE_STATS_INIT ACCRT_STRUCT_INIT(accrt_serve_stats_t)
/** Fills `out_stats` as of the end of the last step. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_stats(accrt_serve_engine_t* engine,
                                                  accrt_serve_stats_t* out_stats);
/** Writes the engine's state as JSON: its limits, its figures, and a line for each request (number,
 * state, tenant, priority, lengths, age). It writes as much as fits, NUL-terminated.
 * @param text may be NULL if capacity_bytes is 0; @param out_size_bytes the size of the whole text
 *   with its NUL. Thread-safe, never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_serve_engine_snapshot(accrt_serve_engine_t* engine, char* text,
                                                     uint64_t capacity_bytes,
                                                     uint64_t* out_size_bytes);

ACCRT_END
#endif /* ACCRT_SERVE_H_ */
