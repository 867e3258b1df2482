/* runtime/drivers/host/run.c - runs an instance: the coordinator's way through the waves, and the
 * board on which it offers work to helpers. host.h tells the idea. It allocates nothing and takes
 * no lock (but see accrt_host_scratch_adopt).
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/try.h"
#include "runtime/drivers/host/host.h"

/* A coordinator whose helpers are late sleeps after this long: they may need its processor. */
#define WAIT_SPIN_NS UINT64_C(20000)
#define PAUSES_PER_LOOK 64u
/* How many helpers one thread wakes; those wake further ones. */
#define WAKE_FAN_OUT 2u

static uint32_t run_state(const host_run_t* run) {
  return atomic_load_explicit(&run->failed, memory_order_relaxed);
}
static bool has_failed(const host_run_t* run) {
  /* Relaxed: only saves work. The details are read after the units are known to be done. */
  return run_state(run) != HOST_RUN_SOUND;
}

/* ---- Units of a wave ---- */

/* The command that has unit `unit`: the last one that begins at or before it. */
static const host_command_t* find_command(const host_command_t* commands, uint32_t count,
                                          uint32_t unit) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (commands[middle].unit_begin <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return &commands[low];
}

void accrt_host_run_wave_units(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave,
                               uint32_t begin, uint32_t end) {
  const host_command_t* command =
      find_command(&run->instance->commands[wave->first_command], wave->command_count, begin);
  for (; begin < end && !has_failed(run); ++command) {
    const uint32_t command_end = command->unit_begin + command->unit_count;
    const uint32_t stop = end < command_end ? end : command_end;
    accrt_host_run_units(run, scratch, command, begin - command->unit_begin,
                         stop - command->unit_begin);
    begin = stop;
  }
}

static void number_dispatches(host_run_t* run, const host_wave_t* wave) {
  host_command_t* commands = &run->instance->commands[wave->first_command];
  for (uint32_t i = 0; i < wave->command_count; ++i) {
    if (commands[i].kind == ACCRT_DRIVER_COMMAND_DISPATCH) {
      commands[i].as.dispatch.view.submission = run->submission;
    }
  }
}

static void run_alone(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave) {
  number_dispatches(run, wave);
  host_command_t* commands = &run->instance->commands[wave->first_command];
  for (uint32_t i = 0; i < wave->command_count && !has_failed(run); ++i) {
    if (commands[i].unit_count != 0) {
      accrt_host_run_units(run, scratch, &commands[i], 0, commands[i].unit_count);
    }
  }
}

/* ---- The board: the coordinator's side ---- */

/* A free entry, or NULL. Acquire pairs with the release in leave_board: its last user's sequence is
 * seen. */
static host_board_entry_t* enter_board(host_device_t* device) {
  uint32_t mask = atomic_load_explicit(&device->board_mask, memory_order_relaxed);
  while (mask != UINT32_MAX) {
    const uint32_t index = (uint32_t)__builtin_ctz(~mask);
    const uint32_t bit = UINT32_C(1) << index;
    mask = atomic_fetch_or_explicit(&device->board_mask, bit, memory_order_acquire);
    if ((mask & bit) == 0)
      return &device->board[index];
  }
  return NULL;
}

static void leave_board(host_device_t* device, const host_board_entry_t* entry) {
  const uint32_t bit = UINT32_C(1) << (uint32_t)(entry - device->board);
  atomic_fetch_and_explicit(&device->board_mask, ~bit, memory_order_release);
}

/* No thread reads run and wave of an entry whose ticket has no units left, so they may be written
 * plainly. The release pairs with the acquire of a successful claim. */
static void offer(host_board_entry_t* entry, host_run_t* run, const host_wave_t* wave) {
  entry->run = run;
  entry->wave = wave;
  atomic_store_explicit(&entry->external, run->external, memory_order_relaxed);
  ++entry->sequence;
  const uint64_t ticket = (uint64_t)entry->sequence << 32 | wave->unit_count;
  atomic_store_explicit(&entry->ticket, ticket, memory_order_release);
}

