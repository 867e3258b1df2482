"""What keeps the memory of callers alive while a device works on it: arrays and tensors that C
knows as addresses alone.

Objects are kept by stream and number: until the stream has passed what was enqueued when they were
given here. A caller that enqueues, waits or polls releases the stream's own objects. A thread
releases the others, a few times a second, while there are any.

At the end of the interpreter what is in flight is waited for: EXIT_LIMIT_S at most, and
EXIT_PATIENCE_S when all that is left waits for a semaphore. What still runs then is cancelled, and
waited for a little longer. What is not complete by then keeps its memory until the process is gone,
and so does whatever comes later.
"""
from __future__ import annotations

import atexit
import ctypes
import os
import time
from _thread import RLock, allocate_lock

from . import _fast, _ffi
from ._library import _State, lib
from ._threads import start

EXIT_PATIENCE_S, EXIT_LIMIT_S, EXIT_CANCEL_S = 0.5, 20.0, 2.0
_SLICE_NS = 20_000_000
_BATCH = 64  # objects that are kept before the stream's progress is read
_QUICK_S, _SLOW_S, _LINGER_S = 0.03, 0.5, 1.0  # of the thread

_NEVER = 1 << 65

_immortal: list = []  # what is not complete when the interpreter ends, and whatever is kept later
_queues: set[_Queue] = set()  # those with an owner: the end of the interpreter waits for them
_busy: set[_Queue] = set()  # those that keep something
_guard = RLock()  # over _watching, and who is in _busy; re-entered by finalizers
_watching = False


class InFlight:
    """What one stream's work uses, for those who enqueue. Where these are garbage in a cycle, their
    finalizers run in any order and may give things here: so this module holds the queue until its
    last InFlight is gone, and the queue is never garbage itself.
    """

    __slots__ = ("queue", "keep", "look", "stream")

    def __init__(self, stream) -> None:
        self.queue = queue = _Queue(stream)  # an owning pointer
        self.stream, self.keep, self.look = stream, queue.keep, queue.look

    def __del__(self) -> None:
        self.queue.leave()


class _Queue:
    __slots__ = ("stream", "_young", "_old", "_looking")

    def __init__(self, stream) -> None:
        self.stream = stream  # an owning pointer
        self._young: list = []  # not looked at since they came
        self._old: list[list] = []  # [the number to be passed, what may go then]
        self._looking = allocate_lock()
        _queues.add(self)

    def leave(self, _queues=_queues) -> None:
        """Its only owner is being finalized."""
        _queues.discard(self)

    def progress(self) -> tuple[int, int, int]:
        """The number of the last submission, of the last one issued to the device, of the last one
        that is over."""
        numbers = (ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64())
        # all 0 in a forked child: nothing runs there
        lib.accrt_stream_progress(self.stream, *map(ctypes.byref, numbers))
        return tuple(number.value for number in numbers)

    def keep(self, what: object, _state=_State, _immortal=_immortal) -> None:
        """Keeps an object until all is over that the stream has now: to be called once the work is
        enqueued."""
        if not _state.gives_back:
            _immortal.append(what)
            return
        young = self._young
        young.append(what)
        if len(young) == 1:
            _watch(self)
        elif len(young) >= _BATCH:
            self.look()

    def look(self) -> bool:
        """Drops what may go; whether anything did."""
        # Another thread, or a finalizer of what is dropped here: it is being looked at.
        if self.is_empty() or not self._looking.acquire(False):
            return False
        try:
            old = self._old
            if self._young:
                # An exception between any two lines (Ctrl-C) loses nothing: a list that is in both
                # places stays.
                old.append([_NEVER, self._young])
                self._young = []
            submitted, _issued, completed = self.progress()
            for entry in old:
                if entry[0] == _NEVER:
                    entry[0] = submitted
            gone = 0
            while gone < len(old) and old[gone][0] <= completed:
                gone += 1
            del old[:gone]
            return gone > 0
        finally:
            self._looking.release()

    def is_empty(self) -> bool:
        return not self._young and not self._old


def _watch(in_flight: _Queue) -> None:
    """Sees to it that the thread looks after it."""
    global _watching
    _busy.add(in_flight)
    if _watching or not _State.gives_back:
        return
    with _guard:
        if not _watching:
            try:
                _watching = True
                start(_look_after)
            except RuntimeError:  # no more threads: callers that enqueue or wait do it
                _watching = False


def _look_after(sleep=time.sleep, clock=time.monotonic) -> None:
    """The thread: there while something is kept, and a little longer."""
    global _watching
    pause, last = _QUICK_S, clock()
    while _State.gives_back:
        sleep(pause)
        dropped = False
        for in_flight in list(_busy):
            dropped |= in_flight.look()
            if in_flight.is_empty():
                _busy.discard(in_flight)
                if not in_flight.is_empty():
                    _busy.add(in_flight)
            in_flight = None  # noqa: PLW2901 - no reference while it sleeps
        pause = _QUICK_S if dropped else min(2 * pause, _SLOW_S)
        if _busy:
            last = clock()
        elif clock() - last > _LINGER_S:
            with _guard:
                if not _busy:
                    _watching = False
                    return


def _in_child() -> None:
    """After a fork: nothing runs here, and the thread is not there."""
    global _watching, _guard
    _guard, _watching = RLock(), False
    for in_flight in [*_queues, *_busy]:
        in_flight._young, in_flight._old, in_flight._looking = [], [], allocate_lock()
    _busy.clear()


def _drain(limit_s: float) -> bool:
    """Waits for what is in flight, while it gets on. False: some of it still ran at the limit."""
    end = time.monotonic() + limit_s
    patience = time.monotonic() + EXIT_PATIENCE_S
    while True:
        behind, running = [], []
        for in_flight in [*_queues, *_busy]:
            submitted, issued, completed = in_flight.progress()
            if completed < submitted:
                behind.append(in_flight)
            if completed < issued:
                running.append(in_flight)
        now = time.monotonic()
        if running:
            patience = now + EXIT_PATIENCE_S
        if not behind or now > patience:
            return True
        if now > end:
            return not running
        # On a device that runs on the caller this does the work.
        if lib.accrt_stream_synchronize((running or behind)[0].stream, _SLICE_NS, _ffi.ACCRT_WAIT_BLOCK):
            time.sleep(0.001)


def _at_exit() -> None:
    try:
        if not _drain(EXIT_LIMIT_S):
            for in_flight in [*_queues, *_busy]:
                lib.accrt_stream_cancel(in_flight.stream)
            _drain(EXIT_CANCEL_S)
    except KeyboardInterrupt:
        pass
    # From here on nothing is given back: threads of the library, and daemon threads, may still be
    # at it. The process ends.
    _State.gives_back = False
    if _fast.native is not None:
        _fast.native.end()
    _immortal.extend((list(_queues), _queues, _busy))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
