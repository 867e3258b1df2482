"""C tests that `./dev check tsan` leaves out (tests/one_thread.txt) fail when they start a thread
or a program: no list can leave out a test with threads in silence."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Calls, each from a shared library as from the test itself.
CALLS = {
    "pthread_create": "pthread_t t; return pthread_create(&t, NULL, run, NULL);",
    "thrd_create": "thrd_t t; return thrd_create(&t, enter, NULL) != thrd_success;",
    "clone": "_Alignas(16) static char stack[1 << 16]; return clone(enter, stack + sizeof stack, SIGCHLD, NULL) < 0;",
    "execve": 'return execve("/bin/true", argv, NULL);',
    "execl": 'return execl("/bin/true", "true", (char*)NULL);',
    "execlp": 'return execlp("true", "true", (char*)NULL);',
    "execle": 'return execle("/bin/true", "true", (char*)NULL, environ);',
    "execv": 'return execv("/bin/true", argv);',
    "execvp": 'return execvp("true", argv);',
    "execvpe": 'return execvpe("true", argv, environ);',
    "fexecve": 'return fexecve(open("/bin/true", O_RDONLY), argv, environ);',
    "posix_spawn": 'pid_t p; return posix_spawn(&p, "/bin/true", NULL, NULL, argv, NULL);',
    "posix_spawnp": 'pid_t p; return posix_spawnp(&p, "true", NULL, NULL, argv, NULL);',
    "system": 'return system("true");',
    "popen": 'return popen("true", "r") == NULL;',
}
HEAD = """#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>
static inline int enter(void* user) { return user != NULL; }
static inline void* run(void* user) { return user; }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Programs that make each call: `own` itself, `other` in a shared library."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    where = tmp_path_factory.mktemp("one_thread")
    functions = "".join(f"static int call_{name}(char** argv) {{ (void)argv; {text} }}\n" for name, text in CALLS.items())
    chosen = "".join(f'  if (!__builtin_strcmp(argv[1], "{name}")) return call_{name}(argv);\n' for name in CALLS)
    body = f"{HEAD}{functions}int choose(char** argv);\nint choose(char** argv) {{\n{chosen}  return 0;\n}}\n"
    (where / "calls.c").write_text(body)
    (where / "main.c").write_text("int choose(char** argv);\nint main(int argc, char** argv) { return argc > 1 ? choose(argv) : 0; }\n")
    refuses = str(ROOT / "tests/one_thread.c")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", "libcalls.so", "calls.c", "-pthread"], cwd=where, check=True)
    subprocess.run([compiler, "-w", "-o", "own", "main.c", "calls.c", refuses, "-pthread"], cwd=where, check=True)
    subprocess.run([compiler, "-w", "-o", "other", "main.c", refuses, "libcalls.so", "-Wl,-rpath,.", "-pthread"], cwd=where, check=True)
    subprocess.run([compiler, "-w", "-o", "free", "main.c", "calls.c", "-pthread"], cwd=where, check=True)
    return where


@pytest.mark.parametrize("program", ["own", "other"])
@pytest.mark.parametrize("name", CALLS)
def test_a_listed_test_may_not_start_one(folder, program, name):
    ran = subprocess.run([f"./{program}", name], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGABRT
    assert ran.stderr == f"{name}: this test stands in tests/one_thread.txt, which `./dev check tsan` leaves out: take it off that list\n"


def test_the_calls_are_good_ones(folder):
    for name in CALLS:
        subprocess.run(["./free", name], cwd=folder, check=True, capture_output=True)


def test_listed_sources_name_no_thread():
    """What is in the list is sorted, and does not even name what starts a thread."""
    listed = [line for line in (ROOT / "tests/one_thread.txt").read_text().splitlines() if line[:1] != "#"]
    assert listed == sorted(set(listed))
    for path in listed:
        assert "pthread_create" not in (ROOT / path).read_text(), path
