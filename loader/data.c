/* loader/data.c - weights and code of an open bundle: where they lie, and their digests before
 * their first use.
 *
 * In place where the file can be mapped or the caller's memory is aligned; else an anonymous
 * mapping of DATA's size (address space only) into which 1 MiB chunks are read when they are first
 * needed. It is the one memory of the loader that does not come from the instance's allocator: it
 * replaces a file mapping.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/data.h"
#include "loader/internal.h"

/* What is known of one chunk. In place: UNKNOWN -> GOOD or BAD by whoever hashes it, twice at
 * worst. Read: UNKNOWN -> READ (its bytes are there, unchecked) or GOOD or BAD, between
 * accx_source_begin and _end. Release-stores pair with the acquire-loads of chunk_state: whoever
 * sees READ or GOOD sees the bytes. */
typedef enum chunk_state { CHUNK_UNKNOWN, CHUNK_READ, CHUNK_GOOD, CHUNK_BAD } chunk_state_t;

/* What a component without bytes points to. */
static const _Alignas(ACCX_TENSOR_ALIGN) unsigned char no_bytes[ACCX_TENSOR_ALIGN];

static size_t page_size(void) {
  const long size = sysconf(_SC_PAGESIZE);
  return size > 0 ? (size_t)size : 4096;
}

/* True when DATA lies in the file's mapping now. */
static bool map_file(accrt_bundle_t* bundle) {
  const uint64_t skip = bundle->data_offset % page_size();
  const uint64_t size = skip + bundle->tables.data_size_bytes;
  if (size > SIZE_MAX)
    return false;
  void* mapping = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, bundle->source.fd,
                       (off_t)(bundle->data_offset - skip));
  if (mapping == MAP_FAILED)
    return false;
  /* All of it is going to be read: let the kernel read large pieces into large pages. A wish. */
  if (bundle->verify != ACCRT_VERIFY_NO_DATA)
    (void)madvise(mapping, (size_t)size, MADV_HUGEPAGE);
  bundle->mapping = mapping;
  bundle->mapping_size_bytes = (size_t)size;
  bundle->data = (const unsigned char*)mapping + skip;
  return true;
}

static bool use_memory(accrt_bundle_t* bundle) {
  const unsigned char* data = bundle->source.memory + bundle->data_offset;
  if ((uintptr_t)data % ACCX_TENSOR_ALIGN != 0)
    return false;
  bundle->data = data;
  return true;
}

accrt_status_t accx_data_open(accrt_bundle_t* bundle) {
  const uint64_t size = bundle->tables.data_size_bytes;
  if (size == 0)
    return ACCRT_OK;
  void* chunks;
  ACCX_TRY(accrt_alloc_array(bundle->allocator, bundle->tables.chunk_count, sizeof(atomic_uchar),
                             &chunks));
  bundle->chunks = chunks;
  if (bundle->source.kind == ACCX_SOURCE_FILE)
    bundle->data_in_place = map_file(bundle);
  if (bundle->source.kind == ACCX_SOURCE_MEMORY)
    bundle->data_in_place = use_memory(bundle);
  if (bundle->data_in_place)
    return ACCRT_OK;
  void* mapping = MAP_FAILED;
  if (size <= SIZE_MAX) {
    mapping = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, errno,
                            "%s: could not reserve %" PRIu64 " bytes for weights", bundle->name,
                            size);
  }
  bundle->mapping = mapping;
  bundle->mapping_size_bytes = (size_t)size;
  bundle->data = mapping;
  return ACCRT_OK;
}

void accx_data_close(accrt_bundle_t* bundle) {
  if (bundle->mapping != NULL)
    munmap(bundle->mapping, bundle->mapping_size_bytes);
  bundle->mapping = NULL;
  accrt_free_array(bundle->allocator, bundle->chunks, bundle->tables.chunk_count,
                   sizeof(atomic_uchar));
  bundle->chunks = NULL;
}

/* ---- Chunks ---- */

static chunk_state_t chunk_state(const accrt_bundle_t* bundle, uint32_t chunk) {
  return (chunk_state_t)atomic_load_explicit(&bundle->chunks[chunk], memory_order_acquire);
}

static void set_chunk_state(accrt_bundle_t* bundle, uint32_t chunk, chunk_state_t state) {
  atomic_store_explicit(&bundle->chunks[chunk], (unsigned char)state, memory_order_release);
}

