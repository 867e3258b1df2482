/* runtime/core/struct.c - struct_size negotiation. It may not allocate. */
#include "runtime/core/struct.h"

#include <string.h>

#include "accrt/accrt.h"
#include "accrt/write.h"
#include "runtime/core/error.h"

/* Maximum length of a `next` chain. It ends cycles. */
#define MAX_CHAIN 32

static bool is_zero(const unsigned char* bytes, size_t size_bytes) {
  for (size_t i = 0; i < size_bytes; ++i) {
    if (bytes[i] != 0)
      return false;
  }
  return true;
}

static uint32_t size_of(const void* object) {
  uint32_t struct_size;
  memcpy(&struct_size, object, sizeof struct_size);
  return struct_size;
}

static bool believable(uint32_t struct_size) {
  return struct_size >= ACCRT_STRUCT_MIN_BYTES && struct_size <= ACCRT_STRUCT_MAX_BYTES;
}

/* Generated: the fields of more than 8 bytes. A struct's size could end inside such a field. Their
 * names are one text, the struct's and the field's by turns, because arrays of names would be twice
 * as large. */
#define SHORT(owner, field)
#define LONG(owner, field) #owner "\0" #field "\0"
static const char field_names[] =
#include "runtime/core/struct_fields.inc"
    ;
#undef LONG
typedef struct field {
  uint16_t offset, size_bytes;
} field_t;
#define LONG(owner, field) {(uint16_t)offsetof(owner, field), (uint16_t)sizeof(((owner*)0)->field)},
static const field_t long_fields[] = {
#include "runtime/core/struct_fields.inc"
};
#undef SHORT
#undef LONG

/* The long field that ends behind `size`, or NULL. */
static const field_t* cut_field(const char* name, uint32_t size, const char** out_field_name) {
  const char* owner = field_names;
  for (size_t i = 0; i < sizeof long_fields / sizeof *long_fields; ++i) {
    const field_t* field = &long_fields[i];
    const char* field_name = owner + strlen(owner) + 1;
    *out_field_name = field_name;
    if (size > field->offset && size - field->offset < field->size_bytes &&
        strcmp(owner, name) == 0)
      return field;
    owner = field_name + strlen(field_name) + 1;
  }
  return NULL;
}

bool accrt_struct_is_cut(const char* name, uint32_t size) {
  const char* field_name;
  return size % 8 != 0 || cut_field(name, size, &field_name) != NULL;
}

static accrt_status_t check_cut(const char* name, uint32_t size, size_t own_size) {
  if (size % 8 != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: struct_size %" PRIu32 " is not a multiple of 8", name,
                      size);
  if (size >= own_size) /* which ends behind the last field; most callers' structs have this size */
    return ACCRT_OK;
  const char* field_name;
  const field_t* field = cut_field(name, size, &field_name);
  if (field == NULL)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "%s: struct_size %" PRIu32 " cuts the field '%s', bytes %u to %u", name, size,
                    field_name, field->offset, (unsigned)field->offset + field->size_bytes);
}

static accrt_status_t check_chain(const char* name, const accrt_chain_t* member) {
  for (int i = 0; member != NULL; ++i, member = member->next) {
    if (i == MAX_CHAIN)
      return ACCRT_FAIL(INVALID_ARGUMENT, "%s: next chain has more than %d members", name,
                        MAX_CHAIN);
    if (!believable(member->struct_size)) {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "%s: chain member %d has struct_size %" PRIu32 ", not %u to %u", name, i,
                        member->struct_size, ACCRT_STRUCT_MIN_BYTES, ACCRT_STRUCT_MAX_BYTES);
    }
    if ((member->struct_type & ACCRT_STRUCT_IGNORABLE) == 0) {
      return ACCRT_FAIL(INVALID_ARGUMENT, "%s: chain member %d has unknown type 0x%" PRIx32, name,
                        i, member->struct_type);
    }
  }
  return ACCRT_OK;
}

accrt_status_t accrt_struct_read(const char* name, const void* source, void* target,
                                 size_t target_size) {
  memset(target, 0, target_size);
  const uint32_t own_size = (uint32_t)target_size;
  if (source == NULL) {
    memcpy(target, &own_size, sizeof own_size);
    return ACCRT_OK;
  }
  const uint32_t size = size_of(source);
  if (!believable(size)) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: struct_size %" PRIu32 " is not between %u and %u",
                      name, size, ACCRT_STRUCT_MIN_BYTES, ACCRT_STRUCT_MAX_BYTES);
  }
  ACCRT_TRY(check_cut(name, size, target_size));
  const size_t common = size < target_size ? size : target_size;
  if (!is_zero((const unsigned char*)source + common, size - common)) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%s: struct_size %" PRIu32
                      " is newer than this library's %zu and its unknown tail is not zero",
                      name, size, target_size);
  }
  memcpy(target, source, common);
  memcpy(target, &own_size, sizeof own_size);
  const accrt_chain_t* chain;
  memcpy(&chain, (const unsigned char*)target + 8, sizeof chain);
  return check_chain(name, chain);
}

bool accrt_struct_fill(const char* name, void* target, const void* source, size_t source_size) {
  if (target == NULL)
    return false;
  const uint32_t size = size_of(target);
  if (!believable(size) || size % 8 != 0 || (size < source_size && accrt_struct_is_cut(name, size)))
    return false;
  const size_t common = size < source_size ? size : source_size;
  void* next;
  memcpy(&next, (const unsigned char*)target + 8, sizeof next);
  memcpy(target, source, common);
  memset((unsigned char*)target + common, 0, size - common);
  const uint32_t filled = (uint32_t)common;
  memcpy(target, &filled, sizeof filled);
  memcpy((unsigned char*)target + 8, &next, sizeof next);
  return true;
}

accrt_status_t accrt_struct_write(const char* name, void* target, const void* source,
                                  size_t source_size) {
  if (target == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: output struct is NULL", name);
  if (believable(size_of(target))) {
    const accrt_chain_t* chain;
    memcpy(&chain, (const unsigned char*)target + 8, sizeof chain);
    accrt_status_t status = check_cut(name, size_of(target), source_size);
    if (status == ACCRT_OK)
      status = check_chain(name, chain);
    if (status == ACCRT_OK)
      (void)accrt_struct_fill(name, target, source, source_size);
    return status;
  }
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s: struct_size %" PRIu32 " is not between %u and %u", name,
                    size_of(target), ACCRT_STRUCT_MIN_BYTES, ACCRT_STRUCT_MAX_BYTES);
}

accrt_status_t accrt_struct_check_element(const char* name, uint32_t element_size_bytes,
                                          size_t expected) {
  if (element_size_bytes == expected)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s: element size %" PRIu32 " bytes, expected %zu", name,
                    element_size_bytes, expected);
}
