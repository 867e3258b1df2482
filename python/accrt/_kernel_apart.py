"""`Kernel.check` in a process of its own: starts it, hands over the kernel and its arguments, and
makes a finding of how it ends."""
from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from operator import index as _index
from time import monotonic
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _limited, _waits

if TYPE_CHECKING:
    from .kernels import Kernel

# What is no absolute path is left out: "", which `-c` puts first, is the current folder.
_PROGRAM = "import sys; sys.path = [sys.argv[1], *(p for p in sys.path if p[:1] == '/')]; from accrt._kernel_child import main; main()"
_START_SECONDS = 120.0  # until the process has begun its first run
_LOOK_SECONDS = 0.1  # after which it is looked whether the process is there


def check_apart(kernel: Kernel, guarded: Sequence, sizes: Sequence[int], limit: float | None) -> list[str]:
    if not sys.executable:
        raise RuntimeError(f"kernel {kernel.name} cannot be checked in a process of its own: this Python does not know its own program")
    limit = _waits.seconds(limit, "seconds")
    source = kernel.pack._source
    payload: list[bytes] = []
    if isinstance(source, bytes):
        payload.append(source)
    head: dict[str, Any] = {"name": kernel.name, "types": list(kernel._types), "sizes": list(sizes), "values": [],
                            "source": len(source) if isinstance(source, bytes) else source}
    for value in guarded:
        head["values"].append(_encoded(value, payload))
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    child = subprocess.Popen([sys.executable, "-c", _PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        lines, last, late = _talk(child, json.dumps(head).encode() + b"\n" + b"".join(payload), limit)
    finally:
        _end_all(child)
    found = [line["found"] for line in lines if "found" in line]
    if not lines or "done" not in lines[-1]:
        found.append(_end(kernel, None if late else child.returncode, lines, last, limit))
    return [f"kernel {kernel.name} {line}" for line in found]


def _end_all(child: subprocess.Popen) -> None:
    """Ends it and what it started, unless that made a session of its own."""
    with contextlib.suppress(ProcessLookupError):  # none of them is left
        os.killpg(child.pid, signal.SIGKILL)
    _limited.end(child)


def _encoded(value: Any, payload: list[bytes]) -> Any:
    """An argument as the other process gets it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "content"):  # memory
        payload.append(value.content)
        return {"dtype": value.like.c.dtype, "shape": list(value.like.shape_array[:value.like.c.rank]), "bytes": len(value.content)}
    return value.item() if hasattr(value, "item") else _index(value)


def _talk(child: subprocess.Popen, message: bytes, limit: float | None) -> tuple[list[dict], dict, bool]:
    """What it says, line by line; the run that began last; and whether that took too long."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(message)
        child.stdin.close()
    except BrokenPipeError:  # it has ended; its status says why
        pass
    lines: list[dict] = []
    last: dict = {}
    rest = b""
    end: float | None = monotonic() + _START_SECONDS
    while True:
        # What the kernel started may hold the pipe open after the process has ended.
        over = child.poll() is not None
        wait = 0.0 if over else _LOOK_SECONDS if end is None else min(max(end - monotonic(), 0), _LOOK_SECONDS)
        piece = os.read(child.stdout.fileno(), 65536) if select.select([child.stdout], [], [], wait)[0] else None
        if piece == b"" and not over:  # it closed the pipe
            with contextlib.suppress(subprocess.TimeoutExpired):  # the caller ends it
                child.wait(None if end is None else max(end - monotonic(), 0))
        if not piece and (over or piece == b"" or (end is not None and monotonic() >= end)):
            return lines, last, child.poll() is None
        *whole, rest = (rest + (piece or b"")).split(b"\n")
        for line in _read(whole):
            lines.append(line)
            if "run" in line:
                last, end = line, None if limit is None else monotonic() + limit


def _read(texts: Sequence[bytes]) -> Iterator[dict]:
    """Its lines. What else comes is the kernel's, which found the pipe."""
    for text in texts:
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line


def _end(kernel: Kernel, status: int | None, lines: Sequence[dict], last: dict, limit: float | None) -> str:
    """How it ended, in words."""
    if lines and "error" in lines[-1]:
        raise RuntimeError(f"kernel {kernel.name} cannot be checked in a process of its own: {lines[-1]['error']}")
    tail = f", with {last['run']}" if last.get("run") else ""
    if status is None:
        seconds = limit if last and limit is not None else _START_SECONDS
        return f"runs longer than {seconds:g} second{'' if seconds == 1 else 's'}{tail}"
    if status >= 0 and not last:
        raise RuntimeError(f"kernel {kernel.name} cannot be checked in a process of its own: it ended with status {status} before its first run")
    if status >= 0:
        return f"ends the process that runs it, or closes its files: exit code {status}{tail}"
    if -status in (signal.SIGSEGV, signal.SIGBUS) and last.get("edge"):
        return last["edge"] + tail
    return f"crashed with signal {-status}{_limited.signal_name(-status)}{tail}"
