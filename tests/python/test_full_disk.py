"""A disk that is full, from any call on, below each cache and each file that a tool makes: work
goes on without the cache, what cannot go on ends with one line, nothing is left, and nothing that
is half written is believed afterwards."""
from __future__ import annotations

import http.client
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
import kernel_harness as kh
import rotation
import serve_http
import tiny_models as tiny
from test_whole_files import ACCX, KINDS, bundle, needs_tool, parts

import accrt
from accrt import _files, _kernel_cache, trust

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "python"


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if b"libasan" in Path(ACCX).read_bytes():
        pytest.skip("sanitizers come first")
    out = tmp_path_factory.mktemp("shim") / "full.so"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", str(HERE / "full.c"), "-o", str(out), "-ldl"], check=True)
    return out


@pytest.fixture(scope="module")
def seed():
    return rotation.seed()


@pytest.fixture
def full(shim, tmp_path):
    """full(command, at) runs a command; the disk below tmp_path/disk is full from call `at` on."""
    log = tmp_path / "log"
    (tmp_path / "disk").mkdir(mode=0o700)

    def run(command, at=None, **environment):
        log.unlink(missing_ok=True)
        given = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{HERE}", "LD_PRELOAD": str(shim), "FULL_FOLDER": str(tmp_path / "disk"), "FULL_LOG": str(log),
                 "FULL_AT": str(2**31 - 1 if at is None else at), **environment}  # fmt: skip
        done = subprocess.run([str(word) for word in command], env=given, capture_output=True, text=True, timeout=300)
        done.calls = int(log.read_text())
        return done

    return run


def some(rng, calls, count):
    """Call 0, where all fails, the last one, and others."""
    return sorted({0, calls - 1, *rng.sample(range(calls), min(count, calls))})


PREPARE = "import sys; import test_forged_digests as t; assert t.run(sys.argv[1], **{'prepare.cache': sys.argv[2]}) == t.HONEST"
KERNELS = """
import sys
import tempfile
from accrt import _kernel_cache
made = []
assert _kernel_cache.cached("0" * 64, lambda: made.append(1) or b"code" * 9999) == b"code" * 9999
sys.exit(7 if made else 0)
"""


@pytest.mark.parametrize("kind", ["prepare", "kernels"])
def test_work_goes_on_without_a_cache(full, seed, tmp_path, kind):
    """Right results, no word, nothing left; the next one on a disk with space makes the entry."""
    import test_forged_digests as forged

    rng, disk = random.Random(f"{seed} {kind}"), tmp_path / "disk"
    path = forged.bundle(tmp_path / "a.accx", forged.HONEST)
    command = [sys.executable, "-c", PREPARE if kind == "prepare" else KERNELS, path, disk]
    first = full(command, XDG_CACHE_HOME=disk)
    assert first.returncode in (0, 7) and first.calls >= 3, first.stderr
    entries = {found.relative_to(disk): found.read_bytes() for found in disk.rglob("*") if found.is_file()}
    assert entries and full(command, XDG_CACHE_HOME=disk).returncode == 0
    for at in some(rng, first.calls, 5):
        for name in entries:
            (disk / name).unlink(missing_ok=True)
        done = full(command, at, XDG_CACHE_HOME=disk)
        assert done.returncode in (0, 7) and not done.stderr, (at, done.stderr)
        assert parts(disk) == [], at
        for found in disk.rglob("*"):
            assert found.is_dir() or entries[found.relative_to(disk)] == found.read_bytes(), at
    assert full(command, XDG_CACHE_HOME=disk).returncode in (0, 7)
    assert {found.relative_to(disk): found.read_bytes() for found in disk.rglob("*") if found.is_file()} == entries


