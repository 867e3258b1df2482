"""Files that are written appear whole, in one way: through runtime/core/put_file.c and
python/accrt/_files.py. Writers are killed at random calls: there is the old file or the new one,
and the next write takes away what was left."""

import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rotation
import accrt
import accrt._ffi
import accrt._files
import accrt.trust
from accrt import bundle_writer as bw

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
ACCX = shutil.which("accx") or str(ROOT / "build" / "bin" / "accx")
PART = re.compile(r".*\.[0-9]+\.[0-9]+\.part")
needs_tool = pytest.mark.skipif(not os.path.exists(ACCX), reason="no accx")

C_CALLS = re.compile(r"(?<![\w.>])(rename|renameat|renameat2|SYS_rename\w*|linkat|mkstemps?|mkostemps?|tmpfile|tempnam|mktemp)(?=\s*[(,])")
PYTHON_CALLS = re.compile(r"(?<!\w)(os\.replace|os\.renames?|os\.link|shutil\.move|(?:tempfile\.)?(?:mkstemp|NamedTemporaryFile|TemporaryFile)|"
                          r"\w*path\w*\.(?:rename|replace)\(\w*path)")  # fmt: skip


def test_one_place_renames_in_c_and_one_in_python():
    found = set()
    for pattern, folders, calls, comments in (
            ("*.[ch]", ("runtime", "loader", "format", "write", "abi", "tools", "packs"), C_CALLS, re.compile(r"/\*.*?\*/", re.S)),
            ("*.py", ("python/accrt",), PYTHON_CALLS, re.compile(r'"""(?:.|\n)*?"""|#.*'))):  # fmt: skip
        for folder in folders:
            for path in sorted((ROOT / folder).rglob(pattern)):
                if not re.search(r"_test\.c$", path.name):
                    found |= {(path.relative_to(ROOT).as_posix(), call) for call in calls.findall(comments.sub("", path.read_text()))}
    assert found == {("runtime/core/put_file.c", "renameat"), ("runtime/core/put_file.c", "SYS_renameat2"),
                     ("python/accrt/_files.py", "os.replace"),
                     # what it refuses
                     ("tools/sandbox/lockdown.c", "SYS_rename"), ("tools/sandbox/lockdown.c", "SYS_renameat2")}


# ---- What is no file


def facts(path):
    return path.lstat().st_mode, path.lstat().st_ino


def assert_stays(tmp_path, write):
    """`write` raises or returns what was said."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    open_file = (tmp_path / "file").open("wb")
    (tmp_path / "stdout").symlink_to(f"/proc/{os.getpid()}/fd/{open_file.fileno()}")
    (tmp_path / "to_stdout").symlink_to("stdout")
    (tmp_path / "fds").symlink_to(f"/proc/{os.getpid()}/fd")
    (tmp_path / "below").symlink_to(f"fds/{open_file.fileno()}")
    (tmp_path / "closed").symlink_to("/proc/self/fd/1000000")
    if os.geteuid() == 0:
        try:
            os.mknod(tmp_path / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:  # root of a container
            pass
    for name in ("pipe", "link", "null", "device", "stdout", "to_stdout", "below", "closed"):
        path = tmp_path / name
        if path.is_symlink() or path.exists():
            before = facts(path)
            assert "not replaced" in write(path) or "exists already" in write(path)
            assert facts(path) == before and not parts(tmp_path)
    open_file.close()


@needs_tool
@pytest.mark.parametrize("kind", ["pack", "quantize", "sign", "encrypt", "dump", "build", "keygen"])
def test_tools_put_no_file_in_the_place_of_a_device(tmp_path, monkeypatch, kind):
    """As root, an output /dev/null was replaced by a file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    accrt.trust.SigningKey(bytes(range(32))).write(tmp_path / "key.pem")
    accrt.trust._write(tmp_path / "secret.pem", accrt._ffi.ACCRT_KEY_SECRET, bytes(range(32)))
    given = {"IN": bundle(tmp_path / "in.accx", 1), "KEY": tmp_path / "key.pem", "SECRET": tmp_path / "secret.pem",
             "TEXT": tmp_path / "text.yaml"}  # fmt: skip
    subprocess.run([ACCX, "dump", str(given["IN"]), "--output", str(given["TEXT"])], check=True)

    def write(path):
        done = subprocess.run([ACCX, *(str({**given, "OUT": path}.get(word, word)) for word in KINDS[kind])], capture_output=True, text=True)
        assert done.returncode == 1 and not done.stdout
        return done.stderr

    assert_stays(tmp_path, write)


