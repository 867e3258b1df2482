/* serve/text.h - tokens to text, as far as it is certain.
 *
 * Each token stands for bytes (the model's table). A sequence's bytes are decoded as UTF-8; what is
 * malformed becomes U+FFFD, as Python's bytes.decode(errors="replace") does it. Text that may still
 * become part of a stop string is held back. So the texts of all events, one after the other, are
 * the decoded output up to the stop string, and each of them is valid UTF-8.
 */
#ifndef ACCRT_SERVE_TEXT_H_
#define ACCRT_SERVE_TEXT_H_

#include "serve/base.h"

/* The table `serve.token_bytes`; its memory is lent. */
typedef struct accsv_vocabulary {
  uint32_t count;               /* 0: there is no table */
  const unsigned char* offsets; /* u32 [count + 1], little-endian, any alignment */
  const unsigned char* flags;   /* u8 [count] */
  const unsigned char* bytes;
} accsv_vocabulary_t;
#define ACCSV_TOKEN_SPECIAL 1u /* printed as nothing */

/* Refuses a table that is cut, whose offsets fall, or that has fewer tokens than `vocab_size`. */
accrt_status_t accsv_vocabulary_read(accsv_vocabulary_t* vocabulary, const void* table,
                                     uint64_t size_bytes, uint32_t vocab_size);
/* The bytes of a token; none for numbers outside, and for special ones unless those are wanted. */
const unsigned char* accsv_vocabulary_bytes(const accsv_vocabulary_t* vocabulary, int32_t token,
                                            bool special, uint32_t* out_size_bytes);

typedef struct accsv_stops {
  uint32_t count;
  const char* const* strings; /* none is empty */
  const uint32_t* sizes_bytes;
} accsv_stops_t;

/* The text of a sequence. All zero: empty. */
typedef struct accsv_text {
  unsigned char partial[4]; /* the beginning of a character */
  uint32_t partial_size;
  char* tail; /* decoded and not given yet */
  uint32_t tail_size, tail_capacity;
} accsv_text_t;

void accsv_text_deinit(accsv_text_t* text, const accrt_allocator_t* allocator);
/* Decodes bytes behind what is there. Fails without memory; then nothing was decoded. */
accrt_status_t accsv_text_push(accsv_text_t* text, const accrt_allocator_t* allocator,
                               const unsigned char* bytes, uint32_t size_bytes);
/* The end: what is left of a character is malformed. */
accrt_status_t accsv_text_end(accsv_text_t* text, const accrt_allocator_t* allocator);
/* The index of the stop string that the tail has first, or -1. `out_at` gets where it begins. */
int32_t accsv_text_find_stop(const accsv_text_t* text, const accsv_stops_t* stops,
                             uint32_t* out_at);
/* How much of the tail can be given: all but what may begin a stop string. */
uint32_t accsv_text_certain(const accsv_text_t* text, const accsv_stops_t* stops);
/* The first bytes of the tail were given. */
void accsv_text_drop(accsv_text_t* text, uint32_t size_bytes);

#endif /* ACCRT_SERVE_TEXT_H_ */
