"""Bundles in a process of their own: equal results for honest ones, and nothing for those that try
what hostile code would."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import resource
import signal
import shutil
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

import accrt
from accrt import bundle_writer as bw
from accrt import sandbox
from accx_tool import ACCX, LIBRARY, accx, needs_tool

ROOT = pathlib.Path(__file__).resolve().parents[2]


def has_sandbox() -> bool:
    try:
        sandbox.helper()
    except accrt.UnsupportedError:
        return False
    return platform.machine() == "x86_64"


pytestmark = pytest.mark.skipif(not has_sandbox(), reason="no accrt-sandbox here, or not x86-64")


def make(path: pathlib.Path, *defines: str) -> pathlib.Path:
    image = path.with_suffix(".so")
    subprocess.run(["cc", "-std=c11", "-O1", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden",
                    "-fno-stack-protector", "-Wl,--build-id=none", "-Wl,-z,noexecstack", *defines, f"-I{ROOT / 'include'}",
                    str(ROOT / "tests/python/sandbox_kernel.c"), "-o", str(image)], check=True)
    bundle = bw.BundleWriter()
    n, mode = bundle.symbol("n", maximum=1 << 20), bundle.symbol("mode", bw.SymbolClass.RUNTIME, minimum=0, maximum=99)
    P = bw.Parameter
    kernel = bundle.kernel("attack", [P("x", "buffer", "read"), P("y", "buffer", "write"), P("n", "symbol"), P("mode", "symbol")])
    kernel.variant(bundle.image("code", image.read_bytes()), arch_kind="portable")
    function = bundle.function("f")
    x, m, y = function.input("x", "i64", [n]), function.scalar("m", mode), function.result("y", "i64", [n])
    del m
    function.body.dispatch(kernel, {"x": x.read(0, n * 8), "y": y.write(0, n * 8), "n": n, "mode": mode})
    bundle.write(path)
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sandbox") / "hostile.accx")


X = np.arange(1000, dtype=np.int64)

#: mode of sandbox_kernel.c, and what the error says.
ATTACKS = [(1, "files: open "), (2, "files: openat "), (3, "files: openat2"), (4, "the network: socket"), (5, "other programs: execve"),
           (6, "signals: kill"), (7, "other processes: ptrace"), (8, "programs: fork"), (9, "other programs: clone"),
           (10, "the kernel: io_uring_setup"), (11, "other processes: process_vm_readv"), (12, "signals: tgkill"), (13, "files: stat"),
           (14, "files: newfstatat"), (15, "files: rename"), (16, "the kernel: prctl"), (17, "a system call \\(302\\)"),
           (18, "a system call \\(72\\)"), (19, "devices: ioctl"), (20, "a system call"), (21, "files: mount"), (22, "the kernel: bpf"),
           (23, "memory past its limit: memfd_create"), (36, "a system call \\(18\\)")]


def test_honest_code_gives_equal_results(hostile):
    plain = accrt.load(hostile, trust="all")
    with accrt.load(hostile, sandbox=True) as confined:
        assert "seccomp" in confined.confinement and "Landlock" in confined.confinement
        for n in (0, 1, 1000, 1 << 20):
            x = np.arange(n, dtype=np.int64)
            y = confined.f(x, 0)
            assert isinstance(y, np.ndarray) and y.flags.writeable and np.array_equal(y, np.asarray(plain.f(x, 0)))
        assert np.array_equal(confined["f"](x=X, m=0), X) and confined.functions() == ["f"]


@pytest.mark.parametrize("mode, said", ATTACKS)
def test_attacks_are_refused_and_named(hostile, mode, said):
    with accrt.load(hostile, sandbox=True, options={"host.threads": 2}) as confined:
        assert np.array_equal(confined.f(X, 0), X)
        with pytest.raises(accrt.PermissionDeniedError, match=f"asked for {said}.*not allow"):
            confined.f(X, mode)
        with pytest.raises(accrt.InvalidStateError, match="asked for"):
            # it stays ended, and says why
            confined.f(X, 0)


def test_code_learns_nothing_of_other_processes_by_their_numbers(hostile):
    """Their processor time, limits and processors, which Linux tells without a right to them; and
    what memory they have, where pages are joined with equal ones."""
    other = np.array([os.getpid(), 0], np.int64)
    with accrt.load(hostile, sandbox=True) as confined:
        for mode in (43, 45, 46):
            assert np.array_equal(confined.f(other, mode), other + mode), mode
        assert np.array_equal(confined.f(other, 47), other + 48)  # of itself it may ask
        with pytest.raises(accrt.PermissionDeniedError, match=r"a system call \(302\)"):
            confined.f(other, 44)


def test_the_attacks_do_something_without_a_sandbox(hostile):
    """So that the test above means something: open comes back, and execve replaces the process."""
    code = ("import sys, numpy as np, accrt; s = accrt.load(sys.argv[1], trust='all', options={'host.threads': 0});"
            "x = np.zeros(1, np.int64); print(s.f(x, 1).tolist(), flush=True); s.f(x, 5); print('still here')")
    out = subprocess.run([sys.executable, "-c", code, str(hostile)], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert out.stdout == "[1]\n"


def test_code_that_attacks_when_it_is_loaded(tmp_path):
    path = make(tmp_path / "load.accx", "-DAT_LOAD")
    with pytest.raises(accrt.PermissionDeniedError, match="files: openat"):
        accrt.load(path, sandbox=True)


def test_crashes_garbage_and_ends_are_errors(hostile):
    for mode, kind, said in ((30, accrt.KernelError, "SIGSEGV"), (32, accrt.KernelError, "sense|ended"), (33, accrt.KernelError, "hung up")):
        with accrt.load(hostile, sandbox=True) as confined:
            with pytest.raises(kind, match=said):
                confined.f(X, mode)
                confined.f(X, 0)
    with accrt.load(hostile, sandbox={"cpu_s": 1}) as confined:
        with pytest.raises(accrt.TimeoutError, match="processor time"):
            confined.f(X, 31)
    with accrt.load(hostile, sandbox={"memory_mib": 2048}) as confined:
        assert np.array_equal(confined.f(X, 0), X)


@pytest.mark.parametrize("limits", [{}, {"memory_mib": 2048}])
def test_code_makes_no_threads(hostile, limits):
    """Each takes memory of the kernel and one of the machine's process numbers, which no limit of
    the sandbox counts."""
    with accrt.load(hostile, sandbox=limits or True, options={"host.threads": 2}) as confined:
        assert np.array_equal(confined.f(X, 41), X + 41)


# runs for ever; and has overwritten what ends the process
@pytest.mark.parametrize("mode", [31, 42])
def test_a_parent_that_dies_takes_the_sandbox_along(hostile, mode):
    code = ("import sys, threading, time, numpy as np, accrt; s = accrt.load(sys.argv[1], sandbox=True);"
            "threading.Thread(target=lambda: s.f(np.zeros(1, np.int64), int(sys.argv[2])), daemon=True).start(); time.sleep(0.5);"
            "print(s._process.pid, flush=True); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", code, str(hostile), str(mode)], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    pid = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    parent.kill()
    parent.wait()
    assert has_ended(pid), f"process {pid} lives on"


def has_ended(pid: int) -> bool:
    """Within a minute; nobody may have asked yet."""
    for _ in range(1200):
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        threading.Event().wait(0.05)
    return False


@pytest.mark.parametrize("mode", [31, 42])
def test_a_parents_other_children_do_not_keep_the_sandbox(hostile, mode):
    """A forked child has copies of all descriptors, and may live longer than its parent."""
    code = ("import os, sys, threading, time, numpy as np, accrt; s = accrt.load(sys.argv[1], sandbox=True);"
            "threading.Thread(target=lambda: s.f(np.zeros(1, np.int64), int(sys.argv[2])), daemon=True).start(); time.sleep(0.5)\n"
            "pid = os.fork()\n"
            "if pid == 0:\n    os.close(1); time.sleep(60); os._exit(0)\n"
            "print(s._process.pid, pid, flush=True); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(hostile), str(mode)], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    pid, other = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait()
        assert os.path.exists(f"/proc/{other}")
        assert has_ended(pid), f"process {pid} lives on"
    finally:
        os.kill(other, signal.SIGKILL)


def test_what_a_sandbox_has(hostile):
    """No environment, no descriptors but its own, no new privileges, and none of the user's, who
    may be root."""
    os.environ["ACCRT_TEST_SECRET"] = "in the environment"
    secret = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        with accrt.load(hostile, sandbox=True) as confined:
            status = pathlib.Path(f"/proc/{confined._process.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
            for task in pathlib.Path(f"/proc/{confined._process.pid}/task").iterdir():
                capabilities = re.findall(r"^Cap(Inh|Prm|Eff|Amb):\t(\w+)$", (task / "status").read_text(), re.M)
                assert len(capabilities) == 4 and all(int(bits, 16) == 0 for _, bits in capabilities), capabilities
            if os.geteuid() == 0:
                proc = pathlib.Path(f"/proc/{confined._process.pid}")
                assert (proc / "environ").read_bytes() == b""
                kinds = {int(p.name): os.readlink(p) for p in (proc / "fd").iterdir()}
                assert all(kinds[i] == "/dev/null" for i in range(3)) and kinds[3].startswith("socket:")
                assert set(kinds) <= set(range(5)) | {5, 6, 7} and sum(1 for k in kinds.values() if k == "/dev/null") == 3
    finally:
        os.close(secret)
        del os.environ["ACCRT_TEST_SECRET"]


def test_wrong_arguments(hostile, tmp_path):
    with accrt.load(hostile, sandbox=True) as confined:
        for inputs, named, kind in (((X,), {}, TypeError), ((X, 0, 1), {}, TypeError), ((X, 0), {"x": X}, TypeError),
                                    ((X.astype(np.float32), 0), {}, TypeError), ((X.reshape(10, 100), 0), {}, accrt.Error),
                                    ((X, 1000), {}, accrt.Error)):
            with pytest.raises(kind):
                confined.f(*inputs, **named)
        assert np.array_equal(confined.f(X, 0), X)  # it is as good as before
        with pytest.raises(AttributeError, match="nothing"):
            confined.nothing  # noqa: B018
    with pytest.raises(accrt.InvalidStateError, match="closed"):
        confined.f(X, 0)
    with pytest.raises(accrt.UntrustedError, match="signed"):
        accrt.load(hostile, sandbox=True, trust="signed")
    with pytest.raises(accrt.UntrustedError, match="no-host-code"):
        accrt.load(hostile, sandbox=True, trust="no-host-code")
    with pytest.raises(ValueError, match="host"):
        accrt.load(hostile, sandbox=True, device="cuda:0")
    with pytest.raises(FileNotFoundError):
        accrt.load(tmp_path / "none.accx", sandbox=True)


def test_what_is_no_file_is_named(hostile, tmp_path):
    """By its own path, not by the bundle's, and before anything is started."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        with pytest.raises(accrt.IoError, match=f"^{re.escape(str(path))}: not a regular file"):
            accrt.load(hostile, sandbox=True, weights=[path])
        with pytest.raises(accrt.IoError, match=f"^{re.escape(str(path))}: not a regular file"):
            accrt.load(path, sandbox=True)
        done = subprocess.run([ACCX, "run", "--sandbox", hostile, "--function", "f", "--symbol", "n=8", "--symbol", "mode=0", "--weights", path], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr == f"accx: {path}: not a regular file\n"


LIMITED = """
import os, resource, sys
import numpy as np
import accrt
which, value = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(which, (value, value))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # who may not raise it again
x = np.arange(1000, dtype=np.int64)
with accrt.load(int(sys.argv[1]), sandbox={"cpu_s": 1 << 20, "memory_mib": 1 << 25}) as confined:
    assert np.array_equal(confined.f(x, 0), x)
"""


@pytest.mark.parametrize("which, value", [(resource.RLIMIT_NOFILE, 40), (resource.RLIMIT_CPU, 1000), (resource.RLIMIT_AS, 1 << 40)])
def test_limits_that_the_process_has_are_not_raised(hostile, which, value):
    """Its owner may have less than the sandbox asks for."""
    file = os.open(hostile, os.O_RDONLY)
    try:
        done = subprocess.run([sys.executable, "-c", LIMITED, str(file), str(int(which)), str(value)], pass_fds=[file], capture_output=True, text=True, timeout=120)
    finally:
        os.close(file)
    assert done.returncode == 0, done.stderr[-2000:]


def test_updated_inputs_and_threads_that_take_turns(tmp_path):
    from accrt.compiler import Module, compile
    module = Module("m")
    n = module.symbol("n", maximum=4096)
    function = module.function("twice")
    x = function.input("x", "f32", [n])
    function.result("y", x + x)
    compile(module, tmp_path / "m.accx", targets=["host"])
    expected = {s: np.random.default_rng(s).standard_normal(100 + s).astype(np.float32) for s in range(4)}
    wrong = []

    def work(confined, seed):
        for _ in range(20):
            if not np.array_equal(confined.twice(expected[seed]), 2 * expected[seed]):
                wrong.append(seed)

    with accrt.load(tmp_path / "m.accx", sandbox=True) as confined:
        threads = [threading.Thread(target=work, args=(confined, s)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_functions_of_all_kinds():
    """Inputs that are updated, optional inputs, several results, scalars, session state: as without
    a sandbox."""
    path = LIBRARY.parents[1] / "tests" / "data" / "program.accx"
    path = path if path.exists() else next(iter(LIBRARY.parents[1].glob("**/program.accx")), None)
    if path is None:
        pytest.skip("the C tests' bundles are not built")
    plain = accrt.load(path, trust="all")
    with accrt.load(path, sandbox=True) as confined:
        x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
        assert np.array_equal(confined.affine(x), 2 * x + 1)
        mine = x.copy()
        confined.inplace(mine)
        assert np.array_equal(mine, 2 * x + 1)
        for inputs in ((x, y), (x,)):
            got, wanted = confined.add(*inputs), plain.add(*inputs)
            assert len(got) == 2 and all(np.array_equal(a, np.asarray(b)) for a, b in zip(got, wanted))
        assert np.array_equal(confined.iota(position=5), np.asarray(plain.iota(position=5)))


@needs_tool
def test_the_tool(hostile, tmp_path):
    np.save(tmp_path / "x.npy", X)
    run = ("run", hostile, "--input", f"x={tmp_path / 'x.npy'}", "--sandbox")
    accx(*run, "--scalar", "m=0", "--output", f"y={tmp_path / 'y.npy'}")
    assert np.array_equal(np.load(tmp_path / "y.npy"), X)
    data = json.loads(accx(*run, "--scalar", "m=0", "--json"))
    assert "Landlock" in data["sandbox"]
    for mode, said in ((2, "files: openat (257)"), (4, "the network: socket"), (5, "other programs: execve"), (30, "SIGSEGV"), (32, "sense")):
        line = accx(*run, "--scalar", f"m={mode}", code=4 if mode < 30 else 1)
        assert said in line and "\n" not in line.strip(), line
    assert "--sandbox-cpu" in accx(*run, "--scalar", "m=31", "--sandbox-cpu", "1", code=1)
    for more in (("--device", "cuda:0"), ("--repeat", "2"), ("--secret-key", "x")):
        assert "sandbox" in accx(*run, "--scalar", "m=0", *more, code=2)
    accx(*run, "--scalar", "m=0", "--trust", "signed", code=4)
    assert ACCX.exists()


# Runs a program for which one system call is not there: as on kernels without Landlock or seccomp
# filters.
WITHOUT_CALL = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char** argv) {
  (void)argc;
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[1]), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return 99;
  execv(argv[2], argv + 2);
  return 98;
}
"""
LANDLOCK, SECCOMP = 444, 317  # landlock_create_ruleset, seccomp


@pytest.fixture(scope="module")
def without_call(tmp_path_factory):
    program = tmp_path_factory.mktemp("without") / "without_call"
    program.with_suffix(".c").write_text(WITHOUT_CALL)
    subprocess.run(["cc", str(program.with_suffix(".c")), "-o", str(program)], check=True)
    return program


LOADS = """
import sys, accrt
try:
    accrt.load(sys.argv[1], sandbox={"weak": True} if sys.argv[2] == "weak" else True)
    print("it runs")
except accrt.UnsupportedError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("number,weak,said", [(LANDLOCK, "", "the kernel has no Landlock"), (LANDLOCK, "weak", None),
                                              (SECCOMP, "", "the kernel has no seccomp filters"), (SECCOMP, "weak", "the kernel has no seccomp filters")])
def test_a_kernel_without_the_call_is_refused_by_name(hostile, without_call, number, weak, said):
    """Python and the tool; the bundle is not opened, and nothing of it runs."""
    done = subprocess.run([without_call, str(number), sys.executable, "-c", LOADS, hostile, weak], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if said:
        assert done.stdout.startswith("refused: ") and said in done.stdout, done
    else:
        assert done.stdout == "it runs\n", done
    if not ACCX.exists():
        return
    more = ["--sandbox-weak"] if weak else []
    done = subprocess.run([without_call, str(number), ACCX, "run", hostile, "--sandbox", *more, "--function", "f", "--input", "ones",
                           "--symbol", "n=4", "--symbol", "mode=0"], capture_output=True, text=True, timeout=60)  # fmt: skip
    if said:
        assert done.returncode == 1 and said in done.stderr, done
    else:
        assert done.returncode == 0 or "Landlock" not in done.stderr, done


# ---- answers

def interrupt(seconds: float) -> None:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.fixture
def interrupts():
    """Python's own handler of SIGINT, which a shell that runs the tests in its background has
    switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_call_that_was_interrupted_answers_no_other(hostile, interrupts):
    """Whatever ends a call before its answer is here: the answer is taken for no later call's."""
    for seconds in (0.3, 3, 20):
        with accrt.load(hostile, sandbox=True) as confined:
            with pytest.raises(KeyboardInterrupt):
                interrupt(seconds)
                confined.f(X, 35)  # sleeps until it is interrupted, however late that is
            try:
                confined.f(X + 1, 0)
            except accrt.InvalidStateError as error:
                assert "interrupted" in str(error)
            else:  # it came before the call, on a busy machine
                continue
            for _ in range(3):
                with pytest.raises(accrt.InvalidStateError, match="interrupted"):
                    confined.f(X + 1, 0)
            break
    else:
        pytest.fail("each time an interrupted call was followed by another one")
    for place in ("_send", "_receive", "_bytes", "_take"):  # as if an exception came there
        with accrt.load(hostile, sandbox=True) as confined:
            assert np.array_equal(confined.f(X, 0), X)
            good = getattr(confined, place)

            def bad(*arguments):
                raise MemoryError("in between")
            setattr(confined, place, bad)
            with pytest.raises(MemoryError):
                confined.f(X, 0)
            setattr(confined, place, good)
            with pytest.raises(accrt.InvalidStateError, match="interrupted"):
                confined.f(X, 0)


#: A helper that answers what a test says: the wire's messages, as hostile code could write them.
LIAR = """#!{python} -SE
import struct, sys, time
HEADER, ITEM = struct.Struct("=IIQQQ"), struct.Struct("=IIII8qqQQ")
def read(size):
    data = b""
    while len(data) < size:
        part = control.read(size - len(data))
        if not part: sys.exit(0)
        data += part
    return data
def say(kind, items, number, call, payload=b"", size=None):
    control.write(HEADER.pack(kind, items, number, call, len(payload) if size is None else size) + payload)
def item(index, dtype, shape, offset, size, kind=1):
    return ITEM.pack(index, kind, dtype, len(shape), *shape[:8], *[0] * (8 - len(shape)), 0, offset, size)
control, sys.stderr = open(3, "r+b", buffering=0), open("/dev/null", "w")
last = 0
{begin}
while True:
    kind, items, number, call, size = HEADER.unpack(read(HEADER.size))
    data = read(size)
    {answer}
    last = call
"""
RIGHT = 'say(3, 1, 0, call, item(2, I64, [4], 128, 32).ljust(128, b"\\0") + bytes(64))'


def liar(folder: pathlib.Path, answer: str, begin: str = "say(1, 0, 0, 0); say(5, 0, 0, 0)") -> pathlib.Path:
    path = folder / "accrt-sandbox"
    path.write_text(LIAR.format(python=sys.executable, begin=f"I64 = {int(accrt.tensor.DTYPES['i64'])}; {begin}", answer=answer))
    path.chmod(0o755)
    return path


#: Of f(x: i64[4], m) -> (y: i64[4]): answers that are not it.
LIES = {
    "another size": 'say(3, 1, 0, call, item(2, I64, [3], 128, 24).ljust(128, b"\\0") + bytes(64))',
    "another rank": 'say(3, 1, 0, call, item(2, I64, [2, 2], 128, 32).ljust(128, b"\\0") + bytes(64))',
    "another type": 'say(3, 1, 0, call, item(2, I64 + 1, [4], 128, 32).ljust(128, b"\\0") + bytes(64))',
    "rank 9": 'say(3, 1, 0, call, item(2, I64, [1] * 9, 128, 32)[:104].ljust(128, b"\\0") + bytes(64))',
    "sizes whose product is 0": 'say(3, 1, 0, call, item(2, I64, [0, 1 << 62, 1 << 62], 128, 0).ljust(128, b"\\0") + bytes(64))',
    "a negative size": 'say(3, 1, 0, call, item(2, I64, [-4], 128, 32).ljust(128, b"\\0") + bytes(64))',
    "an input": 'say(3, 1, 0, call, item(0, I64, [4], 128, 32).ljust(128, b"\\0") + bytes(64))',
    "no argument": 'say(3, 1, 0, call, item(2**32 - 1, I64, [4], 128, 32).ljust(128, b"\\0") + bytes(64))',
    "bytes elsewhere": 'say(3, 1, 0, call, item(2, I64, [4], 1 << 63, 32).ljust(128, b"\\0") + bytes(64))',
    "no items": "say(3, 0, 0, call)",
    "many items": "say(3, 2**32 - 1, 0, call, bytes(192))",
    "more bytes": 'say(3, 1, 0, call, item(2, I64, [4], 128, 32).ljust(128, b"\\0") + bytes(128))',
    "a large size": "say(3, 1, 0, call, size=1 << 40)",
    "a flood": "say(3, 1, 0, call, size=8 << 30)\n    while True: control.write(bytes(1 << 20))",
    "another kind": "say(99, 0, 0, call)",
    "ready again": "say(1, 0, 0, call)",
    "another call": RIGHT.replace("call,", "call ^ 2,"),
    "the call before": RIGHT.replace("call,", "last,"),
    "no call": RIGHT.replace("call,", "0,"),
    "an error of another call": "say(4, 0, 13, last, b'no')",
    "a long error": "say(4, 0, 13, call, bytes(5000))",
}


@pytest.mark.parametrize("what", LIES)
def test_answers_are_what_the_bundle_declares(hostile, tmp_path, monkeypatch, what):
    monkeypatch.setattr(sandbox, "helper", lambda: str(liar(tmp_path, LIES[what])))
    with accrt.load(hostile, sandbox={"timeout": 20}) as confined:
        before = resident_mib()
        with pytest.raises(accrt.KernelError, match="answered without sense"):
            confined.f(X[:4], 0)
        assert resident_mib() < before + 64
        with pytest.raises(accrt.InvalidStateError, match="without sense"):
            confined.f(X[:4], 0)


def resident_mib() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_answers_that_are_right_are_taken_and_those_behind_them_are_not(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "helper", lambda: str(liar(tmp_path, RIGHT)))
    with accrt.load(hostile, sandbox=True) as confined:
        assert confined.f(X[:4], 0).tolist() == [0] * 4 and confined.f(X[:4], 0).tolist() == [0] * 4
    # the code's, and the library's
    monkeypatch.setattr(sandbox, "helper", lambda: str(liar(tmp_path, f"{RIGHT}; {RIGHT}")))
    with accrt.load(hostile, sandbox=True) as confined:
        assert confined.f(X[:4], 0).tolist() == [0] * 4
        with pytest.raises(accrt.KernelError, match="without sense"):
            confined.f(X[:4], 0)


def test_what_the_sandbox_says_of_itself_is_said_before_any_code_of_the_bundle(hostile, tmp_path, monkeypatch):
    """Its own words come from here, the number is said before the bundle is opened, and texts are
    clean."""
    begins = {"say(1, 0, 7, 0); say(1, 0, 0, 0, b'\\x1b[31mfully confined')": (accrt.KernelError, "without sense"),
              "say(1, 0, 7, 0, b'\\x1b]0;x')": (accrt.KernelError, "without sense"),
              "say(5, 0, 0, 0)": (accrt.KernelError, "without sense"),
              "say(1, 0, 7, 0); say(4, 0, 13, 0, b'\\x1b]0;x\\x07ab')": (accrt.Error, "^[?]]0;x[?]ab$")}
    for begin, (kind, said) in begins.items():
        monkeypatch.setattr(sandbox, "helper", lambda begin=begin: str(liar(tmp_path, "pass", begin)))
        with pytest.raises(kind, match=said):
            accrt.load(hostile, sandbox=True)
    monkeypatch.undo()
    with accrt.load(hostile, sandbox=True) as confined:
        assert repr(confined).isprintable() and confined.confinement.startswith("seccomp, Landlock ")


@needs_tool
def test_the_tool_takes_declared_answers_alone(hostile, tmp_path):
    """The same lies told to accx: it looks for its helper beside itself."""
    np.save(tmp_path / "x.npy", X[:4])
    tool = shutil.copy(ACCX, tmp_path / "accx")

    def run(answer, *more):
        liar(tmp_path, answer)
        return subprocess.run([tool, *more, "run", hostile, "--input", f"x={tmp_path / 'x.npy'}", "--scalar", "m=0", "--sandbox"],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)})
    assert run(RIGHT).returncode == 0
    for what, answer in LIES.items():
        done = run(answer.replace("last", "(call ^ 1)"))
        assert done.returncode == 1 and "without sense" in done.stderr and done.stderr.count("\n") == 1, (what, done)
    begin = time.monotonic()
    done = run("time.sleep(1000)", "--time-limit", "1")
    assert done.returncode == 1 and "--time-limit" in done.stderr and time.monotonic() - begin < 10, done


