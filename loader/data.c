/* loader/data.c - weights and code of an open bundle: their place in memory, and the check of their
 * digests before their first use.
 *
 * The bytes are used in place where the file can be mapped or the caller's memory is aligned.
 * Otherwise there is an anonymous mapping of DATA's size (at first only address space). Its 1 MiB
 * chunks are read at the first need. This mapping is the loader's only memory that is not from the
 * instance's allocator, because it replaces a file mapping.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/data.h"
#include "loader/encryption.h"
#include "loader/internal.h"
#include "loader/trust.h"
#include "runtime/core/fork.h"

/* The number of chunks per further thread, when large parts of DATA are checked. */
#define SWEEP_CHUNKS 16u

/* The state of one chunk. In place: UNKNOWN -> GOOD or BAD by the thread that hashes it, at worst
 * by two threads. Read: UNKNOWN -> READ (the bytes are there, unchecked), or GOOD or BAD, under the
 * chunk's lock (callbacks: between accx_source_begin and _end). Stores with release pair with the
 * loads with acquire in chunk_state(): a thread that sees READ or GOOD sees the bytes. */
typedef enum chunk_state { CHUNK_UNKNOWN, CHUNK_READ, CHUNK_GOOD, CHUNK_BAD } chunk_state_t;

/* The address of a component without bytes. */
static _Alignas(ACCX_TENSOR_ALIGN) unsigned char no_bytes[ACCX_TENSOR_ALIGN]; /* not in the file */

static size_t page_size(void) {
  const long size = sysconf(_SC_PAGESIZE);
  return size > 0 ? (size_t)size : 4096;
}

/* True when DATA is mapped now. */
static bool map_file(accrt_bundle_t* bundle) {
  const uint64_t skip = bundle->data_offset % page_size();
  const uint64_t size = skip + bundle->tables.data_size_bytes;
  if (size > SIZE_MAX)
    return false;
  void* mapping = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, bundle->source.fd,
                       (off_t)(bundle->data_offset - skip));
  if (mapping == MAP_FAILED)
    return false;
  /* All of it will be read, so ask the kernel to read large pieces into large pages. A hint
   * only. */
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

/* Wipes the plaintext of encrypted weights. */
static void wipe_chunks(accrt_bundle_t* bundle) {
  for (uint32_t i = 0; bundle->chunks != NULL && i < bundle->tables.chunk_count; ++i) {
    if (bundle->mapping != NULL && chunk_state(bundle, i) == CHUNK_GOOD) {
      accrt_wipe((unsigned char*)bundle->mapping + (uint64_t)i * ACCX_CHUNK_BYTES,
                 (size_t)chunk_size(bundle, i));
    }
  }
}

/* ---- Open and close ---- */

accrt_status_t accx_data_open(accrt_bundle_t* bundle) {
  const uint64_t size = bundle->tables.data_size_bytes;
  if (size == 0)
    return ACCRT_OK;
  void* chunks;
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, bundle->tables.chunk_count, sizeof(atomic_uchar),
                              &chunks));
  bundle->chunks = chunks;
  const bool as_in_file = bundle->tables.encryption == NULL;
  if (as_in_file && bundle->source.kind == ACCX_SOURCE_FILE)
    bundle->data_in_place = map_file(bundle);
  if (as_in_file && bundle->source.kind == ACCX_SOURCE_MEMORY)
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
  if (!as_in_file)
    (void)madvise(mapping, (size_t)size, MADV_DONTDUMP);
  bundle->mapping = mapping;
  bundle->mapping_size_bytes = (size_t)size;
  bundle->data = mapping;
  return ACCRT_OK;
}

void accx_data_close(accrt_bundle_t* bundle) {
  if (bundle->tables.encryption != NULL)
    wipe_chunks(bundle);
  if (bundle->mapping != NULL)
    munmap(bundle->mapping, bundle->mapping_size_bytes);
  bundle->mapping = NULL;
  accrt_free_array(bundle->allocator, bundle->chunks, bundle->tables.chunk_count,
                   sizeof(atomic_uchar));
  bundle->chunks = NULL;
}

