/* runtime/drivers/host/options.c - reads the options of the host driver (docs/options.md). It
 * starts nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/core/try.h"
#include "runtime/drivers/host/host.h"

#define OPERATION "host.open"
#define DEFAULT_SPIN_US 100u
#define MAX_SPIN_US 1000000u

/* Parses a whole decimal number of at most `maximum`; advances *text. */
static bool parse_number(const char** text, uint64_t maximum, uint32_t* out_value) {
  if (**text < '0' || **text > '9')
    return false;
  char* end;
  errno = 0;
  const unsigned long long value = strtoull(*text, &end, 10);
  if (errno != 0 || value > maximum)
    return false;
  *text = end;
  *out_value = (uint32_t)value;
  return true;
}

/* Leaves *value alone when the option was not given. */
static accrt_status_t read_number(const accrt_driver_environment_t* environment, const char* key,
                                  uint32_t minimum, uint32_t maximum, uint32_t* value,
                                  bool* out_given) {
  const char* text = environment->option(environment, key);
  if (out_given != NULL)
    *out_given = text != NULL;
  if (text == NULL)
    return ACCRT_OK;
  const char* cursor = text;
  uint32_t number;
  if (parse_number(&cursor, maximum, &number) && *cursor == '\0' && number >= minimum) {
    *value = number;
    return ACCRT_OK;
  }
  return accrt_host_fail(environment, ACCRT_ERROR_INVALID_ARGUMENT, 0, NULL, OPERATION,
                         "option %s is '%s': expected a number from %u to %u", key, text, minimum,
                         maximum);
}

static accrt_status_t add_cpu(const accrt_driver_environment_t* environment, const char* text,
                              const cpu_set_t* usable, uint32_t cpu, host_options_t* options) {
  if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, usable)) {
    return accrt_host_fail(environment, ACCRT_ERROR_INVALID_ARGUMENT, 0, NULL, OPERATION,
                           "option host.affinity is '%s': this process may not use processor %u",
                           text, cpu);
  }
  for (uint32_t i = 0; i < options->cpu_count; ++i) {
    if (options->cpus[i] == cpu) {
      return accrt_host_fail(environment, ACCRT_ERROR_INVALID_ARGUMENT, 0, NULL, OPERATION,
                             "option host.affinity is '%s': processor %u is there twice", text,
                             cpu);
    }
  }
  options->cpus[options->cpu_count++] = (uint16_t)cpu;
  return ACCRT_OK;
}

static accrt_status_t bad_affinity(const accrt_driver_environment_t* environment,
                                   const char* text) {
  return accrt_host_fail(environment, ACCRT_ERROR_INVALID_ARGUMENT, 0, NULL, OPERATION,
                         "option host.affinity is '%s': expected none or a list like 0-3,6", text);
}

/* "none", or numbers and ranges separated by commas. */
static accrt_status_t read_affinity(const accrt_driver_environment_t* environment,
                                    host_options_t* options) {
  const char* text = environment->option(environment, "host.affinity");
  if (text == NULL || strcmp(text, "none") == 0)
    return ACCRT_OK;
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
    return accrt_host_fail(environment, ACCRT_ERROR_UNSUPPORTED, errno, "errno", OPERATION,
                           "option host.affinity is '%s': processors cannot be asked for", text);
  }
  for (const char* cursor = text;; ++cursor) {
    uint32_t first;
    if (!parse_number(&cursor, HOST_MAX_THREADS - 1, &first))
      return bad_affinity(environment, text);
    uint32_t last = first;
    if (*cursor == '-') {
      ++cursor;
      if (!parse_number(&cursor, HOST_MAX_THREADS - 1, &last) || last < first) {
        return bad_affinity(environment, text);
      }
    }
    for (uint32_t cpu = first; cpu <= last; ++cpu) {
      ACCRT_TRY(add_cpu(environment, text, &usable, cpu, options));
    }
    if (*cursor == '\0')
      return ACCRT_OK;
    if (*cursor != ',')
      return bad_affinity(environment, text);
  }
}

/* Without host.threads: the listed processors, or the embedder's concurrency, or a fair share of
 * the usable ones. */
static uint32_t default_threads(const accrt_driver_environment_t* environment,
                                const host_options_t* options) {
  if (environment->executor != NULL)
    return environment->executor->concurrency;
  if (options->cpu_count != 0)
    return options->cpu_count;
  const uint32_t share = accrt_host_usable_cores() / options->device_count;
  return share == 0 ? 1 : share;
}

accrt_status_t accrt_host_options_read(const accrt_driver_environment_t* environment,
                                       host_options_t* out_options) {
  memset(out_options, 0, sizeof *out_options);
  out_options->device_count = 1;
  out_options->spin_us = DEFAULT_SPIN_US;
  ACCRT_TRY(read_number(environment, "host.devices", 1, HOST_MAX_DEVICES,
                        &out_options->device_count, NULL));
  ACCRT_TRY(read_number(environment, "host.spin_us", 0, MAX_SPIN_US, &out_options->spin_us, NULL));
  ACCRT_TRY(read_affinity(environment, out_options));
  bool given;
  ACCRT_TRY(read_number(environment, "host.threads", 0, HOST_MAX_THREADS,
                        &out_options->thread_count, &given));
  if (!given)
    out_options->thread_count = default_threads(environment, out_options);
  const uint32_t most =
      environment->executor == NULL ? HOST_MAX_THREADS : environment->executor->concurrency;
  if (out_options->thread_count > most)
    out_options->thread_count = most;
  return ACCRT_OK;
}
