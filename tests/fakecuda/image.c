/* tests/fakecuda/image.c - reads what kernels, and with which parameters, are in PTX, cubins and fatbins. */
#include "fake.h"

#include <ctype.h>
#include <elf.h>

#define FATBIN_MAGIC 0xBA55ED50u
#define FATBIN_WRAPPER_MAGIC 0x466243B1u
#define FATBIN_PTX 1
#define FATBIN_ELF 2
#define FATBIN_COMPRESSED 0xA000u /* LZ4, zstd */
#define MACHINE_CUDA 190
#define INFO_MAX_THREADS 0x05
#define INFO_PARAM 0x17
#define INFO_REGISTERS 0x2F

static image_kernel_t* add_kernel(image_t* image, const char* name, size_t length) {
  image_kernel_t* larger = realloc(image->kernels, (image->kernel_count + 1) * sizeof *larger);
  if (larger == NULL)
    abort();
  image->kernels = larger;
  image_kernel_t* kernel = &larger[image->kernel_count++];
  memset(kernel, 0, sizeof *kernel);
  kernel->max_threads = 1024;
  kernel->registers = 32;
  memcpy(kernel->name, name, length < sizeof kernel->name ? length : sizeof kernel->name - 1);
  return kernel;
}

void image_free(image_t* image) {
  free(image->kernels);
  *image = (image_t){.arch = 0};
}

/* ---- PTX ---- */

static const char* skip_space(const char* at) {
  while (isspace((unsigned char)*at))
    ++at;
  return at;
}

/* The text without comments, as long as the original. */
static char* without_comments(const char* text) {
  char* clean = strdup(text);
  if (clean == NULL)
    abort();
  for (char* at = clean; *at != '\0'; ++at) {
    if (at[0] != '/' || (at[1] != '/' && at[1] != '*'))
      continue;
    const bool is_line = at[1] == '/';
    for (; *at != '\0'; ++at) {
      if (is_line ? *at == '\n' : (at[0] == '*' && at[1] == '/'))
        break;
      *at = ' ';
    }
    if (*at == '\0')
      break;
    if (!is_line)
      at[0] = at[1] = ' ';
  }
  return clean;
}

static uint32_t type_size(const char* type) { /* ".u64" and so on */
  const char* digits = type;
  while (*digits != '\0' && !isdigit((unsigned char)*digits))
    ++digits;
  const uint32_t bits = (uint32_t)strtoul(digits, NULL, 10);
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? bits / 8 : 0;
}

/* One `.param .align 8 .b8 name[16]`; false: not understood. */
static bool read_param(image_kernel_t* kernel, char* text) {
  uint32_t alignment = 0;
  uint32_t size = 0;
  uint32_t count = 1;
  char* rest = text;
  char* word = NULL;
  if (kernel->param_count == IMAGE_MAX_PARAMS)
    return false;
  while ((word = strsep(&rest, " \t\r\n")) != NULL) {
    if (strcmp(word, ".align") == 0 && rest != NULL) {
      rest = (char*)(uintptr_t)skip_space(rest);
      alignment = (uint32_t)strtoul(strsep(&rest, " \t\r\n"), NULL, 10);
    } else if (word[0] == '.' && strcmp(word, ".param") != 0 && strcmp(word, ".ptr") != 0 &&
               strcmp(word, ".global") != 0 && size == 0) {
      size = type_size(word);
    } else if (strchr(word, '[') != NULL) {
      count = (uint32_t)strtoul(strchr(word, '[') + 1, NULL, 10);
    }
  }
  if (size == 0)
    return false;
  alignment = count == 1 && size > alignment ? size : alignment == 0 ? size : alignment;
  const uint32_t offset = (kernel->params_size + alignment - 1) / alignment * alignment;
  kernel->param_offset[kernel->param_count] = offset;
  kernel->param_size[kernel->param_count++] = size * count;
  kernel->params_size = offset + size * count;
  return true;
}

static bool read_params(image_kernel_t* kernel, const char* begin, const char* end) {
  char* list = strndup(begin, (size_t)(end - begin));
  char* rest = list;
  bool is_good = list != NULL;
  for (char* one; is_good && (one = strsep(&rest, ",")) != NULL;) {
    if (*skip_space(one) != '\0')
      is_good = read_param(kernel, one);
  }
  free(list);
  return is_good;
}

