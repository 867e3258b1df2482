/* runtime/core/pack_check.c - the rules of accrt/kernel.h for parameters and kernel definitions;
 * docs/kernel-abi.md lists them. Shared by packs and by the verifier of bundles. It may not
 * allocate. */
#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/pack.h"

#define MAX_NAME_BYTES 255
#define MAX_LOCAL_MEMORY_BYTES (256u << 20)
/* The block is 16-byte aligned, so no parameter can need a larger alignment. */
#define MAX_ALIGN_LOG2 4

const char* accrt_kernel_param_kind_name(uint32_t kind) {
  static const char names[][10] = {"?",      "BUFFER",    "TENSOR",    "SCALAR",
                                   "SYMBOL", "WORKSPACE", "SEMAPHORE", "HIDDEN"};
  return kind < sizeof names / sizeof names[0] ? names[kind] : names[0];
}

static const char* check_size_and_access(const accrt_kernel_param_t* param) {
  const uint32_t size = param->size_bytes;
  const uint32_t access = param->access;
  switch (param->kind) {
  case ACCRT_KERNEL_PARAM_BUFFER:
    if (size != 8)
      return "a BUFFER has 8 bytes";
    return access >= 1 && access <= 3 ? NULL : "a BUFFER is read, written or both";
  case ACCRT_KERNEL_PARAM_TENSOR:
    if (size != sizeof(accrt_kernel_tensor_t))
      return "a TENSOR has the size of accrt_kernel_tensor_t";
    return access >= 1 && access <= 3 ? NULL : "a TENSOR is read, written or both";
  case ACCRT_KERNEL_PARAM_SCALAR:
    if (size != 1 && size != 2 && size != 4 && size != 8)
      return "a SCALAR has 1, 2, 4 or 8 bytes";
    return access == 0 ? NULL : "a SCALAR has no access";
  case ACCRT_KERNEL_PARAM_SYMBOL:
    if (size != 8)
      return "a SYMBOL has 8 bytes";
    return access == 0 ? NULL : "a SYMBOL has no access";
  case ACCRT_KERNEL_PARAM_WORKSPACE:
    if (size != 8)
      return "a WORKSPACE has 8 bytes";
    return access == 3 ? NULL : "a WORKSPACE is read and written";
  case ACCRT_KERNEL_PARAM_SEMAPHORE:
  case ACCRT_KERNEL_PARAM_HIDDEN:
    return "its kind is reserved for a later version of the kernel ABI";
  default:
    return "its kind is not known";
  }
}

static const char* check_param(const accrt_kernel_param_t* param, uint32_t previous_end,
                               uint32_t block_bytes) {
  if (param->name == NULL)
    return "its name is NULL";
  const size_t name_bytes = strnlen(param->name, MAX_NAME_BYTES + 1);
  if (name_bytes == 0 || name_bytes > MAX_NAME_BYTES)
    return "its name is empty or longer than 255 bytes";
  const char* why = check_size_and_access(param);
  if (why != NULL)
    return why;
  const bool may_be_optional = param->kind == ACCRT_KERNEL_PARAM_BUFFER;
  if ((param->flags & ~(may_be_optional ? ACCRT_KERNEL_PARAM_FLAG_OPTIONAL : 0u)) != 0)
    return "it has an unknown flag";
  if (param->reserved != 0)
    return "its reserved field is not 0";
  const uint32_t natural = param->size_bytes < 8 ? param->size_bytes : 8;
  if (param->align_log2 > MAX_ALIGN_LOG2 || param->offset_bytes % (1u << param->align_log2) != 0 ||
      param->offset_bytes % natural != 0) {
    return "its offset is not aligned";
  }
  if (param->offset_bytes < previous_end)
    return "it overlaps the parameter before it, or comes before it";
  return accrt_range_fits(param->offset_bytes, param->size_bytes, block_bytes)
             ? NULL
             : "it ends outside the block";
}

const char* accrt_kernel_check_params(const accrt_kernel_param_t* params, uint32_t param_count,
                                      uint32_t params_size_bytes, uint32_t* out_index) {
  *out_index = 0;
  if (param_count > ACCRT_KERNEL_MAX_PARAMS)
    return "there are more than 64 parameters";
  if (params_size_bytes > ACCRT_KERNEL_MAX_PARAMS_BYTES)
    return "the block is larger than 4096 bytes";
  if (param_count > 0 && params == NULL)
    return "the parameters are NULL";
  uint32_t end = 0;
  for (uint32_t i = 0; i < param_count; ++i) {
    *out_index = i;
    const char* why = check_param(&params[i], end, params_size_bytes);
    if (why != NULL)
      return why;
    for (uint32_t k = 0; k < i; ++k) {
      if (strcmp(params[k].name, params[i].name) == 0)
        return "another parameter has the same name";
    }
    end = params[i].offset_bytes + params[i].size_bytes;
  }
  return NULL;
}

