/* serve/grammars.c - constraints of grammars, by llguidance, which is opened at run time.
 *
 * What is declared here is the part of its C interface that is used.
 * Structs that it fills have room for fields of later versions. It is opened as libaccrt opens
 * libraries (safe_open.c, which is inside this library too).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/safe_open.h"
#include "serve/constraint.h"
#include "serve/model.h"
#include "serve/handles.h"
#include "serve/text.h"

/* ---- llguidance ---- */

typedef struct llg_tokenizer llg_tokenizer_t;
typedef struct llg_matcher llg_matcher_t;

typedef struct llg_tokenizer_init {
  uint32_t vocab_size;
  uint32_t end_token;
  const uint32_t* token_sizes;
  const uint8_t* token_bytes;
  const char* tokenizer_json;
  bool assumes_string;
  size_t (*tokenize)(const void*, const uint8_t*, size_t, uint32_t*, size_t);
  bool greedy; /* tokens of forced texts, which are not asked for */
  const void* tokenize_self;
  const char* const* slices;
  uint64_t later[16];
} llg_tokenizer_init_t;

typedef struct llg_init {
  const llg_tokenizer_t* tokenizer;
  uint32_t log_buffer_level;
  uint32_t log_stderr_level;
  bool fast_forward;
  bool backtrack;
  size_t max_items_in_row;
  uint64_t initial_lexer_fuel, step_lexer_fuel;
  size_t step_max_items, max_lexer_states, max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
  uint64_t later[16];
} llg_init_t;

typedef struct llg {
  llg_tokenizer_t* (*new_tokenizer)(const llg_tokenizer_init_t*, char*, size_t);
  void (*free_tokenizer)(llg_tokenizer_t*);
  void (*set_defaults)(llg_init_t*, const llg_tokenizer_t*);
  llg_matcher_t* (*new_matcher)(const llg_init_t*, const char*, const char*);
  llg_matcher_t* (*clone_matcher)(const llg_matcher_t*);
  void (*free_matcher)(llg_matcher_t*);
  const char* (*get_error)(llg_matcher_t*);
  size_t (*mask_bytes)(const llg_matcher_t*);
  int32_t (*compute_mask)(llg_matcher_t*, uint32_t*, size_t);
  int32_t (*consume_token)(llg_matcher_t*, uint32_t);
  bool (*is_stopped)(const llg_matcher_t*);
  bool (*is_error)(const llg_matcher_t*);
} llg_t;

struct accrt_serve_grammars {
  atomic_uint refs;
  accrt_serve_model_t* model;
  void* library;
  llg_t llg;
  llg_tokenizer_t* tokenizer;
  uint32_t vocab_size; /* of the model; the number is also that of an end token of our own */
};

/* A compiled grammar, and the state of a sequence: both have a matcher. */
typedef struct matcher {
  accrt_serve_grammars_t* grammars;
  llg_matcher_t* matcher;
  uint32_t* mask; /* with the bit of the end token; of a state */
  size_t mask_bytes;
} matcher_t;

static accrt_status_t find_functions(accrt_serve_grammars_t* grammars, const char* path) {
  llg_t* llg = &grammars->llg;
  const struct {
    const char* name;
    void* place;
  } functions[] = {
      {"llg_new_tokenizer", &llg->new_tokenizer},
      {"llg_free_tokenizer", &llg->free_tokenizer},
      {"llg_constraint_init_set_defaults", &llg->set_defaults},
      {"llg_new_matcher", &llg->new_matcher},
      {"llg_clone_matcher", &llg->clone_matcher},
      {"llg_free_matcher", &llg->free_matcher},
      {"llg_matcher_get_error", &llg->get_error},
      {"llg_matcher_get_mask_byte_size", &llg->mask_bytes},
      {"llg_matcher_compute_mask_into", &llg->compute_mask},
      {"llg_matcher_consume_token", &llg->consume_token},
      {"llg_matcher_is_stopped", &llg->is_stopped},
      {"llg_matcher_is_error", &llg->is_error},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    void* symbol = dlsym(grammars->library, functions[i].name);
    if (symbol == NULL)
      return ACCSV_FAIL(UNSUPPORTED, "%s has no function %s", path, functions[i].name);
    memcpy(functions[i].place, &symbol, sizeof symbol);
  }
  return ACCRT_OK;
}

/* ---- The vocabulary ---- */

