/* reduce.c - reductions of tensors as they lie. */
#include "reduce.h"
