/* write/text/text_test.c - texts, and bundles as text, when each allocation in turn fails; and
 * words in messages. tests/python/test_text*.py test the meaning of texts. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "write/text/show.h"
#include "write/text/text.h"

/* ---- Memory that runs out ---- */

/* The linker puts these in the place of the C library's (cmake/AccrtTests.cmake). */

static long countdown; /* 0: never */

void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* pointer, size_t size);
FILE* __real_open_memstream(char** text, size_t* size);
void* __wrap_malloc(size_t size);
void* __wrap_calloc(size_t count, size_t size);
void* __wrap_realloc(void* pointer, size_t size);
FILE* __wrap_open_memstream(char** text, size_t* size);

static bool is_out(void) {
  return countdown > 0 && --countdown == 0;
}
void* __wrap_malloc(size_t size) {
  return is_out() ? NULL : __real_malloc(size);
}
void* __wrap_calloc(size_t count, size_t size) {
  return is_out() ? NULL : __real_calloc(count, size);
}
void* __wrap_realloc(void* pointer, size_t size) {
  return is_out() ? NULL : __real_realloc(pointer, size);
}
FILE* __wrap_open_memstream(char** text, size_t* size) {
  return is_out() ? NULL : __real_open_memstream(text, size);
}

/* ---- Texts ---- */

static const char text[] =
    "accx: 1\n"
    "metadata: {license: none}\n"
    "symbols:\n"
    "- {name: n, class: specialize, minimum: 1, maximum: 64}\n"
    "- {name: b, class: bucket, maximum: 8, buckets: [4, 8]}\n"
    "- {name: cap, class: session, maximum: 4}\n"
    "files:\n"
    "- {name: w.gguf, kind: gguf, digest: \"00112233445566778899aabbccddeeff\"}\n"
    "constants:\n"
    "- {name: w, dtype: f32, shape: [2, 20], data: {file: w.bin}}\n"
    "- {name: v, dtype: i32, shape: [2], values: [1, -2]}\n"
    "- {name: x, source: external, dtype: f32, shape: [4], file: w.gguf,\n"
    "   shard: {degree: 2, axis: 0, extent: 8, segments: [[0, 4], [4, 8]]}}\n"
    "let_of_states: {twice: cap * 2}\n"
    "states:\n"
    "- {name: s, dtype: f32, shape: [$twice, $twice]}\n"
    "images:\n"
    "- {name: pack, kind: pack}\n"
    "- {name: ptx, kind: ptx, data: {text: \"//\"}}\n"
    "kernels:\n"
    "- name: k\n"
    "  parameters: [{name: x, kind: buffer, access: read}, {name: n, kind: symbol}]\n"
    "  variants:\n"
    "  - {image: pack, arch_kind: portable, when: [{parameter: n, divisible: 4}]}\n"
    "locations: [{file: m.py, line: 1}]\n"
    "functions:\n"
    "- {name: g, inputs: [{name: x, dtype: f32, shape: [n]}]}\n"
    "- name: f\n"
    "  let: {bytes: n * 4, all: $bytes + 64}\n"
    "  inputs: [{name: x, dtype: f32, shape: [n]}, {name: c, dtype: f32, shape: [b], optional: "
    "true}]\n"
    "  results: [{name: y, dtype: f32, shape: [n]}]\n"
    "  arena: {size: $all * 8}\n"
    "  commands:\n"
    "  - {fill: 0, to: {arena: true, offset: $all, size: $all}}\n"
    "  - dispatch: k\n"
    "    after: [0]\n"
    "    location: 0\n"
    "    arguments: {x: {input: x, size: $all}, n: n}\n"
    "  - {call: g, inputs: {x: {input: x}}}\n"
    "  - {branch: present(c), then: [{copy: true, from: {input: x}, to: {result: y}, extent: "
    "$bytes}]}\n"
    "sections: [{type: 65536, name: acme, data: \"0011\"}]\n"
    "strings: [loose]\n";

/* The same with removed, added, renamed, reordered and changed parts. */
static char* changed_text(void) {
  static const char* const changes[][2] = {
      {"maximum: 64", "maximum: 32"}, {"name: v,", "name: vv,"},
      {"[1, -2]", "[1, -3]"},         {"w.bin", "u.bin"},
      {"fill: 0", "fill: 1"},         {"line: 1", "line: 2"},
      {"[loose]", "[lost]"},          {"* 8}", "* 16}"},
      {"after: [0]", "after: []"},    {"name: c,", "name: a,"},
      {"present(c)", "present(a)"}};
  char* made = strdup(text);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; ++i) {
    char* at = strstr(made, changes[i][0]);
    assert_non_null(at);
    char* next;
    assert_true(asprintf(&next, "%.*s%s%s", (int)(at - made), made, changes[i][1],
                         at + strlen(changes[i][0])) > 0);
    free(made);
    made = next;
  }
  return made;
}

static char folder[64];
static accrt_instance_t* instance;