/* llguidance knows special tokens by a first byte that no text has. Tokens without bytes get that
 * and their number. */
static uint32_t put_token(const accsv_vocabulary_t* vocabulary, uint32_t token, uint8_t* out) {
  uint32_t size;
  const unsigned char* bytes = accsv_vocabulary_bytes(vocabulary, (int32_t)token, false, &size);
  if (bytes != NULL && size > 0) {
    if (out != NULL)
      memcpy(out, bytes, size);
    return size;
  }
  char name[24];
  const int length = snprintf(name, sizeof name, "\xFF<[%" PRIu32 "]>", token);
  if (out != NULL)
    memcpy(out, name, (size_t)length);
  return (uint32_t)length;
}

static accrt_status_t make_tokenizer(accrt_serve_grammars_t* grammars,
                                     const accsv_vocabulary_t* vocabulary) {
  const uint32_t count = grammars->vocab_size + 1;
  size_t bytes = 0, used = 0;
  for (uint32_t token = 0; token < count; ++token)
    bytes += put_token(vocabulary, token < grammars->vocab_size ? token : UINT32_MAX, NULL);
  uint32_t* sizes;
  uint8_t* texts;
  ACCRT_TRY(ACCSV_NEW_UNSET(&accsv_allocator_system, count, &sizes));
  accrt_status_t status = ACCSV_NEW_UNSET(&accsv_allocator_system, bytes, &texts);
  if (status == ACCRT_OK) {
    for (uint32_t token = 0; token < count; ++token) {
      sizes[token] =
          put_token(vocabulary, token < grammars->vocab_size ? token : UINT32_MAX, texts + used);
      used += sizes[token];
    }
    const llg_tokenizer_init_t init = {.vocab_size = count,
                                       .end_token = grammars->vocab_size,
                                       .token_sizes = sizes,
                                       .token_bytes = texts,
                                       .greedy = true};
    char message[256] = "";
    grammars->tokenizer = grammars->llg.new_tokenizer(&init, message, sizeof message);
    if (grammars->tokenizer == NULL)
      status = ACCSV_FAIL(INVALID_FORMAT, "llguidance refuses the model's tokens: %s", message);
    ACCSV_FREE(&accsv_allocator_system, texts, bytes);
  }
  ACCSV_FREE(&accsv_allocator_system, sizes, count);
  return status;
}

/* The record says why the library was not opened. */
static accrt_status_t fail_to_open(accrt_status_t status) {
  accrt_error_t why = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&why);
  return accsv_fail(status == ACCRT_ERROR_NOT_FOUND ? ACCRT_ERROR_UNSUPPORTED : status,
                    "accrt_serve_grammars_open", __FILE__, (uint32_t)__LINE__,
                    "grammars need llguidance: %s", why.message);
}

static accrt_status_t open_library(accrt_serve_grammars_t* grammars, const char* path) {
  const accrt_serve_model_info_t* info = &grammars->model->info;
  accsv_vocabulary_t vocabulary;
  ACCRT_TRY(accsv_vocabulary_read(&vocabulary, info->token_bytes, info->token_bytes_size_bytes,
                                  info->vocab_size));
  if (vocabulary.count == 0)
    return ACCSV_FAIL(UNSUPPORTED, "grammars: the model does not know its tokens' text");
  grammars->vocab_size = info->vocab_size;
  const accrt_status_t status =
      accrt_library_open(path, ACCRT_LIBRARY_PATH_OR_SONAME, &grammars->library);
  if (status != ACCRT_OK)
    return fail_to_open(status);
  ACCRT_TRY(find_functions(grammars, path));
  return make_tokenizer(grammars, &vocabulary);
}

accrt_status_t accrt_serve_grammars_open(accrt_serve_model_t* model, const char* path,
                                         accrt_serve_grammars_t** out_grammars) {
  ACCSV_NOT_NULL(out_grammars);
  *out_grammars = NULL;
  ACCSV_NOT_NULL(model);
  accrt_serve_grammars_t* grammars;
  ACCRT_TRY(ACCSV_HANDLE_NEW(&accsv_allocator_system, &grammars));
  atomic_init(&grammars->refs, 1);
  grammars->model = accrt_serve_model_retain(model);
  const accrt_status_t status = open_library(grammars, path != NULL ? path : "libllguidance.so");
  if (status != ACCRT_OK) {
    accrt_serve_grammars_release(grammars);
    return status;
  }
  *out_grammars = grammars;
  return ACCRT_OK;
}

