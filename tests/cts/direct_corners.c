/* tests/cts/direct_corners.c - more of the part `direct`: texts of kernels, numbers with gaps, a
 * second failure, what queues and devices that work at the same time may not share, and what
 * counts as an idle queue.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <fenv.h>

/* Runs a list when the queue is idle, which it is soon: who is told that work has ended may be told
 * before the queue counts as idle. */
static accrt_status_t run_when_idle(direct_t* d, accrt_driver_queue_t* queue,
                                    accrt_driver_list_t* list,
                                    const accrt_driver_submission_t* submission) {
  const uint64_t deadline = cts_now_ns() + direct_patience_ns();
  accrt_status_t status;
  while ((status = d->table->queue_run(queue, list, submission)) == ACCRT_ERROR_NOT_READY) {
    assert_true(cts_now_ns() < deadline);
    cts_sleep_ms(0);
  }
  return status;
}

/* ---- What a kernel says ---- */

#define KEPT_TEXT 200u /* of a longer text at least so much stays */

typedef struct speech {
  const char* text;
  uint64_t length;
  int32_t code;
  uint32_t workgroup; /* that fails; those before it say something else and succeed */
  uint32_t* capacity; /* that the kernel found */
  uint64_t unused[4];
} speech_t;
_Static_assert(sizeof(speech_t) == 64, "one block");

static int32_t speak(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const speech_t* speech = dispatch->params;
  const bool fails = workgroup->workgroup_id[0] == speech->workgroup;
  const uint32_t capacity = workgroup->message_capacity_bytes;
  if (capacity == 0)
    return speech->code;
  if (!fails) {
    snprintf(workgroup->message, capacity, "all is well");
    return 0;
  }
  *speech->capacity = capacity;
  const uint64_t length = speech->length < capacity ? speech->length : capacity - 1;
  memcpy(workgroup->message, speech->text, length);
  workgroup->message[length] = '\0';
  return speech->code;
}

static const accrt_kernel_def_t speak_def = {.struct_size = (uint32_t)sizeof speak_def,
                                             .traits = ACCRT_KERNEL_TRAIT_SERIAL,
                                             .name = "direct.speak",
                                             .entry = speak,
                                             .params_size_bytes = sizeof(speech_t)};
static const accrt_driver_kernel_t speak_kernel = {&speak_def, &direct_environment, NULL};

/* The record has all of the kernel's words, and no other's. */
static void check_words(const char* message, const char* text, uint64_t length, uint32_t capacity) {
  char wanted[KEPT_TEXT + 1];
  uint64_t kept = length < KEPT_TEXT ? length : KEPT_TEXT;
  kept = kept < capacity ? kept : capacity - 1;
  memcpy(wanted, text, kept);
  wanted[kept] = '\0';
  if (strstr(message, wanted) == NULL)
    fail_msg("the kernel said '%s', the record says '%s'", wanted, message);
  assert_null(strstr(message, "all is well"));
}

/* Everybody who is told of the failure is told the words: each way is another copy of the text. */
static void check_all_are_told(direct_t* d, const char* text, uint64_t length, uint32_t capacity) {
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  outcome_t behind, notice;
  direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &behind);
  direct_notify(d, d->queue, &notice);
  direct_await(d, &behind);
  direct_await(d, &notice);
  assert_int_equal(behind.status, ACCRT_ERROR_POISONED);
  check_words(behind.error.message, text, length, capacity);
  assert_int_equal(notice.status, ACCRT_ERROR_KERNEL);
  check_words(notice.error.message, text, length, capacity);
  if (HAS(d, queue_progress)) {
    uint64_t number = 0;
    direct_forget_failure();
    assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_KERNEL);
    check_words(direct_failure.message, text, length, capacity);
    direct_forget_failure();
    assert_int_equal(d->table->queue_wait(d->queue, UINT64_MAX, 0, ACCRT_WAIT_BLOCK),
                     ACCRT_ERROR_KERNEL);
    check_words(direct_failure.message, text, length, capacity);
  }
  if (!HAS(d, event_create))
    return;
  accrt_driver_queue_t* other = make_queue(d);
  accrt_driver_event_t* event = make_event(d, 0);
  record_event(d, d->queue, event);
  wait_event(d, other, event);
  outcome_t passed;
  direct_notify(d, other, &passed);
  direct_forget_failure();
  assert_int_equal(reach(d, event), ACCRT_ERROR_KERNEL);
  check_words(direct_failure.message, text, length, capacity);
  direct_forget_failure();
  assert_int_equal(d->table->event_query(event), ACCRT_ERROR_KERNEL);
  check_words(direct_failure.message, text, length, capacity);
  direct_await(d, &passed);
  assert_int_equal(passed.status, ACCRT_ERROR_KERNEL);
  check_words(passed.error.message, text, length, capacity);
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
}

