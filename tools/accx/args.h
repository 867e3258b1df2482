/* tools/accx/args.h - verbs as tables of options, and the parser for such tables. It knows no verb
 * by name. */
#ifndef ACCX_ARGS_H_
#define ACCX_ARGS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct accx_option {
  const char* name;  /* without "--"; NULL ends a table */
  const char* value; /* the value's name in the help, "a|b|c" for a choice; NULL: a flag */
  bool many;         /* may be repeated */
  const char* help;
} accx_option_t;

/* The meaning of operands. For files, '-' is standard input, or standard output for a written
 * file. */
typedef enum accx_operand_kind {
  ACCX_WORDS,
  ACCX_READS,
  ACCX_READS_THEN_WRITES, /* the last one is written */
} accx_operand_kind_t;

typedef struct accx_args accx_args_t;

typedef struct accx_verb {
  const char* name;
  const char* operands; /* for the usage line, such as "FILE..." */
  size_t min_operands;
  size_t max_operands;
  const char* summary; /* one line */
  const char* details; /* paragraphs and examples after the options */
  const accx_option_t* options;
  int (*run)(const accx_args_t* args);
  accx_operand_kind_t operand_kind;
  const char* choices; /* the possible first operands, separated by spaces */
} accx_verb_t;

typedef struct accx_given {
  const accx_option_t* option;
  const char* value;
  bool used; /* globs: matches some name */
} accx_given_t;

struct accx_args {
  const accx_verb_t* verb;
  accx_given_t* given; /* in the order of the command line */
  size_t given_count;
  const char** operands;
  size_t operand_count;
  bool help; /* --help or -h */
};

/* Reads the arguments behind the verb. The strings stay in argv. */
int accx_args_parse(const accx_verb_t* verb, int argc, char** argv, accx_args_t* out_args);
void accx_args_free(accx_args_t* args);

bool accx_args_has(const accx_args_t* args, const char* name);
/* The value of an option; NULL when it is absent. */
const char* accx_args_value(const accx_args_t* args, const char* name);
/* The next value of a repeated option; *cursor starts at 0. NULL at the end. */
const char* accx_args_next(const accx_args_t* args, const char* name, size_t* cursor);
/* True when a name matches one of the option's globs. */
bool accx_args_match(const accx_args_t* args, const char* option, const char* name);
/* Prints a note for each value of the option that matched no name in accx_args_match: it may be a
 * typo. */
void accx_args_note_unused(const accx_args_t* args, const char* option);
/* The first such value, or NULL. */
const char* accx_args_first_unused(const accx_args_t* args, const char* option);
/* A whole number within [minimum, maximum]. *out_value is unchanged if the option is absent. */
int accx_args_integer(const accx_args_t* args, const char* name, int64_t minimum, int64_t maximum,
                      int64_t* out_value);
/* Whole seconds from 1 to `maximum`, or `inf`, which sets *out_seconds to 0 (no limit). */
int accx_args_seconds(const accx_args_t* args, const char* name, int64_t maximum,
                      int64_t* out_seconds);
/* True for "inf" or "infinity", which mean no limit. */
bool accx_is_endless(const char* text);
/* Reads a decimal i64 that is the whole text. */
bool accx_parse_i64(const char* text, int64_t* out_value);

#endif /* ACCX_ARGS_H_ */
