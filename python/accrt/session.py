"""Sessions: what a program's functions run in, with state, memory and plans."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Iterator, NoReturn

from . import _ffi, budget as _budgets
from ._alone import alone
from ._in_flight import InFlight
from ._library import Handle, allowed, c_text, check, created, int64, lib, need, never_raises, number, retained, struct
from ._waits import apart
from .adapter import Adapter
from .bundle import Bundle
from .call import Function, Prepared, borrowed
from .errors import Error
from .memory import Buffer, Pool
from .stream import Stream, failure
from .tensor import Tensor

if TYPE_CHECKING:
    from .program import Program

_RANK = _ffi.ACCRT_MAX_RANK


def symbol_values(symbols: Mapping[str, int] | None, bundle: Bundle | None = None, session: bool = False):
    """The C table. bundle: whose symbols a message lists; session: those that a session fixes."""
    if symbols is not None and (not isinstance(symbols, Mapping) or not all(isinstance(name, str) for name in symbols)):
        names = [s.name for s in bundle.symbols if not session or s.symbol_class == "session"] if bundle is not None else []
        known = f"the bundle's {'session ' if session else ''}symbols are {', '.join(names)}" if names else (
            f"the bundle has no {'session ' if session else ''}symbols")
        raise TypeError(f"symbols is {symbols!r:.80}, expected a dict from names to whole numbers, as in {{{(names or ['n'])[0]!r}: 16}}; {known}")
    pairs = [(c_text(k), int64(v, f"symbol {k!r}")) for k, v in (symbols or {}).items()]
    return (_ffi.accrt_symbol_value * max(len(pairs), 1))(*pairs), len(pairs), ctypes.sizeof(_ffi.accrt_symbol_value)


class Session(Handle):
    """The state (such as a KV cache), memory and plans of a program. Functions of the bundle are
    its attributes: `session.encode(x)`. They are its items, too, for functions that have the name
    of a method: `session["close"](x)`.

    Calls on a session are ordered. Use a session from one thread at a time; many sessions run at
    once.
    """

    __slots__ = ("program", "_functions", "_calls", "_stream", "_adapter", "_budget", "_in_flight", "_uses", "_gpu")
    _kind = "accrt_session"

    def __init__(self, program: Program, symbols: Mapping[str, int] | None = None, stream: Stream | None = None,
                 pool: Pool | None = None, max_plans: int = 0, label: str = "", budget: _budgets.Budget | None = None,
                 _creation: _budgets.Budget | None = None, _begin: float | None = None) -> None:
        from .program import Program
        need(program, Program)
        options = self._options(symbols, stream, pool, max_plans, label, program.bundle)
        _budgets.put(options, budget)
        _budgets.put(options, _creation, _begin, "creation_budget")
        self._budget = budget  # its flag is looked at as long as the session makes plans
        handle = apart(lambda: created(lib.accrt_session_create, need(program, Program), ctypes.byref(options)))
        self._setup(handle, program, stream)

    @staticmethod
    def _options(symbols, stream, pool, max_plans, label, bundle):
        values, count, size = symbol_values(symbols, bundle, session=True)
        options = struct(_ffi.accrt_session_options, symbol_count=count, symbol_size_bytes=size,
                         max_plans=number(max_plans, "max_plans", 32), label=c_text(label) or None,
                         stream=allowed(stream, Stream), pool=allowed(pool, Pool))
        options.symbols = values
        return options

    def _setup(self, handle, program: Program, stream: Stream | None) -> None:
        Handle.__init__(self, handle)
        # It goes after the session.
        handle.stream = stream.handle if stream is not None else None
        # What calls in flight use; it outlives the session.
        self._in_flight = stream._in_flight if stream is not None else InFlight(retained(lib.accrt_session_stream(handle)))
        self.program = program
        self._functions = {}  # name -> Prepared
        self._calls = {}      # name -> the Call that Function.__call__ uses, while it is free
        self._uses = {}       # who is in a method of several steps (alone)
        self._stream = stream
        self._adapter = None
        self._gpu = None     # what places tensors of others on its device (_window.py)

    def close(self) -> None:
        """Releases the session now, with the calls that it keeps. Calls that `bind` made keep it in
        use until they are closed."""
        # a call from here on says that the session is closed
        calls, self._calls = getattr(self, "_calls", None) or {}, {}
        for call in list(calls.values()):  # not those that threads are in
            call.close()
        super().close()

    def clone(self, stream: Stream | None = None, label: str = "") -> Session:
        """Waits for calls in flight, and makes a new session with a copy of the state."""
        options = self._options(None, stream, None, 0, label, None)
        handle = apart(lambda: created(lib.accrt_session_clone, self.handle, ctypes.byref(options)))
        other = Session.__new__(Session)
        other._budget = self._budget
        other._setup(handle, self.program, stream)
        other._adapter = self._adapter
        return other

    @property
    def stream(self) -> Stream:
        """The stream that calls run on."""
        if self._stream is None:
            self._stream = Stream._of_in_flight(self._in_flight, self.program.device)
        return self._stream

    @property
    def adapter(self) -> Adapter | None:
        """The adapter; None: the base model. Calls use its tensors for inputs that you do not pass.
        Set it between calls: calls in flight keep the adapter that they have."""
        return self._adapter

    @adapter.setter
    def adapter(self, value: Adapter | None) -> None:
        if value is not None and not isinstance(value, Adapter):
            raise TypeError(f"an adapter is what program.load_adapter(...) gives, or None, not {type(value).__name__}")
        check(lib.accrt_session_set_adapter(self.handle, allowed(value, Adapter)))
        self._adapter = value

    def reset(self) -> None:
        """Waits for calls in flight, gives the state its initial value, clears a failure. Ctrl-C
        ends the wait."""
        apart(lambda: check(lib.accrt_session_reset(self.handle)))

    def cancel(self) -> None:
        """Ends submitted work that is not complete. The work fails with CancelledError, on hosts
        before its next workgroup, and the session is poisoned until `reset`. Work that has not
        begun is dropped, and semaphores that it would have signalled fail. Work that a GPU already
        has runs to its end. Any thread may call this, even while another is in a call. If no work
        is in flight, nothing happens.

        Raises:
            InvalidStateError: the session was made with a stream; cancel the stream instead.
        """
        check(lib.accrt_session_cancel(self.handle))

    @property
    def error(self) -> Error | None:
        """The failure that poisons the session, as an exception object, or None."""
        return failure(lib.accrt_session_error, self.handle)

    @alone
    def state(self, name: str) -> Tensor:
        """A state's memory as a tensor, shared: read or write it when no call is in flight."""
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        handle = self.handle  # which keeps what is lent here
        check(lib.accrt_session_state(handle, c_text(name), ctypes.byref(out), shape, strides))
        return borrowed(out, shape, strides, self.program.device)

    @alone
    def bind_state(self, name: str, buffer: Buffer | None, offset_bytes: int = 0) -> None:
        """Uses `buffer` as a state's storage from the next call on. None: the session uses storage
        of its own again, with the initial value; this waits for calls in flight."""
        if isinstance(buffer, Buffer) and buffer.read_only:
            raise ValueError(f"state {name}: a buffer over memory that is read-only")
        state = (self.handle, c_text(name), allowed(buffer, Buffer), number(offset_bytes, "offset_bytes"))
        apart(lambda: check(lib.accrt_session_bind_state(*state)))

    def warmup(self, function: str, symbols: Mapping[str, int] | None = None) -> None:
        """Makes the plan for these symbol values ahead of the first call."""
        handle, values = self.handle, symbol_values(symbols, self.program.bundle)
        apart(lambda: check(lib.accrt_session_warmup(handle, c_text(function), *values)))

    def function(self, name: str) -> Function:
        """A function of the bundle as a callable. Raises NotFoundError with near names."""
        prepared = self._functions.get(name) if isinstance(name, str) else None
        if prepared is None:
            prepared = self._functions[name] = Prepared(self.program.bundle.signature(name), self.program.bundle._shared_inputs(name))
        return Function(self, prepared)

    def __getitem__(self, name: str) -> Function:
        """The same as `function(name)`, whatever the name is: `session["close"]` is the bundle's
        function, `session.close` this class's."""
        return self.function(name)

    def __contains__(self, name: object) -> bool:
        """Whether the bundle has a function of this name."""
        return name in self.program.bundle.function_names()

    def __iter__(self) -> Iterator[str]:
        """The names of the bundle's functions."""
        return iter(self.program.bundle.function_names())

    def __call__(self, *inputs: Any, **named: Any) -> NoReturn:
        """A session has functions, and is none: the TypeError names them."""
        names = ", ".join(f"session.{name}(...)" if name.isidentifier() else f"session[{name!r}](...)" for name in list(self)[:8])
        raise TypeError(f"a session is not called, its functions are: {names}")

    def __getattr__(self, name: str) -> Function:
        if name[:1] == "_":
            raise AttributeError(name)
        prepared = self._functions.get(name)
        if prepared is not None:  # what each `session.f(x)` asks for
            return Function(self, prepared)
        try:
            return self.function(name)
        except LookupError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self):
        try:
            return [*super().__dir__(), *self.program.bundle.function_names()]
        except (Error, ValueError, AttributeError):  # closed
            return super().__dir__()

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Session of {self.program!r}>"
