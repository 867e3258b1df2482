/* tools/accx/zip.c - reads ZIP archives that may be hostile. Every offset and size is compared with
 * the file before its use. zlib does deflate. It knows nothing of arrays (npz.c). */
#define _GNU_SOURCE
#include "zip.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "accx.h"

enum {
  END_BYTES = 22,        /* end of central directory */
  END64_BYTES = 56,      /* end of central directory of ZIP64 */
  LOCATOR_BYTES = 20,    /* before the end: the position of ZIP64's end */
  DIRECTORY_BYTES = 46,  /* an entry of the directory, without its texts */
  LOCAL_BYTES = 30,      /* a local header, without its texts */
  MAX_COMMENT = 0xFFFF,  /* the end may have a comment */
  CHUNK_BYTES = 1 << 16, /* compressed bytes per read */
  ZIP64_FIELD = 0x0001,
  FLAG_ENCRYPTED = 0x0001,
  METHOD_STORED = 0,
  METHOD_DEFLATED = 8,
};
#define END_MAGIC 0x06054B50u
#define END64_MAGIC 0x06064B50u
#define LOCATOR_MAGIC 0x07064B50u
#define DIRECTORY_MAGIC 0x02014B50u
#define LOCAL_MAGIC 0x04034B50u

struct accx_zip_stream {
  FILE* file;
  const accx_zip_entry_t* entry;
  uint64_t packed_left, left; /* compressed bytes in the file, bytes to return */
  uint32_t crc;
  bool inflates;
  z_stream inflate;
  unsigned char packed[CHUNK_BYTES];
};

static uint64_t little(const unsigned char* at, size_t size_bytes) {
  uint64_t value = 0;
  while (size_bytes-- > 0)
    value = value << 8 | at[size_bytes];
  return value;
}
static uint16_t u16(const unsigned char* at) {
  return (uint16_t)little(at, 2);
}
static uint32_t u32(const unsigned char* at) {
  return (uint32_t)little(at, 4);
}

static bool read_at(const accx_zip_t* zip, uint64_t offset, void* target, size_t size_bytes) {
  if (offset > zip->file_bytes || size_bytes > zip->file_bytes - offset)
    return false;
  return fseeko(zip->file, (off_t)offset, SEEK_SET) == 0 &&
         fread(target, 1, size_bytes, zip->file) == size_bytes;
}

/* ---- The directory ---- */

typedef struct directory {
  uint64_t offset, size_bytes, count;
} directory_t;

/* Finds ZIP64's end of the directory, by the locator in front of the normal end. */
static bool find_end64(const accx_zip_t* zip, uint64_t end, directory_t* directory) {
  unsigned char locator[LOCATOR_BYTES], record[END64_BYTES];
  if (end < LOCATOR_BYTES || !read_at(zip, end - LOCATOR_BYTES, locator, sizeof locator) ||
      u32(locator) != LOCATOR_MAGIC || !read_at(zip, little(locator + 8, 8), record, sizeof record))
    return false;
  directory->count = little(record + 32, 8);
  directory->size_bytes = little(record + 40, 8);
  directory->offset = little(record + 48, 8);
  return u32(record) == END64_MAGIC;
}

static bool find_directory(const accx_zip_t* zip, directory_t* directory) {
  const size_t most = END_BYTES + MAX_COMMENT;
  const size_t size = zip->file_bytes < most ? (size_t)zip->file_bytes : most;
  unsigned char* tail = accx_alloc(size + 1, 1);
  bool found = false;
  if (size >= END_BYTES && read_at(zip, zip->file_bytes - size, tail, size)) {
    for (size_t at = size - END_BYTES + 1; at-- > 0 && !found;) {
      const unsigned char* end = tail + at;
      if (u32(end) != END_MAGIC || u16(end + 20) != size - END_BYTES - at)
        continue;
      *directory = (directory_t){u32(end + 16), u32(end + 12), u16(end + 10)};
      const bool large = directory->offset == UINT32_MAX || directory->size_bytes == UINT32_MAX ||
                         directory->count == UINT16_MAX;
      found = !large || find_end64(zip, zip->file_bytes - size + at, directory);
    }
  }
  free(tail);
  return found;
}