# ---- limits, processes, files

@pytest.mark.parametrize("limits", [{}, types.MappingProxyType({}), types.MappingProxyType({"memory_mib": 512}), {"weak": False}])
def test_limits_that_are_none_are_a_sandbox_too(hostile, limits):
    """An empty dict ran the code in this process; limits of another mapping were none."""
    with accrt.load(hostile, sandbox=limits) as confined:
        assert isinstance(confined, accrt.sandbox.SandboxSession) and np.array_equal(confined.f(X, 0), X)
        assert confined._memory == dict(limits).get("memory_mib", 0) << 20


@pytest.mark.parametrize("given", [0, 1, "", "no", [], (), 0.0, np.False_, {"weak": "no"}, {"weak": 1}, {"memory": 64}, {"trust": "all"}, {1: 2}])
def test_what_is_no_sandbox_and_no_limit_is_refused(hostile, given):
    """Of what is false nothing was confined, and `no` was without Landlock."""
    with pytest.raises(TypeError, match="sandbox"):
        accrt.load(hostile, sandbox=given)


def test_keys_of_a_sandbox_are_refused(hostile):
    """They went unnoticed: the keys of this user counted."""
    with pytest.raises(ValueError, match="takes no options but host.threads, no keys"):
        accrt.load(hostile, sandbox=True, trust="signed", keys=[])


