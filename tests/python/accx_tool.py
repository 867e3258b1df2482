"""The command-line tool for tests: ACCRT_ACCX, or the one beside the library that is tested."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build" / "lib" / "libaccrt.so")).resolve()
ACCX = pathlib.Path(os.environ.get("ACCRT_ACCX", LIBRARY.parents[1] / "bin" / "accx"))

needs_tool = pytest.mark.skipif(not ACCX.exists(), reason=f"{ACCX} is not built (it needs json-c, libzip and libyaml)")


def accx_output(*arguments: object, code: int | None = 0) -> tuple[str, str]:
    """Its standard output and standard error; `code`: the exit code that it must have, None for any."""
    done = subprocess.run([str(ACCX), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def accx(*arguments: object, code: int | None = 0) -> str:
    """What it says: on standard output where it succeeds, on standard error where it must not."""
    out, errors = accx_output(*arguments, code=code)
    return out if code == 0 else errors