/* Takes a share of what is left: smaller shares towards the end, so that all end together. Returns
 * how many units were left before (0: none), and in *out_share how many of them are the
 * caller's. */
static uint32_t claim(host_board_entry_t* entry, uint64_t ticket, uint32_t concurrency,
                      uint32_t* out_share) {
  for (;;) {
    const uint32_t left = (uint32_t)ticket;
    if (left == 0)
      return 0;
    const uint32_t share = left / (2 * concurrency);
    *out_share = share == 0 ? 1 : share;
    /* Acquire pairs with the release in offer, also through other threads' claims. */
    if (atomic_compare_exchange_weak_explicit(&entry->ticket, &ticket, ticket - *out_share,
                                              memory_order_acquire, memory_order_relaxed)) {
      return left;
    }
    accrt_pause();
  }
}

static uint32_t claim_and_run(host_board_entry_t* entry, host_run_t* run, host_scratch_t* scratch,
                              const host_wave_t* wave) {
  uint32_t own = 0;
  for (;;) {
    uint32_t share;
    const uint64_t ticket = atomic_load_explicit(&entry->ticket, memory_order_relaxed);
    const uint32_t left = claim(entry, ticket, run->device->concurrency, &share);
    if (left == 0)
      return own;
    const uint32_t begin = wave->unit_count - left;
    accrt_host_run_wave_units(run, scratch, wave, begin, begin + share);
    own += share;
  }
}

/* Waits until helpers have ended what they claimed. Acquire pairs with their release: their results
 * are seen. */
static void wait_for_helpers(host_board_entry_t* entry, uint64_t expected) {
  uint64_t give_up_ns = 0;
  for (uint32_t i = 1; atomic_load_explicit(&entry->done, memory_order_acquire) != expected; ++i) {
    accrt_pause();
    if (i % PAUSES_PER_LOOK != 0)
      continue;
    const uint64_t now = accrt_clock_ns();
    if (give_up_ns == 0)
      give_up_ns = now + WAIT_SPIN_NS;
    if (now < give_up_ns)
      continue;
    /* Seq_cst pairs with end_units: either the helper sees `waiting`, or this thread sees its
     * units. */
    atomic_store_explicit(&entry->waiting, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&entry->done, memory_order_seq_cst) != expected) {
      accrt_futex_wait(&entry->waiting, 1, UINT64_MAX);
    }
    atomic_store_explicit(&entry->waiting, 0, memory_order_relaxed);
  }
}

/* Shared work that makes waking worth while: some, and several times what a wake-up costs the one
 * who wakes. On a virtual machine that cost is tens of microseconds, so it is measured. */
static uint64_t wake_threshold_ns(const host_device_t* device) {
  return HOST_WAKE_NS + 2 * atomic_load_explicit(&device->wake_cost_ns, memory_order_relaxed);
}

static void wake_helpers(host_run_t* run) {
  host_device_t* device = run->device;
  /* Relaxed: a helper that parks just now costs nothing but its help. */
  if (atomic_load_explicit(&device->parked_count, memory_order_relaxed) == 0)
    return;
  const uint32_t limit = run->external ? device->worker_count - 1 : device->worker_count;
  const uint64_t begin_ns = accrt_clock_ns();
  if (accrt_host_workers_wake(device, 1, limit) == 0)
    return;
  const uint64_t elapsed_ns = accrt_clock_ns() - begin_ns;
  const uint32_t known = atomic_load_explicit(&device->wake_cost_ns, memory_order_relaxed);
  const uint64_t sample = elapsed_ns < HOST_MAX_WAKE_NS ? elapsed_ns : HOST_MAX_WAKE_NS;
  const uint32_t smoothed = (uint32_t)((7 * (uint64_t)known + sample) / 8);
  atomic_store_explicit(&device->wake_cost_ns, smoothed, memory_order_relaxed);
}

/* ---- What a wave costs ---- */