@pytest.mark.parametrize("limits", [{"cpu_s": 0.5}, {"cpu_s": 0}, {"cpu_s": -1}, {"cpu_s": 1 << 70}, {"cpu_s": "1"}, {"cpu_s": True},
                                    {"memory_mib": 0.9}, {"memory_mib": 0}, {"memory_mib": -1}, {"memory_mib": 63},
                                    {"memory_mib": 1 << 44}, {"memory_mib": "64"}, {"timeout": 0}, {"timeout": -1},
                                    {"timeout": float("nan")}, {"timeout": "1"}])
def test_a_limit_that_is_none_is_refused(hostile, limits):
    with pytest.raises(TypeError if limits.get("timeout") == "1" else ValueError, match=next(iter(limits))):
        accrt.load(hostile, sandbox=limits)


@contextlib.contextmanager
def limited(bundle, seconds):
    """A sandbox that has answered within its limit, and the limit: on a busy machine a longer
    one."""
    for _ in range(6):
        with accrt.load(bundle, sandbox={"timeout": seconds}) as confined:
            try:
                assert np.array_equal(confined.f(X, 0), X)
            except accrt.TimeoutError:
                seconds *= 2
                continue
            yield confined, f"{seconds:g} s"
            return
    pytest.fail(f"no answer within {seconds / 2} seconds")


