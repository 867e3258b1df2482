/* write/text/expression.h - expressions as text: `ceildiv(n * 4, 16) + $e0`. They have numbers,
 * symbols (in backticks if the name is not a plain word), + - * // %, comparisons, `and`, `or`,
 * not() min() max() ceildiv() select() present(input) induction(depth), and $name for a name in
 * `let`. This code knows neither YAML nor the rest of a bundle. */
#ifndef ACCRT_WRITE_TEXT_EXPRESSION_H_
#define ACCRT_WRITE_TEXT_EXPRESSION_H_

#include "format/known.h"
#include "write/text/text.h"

/* ---- Writing ---- */

/* The nodes of one scope. Large nodes and nodes with several uses get names (`$e0`), so that the
 * text's length is linear in the number of nodes. */
typedef struct accx_scope_text {
  const accx_expression_t* nodes;
  uint32_t count;
  uint32_t* uses;  /* number of uses as an operand */
  uint32_t* names; /* the number in its name, or ACCX_NONE */
  uint32_t* sizes; /* length of its text, in nodes */
  uint32_t* depths;
  uint32_t named;
  /* Return the name of a symbol, or of an input of the function, by index. */
  const char* (*symbol)(void* self, uint32_t index);
  const char* (*input)(void* self, uint32_t index);
  void* self;
} accx_scope_text_t;

/* False when the allocation fails. */
bool accx_scope_begin(accx_scope_text_t* scope, const accx_expression_t* nodes, uint32_t count);
void accx_scope_end(accx_scope_text_t* scope);
/* The text for a use of a node (its name, if it has one), or with `definition` the text that the
 * name stands for. The caller frees it. NULL when the allocation fails. */
char* accx_expression_text(const accx_scope_text_t* scope, uint32_t node, bool definition);

/* ---- Reading ---- */

/* The meaning of names. Each function returns false, with *error set, for an unknown name. */
typedef struct accx_expression_reader {
  accrt_bundle_writer_t* writer;
  bool (*symbol)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  bool (*input)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  bool (*let)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  void* self;
} accx_expression_reader_t;
/* On failure error->column is the column in the text, from 1. */
bool accx_expression_read(const accx_expression_reader_t* reader, const char* text,
                          accrt_writer_id_t* out_id, accx_text_error_t* error);

#endif /* ACCRT_WRITE_TEXT_EXPRESSION_H_ */
