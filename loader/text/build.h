/* loader/text/build.h - what the files that read text share. Private to loader/text. Functions that fail set *builder->error
 * and are false. */
#ifndef ACCRT_LOADER_TEXT_BUILD_H_
#define ACCRT_LOADER_TEXT_BUILD_H_

#include "loader/text/expression.h"
#include "loader/text/names.h"
#include "loader/text/show.h"
#include "loader/text/tree.h"

/* What a name stands for. */
typedef enum {
  ACCX_NAME_SYMBOL,
  ACCX_NAME_FILE,
  ACCX_NAME_CONSTANT,
  ACCX_NAME_STATE,
  ACCX_NAME_IMAGE,
  ACCX_NAME_KERNEL,
  ACCX_NAME_FUNCTION, /* by name and target */
  ACCX_NAME_INPUT,    /* of the current function; so are those below */
  ACCX_NAME_RESULT,
  ACCX_NAME_LET,
} accx_name_kind_t;

/* A parameter of a kernel, or an argument of a function: what a command gives something to. */
typedef struct accx_formal {
  const char* name;
  uint32_t kind; /* ACCRT_OPERAND_* that it takes */
} accx_formal_t;

typedef struct accx_name {
  accx_name_kind_t kind;
  uint32_t scope; /* of INPUT, RESULT, LET: the function's number; else 0 */
  const char* name;
  const char* target; /* FUNCTION; else "" */
  accrt_writer_id_t id;
  accrt_writer_id_t body; /* FUNCTION */
  accx_formal_t* formals; /* KERNEL; FUNCTION: inputs, then results */
  uint32_t formal_count, input_count;
  uint32_t roles[5]; /* CONSTANT: component by role, ACCX_NONE where there is none */
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
  int folder; /* -1: files may not be named */
  accx_text_files_t* files;
  accx_name_t** names; /* a hash table */
  uint32_t name_count, name_capacity;
  accrt_writer_id_t* locations;
  uint32_t location_count;
  uint32_t scope; /* the current function's number, from 1; 0: none */
} accx_builder_t;

/* ---- Words ---- */
bool accx_want(accx_builder_t* builder, const accx_node_t* node, accx_node_kind_t kind,
               const char* what);
/* Values of keys of a map. Without the key: *out is left alone, or, where `what` is not NULL, a failure that says what is missing. */
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
/* Digits into memory that stays with the builder's files. */
bool accx_word_digits(accx_builder_t* builder, const accx_node_t* node, unsigned char** out,
                      uint64_t* out_size_bytes);
/* A failed call of the library, about a place. */
bool accx_node_fail_call(accx_builder_t* builder, const accx_node_t* node, accrt_status_t status);

/* The same about one of the parts of a thing, where the message names it as "KIND 'NAME'": an element of a list, or a key of a map. */
bool accx_node_fail_part(accx_builder_t* builder, const accx_node_t* node, const char* kind,
                         const accx_node_t* parts, accrt_status_t status);
/* The same about the whole text: at the place of what the message names, or else at the text's begin. */
bool accx_node_fail_whole(accx_builder_t* builder, const accx_node_t* root, accrt_status_t status);

/* ---- Names ---- */
/* A new name; NULL on failure (it is there already, or no memory). */
accx_name_t* accx_name_add(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                           accx_node_t* node);
accx_name_t* accx_name_find(const accx_builder_t* builder, accx_name_kind_t kind, const char* name);
/* The same for functions, which have a target beside the name. */
accx_name_t* accx_name_add_target(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                                  const char* target, accx_node_t* node);
accx_name_t* accx_name_find_target(const accx_builder_t* builder, accx_name_kind_t kind,
                                   const char* name, const char* target);
/* Tries all names of a kind that can be meant here. */
void accx_name_near(const accx_builder_t* builder, accx_name_kind_t kind, accx_near_t* near);
/* The same, and a failure where there is none. */
bool accx_name_of(accx_builder_t* builder, const accx_node_t* node, accx_name_kind_t kind,
                  const char* what, accx_name_t** out);
void* accx_build_memory(accx_builder_t* builder, uint64_t size_bytes);

/* ---- Expressions, types, bytes ---- */
bool accx_read_expression(accx_builder_t* builder, const accx_node_t* node, accrt_writer_id_t* out);
/* dtype, encoding, group, shape of a map. */
bool accx_read_type(accx_builder_t* builder, accx_node_t* map, accrt_writer_type_t* out);
/* The encoding and group of a map. */
bool accx_read_encoding(accx_builder_t* builder, accx_node_t* map, uint32_t* out_encoding,
                        uint32_t* out_group_elements);
/* `data` of a map. */
bool accx_read_bytes(accx_builder_t* builder, accx_node_t* map, accrt_writer_bytes_t* out);

/* build_constants.c, build_kernels.c, build_functions.c, build_commands.c */
bool accx_build_constants(accx_builder_t* builder, accx_node_t* list);
bool accx_build_images(accx_builder_t* builder, accx_node_t* list);
bool accx_build_kernels(accx_builder_t* builder, accx_node_t* list);
bool accx_build_functions(accx_builder_t* builder, accx_node_t* list);
bool accx_build_block(accx_builder_t* builder, const accx_name_t* function, accx_node_t* list,
                      accrt_writer_id_t block);

#endif /* ACCRT_LOADER_TEXT_BUILD_H_ */
