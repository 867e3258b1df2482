"""The engine of libaccrt_serve: models, requests, events. `accrt.LLM` and the server stand on
it."""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .. import _ffi
from .._library import Handle, check, created, describe, lib, need, number as whole_number, struct
from .._waits import until
from ..errors import Error
from . import options as given_options
from .grammar import Compiler, Constraint
from .parameters import Grammar, Request

#: How an engine is set up: names, defaults and helps are those of `accrt.LLM` and of accrt-serve.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "max_running": (0, "most sequences that run at once; 0: as many as the model can run"),
    "max_step_tokens": (0, "most tokens of a step; 0: as many as the model can compute"),
    "max_chunk_tokens": (0, "most tokens of one prompt in a step; 0: as many as fit"),
    "max_step_ns": (0, "target time of a step in which a request generates tokens; chunks of prompts are made small enough for it; 0: no limit"),
    "max_queued": (0, "most requests that wait; others get 429; 0: 1024"),
    "max_queued_tokens": (0, "most prompt tokens of all waiting requests; others get 429; 0: no limit"),
    "max_preemptions": (0, "how often a sequence is preempted before others are preferred as victims; 0: 3"),
    "fair_tokens": (0, "tokens of one turn of a user; 0: 2048"),
    "seed": (0, "seed for requests that have none; 0: a random one"),
    "num_speculative_tokens": (0, "for requests that do not set it: how many tokens a step guesses from the request's own text; 0: none"),
    "prompt_lookup_max": (0, "to guess, look for at most this many last tokens at an earlier place of the text (32 at most); 0: 4"),
    "prompt_lookup_min": (0, "look for at least this many last tokens; 0: 2, or --prompt-lookup-max if that is less"),
    "batch_invariant": (False, "a request gets the same bits alone and beside others; a bundle for GPUs that does not promise this is refused"),
}
_REASONS = {0: None, _ffi.ACCRT_SERVE_FINISH_STOP: "stop", _ffi.ACCRT_SERVE_FINISH_LENGTH: "length",
            _ffi.ACCRT_SERVE_FINISH_CANCELLED: "cancelled", _ffi.ACCRT_SERVE_FINISH_DEADLINE: "deadline",
            _ffi.ACCRT_SERVE_FINISH_FAILED: "failed"}  # fmt: skip
_AT_ONCE = 64
_MAX_QUEUED = 1024  # the engine's own default


class Model(Handle):
    """A model of the engine's: a step program, or a simulated one."""

    __slots__ = ("_kept",)
    _kind = "accrt_serve_model"

    @classmethod
    def simulated(cls, **options: int) -> "Model":
        """A model that computes nothing, for tests: its options are the fields of
        accrt_serve_simulation_t."""
        given = struct(_ffi.accrt_serve_simulation, eos=-1)
        for name, value in options.items():
            setattr(given, name, value)
        return cls(created(lib.accrt_serve_model_create_simulated, ctypes.byref(given)))

    @property
    def info(self) -> Dict[str, Any]:
        found = struct(_ffi.accrt_serve_model_info)
        check(lib.accrt_serve_model_info(self.handle, ctypes.byref(found)))
        out = {name: getattr(found, name) for name in ("vocab_size", "page_size", "page_count", "max_rows", "max_tokens", "max_length", "adapter_count", "embedding_size")}
        out["name"] = (found.name or b"").decode(errors="replace")
        out["eos"] = [found.eos[i] for i in range(found.eos_count)]
        return out


class Event(NamedTuple):
    """News of a sequence."""

    request: int
    sequence: int
    last: bool
    tokens: Tuple[int, ...]
    text: str
    logprobs: Optional[List[List[Tuple[int, float]]]]
    finish_reason: Optional[str]
    stop_token: int
    status: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    of_prompt: bool = False  # tokens and logprobs are those of the prompt
    #: floats, as they lie in memory
    embedding: Optional[bytes] = None