static uint64_t chunk_size(const accrt_bundle_t* bundle, uint32_t chunk) {
  const uint64_t left = bundle->tables.data_size_bytes - (uint64_t)chunk * ACCX_CHUNK_BYTES;
  return left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
}

static accrt_status_t reject_chunk(const accrt_bundle_t* bundle, uint32_t chunk) {
  return ACCRT_FAIL(DATA_CORRUPT,
                    "%s: data[%" PRIu32 "]: the digest of the chunk of %" PRIu64
                    " bytes at %" PRIu64 " does not match (rule %d)",
                    bundle->name, chunk, chunk_size(bundle, chunk),
                    (uint64_t)chunk * ACCX_CHUNK_BYTES, ACCX_RULE_DATA_DIGEST);
}

static bool matches(const accrt_bundle_t* bundle, uint32_t chunk, const void* bytes) {
  const accx_digest_t found = accx_digest_of(bytes, (size_t)chunk_size(bundle, chunk));
  return accx_digest_equal(&found, &bundle->tables.chunk_digests[chunk]);
}

static accrt_status_t check_chunk(accrt_bundle_t* bundle, uint32_t chunk) {
  const bool good = matches(bundle, chunk, bundle->data + (uint64_t)chunk * ACCX_CHUNK_BYTES);
  set_chunk_state(bundle, chunk, good ? CHUNK_GOOD : CHUNK_BAD);
  return good ? ACCRT_OK : reject_chunk(bundle, chunk);
}

/* Between accx_source_begin and _end. */
static accrt_status_t read_chunk(accrt_bundle_t* bundle, uint32_t chunk, bool check) {
  const uint64_t offset = (uint64_t)chunk * ACCX_CHUNK_BYTES;
  if (chunk_state(bundle, chunk) == CHUNK_UNKNOWN) {
    ACCX_TRY(accx_source_read(&bundle->source, bundle->data_offset + offset,
                              (unsigned char*)bundle->mapping + offset, chunk_size(bundle, chunk)));
    set_chunk_state(bundle, chunk, CHUNK_READ);
  }
  if (chunk_state(bundle, chunk) == CHUNK_BAD)
    return reject_chunk(bundle, chunk);
  return check && chunk_state(bundle, chunk) == CHUNK_READ ? check_chunk(bundle, chunk) : ACCRT_OK;
}

static accrt_status_t need_chunk(accrt_bundle_t* bundle, uint32_t chunk, bool check) {
  const chunk_state_t state = chunk_state(bundle, chunk);
  if (state == CHUNK_GOOD)
    return ACCRT_OK;
  if (state == CHUNK_BAD)
    return reject_chunk(bundle, chunk);
  if (bundle->data_in_place)
    return check ? check_chunk(bundle, chunk) : ACCRT_OK;
  if (state == CHUNK_READ && !check)
    return ACCRT_OK;
  accx_source_begin(&bundle->source);
  const accrt_status_t status = read_chunk(bundle, chunk, check);
  accx_source_end(&bundle->source);
  return status;
}

/* A chunk's bytes into memory of somebody else's, unchecked. */
static accrt_status_t copy_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* target) {
  const uint64_t offset = (uint64_t)chunk * ACCX_CHUNK_BYTES;
  const uint64_t size_bytes = chunk_size(bundle, chunk);
  const bool foreign = bundle->source.kind == ACCX_SOURCE_CALLBACKS;
  if (foreign && chunk_state(bundle, chunk) != CHUNK_UNKNOWN) {
    memcpy(target, bundle->data + offset, (size_t)size_bytes);
    return ACCRT_OK;
  }
  if (foreign)
    accx_source_begin(&bundle->source);
  const accrt_status_t status =
      accx_source_read(&bundle->source, bundle->data_offset + offset, target, size_bytes);
  if (foreign)
    accx_source_end(&bundle->source);
  return status;
}