static void learn(host_cost_t* cost, uint64_t elapsed_ns, uint32_t units) {
  if (units == 0)
    return;
  uint64_t per_unit = (elapsed_ns << HOST_COST_SHIFT) / units;
  if (per_unit == 0)
    per_unit = 1;
  if (per_unit > UINT32_MAX)
    per_unit = UINT32_MAX;
  atomic_store_explicit(cost, (uint32_t)per_unit, memory_order_relaxed);
}

static void run_alone_learning(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave,
                               host_cost_t* cost) {
  const uint64_t begin_ns = accrt_clock_ns();
  run_alone(run, scratch, wave);
  if (!has_failed(run))
    learn(cost, accrt_clock_ns() - begin_ns, wave->unit_count);
}

static void run_offered(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave,
                        host_cost_t* cost, bool learning) {
  host_board_entry_t* entry = run->board;
  /* Every unit that was claimed before has ended: what comes on top is this wave's. */
  const uint64_t done_before = atomic_load_explicit(&entry->done, memory_order_relaxed);
  number_dispatches(run, wave);
  offer(entry, run, wave);
  if (run->unhelped_ns >= wake_threshold_ns(run->device)) {
    run->unhelped_ns = 0;
    wake_helpers(run);
  }
  const uint64_t begin_ns = learning ? accrt_clock_ns() : 0;
  const uint32_t own = claim_and_run(entry, run, scratch, wave);
  if (learning && !has_failed(run))
    learn(cost, accrt_clock_ns() - begin_ns, own);
  wait_for_helpers(entry, done_before + (wave->unit_count - own));
}

static void run_wave(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave,
                     host_cost_t* cost) {
  const uint32_t per_unit = atomic_load_explicit(cost, memory_order_relaxed);
  const bool learning = per_unit == 0 || run->relearn;
  const uint64_t estimate_ns = ((uint64_t)per_unit * wave->unit_count) >> HOST_COST_SHIFT;
  bool alone = per_unit != 0 && estimate_ns < HOST_OFFER_NS;
  if (!alone && run->board == NULL) {
    run->board = enter_board(run->device);
    alone = run->board == NULL;
  }
  if (alone) {
    if (learning) {
      run_alone_learning(run, scratch, wave, cost);
    } else {
      run_alone(run, scratch, wave);
    }
    return;
  }
  run->shared_ns += estimate_ns;
  run->unhelped_ns += per_unit == 0 ? wake_threshold_ns(run->device) : estimate_ns;
  run_offered(run, scratch, wave, cost, learning);
}

/* ---- A run ---- */

static accrt_status_t state_status(const host_run_t* run) {
  const uint32_t state = run_state(run);
  if (state == HOST_RUN_SOUND)
    return ACCRT_OK;
  return state == HOST_RUN_CANCELLED ? ACCRT_ERROR_CANCELLED : ACCRT_ERROR_KERNEL;
}

static void trace_wave(const host_run_t* run, const host_wave_t* wave, uint64_t begin_ns) {
  const host_device_t* device = run->device;
  accrt_trace_event_t event = {.kind = ACCRT_TRACE_COMMAND,
                               .status = state_status(run),
                               .stream_id = run->stream_id,
                               .submission = run->submission,
                               .begin_ns = begin_ns,
                               .end_ns = accrt_clock_ns()};
  for (uint32_t i = 0; i < wave->command_count; ++i) {
    const host_command_t* command = &run->instance->commands[wave->first_command + i];
    static const char kinds[][9] = {"command", "dispatch", "copy", "fill", "barrier", "marker"};
    const uint32_t kind = command->kind < sizeof kinds / sizeof *kinds ? command->kind : 0;
    event.name = command->name != NULL ? command->name : kinds[kind];
    device->environment->trace(device->environment, &event);
  }
}

