/* runtime/program/limits_test.c - limits apply on every kind of thread, and work can be cancelled:
 * on devices with threads, without threads, with an executor that refuses tasks, and on one that
 * runs work during submission. The work is a kernel of 200 workgroups, each of which sleeps for 2
 * ms. Where threads of the device run them, the second half waits until the test has seen what it
 * looks for, however late it looks on a busy machine.
 */
#include <pthread.h>
#include <time.h>

#include "runtime/program/testing.h"

extern const accrt_driver_table_t* accrt_driver_null_query(uint32_t max_abi);
static const void* query_null(uint32_t max_abi) {
  return accrt_driver_null_query(max_abi);
}

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define MS UINT64_C(1000000)
#define WORKGROUPS 200u
#define WORKGROUP_US 2000u
/* Enough lists that their caller is not through when all waits below are over. */
#define LISTS 8u
#define LIMIT_NS (10 * MS)
/* Allowance for a busy machine. The test also checks that some workgroups did not run. */
#define LATE_NS (20000 * MS)

/* ---- A kernel that takes its time ---- */

static atomic_uint begun, ran;
static atomic_bool is_held; /* the second half, but on the test's own thread */
static pthread_t test_thread;

static void hold_second_half(void) {
  test_thread = pthread_self();
  atomic_store(&begun, 0);
  atomic_store(&is_held, true);
}
static void let_go(void) {
  atomic_store(&is_held, false);
}

static int32_t rest(const accrt_kernel_environment_t* environment,
                    const accrt_kernel_dispatch_t* dispatch,
                    const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  (void)usleep(WORKGROUP_US);
  if (atomic_fetch_add(&begun, 1) >= WORKGROUPS / 2 && !pthread_equal(pthread_self(), test_thread))
    while (atomic_load(&is_held))
      (void)usleep(100);
  atomic_fetch_add(&ran, 1);
  return 0;
}

static const accrt_kernel_def_t definition = {
    .struct_size = (uint32_t)sizeof definition, .name = "rest", .entry = rest};
static const accrt_kernel_pack_table_t pack_table = {.struct_size = (uint32_t)sizeof pack_table,
                                                     .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                     .name = "limits_test",
                                                     .kernels = &definition,
                                                     .kernel_count = 1,
                                                     .kernel_size_bytes =
                                                         (uint32_t)sizeof definition};
static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &pack_table;
}

/* ---- Worlds ---- */

