"""Programs, sessions, functions: running what a bundle carries."""
from __future__ import annotations

import ctypes
import functools
import json
import math
import operator
import os
import re
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence, TypeVar, overload

from . import _ffi, budget as _budgets
from ._bits import BIT_TYPES, ML_DTYPES, bits_of
from ._copies import copied_view, copies, fits
from ._files import read_small
from ._in_flight import InFlight
from ._library import Handle, allowed, c_text, check, created, describe, filled, last_error, lib, need, never_raises, number, retained, shown, struct, whole
from ._threads import start
from ._waits import SLICE_NS, apart, until, with_limit
from .bundle import Bundle, Signature
from .errors import Error, InvalidStateError, TypeMismatchError, listing
from .instance import Device
from .memory import Buffer, Pool
from .stream import Semaphore, Stream, failure, timeout_ns
from .tensor import _NAMES, _TYPESTR, Tensor, as_view, dtype_id
from .trust import apply as apply_trust

if TYPE_CHECKING:
    from typing import Literal, Union
    from .sandbox import SandboxSession
    from .weights import Weights
    Path = Union[str, "os.PathLike[str]"]
    Source = Union[Weights, Path]

_Out = TypeVar("_Out")
_Method = TypeVar("_Method", bound=Callable[..., Any])
_INFINITE = _ffi.ACCRT_TIMEOUT_INFINITE
_RANK = _ffi.ACCRT_MAX_RANK
_QUICK_NS = 2_000_000  # that an event loop may stand still for a plan


def _alone(method: _Method) -> _Method:
    """For methods of several steps: who comes while another is in one of these, of the same session, is refused, as the library refuses it
    within each step."""
    @functools.wraps(method)
    def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
        uses, me = self._uses, object()
        try:
            uses[me] = None
            if [*uses][0] is not me:  # no two are first
                raise _in_use()
            return method(self, *arguments, **named)
        finally:
            uses.pop(me, None)  # one step, which Ctrl-C does not part
    return guarded  # type: ignore[return-value]


def _in_use() -> InvalidStateError:
    return InvalidStateError("the session (with its calls) is in use, on another thread or below this call; it is for one thread at a time",
                             name="ACCRT_ERROR_INVALID_STATE")


def _int64(value, name: str) -> int:
    number = whole(value, name)  # ctypes would cut what does not fit, and int() what is no integer
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{name}: {number} does not fit 64 bits")
    return number


def _symbol_values(symbols: Mapping[str, int] | None, bundle: Bundle | None = None, session: bool = False):
    """The C table. bundle: whose symbols a message lists; session: those that a session fixes."""
    if symbols is not None and (not isinstance(symbols, Mapping) or not all(isinstance(name, str) for name in symbols)):
        names = [s.name for s in bundle.symbols if not session or s.symbol_class == "session"] if bundle is not None else []
        known = f"the bundle's {'session ' if session else ''}symbols are {', '.join(names)}" if names else (
            f"the bundle has no {'session ' if session else ''}symbols")
        raise TypeError(f"symbols is {symbols!r:.80}, expected a dict from names to whole numbers, as in {{{(names or ['n'])[0]!r}: 16}}; {known}")
    pairs = [(c_text(k), _int64(v, f"symbol {k!r}")) for k, v in (symbols or {}).items()]
    return (_ffi.accrt_symbol_value * max(len(pairs), 1))(*pairs), len(pairs), ctypes.sizeof(_ffi.accrt_symbol_value)


def _timepoints(what: str, pairs: Iterable[tuple[Semaphore, int]]):
    try:
        pairs = [(semaphore, value) for semaphore, value in pairs]
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {pairs!r:.80}, expected pairs as in [(semaphore, 1)]") from None
    table = [(need(s, Semaphore), number(v, "value")) for s, v in pairs]
    return (_ffi.accrt_timepoint * max(len(table), 1))(*table), len(table)


