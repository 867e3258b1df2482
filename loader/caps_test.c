/* loader/caps_test.c - accrt_caps_parse with the JSON of `accx caps`, of older and newer versions,
 * and with text that is not such JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "format/names.h"
#include "runtime/core/test_allocator.h"

#define VERSIONS                                                                                   \
  "\"container\": \"0.2\", \"commands\":\"0.1\",\"kernel_abi\":\"0.2\",\"layouts\":\"0.1\","
#define OTHERS                                                                                     \
  "\"max_rank\": 8, \"file_features\": [], \"command_set\": [\"dispatch\", \"marker\"], "          \
  "\"dtypes\": [\"f32\", \"u4\"], \"encodings\": [\"plain\", \"opaque\"]"
#define OLD "{" VERSIONS OTHERS ", \"function_features\": [\"target\"]}"
/* Includes the text between the braces. */
#define WITH(more) "{" VERSIONS OTHERS ", \"function_features\": []" more "}"

static accrt_status_t parse(const char* text, accrt_caps_t* out) {
  *out = (accrt_caps_t)ACCRT_CAPS_INIT;
  return accrt_caps_parse(text, strlen(text), NULL, out);
}

static void test_an_older_one(void** state) {
  (void)state;
  accrt_caps_t caps;
  assert_int_equal(parse("\n " OLD "\t\n", &caps), ACCRT_OK);
  assert_int_equal(caps.container_major, 0);
  assert_int_equal(caps.container_minor, 2);
  assert_int_equal(caps.kernel_abi_minor, 2);
  assert_int_equal(caps.layouts_minor, 1);
  assert_int_equal(caps.max_rank, 8);
  assert_int_equal(caps.file_features, 0);
  assert_int_equal(caps.function_features, 1);
  assert_int_equal(caps.command_mask, 1 << 1 | 1 << 8);
  assert_int_equal(caps.dtype_mask, 1u << ACCRT_DTYPE_F32 | 1u << ACCRT_DTYPE_U4);
  assert_int_equal(caps.encoding_mask, 3);
  assert_int_equal(caps.image_kind_mask | caps.section_mask | caps.expression_mask, 0);
  assert_int_equal(caps.struct_size, sizeof caps);
}

static void test_a_newer_one(void** state) {
  (void)state;
  accrt_caps_t caps;
  const char* text = WITH(
      ", \"image_kinds\": [\"host ELF\", \"spirv\", \"pack\", \"bit 63\", \"bit 64\"], "
      "\"sections\": [ \"strings\" ,{\"id\":37,\"name\":\"files\"}, {\"name\": [1, {}], \"id\": "
      "99},"
      "\"later\"], \"cpu_features\": [\"avx512-vnni\", \"sve\"], \"cpu_arch\": \"x86-64-v4\", "
      "\"library_version\": \"1.22.333\", \"variant_features\": [\"bit 7\"], \"drivers\": "
      "[{\"name\": "
      "\"host\", \"devices\": 1}], \"new\": {\"a\": [null, true, -1.5e3]}, \"expression_ops\": "
      "[\"constant\", \"present\"]");
  assert_int_equal(parse(text, &caps), ACCRT_OK);
  assert_true(caps.image_kind_mask == (1u << 1 | 1u << 5 | UINT64_C(1) << 63));
  assert_true(caps.section_mask == (1u << 1 | UINT64_C(1) << 37));
  assert_true(caps.cpu_features == (ACCRT_CPU_AVX512_VNNI | ACCRT_CPU_ARM_SVE));
  assert_true(caps.expression_mask == (1u << 0 | 1u << 19));
  assert_true(caps.variant_features == 1u << 7);
  assert_string_equal(caps.cpu_arch, "x86-64-v4");
  assert_int_equal(caps.library_version, ACCRT_MAKE_VERSION(1, 22, 333));
  assert_string_equal(caps.devices, "");
  text = WITH(
      ", \"drivers\": [{\"name\": \"host\", \"devices\": 2, \"architectures\": [\"aarch64\"]}, "
      "{\"name\": \"none\", \"architectures\": []}, {\"architectures\": [\"sm_90\", "
      "\"sm_100\"], \"new\": {}, \"name\": \"cuda\"}]");
  assert_int_equal(parse(text, &caps), ACCRT_OK);
  assert_string_equal(caps.devices, "host:aarch64 cuda:sm_90 cuda:sm_100");
}

