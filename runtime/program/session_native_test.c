/* The tests of session_test.c on streams without completion callbacks: the host driver with a
 * progress counter. */
#define TEST_PASSIVE_HOST 1
#include "runtime/program/session_test.c"