typedef struct world {
  const char* name;
  const char* threads; /* option of the host device; NULL: use the null driver */
  bool refuses;        /* an executor that refuses every task */
  bool enqueue_runs;
} world_kind_t;
static const world_kind_t kinds[] = {
    {"2 threads", "2", false, false},
    {"the caller", "0", false, false},
    {"an executor that refuses", "2", true, true},
    {"the null driver", NULL, false, true},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

typedef struct place {
  const world_kind_t* kind;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_kernel_pack_t* pack;
  accrt_commands_t* commands;
} place_t;

static int32_t refuse(void* self, void (*task)(void* argument), void* argument) {
  (void)self;
  (void)task;
  (void)argument;
  return 1;
}

static void open_place(const world_kind_t* kind, place_t* p) {
  const accrt_option_t option = {"host.threads", kind->threads};
  const accrt_executor_t executor = {.submit = refuse, .concurrency = 2};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.executor = kind->refuses ? &executor : NULL;
  options.options = &option;
  options.option_count = kind->threads != NULL && !kind->refuses;
  options.option_size_bytes = (uint32_t)sizeof option;
  if (kind->threads == NULL)
    options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  p->kind = kind;
  OK(accrt_instance_create(&options, &p->instance));
  if (kind->threads == NULL)
    OK(accrt_instance_register_driver(p->instance, query_null));
  OK(accrt_instance_device(p->instance, 0, &p->device));
  OK(accrt_stream_create(p->device, NULL, &p->stream));
  OK(accrt_kernel_pack_register(p->instance, query_pack, &p->pack));
  accrt_kernel_t* kernel;
  const uint32_t grid[3] = {WORKGROUPS, 1, 1};
  OK(accrt_kernel_pack_kernel(p->pack, 0, &kernel));
  OK(accrt_commands_create(p->device, 0, &p->commands));
  OK(accrt_commands_dispatch(p->commands, kernel, grid, NULL, 0, sizeof(accrt_kernel_argument_t),
                             NULL, NULL));
  OK(accrt_commands_finalize(p->commands));
  atomic_store(&ran, 0);
  let_go(); /* what a test that failed has left */
}

static void close_place(place_t* p) {
  accrt_commands_release(p->commands);
  accrt_kernel_pack_release(p->pack);
  accrt_stream_release(p->stream);
  accrt_device_release(p->device);
  accrt_instance_release(p->instance);
}

static accrt_status_t run_list(place_t* p, uint64_t timeout_ns) {
  return accrt_stream_run(p->stream, p->commands, NULL, 0, sizeof(accrt_binding_t), timeout_ns);
}
static accrt_status_t submit_list(place_t* p) {
  return accrt_stream_submit(p->stream, p->commands, NULL, 0, sizeof(accrt_binding_t));
}

static uint64_t now_ns(void) {
  return accrt_clock_ns();
}

/* Checks that the call stopped at its limit, with the work of `lists` lists unfinished. */
static void check_left_of(const place_t* p, uint32_t lists, const char* what, accrt_status_t status,
                          uint64_t begin_ns, uint64_t limit_ns) {
  const uint64_t took_ns = now_ns() - begin_ns;
  print_message("%s: %s with a limit of %.0f ms took %.2f ms\n", p->kind->name, what,
                (double)limit_ns / 1e6, (double)took_ns / 1e6);
  if (status != ACCRT_ERROR_TIMEOUT && status != ACCRT_ERROR_NOT_READY)
    fail_msg("%s gave %s", what, accrt_status_name(status));
  assert_true(took_ns >= limit_ns);
  assert_true(took_ns < limit_ns + LATE_NS);
  assert_true(atomic_load(&ran) < lists * WORKGROUPS);
}
static void check_left(const place_t* p, const char* what, accrt_status_t status, uint64_t begin_ns,
                       uint64_t limit_ns) {
  check_left_of(p, 1, what, status, begin_ns, limit_ns);
}

/* ---- Limits ---- */

static void runs_are_left_at_their_limit(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    open_place(&kinds[i], &p);
    hold_second_half();
    uint64_t begin_ns = now_ns();
    check_left(&p, "accrt_stream_run", run_list(&p, LIMIT_NS), begin_ns, LIMIT_NS);
    let_go();
    OK(accrt_stream_synchronize(p.stream, FOREVER, ACCRT_WAIT_BLOCK));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    atomic_store(&ran, 0);
    hold_second_half();
    begin_ns = now_ns();
    check_left(&p, "accrt_stream_run", run_list(&p, 0), begin_ns, 0);
    let_go();
    OK(accrt_stream_synchronize(p.stream, FOREVER, ACCRT_WAIT_BLOCK));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    close_place(&p);
  }
}

