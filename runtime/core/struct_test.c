/* Struct negotiation: smaller and larger structs, unknown tails, chains; both ways. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "accrt/accrt.h"
#include "accrt/write.h"
#include "runtime/core/struct.h"

/* The struct as this library knows it, as an older one did, and as a newer one will. */
typedef struct now {
  uint32_t struct_size;
  uint32_t flags;
  const accrt_chain_t* next;
  uint64_t a;
  uint64_t b;
} now_t;
typedef struct newer {
  now_t known;
  uint64_t c;
  uint64_t d;
} newer_t;

static accrt_status_t read_now(const void* source, now_t* target) {
  return accrt_struct_read("now_t", source, target, sizeof *target);
}

static const char* message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  return error.message;
}

static void test_null_gives_the_defaults(void** state) {
  (void)state;
  now_t local;
  memset(&local, 0xFF, sizeof local);
  assert_int_equal(read_now(NULL, &local), ACCRT_OK);
  assert_int_equal(local.struct_size, sizeof local);
  assert_int_equal(local.a, 0);
  assert_null(local.next);
}

static void test_older(void** state) {
  (void)state;
  now_t local, given = {.struct_size = offsetof(now_t, b), .flags = 3, .a = 5, .b = 99};
  assert_int_equal(read_now(&given, &local), ACCRT_OK);
  assert_int_equal(local.a, 5);
  assert_int_equal(local.b, 0); /* not the caller's: not read */
  assert_int_equal(local.struct_size, sizeof local);
  given.struct_size = 16;
  assert_int_equal(read_now(&given, &local), ACCRT_OK);
  assert_int_equal(local.flags, 3);
  assert_int_equal(local.a, 0);
}

static void test_newer(void** state) {
  (void)state;
  now_t local;
  newer_t given = {.known = {.struct_size = sizeof given, .a = 5, .b = 6}};
  assert_int_equal(read_now(&given, &local), ACCRT_OK);
  assert_int_equal(local.b, 6);
  given.d = 1;
  assert_int_equal(read_now(&given, &local), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(message(), "struct_size 48 is newer than this library's 32"));
}

static void test_unbelievable_sizes(void** state) {
  (void)state;
  now_t local;
  static const uint32_t sizes[] = {0, 4, 8, 15, 4097, UINT32_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    now_t given = {.struct_size = sizes[i]};
    assert_int_equal(read_now(&given, &local), ACCRT_ERROR_INVALID_ARGUMENT);
    assert_false(accrt_struct_fill("now_t", &given, &local, sizeof local));
    assert_int_equal(accrt_struct_write("now_t", &given, &local, sizeof local),
                     ACCRT_ERROR_INVALID_ARGUMENT);
  }
}

static void test_chains(void** state) {
  (void)state;
  now_t local;
  accrt_chain_t second = {.struct_size = sizeof second, .struct_type = 9 | ACCRT_STRUCT_IGNORABLE};
  accrt_chain_t first = {
      .struct_size = sizeof first, .struct_type = 8 | ACCRT_STRUCT_IGNORABLE, .next = &second};
  now_t given = {.struct_size = sizeof given, .next = &first};
  assert_int_equal(read_now(&given, &local), ACCRT_OK);
  second.struct_type = 9;
  assert_int_equal(read_now(&given, &local), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(message(), "chain member 1 has unknown type 0x9"));
  second.struct_type |= ACCRT_STRUCT_IGNORABLE;
  second.struct_size = 2;
  assert_int_equal(read_now(&given, &local), ACCRT_ERROR_INVALID_ARGUMENT);
  second.struct_size = sizeof second;
  second.next = &first; /* a cycle ends */
  assert_int_equal(read_now(&given, &local), ACCRT_ERROR_INVALID_ARGUMENT);
}

static void test_fill(void** state) {
  (void)state;
  const now_t source = {.struct_size = sizeof source, .flags = 1, .a = 2, .b = 3};
  int marker;
  newer_t newer;
  memset(&newer, 0xFF, sizeof newer);
  newer.known.struct_size = sizeof newer;
  newer.known.next = (const accrt_chain_t*)(const void*)&marker;
  assert_true(accrt_struct_fill("now_t", &newer, &source, sizeof source));
  assert_int_equal(newer.known.struct_size, sizeof source); /* what was filled */
  assert_int_equal(newer.known.b, 3);
  assert_int_equal(newer.c, 0);
  assert_int_equal(newer.d, 0);
  assert_ptr_equal(newer.known.next, &marker); /* the caller's */
  now_t older;
  memset(&older, 0xFF, sizeof older);
  older.struct_size = offsetof(now_t, b);
  assert_true(accrt_struct_fill("now_t", &older, &source, sizeof source));
  assert_int_equal(older.a, 2);
  assert_int_equal(older.b, UINT64_MAX); /* not the library's to write */
  assert_int_equal(older.struct_size, offsetof(now_t, b));
  assert_false(accrt_struct_fill("now_t", NULL, &source, sizeof source));
  assert_int_equal(accrt_struct_write("now_t", NULL, &source, sizeof source),
                   ACCRT_ERROR_INVALID_ARGUMENT);
}

