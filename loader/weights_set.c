/* loader/weights_set.c - sources of several files: those that a safetensors index names, and the
 * parts of a split GGUF set. The names come from a file, so files are opened only by bare name, in
 * the folder of the user's path.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/json.h"
#include "loader/weights.h"
#include "runtime/core/safe_open.h"

/* ---- Opening within a folder ---- */

static bool is_bare_name(const char* name, size_t size_bytes) {
  return size_bytes > 0 && size_bytes <= ACCX_WEIGHTS_MAX_FILE_NAME_BYTES &&
         memchr(name, '/', size_bytes) == NULL && memchr(name, '\0', size_bytes) == NULL &&
         !(name[0] == '.' && (size_bytes == 1 || (size_bytes == 2 && name[1] == '.')));
}

size_t accx_folder_bytes(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

/* A bare name has one part and is neither "." nor "..", so O_NOFOLLOW keeps it in its folder.
 * Kernels before 5.6, and sandboxes without openat2, are therefore as strict. */
static int open_in(int folder, const char* name, bool follow) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  if (follow)
    return accrt_open_at(folder, name, flags, 0);
#ifdef SYS_openat2
  struct open_how how;
  memset(&how, 0, sizeof how);
  how.flags = (uint64_t)flags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long fd = syscall(SYS_openat2, folder, name, &how, sizeof how);
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != EAGAIN))
    return (int)fd;
#endif
  return accrt_open_at(folder, name, flags | O_NOFOLLOW, 0);
}

accrt_status_t accx_open_in(int folder_fd, const char* folder, const char* name, bool follow,
                            int* out_fd) {
  *out_fd = open_in(folder_fd, name, follow);
  const int error = errno;
  if (*out_fd >= 0)
    return ACCRT_OK;
  if (error == ENOENT)
    return ACCRT_FAIL_ERRNO(NOT_FOUND, error, "%s%s: no such file", folder, name);
  if (error == ELOOP || error == EXDEV)
    return ACCRT_FAIL_ERRNO(PERMISSION_DENIED, error,
                            "%s%s is a symbolic link, and what a file names is not looked for "
                            "through one",
                            folder, name);
  return ACCRT_FAIL_ERRNO(IO, error, "%s%s: could not be opened: %s", folder, name,
                          strerror(error));
}

accrt_status_t accx_open_beneath(const char* folder, const char* name, bool follow, int* out_fd) {
  *out_fd = -1;
  const int at = accrt_open_at(AT_FDCWD, folder[0] != '\0' ? folder : ".", O_PATH | O_DIRECTORY, 0);
  if (at < 0) {
    return ACCRT_FAIL_ERRNO(IO, errno, "the folder '%s' could not be opened: %s", folder,
                            strerror(errno));
  }
  const accrt_status_t status = accx_open_in(at, folder, name, follow, out_fd);
  close(at);
  if (status != ACCRT_ERROR_PERMISSION_DENIED)
    return status;
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s%s is a symbolic link: ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS "
                    "(follow_links=True) allows those of a set, as download caches have them",
                    folder, name);
}

/* The same rule as for a file that a bundle names without a digest: a file with a second name may
 * belong to another user, outside this folder. */
static accrt_status_t check_links(int fd, const char* full, bool follow) {
  struct stat facts;
  if (follow || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_nlink <= 1)
    return ACCRT_OK;
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s has %ju hard links: ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS "
                    "(follow_links=True) allows those of a set",
                    full, (uintmax_t)facts.st_nlink);
}

/* Opens a further file of a set in the folder of `path`, reads and checks it. */
static accrt_status_t add_named(accrt_weights_t* weights, const char* path, const char* name) {
  char folder[4096];
  char full[sizeof folder + ACCX_WEIGHTS_MAX_FILE_NAME_BYTES + 1];
  const size_t folder_bytes = accx_folder_bytes(path);
  if (folder_bytes >= sizeof folder)
    return ACCRT_FAIL_ERRNO(IO, ENAMETOOLONG, "the path has more than %zu bytes", sizeof folder);
  memcpy(folder, path, folder_bytes);
  folder[folder_bytes] = '\0';
  (void)snprintf(full, sizeof full, "%s%s", folder, name);
  int fd;
  const bool follow = (weights->flags & ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS) != 0;
  ACCRT_TRY(accx_open_beneath(folder, name, follow, &fd));
  accx_weights_file_t* file;
  accrt_status_t status = check_links(fd, full, follow);
  if (status == ACCRT_OK)
    status = accx_weights_add_file(weights, full, &file);
  if (status != ACCRT_OK) {
    close(fd);
    return status;
  }
  ACCRT_TRY(accx_source_take_fd(fd, full, &file->source));
  return accx_weights_load_file(weights, weights->file_count - 1);
}