static void waits_are_left_at_their_limit(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    if (kinds[i].enqueue_runs)
      continue; /* there is no work to wait for */
    place_t p;
    accrt_event_t* event;
    accrt_semaphore_t* semaphore;
    open_place(&kinds[i], &p);
    OK(accrt_event_create(p.device, 0, &event));
    OK(accrt_semaphore_create(p.instance, 0, &semaphore));
    hold_second_half();
    for (uint32_t list = 0; list < LISTS; ++list)
      OK(submit_list(&p));
    OK(accrt_stream_record(p.stream, event));
    OK(accrt_stream_signal(p.stream, semaphore, 1));
    const accrt_timepoint_t timepoint = {semaphore, 1};
    for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
      uint64_t begin_ns = now_ns();
      check_left_of(&p, LISTS, "accrt_stream_synchronize",
                    accrt_stream_synchronize(p.stream, LIMIT_NS, policy), begin_ns, LIMIT_NS);
      begin_ns = now_ns();
      check_left_of(&p, LISTS, "accrt_event_synchronize",
                    accrt_event_synchronize(event, LIMIT_NS, policy), begin_ns, LIMIT_NS);
      begin_ns = now_ns();
      check_left_of(&p, LISTS, "accrt_semaphore_wait",
                    accrt_semaphore_wait(semaphore, 1, LIMIT_NS, policy), begin_ns, LIMIT_NS);
      begin_ns = now_ns();
      check_left_of(&p, LISTS, "accrt_semaphore_wait_many",
                    accrt_semaphore_wait_many(&timepoint, 1, 1, LIMIT_NS, policy, NULL), begin_ns,
                    LIMIT_NS);
      begin_ns = now_ns();
      check_left_of(&p, LISTS, "accrt_stream_synchronize",
                    accrt_stream_synchronize(p.stream, 0, policy), begin_ns, 0);
    }
    let_go();
    OK(accrt_semaphore_wait(semaphore, 1, FOREVER, ACCRT_WAIT_BLOCK));
    assert_int_equal(atomic_load(&ran), LISTS * WORKGROUPS);
    accrt_event_release(event);
    accrt_semaphore_release(semaphore);
    close_place(&p);
  }
}

/* With limited waits alone, a device without threads still makes progress. */
static void polls_are_enough(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    open_place(&kinds[i], &p);
    (void)run_list(&p, 0);
    int polls = 0;
    while (accrt_stream_synchronize(p.stream, 0, ACCRT_WAIT_BLOCK) != ACCRT_OK && ++polls < 5000)
      (void)usleep(1000);
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    close_place(&p);
  }
}

/* ---- Cancelling ---- */

static void check_cancelled(place_t* p) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(p->stream, &error));
  print_message("%s: submission %" PRIu64 ", %s: %s\n", p->kind->name, error.submission,
                error.operation, error.message);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_true(error.submission != 0);
  assert_non_null(strstr(error.message, "cancelled after ")); /* the progress until then */
}

/* Running work stops between workgroups, waiting work is dropped, and its signals fail with the
 * record. */
static void running_work_is_cancelled(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    accrt_semaphore_t* semaphore;
    open_place(&kinds[i], &p);
    OK(accrt_semaphore_create(p.instance, 0, &semaphore));
    hold_second_half();
    FAILS(run_list(&p, LIMIT_NS), TIMEOUT, NULL);
    while (atomic_load(&ran) < 2)
      (void)accrt_stream_synchronize(p.stream, MS, ACCRT_WAIT_BLOCK);
    OK(submit_list(&p));
    OK(accrt_stream_signal(p.stream, semaphore, 1));
    const uint64_t begin_ns = now_ns();
    OK(accrt_stream_cancel(p.stream));
    OK(accrt_stream_cancel(p.stream)); /* cancelling twice is allowed */
    let_go();
    FAILS(accrt_stream_synchronize(p.stream, FOREVER, ACCRT_WAIT_BLOCK), POISONED, "cancelled");
    assert_true(now_ns() - begin_ns < LATE_NS);
    assert_true(atomic_load(&ran) < WORKGROUPS);
    check_cancelled(&p);
    accrt_error_t error = ACCRT_ERROR_INIT;
    FAILS(accrt_semaphore_wait(semaphore, 1, FOREVER, ACCRT_WAIT_BLOCK), POISONED, NULL);
    OK(accrt_semaphore_error(semaphore, &error));
    assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
    assert_non_null(strstr(error.message, "cancelled after "));
    FAILS(submit_list(&p), POISONED, NULL);
    OK(accrt_stream_reset(p.stream));
    atomic_store(&ran, 0);
    OK(run_list(&p, FOREVER));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    accrt_semaphore_release(semaphore);
    close_place(&p);
  }
}