/* A kernel's text is text, whatever is in it, and a command's name too: no format, no shorter than
 * it must be. */
static void test_words_of_kernels_are_theirs(void** state) {
  direct_t* d = *state;
  static char longest[2048], percents[400];
  memset(longest, 'w', sizeof longest - 1);
  for (size_t i = 0; i + 1 < sizeof percents; ++i)
    percents[i] = "%s%n%d%%"[i % 8];
  const char* const texts[] = {"99%% of x",
                               "5%d of %s, %n, %x %p %*d %.300f %1$s",
                               "%",
                               "ends with %",
                               "x",
                               "'quoted' \"twice\" \\n \\ {0} $(x) `y` <z>",
                               "gr\xC3\xB6\xC3\x9F"
                               "er als 1 \xE2\x82\xAC",
                               "\xFF\xFE\x80",
                               ": : returned 0 in workgroup (0, 0, 0)",
                               percents,
                               longest};
  static const char* const names[] = {NULL, "50%s off %n%d", "%"};
  static const uint64_t lengths[] = {UINT64_MAX, 1, 62, 63, 64, 127, 128, 199, 255, 256, 511, 512};
  const size_t text_count = sizeof texts / sizeof *texts;
  const size_t length_count = sizeof lengths / sizeof *lengths;
  for (size_t turn = 0; turn < text_count + 2 * length_count; ++turn) {
    const size_t at = turn < text_count ? turn : text_count - 1 - turn % 2;
    const uint64_t limit = turn < text_count ? UINT64_MAX : lengths[(turn - text_count) / 2];
    const uint64_t whole = strlen(texts[at]);
    uint32_t capacity = 0;
    const speech_t speech = {.text = texts[at],
                             .length = whole < limit ? whole : limit,
                             .code = turn % 2 == 0 ? 7 : -7,
                             .workgroup = (uint32_t)turn % 3,
                             .capacity = &capacity};
    const uint32_t before = 0;
    accrt_driver_command_t commands[2] = {
        direct_dispatch(d, &direct_count, NULL, 0),
        direct_dispatch(d, &speak_kernel, &speech, sizeof speech)};
    commands[1].as.dispatch.grid[0] = direct_constant(3);
    commands[1].name = names[turn % 3];
    commands[1].predecessors = &before;
    commands[1].predecessor_count = 1;
    accrt_driver_list_t* list = direct_list(d, commands, 2, 0, 0);
    for (int way = 0; way < 3; ++way) {
      outcome_t outcome;
      if (way == 2) {
        const accrt_driver_submission_t submission =
            direct_submission(d, NULL, 0, NULL, 0, &outcome);
        if (!HAS(d, queue_run))
          continue;
        direct_forget_failure();
        assert_int_equal(run_when_idle(d, d->queue, list, &submission), ACCRT_ERROR_KERNEL);
        assert_int_equal(direct_failure.driver_code, speech.code);
        check_words(direct_failure.message, speech.text, speech.length, capacity);
        continue;
      }
      if (way == 0)
        direct_enqueue(d, d->queue, &commands[1], NULL, 0, NULL, 0, &outcome);
      else
        direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
      direct_await(d, &outcome);
      assert_int_equal(outcome.status, ACCRT_ERROR_KERNEL);
      assert_int_equal(outcome.error.driver_code, speech.code);
      check_words(outcome.error.message, speech.text, speech.length, capacity);
      const bool is_named =
          strstr(outcome.error.message, "direct.speak") != NULL ||
          (commands[1].name != NULL && strstr(outcome.error.message, commands[1].name) != NULL);
      assert_true(is_named);
      check_all_are_told(d, speech.text, speech.length, capacity);
      assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    }
    d->table->list_destroy(list);
  }
}

/* Names of commands are text in traces too, and whole where they are not very long. */
static void test_names_are_text(void** state) {
  direct_t* d = *state;
  static const char* const names[] = {"50%s off %n%d",     "%", "100%",      "a/b\\c \"d\" 'e' {f}",
                                      "\xC3\xA9t\xC3\xA9", " ", "%%%%%%%%%%"};
  accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_count, NULL, 0),
                                        {.opcode = ACCRT_DRIVER_COMMAND_MARKER}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    for (int kind = 0; kind < 2; ++kind) {
      outcome_t outcome;
      commands[kind].name = names[i];
      atomic_store(&d->trace_count, 0);
      direct_enqueue(d, d->queue, &commands[kind], NULL, 0, NULL, 0, &outcome);
      direct_await(d, &outcome);
      assert_int_equal(outcome.status, ACCRT_OK);
      assert_int_equal(atomic_load(&d->trace_count), 1);
      assert_string_equal(d->traces[0].name, names[i]);
    }
  }
}