#define TEN "0123456789"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
/* The fault of a text, and its position in the message. */
static const struct {
  const char* text;
  const char* message;
} bad[] = {
    {"", "an object is missing"},
    {"[]", "an object is missing"},
    {"{}", "there is no 'container'"},
    {"{" VERSIONS OTHERS "}", "there is no 'function_features'"},
    {OLD "x", "there is more behind the end"},
    {OLD OLD, "there is more behind the end"},
    {WITH(", \"container\": \"0.2\""), "a member occurs twice"},
    {WITH(", \"function_features\": []"), "a member occurs twice"},
    {WITH(", \"sections\": [{\"id\": 1, \"id\": 1}]"), "a member occurs twice"},
    {WITH(", \"sections\": [{}]"), "an object without an id"},
    {WITH(", \"sections\": [{\"id\": \"1\"}]"), "a whole number is missing"},
    {WITH(", \"sections\": [{\"id\": -1}]"), "a whole number is missing"},
    {WITH(", \"sections\": [1]"), "a string is missing"},
    {WITH(", \"sections\": {}"), "a list is missing"},
    {WITH(", \"sections\": [\"a\" \"b\"]"), "a comma"},
    {WITH(", \"sections\": [\"a\",]"), "a string is missing"},
    {WITH(", \"sections\": [[]]"), "a string is missing"},
    {WITH(", \"library_version\": \"0.3\""), "this is not a version"},
    {WITH(", \"library_version\": \"256.0.0\""), "this is not a version"},
    {WITH(", \"library_version\": \"1.4096.0\""), "this is not a version"},
    {WITH(", \"library_version\": 3"), "a string is missing"},
    {WITH(", \"cpu_arch\": \"0123456789abcdef0123456789abcdef\""), "a name of 32 bytes or more"},
    {WITH(", \"deep\": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]"), "nested too deep"},
    {WITH(", \"text\": \"\\u0000\""), "a NUL in a string"},
    {WITH(", \"text\": \"\xff\""), "not UTF-8"},
    {WITH(", \"drivers\": {}"), "a list is missing"},
    {WITH(", \"drivers\": [1]"), "an object is missing"},
    {WITH(", \"drivers\": [{}]"), "a driver without a name"},
    {WITH(", \"drivers\": [{\"name\": \"\"}]"), "a name that is empty"},
    {WITH(", \"drivers\": [{\"name\": \"a:b\"}]"), "with a colon"},
    {WITH(", \"drivers\": [{\"name\": \"a\", \"architectures\": [\"b c\"]}]"),
     "with a colon or a space"},
    {WITH(", \"drivers\": [{\"name\": \"a\", \"architectures\": 1}]"), "a list is missing"},
    {WITH(", \"drivers\": [{\"name\": \"a\", \"architectures\": [1]}]"), "a string is missing"},
    {WITH(", \"drivers\": [{\"architectures\": [\"a\"]}]"), "a driver without a name"},
    {WITH(", \"layouts\": \"zero\""), "occurs twice (at 'layouts'"},
    {"{\"max_rank\": \"x\"", "a whole number is missing (at 'max_rank'"},
    {WITH(", \"drivers\": [{\"name\": \"host\", \"architectures\": [\"" HUNDRED "\", \"" HUNDRED
          "\", \"" HUNDRED "\"]}]"),
     "more devices than there is room for"},
    {"{\"container\": \"0.65536\"", "this is not a version"},
    {"{\"container\": \"0.99999999999999999999\"", "this is not a version"},
    {"{\"container\": \"0\"", "this is not a version"},
    {"{\"container\": \"0.1.2\"", "this is not a version"},
    {"{\"container\": \".1\"", "this is not a version"},
    {"{\"container\": \"-1.0\"", "this is not a version"},
    {"{\"container\": \" 0.1\"", "this is not a version"},
    {"{\"max_rank\": 4294967296", "no rank is so large"},
    {"{\"max_rank\": 8.5", "a whole number is missing"},
    {"{\"max_rank\": 99999999999999999999", "a number above 2^63 - 1"},
};

static void test_what_is_wrong_is_said(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    accrt_caps_t caps;
    const accrt_status_t status = parse(bad[i].text, &caps);
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    if (status != ACCRT_ERROR_INVALID_FORMAT || strstr(error.message, bad[i].message) == NULL)
      fail_msg("%s: %s", bad[i].text, error.message);
    assert_string_equal(error.operation, "accrt_caps_parse");
    assert_int_equal(caps.max_rank, 0); /* it was left as it was */
  }
}

/* Of exactly these bytes: the sanitizers see a step beyond them. */
static accrt_status_t parse_exactly(const char* text, size_t size_bytes) {
  char* exact = malloc(size_bytes + !size_bytes);
  assert_non_null(exact);
  memcpy(exact, text, size_bytes);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  const accrt_status_t status = accrt_caps_parse(exact, size_bytes, NULL, &caps);
  free(exact);
  return status;
}