class Program(Handle):
    """A bundle's code and weights on a device. Immutable but for `swap_weights`; shared by sessions; thread-safe.

    Args:
        bundle: an open Bundle, or what Bundle() takes. device: default: "host" of the bundle's instance.
        variant: consider only kernel variants of this architecture ("x86-64-v3"); default: the best.
        weights: accrt.Weights or a path, or several in the order in which they are searched, for constants that are not in the bundle.
        by_name: any bytes of the right type and shape will do for these: digests are not compared.
        rank, degree: of a bundle whose weights are parts of tensors that ranks share: which of how many this is. It reads the bytes
            of its rank alone.
        budget: what making it may cost (accrt.Budget); default: limits in proportion to the bundle.
    Raises:
        BudgetError, TimeoutError, CancelledError: making it passed a limit of the budget.
        UntrustedError: the bundle has host machine code that no trusted key has signed. The message says what to do
            about it (docs/trust.md).
        NoVariantError: a kernel has no variant for this device; the message says for each why not.
        DataCorruptError, IoError, PermissionDeniedError: the weights (PermissionDeniedError: encrypted, and there was no key).
        NotFoundError, TypeMismatchError, ShapeMismatchError: a constant that is not in the bundle, where it was looked for.
    """

    __slots__ = ("bundle", "device")
    _kind = "accrt_program"

    def __init__(self, bundle, device: Device | None = None, variant: str = "", weights=(), by_name: bool = False,
                 rank: int = 0, degree: int = 0, budget: _budgets.Budget | None = None, _begin: float | None = None) -> None:
        allowed(device, Device)
        if not isinstance(bundle, Bundle):
            bundle = Bundle(bundle, instance=device.instance if device is not None else None, budget=budget)
        self.bundle = bundle
        self.device = device if device is not None else bundle.instance.device("host")
        apply_trust(self.bundle.instance)
        rank, degree = operator.index(rank), operator.index(degree)
        if not 0 <= rank < 1 << 32 or not 0 <= degree < 1 << 32:
            raise ValueError(f"rank {rank} of {degree} ranks")
        options = struct(_ffi.accrt_program_options, variant_override=c_text(variant) or None,
                         flags=_ffi.ACCRT_BIND_BY_NAME if by_name else 0, rank=rank, degree=degree)
        _budgets.put(options, budget, _begin)
        if weights is not None:  # a source without tensors is false, and is a source all the same
            from .weights import handles, refuse_unused
            table, options.weight_count = handles(weights, bundle.instance)
            options.weights = table
            if options.weight_count:
                refuse_unused(bundle)
        super().__init__(apart(lambda: created(lib.accrt_program_create, self.device.handle, bundle.handle, ctypes.byref(options))))

    def session(self, symbols: Mapping[str, int] | None = None, stream: Stream | None = None, pool: Pool | None = None,
                max_plans: int = 0, label: str = "", budget: _budgets.Budget | None = None) -> Session:
        """Makes a session: state, plans, and an order of calls. symbols: values of session symbols (default: maxima). budget: what making
        it, with its states, and then each plan may cost (accrt.Budget): BudgetError, TimeoutError, CancelledError at a limit."""
        return Session(self, symbols, stream, pool, max_plans, label, budget)

    def estimate(self, function: str, symbols: Mapping[str, int] | None = None) -> dict[str, int]:
        """Bytes that a function would need for the given symbol values, before anything is allocated."""
        values, count, size = _symbol_values(symbols, self.bundle)
        handle = self.handle
        raw = apart(lambda: filled(_ffi.accrt_memory_estimate, lib.accrt_program_estimate, handle, c_text(function), values, count, size))
        return {n: getattr(raw, n) for n, _ in raw._fields_ if n.endswith("_bytes")}

    def swap_weights(self, weights: Mapping[str, object]) -> None:
        """Replaces weights, all or none, between calls. Values: arrays, Tensors or accrt.Weight of the same type and shape; they are
        copied."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights is {describe(weights)}, expected a dict from names of constants to arrays; load_weights takes files")
        views = {name: self._weight_view(name, value) for name, value in weights.items()}
        table = (_ffi.accrt_weight * max(len(views), 1))()
        for entry, (name, view) in zip(table, views.items()):
            entry.name, entry.tensor = c_text(name), view.c
        try:
            with listing(lambda: [c.name for c in self.bundle.constants if not c.prepared], next(iter(views)) if len(views) == 1 else None):
                apart(lambda: check(lib.accrt_program_swap_weights(self.handle, table, len(views), ctypes.sizeof(_ffi.accrt_weight))))
        except TypeMismatchError as error:
            own = {constant.name: constant.dtype for constant in self.bundle.constants}
            wrong = [n for n, v in views.items() if str(error).startswith(f"weight {n!r} ") and own.get(n, "") != _NAMES[v.c.dtype]]
            raise _with_advice(error, _weight_advice(own[wrong[0]]) if wrong else "") from None

    def _weight_view(self, name: str, value: object):
        try:
            return as_view(value, self.device, self._bits_of(name, value))
        except (TypeError, ValueError) as error:
            error.args = (f"weight {name!r}: {error}",)
            raise

    def _bits_of(self, name: str, value: object) -> int | None:
        """The type of an array of bits, where they are those of the constant's type."""
        bits = bits_of(value)
        own = [constant.dtype for constant in self.bundle.constants if constant.name == name] if bits else []
        return dtype_id(bits) if own == [bits] else None

    def load_weights(self, weights, names: Iterable[str] | None = None, by_name: bool = False) -> None:
        """Replaces weights by those of accrt.Weights or paths (one, or several in the order in which they are searched), all or none, between
        calls. names: constants to replace; None: all that are not in the bundle (ValueError when it has them all, which would load
        nothing). by_name: digests are not compared."""
        from .weights import handles
        sources, count = handles(weights, self.bundle.instance)
        if names is None and not self.bundle._reads_weights():
            raise ValueError("the bundle has all of its weights, so none would be replaced: say which with names=")
        table = None
        if names is not None:
            encoded = [c_text(name) for name in ([names] if isinstance(names, str) else names)]
            table = (ctypes.c_char_p * max(len(encoded), 1))(*encoded)
        total = len(encoded) if table is not None else 0
        flags = _ffi.ACCRT_BIND_BY_NAME if by_name else 0
        apart(lambda: check(lib.accrt_program_load_weights(self.handle, sources, count, table, total, flags)))

    def load_adapter(self, source, *, alpha: float = 0, scale: float = 0, partial: bool = False) -> Adapter:
        """Loads a LoRA adapter for the optional inputs that the bundle's adapter tensors name (`bundle.adapters`): set it as `session.adapter`.

        Args:
            source: accrt.Weights, or what Weights() takes: an adapter's file, or PEFT's folder with `adapter_config.json` and
                `adapter_model.safetensors`. What the config beside a file says of alpha, rank and rslora is used unless it is given.
            alpha: of slots that are scaled by alpha / rank. scale: the factor itself. partial: pass over tensors without a slot.
        """
        return Adapter(self, source, alpha, scale, partial)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Program {self.bundle.info['name']!r} on {self.device.name}>"


#: PEFT's own have some hundred bytes.
_CONFIG_BYTES = 1 << 20


def _peft_config(path: str) -> dict:
    """PEFT's config; empty where there is none."""
    try:
        # Numbers of many digits are refused by value, below: Python has a limit of its own, and another message.
        config = json.loads(read_small(path, _CONFIG_BYTES), parse_int=lambda text: int(text) if len(text) < 100 else float(text))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no JSON object")
    return config


