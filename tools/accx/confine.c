/* tools/accx/confine.c - starts accrt-sandbox beside this tool, sends inputs, receives results.
 * Hostile code may have written the answer: its header and items must be, byte for byte, those that
 * are computed here. The bundle's code is not loaded into this process. */
#define _GNU_SOURCE
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../sandbox/wire.h"
#include "open.h"
#include "term.h"

enum { MAX_FILES = 66, MAX_ARGUMENTS = 300 };

typedef struct confined {
  accx_job_t* job;
  pid_t child;
  int control, report;
  int files[MAX_FILES]; /* the bundle and the weights */
  int file_count;
  uint64_t id;   /* number of the call */
  int64_t cpu_s; /* limit of the process's processor time; 0: none */
  double used_s; /* processor time that the process used; set at its end */
  uint64_t over; /* end of its time, in nanoseconds of the clock; 0: never */
  bool ended;
} confined_t;

/* ---- Its time ---- */

static volatile sig_atomic_t timed_child, timed_out;

static void end_child(int number) {
  (void)number;
  timed_out = 1;
  (void)kill(timed_child, SIGKILL);
}

/* Makes a timer end the process at --time-limit, whatever the process does. Its connection then
 * closes. 0: no limit. */
static void limit_time(pid_t child, uint64_t limit_ns) {
  struct sigaction action = {.sa_handler = child > 0 ? end_child : SIG_DFL};
  struct itimerval timer = {.it_value = {.tv_sec = (time_t)(limit_ns / 1000000000u),
                                         .tv_usec = (suseconds_t)(limit_ns / 1000u % 1000000u)}};
  if (limit_ns > 0 && limit_ns < 1000)
    timer.it_value.tv_usec = 1;
  timed_child = child;
  (void)sigaction(SIGALRM, &action, NULL);
  (void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* ---- Its end ---- */

/* Names of the signals that end a process because of its code. glibc has sigabbrev_np only since
 * 2.32. */
static const char* signal_name(int number) {
  static const struct {
    int number;
    const char* name;
  } names[] = {{SIGSEGV, "SEGV"}, {SIGBUS, "BUS"},   {SIGILL, "ILL"},   {SIGFPE, "FPE"},
               {SIGTRAP, "TRAP"}, {SIGABRT, "ABRT"}, {SIGKILL, "KILL"}, {SIGTERM, "TERM"},
               {SIGINT, "INT"},   {SIGSYS, "SYS"},   {SIGXCPU, "XCPU"}, {SIGXFSZ, "XFSZ"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (names[i].number == number)
      return names[i].name;
  }
  return accx_text("%d", number);
}

#define END_WAITS 200 /* times 10 ms */

/* The end may be noticed late. If the limit has passed by then, the limit was the reason. */
static bool time_is_over(const confined_t* confined) {
  return timed_out || (confined->over > 0 && accx_now_ns() >= confined->over);
}

static bool has_ended(confined_t* confined, int options, int* out_status) {
  struct rusage used;
  if (wait4(confined->child, out_status, options, &used) != confined->child)
    return false;
  confined->used_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  return true;
}

/* Waits for the process, for a limited time: code may close its connection and live on. Status 0
 * when this function had to kill it. */
static int wait_for_end(confined_t* confined) {
  const struct timespec pause = {.tv_nsec = 10000000};
  int status = 0;
  for (int i = 0; i < END_WAITS; ++i) {
    if (has_ended(confined, WNOHANG, &status))
      return status;
    if (time_is_over(confined))
      break;
    (void)nanosleep(&pause, NULL);
  }
  (void)kill(confined->child, SIGKILL);
  (void)has_ended(confined, 0, &status);
  return 0;
}

/* Reports why the process has ended. */
static int fail_ended(confined_t* confined, const char* what) {
  char text[200];
  limit_time(0, 0);
  close(confined->control);
  confined->control = -1;
  if (what)
    kill(confined->child, SIGKILL);
  const int status = wait_for_end(confined);
  const bool late = timed_out || (!what && time_is_over(confined));
  confined->ended = true;
  const ssize_t got = read(confined->report, text, sizeof text - 1);
  const char* path = confined->job->path;
  text[got > 0 ? got : 0] = '\0';
  if (got > 0 || (!what && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS))
    return accx_fail(ACCX_REFUSED,
                     "%s: its code asked for %s, which the sandbox does not allow: it was ended "
                     "(%s)",
                     path, got > 0 ? accx_safe(text) : "a system call",
                     accrt_status_name(ACCRT_ERROR_PERMISSION_DENIED));
  if (late)
    return accx_fail(ACCX_FAILED, "%s: the limit of time is reached (--time-limit)", path);
  if (what)
    return accx_fail(ACCX_FAILED, "%s: the sandbox's process %s", path, what);
  /* the code may have caused any other signal itself */
  if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) ||
      (confined->cpu_s > 0 && confined->used_s >= (double)confined->cpu_s))
    return accx_fail(ACCX_FAILED, "%s: the limit of processor time is reached (--sandbox-cpu)",
                     path);
  if (WIFSIGNALED(status))
    return accx_fail(ACCX_FAILED, "%s: the sandbox's process was ended by SIG%s", path,
                     signal_name(WTERMSIG(status)));
  return accx_fail(ACCX_FAILED, "%s: the sandbox's process hung up", path);
}

/* ---- Messages ---- */

static bool send_all(int fd, const void* bytes, uint64_t size) {
  for (const char* at = bytes; size > 0;) {
    const ssize_t put = send(fd, at, size, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return false;
    at += put, size -= (uint64_t)put;
  }
  return true;
}

static bool receive_all(int fd, void* bytes, uint64_t size) {
  for (char* at = bytes; size > 0;) {
    const ssize_t got = read(fd, at, size);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    at += got, size -= (uint64_t)got;
  }
  return true;
}

static int fail_reported(confined_t* confined, const wire_header_t* header) {
  char text[WIRE_MAX_TEXT_BYTES + 1];
  if (header->size_bytes > WIRE_MAX_TEXT_BYTES ||
      !receive_all(confined->control, text, header->size_bytes))
    return fail_ended(confined, "answered without sense");
  text[header->size_bytes] = '\0';
  const accrt_status_t status = (accrt_status_t)header->number;
  return accx_fail(accx_exit_code(status), "%s: %s (%s)", confined->job->path, accx_safe(text),
                   accrt_status_name(status));
}

static int receive(confined_t* confined, uint32_t type, wire_header_t* header) {
  if (!receive_all(confined->control, header, sizeof *header))
    return fail_ended(confined, NULL);
  if (header->id != confined->id || (header->type != WIRE_ERROR && header->type != type))
    return fail_ended(confined, "answered without sense");
  return header->type == WIRE_ERROR ? fail_reported(confined, header) : ACCX_OK;
}

/* ---- The call ---- */

static uint64_t round_up(uint64_t size) {
  return (size + WIRE_ALIGNMENT - 1) & ~(uint64_t)(WIRE_ALIGNMENT - 1);
}

static bool send_call(const confined_t* confined) {
  static const char zeros[WIRE_ALIGNMENT];
  const accx_job_t* job = confined->job;
  const uint32_t count = job->function_info.input_count;
  wire_item_t* items = accx_alloc(count + 1, sizeof *items);
  const uint64_t items_bytes = count * sizeof *items, begin = round_up(items_bytes);
  wire_header_t header = {WIRE_CALL, count, job->function, confined->id, begin};
  for (uint32_t i = 0; i < count; ++i) {
    const accx_argument_t* argument = &job->arguments[i];
    const accx_array_t* array = &argument->array;
    items[i] = (wire_item_t){.index = i, .kind = WIRE_ABSENT};
    if (!argument->given)
      continue;
    items[i].kind = argument->info.kind == ACCRT_ARGUMENT_SCALAR ? WIRE_SCALAR : WIRE_TENSOR;
    items[i].scalar = argument->scalar;
    if (items[i].kind == WIRE_SCALAR)
      continue;
    items[i].dtype = array->dtype, items[i].rank = array->rank;
    memcpy(items[i].shape, array->shape, array->rank * sizeof array->shape[0]);
    items[i].offset = header.size_bytes, items[i].size_bytes = array->size_bytes;
    header.size_bytes += round_up(array->size_bytes);
  }
  bool good = send_all(confined->control, &header, sizeof header) &&
              send_all(confined->control, items, items_bytes) &&
              send_all(confined->control, zeros, begin - items_bytes);
  for (uint32_t i = 0; i < count && good; ++i) {
    const uint64_t size = items[i].size_bytes;
    if (items[i].kind == WIRE_TENSOR)
      good = send_all(confined->control, job->arguments[i].array.data, size) &&
             send_all(confined->control, zeros, round_up(size) - size);
  }
  free(items);
  return good;
}

/* Computes what the answer's items must be: inputs that are updated, then results, each with its
 * declared type. Makes an array for each in its argument. */
static int expect_items(confined_t* confined, wire_item_t* items, uint32_t* out_count,
                        uint64_t* out_end) {
  accx_job_t* job = confined->job;
  uint64_t end = 0;
  int code = ACCX_OK;
  *out_count = 0;
  for (uint32_t i = 0; i < job->argument_count && !code; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    const bool result = i >= job->function_info.input_count;
    int64_t shape[ACCRT_MAX_RANK] = {0};
    if (!accx_argument_is_output(argument) || (!result && !argument->given))
      continue;
    if (result)
      code = accx_job_result_shape(job, argument, shape);
    if (result && !code)
      code = accx_array_create(argument->info.dtype, argument->info.rank, shape,
                               accx_text("result '%s'", argument->info.name), &argument->array);
    if (code)
      break;
    const accx_array_t* array = &argument->array;
    wire_item_t* item = &items[(*out_count)++];
    *item = (wire_item_t){i, WIRE_TENSOR, array->dtype, array->rank, .offset = end};
    memcpy(item->shape, array->shape, array->rank * sizeof array->shape[0]);
    item->size_bytes = array->size_bytes;
    end += round_up(array->size_bytes);
  }
  const uint64_t begin = round_up(*out_count * sizeof *items);
  for (uint32_t i = 0; i < *out_count; ++i)
    items[i].offset += begin;
  *out_end = begin + end;
  return code;
}

static int take_items(confined_t* confined, const wire_item_t* wanted, uint32_t count,
                      uint64_t end) {
  char padding[WIRE_ALIGNMENT];
  const uint64_t size = count * sizeof *wanted;
  wire_item_t* items = accx_alloc(count + 1, sizeof *items);
  bool good = receive_all(confined->control, items, size) &&
              receive_all(confined->control, padding, round_up(size) - size);
  const bool right = good && memcmp(items, wanted, size) == 0;
  free(items);
  if (good && !right)
    return fail_ended(confined, "answered without sense");
  for (uint32_t i = 0; i < count && good; ++i) {
    const accx_array_t* array = &confined->job->arguments[wanted[i].index].array;
    const uint64_t next = i + 1 < count ? wanted[i + 1].offset : end;
    good = receive_all(confined->control, array->data, array->size_bytes) &&
           receive_all(confined->control, padding, next - wanted[i].offset - array->size_bytes);
  }
  return good ? ACCX_OK : fail_ended(confined, NULL);
}

static int call(confined_t* confined, uint64_t* out_time_ns) {
  wire_header_t header;
  uint32_t count = 0;
  uint64_t end = 0;
  wire_item_t* items = accx_alloc(confined->job->argument_count + 1, sizeof *items);
  int code = expect_items(confined, items, &count, &end);
  if (!code && getrandom(&confined->id, sizeof confined->id, 0) != sizeof confined->id)
    code = accx_fail(ACCX_FAILED, "getrandom: %s", strerror(errno));
  if (!code && !send_call(confined))
    code = fail_ended(confined, NULL);
  if (!code)
    code = receive(confined, WIRE_RESULTS, &header);
  if (!code && (header.item_count != count || header.size_bytes != end))
    code = fail_ended(confined, "answered without sense");
  if (!code)
    code = take_items(confined, items, count, end);
  free(items);
  *out_time_ns = code ? 0 : header.number;
  return code;
}

/* ---- The process ---- */

/* Runs in the child: only functions that take no lock. */
static void exec_sandbox(const confined_t* confined, int control, int report, const char* path,
                         char* const* argv) {
  int from[MAX_FILES + 2];
  static char* const environment[] = {NULL};
  const int count = confined->file_count + 2;
  from[0] = control, from[1] = report;
  memcpy(from + 2, confined->files, (size_t)confined->file_count * sizeof from[0]);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  /* First move all above the wanted numbers, so that none is overwritten before its move. */
  for (int i = 0; i < count; ++i)
    from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, WIRE_CONTROL_FD + count);
  for (int i = 0; i < count; ++i) {
    if (from[i] < 0 || dup2(from[i], WIRE_CONTROL_FD + i) < 0)
      _exit(127);
  }
  execve(path, argv, environment);
  _exit(127);
}

static int start(confined_t* confined, char* const* argv) {
  int control[2], report[2];
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length > 0 ? length : 0] = '\0';
  const char* slash = strrchr(self, '/');
  const char* path = accx_text("%.*s/accrt-sandbox", slash ? (int)(slash - self) : 0, self);
  if (access(path, X_OK) != 0)
    return accx_fail(ACCX_FAILED, "there is no %s: this build has no sandbox", accx_safe(path));
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0)
    return accx_fail(ACCX_FAILED, "socketpair: %s", strerror(errno));
  if (pipe2(report, O_CLOEXEC | O_NONBLOCK) != 0) {
    close(control[0]), close(control[1]);
    return accx_fail(ACCX_FAILED, "pipe: %s", strerror(errno));
  }
  confined->child = fork();
  if (confined->child == 0)
    exec_sandbox(confined, control[1], report[1], path, argv);
  const int error = errno;
  close(control[1]);
  close(report[1]);
  confined->control = control[0];
  confined->report = report[0];
  return confined->child > 0 ? ACCX_OK : accx_fail(ACCX_FAILED, "fork: %s", strerror(error));
}

