/* loader/weights_test.h - what the tests of sources of weights share: files that are made byte by
 * byte, and the rule that refuses each. */
#ifndef ACCRT_LOADER_WEIGHTS_TEST_H_
#define ACCRT_LOADER_WEIGHTS_TEST_H_

#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/weights.h"
#include "runtime/core/test_allocator.h"

/* ---- Bytes ---- */

typedef struct bytes {
  unsigned char* at;
  size_t size;
  size_t capacity;
} bytes_t;

static inline void put(bytes_t* bytes, const void* data, size_t size) {
  if (bytes->size + size > bytes->capacity) {
    bytes->capacity = 2 * (bytes->size + size) + 64;
    bytes->at = realloc(bytes->at, bytes->capacity);
    assert_non_null(bytes->at);
  }
  if (size > 0)
    memcpy(bytes->at + bytes->size, data, size);
  bytes->size += size;
}
static inline void put_u16(bytes_t* bytes, uint16_t value) {
  put(bytes, &value, sizeof value);
}
static inline void put_u32(bytes_t* bytes, uint32_t value) {
  put(bytes, &value, sizeof value);
}
static inline void put_u64(bytes_t* bytes, uint64_t value) {
  put(bytes, &value, sizeof value);
}
static inline void put_text(bytes_t* bytes, const char* text) {
  put_u64(bytes, strlen(text));
  put(bytes, text, strlen(text));
}
static inline void put_zeros(bytes_t* bytes, size_t size) {
  static const unsigned char zeros[64];
  for (; size > sizeof zeros; size -= sizeof zeros)
    put(bytes, zeros, sizeof zeros);
  put(bytes, zeros, size);
}
static inline void drop(bytes_t* bytes) {
  free(bytes->at);
  memset(bytes, 0, sizeof *bytes);
}

/* ---- Fixture ---- */

typedef struct fixture {
  accrt_instance_t* instance;
  char folder[64];
} fixture_t;

static inline int set_up(void** state) {
  fixture_t* f = calloc(1, sizeof *f);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  assert_int_equal(accrt_instance_create(&options, &f->instance), ACCRT_OK);
  (void)snprintf(f->folder, sizeof f->folder, "/tmp/accrt-weights-XXXXXX");
  assert_non_null(mkdtemp(f->folder));
  *state = f;
  return 0;
}

static inline int tear_down(void** state) {
  fixture_t* f = *state;
  char command[128];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
  const int code = system(command);
  accrt_instance_release(f->instance);
  free(f);
  return code;
}

static inline void save(const fixture_t* f, const char* name, const void* data, size_t size) {
  char path[256];
  (void)snprintf(path, sizeof path, "%s/%s", f->folder, name);
  FILE* file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static inline void path_of(const fixture_t* f, const char* name, char path[256]) {
  (void)snprintf(path, 256, "%s/%s", f->folder, name);
}

static inline const char* message(void) {
  return accrt_error_current()->message;
}

static inline accrt_weights_t* open_bytes(const fixture_t* f, const bytes_t* bytes) {
  accrt_weights_t* weights = NULL;
  const accrt_status_t status =
      accrt_weights_open_memory(f->instance, bytes->at, bytes->size, NULL, NULL, NULL, &weights);
  if (status != ACCRT_OK)
    print_error("%s\n", message());
  assert_int_equal(status, ACCRT_OK);
  return weights;
}

static inline void expect(accrt_status_t status, accrt_status_t wanted, const char* text,
                          int line) {
  if (status != wanted || strstr(message(), text) == NULL) {
    print_error("line %d: %s, '%s'; wanted %s with '%s'\n", line, accrt_status_name(status),
                message(), accrt_status_name(wanted), text);
    fail();
  }
}

/* The bytes are refused by a rule. */
static inline void refuse(const fixture_t* f, bytes_t* bytes, accrt_status_t wanted,
                          const char* rule, int line) {
  accrt_weights_t* weights = NULL;
  /* Memory of exactly this size, so that reads past its end are detected. */
  void* exact = malloc(bytes->size + (bytes->size == 0));
  assert_non_null(exact);
  if (bytes->size > 0)
    memcpy(exact, bytes->at, bytes->size);
  expect(accrt_weights_open_memory(f->instance, exact, bytes->size, NULL, NULL, NULL, &weights),
         wanted, rule, line);
  assert_null(weights);
  free(exact);
  drop(bytes);
}

/* ---- safetensors ---- */

static inline bytes_t safetensors(const char* header, size_t data_bytes) {
  bytes_t bytes = {NULL, 0, 0};
  put_text(&bytes, header);
  for (size_t i = 0; i < data_bytes; ++i)
    put(&bytes, &(unsigned char){(unsigned char)i}, 1);
  return bytes;
}

static inline bytes_t gguf(uint32_t version, uint64_t tensors, uint64_t values) {
  bytes_t bytes = {NULL, 0, 0};
  put(&bytes, "GGUF", 4);
  put_u32(&bytes, version);
  put_u64(&bytes, tensors);
  put_u64(&bytes, values);
  return bytes;
}
static inline void put_pair(bytes_t* bytes, const char* key, uint32_t type) {
  put_text(bytes, key);
  put_u32(bytes, type);
}
static inline void put_record(bytes_t* bytes, const char* name, uint32_t rank, const uint64_t* dims,
                              uint32_t type, uint64_t offset) {
  put_text(bytes, name);
  put_u32(bytes, rank);
  for (uint32_t i = 0; i < rank; ++i)
    put_u64(bytes, dims[i]);
  put_u32(bytes, type);
  put_u64(bytes, offset);
}
static inline void align(bytes_t* bytes, size_t alignment) {
  put_zeros(bytes, (alignment - bytes->size % alignment) % alignment);
}
#define REFUSED(bytes, wanted, rule)                                                               \
  refuse(f, &(bytes), ACCRT_ERROR_##wanted, "(gguf rule " rule ")", __LINE__)

/* One tensor with data_bytes bytes of data. */
static inline bytes_t one_tensor(const char* name, uint32_t rank, const uint64_t* dims,
                                 uint32_t type, uint64_t offset, size_t data_bytes) {
  bytes_t bytes = gguf(3, 1, 0);
  put_record(&bytes, name, rank, dims, type, offset);
  align(&bytes, 32);
  put_zeros(&bytes, data_bytes);
  return bytes;
}

#endif /* ACCRT_LOADER_WEIGHTS_TEST_H_ */
