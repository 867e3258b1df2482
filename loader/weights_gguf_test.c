/* loader/weights_gguf_test.c - GGUF: what a good file gives, and every rule by a file that breaks
 * it. */
#include "loader/weights_test.h"

/* ---- GGUF ---- */

static void gguf_good(void** state) {
  const fixture_t* f = *state;
  for (uint32_t version = 2; version <= 3; ++version) {
    bytes_t bytes = gguf(version, 3, 6);
    put_pair(&bytes, "general.alignment", ACCRT_METADATA_U32);
    put_u32(&bytes, 64);
    put_pair(&bytes, "name", ACCRT_METADATA_STRING);
    put_text(&bytes, "M\xc3\xbc");
    put_pair(&bytes, "tokens", ACCRT_METADATA_ARRAY);
    put_u32(&bytes, ACCRT_METADATA_STRING);
    put_u64(&bytes, 2);
    put_text(&bytes, "\xff");
    put_text(&bytes, "bb");
    put_pair(&bytes, "half", ACCRT_METADATA_F64);
    put(&bytes, &(double){0.5}, 8);
    put_pair(&bytes, "minus", ACCRT_METADATA_I16);
    put_u16(&bytes, 0xFFFE);
    put_pair(&bytes, "yes", ACCRT_METADATA_BOOL);
    put(&bytes, "\1", 1);
    put_record(&bytes, "q", 2, (const uint64_t[]){256, 3}, 12, 0);
    put_record(&bytes, "empty", 2, (const uint64_t[]){0, 3}, 0, 448);
    put_record(&bytes, "f", 0, NULL, 0, 448);
    align(&bytes, 64);
    const size_t begin = bytes.size;
    put_zeros(&bytes, 448);
    put(&bytes, &(float){2.5f}, 4);
    accrt_weights_t* weights = open_bytes(f, &bytes);
    accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
    assert_int_equal(accrt_weights_info(weights, &info), ACCRT_OK);
    assert_int_equal(info.version, version);
    assert_int_equal(info.metadata_count, 6);
    accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
    assert_int_equal(accrt_weights_tensor(weights, 0, &tensor), ACCRT_OK);
    assert_string_equal(tensor.name, "q");
    assert_string_equal(tensor.type_name, "Q4_K");
    assert_int_equal(tensor.encoding, 19);
    assert_int_equal(tensor.size_bytes, 432);
    assert_int_equal(tensor.shape[0], 3);
    assert_int_equal(tensor.shape[1], 256);
    uint32_t index;
    assert_int_equal(accrt_weights_find(weights, "f", &index), ACCRT_OK);
    accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
    assert_int_equal(accrt_weights_component(weights, index, 0, &place), ACCRT_OK);
    assert_int_equal(place.offset_bytes, begin + 448);
    assert_int_equal(place.dtype, ACCRT_DTYPE_F32);
    const void* data;
    uint64_t size;
    assert_int_equal(accrt_weights_data(weights, index, 0, &data, &size), ACCRT_OK);
    float value;
    memcpy(&value, data, sizeof value);
    assert_true(value == 2.5f);
    accrt_weights_metadata_t meta = ACCRT_WEIGHTS_METADATA_INIT;
    assert_int_equal(accrt_weights_metadata(weights, 1, &meta), ACCRT_OK);
    assert_string_equal(meta.text, "M\xc3\xbc");
    assert_string_equal(meta.key, "name");
    assert_int_equal(accrt_weights_metadata(weights, 2, &meta), ACCRT_OK);
    assert_int_equal(meta.element_type, ACCRT_METADATA_STRING);
    assert_int_equal(meta.count, 2);
    assert_int_equal(meta.size_bytes, 19);
    assert_int_equal(((const unsigned char*)meta.data)[8], 0xFF);
    assert_int_equal(accrt_weights_metadata(weights, 3, &meta), ACCRT_OK);
    assert_true(meta.real == 0.5);
    assert_int_equal(accrt_weights_metadata(weights, 4, &meta), ACCRT_OK);
    assert_int_equal(meta.integer, -2);
    assert_int_equal(accrt_weights_metadata(weights, 5, &meta), ACCRT_OK);
    assert_int_equal(meta.integer, 1);
    accrt_weights_release(weights);
    drop(&bytes);
  }
}