static int open_file(confined_t* confined, const char* path) {
  if (confined->file_count == MAX_FILES - 1)
    return accx_fail(ACCX_USAGE, "a sandbox takes at most 64 --weights");
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0)
    return accx_fail(ACCX_FAILED, "%s: %s", accx_safe(path), strerror(errno));
  struct stat facts;
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    close(fd);
    return accx_fail(ACCX_FAILED, "%s: not a regular file", accx_safe(path));
  }
  confined->files[confined->file_count++] = fd;
  return ACCX_OK;
}

static int open_files(confined_t* confined) {
  const accx_args_t* args = confined->job->args;
  size_t cursor = 0;
  int code = open_file(confined, confined->job->path);
  for (const char* path; !code && (path = accx_args_next(args, "weights", &cursor));)
    code = open_file(confined, path);
  return code;
}

static int make_arguments(confined_t* confined, const char** argv) {
  const accx_args_t* args = confined->job->args;
  const char* variant = accx_args_value(args, "variant");
  const char* threads = accx_args_value(args, "threads");
  int64_t memory_mib = 0;
  uint32_t symbols = 0;
  int code = accx_args_integer(args, "sandbox-memory", 64, INT64_C(1) << 30, &memory_mib);
  if (!code)
    code = accx_args_seconds(args, "sandbox-cpu", INT64_C(1) << 30, &confined->cpu_s);
  if (code)
    return code;
  argv[0] = "accrt-sandbox";
  argv[1] = accx_args_has(args, "sandbox-weak") ? "weak" : "strict";
  argv[2] = threads ? threads : "";
  argv[3] = accx_text("%lld", (long long)memory_mib << 20);
  argv[4] = accx_text("%lld", (long long)confined->cpu_s);
  argv[5] = accx_text("%d", confined->file_count - 1);
  argv[6] = variant ? variant : "";
  accrt_symbol_value_t* values =
      accx_job_symbol_values(confined->job, ACCRT_SYMBOL_SESSION, &symbols);
  for (uint32_t i = 0; i < symbols && 7 + i < MAX_ARGUMENTS - 1; ++i)
    argv[7 + i] = accx_text("%s=%lld", values[i].name, (long long)values[i].value);
  free(values);
  return symbols < MAX_ARGUMENTS - 8 ? ACCX_OK
                                     : accx_fail(ACCX_USAGE, "too many symbols for a sandbox");
}

