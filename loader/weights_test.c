/* loader/weights_test.c - sources of weights: safetensors, sets of files, callbacks, memory
 * that runs out; what a good file gives, and every rule by a file that breaks it. Files that
 * the formats' own packages made are in tests/weights (tests/python/test_weights.py). */
#include "loader/weights_test.h"

#define BAD(header, data_bytes, wanted, rule)                                                      \
  do {                                                                                             \
    bytes_t bad = safetensors((header), (data_bytes));                                             \
    refuse(f, &bad, ACCRT_ERROR_##wanted, "(safetensors rule " rule ")", __LINE__);                \
  } while (0)
#define FIELDS(dtype, shape, begin, end)                                                           \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define ONE(dtype, shape, begin, end) "{\"a\":" FIELDS(dtype, shape, begin, end) "}"

static void safetensors_good(void** state) {
  const fixture_t* f = *state;
  bytes_t bytes = safetensors(
      "{\"__metadata__\":{\"format\":\"pt\",\"k\\u00e9y\":\"\\ud83d\\ude00\"},"
      "\"b\\n\":" FIELDS("BF16", "[2, 3]", "4", "16") ",\"a\":" FIELDS(
          "F32", "[]", "0", "4") ",\"none\":" FIELDS("I64", "[0,7]", "16",
                                                     "16") ",\"x\":" FIELDS("F4", "[2,3]", "16",
                                                                            "19") "}  \n",
      19);
  accrt_weights_t* weights = open_bytes(f, &bytes);
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  assert_int_equal(accrt_weights_info(weights, &info), ACCRT_OK);
  assert_int_equal(info.kind, ACCRT_WEIGHTS_KIND_SAFETENSORS);
  assert_int_equal(info.tensor_count, 4);
  assert_int_equal(info.data_size_bytes, 19);
  assert_int_equal(info.size_bytes, bytes.size);
  uint32_t index;
  assert_int_equal(accrt_weights_find(weights, "b\n", &index), ACCRT_OK);
  accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
  assert_int_equal(accrt_weights_tensor(weights, index, &tensor), ACCRT_OK);
  assert_string_equal(tensor.type_name, "BF16");
  assert_int_equal(tensor.dtype, ACCRT_DTYPE_BF16);
  assert_int_equal(tensor.rank, 2);
  assert_int_equal(tensor.shape[1], 3);
  const void* data;
  uint64_t size;
  assert_int_equal(accrt_weights_data(weights, index, 0, &data, &size), ACCRT_OK);
  assert_int_equal(size, 12);
  assert_int_equal(*(const unsigned char*)data, 4);
  unsigned char part[3];
  assert_int_equal(accrt_weights_read(weights, index, 0, 2, part, 3), ACCRT_OK);
  assert_int_equal(part[0], 6);
  expect(accrt_weights_read(weights, index, 0, 10, part, 3), ACCRT_ERROR_OUT_OF_RANGE, "12 bytes",
         __LINE__);
  expect(accrt_weights_read(weights, index, 0, UINT64_MAX, part, 3), ACCRT_ERROR_OUT_OF_RANGE, "",
         __LINE__);
  accrt_weights_component_t component = ACCRT_WEIGHTS_COMPONENT_INIT;
  assert_int_equal(accrt_weights_component(weights, index, 0, &component), ACCRT_OK);
  assert_int_equal(component.offset_bytes, bytes.size - 15);
  expect(accrt_weights_component(weights, index, 1, &component), ACCRT_ERROR_OUT_OF_RANGE, "",
         __LINE__);
  expect(accrt_weights_find(weights, "nona", &index), ACCRT_ERROR_NOT_FOUND, "'none'", __LINE__);
  expect(accrt_weights_tensor(weights, 4, &tensor), ACCRT_ERROR_OUT_OF_RANGE, "4 of 4", __LINE__);
  accrt_weights_metadata_t value = ACCRT_WEIGHTS_METADATA_INIT;
  assert_int_equal(accrt_weights_find_metadata(weights, "k\xc3\xa9y", &index), ACCRT_OK);
  assert_int_equal(accrt_weights_metadata(weights, index, &value), ACCRT_OK);
  assert_string_equal(value.text, "\xf0\x9f\x98\x80");
  assert_int_equal(value.size_bytes, 4);
  expect(accrt_weights_find_metadata(weights, "formt", &index), ACCRT_ERROR_NOT_FOUND, "'format'",
         __LINE__);
  assert_ptr_equal(accrt_weights_retain(weights), weights);
  accrt_weights_release(weights);
  accrt_weights_release(weights);
  accrt_weights_release(NULL);
  drop(&bytes);
  bytes = safetensors("{}", 0);
  weights = open_bytes(f, &bytes);
  expect(accrt_weights_find(weights, "a", &index), ACCRT_ERROR_NOT_FOUND, "there is none",
         __LINE__);
  accrt_weights_release(weights);
  drop(&bytes);
}

static void safetensors_header(void** state) {
  const fixture_t* f = *state;
  bytes_t bad = safetensors("{}", 0);
  bad.at[0] = 3;
  refuse(f, &bad, ACCRT_ERROR_INVALID_FORMAT, "(safetensors rule 1)", __LINE__);
  bad = safetensors("{}", 0);
  memset(bad.at, 0xFF, 8);
  refuse(f, &bad, ACCRT_ERROR_INVALID_FORMAT, "(safetensors rule 1)", __LINE__);
  bad = safetensors("{}", 0);
  bad.at[0] = 1;
  refuse(f, &bad, ACCRT_ERROR_INVALID_FORMAT, "(safetensors rule 1)", __LINE__);
  static const char* const texts[] = {
      "{ ",
      "{}x",
      "{\"a\"",
      "{\"a\":",
      "{\"a\":1}",
      "{,}",
      "{\"a\" {}}",
      "{\"__metadata__\":[]}",
      "{\"__metadata__\":{\"a\":1}}",
      "{\"__metadata__\":{\"a\":\"b\",}}",
      "{\"__metadata__\":{\"a\":\"b\" \"c\":\"d\"}}",
      "{\"a",
      "{\"a\\",
      "{\"a\\u12",
      "{\"\\x\":{}}",
      "{\"\\ud800\":{}}",
      "{\"\\ud800\\u0041\":{}}",
      "{\"\\udc00\":{}}",
      "{\"\\u0000\":{}}",
      "{\"\t\":{}}",
      "{\"\xff\":{}}",
      "{\"\xc3",
      "{\"a\":{\"dtype\":1}}",
      "{\"a\":{\"shape\":{}}}",
      "{\"a\":{\"shape\":[-1]}}",
      "{\"a\":{\"shape\":[1.0]}}",
      "{\"a\":{\"shape\":[1e3]}}",
      "{\"a\":{\"shape\":[01]}}",
      "{\"a\":{\"shape\":[1",
      "{\"a\":{\"shape\":[9223372036854775808]}}",
      "{\"a\":{\"shape\":[99999999999999999999]}}",
      "{\"a\":{\"data_offsets\":[1]}}",
      "{\"a\":{\"data_offsets\":[0,0,0]}}",
      "{\"a\":{\"data_offsets\":0}}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i)
    BAD(texts[i], 0, INVALID_FORMAT, "2");
  /* A NUL inside the header ends nothing. */
  bad = safetensors("{}  ", 0);
  bad.at[10] = 0;
  refuse(f, &bad, ACCRT_ERROR_INVALID_FORMAT, "(safetensors rule 2)", __LINE__);
}

static void safetensors_tensors(void** state) {
  const fixture_t* f = *state;
  BAD("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, INVALID_FORMAT, "3");
  BAD("{\"__metadata__\":{},\"__metadata__\":{}}", 0, INVALID_FORMAT, "3");
  BAD("{\"\":" FIELDS("U8", "[]", "0", "1") "}", 1, INVALID_FORMAT, "4");
  BAD("{\"a\":" FIELDS("U8", "[]", "0", "1") ",\"\\u0061\":" FIELDS("U8", "[]", "1", "2") "}", 2,
      INVALID_FORMAT, "4");
  BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, INVALID_FORMAT, "5");
  BAD("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, INVALID_FORMAT, "5");
  BAD("{\"a\":{\"more\":\"U8\"}}", 0, INVALID_FORMAT, "5");
  BAD("{\"a\":{}}", 0, INVALID_FORMAT, "5");
  BAD(ONE("F7", "[]", "0", "1"), 1, VERSION_MISMATCH, "6");
  BAD(ONE("U8", "[1,1,1,1,1,1,1,1,1]", "0", "1"), 1, INVALID_FORMAT, "7");
  BAD(ONE("U8", "[4294967296,4294967296]", "0", "0"), 0, INVALID_FORMAT, "7");
  BAD(ONE("U8", "[4294967296,2147483648]", "0", "0"), 0, INVALID_FORMAT, "7");
  BAD(ONE("U8", "[9223372036854775807,2]", "0", "0"), 0, INVALID_FORMAT, "7");
  BAD(ONE("U8", "[0,9223372036854775807,9223372036854775807]", "0", "0"), 0, INVALID_FORMAT, "7");
  BAD(ONE("F64", "[2305843009213693952]", "0", "0"), 0, INVALID_FORMAT, "7");
  BAD(ONE("U8", "[2]", "0", "2"), 1, INVALID_FORMAT, "8");
  BAD(ONE("U8", "[2]", "2", "0"), 2, INVALID_FORMAT, "8");
  BAD(ONE("U8", "[2]", "0", "9223372036854775807"), 2, INVALID_FORMAT, "8");
  BAD(ONE("F32", "[2]", "0", "4"), 4, INVALID_FORMAT, "9");
  BAD(ONE("F4", "[3]", "0", "1"), 1, INVALID_FORMAT, "9");
  BAD(ONE("F4", "[3]", "0", "2"), 2, INVALID_FORMAT, "9");
  BAD(ONE("F6_E2M3", "[5]", "0", "3"), 3, INVALID_FORMAT, "9");
  BAD(ONE("U8", "[1]", "1", "2"), 2, INVALID_FORMAT, "10");
  BAD(ONE("U8", "[1]", "0", "1"), 2, INVALID_FORMAT, "10");
  BAD("{\"a\":" FIELDS("U8", "[2]", "0", "2") ",\"b\":" FIELDS("U8", "[2]", "1", "3") "}", 3,
      INVALID_FORMAT, "10");
  BAD("{\"b\":" FIELDS("U8", "[1]", "2", "3") ",\"a\":" FIELDS("U8", "[1]", "0", "1") "}", 3,
      INVALID_FORMAT, "10");
  BAD("{}", 1, INVALID_FORMAT, "10");
}

static void safetensors_much_metadata(void** state) {
  const fixture_t* f = *state;
  bytes_t header = {NULL, 0, 0};
  put(&header, "{\"__metadata__\":{", 17);
  for (uint32_t i = 0; i <= ACCX_WEIGHTS_MAX_METADATA; ++i) {
    char text[32];
    put(&header, text, (size_t)snprintf(text, sizeof text, "%s\"%u\":\"\"", i > 0 ? "," : "", i));
  }
  put(&header, "}}", 3);
  BAD((const char*)header.at, 0, INVALID_FORMAT, "3");
  drop(&header);
}
/* ---- Sets ---- */

static void save_bytes(const fixture_t* f, const char* name, bytes_t bytes) {
  save(f, name, bytes.at, bytes.size);
  drop(&bytes);
}

static accrt_status_t open_named(const fixture_t* f, const char* name, uint32_t flags,
                                 accrt_weights_t** weights) {
  char path[256];
  path_of(f, name, path);
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = flags;
  return accrt_weights_open_path(f->instance, path, &options, weights);
}

#define MAP(map)                                                                                   \
  "{\"metadata\":{\"total_size\":1.5e3,\"x\":[true,null,{\"y\":-0}]},\"weight_map\":{" map "}}"
#define BAD_INDEX(text, wanted, rule)                                                              \
  do {                                                                                             \
    save(f, "index.json", (text), strlen(text));                                                   \
    expect(open_named(f, "index.json", 0, &weights), ACCRT_ERROR_##wanted,                         \
           "(index rule " rule ")", __LINE__);                                                     \
  } while (0)

static void write_shards(const fixture_t* f) {
  save_bytes(
      f, "one.safetensors",
      safetensors("{\"__metadata__\":{\"from\":\"one\"},\"a\":" FIELDS("U8", "[2]", "0", "2") "}",
                  2));
  save_bytes(f, "two.safetensors",
             safetensors("{\"__metadata__\":{\"from\":\"two\"},\"b\":" FIELDS(
                             "U8", "[1]", "0", "1") ",\"a\":" FIELDS("U8", "[1]", "1", "2") "}",
                         2));
}

static void index_of_files(void** state) {
  const fixture_t* f = *state;
  accrt_weights_t* weights;
  write_shards(f);
  const char* text = MAP("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"");
  save(f, "model.safetensors.index.json", text, strlen(text));
  /* By the index, and by the folder. */
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(open_named(f, i == 0 ? "model.safetensors.index.json" : "", 0, &weights),
                     ACCRT_OK);
    accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
    assert_int_equal(accrt_weights_info(weights, &info), ACCRT_OK);
    assert_int_equal(info.tensor_count, 2); /* the other 'a' is not named */
    assert_int_equal(info.file_count, 2);
    assert_int_equal(info.metadata_count, 1);
    uint32_t index;
    assert_int_equal(accrt_weights_find(weights, "a", &index), ACCRT_OK);
    accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
    assert_int_equal(accrt_weights_tensor(weights, index, &tensor), ACCRT_OK);
    assert_int_equal(tensor.size_bytes, 2);
    const char* name;
    assert_int_equal(accrt_weights_file(weights, 1, &name), ACCRT_OK);
    assert_non_null(strstr(name, "two.safetensors"));
    accrt_weights_release(weights);
  }
  expect(open_named(f, "model.safetensors.index.json", ACCRT_WEIGHTS_FLAG_ONE_FILE, &weights),
         ACCRT_ERROR_UNSUPPORTED, "by its path", __LINE__);
}

static void index_rules(void** state) {
  const fixture_t* f = *state;
  accrt_weights_t* weights;
  write_shards(f);
  char path[256];
  save(f, "large.json", "{", 1);
  path_of(f, "large.json", path);
  assert_int_equal(truncate(path, ACCX_WEIGHTS_MAX_HEADER_BYTES + 1), 0);
  expect(open_named(f, "large.json", 0, &weights), ACCRT_ERROR_INVALID_FORMAT, "(index rule 1)",
         __LINE__);
  BAD_INDEX("{", INVALID_FORMAT, "2");
  BAD_INDEX("{}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"weight_map\":{}}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{}}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":tru}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":-}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":1.}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":1e}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":[1,]}", INVALID_FORMAT, "2");
  BAD_INDEX("{\"x\":[1}", INVALID_FORMAT, "2");
  BAD_INDEX(MAP("\"a\":1"), INVALID_FORMAT, "2");
  static const char* const names[] = {"../one.safetensors", "/etc/passwd", "..", ".", "", "a/b",
                                      "./one.safetensors"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    char text[256];
    (void)snprintf(text, sizeof text, MAP("\"a\":\"%s\""), names[i]);
    BAD_INDEX(text, INVALID_FORMAT, "3");
  }
  bytes_t many = {NULL, 0, 0};
  put(&many, "{\"weight_map\":{", 15);
  for (uint32_t i = 0; i <= ACCX_WEIGHTS_MAX_FILES; ++i) {
    char text[64];
    put(&many, text,
        (size_t)snprintf(text, sizeof text, "%s\"%u\":\"%u\"", i > 0 ? "," : "", i, i));
  }
  put(&many, "}}", 3);
  BAD_INDEX((const char*)many.at, INVALID_FORMAT, "4");
  drop(&many);
  save_bytes(f, "twice.safetensors", safetensors("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0));
  save(f, "index.json", MAP("\"a\":\"one.safetensors\",\"t\":\"twice.safetensors\""),
       strlen(MAP("\"a\":\"one.safetensors\",\"t\":\"twice.safetensors\"")));
  expect(open_named(f, "index.json", 0, &weights), ACCRT_ERROR_INVALID_FORMAT,
         "(safetensors rule 3)", __LINE__);
  save_bytes(f, "other.gguf", one_tensor("a", 1, (const uint64_t[]){8}, 0, 0, 32));
  BAD_INDEX(MAP("\"a\":\"other.gguf\""), INVALID_FORMAT, "5");
  BAD_INDEX(MAP("\"c\":\"one.safetensors\""), INVALID_FORMAT, "6");
  BAD_INDEX(MAP("\"a\":\"one.safetensors\",\"a\":\"two.safetensors\""), INVALID_FORMAT, "6");
  BAD_INDEX(MAP("\"a\":\"one.safetensors\",\"a\":\"one.safetensors\""), INVALID_FORMAT, "6");
  save(f, "index.json", MAP("\"a\":\"gone\""), strlen(MAP("\"a\":\"gone\"")));
  expect(open_named(f, "index.json", 0, &weights), ACCRT_ERROR_NOT_FOUND, "gone", __LINE__);
  /* An index that names itself is no file of weights; nothing recurses. */
  BAD_INDEX(MAP("\"a\":\"index.json\""), INVALID_FORMAT, "5");
}

static void links(void** state) {
  const fixture_t* f = *state;
  accrt_weights_t* weights;
  char path[256];
  write_shards(f);
  path_of(f, "link.safetensors", path);
  assert_int_equal(symlink("one.safetensors", path), 0);
  const char* text = MAP("\"a\":\"link.safetensors\"");
  save(f, "index.json", text, strlen(text));
  expect(open_named(f, "index.json", 0, &weights), ACCRT_ERROR_PERMISSION_DENIED, "symbolic link",
         __LINE__);
  assert_int_equal(open_named(f, "index.json", ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS, &weights),
                   ACCRT_OK);
  accrt_weights_release(weights);
  /* What the user names may be a link. */
  assert_int_equal(open_named(f, "link.safetensors", 0, &weights), ACCRT_OK);
  accrt_weights_release(weights);
}

static bytes_t part(uint16_t number, uint16_t count, int32_t tensors, const char* name) {
  bytes_t bytes = gguf(3, 1, 3);
  put_pair(&bytes, "split.no", ACCRT_METADATA_U16);
  put_u16(&bytes, number);
  put_pair(&bytes, "split.count", ACCRT_METADATA_U16);
  put_u16(&bytes, count);
  put_pair(&bytes, "split.tensors.count", ACCRT_METADATA_I32);
  put_u32(&bytes, (uint32_t)tensors);
  put_record(&bytes, name, 1, (const uint64_t[]){8}, 0, 0);
  align(&bytes, 32);
  put_zeros(&bytes, 32);
  return bytes;
}

#define BAD_SPLIT(name, rule)                                                                      \
  expect(open_named(f, (name), 0, &weights), ACCRT_ERROR_INVALID_FORMAT, "(gguf rule " rule ")",   \
         __LINE__)

static void split_set(void** state) {
  const fixture_t* f = *state;
  accrt_weights_t* weights;
  save_bytes(f, "m-00001-of-00002.gguf", part(0, 2, 2, "a"));
  save_bytes(f, "m-00002-of-00002.gguf", part(1, 2, 2, "b"));
  static const char* const names[] = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"};
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(open_named(f, names[i], 0, &weights), ACCRT_OK);
    accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
    assert_int_equal(accrt_weights_info(weights, &info), ACCRT_OK);
    assert_int_equal(info.tensor_count, 2);
    assert_int_equal(info.metadata_count, 3);
    accrt_weights_metadata_t value = ACCRT_WEIGHTS_METADATA_INIT;
    assert_int_equal(accrt_weights_metadata(weights, 0, &value), ACCRT_OK);
    assert_int_equal(value.integer, 0); /* of the first part */
    accrt_weights_release(weights);
  }
  assert_int_equal(open_named(f, names[1], ACCRT_WEIGHTS_FLAG_ONE_FILE, &weights), ACCRT_OK);
  accrt_weights_release(weights);
  bytes_t bytes = part(0, 2, 2, "a");
  expect(accrt_weights_open_memory(f->instance, bytes.at, bytes.size, NULL, NULL, NULL, &weights),
         ACCRT_ERROR_UNSUPPORTED, "a part of a split set", __LINE__);
  drop(&bytes);
  save_bytes(f, "renamed.gguf", part(0, 2, 2, "a"));
  BAD_SPLIT("renamed.gguf", "15");
  save_bytes(f, "m-00003-of-00002.gguf", part(2, 2, 2, "a"));
  BAD_SPLIT("m-00003-of-00002.gguf", "15");
  save_bytes(f, "n-00001-of-00002.gguf", part(0, 2, 2, "a"));
  save_bytes(f, "n-00002-of-00002.gguf", part(1, 3, 2, "b"));
  BAD_SPLIT("n-00001-of-00002.gguf", "16");
  save_bytes(f, "n-00002-of-00002.gguf", part(1, 2, 2, "a"));
  BAD_SPLIT("n-00001-of-00002.gguf", "17");
  save_bytes(f, "n-00001-of-00002.gguf", part(0, 2, 3, "a"));
  save_bytes(f, "n-00002-of-00002.gguf", part(1, 2, 3, "b"));
  BAD_SPLIT("n-00001-of-00002.gguf", "17");
  /* A set of one file, as a merged one is, has all tensors and no further part. */
  for (uint16_t count = 0; count < 2; ++count) {
    save_bytes(f, "k-00001-of-00001.gguf", part(0, count, 1, "a"));
    assert_int_equal(open_named(f, "k-00001-of-00001.gguf", 0, &weights), ACCRT_OK);
    accrt_weights_release(weights);
    save_bytes(f, "k-00001-of-00001.gguf", part(0, count, 2, "a"));
    expect(open_named(f, "k-00001-of-00001.gguf", 0, &weights), ACCRT_ERROR_INVALID_FORMAT,
           "it has 1 tensors; it says there are 2 (gguf rule 17)", __LINE__);
    save_bytes(f, "renamed.gguf", part(1, count, 1, "a"));
    BAD_SPLIT("renamed.gguf", "15");
  }
  bytes = gguf(3, 0, 1);
  put_pair(&bytes, "split.no", ACCRT_METADATA_U64);
  put_u64(&bytes, 0);
  REFUSED(bytes, INVALID_FORMAT, "15");
}

/* ---- Other ways in ---- */

static int32_t read_memory(void* self, uint64_t offset, void* target, uint64_t size) {
  const bytes_t* bytes = self;
  if (offset > bytes->size || size > bytes->size - offset)
    return 5;
  memcpy(target, bytes->at + offset, size);
  return 0;
}

static void callbacks_and_fd(void** state) {
  const fixture_t* f = *state;
  bytes_t bytes = one_tensor("a", 1, (const uint64_t[]){8}, 0, 0, 32);
  bytes.at[bytes.size - 1] = 77;
  accrt_reader_t reader = {&bytes, bytes.size, read_memory, NULL};
  accrt_weights_t* weights;
  assert_int_equal(accrt_weights_open_callbacks(f->instance, &reader, NULL, &weights), ACCRT_OK);
  const void* data;
  uint64_t size;
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(accrt_weights_data(weights, 0, 0, &data, &size), ACCRT_OK);
    assert_int_equal(((const unsigned char*)data)[31], 77);
  }
  unsigned char last;
  assert_int_equal(accrt_weights_read(weights, 0, 0, 31, &last, 1), ACCRT_OK);
  assert_int_equal(last, 77);
  accrt_weights_release(weights);
  reader.size_bytes = UINT64_MAX;
  expect(accrt_weights_open_callbacks(f->instance, &reader, NULL, &weights),
         ACCRT_ERROR_UNSUPPORTED, "a file of", __LINE__);
  save(f, "x", bytes.at, bytes.size);
  char path[256];
  path_of(f, "x", path);
  FILE* file = fopen(path, "rb");
  assert_non_null(file);
  assert_int_equal(accrt_weights_open_fd(f->instance, fileno(file), NULL, &weights), ACCRT_OK);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(accrt_weights_data(weights, 0, 0, &data, &size), ACCRT_OK);
  assert_int_equal(((const unsigned char*)data)[31], 77);
  accrt_weights_release(weights);
  drop(&bytes);
  expect(accrt_weights_open_path(f->instance, "/nowhere/x", NULL, &weights), ACCRT_ERROR_NOT_FOUND,
         "", __LINE__);
  expect(accrt_weights_open_path(f->instance, f->folder, NULL, &weights), ACCRT_ERROR_NOT_FOUND,
         "a folder with none of", __LINE__);
  bytes_t other = {NULL, 0, 0};
  put(&other, "neither of them", 15);
  refuse(f, &other, ACCRT_ERROR_INVALID_FORMAT, "nor an index", __LINE__);
  bytes_t none = {NULL, 0, 0};
  refuse(f, &none, ACCRT_ERROR_INVALID_FORMAT, "nor an index", __LINE__);
}

/* Allocations that fail, each in turn: an error, and nothing left behind. */
static void without_memory(void** state) {
  const fixture_t* f = *state;
  write_shards(f);
  const char* text = MAP("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"");
  save(f, "model.safetensors.index.json", text, strlen(text));
  save_bytes(f, "m-00001-of-00002.gguf", part(0, 2, 2, "a"));
  save_bytes(f, "m-00002-of-00002.gguf", part(1, 2, 2, "b"));
  static const char* const names[] = {"one.safetensors", "", "m-00002-of-00002.gguf"};
  test_allocator_t memory = {0};
  const accrt_allocator_t allocator = test_allocator_interface(&memory);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  fixture_t own = *f;
  assert_int_equal(accrt_instance_create(&options, &own.instance), ACCRT_OK);
  for (size_t i = 0; i < 3; ++i) {
    accrt_weights_t* weights = NULL;
    for (long n = 1; weights == NULL; ++n) {
      const long live = atomic_load(&memory.live_count);
      test_allocator_fail(&memory, n, 0);
      const accrt_status_t status = open_named(&own, names[i], 0, &weights);
      test_allocator_fail(&memory, 0, 0);
      if (status == ACCRT_OK)
        continue;
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_int_equal(atomic_load(&memory.live_count), live);
      assert_true(n < 1000);
    }
    accrt_weights_release(weights);
  }
  accrt_instance_release(own.instance);
  assert_int_equal(atomic_load(&memory.wrong_count), 0);
  assert_int_equal(atomic_load(&memory.live_count), 0);
}

static void arguments(void** state) {
  const fixture_t* f = *state;
  accrt_weights_t* weights;
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = 4;
  expect(accrt_weights_open_path(f->instance, "x", &options, &weights),
         ACCRT_ERROR_INVALID_ARGUMENT, "flags", __LINE__);
  expect(accrt_weights_open_path(NULL, "x", NULL, &weights), ACCRT_ERROR_INVALID_ARGUMENT, "NULL",
         __LINE__);
  expect(accrt_weights_open_path(f->instance, NULL, NULL, &weights), ACCRT_ERROR_INVALID_ARGUMENT,
         "NULL", __LINE__);
  expect(accrt_weights_open_path(f->instance, "x", NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT,
         "NULL", __LINE__);
  expect(accrt_weights_open_bundle(NULL, &weights), ACCRT_ERROR_INVALID_ARGUMENT, "NULL", __LINE__);
  expect(accrt_weights_info(NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT, "NULL", __LINE__);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(safetensors_good),
      TEST(safetensors_header),
      TEST(safetensors_tensors),
      TEST(safetensors_much_metadata),
      TEST(index_of_files),
      TEST(index_rules),
      TEST(links),
      TEST(split_set),
      TEST(callbacks_and_fd),
      TEST(arguments),
      TEST(without_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
