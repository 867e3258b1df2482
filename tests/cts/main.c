/* tests/cts/main.c - the conformance suite's command line. `cts --help` tells all.
 *
 * One test at a time is a CMocka test. Those that an expectation file lists as `unsupported` are
 * left out for good; those listed as `expected_failure` run in a process of their own and must fail
 * there: an unexpected pass is a failure, so that the list shrinks when the driver grows.
 */
#define _GNU_SOURCE
#include "direct.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_TESTS 512
#define MAX_EXPECTATIONS 128

bool cts_set_up(cts_t* cts);
void cts_tear_down(cts_t* cts);

static const struct {
  const char* name;
  const cts_test_t* tests;
} parts[] = {
    {"device", cts_device_tests},
    {"memory", cts_memory_tests},
    {"copy", cts_copy_tests},
    {"stream", cts_stream_tests},
    {"semaphore", cts_semaphore_tests},
    {"launch", cts_launch_tests},
    {"commands", cts_command_tests},
    {"prepared", cts_prepared_tests},
    {"module", cts_module_tests},
    {"interop", cts_interop_tests},
    {"traits", cts_traits_tests},
    {"invoke", cts_invoke_tests},
    {"direct", cts_direct_tests},
    {"direct", cts_direct_value_tests},
    {"direct", cts_direct_memory_tests},
    {"direct", cts_direct_event_tests},
    {"direct", cts_direct_amount_tests},
    {"direct", cts_direct_group_tests},
    {"direct", cts_direct_rule_tests},
    {"direct", cts_direct_state_tests},
    {"direct", cts_direct_corner_tests},
    {"direct", cts_direct_model_tests},
    {"direct", cts_direct_bound_tests},
    {"direct", cts_direct_large_tests},
    {"direct", cts_direct_module_tests},
    {"direct", cts_direct_capture_tests},
    {"direct", cts_direct_operator_tests},
    {"direct", cts_direct_manner_tests},
};
#define PART_COUNT (sizeof parts / sizeof parts[0])

#define EXPECT_PASS 0
#define EXPECT_FAILURE 1
#define EXPECT_UNSUPPORTED 2

typedef struct entry {
  char name[128]; /* "copy.test_zero_extents" */
  const cts_test_t* test;
  int expectation;
} entry_t;

static entry_t entries[MAX_TESTS];
static uint32_t entry_count;
static struct {
  char name[128];
  int expectation;
} expectations[MAX_EXPECTATIONS];
static uint32_t expectation_count;
static uint32_t skipped_count;
static char** program_arguments;

/* ---- Crashes. The tests run in a process of their own, so that another one can say which test it
 * was that ended it, however it did: by a signal on any thread and with any stack, by exit or
 * abort. ---- */

static char* running_test; /* its name, shared by both processes; "": none */
static pthread_t main_thread;
static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define CRASH_SIGNALS (sizeof crash_signals / sizeof *crash_signals)
static struct sigaction framework_actions[CRASH_SIGNALS];

static void note_running(const char* name) {
  if (running_test != NULL)
    snprintf(running_test, sizeof(((entry_t*)NULL)->name), "%s", name);
}

/* CMocka goes on after a crash on the test's own thread: it jumps back into the test's frame, which
 * another thread cannot. */
static void on_crash(int number, siginfo_t* info, void* context) {
  for (size_t i = 0; i < CRASH_SIGNALS; ++i) {
    if (crash_signals[i] != number)
      continue;
    const struct sigaction* action = &framework_actions[i];
    if (pthread_equal(pthread_self(), main_thread) && action->sa_handler != SIG_DFL &&
        action->sa_handler != SIG_IGN) {
      if ((action->sa_flags & SA_SIGINFO) != 0)
        action->sa_sigaction(number, info, context);
      else
        action->sa_handler(number);
      return;
    }
  }
  signal(number, SIG_DFL);
  raise(number); /* pending until this has returned, or at once */
}

/* Behind CMocka, which sets its own before each test and restores what was there after it. */
static void catch_crashes(const char* name) {
  note_running(name);
  main_thread = pthread_self();
  for (size_t i = 0; i < CRASH_SIGNALS; ++i) {
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(crash_signals[i], NULL, &framework_actions[i]);
    if (framework_actions[i].sa_handler != SIG_DFL)
      sigaction(crash_signals[i], &action, NULL);
  }
}

