/* examples/guide/pools.c - a pool with a limit, what it says when it is full, and how it shrinks.
 */
#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1024u * 1024u)

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

static void show(const char* when, accrt_pool_t* pool) {
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  check(accrt_pool_statistics(pool, &statistics));
  printf("%s: %llu MiB used, %llu MiB free\n", when,
         (unsigned long long)(statistics.used_bytes / MIB),
         (unsigned long long)(statistics.free_bytes / MIB));
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t *weights, *scratch, *more;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));

  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.limit_bytes = 64 * MIB;
  options.granularity_bytes = 16 * MIB;
  options.label = "model";
  check(accrt_pool_create(device, &options, &pool));

  accrt_buffer_options_t labels = ACCRT_BUFFER_OPTIONS_INIT;
  labels.label = "weights";
  check(accrt_buffer_create(pool, 32 * MIB, &labels, &weights));
  labels.label = "scratch";
  check(accrt_buffer_create(pool, 16 * MIB, &labels, &scratch));
  show("two buffers", pool);

  /* Past the limit: the message lists who holds what. */
  accrt_status_t status = accrt_buffer_create(pool, 32 * MIB, NULL, &more);
  printf("32 MiB more: %s\n", accrt_status_name(status));
  accrt_pool_entry_t entries[4];
  uint32_t count;
  check(accrt_pool_snapshot(pool, entries, 4, sizeof entries[0], &count));
  for (uint32_t i = 0; i < count; ++i)
    printf("  %s: %llu MiB\n", entries[i].label, (unsigned long long)(entries[i].size_bytes / MIB));

  /* Freed memory stays with the pool until it is trimmed. */
  accrt_buffer_release(scratch);
  show("one released", pool);
  check(accrt_pool_trim(pool, 0));
  show("trimmed", pool);

  accrt_buffer_release(weights);
  accrt_pool_release(pool);
  accrt_instance_release(instance);
  return 0;
}