accrt_status_t accrt_bundle_data_read(accrt_bundle_t* bundle, uint64_t offset_bytes, void* target,
                                      uint64_t size_bytes) {
  const bool check = bundle->verify != ACCRT_VERIFY_NO_DATA;
  unsigned char* at = target;
  for (uint64_t done = 0; done < size_bytes; done += ACCX_CHUNK_BYTES) {
    const uint32_t chunk = (uint32_t)((offset_bytes + done) / ACCX_CHUNK_BYTES);
    ACCX_TRY(copy_chunk(bundle, chunk, at + done));
    if (check && !matches(bundle, chunk, at + done))
      return reject_chunk(bundle, chunk);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_constant_component(accrt_bundle_t* bundle, uint32_t constant,
                                               uint32_t component, const void** out_data,
                                               uint64_t* out_size_bytes) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  *out_data = NULL;
  *out_size_bytes = 0;
  if (constant >= tables->constant_count ||
      component >= tables->constants[constant].component_count) {
    return ACCRT_FAIL_INNER(OUT_OF_RANGE,
                            "%s: component %" PRIu32 " of constant %" PRIu32 " of %" PRIu32,
                            bundle->name, component, constant, tables->constant_count);
  }
  const accx_constant_t* record = &tables->constants[constant];
  const char* name = accrt_bundle_string(tables, record->name);
  if (record->source != ACCX_CONSTANT_INLINE) {
    return ACCRT_FAIL_INNER(
        INVALID_STATE, "%s: constant '%s' %s, and exists in programs only", bundle->name, name,
        record->source == ACCX_CONSTANT_PREPARED ? "is made by a prepare function"
                                                 : "is not stored in the bundle");
  }
  const accx_component_t* place = &tables->components[record->component_first + component];
  *out_data = no_bytes;
  if (place->size_bytes == 0)
    return ACCRT_OK;
  const bool check = bundle->verify != ACCRT_VERIFY_NO_DATA;
  const uint64_t last = (place->offset_bytes + place->size_bytes - 1) / ACCX_CHUNK_BYTES;
  for (uint64_t chunk = place->offset_bytes / ACCX_CHUNK_BYTES; chunk <= last; ++chunk) {
    const accrt_status_t status = need_chunk(bundle, (uint32_t)chunk, check);
    if (status != ACCRT_OK) {
      *out_data = NULL;
      accrt_error_prefix("constant '%s'", name);
      return status;
    }
  }
  *out_data = bundle->data + place->offset_bytes;
  *out_size_bytes = place->size_bytes;
  return ACCRT_OK;
}

/* ---- Everything at once ---- */

static accrt_status_t check_zero(const accrt_bundle_t* bundle, uint64_t begin, uint64_t end) {
  for (uint64_t at = begin; at < end; ++at) {
    if (bundle->data[at] == 0)
      continue;
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: data: byte %" PRIu64 " between two constants is %u, not 0 (rule %d)",
                      bundle->name, at, bundle->data[at], ACCX_RULE_DATA_GAPS);
  }
  return ACCRT_OK;
}

accrt_status_t accx_data_verify_all(accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  for (uint32_t i = 0; i < tables->chunk_count; ++i)
    ACCX_TRY(need_chunk(bundle, i, true));
  uint64_t end = 0;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    if (constant->source != ACCX_CONSTANT_INLINE)
      continue;
    for (uint32_t k = 0; k < constant->component_count; ++k) {
      const accx_component_t* component = &tables->components[constant->component_first + k];
      ACCX_TRY(check_zero(bundle, end, component->offset_bytes));
      end = component->offset_bytes + component->size_bytes;
    }
  }
  return ACCRT_OK;
}

/* ---- Code ---- */

accrt_status_t accrt_bundle_image_copy(accrt_bundle_t* bundle, uint32_t image, void* target) {
  const accx_image_t* record = &bundle->tables.images[image];
  accx_source_begin(&bundle->source);
  const accrt_status_t status = accx_source_read(
      &bundle->source, bundle->code_offset + record->offset_bytes, target, record->size_bytes);
  accx_source_end(&bundle->source);
  if (status != ACCRT_OK)
    return status;
  const accx_digest_t found = accx_digest_of(target, (size_t)record->size_bytes);
  if (accx_digest_equal(&found, &bundle->image_digests[image]))
    return ACCRT_OK;
  return ACCRT_FAIL(DATA_CORRUPT,
                    "%s: images[%" PRIu32
                    "]: '%s' has changed since the bundle was opened (rule %d)",
                    bundle->name, image, accrt_bundle_string(&bundle->tables, record->name),
                    ACCX_RULE_CODE_CHANGED);
}
