"""Work in a process of its own, which has an end in time, memory and size of answer: compilers and
templates of others. A helper process starts when it is first needed, answers one question after
another, and is ended where it passes a limit; the next question gets another one."""
from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import weakref
from time import monotonic
from typing import Callable, List, Optional

_START_SECONDS = 120.0  # until it has begun
_GRACE_SECONDS = 30.0  # after the limit of time, it ends itself: its owner may be gone
_IDLE_SECONDS = 300.0  # without a question; then its owner ends it, and later it ends itself
_LENGTH = struct.Struct("<Q")
# The folders of Python's path are given: "", which `-c` puts first, is the current folder.
_PROGRAM = "import sys; sys.path = sys.argv[4:]; from accrt._limited import serve; serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))"


class NotStarted(RuntimeError):
    """The process could not be started."""


class Overdue(RuntimeError):
    """The answer took longer than its limit."""


class Oversized(RuntimeError):
    """The answer is longer than its limit."""


class Ended(RuntimeError):
    """The process ended by itself. status: as subprocess has it, -11 for SIGSEGV say."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit code {status}" if status >= 0 else f"signal {-status}{signal_name(-status)}")
        self.status = status


def signal_name(number: int) -> str:
    """The signal as " (SIGSEGV)"; nothing if it has no name."""
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def possible() -> bool:
    """Whether this Python can start itself: one that is embedded may not know its program, and that
    of a frozen application is the application."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # a child that was forked: the process is its parent's
        return
    end(process)


def _start(command: List[str]) -> "subprocess.Popen[bytes]":
    """With pipes of ours: where descriptors run out, those that Popen makes may stay open."""
    pipes: List[int] = []
    try:
        pipes += os.pipe()
        pipes += os.pipe()
        process = subprocess.Popen(command, stdin=pipes[0], stdout=pipes[3], start_new_session=True)
        process.stdin, process.stdout = os.fdopen(pipes.pop(1), "wb", 0), os.fdopen(pipes.pop(1), "rb", 0)
        return process
    finally:
        for number in pipes:
            os.close(number)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process, and closes its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not written yet
                stream.close()


class _Process:
    def __init__(self, module: str, memory: int, seconds: float) -> None:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        paths = dict.fromkeys([folder, *(path for path in sys.path if os.path.isabs(path))])
        try:
            self._process = _start([sys.executable, "-c", _PROGRAM, module, str(memory), str(seconds), *paths])
        except OSError as error:
            raise NotStarted(f"no helper process can be started with {sys.executable}: {error}") from None
        self.owner, self.since = os.getpid(), monotonic()
        self.end = weakref.finalize(self, _end, self._process, self.owner)
        try:
            self._frame(monotonic() + _START_SECONDS, 0)
        except (Overdue, Oversized, Ended) as error:
            self.end()
            raise NotStarted(f"{sys.executable} did not become a helper process: {error}") from None
        except BaseException:
            self.end()
            raise

    def has_ended(self) -> bool:
        """Whether it has ended, by itself or by a signal."""
        return self._process.poll() is not None

    def ask(self, question: bytes, seconds: float, most: int) -> bytes:
        assert self._process.stdin is not None
        rest = memoryview(_LENGTH.pack(len(question)) + question)
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0:]
        except BrokenPipeError:
            self._ended()
        return self._frame(monotonic() + seconds, most)

    def _frame(self, end: float, most: int) -> bytes:
        length, = _LENGTH.unpack(self._read(_LENGTH.size, end))
        if length > most:
            raise Oversized(f"{length} bytes")
        return self._read(length, end)

    def _read(self, size: int, end: float) -> bytes:
        assert self._process.stdout is not None
        out, number, poll = bytearray(), self._process.stdout.fileno(), select.poll()
        poll.register(number, select.POLLIN)
        while len(out) < size:
            if not poll.poll(max(end - monotonic(), 0) * 1000):
                raise Overdue("no answer")
            piece = os.read(number, min(size - len(out), 1 << 20))
            if not piece:
                self._ended()
            out += piece
        return bytes(out)

    def _ended(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed the pipe, and lives
            self._process.wait(1.0)
        self._process.kill()
        raise Ended(self._process.wait()) from None


class Helper:
    """Processes that run `answer(question: bytes) -> bytes` of a module, as many as there are
    questions at a time. memory: bytes that each may take beside what Python has when it starts.
    seconds: the longest that an answer may take."""

    def __init__(self, module: str, memory: int, seconds: float) -> None:
        self._module, self._memory, self._seconds = module, memory, seconds
        self._idle: List[_Process] = []
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, question: bytes, most: int, seconds: Optional[float] = None) -> bytes:
        """An answer of at most `most` bytes. Raises NotStarted, Overdue, Oversized, Ended. Whatever
        ends the wait, Ctrl-C say, ends the process."""
        process = self._take()
        try:
            answer = process.ask(question, self._seconds if seconds is None else seconds, most)
        except BaseException:
            process.end()
            raise
        process.since = monotonic()
        with self._lock:
            keep = not self._closed and len(self._idle) < (os.cpu_count() or 1)
            if keep:
                self._idle.append(process)
        if not keep:
            process.end()
        return answer

    def close(self) -> None:
        """Ends the processes that wait for a question. Another question starts another one."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for process in idle:
            process.end()

    def _take(self) -> _Process:
        """The process that answered last, or a new one. Processes that have ended, or have had no
        question for long, are cleared away. Those of a parent process are left to it."""
        with self._lock:
            self._closed = False
            idle = [process for process in self._idle if process.owner == os.getpid()]
            fit = [process for process in idle if monotonic() - process.since < _IDLE_SECONDS and not process.has_ended()]
            self._idle = fit[:-1]
        for process in idle:
            if process not in fit:
                process.end()
        return fit[-1] if fit else _Process(self._module, self._memory, self._seconds)


# ---- In the process ------------------------------------------------------------------------------


def _limit(memory: int) -> None:
    import resource
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + memory
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _whole(number: int, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        piece = os.read(number, min(size - len(out), 1 << 20))
        if not piece:
            os._exit(0)  # the owner is gone
        out += piece
    return bytes(out)


def _send(number: int, content: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(number, rest):]


def serve(module: str, memory: int, seconds: float) -> None:
    """The process's main function."""
    import importlib
    questions, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a compiler prints is no answer
    os.dup2(2, 0)
    answer: Callable[[bytes], bytes] = importlib.import_module(module).answer
    _limit(memory)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _send(answers, b"")
    while True:
        signal.setitimer(signal.ITIMER_REAL, 2 * _IDLE_SECONDS)
        size, = _LENGTH.unpack(_whole(questions, _LENGTH.size))
        question = _whole(questions, size)
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_SECONDS)
        _send(answers, answer(question))