def _peft_factors(path: str, weights: Mapping) -> tuple[float, float]:
    """alpha and scale as PEFT's config has them, whose rank must be that of the file's tensors; zeros where there is none."""
    config = _peft_config(path)
    for key in ("rank_pattern", "alpha_pattern", "use_dora"):
        if config.get(key):
            raise ValueError(f"{path} has {key}, which one factor for all adapter tensors does not express; give scale=")
    alpha, rank = config.get("lora_alpha", 0), config.get("r")
    _peft_number(path, "lora_alpha", alpha, 2**53, "2^53", "number")
    if rank is not None:
        _peft_number(path, "r", rank, 2**32 - 1, "2^32 - 1", "rank")
        if type(rank) is not int or rank < 1:
            raise ValueError(f"{path}: r is {json.dumps(rank)}, which is no rank")
    for name, found in _peft_ranks(weights) if rank else ():
        if found != rank:
            raise ValueError(f"{path}: r is {rank}, but {name!r} is of rank {found}")
    if not config.get("use_rslora"):
        return alpha, 0
    if not rank:
        raise ValueError(f"{path}: use_rslora divides alpha by the square root of r, and r is not there")
    return 0, alpha / math.sqrt(rank)


def _peft_number(path: str, name: str, value, limit: int, limit_text: str, what: str) -> None:
    """As tools/accx/job_weights.c has it (check_number)."""
    if type(value) in (int, float) and value == value:
        if abs(value) > limit:
            raise ValueError(f"{path}: {name} is beyond {limit_text}, which is no {what}")
    else:
        raise ValueError(f"{path}: {name} is {json.dumps(value):.80}, which is no {what}")


def _peft_ranks(weights: Mapping) -> Iterator[tuple[str, int]]:
    """The rank of each tensor whose name says which of a pair it is: A is [rank, in], B is [out, rank]."""
    for name, tensor in weights.items():
        which = re.findall("lora_(?:embedding_)?([ABab])", name)
        if which and len(tensor.shape) > 1:
            yield name, tensor.shape[0 if which[-1] in "Aa" else 1]


class Adapter(Handle):
    """Tensors of a LoRA adapter on a program's device. Made by `Program.load_adapter`; any sessions of the program may have it."""

    __slots__ = ("program",)
    _kind = "accrt_adapter"

    def __init__(self, program: Program, source, alpha: float = 0, scale: float = 0, partial: bool = False) -> None:
        from .weights import Weights
        need(program, Program)
        folder = None
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            if os.path.isdir(path) and os.path.exists(os.path.join(path, "adapter_model.safetensors")):
                source = os.path.join(path, "adapter_model.safetensors")
        if not isinstance(source, Weights):
            source = Weights(source, program.bundle.instance)
        if folder is not None and not alpha and not scale:
            alpha, scale = _peft_factors(os.path.join(folder, "adapter_config.json"), source)
        options = struct(_ffi.accrt_adapter_options, alpha=alpha, scale=scale, flags=_ffi.ACCRT_ADAPTER_PARTIAL if partial else 0)
        handles = (need(program, Program), source.handle, ctypes.byref(options))
        super().__init__(apart(lambda: created(lib.accrt_adapter_load, *handles)))
        self.program = program


class Session(Handle):
    """What runs: state (a KV cache), memory, plans. Functions of the bundle are its attributes: `session.encode(x)`. Those that have the
    name of one of the methods here are its items, as all are: `session["close"](x)`.

    Calls on a session are ordered. Use a session from one thread at a time; many sessions run at once.
    """

    __slots__ = ("program", "_functions", "_calls", "_stream", "_adapter", "_budget", "_in_flight", "_uses")
    _kind = "accrt_session"

    def __init__(self, program: Program, symbols: Mapping[str, int] | None = None, stream: Stream | None = None,
                 pool: Pool | None = None, max_plans: int = 0, label: str = "", budget: _budgets.Budget | None = None,
                 _creation: _budgets.Budget | None = None, _begin: float | None = None) -> None:
        need(program, Program)
        options = self._options(symbols, stream, pool, max_plans, label, program.bundle)
        _budgets.put(options, budget)
        _budgets.put(options, _creation, _begin, "creation_budget")
        self._budget = budget  # its flag is looked at as long as the session makes plans
        handle = apart(lambda: created(lib.accrt_session_create, need(program, Program), ctypes.byref(options)))
        self._setup(handle, program, stream)

    @staticmethod
    def _options(symbols, stream, pool, max_plans, label, bundle):
        values, count, size = _symbol_values(symbols, bundle, session=True)
        options = struct(_ffi.accrt_session_options, symbol_count=count, symbol_size_bytes=size,
                         max_plans=number(max_plans, "max_plans", 32), label=c_text(label) or None,
                         stream=allowed(stream, Stream), pool=allowed(pool, Pool))
        options.symbols = values
        return options

    def _setup(self, handle, program: Program, stream: Stream | None) -> None:
        Handle.__init__(self, handle)
        # What calls in flight use; it outlives the session.
        self._in_flight = stream._in_flight if stream is not None else InFlight(retained(lib.accrt_session_stream(handle)))
        self.program = program
        self._functions = {}  # name -> _Prepared
        self._calls = {}      # name -> the Call that Function.__call__ uses, while nobody has it
        self._uses = {}       # who is in a method of several steps (_alone)
        self._stream = stream
        self._adapter = None

    def close(self) -> None:
        """Gives the session back now, with the calls that it keeps; those that `bind` made keep it in use until they are closed."""
        calls, self._calls = getattr(self, "_calls", None) or {}, {}  # a call from here on says that the session is closed
        for call in list(calls.values()):  # not those that threads are in
            call.close()
        super().close()

    def clone(self, stream: Stream | None = None, label: str = "") -> Session:
        """Waits for calls in flight; a new session with a copy of the state."""
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
        """The adapter whose tensors the session's calls have for inputs that are not given; None: the base model. Set it between
        calls: those in flight keep theirs."""
        return self._adapter

    @adapter.setter
    def adapter(self, value: Adapter | None) -> None:
        if value is not None and not isinstance(value, Adapter):
            raise TypeError(f"an adapter is what program.load_adapter(...) gives, or None, not {type(value).__name__}")
        check(lib.accrt_session_set_adapter(self.handle, allowed(value, Adapter)))
        self._adapter = value

    def reset(self) -> None:
        """Waits for calls in flight, gives the state its initial value, clears a failure. Ctrl-C ends the wait."""
        apart(lambda: check(lib.accrt_session_reset(self.handle)))

    def cancel(self) -> None:
        """Ends what was submitted to the session and is not complete: it fails with CancelledError, on hosts before its next workgroup, and
        the session is poisoned until `reset`. What has not begun is dropped; semaphores that it would have signalled fail. What a GPU
        was given runs to its end. Any thread may call this, also while another is in a call; nothing happens when nothing is under way.

        Raises:
            InvalidStateError: the session was made with a stream: cancel that.
        """
        check(lib.accrt_session_cancel(self.handle))

    @property
    def error(self) -> Error | None:
        """The failure that poisons the session, as an exception object, or None."""
        return failure(lib.accrt_session_error, self.handle)

    @_alone
    def state(self, name: str) -> Tensor:
        """A state's memory as a tensor, shared: read or write it when no call is in flight."""
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        handle = self.handle  # which keeps what is lent here
        check(lib.accrt_session_state(handle, c_text(name), ctypes.byref(out), shape, strides))
        return _tensor(out, shape, strides, self.program.device)

    @_alone
    def bind_state(self, name: str, buffer: Buffer | None, offset_bytes: int = 0) -> None:
        """Uses `buffer` as a state's storage from the next call on; None goes back to storage of its own, reset, which waits for calls in
        flight."""
        if isinstance(buffer, Buffer) and buffer.read_only:
            raise ValueError(f"state {name}: a buffer over memory that is read-only")
        state = (self.handle, c_text(name), allowed(buffer, Buffer), number(offset_bytes, "offset_bytes"))
        apart(lambda: check(lib.accrt_session_bind_state(*state)))

    def warmup(self, function: str, symbols: Mapping[str, int] | None = None) -> None:
        """Makes the plan for these symbol values ahead of the first call."""
        handle, values = self.handle, _symbol_values(symbols, self.program.bundle)
        apart(lambda: check(lib.accrt_session_warmup(handle, c_text(function), *values)))

    def function(self, name: str) -> Function:
        """A function of the bundle as a callable. Raises NotFoundError with near names."""
        prepared = self._functions.get(name) if isinstance(name, str) else None
        if prepared is None:
            prepared = self._functions[name] = _Prepared(self.program.bundle.signature(name))
        return Function(self, prepared)

    def __getitem__(self, name: str) -> Function:
        """The same as `function(name)`, whatever the name is: `session["close"]` is the bundle's function, `session.close` this class's."""
        return self.function(name)

    def __contains__(self, name: object) -> bool:
        """Whether the bundle has a function of this name."""
        return name in self.program.bundle.function_names()

    def __iter__(self) -> Iterator[str]:
        """The names of the bundle's functions."""
        return iter(self.program.bundle.function_names())

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
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