def _event(e: Any) -> Event:
    logprobs = None
    if e.logprobs:
        width = 1 + e.top_count
        logprobs = [[(e.logprobs[i * width + k].token, e.logprobs[i * width + k].logprob) for k in range(width)] for i in range(e.token_count)]
    # Not e.text: ctypes would copy up to a NUL that is not there.
    text = ctypes.string_at(ctypes.c_void_p.from_buffer(e, _ffi.accrt_serve_event.text.offset).value, e.text_size_bytes) if e.text_size_bytes else b""
    return Event(e.request, e.sequence, bool(e.last), tuple(e.tokens[: e.token_count]) if e.token_count else (), text.decode(errors="replace"), logprobs,
                 _REASONS.get(e.finish_reason, "failed"), e.stop_token, e.status, e.prompt_tokens, e.cached_tokens, e.output_tokens, e.kind == _ffi.ACCRT_SERVE_EVENT_PROMPT,
                 ctypes.string_at(e.embedding, 4 * e.embedding_size) if e.embedding_size else None)  # fmt: skip


class Engine(Handle):
    """Steps a model on a thread of its own. Events go to one poller: `poll` here, or a server's."""

    __slots__ = ("model", "max_queued", "owner", "_events", "_compiler")
    _kind = "accrt_serve_engine"

    def __init__(self, model: Model, **options: Any) -> None:
        handle = need(model, Model)
        given_options.known(options, [OPTIONS], "an engine")
        given = struct(_ffi.accrt_serve_options, flags=_ffi.ACCRT_SERVE_ENGINE_THREAD)
        chosen = given_options.checked(options, OPTIONS)
        if chosen.pop("batch_invariant"):
            given.flags |= _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT
        for name, value in chosen.items():
            setattr(given, name, value)
        self.model = model
        #: the class of the object that a user has in its place, for messages
        self.owner = type(self).__name__
        #: so many requests wait; more are refused
        self.max_queued = given.max_queued or _MAX_QUEUED
        self._events = None
        self._compiler = Compiler(model)
        super().__init__(created(lib.accrt_serve_engine_create, handle, ctypes.byref(given)))

    def close(self) -> None:
        self._compiler.close()
        super().close()

    def _no_handle(self, pointer: object) -> Exception:
        return ValueError(f"this {self.owner} is closed") if pointer is None and hasattr(self, "owner") else super()._no_handle(pointer)

    def constraint(self, grammar: Optional[Grammar], now: bool = True) -> Optional[Constraint]:
        """What lets only texts of a grammar through; None: anything may come. Not `now`: a grammar
        that is not compiled yet raises NotCompiled."""
        return self._compiler(grammar, now)

    def submit(self, request: Request) -> int:
        if not isinstance(request, Request):
            raise TypeError(f"request is {describe(request)}, expected an accrt.serve.Request")
        number = ctypes.c_uint64()
        check(lib.accrt_serve_engine_submit(self.handle, ctypes.byref(request.struct), ctypes.byref(number)))
        return number.value

    def cancel(self, number: int) -> None:
        """Ends a request; one that has ended already is left alone."""
        status = lib.accrt_serve_engine_cancel(self.handle, whole_number(number, "the request's number"))
        if status != _ffi.ACCRT_ERROR_NOT_FOUND:
            check(status)

    def fileno(self) -> int:
        """Readable while events wait."""
        return lib.accrt_serve_engine_event_fd(self.handle)

    def wait(self, seconds: float) -> bool:
        """Whether there are events, after so long at most. It sleeps on the descriptor, from which
        signals wake Python, and nothing else does."""
        if self._ready():
            return True
        kept = self.handle  # noqa: F841 - until this returns
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLIN)
        waiting.poll(min(max(seconds, 0.0) * 1000, 2**31 - 1))
        return self._ready()

    def _ready(self) -> bool:
        status = lib.accrt_serve_engine_wait(self.handle, 0)
        if status == _ffi.ACCRT_ERROR_TIMEOUT:
            return False
        check(status)
        return True

    def poll(self) -> List[Event]:
        """The events that wait, the oldest first. One thread at a time."""
        if self._events is None:
            self._events = (_ffi.accrt_serve_event * _AT_ONCE)()
        out: List[Event] = []
        count = ctypes.c_uint32()
        size = ctypes.sizeof(_ffi.accrt_serve_event)
        while True:
            status = lib.accrt_serve_engine_poll(self.handle, self._events, size, _AT_ONCE, ctypes.byref(count))
            if status == _ffi.ACCRT_ERROR_NOT_READY:
                return out
            check(status)
            out += [_event(self._events[i]) for i in range(count.value)]

    def stats(self) -> Dict[str, int]:
        found = struct(_ffi.accrt_serve_stats)
        check(lib.accrt_serve_engine_stats(self.handle, ctypes.byref(found)))
        return {name: getattr(found, name) for name, kind in found._fields_ if kind in (ctypes.c_uint32, ctypes.c_uint64) and name != "struct_size"}

    def drain(self, seconds: float) -> bool:
        """Lets what is there end; False where it did not in time."""
        return _within(lib.accrt_serve_engine_drain, seconds, self.handle)


