/* bench/bench_open.c - how long files with many tensors take to open, and what checking weights costs.
 *
 *   bench_open [--tensors N] [--mib N] [--folder DIR] [--json FILE]
 *
 * Public headers only. It makes a bundle, a safetensors and a GGUF file of so many tensors, and opens each several times from the page
 * cache. Then a bundle of so many MiB of weights: opened and all weights checked on the host, from the page cache beside the rate at which
 * this machine digests memory (one thread, XXH3-128 of 1 MiB at a time), and from the disk beside reading the file from there directly. Best and
 * median of several rounds, interleaved. Text goes to the terminal, JSON to --json or to open.json in $ACCRT_BENCH_RESULTS.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/bundle_writer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ROUNDS 9u
#define CHUNK (UINT64_C(1) << 20)
#define LARGE_TENSOR_BYTES (UINT64_C(16) << 20)

typedef struct row {
  const char* name;
  double (*measure)(void);
  double seconds[ROUNDS];
  uint64_t size_bytes; /* 0: no rate */
} row_t;

static accrt_instance_t* instance;
static char folder[512] = "/tmp";
static char bundle_path[640], safetensors_path[640], gguf_path[640], large_path[640];
static uint32_t tensor_count = 100000;
static uint64_t large_bytes = UINT64_C(1) << 30;
static unsigned char* memory;
static volatile uint64_t sink;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void need(int good, const char* what) {
  if (good)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_open: %s: %s\n", what, error.message);
  exit(1);
}
#define OK(call) need((call) == ACCRT_OK, #call)

/* ---- Files ---- */

static void name_of(uint32_t i, char name[64]) {
  snprintf(name, 64, "model.layers.%u.experts.%u.up_proj.weight", i / 1000, i % 1000);
}

static void add_constant(accrt_bundle_writer_t* writer, const char* name,
                         const accrt_writer_bytes_t* bytes) {
  accrt_writer_component_t component;
  memset(&component, 0, sizeof component);
  component.bytes = *bytes;
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  constant.name = name;
  constant.dtype = ACCRT_DTYPE_U8;
  constant.rank = 2;
  constant.shape[0] = 4;
  constant.shape[1] = (int64_t)(bytes->size_bytes / 4);
  constant.components = &component;
  constant.component_count = 1;
  accrt_writer_id_t id;
  OK(accrt_bundle_writer_add_constant(writer, &constant, &id));
}

static void make_bundle(void) {
  static const unsigned char data[64];
  accrt_bundle_writer_t* writer;
  OK(accrt_bundle_writer_create(NULL, &writer));
  accrt_writer_bytes_t bytes;
  memset(&bytes, 0, sizeof bytes);
  bytes.size_bytes = sizeof data;
  bytes.data = data;
  for (uint32_t i = 0; i < tensor_count; ++i) {
    char name[64];
    name_of(i, name);
    add_constant(writer, name, &bytes);
  }
  OK(accrt_bundle_writer_write_path(writer, bundle_path));
  accrt_bundle_writer_release(writer);
}

static void make_safetensors(void) {
  FILE* file = fopen(safetensors_path, "wb");
  char* header = malloc((size_t)tensor_count * 160 + 64);
  need(file != NULL && header != NULL, safetensors_path);
  size_t size = 0;
  for (uint32_t i = 0; i < tensor_count; ++i) {
    char name[64];
    name_of(i, name);
    size += (size_t)sprintf(header + size,
                            "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[4,16],\"data_offsets\":[%u,%u]}",
                            i == 0 ? "{" : ",", name, i * 64, i * 64 + 64);
  }
  header[size++] = '}';
  const uint64_t header_bytes = size;
  static const unsigned char data[64];
  need(fwrite(&header_bytes, 8, 1, file) == 1 && fwrite(header, size, 1, file) == 1, "writing");
  for (uint32_t i = 0; i < tensor_count; ++i)
    need(fwrite(data, sizeof data, 1, file) == 1, "writing");
  need(fclose(file) == 0, "writing");
  free(header);
}

static void put(FILE* file, const void* data, size_t size) {
  need(fwrite(data, 1, size, file) == size, "writing");
}
static void put_u64(FILE* file, uint64_t value) {
  put(file, &value, sizeof value);
}
static void put_u32(FILE* file, uint32_t value) {
  put(file, &value, sizeof value);
}

