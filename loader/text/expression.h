/* loader/text/expression.h - expressions as text: `ceildiv(n * 4, 16) + $e0`. Numbers, symbols (in backticks where a name is no plain word),
 * + - * // %, comparisons, `and`, `or`, not() min() max() ceildiv() select() present(input) induction(depth), and $name for what
 * `let` names. It knows neither YAML nor the rest of a bundle. */
#ifndef ACCRT_LOADER_TEXT_EXPRESSION_H_
#define ACCRT_LOADER_TEXT_EXPRESSION_H_

#include "loader/format.h"
#include "loader/text/text.h"

/* ---- Writing ---- */

/* The nodes of one scope. Nodes that are used several times, and large ones, get names (`$e0`), so that the text stays as
 * short as the nodes are few. */
typedef struct accx_scope_text {
  const accx_expression_t* nodes;
  uint32_t count;
  uint32_t* uses;  /* how often each is an operand */
  uint32_t* names; /* ACCX_NONE, or the number in its name */
  uint32_t* sizes; /* of its text, in nodes */
  uint32_t* depths;
  uint32_t named;
  /* Names of symbols by index, and of the function's inputs. */
  const char* (*symbol)(void* self, uint32_t index);
  const char* (*input)(void* self, uint32_t index);
  void* self;
} accx_scope_text_t;

/* False when there is no memory. */
bool accx_scope_begin(accx_scope_text_t* scope, const accx_expression_t* nodes, uint32_t count);
void accx_scope_end(accx_scope_text_t* scope);
/* Text of a node as a use of it (its name, where it has one), or what the name stands for. The caller frees it; NULL when there is no
 * memory. */
char* accx_expression_text(const accx_scope_text_t* scope, uint32_t node, bool definition);

/* ---- Reading ---- */

/* What names mean to whoever reads. Each is false with *error set when there is none. */
typedef struct accx_expression_reader {
  accrt_bundle_writer_t* writer;
  bool (*symbol)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  bool (*input)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  bool (*let)(void* self, const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error);
  void* self;
} accx_expression_reader_t;
/* On failure error->column is the place in the text, from 1. */
bool accx_expression_read(const accx_expression_reader_t* reader, const char* text,
                          accrt_writer_id_t* out_id, accx_text_error_t* error);

#endif /* ACCRT_LOADER_TEXT_EXPRESSION_H_ */
