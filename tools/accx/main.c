/* tools/accx/main.c - finds the verb, prints help, and writes the verb's output if the verb
 * succeeded. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "accx.h"
#include "open.h"
#include "standard.h"
#include "term.h"
#include "words.h"

FILE* accx_out;

const accx_verb_t* const accx_verbs[] = {
    &accx_verb_inspect, &accx_verb_verify,     &accx_verb_run,     &accx_verb_bench,
    &accx_verb_devices, &accx_verb_caps,       &accx_verb_dump,    &accx_verb_build,
    &accx_verb_diff,    &accx_verb_quantize,   &accx_verb_pack,    &accx_verb_keygen,
    &accx_verb_sign,    &accx_verb_trust,      &accx_verb_encrypt, &accx_verb_decrypt,
    &accx_verb_kernel,  &accx_verb_completion, &accx_verb_manual,
};
#define VERB_COUNT (sizeof accx_verbs / sizeof *accx_verbs)
const size_t accx_verb_count = VERB_COUNT;

const char accx_exit_codes[] =
    "  0  success\n"
    "  1  the operation failed: a file cannot be read, an argument does not fit, a kernel "
    "failed\n"
    "  2  the command line is wrong\n"
    "  3  the bundle is malformed, damaged, or needs another version of the library\n"
    "  4  the bundle's machine code or weights are not trusted (accx help trust), or none fits "
    "this "
    "device\n"
    "  5  the bundles differ (accx diff --exit-code), or the check of kernels has findings\n";

static const accx_verb_t* find_verb(const char* name) {
  for (size_t i = 0; i < VERB_COUNT; ++i) {
    if (strcmp(accx_verbs[i]->name, name) == 0)
      return accx_verbs[i];
  }
  return NULL;
}

static int unknown_verb(const char* name) {
  const char* names[VERB_COUNT + 1];
  for (size_t i = 0; i < VERB_COUNT; ++i)
    names[i] = accx_verbs[i]->name;
  names[VERB_COUNT] = "help";
  return accx_fail(ACCX_USAGE, "there is no verb '%s'%s (accx help)", name,
                   accx_near(name, names, VERB_COUNT + 1));
}

/* Before the verb. */
static int unknown_option(const char* name) {
  static const char* const names[] = {"--help", "--version", "--time-limit"};
  const char* near = accx_near(name, names, sizeof names / sizeof *names);
  if (near[0] == '\0')
    return accx_fail(ACCX_USAGE, "the verb comes first: accx VERB [arguments] (accx help)");
  return accx_fail(ACCX_USAGE, "there is no '%s'%s (accx help)", name, near);
}

static void print_overview(void) {
  accx_heading("usage: accx [--time-limit SECONDS] VERB [arguments]");
  fputs("Looks into .accx bundles, checks them and runs their functions.\n\n", accx_out);
  accx_table_t* table = accx_table_create(2);
  for (size_t i = 0; i < VERB_COUNT; ++i) {
    accx_table_cell(table, ACCX_NAME, "%s", accx_verbs[i]->name);
    accx_table_cell(table, ACCX_PLAIN, "%s", accx_verbs[i]->summary);
  }
  accx_table_cell(table, ACCX_NAME, "help [VERB]");
  accx_table_cell(table, ACCX_PLAIN, "this text, or all about one verb");
  accx_table_cell(table, ACCX_NAME, "--version");
  accx_table_cell(table, ACCX_PLAIN, "versions of the tool and of the library that it runs on");
  accx_table_cell(table, ACCX_NAME, "--time-limit SECONDS");
  accx_table_cell(table, ACCX_PLAIN,
                  "opening, verifying, preparing and planning each end after this time; no limit "
                  "by default, and with inf");
  accx_table_print(table);
  fputs(
      "\n'-' in place of an input file is standard input, and of an output file standard output.\n"
      "\n"
      "Examples:\n"
      "  accx inspect model.accx\n"
      "  accx run model.accx --input x=x.npy --output y=y.npy\n"
      "  accx bench model.accx --symbol batch=16\n"
      "\n"
      "Exit codes:\n",
      accx_out);
  fputs(accx_exit_codes, accx_out);
  fputs("\n"
        "Errors are one line on standard error, and nothing is then printed on standard output. "
        "Colours\n"
        "and progress appear only on a terminal; NO_COLOR switches colours off.\n",
        accx_out);
}