def test_a_time_limit_ends_code_that_sleeps(hostile):
    for mode in (31, 34, 35, 37):
        with limited(hostile, 0.5) as (confined, limit):
            begin = time.monotonic()
            with pytest.raises(accrt.TimeoutError, match=re.escape(limit)):
                confined.f(X, mode)
            assert time.monotonic() - begin < 30  # it would sleep for ever
            with pytest.raises(accrt.InvalidStateError, match=re.escape(limit)):
                confined.f(X, 0)


def test_code_that_hangs_up_has_the_time_that_is_left_whatever_becomes_of_its_threads(hostile):
    """The thread that waits for its owner's end may begin late, or again: what the code closed is
    not its owner's end."""
    with limited(hostile, 1.5) as (confined, limit):
        process = confined._process

        def stop() -> None:
            for wake in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(process.pid, wake)
                time.sleep(0.1)
        threading.Timer(0.5, stop).start()
        with pytest.raises(accrt.TimeoutError, match=re.escape(limit)):
            confined.f(X, 37)


class Late:
    """A socket whose owner wakes up so many seconds after there is something to read, as on a
    machine with much to do."""

    def __init__(self, its, seconds: float) -> None:
        self.its, self.seconds = its, seconds

    def __getattr__(self, name):
        return getattr(self.its, name)

    def recv_into(self, view) -> int:
        got = self.its.recv_into(view)
        time.sleep(self.seconds)
        return got


