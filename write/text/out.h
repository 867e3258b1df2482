/* write/text/out.h - writes YAML: maps, lists and words, in double quotes where a plain word could
 * have another meaning. It knows nothing of bundles. accx_out_close reports failures. */
#ifndef ACCRT_WRITE_TEXT_OUT_H_
#define ACCRT_WRITE_TEXT_OUT_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <yaml.h>

typedef struct accx_yaml_out {
  yaml_emitter_t emitter;
  bool failed;
  bool no_memory; /* the reason of the failure */
} accx_yaml_out_t;

bool accx_out_open(accx_yaml_out_t* out, FILE* file);
/* Ends the document; false when anything failed. */
bool accx_out_close(accx_yaml_out_t* out);

void accx_out_map(accx_yaml_out_t* out, bool in_one_line);
void accx_out_map_end(accx_yaml_out_t* out);
void accx_out_list(accx_yaml_out_t* out, bool in_one_line);
void accx_out_list_end(accx_yaml_out_t* out);
void accx_out_text(accx_yaml_out_t* out, const char* text);
void accx_out_i64(accx_yaml_out_t* out, int64_t value);
void accx_out_u64(accx_yaml_out_t* out, uint64_t value);
void accx_out_hex(accx_yaml_out_t* out, uint64_t value);
void accx_out_digits(accx_yaml_out_t* out, const void* bytes, uint64_t size_bytes);

/* A key and its value. */
void accx_out_key_text(accx_yaml_out_t* out, const char* key, const char* text);
void accx_out_key_i64(accx_yaml_out_t* out, const char* key, int64_t value);
void accx_out_key_u64(accx_yaml_out_t* out, const char* key, uint64_t value);
/* `key: true` */
void accx_out_key_flag(accx_yaml_out_t* out, const char* key);
void accx_out_key_hex(accx_yaml_out_t* out, const char* key, uint64_t value);

#endif /* ACCRT_WRITE_TEXT_OUT_H_ */
