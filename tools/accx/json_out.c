/* tools/accx/json_out.c - builds JSON with json-c. It may not use the library. */
#include "json_out.h"

#include <math.h>
#include <string.h>

#include "write/text/show.h"

void accx_json_text(struct json_object* object, const char* key, const char* text) {
  json_object_object_add(object, key, text ? json_object_new_string(text) : NULL);
}

void accx_json_u64(struct json_object* object, const char* key, uint64_t value) {
  json_object_object_add(object, key, json_object_new_uint64(value));
}

void accx_json_i64(struct json_object* object, const char* key, int64_t value) {
  json_object_object_add(object, key, json_object_new_int64(value));
}

void accx_json_bool(struct json_object* object, const char* key, bool value) {
  json_object_object_add(object, key, json_object_new_boolean(value));
}

struct json_object* accx_json_real(double value, int digits) {
  if (isnan(value))
    return json_object_new_string("NaN");
  if (isinf(value))
    return json_object_new_string(value > 0 ? "Infinity" : "-Infinity");
  char text[40];
  snprintf(text, sizeof text, "%.*g", digits, value);
  return json_object_new_double_s(value, text);
}

struct json_object* accx_json_object(struct json_object* parent, const char* key) {
  struct json_object* object = json_object_new_object();
  if (parent)
    json_object_object_add(parent, key, object);
  return object;
}

struct json_object* accx_json_array(struct json_object* parent, const char* key) {
  struct json_object* array = json_object_new_array();
  json_object_object_add(parent, key, array);
  return array;
}

struct json_object* accx_json_append(struct json_object* array) {
  struct json_object* object = json_object_new_object();
  json_object_array_add(array, object);
  return object;
}

void accx_json_version(struct json_object* object, const char* key, uint16_t major,
                       uint16_t minor) {
  accx_json_text(object, key, accx_text("%u.%u", (unsigned)major, (unsigned)minor));
}

void accx_json_bits(struct json_object* object, const char* key, const accx_bit_names_t* table,
                    uint64_t mask) {
  struct json_object* array = accx_json_array(object, key);
  for (unsigned bit = 0; bit < 64; ++bit) {
    const char* name = accx_bit_name(table, mask, bit);
    if (name)
      json_object_array_add(array, json_object_new_string(name));
  }
}

void accx_json_shape(struct json_object* object, const char* key, uint32_t rank,
                     const int64_t* shape) {
  struct json_object* array = accx_json_array(object, key);
  for (uint32_t i = 0; i < rank; ++i)
    json_object_array_add(array, json_object_new_int64(shape[i]));
}

/* The end of the text up to the next character that may need an escape. */
static const char* print_plain(const char* text) {
  const size_t count = strcspn(text, "\x7f\xc2\xe2");
  fwrite(text, 1, count, accx_out);
  return text + count;
}

/* JSON may go to a terminal. json-c escapes only control characters below 0x20. DEL, C1 and changes
 * of text direction are written as \uXXXX here. */
static void print_escaped(const char* text) {
  while ((text = print_plain(text))[0] != '\0') {
    const unsigned char* at = (const unsigned char*)text;
    const size_t count = accx_unsafe_bytes(text);
    if (count == 0)
      fputc(*text, accx_out);
    else
      fprintf(accx_out, "\\u%04x",
              count == 1   ? at[0]
              : count == 2 ? (at[0] & 31u) << 6 | (at[1] & 63u)
                           : (at[0] & 15u) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u));
    text += count ? count : 1;
  }
}

void accx_json_print(struct json_object* root) {
  print_escaped(json_object_to_json_string_ext(
      root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE));
  fputc('\n', accx_out);
  json_object_put(root);
}