static struct sigaction first_actions[32]; /* before any driver was opened */

static void note_signals(void) {
  for (int i = 1; i < 32; ++i)
    sigaction(i, NULL, &first_actions[i]);
}

int cts_changed_signal(void) {
  for (int i = 1; i < 32; ++i) {
    struct sigaction now;
    const bool crashes = i == SIGSEGV || i == SIGBUS || i == SIGFPE || i == SIGILL || i == SIGSYS;
    if (!crashes && sigaction(i, NULL, &now) == 0 && now.sa_handler != first_actions[i].sa_handler)
      return i;
  }
  return 0;
}

static void say_how_it_ended(int status) {
  fprintf(stderr, "cts: %s crashed: ", running_test);
  if (WIFSIGNALED(status))
    fprintf(stderr, "the process was ended by signal %d (%s)%s\n", WTERMSIG(status),
            strsignal(WTERMSIG(status)),
            WTERMSIG(status) == SIGFPE
                ? ": do kernels have the floating-point environment of a caller?"
                : "");
  else
    fprintf(stderr, "the process ended inside it with status %d\n", WEXITSTATUS(status));
  fprintf(
      stderr,
      "cts: the tests behind it did not run. A crash on a thread of the driver is often a stack "
      "that is too small, or memory used after it was freed. In a debugger, follow the child.\n");
}

/* Returns -1 in the process that runs the tests; in the other one, when that has ended, its exit
 * status. */
static int run_beside(void) {
  running_test = mmap(NULL, sizeof(((entry_t*)NULL)->name), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (running_test == MAP_FAILED) {
    running_test = NULL;
    return -1;
  }
  fflush(NULL);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0)
    return -1;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
      _exit(127);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash takes no lines with it */
    return -1;
  }
  int status = 0;
  while (waitpid(child, &status, 0) != child) {
  }
  if (running_test[0] != '\0')
    say_how_it_ended(status);
  if (WIFEXITED(status) && (running_test[0] == '\0' || WEXITSTATUS(status) != 0))
    return WEXITSTATUS(status);
  return 1;
}

/* ---- Running one test ---- */

/* With the driver's table instead of an instance. */
static bool run_directly(const cts_test_t* test) {
  direct_t* bench = calloc(1, sizeof *bench);
  assert_non_null(bench);
  bool able = direct_set_up(bench, test->needs);
  void* state = bench;
  if (able)
    test->body(&state);
  able &= !bench->is_skipped;
  direct_tear_down(bench);
  free(bench);
  return able;
}

static bool run_with_instance(const cts_test_t* test) {
  cts_t* cts = calloc(1, sizeof *cts);
  assert_non_null(cts);
  cts->needs = test->needs;
  const bool able = cts_set_up(cts);
  void* state = cts;
  if (able)
    test->body(&state);
  cts_tear_down(cts);
  free(cts);
  return able;
}

static void run_with_fixture(const cts_test_t* test) {
  const bool able =
      (test->needs & CTS_NEEDS_TABLE) != 0 ? run_directly(test) : run_with_instance(test);
  if (!able) {
    ++skipped_count;
    print_message("  the device lacks what this needs\n");
    skip();
  }
}

