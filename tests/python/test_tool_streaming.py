"""`accx pack` and `accx quantize` on weights that are larger than the memory that they get: bounded
memory, progress, and nothing left behind by an interrupt, a full disk, or a failure on the way."""
from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

import accrt
from accrt import bundle_writer as bw
from accx_tool import ACCX, needs_tool, on_terminal
from test_checkpoints import save

pytestmark = needs_tool
MIB = 1 << 20
VERBS = {"pack": ["pack"], "convert": ["pack", "--dtype", "bf16"], "quantize": ["quantize", "--layout", "q8_0", "--threads", "2"]}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """512 MiB of f16 in eight tensors, as a file with a hole."""
    path = tmp_path_factory.mktemp("large") / "model.safetensors"
    each = 64 * MIB
    header = {f"w{i}": {"dtype": "F16", "shape": [each // 2 // 4096, 4096], "data_offsets": [i * each, (i + 1) * each]} for i in range(8)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + 8 * each)
    return path


@pytest.fixture
def out(tmp_path):
    """A folder of its own for the output, large files in which do not stay."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    for file in folder.iterdir():
        file.unlink()


def limited(what, size):
    return lambda: resource.setrlimit(what, (size, size))


@pytest.mark.parametrize("verb", VERBS)
def test_memory_is_bounded(verb, large, out):
    """Private memory, stacks of threads included, of at most 128 MiB for 512 MiB of weights."""
    done = subprocess.run([str(ACCX), *VERBS[verb], str(large), str(out / "o.accx")], capture_output=True, text=True, timeout=300,
                          preexec_fn=limited(resource.RLIMIT_DATA, 128 * MIB))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress where there is no terminal
    packed = accrt.Weights(out / "o.accx")
    assert len(packed) == 8 and os.listdir(out) == ["o.accx"]
    assert packed["w7"].shape == (8192, 4096) and not any(packed["w7"].read(0, 4096))


@pytest.mark.parametrize("verb", VERBS)
def test_progress_on_a_terminal(verb, large, out):
    command = [ACCX, *VERBS[verb], large, out / "o.accx"]
    code, text = on_terminal(command, {**os.environ, "TERM": "xterm"}, stdout=subprocess.DEVNULL)
    assert code == 0
    lines = text.split("\r\x1b[K")
    # each overwrites the one before; at the end nothing stays
    assert lines[0] == "" and lines[-1] == ""
    told = [line for line in lines if line]
    assert len(told) > 8 and all(any(f"w{i}" in line for line in told) for i in range(8))
    if verb == "quantize":
        shares = [int(re.search(r"\((\d+)%\)", line)[1]) for line in told]
        assert shares == sorted(shares) and shares[-1] >= 99
    else:
        assert re.fullmatch(r"512 MiB of 512 MiB: w7|512\.0+ MiB of 512\.0+ MiB: w7", told[-1]), told[-1]


def at_it(arguments, large, out):
    """A process that is stopped while it writes. None: it was done before it was stopped, as this
    one did not run meanwhile."""
    (out / "o.accx").write_bytes(b"what was there")
    # A shell that runs the tests in the background has SIGINT ignored, which programs inherit, and
    # the tool leaves it so.
    process = subprocess.Popen([str(ACCX), *arguments, str(large), str(out / "o.accx")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
    while len(os.listdir(out)) < 2 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    if process.poll() is None:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if process.poll() is None and len(os.listdir(out)) == 2:
        return process
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0, process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_leaves_nothing(verb, number, large, out):
    process = next((found for found in (at_it(VERBS[verb], large, out) for _ in range(20)) if found), None)
    assert process, "each time all was written at once"
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    told = process.communicate(timeout=60)
    assert process.returncode == -number and told == (b"", b"")
    assert os.listdir(out) == ["o.accx"] and (out / "o.accx").read_bytes() == b"what was there"


def one_line(done):
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1, (done.stdout, done.stderr)
    return done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_limit_of_sizes(verb, large, out):
    done = subprocess.run([str(ACCX), *VERBS[verb], str(large), str(out / "o.accx")], capture_output=True, text=True, timeout=120,
                          preexec_fn=limited(resource.RLIMIT_FSIZE, 3 * MIB))
    assert "o.accx" in (line := one_line(done)) and "File too large" in line
    assert os.listdir(out) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(verb, large, out):
    """A file system of 3 MiB, in a namespace of its own."""
    mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=3m none "$1" || exit 77; shift; "$@"; code=$?; ls "$OUT"; exit $code', "sh"]
    try:
        done = subprocess.run([*mounted, str(out), str(ACCX), *VERBS[verb], str(large), str(out / "o.accx")], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "OUT": str(out)})
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert "No space left on device" in one_line(done)  # and ls printed nothing


def test_a_set_is_whole_or_not_there(large, out):
    """Of --split no part appears before all are written."""
    done = subprocess.run([str(ACCX), "pack", str(large), str(out / "o.accx"), "--split", "64M"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and len(os.listdir(out)) == 8
    for file in out.iterdir():
        file.unlink()
    process = subprocess.Popen([str(ACCX), "pack", str(large), str(out / "o.accx"), "--split", "64M"])
    while len(os.listdir(out)) < 4 and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGSTOP)  # send_signal would reap one that has ended
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    named = [name for name in os.listdir(out) if not name.endswith(".part")]
    assert not named or len(os.listdir(out)) == 8  # on a busy machine all may be written by now
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.wait(timeout=60)
    assert os.listdir(out) == [] or process.returncode == 0 or named


#: openat() that is interrupted when it has created a file.
INTERRUPTED_OPEN = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int openat(int folder, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = (flags & O_CREAT) ? va_arg(more, int) : 0;
  va_end(more);
  const int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
  if (flags & O_CREAT)
    raise(SIGTERM); /* SIGINT may be ignored where the tests run */
  return fd;
}
int openat64(int folder, const char* name, int flags, ...) __attribute__((alias("openat")));
"""


def test_a_signal_as_the_file_is_created_leaves_nothing(large, out, tmp_path):
    (tmp_path / "interrupted.c").write_text(INTERRUPTED_OPEN)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "interrupted.c", "-o", "interrupted.so"], cwd=tmp_path, check=True)
    done = subprocess.run([str(ACCX), "pack", str(large), str(out / "o.accx")], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LD_PRELOAD": str(tmp_path / "interrupted.so")})  # fmt: skip
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert os.listdir(out) == []


@pytest.mark.parametrize("verb", ["pack", "quantize"])
def test_a_damaged_source_says_what_is_damaged(verb, out, tmp_path):
    bundle = bw.BundleWriter()
    bundle.constant("w", np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024))
    bundle.write(tmp_path / "in.accx")
    data = bytearray((tmp_path / "in.accx").read_bytes())
    data[-100] ^= 1
    (tmp_path / "in.accx").write_bytes(data)
    save(tmp_path / "other.safetensors", {"v": np.ones((4, 32), np.float32)})
    done = subprocess.run([str(ACCX), *VERBS[verb], str(tmp_path / "in.accx"), str(out / "o.accx")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "rule" in done.stderr and "DATA_CORRUPT" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert os.listdir(out) == []