/* ---- Checks ---- */

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

/* Checks the bytes of a chunk as they are in the file. */
static accrt_status_t check_bytes(const accrt_bundle_t* bundle, uint32_t chunk, const void* bytes) {
  if (!matches(bundle, chunk, bytes))
    return reject_chunk(bundle, chunk);
  return bundle->check_leaves
             ? accx_trust_check_leaf(bundle, chunk, bytes, (size_t)chunk_size(bundle, chunk))
             : ACCRT_OK;
}

/* True when chunks must be checked before their use; some bundles need that whatever open's
 * options. */
static bool must_check(const accrt_bundle_t* bundle) {
  return bundle->verify != ACCRT_VERIFY_NO_DATA || bundle->check_leaves ||
         bundle->tables.encryption != NULL;
}

static bool is_mapped_file(const accrt_bundle_t* bundle) {
  return bundle->data_in_place && bundle->source.kind == ACCX_SOURCE_FILE;
}

/* Files are read and hashed in pieces of this size, which fit into the processor's cache. */
#define PIECE_BYTES (UINT64_C(1) << 17)

/* Computes the digest of a chunk in the file. */
static accrt_status_t digest_file(accrt_bundle_t* bundle, uint32_t chunk,
                                  accx_digest_t* out_digest) {
  const uint64_t begin = bundle->data_offset + (uint64_t)chunk * ACCX_CHUNK_BYTES;
  const uint64_t size_bytes = chunk_size(bundle, chunk);
  void* piece;
  ACCRT_TRY(accrt_alloc_unset(bundle->allocator, PIECE_BYTES, 16, &piece));
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  accrt_status_t status = ACCRT_OK;
  for (uint64_t done = 0; done < size_bytes && status == ACCRT_OK; done += PIECE_BYTES) {
    const uint64_t left = size_bytes - done;
    const size_t bytes = (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
    status = accx_source_read(&bundle->source, begin + done, piece, bytes);
    if (status == ACCRT_OK)
      accx_hasher_update(&hasher, piece, bytes);
  }
  accrt_free(bundle->allocator, piece, PIECE_BYTES);
  *out_digest = accx_hasher_finish(&hasher);
  return status;
}

/* Checks a chunk in the file. A leaf is the digest of a whole chunk, so with leaves the chunk is
 * read in one piece. */
static accrt_status_t check_file(accrt_bundle_t* bundle, uint32_t chunk) {
  if (bundle->check_leaves) {
    void* copy;
    ACCRT_TRY(accrt_alloc_unset(bundle->allocator, ACCX_CHUNK_BYTES, 16, &copy));
    const accrt_status_t status = accx_data_file_chunk(bundle, chunk, copy);
    accrt_free(bundle->allocator, copy, ACCX_CHUNK_BYTES);
    return status;
  }
  accx_digest_t found;
  ACCRT_TRY(digest_file(bundle, chunk, &found));
  return accx_digest_equal(&found, &bundle->tables.chunk_digests[chunk])
             ? ACCRT_OK
             : reject_chunk(bundle, chunk);
}

/* Checks a chunk by reading the file. A mapping would end the process if another process truncated
 * the file, and a caller that checks does not trust the file yet. */
static accrt_status_t check_mapped(accrt_bundle_t* bundle, uint32_t chunk) {
  const accrt_status_t status = check_file(bundle, chunk);
  /* If the read failed, the next use reads the chunk again. */
  if (status == ACCRT_OK || status == ACCRT_ERROR_DATA_CORRUPT)
    set_chunk_state(bundle, chunk, status == ACCRT_OK ? CHUNK_GOOD : CHUNK_BAD);
  return status;
}

static accrt_status_t check_chunk(accrt_bundle_t* bundle, uint32_t chunk) {
  const uint64_t offset = (uint64_t)chunk * ACCX_CHUNK_BYTES;
  accrt_status_t status = check_bytes(bundle, chunk, bundle->data + offset);
  if (status == ACCRT_OK && bundle->tables.encryption != NULL) {
    status = accx_encryption_decrypt(bundle, chunk, (unsigned char*)bundle->mapping + offset,
                                     (size_t)chunk_size(bundle, chunk));
  }
  set_chunk_state(bundle, chunk, status == ACCRT_OK ? CHUNK_GOOD : CHUNK_BAD);
  return status;
}

/* Requires that no other thread works on the chunk. */
static accrt_status_t read_chunk(accrt_bundle_t* bundle, uint32_t chunk, bool check) {
  const uint64_t offset = (uint64_t)chunk * ACCX_CHUNK_BYTES;
  if (chunk_state(bundle, chunk) == CHUNK_UNKNOWN) {
    ACCRT_TRY(accx_source_read(&bundle->source, bundle->data_offset + offset,
                               (unsigned char*)bundle->mapping + offset,
                               chunk_size(bundle, chunk)));
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
  ACCRT_TRY(accrt_checkpoint());
  ACCRT_TRY(accx_encryption_ready(bundle));
  if (bundle->data_in_place) {
    ACCRT_TRY(accx_source_check_size(&bundle->source));
    if (!check)
      return ACCRT_OK;
    return is_mapped_file(bundle) ? check_mapped(bundle, chunk) : check_chunk(bundle, chunk);
  }
  if (state == CHUNK_READ && !check)
    return ACCRT_OK;
  const bool foreign = bundle->source.kind == ACCX_SOURCE_CALLBACKS;
  accrt_mutex_t* lock = &bundle->chunk_locks[chunk % ACCX_CHUNK_LOCKS];
  if (foreign)
    accx_source_begin(&bundle->source);
  else
    accrt_mutex_lock(lock);
  const accrt_status_t status = read_chunk(bundle, chunk, check);
  if (foreign)
    accx_source_end(&bundle->source);
  else
    accrt_mutex_unlock(lock);
  return status;
}

/* Reads a chunk's bytes into the caller's memory without a check. */
static accrt_status_t copy_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* target) {
  const uint64_t offset = (uint64_t)chunk * ACCX_CHUNK_BYTES;
  const uint64_t size_bytes = chunk_size(bundle, chunk);
  const bool foreign = bundle->source.kind == ACCX_SOURCE_CALLBACKS;
  if (foreign && bundle->tables.encryption == NULL && chunk_state(bundle, chunk) != CHUNK_UNKNOWN) {
    memcpy(target, bundle->data + offset, (size_t)size_bytes);
    return ACCRT_OK;
  }
  return (foreign ? accx_source_read_alone : accx_source_read)(
      &bundle->source, bundle->data_offset + offset, target, size_bytes);
}

accrt_status_t accx_data_file_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* target) {
  ACCRT_TRY(copy_chunk(bundle, chunk, target));
  return check_bytes(bundle, chunk, target);
}