def test_an_end_that_is_seen_after_the_limit_is_the_limits(hostile):
    """The process ends by itself, and its owner wakes up when the time is over: the limit says so,
    the end does not."""
    with accrt.load(hostile, sandbox={"timeout": 0.5}) as confined:
        confined._socket = Late(confined._socket, 0.6)
        with pytest.raises(accrt.TimeoutError, match="0.5 s"):
            confined.f(X, 33)


def test_code_that_hangs_up_and_lives_on_has_the_time_that_is_left(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "helper", lambda: str(liar(tmp_path, "control.close(); time.sleep(1000)")))
    with accrt.load(hostile, sandbox={"timeout": 0.5}) as confined:
        begin = time.monotonic()
        with pytest.raises(accrt.TimeoutError, match="0.5 s"):
            confined.f(X[:4], 0)
        assert time.monotonic() - begin < 4  # no longer than that: without a limit it has 5 seconds
    with accrt.load(hostile, sandbox=True) as confined:
        with pytest.raises(accrt.KernelError, match="hung up"):  # not SIGKILL: that was its owner's
            confined.f(X[:4], 0)


def test_processor_time_that_is_used_up_is_a_timeout_whatever_the_code_makes_of_it(hostile):
    for mode in (39, 40):
        with accrt.load(hostile, sandbox={"cpu_s": 1}) as confined:
            with pytest.raises(accrt.TimeoutError, match="processor time"):
                confined.f(X, mode)


