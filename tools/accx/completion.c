/* tools/accx/completion.c - prints completion for bash, zsh and fish from the tables that parse the
 * command line, so that no list of words exists twice. */
#include <stdlib.h>
#include <string.h>

#include "words.h"

static const char before_verb[] = "help --help --version --time-limit";

/* True when an option's value is, or ends with, the name of a file or folder. */
static bool takes_file(const accx_option_t* option) {
  static const char* const kinds[] = {"FILE", "PATH", "DIR", "TEXT", "[NAME=]VALUE"};
  for (size_t i = 0; option->value && i < sizeof kinds / sizeof *kinds; ++i) {
    if (strstr(option->value, kinds[i]))
      return true;
  }
  return false;
}

/* The possible values of an option, separated by spaces; NULL when there are many. */
static const char* choices_of(const accx_option_t* option) {
  if (!option->value || !strchr(option->value, '|'))
    return NULL;
  char* words = accx_alloc(strlen(option->value) + 1, 1);
  for (size_t i = 0; option->value[i]; ++i)
    words[i] = option->value[i] == '|' ? ' ' : option->value[i];
  const char* kept = accx_text("%s", words);
  free(words);
  return kept;
}

static bool operands_are_files(const accx_verb_t* verb) {
  return verb->operand_kind != ACCX_WORDS;
}

/* ---- bash ---- */

static void bash_values(const accx_verb_t* verb) {
  for (const accx_option_t* option = verb->options; option && option->name; ++option) {
    if (!option->value)
      continue;
    fprintf(accx_out, "    %s,--%s) ", verb->name, option->name);
    if (choices_of(option))
      fprintf(accx_out, "_accx_words '%s' ;;\n", choices_of(option));
    else
      fputs(takes_file(option) ? "_accx_files ;;\n" : ";;\n", accx_out);
  }
}

static void bash_words(const accx_verb_t* verb) {
  fprintf(accx_out, "    %s,-*) _accx_words '--help", verb->name);
  for (const accx_option_t* option = verb->options; option && option->name; ++option)
    fprintf(accx_out, " --%s", option->name);
  fputs("' ;;\n", accx_out);
  if (verb->choices)
    fprintf(accx_out, "    %s,*) _accx_words '%s'%s ;;\n", verb->name, verb->choices,
            operands_are_files(verb) ? "; _accx_files" : "");
  else
    fprintf(accx_out, "    %s,*) %s;;\n", verb->name,
            operands_are_files(verb) ? "_accx_files " : "");
}

