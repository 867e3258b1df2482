/* serve/http/tools.c - see serve/http/tools.h. */
#include "serve/http/tools.h"

#include <string.h>
#include <sys/random.h>

#include "accrt/http.h"
#include "serve/http/forms.h"
#include "serve/http/literals.h"
#include "serve/http/values.h"

enum {
  TEXT,       /* no call */
  OPEN,       /* after a mark: a call should begin */
  PLAIN_NAME, /* Mistral: a name without quotes */
  PLAIN_MARK, /* and marks between it and the arguments */
  NEXT_KEY,   /* in the object, before a key or its end */
  KEY,
  COLON,
  VALUE,
  NAME,
  ARGUMENTS,
  SKIPPED,  /* a value that says nothing */
  AFTER,    /* after a call */
  TAG_HEAD, /* of markup: before the name */
  TAG_NAME,
  TAG_NEXT, /* before a key, or the end */
  TAG_KEY,
  TAG_BETWEEN, /* a key and its value */
  TAG_VALUE,
  CALL_MARK,   /* in a section: before a call */
  CALL_ID,     /* functions.name:number, or a name */
  PYTHON_NAME, /* in a list: name(...) */
  PYTHON_CALL,
  FENCE, /* DeepSeek: a name may follow the word function, and then marks of a block of code */
};

/* Of these a call may begin a text without a mark. */
static uint32_t is_bare(const http_tools_t* t) {
  return t->form == ACCRT_HTTP_TOOLS_LLAMA || t->form == ACCRT_HTTP_TOOLS_PYTHONIC;
}

static uint32_t is_of_name(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || (byte != 0 && strchr("_-.:/", byte) != NULL);
}

void accrt_http_tools_init(http_tools_t* t, const accrt_allocator_t* allocator, uint32_t form,
                           http_text_t* content, http_text_t* calls) {
  memset(t, 0, sizeof *t);
  t->form = form;
  t->most = UINT32_MAX;
  t->content = content;
  t->calls = calls;
  accrt_http_text_init(&t->held, allocator);
  accrt_http_text_init(&t->arguments, allocator);
  accrt_http_text_init(&t->piece, allocator);
}

void accrt_http_tools_deinit(http_tools_t* t) {
  accrt_http_text_deinit(&t->held);
  accrt_http_text_deinit(&t->arguments);
  accrt_http_text_deinit(&t->piece);
}

/* ---- What is written ---- */

static void put_content(http_tools_t* t, const char* bytes, size_t size) {
  accrt_http_put(t->content, bytes, size);
  t->begun |= size > 0;
}

/* Empties a text. Bytes that it lost for want of memory are then missing in the calls. */
static void drop(http_tools_t* t, http_text_t* text) {
  t->calls->failed |= text->failed;
  accrt_http_text_clear(text);
}

static void flush_held(http_tools_t* t) {
  put_content(t, t->held.data, t->held.size);
  t->content->failed |= t->held.failed;
  accrt_http_text_clear(&t->held);
}

/* Kimi's templates show a call's id as the model has written it. */
static void put_kimi_id(http_tools_t* t) {
  if (t->piece.size > 0) {
    accrt_http_put(t->calls, t->piece.data, t->piece.size);
    return;
  }
  accrt_http_put_text(t->calls, "functions.");
  accrt_http_put(t->calls, t->name, t->name_size);
  accrt_http_put_text(t->calls, ":");
  accrt_http_put_u64(t->calls, t->count - 1);
}

/* OpenAI's are of any form; Mistral's templates ask for nine letters or digits. */
static void put_id(http_tools_t* t) {
  if (t->form == ACCRT_HTTP_TOOLS_KIMI) {
    put_kimi_id(t);
    return;
  }
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789AB";
  unsigned char bytes[24];
  const size_t count = t->form == ACCRT_HTTP_TOOLS_MISTRAL ? 9 : sizeof bytes;
  if (getrandom(bytes, count, GRND_NONBLOCK) != (ssize_t)count)
    memset(bytes, (int)t->count, count);
  if (t->form != ACCRT_HTTP_TOOLS_MISTRAL)
    accrt_http_put_text(t->calls, "call_");
  for (size_t i = 0; i < count; ++i)
    accrt_http_put(t->calls, &letters[bytes[i] % 64], 1);
}

