/* runtime/core/meter.h - counts the cost of work on a file that may be hostile, and limits it.
 *
 * Opening, verifying, planning and preparing run between accrt_meter_begin and accrt_meter_end. In
 * between, this thread's allocations are counted, and the code charges steps: about one for each
 * record that it reads. Meters nest: an inner one has at most the rest of the outer one's budget,
 * and its cost counts in both. It may not allocate or take a lock. Without a meter nothing here has
 * an effect.
 */
#ifndef ACCRT_RUNTIME_CORE_METER_H_
#define ACCRT_RUNTIME_CORE_METER_H_

#include <stdbool.h>

#include "accrt/base.h"

/* The defaults for a file, by the bytes of its tables. No honest file comes near them: each record
 * has 16 bytes or more, and few are read more than three times. */
#define ACCRT_METER_BASE_STEPS (UINT64_C(1) << 22)
#define ACCRT_METER_STEPS_PER_BYTE 16u
#define ACCRT_METER_BASE_BYTES (UINT64_C(1) << 26)
#define ACCRT_METER_BYTES_PER_BYTE 16u
/* The defaults for a program before its tables are counted. They include the planning of its
 * prepare functions. */
#define ACCRT_METER_PROGRAM_STEPS (UINT64_C(1) << 28)
#define ACCRT_METER_PROGRAM_BYTES (UINT64_C(1) << 31)
/* The defaults for one plan. */
#define ACCRT_METER_PLAN_STEPS (UINT64_C(1) << 26)
#define ACCRT_METER_PLAN_BYTES (UINT64_C(1) << 31)

typedef struct accrt_meter {
  struct accrt_meter* outer;
  const char* what;  /* "opening": for messages */
  const char* name;  /* of the file or function; must outlive the meter */
  const char* where; /* the current part of the work, or NULL */
  uint64_t steps;
  uint64_t max_steps;
  uint64_t next_check; /* next number of steps at which all limits are checked */
  uint64_t memory_bytes;
  uint64_t max_memory_bytes;
  uint64_t deadline_ns; /* UINT64_MAX: none */
  uint64_t timeout_ns;
  const uint32_t* cancel;
  bool default_steps;
  bool default_memory;
} accrt_meter_t;

/* This thread's meter, or NULL. Initial-exec, as in error.c. */
extern _Thread_local accrt_meter_t* accrt_meter_current
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Checks and copies a caller's budget. NULL gives zeros, which mean the defaults. */
accrt_status_t accrt_budget_read(const accrt_budget_t* budget, accrt_budget_t* out_budget);
/* Starts to count on this thread. `budget` is a checked one. Where it has 0,
 * max_steps and max_memory_bytes apply. */
void accrt_meter_begin(accrt_meter_t* meter, const accrt_budget_t* budget, const char* what,
                       const char* name, uint64_t max_steps, uint64_t max_memory_bytes);
/* Limits the time to `timeout_ns` from now. ACCRT_TIMEOUT_INFINITE changes nothing. */
void accrt_meter_limit(accrt_meter_t* meter, uint64_t timeout_ns);
void accrt_meter_end(accrt_meter_t* meter);
/* Announces `table_bytes` more bytes of tables: raises the limits that have their defaults. */
void accrt_meter_allow(uint64_t table_bytes);

/* Checks steps, time and the cancel flag. Records ACCRT_ERROR_BUDGET, _TIMEOUT or _CANCELLED. */
accrt_status_t accrt_meter_look(accrt_meter_t* meter);
/* Counts `size_bytes` more memory, or fails with ACCRT_ERROR_BUDGET. */
accrt_status_t accrt_meter_take(accrt_meter_t* meter, size_t size_bytes);

/* True when the time or another thread may end this thread's work. */
bool accrt_meter_has_end(void);

static inline accrt_status_t accrt_charge(uint64_t steps) {
  accrt_meter_t* const meter = accrt_meter_current;
  if (meter == NULL)
    return ACCRT_OK;
  meter->steps += steps;
  return meter->steps < meter->next_check ? ACCRT_OK : accrt_meter_look(meter);
}
/* For record `index` of a table. It charges 1024 records at once, so that short tables cost
 * nothing. */
static inline accrt_status_t accrt_charge_record(uint32_t index) {
  return index % 1024 == 1023 ? accrt_charge(1024) : ACCRT_OK;
}
/* Call it before long work without steps: reading a chunk, running a function. */
static inline accrt_status_t accrt_checkpoint(void) {
  accrt_meter_t* const meter = accrt_meter_current;
  return meter != NULL ? accrt_meter_look(meter) : ACCRT_OK;
}
/* Names the current part of the work, for messages. A static string. */
static inline void accrt_meter_at(const char* where) {
  if (accrt_meter_current != NULL)
    accrt_meter_current->where = where;
}
static inline void accrt_meter_give_back(size_t size_bytes) {
  accrt_meter_t* const meter = accrt_meter_current;
  if (meter != NULL)
    meter->memory_bytes -= size_bytes < meter->memory_bytes ? size_bytes : meter->memory_bytes;
}

/* True for a status that means the end of a budget. No single command is at fault then, so messages
 * need not name the loops and calls around it. */
static inline bool accrt_is_end_of_budget(accrt_status_t status) {
  return status == ACCRT_ERROR_BUDGET || status == ACCRT_ERROR_TIMEOUT ||
         status == ACCRT_ERROR_CANCELLED;
}

/* A secret random number. It prevents collisions by an attacker who chooses the keys of a hash
 * table. Never fails. */
uint64_t accrt_hash_seed(void);
/* Mixes every bit of a key with a seed. */
static inline uint64_t accrt_hash_u64(uint64_t key, uint64_t seed) {
  __extension__ typedef unsigned __int128 wide_t;
  const wide_t product =
      (wide_t)(key ^ seed) * (UINT64_C(0x9E3779B97F4A7C15) ^ (seed << 1 & ~UINT64_C(1)));
  const uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);
  return folded ^ folded >> 29;
}

#endif /* ACCRT_RUNTIME_CORE_METER_H_ */
