/* bench/gpu/objects.c - events and memory: record, wait, allocate and free in stream order, each
 * beside the raw driver's own.
 *
 *   gpu_objects [--device N] [--rounds R]
 *
 * Text to the terminal, JSON to gpu_objects.json in $ACCRT_BENCH_RESULTS. Public headers and the
 * raw driver alone. */
#include "gpu.h"

#define BATCH 500

static accrt_device_t* device;
static accrt_stream_t* first;
static accrt_stream_t* second;
static accrt_event_t* event;
static accrt_pool_t* pool;
static CUstream raw_first, raw_second;
static CUevent raw_event;

static void finish(void) {
  CHECK(accrt_stream_synchronize(first, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  CHECK(accrt_stream_synchronize(second, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  RAW_CALL(cuStreamSynchronize, raw_first);
  RAW_CALL(cuStreamSynchronize, raw_second);
}

static void raw_record(uint64_t size) {
  (void)size;
  RAW_CALL(cuEventRecord, raw_event, raw_first);
}
static void own_record(uint64_t size) {
  (void)size;
  CHECK(accrt_stream_record(first, event));
}
static void raw_record_wait(uint64_t size) {
  (void)size;
  RAW_CALL(cuEventRecord, raw_event, raw_first);
  RAW_CALL(cuStreamWaitEvent, raw_second, raw_event, 0);
}
static void own_record_wait(uint64_t size) {
  (void)size;
  CHECK(accrt_stream_record(first, event));
  CHECK(accrt_stream_wait_event(second, event));
}
static void raw_allocate(uint64_t size) {
  CUdeviceptr memory;
  RAW_CALL(cuMemAllocAsync, &memory, size, raw_first);
  RAW_CALL(cuMemFreeAsync, memory, raw_first);
}
static void own_allocate(uint64_t size) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  accrt_buffer_t* buffer;
  options.stream = first;
  CHECK(accrt_buffer_create(pool, size, &options, &buffer));
  CHECK(accrt_stream_free(first, buffer));
}

static table_t table = {.title = "Events and memory beside the raw driver"};

static void run(int row, void (*operation)(uint64_t size), uint64_t size) {
  finish();
  const double begin = now_ns();
  for (int i = 0; i < BATCH; ++i)
    operation(size);
  add_sample(&table, row, (now_ns() - begin) / BATCH);
}

int main(int argc, char** argv) {
  static const uint64_t sizes[] = {
      256, 4096, 65536, UINT64_C(1) << 20, UINT64_C(16) << 20, UINT64_C(64) << 20};
  enum { SIZES = sizeof sizes / sizeof sizes[0] };
  int index = 0, rounds = 21, raw_rows[SIZES], rows[SIZES];
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--device") == 0)
      index = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--rounds") == 0)
      rounds = atoi(argv[i + 1]);
    else
      die(argv[i], "not known: --device N --rounds R");
  }
  raw_open(index);
  accrt_instance_t* instance;
  char name[96];
  snprintf(name, sizeof name, "cuda:%d", index);
  CHECK(accrt_instance_create(NULL, &instance));
  CHECK(accrt_instance_device_by_name(instance, name, &device));
  CHECK(accrt_stream_create(device, NULL, &first));
  CHECK(accrt_stream_create(device, NULL, &second));
  CHECK(accrt_event_create(device, 0, &event));
  CHECK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  RAW_CALL(cuStreamCreate, &raw_first, CU_STREAM_NON_BLOCKING);
  RAW_CALL(cuStreamCreate, &raw_second, CU_STREAM_NON_BLOCKING);
  RAW_CALL(cuEventCreate, &raw_event, CU_EVENT_DISABLE_TIMING);
  const int r0 = add_row(&table, "cuEventRecord", "ns", -1, 0);
  const int r1 = add_row(&table, "accrt_stream_record (asked: raw + 50 ns)", "ns", r0, 0);
  const int r2 = add_row(&table, "cuEventRecord + cuStreamWaitEvent", "ns", -1, 0);
  const int r3 = add_row(
      &table, "accrt_stream_record + accrt_stream_wait_event (asked: raw + 100 ns)", "ns", r2, 0);
  for (int i = 0; i < SIZES; ++i) {
    snprintf(name, sizeof name, "cuMemAllocAsync + cuMemFreeAsync, %llu B",
             (unsigned long long)sizes[i]);
    raw_rows[i] = add_row(&table, name, "ns", -1, 0);
    snprintf(name, sizeof name, "accrt_buffer_create + accrt_stream_free, %llu B (asked: 100 ns)",
             (unsigned long long)sizes[i]);
    rows[i] = add_row(&table, name, "ns", raw_rows[i], 0);
  }
  for (int i = 0; i < rounds + 2; ++i) {
    run(r0, raw_record, 0);
    run(r1, own_record, 0);
    run(r2, raw_record_wait, 0);
    run(r3, own_record_wait, 0);
    for (int s = 0; s < SIZES; ++s) {
      run(raw_rows[s], raw_allocate, sizes[s]);
      run(rows[s], own_allocate, sizes[s]);
    }
    for (int r = 0; i < 2 && r < table.count; ++r)
      table.rows[r].count = 0;
  }
  show_table(&table);
  save_table(&table, "gpu_objects");
  return 0;
}