void accrt_http_tools_close(http_tools_t* t) {
  if (t->entry_open != 0 && t->plain_calls == 0)
    accrt_http_put_text(t->calls, "\"}}");
  t->entry_open = 0;
}

static void begin_entry(http_tools_t* t) {
  accrt_http_put_text(t->calls, t->calls->size > 0 ? ",{" : "{");
  if (t->whole != 0)
    return;
  accrt_http_put_text(t->calls, "\"index\":");
  accrt_http_put_u64(t->calls, t->count - 1);
  accrt_http_put_text(t->calls, ",");
}

static void put_arguments(http_tools_t* t, const char* bytes, size_t size) {
  if (t->dropped != 0 || size == 0)
    return;
  if (t->entry_open == 0 && t->plain_calls == 0) {
    begin_entry(t);
    accrt_http_put_text(t->calls, "\"function\":{\"arguments\":\"");
  }
  t->entry_open = 1;
  accrt_http_put_escaped(t->calls, bytes, size);
}

/* The beginning of a call, up to its arguments. */
static void put_call(http_tools_t* t) {
  static const char* const marks[][3] = {
      {"\"id\":\"", "\",\"type\":\"function\",\"function\":{\"name\":\"", "\",\"arguments\":\""},
      {HTTP_CALL_ID, HTTP_CALL_NAME, HTTP_CALL_ARGUMENTS}};
  if (t->plain_calls == 0)
    begin_entry(t);
  accrt_http_put_text(t->calls, marks[t->plain_calls][0]);
  put_id(t);
  accrt_http_put_text(t->calls, marks[t->plain_calls][1]);
  accrt_http_put(t->calls, t->name, t->name_size);
  accrt_http_put_text(t->calls, marks[t->plain_calls][2]);
}

/* The object is a call: what was held of it is not text. */
static void commit(http_tools_t* t) {
  t->committed = t->begun = 1;
  t->dropped = t->count >= t->most;
  drop(t, &t->held);
  if (t->dropped != 0)
    return;
  accrt_http_tools_close(t);
  ++t->count;
  put_call(t);
  t->entry_open = 1;
  put_arguments(t, t->arguments.data, t->arguments.size);
  drop(t, &t->arguments);
}

/* ---- Calls ---- */

static void enter(http_tools_t* t, uint32_t state) {
  t->state = state;
  drop(t, &t->piece);
}

/* What a state says to a byte. */
typedef enum verdict { TOOK, AGAIN /* the new state looks at it too */, NO_CALL } verdict_t;

static verdict_t took_if(uint32_t condition) {
  return condition != 0 ? TOOK : NO_CALL;
}

static void begin_object(http_tools_t* t) {
  t->state = NEXT_KEY;
  t->dropped = t->has_arguments = t->name_size = t->plain = 0;
  drop(t, &t->arguments);
}

static void begin_arguments(http_tools_t* t) {
  t->state = ARGUMENTS;
  t->has_arguments = 1;
  t->depth = t->in_string = t->escaped = 0;
  if (t->name_size > 0)
    commit(t);
}

static void end_object(http_tools_t* t) {
  if (t->committed == 0) { /* it has no arguments */
    commit(t);
    put_arguments(t, "{}", 2);
  }
  t->state = AFTER;
  t->matched = 0;
  drop(t, &t->piece);
}

/* Follows a JSON value by its strings and brackets. 1: it ends with this byte. */
static uint32_t follow(http_tools_t* t, char byte) {
  if (t->in_string != 0) {
    if (t->escaped != 0 || byte == '\\')
      t->escaped = t->escaped == 0;
    else if (byte == '"')
      t->in_string = 0;
    return t->in_string == 0 && t->depth == 0;
  }
  if (byte == '"')
    t->in_string = 1;
  else if (byte == '{' || byte == '[')
    ++t->depth;
  else if (byte == '}' || byte == ']')
    return --t->depth == 0;
  return 0;
}

static uint32_t key_is(const http_tools_t* t, const char* words) {
  return t->key_size == strlen(words) && memcmp(t->key, words, t->key_size) == 0;
}

