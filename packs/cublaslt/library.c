/* library.c - finds and opens cuBLASLt, once in a process, and keeps a handle for each device.
 * Nothing of it is ever closed: at exit the driver may be gone before we are. */
#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"
#include "runtime/core/safe_open.h"

static const char* const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
static const char* const directories[] = {
    "/usr/local/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/opt/cuda/lib64",
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct device_handle {
  struct device_handle* next;
  int32_t device_id;
  lt_handle_t handle;
} device_handle_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* library;            /* under `lock` */
static lt_functions_t functions; /* under `lock` until opened, then constant */
static device_handle_t* handles; /* under `lock` */

static int is_in(const char* directory, size_t length, const char* name) {
  char path[4096];
  if (length == 0)
    return 0;
  const int size = snprintf(path, sizeof path, "%.*s/%s", (int)length, directory, name);
  return size > 0 && (size_t)size < sizeof path && access(path, R_OK) == 0;
}

/** Whether a directory that the dynamic loader searches has it; what it finds by its cache alone is
 * not seen here. */
static int is_in_usual_place(const char* name) {
  const char* at = getenv("LD_LIBRARY_PATH");
  while (at != NULL && *at != '\0') {
    const size_t length = strcspn(at, ":;");
    if (is_in(at, length, name))
      return 1;
    at += length + (at[length] != '\0');
  }
  for (size_t i = 0; i < COUNT(directories); ++i) {
    if (is_in(directories[i], strlen(directories[i]), name))
      return 1;
  }
  return 0;
}

int library_is_there(void) {
  for (size_t i = 0; i < COUNT(names); ++i) {
    void* loaded = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (loaded != NULL) {
      dlclose(loaded);
      return 1;
    }
    if (accrt_library_search(names[i]) == ACCRT_OK && is_in_usual_place(names[i]))
      return 1;
  }
  char message[256];
  return library_open(message, sizeof message) != NULL;
}

static int find_functions(char* message, size_t capacity_bytes) {
  const struct {
    const char* name;
    void* function;
  } wanted[] = {
      {"cublasLtCreate", &functions.create},
      {"cublasLtDestroy", &functions.destroy},
      {"cublasLtGetStatusName", &functions.status_name},
      {"cublasLtMatmulDescCreate", &functions.desc_create},
      {"cublasLtMatmulDescSetAttribute", &functions.desc_set},
      {"cublasLtMatmulDescDestroy", &functions.desc_destroy},
      {"cublasLtMatrixLayoutCreate", &functions.layout_create},
      {"cublasLtMatrixLayoutSetAttribute", &functions.layout_set},
      {"cublasLtMatrixLayoutDestroy", &functions.layout_destroy},
      {"cublasLtMatmulPreferenceCreate", &functions.preference_create},
      {"cublasLtMatmulPreferenceSetAttribute", &functions.preference_set},
      {"cublasLtMatmulPreferenceDestroy", &functions.preference_destroy},
      {"cublasLtMatmulAlgoGetHeuristic", &functions.heuristic},
      {"cublasLtMatmulAlgoCheck", &functions.algo_check},
      {"cublasLtMatmul", &functions.matmul},
  };
  for (size_t i = 0; i < COUNT(wanted); ++i) {
    void* address = dlsym(library, wanted[i].name);
    if (address == NULL) {
      snprintf(message, capacity_bytes, "cuBLASLt has no function %s", wanted[i].name);
      return 0;
    }
    memcpy(wanted[i].function, &address, sizeof address);
  }
  return 1;
}

static int open_locked(char* message, size_t capacity_bytes) {
  if (library != NULL)
    return 1;
  /* The newest name's reason is reported; it has to be copied before the next attempt. */
  for (size_t i = 0; i < COUNT(names) && library == NULL; ++i) {
    if (accrt_library_open(names[i], ACCRT_LIBRARY_PATH_OR_SONAME, &library) != ACCRT_OK && i == 0)
      snprintf(message, capacity_bytes, "cuBLASLt cannot be opened: %s", failure_message());
  }
  if (library == NULL)
    return 0;
  if (find_functions(message, capacity_bytes))
    return 1;
  dlclose(library);
  library = NULL;
  return 0;
}

const lt_functions_t* library_open(char* message, size_t message_capacity_bytes) {
  pthread_mutex_lock(&lock);
  const int open = open_locked(message, message_capacity_bytes);
  pthread_mutex_unlock(&lock);
  return open ? &functions : NULL;
}

static lt_handle_t make_handle(const lt_functions_t* lt, int32_t device_id, char* message,
                               size_t capacity_bytes) {
  device_handle_t* entry = malloc(sizeof *entry);
  if (entry == NULL) {
    snprintf(message, capacity_bytes, "no memory for a handle of cuBLASLt");
    return NULL;
  }
  const lt_status_t status = lt->create(&entry->handle);
  if (status != 0) {
    snprintf(message, capacity_bytes, "cublasLtCreate for device %d: %s", (int)device_id,
             lt->status_name(status));
    free(entry);
    return NULL;
  }
  entry->device_id = device_id;
  entry->next = handles;
  handles = entry;
  return entry->handle;
}

lt_handle_t library_handle(const lt_functions_t* lt, int32_t device_id, char* message,
                           size_t message_capacity_bytes) {
  pthread_mutex_lock(&lock);
  const device_handle_t* entry = handles;
  while (entry != NULL && entry->device_id != device_id)
    entry = entry->next;
  lt_handle_t handle =
      entry ? entry->handle : make_handle(lt, device_id, message, message_capacity_bytes);
  pthread_mutex_unlock(&lock);
  return handle;
}