static void* run_forever(void* argument) {
  place_t* p = argument;
  const accrt_status_t status = run_list(p, FOREVER);
  return (void*)(intptr_t)(status == ACCRT_ERROR_CANCELLED || status == ACCRT_ERROR_POISONED
                               ? accrt_error_current()->status
                               : status);
}

/* Another thread runs the work inside its own call. */
static void work_on_its_caller_is_cancelled(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    pthread_t thread;
    void* result;
    open_place(&kinds[i], &p);
    hold_second_half();
    assert_int_equal(pthread_create(&thread, NULL, run_forever, &p), 0);
    while (atomic_load(&ran) < 4)
      (void)usleep(500);
    OK(accrt_stream_cancel(p.stream));
    let_go();
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_true((intptr_t)result == ACCRT_ERROR_CANCELLED ||
                (intptr_t)result == ACCRT_ERROR_POISONED);
    assert_true(atomic_load(&ran) < WORKGROUPS);
    check_cancelled(&p);
    OK(accrt_stream_reset(p.stream));
    atomic_store(&ran, 0);
    OK(run_list(&p, FOREVER));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    close_place(&p);
  }
}

static void idle_streams_are_not_touched(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    open_place(&kinds[i], &p);
    OK(accrt_stream_cancel(p.stream));
    OK(run_list(&p, FOREVER));
    OK(accrt_stream_cancel(p.stream));
    OK(accrt_stream_query(p.stream));
    OK(run_list(&p, FOREVER));
    FAILS(accrt_stream_cancel(NULL), INVALID_ARGUMENT, "stream");
    close_place(&p);
  }
}

static void what_waits_is_dropped(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    accrt_semaphore_t *gate, *after;
    open_place(&kinds[i], &p);
    OK(accrt_semaphore_create(p.instance, 0, &gate));
    OK(accrt_semaphore_create(p.instance, 0, &after));
    OK(accrt_stream_wait(p.stream, gate, 1));
    OK(submit_list(&p));
    OK(accrt_stream_signal(p.stream, after, 1));
    OK(accrt_stream_cancel(p.stream));
    FAILS(accrt_semaphore_wait(after, 1, FOREVER, ACCRT_WAIT_BLOCK), POISONED, "cancelled");
    OK(accrt_semaphore_signal(gate, 1)); /* no work waits for it any more */
    assert_int_equal(atomic_load(&ran), 0);
    OK(accrt_stream_reset(p.stream));
    OK(run_list(&p, FOREVER));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(after);
    close_place(&p);
  }
}

/* ---- Against everything at once ---- */

typedef struct storm {
  place_t* p;
  atomic_bool stop;
  atomic_uint cancels;
} storm_t;

static void* keep_cancelling(void* argument) {
  storm_t* storm = argument;
  while (!atomic_load(&storm->stop)) {
    if (accrt_stream_cancel(storm->p->stream) == ACCRT_OK)
      atomic_fetch_add(&storm->cancels, 1);
    (void)usleep(5000);
  }
  return NULL;
}

/* Short lists are run, submitted, cancelled and reset at once. Each ends in one of its valid ways,
 * and the stream works after a reset. */