/* Reads the numbers that exceed 32 bits. They are in the ZIP64 field, in this order. */
static bool take_zip64(accx_zip_entry_t* entry, const unsigned char* extra, size_t extra_bytes) {
  uint64_t* const wanted[] = {&entry->size_bytes, &entry->packed_bytes, &entry->header_offset};
  while (extra_bytes >= 4) {
    const uint16_t id = u16(extra);
    size_t size = u16(extra + 2), at = 0;
    extra += 4, extra_bytes -= 4;
    if (size > extra_bytes)
      return false;
    for (size_t i = 0; id == ZIP64_FIELD && i < 3; ++i) {
      if (*wanted[i] != UINT32_MAX)
        continue;
      if (size - at < 8)
        return false;
      *wanted[i] = little(extra + at, 8);
      at += 8;
    }
    if (id == ZIP64_FIELD)
      return true;
    extra += size, extra_bytes -= size;
  }
  /* Without the field the 32-bit numbers count. */
  return true;
}

/* Reads one entry. *at moves behind it, *names behind its name. */
static bool take_entry(const unsigned char** at, const unsigned char* end, char** names,
                       accx_zip_entry_t* entry) {
  const unsigned char* record = *at;
  if ((size_t)(end - record) < DIRECTORY_BYTES || u32(record) != DIRECTORY_MAGIC)
    return false;
  const size_t name = u16(record + 28), extra = u16(record + 30), comment = u16(record + 32);
  const unsigned char* texts = record + DIRECTORY_BYTES;
  if ((size_t)(end - texts) < name + extra + comment)
    return false;
  *entry = (accx_zip_entry_t){.name = *names,
                              .method = u16(record + 10),
                              .encrypted = (u16(record + 8) & FLAG_ENCRYPTED) != 0,
                              .crc = u32(record + 16),
                              .packed_bytes = u32(record + 20),
                              .size_bytes = u32(record + 24),
                              .header_offset = u32(record + 42)};
  memcpy(*names, texts, name);
  (*names)[name] = '\0';
  *names += name + 1;
  *at = texts + name + extra + comment;
  return take_zip64(entry, texts + name, extra);
}

static bool read_directory(accx_zip_t* zip) {
  directory_t directory = {0};
  if (!find_directory(zip, &directory) || directory.offset > zip->file_bytes ||
      directory.size_bytes > zip->file_bytes - directory.offset ||
      directory.count > directory.size_bytes / DIRECTORY_BYTES)
    return false;
  unsigned char* bytes = malloc((size_t)directory.size_bytes + 1);
  zip->names = malloc((size_t)directory.size_bytes + 1);
  zip->entries = calloc((size_t)directory.count + 1, sizeof *zip->entries);
  bool good = bytes && zip->names && zip->entries &&
              read_at(zip, directory.offset, bytes, (size_t)directory.size_bytes);
  const unsigned char* at = bytes;
  char* names = zip->names;
  for (; good && zip->count < directory.count; zip->count += good)
    good = take_entry(&at, bytes + directory.size_bytes, &names, &zip->entries[zip->count]);
  free(bytes);
  return good;
}