/* ---- Idle queues ---- */

#define OUTSTANDING 9
/* Enqueues something that does not end before the record of `event` is reached. What has no number
 * counts as well. */
static void leave_outstanding(direct_t* d, int what, accrt_driver_queue_t* queue,
                              accrt_driver_event_t* event, accrt_driver_event_t* mine,
                              accrt_driver_list_t* list, accrt_driver_launch_t* launch,
                              outcome_t* outcome) {
  static const uint32_t grid[3] = {1, 1, 1};
  _Alignas(16) static const unsigned char block[64] = {0};
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  wait_event(d, queue, event);
  if (what == 1 || what == 2)
    record_event(d, queue, mine);
  if (what == 2 || what == 3)
    direct_notify(d, queue, outcome);
  if (what == 4)
    assert_int_equal(d->table->queue_notify(queue, (accrt_driver_completion_t){NULL, NULL}),
                     ACCRT_OK);
  if (what == 5)
    (void)submit_quietly(d, queue, &marker, NULL);
  if (what == 6)
    direct_submit(d, queue, list, NULL, 0, NULL, 0, outcome);
  if (what == 7 && launch != NULL)
    assert_int_equal(d->table->queue_launch(queue, launch, grid, block, next_number(d)), ACCRT_OK);
  if (what == 8)
    wait_event(d, queue, event);
}

/* A list runs on the caller only behind all that is before it: a wait for an event, a record and a
 * notification too. */
static void test_queues_that_wait_are_not_idle(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_run) || !HAS(d, event_create) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 3);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 0);
  accrt_driver_list_t* empty = direct_list(d, NULL, 0, 0, 0);
  accrt_driver_launch_t* launch = HAS(d, launch_create) ? make_launch(d, &direct_count) : NULL;
  for (int turn = 0; turn < 2 * OUTSTANDING; ++turn) {
    accrt_driver_queue_t* queue = make_queue(d);
    accrt_driver_event_t* event = make_event(d, 0);
    accrt_driver_event_t* mine = make_event(d, 0);
    gate_t gate = {0};
    static outcome_t held, listener;
    outcome_t unused;
    memset(memory.host, 0, 64);
    if (turn >= OUTSTANDING) /* a queue that has had work */
      wait_for(d, queue, submit_quietly(d, queue, &fill, &binding));
    memset(memory.host, 0, 64);
    hold_up(d, d->queue, &gate, &held);
    record_event(d, d->queue, event);
    leave_outstanding(d, turn % OUTSTANDING, queue, event, mine, empty, launch, &listener);
    const accrt_driver_submission_t submission =
        direct_submission(d, &binding, 1, NULL, 0, &unused);
    const accrt_status_t status = d->table->queue_run(queue, list, &submission);
    const unsigned char found = memory.host[0];
    /* Also when the wait has begun, which nothing tells. */
    accrt_status_t again = ACCRT_ERROR_NOT_READY;
    const uint64_t enough = cts_now_ns() + (turn % OUTSTANDING == 0 ? 60 : 1) * MILLISECOND;
    while (again == ACCRT_ERROR_NOT_READY && cts_now_ns() < enough) {
      cts_sleep_ms(0);
      again = d->table->queue_run(queue, list, &submission);
    }
    const bool still = !has_ended(&held);
    let_go(&gate);
    direct_await(d, &held);
    assert_true(still);
    assert_int_equal(status, ACCRT_ERROR_NOT_READY);
    assert_int_equal(again, ACCRT_ERROR_NOT_READY);
    assert_int_equal(found, 0);
    assert_int_equal(run_when_idle(d, queue, list, &submission), ACCRT_OK);
    assert_int_equal(memory.host[63], 3);
    assert_int_equal(atomic_load(&unused.times), 0);
    assert_false(atomic_load(&gate.gave_up));
    d->table->event_destroy(event);
    d->table->event_destroy(mine);
    d->table->queue_destroy(queue);
  }
  if (launch != NULL)
    d->table->launch_destroy(launch);
  d->table->list_destroy(list);
  d->table->list_destroy(empty);
}

/* Makes the queue fail, with a kernel of its own. */
static void fail_queue(direct_t* d) {
  outcome_t outcome;
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_ERROR_KERNEL);
}

/* What cancels a queue in one turn: nothing else, work without a number, a list on the caller, or a
 * second cancel. `failed`: the queue has failed too, and then either status is right. */