accrt_status_t accrt_bundle_chunk(accrt_bundle_t* bundle, uint32_t index, uint32_t flags,
                                  void* target, uint64_t size_bytes) {
  ACCRT_ENTER(bundle, target);
  if ((flags & ~ACCRT_CHUNK_PLAIN) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 "; ACCRT_CHUNK_PLAIN is known", flags);
  if (index >= bundle->tables.chunk_count)
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: chunk %" PRIu32 " of %" PRIu32, bundle->name, index,
                      bundle->tables.chunk_count);
  if (size_bytes != chunk_size(bundle, index))
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: %" PRIu64 " bytes for chunk %" PRIu32 " of %" PRIu64,
                      bundle->name, size_bytes, index, chunk_size(bundle, index));
  const bool decrypts = (flags & ACCRT_CHUNK_PLAIN) != 0 && bundle->tables.encryption != NULL;
  if (decrypts)
    ACCRT_TRY(accx_encryption_ready(bundle));
  ACCRT_TRY(accx_data_file_chunk(bundle, index, target));
  return decrypts ? accx_encryption_decrypt(bundle, index, target, (size_t)size_bytes) : ACCRT_OK;
}

accrt_status_t accrt_bundle_data_read(accrt_bundle_t* bundle, uint64_t offset_bytes, void* target,
                                      uint64_t size_bytes) {
  const bool check = must_check(bundle);
  unsigned char* at = target;
  ACCRT_TRY(accx_encryption_ready(bundle));
  for (uint64_t done = 0; done < size_bytes; done += ACCX_CHUNK_BYTES) {
    const uint32_t chunk = (uint32_t)((offset_bytes + done) / ACCX_CHUNK_BYTES);
    ACCRT_TRY(copy_chunk(bundle, chunk, at + done));
    if (check)
      ACCRT_TRY(check_bytes(bundle, chunk, at + done));
    if (bundle->tables.encryption != NULL)
      ACCRT_TRY(
          accx_encryption_decrypt(bundle, chunk, at + done, (size_t)chunk_size(bundle, chunk)));
  }
  return ACCRT_OK;
}

