/* serve/pool_test.c - pages: in which order they are taken, who holds them,
 * what waits for a step; and the cache over them, which a collision of hashes
 * cannot deceive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/prefix.h"

typedef struct world {
  accsv_pool_t pool;
  accsv_prefix_t prefix;
} world_t;

static int set_up(void** state) {
  static world_t world;
  assert_int_equal(accsv_pool_init(&world.pool, &accsv_allocator_system, 6), ACCRT_OK);
  assert_int_equal(accsv_prefix_init(&world.prefix, &world.pool, 2, 1, true), ACCRT_OK);
  *state = &world;
  return 0;
}
static int tear_down(void** state) {
  world_t* world = *state;
  assert_null(accsv_pool_check(&world->pool));
  assert_null(accsv_prefix_check(&world->prefix));
  accsv_prefix_deinit(&world->prefix);
  accsv_pool_deinit(&world->pool);
  return 0;
}

static void test_order(void** state) {
  world_t* world = *state;
  accsv_pool_t* pool = &world->pool;
  for (int32_t i = 0; i < 6; ++i)
    assert_int_equal(accsv_pool_take(pool), i);
  assert_int_equal(accsv_pool_available(pool), 0);
  const int32_t tokens[] = {1, 2};
  const accsv_chain_t chain =
      accsv_prefix_insert(&world->prefix, ACCSV_CHAIN_EMPTY, 0, NULL, tokens, 0, 3);
  assert_int_equal(chain.block, 3);
  accsv_pool_drop(pool, 3, 0); /* with contents: last */
  accsv_pool_drop(pool, 5, 0);
  accsv_pool_drop(pool, 4, 0); /* without: the latest first */
  assert_int_equal(pool->cached, 1);
  assert_int_equal(accsv_pool_take(pool), 4);
  assert_int_equal(accsv_pool_take(pool), 5);
  assert_int_equal(accsv_prefix_find(&world->prefix, ACCSV_CHAIN_EMPTY, 0, tokens), 3);
  assert_int_equal(accsv_pool_take(pool), 3); /* its contents are gone */
  assert_int_equal(accsv_prefix_find(&world->prefix, ACCSV_CHAIN_EMPTY, 0, tokens), ACCSV_NO_BLOCK);
}

static void test_steps_in_flight(void** state) {
  world_t* world = *state;
  accsv_pool_t* pool = &world->pool;
  const int32_t block = accsv_pool_take(pool);
  const int32_t tokens[] = {1, 2};
  (void)accsv_prefix_insert(&world->prefix, ACCSV_CHAIN_EMPTY, 0, NULL, tokens, 0, block);
  accsv_pool_drop(pool, block, 7);
  assert_int_equal(pool->pending.count, 1);
  assert_int_equal(accsv_pool_available(pool), 5);
  accsv_pool_end_step(pool, 6);
  assert_int_equal(accsv_pool_available(pool), 5);
  accsv_pool_touch(pool, block); /* another one shares it meanwhile */
  accsv_pool_end_step(pool, 7);
  assert_int_equal(accsv_pool_available(pool), 5);
  accsv_pool_drop(pool, block, 7);
  assert_int_equal(accsv_pool_available(pool), 6);
  assert_int_equal(pool->cached, 1);
}

static void test_shared_holds(void** state) {
  world_t* world = *state;
  accsv_pool_t* pool = &world->pool;
  const int32_t block = accsv_pool_take(pool);
  accsv_pool_touch(pool, block);
  accsv_pool_drop(pool, block, 0);
  assert_int_equal(accsv_pool_available(pool), 5);
  accsv_pool_drop(pool, block, 0);
  assert_int_equal(accsv_pool_available(pool), 6);
}

static void test_chains(void** state) {
  world_t* world = *state;
  accsv_prefix_t* prefix = &world->prefix;
  const int32_t tokens[] = {1, 2}, other[] = {1, 3};
  for (int32_t i = 0; i < 4; ++i)
    (void)accsv_pool_take(&world->pool);
  const accsv_chain_t first = accsv_prefix_insert(prefix, ACCSV_CHAIN_EMPTY, 5, NULL, tokens, 0, 0);
  const accsv_chain_t second = accsv_prefix_insert(prefix, first, 5, NULL, tokens, 0, 1);
  assert_int_equal(accsv_prefix_find(prefix, first, 5, tokens), 1);
  assert_int_equal(accsv_prefix_find(prefix, first, 5, other), ACCSV_NO_BLOCK);
  assert_int_equal(accsv_prefix_find(prefix, second, 5, tokens), ACCSV_NO_BLOCK);
  /* Another salt is another prompt. */
  assert_int_equal(accsv_prefix_find(prefix, ACCSV_CHAIN_EMPTY, 6, tokens), ACCSV_NO_BLOCK);
  assert_int_equal(accsv_prefix_find(prefix, ACCSV_CHAIN_EMPTY, 5, tokens), 0);
  /* The same tokens once more: the first block stands for both. */
  assert_int_equal(accsv_prefix_insert(prefix, ACCSV_CHAIN_EMPTY, 5, NULL, tokens, 0, 2).block, 0);
  assert_false(world->pool.blocks[2].keyed);
  /* A parent that was taken away: what followed it is no longer found, and
   * nothing is put in. */
  accsv_pool_drop(&world->pool, 0, 0);
  while (accsv_pool_available(&world->pool) > 0)
    (void)accsv_pool_take(&world->pool);
  assert_int_equal(accsv_prefix_find(prefix, ACCSV_CHAIN_EMPTY, 5, tokens), ACCSV_NO_BLOCK);
  assert_int_equal(accsv_prefix_insert(prefix, first, 5, NULL, other, 0, 3).block, ACCSV_NO_BLOCK);
}