static void cancel_queue(direct_t* d, int way, bool failed, accrt_driver_list_t* list) {
  outcome_t notice, unused;
  d->table->queue_cancel(d->queue);
  if (way == 1) {
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    assert_int_not_equal(notice.status, ACCRT_OK);
    assert_true(failed || notice.status == ACCRT_ERROR_CANCELLED);
  }
  if (way == 2 && HAS(d, queue_run)) {
    const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &unused);
    const accrt_status_t status = d->table->queue_run(d->queue, list, &submission);
    assert_int_not_equal(status, ACCRT_OK);
    assert_true(failed || status == ACCRT_ERROR_CANCELLED);
  }
  if (way == 3) /* twice is once */
    d->table->queue_cancel(d->queue);
}

/* A queue is reset whether it has failed or not: what cancelled it while it had nothing, or only
 * something without a number, is over too. One reset ends a failure and a cancel. */
static void test_resets_end_every_cancelling(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  accrt_driver_list_t* list = direct_list(d, &good, 1, 0, 0);
  for (int turn = 0; turn < 16; ++turn) {
    outcome_t notice, unused, outcome;
    const bool failed = turn >= 8;
    if (failed)
      fail_queue(d);
    direct_forget_calls();
    cancel_queue(d, turn % 4, failed, list);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    assert_int_equal(notice.status, ACCRT_OK);
    if (turn % 8 < 4)
      direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &outcome);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 1);
    if (HAS(d, queue_run)) {
      const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &unused);
      assert_int_equal(run_when_idle(d, d->queue, list, &submission), ACCRT_OK);
      assert_int_equal(direct_seen.calls, 2);
    }
  }
  d->table->list_destroy(list);
}

/* ---- What runs at the same time ---- */

typedef struct secret {
  gate_t* gate;
  const char* wrong; /* the first thing that was not this workgroup's alone */
} secret_t;

typedef struct private_block {
  secret_t* secret;
  uint64_t number;
  uint64_t code;
  uint64_t unused[5];
} private_block_t;
_Static_assert(sizeof(private_block_t) == 64, "one block");

/* Writes all that is its own, waits, and looks whether it is there. */
static int32_t stay_private(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  private_block_t block;
  memcpy(&block, dispatch->params, sizeof block);
  volatile unsigned char* local = workgroup->local_memory;
  const uint64_t size_bytes = workgroup->local_memory_size_bytes;
  for (uint64_t i = 0; i < size_bytes; ++i)
    local[i] = (unsigned char)(block.number * 29 + i);
  char words[32];
  snprintf(words, sizeof words, "number %" PRIu64, block.number);
  memcpy(workgroup->message, words, strlen(words) + 1);
  gate_t* gate = block.secret->gate;
  const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 2;
  atomic_fetch_add(&gate->inside, 1);
  while (!atomic_load(&gate->is_open) && cts_now_ns() < deadline)
    cts_sleep_ms(0);
  const char** wrong = &block.secret->wrong;
  for (uint64_t i = 0; i < size_bytes; ++i) {
    if (local[i] != (unsigned char)(block.number * 29 + i))
      *wrong = "local memory is another workgroup's too";
  }
  if (memcmp(dispatch->params, &block, sizeof block) != 0)
    *wrong = "a block changes while a kernel runs";
  if (strcmp(workgroup->message, words) != 0)
    *wrong = "the place for a message is another workgroup's too";
  return (int32_t)block.code;
}

#define PRIVATE(field, local_)                                                                     \
  static const accrt_kernel_def_t field##_def = {.struct_size = (uint32_t)sizeof field##_def,      \
                                                 .name = "direct." #field,                         \
                                                 .entry = stay_private,                            \
                                                 .params_size_bytes = sizeof(private_block_t),     \
                                                 .local_memory_size_bytes = local_};               \
  static const accrt_driver_kernel_t field = {&field##_def, &direct_environment, NULL};
PRIVATE(private_little, 64)
PRIVATE(private_page, 4096)
PRIVATE(private_much, 200000)

enum { ALONE, LISTED, ON_CALLER, LAUNCHED };

/* Somebody who runs one kernel in one way, on a thread. */
typedef struct actor {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  accrt_driver_list_t* list;
  accrt_driver_launch_t* launch;
  accrt_driver_command_t command;
  _Alignas(16) private_block_t block;
  secret_t secret;
  gate_t gate;
  int way;
  accrt_status_t status;
  char message[sizeof(((accrt_error_t*)NULL)->message)];
  outcome_t outcome;
  atomic_bool has_ended;
  pthread_t thread;
} actor_t;

static void take_failure(actor_t* self) {
  if (self->status != ACCRT_OK)
    memcpy(self->message, direct_failure.message, sizeof self->message);
}

static void* act(void* user) {
  actor_t* self = user;
  direct_t* d = self->bench;
  accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &self->outcome);
  direct_forget_failure();
  if (self->way == ON_CALLER) {
    self->status = d->table->queue_run(self->queue, self->list, &submission);
    take_failure(self);
  } else if (self->way == LAUNCHED) {
    static const uint32_t grid[3] = {1, 1, 1};
    self->status =
        d->table->queue_launch(self->queue, self->launch, grid, &self->block, submission.number);
    if (self->status == ACCRT_OK)
      self->status = d->table->queue_wait(self->queue, submission.number, direct_patience_ns(),
                                          ACCRT_WAIT_BLOCK);
    take_failure(self);
  } else {
    self->status = self->way == ALONE
                       ? d->table->queue_enqueue(self->queue, &self->command, &submission)
                       : d->table->queue_execute(self->queue, self->list, &submission);
    const uint64_t deadline = cts_now_ns() + direct_patience_ns();
    while (self->status == ACCRT_OK && !has_ended(&self->outcome)) {
      cts_sleep_ms(0);
      if (cts_now_ns() > deadline)
        self->status = ACCRT_ERROR_TIMEOUT;
    }
    if (self->status == ACCRT_OK) {
      self->status = self->outcome.status;
      memcpy(self->message, self->outcome.error.message, sizeof self->message);
    }
  }
  atomic_store(&self->has_ended, true);
  return NULL;
}