@needs_tool
@pytest.mark.parametrize("kind", KINDS)
def test_tools_say_so_in_one_line_and_keep_the_old_file(full, seed, tmp_path, kind):
    rng, disk = random.Random(f"{seed} {kind}"), tmp_path / "disk"
    config = {"XDG_CONFIG_HOME": str(disk)}
    trust.SigningKey(bytes(range(32))).write(tmp_path / "key.pem")
    accrt.trust._write(tmp_path / "secret.pem", accrt._ffi.ACCRT_KEY_SECRET, bytes(range(32)))
    given = {"IN": bundle(tmp_path / "in.accx", 1), "OUT": disk / "target", "KEY": tmp_path / "key.pem", "SECRET": tmp_path / "secret.pem",
             "NUMBER": 3, "TEXT": tmp_path / "text.yaml"}  # fmt: skip
    subprocess.run([ACCX, "dump", str(given["IN"]), "--output", str(given["TEXT"])], check=True)
    command = [ACCX, *(given.get(word, word) for word in KINDS[kind])]
    first = full(command, **config)
    assert first.returncode == 0 and first.calls >= 3, first.stderr
    target = disk / "accrt/trusted/trust.rules" if kind == "rules" else disk / "target"
    for at in some(rng, first.calls, 5):
        target.unlink(missing_ok=True)
        Path(f"{target}.pub").unlink(missing_ok=True)
        old = b"accrt trust 1\n" if kind == "rules" else b"old"
        if kind != "keygen":
            target.write_bytes(old)
        done = full(command, at, **config)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("accx: note: ")]
        assert parts(disk) == [], at
        if done.returncode == 0:  # the sync of the folder alone
            assert at >= first.calls - (2 if kind == "keygen" else 1)
            continue
        assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith("accx: ") and "No space left" in lines[0], (at, done.stderr)
        if kind == "keygen":
            assert not target.exists() or accrt.trust.SigningKey.read(target), at
        else:
            assert target.read_bytes() == old, at


@pytest.fixture
def small(tmp_path):
    """A disk of so many KiB at tmp_path/small, where this process may make one."""
    def mount(kib):
        (tmp_path / "small").mkdir(exist_ok=True)
        subprocess.run(["umount", str(tmp_path / "small")], capture_output=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", str(tmp_path / "small")], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no small disk: {done.stderr.strip()}")
        return tmp_path / "small"

    yield mount
    subprocess.run(["umount", str(tmp_path / "small")], capture_output=True)


@needs_tool
@pytest.mark.parametrize("old", [None, b"old"])
def test_results_of_a_run_are_whole_or_not_there(full, seed, tmp_path, golden_bundle, old):
    rng, disk = random.Random(f"{seed} run"), tmp_path / "disk"
    command = [ACCX, "run", golden_bundle, "--function", "scale_add", "--input", "ones", "--symbol", "n=65536", "--trust", "all", "--output", f"y={disk / 'target'}"]
    first = full(command)
    assert first.returncode == 0 and first.calls >= 3, first.stderr
    assert np.load(disk / "target")[5] == 3
    for at in some(rng, first.calls, 5):
        (disk / "target").unlink(missing_ok=True)
        if old is not None:
            (disk / "target").write_bytes(old)
        done = full(command, at)
        if done.returncode == 0:  # the sync of the folder alone
            assert at == first.calls - 1
            continue
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr, (at, done.stderr)
        assert parts(disk) == [] and [path.read_bytes() for path in disk.iterdir()] == ([old] if old else []), at


