/* tests/serve/stand_in_llguidance.c - the functions of llguidance's C interface that
 * serve/grammars.c calls, for tests: every grammar allows every token, and "error" is none. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

typedef struct matcher {
  uint32_t vocab_size;
  bool wrong;
} matcher_t;

/* The first members of its structs: all that is looked at. */
typedef struct first {
  uint32_t vocab_size;
} first_t;
typedef struct init {
  const first_t* tokenizer;
} init_t;

EXPORTED void* llg_new_tokenizer(const first_t* init, char* error, size_t error_bytes) {
  first_t* made = malloc(sizeof *made);
  (void)error;
  (void)error_bytes;
  if (made != NULL)
    made->vocab_size = init->vocab_size;
  return made;
}
EXPORTED void llg_free_tokenizer(void* tokenizer) {
  free(tokenizer);
}
EXPORTED void llg_constraint_init_set_defaults(init_t* init, const first_t* tokenizer) {
  init->tokenizer = tokenizer;
}
EXPORTED void* llg_new_matcher(const init_t* init, const char* kind, const char* text) {
  matcher_t* made = malloc(sizeof *made);
  (void)kind;
  if (made == NULL)
    abort();
  *made = (matcher_t){init->tokenizer->vocab_size, strcmp(text, "error") == 0};
  return made;
}
EXPORTED void* llg_clone_matcher(const matcher_t* matcher) {
  matcher_t* made = malloc(sizeof *made);
  if (made == NULL)
    abort();
  *made = *matcher;
  return made;
}
EXPORTED void llg_free_matcher(void* matcher) {
  free(matcher);
}
EXPORTED const char* llg_matcher_get_error(const matcher_t* matcher) {
  return matcher->wrong ? "it is\n  an error" : NULL;
}
EXPORTED size_t llg_matcher_get_mask_byte_size(const matcher_t* matcher) {
  return (matcher->vocab_size + 31) / 32 * 4;
}
EXPORTED int32_t llg_matcher_compute_mask_into(const matcher_t* matcher, uint32_t* mask,
                                               size_t bytes) {
  (void)matcher;
  memset(mask, 0xFF, bytes);
  return 0;
}
EXPORTED int32_t llg_matcher_consume_token(const matcher_t* matcher, uint32_t token) {
  return token < matcher->vocab_size ? 0 : -1;
}
EXPORTED bool llg_matcher_is_stopped(const matcher_t* matcher) {
  (void)matcher;
  return false;
}
EXPORTED bool llg_matcher_is_error(const matcher_t* matcher) {
  (void)matcher;
  return false;
}
