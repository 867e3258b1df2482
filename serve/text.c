/* serve/text.c - see serve/text.h. */
#include "serve/text.h"

#include <string.h>

#define HEADER_BYTES 8u

static uint32_t read_u32(const unsigned char* bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
         (uint32_t)bytes[3] << 24;
}

accrt_status_t accsv_vocabulary_read(accsv_vocabulary_t* vocabulary, const void* table,
                                     uint64_t size_bytes, uint32_t vocab_size) {
  *vocabulary = (accsv_vocabulary_t){0};
  if (table == NULL)
    return ACCRT_OK;
  const unsigned char* bytes = table;
  if (size_bytes < HEADER_BYTES)
    return ACCSV_FAIL(INVALID_FORMAT, "token bytes: %" PRIu64 " bytes, less than a header",
                      size_bytes);
  const uint64_t count = read_u32(bytes);
  const uint64_t head = HEADER_BYTES + (count + 1) * 4 + count;
  if (count < vocab_size || size_bytes < head || read_u32(bytes + 4) != 0)
    return ACCSV_FAIL(INVALID_FORMAT,
                      "token bytes: %" PRIu64 " tokens in %" PRIu64
                      " bytes, the model has %" PRIu32,
                      count, size_bytes, vocab_size);
  const unsigned char* offsets = bytes + HEADER_BYTES;
  uint32_t last = read_u32(offsets);
  for (uint64_t i = 1; i <= count; ++i) {
    const uint32_t offset = read_u32(offsets + 4 * i);
    if (offset < last || offset > size_bytes - head)
      return ACCSV_FAIL(INVALID_FORMAT, "token bytes: token %" PRIu64 " ends at %" PRIu32, i - 1,
                        offset);
    last = offset;
  }
  *vocabulary =
      (accsv_vocabulary_t){(uint32_t)count, offsets, offsets + 4 * (count + 1), bytes + head};
  return ACCRT_OK;
}

const unsigned char* accsv_vocabulary_bytes(const accsv_vocabulary_t* vocabulary, int32_t token,
                                            bool special, uint32_t* out_size_bytes) {
  *out_size_bytes = 0;
  if (token < 0 || (uint32_t)token >= vocabulary->count ||
      (!special && (vocabulary->flags[token] & ACCSV_TOKEN_SPECIAL) != 0))
    return NULL;
  const unsigned char* place = vocabulary->offsets + 4 * (size_t)token;
  const uint32_t begin = read_u32(place);
  *out_size_bytes = read_u32(place + 4) - begin;
  return vocabulary->bytes + begin;
}

void accsv_text_deinit(accsv_text_t* text, const accrt_allocator_t* allocator) {
  ACCSV_FREE(allocator, text->tail, text->tail_capacity);
  *text = (accsv_text_t){0};
}

static accrt_status_t reserve(accsv_text_t* text, const accrt_allocator_t* allocator,
                              uint64_t needed) {
  if (needed <= text->tail_capacity)
    return ACCRT_OK;
  uint64_t capacity = text->tail_capacity < 64 ? 64 : text->tail_capacity;
  while (capacity < needed)
    capacity *= 2;
  if (capacity > UINT32_MAX)
    return ACCSV_FAIL(OUT_OF_MEMORY, "a text of %" PRIu64 " bytes", needed);
  char* tail;
  ACCRT_TRY(ACCSV_NEW_UNSET(allocator, capacity, &tail));
  if (text->tail_size > 0)
    memcpy(tail, text->tail, text->tail_size);
  ACCSV_FREE(allocator, text->tail, text->tail_capacity);
  text->tail = tail;
  text->tail_capacity = (uint32_t)capacity;
  return ACCRT_OK;
}

/* The length of the character that begins with this byte, and the range of its second byte; 0: no
 * character begins so. (Unicode 15, table 3-7.) */