/* Every field of every extensible struct of the public headers. */
typedef struct public_field {
  const char* owner;
  const char* name;
  size_t offset, size_bytes, owner_bytes;
} public_field_t;
#define SHORT(owner, field)                                                                        \
  {#owner, #field, offsetof(owner, field), sizeof(((owner*)0)->field), sizeof(owner)},
#define LONG SHORT
static const public_field_t public_fields[] = {
#include "runtime/core/struct_fields.inc"
};
#define FIELD_COUNT (sizeof public_fields / sizeof public_fields[0])

/* Does `size` end within a field of the struct that begins at `first`, or in front of padding? */
static bool cuts(size_t first, size_t size) {
  for (size_t i = first;
       i < FIELD_COUNT && strcmp(public_fields[i].owner, public_fields[first].owner) == 0; ++i) {
    if (size > public_fields[i].offset &&
        size < public_fields[i].offset + public_fields[i].size_bytes)
      return true;
  }
  return size % 8 != 0;
}

static void offer_every_size(size_t first) {
  const public_field_t* head = &public_fields[first];
  static _Alignas(16) unsigned char own[ACCRT_STRUCT_MAX_BYTES], given[ACCRT_STRUCT_MAX_BYTES];
  memset(own, 0xA5, sizeof own);
  for (uint32_t size = ACCRT_STRUCT_MIN_BYTES; size <= head->owner_bytes + 32; ++size) {
    memset(given, 0, sizeof given);
    memcpy(given, &size, sizeof size);
    const bool wanted = !cuts(first, size);
    const char* name = head->owner;
    if ((accrt_struct_read(name, given, own, head->owner_bytes) == ACCRT_OK) != wanted ||
        (accrt_struct_write(name, given, own, head->owner_bytes) == ACCRT_OK) != wanted)
      fail_msg("%s of %u bytes was %s", name, (unsigned)size, wanted ? "refused" : "taken");
    memset(given + 16, 0xEE, sizeof given - 16);
    memcpy(given, &size, sizeof size);
    if (accrt_struct_fill(name, given, own, head->owner_bytes) != wanted ||
        (!wanted && given[16] != 0xEE))
      fail_msg("%s of %u bytes was %s", name, (unsigned)size, wanted ? "not filled" : "filled");
  }
}

static void test_every_public_struct(void** state) {
  (void)state;
  size_t structs = 0;
  for (size_t i = 0; i < FIELD_COUNT; ++i) {
    if (i > 0 && strcmp(public_fields[i].owner, public_fields[i - 1].owner) == 0)
      continue;
    ++structs;
    if (public_fields[i].owner_bytes >= ACCRT_STRUCT_MIN_BYTES)
      offer_every_size(i);
  }
  assert_true(structs > 60);
}

static void test_elements(void** state) {
  (void)state;
  assert_int_equal(accrt_struct_check_element("x_t", 16, 16), ACCRT_OK);
  assert_int_equal(accrt_struct_check_element("x_t", 24, 16), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(message(), "x_t: element size 24 bytes, expected 16"));
}

/* Through the public API, both ways. */
static void test_public_structs(void** state) {
  (void)state;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  caps.struct_size = offsetof(accrt_caps_t, cpu_features);
  memset(caps.cpu_arch, 'z', sizeof caps.cpu_arch);
  assert_int_equal(accrt_query_caps(&caps), ACCRT_OK);
  assert_int_equal(caps.library_version, ACCRT_VERSION);
  assert_int_equal(caps.cpu_arch[0], 'z');
  struct {
    accrt_caps_t caps;
    uint64_t later;
  } newer = {.caps = ACCRT_CAPS_INIT, .later = 5};
  newer.caps.struct_size = sizeof newer;
  assert_int_equal(accrt_query_caps(&newer.caps), ACCRT_OK);
  assert_int_equal(newer.caps.struct_size, sizeof newer.caps);
  assert_int_equal(newer.later, 0);
  assert_int_equal(accrt_query_caps(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_null_gives_the_defaults),
      cmocka_unit_test(test_older),
      cmocka_unit_test(test_newer),
      cmocka_unit_test(test_unbelievable_sizes),
      cmocka_unit_test(test_chains),
      cmocka_unit_test(test_fill),
      cmocka_unit_test(test_every_public_struct),
      cmocka_unit_test(test_elements),
      cmocka_unit_test(test_public_structs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
