/* loader/caps.c - accrt_caps_parse: reads the JSON of `accx caps` (docs/contract.md, "Writing for a
 * target") into a struct. Anyone may have written the text, so it is read strictly and in a private
 * copy. Members of later versions are ignored. */
#include <stdio.h>
#include <string.h>

#include "loader/internal.h"
#include "loader/json.h"
#include "format/names.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

#define MAX_TEXT_BYTES ((size_t)1 << 20)
#define BITS 64u

/* The form of a member: "1.2", "1.2.3", 8, ["name", "bit 5", {"id": 7}], "text". */
enum { FORM_VERSION, FORM_LIBRARY, FORM_RANK, FORM_SET, FORM_ARCH, FORM_DEVICES };

#define MEMBER(name, form, field, ...)                                                             \
  { name, form, offsetof(accrt_caps_t, field), __VA_ARGS__ }
static const struct {
  char name[18];
  uint8_t form;
  uint8_t offset; /* of the field; for versions that of the major, followed by the minor */
  uint8_t numbers;
  bool needed;
} members[] = {
    MEMBER("container", FORM_VERSION, container_major, 0, true),
    MEMBER("commands", FORM_VERSION, commands_major, 0, true),
    MEMBER("kernel_abi", FORM_VERSION, kernel_abi_major, 0, true),
    MEMBER("layouts", FORM_VERSION, layouts_major, 0, true),
    MEMBER("max_rank", FORM_RANK, max_rank, 0, true),
    MEMBER("file_features", FORM_SET, file_features, ACCX_NUMBERS_FILE_FEATURE, true),
    MEMBER("function_features", FORM_SET, function_features, ACCX_NUMBERS_FUNCTION_FEATURE, true),
    MEMBER("command_set", FORM_SET, command_mask, ACCX_NUMBERS_OPCODE, true),
    MEMBER("dtypes", FORM_SET, dtype_mask, ACCX_NUMBERS_DTYPE, true),
    MEMBER("encodings", FORM_SET, encoding_mask, ACCX_NUMBERS_LAYOUT, true),
    MEMBER("variant_features", FORM_SET, variant_features, ACCX_NUMBERS_VARIANT_FEATURE, false),
    MEMBER("image_kinds", FORM_SET, image_kind_mask, ACCX_NUMBERS_IMAGE_KIND, false),
    MEMBER("sections", FORM_SET, section_mask, ACCX_NUMBERS_SECTION, false),
    MEMBER("expression_ops", FORM_SET, expression_mask, ACCX_NUMBERS_OPERATION, false),
    MEMBER("cpu_features", FORM_SET, cpu_features, ACCX_NUMBERS_CPU_FEATURE, false),
    MEMBER("library_version", FORM_LIBRARY, library_version, 0, false),
    MEMBER("cpu_arch", FORM_ARCH, cpu_arch, 0, false),
    MEMBER("drivers", FORM_DEVICES, devices, 0, false),
};
#define MEMBER_COUNT (sizeof members / sizeof *members)
_Static_assert(offsetof(accrt_caps_t, devices) < 256, "offsets fit a byte");
_Static_assert(offsetof(accrt_caps_t, layouts_minor) == offsetof(accrt_caps_t, layouts_major) + 2,
               "the minor follows the major");

/* Reads `count` numbers up to `limit` with points between them, and nothing else. */
static bool read_numbers(accx_json_t* json, uint32_t count, uint32_t limit, uint32_t* out) {
  const char* text;
  size_t size;
  if (!accx_json_string(json, &text, &size))
    return false;
  for (uint32_t i = 0; i < count; ++i) {
    const char* const begin = text;
    out[i] = 0;
    for (; *text >= '0' && *text <= '9' && out[i] <= limit; ++text)
      out[i] = out[i] * 10 + (uint32_t)(*text - '0');
    if (text == begin || out[i] > limit || *text != (i + 1 < count ? '.' : '\0'))
      return accx_json_fail(json, "this is not a version");
    ++text;
  }
  return true;
}