static accrt_status_t need_path(const accrt_weights_t* weights, const char* path,
                                const char* what) {
  if (path != NULL)
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED,
                    "%s is %s: a set of files is opened by its path, without the flag "
                    "ACCRT_WEIGHTS_FLAG_ONE_FILE",
                    weights->name, what);
}

/* ---- Indices of safetensors files ---- */

/* The content of an index: names of tensors, each with its file. It is separate from the source's
 * lists while files are read. */
typedef struct pair {
  const char* tensor;
  uint32_t tensor_bytes;
  uint32_t file;
} pair_t;
typedef struct named_file {
  const char* name;
  uint64_t hash;
} named_file_t;
#define FILE_PLACES (2 * ACCX_WEIGHTS_MAX_FILES) /* a power of two */
typedef struct index {
  accrt_weights_t* weights;
  accx_json_t json;
  pair_t* pairs;
  size_t pair_capacity;
  uint32_t pair_count;
  uint32_t file_count;
  named_file_t files[ACCX_WEIGHTS_MAX_FILES];
  uint64_t seed;
  uint16_t places[FILE_PLACES]; /* open addressing: file + 1; 0: free */
} index_t;

static accrt_status_t bad_json(const index_t* index) {
  return ACCX_REFUSE(index->weights->name, index_JSON, "%s at byte %zu", index->json.error,
                     accx_json_offset(&index->json));
}
#define NEED(expression)                                                                           \
  do {                                                                                             \
    if (!(expression))                                                                             \
      return bad_json(index);                                                                      \
  } while (0)

static accrt_status_t number_of(index_t* index, const char* name, size_t name_bytes,
                                uint32_t* out_file) {
  const char* const own = index->weights->name;
  const uint64_t hash = accx_hash_name(name, name_bytes, index->seed);
  uint32_t at = (uint32_t)hash % FILE_PLACES;
  for (; index->places[at] != 0; at = (at + 1) % FILE_PLACES) {
    const uint32_t file = index->places[at] - 1u;
    if (index->files[file].hash != hash || strcmp(index->files[file].name, name) != 0)
      continue;
    *out_file = file;
    return ACCRT_OK;
  }
  if (!is_bare_name(name, name_bytes))
    return ACCX_REFUSE(own, index_FILE_NAME, "'%.300s' is not the bare name of a file", name);
  if (index->file_count == ACCX_WEIGHTS_MAX_FILES)
    return ACCX_REFUSE(own, index_FILE_COUNT, "more than %u files", ACCX_WEIGHTS_MAX_FILES);
  index->files[index->file_count] = (named_file_t){name, hash};
  *out_file = index->file_count++;
  index->places[at] = (uint16_t)index->file_count;
  return ACCRT_OK;
}

static accrt_status_t read_map(index_t* index) {
  accx_json_t* json = &index->json;
  bool first = true;
  NEED(accx_json_take(json, '{', "weight_map is not an object"));
  for (;;) {
    const char *tensor, *file;
    size_t tensor_bytes, file_bytes;
    NEED(accx_json_member(json, &first, &tensor, &tensor_bytes));
    if (tensor == NULL)
      return ACCRT_OK;
    NEED(accx_json_string(json, &file, &file_bytes));
    ACCRT_TRY(ACCRT_GROW(index->weights->allocator, (size_t)index->pair_count + 1, &index->pairs,
                         &index->pair_capacity));
    ACCRT_TRY(accrt_charge_record(index->pair_count));
    pair_t* pair = &index->pairs[index->pair_count++];
    *pair = (pair_t){tensor, (uint32_t)tensor_bytes, 0};
    ACCRT_TRY(number_of(index, file, file_bytes, &pair->file));
  }
}

