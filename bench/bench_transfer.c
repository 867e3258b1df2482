/* bench/bench_transfer.c - how fast bytes get to a device and back, and how long a bundle's weights
 * take.
 *
 *   bench_transfer [--device NAME] [--bundle FILE] [--largest BYTES] [--option KEY=VALUE]...
 *                  [--json FILE]
 *
 * Public headers only. Host to device and back from pinned and from plain memory at several sizes,
 * a file to the device, and, with --bundle, from accrt_bundle_open_path to the last weight on the
 * device with the chunks checked (the device is open already; the file is read once before, so that
 * it is in the page cache when there is room). The best and the median of several rounds,
 * interleaved. The raw driver's floor is measured elsewhere. Text goes to the terminal, JSON to
 * --json or to transfer.json in $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"

#define ROUNDS 9u
#define MAX_ROWS 64u
#define MAX_OPTIONS 16u
#define MIB (UINT64_C(1) << 20)

typedef struct row {
  char name[80];
  uint64_t size_bytes;
  accrt_place_t source;
  accrt_place_t target;
  int fd; /* a file is the source; -1: none */
  double seconds[ROUNDS];
} row_t;

static row_t rows[MAX_ROWS];
static uint32_t row_count;
static accrt_instance_t* instance;
static accrt_device_t* device;
static accrt_stream_t* stream;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void check(accrt_status_t status, const char* what) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_transfer: %s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}

static row_t* add(const char* name, uint64_t size_bytes) {
  row_t* row = &rows[row_count++];
  if (row_count > MAX_ROWS)
    exit(1);
  row->fd = -1;
  row->size_bytes = size_bytes;
  if (size_bytes < MIB)
    snprintf(row->name, sizeof row->name, "%s, %llu KiB", name,
             (unsigned long long)(size_bytes >> 10));
  else
    snprintf(row->name, sizeof row->name, "%s, %llu MiB", name,
             (unsigned long long)(size_bytes >> 20));
  return row;
}

/* ---- Copies ---- */

static void run(row_t* row, uint32_t round) {
  const double begin = now_s();
  if (row->fd >= 0)
    check(accrt_stream_read_file(stream, row->fd, 0, &row->target, row->size_bytes, 0),
          "read_file");
  else
    check(accrt_stream_copy(stream, &row->source, &row->target, row->size_bytes), "copy");
  check(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN), "synchronize");
  row->seconds[round] = now_s() - begin;
}

static accrt_buffer_t* buffer_of(uint32_t kind, uint64_t size_bytes) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  check(accrt_device_pool(device, kind, &pool), "device_pool");
  check(accrt_buffer_create(pool, size_bytes, NULL, &buffer), "buffer_create");
  return buffer;
}

static int make_file(uint64_t size_bytes, const void* bytes) {
  char path[] = "/tmp/accrt-transfer-XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0)
    exit(1);
  unlink(path);
  for (uint64_t at = 0; at < size_bytes;) {
    const ssize_t written = write(fd, (const char*)bytes + at, size_bytes - at);
    if (written <= 0)
      exit(1);
    at += (uint64_t)written;
  }
  return fd;
}

static void measure_copies(uint64_t largest) {
  accrt_buffer_t* on_device = buffer_of(ACCRT_MEMORY_DEVICE, largest);
  accrt_buffer_t* pinned = buffer_of(ACCRT_MEMORY_PINNED, largest);
  unsigned char* plain = malloc(largest);
  if (plain == NULL)
    exit(1);
  memset(plain, 1, largest);
  const accrt_place_t device_place = {on_device, NULL, 0}, pinned_place = {pinned, NULL, 0},
                      plain_place = {NULL, plain, 0};
  const int fd = make_file(largest, plain);
  const uint32_t first = row_count;
  for (uint64_t size = 64u << 10; size <= largest; size *= size < MIB ? 16 : 4) {
    row_t* row = add("host to device, pinned", size);
    row->source = pinned_place;
    row->target = device_place;
    row = add("host to device, plain", size);
    row->source = plain_place;
    row->target = device_place;
    row = add("device to host, pinned", size);
    row->source = device_place;
    row->target = pinned_place;
    row = add("device to host, plain", size);
    row->source = device_place;
    row->target = plain_place;
    row = add("file in the page cache to device", size);
    row->fd = fd;
    row->target = device_place;
  }
  for (uint32_t i = first; i < row_count; ++i)
    run(&rows[i], 0); /* warm */
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    for (uint32_t i = first; i < row_count; ++i)
      run(&rows[i], round);
  }
  close(fd);
  free(plain);
  accrt_buffer_release(pinned);
  accrt_buffer_release(on_device);
}

/* ---- A bundle ---- */

static uint64_t size_of_file(const char* path) {
  struct stat facts;
  if (stat(path, &facts) == 0)
    return (uint64_t)facts.st_size;
  fprintf(stderr, "bench_transfer: %s: no such file\n", path);
  exit(1);
}

