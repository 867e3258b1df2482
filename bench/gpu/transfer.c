/* bench/gpu/transfer.c - host to device, pinned and pageable, beside the raw driver's copy of
 * pinned memory.
 *
 *   gpu_transfer [--device N] [--rounds R] [--mib M]
 *
 * Bytes at the far end are compared. Text to the terminal, JSON to gpu_transfer.json in
 * $ACCRT_BENCH_RESULTS. Public headers and the raw driver alone. */
#include "gpu.h"

static accrt_stream_t* stream;
static accrt_buffer_t* target;
static accrt_buffer_t* pinned;
static CUdeviceptr raw_target;
static CUstream raw_stream;
static unsigned char *raw_pinned, *pageable, *back;
static size_t size_bytes = (size_t)1 << 30;
static unsigned char turn;

static void fill(unsigned char* memory) {
  ++turn;
  for (size_t i = 0; i < size_bytes; i += 4096)
    memory[i] = (unsigned char)(i / 4096 * 7 + turn);
}

static void verify(CUdeviceptr from, const char* what) {
  RAW_CALL(cuMemcpyDtoH, back, from, size_bytes);
  for (size_t i = 0; i < size_bytes; i += 4096) {
    if (back[i] != (unsigned char)(i / 4096 * 7 + turn))
      die(what, "the bytes on the device are others");
  }
}

static double run_raw(unsigned char* from) {
  fill(from);
  const double begin = now_ns();
  RAW_CALL(cuMemcpyHtoDAsync, raw_target, from, size_bytes, raw_stream);
  RAW_CALL(cuStreamSynchronize, raw_stream);
  const double seconds = (now_ns() - begin) * 1e-9;
  verify(raw_target, "raw");
  return (double)size_bytes / seconds * 1e-9;
}

static double run_own(accrt_place_t source, unsigned char* memory) {
  const accrt_place_t place = {target, NULL, 0};
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  fill(memory);
  const double begin = now_ns();
  CHECK(accrt_stream_copy(stream, &source, &place, size_bytes));
  CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  const double seconds = (now_ns() - begin) * 1e-9;
  CHECK(accrt_buffer_info(target, &info));
  verify(info.device_address, "accrt");
  return (double)size_bytes / seconds * 1e-9;
}

static table_t table = {.title = "Host to device"};

int main(int argc, char** argv) {
  int index = 0, rounds = 7;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--device") == 0)
      index = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--rounds") == 0)
      rounds = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--mib") == 0)
      size_bytes = (size_t)atoi(argv[i + 1]) << 20;
    else
      die(argv[i], "not known: --device N --rounds R --mib M");
  }
  raw_open(index);
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t *device_pool, *pinned_pool;
  char name[96];
  snprintf(name, sizeof name, "cuda:%d", index);
  CHECK(accrt_instance_create(NULL, &instance));
  CHECK(accrt_instance_device_by_name(instance, name, &device));
  CHECK(accrt_stream_create(device, NULL, &stream));
  CHECK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &device_pool));
  CHECK(accrt_device_pool(device, ACCRT_MEMORY_PINNED, &pinned_pool));
  CHECK(accrt_buffer_create(device_pool, size_bytes, NULL, &target));
  CHECK(accrt_buffer_create(pinned_pool, size_bytes, NULL, &pinned));
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  CHECK(accrt_buffer_info(pinned, &info));
  RAW_CALL(cuStreamCreate, &raw_stream, CU_STREAM_NON_BLOCKING);
  RAW_CALL(cuMemAlloc, &raw_target, size_bytes);
  RAW_CALL(cuMemHostAlloc, (void**)&raw_pinned, size_bytes, 0);
  pageable = malloc(size_bytes);
  back = malloc(size_bytes);
  if (pageable == NULL || back == NULL)
    die("memory", "none left");
  memset(pageable, 1, size_bytes);
  memset(back, 1, size_bytes);
  const int r0 = add_row(&table, "cuMemcpyHtoDAsync, pinned", "GB/s", -1, 0);
  const int r1 = add_row(&table, "accrt_stream_copy, pinned", "GB/s", r0, 0.98);
  const int r2 = add_row(&table, "cuMemcpyHtoDAsync, pageable", "GB/s", r0, 0);
  const int r3 = add_row(&table, "accrt_stream_copy, pageable", "GB/s", r0, 0.80);
  table.rows[r1].more_is_better = table.rows[r3].more_is_better = 1;
  for (int i = 0; i < rounds + 1; ++i) {
    const double samples[4] = {
        run_raw(raw_pinned), run_own((accrt_place_t){pinned, NULL, 0}, info.host_pointer),
        i % 3 == 0 ? run_raw(pageable) : 0, run_own((accrt_place_t){NULL, pageable, 0}, pageable)};
    const int rows[4] = {r0, r1, r2, r3};
    for (int r = 0; i > 0 && r < 4; ++r) {
      if (samples[r] > 0)
        add_sample(&table, rows[r], samples[r]);
    }
  }
  show_table(&table);
  save_table(&table, "gpu_transfer");
  return 0;
}
