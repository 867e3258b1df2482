/* tools/accx/kernel_plan.c - what a kernel is given when it is checked: from its declaration, from
 * --type, --set, --input and --grid, and from a ladder of sizes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "size_text.h"

#define MOST_BYTES (UINT64_C(1) << 31) /* of all arguments */
#define HOSTILE_BYTES 4096u
#define PLAIN_CASES 3u

/* Sizes of 1, odd ones and large ones. The more of them are free, the smaller they are. */
static const int64_t ladder[][PLAIN_CASES] = {
    {1, 37, 100003}, {1, 37, 517}, {1, 13, 65}, {1, 7, 23}, {1, 3, 9}};
#define LADDER_COUNT (sizeof ladder / sizeof *ladder)

/* For kernels that bundles may call: any argument at all. */
static const int64_t hostile[] = {0, 1, 37, 100003, -1, INT64_MAX, INT64_MIN};
#define HOSTILE_COUNT (sizeof hostile / sizeof *hostile)

bool accx_kernel_is_memory(const accx_kernel_value_t* value) {
  const uint32_t kind = value->param->kind;
  return kind == ACCRT_KERNEL_PARAM_BUFFER || kind == ACCRT_KERNEL_PARAM_TENSOR ||
         kind == ACCRT_KERNEL_PARAM_WORKSPACE;
}

static bool is_length(const accx_kernel_value_t* value) {
  return (value->param->flags & ACCRT_KERNEL_PARAM_FLAG_LENGTH) != 0;
}

static bool is_symbol(const accx_kernel_value_t* value) {
  return value->param->kind == ACCRT_KERNEL_PARAM_SYMBOL && !is_length(value);
}

static bool may_be_hostile(const accx_kernel_plan_t* plan) {
  return (plan->info.traits & ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL) != 0;
}

/* ---- Options: NAME=TEXT ---- */

/* The text behind "NAME=" where an option has that name. */
static const char* text_for(const accx_args_t* args, const char* option, const char* name) {
  const size_t length = strlen(name);
  const char* found = NULL;
  size_t cursor = 0;
  for (const char* text; (text = accx_args_next(args, option, &cursor));) {
    if (strncmp(text, name, length) == 0 && text[length] == '=')
      found = text + length + 1;
  }
  return found;
}

static bool has_param(accrt_kernel_pack_t* pack, const char* name) {
  uint32_t count = 0;
  (void)accrt_kernel_pack_kernel_count(pack, &count);
  for (uint32_t i = 0; i < count; ++i) {
    accrt_kernel_t* kernel = NULL;
    accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
    if (accrt_kernel_pack_kernel(pack, i, &kernel) != ACCRT_OK ||
        accrt_kernel_info(kernel, &info) != ACCRT_OK)
      continue;
    for (uint32_t p = 0; p < info.param_count; ++p) {
      if (strcmp(info.params[p].name, name) == 0)
        return true;
    }
  }
  return false;
}