const char* accx_zip_open(FILE* file, accx_zip_t* out_zip) {
  struct stat facts;
  *out_zip = (accx_zip_t){.file = file};
  if (fstat(fileno(file), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    accx_zip_close(out_zip);
    return "it is not a regular file";
  }
  out_zip->file_bytes = (uint64_t)facts.st_size;
  if (!read_directory(out_zip)) {
    accx_zip_close(out_zip);
    return "it is not a ZIP archive, or it is damaged";
  }
  return NULL;
}

void accx_zip_close(accx_zip_t* zip) {
  if (zip->file)
    fclose(zip->file);
  free(zip->names);
  free(zip->entries);
  *zip = (accx_zip_t){0};
}

/* ---- One entry ---- */

const char* accx_zip_stream_open(const accx_zip_t* zip, const accx_zip_entry_t* entry,
                                 accx_zip_stream_t** out_stream) {
  unsigned char local[LOCAL_BYTES];
  *out_stream = NULL;
  if (entry->encrypted)
    return "it is encrypted";
  if (entry->method != METHOD_STORED && entry->method != METHOD_DEFLATED)
    return "its method is not known";
  if (entry->method == METHOD_STORED && entry->size_bytes != entry->packed_bytes)
    return "its two sizes differ, and it is not compressed";
  if (!read_at(zip, entry->header_offset, local, sizeof local) || u32(local) != LOCAL_MAGIC)
    return "its header is not where the directory says";
  const uint64_t data =
      entry->header_offset + LOCAL_BYTES + (uint64_t)u16(local + 26) + u16(local + 28);
  if (data > zip->file_bytes || entry->packed_bytes > zip->file_bytes - data)
    return "it ends after the file's end";
  if (fseeko(zip->file, (off_t)data, SEEK_SET) != 0)
    return strerror(errno);
  accx_zip_stream_t* stream = accx_alloc(1, sizeof *stream);
  stream->file = zip->file;
  stream->entry = entry;
  stream->packed_left = entry->packed_bytes;
  stream->left = entry->size_bytes;
  stream->inflates = entry->method == METHOD_DEFLATED;
  /* Negative: raw deflate without zlib's header. */
  if (stream->inflates && inflateInit2(&stream->inflate, -MAX_WBITS) != Z_OK) {
    free(stream);
    return "out of memory";
  }
  *out_stream = stream;
  return NULL;
}

static bool fill_packed(accx_zip_stream_t* stream) {
  const size_t size =
      stream->packed_left < CHUNK_BYTES ? (size_t)stream->packed_left : (size_t)CHUNK_BYTES;
  if (size == 0 || fread(stream->packed, 1, size, stream->file) != size)
    return false;
  stream->packed_left -= size;
  stream->inflate.next_in = stream->packed;
  stream->inflate.avail_in = (uInt)size;
  return true;
}

static bool inflate_some(accx_zip_stream_t* stream, unsigned char* target, size_t size_bytes) {
  stream->inflate.next_out = target;
  stream->inflate.avail_out = (uInt)size_bytes;
  while (stream->inflate.avail_out > 0) {
    if (stream->inflate.avail_in == 0 && !fill_packed(stream))
      return false;
    const int status = inflate(&stream->inflate, Z_NO_FLUSH);
    if (status == Z_STREAM_END)
      return stream->inflate.avail_out == 0;
    if (status != Z_OK)
      return false;
  }
  return true;
}

bool accx_zip_stream_read(accx_zip_stream_t* stream, void* target, size_t size_bytes) {
  unsigned char* to = target;
  if (size_bytes > stream->left)
    return false;
  stream->left -= size_bytes;
  while (size_bytes > 0) {
    const size_t part = size_bytes < (1u << 30) ? size_bytes : (size_t)1 << 30; /* fits uInt */
    if (stream->inflates ? !inflate_some(stream, to, part)
                         : fread(to, 1, part, stream->file) != part)
      return false;
    stream->crc = (uint32_t)crc32(stream->crc, to, (uInt)part);
    to += part, size_bytes -= part;
  }
  return true;
}

bool accx_zip_stream_whole(accx_zip_stream_t* stream) {
  return stream->left == 0 && stream->crc == stream->entry->crc;
}

void accx_zip_stream_close(accx_zip_stream_t* stream) {
  if (!stream)
    return;
  if (stream->inflates)
    inflateEnd(&stream->inflate);
  free(stream);
}