static void begin_actor(actor_t* self, direct_t* d, accrt_driver_device_t* device, int way,
                        const accrt_driver_kernel_t* kernel, uint64_t number, bool fails) {
  memset(self, 0, sizeof *self);
  self->bench = d;
  self->way = way;
  self->secret.gate = &self->gate;
  self->block = (private_block_t){&self->secret, number, fails ? number : 0, {0}};
  self->command = direct_dispatch(d, kernel, &self->block, sizeof self->block);
  const accrt_driver_list_info_t info = {
      .struct_size = (uint32_t)sizeof info, .command_count = 1, .commands = &self->command};
  assert_int_equal(d->table->queue_create(device, 0, &self->queue), ACCRT_OK);
  assert_int_equal(d->table->list_create(device, &info, &self->list), ACCRT_OK);
  if (way == LAUNCHED)
    assert_int_equal(d->table->launch_create(device, kernel, &self->launch), ACCRT_OK);
}

static void start_actor(actor_t* self) {
  assert_int_equal(pthread_create(&self->thread, NULL, act, self), 0);
}

static void end_actor(actor_t* self) {
  pthread_join(self->thread, NULL);
  const accrt_driver_table_t* table = self->bench->table;
  if (self->launch != NULL)
    table->launch_destroy(self->launch);
  table->list_destroy(self->list);
  table->queue_destroy(self->queue);
  if (self->secret.wrong != NULL)
    fail_msg("%s (ways %d)", self->secret.wrong, self->way);
  if (self->block.code == 0) {
    assert_int_equal(self->status, ACCRT_OK);
    return;
  }
  char words[32];
  snprintf(words, sizeof words, "number %" PRIu64, self->block.number);
  assert_int_equal(self->status, ACCRT_ERROR_KERNEL);
  assert_non_null(strstr(self->message, words));
}

static bool has_way(const direct_t* d, int way) {
  return (way != ON_CALLER || HAS(d, queue_run)) && (way != LAUNCHED || HAS(d, launch_create));
}

/* While one kernel is held up inside, another one comes and goes, where the driver lets it. */
static void run_both(direct_t* d, accrt_driver_device_t* devices[2], const int ways[2],
                     const accrt_driver_kernel_t* kernel, uint64_t number, uint64_t patience_ns) {
  static actor_t actors[2];
  for (int i = 0; i < 2; ++i)
    begin_actor(&actors[i], d, devices[i], ways[i], kernel, number + (uint64_t)i,
                (number >> i & 2) != 0);
  start_actor(&actors[0]);
  await_inside(&actors[0].gate);
  let_go(&actors[1].gate);
  start_actor(&actors[1]);
  const uint64_t deadline = cts_now_ns() + patience_ns;
  while (!atomic_load(&actors[1].has_ended) && cts_now_ns() < deadline)
    cts_sleep_ms(0);
  let_go(&actors[0].gate);
  for (int i = 0; i < 2; ++i)
    end_actor(&actors[i]);
}

/* Queues, devices, drivers and callers that work at the same time have local memory, blocks and
 * messages of their own. */