/* True when --type or --grid has the name as a word. */
static bool is_mentioned(const accx_args_t* args, const char* name) {
  static const char word[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  for (size_t i = 0; i < args->given_count; ++i) {
    const char* option = args->given[i].option->name;
    const char* text = args->given[i].value;
    if (strcmp(option, "type") != 0 && strcmp(option, "param") != 0 && strcmp(option, "grid") != 0)
      continue;
    while (text && *text) {
      const size_t length = strspn(text, word);
      if (length == strlen(name) && memcmp(text, name, length) == 0)
        return true;
      text += length > 0 ? length : 1;
    }
  }
  return false;
}

int accx_kernel_check_names(const accx_args_t* args, accrt_kernel_pack_t* pack) {
  static const char* const options[] = {"type", "set", "input"};
  for (size_t i = 0; i < sizeof options / sizeof *options; ++i) {
    size_t cursor = 0;
    for (const char* text; (text = accx_args_next(args, options[i], &cursor));) {
      const char* equals = strchr(text, '=');
      if (!equals || equals == text)
        return accx_fail(ACCX_USAGE, "--%s is '%s'; it must be NAME=%s", options[i], text,
                         i == 0 ? "TYPE[SIZES], for instance x=f32[n]" : "VALUE");
      const char* name = accx_text("%.*s", (int)(equals - text), text);
      const bool size = strcmp(options[i], "set") == 0 && is_mentioned(args, name);
      if (!size && !has_param(pack, name))
        return accx_fail(ACCX_USAGE, "--%s '%s': no kernel of the pack has a parameter '%s'",
                         options[i], text, name);
      if (text_for(args, options[i], name) != equals + 1)
        return accx_fail(ACCX_USAGE, "--%s gives '%s' twice", options[i], name);
    }
  }
  return ACCX_OK;
}

/* ---- Types ---- */

/* Puts spaces around operators, which the grammar of sizes wants. */
static const char* spaced(const char* text) {
  char* copy = accx_alloc(3 * strlen(text) + 1, 1);
  char* to = copy;
  char before = '(';
  for (const char* at = text; *at; ++at) {
    const bool two = (at[0] == '/' && at[1] == '/') || strncmp(at, "==", 2) == 0 ||
                     strncmp(at, "!=", 2) == 0 || strncmp(at, "<=", 2) == 0;
    const bool minus = *at == '-' && strchr("([,+-*/%=<", before) == NULL; /* not of a number */
    const bool one = minus || strchr("+*%<", *at) != NULL;
    if (*at != ' ')
      before = *at;
    if (!two && !one) {
      *to++ = *at;
      continue;
    }
    *to++ = ' ';
    *to++ = *at;
    if (two)
      *to++ = *++at;
    *to++ = ' ';
  }
  *to = '\0';
  const char* kept = accx_text("%s", copy);
  free(copy);
  return kept;
}

accrt_dtype_t accx_kernel_dtype(const char* name, size_t length) {
  for (accrt_dtype_t id = 1; id < 64; ++id) {
    const char* known = accrt_dtype_name(id);
    if (accrt_dtype_bits(id) > 0 && strlen(known) == length && memcmp(known, name, length) == 0)
      return id;
  }
  return ACCRT_DTYPE_NONE;
}

const char* accx_kernel_declared_type(const char* text, uint32_t* out_access) {
  static const struct {
    const char* word;
    uint32_t access;
  } words[] = {{"read_write", ACCRT_KERNEL_ACCESS_READ_WRITE},
               {"read", ACCRT_KERNEL_ACCESS_READ},
               {"write", ACCRT_KERNEL_ACCESS_WRITE}};
  const size_t length = strcspn(text, " ");
  *out_access = ACCRT_KERNEL_ACCESS_NONE;
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (strlen(words[i].word) != length || memcmp(words[i].word, text, length) != 0)
      continue;
    *out_access = words[i].access;
    return text + length + strspn(text + length, " ");
  }
  return text;
}

/* The type of a parameter: from --type, or from --param, where kernels have no table. */
static const char* type_for(const accx_args_t* args, const char* name) {
  const char* type = text_for(args, "type", name);
  const char* param = text_for(args, "param", name);
  uint32_t access;
  if (type || !param)
    return type;
  param = accx_kernel_declared_type(param, &access);
  return param[0] ? param : NULL;
}

/* Dimensions of "f32[a, min(b, c)]"; UINT32_MAX if brackets do not match. */
static uint32_t count_sizes(const char* text) {
  const char* at = strchr(text, '[');
  uint32_t count = 0;
  int depth = 0;
  if (!at)
    return 0;
  at += 1 + strspn(at + 1, " ");
  count = *at != ']';
  for (; *at && (depth > 0 || *at != ']'); ++at) {
    depth += (*at == '(') - (*at == ')');
    count += *at == ',' && depth == 0;
  }
  return *at == ']' && at[1] == '\0' && depth == 0 ? count : UINT32_MAX;
}

static int bad_type(const accx_kernel_value_t* value, const char* text) {
  return accx_fail(ACCX_USAGE,
                   "--type '%s=%s' is no type: it must be an element type, and sizes in brackets, "
                   "for instance f32[rows, 4 * columns]",
                   value->param->name, text);
}

static int read_type(accx_kernel_value_t* value, const char* text) {
  const char* name = value->param->name;
  value->dtype = accx_kernel_dtype(text, strcspn(text, "["));
  value->rank = count_sizes(text);
  if (value->dtype == ACCRT_DTYPE_NONE || value->rank > ACCRT_KERNEL_MAX_RANK)
    return bad_type(value, text);
  if (is_length(value) || is_symbol(value))
    return accx_fail(ACCX_USAGE, "--type '%s=%s': %s is a size, which has no type", name, text,
                     name);
  const bool scalar = !accx_kernel_is_memory(value);
  if (scalar && (value->rank > 0 || strchr(text, '[') ||
                 accrt_dtype_bits(value->dtype) != 8 * value->param->size_bytes))
    return accx_fail(ACCX_USAGE, "--type '%s=%s': %s is a number of %u bytes", name, text, name,
                     value->param->size_bytes);
  value->type = spaced(text);
  return ACCX_OK;
}