static void warm_file(const char* path) {
  static char bytes[1 << 20];
  const int fd = open(path, O_RDONLY);
  while (fd >= 0 && read(fd, bytes, sizeof bytes) > 0)
    continue;
  close(fd);
}

static void measure_bundle(const char* path) {
  row_t* row = add("bundle, open to last weight", size_of_file(path));
  warm_file(path);
  for (uint32_t round = 0; round <= ROUNDS; ++round) {
    const double begin = now_s();
    accrt_bundle_t* bundle;
    accrt_program_t* program;
    check(accrt_bundle_open_path(instance, path, NULL, &bundle), path);
    check(accrt_program_create(device, bundle, NULL, &program), "program_create");
    row->seconds[round < ROUNDS ? round : 0] = now_s() - begin;
    /* The first round stands for a process that starts: what it makes (ring, pool) is there
     * afterwards. */
    if (round == 0)
      printf("%-48s %8.2f GB/s, %.2f ms\n", "bundle, the first in this process",
             (double)row->size_bytes / row->seconds[0] * 1e-9, row->seconds[0] * 1e3);
    accrt_program_release(program);
    accrt_bundle_release(bundle);
  }
}

/* ---- Telling ---- */

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double rate(const row_t* row, uint32_t round) {
  return (double)row->size_bytes / row->seconds[round] * 1e-9;
}

static int report(const char* path) {
  printf("%-48s %10s %10s %12s\n", "", "median", "best", "median");
  for (uint32_t i = 0; i < row_count; ++i) {
    row_t* row = &rows[i];
    qsort(row->seconds, ROUNDS, sizeof(double), compare);
    printf("%-48s %5.2f GB/s %5.2f GB/s %9.3f ms\n", row->name, rate(row, ROUNDS / 2), rate(row, 0),
           row->seconds[ROUNDS / 2] * 1e3);
  }
  if (path[0] == '\0')
    return 0;
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    fprintf(stderr, "bench_transfer: cannot write %s\n", path);
    return 1;
  }
  fprintf(file, "{\"unit\": \"GB/s\", \"results\": [\n");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    fprintf(file,
            " {\"name\": \"%s\", \"size_bytes\": %llu, \"median\": %.3f, \"best\": %.3f, "
            "\"median_ms\": %.4f, \"samples\": %u}%s\n",
            row->name, (unsigned long long)row->size_bytes, rate(row, ROUNDS / 2), rate(row, 0),
            row->seconds[ROUNDS / 2] * 1e3, ROUNDS, i + 1 < row_count ? "," : "");
  }
  fprintf(file, "]}\n");
  return fclose(file) != 0;
}

static void open_device(const char* name, const accrt_option_t* options, uint32_t option_count) {
  accrt_instance_options_t instance_options = ACCRT_INSTANCE_OPTIONS_INIT;
  instance_options.options = options;
  instance_options.option_count = option_count;
  instance_options.option_size_bytes = (uint32_t)sizeof *options;
  instance_options.host_code_policy = ACCRT_HOST_CODE_ALL;
  check(accrt_instance_create(&instance_options, &instance), "instance_create");
  check(accrt_instance_device_by_name(instance, name, &device), name);
  check(accrt_stream_create(device, NULL, &stream), "stream_create");
}

int main(int count, char** arguments) {
  const char *name = "host:0", *bundle = NULL;
  uint64_t largest = 64 * MIB;
  accrt_option_t options[MAX_OPTIONS];
  uint32_t option_count = 0;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    snprintf(path, sizeof path, "%s/transfer.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i + 1 < count; i += 2) {
    char* value = arguments[i + 1];
    char* equals = strchr(value, '=');
    if (strcmp(arguments[i], "--device") == 0) {
      name = value;
    } else if (strcmp(arguments[i], "--bundle") == 0) {
      bundle = value;
    } else if (strcmp(arguments[i], "--largest") == 0) {
      largest = strtoull(value, NULL, 10);
    } else if (strcmp(arguments[i], "--json") == 0) {
      snprintf(path, sizeof path, "%s", value);
    } else if (strcmp(arguments[i], "--option") == 0 && equals != NULL &&
               option_count < MAX_OPTIONS) {
      *equals = '\0';
      options[option_count++] = (accrt_option_t){value, equals + 1};
    } else {
      count = 0;
    }
  }
  if (count % 2 == 0) {
    fprintf(stderr, "usage: bench_transfer [--device NAME] [--bundle FILE] [--largest BYTES] "
                    "[--option KEY=VALUE]... [--json FILE]\n");
    return 2;
  }
  open_device(name, options, option_count);
  if (bundle != NULL)
    measure_bundle(bundle);
  if (largest > 0)
    measure_copies(largest);
  accrt_stream_release(stream);
  accrt_instance_release(instance);
  return report(path);
}