static bool name_is_good(const char* name) {
  const size_t length = name != NULL ? strnlen(name, MAX_NAME_BYTES + 1) : 0;
  if (length == 0 || length > MAX_NAME_BYTES)
    return false;
  for (size_t i = 0; i < length; ++i) {
    const char c = name[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != '-')
      return false;
  }
  return true;
}

/* A refused name may contain any bytes. Those that are not printable ASCII are shown as \xNN. */
static accrt_status_t fail_name(const char* what, const char* name) {
  if (name == NULL)
    return ACCRT_FAIL(INVALID_FORMAT, "%s: a kernel's name is NULL", what);
  char shown[4 * 40 + 1];
  size_t length = 0;
  size_t taken = 0;
  for (; name[taken] != '\0' && taken < 40; ++taken) {
    const unsigned char c = (unsigned char)name[taken];
    const bool plain = c >= 0x20 && c < 0x7F && c != '\\' && c != '\'';
    const int written =
        snprintf(shown + length, sizeof shown - length, plain ? "%c" : "\\x%02x", c);
    length += written > 0 ? (size_t)written : 0;
  }
  shown[length] = '\0';
  return ACCRT_FAIL(INVALID_FORMAT,
                    "%s: a kernel's name is '%s%s': it must be 1 to %d bytes of letters, digits, "
                    "'_', '.', '-'",
                    what, shown, name[taken] != '\0' ? "..." : "", MAX_NAME_BYTES);
}

/* Checks the parameter block of a kernel or operator (`kind`). */
static accrt_status_t check_block(const char* what, const char* kind, const char* name,
                                  const accrt_kernel_param_t* params, uint32_t param_count,
                                  uint32_t params_size_bytes) {
  uint32_t bad;
  const char* why = accrt_kernel_check_params(params, param_count, params_size_bytes, &bad);
  if (why == NULL)
    return ACCRT_OK;
  const bool known = params != NULL && bad < param_count && param_count <= ACCRT_KERNEL_MAX_PARAMS;
  const char* param = known && params[bad].name != NULL ? params[bad].name : "?";
  return ACCRT_FAIL(INVALID_FORMAT, "%s: %s '%s': parameter %" PRIu32 " '%.64s': %s", what, kind,
                    name, bad, param, why);
}

static bool is_length(const accrt_kernel_param_t* param) {
  return param->kind == ACCRT_KERNEL_PARAM_SYMBOL &&
         (param->flags & ACCRT_KERNEL_PARAM_FLAG_LENGTH) != 0;
}

uint32_t accrt_kernel_plain_params(const accrt_kernel_param_t* params, uint32_t param_count,
                                   accrt_kernel_param_t* out_params) {
  uint32_t lengths = 0;
  for (uint32_t i = 0; i < param_count; ++i) {
    out_params[i] = params[i];
    lengths += is_length(&params[i]);
    uint32_t flags = params[i].flags;
    if (params[i].kind == ACCRT_KERNEL_PARAM_SYMBOL)
      flags &= ~(ACCRT_KERNEL_PARAM_FLAG_VARIES | ACCRT_KERNEL_PARAM_FLAG_LENGTH);
    if (params[i].kind == ACCRT_KERNEL_PARAM_SCALAR)
      flags &= ~ACCRT_KERNEL_PARAM_FLAG_VARIES;
    out_params[i].flags = (uint8_t)flags;
  }
  return lengths;
}

const char* accrt_kernel_bundles_refused(uint32_t traits) {
  return (traits & ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL) != 0
             ? NULL
             : "its pack does not let bundles call it (ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL)";
}

/* Lengths are the last parameters, one for each address. A kernel must have them if bundles may
 * call it. */