static verdict_t take_next_key(http_tools_t* t, char byte) {
  if (byte == '"') {
    t->state = KEY;
    t->key_size = 0;
    return TOOK;
  }
  /* Where calls have no marks, a name alone makes none. */
  const uint32_t alone = t->name_size > 0 && t->has_arguments == 0 && !is_bare(t);
  if (byte == '}' && (t->committed != 0 || alone != 0)) {
    end_object(t);
    return TOOK;
  }
  return took_if(accrt_http_is_space(byte) || byte == ',');
}

static verdict_t take_key(http_tools_t* t, char byte) {
  if (byte == '"')
    t->state = COLON;
  else if (t->key_size < HTTP_CALL_KEY_BYTES)
    t->key[t->key_size++] = byte;
  return took_if(byte != '\\');
}

static verdict_t take_colon(http_tools_t* t, char byte) {
  if (byte == ':')
    t->state = VALUE;
  return took_if(accrt_http_is_space(byte) || byte == ':');
}

static verdict_t take_value(http_tools_t* t, char byte) {
  if (accrt_http_is_space(byte))
    return TOOK;
  const uint32_t is_command = t->form == ACCRT_HTTP_TOOLS_COMMAND;
  if ((key_is(t, "name") || (is_command && key_is(t, "tool_name"))) && t->name_size == 0) {
    t->state = NAME;
    return took_if(byte == '"');
  }
  if ((key_is(t, "arguments") || key_is(t, "parameters")) && t->has_arguments == 0) {
    if (byte != '{')
      return NO_CALL;
    begin_arguments(t);
    return AGAIN;
  }
  t->state = SKIPPED;
  t->depth = t->in_string = t->escaped = 0;
  return AGAIN;
}

static verdict_t take_name(http_tools_t* t, char byte) {
  if (byte == '"') {
    t->state = NEXT_KEY;
    if (t->name_size > 0 && t->has_arguments != 0)
      commit(t);
    return took_if(t->name_size > 0);
  }
  if (!is_of_name(byte) || t->name_size == HTTP_CALL_NAME_BYTES)
    return NO_CALL;
  t->name[t->name_size++] = byte;
  return TOOK;
}

static verdict_t take_skipped(http_tools_t* t, char byte) {
  const uint32_t outside = t->in_string == 0 && t->depth == 0;
  if (outside && byte == ']')
    return NO_CALL;
  if (outside && (byte == ',' || byte == '}')) {
    t->state = NEXT_KEY;
    return AGAIN;
  }
  if (follow(t, byte))
    t->state = NEXT_KEY;
  return TOOK;
}

/* ---- Python's calls ---- */

/* The next call of a list, or its end. */
static void begin_python(http_tools_t* t) {
  begin_object(t);
  t->committed = 0;
  t->depth = t->in_string = t->escaped = 0;
  enter(t, PYTHON_NAME);
}

static verdict_t take_python_name(http_tools_t* t, char byte) {
  const uint32_t begins = t->name_size == 0;
  if (begins && accrt_http_is_space(byte))
    return TOOK;
  if (byte == '(' && !begins) {
    enter(t, PYTHON_CALL);
    return TOOK;
  }
  if (!is_of_name(byte) || t->name_size == HTTP_CALL_NAME_BYTES)
    return NO_CALL;
  t->name[t->name_size++] = byte;
  return TOOK;
}

/* A call comes all at once: before its last bracket it may be none. */
static verdict_t take_python(http_tools_t* t, char byte) {
  if (t->in_string != 0) {
    if (t->escaped != 0 || byte == '\\')
      t->escaped = t->escaped == 0;
    else if ((unsigned char)byte == t->in_string)
      t->in_string = 0;
  } else if (byte == '"' || byte == '\'') {
    t->in_string = (unsigned char)byte;
  } else if (byte == '(' || byte == '[' || byte == '{') {
    ++t->depth;
  } else if (byte == ')' && t->depth == 0) {
    const uint32_t found = accrt_http_put_keywords(&t->arguments, t->piece.data, t->piece.size);
    if (found != 0)
      commit(t);
    drop(t, &t->arguments);
    enter(t, AFTER);
    t->array = 1;
    t->matched = 0;
    return took_if(found);
  } else if (byte == ')' || byte == ']' || byte == '}') {
    if (t->depth == 0)
      return NO_CALL;
    --t->depth;
  }
  accrt_http_put(&t->piece, &byte, 1);
  return TOOK;
}