def _tensor(raw: _ffi.accrt_tensor, shape, strides, device: Device, stream: Stream | None = None) -> Tensor:
    """A Tensor for a borrowed C tensor with a buffer; `stream` when work there may still fill it."""
    rank = raw.rank
    return Tensor._of(Buffer._of_result(raw.buffer, device, stream), raw.dtype, shape[:rank], strides[:rank], raw.offset_bytes)


class Call(Handle):
    """A function with its arguments bound, to be run many times: one foreign call each. Made by `Function.bind`.

    Runs as `call()`; the results come back as from the function. Rebind with `set`. Externally synchronized with its session.
    """

    __slots__ = ("_session", "_prepared", "_run", "_views", "_outputs", "_fixed", "_running", "_submitted", "_enqueue", "_in_flight", "_uses",
                 "_planned", "_result_of", "_bound")
    _kind = "accrt_call"

    def __init__(self, session: Session, prepared: _Prepared) -> None:
        if not isinstance(prepared, _Prepared):
            raise TypeError(f"calls are made by Function.bind, not of {describe(prepared)}")
        super().__init__(created(lib.accrt_call_create, need(session, Session), c_text(prepared.signature.name)))
        self._session, self._prepared = session, prepared
        self._in_flight, self._uses = session._in_flight, session._uses
        self._running = self._submitted = False  # a run may be in flight: of `run`, of `submit`
        self._planned = False  # the plan for these arguments is made: asking C again takes as long as a submission
        self._bound: set[int] = set()  # what C has a tensor for
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        self._result_of = (out, shape, strides, ctypes.byref(out), shape, strides)  # what accrt_call_result fills, each time
        self._run, self._enqueue = _shortest(self._pointer)
        self._forget()

    def close(self) -> None:
        """Gives the call back now. A run in flight goes on, and keeps the arguments' memory until it is over."""
        self._run, self._enqueue = _shortest(None)
        self._forget()
        super().close()

    def __del__(self) -> None:
        if getattr(self, "_submitted", False) or getattr(self, "_running", False):
            self._in_flight.keep(self._views)

    @property
    def function(self) -> Function:
        """The function that it calls."""
        return Function(self._session, self._prepared)

    def _forget(self) -> None:
        if self._submitted or self._running:
            self._in_flight.keep(self._views)
            self._running = self._submitted = False
        self._views = {}    # argument index -> what keeps its memory alive
        self._outputs = {}  # result index -> the caller's object
        self._fixed = None if self._prepared.signature.results else ()  # the results, when all are the caller's

    @_alone
    def set(self, name_or_index: str | int, value: Any, dtype: str | None = None, copy: bool = False) -> None:
        """Binds an argument (inputs, then results): an array or tensor, an int for scalar inputs, None to unbind.

        Args:
            dtype: take an array's elements as this type ("bf16" for bits held in uint16).
            copy: copy what cannot be used as it lies (strided, of the other byte order, misaligned, lists of numbers). Only for what is
                read.
        """
        prepared = self._prepared
        index = number(name_or_index, "index", 32) if isinstance(name_or_index, int) else prepared.index(name_or_index)
        if index >= len(prepared.arguments):
            signature = prepared.signature
            raise IndexError(f"{signature.name}() has {len(prepared.arguments)} arguments, there is no {index}; it is {signature}")
        self._set(index, value, dtype, copy)

    def _set(self, index: int, value: Any, dtype: str | None, copy: bool) -> None:
        """`set` of an index that is one of the function's."""
        self._planned = False
        prepared = self._prepared
        signature, argument, inputs = prepared.signature, prepared.arguments[index], prepared.inputs
        if argument.kind == "scalar" and value is not None:
            check(lib.accrt_call_set_scalar(self.handle, index, _int64(value, argument.name)))
            return
        view = None
        if value is not None:
            session = self._session
            wanted = dtype_id(dtype) if dtype else None
            bits = prepared.bits.get(index)
            if bits is not None and wanted is None and bits_of(value) == bits:
                wanted = dtype_id(bits)
            try:
                if copy:
                    view = copied_view(value, session.program.device, wanted, argument.type.partition("[")[0], session.stream)
                else:
                    view = as_view(value, session.program.device, wanted, session.stream)
            except (TypeError, ValueError) as error:
                raise _advised(error, argument, value, None, copy) from None
            if copy and argument.kind != "read" and isinstance(view.owner, ctypes.Array):
                raise ValueError(f"{signature.name}: {argument.name} is written, and a copy would lose that: pass a contiguous array")
            if view.read_only and argument.kind not in ("read", "scalar"):
                raise ValueError(f"{signature.name}: {argument.name} is written, and the array is read-only")
        if view is None and index not in self._bound:  # it is as C has it
            if index >= inputs:
                self._outputs[index - inputs] = self._fixed = None
            return
        views = self._views
        before = views.get(index)
        views[index] = (before, view)  # whatever comes in between (Ctrl-C)
        try:
            if view is not None:
                self._bound.add(index)
            status = lib.accrt_call_set_tensor(self.handle, index, ctypes.byref(view.c) if view is not None else None)
            if status:
                raise last_error(status)
            if before is not None and (self._submitted or self._running):  # now that no work begins with it any more
                self._in_flight.keep(before)
            if view is None:
                self._bound.discard(index)
        except BaseException as error:
            if isinstance(error, Error):
                views[index] = before
                _advised(error, argument, value, view, copy)
            raise
        views[index] = view
        if index >= inputs:
            self._outputs[index - inputs] = value
            given = [self._outputs.get(i) for i in range(len(signature.results))]
            self._fixed = _unpack(given) if all(g is not None for g in given) else None

    def __call__(self) -> Any:
        """Runs and waits; the GIL is released meanwhile. Returns the results: one alone, several as a tuple. Ctrl-C ends the wait, and the
        run goes on: `wait` waits for it, `Session.cancel` ends it. A plan that is being made then is made and run, too."""
        fixed, views = self._fixed, self._views  # what the run uses, also when another thread closes the call now
        if fixed is None:
            return self._run_alone()
        # One step, and nothing of the library's is borrowed: who is alone need not be asked.
        self._running = True
        status = self._run(SLICE_NS)
        if status:
            self._go_on(status, views, _INFINITE)
        self._running = False
        return fixed

    def _run_now(self) -> Any:
        views = self._views
        self._running = True
        status = self._run(SLICE_NS)
        if status:
            self._go_on(status, views, _INFINITE)
        self._running = self._submitted = False
        return self._fixed if self._fixed is not None else self._results()

    _run_alone = _alone(_run_now)

    @_alone
    def run(self, timeout: float | None = None) -> Any:
        """As calling it, with a timeout in seconds. After TimeoutError the run goes on: `wait` waits for it, `Session.cancel` ends it.
        A plan that is not made by then is given up, as the message says, and nothing runs: `Session.warmup` makes it ahead."""
        views, pointer = self._views, self.handle
        limit = timeout_ns(timeout)
        begin = 0 if limit == _INFINITE else time.monotonic_ns()
        self._running = True
        if limit <= SLICE_NS:
            status = lib.accrt_call_run(pointer, limit)
            if status:
                self._keep_on(views)
                raise self._failure(status)
        else:
            status = self._run(SLICE_NS)
            if status:
                self._go_on(status, views, limit, begin)
        self._running = self._submitted = False
        return self._fixed if self._fixed is not None else self._results()

    @_alone
    def wait(self, timeout: float | None = None) -> None:
        """Waits for the latest run, however it was started. Raises TimeoutError, or what the run failed with."""
        self._go_on(_ffi.ACCRT_ERROR_NOT_READY, self._views, timeout_ns(timeout))
        self._running = self._submitted = False

    def _go_on(self, status: int, views: dict, limit: int, begin: int = 0) -> None:
        """The first slice is over, or the run has failed. views: what it uses. begin: when the limit began; 0: now."""
        left = max(limit - (time.monotonic_ns() - begin), 1) if begin else limit
        try:
            if status == _ffi.ACCRT_ERROR_NOT_READY:
                status = until(lib.accrt_call_wait, left, self.handle, asked_ns=limit)
            elif status == _ffi.ACCRT_ERROR_TIMEOUT:
                apart(lambda: self._plan_and_run(views, limit, left))
                return
            if status:
                raise self._failure(status)
        except BaseException:
            self._keep_on(views)
            raise

    def _plan_and_run(self, views: dict, limit: int, left: int) -> None:
        """Making the plan takes longer than a slice: all of it in one call, whose limit is `left` of what was asked. views: what the run
        uses, until it is over: after Ctrl-C the call may be closed, or forget them, before the run begins."""
        status = lib.accrt_call_run(self.handle, left)
        if status:
            self._keep_on(views)
            raise self._failure(status, left, limit)

    def _keep_on(self, views: dict) -> None:
        """A run may go on that nobody waits for: what it uses stays until it is over, also where the call has been closed or looks idle."""
        if self._views is not views or not self._running:
            self._in_flight.keep(views)

    def _failure(self, status: int, told_ns: int = 0, asked_ns: int = 0):
        return with_limit(last_error(status), told_ns, asked_ns) if self._pointer is not None else ValueError("this Call is closed")

    def submit(self, waits: Iterable[tuple[Semaphore, int]] = (), signals: Iterable[tuple[Semaphore, int]] = ()) -> None:
        """Enqueues a run that waits for and signals (semaphore, value) pairs. Never blocks on the device. The arguments' memory lives
        until it is complete, also when the call is dropped or bound anew; leave what is in it as it is. A plan that is not made is made
        first; Ctrl-C ends that wait."""
        if waits or signals or not self._planned:
            self._submit_in_steps(waits, signals)
            return
        # Without the steps of _alone: they take as long as the submission. Who comes in between loses no memory for that: what was bound
        # here is kept where another may have unbound it, or may take the mark back (_set, wait), before the work has its number.
        uses, views = self._uses, self._views
        if uses:
            raise _in_use()
        self._submitted = True
        status = self._enqueue(None, 0, None, 0)
        if status:
            raise self._failure(status)
        if uses or self._views is not views:
            self._in_flight.keep((*views.values(),))
        self._submitted = True

    @_alone
    def _submit_in_steps(self, waits: Iterable[tuple[Semaphore, int]], signals: Iterable[tuple[Semaphore, int]]) -> None:
        views = self._views
        if not self._planned and not self._plan_within(SLICE_NS):
            apart(self._plan)
        self._submitted = True
        wait_table, wait_count = _timepoints("waits", waits)
        signal_table, signal_count = _timepoints("signals", signals)
        check(lib.accrt_call_submit(self.handle, wait_table, wait_count, signal_table, signal_count))
        if self._views is not views:  # another thread has closed the call meanwhile
            self._in_flight.keep(views)

    def _plan_within(self, limit_ns: int) -> bool:
        """Whether the limit was enough to make the plan, or to see that none can be made: then the run fails with the same error."""
        status = lib.accrt_call_plan(self.handle, limit_ns)
        self._planned = status == _ffi.ACCRT_OK
        return status != _ffi.ACCRT_ERROR_TIMEOUT

    def _plan(self) -> None:
        check(lib.accrt_call_plan(self.handle, _INFINITE))
        self._planned = True

    async def _plan_async(self) -> None:
        """Has the plan made, on another thread if that takes long. Who is cancelled leaves it to that thread, which has the session until
        it is made."""
        if self._plan_within(_QUICK_NS):
            return
        import asyncio  # here: it takes longer to import than the rest of the package
        loop = asyncio.get_running_loop()
        made = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not made.done():
                made.set_result(error)

        def make() -> None:
            error = None
            try:
                self._plan()
            except BaseException as problem:  # noqa: BLE001 - the caller's to raise
                error = problem
            try:
                loop.call_soon_threadsafe(tell, error)
            except RuntimeError:  # the loop is closed: nobody waits
                pass

        start(make)
        error = await made
        if error is not None:
            raise error

    @_alone
    def results(self) -> Any:
        """The latest run's results: one alone, several as a tuple. After `submit` they may be asked for at once: whoever reads their values
        (numpy, `tolist`, printing, DLPack) waits for the session's stream first."""
        return self._results()

    def _results(self) -> Any:
        return _unpack([self._result(i) for i in range(len(self._prepared.signature.results))])

    def _result(self, index: int):
        given = self._outputs.get(index)
        if given is not None:
            return given
        out, shape, strides, *filled = self._result_of
        handle = self.handle  # which keeps what is lent here
        status = lib.accrt_call_result(handle, index, *filled)
        if status:
            raise last_error(status)
        if out.buffer:
            session = self._session
            return _tensor(out, shape, strides, session.program.device, session.stream if self._submitted or self._running else None)
        # A result that must share the storage of an input given as plain memory.
        argument = self._prepared.signature.results[index]
        raise NotImplementedError(f"result {argument.name} lies in memory that the caller gave: read it there")

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Call of {self._prepared.signature}>"