static void cancels_meet_everything(void** state) {
  (void)state;
  for (size_t i = 0; i < KINDS; ++i) {
    place_t p;
    pthread_t thread;
    accrt_kernel_t* kernel;
    accrt_commands_t* few;
    const uint32_t grid[3] = {3, 1, 1};
    open_place(&kinds[i], &p);
    OK(accrt_kernel_pack_kernel(p.pack, 0, &kernel));
    OK(accrt_commands_create(p.device, 0, &few));
    OK(accrt_commands_dispatch(few, kernel, grid, NULL, 0, sizeof(accrt_kernel_argument_t), NULL,
                               NULL));
    OK(accrt_commands_finalize(few));
    storm_t storm = {.p = &p};
    unsigned complete = 0, ended = 0;
    assert_int_equal(pthread_create(&thread, NULL, keep_cancelling, &storm), 0);
    const uint64_t end_ns = now_ns() + 300 * MS;
    /* On a busy machine nothing may have been cancelled by then. */
    for (unsigned round = 0; now_ns() < end_ns || (ended == 0 && now_ns() < end_ns + LATE_NS);
         ++round) {
      const uint64_t limit_ns = round % 3 == 0 ? FOREVER : round % 3 == 1 ? MS : 0;
      accrt_status_t status =
          accrt_stream_run(p.stream, few, NULL, 0, sizeof(accrt_binding_t), limit_ns);
      if (status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY)
        status = accrt_stream_synchronize(p.stream, FOREVER, ACCRT_WAIT_BLOCK);
      if (status == ACCRT_OK) {
        complete += 1;
      } else {
        assert_true(status == ACCRT_ERROR_CANCELLED || status == ACCRT_ERROR_POISONED);
        OK(accrt_stream_reset(p.stream));
        ended += 1;
      }
    }
    atomic_store(&storm.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%s: %u complete, %u cancelled, %u cancels\n", p.kind->name, complete, ended,
                  atomic_load(&storm.cancels));
    assert_true(ended > 0);
    OK(accrt_stream_reset(p.stream));
    atomic_store(&ran, 0);
    OK(run_list(&p, FOREVER));
    assert_int_equal(atomic_load(&ran), WORKGROUPS);
    accrt_commands_release(few);
    close_place(&p);
  }
}

/* ---- Calls ---- */

static void calls_are_left_and_waited_for(void** state) {
  FIXTURE(f);
  float x[4] = {1, 2, 3, 4}, y[4] = {0};
  accrt_call_t* call = make_call(f->session, "affine");
  FAILS(accrt_call_wait(call, FOREVER), INVALID_STATE, "never run");
  OK(set_vector(call, "x", x, ACCRT_DTYPE_F32, 4));
  OK(set_vector(call, "y", y, ACCRT_DTYPE_F32, 4));
  for (uint64_t limit_ns = 0; limit_ns < 3; ++limit_ns) {
    memset(y, 0, sizeof y);
    const accrt_status_t status =
        limit_ns == 2 ? accrt_call_attempt(call, 1) : accrt_call_run(call, limit_ns);
    if (status != ACCRT_OK && limit_ns == 2)
      FAILS(status, NOT_READY, "still runs");
    else if (status != ACCRT_OK)
      FAILS(status, TIMEOUT, "it still runs");
    OK(accrt_call_wait(call, FOREVER));
    OK(accrt_call_wait(call, 0));
    assert_true(y[0] == 3.0f && y[3] == 9.0f);
  }
  /* Runs that are known to be short run on the calling thread. */
  for (int i = 0; i < 3; ++i) {
    memset(y, 0, sizeof y);
    OK(accrt_call_attempt(call, 10000 * MS));
    OK(accrt_call_wait(call, 0));
    assert_true(y[0] == 3.0f && y[3] == 9.0f);
  }
  accrt_call_release(call);
}

/* Small plans are made despite the limit. A plan that is given up causes no run.
 * tests/python/test_interrupts.py has large ones. */