static accsv_chain_t put_in(world_t* world, accsv_chain_t parent, uint64_t salt, int32_t first,
                            int32_t second) {
  const int32_t tokens[] = {first, second};
  const int32_t block = accsv_pool_take(&world->pool);
  return accsv_prefix_insert(&world->prefix, parent, salt, NULL, tokens, 0, block);
}

static int32_t find_part(const world_t* world, accsv_chain_t parent, uint64_t salt, int32_t first,
                         uint32_t* out_shared) {
  const int32_t tokens[] = {first, 77};
  return accsv_prefix_find_part(&world->prefix, parent, salt, tokens, 2, out_shared);
}

static void test_parts(void** state) {
  world_t* world = *state;
  const uint64_t alike = ACCSV_FIRST_LISTS; /* in the same list as salt 0 */
  uint32_t shared;
  world->prefix.step = 1;
  const accsv_chain_t first = put_in(world, ACCSV_CHAIN_EMPTY, 0, 1, 2);
  const accsv_chain_t second = put_in(world, first, 0, 3, 4);
  assert_int_equal(find_part(world, first, 0, 3, &shared), ACCSV_NO_BLOCK); /* of this step */
  world->prefix.step = 2;
  assert_int_equal(find_part(world, first, 0, 3, &shared), second.block);
  assert_int_equal(shared, 1);
  assert_int_equal(find_part(world, first, 0, 5, &shared), ACCSV_NO_BLOCK);
  assert_int_equal(find_part(world, second, 0, 3, &shared), ACCSV_NO_BLOCK);
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, 0, 1, &shared), first.block);
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, alike, 1, &shared), ACCSV_NO_BLOCK);
  const accsv_chain_t salted = put_in(world, ACCSV_CHAIN_EMPTY, alike, 1, 3);
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, alike, 1, &shared), ACCSV_NO_BLOCK);
  world->prefix.step = 3;
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, alike, 1, &shared), salted.block);
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, 0, 1, &shared), first.block);
  /* The last few are known, and a block with other contents is none of them. */
  accsv_pool_drop(&world->pool, second.block, 0);
  while (accsv_pool_available(&world->pool) > 0)
    (void)accsv_pool_take(&world->pool);
  assert_int_equal(find_part(world, first, 0, 3, &shared), ACCSV_NO_BLOCK);
  const int32_t tokens[] = {3, 9};
  const accsv_chain_t again =
      accsv_prefix_insert(&world->prefix, salted, 0, NULL, tokens, 0, second.block);
  world->prefix.step = 4;
  assert_int_equal(find_part(world, first, 0, 3, &shared), ACCSV_NO_BLOCK);
  assert_int_equal(find_part(world, salted, 0, 3, &shared), again.block);
  accsv_prefix_clear(&world->prefix);
  assert_int_equal(find_part(world, ACCSV_CHAIN_EMPTY, 0, 1, &shared), ACCSV_NO_BLOCK);
}

static void test_salts(void** state) {
  world_t* world = *state;
  accsv_prefix_t* prefix = &world->prefix;
  const accrt_allocator_t* allocator = &accsv_allocator_system;
  accsv_salt_t* a = accsv_prefix_intern(prefix, accsv_salt_new(allocator, 0, "a"));
  accsv_salt_t* again = accsv_salt_new(allocator, 0, "a");
  accsv_salt_t* b = accsv_prefix_intern(prefix, accsv_salt_new(allocator, 0, "b"));
  assert_ptr_equal(accsv_prefix_intern(prefix, again), a);
  accsv_salt_free(allocator, again);
  assert_int_not_equal(a->id, b->id);
  const int32_t tokens[] = {1, 2};
  const int32_t block = accsv_pool_take(&world->pool);
  (void)accsv_prefix_insert(prefix, ACCSV_CHAIN_EMPTY, a->id, a, tokens, 0, block);
  const uint64_t id = a->id;
  accsv_prefix_drop_salt(prefix, a);
  accsv_prefix_drop_salt(prefix, a); /* the entry holds it still */
  accsv_prefix_drop_salt(prefix, b);
  a = accsv_prefix_intern(prefix, accsv_salt_new(allocator, 0, "a2"));
  assert_int_not_equal(a->id, id);
  accsv_prefix_drop_salt(prefix, a);
  accsv_prefix_clear(prefix);
  assert_int_equal(accsv_prefix_find(prefix, ACCSV_CHAIN_EMPTY, id, tokens), ACCSV_NO_BLOCK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_steps_in_flight, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_shared_holds, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_chains, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_parts, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_salts, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
