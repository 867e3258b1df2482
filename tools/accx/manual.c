/* tools/accx/manual.c - prints accx(1) from the tables of verbs and options. */
#include <ctype.h>
#include <string.h>

#include "words.h"

/* Date of the last change to the page's own text. */
static const char page_date[] = "2026-11-22";

/* Writes a line of text as roff: without escapes, requests at its start, or hyphens in place of
 * minus. */
static void roff_line(const char* text, size_t length) {
  if (length > 0 && (text[0] == '.' || text[0] == '\''))
    fputs("\\&", accx_out);
  for (size_t i = 0; i < length; ++i) {
    const char c = text[i];
    const char* special = c == '\\'   ? "\\e"
                          : c == '-'  ? "\\-"
                          : c == '\'' ? "\\(aq"
                          : c == '`'  ? "\\(ga"
                          : c == '^'  ? "\\(ha"
                          : c == '~'  ? "\\(ti"
                                      : NULL;
    if (special)
      fputs(special, accx_out);
    else
      fputc(c, accx_out);
  }
  fputc('\n', accx_out);
}

static void roff(const char* text) {
  for (const char* end; *text; text = *end ? end + 1 : end) {
    end = strchr(text, '\n');
    end = end ? end : text + strlen(text);
    roff_line(text, (size_t)(end - text));
  }
}

static void preformatted(const char* text) {
  fputs(".nf\n", accx_out);
  roff(text);
  fputs(".fi\n", accx_out);
}

static void print_verb(const accx_verb_t* verb) {
  fputs(".SS ", accx_out);
  roff(accx_text("\"accx %s%s%s%s\"", verb->name, verb->operands[0] ? " " : "", verb->operands,
                 verb->options && verb->options[0].name ? " [options]" : ""));
  roff(accx_text("%c%s.", toupper((unsigned char)verb->summary[0]), verb->summary + 1));
  for (const accx_option_t* option = verb->options; option && option->name; ++option) {
    fputs(".TP\n.B ", accx_out);
    roff(accx_text("\"--%s%s%s\"", option->name, option->value ? " " : "",
                   option->value ? option->value : ""));
    roff(accx_text("%s%s.", option->help, option->many ? " (repeatable)" : ""));
  }
  fputs(".PP\n", accx_out);
  preformatted(verb->details);
}

static int run_manual(const accx_args_t* args) {
  (void)args;
  fprintf(accx_out,
          ".\\\" made by `accx manual`\n.TH ACCX 1 %s \"accx %s\" \"libaccrt\"\n.SH NAME\n"
          "accx \\- looks into .accx bundles, checks them and runs their functions\n"
          ".SH SYNOPSIS\n.B accx\n[\\fB\\-\\-time\\-limit\\fR \\fISECONDS\\fR]\n\\fIVERB\\fR\n"
          "[\\fIarguments\\fR]\n.br\n.B accx help\n[\\fIVERB\\fR]\n.SH DESCRIPTION\n",
          page_date, ACCRT_BUILD_VERSION);
  roff(
      "A bundle (.accx) holds a model's functions, kernels and weights. Each verb below does one "
      "thing\nwith bundles. A file that is read may be '-', standard input; a file that is written "
      "by --output,\nor as the last name, may be '-', standard output.\n");
  fputs(".SH VERBS\n", accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    print_verb(accx_verbs[i]);
  fputs(".SH EXIT STATUS\n", accx_out);
  preformatted(accx_exit_codes);
  fputs(".SH ENVIRONMENT\n.TP\n.B ACCRT_TRUST\n", accx_out);
  roff("The policy for machine code where no --trust says it.\n");
  fputs(".TP\n.B NO_COLOR\n", accx_out);
  roff("Switches colours off. They appear only on a terminal.\n");
  fputs(".TP\n.B XDG_CONFIG_HOME\n", accx_out);
  roff("The folder of your key and of the keys that you trust is accrt in it (without it "
       "~/.config/accrt).\n");
  return ACCX_OK;
}

const accx_verb_t accx_verb_manual = {
    .name = "manual",
    .operands = "",
    .summary = "prints the manual page, accx(1)",
    .details = "Examples:\n"
               "  accx manual | man -l -\n",
    .run = run_manual,
};