def _advised(error: Exception, argument, value: Any, view, copy: bool) -> Exception:
    """The error of an argument that is refused, whose message also says what would help. view: None where it could not be read."""
    own = argument.type.partition("[")[0]
    advice = ""
    if view is None or not fits(view):
        if argument.kind != "read":
            advice = "; it is written: pass a contiguous array, as numpy.empty gives"
        elif not copy and copies(value):
            advice = "; give copy=True to have it copied"
    elif _NAMES[view.c.dtype] != own:
        advice = _type_advice(own, _NAMES[view.c.dtype], argument, value)
    return _with_advice(error, advice)


def _with_advice(error: Exception, advice: str) -> Exception:
    """The error with something at the end of its message."""
    if advice:
        text = f"{error}".replace(" (copy it first)", "") + advice  # one advice, not two
        error.args = (text,)
        if isinstance(error, Error):
            error.message = text
    return error


def _weight_advice(own: str) -> str:
    """For arrays of another type than the weight's."""
    if own in BIT_TYPES:
        return f"; pass an accrt.Tensor or accrt.Weight of {own}, a torch tensor, or an array of ml_dtypes.{ML_DTYPES[own]}"
    return f"; array.astype({_NUMPY_NAMES[own]!r}) converts it" if own in _NUMPY_NAMES else ""