/* Runs this program again, with up to three more arguments; its exit status. */
static int run_again(const char* first, const char* second, const char* third) {
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const char* more[] = {first, second, third};
    char* arguments[64];
    int count = 0;
    for (; program_arguments[count] != NULL && count < 58; ++count) {
      arguments[count] = program_arguments[count];
    }
    for (int i = 0; i < 3 && more[i] != NULL; ++i)
      arguments[count++] = (char*)(uintptr_t)more[i];
    arguments[count] = NULL;
    execv("/proc/self/exe", arguments);
    _exit(127);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool passes_in_a_process(const char* name) {
  return run_again("--ignore-expectations", "--test", name) == 0;
}

/* ---- Memory that another process opens ---- */

int cts_open_elsewhere(const accrt_memory_handle_t* handle) {
  char text[256];
  /* A descriptor that the other process inherits. */
  const int fd = handle->fd < 0 ? -1 : dup(handle->fd);
  int used =
      snprintf(text, sizeof text, "%u:%d:%" PRIu64 ":", handle->kind, fd, handle->size_bytes);
  for (size_t i = 0; i < sizeof handle->bytes; ++i)
    used += snprintf(text + used, sizeof text - (size_t)used, "%02x", handle->bytes[i]);
  const int status = run_again("--open-handle", text, NULL);
  if (fd >= 0)
    close(fd);
  return status;
}

static int open_handle(const char* text) {
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  cts_t cts = {0};
  accrt_buffer_t* buffer = NULL;
  static uint32_t words[5000];
  int used = 0;
  if (sscanf(text, "%" SCNu32 ":%" SCNd32 ":%" SCNu64 ":%n", &handle.kind, &handle.fd,
             &handle.size_bytes, &used) != 3)
    return 2;
  for (size_t i = 0; i < sizeof handle.bytes; ++i) {
    unsigned byte = 0;
    if (sscanf(text + used + 2 * i, "%2x", &byte) != 1)
      return 2;
    handle.bytes[i] = (unsigned char)byte;
  }
  OK(cts_instance_create(&cts, &cts.instance));
  OK(accrt_instance_device_by_name(cts.instance, cts_settings.device, &cts.device));
  OK(accrt_stream_create(cts.device, NULL, &cts.stream));
  OK(accrt_buffer_import_handle(cts.device, &handle, &buffer));
  cts_download(&cts, buffer, 0, words, sizeof words);
  bool is_right = true;
  for (size_t i = 0; i < 5000; ++i)
    is_right &= words[i] == CTS_OPENED_BEFORE;
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts.stream, &at, sizeof words, CTS_OPENED_AFTER, 4));
  cts_sync(cts.stream);
  accrt_buffer_release(buffer);
  accrt_stream_release(cts.stream);
  accrt_instance_release(cts.instance);
  return is_right ? 0 : 1;
}

static void run_entry(void** state) {
  const entry_t* entry = *state;
  catch_crashes(entry->name);
  if (entry->expectation == EXPECT_UNSUPPORTED) {
    ++skipped_count;
    print_message("  unsupported, by the expectation file\n");
    skip();
  }
  if (entry->expectation == EXPECT_FAILURE) {
    if (passes_in_a_process(entry->name)) {
      fail_msg("%s passes, but is listed as expected_failure: take it from the list", entry->name);
    }
    return;
  }
  run_with_fixture(entry->test);
}

/* ---- Expectations: lines of `unsupported NAME reason...` or `expected_failure NAME reason...`; #
 * begins a comment ---- */

static int read_expectations(const char* path) {
  FILE* file = fopen(path, "r");
  if (file == NULL) {
    fprintf(stderr, "cts: cannot read %s\n", path);
    return 1;
  }
  char line[512];
  int bad = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    char kind[32];
    char name[128];
    const int fields = sscanf(line, "%31s %127s", kind, name);
    if (fields < 1 || kind[0] == '#')
      continue;
    const bool failure = strcmp(kind, "expected_failure") == 0;
    if (fields != 2 || (!failure && strcmp(kind, "unsupported") != 0) ||
        expectation_count == MAX_EXPECTATIONS) {
      fprintf(stderr, "cts: %s: not understood: %s", path, line);
      bad = 1;
      break;
    }
    memcpy(expectations[expectation_count].name, name, sizeof name);
    expectations[expectation_count++].expectation = failure ? EXPECT_FAILURE : EXPECT_UNSUPPORTED;
  }
  fclose(file);
  return bad;
}

static int find_expectation(const char* name) {
  for (uint32_t i = 0; i < expectation_count; ++i) {
    if (strcmp(expectations[i].name, name) == 0)
      return expectations[i].expectation;
  }
  return EXPECT_PASS;
}

/* A list that names what is not there is out of date. */
static int check_expectation_names(void) {
  for (uint32_t i = 0; i < expectation_count; ++i) {
    bool found = false;
    for (uint32_t k = 0; k < entry_count; ++k) {
      found |= strcmp(entries[k].name, expectations[i].name) == 0;
    }
    if (!found) {
      fprintf(stderr, "cts: no test is called %s\n", expectations[i].name);
      return 1;
    }
  }
  return 0;
}

/* ---- Command line ---- */

