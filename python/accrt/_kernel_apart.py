"""`Kernel.check` in a process of its own: starts it, hands over the kernel and its arguments, and
makes a finding of how it ends."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from operator import index as _index
from time import monotonic
from typing import TYPE_CHECKING, Any, Sequence

from . import _waits

if TYPE_CHECKING:
    from .kernels import Kernel

# What is no absolute path is left out: "", which `-c` puts first, is the current folder.
_PROGRAM = "import sys; sys.path = [sys.argv[1], *(p for p in sys.path if p[:1] == '/')]; from accrt._kernel_child import main; main()"
_START_SECONDS = 120.0  # until the process has begun its first run


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
    child = subprocess.Popen([sys.executable, "-c", _PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        lines, last, late = _talk(child, json.dumps(head).encode() + b"\n" + b"".join(payload), limit)
    finally:
        child.kill()
        child.wait()
    found = [line["found"] for line in lines if "found" in line]
    if not lines or "done" not in lines[-1]:
        found.append(_end(kernel, child.returncode if not late else 0, lines, last, limit))
    return [f"kernel {kernel.name} {line}" for line in found]


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
        ready = select.select([child.stdout], [], [], None if end is None else max(end - monotonic(), 0))[0]
        if not ready:
            return lines, last, True
        piece = os.read(child.stdout.fileno(), 65536)
        if not piece:
            child.wait()
            return lines, last, False
        *whole, rest = (rest + piece).split(b"\n")
        for line in map(json.loads, whole):
            lines.append(line)
            if "run" in line:
                last, end = line, None if limit is None else monotonic() + limit


def _end(kernel: Kernel, status: int, lines: Sequence[dict], last: dict, limit: float | None) -> str:
    """How it ended, in words."""
    if lines and "error" in lines[-1]:
        raise RuntimeError(f"kernel {kernel.name} cannot be checked in a process of its own: {lines[-1]['error']}")
    tail = f", with {last['run']}" if last.get("run") else ""
    if status == 0 and limit is not None and last:
        return f"runs longer than {limit:g} second{'' if limit == 1 else 's'}{tail}"
    if status >= 0:
        raise RuntimeError(f"kernel {kernel.name} cannot be checked in a process of its own: it ended with status {status}")
    if -status in (signal.SIGSEGV, signal.SIGBUS) and last.get("edge"):
        return last["edge"] + tail
    try:
        name = f" ({signal.Signals(-status).name})"
    except ValueError:
        name = ""
    return f"crashed with signal {-status}{name}{tail}"