static CUresult parse_entry(image_t* image, const char* at, const char** out_next) {
  at = skip_space(at);
  const char* name = at;
  while (isalnum((unsigned char)*at) || *at == '_' || *at == '$')
    ++at;
  image_kernel_t* kernel = add_kernel(image, name, (size_t)(at - name));
  at = skip_space(at);
  if (*at == '(') {
    const char* end = strchr(at, ')');
    if (end == NULL || !read_params(kernel, at + 1, end))
      return CUDA_ERROR_INVALID_PTX;
    at = end + 1;
  }
  const char* body = strchr(at, '{');
  if (body == NULL)
    return CUDA_ERROR_INVALID_PTX;
  const char* limit = strstr(at, ".maxntid");
  if (limit != NULL && limit < body) {
    unsigned size[3] = {1, 1, 1};
    sscanf(limit, ".maxntid %u , %u , %u", &size[0], &size[1], &size[2]);
    kernel->max_threads = size[0] * size[1] * size[2];
  }
  *out_next = body;
  return CUDA_SUCCESS;
}

static CUresult parse_ptx(const char* text, image_t* image) {
  image->is_ptx = true;
  const char* target = strstr(text, ".target");
  if (strstr(text, ".version") == NULL || target == NULL ||
      sscanf(target, ".target sm_%d", &image->arch) != 1)
    return CUDA_ERROR_INVALID_PTX;
  int major = 0;
  int minor = 0;
  const int newest =
      (fake.settings.driver_version / 1000 - 4) * 10 + fake.settings.driver_version % 1000 / 10;
  if (sscanf(strstr(text, ".version"), ".version %d.%d", &major, &minor) != 2)
    return CUDA_ERROR_INVALID_PTX;
  if (major * 10 + minor > newest)
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  int depth = 0;
  for (const char* at = text; *at != '\0'; ++at)
    depth += (*at == '{') - (*at == '}');
  if (depth != 0)
    return CUDA_ERROR_INVALID_PTX;
  CUresult result = CUDA_SUCCESS;
  for (const char* at = text; result == CUDA_SUCCESS && (at = strstr(at, ".entry")) != NULL;)
    result = parse_entry(image, at + 6, &at);
  return result;
}

/* ---- Cubins ---- */