/* Checks the chunks of a range of a component, and returns its address. */
static accrt_status_t find_part(accrt_bundle_t* bundle, uint32_t constant, uint32_t component,
                                uint64_t offset_bytes, uint64_t size_bytes, const void** out_data) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const accx_constant_t* record = &tables->constants[constant];
  *out_data = no_bytes;
  if (size_bytes == 0)
    return ACCRT_OK;
  const bool check = must_check(bundle);
  const uint64_t begin =
      tables->components[record->component_first + component].offset_bytes + offset_bytes;
  const uint64_t last = (begin + size_bytes - 1) / ACCX_CHUNK_BYTES;
  for (uint64_t chunk = begin / ACCX_CHUNK_BYTES; chunk <= last; ++chunk) {
    const accrt_status_t status = need_chunk(bundle, (uint32_t)chunk, check);
    if (status != ACCRT_OK) {
      *out_data = NULL;
      accrt_error_prefix("constant '%s'", accrt_bundle_string(tables, record->name));
      return status;
    }
  }
  *out_data = bundle->data + begin;
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
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: component %" PRIu32 " of constant %" PRIu32 " of %" PRIu32,
                      bundle->name, component, constant, tables->constant_count);
  }
  const accx_constant_t* record = &tables->constants[constant];
  if (record->source != ACCX_CONSTANT_INLINE) {
    return ACCRT_FAIL(INVALID_STATE, "%s: constant '%s' %s, and exists in programs only",
                      bundle->name, accrt_bundle_string(tables, record->name),
                      record->source == ACCX_CONSTANT_PREPARED ? "is made by a prepare function"
                                                               : "is not stored in the bundle");
  }
  const uint64_t size_bytes = tables->components[record->component_first + component].size_bytes;
  const accrt_status_t status = find_part(bundle, constant, component, 0, size_bytes, out_data);
  if (status == ACCRT_OK)
    *out_size_bytes = size_bytes;
  return status;
}

accrt_status_t accrt_bundle_constant_read(accrt_bundle_t* bundle, uint32_t constant,
                                          uint32_t component, uint64_t offset_bytes, void* target,
                                          uint64_t size_bytes) {
  const void* data;
  const accrt_status_t status =
      find_part(bundle, constant, component, offset_bytes, size_bytes, &data);
  if (status != ACCRT_OK || size_bytes == 0)
    return status;
  if (is_mapped_file(bundle)) {
    const uint64_t at = (uint64_t)((const unsigned char*)data - bundle->data);
    return accx_source_read(&bundle->source, bundle->data_offset + at, target, size_bytes);
  }
  memcpy(target, data, (size_t)size_bytes);
  return ACCRT_OK;
}

