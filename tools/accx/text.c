/* tools/accx/text.c - accx dump, build and diff: bundles as text that a person can read and write.
 * write/text has the text form. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accx.h"
#include "json_out.h"
#include "runtime/core/put_file.h"
#include "write/text/text.h"
#include "open.h"
#include "term.h"

#define INLINE_BYTES 64
#define MAX_TEXT_BYTES (UINT64_C(1) << 30)

static int fail_text(const char* path, const accx_text_error_t* error) {
  const int code = accx_exit_code(error->status);
  if (error->line == 0)
    return accx_fail(code, "%s", error->message);
  return accx_fail(code, "%s:%u:%u: %s", path, error->line, error->column, error->message);
}

/* ---- dump ---- */

static const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Checks that an output does not replace its own input. */
static int check_output(const char* input, const char* target) {
  struct stat to;
  if (stat(target, &to) != 0)
    return ACCX_OK; /* creating the file will show whether it is possible */
  if (S_ISDIR(to.st_mode))
    return accx_fail(ACCX_FAILED, "%s: it is a folder, and --output is a file", target);
  if (accx_same_file(input, target))
    return accx_fail(ACCX_USAGE, "--output %s is the input", target);
  return ACCX_OK;
}

static int fail_file(const char* path, int error) {
  return accx_fail(ACCX_FAILED, "%s: %s", path, accrt_put_text(error));
}

/* Writes to an open temporary file. */
static int dump_to_part(accx_text_dump_t* dump, const char* target, int fd) {
  accx_text_error_t error;
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  dump->out = copy >= 0 ? fdopen(copy, "w") : NULL;
  if (!dump->out) {
    const int code = fail_file(target, errno);
    if (copy >= 0)
      (void)close(copy);
    return code;
  }
  int code = accx_text_write(dump, &error) ? ACCX_OK : fail_text(dump->path, &error);
  if (fclose(dump->out) != 0 && !code)
    code = fail_file(target, errno);
  return code;
}

/* Writes a new file beside the target, and then renames it to the target. */
static int dump_to_file(accx_text_dump_t* dump, const char* target) {
  accrt_put_t put;
  int code = check_output(dump->path, target);
  if (code)
    return code;
  dump->folder = accx_text("%s.d", target);
  dump->folder_name = accx_text("%s.d", base_name(target));
  int error = accrt_put_begin(&put, target, "", 0666, ACCRT_PUT_OF_NAME);
  if (error)
    return fail_file(target, error);
  code = dump_to_part(dump, target, put.fd);
  error = code ? 0 : accrt_put_end(&put, false);
  accrt_put_drop(&put);
  return error ? fail_file(target, error) : code;
}