static const char* path_of(const char* name) {
  static char paths[4][128];
  static unsigned next;
  char* path = paths[next++ % 4];
  (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void write_file(const char* name, char fill) {
  char bytes[160];
  memset(bytes, fill, sizeof bytes);
  FILE* file = fopen(path_of(name), "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
  assert_int_equal(fclose(file), 0);
}

/* Reads a text, with the n-th request for memory failing; 0: none. */
static bool read_text(const char* given, long n, const char* bundle, accx_text_error_t* error) {
  accrt_bundle_writer_t* writer = NULL;
  accx_text_files_t* files = NULL;
  assert_int_equal(accrt_bundle_writer_create(NULL, &writer), ACCRT_OK);
  countdown = n;
  const bool good = accx_text_read(given, strlen(given), folder, writer, &files, error);
  countdown = 0;
  if (good && bundle != NULL)
    assert_int_equal(accrt_bundle_writer_write_path(writer, path_of(bundle)), ACCRT_OK);
  accrt_bundle_writer_release(writer);
  accx_text_files_free(files);
  return good;
}

static int set_up(void** state) {
  (void)state;
  accx_text_error_t error;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  (void)snprintf(folder, sizeof folder, "/tmp/accrt-text-XXXXXX");
  assert_non_null(mkdtemp(folder));
  write_file("w.bin", 0);
  write_file("u.bin", 1);
  char* changed = changed_text();
  if (!read_text(text, 0, "a.accx", &error) || !read_text(changed, 0, "b.accx", &error))
    fail_msg("%u:%u: %s", error.line, error.column, error.message);
  free(changed);
  return 0;
}

static int tear_down(void** state) {
  (void)state;
  accrt_instance_release(instance);
  for (const char* const* name = (const char* const[]){"w.bin", "u.bin", "a.accx", "b.accx", NULL};
       *name != NULL; ++name)
    (void)unlink(path_of(*name));
  return rmdir(folder);
}

/* ---- Every place ---- */

#define MANY 100000

static void check_out(const accx_text_error_t* error) {
  if (error->status != ACCRT_ERROR_OUT_OF_MEMORY || error->message[0] == '\0')
    fail_msg("status %d, '%s'", error->status, error->message);
}

static void reading(void** state) {
  (void)state;
  long n = 1;
  for (accx_text_error_t error; !read_text(text, n, NULL, &error); ++n) {
    check_out(&error);
    assert_true(n < MANY);
  }
  assert_true(n > 50);
}

static void writing(void** state) {
  (void)state;
  bool good = false;
  for (long n = 1; !good; ++n) {
    accx_text_error_t error;
    FILE* out = fopen("/dev/null", "w");
    assert_non_null(out);
    const accx_text_dump_t dump = {
        .instance = instance, .path = path_of("a.accx"), .out = out, .inline_bytes = 16};
    countdown = n;
    good = accx_text_write(&dump, &error);
    countdown = 0;
    assert_int_equal(fclose(out), 0);
    if (!good)
      check_out(&error);
    assert_true(n < MANY);
  }
}

static void comparing(void** state) {
  (void)state;
  bool good = false;
  uint64_t differences = 0, count = 0;
  accx_text_error_t error;
  FILE* out = fopen("/dev/null", "w");
  assert_non_null(out);
  assert_true(
      accx_text_compare(instance, path_of("a.accx"), path_of("b.accx"), out, &differences, &error));
  assert_true(differences > 8);
  for (long n = 1; !good; ++n) {
    countdown = n;
    good = accx_text_compare(instance, path_of("a.accx"), path_of("b.accx"), out, &count, &error);
    const bool failed = countdown == 0;
    countdown = 0;
    if (!good)
      check_out(&error);
    /* Without the bundles, values are shown by digest, which needs no memory. */
    if (good && failed)
      good = false;
    assert_true(n < MANY);
  }
  assert_int_equal(count, differences);
  assert_int_equal(fclose(out), 0);
}

/* ---- Words ---- */

static void shown(void** state) {
  (void)state;
  static const char* const words[][2] = {
      {"", "''"},
      {"plain", "'plain'"},
      {"it's \\ \n\t\r", "'it\\'s \\\\ \\n\\t\\r'"},
      {"\x1b[2J\x7f\x01", "'\\x1b[2J\\x7f\\x01'"},
      {"\xc2\x85\xc2\xa0", "'\\x85\xc2\xa0'"},
      {"\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8\xe2\x80\xa0", "'\\u202e\\u2066\\u2028\xe2\x80\xa0'"},
      {"\xff\xc3", "'\\xff\\xc3'"},
      {"\xf0\x9f\x98\x80\xe4\xb8\xad", "'\xf0\x9f\x98\x80\xe4\xb8\xad'"}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i)
    assert_string_equal(ACCX_SHOW(words[i][0]), words[i][1]);
  /* Long words end in dots, and not within a character or an escape. */
  for (size_t width = 1; width <= 3; ++width) {
    static const char* const letters[] = {"", "a", "\xc3\xa9", "\xe2\x80\xae"};
    char word[600] = "";
    for (int i = 0; i < 180; ++i)
      strcat(word, letters[width]);
    const char* seen = ACCX_SHOW(word);
    assert_true(strlen(seen) < ACCX_SHOWN_BYTES);
    assert_string_equal(seen + strlen(seen) - 4, "...'");
    assert_int_equal((strlen(seen) - 5) % (width == 3 ? 6 : width), 0);
  }
}

static const char* nearest(const char* wrong, const char* const* words) {
  accx_near_t near = {.wrong = wrong};
  for (; *words != NULL; ++words)
    accx_near_try(&near, *words);
  return near.best;
}

static void near(void** state) {
  (void)state;
  static const char* const words[] = {"minimum", "maximum", "name", "no", "minimal_thing", NULL};
  assert_string_equal(nearest("minimun", words), "minimum");
  assert_string_equal(nearest("anme", words), "name");
  /* more similar than the word that begins with it */
  assert_string_equal(nearest("minimal", words), "minimum");
  assert_string_equal(nearest("max", words), "maximum");
  assert_null(nearest("x", words));
  assert_null(nearest("another", words));
  assert_null(nearest("name", (const char* const[]){"name", NULL})); /* it is the word */
  char longest[100];
  memset(longest, 'a', sizeof longest);
  longest[sizeof longest - 1] = '\0';
  assert_null(nearest(longest, words));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reading), cmocka_unit_test(writing), cmocka_unit_test(comparing),
      cmocka_unit_test(shown),   cmocka_unit_test(near),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
