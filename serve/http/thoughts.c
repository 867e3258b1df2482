/* serve/http/thoughts.c - see serve/http/thoughts.h. */
#include "serve/http/thoughts.h"

#include "accrt/http.h"
#include "serve/http/harmony.h"

/* No mark has its first byte a second time: what fails to match one is looked at once more. */
static const struct {
  char open[HTTP_MARK_BYTES];
  char close[HTTP_MARK_BYTES];
} marks[] = {
    {"", ""},
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"", ""}, /* messages */
    {"<|START_THINKING|>", "<|END_THINKING|>"},
};

static uint32_t kind_of(uint32_t form) {
  return form & ~(ACCRT_HTTP_REASONING_OPEN | ACCRT_HTTP_REASONING_BEGUN);
}

uint32_t accrt_http_thoughts_known(uint32_t form) {
  const uint32_t kind = kind_of(form);
  if (kind == ACCRT_HTTP_REASONING_HARMONY)
    return form == kind;
  const uint32_t is_begun = form & ACCRT_HTTP_REASONING_BEGUN;
  return kind > 0 && kind < sizeof marks / sizeof marks[0] &&
         (is_begun == 0 || (form & ACCRT_HTTP_REASONING_OPEN) != 0);
}

void accrt_http_thoughts_init(http_thoughts_t* t, const accrt_allocator_t* allocator, uint32_t form,
                              http_text_t* reasoning) {
  const uint32_t kind = kind_of(form);
  memset(t, 0, sizeof *t);
  t->open = marks[kind].open;
  t->close = marks[kind].close;
  t->entered = (form & ACCRT_HTTP_REASONING_OPEN) != 0;
  t->state = t->entered != 0 ? THOUGHTS_INSIDE : THOUGHTS_BEFORE;
  t->begun = (form & ACCRT_HTTP_REASONING_BEGUN) != 0;
  t->reasoning = reasoning;
  t->has_responses = kind == ACCRT_HTTP_REASONING_COMMAND;
  t->has_messages = kind == ACCRT_HTTP_REASONING_HARMONY;
  accrt_http_text_init(&t->held, allocator);
  accrt_http_text_init(&t->header, allocator);
}

void accrt_http_thoughts_deinit(http_thoughts_t* t) {
  accrt_http_text_deinit(&t->held);
  accrt_http_text_deinit(&t->header);
}

static void put(http_thoughts_t* t, const char* bytes, size_t size) {
  if (t->reasoning != NULL)
    accrt_http_put(t->reasoning, bytes, size);
  t->begun |= size > 0;
}

static void flush_held(http_thoughts_t* t) {
  put(t, t->held.data, t->held.size);
  if (t->reasoning != NULL)
    t->reasoning->failed |= t->held.failed;
  accrt_http_text_clear(&t->held);
}

void accrt_http_thoughts_put(http_thoughts_t* t, const char* bytes, size_t size) {
  flush_held(t);
  put(t, bytes, size);
}

static void enter(http_thoughts_t* t, thoughts_state_t state) {
  t->state = state;
  t->entered |= state == THOUGHTS_INSIDE;
  t->matched = 0;
  if (state != THOUGHTS_OVER)
    accrt_http_text_clear(&t->held);
}

/* White space, then the mark; anything else is the answer. Returns 0 for a byte of it. */
static uint32_t take_before(http_thoughts_t* t, char byte) {
  if (byte == t->open[t->matched]) {
    accrt_http_put(&t->held, &byte, 1);
    if (t->open[++t->matched] == 0)
      enter(t, THOUGHTS_INSIDE);
    return 1;
  }
  if (t->matched > 0 || !accrt_http_is_space(byte)) {
    enter(t, THOUGHTS_OVER);
    return 0;
  }
  accrt_http_put(&t->held, &byte, 1);
  return 1;
}