static verdict_t take_open(http_tools_t* t, char byte) {
  if (accrt_http_is_space(byte))
    return TOOK;
  if (byte == '{') {
    begin_object(t);
    drop(t, &t->piece);
    return TOOK;
  }
  if (accrt_http_section_of(t->form) != NULL) {
    enter(t, CALL_MARK);
    return AGAIN;
  }
  if (accrt_http_markup_of(t->form) != NULL) {
    begin_object(t);
    t->state = TAG_HEAD;
    drop(t, &t->piece);
    return AGAIN;
  }
  if (t->form == ACCRT_HTTP_TOOLS_PYTHONIC && byte == '[') {
    begin_python(t);
    return TOOK;
  }
  const uint32_t lists = t->form == ACCRT_HTTP_TOOLS_MISTRAL ||
                         t->form == ACCRT_HTTP_TOOLS_GRANITE || t->form == ACCRT_HTTP_TOOLS_COMMAND;
  if (!lists || t->array != 0)
    return NO_CALL;
  if (byte == '[') {
    t->array = 1;
    return TOOK;
  }
  if (t->form != ACCRT_HTTP_TOOLS_MISTRAL)
    return NO_CALL;
  begin_object(t);
  t->plain = 1;
  t->state = PLAIN_NAME;
  return AGAIN;
}

/* name{...}, name[ARGS]{...}, name[CALL_ID]...[ARGS]{...} */
static verdict_t take_plain(http_tools_t* t, char byte) {
  if (byte == '{' && t->name_size > 0) {
    begin_arguments(t);
    return AGAIN;
  }
  if (t->state == PLAIN_MARK)
    return took_if(t->form == ACCRT_HTTP_TOOLS_MISTRAL || accrt_http_is_space(byte));
  if (byte == '[' && t->name_size > 0) {
    t->state = PLAIN_MARK;
    return TOOK;
  }
  if (!is_of_name(byte) || t->name_size == HTTP_CALL_NAME_BYTES)
    return NO_CALL;
  t->name[t->name_size++] = byte;
  return TOOK;
}

/* The next object of several. */
static verdict_t open_another(http_tools_t* t) {
  if (t->array != 0 && t->form == ACCRT_HTTP_TOOLS_PYTHONIC) {
    begin_python(t);
    return TOOK;
  }
  t->state = OPEN;
  t->committed = 0;
  return TOOK;
}

/* ---- Sections ---- */

static void begin_in_section(http_tools_t* t) {
  const uint32_t is_markup = accrt_http_markup_of(t->form) != NULL;
  begin_object(t);
  t->plain = is_markup == 0;
  enter(t, is_markup ? TAG_NAME : CALL_ID);
}

static verdict_t take_call_mark(http_tools_t* t, char byte) {
  accrt_http_put(&t->piece, &byte, 1);
  const uint32_t found = accrt_http_match(&t->piece, accrt_http_section_of(t->form)->call);
  if (found == 1)
    begin_in_section(t);
  return took_if(found);
}

static uint32_t are_of_name(const char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i)
    if (!is_of_name(bytes[i]))
      return 0;
  return 1;
}

/* 0: this is no name. */
static uint32_t set_name(http_tools_t* t, const char* name, size_t size) {
  if (size == 0 || size > HTTP_CALL_NAME_BYTES || !are_of_name(name, size))
    return 0;
  memcpy(t->name, name, size);
  t->name_size = (uint32_t)size;
  return 1;
}

/* The name in an id of Kimi's. 0: there is none. */
static uint32_t name_in_id(http_tools_t* t) {
  static const char prefix[] = "functions.";
  const size_t skipped = sizeof prefix - 1;
  const char* at = t->piece.data;
  size_t size = t->piece.size;
  if (!are_of_name(at, size)) /* all of the id is shown again */
    return 0;
  size_t last = size;
  while (last > 0 && at[last - 1] >= '0' && at[last - 1] <= '9')
    --last;
  if (last < size && last > 0 && at[last - 1] == ':')
    size = last - 1;
  const uint32_t has_prefix = size > skipped && memcmp(at, prefix, skipped) == 0;
  return has_prefix ? set_name(t, at + skipped, size - skipped) : set_name(t, at, size);
}

