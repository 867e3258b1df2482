/* bench/bench_open.c - how long files with many tensors take to open, and what checking weights
 * costs.
 *
 *   bench_open [--tensors N] [--mib N] [--threads N] [--folder DIR] [--json FILE]
 *
 * Public headers only. It makes a bundle, a safetensors and a GGUF file of so many tensors, and
 * opens each several times from the page cache. Then a bundle of so many MiB of weights (a multiple
 * of 16): opened, and a program made of it on the host, which checks all of them, with one thread
 * and with --threads (2); from the page cache beside the rate at which as many threads of this
 * machine digest memory (XXH3-128 of 1 MiB at a time), and from the disk beside reading the file
 * from there directly. Best and median of several rounds, interleaved. Text goes to the terminal,
 * JSON to --json or to open.json in $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/write.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ROUNDS 9u
#define CHUNK (UINT64_C(1) << 20)
#define LARGE_TENSOR_BYTES (UINT64_C(16) << 20)

#define MAX_THREADS 64u

typedef struct row {
  const char* name;
  double (*measure)(unsigned threads);
  bool many_threads;
  bool rate; /* of the large file's bytes */
  double seconds[ROUNDS];
} row_t;

static accrt_instance_t* instance;
static accrt_device_t* devices[2]; /* the host, with one thread and with many */
static unsigned thread_count = 2;
static char folder[512] = "/tmp";
static char bundle_path[640], safetensors_path[640], gguf_path[640], large_path[640];
static uint32_t tensor_count = 100000;
static uint64_t large_bytes = UINT64_C(1) << 30;
static unsigned char* memory;

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

static accrt_writer_id_t add_constant(accrt_bundle_writer_t* writer, const char* name,
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
  return id;
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
    (void)add_constant(writer, name, &bytes);
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

/* A function that copies a byte of each weight: so a program uses all of them. */
typedef struct touch {
  accrt_bundle_writer_t* writer;
  accrt_writer_id_t function, body, result, one, last;
} touch_t;

static void begin_touch(accrt_bundle_writer_t* writer, uint64_t count, touch_t* touch) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  function.name = "touch";
  memset(touch, 0, sizeof *touch);
  touch->writer = writer;
  OK(accrt_bundle_writer_add_function(writer, &function, &touch->function, &touch->body));
  accrt_writer_argument_t result = ACCRT_WRITER_ARGUMENT_INIT;
  result.name = "y";
  result.kind = ACCRT_ARGUMENT_RESULT;
  result.type.dtype = ACCRT_DTYPE_U8;
  result.type.rank = 1;
  OK(accrt_bundle_writer_integer(writer, 1, &touch->one));
  OK(accrt_bundle_writer_integer(writer, (int64_t)count, &result.type.dims[0]));
  OK(accrt_bundle_writer_add_argument(writer, touch->function, &result, &touch->result));
}

static void touch_constant(touch_t* touch, accrt_writer_id_t constant, uint64_t index) {
  accrt_writer_command_t copy = ACCRT_WRITER_COMMAND_INIT;
  copy.opcode = ACCRT_OPCODE_COPY;
  copy.extent[0] = touch->one;
  copy.destination.slot = touch->result;
  copy.after = &touch->last;
  copy.after_count = touch->last != 0;
  OK(accrt_bundle_writer_integer(touch->writer, (int64_t)index, &copy.destination.offset));
  OK(accrt_bundle_writer_slot(touch->writer, touch->function, constant, 0, &copy.source.slot));
  OK(accrt_bundle_writer_add_command(touch->writer, touch->body, &copy, &touch->last));
}