static void run_waves(host_run_t* run, host_scratch_t* scratch) {
  const host_device_t* device = run->device;
  const bool share = device->concurrency > 1;
  for (uint32_t i = 0; i < run->wave_count && !has_failed(run); ++i) {
    run->waves_done = i;
    const host_wave_t* wave = &run->instance->waves[i];
    const uint64_t begin_ns = device->tracing ? accrt_clock_ns() : 0;
    if (wave->unit_count <= 1 || !share) {
      run_alone(run, scratch, wave);
    } else {
      run_wave(run, scratch, wave, &run->costs[i]);
    }
    if (device->tracing)
      trace_wave(run, wave, begin_ns);
  }
}

bool accrt_host_run(host_run_t* run, host_scratch_t* scratch) {
  run->waves_done = 0;
  run->board = NULL;
  run->unhelped_ns = 0;
  const uint64_t expected_ns = run->shared_ns;
  run->shared_ns = 0;
  scratch->workgroup.worker_id = run->coordinator_id;
  if (scratch->local_bytes < run->local_bytes) {
    accrt_host_scratch_adopt(run->device, scratch, run->local_bytes);
  }
  if (run->device->concurrency > 1 && expected_ns >= HOST_WAKE_NS)
    wake_helpers(run);
  const uint64_t control = host_fp_enter();
  run_waves(run, scratch);
  host_fp_leave(control);
  if (run->board != NULL)
    leave_board(run->device, run->board);
  if (!has_failed(run))
    return true;
  if (run_state(run) == HOST_RUN_CANCELLED)
    memcpy(run->workgroup_id, scratch->workgroup.workgroup_id, sizeof run->workgroup_id);
  return false;
}

/* How far it got. Commands are done in the order of the waves. */
static void report_cancelled(const host_run_t* run, accrt_error_t* out_error) {
  const host_instance_t* instance = run->instance;
  out_error->status = ACCRT_ERROR_CANCELLED;
  out_error->submission = run->submission;
  snprintf(out_error->operation, sizeof out_error->operation, "queue_cancel");
  if (run->wave_count == 0) {
    snprintf(out_error->message, sizeof out_error->message, "cancelled; it has no commands");
    return;
  }
  const host_wave_t* last = &instance->waves[run->wave_count - 1];
  const host_wave_t* wave = &instance->waves[run->waves_done];
  const host_command_t* command = &instance->commands[wave->first_command];
  const int written =
      snprintf(out_error->message, sizeof out_error->message, "cancelled after %u of %u commands",
               wave->first_command, last->first_command + last->command_count);
  if (command->kind != ACCRT_DRIVER_COMMAND_DISPATCH)
    return;
  const uint32_t* id = run->workgroup_id;
  const uint32_t* count = command->as.dispatch.view.workgroup_count;
  snprintf(out_error->message + written, sizeof out_error->message - (size_t)written,
           ", in '%s' before workgroup (%u, %u, %u) of (%u, %u, %u)", command->name, id[0], id[1],
           id[2], count[0], count[1], count[2]);
}

ACCRT_RARE void accrt_host_run_error(const host_run_t* run, accrt_error_t* out_error) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  if (run_state(run) == HOST_RUN_CANCELLED) {
    report_cancelled(run, out_error);
    return;
  }
  const uint32_t* id = run->workgroup_id;
  const uint32_t* count = run->command->as.dispatch.view.workgroup_count;
  out_error->status = ACCRT_ERROR_KERNEL;
  out_error->driver_code = run->code;
  out_error->submission = run->submission;
  const char* detail = run->message[0] == '\0' ? "" : ": ";
  if (accrt_host_is_operator(run->command->as.dispatch.entry)) {
    snprintf(out_error->operation, sizeof out_error->operation, "execute");
    snprintf(out_error->message, sizeof out_error->message, "operator '%s': execute gave %d%s%s",
             run->command->name, run->code, detail, run->message);
    return;
  }
  snprintf(out_error->operation, sizeof out_error->operation, "dispatch");
  snprintf(out_error->message, sizeof out_error->message,
           "kernel '%s' returned %d in workgroup (%u, %u, %u) of (%u, %u, %u)%s%s",
           run->command->name, run->code, id[0], id[1], id[2], count[0], count[1], count[2], detail,
           run->message);
}

