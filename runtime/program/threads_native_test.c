/* The tests of threads_test.c on streams that tell nobody: the host driver with progress by number. */
#define TEST_PASSIVE_HOST 1
#include "runtime/program/threads_test.c"