static void test_what_runs_at_once_shares_nothing(void** state) {
  direct_t* d = *state;
  if (!runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_t* driver = NULL;
  accrt_driver_device_t* devices[3] = {d->device, NULL, NULL};
  if (d->table->device_count(d->driver) > 1)
    assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &devices[1]),
                     ACCRT_OK);
  assert_int_equal(d->table->open(&d->environment, &driver), ACCRT_OK);
  assert_true(d->table->device_count(driver) != 0);
  assert_int_equal(d->table->device_open(driver, d->index, &devices[2]), ACCRT_OK);
  static const accrt_driver_kernel_t* const kernels[] = {&private_little, &private_page,
                                                         &private_much};
  static const int pairs[][2] = {{ALONE, ALONE},       {LISTED, LISTED},     {ON_CALLER, ALONE},
                                 {ALONE, ON_CALLER},   {LISTED, ON_CALLER},  {ON_CALLER, ON_CALLER},
                                 {LAUNCHED, LAUNCHED}, {LAUNCHED, ON_CALLER}};
  uint64_t number = 1;
  for (int place = 0; place < 3; ++place) {
    if (devices[place] == NULL)
      continue;
    accrt_driver_device_t* both[2] = {d->device, devices[place]};
    /* Queues of one device may have to wait for one another. */
    const uint64_t patience_ns = place == 0 ? 10 * MILLISECOND : direct_patience_ns() / 8;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
      if (!has_way(d, pairs[i][0]) || !has_way(d, pairs[i][1]))
        continue;
      for (int size = 0; size < 3; ++size)
        run_both(d, both, pairs[i], kernels[size], number++, patience_ns);
    }
  }
  d->table->device_close(devices[2]);
  d->table->close(driver);
  if (devices[1] != NULL)
    d->table->device_close(devices[1]);
}

/* ---- Numbers ---- */

#define MOST_GATES 6u
#define PIECES 40u
/* A queue with gates in it, and numbers with gaps. */
typedef struct gapped {
  gate_t gates[MOST_GATES];
  outcome_t outcomes[MOST_GATES];
  uint64_t gate_numbers[MOST_GATES + 1]; /* and one above all */
  uint64_t numbers[PIECES];
  uint32_t count, gate_count;
} gapped_t;

static void enqueue_gapped(direct_t* d, gapped_t* self, accrt_driver_queue_t* queue,
                           accrt_driver_list_t* list, uint64_t* random) {
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  memset(self, 0, sizeof *self);
  for (; self->count < PIECES; ++self->count) {
    atomic_fetch_add(&d->number, cts_random(random) % 7);
    accrt_driver_submission_t quiet = {.struct_size = (uint32_t)sizeof quiet};
    const uint64_t kind = cts_random(random) % 8;
    if (self->count == 0 || (kind == 0 && self->gate_count < MOST_GATES)) {
      const uint64_t block[8] = {(uint64_t)(uintptr_t)&self->gates[self->gate_count]};
      const accrt_driver_command_t gate = direct_dispatch(d, &direct_gate, block, sizeof block);
      outcome_t* outcome = &self->outcomes[self->gate_count];
      direct_enqueue(d, queue, &gate, NULL, 0, NULL, 0, outcome);
      self->gate_numbers[self->gate_count++] = outcome->number;
      self->numbers[self->count] = outcome->number;
      continue;
    }
    quiet.number = next_number(d);
    self->numbers[self->count] = quiet.number;
    assert_int_equal(kind % 2 == 0 ? d->table->queue_enqueue(queue, &marker, &quiet)
                                   : d->table->queue_execute(queue, list, &quiet),
                     ACCRT_OK);
    if (kind == 7) /* without a number */
      assert_int_equal(d->table->queue_notify(queue, (accrt_driver_completion_t){NULL, NULL}),
                       ACCRT_OK);
  }
  self->gate_numbers[self->gate_count] = atomic_load(&d->number) + 8;
}

/* A thread that waits for a number. */
typedef struct number_waiter {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  uint64_t number;
  accrt_status_t status;
  atomic_bool has_ended;
  pthread_t thread;
} number_waiter_t;

static void* wait_for_number(void* user) {
  number_waiter_t* self = user;
  self->status = self->bench->table->queue_wait(self->queue, self->number, direct_patience_ns(),
                                                (uint32_t)(self->number % 3));
  atomic_store(&self->has_ended, true);
  return NULL;
}

/* Waits for numbers below the one at which the queue is held, those that nothing has among them. */
static void check_numbers(direct_t* d, const gapped_t* self, accrt_driver_queue_t* queue,
                          uint64_t first, uint64_t held, uint64_t* random) {
  for (int i = 0; i < 12; ++i) {
    const uint64_t below = first + cts_random(random) % (held - first);
    const uint64_t above = held + cts_random(random) % 40;
    wait_for(d, queue, below);
    assert_true(ask(d, queue) < held);
    for (uint32_t k = 0; k < self->count; ++k)
      assert_true(self->numbers[k] > below || ask(d, queue) >= self->numbers[k]);
    if (held == self->gate_numbers[self->gate_count])
      continue; /* no gate is left */
    assert_int_equal(d->table->queue_wait(queue, above, 0, ACCRT_WAIT_BLOCK), ACCRT_ERROR_TIMEOUT);
  }
}

