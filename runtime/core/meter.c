/* runtime/core/meter.c - counts and limits the cost of work on files. See meter.h. It may not
 * allocate or take a lock. */
#define _GNU_SOURCE
#include "runtime/core/meter.h"

#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>

#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"
#include "runtime/core/sync.h"

/* Steps between two checks of the clock: some tenths of a millisecond. */
#define STEPS_BETWEEN_LOOKS (UINT64_C(1) << 15)

_Thread_local accrt_meter_t* accrt_meter_current
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

accrt_status_t accrt_budget_read(const accrt_budget_t* budget, accrt_budget_t* out_budget) {
  const accrt_status_t status =
      accrt_struct_read("accrt_budget_t", budget, out_budget, sizeof *out_budget);
  if (status != ACCRT_OK || out_budget->reserved == 0)
    return status;
  return ACCRT_FAIL(INVALID_ARGUMENT, "accrt_budget_t: reserved is %" PRIu32 ", not 0",
                    out_budget->reserved);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static bool has_end(const accrt_meter_t* meter) {
  while (meter != NULL && meter->deadline_ns == UINT64_MAX && meter->cancel == NULL)
    meter = meter->outer;
  return meter != NULL;
}

bool accrt_meter_has_end(void) {
  return has_end(accrt_meter_current);
}

static void plan_look(accrt_meter_t* meter) {
  const uint64_t end = meter->max_steps == UINT64_MAX ? UINT64_MAX : meter->max_steps + 1;
  meter->next_check = has_end(meter) ? smaller(end, meter->steps + STEPS_BETWEEN_LOOKS) : end;
}

void accrt_meter_begin(accrt_meter_t* meter, const accrt_budget_t* budget, const char* what,
                       const char* name, uint64_t max_steps, uint64_t max_memory_bytes) {
  memset(meter, 0, sizeof *meter);
  meter->outer = accrt_meter_current;
  meter->what = what;
  meter->name = name;
  meter->default_steps = budget->max_steps == 0;
  meter->default_memory = budget->max_memory_bytes == 0;
  meter->max_steps = meter->default_steps ? max_steps : budget->max_steps;
  meter->max_memory_bytes = meter->default_memory ? max_memory_bytes : budget->max_memory_bytes;
  meter->cancel = budget->cancel;
  meter->timeout_ns = budget->timeout_ns;
  meter->deadline_ns = budget->timeout_ns != 0 ? accrt_deadline_ns(budget->timeout_ns) : UINT64_MAX;
  if (meter->outer != NULL && meter->outer->deadline_ns < meter->deadline_ns) {
    meter->deadline_ns = meter->outer->deadline_ns;
    meter->timeout_ns = meter->outer->timeout_ns;
  }
  plan_look(meter);
  accrt_meter_current = meter;
}

void accrt_meter_limit(accrt_meter_t* meter, uint64_t timeout_ns) {
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  if (deadline_ns >= meter->deadline_ns)
    return;
  meter->deadline_ns = deadline_ns;
  meter->timeout_ns = timeout_ns;
  plan_look(meter);
}

void accrt_meter_end(accrt_meter_t* meter) {
  accrt_meter_t* const outer = meter->outer;
  accrt_meter_current = outer;
  if (outer == NULL)
    return;
  outer->steps += meter->steps;
  outer->memory_bytes += meter->memory_bytes;
}

static uint64_t raised(uint64_t limit, uint64_t table_bytes, uint64_t factor) {
  uint64_t more;
  if (!accrt_mul_u64(table_bytes, factor, &more) || !accrt_add_u64(limit, more, &limit))
    return UINT64_MAX;
  return limit;
}

void accrt_meter_allow(uint64_t table_bytes) {
  for (accrt_meter_t* meter = accrt_meter_current; meter != NULL; meter = meter->outer) {
    if (meter->default_steps)
      meter->max_steps = raised(meter->max_steps, table_bytes, ACCRT_METER_STEPS_PER_BYTE);
    if (meter->default_memory)
      meter->max_memory_bytes =
          raised(meter->max_memory_bytes, table_bytes, ACCRT_METER_BYTES_PER_BYTE);
    plan_look(meter);
  }
}

#define WHERE(meter)                                                                               \
  (meter)->what, (meter)->name, (meter)->where != NULL ? ", " : "",                                \
      (meter)->where != NULL ? (meter)->where : ""

accrt_status_t accrt_meter_look(accrt_meter_t* meter) {
  plan_look(meter);
  if (meter->steps > meter->max_steps) {
    return ACCRT_FAIL(BUDGET, "%s '%.200s'%s%s: it takes more than %" PRIu64 " steps%s",
                      WHERE(meter), meter->max_steps,
                      meter->default_steps ? " (the default of max_steps)" : "");
  }
  for (const accrt_meter_t* at = meter; at != NULL; at = at->outer) {
    /* Acquire: the thread that gets the status sees the writes that the other one made before it
     * cancelled. */
    if (at->cancel != NULL && __atomic_load_n(at->cancel, __ATOMIC_ACQUIRE) != 0)
      return ACCRT_FAIL(CANCELLED, "%s '%.200s'%s%s: it was cancelled after %" PRIu64 " steps",
                        WHERE(meter), meter->steps);
  }
  if (meter->deadline_ns != UINT64_MAX && accrt_clock_ns() >= meter->deadline_ns) {
    return ACCRT_FAIL(TIMEOUT,
                      "%s '%.200s'%s%s: it takes longer than its limit of %" PRIu64 " ns (%" PRIu64
                      " steps were made)",
                      WHERE(meter), meter->timeout_ns, meter->steps);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_meter_take(accrt_meter_t* meter, size_t size_bytes) {
  if (accrt_range_fits(meter->memory_bytes, size_bytes, meter->max_memory_bytes)) {
    meter->memory_bytes += size_bytes;
    return ACCRT_OK;
  }
  return ACCRT_FAIL(BUDGET,
                    "%s '%.200s'%s%s: %zu bytes of host memory after %" PRIu64
                    " pass the limit of %" PRIu64 "%s",
                    WHERE(meter), size_bytes, meter->memory_bytes, meter->max_memory_bytes,
                    meter->default_memory ? " (the default of max_memory_bytes)" : "");
}

uint64_t accrt_hash_seed(void) {
  uint64_t seed[2] = {0, 0};
  /* Early after boot there may be no random bytes yet. Then use those of the process's start
   * (AT_RANDOM). */
  if (getrandom(seed, sizeof seed[0], GRND_NONBLOCK) == (ssize_t)sizeof seed[0])
    return seed[0];
  const void* const bytes = (const void*)(uintptr_t)getauxval(AT_RANDOM);
  if (bytes != NULL)
    memcpy(seed, bytes, sizeof seed);
  return seed[0] ^ seed[1] ^ accrt_clock_ns();
}