/* ---- The whole ---- */

int accx_confine_check(const accx_args_t* args) {
  static const char* const others[] = {"option",  "driver",     "by-name", "rank",
                                       "adapter", "secret-key", "repeat"};
  const char* device = accx_args_value(args, "device");
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (accx_args_has(args, others[i]))
      return accx_fail(ACCX_USAGE, "--%s does not go with --sandbox", others[i]);
  }
  if (device && strcmp(device, "host") != 0 && strcmp(device, "host:0") != 0)
    return accx_fail(ACCX_USAGE, "--device %s does not go with --sandbox, which has only the host",
                     device);
  return ACCX_OK;
}

/* A policy that the user set applies in a sandbox too. Without one, the sandbox is the
 * protection. */
static int check_policy(const accx_job_t* job) {
  const char* given = accx_args_value(job->args, "trust");
  const char* variable = getenv("ACCRT_TRUST");
  const char* policy = given ? given : variable && variable[0] ? variable : "all";
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  if (strcmp(policy, "all") == 0 || accx_args_has(job->args, "allow-host-code"))
    return ACCX_OK;
  const accrt_status_t status = accrt_bundle_trust(job->bundle, &trust);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", job->path);
  if (!trust.has_host_code || (trust.code_trusted && strcmp(policy, "signed") == 0))
    return ACCX_OK;
  return accx_fail(ACCX_REFUSED, "%s: the policy '%s' does not allow its machine code (%s)",
                   job->path, policy, accrt_status_name(ACCRT_ERROR_UNTRUSTED));
}