/* A wait is for the submissions up to its number: where nothing has it, for none behind it. */
static void test_waits_are_for_numbers_in_gaps_too(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_wait) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  uint64_t random = cts_seed();
  accrt_driver_list_t* list = direct_list(d, NULL, 0, 0, 0);
  static gapped_t work;
  static number_waiter_t waiter;
  static const uint64_t bases[] = {0, UINT32_MAX - 50, UINT64_C(1) << 40, INT64_MAX - 50};
  for (int turn = 0; turn < 12; ++turn) {
    accrt_driver_queue_t* queue = make_queue(d);
    if (atomic_load(&d->number) < bases[turn / 3])
      atomic_store(&d->number, bases[turn / 3]);
    const uint64_t start = atomic_load(&d->number);
    enqueue_gapped(d, &work, queue, list, &random);
    check_numbers(d, &work, queue, start, work.gate_numbers[0], &random);
    for (uint32_t i = 0; i < work.gate_count; ++i) {
      const uint64_t from = work.gate_numbers[i], to = work.gate_numbers[i + 1];
      waiter = (number_waiter_t){
          .bench = d, .queue = queue, .number = from + cts_random(&random) % (to - from)};
      assert_int_equal(pthread_create(&waiter.thread, NULL, wait_for_number, &waiter), 0);
      cts_sleep_ms(i % 2);
      let_go(&work.gates[i]);
      const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 4;
      while (!atomic_load(&waiter.has_ended)) {
        if (cts_now_ns() > deadline)
          fail_msg("a wait for %" PRIu64 " is for %" PRIu64, waiter.number, to);
        cts_sleep_ms(0);
      }
      pthread_join(waiter.thread, NULL);
      assert_int_equal(waiter.status, ACCRT_OK);
      check_numbers(d, &work, queue, from, to, &random);
    }
    for (uint32_t i = 0; i < work.gate_count; ++i) {
      direct_await(d, &work.outcomes[i]);
      assert_false(atomic_load(&work.gates[i].gave_up));
    }
    d->table->queue_destroy(queue);
  }
  d->table->list_destroy(list);
}

/* Failures and resets in a row: the number beside a failure is never above what succeeded before
 * work that did not. */
