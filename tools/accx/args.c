/* tools/accx/args.c - reads a verb's command line by its table of options. It may not use the
 * library. */
#include "args.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "accx.h"

static size_t option_count(const accx_option_t* options) {
  size_t count = 0;
  while (options && options[count].name)
    ++count;
  return count;
}

static const accx_option_t* find_option(const accx_verb_t* verb, const char* name, size_t length) {
  for (size_t i = 0; i < option_count(verb->options); ++i) {
    const accx_option_t* option = &verb->options[i];
    if (strlen(option->name) == length && memcmp(option->name, name, length) == 0)
      return option;
  }
  return NULL;
}

/* For "-o": the one option that begins with that letter, as accx_near names it; or "". */
static const char* begins_with(const char* name, const char* const* names, size_t count) {
  const char* found = NULL;
  if (strlen(name) != 2)
    return "";
  for (size_t i = 0; i < count; ++i) {
    if (names[i][2] == name[1]) {
      if (found)
        return "";
      found = names[i];
    }
  }
  return found ? accx_text(", did you mean '%s'?", found) : "";
}

static int unknown_option(const accx_verb_t* verb, const char* name) {
  const size_t count = option_count(verb->options);
  const char** names = accx_alloc(count + 1, sizeof *names);
  for (size_t i = 0; i < count; ++i)
    names[i] = accx_text("--%s", verb->options[i].name);
  const char* near = accx_near(name, names, count);
  if (!near[0])
    near = begins_with(name, names, count);
  if (!near[0])
    near = accx_text(": accx %s%s%s", verb->name, verb->operands[0] ? " " : "", verb->operands);
  const int code = accx_fail(ACCX_USAGE, "%s has no option %s%s (accx help %s)", verb->name, name,
                             near, verb->name);
  free(names);
  return code;
}

static int add_given(accx_args_t* args, const accx_option_t* option, const char* value) {
  for (size_t i = 0; i < args->given_count && !option->many; ++i) {
    if (args->given[i].option == option)
      return accx_fail(ACCX_USAGE, "--%s is given twice", option->name);
  }
  args->given[args->given_count].option = option;
  args->given[args->given_count++].value = value;
  return ACCX_OK;
}

/* Reads one "--name", "--name=value" or "--name value". *index advances past it. */
static int parse_option(accx_args_t* args, int argc, char** argv, int* index) {
  const char* word = argv[*index];
  const char* name = word + 2;
  const char* equals = strchr(name, '=');
  const size_t length = equals ? (size_t)(equals - name) : strlen(name);
  const accx_option_t* option = find_option(args->verb, name, length);
  if (!option)
    return unknown_option(args->verb, accx_text("--%.*s", (int)length, name));
  if (!option->value)
    return equals ? accx_fail(ACCX_USAGE, "--%s takes no value", option->name)
                  : add_given(args, option, NULL);
  if (equals)
    return add_given(args, option, equals + 1);
  if (*index + 1 >= argc)
    return accx_fail(ACCX_USAGE, "--%s needs a value: --%s %s", option->name, option->name,
                     option->value);
  return add_given(args, option, argv[++*index]);
}

static int check_operands(const accx_args_t* args) {
  const accx_verb_t* verb = args->verb;
  if (args->operand_count < verb->min_operands && verb->choices)
    return accx_fail(ACCX_USAGE, "%s needs one of %s: accx %s %s", verb->name, verb->choices,
                     verb->name, verb->operands);
  if (args->operand_count < verb->min_operands)
    return accx_fail(ACCX_USAGE, "%s needs %s: accx %s %s", verb->name,
                     verb->min_operands == 1 ? "a file" : "more arguments", verb->name,
                     verb->operands);
  if (args->operand_count > verb->max_operands)
    return accx_fail(ACCX_USAGE, "%s takes %s; '%s' is one too many (accx help %s)", verb->name,
                     verb->max_operands == 0   ? "no file"
                     : verb->max_operands == 1 ? "one file"
                                               : verb->operands,
                     args->operands[verb->max_operands], verb->name);
  return ACCX_OK;
}