static void take_inside(http_thoughts_t* t, char byte) {
  if (byte != t->close[t->matched] && t->matched > 0) {
    flush_held(t);
    t->matched = 0;
  }
  if (byte == t->close[t->matched]) {
    accrt_http_put(&t->held, &byte, 1);
    if (t->close[++t->matched] == 0)
      enter(t, THOUGHTS_AFTER);
    return;
  }
  if (accrt_http_is_space(byte)) {
    if (t->begun != 0)
      accrt_http_put(&t->held, &byte, 1);
    return;
  }
  accrt_http_thoughts_put(t, &byte, 1);
}

size_t accrt_http_thoughts_push(http_thoughts_t* t, const char* bytes, size_t size) {
  if (t->has_messages != 0) {
    accrt_http_harmony_push(t, bytes, size, (http_harmony_sinks_t){0});
    return size;
  }
  size_t i = 0;
  for (; i < size && t->state != THOUGHTS_OVER; ++i) {
    if (t->state == THOUGHTS_INSIDE) {
      take_inside(t, bytes[i]);
    } else if (t->state == THOUGHTS_BEFORE) {
      if (take_before(t, bytes[i]) == 0)
        break;
    } else if (!accrt_http_is_space(bytes[i])) {
      enter(t, THOUGHTS_OVER);
      break;
    }
  }
  return i;
}

void accrt_http_thoughts_end(http_thoughts_t* t) {
  if (t->state == THOUGHTS_OVER)
    return; /* `held` is the beginning of the answer */
  if (t->state == THOUGHTS_INSIDE && t->matched > 0)
    flush_held(t);
  if (t->state != THOUGHTS_BEFORE)
    accrt_http_text_clear(&t->held);
  enter(t, THOUGHTS_OVER);
}

static void take_messages(http_thoughts_t* t, const char* bytes, size_t size, uint32_t last,
                          http_harmony_sinks_t sinks) {
  accrt_http_harmony_push(t, bytes, size, sinks);
  if (last != 0)
    accrt_http_harmony_end(t, sinks);
}

static void put_answer(http_tools_t* tools, http_text_t* answer, const char* bytes, size_t size) {
  if (tools == NULL)
    accrt_http_put(answer, bytes, size);
  else
    accrt_http_tools_push(tools, bytes, size);
}

/* Leaves out the marks that stand around an answer. */
static void put_unmarked(http_thoughts_t* t, const char* bytes, size_t size, http_tools_t* tools,
                         http_text_t* answer) {
  static const char responses[][HTTP_MARK_BYTES] = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"};
  static const http_mark_list_t list = {responses, sizeof responses / sizeof *responses};
  http_marked_t next;
  while (accrt_http_mark_next(&t->reader, &list, &bytes, &size, &next) != 0) {
    if (next.mark == list.count)
      put_answer(tools, answer, next.text, next.size_bytes);
  }
}

static void put_part(http_thoughts_t* t, const char* bytes, size_t size, http_tools_t* tools,
                     http_text_t* answer) {
  if (t->has_responses != 0)
    put_unmarked(t, bytes, size, tools, answer);
  else
    put_answer(tools, answer, bytes, size);
}

void accrt_http_thoughts_take(http_thoughts_t* t, const char* bytes, size_t size, uint32_t last,
                              http_tools_t* tools, http_text_t* answer) {
  if (t->has_messages != 0) {
    take_messages(t, bytes, size, last, (http_harmony_sinks_t){tools, answer});
    return;
  }
  const size_t used = accrt_http_thoughts_push(t, bytes, size);
  if (last != 0)
    accrt_http_thoughts_end(t);
  if (t->state != THOUGHTS_OVER)
    return;
  answer->failed |= t->held.failed; /* also where nothing of it could be held */
  put_part(t, t->held.data, t->held.size, tools, answer);
  accrt_http_text_clear(&t->held);
  if (used < size)
    put_part(t, bytes + used, size - used, tools, answer);
  if (last != 0)
    put_answer(tools, answer, t->reader.held, t->reader.size);
}
