/* tools/sandbox/lockdown.h - giving up what a process can do to others. */
#ifndef ACCRT_SANDBOX_LOCKDOWN_H_
#define ACCRT_SANDBOX_LOCKDOWN_H_

#include <stdbool.h>
#include <stdint.h>

/* Before anything else: no core file, hidden from debuggers, 0 to 2 are /dev/null, nothing open but
 * 3 to `last_fd`, limits. 0 or errno. */
int lockdown_begin(int last_fd, uint64_t memory_bytes, uint64_t cpu_s);
/* No new privileges, and Landlock without any rule: no file opens by a path from now on, no port by
 * its number. It confines the thread that asks and those that it makes: so before there are others.
 * `out_landlock` is the version of the kernel's Landlock, 0 where it has none, which is fine only
 * if `weak`. NULL, or what is missing. */
const char* lockdown_files(bool weak, int* out_landlock);
/* The list of system calls, for all threads: what is not on it ends the process after a report.
 * NULL, or what is missing. */
const char* lockdown_calls(void);

#endif /* ACCRT_SANDBOX_LOCKDOWN_H_ */
