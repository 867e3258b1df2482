/* tests/fuzz/dump_fuzz.c - accepted bundles as text: written as YAML, built from it, written and built again. The first time may leave out
 * what nothing uses; the second must give the same bytes. The comparison tells bundles apart just when their bytes differ: from itself, from
 * what was built, from the one before it. Mutations are those of the container's target. */
#include "write/text/text.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/mutate_file.h"

#define INLINE_BYTES (1u << 20)

typedef struct text {
  char* bytes;
  size_t size;
} text_t;

static void explain(const char* what, const accx_text_error_t* error) {
  fprintf(stderr, "%s: %u:%u: %s\n", what, error->line, error->column, error->message);
  abort();
}

/* Without bytes when the bundle needs newer versions than these. */
static text_t dump(const char* path) {
  text_t text = {NULL, 0};
  accx_text_error_t error;
  FILE* out = open_memstream(&text.bytes, &text.size);
  fuzz_require(out != NULL);
  const accx_text_dump_t task = {.instance = fuzz_instance(),
                                 .path = path,
                                 .out = out,
                                 .folder = fuzz_folder(),
                                 .folder_name = "files",
                                 .inline_bytes = INLINE_BYTES};
  const bool good = accx_text_write(&task, &error);
  fuzz_require(fclose(out) == 0);
  if (good)
    return text;
  if (error.status != ACCRT_ERROR_VERSION_MISMATCH)
    explain("dump", &error);
  free(text.bytes);
  return (text_t){NULL, 0};
}

static void build(const text_t* text, const char* path) {
  accrt_bundle_writer_t* writer = NULL;
  accx_text_files_t* files = NULL;
  accx_text_error_t error;
  fuzz_require(accrt_bundle_writer_create(NULL, &writer) == ACCRT_OK);
  if (!accx_text_read(text->bytes, text->size, NULL, writer, &files, &error)) {
    fwrite(text->bytes, 1, text->size, stderr);
    explain("build", &error);
  }
  if (accrt_bundle_writer_write_path(writer, path) != ACCRT_OK) {
    accrt_error_t record = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&record);
    fwrite(text->bytes, 1, text->size, stderr);
    fprintf(stderr, "write: %s\n", record.message);
    abort();
  }
  accrt_bundle_writer_release(writer);
  accx_text_files_free(files);
}

static uint64_t count_differences(const char* one, const char* two, FILE* out) {
  uint64_t count = 0;
  accx_text_error_t error;
  if (!accx_text_compare(fuzz_instance(), one, two, out, &count, &error))
    explain("diff", &error);
  return count;
}

/* Whether it says that two files are the same just when their bytes are. */
static bool tells_apart(const char* one, const char* two, FILE* out) {
  size_t size_one, size_two;
  uint8_t *bytes_one = fuzz_read_file(one, &size_one), *bytes_two = fuzz_read_file(two, &size_two);
  const bool same = size_one == size_two && memcmp(bytes_one, bytes_two, size_one) == 0;
  free(bytes_one);
  free(bytes_two);
  return (count_differences(one, two, out) == 0) == same;
}

static void round_trip(const uint8_t* data, size_t size) {
  static FILE* nowhere;
  if (nowhere == NULL)
    nowhere = fopen("/dev/null", "w");
  const char *given = fuzz_path("given.accx"), *built = fuzz_path("built.accx"),
             *again = fuzz_path("again.accx"), *last = fuzz_path("last.accx");
  fuzz_write_file(given, data, size);
  const text_t text = dump(given);
  if (text.bytes == NULL)
    return;
  build(&text, built);
  const text_t second = dump(built);
  build(&second, again);
  fuzz_require(count_differences(built, again, stderr) == 0);
  fuzz_require(tells_apart(built, again, nowhere) && tells_apart(given, given, nowhere));
  fuzz_require(tells_apart(given, built, nowhere));
  if (access(last, F_OK) == 0)
    fuzz_require(tells_apart(given, last, nowhere) && tells_apart(last, given, nowhere));
  fuzz_require(rename(given, last) == 0);
  free(text.bytes);
  free(second.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* file = fuzz_copy(data, size, 4096);
  accrt_bundle_t* bundle;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = ACCRT_VERIFY_FULL; /* damaged weights are not written as text */
  options.budget = fuzz_budget(size);
  ++fuzz_inputs;
  if (fuzz_opened(
          accrt_bundle_open_memory(fuzz_instance(), file, size, NULL, NULL, &options, &bundle))) {
    accrt_bundle_release(bundle);
    ++fuzz_accepted;
    round_trip(data, size);
  }
  free(file);
  return 0;
}