static int read_pattern(accx_kernel_value_t* value, const char* text) {
  static const char* const patterns[] = {"zeros", "ones", "arange", "random"};
  const size_t count = sizeof patterns / sizeof *patterns;
  int64_t seed = 0;
  const char* word = strncmp(text, "random:", 7) == 0 ? "random" : text;
  if (word != text && (!accx_parse_i64(text + 7, &seed) || seed < 0))
    return accx_fail(ACCX_USAGE, "the seed in '%s' must be a whole number from 0", text);
  value->seed = (uint64_t)seed;
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(word, patterns[i]) == 0)
      return value->pattern = patterns[i], ACCX_OK;
  }
  return accx_fail(ACCX_USAGE, "--input '%s=%s' must be zeros, ones, arange or random[:SEED]%s",
                   value->param->name, text, accx_near(word, patterns, count));
}

/* ---- Sizes ---- */

static bool look_up(void* self, const char* name, size_t length, int64_t* out_value) {
  accx_kernel_plan_t* plan = self;
  for (uint32_t i = 0; i < plan->value_count; ++i) {
    accx_kernel_value_t* value = &plan->values[i];
    if (strlen(value->param->name) != length || memcmp(value->param->name, name, length) != 0)
      continue;
    value->sizes = true;
    *out_value = value->number;
    return !accx_kernel_is_memory(value) && !is_length(value);
  }
  plan->unknown = accx_text("%.*s", (int)length, name);
  return false;
}

static bool is_present(void* self, int64_t input) {
  (void)self;
  (void)input;
  return true;
}

static int size_of(accx_kernel_plan_t* plan, const char* what, const char* type, uint32_t index,
                   int64_t* out_value) {
  const accx_size_text_t names = {plan, look_up, is_present};
  plan->unknown = NULL;
  if (accx_size_in_type(&names, type, index, out_value))
    return ACCX_OK;
  /* A word with an operator that sizes do not have is no name. */
  if (plan->unknown && strpbrk(plan->unknown, "/%^&|<>") == NULL)
    return accx_fail(ACCX_USAGE,
                     "kernel %s: %s '%s' has the size %s, which is no parameter: give its values, "
                     "--set %s=1,37",
                     plan->info.name, what, type, plan->unknown, plan->unknown);
  return accx_fail(
      ACCX_USAGE,
      "kernel %s: size %u of %s '%s' cannot be computed%s%s: sizes are numbers, names "
      "of sizes, (n + 1) // 2, ceildiv(n, 256), min and max, with one operator in each "
      "pair of brackets",
      plan->info.name, index, what, type, plan->with[0] ? " with " : "", plan->with);
}

/* Evaluates every size once, so that it is known on what they depend. */
static int find_sizes(accx_kernel_plan_t* plan) {
  int code = ACCX_OK;
  int64_t ignored;
  for (uint32_t i = 0; i < plan->value_count; ++i)
    plan->values[i].number = 1;
  for (uint32_t i = 0; i < plan->info.param_count; ++i) {
    for (uint32_t d = 0; d < plan->values[i].rank && !code; ++d)
      code = size_of(plan, "--type", plan->values[i].type, d, &ignored);
  }
  for (uint32_t d = 0; plan->grid_text && d < count_sizes(plan->grid_text) && !code; ++d)
    code = size_of(plan, "--grid", plan->grid_text, d, &ignored);
  return code;
}

/* ---- The plan ---- */

static bool wants_type(const accx_kernel_value_t* value) {
  return accx_kernel_is_memory(value) && !value->type &&
         !(value->param->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL);
}

/* What has to be said of a kernel that does not declare enough, with an example. */
static const char* find_needs(const accx_kernel_plan_t* plan) {
  const char* size = "1024";
  const char* example = "";
  bool types = false;
  for (uint32_t i = plan->info.param_count; i-- > 0;) {
    if (is_symbol(&plan->values[i]))
      size = plan->values[i].param->name;
  }
  for (uint32_t i = 0; i < plan->info.param_count; ++i) {
    if (!wants_type(&plan->values[i]))
      continue;
    types = true;
    example = accx_text("%s --type '%s=f32[%s]'", example, plan->values[i].param->name, size);
  }
  if (!plan->grid_text)
    example = accx_text("%s --grid 'ceildiv(%s, 256)'", example, size);
  if (!types && plan->grid_text)
    return NULL;
  return accx_text("its pack does not declare %s%s%s; give what is right, for instance%s",
                   types ? "how large its memory is" : "",
                   types && !plan->grid_text ? ", and " : "",
                   plan->grid_text ? "" : "how many workgroups it takes", example);
}

