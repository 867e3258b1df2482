/* write/text/out.c - writes YAML. See out.h. */
#include "write/text/out.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "write/text/show.h"

static void emit(accx_yaml_out_t* out, yaml_event_t* event, int made) {
  if (!made || !yaml_emitter_emit(&out->emitter, event)) {
    out->failed = true;
    out->no_memory = out->no_memory || !made;
  }
}

bool accx_out_open(accx_yaml_out_t* out, FILE* file) {
  yaml_event_t event;
  memset(out, 0, sizeof *out);
  if (!yaml_emitter_initialize(&out->emitter)) {
    out->failed = true;
    return false;
  }
  yaml_emitter_set_output_file(&out->emitter, file);
  yaml_emitter_set_unicode(&out->emitter, 1);
  yaml_emitter_set_width(&out->emitter, 120);
  emit(out, &event, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING));
  emit(out, &event, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1));
  return !out->failed;
}

bool accx_out_close(accx_yaml_out_t* out) {
  yaml_event_t event;
  if (!out->failed)
    emit(out, &event, yaml_document_end_event_initialize(&event, 1));
  if (!out->failed)
    emit(out, &event, yaml_stream_end_event_initialize(&event));
  const bool good = !out->failed;
  yaml_emitter_delete(&out->emitter);
  return good;
}

void accx_out_map(accx_yaml_out_t* out, bool in_one_line) {
  yaml_event_t event;
  const yaml_mapping_style_t style =
      in_one_line ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE;
  if (!out->failed)
    emit(out, &event, yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, style));
}
void accx_out_map_end(accx_yaml_out_t* out) {
  yaml_event_t event;
  if (!out->failed)
    emit(out, &event, yaml_mapping_end_event_initialize(&event));
}
void accx_out_list(accx_yaml_out_t* out, bool in_one_line) {
  yaml_event_t event;
  const yaml_sequence_style_t style =
      in_one_line ? YAML_FLOW_SEQUENCE_STYLE : YAML_BLOCK_SEQUENCE_STYLE;
  if (!out->failed)
    emit(out, &event, yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, style));
}
void accx_out_list_end(accx_yaml_out_t* out) {
  yaml_event_t event;
  if (!out->failed)
    emit(out, &event, yaml_sequence_end_event_initialize(&event));
}

/* True for letters, digits and a few marks, beginning with a letter, and not a word with a special
 * meaning in YAML. No reader takes such a word for a number. */
static bool is_plain(const char* text) {
  static const char* const taken[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  if (!((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z') || text[0] == '_'))
    return false;
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; ++i) {
    if (strcasecmp(text, taken[i]) == 0)
      return false;
  }
  return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/") ==
         strlen(text);
}

static void scalar(accx_yaml_out_t* out, const char* text, bool plain) {
  yaml_event_t event;
  /* libyaml escapes only control characters. From the first character that changes the direction of
   * text, everything outside ASCII is escaped. */
  for (const char* at = text; *at != '\0'; ++at) {
    if (accx_unsafe_bytes(at) == 3)
      yaml_emitter_set_unicode(&out->emitter, 0);
  }
  /* An unreadable word is written with escapes. libyaml checks that it is UTF-8. */
  const yaml_scalar_style_t style =
      plain ? YAML_PLAIN_SCALAR_STYLE : YAML_DOUBLE_QUOTED_SCALAR_STYLE;
  if (!out->failed)
    emit(out, &event,
         yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t*)text,
                                      (int)strlen(text), 1, 1, style));
}

void accx_out_text(accx_yaml_out_t* out, const char* text) {
  scalar(out, text, is_plain(text));
}
void accx_out_i64(accx_yaml_out_t* out, int64_t value) {
  char text[24];
  (void)snprintf(text, sizeof text, "%" PRId64, value);
  scalar(out, text, true);
}
void accx_out_u64(accx_yaml_out_t* out, uint64_t value) {
  char text[24];
  (void)snprintf(text, sizeof text, "%" PRIu64, value);
  scalar(out, text, true);
}
void accx_out_hex(accx_yaml_out_t* out, uint64_t value) {
  char text[24];
  (void)snprintf(text, sizeof text, "0x%" PRIx64, value);
  scalar(out, text, true);
}

void accx_out_digits(accx_yaml_out_t* out, const void* bytes, uint64_t size_bytes) {
  static const char digits[] = "0123456789abcdef";
  const unsigned char* at = bytes;
  char* text = malloc((size_t)size_bytes * 2 + 1);
  if (text == NULL) {
    out->failed = out->no_memory = true;
    return;
  }
  for (uint64_t i = 0; i < size_bytes; ++i) {
    text[2 * i] = digits[at[i] >> 4];
    text[2 * i + 1] = digits[at[i] & 15];
  }
  text[2 * size_bytes] = '\0';
  scalar(out, text, false);
  free(text);
}

void accx_out_key_text(accx_yaml_out_t* out, const char* key, const char* text) {
  accx_out_text(out, key);
  accx_out_text(out, text);
}
void accx_out_key_i64(accx_yaml_out_t* out, const char* key, int64_t value) {
  accx_out_text(out, key);
  accx_out_i64(out, value);
}
void accx_out_key_u64(accx_yaml_out_t* out, const char* key, uint64_t value) {
  accx_out_text(out, key);
  accx_out_u64(out, value);
}
void accx_out_key_hex(accx_yaml_out_t* out, const char* key, uint64_t value) {
  accx_out_text(out, key);
  accx_out_hex(out, value);
}
void accx_out_key_flag(accx_yaml_out_t* out, const char* key) {
  accx_out_text(out, key);
  scalar(out, "true", true);
}
