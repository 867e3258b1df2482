/* serve/http/harmony.c - see serve/http/harmony.h. */
#include "serve/http/harmony.h"

#include "accrt/http.h"

enum { HEADER_BYTES = 512 }; /* what is longer is no header */

typedef enum mark {
  MARK_CHANNEL, /* these two are part of a header, and begin one */
  MARK_START,
  MARK_CONSTRAIN, /* of a header alone */
  MARK_MESSAGE,   /* ends a header */
  MARK_END,       /* these end a message */
  MARK_CALL,
  MARK_RETURN,
  MARK_COUNT, /* none */
} mark_t;

static const char mark_texts[MARK_COUNT][HTTP_MARK_BYTES] = {
    "<|channel|>", "<|start|>", "<|constrain|>", "<|message|>",
    "<|end|>",     "<|call|>",  "<|return|>"};

static uint32_t finds_calls(http_harmony_sinks_t sinks) {
  return sinks.tools != NULL && sinks.tools->form == ACCRT_HTTP_TOOLS_HARMONY;
}

/* ---- Bodies of messages ---- */

/* White space around the reasoning is left out; between two messages of it stands a line feed. */
static void put_reasoning(http_thoughts_t* t, const char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (!accrt_http_is_space(bytes[i]))
      accrt_http_thoughts_put(t, &bytes[i], 1);
    else if (t->begun != 0)
      accrt_http_put(&t->held, &bytes[i], 1);
  }
}

static void put_content(http_thoughts_t* t, const char* bytes, size_t size,
                        http_harmony_sinks_t sinks) {
  t->answered = 1;
  if (sinks.tools != NULL && !finds_calls(sinks))
    accrt_http_tools_push(sinks.tools, bytes, size);
  else if (sinks.answer != NULL)
    accrt_http_put(sinks.answer, bytes, size);
}

static void put_body(http_thoughts_t* t, const char* bytes, size_t size,
                     http_harmony_sinks_t sinks) {
  if (size == 0)
    return;
  if (t->part == HARMONY_REASONING) {
    put_reasoning(t, bytes, size);
    return;
  }
  t->state = THOUGHTS_OVER;
  if (t->part == HARMONY_CALL) {
    accrt_http_tools_push(sinks.tools, bytes, size);
    return;
  }
  if (t->gap != 0)
    put_content(t, "\n", 1, sinks);
  t->gap = 0;
  put_content(t, bytes, size, sinks);
}

/* ---- Headers ---- */

static void clear_header(http_thoughts_t* t, http_harmony_sinks_t sinks) {
  if (sinks.answer != NULL)
    sinks.answer->failed |= t->header.failed;
  accrt_http_text_clear(&t->header);
}

static const char* find(const http_text_t* header, const char* word) {
  const size_t size = strlen(word);
  for (size_t i = 0; i + size <= header->size; ++i)
    if (memcmp(header->data + i, word, size) == 0)
      return header->data + i + size;
  return NULL;
}

/* The bytes up to white space or a mark. */
static size_t word_size(const http_text_t* header, const char* at) {
  size_t size = 0;
  while (at + size < header->data + header->size && !accrt_http_is_space(at[size]) &&
         at[size] != '<')
    ++size;
  return size;
}

static uint32_t begin_call(const http_text_t* header, http_harmony_sinks_t sinks) {
  const char* name = find(header, "to=functions.");
  return name != NULL && finds_calls(sinks) &&
         accrt_http_tools_begin(sinks.tools, name, word_size(header, name));
}

static void end_header(http_thoughts_t* t, http_harmony_sinks_t sinks) {
  static const char analysis[] = "analysis";
  const char* channel = find(&t->header, mark_texts[MARK_CHANNEL]);
  if (begin_call(&t->header, sinks) != 0) {
    t->part = HARMONY_CALL;
  } else if (channel != NULL && word_size(&t->header, channel) == sizeof analysis - 1 &&
             memcmp(channel, analysis, sizeof analysis - 1) == 0) {
    t->part = HARMONY_REASONING;
    t->state = THOUGHTS_INSIDE;
    t->entered = 1;
    if (t->begun != 0)
      accrt_http_put(&t->held, "\n", 1);
  } else {
    t->part = HARMONY_CONTENT;
  }
  t->gap = t->part != HARMONY_REASONING && t->answered;
  clear_header(t, sinks);
}

