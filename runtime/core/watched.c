/* runtime/core/watched.c - see runtime/core/watched.h. */
#include "runtime/core/watched.h"

atomic_uint accrt_watch_flag;