static const char* check_lengths(const accrt_kernel_param_t* params, uint32_t param_count,
                                 uint32_t traits) {
  uint32_t addresses = 0, lengths = 0;
  for (uint32_t i = 0; i < param_count; ++i) {
    addresses += params[i].kind == ACCRT_KERNEL_PARAM_BUFFER ||
                 params[i].kind == ACCRT_KERNEL_PARAM_WORKSPACE;
    if (is_length(&params[i]))
      ++lengths;
    else if (lengths > 0)
      return "a parameter follows a length, but lengths must be last";
  }
  if (lengths > 0 && lengths != addresses)
    return "there are not as many lengths as BUFFERs and WORKSPACEs";
  if (lengths < addresses && (traits & ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL) != 0)
    return "bundles may call it, and it asks for no lengths (ACCRT_KERNEL_PARAM_FLAG_LENGTH)";
  return NULL;
}

static accrt_status_t check_pack_block(const char* what, const char* kind, const char* name,
                                       const accrt_kernel_param_t* params, uint32_t param_count,
                                       uint32_t params_size_bytes, uint32_t traits) {
  accrt_kernel_param_t plain[ACCRT_KERNEL_MAX_PARAMS];
  const bool fits = params != NULL && param_count <= ACCRT_KERNEL_MAX_PARAMS;
  if (fits)
    (void)accrt_kernel_plain_params(params, param_count, plain);
  const accrt_status_t status =
      check_block(what, kind, name, fits ? plain : params, param_count, params_size_bytes);
  const char* why = status == ACCRT_OK ? check_lengths(params, param_count, traits) : NULL;
  return why == NULL ? status
                     : ACCRT_FAIL(INVALID_FORMAT, "%s: %s '%s': %s", what, kind, name, why);
}

accrt_status_t accrt_operator_check_definition(const char* what,
                                               const accrt_operator_def_t* definition) {
  const uint32_t traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_CAPTURABLE |
                          ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE |
                          ACCRT_KERNEL_TRAIT_READS_HOST_METADATA |
                          ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL;
  if (!name_is_good(definition->name))
    return fail_name(what, definition->name);
  const char* name = definition->name;
  if (definition->execute == NULL)
    return ACCRT_FAIL(INVALID_FORMAT, "%s: host operator '%s': its execute is NULL", what, name);
  if ((definition->traits & ~traits) != 0) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: host operator '%s': unknown traits 0x%" PRIx32, what,
                      name, definition->traits & ~traits);
  }
  if (definition->reserved != 0) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: host operator '%s': its reserved is %" PRIu32 ", not 0",
                      what, name, definition->reserved);
  }
  const accrt_status_t status =
      check_pack_block(what, "host operator", name, definition->params, definition->param_count,
                       definition->params_size_bytes, definition->traits);
  for (uint32_t i = 0; i < definition->param_count && status == ACCRT_OK; ++i) {
    const uint32_t kind = definition->params[i].kind;
    if (kind >= ACCRT_KERNEL_PARAM_BUFFER && kind <= ACCRT_KERNEL_PARAM_SYMBOL)
      continue;
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: host operator '%s': parameter %" PRIu32
                      " '%.64s': operators may not have a %s; they use query_workspace",
                      what, name, i, definition->params[i].name,
                      accrt_kernel_param_kind_name(kind));
  }
  return status;
}

accrt_status_t accrt_kernel_check_definition(const char* what,
                                             const accrt_kernel_def_t* definition) {
  const uint32_t traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_CAPTURABLE |
                          ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE |
                          ACCRT_KERNEL_TRAIT_READS_HOST_METADATA | ACCRT_KERNEL_TRAIT_SERIAL |
                          ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL;
  if (!name_is_good(definition->name))
    return fail_name(what, definition->name);
  const char* name = definition->name;
  if (definition->entry == NULL)
    return ACCRT_FAIL(INVALID_FORMAT, "%s: kernel '%s': its entry is NULL", what, name);
  if ((definition->traits & ~traits) != 0) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: kernel '%s': unknown traits 0x%" PRIx32, what, name,
                      definition->traits & ~traits);
  }
  if (definition->local_memory_size_bytes > MAX_LOCAL_MEMORY_BYTES) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: kernel '%s': %" PRIu32 " bytes of local memory; the limit is %u", what,
                      name, definition->local_memory_size_bytes, MAX_LOCAL_MEMORY_BYTES);
  }
  if (definition->reserved != 0 || definition->reserved2 != 0) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: kernel '%s': its reserved is %" PRIu32 ", its reserved2 %" PRIu32
                      ", not 0",
                      what, name, definition->reserved, definition->reserved2);
  }
  return check_pack_block(what, "kernel", name, definition->params, definition->param_count,
                          definition->params_size_bytes, definition->traits);
}
