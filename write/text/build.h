/* write/text/build.h - declarations for the files of write/text that read text. A function that
 * fails sets *builder->error and returns false. */
#ifndef ACCRT_WRITE_TEXT_BUILD_H_
#define ACCRT_WRITE_TEXT_BUILD_H_

#include "write/text/expression.h"
#include "write/text/names.h"
#include "write/text/show.h"
#include "write/text/tree.h"

/* The kinds of names. */
typedef enum {
  ACCX_NAME_SYMBOL,
  ACCX_NAME_FILE,
  ACCX_NAME_CONSTANT,
  ACCX_NAME_STATE,
  ACCX_NAME_IMAGE,
  ACCX_NAME_KERNEL,
  ACCX_NAME_FUNCTION, /* identified by name and target */
  ACCX_NAME_INPUT,    /* of the current function, like those below */
  ACCX_NAME_RESULT,
  ACCX_NAME_LET,
} accx_name_kind_t;

/* A parameter of a kernel, or an argument of a function: the receiver of an operand. */
typedef struct accx_formal {
  const char* name;
  uint32_t kind; /* the ACCRT_OPERAND_* kind that it accepts */
} accx_formal_t;

typedef struct accx_name {
  accx_name_kind_t kind;
  uint32_t scope; /* of INPUT, RESULT, LET: number of the function; otherwise 0 */
  const char* name;
  const char* target; /* FUNCTION; otherwise "" */
  accrt_writer_id_t id;
  accrt_writer_id_t body; /* FUNCTION */
  accx_formal_t* formals; /* KERNEL; FUNCTION: inputs, then results */
  uint32_t formal_count, input_count;
  uint32_t roles[5]; /* CONSTANT: component by role; ACCX_NONE for none */
  accx_node_t* node;
} accx_name_t;

struct accx_text_files {
  int* fds;
  uint32_t fd_count;
  void** memory;
  uint32_t memory_count;
};

typedef struct accx_builder {
  accrt_bundle_writer_t* writer;
  accx_text_error_t* error;
  int folder; /* -1: the text may not name files */
  accx_text_files_t* files;
  accx_name_t** names; /* a hash table */
  uint32_t name_count, name_capacity;
  accrt_writer_id_t* locations;
  uint32_t location_count;
  uint32_t scope; /* number of the current function, from 1; 0: none */
} accx_builder_t;

/* ---- Words ---- */
bool accx_want(accx_builder_t* builder, const accx_node_t* node, accx_node_kind_t kind,
               const char* what);
/* Read the value of a key of a map. If the key is missing, *out is unchanged when `what` is NULL;
 * otherwise it is a failure, and `what` says what is missing. */
bool accx_key_text(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                   const char** out);
bool accx_key_i64(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  int64_t* out);
bool accx_key_u64(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  uint64_t* out);
bool accx_key_u32(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  uint32_t* out);
bool accx_key_flag(accx_builder_t* builder, accx_node_t* map, const char* key, bool* out);
bool accx_key_word(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                   const accx_words_t* words, uint32_t* out);
bool accx_key_bits(accx_builder_t* builder, accx_node_t* map, const char* key,
                   const accx_words_t* words, uint64_t* out);
bool accx_word_i64(accx_builder_t* builder, const accx_node_t* node, int64_t* out);
bool accx_word_u64(accx_builder_t* builder, const accx_node_t* node, uint64_t* out);
bool accx_word_u32(accx_builder_t* builder, const accx_node_t* node, uint32_t* out);
/* The bits of an f32 or f64, rounded once. */
bool accx_word_float(accx_builder_t* builder, const accx_node_t* node, uint32_t dtype, void* out);
bool accx_word_named(accx_builder_t* builder, const accx_node_t* node, const accx_words_t* words,
                     uint64_t* out);
/* Reads digits to memory that lives as long as the builder's files. */
bool accx_word_digits(accx_builder_t* builder, const accx_node_t* node, unsigned char** out,
                      uint64_t* out_size_bytes);
/* Reports a failed call of the library at a place of the text. */
bool accx_node_fail_call(accx_builder_t* builder, const accx_node_t* node, accrt_status_t status);

/* The same for a part of it, if the message names one as "KIND 'NAME'": an element of a list, or a
 * key of a map. */
bool accx_node_fail_part(accx_builder_t* builder, const accx_node_t* node, const char* kind,
                         const accx_node_t* parts, accrt_status_t status);
/* The same for the whole text: at the place that the message names, or else at the start of the
 * text. */
bool accx_node_fail_whole(accx_builder_t* builder, const accx_node_t* root, accrt_status_t status);

/* ---- Names ---- */
/* Adds a name. NULL on failure: it exists already, or no memory. */
accx_name_t* accx_name_add(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                           accx_node_t* node);
accx_name_t* accx_name_find(const accx_builder_t* builder, accx_name_kind_t kind, const char* name);
/* The same for a function, which has a target beside its name. */
accx_name_t* accx_name_add_target(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                                  const char* target, accx_node_t* node);
accx_name_t* accx_name_find_target(const accx_builder_t* builder, accx_name_kind_t kind,
                                   const char* name, const char* target);
/* Adds all names of a kind that are allowed here as candidates for a hint. */
void accx_name_near(const accx_builder_t* builder, accx_name_kind_t kind, accx_near_t* near);
/* Finds a name that is allowed here; a failure if there is none. */
bool accx_name_of(accx_builder_t* builder, const accx_node_t* node, accx_name_kind_t kind,
                  const char* what, accx_name_t** out);
void* accx_build_memory(accx_builder_t* builder, uint64_t size_bytes);

/* ---- Expressions, types, bytes ---- */
bool accx_read_expression(accx_builder_t* builder, const accx_node_t* node, accrt_writer_id_t* out);
/* Reads dtype, encoding, group and shape of a map. */
bool accx_read_type(accx_builder_t* builder, accx_node_t* map, accrt_writer_type_t* out);
/* Reads encoding and group of a map. */
bool accx_read_encoding(accx_builder_t* builder, accx_node_t* map, uint32_t* out_encoding,
                        uint32_t* out_group_elements);
/* Reads `data` of a map. */
bool accx_read_bytes(accx_builder_t* builder, accx_node_t* map, accrt_writer_bytes_t* out);

/* build_constants.c, build_kernels.c, build_functions.c, build_commands.c */
bool accx_build_constants(accx_builder_t* builder, accx_node_t* list);
bool accx_build_images(accx_builder_t* builder, accx_node_t* list);
bool accx_build_kernels(accx_builder_t* builder, accx_node_t* list);
bool accx_build_functions(accx_builder_t* builder, accx_node_t* list);
bool accx_build_block(accx_builder_t* builder, const accx_name_t* function, accx_node_t* list,
                      accrt_writer_id_t block);

#endif /* ACCRT_WRITE_TEXT_BUILD_H_ */