static const char help[] =
    "usage: cts --driver NAME|PATH [options]\n"
    "\n"
    "Runs the conformance suite of the driver interface against one device.\n"
    "\n"
    "  --driver NAME|PATH   a built-in driver (host), the suite's own null driver (null), or the\n"
    "                       path of a shared object that exports accrt_driver_query\n"
    "  --name NAME          the driver's own name, when PATH does not say it (libaccrt_NAME.so)\n"
    "  --device NAME        device to test; default: the driver's first\n"
    "  --option KEY=VALUE   an option of the driver; may be repeated\n"
    "  --executor N         lend the runtime an executor of N threads\n"
    "  --expect FILE        expectations: lines of `unsupported NAME` or `expected_failure NAME`\n"
    "  --ignore-expectations\n"
    "  --test NAME          run only tests whose name contains NAME; may be repeated\n"
    "  --list               print the names of all tests and how many are negative\n";

typedef struct command_line {
  const char* tests[32];
  uint32_t test_count;
  bool list;
  bool ignore_expectations;
  const char* handle; /* in a process that test_*_in_another_process starts */
} command_line_t;

static int add_option(char* text) {
  char* equals = strchr(text, '=');
  if (equals == NULL || cts_settings.option_count == 16)
    return 1;
  *equals = '\0';
  /* "+": the driver that knows the key may be loaded later. */
  char* key = malloc(strlen(text) + 2);
  if (key == NULL)
    return 1;
  sprintf(key, "%s%s", cts_driver_is_loaded() ? "+" : "", text);
  cts_settings.options[cts_settings.option_count++] = (accrt_option_t){key, strdup(equals + 1)};
  *equals = '=';
  return 0;
}

static int parse(int count, char** arguments, command_line_t* line) {
  char* options[16];
  int option_count = 0;
  for (int i = 1; i < count; ++i) {
    char* const word = arguments[i];
    if (strcmp(word, "--list") == 0) {
      line->list = true;
      continue;
    }
    if (strcmp(word, "--ignore-expectations") == 0) {
      line->ignore_expectations = true;
      continue;
    }
    if (i + 1 == count)
      return 1;
    char* const value = arguments[++i];
    if (strcmp(word, "--driver") == 0) {
      cts_settings.driver = value;
    } else if (strcmp(word, "--name") == 0) {
      cts_settings.driver_name = value;
    } else if (strcmp(word, "--device") == 0) {
      cts_settings.device = value;
    } else if (strcmp(word, "--option") == 0 && option_count < 16) {
      options[option_count++] = value;
    } else if (strcmp(word, "--executor") == 0) {
      cts_settings.executor_threads = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(word, "--expect") == 0) {
      if (read_expectations(value) != 0)
        return 2;
    } else if (strcmp(word, "--open-handle") == 0) {
      line->handle = value;
    } else if (strcmp(word, "--test") == 0 && line->test_count < 32) {
      line->tests[line->test_count++] = value;
    } else {
      return 1;
    }
  }
#ifdef CTS_NULL_DRIVER
  if (cts_settings.driver != NULL && strcmp(cts_settings.driver, "null") == 0) {
    cts_settings.driver = CTS_NULL_DRIVER;
  }
#endif
  if (cts_settings.driver == NULL)
    return line->list ? 0 : 1;
  for (int i = 0; i < option_count; ++i) {
    if (add_option(options[i]) != 0)
      return 1;
  }
  return cts_settings.executor_threads > 64;
}

/* The driver's own name: the built-in one's, or NAME of .../libaccrt_NAME.so. */
static void default_names(void) {
  static char name[64];
  if (cts_settings.driver_name == NULL && cts_settings.driver != NULL) {
    const char* file = strrchr(cts_settings.driver, '/');
    file = file == NULL ? cts_settings.driver : file + 1;
    if (strncmp(file, "libaccrt_", 9) == 0)
      file += 9;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
    cts_settings.driver_name = name;
  }
  if (cts_settings.device == NULL)
    cts_settings.device = cts_settings.driver_name;
}

/* A vendor's driver under a device's keeps threads, files and memory of its own from its first use to its last, which are not the
 * library's to answer for: one instance stays open beside the tests, with all devices that are not the host. */
static cts_t kept;
static accrt_instance_t* kept_instance;

static void keep_devices(void) {
  uint32_t count = 0;
  (void)accrt_instance_device_count(kept_instance, &count);
  uint32_t kept_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
    accrt_device_t* device = NULL;
    if (accrt_instance_device(kept_instance, i, &device) == ACCRT_OK &&
        accrt_device_info(device, &info) == ACCRT_OK && info.dlpack_device_type > 1)
      ++kept_count;
  }
  if (kept_count != 0)
    return;
  accrt_instance_release(kept_instance);
  kept_instance = NULL;
}