@needs_tool
def test_results_of_a_run_go_to_devices_and_pipes(tmp_path, golden_bundle):
    command = [ACCX, "run", golden_bundle, "--function", "scale_add", "--input", "ones", "--symbol", "n=3", "--trust", "all", "--output"]
    before = os.stat("/dev/null").st_ino
    assert subprocess.run([*command, "y=/dev/null"]).returncode == 0 and os.stat("/dev/null").st_ino == before
    done = subprocess.run([*command, "y=/dev/full"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines() == ["accx: cannot write /dev/full: No space left on device"]
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen([*command, f"y={tmp_path / 'pipe'}"], stdout=subprocess.DEVNULL) as run:
        data = (tmp_path / "pipe").read_bytes()
    assert run.returncode == 0 and data.startswith(b"\x93NUMPY") and np.frombuffer(data[-12:], "f4").tolist() == [3, 3, 3]


@needs_tool
@pytest.mark.parametrize("text", ["/proc/self/fd/2", "fds/2", "other"])
def test_results_of_a_run_go_to_open_files(tmp_path, golden_bundle, text):
    """A link as /dev/stderr, with a file behind it, was replaced by a file, or the file was written
    anew: what was in it was lost."""
    link = tmp_path / "link"
    link.symlink_to(text)
    (tmp_path / "fds").symlink_to("/proc/self/fd")
    (tmp_path / "other").symlink_to("/dev/fd/2")
    command = [ACCX, "run", golden_bundle, "--function", "scale_add", "--input", "ones", "--symbol", "n=3", "--trust", "all", "--output", f"y={link}"]
    for mode in "wb", "ab":
        (tmp_path / "log").write_bytes(b"earlier\n")
        with (tmp_path / "log").open(mode) as file:
            file.write(b"line\n")
            file.flush()
            subprocess.run(command, stderr=file, check=True)
            file.write(b"end")
        data = (tmp_path / "log").read_bytes()
        before = b"line\n" if mode == "wb" else b"earlier\nline\n"
        assert data.startswith(before + b"\x93NUMPY") and data.endswith(b"end")
        assert np.load(io.BytesIO(data[len(before) :])).tolist() == [3, 3, 3]
    assert link.is_symlink() and parts(tmp_path) == []


@needs_tool
def test_results_of_a_run_do_not_mix_with_the_report(tmp_path, golden_bundle):
    """The report was written over the result."""
    link, target = tmp_path / "link", tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")
    command = [ACCX, "run", golden_bundle, "--function", "scale_add", "--input", "ones", "--symbol", "n=3", "--trust", "all", "--output"]
    with target.open("wb") as file:
        done = subprocess.run([*command, f"y={link}"], stdout=file, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "the report goes to standard output" in done.stderr and len(done.stderr.splitlines()) == 1
    assert target.read_bytes() == b"" and link.is_symlink()
    with target.open("wb") as file:
        subprocess.run([*command, "y=-"], stdout=file, check=True)
    assert np.load(target).tolist() == [3, 3, 3]


def served_without_a_log() -> bool:
    """False: the server did not get the port, which another process took meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "accrt.serve", str(ROOT / "examples/bytelm"), "--port", str(port)]
    with open("/dev/full", "wb") as log, subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}) as process:
        try:
            question = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", b'{"prompt": "In the beginning", "max_tokens": 2}')
            answered = False
            while not answered and process.poll() is None:
                try:
                    with urllib.request.urlopen(question, timeout=60) as answer:
                        answered = json.load(answer)["object"] == "text_completion"
                except (OSError, ValueError, http.client.HTTPException):
                    # It is loading, or another process has the port.
                    time.sleep(0.2)
            if not answered:
                assert process.returncode != 0
                return False
            process.terminate()
            assert process.wait() == 0
            return True
        finally:
            process.kill()


def test_serving_goes_on_where_the_log_cannot_be_written():
    """No line of the log reaches the disk, from the first one on."""
    serve_http.need_server()
    assert any(served_without_a_log() for _ in range(3)), "no server answered, on three ports"


@pytest.mark.parametrize("kind", ["bundle", "key", "archive"])
def test_writers_of_python_on_a_small_disk(small, kind):
    """A real one, where space ends in the middle of a file, and no writer is told before."""
    from accrt import bundle_writer as bw
    from accrt.compiler.kernels import prebuilt

    def write(path):
        if kind == "bundle":
            b = bw.BundleWriter()
            b.constant("x", np.arange(1 << 14, dtype="f4"))
            b.write(path)
        elif kind == "archive":
            prebuilt.write(path, {str(i): random.Random(i).randbytes(1 << 13) for i in range(8)})
        else:
            trust.SigningKey(bytes(range(32))).write(path)

    for kib, old in ((16, None), (16, b"old"), (4, b"x" * 3)):
        disk = small(kib)
        if kind == "key":
            (disk / "others").write_bytes(bytes(kib << 10))
        elif old:
            (disk / "target").write_bytes(old)
        with pytest.raises((OSError, accrt.Error), match="No space left on device"):
            write(disk / "target")
        left = [path.read_bytes() for path in disk.iterdir() if path.name != "others"]
        assert left == ([old] if old and kind != "key" else []), kib
        disk = small(1024)
        write(disk / "target")
        assert (disk / "target").stat().st_size


MODEL = """
import sys
import tempfile
from accrt import models
try:
    print(models.open(sys.argv[1], targets=("x86-64-v3",)).bundle)
except OSError as error:
    print(error)
    sys.exit(7)
"""


def test_models_say_so_in_one_line(full, seed, tmp_path):
    """The cache of bundles, whose kernels are in a cache with space: nothing that is half written
    is believed."""
    rng, cache = random.Random(f"{seed} models"), tmp_path / "disk" / "accrt"
    folder = tiny.write_folder(tmp_path / "model", tiny.CONFIGS["llama"], tiny.tensors(tiny.CONFIGS["llama"], 1))
    environment = {"XDG_CACHE_HOME": kh.other_cache(tmp_path / "disk"), "XDG_CONFIG_HOME": str(tmp_path / "config"), "FULL_FOLDER": str(cache / "models")}
    first = full([sys.executable, "-c", MODEL, folder], **environment)
    assert first.returncode == 0 and first.calls > 5, first.stderr
    made = Path(first.stdout.splitlines()[-1])
    content = made.read_bytes()
    for at in some(rng, first.calls - 1, 1):
        shutil.rmtree(cache / "models", ignore_errors=True)
        done = full([sys.executable, "-c", MODEL, folder], at, **environment)
        assert done.returncode == 7 and not done.stderr, (at, done.stderr[-2000:])
        assert "No space left" in done.stdout and len(done.stdout.splitlines()) == 1, (at, done.stdout)
        assert not parts(tmp_path / "disk") and not made.exists(), at
    done = full([sys.executable, "-c", MODEL, folder], **environment)
    assert done.returncode == 0 and made.read_bytes() == content, done.stderr
    for damaged in rng.sample([b"", content[: len(content) // 2], content + b"x", bytes(len(content)), _flipped(rng, content)], 2):
        made.write_bytes(damaged)
        done = full([sys.executable, "-c", MODEL, folder], **environment)
        assert done.returncode == 0 and made.read_bytes() == content, (len(damaged), done.stdout, done.stderr)


def _flipped(rng, content):
    at = rng.randrange(128, len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def test_the_cache_of_kernels_is_read_where_it_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _kernel_cache.cached("1" * 64, lambda: b"a") == b"a"
    monkeypatch.setattr(_kernel_cache, "set_own_file", None)
    assert _kernel_cache.cached("1" * 64, lambda: b"b") == b"a"


HOMELESS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from accrt import _kernel_cache
from accrt.compiler.cuda import nvcc
assert _kernel_cache.cache_directory() is None
assert _kernel_cache.cached("0" * 64, lambda: b"code") == b"code"
nvcc._note_version("none")
"""


@pytest.mark.parametrize("home", ["here", "~nobody.of.this.name"])
def test_work_goes_on_where_there_is_no_home(tmp_path, home):
    """As for a user without a name in a container: the search for a folder that is there ends."""
    environment = {**os.environ, "HOME": home, "XDG_CACHE_HOME": "cache"}
    done = subprocess.run([sys.executable, "-c", HOMELESS], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not os.listdir(tmp_path), done.stderr


def test_a_bundle_that_is_removed_while_it_is_looked_at_is_made_again(tmp_path):
    from accrt import models

    assert models._whole(str(tmp_path / "model.accx")) is None


def test_leftovers_are_not_looked_for_where_nothing_can_be_listed(tmp_path, monkeypatch):
    """As in a /tmp that users may write and not read."""
    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "listdir", refused)
    with _files.temporary_folder("accrt-blind-") as folder:
        assert os.path.isdir(folder)


TAKEN = """
import sys, time
from accrt import _kernel_cache
end = time.monotonic() + 2
while time.monotonic() < end:
    for i in range(8):
        assert _kernel_cache.cached(f"{i:064x}", lambda: bytes([i]) * 5000) == bytes([i]) * 5000
"""


def test_a_cache_whose_folder_is_taken_away_while_it_is_used(tmp_path):
    """By a user who clears it: nothing fails, and nothing of another entry comes back."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    runs = [subprocess.Popen([sys.executable, "-c", TAKEN], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    while any(run.poll() is None for run in runs):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        time.sleep(0.01)
    assert all(run.communicate()[1] == "" and run.returncode == 0 for run in runs)