static void make_gguf(void) {
  FILE* file = fopen(gguf_path, "wb");
  need(file != NULL, gguf_path);
  put(file, "GGUF", 4);
  put_u32(file, 3);
  put_u64(file, tensor_count);
  put_u64(file, 0);
  for (uint32_t i = 0; i < tensor_count; ++i) {
    char name[64];
    name_of(i, name);
    put_u64(file, strlen(name));
    put(file, name, strlen(name));
    put_u32(file, 2);
    put_u64(file, 16);
    put_u64(file, 4);
    put_u32(file, 24);
    put_u64(file, (uint64_t)i * 64);
  }
  static const unsigned char zeros[64];
  put(file, zeros, (size_t)((32 - ftell(file) % 32) % 32));
  for (uint32_t i = 0; i < tensor_count; ++i)
    put(file, zeros, sizeof zeros);
  need(fclose(file) == 0, "writing");
}

static int32_t noise(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  uint64_t state = (uint64_t)(uintptr_t)self * 0x9E3779B97F4A7C15u + offset;
  unsigned char* at = target;
  for (uint64_t i = 0; i < size_bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    memcpy(at + i, &state, size_bytes - i < 8 ? size_bytes - i : 8);
  }
  return 0;
}

static void make_large(void) {
  accrt_bundle_writer_t* writer;
  OK(accrt_bundle_writer_create(NULL, &writer));
  accrt_writer_bytes_t bytes;
  memset(&bytes, 0, sizeof bytes);
  bytes.kind = ACCRT_WRITER_BYTES_READER;
  bytes.size_bytes = LARGE_TENSOR_BYTES;
  bytes.read = noise;
  for (uint64_t i = 0; i < large_bytes / LARGE_TENSOR_BYTES; ++i) {
    char name[64];
    name_of((uint32_t)i, name);
    bytes.self = (void*)(uintptr_t)(i + 1);
    add_constant(writer, name, &bytes);
  }
  OK(accrt_bundle_writer_write_path(writer, large_path));
  accrt_bundle_writer_release(writer);
}

/* ---- What is measured ---- */

static double open_bundle(void) {
  accrt_bundle_t* bundle;
  const double begin = now_s();
  OK(accrt_bundle_open_path(instance, bundle_path, NULL, &bundle));
  const double end = now_s();
  accrt_bundle_release(bundle);
  return end - begin;
}

static double open_weights(const char* path) {
  accrt_weights_t* weights;
  const double begin = now_s();
  OK(accrt_weights_open_path(instance, path, NULL, &weights));
  const double end = now_s();
  accrt_weights_release(weights);
  return end - begin;
}
static double open_pack(void) {
  return open_weights(bundle_path);
}
static double open_safetensors(void) {
  return open_weights(safetensors_path);
}
static double open_gguf(void) {
  return open_weights(gguf_path);
}

static double find_all(void) {
  accrt_weights_t* weights;
  OK(accrt_weights_open_path(instance, safetensors_path, NULL, &weights));
  const double begin = now_s();
  for (uint32_t i = 0; i < tensor_count; ++i) {
    char name[64];
    uint32_t index;
    name_of((i * 7919u) % tensor_count, name);
    OK(accrt_weights_find(weights, name, &index));
  }
  const double end = now_s();
  accrt_weights_release(weights);
  return end - begin;
}

/* From opening to the last weight checked, as a program on the host does it. */
static double check_large(void) {
  accrt_bundle_t* bundle;
  const double begin = now_s();
  OK(accrt_bundle_open_path(instance, large_path, NULL, &bundle));
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  OK(accrt_bundle_info(bundle, &info));
  for (uint32_t i = 0; i < info.constant_count; ++i) {
    const void* data;
    uint64_t size_bytes;
    OK(accrt_bundle_constant_data(bundle, i, &data, &size_bytes));
  }
  const double end = now_s();
  accrt_bundle_release(bundle);
  return end - begin;
}