accrt_serve_grammars_t* accrt_serve_grammars_retain(accrt_serve_grammars_t* grammars) {
  if (grammars != NULL)
    (void)atomic_fetch_add_explicit(&grammars->refs, 1, memory_order_relaxed);
  return grammars;
}

/* The library stays open: it may have threads. */
void accrt_serve_grammars_release(accrt_serve_grammars_t* grammars) {
  /* Pairs with itself: the last one sees what all others did before. */
  if (grammars == NULL || atomic_fetch_sub_explicit(&grammars->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (grammars->tokenizer != NULL)
    grammars->llg.free_tokenizer(grammars->tokenizer);
  accrt_serve_model_release(grammars->model);
  ACCSV_HANDLE_FREE(&accsv_allocator_system, grammars);
}

/* ---- Matchers ---- */

static void free_matcher(void* self) {
  matcher_t* matcher = self;
  if (matcher->matcher != NULL)
    matcher->grammars->llg.free_matcher(matcher->matcher);
  ACCSV_FREE(&accsv_allocator_system, matcher->mask, matcher->mask_bytes / 4);
  accrt_serve_grammars_release(matcher->grammars);
  ACCSV_FREE(&accsv_allocator_system, matcher, 1);
}

/* What llguidance says is wrong, as one line. */
static accrt_status_t fail_with(accrt_status_t status, const matcher_t* matcher, const char* what) {
  const char* message = matcher->grammars->llg.get_error(matcher->matcher);
  if (message == NULL)
    message = "it does not say why";
  char line[400];
  size_t used = 0;
  for (; *message != 0 && used + 1 < sizeof line; ++message) {
    const bool space = *message == ' ' || *message == '\n' || *message == '\r';
    if (!space || (used > 0 && line[used - 1] != ' '))
      line[used++] = space ? ' ' : *message;
  }
  line[used] = 0;
  return accsv_fail(status, __func__, __FILE__, (uint32_t)__LINE__, "%s: %s", what, line);
}

static accrt_status_t start(void* self, void** out_state) {
  const matcher_t* grammar = self;
  const llg_t* llg = &grammar->grammars->llg;
  matcher_t* state;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &state));
  state->grammars = accrt_serve_grammars_retain(grammar->grammars);
  state->matcher = llg->clone_matcher(grammar->matcher);
  state->mask_bytes = llg->mask_bytes(state->matcher);
  const accrt_status_t status =
      ACCSV_NEW(&accsv_allocator_system, state->mask_bytes / 4, &state->mask);
  if (status != ACCRT_OK) {
    free_matcher(state);
    return status;
  }
  *out_state = state;
  return ACCRT_OK;
}

static accrt_status_t mask(void* self, uint32_t* out_mask, uint32_t words, uint32_t* out_may_end) {
  const matcher_t* state = self;
  const uint32_t end = state->grammars->vocab_size;
  if (state->grammars->llg.compute_mask(state->matcher, state->mask, state->mask_bytes) != 0)
    return fail_with(ACCRT_ERROR_OUT_OF_RANGE, state, "the grammar became too complex");
  const size_t bytes = words * sizeof *out_mask;
  memcpy(out_mask, state->mask, bytes < state->mask_bytes ? bytes : state->mask_bytes);
  *out_may_end = state->mask[end / 32] >> (end % 32) & 1;
  return ACCRT_OK;
}

static accrt_status_t advance(void* self, int32_t token, uint32_t* out_ended) {
  const matcher_t* state = self;
  const llg_t* llg = &state->grammars->llg;
  if (llg->consume_token(state->matcher, (uint32_t)token) != 0 || llg->is_error(state->matcher))
    return fail_with(ACCRT_ERROR_OUT_OF_RANGE, state, "the grammar refuses its token");
  *out_ended = llg->is_stopped(state->matcher);
  return ACCRT_OK;
}

/* ---- Grammars ---- */

/* llguidance looks into rules and expressions by calling itself, for some of a few bytes with some
 * KiB of stack. So the size of a text has a limit, and it is compiled on a stack for that. */
#define MOST_TEXT_BYTES ((size_t)256 << 10)
#define STACK_BYTES ((size_t)1 << 30) /* only what is used becomes memory */