static void plans_end_at_the_callers_limit(void** state) {
  FIXTURE(f);
  accrt_budget_t budget = ACCRT_BUDGET_INIT;
  accrt_meter_t meter;
  accrt_meter_begin(&meter, &budget, "planning", "f", UINT64_MAX, UINT64_MAX);
  accrt_meter_limit(&meter, ACCRT_TIMEOUT_INFINITE);
  OK(accrt_charge(UINT64_C(1) << 40));
  accrt_meter_limit(&meter, 0);
  require_status(accrt_charge(UINT64_C(1) << 16), ACCRT_ERROR_TIMEOUT,
                 "longer than its limit of 0 ns", "accrt_charge", __LINE__);
  accrt_meter_limit(&meter, FOREVER); /* the earlier deadline stays */
  require_status(accrt_charge(UINT64_C(1) << 16), ACCRT_ERROR_TIMEOUT,
                 "longer than its limit of 0 ns", "accrt_charge", __LINE__);
  accrt_meter_end(&meter);
  float x[4] = {1, 2, 3, 4}, y[4] = {0};
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, ACCRT_DTYPE_F32, 4));
  OK(set_vector(call, "y", y, ACCRT_DTYPE_F32, 4));
  FAILS(accrt_call_plan(NULL, 0), INVALID_ARGUMENT, "call is NULL");
  OK(accrt_call_plan(call, 0));
  OK(accrt_call_plan(call, FOREVER));
  FAILS(accrt_call_wait(call, 0), INVALID_STATE, "never run");
  const accrt_status_t status = accrt_call_run(call, 0);
  if (status != ACCRT_OK)
    FAILS(status, TIMEOUT, "it still runs");
  OK(accrt_call_wait(call, FOREVER));
  assert_true(y[0] == 3.0f);
  accrt_call_release(call);
}

static void sessions_are_cancelled(void** state) {
  FIXTURE(f);
  float x[4] = {1, 2, 3, 4}, y[4] = {0};
  accrt_semaphore_t *gate, *after;
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, ACCRT_DTYPE_F32, 4));
  OK(set_vector(call, "y", y, ACCRT_DTYPE_F32, 4));
  OK(accrt_session_cancel(f->session)); /* nothing was running */
  OK(run(call));
  memset(y, 0, sizeof y);
  OK(accrt_semaphore_create(f->instance, 0, &gate));
  OK(accrt_semaphore_create(f->instance, 0, &after));
  const accrt_timepoint_t wait = {gate, 1}, signal = {after, 1};
  OK(accrt_call_submit(call, &wait, 1, &signal, 1));
  FAILS(accrt_call_wait(call, MS), TIMEOUT, "affine");
  OK(accrt_session_cancel(f->session));
  FAILS(accrt_call_wait(call, FOREVER), CANCELLED, "cancelled");
  FAILS(accrt_semaphore_wait(after, 1, FOREVER, ACCRT_WAIT_BLOCK), POISONED, "cancelled");
  FAILS(run(call), POISONED, "cancelled");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_session_error(f->session, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_true(error.submission != 0);
  assert_true(y[0] == 0.0f);
  accrt_clear_error();
  OK(accrt_session_reset(f->session));
  assert_int_equal(accrt_error_current()->status, ACCRT_OK); /* it succeeded: no new record */
  OK(run(call));
  assert_true(y[0] == 3.0f);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(after);
  accrt_call_release(call);
  FAILS(accrt_session_cancel(NULL), INVALID_ARGUMENT, "session");
}

/* The stream may have work of other users. */
static void a_callers_stream_is_the_callers_to_cancel(void** state) {
  FIXTURE(f);
  accrt_stream_t* stream;
  accrt_session_t* session;
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  OK(accrt_stream_create(f->device, NULL, &stream));
  options.stream = stream;
  OK(accrt_session_create(f->program, &options, &session));
  FAILS(accrt_session_cancel(session), INVALID_STATE, "accrt_stream_cancel");
  accrt_session_release(session);
  accrt_stream_release(stream);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(runs_are_left_at_their_limit),
      cmocka_unit_test(waits_are_left_at_their_limit),
      cmocka_unit_test(polls_are_enough),
      cmocka_unit_test(running_work_is_cancelled),
      cmocka_unit_test(work_on_its_caller_is_cancelled),
      cmocka_unit_test(idle_streams_are_not_touched),
      cmocka_unit_test(what_waits_is_dropped),
      cmocka_unit_test(cancels_meet_everything),
      FIXTURE_TEST(calls_are_left_and_waited_for),
      FIXTURE_TEST(plans_end_at_the_callers_limit),
      FIXTURE_TEST(sessions_are_cancelled),
      FIXTURE_TEST(a_callers_stream_is_the_callers_to_cancel),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
