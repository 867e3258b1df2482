/* serve/http/mark_reader.c - see serve/http/mark_reader.h. */
#include "serve/http/mark_reader.h"

#include <string.h>

/* The mark that the held bytes are or begin. `*out_whole`: they are all of it. */
static uint32_t find_mark(const http_mark_list_t* list, const char* held, size_t size,
                          uint32_t* out_whole) {
  uint32_t mark = 0;
  while (mark < list->count && strncmp(list->texts[mark], held, size) != 0)
    ++mark;
  *out_whole = mark < list->count && list->texts[mark][size] == 0;
  return mark;
}

static uint32_t give_text(const http_mark_list_t* list, const char* text, size_t size,
                          http_marked_t* out) {
  *out = (http_marked_t){list->count, text, size};
  return 1;
}

/* Bytes up to where a mark may begin. */
static size_t plain_size(const char* bytes, size_t size) {
  const char* next = memchr(bytes, '<', size);
  return next != NULL ? (size_t)(next - bytes) : size;
}

static void advance(const char** bytes, size_t* size, size_t count) {
  *bytes += count;
  *size -= count;
}

uint32_t accrt_http_mark_next(http_mark_reader_t* reader, const http_mark_list_t* list,
                              const char** bytes, size_t* size_bytes, http_marked_t* out) {
  while (*size_bytes > 0) {
    const size_t plain = reader->size == 0 ? plain_size(*bytes, *size_bytes) : 0;
    if (plain > 0) {
      const char* text = *bytes;
      advance(bytes, size_bytes, plain);
      return give_text(list, text, plain, out);
    }
    uint32_t is_whole = 0;
    reader->held[reader->size] = **bytes;
    const uint32_t mark = find_mark(list, reader->held, reader->size + 1u, &is_whole);
    if (mark == list->count) { /* what was held is text; this byte may begin another mark */
      const size_t held = reader->size;
      reader->size = 0;
      if (held > 0)
        return give_text(list, reader->held, held, out);
      advance(bytes, size_bytes, 1);
      return give_text(list, reader->held, 1, out);
    }
    advance(bytes, size_bytes, 1);
    reader->size = is_whole ? 0 : reader->size + 1;
    if (is_whole) {
      *out = (http_marked_t){mark, NULL, 0};
      return 1;
    }
  }
  return 0;
}