static bool is_free(const accx_kernel_value_t* value) {
  return !value->set && value->sizes;
}

/* The number of values of "1,37,4096". */
static uint32_t set_count(const char* set) {
  uint32_t count = 1;
  for (; set && *set; ++set)
    count += *set == ',';
  return count;
}

static void count_cases(accx_kernel_plan_t* plan) {
  bool sizes = false, free_sizes = false;
  plan->plain = 1;
  for (uint32_t i = 0; i < plan->value_count; ++i) {
    const accx_kernel_value_t* value = &plan->values[i];
    sizes = sizes || value->sizes;
    free_sizes = free_sizes || is_free(value);
    if (set_count(value->set) > plan->plain)
      plan->plain = set_count(value->set);
  }
  if (free_sizes && plan->plain < PLAIN_CASES)
    plan->plain = PLAIN_CASES;
  if (plan->needs)
    plan->plain = 0, sizes = false;
  plan->case_count = plan->plain + sizes;
  if (may_be_hostile(plan))
    plan->case_count += (uint32_t)HOSTILE_COUNT;
  if (plan->case_count > 0)
    plan->needs = NULL;
}

/* Sizes of --set that are no parameters: dimensions of a TENSOR. */
static int add_extras(accx_kernel_plan_t* plan) {
  size_t cursor = 0;
  plan->value_count = plan->info.param_count;
  for (const char* text; (text = accx_args_next(plan->args, "set", &cursor));) {
    const char* name = accx_text("%.*s", (int)strcspn(text, "="), text);
    uint32_t at = 0;
    while (at < plan->value_count && strcmp(plan->values[at].param->name, name) != 0)
      ++at;
    if (at < plan->value_count)
      continue;
    if (at == plan->info.param_count + ACCX_KERNEL_MAX_EXTRAS)
      return accx_fail(ACCX_USAGE, "at most %u --set of names that are no parameters",
                       ACCX_KERNEL_MAX_EXTRAS);
    accrt_kernel_param_t* param = &plan->extras[at - plan->info.param_count];
    param->name = name;
    param->kind = ACCRT_KERNEL_PARAM_SYMBOL;
    param->size_bytes = 8;
    plan->values[at].param = param;
    plan->values[at].set = text_for(plan->args, "set", name);
    ++plan->value_count;
  }
  return ACCX_OK;
}

int accx_kernel_plan(const accx_args_t* args, const accrt_kernel_info_t* info,
                     accx_kernel_plan_t* out_plan) {
  accx_kernel_plan_t* plan = out_plan;
  const char* grid = accx_args_value(args, "grid");
  int code = ACCX_OK;
  *plan = (accx_kernel_plan_t){.args = args, .info = *info};
  plan->grid_text = grid ? spaced(accx_text("[%s]", grid)) : NULL;
  if (grid && (count_sizes(plan->grid_text) < 1 || count_sizes(plan->grid_text) > 3))
    return accx_fail(ACCX_USAGE,
                     "--grid is '%s'; it must be one to three sizes, for instance "
                     "'ceildiv(n, 256), heads'",
                     grid);
  for (uint32_t i = 0; i < info->param_count && !code; ++i) {
    accx_kernel_value_t* value = &plan->values[i];
    value->param = &info->params[i];
    value->pattern = "random";
    value->set = text_for(args, "set", value->param->name);
    const char* type = type_for(args, value->param->name);
    const char* pattern = text_for(args, "input", value->param->name);
    if (type)
      code = read_type(value, type);
    if (!code && pattern)
      code = read_pattern(value, pattern);
    if (!code && value->set && (accx_kernel_is_memory(value) || is_length(value)))
      code = accx_fail(ACCX_USAGE, "--set '%s=%s': %s is %s", value->param->name, value->set,
                       value->param->name,
                       is_length(value) ? "a length, which follows from its memory"
                                        : "memory: give --type and --input");
  }
  if (!code)
    code = add_extras(plan);
  if (code)
    return code;
  plan->needs = find_needs(plan);
  if (!plan->needs)
    code = find_sizes(plan);
  count_cases(plan);
  return code;
}

