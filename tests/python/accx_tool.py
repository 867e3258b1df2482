"""The command-line tool for tests: ACCRT_ACCX, or the one beside the library that is tested."""

from __future__ import annotations

import os
import pathlib
import pty
import subprocess
from typing import Any, Mapping, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build" / "lib" / "libaccrt.so")).resolve()
#: What was built with the library: `./dev test` builds with assertions, beside build/.
BUILD = LIBRARY.parents[1]
ACCX = pathlib.Path(os.environ.get("ACCRT_ACCX", BUILD / "bin" / "accx"))

needs_tool = pytest.mark.skipif(not ACCX.exists(), reason=f"{ACCX} is not built (it needs json-c, zlib and libyaml)")


def accx_output(*arguments: object, code: int | None = 0) -> tuple[str, str]:
    """Its standard output and standard error; `code`: the exit code that it must have, None for
    any."""
    done = subprocess.run([str(ACCX), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def accx(*arguments: object, code: int | None = 0) -> str:
    """What it says: on standard output where it succeeds, on standard error where it must not."""
    out, errors = accx_output(*arguments, code=code)
    return out if code == 0 else errors


def on_terminal(command: Sequence[object], environment: Mapping[str, str], **how: Any) -> tuple[int, str]:
    """The exit code of a command whose streams are a terminal, but for those that `how` says, and
    what that shows."""
    master, slave = pty.openpty()
    streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave, **how}
    process = subprocess.Popen(list(map(str, command)), env=environment, **streams)
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # nobody has the other end any more
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    return process.wait(timeout=300), shown.decode()