static verdict_t take_call_id(http_tools_t* t, char byte) {
  enum { MOST = HTTP_CALL_NAME_BYTES + 64 }; /* with the prefix, the number and the mark */
  const char* mark = accrt_http_section_of(t->form)->arguments;
  if (t->piece.size == 0 && accrt_http_is_space(byte))
    return TOOK;
  accrt_http_put(&t->piece, &byte, 1);
  if (!accrt_http_ends_with(&t->piece, mark))
    return took_if(t->piece.size < MOST && t->piece.failed == 0);
  t->piece.size -= strlen(mark);
  while (t->piece.size > 0 && accrt_http_is_space(t->piece.data[t->piece.size - 1]))
    --t->piece.size;
  if (t->form == ACCRT_HTTP_TOOLS_KIMI) {
    t->state = PLAIN_MARK;
    return took_if(name_in_id(t));
  }
  const uint32_t is_name = set_name(t, t->piece.data, t->piece.size);
  enter(t, FENCE);
  return took_if(is_name);
}

/* {...}, or: behind the word function, name, line feed, ```json, {...}, ``` */
static verdict_t take_fence(http_tools_t* t, char byte) {
  static const char word[] = "function", language[] = "```json";
  if (byte == '{' && (t->piece.size == 0 || accrt_http_match(&t->piece, language) == 1)) {
    begin_arguments(t);
    return AGAIN;
  }
  const uint32_t is_language = t->piece.size > 0 && t->piece.data[0] == '`';
  if (accrt_http_is_space(byte) && (t->piece.size == 0 || is_language))
    return TOOK;
  if (byte == '\n') {
    const uint32_t is_name = t->name_size == sizeof word - 1 &&
                             memcmp(t->name, word, t->name_size) == 0 &&
                             set_name(t, t->piece.data, t->piece.size);
    drop(t, &t->piece);
    return took_if(is_name);
  }
  accrt_http_put(&t->piece, &byte, 1);
  return took_if(t->piece.size <= HTTP_CALL_NAME_BYTES && t->piece.failed == 0);
}

/* What began as a last mark was text, or begins a first mark: the last one was left out. */
static verdict_t end_behind(http_tools_t* t, const char* bytes, size_t size) {
  if (strncmp(accrt_http_marks_of(t->form)->open, bytes, size) != 0) {
    put_content(t, bytes, size);
    enter(t, AFTER);
    return NO_CALL;
  }
  accrt_http_put(&t->held, bytes, size);
  t->array = 0;
  t->matched = (uint32_t)size;
  enter(t, TEXT);
  return AGAIN;
}

/* A call's last mark, then another call or the section's last mark. */
static verdict_t take_after_in_section(http_tools_t* t, char byte, const http_section_t* section) {
  const uint32_t is_fence = byte == '`' && t->form == ACCRT_HTTP_TOOLS_DEEPSEEK;
  if (t->piece.size == 0 && (accrt_http_is_space(byte) || byte == '}' || is_fence != 0))
    return TOOK;
  if (t->piece.size == 0 && byte == '{') {
    (void)open_another(t);
    return AGAIN;
  }
  accrt_http_put(&t->piece, &byte, 1);
  const uint32_t ends = accrt_http_match(&t->piece, accrt_http_marks_of(t->form)->close);
  const uint32_t another = accrt_http_match(&t->piece, section->call);
  const uint32_t end = accrt_http_match(&t->piece, section->end);
  if (ends == 1) {
    enter(t, TEXT);
  } else if (another == 1) {
    t->committed = 0;
    accrt_http_put_text(&t->held, section->call);
    begin_in_section(t);
  } else if (end == 1) {
    drop(t, &t->piece);
  } else if ((ends | another | end) == 0) {
    return end_behind(t, t->piece.data, t->piece.size - 1);
  }
  return TOOK;
}