/* The number of a name: the known one, or N for "bit N"; BITS for an unknown name. */
static uint32_t number_of(const char* name, uint32_t numbers) {
  uint32_t bit = 0;
  for (; bit < BITS; ++bit) {
    const char* known = accx_number_name(numbers, bit);
    if (known[0] != '\0' && strcmp(known, name) == 0)
      return bit;
  }
  if (strncmp(name, "bit ", 4) != 0 || name[4] == '\0')
    return BITS;
  bit = 0;
  for (name += 4; *name >= '0' && *name <= '9' && bit < BITS; ++name)
    bit = bit * 10 + (uint32_t)(*name - '0');
  return *name == '\0' ? bit : BITS;
}

/* Reads {"id": 7, "name": "..."}. Only the id counts. */
static bool read_id(accx_json_t* json, uint64_t* out_id) {
  bool first = true, found = false;
  const char* name;
  size_t size;
  while (accx_json_member(json, &first, &name, &size) && name != NULL) {
    const bool id = strcmp(name, "id") == 0;
    if (id && found)
      return accx_json_fail(json, "a member occurs twice");
    found = found || id;
    if (!(id ? accx_json_integer(json, out_id) : accx_json_skip(json)))
      return false;
  }
  return found || accx_json_fail(json, "an object without an id");
}

static bool read_set(accx_json_t* json, uint32_t numbers, uint64_t* out_mask) {
  bool first = true, more;
  if (!accx_json_take(json, '[', "a list is missing"))
    return false;
  while (accx_json_next(json, ']', &first, &more) && more) {
    uint64_t number = BITS;
    const char* name;
    size_t size;
    if (accx_json_peek(json) == '{') {
      if (!accx_json_take(json, '{', NULL) || !read_id(json, &number))
        return false;
    } else if (accx_json_string(json, &name, &size)) {
      number = number_of(name, numbers);
    }
    if (number < BITS)
      *out_mask |= UINT64_C(1) << number;
  }
  return json->error == NULL;
}

static bool read_arch(accx_json_t* json, char* out_arch) {
  const char* text;
  size_t size;
  if (!accx_json_string(json, &text, &size))
    return false;
  if (size >= sizeof((accrt_caps_t*)NULL)->cpu_arch)
    return accx_json_fail(json, "a name of 32 bytes or more");
  memcpy(out_arch, text, size + 1);
  return true;
}

/* Reads one of the words of `devices`. */
static bool read_word(accx_json_t* json, const char** out_text) {
  size_t size;
  return accx_json_string(json, out_text, &size) &&
         ((size != 0 && (*out_text)[strcspn(*out_text, ": ")] == '\0') ||
          accx_json_fail(json, "a name that is empty, or with a colon or a space"));
}

#define MAX_DEVICES 64u /* more than fit into `devices` */
#define TOO_MANY "more devices than there is room for"
static bool read_archs(accx_json_t* json, const char** archs, size_t* count) {
  bool first = true, more;
  if (!accx_json_take(json, '[', "a list is missing"))
    return false;
  while (accx_json_next(json, ']', &first, &more) && more) {
    if (*count == MAX_DEVICES)
      return accx_json_fail(json, TOO_MANY);
    if (!read_word(json, &archs[(*count)++]))
      return false;
  }
  return json->error == NULL;
}

/* Reads {"name": "cuda", "architectures": ["sm_90"]} in any order, and appends "cuda:sm_90" to the
 * text. */
static bool read_driver(accx_json_t* json, accrt_caps_t* caps) {
  bool first = true;
  const char *driver = NULL, *archs[MAX_DEVICES];
  size_t count = 0;
  const char* name;
  size_t size;
  while (accx_json_member(json, &first, &name, &size) && name != NULL) {
    if (!(strcmp(name, "name") == 0            ? read_word(json, &driver)
          : strcmp(name, "architectures") == 0 ? read_archs(json, archs, &count)
                                               : accx_json_skip(json)))
      return false;
  }
  if (driver == NULL)
    return accx_json_fail(json, "a driver without a name");
  for (size_t i = 0; i < count; ++i) {
    const size_t used = strlen(caps->devices), left = sizeof caps->devices - used;
    const int wanted =
        snprintf(caps->devices + used, left, "%s%s:%s", used != 0 ? " " : "", driver, archs[i]);
    if (wanted < 0 || (size_t)wanted >= left)
      return accx_json_fail(json, TOO_MANY);
  }
  return json->error == NULL;
}