static void let_devices_go(void) {
  note_running("(closing the last instance)");
  accrt_instance_release(kept_instance);
}

/* A device whose name was guessed from the driver's: said once when it is not there, not by each test. */
static bool has_device(void) {
  accrt_device_t* device = NULL;
  note_running("(opening the first instance)");
  accrt_status_t status = cts_instance_create(&kept, &kept_instance);
  if (status == ACCRT_OK)
    status = accrt_instance_device_by_name(kept_instance, cts_settings.device, &device);
  if (status != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    fprintf(stderr, "cts: --driver %s: %s (--device names a device, --name the driver)\n",
            cts_settings.driver, error.message);
  }
  return status == ACCRT_OK;
}

/* ---- All together ---- */

/* Some runtimes (sanitizers) make a thread of their own with the program's first: not the library's
 * to answer for. */
static void* do_nothing(void* argument) {
  return argument;
}

static void make_first_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, do_nothing, NULL) == 0)
    pthread_join(thread, NULL);
}

/* The last --test wins alone: passes_in_a_process appends one. */
static bool is_wanted(const command_line_t* line, const char* name) {
  if (line->test_count == 0)
    return true;
  if (line->ignore_expectations)
    return strcmp(line->tests[line->test_count - 1], name) == 0;
  for (uint32_t i = 0; i < line->test_count; ++i) {
    if (strstr(name, line->tests[i]) != NULL)
      return true;
  }
  return false;
}

static void collect(uint32_t counts[3]) {
  for (size_t i = 0; i < PART_COUNT; ++i) {
    for (const cts_test_t* test = parts[i].tests; test->name != NULL; ++test) {
      entry_t* entry = &entries[entry_count++];
      snprintf(entry->name, sizeof entry->name, "%s.%s", parts[i].name, test->name);
      entry->test = test;
      ++counts[test->kind];
    }
  }
}

static int run_wanted(const command_line_t* line) {
  static struct CMUnitTest tests[MAX_TESTS];
  size_t count = 0;
  for (uint32_t i = 0; i < entry_count; ++i) {
    if (!is_wanted(line, entries[i].name))
      continue;
    if (!line->ignore_expectations)
      entries[i].expectation = find_expectation(entries[i].name);
    tests[count++] = (struct CMUnitTest){
        .name = entries[i].name, .test_func = run_entry, .initial_state = &entries[i]};
  }
  if (count == 0) {
    fprintf(stderr, "cts: no test of that name\n");
    return -1;
  }
  return _cmocka_run_group_tests("cts", tests, count, NULL, NULL);
}

int main(int argument_count, char** arguments) {
  command_line_t line = {0};
  program_arguments = arguments;
  const int problem = parse(argument_count, arguments, &line);
  if (problem != 0) {
    if (problem == 1)
      fputs(help, stderr);
    return 2;
  }
  const bool is_guessed = cts_settings.device == NULL;
  default_names();
  if (line.handle != NULL)
    return open_handle(line.handle);
  uint32_t counts[3] = {0, 0, 0};
  collect(counts);
  if (line.list) {
    for (uint32_t i = 0; i < entry_count; ++i)
      puts(entries[i].name);
  }
  if (!line.list) {
    if (check_expectation_names() != 0)
      return 2;
    const int ended = run_beside();
    if (ended >= 0)
      return ended;
    make_first_thread();
    note_signals();
    const bool is_there = has_device();
    note_running("");
    if (is_guessed && !is_there)
      return 2;
    if (kept_instance != NULL)
      keep_devices();
    const int failed = run_wanted(&line);
    let_devices_go();
    note_running("");
    if (failed != 0)
      return failed < 0 ? 2 : 1;
  }
  printf("%u positive tests, %u negative tests, %u of the table, %u skipped here\n",
         counts[CTS_POSITIVE], counts[CTS_NEGATIVE], counts[CTS_OBLIGATION], skipped_count);
  if (counts[CTS_NEGATIVE] < counts[CTS_POSITIVE]) {
    fprintf(stderr, "cts: fewer negative tests than positive ones\n");
    return 1;
  }
  return 0;
}