#: A second and more of processor time, and then SIGKILL, as the kernel's second limit sends it
#: where the first was blocked.
USED_UP = "exec('import os, signal\\nwhile time.process_time() < 1.1: pass\\nos.kill(os.getpid(), signal.SIGKILL)')"


def test_processor_time_that_is_used_up_is_told_by_what_was_used(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "helper", lambda: str(liar(tmp_path, USED_UP)))
    for limits, kind, said in (({"cpu_s": 1}, accrt.TimeoutError, "processor time"), ({}, accrt.KernelError, "SIGKILL"),
                               ({"cpu_s": 60}, accrt.KernelError, "SIGKILL")):
        with accrt.load(hostile, sandbox=limits or True) as confined, pytest.raises(kind, match=said):
            confined.f(X[:4], 0)


@needs_tool
def test_the_tools_limits_are_told_from_other_ends(hostile, tmp_path):
    np.save(tmp_path / "x.npy", X[:4])
    run = ["run", str(hostile), "--input", f"x={tmp_path / 'x.npy'}", "--sandbox"]
    for mode in (39, 40):
        assert "--sandbox-cpu" in accx(*run, "--scalar", f"m={mode}", "--sandbox-cpu", "1", code=1)
    tool = shutil.copy(ACCX, tmp_path / "accx")

    def tells(answer: str, said: str, *limit: str, cpu: str = "60") -> None:
        liar(tmp_path, answer)
        done = subprocess.run([tool, *limit, *run, "--scalar", "m=0", "--sandbox-cpu", cpu], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)})
        assert done.returncode == 1 and said in done.stderr, done
    tells("control.close(); time.sleep(1000)", "--time-limit", "--time-limit", "1")
    tells("control.close(); time.sleep(1000)", "hung up")
    tells(USED_UP, "--sandbox-cpu", cpu="1")
    tells(USED_UP, "SIGKILL")
    tells(USED_UP, "SIGKILL", "--time-limit", "inf", cpu="inf")


