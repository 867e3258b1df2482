/* loader/hostile_damage_test.c - damaged bundles: truncation at every length, flipped bits with and
 * without right digests, random damage. */
#include "loader/hostile_test.h"
#include "tests/random.h"

/* One thread only: what ThreadSanitizer could find is in open_test.c, and here it is slow. */
#if defined(__SANITIZE_THREAD__)
#define STRIDE 31u
#else
#define STRIDE 1u
#endif
/* Memory that ends where a page begins that may not be touched: reading past a file's end is a
 * crash. */
typedef struct guarded {
  unsigned char* mapping;
  size_t size; /* without the guard */
} guarded_t;

static guarded_t make_guarded(size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  guarded_t guarded = {NULL, (size + page - 1) / page * page};
  void* mapping =
      mmap(NULL, guarded.size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(mapping, MAP_FAILED);
  guarded.mapping = mapping;
  assert_int_equal(mprotect(guarded.mapping + guarded.size, page, PROT_NONE), 0);
  return guarded;
}

static void free_guarded(guarded_t* guarded) {
  munmap(guarded->mapping, guarded->size + (size_t)sysconf(_SC_PAGESIZE));
}

static void truncation(void** state) {
  (void)state;
  guarded_t guarded = make_guarded(golden.size);
  for (size_t size = 0; size < golden.size; size += STRIDE) {
    bytes_t file = {guarded.mapping + guarded.size - size, size};
    memcpy(file.data, golden.data, size);
    accrt_bundle_t* bundle;
    assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_ERROR_INVALID_FORMAT);
    assert_int_equal(rule_of_record(), ACCX_RULE_FILE_SIZE);
    /* With the size and the header's digest made right. */
    if (size >= sizeof(accx_header_t) + 22 * sizeof(accx_section_t)) {
      accx_header_t header;
      memcpy(&header, file.data, sizeof header);
      header.file_size_bytes = size;
      memcpy(file.data, &header, sizeof header);
      redo_header_digest(&file);
      assert_int_not_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
    }
  }
  free_guarded(&guarded);
}

/* True when the byte lies in DATA, which is not read at open. */
static bool is_data(size_t at) {
  const accx_section_t* data =
      table_entry(&golden, ((const accx_header_t*)(const void*)golden.data)->section_count - 1);
  return at >= data->offset;
}

static void flipped_bits(void** state) {
  (void)state;
  bytes_t file = copy_bytes(&golden);
  const size_t table_end = sizeof(accx_header_t) + 22 * sizeof(accx_section_t);
  for (size_t at = 0; at < file.size; at += STRIDE) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      /* Every bit of header and table, and one of every other byte. */
      if (at >= table_end && bit != at % 8)
        continue;
      file.data[at] = (unsigned char)(file.data[at] ^ (1u << bit));
      accrt_bundle_t* bundle;
      const accrt_status_t status = open_file(&file, NULL, &bundle);
      if (!is_data(at)) {
        assert_int_not_equal(status, ACCRT_OK);
      } else {
        assert_int_equal(status, ACCRT_OK);
        assert_int_equal(accrt_bundle_verify(bundle), ACCRT_ERROR_DATA_CORRUPT);
        assert_int_equal(rule_of_record(), ACCX_RULE_DATA_DIGEST);
        accrt_bundle_release(bundle);
      }
      file.data[at] = golden.data[at];
    }
  }
  free(file.data);
}

/* Damage that no digest catches: either refused by a rule, or a bundle that can be used. */
static void try_damaged(const bytes_t* file) {
  accrt_bundle_t* bundle;
  if (open_file(file, NULL, &bundle) == ACCRT_OK) {
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  } else {
    assert_int_not_equal(rule_of_record(), 0);
  }
}

static void flip_bits_of(const bytes_t* good) {
  bytes_t file = copy_bytes(good);
  const uint32_t count = ((const accx_header_t*)(const void*)good->data)->section_count;
  for (uint32_t i = 0; i < count; ++i) {
    accx_section_t* section = table_entry(&file, i);
    const accx_section_t saved_section = *section;
    if (section->type == ACCX_SECTION_CHUNK_DIGESTS || section->type >= ACCX_SECTION_CODE)
      continue;
    for (size_t at = section->offset; at < section->offset + section->size_bytes; at += STRIDE) {
      const unsigned char saved = file.data[at];
      const unsigned char values[] = {(unsigned char)(saved ^ (1u << at % 8)), 0xFF};
      for (size_t k = 0; k < sizeof values; ++k) {
        file.data[at] = values[k];
        section->digest = accx_digest_of(file.data + section->offset, (size_t)section->size_bytes);
        redo_header_digest(&file);
        try_damaged(&file);
      }
      file.data[at] = saved;
    }
    *section = saved_section;
  }
  free(file.data);
}

static void flipped_bits_with_right_digests(void** state) {
  (void)state;
  flip_bits_of(&golden);
  flip_bits_of(&golden_0_2);
}

static void random_damage(void** state) {
  (void)state;
  uint64_t random = test_seed();
  static const uint32_t interesting[] = {
      0, 1, 2, 3, 7, 8, 16, 255, 256, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF};
  for (int round = 0; round < (int)(6000 / STRIDE); ++round) {
    parts_t parts = take_apart(test_below(&random, 2) == 0 ? &golden : &golden_0_2);
    for (uint64_t k = test_below(&random, 4) + 1; k > 0; --k) {
      part_t* part = &parts.parts[test_below(&random, parts.count)];
      const size_t at = test_below(&random, part->size_bytes);
      uint32_t value = interesting[test_below(&random, sizeof interesting / sizeof interesting[0])];
      if (test_below(&random, 3) == 0)
        value = (uint32_t)test_below(&random, 64);
      if (test_below(&random, 8) == 0)
        resize_part(part, 1 + test_below(&random, 2 * part->size_bytes));
      if ((at & ~(size_t)3) + 4 <= part->size_bytes)
        memcpy(part->bytes + (at & ~(size_t)3), &value, 4);
    }
    bytes_t file = put_together(&parts);
    try_damaged(&file);
    free(file.data);
    free_parts(&parts);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(truncation),
      cmocka_unit_test(flipped_bits),
      cmocka_unit_test(flipped_bits_with_right_digests),
      cmocka_unit_test(random_damage),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