static verdict_t take_after(http_tools_t* t, char byte) {
  if (t->form == ACCRT_HTTP_TOOLS_HARMONY)
    return TOOK; /* the message has nothing but the call */
  const http_section_t* section = accrt_http_section_of(t->form);
  if (section != NULL)
    return take_after_in_section(t, byte, section);
  const char* close = accrt_http_marks_of(t->form)->close;
  if (*close != 0 && byte == close[t->matched]) {
    if (close[++t->matched] == 0) {
      t->state = TEXT;
      t->matched = 0;
    }
    return TOOK;
  }
  if (t->matched > 0)
    return end_behind(t, close, t->matched);
  if (accrt_http_is_space(byte) || (byte == '}' && *close != 0))
    return TOOK;
  if (byte == '{' && t->form != ACCRT_HTTP_TOOLS_MISTRAL) {
    (void)open_another(t);
    return AGAIN;
  }
  if ((byte == ',' && t->array != 0) || (byte == ';' && is_bare(t)))
    return open_another(t);
  if (byte == ']' && t->array != 0) {
    t->state = *close != 0 ? AFTER : TEXT;
    t->array = 0;
    return TOOK;
  }
  return NO_CALL;
}

/* ---- Markup ---- */

/* What the schema says of the function's parameter. */
static uint32_t kind_of_parameter(const http_tools_t* t, const char* key, size_t key_size) {
  const char* at = t->text_parameters;
  while (at != NULL && *at != 0) {
    const uint32_t or_null = *at == '?';
    at += or_null;
    const size_t size = strcspn(at, "\n");
    if (size == t->name_size + 1u + key_size && memcmp(at, t->name, t->name_size) == 0 &&
        at[t->name_size] == ' ' && memcmp(at + t->name_size + 1, key, key_size) == 0)
      return or_null ? HTTP_VALUE_TEXT_OR_NULL : HTTP_VALUE_TEXT;
    at += size + (at[size] != 0);
  }
  return HTTP_VALUE_ANY;
}

static verdict_t take_tag_head(http_tools_t* t, char byte, const http_markup_t* m) {
  if (*m->head != 0) {
    if (t->piece.size == 0 && accrt_http_is_space(byte))
      return TOOK;
    accrt_http_put(&t->piece, &byte, 1);
    const uint32_t found = accrt_http_match(&t->piece, m->head);
    if (found == 1)
      enter(t, TAG_NAME);
    return took_if(found);
  }
  enter(t, TAG_NAME);
  return AGAIN;
}

static verdict_t take_tag_name(http_tools_t* t, char byte, const http_markup_t* m) {
  const uint32_t is_next = m->name_end[0] == '\n' && byte == '<';
  if (t->name_size == 0 || (t->piece.size == 0 && byte != m->name_end[0] && is_next == 0)) {
    if (!is_of_name(byte) || t->name_size == HTTP_CALL_NAME_BYTES)
      return NO_CALL;
    t->name[t->name_size++] = byte;
    return TOOK;
  }
  accrt_http_put(&t->piece, &byte, 1);
  const uint32_t ends = is_next != 0 ? 1 : accrt_http_match(&t->piece, m->name_end);
  if (ends != 1)
    return took_if(ends);
  accrt_http_put_text(&t->arguments, "{");
  t->parameters = 0;
  commit(t);
  enter(t, TAG_NEXT);
  return byte == '<' ? AGAIN : TOOK;
}

static void end_markup(http_tools_t* t) {
  put_arguments(t, "}", 1);
  enter(t, AFTER);
  t->matched = 0;
}

/* The call goes on with this byte as none can: it ends before what is read of a tag. */
static verdict_t end_early(http_tools_t* t) {
  put_arguments(t, "}", 1);
  return end_behind(t, t->piece.data, t->piece.size - 1);
}

static verdict_t take_tag_next(http_tools_t* t, char byte, const http_markup_t* m) {
  if (t->piece.size == 0 && accrt_http_is_space(byte))
    return TOOK;
  accrt_http_put(&t->piece, &byte, 1);
  const uint32_t key = accrt_http_match(&t->piece, m->key_open),
                 last = accrt_http_match(&t->piece, m->end);
  const uint32_t close = accrt_http_match(&t->piece, accrt_http_marks_of(t->form)->close);
  if (key == 1) {
    enter(t, TAG_KEY);
  } else if (last == 1 || close == 1) { /* of some forms they are the same */
    end_markup(t);
    if (close == 1)
      t->state = TEXT;
  } else if ((key | last | close) == 0) {
    return end_early(t);
  }
  return TOOK;
}