static void make_large(void) {
  accrt_bundle_writer_t* writer;
  OK(accrt_bundle_writer_create(NULL, &writer));
  accrt_writer_bytes_t bytes;
  memset(&bytes, 0, sizeof bytes);
  bytes.kind = ACCRT_WRITER_BYTES_READER;
  bytes.size_bytes = LARGE_TENSOR_BYTES;
  bytes.read = noise;
  const uint64_t count = large_bytes / LARGE_TENSOR_BYTES;
  touch_t touch;
  begin_touch(writer, count, &touch);
  for (uint64_t i = 0; i < count; ++i) {
    char name[64];
    name_of((uint32_t)i, name);
    bytes.self = (void*)(uintptr_t)(i + 1);
    touch_constant(&touch, add_constant(writer, name, &bytes), i);
  }
  OK(accrt_bundle_writer_write_path(writer, large_path));
  accrt_bundle_writer_release(writer);
}

/* ---- What is measured ---- */

static double open_bundle(unsigned threads) {
  (void)threads;
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
static double open_pack(unsigned threads) {
  (void)threads;
  return open_weights(bundle_path);
}
static double open_safetensors(unsigned threads) {
  (void)threads;
  return open_weights(safetensors_path);
}
static double open_gguf(unsigned threads) {
  (void)threads;
  return open_weights(gguf_path);
}

static double find_all(unsigned threads) {
  (void)threads;
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

/* From opening to a program that could be called. */
static double load_large(unsigned threads) {
  accrt_device_t* device = devices[threads > 1];
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  const double begin = now_s();
  OK(accrt_bundle_open_path(accrt_device_instance(device), large_path, NULL, &bundle));
  OK(accrt_program_create(device, bundle, NULL, &program));
  const double end = now_s();
  accrt_program_release(program);
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

static double load_cold(unsigned threads) {
  drop_cache();
  return load_large(threads);
}

static double read_direct(unsigned threads) {
  (void)threads;
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

typedef struct part {
  pthread_t thread;
  uint64_t begin, end;
  uint64_t sum; /* so that it is made */
} part_t;

static void* digest_part(void* user) {
  part_t* part = user;
  for (uint64_t at = part->begin; at < part->end; at += CHUNK)
    part->sum += XXH3_128bits(memory + at, CHUNK).low64;
  return NULL;
}

static double digest_memory(unsigned threads) {
  part_t parts[MAX_THREADS];
  const uint64_t chunks = large_bytes / CHUNK;
  const double begin = now_s();
  for (unsigned i = 0; i < threads; ++i) {
    parts[i] =
        (part_t){.begin = chunks * i / threads * CHUNK, .end = chunks * (i + 1) / threads * CHUNK};
    if (i > 0)
      need(pthread_create(&parts[i].thread, NULL, digest_part, &parts[i]) == 0, "a thread");
  }
  (void)digest_part(&parts[0]);
  for (unsigned i = 1; i < threads; ++i)
    (void)pthread_join(parts[i].thread, NULL);
  return now_s() - begin;
}

enum { DIGEST = 5, CACHED = 7, DIRECT = 9, COLD = 10 }; /* with one thread; with many: the next */
static row_t rows[] = {{.name = "open a bundle", .measure = open_bundle},
                       {.name = "open it as weights", .measure = open_pack},
                       {.name = "open a safetensors file", .measure = open_safetensors},
                       {.name = "open a GGUF file", .measure = open_gguf},
                       {.name = "find every tensor by name", .measure = find_all},
                       {.name = "digest memory", .measure = digest_memory, .rate = true},
                       {.name = "", .measure = digest_memory, .many_threads = true, .rate = true},
                       {.name = "program on the host, cached", .measure = load_large, .rate = true},
                       {.name = "", .measure = load_large, .many_threads = true, .rate = true},
                       {.name = "read from disk directly", .measure = read_direct, .rate = true},
                       {.name = "program, from disk", .measure = load_cold, .rate = true},
                       {.name = "", .measure = load_cold, .many_threads = true, .rate = true}};
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
  const double cached[] = {median_ratio(&rows[DIGEST], &rows[CACHED]),
                           median_ratio(&rows[DIGEST + 1], &rows[CACHED + 1])};
  const double cold[] = {median_ratio(&rows[COLD], &rows[DIRECT]),
                         median_ratio(&rows[COLD + 1], &rows[DIRECT])};
  FILE* json = json_path != NULL ? fopen(json_path, "w") : NULL;
  if (json != NULL)
    fprintf(json, "{\"tensors\": %u, \"bytes\": %llu, \"threads\": %u, \"rows\": [", tensor_count,
            (unsigned long long)large_bytes, thread_count);
  for (size_t i = 0; i < ROW_COUNT; ++i) {
    row_t* row = &rows[i];
    char name[64];
    snprintf(name, sizeof name, row->many_threads ? "%s  with %u threads" : "%s",
             row->many_threads ? "" : row->name, thread_count);
    qsort(row->seconds, ROUNDS, sizeof(double), by_value);
    const double best = row->seconds[0], median = row->seconds[ROUNDS / 2];
    printf("  %-32s %9.2f ms best %9.2f ms median", name, best * 1e3, median * 1e3);
    if (row->rate)
      printf("  %6.2f GB/s", (double)large_bytes / median * 1e-9);
    printf("\n");
    if (json != NULL)
      fprintf(json, "%s{\"name\": \"%s\", \"threads\": %u, \"best_s\": %.6g, \"median_s\": %.6g}",
              i > 0 ? ", " : "", row->many_threads ? rows[i - 1].name : row->name,
              row->many_threads ? thread_count : 1, best, median);
  }
  printf("  cached: %.2f of the digest rate with 1 thread, %.2f with %u\n", cached[0], cached[1],
         thread_count);
  printf("  from disk: %.2f x the direct read with 1 thread, %.2f with %u\n", cold[0], cold[1],
         thread_count);
  if (json != NULL) {
    fprintf(json,
            "], \"cached_of_digest_rate\": [%.4f, %.4f], \"disk_over_direct\": [%.4f, %.4f]}\n",
            cached[0], cached[1], cold[0], cold[1]);
    (void)fclose(json);
  }
}

static accrt_device_t* open_host(unsigned threads) {
  char text[16];
  snprintf(text, sizeof text, "%u", threads);
  const accrt_option_t option = {"host.threads", text};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  accrt_instance_t* owner;
  accrt_device_t* device;
  OK(accrt_instance_create(&options, &owner));
  OK(accrt_instance_device_by_name(owner, "host", &device));
  return device; /* lent: the instance lives as long as the process */
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
    else if (strcmp(argv[i], "--threads") == 0)
      thread_count = (unsigned)atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--folder") == 0)
      snprintf(folder, sizeof folder, "%.500s", argv[i + 1]);
    else if (strcmp(argv[i], "--json") == 0)
      json_path = argv[i + 1];
  }
  if (large_bytes == 0 || large_bytes % LARGE_TENSOR_BYTES != 0) {
    fprintf(stderr, "bench_open: --mib %llu: expected a multiple of 16\n",
            (unsigned long long)(large_bytes >> 20));
    return 2;
  }
  snprintf(bundle_path, sizeof bundle_path, "%s/open-many.accx", folder);
  snprintf(safetensors_path, sizeof safetensors_path, "%s/open-many.safetensors", folder);
  snprintf(gguf_path, sizeof gguf_path, "%s/open-many.gguf", folder);
  snprintf(large_path, sizeof large_path, "%s/open-large.accx", folder);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  OK(accrt_instance_create(&options, &instance));
  need(thread_count >= 2 && thread_count <= MAX_THREADS, "--threads");
  devices[0] = open_host(1);
  devices[1] = open_host(thread_count);
  need(posix_memalign((void**)&memory, 4096, large_bytes) == 0, "memory");
  memset(memory, 1, large_bytes);
  make_bundle();
  make_safetensors();
  make_gguf();
  make_large();
  for (unsigned round = 0; round < ROUNDS; ++round) {
    (void)load_large(1); /* into the page cache */
    for (size_t i = 0; i < ROW_COUNT; ++i)
      rows[i].seconds[round] = rows[i].measure(rows[i].many_threads ? thread_count : 1);
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