static accrt_status_t read_index(index_t* index) {
  accx_json_t* json = &index->json;
  bool first = true, had_map = false;
  NEED(accx_json_take(json, '{',
                      "neither weights of a known format nor an index: an object is missing"));
  for (;;) {
    const char* key;
    size_t key_bytes;
    NEED(accx_json_member(json, &first, &key, &key_bytes));
    if (key == NULL)
      break;
    if (strcmp(key, "weight_map") != 0) {
      NEED(accx_json_skip(json));
      continue;
    }
    NEED(!had_map || accx_json_fail(json, "a second weight_map"));
    had_map = true;
    ACCRT_TRY(read_map(index));
  }
  NEED(accx_json_finish(json));
  NEED(index->pair_count > 0 || accx_json_fail(json, "no tensor in a weight_map"));
  return ACCRT_OK;
}

/* Keeps only the tensors that the index names, each from the file that it names. */
static accrt_status_t keep_named(const index_t* index) {
  accrt_weights_t* weights = index->weights;
  uint32_t duplicate;
  ACCRT_TRY(accx_weights_make_table(weights, true, &duplicate));
  if (duplicate != ACCX_WEIGHTS_NONE) {
    const accx_weights_entry_t* entry = &weights->entries[duplicate];
    return ACCX_REFUSE(weights->files[entry->file].name, safetensors_TENSOR_NAME,
                       "tensor '%.200s' is there twice", entry->name);
  }
  for (uint32_t i = 0; i < index->pair_count; ++i) {
    const pair_t* pair = &index->pairs[i];
    const uint32_t found =
        accx_weights_lookup(weights, pair->tensor, pair->tensor_bytes, pair->file);
    if (found == ACCX_WEIGHTS_NONE) {
      return ACCX_REFUSE(weights->name, index_TENSOR, "file '%s' has no tensor '%.200s'",
                         index->files[pair->file].name, pair->tensor);
    }
    if (weights->entries[found].kept != 0)
      return ACCX_REFUSE(weights->name, index_TENSOR, "tensor '%.200s' is named twice",
                         pair->tensor);
    weights->entries[found].kept = 1;
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < weights->entry_count; ++i) {
    if (weights->entries[i].kept != 0)
      weights->entries[count++] = weights->entries[i];
  }
  weights->entry_count = count;
  /* Two files have a tensor with the same name, so the index has it twice. */
  ACCRT_TRY(accx_weights_make_table(weights, false, &duplicate));
  if (duplicate == ACCX_WEIGHTS_NONE)
    return ACCRT_OK;
  return ACCX_REFUSE(weights->name, index_TENSOR, "tensor '%.200s' is named twice",
                     weights->entries[duplicate].name);
}

static accrt_status_t open_named(const index_t* index, const char* path) {
  accrt_weights_t* weights = index->weights;
  accx_weights_forget_files(weights);
  for (uint32_t i = 0; i < index->file_count; ++i) {
    ACCRT_TRY(add_named(weights, path, index->files[i].name));
    if (weights->files[i].kind != ACCRT_WEIGHTS_KIND_SAFETENSORS)
      return ACCX_REFUSE(weights->name, index_FILE_KIND, "file '%s' is not a safetensors file",
                         index->files[i].name);
  }
  return keep_named(index);
}

static accrt_status_t read_text(accrt_weights_t* weights) {
  accx_source_t* source = &weights->files[0].source;
  unsigned char first = 0;
  ACCRT_TRY(accx_source_read(source, 0, &first, source->size_bytes > 0));
  if (first != '{') {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s holds neither safetensors, GGUF, .accx nor an index of files",
                      weights->name);
  }
  if (source->size_bytes > ACCX_WEIGHTS_MAX_HEADER_BYTES)
    return ACCX_REFUSE(weights->name, index_SIZE, "%" PRIu64 " bytes", source->size_bytes);
  void* memory;
  accrt_meter_at("index");
  accrt_meter_allow(source->size_bytes);
  ACCRT_TRY(accrt_alloc(weights->allocator, (size_t)source->size_bytes + 1, &memory));
  weights->index = memory;
  weights->index_bytes = (size_t)source->size_bytes + 1;
  accx_source_begin(source);
  const accrt_status_t status = accx_source_read(source, 0, memory, source->size_bytes);
  accx_source_end(source);
  return status;
}