uint64_t accrt_bundle_data_offset(const accrt_bundle_t* bundle) {
  return bundle->data_offset;
}

/* ---- All chunks ---- */

static accrt_status_t check_zero_bytes(const accrt_bundle_t* bundle, const unsigned char* bytes,
                                       uint64_t begin, uint64_t end) {
  for (uint64_t at = begin; at < end; ++at) {
    if (bytes[at - begin] == 0)
      continue;
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: data: byte %" PRIu64 " between two constants is %u, not 0 (rule %d)",
                      bundle->name, at, bytes[at - begin], ACCX_RULE_DATA_GAPS);
  }
  return ACCRT_OK;
}

static accrt_status_t check_zero(accrt_bundle_t* bundle, uint64_t begin, uint64_t end) {
  unsigned char piece[4096];
  if (!is_mapped_file(bundle))
    return check_zero_bytes(bundle, bundle->data + begin, begin, end);
  for (uint64_t at = begin; at < end; at += sizeof piece) {
    const uint64_t bytes = end - at < sizeof piece ? end - at : sizeof piece;
    ACCRT_TRY(accx_source_read(&bundle->source, bundle->data_offset + at, piece, bytes));
    ACCRT_TRY(check_zero_bytes(bundle, piece, at, at + bytes));
  }
  return ACCRT_OK;
}

/* Checks one chunk, even if it was checked before. `scratch` has room for it. */
static accrt_status_t verify_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* scratch) {
  const size_t size = (size_t)chunk_size(bundle, chunk);
  if (bundle->tables.encryption != NULL) {
    ACCRT_TRY(accx_data_file_chunk(bundle, chunk, scratch));
    ACCRT_TRY(accx_trust_check_leaf(bundle, chunk, scratch, size));
    return bundle->crypto != NULL ? need_chunk(bundle, chunk, true) : ACCRT_OK;
  }
  if (is_mapped_file(bundle) && bundle->tables.leaves != NULL) {
    ACCRT_TRY(accx_data_file_chunk(bundle, chunk, scratch));
    return accx_trust_check_leaf(bundle, chunk, scratch, size);
  }
  ACCRT_TRY(need_chunk(bundle, chunk, true));
  if (bundle->tables.leaves == NULL)
    return ACCRT_OK;
  return accx_trust_check_leaf(bundle, chunk, bundle->data + (uint64_t)chunk * ACCX_CHUNK_BYTES,
                               size);
}

/* State of several threads that take chunks in order until one fails. */
typedef struct sweep {
  accrt_bundle_t* bundle;
  const uint8_t* wanted; /* by chunk; NULL: all chunks, checked again if necessary */
  atomic_uint next;
  accrt_mutex_t lock;
  /* Guarded by the lock: */
  uint32_t failed_chunk; /* ACCX_NONE: none */
  accrt_error_t error;
} sweep_t;

static void note_failure(sweep_t* sweep, uint32_t chunk) {
  accrt_mutex_lock(&sweep->lock);
  if (chunk < sweep->failed_chunk) {
    sweep->failed_chunk = chunk;
    sweep->error = *accrt_error_current();
  }
  accrt_mutex_unlock(&sweep->lock);
  /* Relaxed, here and below: it is only a counter. Results pass through the lock and the join. */
  atomic_store_explicit(&sweep->next, sweep->bundle->tables.chunk_count, memory_order_relaxed);
}

