/* accrt/counters.h - the registry of counters of an instance: what engines, servers, the runtime
 * and programs count, in one place for all that show it.
 *
 * An owner of counters adds a *group* of them: a table that describes them, and a function that
 * tells the values of all of them at once. A reader visits all groups:
 *
 *   static void print(void* user, const accrt_counter_group_t* group, const double* values) {
 *     for (uint32_t i = 0; i < group->counter_count; ++i) {
 *       const accrt_counter_t* counter = &group->counters[i];
 *       if (counter->kind != ACCRT_COUNTER_HISTOGRAM)
 *         printf("%s: %s %g\n", group->name, counter->name, *values);
 *       values += ACCRT_COUNTER_VALUES(counter);
 *     }
 *   }
 *   ...
 *   accrt_counters_read(instance, print, NULL);
 *
 * Names are those of Prometheus: letters, digits, '_' and ':'. docs/server.md lists those of the
 * project's libraries.
 */
#ifndef ACCRT_COUNTERS_H_
#define ACCRT_COUNTERS_H_

#include "accrt/instance.h"

ACCRT_BEGIN

#define ACCRT_COUNTER_TOTAL 1u /**< grows, and never falls */
#define ACCRT_COUNTER_GAUGE 2u /**< rises and falls */
/** counts what was observed, by size. Bucket b counts what is at most bounds[b] and is in no
 * earlier bucket. One more bucket counts the rest */
#define ACCRT_COUNTER_HISTOGRAM 3u

/** One counter of a group. Frozen. */
typedef struct accrt_counter {
  const char* name;        /**< e.g. "accrt:steps_total" */
  const char* help;        /**< one sentence */
  const char* label;       /**< tells counters of one name apart: they stand in a row; NULL: none */
  const char* label_value; /**< of this one; NULL without a label */
  const double* bounds;    /**< of a histogram: [bound_count], ascending; else NULL */
  uint32_t kind;           /**< ACCRT_COUNTER_* */
  uint32_t bound_count;    /**< of a histogram; else 0 */
} accrt_counter_t;
ACCRT_ASSERT_LAYOUT(accrt_counter_t, bound_count, 48);

/** How many values a counter has: one, or those of a histogram's bound_count + 1 buckets, and
 * behind them the sum of all that was observed. */
#define ACCRT_COUNTER_VALUES(counter)                                                              \
  ((counter)->kind == ACCRT_COUNTER_HISTOGRAM ? (counter)->bound_count + 2 : 1)

/** A group of counters. The texts, the table and the bounds are lent until the group is removed. */
typedef struct accrt_counter_group {
  uint32_t struct_size;
  uint32_t counter_count; /**< at least 1 */
  const accrt_chain_t* next;
  const char* name; /**< of what the group tells of, e.g. "accrt_serve_engine" */
  void* self;       /**< that object: the group's owner chooses it */
  const accrt_counter_t* counters;
  uint32_t counter_size_bytes; /**< sizeof(accrt_counter_t) */
  uint32_t reserved;           /**< 0 */
  /** Writes the values of all counters, in the order of the table. They are 0 before. Any thread
   * may call it, several at once, under no lock. */
  void (*read)(void* self, double* values);
} accrt_counter_group_t;
ACCRT_ASSERT_LAYOUT(accrt_counter_group_t, read, 56);
#define ACCRT_COUNTER_GROUP_INIT ACCRT_STRUCT_INIT(accrt_counter_group_t)

/** Adds a group behind all others. The struct is copied. Groups that are left are removed when the
 * instance ends. Thread-safe.
 * @param out_id the group's number, for accrt_counters_remove; never 0.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (a counter without a name or a help text, of an
 *   unknown kind, with a label or bounds by half: the message has its index);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_counters_add(accrt_instance_t* instance,
                                            const accrt_counter_group_t* group, uint64_t* out_id);
/** Removes a group, and waits until no other thread is in a call of its `read`, or of a `visit` for
 * it. No such call begins later. A `read` or `visit` may remove its own group: it does not wait for
 * itself. Thread-safe. Blocks: two threads that are in such calls may not remove each other's
 * group.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (no such group, or it is being removed). Since: 0.4 */
ACCRT_API accrt_status_t accrt_counters_remove(accrt_instance_t* instance, uint64_t id);
/** Visits all groups in the order in which they were added. What is added meanwhile is visited,
 * too. The values of one group are of one moment; between two groups time passes. Thread-safe.
 * @param visit called for each group, under no lock. The group and the values are lent until it
 *   returns. It may add and remove groups.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY (groups are left out). Since: 0.4 */
ACCRT_API accrt_status_t accrt_counters_read(accrt_instance_t* instance,
                                             void (*visit)(void* user,
                                                           const accrt_counter_group_t* group,
                                                           const double* values),
                                             void* user);

ACCRT_END
#endif /* ACCRT_COUNTERS_H_ */