accrt_status_t accx_weights_load_index(accrt_weights_t* weights, const char* path) {
  ACCRT_TRY(read_text(weights));
  ACCRT_TRY(need_path(weights, path, "an index of files"));
  index_t* index;
  ACCRT_TRY(ACCRT_NEW(weights->allocator, &index));
  index->weights = weights;
  index->seed = accrt_hash_seed();
  accx_json_init(&index->json, weights->index, weights->index_bytes - 1);
  accrt_status_t status = read_index(index);
  if (status == ACCRT_OK)
    status = open_named(index, path);
  accrt_free_array(weights->allocator, index->pairs, index->pair_capacity, sizeof *index->pairs);
  accrt_free(weights->allocator, index, sizeof *index);
  return status;
}

/* ---- Split GGUF sets ---- */

#define PART_TEXT "-%05u-of-%05u.gguf"
#define PART_TEXT_BYTES 20u

/* Gets the part of the name that all files of a set share, if `path` ends like part `number` of
 * `count`. */
static bool read_part_name(const char* path, uint32_t number, uint32_t count, char* out_stem,
                           size_t capacity_bytes) {
  char ending[64];
  const char* name = path + accx_folder_bytes(path);
  const size_t name_bytes = strlen(name);
  const int ending_bytes = snprintf(ending, sizeof ending, PART_TEXT, number + 1, count);
  if (ending_bytes < 0 || name_bytes <= (size_t)ending_bytes ||
      name_bytes - (size_t)ending_bytes >= capacity_bytes ||
      strcmp(name + name_bytes - (size_t)ending_bytes, ending) != 0)
    return false;
  memcpy(out_stem, name, name_bytes - (size_t)ending_bytes);
  out_stem[name_bytes - (size_t)ending_bytes] = '\0';
  return true;
}

accrt_status_t accx_weights_load_parts(accrt_weights_t* weights, const char* path) {
  const uint32_t number = weights->files[0].split_number, count = weights->files[0].split_count;
  const uint64_t tensors = weights->files[0].split_tensors;
  ACCRT_TRY(need_path(weights, path, "a part of a split set"));
  char stem[ACCX_WEIGHTS_MAX_FILE_NAME_BYTES + 1];
  if (number >= count || count > ACCX_WEIGHTS_MAX_FILES ||
      !read_part_name(path, number, count, stem, sizeof stem - PART_TEXT_BYTES)) {
    return ACCX_REFUSE(weights->name, gguf_SPLIT,
                       "it says it is part %" PRIu32 " of %" PRIu32
                       " (of at most %u); its name should end in '" PART_TEXT "'",
                       number, count, ACCX_WEIGHTS_MAX_FILES, number + 1, count);
  }
  accx_weights_forget_files(weights);
  for (uint32_t i = 0; i < count; ++i) {
    char name[ACCX_WEIGHTS_MAX_FILE_NAME_BYTES + PART_TEXT_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s" PART_TEXT, stem, i + 1, count);
    ACCRT_TRY(add_named(weights, path, name));
    const accx_weights_file_t* file = &weights->files[i];
    if (file->kind != ACCRT_WEIGHTS_KIND_GGUF || file->split_number != i ||
        file->split_count != count) {
      return ACCX_REFUSE(file->name, gguf_SPLIT_PARTS,
                         "it says it is part %" PRIu32 " of %" PRIu32 ", not part %" PRIu32
                         " of %" PRIu32,
                         file->split_number, file->split_count, i, count);
    }
  }
  if (weights->entry_count == tensors)
    return ACCRT_OK;
  return ACCX_REFUSE(weights->name, gguf_SPLIT_TENSORS,
                     "the parts have %" PRIu32 " tensors; they should have %" PRIu64,
                     weights->entry_count, tensors);
}
