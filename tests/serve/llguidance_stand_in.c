/* tests/serve/llguidance_stand_in.c - a shared object with the functions that serve/grammars.c asks llguidance for: every token may
 * come, and nothing ends. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MASK_BYTES 4096u

void* llg_new_tokenizer(const void* init, char* message, size_t size_bytes);
void llg_free_tokenizer(void* tokenizer);
void llg_constraint_init_set_defaults(void* init, const void* tokenizer);
void* llg_new_matcher(const void* init, const char* kind, const char* text);
void* llg_clone_matcher(const void* matcher);
void llg_free_matcher(void* matcher);
const char* llg_matcher_get_error(void* matcher);
size_t llg_matcher_get_mask_byte_size(const void* matcher);
int32_t llg_matcher_compute_mask_into(void* matcher, uint32_t* mask, size_t size_bytes);
int32_t llg_matcher_consume_token(void* matcher, uint32_t token);
bool llg_matcher_is_stopped(const void* matcher);
bool llg_matcher_is_error(const void* matcher);

void* llg_new_tokenizer(const void* init, char* message, size_t size_bytes) {
  (void)init, (void)message, (void)size_bytes;
  return malloc(1);
}
void llg_free_tokenizer(void* tokenizer) {
  free(tokenizer);
}
void llg_constraint_init_set_defaults(void* init, const void* tokenizer) {
  (void)init, (void)tokenizer;
}
void* llg_new_matcher(const void* init, const char* kind, const char* text) {
  (void)init, (void)kind, (void)text;
  return malloc(1);
}
void* llg_clone_matcher(const void* matcher) {
  (void)matcher;
  return malloc(1);
}
void llg_free_matcher(void* matcher) {
  free(matcher);
}
const char* llg_matcher_get_error(void* matcher) {
  (void)matcher;
  return NULL;
}
size_t llg_matcher_get_mask_byte_size(const void* matcher) {
  (void)matcher;
  return MASK_BYTES;
}
int32_t llg_matcher_compute_mask_into(void* matcher, uint32_t* mask, size_t size_bytes) {
  (void)matcher;
  memset(mask, 0xFF, size_bytes);
  return 0;
}
int32_t llg_matcher_consume_token(void* matcher, uint32_t token) {
  (void)matcher, (void)token;
  return 0;
}
bool llg_matcher_is_stopped(const void* matcher) {
  (void)matcher;
  return false;
}
bool llg_matcher_is_error(const void* matcher) {
  (void)matcher;
  return false;
}