static int run_dump(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  int64_t inline_bytes = INLINE_BYTES;
  int code = accx_open_instance(args, &instance);
  if (!code)
    code = accx_args_integer(args, "inline", 0, 1 << 20, &inline_bytes);
  if (code)
    goto out;
  accx_text_dump_t dump = {.instance = instance,
                           .path = args->operands[0],
                           .out = accx_out,
                           .inline_bytes = (uint64_t)inline_bytes};
  const char* target = accx_args_value(args, "output");
  accx_text_error_t error;
  if (target && strcmp(target, "-") != 0)
    code = dump_to_file(&dump, target);
  else if (!accx_text_write(&dump, &error))
    code = fail_text(dump.path, &error);
out:
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t dump_options[] = {
    {"output", "TEXT", false,
     "write the text here, and large bytes into the folder TEXT.d beside it"},
    {"inline", "BYTES", false,
     "write data of at most this size as digits in the text (default 64)"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_dump = {
    .name = "dump",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "writes a bundle as text (YAML), from which accx build makes the same bytes",
    .details =
        "Without --output the text goes to standard output, and large bytes (weights, code) are "
        "shown by size\n"
        "and digest only: that is for reading. docs/text-form.md says what the text means.\n"
        "\n"
        "Examples:\n"
        "  accx dump model.accx | less\n"
        "  accx dump model.accx --output model.yaml && accx build model.yaml --output "
        "again.accx\n",
    .options = dump_options,
    .run = run_dump,
    .operand_kind = ACCX_READS,
};

/* ---- build ---- */

static int read_text(const char* path, char** out_text, size_t* out_size) {
  struct stat info;
  FILE* file;
  int code = accx_open_regular(path, 0, &file);
  if (code)
    return code;
  if (fstat(fileno(file), &info) != 0 || (uint64_t)info.st_size > MAX_TEXT_BYTES) {
    code = accx_fail(ACCX_FAILED, "%s: it is not a file of at most 1 GiB", path);
  } else {
    *out_size = (size_t)info.st_size;
    *out_text = malloc(*out_size + 1);
    if (!*out_text || fread(*out_text, 1, *out_size, file) != *out_size)
      code = accx_fail(ACCX_FAILED, "%s: it cannot be read", path);
  }
  (void)fclose(file);
  return code;
}

static const char* folder_of(const char* path) {
  const char* slash = strrchr(path, '/');
  if (!slash)
    return ".";
  return slash == path ? "/" : accx_text("%.*s", (int)(slash - path), path);
}

/* Creates a writer for any reader, or for the library whose `accx caps --json` is in a file. */
static int create_writer(const char* caps_path, accrt_bundle_writer_t** out_writer) {
  accrt_bundle_writer_options_t options = ACCRT_BUNDLE_WRITER_OPTIONS_INIT;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  char* text = NULL;
  size_t size = 0;
  if (caps_path) {
    const int code = read_text(caps_path, &text, &size);
    const accrt_status_t status = code ? ACCRT_OK : accrt_caps_parse(text, size, NULL, &caps);
    free(text);
    if (code)
      return code;
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", caps_path);
    options.target = &caps;
  }
  const accrt_status_t status = accrt_bundle_writer_create(&options, out_writer);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "cannot make a bundle writer");
}

static int run_build(const accx_args_t* args) {
  const char* path = args->operands[0];
  const char* target = accx_args_value(args, "output");
  accrt_bundle_writer_t* writer = NULL;
  accx_text_files_t* files = NULL;
  accx_text_error_t error;
  char* text = NULL;
  size_t size = 0;
  if (!target)
    return accx_fail(ACCX_USAGE, "say where the bundle goes: --output FILE");
  int code = check_output(path, target);
  if (!code)
    code = read_text(path, &text, &size);
  if (!code && size >= 5 &&
      memcmp(text,
             "\x89"
             "ACCX",
             5) == 0)
    code = accx_fail(ACCX_FAILED, "%s: this is a bundle, not a text (accx dump writes its text)",
                     path);
  if (!code)
    code = create_writer(accx_args_value(args, "target-caps"), &writer);
  if (code)
    goto out;
  if (!accx_text_read(text, size, folder_of(path), writer, &files, &error)) {
    code = fail_text(path, &error);
    goto out;
  }
  const accrt_status_t status = accrt_bundle_writer_write_path(writer, target);
  if (status != ACCRT_OK)
    code = accx_fail_status(status, "%s", target);
out:
  accrt_bundle_writer_release(writer);
  accx_text_files_free(files);
  free(text);
  return code;
}

static const accx_option_t build_options[] = {
    {"output", "FILE", false, "where the bundle goes"},
    {"target-caps", "FILE", false,
     "what the bundle will run on: what `accx caps --json` prints there"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_build = {
    .name = "build",
    .operands = "TEXT",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "makes a bundle from text (YAML), as accx dump writes it or a person does",
    .details =
        "Mistakes are reported with line and column. Files that the text names lie beneath its "
        "own folder.\n"
        "What a target does not know is left out where programs do without it, or refused by "
        "name.\n"
        "docs/text-form.md says what can be written, with an example.\n"
        "\n"
        "Examples:\n"
        "  accx build model.yaml --output model.accx\n"
        "  accx build model.yaml --output model.accx --target-caps target.json\n",
    .options = build_options,
    .run = run_build,
    .operand_kind = ACCX_READS,
};

/* ---- diff ---- */

static void print_json(const char* text, size_t size) {
  struct json_object* root = accx_json_object(NULL, NULL);
  struct json_object* array = accx_json_array(root, "differences");
  for (const char *line = text, *end; line < text + size; line = end + 1) {
    end = memchr(line, '\n', size - (size_t)(line - text));
    json_object_array_add(array, json_object_new_string_len(line, (int)(end - line)));
  }
  accx_json_print(root);
}

static int run_diff(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  accx_text_error_t error;
  uint64_t count = 0;
  char* text = NULL;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  if (!out)
    return accx_fail(ACCX_FAILED, "out of memory");
  int code = accx_open_instance(args, &instance);
  if (!code &&
      !accx_text_compare(instance, args->operands[0], args->operands[1], out, &count, &error))
    code = fail_text(args->operands[0], &error);
  if (fclose(out) != 0 && !code)
    code = accx_fail(ACCX_FAILED, "out of memory");
  if (!code && accx_args_has(args, "json"))
    print_json(text, size);
  else if (!code)
    fputs(count == 0 ? "no differences\n" : text, accx_out);
  free(text);
  accrt_instance_release(instance);
  return !code && count > 0 && accx_args_has(args, "exit-code") ? ACCX_DIFFERENT : code;
}

static const accx_option_t diff_options[] = {
    {"exit-code", NULL, false, "exit with 5 if they differ; without this option with 0"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_diff = {
    .name = "diff",
    .operands = "A B",
    .min_operands = 2,
    .max_operands = 2,
    .summary = "says in words how two bundles differ",
    .details = "A line for each difference, with what A and B have. Things are compared by name, "
               "commands by\n"
               "what they do: what is added or taken away makes nothing else different.\n"
               "\n"
               "Examples:\n"
               "  accx diff model.accx model.new.accx\n"
               "  accx diff --exit-code model.accx model.new.accx > /dev/null || echo other\n",
    .options = diff_options,
    .run = run_diff,
    .operand_kind = ACCX_READS,
};