static void test_every_beginning_is_refused(void** state) {
  (void)state;
  for (size_t size = 0; size < strlen(OLD); ++size)
    assert_int_equal(parse_exactly(OLD, size), ACCRT_ERROR_INVALID_FORMAT);
  assert_int_equal(parse_exactly(OLD, strlen(OLD)), ACCRT_OK);
  assert_int_equal(parse_exactly(OLD, strlen(OLD) + 1), ACCRT_ERROR_INVALID_FORMAT); /* a NUL */
}

/* Every byte made another one: nothing is read beyond the text, whatever it says. */
static void test_bytes_that_changed(void** state) {
  (void)state;
  static const char others[] = {'\0', '"', '\\', '{', '}', '[', ']', ',', ':', '9', 'e', '\xff'};
  char text[] = OLD;
  for (size_t at = 0; at < strlen(OLD); ++at) {
    for (size_t i = 0; i < sizeof others; ++i) {
      text[at] = others[i];
      (void)parse_exactly(text, strlen(OLD));
    }
    text[at] = OLD[at];
  }
}

static void test_arguments(void** state) {
  (void)state;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  assert_int_equal(accrt_caps_parse(NULL, 0, NULL, &caps), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_caps_parse(OLD, strlen(OLD), NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_caps_parse(OLD, ((size_t)1 << 20) + 1, NULL, &caps),
                   ACCRT_ERROR_OUT_OF_RANGE);
  caps.struct_size = 4;
  assert_int_equal(accrt_caps_parse(OLD, strlen(OLD), NULL, &caps), ACCRT_ERROR_INVALID_ARGUMENT);
  /* A caller of 0.1, whose struct ends before what came later. */
  caps.struct_size = offsetof(accrt_caps_t, image_kind_mask);
  caps.section_mask = 7;
  assert_int_equal(accrt_caps_parse(OLD, strlen(OLD), NULL, &caps), ACCRT_OK);
  assert_int_equal(caps.section_mask, 7);
}

static void test_without_memory(void** state) {
  (void)state;
  test_allocator_t memory;
  memset(&memory, 0, sizeof memory);
  const accrt_allocator_t allocator = test_allocator_interface(&memory);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  assert_int_equal(accrt_caps_parse(OLD, strlen(OLD), &allocator, &caps), ACCRT_OK);
  assert_int_equal(memory.live_count, 0);
  assert_int_equal(memory.wrong_count, 0);
  memory.fail_at = 1;
  assert_int_equal(accrt_caps_parse(OLD, strlen(OLD), &allocator, &caps),
                   ACCRT_ERROR_OUT_OF_MEMORY);
}

/* No two numbers of a set have the same name, so each name gives the number that was written. */
static void test_names(void** state) {
  (void)state;
  static const uint32_t counts[] = {0
#define DEF_COMMAND(...) +1
#include "format/format.def"
                                    ,
                                    0
#define DEF_EXPRESSION(...) +1
#include "format/format.def"
                                    ,
                                    0
#define DEF_IMAGE(...) +1
#include "format/format.def"
                                    ,
                                    0
#define DEF_SECTION(...) +1
#include "format/format.def"
                                    ,
                                    0
#define DEF_DTYPE(...) +1
#include "format/format.def"
                                    ,
                                    0
#define DEF_LAYOUT(...) +1
#include "format/format.def"
                                    ,
                                    1,
                                    1,
                                    0,
                                    16};
  for (uint32_t numbers = ACCX_NUMBERS_OPCODE; numbers <= ACCX_NUMBERS_CPU_FEATURE; ++numbers) {
    uint32_t count = 0;
    for (uint32_t a = 0; a < 70; ++a) {
      const char* name = accx_number_name(numbers, a);
      count += name[0] != '\0';
      for (uint32_t b = 0; b < a && name[0] != '\0'; ++b)
        assert_string_not_equal(name, accx_number_name(numbers, b));
    }
    assert_int_equal(count, counts[numbers]);
  }
  assert_string_equal(accx_number_name(ACCX_NUMBERS_OPERATION, 19), "present");
  assert_string_equal(accx_number_name(ACCX_NUMBERS_IMAGE_KIND, 1), "host ELF");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_older_one),
      cmocka_unit_test(test_a_newer_one),
      cmocka_unit_test(test_what_is_wrong_is_said),
      cmocka_unit_test(test_every_beginning_is_refused),
      cmocka_unit_test(test_bytes_that_changed),
      cmocka_unit_test(test_arguments),
      cmocka_unit_test(test_without_memory),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