static verdict_t take_tag_key(http_tools_t* t, char byte, const http_markup_t* m) {
  accrt_http_put(&t->piece, &byte, 1);
  if (!accrt_http_ends_with(&t->piece, m->key_close))
    return TOOK;
  const size_t size = t->piece.size - strlen(m->key_close);
  t->kind = kind_of_parameter(t, t->piece.data, size);
  drop(t, &t->arguments);
  accrt_http_put_text(&t->arguments, t->parameters++ == 0 ? "\"" : ", \"");
  accrt_http_put_escaped(&t->arguments, t->piece.data, size);
  accrt_http_put_text(&t->arguments, "\": ");
  enter(t, *m->value_open != 0 ? TAG_BETWEEN : TAG_VALUE);
  return TOOK;
}

static verdict_t take_tag_between(http_tools_t* t, char byte, const http_markup_t* m) {
  if (t->piece.size == 0 && accrt_http_is_space(byte))
    return TOOK;
  accrt_http_put(&t->piece, &byte, 1);
  const uint32_t found = accrt_http_match(&t->piece, m->value_open);
  if (found == 1)
    enter(t, TAG_VALUE);
  return found != 0 ? TOOK : end_early(t);
}

/* A line feed on each side is none of the value. It comes all at once: where it ends, its type is
 * known. */
static void end_value(http_tools_t* t, size_t size) {
  const char* bytes = t->piece.data;
  if (size > 0 && bytes[size - 1] == '\n')
    --size;
  if (size > 0 && bytes[0] == '\n') {
    ++bytes;
    --size;
  }
  accrt_http_put_value(&t->arguments, bytes, size, t->kind);
  put_arguments(t, t->arguments.data, t->arguments.size);
  drop(t, &t->arguments);
  enter(t, TAG_NEXT);
}

static verdict_t take_tag_value(http_tools_t* t, char byte, const http_markup_t* m) {
  accrt_http_put(&t->piece, &byte, 1);
  if (byte != '>' && byte != '=')
    return TOOK;
  const char* const tags[] = {m->value_close, m->key_open, m->end};
  const uint32_t count = m->lines != 0 ? 3 : 1;
  uint32_t i = 0;
  while (i < count && !accrt_http_ends_with(&t->piece, tags[i]))
    ++i;
  if (i == count)
    return TOOK;
  const size_t size = t->piece.size - strlen(tags[i]);
  if (i > 0 && (size == 0 || t->piece.data[size - 1] != '\n'))
    return TOOK;
  end_value(t, size);
  if (i == 1)
    t->state = TAG_KEY;
  else if (i == 2)
    end_markup(t);
  return TOOK;
}

static verdict_t take_markup(http_tools_t* t, char byte) {
  const http_markup_t* m = accrt_http_markup_of(t->form);
  switch (t->state) {
  case TAG_HEAD:
    return take_tag_head(t, byte, m);
  case TAG_NAME:
    return take_tag_name(t, byte, m);
  case TAG_NEXT:
    return take_tag_next(t, byte, m);
  case TAG_KEY:
    return take_tag_key(t, byte, m);
  case TAG_BETWEEN:
    return take_tag_between(t, byte, m);
  default:
    return take_tag_value(t, byte, m);
  }
}

/* ---- Text ---- */

/* White space and what may be a mark are held: they are dropped before a call. */
static void take_text(http_tools_t* t, char byte) {
  if (t->form == ACCRT_HTTP_TOOLS_HARMONY) {
    put_content(t, &byte, 1);
    return;
  }
  const char* open = accrt_http_marks_of(t->form)->open;
  if (byte == open[t->matched]) {
    accrt_http_put(&t->held, &byte, 1);
    if (open[++t->matched] != 0)
      return;
    t->state = OPEN;
    t->matched = t->array = t->committed = 0;
    return;
  }
  if (t->matched > 0)
    flush_held(t);
  t->matched = byte == open[0];
  if (t->matched != 0 || accrt_http_is_space(byte)) {
    accrt_http_put(&t->held, &byte, 1);
  } else if (byte == '[' && t->begun == 0 && t->form == ACCRT_HTTP_TOOLS_PYTHONIC) {
    accrt_http_put(&t->held, &byte, 1);
    begin_python(t);
  } else if (byte == '{' && t->begun == 0 && is_bare(t)) {
    accrt_http_put(&t->held, &byte, 1);
    t->committed = 0;
    begin_object(t);
  } else {
    flush_held(t);
    put_content(t, &byte, 1);
  }
}