static void print_bash(void) {
  fputs("# bash completion of accx; made by `accx completion bash`\n"
        "_accx_words() { COMPREPLY+=($(compgen -W \"$1\" -- \"$cur\")); }\n"
        "_accx_files() {\n"
        "  local IFS=$'\\n'\n"
        "  COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
        "  compopt -o filenames 2>/dev/null\n"
        "}\n"
        "_accx() {\n"
        "  local cur=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb= i\n"
        "  COMPREPLY=()\n"
        "  # bash takes --name=value apart at the sign\n"
        "  [[ $cur == = ]] && { cur=; previous==; }\n"
        "  if [[ $previous == = ]]; then\n"
        "    for ((i = COMP_CWORD - 1; i > 0; i--)); do\n"
        "      [[ ${COMP_WORDS[i]} == --* ]] && { previous=${COMP_WORDS[i]}; break; }\n"
        "    done\n"
        "  fi\n"
        "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "    case ${COMP_WORDS[i]} in\n"
        "    --time-limit) ((i++)) ;;\n"
        "    -*) ;;\n"
        "    *) verb=${COMP_WORDS[i]}; break ;;\n"
        "    esac\n"
        "  done\n"
        "  if [[ -z $verb ]]; then\n"
        "    [[ $previous == --time-limit ]] || _accx_words '",
        accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    fprintf(accx_out, "%s ", accx_verbs[i]->name);
  fprintf(accx_out, "%s'\n    return\n  fi\n  case $verb,$previous in\n", before_verb);
  for (size_t i = 0; i < accx_verb_count; ++i)
    bash_values(accx_verbs[i]);
  fputs("    *) case $verb,$cur in\n    help,*) _accx_words '", accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    fprintf(accx_out, "%s ", accx_verbs[i]->name);
  fputs("' ;;\n", accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    bash_words(accx_verbs[i]);
  fputs("    esac ;;\n  esac\n}\ncomplete -F _accx accx\n", accx_out);
}

/* ---- zsh ---- */

/* Prints text within single quotes, and within the brackets and colons of _arguments. */
static void zsh_text(const char* text) {
  for (; *text; ++text) {
    if (*text == '\'')
      fputs("'\\''", accx_out);
    else if (strchr("[]:\\", *text))
      fprintf(accx_out, "\\%c", *text);
    else
      fputc(*text, accx_out);
  }
}

static void zsh_option(const accx_option_t* option) {
  fprintf(accx_out, " \\\n      '%s--%s%s[", option->many ? "*" : "", option->name,
          option->value ? "=" : "");
  zsh_text(option->help);
  fputc(']', accx_out);
  if (option->value) {
    fputc(':', accx_out);
    zsh_text(option->value);
    if (choices_of(option))
      fprintf(accx_out, ":(%s)", choices_of(option));
    else
      fputs(takes_file(option) ? ":_files" : ": ", accx_out);
  }
  fputc('\'', accx_out);
}

static void zsh_verb(const accx_verb_t* verb) {
  fprintf(accx_out, "  %s)\n    _arguments '--help[all about this verb]'", verb->name);
  for (const accx_option_t* option = verb->options; option && option->name; ++option)
    zsh_option(option);
  if (verb->choices)
    fprintf(accx_out, " \\\n      '1:what:(%s)'", verb->choices);
  if (operands_are_files(verb))
    fputs(" \\\n      '*:file:_files'", accx_out);
  fputs(" ;;\n", accx_out);
}

static void print_zsh(void) {
  fputs("#compdef accx\n# zsh completion of accx; made by `accx completion zsh`\n_accx() {\n"
        "  local -a verbs\n  verbs=(\n",
        accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i) {
    fprintf(accx_out, "    '%s:", accx_verbs[i]->name);
    zsh_text(accx_verbs[i]->summary);
    fputs("'\n", accx_out);
  }
  fputs("    'help:this text, or all about one verb'\n  )\n"
        "  [[ ${words[2]} == --time-limit ]] && { shift 2 words; (( CURRENT -= 2 )); }\n"
        "  if (( CURRENT <= 2 )); then\n"
        "    _describe verb verbs\n"
        "    _arguments '--version[versions of the tool and its library]' "
        "'--time-limit[an end to opening and planning]:SECONDS: '\n"
        "    return\n  fi\n"
        "  local verb=${words[2]}\n  shift words\n  (( CURRENT-- ))\n"
        "  case $verb in\n  help) _describe verb verbs ;;\n",
        accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    zsh_verb(accx_verbs[i]);
  fputs("  esac\n}\n"
        "if [[ ${funcstack[1]} == _accx ]]; then _accx \"$@\"; else compdef _accx accx; fi\n",
        accx_out);
}

/* ---- fish ---- */

static void fish_text(const char* text) {
  fputs(" -d '", accx_out);
  for (; *text; ++text)
    fprintf(accx_out, *text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
  fputs("'\n", accx_out);
}

static void fish_verb(const accx_verb_t* verb) {
  fprintf(accx_out, "complete -c accx -n __fish_use_subcommand -a %s", verb->name);
  fish_text(verb->summary);
  for (const accx_option_t* option = verb->options; option && option->name; ++option) {
    fprintf(accx_out, "complete -c accx -n '__fish_seen_subcommand_from %s' -l %s", verb->name,
            option->name);
    if (choices_of(option))
      fprintf(accx_out, " -x -a '%s'", choices_of(option));
    else if (option->value)
      fputs(takes_file(option) ? " -r -F" : " -x", accx_out);
    fish_text(option->help);
  }
  if (verb->choices)
    fprintf(accx_out, "complete -c accx -n '__fish_seen_subcommand_from %s' -a '%s'\n", verb->name,
            verb->choices);
  if (operands_are_files(verb))
    fprintf(accx_out, "complete -c accx -n '__fish_seen_subcommand_from %s' -F\n", verb->name);
}

static void print_fish(void) {
  fputs("# fish completion of accx; made by `accx completion fish`\ncomplete -c accx -f\n",
        accx_out);
  fputs("complete -c accx -n __fish_use_subcommand -a help -d 'this text, or all about one verb'\n"
        "complete -c accx -n __fish_use_subcommand -l version -d 'versions'\n"
        "complete -c accx -n __fish_use_subcommand -l time-limit -x -d 'an end to opening'\n"
        "complete -c accx -n '__fish_seen_subcommand_from help' -a '",
        accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    fprintf(accx_out, "%s ", accx_verbs[i]->name);
  fputs("'\n", accx_out);
  for (size_t i = 0; i < accx_verb_count; ++i)
    fish_verb(accx_verbs[i]);
}

/* ---- The verb ---- */

static int run_completion(const accx_args_t* args) {
  const char* shell = args->operands[0];
  if (strcmp(shell, "bash") == 0)
    print_bash();
  else if (strcmp(shell, "zsh") == 0)
    print_zsh();
  else if (strcmp(shell, "fish") == 0)
    print_fish();
  else
    return accx_fail(ACCX_USAGE, "there is completion for bash, zsh and fish, not for '%s'", shell);
  return ACCX_OK;
}

const accx_verb_t accx_verb_completion = {
    .name = "completion",
    .operands = "SHELL",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "prints completion of accx's words for bash, zsh or fish",
    .details = "An installed accx brings it along. For one that is not:\n"
               "  . <(accx completion bash)          # bash, in ~/.bashrc\n"
               "  . <(accx completion zsh)           # zsh, in ~/.zshrc after compinit\n"
               "  accx completion fish | source      # fish, in config.fish\n",
    .choices = "bash zsh fish",
    .run = run_completion,
};
