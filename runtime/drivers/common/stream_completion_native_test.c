/* The tests of stream_completion_test.c on a driver with the slots of 0.2: progress by number,
 * events, prepared launches. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/stream_completion_test.c"