/* ---- Values of one case ---- */

static int bad_set(const accx_kernel_value_t* value, const char* text) {
  return accx_fail(ACCX_USAGE, "--set '%s=%s': '%s' is no %s of %u bytes", value->param->name,
                   value->set, text,
                   value->param->kind == ACCRT_KERNEL_PARAM_SYMBOL ? "whole number" : "number",
                   value->param->size_bytes);
}

static bool is_real(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F64;
}

/* Sets a number from text: a whole one, or a float of the parameter's size. */
static int set_number(accx_kernel_value_t* value, const char* text) {
  const uint32_t size = value->param->size_bytes;
  const bool symbol = value->param->kind == ACCRT_KERNEL_PARAM_SYMBOL;
  char* end = NULL;
  if (!is_real(value->dtype) && accx_parse_i64(text, &value->number)) {
    value->bits = (uint64_t)value->number;
    const int64_t limit = size < 8 ? INT64_C(1) << (8 * size) : 0;
    const bool fits = size == 8 || (value->number < limit && value->number >= -(limit / 2));
    return fits ? ACCX_OK : bad_set(value, text);
  }
  const double real = strtod(text, &end);
  const bool whole = value->type && !is_real(value->dtype);
  if (symbol || whole || end == text || *end || (size != 4 && size != 8))
    return bad_set(value, text);
  const float narrow = (float)real;
  uint32_t bits = 0;
  memcpy(&bits, &narrow, sizeof bits);
  memcpy(&value->bits, &real, sizeof value->bits);
  if (size == 4)
    value->bits = bits;
  return ACCX_OK;
}

/* The index-th of the values of --set; the last ones begin again. */
static int take_set(accx_kernel_value_t* value, uint32_t index) {
  const char* at = value->set;
  for (uint32_t skip = index % set_count(value->set); skip > 0; --skip)
    at = strchr(at, ',') + 1;
  return set_number(value, accx_text("%.*s", (int)strcspn(at, ","), at));
}

static int default_number(accx_kernel_value_t* value) {
  if (value->param->kind == ACCRT_KERNEL_PARAM_SYMBOL)
    return value->number = 0, value->bits = 0, ACCX_OK;
  return set_number(value, "1");
}

static void set_whole(accx_kernel_value_t* value, int64_t number) {
  value->number = number;
  value->bits = (uint64_t)number;
}

/* True when sizes of 0 do not leave this one as --set says. */
static bool becomes_zero(const accx_kernel_plan_t* plan, const accx_kernel_value_t* value) {
  bool any_free = false;
  for (uint32_t i = 0; i < plan->value_count; ++i)
    any_free = any_free || is_free(&plan->values[i]);
  return value->sizes && (!value->set || !any_free);
}

static int set_value(accx_kernel_plan_t* plan, accx_kernel_value_t* value, uint32_t index,
                     uint32_t free_count) {
  const size_t row = free_count - 1 < LADDER_COUNT ? free_count - 1 : LADDER_COUNT - 1;
  if (plan->hostile && is_symbol(value))
    return set_whole(value, hostile[index - (plan->case_count - HOSTILE_COUNT)]), ACCX_OK;
  if (plan->zero && becomes_zero(plan, value))
    return set_whole(value, 0), ACCX_OK;
  if (value->set)
    return take_set(value, index);
  if (is_free(value))
    return set_whole(value, ladder[row][index % PLAIN_CASES]), ACCX_OK;
  return default_number(value);
}

static void describe_case(accx_kernel_plan_t* plan) {
  size_t used = 0;
  plan->with[0] = '\0';
  if (plan->zero) {
    strcpy(plan->with, "sizes of 0");
    return;
  }
  for (uint32_t i = 0; i < plan->value_count; ++i) {
    const accx_kernel_value_t* value = &plan->values[i];
    const bool named = plan->hostile ? is_symbol(value) : value->sizes;
    const char* text =
        accx_text("%s%s=%" PRId64, used ? " " : "", value->param->name, value->number);
    if (!named || used + strlen(text) >= sizeof plan->with)
      continue;
    strcpy(plan->with + used, text);
    used += strlen(text);
  }
}

/* ---- Memory of one case ---- */

static bool bytes_of(const accx_kernel_value_t* value, uint64_t* out_bytes) {
  uint64_t bits = accrt_dtype_bits(value->dtype);
  for (uint32_t d = 0; d < value->rank; ++d) {
    if (value->shape[d] == 0)
      return *out_bytes = 0, true;
    if (__builtin_mul_overflow(bits, (uint64_t)value->shape[d], &bits))
      return false;
  }
  *out_bytes = bits / 8 + (bits % 8 != 0);
  return true;
}