static uint32_t word_at(const unsigned char* at) {
  uint32_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

static image_kernel_t* kernel_of(image_t* image, const char* name) {
  for (uint32_t i = 0; i < image->kernel_count; ++i) {
    if (strcmp(image->kernels[i].name, name) == 0)
      return &image->kernels[i];
  }
  return NULL;
}

/* Attributes: {format, id, and by format nothing more, a value of 2 bytes, or its size and that many bytes}. */
static void read_info(image_kernel_t* kernel, const unsigned char* at, uint64_t size_bytes) {
  const unsigned char* end = at + size_bytes;
  while (end - at >= 4) {
    const unsigned format = at[0];
    const unsigned id = at[1];
    const uint32_t length = format == 4 ? (uint32_t)(at[2] | at[3] << 8) : 0;
    if (format == 4 && id == INFO_PARAM && length >= 12) {
      const uint32_t place = word_at(at + 8);
      const uint32_t ordinal = place & 0xFFFFu;
      if (ordinal < IMAGE_MAX_PARAMS) {
        kernel->param_offset[ordinal] = place >> 16;
        kernel->param_size[ordinal] = word_at(at + 12) >> 18 & 0x3FFFu;
        if (ordinal >= kernel->param_count)
          kernel->param_count = ordinal + 1;
        if (kernel->params_size < kernel->param_offset[ordinal] + kernel->param_size[ordinal])
          kernel->params_size = kernel->param_offset[ordinal] + kernel->param_size[ordinal];
      }
    }
    if (format == 4 && id == INFO_MAX_THREADS && length >= 12)
      kernel->max_threads = word_at(at + 4) * word_at(at + 8) * word_at(at + 12);
    at += 4 + length;
  }
}

static CUresult parse_cubin(const unsigned char* data, image_t* image) {
  Elf64_Ehdr header;
  memcpy(&header, data, sizeof header);
  if (header.e_machine != MACHINE_CUDA || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
    return CUDA_ERROR_INVALID_IMAGE;
  image->arch = (int)(header.e_ident[EI_OSABI] == 0x41 ? header.e_flags >> 8 & 0xFFu
                                                       : header.e_flags & 0xFFu);
  const Elf64_Shdr* sections = (const Elf64_Shdr*)(const void*)(data + header.e_shoff);
  const char* names = (const char*)data + sections[header.e_shstrndx].sh_offset;
  for (int pass = 0; pass < 2; ++pass) {
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      const char* name = names + sections[i].sh_name;
      const unsigned char* bytes = data + sections[i].sh_offset;
      if (pass == 0 && strncmp(name, ".text.", 6) == 0)
        add_kernel(image, name + 6, strlen(name + 6));
      if (pass == 1 && strncmp(name, ".nv.info.", 9) == 0 && kernel_of(image, name + 9) != NULL)
        read_info(kernel_of(image, name + 9), bytes, sections[i].sh_size);
      if (pass == 1 && strncmp(name, ".nv.shared.", 11) == 0 && kernel_of(image, name + 11) != NULL)
        kernel_of(image, name + 11)->static_shared = (uint32_t)sections[i].sh_size;
    }
  }
  return CUDA_SUCCESS;
}

/* ---- Either, or a fatbin with several ---- */

static bool runs_on(const image_t* image, int arch) {
  return image->is_ptx ? image->arch <= arch
                       : image->arch / 10 == arch / 10 && image->arch % 10 <= arch % 10;
}

static CUresult parse_text(const char* text, int arch, image_t* image) {
  char* clean = without_comments(text);
  CUresult result = parse_ptx(clean, image);
  free(clean);
  if (result == CUDA_SUCCESS && !runs_on(image, arch))
    result = CUDA_ERROR_INVALID_PTX; /* what the real compiler says to a target that is too new */
  return result;
}

static CUresult parse_fatbin(const unsigned char* data, int arch, image_t* image) {
  uint64_t total = 0;
  memcpy(&total, data + 8, sizeof total);
  const uint64_t header_bytes = (uint64_t)(data[6] | data[7] << 8);
  CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (int wanted = FATBIN_ELF; wanted >= FATBIN_PTX && result != CUDA_SUCCESS; --wanted) {
    for (uint64_t at = header_bytes; at + 64 <= header_bytes + total;) {
      const unsigned char* entry = data + at;
      uint64_t size_bytes = 0;
      uint64_t flags = 0;
      memcpy(&size_bytes, entry + 8, sizeof size_bytes);
      memcpy(&flags, entry + 40, sizeof flags);
      const unsigned char* bytes = entry + word_at(entry + 4);
      at += word_at(entry + 4) + size_bytes;
      image_t candidate = {.arch = 0};
      if ((entry[0] | entry[1] << 8) != wanted || (flags & FATBIN_COMPRESSED) != 0)
        continue;
      const CUresult parsed = wanted == FATBIN_ELF
                                  ? parse_cubin(bytes, &candidate)
                                  : parse_text((const char*)bytes, arch, &candidate);
      if (parsed != CUDA_SUCCESS || !runs_on(&candidate, arch)) {
        image_free(&candidate);
        continue;
      }
      image_free(image);
      *image = candidate;
      result = CUDA_SUCCESS;
    }
  }
  return result;
}

CUresult image_parse(const void* data, int arch, image_t* out_image) {
  const unsigned char* bytes = data;
  *out_image = (image_t){.arch = 0};
  CUresult result;
  if (memcmp(bytes, ELFMAG, SELFMAG) == 0) {
    result = parse_cubin(bytes, out_image);
    if (result == CUDA_SUCCESS && !runs_on(out_image, arch))
      result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  } else if (word_at(bytes) == FATBIN_MAGIC) {
    result = parse_fatbin(bytes, arch, out_image);
  } else if (word_at(bytes) == FATBIN_WRAPPER_MAGIC) {
    const unsigned char* inner;
    memcpy(&inner, bytes + 8, sizeof inner);
    result = parse_fatbin(inner, arch, out_image);
  } else if ((isprint(bytes[0]) || isspace(bytes[0])) && strstr(data, ".version") != NULL) {
    result = parse_text(data, arch, out_image);
  } else {
    result = CUDA_ERROR_INVALID_IMAGE;
  }
  if (result != CUDA_SUCCESS)
    image_free(out_image);
  return result;
}