static void test_progress_tells_what_succeeded_each_time(void** state) {
  direct_t* d = *state;
  mishap_t mishap;
  if (!HAS(d, queue_progress) || !direct_make_mishap(d, &mishap)) {
    d->is_skipped = true;
    return;
  }
  uint64_t random = cts_seed();
  for (int queues = 0; queues < 4; ++queues) {
    accrt_driver_queue_t* queue = make_queue(d);
    uint64_t succeeded = 0, first_bad = 0; /* the first behind it that did not */
    for (int turn = 0; turn < 20; ++turn) {
      const uint64_t before = cts_random(&random) % 3, behind = cts_random(&random) % 3;
      uint64_t last = 0;
      for (uint64_t i = 0; i < before; ++i) {
        last = succeeded = direct_do_well(d, queue, &mishap);
        first_bad = 0;
        atomic_fetch_add(&d->number, cts_random(&random) % 3);
      }
      last = direct_do_badly(d, queue, &mishap);
      first_bad = first_bad == 0 ? last : first_bad;
      for (uint64_t i = 0; i < behind; ++i)
        last = direct_do_behind(d, queue, &mishap, last);
      assert_int_equal(d->table->queue_wait(queue, last, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                       ACCRT_ERROR_KERNEL);
      for (int again = 0; again < 2; ++again) {
        uint64_t number = UINT64_MAX;
        assert_int_equal(d->table->queue_progress(queue, &number), ACCRT_ERROR_KERNEL);
        assert_true(number >= succeeded);
        assert_true(number < first_bad);
      }
      assert_int_equal(d->table->queue_reset(queue), ACCRT_OK);
      assert_true(ask(d, queue) >= last); /* all have ended */
      atomic_fetch_add(&d->number, cts_random(&random) % 3);
    }
    d->table->queue_destroy(queue);
  }
  direct_end_mishap(d, &mishap);
}

/* ---- Ends in the middle ---- */

typedef struct midway_block {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  uint64_t at; /* the workgroup that cancels the queue, or fails */
  uint64_t fails;
} midway_block_t;

static int32_t stop_midway(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const midway_block_t* block = dispatch->params;
  ++direct_seen.calls; /* serial: one at a time */
  if (workgroup->workgroup_id[0] != block->at)
    return 0;
  if (block->fails)
    return 3;
  block->bench->table->queue_cancel(block->queue);
  return 0;
}
static const accrt_kernel_def_t stop_midway_def = {.struct_size = (uint32_t)sizeof stop_midway_def,
                                                   .traits = ACCRT_KERNEL_TRAIT_SERIAL,
                                                   .name = "direct.stop_midway",
                                                   .entry = stop_midway,
                                                   .params_size_bytes = sizeof(midway_block_t),
                                                   .local_memory_size_bytes = 3000};
static const accrt_driver_kernel_t stop_midway_kernel = {&stop_midway_def, &direct_environment,
                                                         NULL};

/* Whichever workgroup fails or cancels the queue, none begins behind it; nothing of what the kernel
 * was given stays, the caller's thread is as it was, and what is traced does not say that all was
 * well. */
static void test_kernels_end_at_any_workgroup(void** state) {
  direct_t* d = *state;
  for (uint64_t turn = 0; turn < 32; ++turn) {
    const bool fails = turn % 2 == 0, on_caller = turn / 2 % 2 == 1;
    if ((!fails && !HAS(d, queue_cancel)) || (on_caller && !HAS(d, queue_run)))
      continue;
    accrt_driver_queue_t* queue = make_queue(d);
    const midway_block_t block = {d, queue, turn / 4, fails};
    const accrt_status_t wanted = fails ? ACCRT_ERROR_KERNEL : ACCRT_ERROR_CANCELLED;
    accrt_driver_command_t command = direct_dispatch(d, &stop_midway_kernel, &block, sizeof block);
    command.as.dispatch.grid[0] = direct_constant(12);
    accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
    accrt_driver_list_t* empty = direct_list(d, NULL, 0, 0, 0);
    outcome_t outcome;
    const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &outcome);
    direct_forget_calls();
    atomic_store(&d->trace_count, 0);
    fenv_t before;
    fegetenv(&before);
    direct_spoil_floats();
    accrt_status_t status = ACCRT_OK;
    if (on_caller) {
      status = d->table->queue_run(queue, list, &submission);
    } else {
      status = d->table->queue_enqueue(queue, &command, &submission);
      direct_await(d, &outcome);
    }
    const bool kept = direct_floats_are_spoilt();
    fesetenv(&before);
    assert_true(kept);
    assert_int_equal(on_caller ? status : outcome.status, wanted);
    assert_int_equal(direct_seen.calls, turn / 4 + 1);
    for (uint32_t i = 0; i < atomic_load(&d->trace_count); ++i)
      assert_int_equal(d->traces[i].event.status, wanted);
    if (!fails && HAS(d, queue_run)) /* what has no commands is cancelled too */
      assert_int_equal(d->table->queue_run(queue, empty, &submission), ACCRT_ERROR_CANCELLED);
    assert_int_equal(d->table->queue_reset(queue), ACCRT_OK);
    d->table->list_destroy(list);
    d->table->list_destroy(empty);
    d->table->queue_destroy(queue);
  }
}

/* An event that was reached, and is recorded again on a queue that has failed by then, has that
 * failure; and is well again when it is recorded on a healthy one. */
static void test_records_on_failed_queues_are_new(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_queue_t* other = make_queue(d);
  accrt_driver_event_t* event = make_event(d, 0);
  for (int turn = 0; turn < 3; ++turn) {
    outcome_t failed;
    record_event(d, d->queue, event);
    assert_int_equal(reach(d, event), ACCRT_OK);
    direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &failed);
    direct_await(d, &failed);
    for (int again = 0; again < 2; ++again) {
      record_event(d, d->queue, event);
      assert_int_equal(reach(d, event), ACCRT_ERROR_KERNEL);
      record_event(d, other, event);
      assert_int_equal(reach(d, event), ACCRT_OK);
    }
    record_event(d, d->queue, event);
    assert_int_equal(reach(d, event), ACCRT_ERROR_KERNEL);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
}

const cts_test_t cts_direct_corner_tests[] = {
    CTS_O(test_words_of_kernels_are_theirs, KERNELS),
    CTS_O(test_names_are_text, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_queues_that_wait_are_not_idle, KERNELS),
    CTS_O(test_resets_end_every_cancelling, KERNELS),
    CTS_O(test_what_runs_at_once_shares_nothing, KERNELS),
    CTS_O(test_waits_are_for_numbers_in_gaps_too, KERNELS),
    CTS_O(test_progress_tells_what_succeeded_each_time, CTS_NEEDS_TABLE),
    CTS_O(test_kernels_end_at_any_workgroup, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_records_on_failed_queues_are_new, KERNELS),
    CTS_END};
