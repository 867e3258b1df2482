/* The tests of pool_test.c on a driver with the slots of 0.2: what streams have passed is known when somebody asks. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/memory/pool_test.c"