int accx_args_parse(const accx_verb_t* verb, int argc, char** argv, accx_args_t* out_args) {
  accx_args_t* args = out_args;
  memset(args, 0, sizeof *args);
  args->verb = verb;
  args->given = accx_alloc((size_t)argc + 1, sizeof *args->given);
  args->operands = accx_alloc((size_t)argc + 1, sizeof *args->operands);
  bool only_operands = false;
  for (int i = 0; i < argc; ++i) {
    int code = ACCX_OK;
    if (only_operands || argv[i][0] != '-' || argv[i][1] == '\0')
      args->operands[args->operand_count++] = argv[i];
    else if (strcmp(argv[i], "--") == 0)
      only_operands = true;
    else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
      args->help = true;
    else if (argv[i][1] != '-')
      code = unknown_option(verb, argv[i]);
    else
      code = parse_option(args, argc, argv, &i);
    if (code)
      return code;
  }
  return args->help ? ACCX_OK : check_operands(args);
}

void accx_args_free(accx_args_t* args) {
  free(args->given);
  free(args->operands);
  memset(args, 0, sizeof *args);
}

bool accx_args_has(const accx_args_t* args, const char* name) {
  for (size_t i = 0; i < args->given_count; ++i) {
    if (strcmp(args->given[i].option->name, name) == 0)
      return true;
  }
  return false;
}

const char* accx_args_next(const accx_args_t* args, const char* name, size_t* cursor) {
  while (*cursor < args->given_count) {
    const accx_given_t* given = &args->given[(*cursor)++];
    if (strcmp(given->option->name, name) == 0)
      return given->value;
  }
  return NULL;
}

const char* accx_args_value(const accx_args_t* args, const char* name) {
  size_t cursor = 0;
  return accx_args_next(args, name, &cursor);
}

bool accx_args_match(const accx_args_t* args, const char* option, const char* name) {
  bool fits = false;
  for (size_t i = 0; i < args->given_count; ++i) {
    accx_given_t* given = &args->given[i];
    if (strcmp(given->option->name, option) == 0 && fnmatch(given->value, name, 0) == 0)
      fits = given->used = true;
  }
  return fits;
}

void accx_args_note_unused(const accx_args_t* args, const char* option) {
  for (size_t i = 0; i < args->given_count; ++i) {
    const accx_given_t* given = &args->given[i];
    if (strcmp(given->option->name, option) == 0 && !given->used)
      accx_note("--%s '%s' fits no name", option, accx_safe(given->value));
  }
}

const char* accx_args_first_unused(const accx_args_t* args, const char* option) {
  for (size_t i = 0; i < args->given_count; ++i) {
    if (strcmp(args->given[i].option->name, option) == 0 && !args->given[i].used)
      return args->given[i].value;
  }
  return NULL;
}

bool accx_parse_i64(const char* text, int64_t* out_value) {
  const char* digits = text[0] == '-' ? text + 1 : text;
  if (digits[0] < '0' || digits[0] > '9')
    return false;
  char* end = NULL;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno || *end != '\0')
    return false;
  *out_value = (int64_t)value;
  return true;
}

bool accx_is_endless(const char* text) {
  return strcasecmp(text, "inf") == 0 || strcasecmp(text, "infinity") == 0;
}

int accx_args_seconds(const accx_args_t* args, const char* name, int64_t maximum,
                      int64_t* out_seconds) {
  const char* text = accx_args_value(args, name);
  int64_t value = 0;
  if (!text)
    return ACCX_OK;
  if (!accx_is_endless(text) && (!accx_parse_i64(text, &value) || value < 1 || value > maximum))
    return accx_fail(ACCX_USAGE,
                     "--%s is '%s'; it must be a whole number from 1 to %" PRId64 ", or inf", name,
                     text, maximum);
  *out_seconds = value;
  return ACCX_OK;
}

int accx_args_integer(const accx_args_t* args, const char* name, int64_t minimum, int64_t maximum,
                      int64_t* out_value) {
  const char* text = accx_args_value(args, name);
  if (!text)
    return ACCX_OK;
  int64_t value = 0;
  if (!accx_parse_i64(text, &value) || value < minimum || value > maximum)
    return accx_fail(ACCX_USAGE,
                     "--%s is '%s'; it must be a whole number from %" PRId64 " to %" PRId64, name,
                     text, minimum, maximum);
  *out_value = value;
  return ACCX_OK;
}
