/* tools/accx/zones_test.c - red zones and untouchable pages around an argument. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zones.h"

static const size_t sizes[] = {0, 1, 64, 4095, 4096, 4097, 100000};
static unsigned char content[100000];

/* The signal that a process gets which touches this byte; 0: none. */
static int touch(char* at, bool write_it) {
  const pid_t child = fork();
  if (child == 0) {
    volatile char* byte = at;
    const char was = *byte;
    if (write_it)
      *byte = was;
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_red_zones(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    accx_zones_t zones;
    int64_t byte = 0;
    assert_true(accx_zones_create(sizes[i], &zones));
    assert_true(accx_zones_lay(&zones, ACCX_EDGE_NONE, true, 0xA5, content));
    assert_int_equal((uintptr_t)zones.data % 64, 0);
    assert_int_equal(memcmp(zones.data, content, sizes[i]), 0);
    assert_false(accx_zones_changed(&zones, &byte));
    memset(zones.data, 0, sizes[i]); /* the argument is its own */
    assert_false(accx_zones_changed(&zones, &byte));
    zones.data[-1] = 0;
    assert_true(accx_zones_changed(&zones, &byte));
    assert_int_equal(byte, -1);
    zones.data[-9] = 0; /* the nearest */
    assert_true(accx_zones_changed(&zones, &byte));
    assert_int_equal(byte, -1);
    zones.data[sizes[i] + ACCX_ZONE_BYTES - 1] = 0;
    assert_true(accx_zones_changed(&zones, &byte));
    assert_int_equal(byte, sizes[i] + ACCX_ZONE_BYTES - 1);
    assert_true(accx_zones_lay(&zones, ACCX_EDGE_NONE, false, 0x5A, content));
    assert_false(accx_zones_changed(&zones, &byte));
    accx_zones_free(&zones);
  }
}

static void test_edges(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    accx_zones_t zones;
    int64_t byte = 0;
    assert_true(accx_zones_create(sizes[i], &zones));
    assert_true(accx_zones_lay(&zones, ACCX_EDGE_AFTER, false, 0xA5, content));
    assert_int_not_equal(touch(zones.data + sizes[i], false), 0);
    assert_true(accx_zones_hold(&zones, zones.data + sizes[i], &byte));
    assert_int_equal(byte, sizes[i]);
    assert_int_equal(sizes[i] ? touch(zones.data + sizes[i] - 1, true) : 0, 0);
    assert_true(accx_zones_lay(&zones, ACCX_EDGE_BEFORE, false, 0xA5, content));
    assert_int_not_equal(touch(zones.data - 1, false), 0);
    assert_true(accx_zones_hold(&zones, zones.data - 1, &byte));
    assert_int_equal(byte, -1);
    assert_false(accx_zones_changed(&zones, &byte));
    accx_zones_free(&zones);
    assert_false(accx_zones_hold(&zones, content, &byte));
  }
}

static void test_locked(void** state) {
  (void)state;
  accx_zones_t zones;
  assert_true(accx_zones_create(100, &zones));
  assert_true(accx_zones_lay(&zones, ACCX_EDGE_AFTER, true, 0xA5, content));
  assert_int_equal(touch(zones.data, false), 0);
  assert_int_not_equal(touch(zones.data, true), 0);
  accx_zones_free(&zones);
  assert_false(accx_zones_create(SIZE_MAX, &zones));
  assert_false(accx_zones_create(PTRDIFF_MAX, &zones));
}

int main(void) {
  for (size_t i = 0; i < sizeof content; ++i)
    content[i] = (unsigned char)i;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_red_zones), cmocka_unit_test(test_edges),
                                     cmocka_unit_test(test_locked)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