static void drop_cache(void) {
  const int fd = open(large_path, O_RDONLY);
  need(fd >= 0, large_path);
  (void)fdatasync(fd);
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

static double check_cached(void) {
  return check_large();
}
static double check_cold(void) {
  drop_cache();
  return check_large();
}

static double read_direct(void) {
  drop_cache();
  const double begin = now_s();
  const int fd = open(large_path, O_RDONLY | O_DIRECT);
  need(fd >= 0, "O_DIRECT");
  for (uint64_t at = 0; at < large_bytes;) {
    const ssize_t count = pread(fd, memory, 8 * CHUNK, (off_t)at);
    need(count > 0, "reading directly");
    at += (uint64_t)count;
  }
  close(fd);
  return now_s() - begin;
}

static double digest_memory(void) {
  const double begin = now_s();
  for (uint64_t at = 0; at < large_bytes; at += CHUNK)
    sink += XXH3_128bits(memory + at, CHUNK).low64;
  return now_s() - begin;
}

static row_t rows[] = {{"open a bundle", open_bundle, {0}, 0},
                       {"open it as weights", open_pack, {0}, 0},
                       {"open a safetensors file", open_safetensors, {0}, 0},
                       {"open a GGUF file", open_gguf, {0}, 0},
                       {"find every tensor by name", find_all, {0}, 0},
                       {"digest memory", digest_memory, {0}, 1},
                       {"bundle on the host, cached", check_cached, {0}, 1},
                       {"read from disk directly", read_direct, {0}, 1},
                       {"bundle on the host, from disk", check_cold, {0}, 1}};
#define ROW_COUNT (sizeof rows / sizeof rows[0])

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Of the rounds, whose two parts came one after the other. */
static double median_ratio(const row_t* over, const row_t* under) {
  double ratios[ROUNDS];
  for (unsigned i = 0; i < ROUNDS; ++i)
    ratios[i] = over->seconds[i] / under->seconds[i];
  qsort(ratios, ROUNDS, sizeof(double), by_value);
  return ratios[ROUNDS / 2];
}

static void report(const char* json_path) {
  const double cached = median_ratio(&rows[5], &rows[6]);
  const double cold = median_ratio(&rows[8], &rows[7]);
  FILE* json = json_path != NULL ? fopen(json_path, "w") : NULL;
  if (json != NULL)
    fprintf(json, "{\"tensors\": %u, \"bytes\": %llu, \"rows\": [", tensor_count,
            (unsigned long long)large_bytes);
  for (size_t i = 0; i < ROW_COUNT; ++i) {
    row_t* row = &rows[i];
    qsort(row->seconds, ROUNDS, sizeof(double), by_value);
    const double best = row->seconds[0], median = row->seconds[ROUNDS / 2];
    printf("  %-32s %9.2f ms best %9.2f ms median", row->name, best * 1e3, median * 1e3);
    if (row->size_bytes != 0)
      printf("  %6.2f GB/s", (double)large_bytes / median * 1e-9);
    printf("\n");
    if (json != NULL)
      fprintf(json, "%s{\"name\": \"%s\", \"best_s\": %.6g, \"median_s\": %.6g}", i > 0 ? ", " : "",
              row->name, best, median);
  }
  printf("  cached: %.2f of the digest rate; from disk: %.2f x the direct read\n", cached, cold);
  if (json != NULL) {
    fprintf(json, "], \"cached_of_digest_rate\": %.4f, \"disk_over_direct\": %.4f}\n", cached,
            cold);
    (void)fclose(json);
  }
}

int main(int argc, char** argv) {
  const char* json_path = NULL;
  static char own[640];
  const char* results = getenv("ACCRT_BENCH_RESULTS");
  if (results != NULL) {
    snprintf(own, sizeof own, "%s/open.json", results);
    json_path = own;
    snprintf(folder, sizeof folder, "%.500s", results);
  }
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--tensors") == 0)
      tensor_count = (uint32_t)atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--mib") == 0)
      large_bytes = strtoull(argv[i + 1], NULL, 10) << 20;
    else if (strcmp(argv[i], "--folder") == 0)
      snprintf(folder, sizeof folder, "%.500s", argv[i + 1]);
    else if (strcmp(argv[i], "--json") == 0)
      json_path = argv[i + 1];
  }
  snprintf(bundle_path, sizeof bundle_path, "%s/open-many.accx", folder);
  snprintf(safetensors_path, sizeof safetensors_path, "%s/open-many.safetensors", folder);
  snprintf(gguf_path, sizeof gguf_path, "%s/open-many.gguf", folder);
  snprintf(large_path, sizeof large_path, "%s/open-large.accx", folder);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  OK(accrt_instance_create(&options, &instance));
  need(posix_memalign((void**)&memory, 4096, large_bytes) == 0, "memory");
  memset(memory, 1, large_bytes);
  make_bundle();
  make_safetensors();
  make_gguf();
  make_large();
  (void)check_large();
  for (unsigned round = 0; round < ROUNDS; ++round) {
    for (size_t i = 0; i < ROW_COUNT; ++i) {
      if (rows[i].measure == check_cached && round > 0)
        (void)check_large(); /* back into the page cache */
      rows[i].seconds[round] = rows[i].measure();
    }
  }
  printf("%u tensors; %llu MiB\n", tensor_count, (unsigned long long)(large_bytes >> 20));
  report(json_path);
  unlink(bundle_path);
  unlink(safetensors_path);
  unlink(gguf_path);
  unlink(large_path);
  accrt_instance_release(instance);
  free(memory);
  return 0;
}
