/* tools/sandbox/main.c - accrt-sandbox: runs functions of one bundle for another process, without
 * files, network or other processes. See wire.h. The instance is made first; what a bundle's bytes
 * can influence comes after everything was given up. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "lockdown.h"
#include "wire.h"

enum { MAX_WEIGHTS = 64, MAX_SYMBOLS = 256, MAX_DIMS = 8, STACK_BYTES = 16 << 20 };

typedef struct server {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_weights_t* weights[MAX_WEIGHTS];
  uint32_t weight_count;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_symbol_value_t symbols[MAX_SYMBOLS];
  uint32_t symbol_count;
  const char* variant;
  const char* threads;
  uint32_t weight_wanted;
  int landlock; /* version; 0: none */
} server_t;

/* ---- Messages ---- */

static bool write_all(const void* bytes, size_t size) {
  for (const char* at = bytes; size > 0;) {
    const ssize_t put = write(WIRE_CONTROL_FD, at, size);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return false;
    at += put, size -= (size_t)put;
  }
  return true;
}

static bool read_all(void* bytes, size_t size) {
  for (char* at = bytes; size > 0;) {
    const ssize_t got = read(WIRE_CONTROL_FD, at, size);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    at += got, size -= (size_t)got;
  }
  return true;
}

static bool say(uint32_t type, uint64_t number, uint64_t id, const char* text) {
  const size_t length = strnlen(text, WIRE_MAX_TEXT_BYTES);
  const wire_header_t header = {.type = type, .number = number, .id = id, .size_bytes = length};
  return write_all(&header, sizeof header) && write_all(text, length);
}

static bool say_status(accrt_status_t status, uint64_t id) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  return say(WIRE_ERROR, (uint64_t)status, id, error.message);
}

/* ---- Beginning ---- */

static accrt_status_t make_instance(server_t* server, const char* threads) {
  /* The process is the fence: its owner has decided to run the code. libcrypto would have to be
   * opened, and there are no keys. */
  accrt_option_t options[] = {
      {"crypto.library", ""}, {"trust.keys", ""}, {"host.threads", threads}};
  accrt_instance_options_t wanted = ACCRT_INSTANCE_OPTIONS_INIT;
  wanted.options = options;
  wanted.option_count = threads[0] ? 3 : 2;
  wanted.option_size_bytes = (uint32_t)sizeof options[0];
  wanted.host_code_policy = ACCRT_HOST_CODE_ALL;
  const accrt_status_t status = accrt_instance_create(&wanted, &server->instance);
  return status == ACCRT_OK
             ? accrt_instance_device_by_name(server->instance, "host", &server->device)
             : status;
}

static accrt_status_t open_files(server_t* server, uint32_t weight_count) {
  accrt_status_t status =
      accrt_bundle_open_fd(server->instance, WIRE_BUNDLE_FD, NULL, &server->bundle);
  for (; status == ACCRT_OK && server->weight_count < weight_count; ++server->weight_count)
    status = accrt_weights_open_fd(server->instance, WIRE_WEIGHTS_FD + (int)server->weight_count,
                                   NULL, &server->weights[server->weight_count]);
  return status;
}

static accrt_status_t make_session(server_t* server) {
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  accrt_session_options_t session = ACCRT_SESSION_OPTIONS_INIT;
  options.variant_override = server->variant[0] ? server->variant : NULL;
  options.weights = server->weights;
  options.weight_count = server->weight_count;
  session.symbols = server->symbols;
  session.symbol_count = server->symbol_count;
  session.symbol_size_bytes = (uint32_t)sizeof server->symbols[0];
  const accrt_status_t status =
      accrt_program_create(server->device, server->bundle, &options, &server->program);
  return status == ACCRT_OK ? accrt_session_create(server->program, &session, &server->session)
                            : status;
}

/* ---- Calls ---- */

static bool fits(const wire_header_t* header, const wire_item_t* item) {
  const uint64_t begin = header->item_count * sizeof *item;
  return item->offset % WIRE_ALIGNMENT == 0 && item->offset >= begin &&
         item->offset <= header->size_bytes &&
         item->size_bytes <= header->size_bytes - item->offset && item->rank <= MAX_DIMS;
}

static accrt_status_t bind(accrt_call_t* call, const wire_header_t* header, char* payload) {
  wire_item_t* items = (wire_item_t*)(void*)payload;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < header->item_count && status == ACCRT_OK; ++i) {
    wire_item_t* item = &items[i];
    const accrt_tensor_t tensor = {.data = payload + (fits(header, item) ? item->offset : 0),
                                   .dtype = item->dtype,
                                   .rank = item->rank,
                                   .shape = item->shape};
    if (item->kind == WIRE_SCALAR)
      status = accrt_call_set_scalar(call, item->index, item->scalar);
    else if (item->kind == WIRE_TENSOR && fits(header, item))
      status = accrt_call_set_tensor(call, item->index, &tensor);
    else if (item->kind != WIRE_ABSENT)
      status = ACCRT_ERROR_INVALID_ARGUMENT;
  }
  return status;
}

