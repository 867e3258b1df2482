/* tools/accx/args.h - verbs as tables of options, and the command line read by such a table. It knows no verb by name. */
#ifndef ACCX_ARGS_H_
#define ACCX_ARGS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct accx_option {
  const char* name;  /* without "--"; NULL ends a table */
  const char* value; /* what the help calls its value; NULL: a flag */
  bool many;         /* may be given more than once */
  const char* help;
} accx_option_t;

typedef struct accx_args accx_args_t;

typedef struct accx_verb {
  const char* name;
  const char* operands; /* for the usage line, e.g. "FILE..." */
  size_t min_operands;
  size_t max_operands;
  const char* summary; /* one line */
  const char* details; /* paragraphs and examples after the options */
  const accx_option_t* options;
  int (*run)(const accx_args_t* args);
} accx_verb_t;

typedef struct accx_given {
  const accx_option_t* option;
  const char* value;
  bool used; /* globs: some name fits it */
} accx_given_t;

struct accx_args {
  const accx_verb_t* verb;
  accx_given_t* given; /* in the order of the command line */
  size_t given_count;
  const char** operands;
  size_t operand_count;
  bool help; /* --help or -h */
};

/* Reads what follows the verb. Strings are borrowed from argv. */
int accx_args_parse(const accx_verb_t* verb, int argc, char** argv, accx_args_t* out_args);
void accx_args_free(accx_args_t* args);

bool accx_args_has(const accx_args_t* args, const char* name);
/* The value of an option, NULL when it was not given. */
const char* accx_args_value(const accx_args_t* args, const char* name);
/* The next value of an option that may be given many times; *cursor starts at 0. NULL at the end. */
const char* accx_args_next(const accx_args_t* args, const char* name, size_t* cursor);
/* Whether a name fits one of the globs that an option was given with. */
bool accx_args_match(const accx_args_t* args, const char* option, const char* name);
/* A note for each value of the option that accx_args_match has found no name for: it may be mistyped. */
void accx_args_note_unused(const accx_args_t* args, const char* option);
/* A whole number within [minimum, maximum]; *out_value is left alone when the option was not given. */
int accx_args_integer(const accx_args_t* args, const char* name, int64_t minimum, int64_t maximum,
                      int64_t* out_value);
/* Reads a decimal i64 that fills the whole text. */
bool accx_parse_i64(const char* text, int64_t* out_value);

#endif /* ACCX_ARGS_H_ */
