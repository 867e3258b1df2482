/* tools/accx/npz.c - .npz files: ZIP archives of .npy files, read with libzip. What an entry claims is checked against what
 * its compressed bytes could hold, so that a small archive cannot ask for a large memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

#include "npy.h"

/* Deflate makes at most 1032 bytes of one. */
#define MAX_RATIO 1032

struct accx_npz {
  const char* path;
  zip_t* archive;
};

int accx_npz_open(const char* path, accx_npz_t** out_npz) {
  int reason = 0;
  *out_npz = NULL;
  zip_t* archive = zip_open(path, ZIP_RDONLY, &reason);
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, reason);
    const int code = accx_fail(ACCX_FAILED, "cannot open %s: %s", path, zip_error_strerror(&error));
    zip_error_fini(&error);
    return code;
  }
  accx_npz_t* npz = accx_alloc(1, sizeof *npz);
  npz->path = path;
  npz->archive = archive;
  *out_npz = npz;
  return ACCX_OK;
}

void accx_npz_close(accx_npz_t* npz) {
  if (!npz)
    return;
  zip_discard(npz->archive);
  free(npz);
}

size_t accx_npz_count(const accx_npz_t* npz) {
  const zip_int64_t count = zip_get_num_entries(npz->archive, 0);
  return count < 0 ? 0 : (size_t)count;
}

const char* accx_npz_name(const accx_npz_t* npz, size_t index) {
  const char* name = zip_get_name(npz->archive, index, 0);
  const size_t length = name ? strlen(name) : 0;
  if (length < 5 || strcmp(name + length - 4, ".npy") != 0)
    return NULL;
  return accx_text("%.*s", (int)(length - 4), name);
}

static bool read_entry(void* self, void* target, size_t size_bytes) {
  char* to = target;
  while (size_bytes > 0) {
    const zip_int64_t count = zip_fread(self, to, size_bytes);
    if (count <= 0)
      return false;
    to += count;
    size_bytes -= (size_t)count;
  }
  return true;
}

static int check_entry(const zip_stat_t* facts, const char* what) {
  const zip_uint64_t needed =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((facts->valid & needed) != needed)
    return accx_fail(ACCX_FAILED, "%s does not say how large it is", what);
  if (facts->encryption_method != ZIP_EM_NONE)
    return accx_fail(ACCX_FAILED, "%s is encrypted", what);
  if (facts->comp_method != ZIP_CM_STORE && facts->comp_method != ZIP_CM_DEFLATE)
    return accx_fail(ACCX_FAILED, "%s is compressed by method %u; numpy stores or deflates", what,
                     (unsigned)facts->comp_method);
  if (facts->size / MAX_RATIO > facts->comp_size)
    return accx_fail(ACCX_FAILED,
                     "%s claims %" PRIu64 " bytes in %" PRIu64 " compressed ones, which cannot be",
                     what, (uint64_t)facts->size, (uint64_t)facts->comp_size);
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

int accx_npz_read(accx_npz_t* npz, const char* name, accx_array_t* out_array) {
  memset(out_array, 0, sizeof *out_array);
  const zip_int64_t index = zip_name_locate(npz->archive, accx_text("%s.npy", name), 0);
  if (index < 0)
    return accx_fail(ACCX_FAILED, "%s has no array '%s'; it has: %s", npz->path, name,
                     list_names(npz));
  const char* what = accx_text("'%s' in %s", name, npz->path);
  zip_stat_t facts;
  zip_stat_init(&facts);
  if (zip_stat_index(npz->archive, (zip_uint64_t)index, 0, &facts) != 0)
    return accx_fail(ACCX_FAILED, "%s: %s", what, zip_strerror(npz->archive));
  const int code = check_entry(&facts, what);
  if (code)
    return code;
  zip_file_t* file = zip_fopen_index(npz->archive, (zip_uint64_t)index, 0);
  if (!file)
    return accx_fail(ACCX_FAILED, "%s: %s", what, zip_strerror(npz->archive));
  const accx_npy_source_t source = {file, facts.size, read_entry};
  int parsed = accx_npy_parse(&source, what, out_array);
  /* The end of an entry is where libzip finds a checksum that does not match. */
  char beyond;
  if (!parsed && zip_fread(file, &beyond, 1) != 0)
    parsed = accx_fail(ACCX_FAILED, "%s is damaged: %s", what, zip_file_strerror(file));
  if (zip_fclose(file) != 0 && !parsed)
    parsed = accx_fail(ACCX_FAILED, "%s is damaged", what);
  if (parsed)
    accx_array_free(out_array);
  return parsed;
}
