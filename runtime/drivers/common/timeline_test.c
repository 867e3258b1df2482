/* Raising a timeline without its lock: who watches is told, also when both come at the same
 * time. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>

#include "accrt/stream.h"
#include "runtime/core/context.h"
#include "runtime/drivers/common/timeline.h"

#define VALUES 20000u

typedef struct noted {
  accrt_watch_t watch; /* first */
  int fired;
} noted_t;

static void note(accrt_watch_t* watch) {
  ((noted_t*)watch)->fired += 1;
}

static void raise_alone(accrt_timeline_t* timeline, uint64_t value) {
  if (!accrt_timeline_advance_alone(timeline, value))
    return;
  accrt_context_enter();
  accrt_timeline_fire(timeline);
  accrt_context_leave();
}

static void test_alone(void** state) {
  (void)state;
  accrt_timeline_t timeline;
  accrt_timeline_init(&timeline, 0);
  assert_false(accrt_timeline_advance_alone(&timeline, 1));
  assert_int_equal(accrt_timeline_value(&timeline), 1);
  noted_t reached = {{.value = 1, .fire = note}, 0}, near = {{.value = 3, .fire = note}, 0},
          far = {{.value = 5, .fire = note}, 0};
  assert_int_equal(accrt_timeline_watch(&timeline, &reached.watch), ACCRT_REACH_REACHED);
  assert_int_equal(accrt_timeline_watch(&timeline, &near.watch), ACCRT_REACH_PENDING);
  assert_int_equal(accrt_timeline_watch(&timeline, &far.watch), ACCRT_REACH_PENDING);
  raise_alone(&timeline, 2);
  assert_int_equal(near.fired, 0);
  raise_alone(&timeline, 3);
  assert_int_equal(near.fired, 1);
  assert_int_equal(far.fired, 0);
  raise_alone(&timeline, 1); /* never back */
  assert_int_equal(accrt_timeline_value(&timeline), 3);
  assert_true(accrt_timeline_unwatch(&timeline, &far.watch));
  assert_false(accrt_timeline_advance_alone(&timeline, 9));
  assert_int_equal(far.fired, 0);
  assert_int_equal(reached.fired, 0);
}

/* Two threads take turns; each raises its own timeline alone and sleeps until the other's follows.
 * A wake-up that is lost is one that this never ends without. */
typedef struct side {
  accrt_timeline_t* own;
  accrt_timeline_t* other;
  bool first;
  int failed;
} side_t;

static void* take_turns(void* argument) {
  side_t* side = argument;
  for (uint64_t value = 1; value <= VALUES; ++value) {
    if (side->first)
      raise_alone(side->own, value);
    const accrt_wait_item_t item = {side->other, value};
    accrt_waiter_watch_t watch;
    const accrt_wait_t wait = {.items = &item,
                               .count = 1,
                               .timeout_ns = ACCRT_TIMEOUT_INFINITE,
                               .policy = ACCRT_WAIT_BLOCK,
                               .watches = &watch};
    uint32_t index;
    side->failed |= accrt_wait(&wait, &index) != ACCRT_REACH_REACHED;
    if (!side->first)
      raise_alone(side->own, value);
  }
  return NULL;
}

static void test_no_wake_up_is_lost(void** state) {
  (void)state;
  accrt_timeline_t timelines[2];
  side_t sides[2];
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) {
    accrt_timeline_init(&timelines[i], 0);
    sides[i] = (side_t){&timelines[i], &timelines[1 - i], i == 0, 0};
  }
  for (int i = 0; i < 2; ++i)
    assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &sides[i]), 0);
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(sides[i].failed, 0);
    assert_int_equal(accrt_timeline_value(&timelines[i]), VALUES);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alone),
      cmocka_unit_test(test_no_wake_up_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