@pytest.mark.parametrize("kind", ["writer", "key", "put"])
def test_python_puts_no_file_in_the_place_of_a_device(tmp_path, kind):
    def write(path):
        with pytest.raises((OSError, accrt.Error)) as caught:
            if kind == "writer":
                bundle(path, 1)
            elif kind == "key":
                accrt.trust.SigningKey(bytes(range(32))).write(path)
            else:
                accrt._files.put(str(path), b"new", 0o600)
        return str(caught.value)

    assert_stays(tmp_path, write)


@pytest.mark.parametrize("text", ["/proc/self/root{}/new", "/proc/self/exe", "link", "nowhere"])
def test_python_replaces_other_links(tmp_path, text):
    link = tmp_path / "link"
    link.symlink_to(text.format(tmp_path))
    accrt._files.put(str(link), b"new", 0o600)
    assert link.read_bytes() == b"new" and not link.is_symlink() and os.listdir(tmp_path) == ["link"]


# ---- Killed at any call


def bundle(path, number):
    b = bw.BundleWriter()
    b.constant("w", bytes(range(256)) * 256 + bytes([number]) * 4096, dtype="u8", shape=(17, 4096))
    b.constant("x", np.full((64, 256), number, "f4"))
    b.write(str(path))
    return path


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    out = tmp_path_factory.mktemp("shim") / "killed.so"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", str(ROOT / "tests/python/killed.c"), "-o", str(out), "-ldl"], check=True)
    return out


@pytest.fixture(scope="module")
def seed():
    return rotation.seed()


def parts(folder):
    return [path for path in Path(folder).rglob("*") if PART.match(path.name)]


KINDS = {
    "pack": ("pack", "IN", "OUT"),
    "quantize": ("quantize", "IN", "OUT", "--layout", "q8_0", "--threads", "1"),
    "sign": ("sign", "IN", "--output", "OUT", "--key", "KEY", "--vouch"),
    "encrypt": ("encrypt", "IN", "--output", "OUT", "--secret-key", "SECRET"),
    "dump": ("dump", "IN", "--output", "OUT"),
    "build": ("build", "TEXT", "--output", "OUT"),
    "rules": ("trust", "floor", "model", "NUMBER", "--lower"),
    "keygen": ("keygen", "--output", "OUT"),
}


@needs_tool
@pytest.mark.parametrize("kind", KINDS)
def test_tools_that_are_killed_leave_the_old_file_or_the_new_one(shim, seed, tmp_path, monkeypatch, kind):
    """At random calls, before or after they are made: no clock decides what is seen."""
    if b"libasan" in Path(ACCX).read_bytes():
        pytest.skip("sanitizers come first")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rng = random.Random(f"{seed} {kind}")
    target = tmp_path / "config/accrt/trusted/trust.rules" if kind == "rules" else tmp_path / "target"
    accrt.trust.SigningKey(bytes(range(32))).write(tmp_path / "key.pem")
    accrt.trust._write(tmp_path / "secret.pem", accrt._ffi.ACCRT_KEY_SECRET, bytes(range(32)))
    given = {}
    for number in (1, 2):
        given[number] = {"IN": bundle(tmp_path / f"in{number}.accx", number), "OUT": target, "KEY": tmp_path / "key.pem",
                         "SECRET": tmp_path / "secret.pem", "NUMBER": number, "TEXT": tmp_path / f"text{number}.yaml"}  # fmt: skip
        if kind == "build":
            subprocess.run([ACCX, "dump", str(given[number]["IN"]), "--output", str(given[number]["TEXT"])], check=True)

    def run(number, at=None):
        """The moments that there were, or None when it was killed."""
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        environment = {**os.environ, "LD_PRELOAD": str(shim), "KILLED_LOG": str(log), "KILLED_AT": "-1" if at is None else str(at)}
        if kind == "keygen":
            Path(f"{target}.pub").unlink(missing_ok=True)
        done = subprocess.run([ACCX, *(str(given[number].get(word, word)) for word in KINDS[kind])], env=environment, capture_output=True, text=True)
        assert done.returncode in ((0,) if at is None else (0, -9)), done.stderr
        return int(log.read_text()) if done.returncode == 0 else None

    def content():
        if kind == "keygen":  # another one each time, and never replaced
            return accrt.trust.SigningKey.read(target) and b"a key" if target.exists() else None
        if kind == "encrypt":  # another salt each time
            return {1: b"1", 2: b"2"}[bytes(accrt.Bundle(target, key=lambda _: bytes(range(32))).constant_bytes("w"))[-1]]
        if kind == "dump":  # what differs lies beside the text
            return target.read_bytes() + (tmp_path / "target.d/data.bin").read_bytes()
        return target.read_bytes()

    moments = run(1)
    old = content()
    if kind == "keygen":
        old = None
        target.unlink()
        moments = run(1)
        new = content()
        target.unlink()
    else:
        run(2)
        new = content()
        run(1)
    assert moments >= 10 and new != old
    for at in sorted(rng.sample(range(moments), 5)):
        run(2, at)
        found = content() if target.exists() else None
        assert found in (old, new), at
        if found == new and kind == "keygen":
            target.unlink()
    run(2)
    assert content() == new and parts(tmp_path) == []