int accx_confine_run(accx_job_t* job, const char** out_confinement, uint64_t* out_time_ns) {
  confined_t confined = {.job = job, .child = -1, .control = -1, .report = -1};
  const char* argv[MAX_ARGUMENTS] = {NULL};
  wire_header_t header = {0};
  int code = check_policy(job);
  if (!code)
    code = open_files(&confined);
  if (!code)
    code = make_arguments(&confined, argv);
  if (!code)
    code = start(&confined, (char* const*)argv);
  if (!code && accx_budget.timeout_ns > 0)
    confined.over = accx_now_ns() + accx_budget.timeout_ns;
  if (!code)
    limit_time(confined.child, accx_budget.timeout_ns);
  if (!code)
    code = receive(&confined, WIRE_READY, &header);
  *out_confinement =
      header.number ? accx_text("seccomp, Landlock %u", (unsigned)header.number) : "seccomp";
  if (!code)
    code = receive(&confined, WIRE_LOADED, &header);
  if (!code)
    code = call(&confined, out_time_ns);
  limit_time(0, 0);
  for (int i = 0; i < confined.file_count; ++i)
    close(confined.files[i]);
  if (confined.control >= 0)
    close(confined.control);
  if (confined.child > 0 && !confined.ended) {
    kill(confined.child, SIGKILL);
    (void)waitpid(confined.child, NULL, 0);
  }
  if (confined.report >= 0)
    close(confined.report);
  return code;
}