static void* run_sweep(void* user) {
  sweep_t* sweep = user;
  const uint32_t count = sweep->bundle->tables.chunk_count;
  void* scratch = NULL;
  accrt_status_t status = ACCRT_OK;
  if (sweep->bundle->tables.encryption != NULL ||
      (sweep->wanted == NULL && sweep->bundle->tables.leaves != NULL))
    status = accrt_alloc(sweep->bundle->allocator, ACCX_CHUNK_BYTES, &scratch);
  for (;;) {
    const uint32_t chunk = atomic_fetch_add_explicit(&sweep->next, 1, memory_order_relaxed);
    if (chunk >= count)
      break;
    if (status == ACCRT_OK)
      /* only the caller's thread has a meter; its end stops all threads */
      status = accrt_checkpoint();
    if (status == ACCRT_OK && sweep->wanted == NULL)
      status = verify_chunk(sweep->bundle, chunk, scratch);
    else if (status == ACCRT_OK && sweep->wanted[chunk])
      status = need_chunk(sweep->bundle, chunk, true);
    if (status != ACCRT_OK) {
      note_failure(sweep, chunk);
      break;
    }
  }
  accrt_free(sweep->bundle->allocator, scratch, ACCX_CHUNK_BYTES);
  return NULL;
}

/* The number of useful threads, the caller's included, for `chunk_count` chunks. */
static uint32_t threads_for(uint32_t chunk_count, uint32_t most) {
  const uint32_t useful = chunk_count > 0 ? (chunk_count - 1) / SWEEP_CHUNKS + 1 : 1;
  return useful < most ? useful : most;
}

static accrt_status_t sweep_chunks(accrt_bundle_t* bundle, const uint8_t* wanted,
                                   uint32_t threads) {
  sweep_t sweep = {.bundle = bundle, .wanted = wanted, .failed_chunk = ACCX_NONE};
  accrt_mutex_init(&sweep.lock, ACCRT_LOCK_SWEEP);
  atomic_init(&sweep.next, 0);
  accrt_threads_run(threads, run_sweep, &sweep);
  return sweep.failed_chunk == ACCX_NONE ? ACCRT_OK : accrt_error_restore(&sweep.error);
}

void accrt_bundle_check_ahead(accrt_bundle_t* bundle, const uint8_t* wanted,
                              uint32_t thread_count) {
  uint32_t unknown = 0;
  if (bundle->source.kind == ACCX_SOURCE_CALLBACKS || !must_check(bundle))
    return;
  for (uint32_t i = 0; i < bundle->tables.chunk_count; ++i)
    unknown += wanted[i] && chunk_state(bundle, i) == CHUNK_UNKNOWN;
  const uint32_t threads = threads_for(unknown, thread_count);
  if (threads > 1)
    (void)sweep_chunks(bundle, wanted, threads);
}

accrt_status_t accx_data_verify_all(accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  ACCRT_TRY(sweep_chunks(
      bundle, NULL, threads_for(tables->chunk_count, processors > 0 ? (uint32_t)processors : 1)));
  if (tables->encryption != NULL && bundle->crypto == NULL)
    return ACCRT_OK; /* gaps were zero before the encryption */
  uint64_t end = 0;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    if (constant->source != ACCX_CONSTANT_INLINE)
      continue;
    for (uint32_t k = 0; k < constant->component_count; ++k) {
      const accx_component_t* component = &tables->components[constant->component_first + k];
      ACCRT_TRY(check_zero(bundle, end, component->offset_bytes));
      end = component->offset_bytes + component->size_bytes;
    }
  }
  return ACCRT_OK;
}

/* ---- Code ---- */

accrt_status_t accrt_bundle_image_copy(accrt_bundle_t* bundle, uint32_t image, void* target) {
  const accx_image_t* record = &bundle->tables.images[image];
  ACCRT_TRY(accx_source_read_alone(&bundle->source, bundle->code_offset + record->offset_bytes,
                                   target, record->size_bytes));
  const accx_digest_t found = accx_digest_of(target, (size_t)record->size_bytes);
  if (accx_digest_equal(&found, &bundle->image_digests[image]))
    return ACCRT_OK;
  return ACCRT_FAIL(DATA_CORRUPT,
                    "%s: images[%" PRIu32
                    "]: '%s' has changed since the bundle was opened (rule %d)",
                    bundle->name, image, accrt_bundle_string(&bundle->tables, record->name),
                    ACCX_RULE_CODE_CHANGED);
}
