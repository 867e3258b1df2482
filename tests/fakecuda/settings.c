/* tests/fakecuda/settings.c - settings from the environment and from fakecuda_control, and faults on demand.
 *
 * A fault is "ENTRY:N=CODE" (the N-th call from now of that entry point fails with CODE, once) or "ENTRY:N+=CODE" (it and
 * all later ones). Entry points are named without a version suffix.
 */
#include "settings.h"

#include <errno.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#define MAX_FAULTS 32

typedef struct fault {
  char name[64];
  uint64_t remaining; /* calls until it fails; 0: unused */
  bool for_ever;
  CUresult result;
} fault_t;

static fault_t faults[MAX_FAULTS];
static atomic_uint fault_count;
static pthread_mutex_t fault_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(fake_site_t*) sites;

/* ---- Small things for all ---- */

uint64_t fake_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * BILLION + (uint64_t)now.tv_nsec;
}

uint64_t fake_random(void) { /* splitmix64 */
  uint64_t z = (fake.random += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

void* fake_allocate(size_t size_bytes) {
  void* pointer = calloc(1, size_bytes == 0 ? 1 : size_bytes);
  if (pointer == NULL) {
    fputs("fakecuda: no host memory\n", stderr);
    abort();
  }
  return pointer;
}

void fake_complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("fakecuda: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  atomic_fetch_add_explicit(&fake.complaints, 1, memory_order_relaxed);
}

EXPORT uint64_t fakecuda_complaints(void) {
  return atomic_load_explicit(&fake.complaints, memory_order_relaxed);
}

/* ---- Counting calls ---- */

/* Compares without the version suffix: cuMemAlloc_v2 is cuMemAlloc. */
static bool is_entry(const char* full, const char* name) {
  const size_t length = strlen(name);
  if (strncmp(full, name, length) != 0)
    return false;
  const char* rest = full + length;
  return rest[0] == '\0' || (rest[0] == '_' && (rest[1] == 'v' || strcmp(rest, "_ptsz") == 0));
}

static void list_site(fake_site_t* entered, const char* name) {
  bool expected = false;
  if (!atomic_compare_exchange_strong_explicit(&entered->is_listed, &expected, true,
                                               memory_order_acq_rel, memory_order_relaxed))
    return;
  entered->name = name;
  fake_site_t* first = atomic_load_explicit(&sites, memory_order_relaxed);
  do {
    entered->next = first;
  } while (!atomic_compare_exchange_weak_explicit(&sites, &first, entered, memory_order_release,
                                                  memory_order_relaxed));
}

void site_count(fake_site_t* entered, const char* name) {
  if (atomic_fetch_add_explicit(&entered->count, 1, memory_order_relaxed) == 0)
    list_site(entered, name);
}

/* What a call was made with, counted under a name of its own. Under the lock. */
void fake_count(const char* name) {
  static fake_site_t details[16];
  for (size_t i = 0; i < sizeof details / sizeof details[0]; ++i) {
    if (details[i].name != NULL && strcmp(details[i].name, name) != 0)
      continue;
    details[i].name = name;
    site_count(&details[i], name);
    return;
  }
}

EXPORT uint64_t fakecuda_count(const char* entry_point) {
  uint64_t count = 0;
  /* Acquire pairs with the release in list_site. */
  for (fake_site_t* at = atomic_load_explicit(&sites, memory_order_acquire); at != NULL;
       at = at->next) {
    if (is_entry(at->name, entry_point))
      count += atomic_load_explicit(&at->count, memory_order_relaxed);
  }
  return count;
}

/* ---- Faults ---- */

CUresult fault_for(const char* name) {
  if (atomic_load_explicit(&fault_count, memory_order_relaxed) == 0)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&fault_mutex);
  for (int i = 0; i < MAX_FAULTS && result == CUDA_SUCCESS; ++i) {
    fault_t* fault = &faults[i];
    if (fault->remaining == 0 || !is_entry(name, fault->name))
      continue;
    if (fault->remaining > 1) {
      --fault->remaining;
      continue;
    }
    result = fault->result;
    if (!fault->for_ever) {
      fault->remaining = 0;
      atomic_fetch_sub_explicit(&fault_count, 1, memory_order_relaxed);
    }
  }
  pthread_mutex_unlock(&fault_mutex);
  return result;
}

static void clear_faults(void) {
  pthread_mutex_lock(&fault_mutex);
  memset(faults, 0, sizeof faults);
  atomic_store_explicit(&fault_count, 0, memory_order_relaxed);
  pthread_mutex_unlock(&fault_mutex);
}

/* One "ENTRY:N=CODE" or "ENTRY:N+=CODE". */
static int add_fault(const char* text) {
  fault_t fault = {.for_ever = strstr(text, "+=") != NULL};
  unsigned long long nth = 0;
  unsigned result = 0;
  if (sscanf(text, fault.for_ever ? "%63[^:]:%llu+=%u" : "%63[^:]:%llu=%u", fault.name, &nth,
             &result) != 3 ||
      nth == 0)
    return -1;
  fault.remaining = nth;
  fault.result = (CUresult)result;
  int status = -1;
  pthread_mutex_lock(&fault_mutex);
  for (int i = 0; i < MAX_FAULTS && status != 0; ++i) {
    if (faults[i].remaining != 0)
      continue;
    faults[i] = fault;
    atomic_fetch_add_explicit(&fault_count, 1, memory_order_relaxed);
    status = 0;
  }
  pthread_mutex_unlock(&fault_mutex);
  return status;
}

static int add_faults(const char* list) {
  char* copy = strdup(list);
  char* rest = copy;
  int status = copy == NULL ? -1 : 0;
  for (char* one; status == 0 && (one = strsep(&rest, ",")) != NULL;) {
    if (one[0] != '\0')
      status = add_fault(one);
  }
  free(copy);
  return status;
}

/* ---- Settings ---- */

static int parse_number(const char* text, uint64_t* out_number) {
  char* end = NULL;
  errno = 0;
  const uint64_t number = strtoull(text, &end, 0);
  if (errno != 0 || end == text || *end != '\0')
    return -1;
  *out_number = number;
  return 0;
}

/* "N:CODE", or "-1" for never. */
static int parse_countdown(const char* text, int64_t* out_count, CUresult* out_result) {
  long long count = 0;
  int result = (int)*out_result;
  const int fields = sscanf(text, "%lld:%d", &count, &result);
  if (fields < 1)
    return -1;
  *out_count = count;
  *out_result = (CUresult)result;
  return 0;
}

static void set_defaults(settings_t* settings) {
  *settings = (settings_t){
      .device_count = 2,
      .arch = 90,
      .driver_version = 13000,
      .memory_bytes = UINT64_C(4) << 30,
      .seed = 1,
      .delay_ns = 50000,
      .is_protected = true,
      .has_peers = true,
      .lose_after_launches = -1,
      .lose_with = CUDA_ERROR_LAUNCH_FAILED,
      .fail_task_after = -1,
      .fail_task_with = CUDA_ERROR_ILLEGAL_ADDRESS,
      .init_result = CUDA_SUCCESS,
  };
}

static int set_number(settings_t* settings, const char* key, uint64_t number) {
  if (strcmp(key, "devices") == 0 && number <= FAKE_MAX_DEVICES)
    settings->device_count = (int)number;
  else if (strcmp(key, "arch") == 0 && number >= 30 && number < 1000)
    settings->arch = (int)number;
  else if (strcmp(key, "version") == 0)
    settings->driver_version = (int)number;
  else if (strcmp(key, "memory") == 0)
    settings->memory_bytes = number;
  else if (strcmp(key, "seed") == 0)
    settings->seed = fake.random = number;
  else if (strcmp(key, "delay_us") == 0)
    settings->delay_ns = number * 1000;
  else if (strcmp(key, "protect") == 0)
    settings->is_protected = number != 0;
  else if (strcmp(key, "trace") == 0)
    settings->is_traced = number != 0;
  else if (strcmp(key, "init") == 0)
    settings->init_result = (CUresult)number;
  else if (strcmp(key, "exclusive") == 0)
    settings->exclusive = (int)number;
  else if (strcmp(key, "peers") == 0)
    settings->has_peers = number != 0;
  else
    return -1;
  return 0;
}

static int set(settings_t* settings, const char* key, const char* value) {
  if (strcmp(key, "fail") == 0)
    return add_faults(value);
  if (strcmp(key, "lose") == 0)
    return parse_countdown(value, &settings->lose_after_launches, &settings->lose_with);
  if (strcmp(key, "async") == 0)
    return parse_countdown(value, &settings->fail_task_after, &settings->fail_task_with);
  uint64_t number = 0;
  return parse_number(value, &number) == 0 ? set_number(settings, key, number) : -1;
}

void settings_read(settings_t* settings) {
  static const char* const keys[] = {"devices",  "arch",    "version", "memory", "seed",
                                     "delay_us", "protect", "trace",   "init",   "exclusive",
                                     "fail",     "lose",    "async",   "peers"};
  set_defaults(settings);
  fake.random = settings->seed;
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    char name[64] = "FAKECUDA_";
    for (size_t k = 0; keys[i][k] != '\0'; ++k)
      name[9 + k] = (char)(keys[i][k] == '_' ? '_' : keys[i][k] - 'a' + 'A');
    const char* value = getenv(name);
    if (value != NULL && set(settings, keys[i], value) != 0)
      fake_complain("%s=%s is not understood", name, value);
  }
}

EXPORT int fakecuda_control(const char* setting) {
  const char* equals = strchr(setting, '=');
  char key[64];
  if (strcmp(setting, "reset") == 0) { /* no faults any more */
    clear_faults();
    pthread_mutex_lock(&fake.mutex);
    fake.settings.lose_after_launches = -1;
    fake.settings.fail_task_after = -1;
    memset(fake.lost, 0, sizeof fake.lost);
    pthread_mutex_unlock(&fake.mutex);
    return 0;
  }
  if (equals == NULL || (size_t)(equals - setting) >= sizeof key)
    return -1;
  memcpy(key, setting, (size_t)(equals - setting));
  key[equals - setting] = '\0';
  pthread_mutex_lock(&fake.mutex);
  const int status = set(&fake.settings, key, equals + 1);
  pthread_mutex_unlock(&fake.mutex);
  return status;
}
