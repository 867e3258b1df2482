/* runtime/drivers/common/counters.c - the runtime's own group of counters: the memory of an
 * instance's pools. It counts nothing: pools do. */
#include "runtime/drivers/common/objects.h"

/* Each is a row for memory of hosts, and one for memory that devices have of their own. */
enum { USED, RESERVED, BUFFERS, KINDS };
_Static_assert(2 * KINDS == ACCRT_RUNTIME_COUNTERS, "a row for each memory");

/* A name and a help text of each. */
static const char texts[] = "accrt:memory_used_bytes\0"
                            "Bytes of buffers that pools have made.\0"
                            "accrt:memory_reserved_bytes\0"
                            "Bytes that pools have taken from drivers.\0"
                            "accrt:buffers\0"
                            "Buffers that pools have made.";

static void add_pool(accrt_pool_t* pool, void* user) {
  double* values = user;
  accrt_mutex_lock(&pool->lock);
  values[2 * USED] += (double)pool->statistics.used_bytes;
  values[2 * RESERVED] += (double)pool->statistics.reserved_bytes;
  values[2 * BUFFERS] += (double)pool->statistics.live_count;
  accrt_mutex_unlock(&pool->lock);
}

static void read_memory(void* self, double* values) {
  accrt_device_t* device;
  for (uint32_t i = 0; (device = accrt_instance_device_at(self, i)) != NULL; ++i) {
    const bool is_host = (accrt_device_facts(device)->flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
    if (accrt_device_is_open(device))
      accrt_pools_visit(device, add_pool, is_host ? values : values + 1);
  }
}

accrt_status_t accrt_instance_count(accrt_instance_t* instance) {
  accrt_counter_t* counters = accrt_upper(instance)->counters;
  for (uint32_t i = 0; i < ACCRT_RUNTIME_COUNTERS; ++i) {
    counters[i].name = accrt_nth_text(texts, i & ~1u);
    counters[i].help = accrt_nth_text(texts, i | 1u);
    counters[i].label = "memory";
    counters[i].label_value = (i & 1) == 0 ? "host" : "device";
    counters[i].kind = ACCRT_COUNTER_GAUGE;
  }
  const accrt_counter_group_t group = {.struct_size = (uint32_t)sizeof group,
                                       .counter_count = ACCRT_RUNTIME_COUNTERS,
                                       .name = "accrt_instance",
                                       .self = instance,
                                       .counters = counters,
                                       .counter_size_bytes = (uint32_t)sizeof *counters,
                                       .read = read_memory};
  uint64_t id;
  return accrt_inner_counters_add(instance, &group, &id);
}
