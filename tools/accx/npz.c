/* tools/accx/npz.c - .npz files: ZIP archives of .npy files (zip.c). The claimed size of an entry
 * is compared with the maximum for its compressed bytes, so that a small archive cannot cause a
 * large allocation. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "zip.h"

/* Deflate expands a byte to at most 1032 bytes. */
#define MAX_RATIO 1032

struct accx_npz {
  const char* path;
  accx_zip_t archive;
};

int accx_npz_open(const char* path, accx_npz_t** out_npz) {
  *out_npz = NULL;
  FILE* file;
  const int code = accx_open_regular(path, 0, &file);
  if (code)
    return code;
  accx_npz_t* npz = accx_alloc(1, sizeof *npz);
  npz->path = path;
  const char* reason = accx_zip_open(file, &npz->archive);
  if (reason) {
    free(npz);
    return accx_fail(ACCX_FAILED, "cannot open %s: %s", path, reason);
  }
  *out_npz = npz;
  return ACCX_OK;
}

void accx_npz_close(accx_npz_t* npz) {
  if (!npz)
    return;
  accx_zip_close(&npz->archive);
  free(npz);
}

size_t accx_npz_count(const accx_npz_t* npz) {
  return npz->archive.count;
}

const char* accx_npz_name(const accx_npz_t* npz, size_t index) {
  const char* name = npz->archive.entries[index].name;
  const size_t length = strlen(name);
  if (length < 5 || strcmp(name + length - 4, ".npy") != 0)
    return NULL;
  return accx_text("%.*s", (int)(length - 4), name);
}

static bool read_entry(void* self, void* target, size_t size_bytes) {
  return accx_zip_stream_read(self, target, size_bytes);
}

static int check_entry(const accx_zip_entry_t* entry, const char* what) {
  if (entry->encrypted)
    return accx_fail(ACCX_FAILED, "%s is encrypted", what);
  if (entry->method != 0 && entry->method != 8)
    return accx_fail(ACCX_FAILED, "%s is compressed by method %u; numpy stores or deflates", what,
                     (unsigned)entry->method);
  if (entry->size_bytes / MAX_RATIO > entry->packed_bytes)
    return accx_fail(ACCX_FAILED,
                     "%s claims %" PRIu64 " bytes in %" PRIu64 " compressed ones, which cannot be",
                     what, entry->size_bytes, entry->packed_bytes);
  return ACCX_OK;
}

static const char* list_names(const accx_npz_t* npz) {
  const char* text = "";
  const size_t count = accx_npz_count(npz);
  for (size_t i = 0; i < count && i < 16; ++i) {
    const char* name = accx_npz_name(npz, i);
    if (name)
      text = accx_text("%s%s%s", text, text[0] ? ", " : "", name);
  }
  return accx_text("%s%s", text[0] ? text : "none", count > 16 ? ", ..." : "");
}

static const accx_zip_entry_t* find_entry(const accx_npz_t* npz, const char* name) {
  const char* member = accx_text("%s.npy", name);
  for (size_t i = 0; i < npz->archive.count; ++i) {
    if (strcmp(npz->archive.entries[i].name, member) == 0)
      return &npz->archive.entries[i];
  }
  return NULL;
}

int accx_npz_read(accx_npz_t* npz, const char* name, accx_array_t* out_array) {
  memset(out_array, 0, sizeof *out_array);
  const accx_zip_entry_t* entry = find_entry(npz, name);
  if (!entry)
    return accx_fail(ACCX_FAILED, "%s has no array '%s'; it has: %s", npz->path, name,
                     list_names(npz));
  const char* what = accx_text("'%s' in %s", name, npz->path);
  const int code = check_entry(entry, what);
  if (code)
    return code;
  accx_zip_stream_t* stream = NULL;
  const char* reason = accx_zip_stream_open(&npz->archive, entry, &stream);
  if (reason)
    return accx_fail(ACCX_FAILED, "%s is damaged: %s", what, reason);
  const accx_npy_source_t source = {stream, entry->size_bytes, read_entry};
  int parsed = accx_npy_parse(&source, what, out_array);
  if (!parsed && !accx_zip_stream_whole(stream))
    parsed = accx_fail(ACCX_FAILED, "%s is damaged: its checksum does not match", what);
  accx_zip_stream_close(stream);
  if (parsed)
    accx_array_free(out_array);
  return parsed;
}