def _type_advice(own: str, got: str, argument, value: Any) -> str:
    typestr = _TYPESTR.get(got, "")
    if BIT_TYPES.get(own) == typestr:
        return (f"; numbers and the bits of {own} look alike there. Pass an accrt.Tensor, a torch tensor, array.view(ml_dtypes."
                f"{ML_DTYPES[own]}), or a list of numbers with copy=True; if they are bits: "
                f"call.set({argument.name!r}, array, dtype={own!r})")
    if own in _TYPESTR and typestr and not isinstance(value, Tensor):
        return f"; array.astype({_NUMPY_NAMES[own]!r}) converts it" if argument.kind == "read" else f"; pass an array of {_NUMPY_NAMES[own]}"
    if own in BIT_TYPES:
        return f"; pass array.astype(ml_dtypes.{ML_DTYPES[own]}), a torch tensor of that type, or a list of numbers with copy=True"
    return ""


_NUMPY_NAMES = {"bool": "bool", **{f"{letter}{bits}": f"{word}{bits}" for letter, word, sizes in (
    ("i", "int", (8, 16, 32, 64)), ("u", "uint", (8, 16, 32, 64)), ("f", "float", (16, 32, 64))) for bits in sizes}}


def _shortest(pointer):
    """accrt_call_attempt and accrt_call_submit of a call, without conversions of the handle's type. They keep the handle, also
    when another thread closes the call meanwhile. None: of one that is closed."""
    address = None if pointer is None else operator.index(pointer)
    made = [functools.partial(function, address) for function in _SHORTEST]
    for one in made:
        one.owner = pointer  # type: ignore[attr-defined]
    return made


