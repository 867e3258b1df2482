/* cumsum.c - running sums of tensors as they lie. */
#include "cumsum.h"