static void gguf_header(void** state) {
  const fixture_t* f = *state;
  bytes_t bad = gguf(1, 0, 0);
  REFUSED(bad, VERSION_MISMATCH, "1");
  bad = gguf(0x03000000, 0, 0);
  REFUSED(bad, VERSION_MISMATCH, "1");
  bad = gguf(3, UINT64_MAX, 0);
  REFUSED(bad, INVALID_FORMAT, "2");
  bad = gguf(3, 0, UINT64_MAX);
  REFUSED(bad, INVALID_FORMAT, "2");
  bad = gguf(3, 1, 0);
  put_zeros(&bad, 24);
  REFUSED(bad, INVALID_FORMAT, "2");
  bad = gguf(3, 0, 0);
  bad.size = 20;
  REFUSED(bad, INVALID_FORMAT, "3");
  bad = gguf(3, 0, 1);
  put_text(&bad, "a_longer_key");
  REFUSED(bad, INVALID_FORMAT, "3");
  for (int i = 0; i < 3; ++i) {
    static const uint64_t sizes[] = {UINT64_MAX, 1000, UINT64_C(1) << 63};
    bad = gguf(3, 0, 1);
    put_u64(&bad, sizes[i]);
    put_zeros(&bad, 32);
    REFUSED(bad, INVALID_FORMAT, "4");
  }
  for (int i = 0; i < 3; ++i) {
    static const char* const keys[] = {"\xff", "\xc3", "\xed\xa0\x80"};
    bad = gguf(3, 0, 1);
    put_pair(&bad, keys[i], ACCRT_METADATA_U64);
    put_u64(&bad, 0);
    REFUSED(bad, INVALID_FORMAT, "4");
  }
  bad = gguf(3, 0, 1);
  put_pair(&bad, "a", ACCRT_METADATA_STRING);
  put_u64(&bad, 2);
  put(&bad, "a\0", 2);
  REFUSED(bad, INVALID_FORMAT, "4");
  bad = gguf(3, 0, 1);
  put_pair(&bad, "", ACCRT_METADATA_U64);
  put_u64(&bad, 0);
  REFUSED(bad, INVALID_FORMAT, "5");
  bad = gguf(3, 0, 3);
  for (int i = 0; i < 3; ++i) {
    put_pair(&bad, i == 1 ? "other" : "same", ACCRT_METADATA_U64);
    put_u64(&bad, 0);
  }
  REFUSED(bad, INVALID_FORMAT, "5");
}

static void gguf_values(void** state) {
  const fixture_t* f = *state;
  bytes_t bad = gguf(3, 0, 1);
  put_pair(&bad, "a", 13);
  put_u64(&bad, 0);
  REFUSED(bad, INVALID_FORMAT, "6");
  for (uint32_t type = 9; type <= 13; type += 4) {
    bad = gguf(3, 0, 1);
    put_pair(&bad, "a", ACCRT_METADATA_ARRAY);
    put_u32(&bad, type);
    put_u64(&bad, 0);
    REFUSED(bad, INVALID_FORMAT, "6");
  }
  for (int i = 0; i < 3; ++i) {
    static const uint64_t counts[] = {UINT64_MAX, UINT64_C(1) << 61, 5};
    bad = gguf(3, 0, 1);
    put_pair(&bad, "a", ACCRT_METADATA_ARRAY);
    put_u32(&bad, ACCRT_METADATA_U64);
    put_u64(&bad, counts[i]);
    put_zeros(&bad, 32);
    REFUSED(bad, INVALID_FORMAT, "7");
  }
  bad = gguf(3, 0, 1);
  put_pair(&bad, "a", ACCRT_METADATA_ARRAY);
  put_u32(&bad, ACCRT_METADATA_STRING);
  put_u64(&bad, UINT64_MAX);
  put_zeros(&bad, 80);
  REFUSED(bad, INVALID_FORMAT, "3");
  bad = gguf(3, 0, 1);
  put_pair(&bad, "a", ACCRT_METADATA_BOOL);
  put(&bad, "\2", 1);
  REFUSED(bad, INVALID_FORMAT, "7");
  for (int i = 0; i < 5; ++i) {
    static const uint32_t alignments[] = {0, 4, 33, 131072, 0x80000001u};
    bad = gguf(3, 0, 1);
    put_pair(&bad, "general.alignment", ACCRT_METADATA_U32);
    put_u32(&bad, alignments[i]);
    REFUSED(bad, INVALID_FORMAT, "8");
  }
  bad = gguf(3, 0, 1);
  put_pair(&bad, "general.alignment", ACCRT_METADATA_U64);
  put_u64(&bad, 32);
  REFUSED(bad, INVALID_FORMAT, "8");
}