static bool read_drivers(accx_json_t* json, accrt_caps_t* caps) {
  bool first = true, more;
  if (!accx_json_take(json, '[', "a list is missing"))
    return false;
  while (accx_json_next(json, ']', &first, &more) && more) {
    if (!accx_json_take(json, '{', "an object is missing") || !read_driver(json, caps))
      return false;
  }
  return json->error == NULL;
}

static bool read_member(accx_json_t* json, size_t member, accrt_caps_t* caps) {
  unsigned char* const field = (unsigned char*)caps + members[member].offset;
  uint32_t numbers[3];
  uint64_t value = 0;
  switch (members[member].form) {
  case FORM_VERSION: {
    if (!read_numbers(json, 2, UINT16_MAX, numbers))
      return false;
    const uint16_t version[2] = {(uint16_t)numbers[0], (uint16_t)numbers[1]};
    memcpy(field, version, sizeof version);
    return true;
  }
  case FORM_LIBRARY:
    if (!read_numbers(json, 3, 0xFFF, numbers) || numbers[0] > 0xFF)
      return accx_json_fail(json, "this is not a version");
    caps->library_version = ACCRT_MAKE_VERSION(numbers[0], numbers[1], numbers[2]);
    return true;
  case FORM_RANK:
    if (!accx_json_integer(json, &value) || value > UINT32_MAX)
      return accx_json_fail(json, "no rank is so large");
    caps->max_rank = (uint32_t)value;
    return true;
  case FORM_SET:
    if (!read_set(json, members[member].numbers, &value))
      return false;
    memcpy(field, &value, sizeof value);
    return true;
  case FORM_DEVICES:
    return read_drivers(json, caps);
  default:
    return read_arch(json, caps->cpu_arch);
  }
}

/* `out_name` gets the member that was read last. */
static bool read_members(accx_json_t* json, accrt_caps_t* caps, uint32_t* out_seen,
                         const char** out_name) {
  bool first = true;
  if (!accx_json_take(json, '{', "an object is missing"))
    return false;
  const char* name;
  size_t size;
  while (accx_json_member(json, &first, &name, &size) && name != NULL) {
    size_t member = 0;
    while (member < MEMBER_COUNT && strcmp(members[member].name, name) != 0)
      ++member;
    *out_name = name;
    const uint32_t bit = member < MEMBER_COUNT ? 1u << member : 0;
    if ((*out_seen & bit) != 0)
      return accx_json_fail(json, "a member occurs twice");
    *out_seen |= bit;
    if (!(bit != 0 ? read_member(json, member, caps) : accx_json_skip(json)))
      return false;
  }
  return accx_json_finish(json);
}

static accrt_status_t read_text(char* text, size_t size_bytes, accrt_caps_t* caps) {
  accx_json_t json;
  uint32_t seen = 0;
  const char* name = "the text";
  accx_json_init(&json, text, size_bytes);
  if (!read_members(&json, caps, &seen, &name))
    return ACCRT_FAIL(INVALID_FORMAT,
                      "byte %zu: %s (at '%.64s'; `accx caps --json` prints what is read)",
                      accx_json_offset(&json), json.error, name);
  for (size_t i = 0; i < MEMBER_COUNT; ++i) {
    if (members[i].needed && (seen >> i & 1) == 0)
      return ACCRT_FAIL(INVALID_FORMAT, "there is no '%s': `accx caps --json` prints one",
                        members[i].name);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_caps_parse(const char* text, size_t size_bytes,
                                const accrt_allocator_t* allocator, accrt_caps_t* out_caps) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  void* copy;
  if (text == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "text is NULL");
  if (size_bytes > MAX_TEXT_BYTES)
    return ACCRT_FAIL(OUT_OF_RANGE, "%zu bytes; the limit is %zu", size_bytes, MAX_TEXT_BYTES);
  if (allocator == NULL)
    allocator = &accrt_allocator_system;
  ACCRT_TRY(accrt_alloc(allocator, size_bytes + 1, &copy));
  memcpy(copy, text, size_bytes);
  accrt_status_t status = read_text(copy, size_bytes, &caps);
  accrt_free(allocator, copy, size_bytes + 1);
  if (status == ACCRT_OK)
    status = accrt_struct_write("accrt_caps_t", out_caps, &caps, sizeof caps);
  return status;
}
