/* The registry of counters: order, what is refused, no memory, adding and removing from within
 * calls, and threads that read while groups come and go. */
#include "accrt/counters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "runtime/core/test_allocator.h"
#include "tests/random.h"

#define MOST_GROUPS 64u

/* ---- A world: an instance without drivers, and what was visited of it ---- */

typedef struct world {
  test_allocator_t allocator;
  accrt_instance_t* instance;
} world_t;

static world_t* make_world(void) {
  world_t* world = calloc(1, sizeof *world);
  assert_non_null(world);
  const accrt_allocator_t allocator = test_allocator_interface(&world->allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  assert_int_equal(accrt_instance_create(&options, &world->instance), ACCRT_OK);
  return world;
}

static void end_world(world_t* world) {
  accrt_instance_release(world->instance);
  assert_int_equal(atomic_load(&world->allocator.live_count), 0);
  assert_int_equal(atomic_load(&world->allocator.wrong_count), 0);
  free(world);
}

static const char* message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error.message;
}

/* An owner with two numbers. */
typedef struct owner {
  world_t* world;
  uint64_t id;
  double first, second;
  uint32_t reads;
  void (*within)(struct owner* owner); /* called by `read`; may be NULL */
} owner_t;

static const accrt_counter_t two[] = {
    {.name = "test:first", .help = "The first.", .kind = ACCRT_COUNTER_TOTAL},
    {.name = "test:second",
     .help = "The second.",
     .label = "which",
     .label_value = "b",
     .kind = ACCRT_COUNTER_GAUGE}};

static void read_two(void* self, double* values) {
  owner_t* owner = self;
  ++owner->reads;
  assert_true(values[0] == 0 && values[1] == 0);
  values[0] = owner->first;
  values[1] = owner->second;
  if (owner->within != NULL)
    owner->within(owner);
}

static accrt_counter_group_t group_of(owner_t* owner) {
  accrt_counter_group_t group = ACCRT_COUNTER_GROUP_INIT;
  group.name = "test";
  group.self = owner;
  group.counters = two;
  group.counter_count = 2;
  group.counter_size_bytes = (uint32_t)sizeof *two;
  group.read = read_two;
  return group;
}

static void add(world_t* world, owner_t* owner) {
  owner->world = world;
  const accrt_counter_group_t group = group_of(owner);
  assert_int_equal(accrt_counters_add(world->instance, &group, &owner->id), ACCRT_OK);
  assert_true(owner->id != 0);
}

static void take_away(owner_t* owner) {
  assert_int_equal(accrt_counters_remove(owner->world->instance, owner->id), ACCRT_OK);
}

/* The owners that a reading has met, without the runtime's own group. */
typedef struct met {
  owner_t* owners[MOST_GROUPS];
  uint32_t count;
  void (*within)(owner_t* owner); /* called by `visit`; may be NULL */
} met_t;

static void meet(void* user, const accrt_counter_group_t* group, const double* values) {
  met_t* met = user;
  if (strcmp(group->name, "test") != 0)
    return;
  owner_t* owner = group->self;
  assert_true(met->count < MOST_GROUPS);
  met->owners[met->count++] = owner;
  assert_int_equal(group->struct_size, sizeof *group);
  assert_int_equal(group->counter_count, 2);
  assert_ptr_equal(group->counters, two);
  assert_true(values[0] == owner->first && values[1] == owner->second);
  if (met->within != NULL)
    met->within(owner);
}

static met_t read_all(world_t* world, void (*within)(owner_t* owner)) {
  met_t met = {.within = within};
  assert_int_equal(accrt_counters_read(world->instance, meet, &met), ACCRT_OK);
  return met;
}

static void assert_met(const met_t* met, uint32_t count, ...) {
  assert_int_equal(met->count, count);
  va_list owners;
  va_start(owners, count);
  for (uint32_t i = 0; i < count; ++i)
    assert_ptr_equal(met->owners[i], va_arg(owners, owner_t*));
  va_end(owners);
}

/* ---- Order ---- */