def test_results_larger_than_the_memory_are_refused_before_the_call(hostile):
    with accrt.load(hostile, sandbox={"memory_mib": 64}) as confined:
        signature = confined.bundle.signature("f")
        function = confined._function(signature)
        reply = confined._reply(function, [X, 0], [np.broadcast_to(X[:1], 16 << 20), None])
        assert reply.size > 64 << 20
        with pytest.raises(accrt.OutOfMemoryError, match="67108864"):
            confined.f(np.zeros(16 << 20, np.int64), 0)


def test_a_process_that_was_forked_leaves_its_parents_sandbox_alone(hostile):
    code = ("import gc, os, sys, numpy as np, accrt; s = accrt.load(sys.argv[1], sandbox=True); x = np.arange(4); f = s.f\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    try: f(x, 0)\n"
            "    except accrt.InvalidStateError as error: print(error, flush=True)\n"
            "    s.close(); del s, f; gc.collect(); os._exit(0)\n"
            "os.waitpid(pid, 0); print(f(x, 0).tolist())")
    out = subprocess.run([sys.executable, "-c", code, str(hostile)], capture_output=True, text=True, check=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert "forked" in out.stdout and out.stdout.endswith("[0, 1, 2, 3]\n")


def test_a_descriptor_that_may_write_is_not_handed_on(hostile, tmp_path):
    path = pathlib.Path(shutil.copy(hostile, tmp_path / "mine.accx"))
    before, file = path.read_bytes(), os.open(path, os.O_RDWR)
    try:
        os.lseek(file, 5, os.SEEK_SET)
        with accrt.load(file, sandbox=True) as confined:
            facts = pathlib.Path(f"/proc/{confined._process.pid}/fdinfo/5") if os.geteuid() == 0 else None
            assert facts is None or int(facts.read_text().split("flags:")[1].split()[0], 8) & os.O_ACCMODE == os.O_RDONLY
            assert np.array_equal(confined.f(X, 38), X + 38)  # write to it, as it may
        assert path.read_bytes() == before and os.lseek(file, 0, os.SEEK_CUR) == 5
    finally:
        os.close(file)


# ---- arguments

def test_arguments_are_checked_as_without_a_sandbox(hostile, tmp_path):
    plain = accrt.load(hostile, trust="all")
    with accrt.load(hostile, sandbox=True) as confined:
        for inputs in ((X, 0.9), (X, "0"), (X, b"0"), (X, np.float32(0.7)), (X, 1 << 63), (X, -(1 << 63) - 1), (X, [0]), (X, 1 << 48),
                       (X, -1), (X.reshape((1,) * 8 + (-1,)), 0), (X.astype(">i8"), 0), (X.astype(np.int32), 0)):
            kinds = []
            for session in (plain, confined):
                with pytest.raises((accrt.Error, TypeError, ValueError, OverflowError)) as raised:
                    session.f(*inputs)
                kinds.append(type(raised.value))
            assert kinds[0] is kinds[1] or issubclass(kinds[1], TypeError) and issubclass(kinds[0], TypeError), (inputs[1], kinds)
        for value, said in ((X.astype(np.float64), r"got f64; array\.astype\('int64'\) converts it"), ([0.5, 1.5], r"got f64; numpy\.asarray\(x, 'int64'\) makes one of it"),
                            ([[1], [1, 2]], r"f: x: .*inhomogeneous"), (None, r"f\(\) misses x|x.* is not bound")):
            with pytest.raises((accrt.Error, TypeError, ValueError), match=said):
                confined.f(value, 0)
        assert np.array_equal(confined.f(X, np.int8(0)), X)
    for symbols, kind in (({"n=5,": 3}, accrt.Error), ({"n\0": 3}, ValueError), ({"n": 0.5}, TypeError), ({"n": 1 << 64}, OverflowError)):
        with pytest.raises(kind):
            accrt.load(hostile, sandbox=True, symbols=symbols)


def test_memory_that_is_written_is_the_callers_and_may_be(tmp_path):
    bundle = bw.BundleWriter()
    function = bundle.function("f")
    a = function.input("a", "u8", [4], access="read_write")
    function.body.fill(a.write(), 7)
    bundle.write(tmp_path / "rw.accx")
    fixed = np.zeros(4, np.uint8)
    fixed.flags.writeable = False

    class Odd:
        def __init__(self, error):
            self.error = error

        def __array__(self, *_given, **_named):
            raise self.error

    lost = accrt.NotFoundError("it is lost", name="x")
    undecodable = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")
    with accrt.load(tmp_path / "rw.accx", sandbox=True) as confined:
        for value, kind in ((fixed, ValueError), (b"abcd", ValueError), ([0, 0, 0, 0], TypeError), (memoryview(b"abcd"), ValueError)):
            with pytest.raises(kind):
                confined.f(value)
        with pytest.raises(accrt.TypeMismatchError, match=r"got f32; pass an array of uint8$"):
            confined.f(np.zeros(4, np.float32))
        for error in (undecodable, TypeError("odd"), RuntimeError("odd")):
            with pytest.raises((TypeError, ValueError, RuntimeError), match="^f: a: .*odd") as raised:
                confined.f(Odd(error))
            assert isinstance(error, type(raised.value)) and raised.value.__cause__ is error
        with pytest.raises(accrt.NotFoundError) as raised:
            confined.f(Odd(lost))
        assert raised.value is lost
        mine, every_other = bytearray(4), np.zeros(8, np.uint8)
        confined.f(mine)
        confined.f(every_other[::2])
        assert bytes(mine) == bytes([7] * 4) and every_other.tolist() == [7, 0] * 4


def test_sizes_of_results_are_worked_out_here():
    """Every operation of expressions, with values that are not there: as runtime/program/expr.c has
    them."""
    from accrt._size_text import dimension
    symbols = {"n": 7, "m": -3, "z": 0}
    for text, value in (("4", 4), ("n", 7), ("n + 1", 8), ("n - m", 10), ("n * m", -21), ("n // 2", 3), ("m // 2", -2), ("n % 4", 3),
                        ("m % 2", 1), ("ceildiv(n, 2)", 4), ("ceildiv(m, 2)", -1), ("min(n, m)", -3), ("max(n, 4)", 7), ("n == 7", 1),
                        ("n != 7", 0), ("n < 7", 0), ("n <= 7", 1), ("n and z", 0), ("z or n", 1), ("not(z)", 1), ("-3", -3),
                        ("select(present(0), n, m)", 7), ("select(present(1), n // z, 5)", 5), ("z and (n // z)", 0),
                        ("n or (1 // z)", 1), ("(n + 1) * (n - 1)", 48), ("max(n, (m + 10))", 7), ("n // z", None), ("q", None),
                        ("q + 1", None), ("n + ...", None), ("9223372036854775807 + n", None), ("what(n)", None), ("n +", None),
                        ("select(q, 1, 2)", None)):
        assert dimension(f"f32[8, {text}, 2]", 1, symbols, [True, False]) == value, text
    assert dimension("f32[2]", 1, symbols, []) is None