/* What goes back: the items, and where the bytes of each are. */
typedef struct reply {
  wire_item_t items[WIRE_MAX_ITEMS / 64];
  const void* bytes[WIRE_MAX_ITEMS / 64];
  uint32_t count;
  uint64_t end; /* of the bytes, behind the items */
} reply_t;

static uint64_t round_up(uint64_t size) {
  return (size + WIRE_ALIGNMENT - 1) & ~(uint64_t)(WIRE_ALIGNMENT - 1);
}

static void add_item(reply_t* reply, const wire_item_t* item, const void* bytes) {
  wire_item_t* mine = &reply->items[reply->count];
  *mine = *item;
  mine->kind = WIRE_TENSOR;
  mine->offset = reply->end; /* from the items' end: made absolute when their number is known */
  reply->bytes[reply->count++] = bytes;
  reply->end += round_up(item->size_bytes);
}

static accrt_status_t add_result(reply_t* reply, accrt_call_t* call, uint32_t inputs,
                                 uint32_t index) {
  int64_t shape[MAX_DIMS], strides[MAX_DIMS];
  accrt_tensor_t tensor;
  accrt_status_t status = accrt_call_result(call, index, &tensor, shape, strides);
  if (status != ACCRT_OK)
    return status;
  wire_item_t item = {.index = inputs + index, .dtype = tensor.dtype, .rank = tensor.rank};
  uint64_t count = 1;
  for (uint32_t d = 0; d < tensor.rank; ++d)
    item.shape[d] = shape[d], count *= (uint64_t)shape[d];
  accrt_buffer_info_t buffer = ACCRT_BUFFER_INFO_INIT;
  if (tensor.buffer != NULL)
    status = accrt_buffer_info(tensor.buffer, &buffer);
  if (status != ACCRT_OK)
    return status;
  const void* data = tensor.buffer != NULL ? buffer.host_pointer : tensor.data;
  item.size_bytes = (count * accrt_dtype_bits(tensor.dtype) + 7) / 8;
  add_item(reply, &item, (const char*)data + tensor.offset_bytes);
  return ACCRT_OK;
}

static accrt_status_t collect(server_t* server, uint32_t function, accrt_call_t* call,
                              const wire_header_t* header, char* payload, reply_t* reply) {
  accrt_function_info_t info = ACCRT_FUNCTION_INFO_INIT;
  const wire_item_t* items = (const wire_item_t*)(void*)payload;
  accrt_status_t status = accrt_bundle_function(server->bundle, function, &info);
  const uint32_t most = (uint32_t)(sizeof reply->items / sizeof reply->items[0]);
  if (status == ACCRT_OK && info.input_count + info.result_count > most)
    return ACCRT_ERROR_UNSUPPORTED;
  for (uint32_t i = 0; i < header->item_count && status == ACCRT_OK; ++i) {
    accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
    status = accrt_bundle_argument(server->bundle, function, items[i].index, &argument);
    if (status == ACCRT_OK && items[i].kind == WIRE_TENSOR &&
        argument.kind == ACCRT_ARGUMENT_READ_WRITE && reply->count < most)
      add_item(reply, &items[i], payload + items[i].offset);
  }
  for (uint32_t i = 0; i < info.result_count && status == ACCRT_OK && reply->count < most; ++i)
    status = add_result(reply, call, info.input_count, i);
  return status;
}

static bool send_reply(reply_t* reply, uint64_t number, uint64_t id) {
  static const char zeros[WIRE_ALIGNMENT];
  const uint64_t items = reply->count * sizeof reply->items[0], begin = round_up(items);
  const wire_header_t header = {WIRE_RESULTS, reply->count, number, id, begin + reply->end};
  for (uint32_t i = 0; i < reply->count; ++i)
    reply->items[i].offset += begin;
  bool good = write_all(&header, sizeof header) && write_all(reply->items, items) &&
              write_all(zeros, begin - items);
  for (uint32_t i = 0; i < reply->count && good; ++i) {
    const uint64_t size = reply->items[i].size_bytes;
    good = write_all(reply->bytes[i], size) && write_all(zeros, round_up(size) - size);
  }
  return good;
}