WRITERS = """
import ctypes, os, random, sys
import accrt
from accrt import bundle_writer as bw, trust
from accrt._paths import set_own_file
folder, seed = sys.argv[1:]
os.environ["XDG_CONFIG_HOME"] = folder + "/config"
killed_at = ctypes.CDLL(None).killed_at
count = ctypes.c_int.in_dll(ctypes.CDLL(None), "moments")

def bundle(path, number):
    b = bw.BundleWriter()
    b.constant("w", bytes([number]) * 5000, dtype="u8", shape=(5000,))
    b.write(path)

def content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None

rules = folder + "/config/accrt/trusted/trust.rules"
writers = {
    "bundle": (folder + "/bundle.accx", bundle),
    "own file": (folder + "/own/file", lambda path, number: set_own_file(path, bytes([number]) * 5000)),
    "rules": (rules, lambda path, number: trust.floor("model", number, lower=True)),
    "key": (folder + "/key.pem", lambda path, number: trust.SigningKey(bytes([number]) * 32).write(path)),
}

def child(path, write, number, at):
    "How it ended, and the moments."
    sys.stdout.flush()
    read, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        killed_at(at)
        try:
            write(path, number)
            os.write(report, b"%d" % count.value)
            os._exit(0)
        except BaseException as error:
            print(repr(error))
            sys.stdout.flush()
            os._exit(1)
    os.close(report)
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(read, "rb") as file:
        said = file.read()
    assert status in (0, 9), (path, status)
    return int(said) if status == 0 else None

os.mkdir(folder + "/own", 0o700)
for kind, (path, write) in writers.items():
    rng = random.Random(f"{seed} {kind}")
    new_only = kind == "key"
    moments = child(path, write, 2, -1)
    new = content(path)
    if new_only:
        os.unlink(path)
    else:
        child(path, write, 1, -1)
    old = content(path)
    assert new != old and moments >= 10, (kind, moments)
    for at in rng.sample(range(moments), 6):
        child(path, write, 2, at)
        found = content(path)
        assert found in (old, new), (kind, at)
        if found == new and new_only:
            os.unlink(path)
    child(path, write, 2, -1)
    assert content(path) == new, kind
    left = [name for name in os.listdir(os.path.dirname(path)) if ".part" in name]
    assert not left, (kind, left)
    print(kind, moments)
"""


def test_python_that_is_killed_leaves_the_old_file_or_the_new_one(shim, seed, tmp_path):
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run([sys.executable, "-c", WRITERS, str(tmp_path), str(seed)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (seed, done.stdout, done.stderr)
    assert done.stdout.count("\n") == 4, done.stdout


def test_a_folder_that_is_taken_before_it_is_held_is_made_again(monkeypatch, tmp_path):
    """Another process that looks for leftovers takes a folder that no process holds yet."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    opened, taken = os.open, []

    def open_late(path, flags, *more, **named):
        if len(taken) < 3 and os.path.basename(str(path)).startswith("accrt-race-"):
            taken.append(path)
            accrt._files._take_leftover_folders("accrt-race-")
            assert not os.path.exists(path)
        return opened(path, flags, *more, **named)

    accrt._files._swept.add("accrt-race-")
    with monkeypatch.context() as patched:
        patched.setattr(accrt._files.os, "open", lambda *a, **k: (open_late if sys._getframe(1).f_code.co_name == "temporary_folder" else opened)(*a, **k))
        with accrt._files.temporary_folder("accrt-race-") as folder:
            assert os.path.isdir(folder) and folder not in taken and len(taken) == 3
    assert os.listdir(tmp_path) == []