/* ---- The board: a helper's side ---- */

/* A helper that found work wakes others while there is more, so that the coordinator need not wake
 * all. It does so before it claims anything: no thread waits for it then. */
static void wake_more(host_device_t* device, const host_board_entry_t* entry, uint32_t left) {
  if (left < 4 || atomic_load_explicit(&device->parked_count, memory_order_relaxed) == 0)
    return;
  const uint32_t external = atomic_load_explicit(&entry->external, memory_order_relaxed);
  accrt_host_workers_wake(device, WAKE_FAN_OUT, device->worker_count - (external != 0));
}

/* The last thing that a helper does with a run. Seq_cst pairs with wait_for_helpers; it releases
 * the units' results too. */
static void end_units(host_board_entry_t* entry, uint32_t units) {
  atomic_fetch_add_explicit(&entry->done, units, memory_order_seq_cst);
  if (atomic_load_explicit(&entry->waiting, memory_order_seq_cst) == 0)
    return;
  atomic_store_explicit(&entry->waiting, 0, memory_order_relaxed);
  accrt_futex_wake(&entry->waiting, 1);
}

/* The last worker stands aside for a coordinator from outside, who takes its place and its id. If
 * the entry has passed to another run since the ticket was read, the claim that follows fails. */
static bool may_help(const host_device_t* device, const host_board_entry_t* entry,
                     uint32_t worker_index) {
  return worker_index + 1 < device->worker_count ||
         atomic_load_explicit(&entry->external, memory_order_relaxed) == 0;
}

static bool help_entry(host_device_t* device, host_board_entry_t* entry, host_scratch_t* scratch,
                       uint32_t worker_index) {
  bool helped = false;
  bool woke = false;
  for (;;) {
    /* Acquire pairs with offer: `external` is the ticket's. */
    uint64_t ticket = atomic_load_explicit(&entry->ticket, memory_order_acquire);
    const uint32_t left = (uint32_t)ticket;
    if (left == 0 || !may_help(device, entry, worker_index))
      return helped;
    if (!woke)
      wake_more(device, entry, left);
    woke = true;
    uint32_t share = left / (2 * device->concurrency);
    if (share == 0)
      share = 1;
    if (!atomic_compare_exchange_strong_explicit(&entry->ticket, &ticket, ticket - share,
                                                 memory_order_acquire, memory_order_relaxed)) {
      accrt_pause();
      continue;
    }
    host_run_t* run = entry->run;
    const host_wave_t* wave = entry->wave;
    const uint32_t begin = wave->unit_count - left;
    helped = true;
    if (scratch->local_bytes < run->local_bytes) {
      accrt_host_scratch_adopt(device, scratch, run->local_bytes);
    }
    accrt_host_run_wave_units(run, scratch, wave, begin, begin + share);
    end_units(entry, share);
  }
}

bool accrt_host_board_help(host_device_t* device, host_scratch_t* scratch, uint32_t worker_index) {
  /* Relaxed: a bit only says where to look. */
  uint32_t mask = atomic_load_explicit(&device->board_mask, memory_order_relaxed);
  bool helped = false;
  for (; mask != 0; mask &= mask - 1) {
    helped |= help_entry(device, &device->board[__builtin_ctz(mask)], scratch, worker_index);
  }
  return helped;
}

bool accrt_host_board_has_work(host_device_t* device, uint32_t worker_index) {
  uint32_t mask = atomic_load_explicit(&device->board_mask, memory_order_relaxed);
  for (; mask != 0; mask &= mask - 1) {
    const host_board_entry_t* entry = &device->board[__builtin_ctz(mask)];
    const uint64_t ticket = atomic_load_explicit(&entry->ticket, memory_order_acquire);
    if ((uint32_t)ticket != 0 && may_help(device, entry, worker_index))
      return true;
  }
  return false;
}
