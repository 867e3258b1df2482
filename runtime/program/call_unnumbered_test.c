/* The tests of call_test.c on a host driver that reports no numbers: every number has a listener.
 * */
#define TEST_UNNUMBERED_HOST 1
#include "runtime/program/call_test.c"
