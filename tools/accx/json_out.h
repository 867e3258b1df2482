/* tools/accx/json_out.h - builds JSON for --json. An object belongs to the object that contains it;
 * the root belongs to the caller until accx_json_print. JSON has no NaN and no infinities: they
 * become the strings "NaN", "Infinity" and "-Infinity". */
#ifndef ACCX_JSON_OUT_H_
#define ACCX_JSON_OUT_H_

#include <json-c/json.h>

#include "accx.h"
#include "names.h"

void accx_json_text(struct json_object* object, const char* key, const char* text); /* NULL: null */
void accx_json_u64(struct json_object* object, const char* key, uint64_t value);
void accx_json_i64(struct json_object* object, const char* key, int64_t value);
void accx_json_bool(struct json_object* object, const char* key, bool value);
/* With `digits` significant digits: 9 distinguish any two f32, 17 any two f64. */
struct json_object* accx_json_real(double value, int digits);
struct json_object* accx_json_object(struct json_object* parent,
                                     const char* key); /* parent NULL: a root object */
struct json_object* accx_json_array(struct json_object* parent, const char* key);
struct json_object* accx_json_append(struct json_object* array); /* a new object at the end */
void accx_json_version(struct json_object* object, const char* key, uint16_t major, uint16_t minor);
void accx_json_bits(struct json_object* object, const char* key, const accx_bit_names_t* table,
                    uint64_t mask);
void accx_json_shape(struct json_object* object, const char* key, uint32_t rank,
                     const int64_t* shape);
/* Prints to accx_out, and frees the object. */
void accx_json_print(struct json_object* root);

#endif /* ACCX_JSON_OUT_H_ */