def _within(function, seconds: float, handle) -> bool:
    """Whether what `function` waits for has come in time. Ctrl-C ends the wait."""
    try:
        status = until(function, int(seconds * 1e9), handle)
    except TimeoutError:
        return False
    if status == _ffi.ACCRT_ERROR_TIMEOUT:
        return False
    check(status)
    return True


def now_ns() -> int:
    """The engine's clock."""
    return lib.accrt_serve_now_ns()


Sink = Callable[[Event], None]
_hubs: "weakref.WeakSet[Hub]" = weakref.WeakSet()


def _in_child() -> None:
    """After a fork: a thread that is not here may have held a hub's locks. Without them a call
    comes to the engine, which refuses it."""
    for hub in list(_hubs):
        hub._locks()


os.register_at_fork(after_in_child=_in_child)


class Hub:
    """Gives the events of one engine to those who asked for them, from any thread that polls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sinks: Dict[int, Sink] = {}
        self._early: Dict[int, List[Event]] = {}
        self._submitting = 0
        self._locks()
        _hubs.add(self)

    def _locks(self) -> None:
        self._polling = threading.Lock()
        self._guard = threading.Lock()

    def submit(self, request: Request, sink: Sink) -> int:
        with self._guard:
            self._submitting += 1
        number = None
        try:
            number = self.engine.submit(request)
        finally:
            with self._guard:
                self._submitting -= 1
                early = []
                if number is not None:
                    self._sinks[number] = sink
                    early = self._early.pop(number, [])
                if not self._submitting:
                    self._early.clear()
                for event in early:
                    self._give(event)
        return number

    def _give(self, event: Event) -> None:
        """The guard is held."""
        sink = self._sinks.get(event.request)
        if sink is None:
            if self._submitting:  # faster than its submission returned its number
                self._early.setdefault(event.request, []).append(event)
            return
        if event.last:
            del self._sinks[event.request]
        sink(event)

    def pump(self, seconds: float) -> None:
        """Waits for events for a while, and gives them away. Threads that find another one at it
        wait with it."""
        if not self._polling.acquire(blocking=False):
            time.sleep(min(seconds, 0.001))
            return
        try:
            if self.engine.wait(seconds):
                self.take()
        finally:
            self._polling.release()

    def take(self) -> None:
        """Gives away what there is. The polling lock is held, or there is one thread."""
        events = self.engine.poll()
        with self._guard:
            for event in events:
                self._give(event)

    def take_if_free(self) -> None:
        if self._polling.acquire(blocking=False):
            try:
                self.take()
            finally:
                self._polling.release()

    def forget(self, number: int) -> None:
        """The rest of this request is not wanted."""
        try:
            self.engine.cancel(number)
        except (Error, ValueError):
            pass
        with self._guard:
            if number in self._sinks:
                self._sinks[number] = lambda event: None
