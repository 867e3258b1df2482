/* tools/accx/inspect.h - declarations for the two forms of `accx inspect`. */
#ifndef ACCX_INSPECT_H_
#define ACCX_INSPECT_H_

#include "accx.h"

enum {
  ACCX_PART_VERSIONS = 1u << 0,
  ACCX_PART_METADATA = 1u << 1,
  ACCX_PART_SECTIONS = 1u << 2,
  ACCX_PART_SYMBOLS = 1u << 3,
  ACCX_PART_FUNCTIONS = 1u << 4,
  ACCX_PART_STATES = 1u << 5,
  ACCX_PART_CONSTANTS = 1u << 6,
  ACCX_PART_KERNELS = 1u << 7,
  ACCX_PART_FILES = 1u << 8,
  ACCX_PART_ADAPTERS = 1u << 9,
  ACCX_PART_ASSETS = 1u << 10,
  ACCX_PART_ALL = (1u << 11) - 1,
};

typedef struct accx_inspection {
  accrt_bundle_t* bundle;
  accrt_bundle_info_t info;
  uint32_t parts; /* ACCX_PART_* */
  uint32_t top;   /* limit of the constants in the human form */
} accx_inspection_t;

void accx_inspect_human(const accx_inspection_t* inspection);
void accx_inspect_json(const accx_inspection_t* inspection);

/* inspect_extras.c: files and shards, adapters, assets, locations, and the place of a constant as
 * text. */
struct json_object;
void accx_print_files(const accx_inspection_t* in);
void accx_print_adapters(const accx_inspection_t* in);
void accx_print_assets(const accx_inspection_t* in);
void accx_add_files(const accx_inspection_t* in, struct json_object* root);
void accx_add_adapters(const accx_inspection_t* in, struct json_object* root);
void accx_add_assets(const accx_inspection_t* in, struct json_object* root);
/* "external: model.gguf", "prepared"; "" for a stored constant. */
const char* accx_constant_place_text(const accx_inspection_t* in,
                                     const accrt_constant_info_t* constant);
/* Adds the place of an EXTERNAL constant, its shard and its components. */
void accx_add_constant_extras(const accx_inspection_t* in, struct json_object* object,
                              uint32_t index, const accrt_constant_info_t* constant);

#endif /* ACCX_INSPECT_H_ */
