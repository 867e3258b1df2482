/* The tests of pool_test.c on a driver with the functions of 0.2. Its streams' progress is known
 * only after a query. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/memory/pool_test.c"
