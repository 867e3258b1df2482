"""What tools leave: files are synced before they get their names, and no key is in a process's
memory when it ends.

left_behind.c is loaded before the tool and looks at both. Its own copy of the key is turned, and so
is what is handed to it.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import accx_tool
import pytest
from accrt import _ffi
from accrt import bundle_writer as bw
from accrt import trust

ROOT = Path(__file__).resolve().parents[2]
ACCX = shutil.which("accx") or str(accx_tool.ACCX)
SEED = bytes((0xC3 + 7 * i) & 0xFF for i in range(32))

pytestmark = pytest.mark.skipif(not os.path.exists(ACCX), reason="no accx")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    out = tmp_path_factory.mktemp("shim") / "left_behind.so"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", str(ROOT / "tests/python/left_behind.c"), "-o", str(out), "-ldl"], check=True)
    return out


@pytest.fixture
def watched(shim, tmp_path, monkeypatch):
    """Runs a command with the shim: what it noted."""
    if b"libasan" in Path(ACCX).read_bytes():
        pytest.skip("sanitizers come first, and keep what was freed")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*command, key=None):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        environment = {**os.environ, "LD_PRELOAD": str(shim), "LEFT_BEHIND_LOG": str(log)}
        if key is not None:
            environment["LEFT_BEHIND_KEY"] = bytes(b ^ 0x5A for b in key).hex()
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return log.read_text().splitlines() if log.exists() else []

    return run


def weights(path):
    b = bw.BundleWriter()
    b.asset("notes", b"x" * 5000)
    b.constant("w", struct.pack("<16384f", *(i % 97 - 48.0 for i in range(16384))), dtype="f32", shape=(128, 128))
    b.write(str(path))
    return path


def test_files_are_synced_before_they_get_their_names(watched, tmp_path):
    w, key, secret, text = weights(tmp_path / "w.accx"), tmp_path / "k.pem", tmp_path / "s.pem", tmp_path / "t.yaml"
    watched(ACCX, "keygen", "--output", key)
    watched(ACCX, "keygen", "--secret", "--output", secret)
    python = (sys.executable, "-c", "import sys; from accrt.bundle_writer import BundleWriter as B; b = B(); "
              "b.constant('w', bytes(4096), dtype='u8', shape=(4096,)); b.write(sys.argv[1])")  # fmt: skip
    commands = (
        (ACCX, "pack", w, tmp_path / "packed.accx"),
        (ACCX, "quantize", w, tmp_path / "quantized.accx", "--layout", "q8_0"),
        (ACCX, "dump", w, "--output", text),
        (ACCX, "build", text, "--output", tmp_path / "built.accx"),
        (ACCX, "sign", w, "--output", tmp_path / "signed.accx", "--key", key, "--vouch"),
        (ACCX, "encrypt", w, "--output", tmp_path / "encrypted.accx", "--secret-key", secret),
        (ACCX, "decrypt", tmp_path / "encrypted.accx", "--output", tmp_path / "plain.accx", "--secret-key", secret),
        (ACCX, "trust", "add", f"{key}.pub", "--name", "one"),
        (ACCX, "trust", "floor", "name", "3"),
        python + (tmp_path / "python.accx",),
    )
    for command in commands:
        names = [line.split() for line in watched(*command) if line.startswith("rename")]
        if command[:3] != (ACCX, "trust", "add"):
            # replaces nothing: renameat2, which the shim does not see
            assert names, f"{command} renamed nothing: then this test shows nothing"
        assert all(synced == "1" for _, _, synced in names), (command, names)


def test_no_key_is_left_in_memory(watched, tmp_path):
    """Keys were wiped by memset at the end of functions, which compilers leave out."""
    w, key, secret = weights(tmp_path / "w.accx"), tmp_path / "k.pem", tmp_path / "s.pem"
    trust.SigningKey(SEED).write(key)
    trust._write(secret, _ffi.ACCRT_KEY_SECRET, SEED)
    probe = (sys.executable, "-c", "import ctypes as c; l = c.CDLL(None); l.malloc.restype = c.c_void_p; "
             f"c.memmove(l.malloc(64), bytes.fromhex('{SEED.hex()}'), 32)")  # fmt: skip
    assert any(line.startswith("key ") for line in watched(*probe, key=SEED)), "the shim finds no key: then this test shows nothing"
    commands = (
        (ACCX, "sign", w, "--output", tmp_path / "signed.accx", "--key", key, "--vouch"),
        (ACCX, "encrypt", w, "--output", tmp_path / "encrypted.accx", "--secret-key", secret),
        (ACCX, "decrypt", tmp_path / "encrypted.accx", "--output", tmp_path / "plain.accx", "--secret-key", secret),
    )
    for command in commands:
        found = [line for line in watched(*command, key=SEED) if line.startswith("key ")]
        assert found == [], (command, found)