static uint64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool serve_call(server_t* server, const wire_header_t* header, char* payload,
                       reply_t* reply) {
  accrt_call_t* call = NULL;
  accrt_function_info_t info = ACCRT_FUNCTION_INFO_INIT;
  const uint32_t function = (uint32_t)header->number;
  uint64_t begin_ns = 0;
  reply->count = 0, reply->end = 0;
  accrt_status_t status = accrt_bundle_function(server->bundle, function, &info);
  if (status == ACCRT_OK)
    status = accrt_call_create(server->session, info.name, &call);
  if (status == ACCRT_OK)
    status = bind(call, header, payload);
  begin_ns = now_ns();
  if (status == ACCRT_OK)
    status = accrt_call_run(call, ACCRT_TIMEOUT_INFINITE);
  const uint64_t time_ns = now_ns() - begin_ns;
  if (status == ACCRT_OK)
    status = collect(server, function, call, header, payload, reply);
  const bool good =
      status == ACCRT_OK ? send_reply(reply, time_ns, header->id) : say_status(status, header->id);
  accrt_call_release(call);
  return good;
}

/* One call after another, until the other end hangs up. */
static int serve(server_t* server) {
  reply_t* reply = calloc(1, sizeof *reply);
  wire_header_t header;
  while (reply && read_all(&header, sizeof header)) {
    char* payload = NULL;
    if (header.type != WIRE_CALL || header.item_count > WIRE_MAX_ITEMS ||
        header.size_bytes > SIZE_MAX / 2 ||
        header.size_bytes < header.item_count * sizeof(wire_item_t) ||
        posix_memalign((void**)&payload, 4096, (size_t)header.size_bytes + 1) != 0)
      return 1;
    const bool good =
        read_all(payload, (size_t)header.size_bytes) && serve_call(server, &header, payload, reply);
    free(payload);
    if (!good)
      return 1;
  }
  return 0;
}

/* ---- The command line ---- */

static bool take_symbols(server_t* server, int count, char** texts) {
  for (int i = 0; i < count; ++i) {
    char* equals = strrchr(texts[i], '=');
    if (!equals || i == MAX_SYMBOLS)
      return false;
    *equals = '\0';
    server->symbols[server->symbol_count++] =
        (accrt_symbol_value_t){.name = texts[i], .value = strtoll(equals + 1, NULL, 10)};
  }
  return true;
}

static int fail(const char* text) {
  (void)say(WIRE_ERROR, ACCRT_ERROR_UNSUPPORTED, 0, text);
  return 1;
}

/* Without the releases of a proper end: hostile code has had its hands in here. */
static void* run(void* user) {
  server_t* server = user;
  accrt_status_t status = make_instance(server, server->threads);
  const char* missing = status == ACCRT_OK ? lockdown_calls() : NULL;
  if (missing)
    _exit(fail(missing));
  /* What confines it is said before anything of the bundle is here that could say it. */
  if (status == ACCRT_OK && !say(WIRE_READY, (uint64_t)server->landlock, 0, ""))
    _exit(1);
  if (status == ACCRT_OK)
    status = open_files(server, server->weight_wanted);
  if (status == ACCRT_OK)
    status = make_session(server);
  if (status != ACCRT_OK)
    _exit(!say_status(status, 0) + 1);
  _exit(say(WIRE_LOADED, 0, 0, "") ? serve(server) : 1);
}

int main(int argc, char** argv) {
  static server_t server;
  if (argc < 7) {
    fputs("accrt-sandbox is started by `accx run --sandbox` and accrt.load(sandbox=True)\n",
          stderr);
    return 2;
  }
  const uint32_t weights = (uint32_t)strtoul(argv[5], NULL, 10);
  const bool weak = strcmp(argv[1], "weak") == 0;
  server.variant = argv[6];
  if (weights > MAX_WEIGHTS || !take_symbols(&server, argc - 7, argv + 7))
    return fail("more weights or symbols than a sandbox takes");
  const int error = lockdown_begin(WIRE_BUNDLE_FD + (int)weights, strtoull(argv[3], NULL, 10),
                                   strtoull(argv[4], NULL, 10));
  if (error != 0)
    return fail(strerror(error));
  /* One arena, never trimmed: others are looked after by way of files in /proc. */
  (void)mallopt(M_ARENA_MAX, 1);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
  int landlock = 0;
  const char* missing = lockdown_files(weak, &landlock);
  if (missing)
    return fail(missing);
  /* A thread of known stack: what there is of the first one's, glibc reads in /proc. */
  server.threads = argv[2];
  server.landlock = landlock;
  server.weight_wanted = weights;
  pthread_t thread;
  pthread_attr_t attributes;
  (void)pthread_attr_init(&attributes);
  (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
  if (pthread_create(&thread, &attributes, run, &server) != 0)
    return fail("no thread can be made");
  (void)pthread_join(thread, NULL);
  return 1;
}