/* What was taken for a header is text. */
static void give_up(http_thoughts_t* t, http_harmony_sinks_t sinks) {
  t->part = HARMONY_CONTENT;
  t->gap = t->answered;
  t->matched = 0;
  put_body(t, t->header.data, t->header.size, sinks);
  clear_header(t, sinks);
}

static void end_message(http_thoughts_t* t, http_harmony_sinks_t sinks) {
  if (t->part == HARMONY_CALL)
    accrt_http_tools_over(sinks.tools);
  if (t->part == HARMONY_REASONING)
    accrt_http_text_clear(&t->held);
  clear_header(t, sinks);
  t->part = HARMONY_BETWEEN;
  t->state = THOUGHTS_AFTER;
  t->matched = 0;
}

/* Between messages: white space and the beginning of a header, which may be a recipient. Returns
 * the bytes taken. */
static size_t take_between(http_thoughts_t* t, const char* bytes, size_t size,
                           http_harmony_sinks_t sinks) {
  static const char recipient[] = "to=";
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] == recipient[t->matched])
      ++t->matched;
    else if (t->matched > 0 || !accrt_http_is_space(bytes[i])) {
      give_up(t, sinks);
      return i;
    }
    accrt_http_put(&t->header, &bytes[i], 1);
    if (recipient[t->matched] == 0) {
      t->part = HARMONY_HEADER;
      return i + 1;
    }
  }
  return size;
}

/* Text without marks. */
static void take_text(http_thoughts_t* t, const char* bytes, size_t size,
                      http_harmony_sinks_t sinks) {
  if (t->part == HARMONY_BETWEEN) {
    const size_t used = take_between(t, bytes, size, sinks);
    bytes += used;
    size -= used;
  }
  if (t->part == HARMONY_HEADER) {
    accrt_http_put(&t->header, bytes, size);
    if (t->header.size > HEADER_BYTES)
      give_up(t, sinks);
  } else if (t->part != HARMONY_BETWEEN) {
    put_body(t, bytes, size, sinks);
  }
}

static void take_mark(http_thoughts_t* t, mark_t mark, http_harmony_sinks_t sinks) {
  if (t->part == HARMONY_BETWEEN && t->matched > 0)
    give_up(t, sinks);
  const uint32_t in_body = t->part != HARMONY_BETWEEN && t->part != HARMONY_HEADER;
  if (mark >= MARK_END || mark == MARK_START || (mark == MARK_CHANNEL && in_body != 0))
    end_message(t, sinks);
  if (mark >= MARK_END)
    return;
  if (mark == MARK_MESSAGE && t->part == HARMONY_HEADER) {
    end_header(t, sinks);
  } else if (t->part == HARMONY_BETWEEN && mark > MARK_START) {
    t->part = HARMONY_HEADER;
    give_up(t, sinks);
    put_body(t, mark_texts[mark], strlen(mark_texts[mark]), sinks);
  } else if (t->part == HARMONY_BETWEEN || t->part == HARMONY_HEADER) {
    t->part = HARMONY_HEADER;
    t->state = THOUGHTS_AFTER;
    accrt_http_put_text(&t->header, mark_texts[mark]);
  } else {
    put_body(t, mark_texts[mark], strlen(mark_texts[mark]), sinks);
  }
}

void accrt_http_harmony_push(http_thoughts_t* t, const char* bytes, size_t size,
                             http_harmony_sinks_t sinks) {
  static const http_mark_list_t list = {mark_texts, MARK_COUNT};
  http_marked_t next;
  while (accrt_http_mark_next(&t->reader, &list, &bytes, &size, &next) != 0) {
    if (next.mark == MARK_COUNT)
      take_text(t, next.text, next.size_bytes, sinks);
    else
      take_mark(t, next.mark, sinks);
  }
}

void accrt_http_harmony_end(http_thoughts_t* t, http_harmony_sinks_t sinks) {
  /* White space between messages is none of the answer, and neither is a header that has begun. */
  const uint32_t is_text = t->part == HARMONY_BETWEEN &&
                           (t->state == THOUGHTS_BEFORE || t->matched > 0 || t->reader.size > 0);
  if (is_text != 0)
    give_up(t, sinks);
  if (t->part != HARMONY_BETWEEN && t->reader.size > 0)
    take_text(t, t->reader.held, t->reader.size, sinks);
  t->reader.size = 0;
  accrt_http_text_clear(&t->held);
  clear_header(t, sinks);
  t->state = THOUGHTS_OVER;
}