def _untyped(name: str):
    function = lib[name]
    function.argtypes = [ctypes.c_void_p, *function.argtypes[1:]]
    return function


_SHORTEST = (_untyped("accrt_call_attempt"), _untyped("accrt_call_submit"))


def _unpack(values: Sequence):
    return values[0] if len(values) == 1 else tuple(values)


class _Prepared:
    """What a session keeps of a function between calls. It refers to no session: a program that is dropped gives its memory back at
    once, and does not wait for the collector of cycles, which knows nothing of a device's memory."""

    __slots__ = ("signature", "arguments", "inputs", "doc", "bits", "_indices")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.arguments, self.inputs = (*signature.inputs, *signature.results), len(signature.inputs)
        types = [a.type.partition("[")[0] for a in signature.inputs + signature.results]
        self.bits = {i: name for i, name in enumerate(types) if name in BIT_TYPES}  # numpy has none of these
        self.doc = f"{signature}\n\n{signature.doc}"
        self._indices = {a.name: a.index for a in signature.results + signature.inputs}

    def index(self, name: str) -> int:
        if name not in self._indices:
            raise TypeError(f"{self.signature.name}() has no argument {name!r}; it is {self.signature}")
        return self._indices[name]


class Function:
    """A function of a session, called like a Python function on numpy arrays, tensors of any library with DLPack, or anything
    with the buffer protocol; contiguous arrays are used without a copy.

    `f(*inputs, out=None, **named_inputs)` waits and returns the result (a tuple when there are several) as accrt.Tensor.
    `out=` takes an array (or a tuple with one for each result, None to have it allocated) and is returned.
    `copy=True` copies inputs that cannot be used as they lie: strided, of the other byte order, misaligned, lists of numbers.

    For type checkers a result is a Tensor, because only the bundle says how many there are; a tuple of several unpacks
    (`a, b = f(x)`) and is indexed (`f(x)[1]`) as a Tensor is.
    """

    def __init__(self, session: Session, prepared: _Prepared) -> None:
        self.session = session
        self.signature = prepared.signature
        self._prepared = prepared
        self.__doc__ = prepared.doc

    def index(self, name: str) -> int:
        """Position of an argument: inputs first, then results."""
        return self._prepared.index(name)

    def bind(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Call:
        """A Call with these arguments bound, to be run many times. Later changes of the arrays' contents are seen, but not those of
        what copy=True has copied."""
        call = Call(self.session, self._prepared)
        self._bind(call, inputs, out, named, copy)
        return call

    @overload
    def __call__(self, *inputs: Any, out: None = None, copy: Any = False, **named: Any) -> Tensor: ...

    @overload
    def __call__(self, *inputs: Any, out: _Out, copy: Any = False, **named: Any) -> _Out: ...

    def __call__(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Any:
        calls, name = self.session._calls, self.signature.name
        call = calls.pop(name, None)  # nobody else finds it meanwhile
        if call is None:
            # The session keeps it, so it does not keep the session.
            call = Call(weakref.proxy(self.session), self._prepared)
        try:
            self._bind(call, inputs, out, named, copy)
            return call._run_now()
        finally:
            call._forget()
            calls[name] = call

    @overload
    async def call_async(self, *inputs: Any, out: None = None, copy: Any = False, **named: Any) -> Tensor: ...

    @overload
    async def call_async(self, *inputs: Any, out: _Out, copy: Any = False, **named: Any) -> _Out: ...

    async def call_async(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Any:
        """As calling it, awaited in an asyncio event loop: no thread is blocked. A plan that takes long is made on another thread. Whoever
        is cancelled meanwhile leaves it to that thread, which makes it to its end or to that of the session's budget (by default 2^26
        steps, some seconds; Budget.cancel() ends it): until then the session is in use, and then it has the plan. Nothing has run."""
        call = self.bind(*inputs, out=out, copy=copy, **named)
        await call._plan_async()
        semaphore = Semaphore(self.session.program.device.instance)
        call.submit(signals=[(semaphore, 1)])
        await semaphore.wait_async(1)
        call._submitted = False
        return call.results()

    def _bind(self, call: Call, inputs: Sequence, out, named: Mapping, copy: Any) -> None:
        signature = self.signature
        if copy is not False and "copy" in self._prepared._indices:  # an input of that name
            named, copy = {**named, "copy": copy}, False
        count = len(signature.inputs)
        if len(inputs) > count:
            raise TypeError(f"{signature.name}() takes {count} inputs, {len(inputs)} were given; it is {signature}")
        given = dict(enumerate(inputs))
        for name, value in named.items():
            index = self.index(name)
            if index in given or index >= count:
                raise TypeError(f"{signature.name}() got {name!r} " + ("twice" if index < count else "as an input: use out="))
            given[index] = value
        missing = [a.name for a in signature.inputs if a.index not in given and not a.optional]
        if missing:
            raise TypeError(f"{signature.name}() misses {', '.join(missing)}; it is {signature}")
        for i in range(count):
            call._set(i, given.get(i), None, copy)
        for i, value in enumerate(self._outputs(out)):
            call._set(count + i, value, None, False)

    def _outputs(self, out) -> Sequence:
        results = len(self.signature.results)
        outputs = out if isinstance(out, (tuple, list)) else (out,) + (None,) * (results - 1)
        if results == 0 and out is None:
            return ()
        if len(outputs) != results:
            raise TypeError(f"{self.signature.name}() has {results} results, out= has {len(outputs)}: it takes "
                            + ("an array" if results == 1 else "a tuple with an array, or None, for each"))
        return outputs

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Function {self.signature}>"


@overload
def load(path: Path, device: str = "host", trust: str | None = None, symbols: Mapping[str, int] | None = None,
         options: Mapping[str, object] | None = None, keys: Path | Iterable[Path] | None = None,
         key: Callable[[bytes], bytes | None] | None = None, host_code: str | None = None, weights: Source | Iterable[Source] = (),
         by_name: bool = False, rank: int = 0, degree: int = 0, timeout: float | None = None,
         budget: _budgets.Budget | None = None, sandbox: Literal[False] = False) -> Session: ...


@overload
def load(path: Path, device: str = "host", trust: str | None = None, symbols: Mapping[str, int] | None = None,
         options: Mapping[str, object] | None = None, keys: Path | Iterable[Path] | None = None,
         key: Callable[[bytes], bytes | None] | None = None, host_code: str | None = None, weights: Source | Iterable[Source] = (),
         by_name: bool = False, rank: int = 0, degree: int = 0, timeout: float | None = None,
         budget: _budgets.Budget | None = None, *, sandbox: Literal[True] | Mapping[str, object]) -> SandboxSession: ...


def load(path: Any, device: str = "host", trust: str | None = None, symbols: Mapping[str, int] | None = None,
         options: Mapping[str, object] | None = None, keys: Any = None, key: Any = None, host_code: str | None = None,
         weights: Any = (), by_name: bool = False, rank: int = 0, degree: int = 0, timeout: float | None = None,
         budget: _budgets.Budget | None = None, sandbox: Any = False) -> Any:
    """Opens a bundle and makes a session of it: the short way to run one.

    Args:
        path: the .accx file. device: its name. symbols: values of session symbols.
        trust, keys: whose machine code may run, as Instance() takes them. What you have compiled yourself runs; "all" runs
            whatever the bundle holds: only for bundles that you trust as much as this program.
        options: driver options, e.g. {"host.threads": 2}; a new instance is then made.
        key: gives the key of encrypted weights, as Bundle() takes it. host_code: an older name of trust.
        weights, by_name, rank, degree: where weights that are not in the bundle come from, as Program() takes them.
        timeout: seconds for all of it, the session's states too (TimeoutError). budget: limits of steps and memory too, and a way to
            cancel (accrt.Budget); its time is for all of this as well, and then for each plan that the session makes. Opening, the
            program, the session and each plan have the whole of its steps and memory; on the host, states are memory as well.
        sandbox: True: run it in a process that can open no file and reach no network, on the host device; the result is an
            `accrt.sandbox.SandboxSession`, whose functions take and give numpy arrays. Unsigned code runs there unless `trust` says
            otherwise. A dict gives limits: "memory_mib", "cpu_s", "timeout"; {"weak": True} does without Landlock. docs/trust.md has the rest.
    """
    from .instance import Instance, default_instance, policy_of
    if not isinstance(device, str):
        raise TypeError(f"device is {shown(device)}, expected a name: {_device_names(instance_of=device)}")
    if sandbox:
        return _load_confined(path, device, policy_of(trust, host_code), symbols, options, key, weights, sandbox,
                              by_name or rank or degree or timeout is not None or budget is not None)
    trust = policy_of(trust, host_code)
    instance = default_instance(trust) if not options and keys is None else Instance(trust, options=options, keys=keys)
    if timeout is not None and budget is not None:
        raise ValueError("timeout and budget: the budget has a time of its own")
    within, begin = budget if timeout is None else _budgets.Budget(timeout), time.monotonic()
    bundle = Bundle(path, instance, key=key, budget=within, _begin=begin)
    program = Program(bundle, instance.device(device), weights=weights, by_name=by_name, rank=rank, degree=degree, budget=within,
                      _begin=begin)
    return Session(program, symbols, budget=budget, _creation=within, _begin=begin)


def _device_names(instance_of: object = None) -> str:
    """The names that `device` takes, for messages."""
    from .instance import default_instance
    names = ", ".join(repr(one.name) for one in default_instance("no-host-code").devices())
    more = "; of a Device: accrt.Program(path, device).session()" if isinstance(instance_of, Device) else ""
    return f"there are {names}, and 'host' and 'cuda' for the first of a kind{more}"


def _load_confined(path, device, trust, symbols, options, key, weights, sandbox, other):
    from .sandbox import SandboxSession
    more = dict(options or {})
    threads = more.pop("host.threads", None)
    if device not in ("host", "host:0"):
        raise ValueError(f"device is {device!r}: a sandbox has the host's processor alone")
    if more or key is not None or other:
        raise ValueError("a sandbox takes no options but host.threads, no key of encrypted weights, no by_name, rank, degree, timeout or budget")
    sources = [weights] if isinstance(weights, (str, os.PathLike)) else list(weights or ())
    return SandboxSession(path, sources, symbols, threads=threads, trust=trust, **(sandbox if isinstance(sandbox, dict) else {}))