/* What was no call is text; behind a call, text follows. */
static void give_up(http_tools_t* t) {
  const uint32_t in_call = t->committed != 0 && t->state != AFTER;
  t->state = in_call ? AFTER : TEXT;
  t->matched = 0;
  if (in_call)
    return;
  t->array = 0;
  t->begun = 1;
  flush_held(t);
}

static verdict_t take(http_tools_t* t, char byte) {
  switch (t->state) {
  case OPEN:
    return take_open(t, byte);
  case PLAIN_NAME:
  case PLAIN_MARK:
    return take_plain(t, byte);
  case NEXT_KEY:
    return take_next_key(t, byte);
  case KEY:
    return take_key(t, byte);
  case COLON:
    return take_colon(t, byte);
  case VALUE:
    return take_value(t, byte);
  case NAME:
    return take_name(t, byte);
  case SKIPPED:
    return take_skipped(t, byte);
  case AFTER:
    return take_after(t, byte);
  case CALL_MARK:
    return take_call_mark(t, byte);
  case CALL_ID:
    return take_call_id(t, byte);
  case FENCE:
    return take_fence(t, byte);
  case PYTHON_NAME:
    return take_python_name(t, byte);
  case PYTHON_CALL:
    return take_python(t, byte);
  default:
    return take_markup(t, byte);
  }
}

/* Takes a byte outside of arguments. 0: the state has changed, and the byte is looked at again. */
static uint32_t take_byte(http_tools_t* t, char byte) {
  if (t->state == TEXT) {
    take_text(t, byte);
    return 1;
  }
  const uint32_t holds = t->state != AFTER && t->committed == 0;
  if (holds != 0)
    accrt_http_put(&t->held, &byte, 1);
  const verdict_t verdict = take(t, byte);
  if (verdict == TOOK)
    return 1;
  if (holds != 0 && t->held.size > 0)
    --t->held.size;
  if (verdict == NO_CALL)
    give_up(t);
  return 0;
}

/* Arguments go on as they are, in pieces that are whole characters. Returns the bytes taken. */
static size_t take_arguments(http_tools_t* t, const char* bytes, size_t size) {
  size_t used = 0;
  while (used < size && t->state == ARGUMENTS) {
    if (follow(t, bytes[used++]))
      t->state = NEXT_KEY;
  }
  if (t->committed != 0) {
    put_arguments(t, bytes, used);
  } else {
    accrt_http_put(&t->arguments, bytes, used);
    accrt_http_put(&t->held, bytes, used);
  }
  if (t->state != ARGUMENTS && t->plain != 0)
    end_object(t);
  return used;
}

uint32_t accrt_http_tools_begin(http_tools_t* t, const char* name, size_t size) {
  begin_object(t);
  t->committed = 0;
  t->plain = 1;
  const uint32_t is_name = set_name(t, name, size);
  enter(t, is_name ? PLAIN_MARK : TEXT);
  return is_name;
}

void accrt_http_tools_over(http_tools_t* t) {
  flush_held(t);
  enter(t, TEXT);
}

void accrt_http_tools_push(http_tools_t* t, const char* bytes, size_t size) {
  for (size_t i = 0; i < size;) {
    if (t->state == ARGUMENTS)
      i += take_arguments(t, bytes + i, size - i);
    else
      i += take_byte(t, bytes[i]);
  }
}

void accrt_http_tools_end(http_tools_t* t) {
  const uint32_t in_call = t->state == AFTER || (t->state != TEXT && t->committed != 0);
  /* White space behind calls is none of the model's words. */
  if (t->state == TEXT && t->matched == 0 && t->count > 0)
    drop(t, &t->held);
  if (in_call == 0)
    flush_held(t);
  t->calls->failed |= t->held.failed | t->arguments.failed | t->piece.failed;
  accrt_http_tools_close(t);
}