static void test_groups_are_visited_in_order(void** state) {
  (void)state;
  world_t* world = make_world();
  owner_t a = {.first = 1, .second = 2}, b = {.first = 3, .second = -0.5}, c = {.first = 5};
  met_t met = read_all(world, NULL);
  assert_met(&met, 0);
  add(world, &a);
  add(world, &b);
  add(world, &c);
  assert_true(a.id < b.id && b.id < c.id);
  met = read_all(world, NULL);
  assert_met(&met, 3, &a, &b, &c);
  take_away(&b);
  b.first = 7;
  met = read_all(world, NULL);
  assert_met(&met, 2, &a, &c);
  add(world, &b);
  met = read_all(world, NULL);
  assert_met(&met, 3, &a, &c, &b);
  assert_int_equal(b.reads, 2);
  take_away(&a);
  assert_int_equal(accrt_counters_remove(world->instance, a.id), ACCRT_ERROR_NOT_FOUND);
  assert_non_null(strstr(message(), "group"));
  assert_int_equal(accrt_counters_remove(world->instance, UINT64_MAX), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(accrt_counters_remove(world->instance, 0), ACCRT_ERROR_NOT_FOUND);
  end_world(world); /* with two groups left */
}

/* ---- Histograms ---- */

static const double bounds[] = {1, 2.5, 10};
static const accrt_counter_t mixed[] = {
    {.name = "test:sizes",
     .help = "Sizes.",
     .bounds = bounds,
     .bound_count = 3,
     .kind = ACCRT_COUNTER_HISTOGRAM},
    {.name = "test:after", .help = "What comes then.", .kind = ACCRT_COUNTER_GAUGE}};

static void read_mixed(void* self, double* values) {
  (void)self;
  for (uint32_t i = 0; i < 6; ++i) {
    assert_true(values[i] == 0);
    values[i] = i + 1;
  }
}

static void see_mixed(void* user, const accrt_counter_group_t* group, const double* values) {
  if (group->self != user)
    return;
  *(uint32_t*)user += 1;
  const accrt_counter_t* sizes = &group->counters[0];
  assert_int_equal(ACCRT_COUNTER_VALUES(sizes), 5); /* four buckets and the sum */
  assert_true(values[4] == 5 && values[ACCRT_COUNTER_VALUES(sizes)] == 6);
  assert_int_equal(ACCRT_COUNTER_VALUES(&group->counters[1]), 1);
}

static void test_histograms_have_buckets_and_a_sum(void** state) {
  (void)state;
  world_t* world = make_world();
  uint32_t seen = 0;
  accrt_counter_group_t group = ACCRT_COUNTER_GROUP_INIT;
  group.name = "mixed";
  group.self = &seen;
  group.counters = mixed;
  group.counter_count = 2;
  group.counter_size_bytes = (uint32_t)sizeof *mixed;
  group.read = read_mixed;
  uint64_t id;
  assert_int_equal(accrt_counters_add(world->instance, &group, &id), ACCRT_OK);
  assert_int_equal(accrt_counters_read(world->instance, see_mixed, &seen), ACCRT_OK);
  assert_int_equal(seen, 1);
  end_world(world);
}

/* ---- What is refused ---- */

static void assert_refused(world_t* world, const accrt_counter_group_t* group, const char* words) {
  uint64_t id = 1;
  assert_int_equal(accrt_counters_add(world->instance, group, &id), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(id, 0);
  if (strstr(message(), words) == NULL)
    fail_msg("'%s' is not in '%s'", words, message());
}

static void refuse_counter(world_t* world, accrt_counter_t counter) {
  const accrt_counter_t table[] = {two[0], counter};
  accrt_counter_group_t group = group_of(NULL);
  group.counters = table;
  assert_refused(world, &group, "counters[1]");
}

static void test_what_is_incomplete_is_refused(void** state) {
  (void)state;
  world_t* world = make_world();
  const accrt_counter_group_t whole = group_of(NULL);
  uint64_t id = 1;
  assert_int_equal(accrt_counters_add(NULL, &whole, &id), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(id, 0);
  assert_int_equal(accrt_counters_add(world->instance, &whole, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_refused(world, NULL, "group is NULL");
  assert_int_equal(accrt_counters_remove(NULL, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_counters_read(NULL, meet, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_counters_read(world->instance, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
#define REFUSE(member, value, words)                                                               \
  do {                                                                                             \
    accrt_counter_group_t group = whole;                                                           \
    group.member = value;                                                                          \
    assert_refused(world, &group, words);                                                          \
  } while (0)
  const accrt_chain_t unknown = {.struct_type = 77, .struct_size = sizeof unknown};
  REFUSE(struct_size, 12, "struct_size");
  REFUSE(next, &unknown, "unknown type");
  REFUSE(name, NULL, "not complete");
  REFUSE(read, NULL, "not complete");
  REFUSE(counters, NULL, "not complete");
  REFUSE(counter_count, 0, "not complete");
  REFUSE(reserved, 1, "not complete");
  REFUSE(counter_size_bytes, 40, "accrt_counter_t");
#undef REFUSE
#define REFUSE(from, member, value)                                                                \
  do {                                                                                             \
    accrt_counter_t counter = from;                                                                \
    counter.member = value;                                                                        \
    refuse_counter(world, counter);                                                                \
  } while (0)
  REFUSE(two[1], name, NULL);
  REFUSE(two[1], help, NULL);
  REFUSE(two[1], label, NULL);
  REFUSE(two[1], label_value, NULL);
  REFUSE(two[1], kind, 0);
  REFUSE(two[1], kind, ACCRT_COUNTER_HISTOGRAM + 1);
  REFUSE(two[1], kind, ACCRT_COUNTER_HISTOGRAM);
  REFUSE(two[1], bounds, bounds);
  REFUSE(two[1], bound_count, 1);
  REFUSE(mixed[0], bounds, NULL);
  REFUSE(mixed[0], bound_count, 0);
  REFUSE(mixed[0], bound_count, UINT32_MAX - 1); /* 2^32 values */
#undef REFUSE
  const met_t met = read_all(world, NULL);
  assert_met(&met, 0);
  end_world(world);
}

static void test_no_memory(void** state) {
  (void)state;
  world_t* world = make_world();
  owner_t a = {.first = 1}, b = {.first = 2};
  add(world, &a);
  const long live = atomic_load(&world->allocator.live_count);
  test_allocator_fail(&world->allocator, 1, 0);
  const accrt_counter_group_t group = group_of(&b);
  assert_int_equal(accrt_counters_add(world->instance, &group, &b.id), ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(b.id, 0);
  assert_int_equal(atomic_load(&world->allocator.live_count), live);
  met_t met = {0};
  for (long n = 1;; ++n) {
    met.count = 0;
    test_allocator_fail(&world->allocator, n, 0);
    const accrt_status_t status = accrt_counters_read(world->instance, meet, &met);
    assert_int_equal(atomic_load(&world->allocator.live_count), live);
    if (status == ACCRT_OK)
      break;
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_met(&met, 0);
  }
  test_allocator_fail(&world->allocator, 0, 0);
  assert_met(&met, 1, &a);
  take_away(&a);
  end_world(world);
}

/* ---- From within calls ---- */

static owner_t other;
static void add_other(owner_t* owner) {
  if (other.id == 0)
    add(owner->world, &other);
}
static void remove_other(owner_t* owner) {
  (void)owner;
  if (other.id != 0)
    take_away(&other);
  other.id = 0;
}
static void remove_itself(owner_t* owner) {
  if (owner->id != 0)
    take_away(owner);
  owner->id = 0;
}
static void read_again(owner_t* owner) {
  owner->within = NULL;
  const met_t met = read_all(owner->world, NULL);
  assert_met(&met, 3, owner - 1, owner, owner + 1);
}
/* The inner reading removes all. Of the group itself two calls are on this thread then, and it ends
 * with the outer one. */
static void read_again_and_remove(owner_t* owner) {
  owner->within = NULL;
  const met_t met = read_all(owner->world, remove_itself);
  assert_met(&met, 3, owner - 1, owner, owner + 1);
  assert_int_equal(accrt_counters_remove(owner->world->instance, owner->id), ACCRT_ERROR_NOT_FOUND);
}

static void test_calls_may_add(void** state) {
  (void)state;
  for (uint32_t by_visit = 0; by_visit < 2; ++by_visit) {
    world_t* world = make_world();
    owner_t a = {.first = 1, .within = by_visit == 0 ? add_other : NULL};
    other = (owner_t){.first = 9};
    add(world, &a);
    const met_t met = read_all(world, by_visit == 0 ? NULL : add_other);
    assert_met(&met, 2, &a, &other); /* what is added is met in the same reading */
    end_world(world);
  }
}

static void test_calls_may_remove_another(void** state) {
  (void)state;
  world_t* world = make_world();
  owner_t a = {.first = 1, .within = remove_other}, b = {.first = 2, .within = remove_other};
  other = (owner_t){.first = 9};
  add(world, &a);
  add(world, &other);
  met_t met = read_all(world, NULL);
  assert_met(&met, 1, &a); /* it went before its turn */
  a.within = NULL;
  add(world, &other);
  add(world, &b);
  met = read_all(world, NULL);
  assert_met(&met, 3, &a, &other, &b); /* and here after it */
  met = read_all(world, NULL);
  assert_met(&met, 2, &a, &b);
  end_world(world);
}

static void test_calls_may_remove_their_group(void** state) {
  (void)state;
  for (uint32_t by_visit = 0; by_visit < 2; ++by_visit) {
    world_t* world = make_world();
    owner_t all[3] = {{.first = 1}, {.first = 2}, {.first = 3}};
    for (uint32_t i = 0; i < 3; ++i)
      add(world, &all[i]);
    if (by_visit == 0)
      all[1].within = remove_itself;
    met_t met = read_all(world, by_visit == 0 ? NULL : remove_itself);
    assert_met(&met, 3, &all[0], &all[1], &all[2]); /* the call that goes on is told of */
    met = read_all(world, NULL);
    if (by_visit == 0)
      assert_met(&met, 2, &all[0], &all[2]);
    else
      assert_met(&met, 0);
    end_world(world);
  }
}

static void test_calls_may_read(void** state) {
  (void)state;
  world_t* world = make_world();
  owner_t all[3] = {{.first = 1}, {.first = 2, .within = read_again}, {.first = 3}};
  for (uint32_t i = 0; i < 3; ++i)
    add(world, &all[i]);
  met_t met = read_all(world, NULL);
  assert_met(&met, 3, &all[0], &all[1], &all[2]);
  assert_int_equal(all[1].reads, 2);
  all[1].within = read_again_and_remove;
  met = read_all(world, NULL);
  assert_met(&met, 2, &all[0], &all[1]);
  met = read_all(world, NULL);
  assert_met(&met, 0);
  end_world(world);
}

/* ---- Threads ---- */

/* A call that waits until it is let go. */
typedef struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool entered, open, removed;
  world_t* world;
  uint64_t id;
} gate_t;

static void set(gate_t* gate, bool* what) {
  pthread_mutex_lock(&gate->lock);
  *what = true;
  pthread_cond_broadcast(&gate->changed);
  pthread_mutex_unlock(&gate->lock);
}
static void wait_for(gate_t* gate, const bool* what) {
  pthread_mutex_lock(&gate->lock);
  while (!*what)
    pthread_cond_wait(&gate->changed, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

static void read_gate(void* self, double* values) {
  gate_t* gate = self;
  set(gate, &gate->entered);
  wait_for(gate, &gate->open);
  pthread_mutex_lock(&gate->lock);
  assert_false(gate->removed);
  pthread_mutex_unlock(&gate->lock);
  values[0] = 1;
}

static void ignore(void* user, const accrt_counter_group_t* group, const double* values) {
  (void)user;
  (void)group;
  (void)values;
}

static void* read_once(void* user) {
  gate_t* gate = user;
  assert_int_equal(accrt_counters_read(gate->world->instance, ignore, NULL), ACCRT_OK);
  return NULL;
}

static void* remove_gate(void* user) {
  gate_t* gate = user;
  assert_int_equal(accrt_counters_remove(gate->world->instance, gate->id), ACCRT_OK);
  set(gate, &gate->removed);
  return NULL;
}

static void test_remove_waits_for_calls(void** state) {
  (void)state;
  world_t* world = make_world();
  gate_t gate = {
      .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .world = world};
  accrt_counter_group_t group = group_of(NULL);
  group.self = &gate;
  group.read = read_gate;
  assert_int_equal(accrt_counters_add(world->instance, &group, &gate.id), ACCRT_OK);
  pthread_t reader, remover;
  assert_int_equal(pthread_create(&reader, NULL, read_once, &gate), 0);
  wait_for(&gate, &gate.entered);
  assert_int_equal(pthread_create(&remover, NULL, remove_gate, &gate), 0);
  owner_t a = {.first = 1};
  add(world, &a);
  for (uint32_t i = 0; i < 1000; ++i) {
    pthread_mutex_lock(&gate.lock);
    assert_false(gate.removed); /* the call goes on */
    pthread_mutex_unlock(&gate.lock);
    sched_yield();
  }
  set(&gate, &gate.open);
  assert_int_equal(pthread_join(reader, NULL), 0);
  assert_int_equal(pthread_join(remover, NULL), 0);
  assert_true(gate.removed);
  const met_t met = read_all(world, NULL);
  assert_met(&met, 1, &a);
  end_world(world);
}

/* Owners come and go while others read. After the removal nobody calls: the owner's memory is gone
 * then, which the sanitizers see. */
typedef struct crowd {
  world_t* world;
  atomic_bool ends;
  uint64_t seed;
} crowd_t;

static void check_crowd(void* user, const accrt_counter_group_t* group, const double* values) {
  (void)user;
  if (strcmp(group->name, "test") == 0)
    assert_true(values[1] == -values[0]);
}

static void* read_for_long(void* user) {
  crowd_t* crowd = user;
  while (!atomic_load(&crowd->ends))
    assert_int_equal(accrt_counters_read(crowd->world->instance, check_crowd, NULL), ACCRT_OK);
  return NULL;
}

static void read_pair(void* self, double* values) {
  const owner_t* owner = self;
  values[0] = owner->first;
  values[1] = owner->second;
}

static void* come_and_go(void* user) {
  crowd_t* crowd = user;
  uint64_t random = crowd->seed;
  owner_t* owners[4] = {NULL};
  for (uint32_t i = 0; i < 600; ++i) {
    const uint64_t which = test_below(&random, 4);
    owner_t* owner = owners[which];
    owners[which] = NULL;
    if (owner != NULL) {
      take_away(owner);
      free(owner);
      continue;
    }
    owner = calloc(1, sizeof *owner);
    assert_non_null(owner);
    owner->world = crowd->world;
    owner->first = (double)(i + 1);
    owner->second = -owner->first;
    accrt_counter_group_t group = group_of(owner);
    group.read = read_pair;
    assert_int_equal(accrt_counters_add(crowd->world->instance, &group, &owner->id), ACCRT_OK);
    owners[which] = owner;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    if (owners[i] != NULL)
      take_away(owners[i]);
    free(owners[i]);
  }
  return NULL;
}

static void test_groups_come_and_go_while_others_read(void** state) {
  (void)state;
  world_t* world = make_world();
  const uint64_t seed = test_seed();
  crowd_t readers = {.world = world},
          owners[2] = {{.world = world, .seed = seed}, {.world = world, .seed = seed + 1}};
  atomic_init(&readers.ends, false);
  pthread_t threads[4];
  for (uint32_t i = 0; i < 2; ++i) {
    assert_int_equal(pthread_create(&threads[i], NULL, read_for_long, &readers), 0);
    assert_int_equal(pthread_create(&threads[2 + i], NULL, come_and_go, &owners[i]), 0);
  }
  for (uint32_t i = 2; i < 4; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  atomic_store(&readers.ends, true);
  for (uint32_t i = 0; i < 2; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  const met_t met = read_all(world, NULL);
  assert_met(&met, 0);
  end_world(world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_groups_are_visited_in_order),
      cmocka_unit_test(test_histograms_have_buckets_and_a_sum),
      cmocka_unit_test(test_what_is_incomplete_is_refused),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_calls_may_add),
      cmocka_unit_test(test_calls_may_remove_another),
      cmocka_unit_test(test_calls_may_remove_their_group),
      cmocka_unit_test(test_calls_may_read),
      cmocka_unit_test(test_remove_waits_for_calls),
      cmocka_unit_test(test_groups_come_and_go_while_others_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