static void gguf_tensors(void** state) {
  const fixture_t* f = *state;
  bytes_t bad = one_tensor("", 1, (const uint64_t[]){8}, 0, 0, 32);
  REFUSED(bad, INVALID_FORMAT, "9");
  bad = gguf(3, 2, 0);
  put_record(&bad, "a", 1, (const uint64_t[]){8}, 0, 0);
  put_record(&bad, "a", 1, (const uint64_t[]){8}, 0, 32);
  align(&bad, 32);
  put_zeros(&bad, 64);
  REFUSED(bad, INVALID_FORMAT, "9");
  bad = one_tensor("a", 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0, 32);
  REFUSED(bad, INVALID_FORMAT, "10");
  static const struct {
    uint64_t dims[2];
    uint32_t type;
  } large[] = {{{UINT64_C(1) << 32, UINT64_C(1) << 32}, 0}, /* bytes wrap to 0 */
               {{INT64_MAX, 2}, 24},
               {{UINT64_C(1) << 63, 1}, 24},
               {{UINT64_MAX, 1}, 24},
               {{0, UINT64_C(1) << 63}, 24},
               {{(UINT64_C(1) << 62) - 1, 1}, 0},
               {{UINT64_C(1) << 62, 1}, 12}};
  for (size_t i = 0; i < sizeof large / sizeof large[0]; ++i) {
    bad = one_tensor("a", 2, large[i].dims, large[i].type, 0, 64);
    if (i < 6) {
      REFUSED(bad, INVALID_FORMAT, "10");
    } else {
      REFUSED(bad, INVALID_FORMAT, "14");
    }
  }
  for (int i = 0; i < 4; ++i) {
    static const uint32_t types[] = {4, 9, 42, UINT32_MAX};
    bad = one_tensor("a", 1, (const uint64_t[]){32}, types[i], 0, 64);
    REFUSED(bad, VERSION_MISMATCH, "11");
  }
  bad = one_tensor("a", 2, (const uint64_t[]){128, 2}, 12, 0, 256);
  REFUSED(bad, INVALID_FORMAT, "12");
  bad = one_tensor("a", 0, NULL, 8, 0, 64);
  REFUSED(bad, INVALID_FORMAT, "12");
  bad = one_tensor("a", 1, (const uint64_t[]){8}, 0, 32, 64);
  REFUSED(bad, INVALID_FORMAT, "13");
  bad = gguf(3, 2, 0);
  put_record(&bad, "a", 1, (const uint64_t[]){8}, 0, 0);
  put_record(&bad, "b", 1, (const uint64_t[]){8}, 0, 0); /* the same bytes */
  align(&bad, 32);
  put_zeros(&bad, 64);
  REFUSED(bad, INVALID_FORMAT, "13");
  bad = one_tensor("a", 1, (const uint64_t[]){8}, 0, 0, 31);
  REFUSED(bad, INVALID_FORMAT, "14");
  bad = one_tensor("a", 1, (const uint64_t[]){UINT64_C(1) << 60}, 0, 0, 64);
  REFUSED(bad, INVALID_FORMAT, "14");
  bad = gguf(3, 1, 0); /* the data would begin past the end */
  put_record(&bad, "a", 1, (const uint64_t[]){1}, 24, 0);
  REFUSED(bad, INVALID_FORMAT, "14");
}

/* A header that is longer than the first read, so it is read again. */
static void gguf_long(void** state) {
  const fixture_t* f = *state;
  bytes_t bytes = gguf(3, 30000, 1);
  put_pair(&bytes, "long", ACCRT_METADATA_ARRAY);
  put_u32(&bytes, ACCRT_METADATA_U8);
  put_u64(&bytes, 3 << 20);
  put_zeros(&bytes, 3 << 20);
  for (uint32_t i = 0; i < 30000; ++i) {
    char name[32];
    (void)snprintf(name, sizeof name, "blk.%u.weight", i);
    put_record(&bytes, name, 1, (const uint64_t[]){1}, 0, 32 * (uint64_t)i);
  }
  align(&bytes, 32);
  const size_t begin = bytes.size;
  put_zeros(&bytes, 30000 * 32);
  accrt_weights_t* weights = open_bytes(f, &bytes);
  uint32_t index;
  assert_int_equal(accrt_weights_find(weights, "blk.29999.weight", &index), ACCRT_OK);
  assert_int_equal(index, 29999);
  accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
  assert_int_equal(accrt_weights_component(weights, index, 0, &place), ACCRT_OK);
  assert_int_equal(place.offset_bytes, begin + 29999 * 32);
  accrt_weights_release(weights);
  /* Every prefix of its beginning is refused, and no read passes its end. */
  for (size_t size = 4; size < 200; ++size) {
    bytes_t cut = {NULL, 0, 0};
    put(&cut, bytes.at, size);
    refuse(f, &cut, ACCRT_ERROR_INVALID_FORMAT, "(gguf rule", __LINE__);
  }
  drop(&bytes);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(gguf_good), TEST(gguf_header), TEST(gguf_values), TEST(gguf_tensors), TEST(gguf_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