static int plain_memory(accx_kernel_plan_t* plan, accx_kernel_value_t* value) {
  int code = ACCX_OK;
  value->absent = !value->type;
  value->size_bytes = 0;
  for (uint32_t d = 0; d < value->rank && !code; ++d)
    code =
        size_of(plan, accx_text("--type %s", value->param->name), value->type, d, &value->shape[d]);
  if (code || value->absent)
    return code;
  if (!bytes_of(value, &value->size_bytes) || value->size_bytes > MOST_BYTES)
    return accx_fail(ACCX_USAGE, "kernel %s: %s is too large%s%s: give smaller sizes with --set",
                     plan->info.name, value->param->name, plan->with[0] ? " with " : "",
                     plan->with);
  return ACCX_OK;
}

/* Of a kernel that takes anything: bytes, in the shape of a vector. */
static void hostile_memory(accx_kernel_value_t* value) {
  if (!value->type)
    value->dtype =
        value->param->kind == ACCRT_KERNEL_PARAM_TENSOR ? ACCRT_DTYPE_F32 : ACCRT_DTYPE_U8;
  value->rank = 1;
  value->shape[0] = (int64_t)(HOSTILE_BYTES * 8 / accrt_dtype_bits(value->dtype));
  value->size_bytes = HOSTILE_BYTES;
  value->absent = false;
}

static void set_lengths(accx_kernel_plan_t* plan) {
  uint32_t memory = 0;
  for (uint32_t i = 0; i < plan->info.param_count; ++i) {
    if (!is_length(&plan->values[i]))
      continue;
    while (memory < i && plan->values[memory].param->kind != ACCRT_KERNEL_PARAM_BUFFER &&
           plan->values[memory].param->kind != ACCRT_KERNEL_PARAM_WORKSPACE)
      ++memory;
    set_whole(&plan->values[i], (int64_t)plan->values[memory].size_bytes);
    ++memory;
  }
}

static int set_grid(accx_kernel_plan_t* plan) {
  int code = ACCX_OK;
  plan->grid[0] = plan->hostile ? 3 : 1;
  plan->grid[1] = plan->grid[2] = 1;
  const uint32_t rank = plan->hostile || !plan->grid_text ? 0 : count_sizes(plan->grid_text);
  for (uint32_t d = 0; d < rank && !code; ++d) {
    int64_t size = 0;
    code = size_of(plan, "--grid", plan->grid_text, d, &size);
    if (!code && plan->zero && size == 0)
      size = 1; /* a grid that is rounded up */
    if (!code && (size < 1 || size > UINT32_MAX))
      code = accx_fail(ACCX_USAGE, "kernel %s: --grid is %" PRId64 " workgroups%s%s",
                       plan->info.name, size, plan->with[0] ? " with " : "", plan->with);
    plan->grid[d] = (uint32_t)size;
  }
  return code;
}

int accx_kernel_plan_case(accx_kernel_plan_t* plan, uint32_t index) {
  uint32_t free_count = 0;
  uint64_t total = 0;
  int code = ACCX_OK;
  plan->hostile = may_be_hostile(plan) && index >= plan->case_count - HOSTILE_COUNT;
  plan->zero = !plan->hostile && index >= plan->plain;
  for (uint32_t i = 0; i < plan->value_count; ++i)
    free_count += is_free(&plan->values[i]);
  for (uint32_t i = 0; i < plan->value_count && !code; ++i) {
    accx_kernel_value_t* value = &plan->values[i];
    if (!accx_kernel_is_memory(value) && !is_length(value))
      code = set_value(plan, value, index, free_count);
  }
  describe_case(plan);
  for (uint32_t i = 0; i < plan->info.param_count && !code; ++i) {
    accx_kernel_value_t* value = &plan->values[i];
    if (!accx_kernel_is_memory(value))
      continue;
    if (plan->hostile)
      hostile_memory(value);
    else
      code = plain_memory(plan, value);
    total += value->size_bytes;
  }
  if (!code && total > MOST_BYTES)
    code = accx_fail(ACCX_USAGE,
                     "kernel %s: its arguments are too large with %s: give smaller "
                     "sizes with --set",
                     plan->info.name, plan->with);
  set_lengths(plan);
  return code ? code : set_grid(plan);
}