static uint32_t begins(unsigned char first, unsigned char* out_low, unsigned char* out_high) {
  *out_low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  *out_high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first < 0x80)
    return 1;
  if (first < 0xC2 || first > 0xF4)
    return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* May `byte` follow what is in `partial`? */
static bool continues(const accsv_text_t* text, unsigned char byte) {
  unsigned char low, high;
  (void)begins(text->partial[0], &low, &high);
  return text->partial_size == 1 ? byte >= low && byte <= high : byte >= 0x80 && byte <= 0xBF;
}

static void put(accsv_text_t* text, const void* bytes, uint32_t size_bytes) {
  memcpy(text->tail + text->tail_size, bytes, size_bytes);
  text->tail_size += size_bytes;
}

static void put_malformed(accsv_text_t* text) {
  put(text, "\xEF\xBF\xBD", 3);
  text->partial_size = 0;
}

static void decode(accsv_text_t* text, unsigned char byte) {
  unsigned char low, high;
  if (text->partial_size > 0 && !continues(text, byte))
    put_malformed(text);
  if (text->partial_size == 0 && begins(byte, &low, &high) == 0) {
    put_malformed(text);
    return;
  }
  text->partial[text->partial_size++] = byte;
  if (text->partial_size == begins(text->partial[0], &low, &high)) {
    put(text, text->partial, text->partial_size);
    text->partial_size = 0;
  }
}

accrt_status_t accsv_text_push(accsv_text_t* text, const accrt_allocator_t* allocator,
                               const unsigned char* bytes, uint32_t size_bytes) {
  /* A byte becomes three at most, and what was partial three more. */
  ACCRT_TRY(reserve(text, allocator, (uint64_t)text->tail_size + 3 * (uint64_t)size_bytes + 8));
  for (uint32_t i = 0; i < size_bytes; ++i)
    decode(text, bytes[i]);
  return ACCRT_OK;
}

accrt_status_t accsv_text_end(accsv_text_t* text, const accrt_allocator_t* allocator) {
  if (text->partial_size == 0)
    return ACCRT_OK;
  ACCRT_TRY(reserve(text, allocator, (uint64_t)text->tail_size + 8));
  put_malformed(text);
  return ACCRT_OK;
}

int32_t accsv_text_find_stop(const accsv_text_t* text, const accsv_stops_t* stops,
                             uint32_t* out_at) {
  int32_t found = -1;
  uint32_t end = text->tail_size; /* matches that begin before are better */
  for (uint32_t s = 0; s < stops->count; ++s) {
    const uint32_t size = stops->sizes_bytes[s];
    const char* string = stops->strings[s];
    for (uint32_t at = 0; at < end && size <= text->tail_size - at; ++at) {
      if (text->tail[at] == string[0] && memcmp(text->tail + at, string, size) == 0) {
        found = (int32_t)s;
        *out_at = end = at;
        break;
      }
    }
  }
  return found;
}

uint32_t accsv_text_certain(const accsv_text_t* text, const accsv_stops_t* stops) {
  uint32_t certain = text->tail_size;
  for (uint32_t s = 0; s < stops->count; ++s) {
    const uint32_t most = stops->sizes_bytes[s] - 1;
    uint32_t at = text->tail_size > most ? text->tail_size - most : 0;
    const char* string = stops->strings[s];
    for (; at < certain; ++at) {
      if (text->tail[at] == string[0] &&
          memcmp(text->tail + at, string, text->tail_size - at) == 0) {
        certain = at;
        break;
      }
    }
  }
  /* Stop strings may be cut anywhere: what is given ends with a whole character. */
  while (certain > 0 && certain < text->tail_size &&
         ((unsigned char)text->tail[certain] & 0xC0) == 0x80)
    --certain;
  return certain;
}

void accsv_text_drop(accsv_text_t* text, uint32_t size_bytes) {
  text->tail_size -= size_bytes;
  memmove(text->tail, text->tail + size_bytes, text->tail_size);
}