/* The first mask is computed here: what it finds out, every sequence's matcher has from it. */
static accrt_status_t compile(matcher_t* grammar, const char* kind, const char* text) {
  const llg_t* llg = &grammar->grammars->llg;
  llg_init_t init = {0};
  llg->set_defaults(&init, grammar->grammars->tokenizer);
  init.log_stderr_level = 0;
  init.verbose_errors = false;
  grammar->matcher = llg->new_matcher(&init, kind, text);
  if (llg->get_error(grammar->matcher) != NULL)
    return fail_with(ACCRT_ERROR_INVALID_FORMAT, grammar, kind);
  grammar->mask_bytes = llg->mask_bytes(grammar->matcher);
  if (grammar->mask_bytes < grammar->grammars->vocab_size / 32 * 4 + 4)
    return ACCSV_FAIL(UNSUPPORTED, "llguidance has masks of %zu bytes for %" PRIu32 " tokens",
                      grammar->mask_bytes, grammar->grammars->vocab_size + 1);
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, grammar->mask_bytes / 4, &grammar->mask));
  if (llg->compute_mask(grammar->matcher, grammar->mask, grammar->mask_bytes) != 0)
    return fail_with(ACCRT_ERROR_INVALID_FORMAT, grammar, kind);
  return ACCRT_OK;
}

typedef struct compilation {
  matcher_t* grammar;
  const char *kind, *text;
  accrt_status_t status;
  accrt_error_t error; /* the record of that thread */
} compilation_t;

static void* run_compilation(void* user) {
  compilation_t* work = user;
  work->status = compile(work->grammar, work->kind, work->text);
  if (work->status != ACCRT_OK)
    (void)accrt_last_error(&work->error);
  return NULL;
}

static accrt_status_t compile_on_a_large_stack(matcher_t* grammar, const char* kind,
                                               const char* text) {
  compilation_t work = {.grammar = grammar, .kind = kind, .text = text, .error = ACCRT_ERROR_INIT};
  pthread_attr_t attributes;
  pthread_t thread;
  if (strnlen(text, MOST_TEXT_BYTES + 1) > MOST_TEXT_BYTES)
    return ACCSV_FAIL(INVALID_FORMAT, "%s: a text of more than %zu bytes", kind, MOST_TEXT_BYTES);
  if (pthread_attr_init(&attributes) != 0)
    return ACCSV_FAIL(OUT_OF_MEMORY, "no thread for a grammar");
  int failed = pthread_attr_setstacksize(&attributes, STACK_BYTES);
  if (failed == 0)
    failed = pthread_create(&thread, &attributes, run_compilation, &work);
  (void)pthread_attr_destroy(&attributes);
  if (failed != 0)
    return ACCSV_FAIL(OUT_OF_MEMORY, "no thread with a stack of %zu bytes for a grammar",
                      STACK_BYTES);
  (void)pthread_join(thread, NULL);
  if (work.status == ACCRT_OK)
    return ACCRT_OK;
  return accsv_fail(work.status, "accrt_serve_grammars_constraint", __FILE__, (uint32_t)__LINE__,
                    "%s", work.error.message);
}

accrt_status_t accrt_serve_grammars_constraint(accrt_serve_grammars_t* grammars, uint32_t kind,
                                               const char* text,
                                               accrt_serve_constraint_t** out_constraint) {
  static const char* const kinds[] = {NULL, "json_schema", "regex", "lark"};
  ACCSV_NOT_NULL(out_constraint);
  *out_constraint = NULL;
  ACCSV_NOT_NULL(grammars);
  ACCSV_NOT_NULL(text);
  if (kind == 0 || kind >= sizeof kinds / sizeof *kinds)
    return ACCSV_FAIL(INVALID_ARGUMENT, "no kind %" PRIu32 " of grammars", kind);
  matcher_t* grammar;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &grammar));
  grammar->grammars = accrt_serve_grammars_retain(grammars);
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.self = grammar;
  functions.start = start;
  functions.mask = mask;
  functions.advance = advance;
  functions.stop = free_matcher;
  functions.destroy = free_matcher;
  accrt_status_t status = compile_on_a_large_stack(grammar, kinds[kind], text);
  if (status == ACCRT_OK)
    status = accrt_serve_constraint_create(&functions, out_constraint);
  if (status == ACCRT_OK)
    (*out_constraint)->model = grammars->model;
  if (status != ACCRT_OK)
    free_matcher(grammar);
  return status;
}