static void print_verb_help(const accx_verb_t* verb) {
  accx_heading("usage: accx %s%s%s%s", verb->name, verb->operands[0] ? " " : "", verb->operands,
               verb->options && verb->options[0].name ? " [options]" : "");
  fprintf(accx_out, "%c%s.\n", toupper((unsigned char)verb->summary[0]), verb->summary + 1);
  if (verb->options && verb->options[0].name)
    fputs("\nOptions:\n", accx_out);
  accx_table_t* table = accx_table_create(2);
  for (const accx_option_t* option = verb->options; option && option->name; ++option) {
    accx_table_cell(table, ACCX_NAME, "--%s%s%s", option->name, option->value ? " " : "",
                    option->value ? option->value : "");
    accx_table_cell(table, ACCX_PLAIN, "%s%s", option->help, option->many ? " (repeatable)" : "");
  }
  accx_table_print(table);
  fprintf(accx_out, "\n%s", verb->details);
}

static int print_help(int argc, char** argv) {
  if (argc == 0) {
    print_overview();
    return ACCX_OK;
  }
  const accx_verb_t* verb = find_verb(argv[0]);
  if (!verb)
    return unknown_verb(argv[0]);
  print_verb_help(verb);
  return ACCX_OK;
}

static int print_version(void) {
  const uint32_t library = accrt_version();
  fprintf(accx_out, "accx %s (libaccrt %u.%u.%u)\n", ACCRT_BUILD_VERSION, library >> 24,
          library >> 12 & 0xFFF, library & 0xFFF);
  return ACCX_OK;
}

static int run_verb(const accx_verb_t* verb, int argc, char** argv) {
  accx_args_t args;
  int code = accx_args_parse(verb, argc, argv, &args);
  if (code == ACCX_OK && args.help)
    print_verb_help(verb);
  else if (code == ACCX_OK && (code = accx_standard_take(&args)) == ACCX_OK)
    code = verb->run(&args);
  accx_args_free(&args);
  return code;
}

/* Reads the options in front of the verb. */
static int take_time_limit(int* argc, char*** argv) {
  if (*argc < 2 || strcmp((*argv)[1], "--time-limit") != 0)
    return ACCX_OK;
  const char* text = *argc > 2 ? (*argv)[2] : "";
  const bool endless = accx_is_endless(text);
  const bool plain = strchr("+- \t\n\v\f\r", text[0]) == NULL && !strpbrk(text, "xX");
  char* end = NULL;
  const double seconds = endless ? 0 : strtod(text, &end);
  if (!endless && (!plain || *end != '\0' || !(seconds >= 1e-9 && seconds <= 1e9)))
    return accx_fail(ACCX_USAGE, "--time-limit needs seconds above 0, or inf, not '%s'", text);
  accx_budget.timeout_ns = (uint64_t)(seconds * 1e9); /* 0: no limit */
  *argc -= 2;
  *argv += 2;
  return ACCX_OK;
}

static int dispatch(int argc, char** argv) {
  const int code = take_time_limit(&argc, &argv);
  if (code != ACCX_OK)
    return code;
  if (argc < 2)
    return accx_fail(ACCX_USAGE, "say what to do: accx VERB [arguments] (accx help)");
  const char* name = argv[1];
  if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
    return print_help(argc - 2, argv + 2);
  if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0)
    return print_version();
  if (name[0] == '-')
    return unknown_option(name);
  const accx_verb_t* verb = find_verb(name);
  return verb ? run_verb(verb, argc - 2, argv + 2) : unknown_verb(name);
}

/* Writes the output. A verb that failed writes nothing to standard output, and a failed write makes
 * the verb fail. */
static int deliver(int code, const char* text, size_t size_bytes) {
  if (code != ACCX_OK && code != ACCX_DIFFERENT)
    return code;
  if (fwrite(text, 1, size_bytes, stdout) != size_bytes || fflush(stdout) != 0)
    return accx_fail(ACCX_FAILED, "cannot write standard output");
  return code;
}

int main(int argc, char** argv) {
  char* text = NULL;
  size_t size_bytes = 0;
  accx_out = open_memstream(&text, &size_bytes);
  if (!accx_out)
    return accx_fail(ACCX_FAILED, "out of memory");
  int code = dispatch(argc, argv);
  accx_progress_clear();
  if (fclose(accx_out) != 0 && code == ACCX_OK)
    code = accx_fail(ACCX_FAILED, "out of memory");
  bool delivered;
  code = accx_standard_deliver(code, &delivered);
  if (!delivered)
    code = deliver(code, text, size_bytes);
  free(text);
  accx_forget_texts();
  return code;
}
