"""Programs, sessions, functions: running what a bundle carries."""
from __future__ import annotations

import ctypes
import json
import math
import operator
import os
import re
import sys
import weakref
from typing import Iterable, Iterator, Mapping, Sequence

from . import _ffi
from ._library import Handle, check, created, filled, last_error, lib, struct
from .bundle import Bundle, Signature
from .instance import Device
from .memory import Buffer, Pool
from .stream import Semaphore, Stream, failure, timeout_ns
from .tensor import Tensor, as_view, dtype_id
from .trust import apply as apply_trust

_INFINITE = _ffi.ACCRT_TIMEOUT_INFINITE
_RANK = _ffi.ACCRT_MAX_RANK


def _int64(value, name: str) -> int:
    number = operator.index(value)  # ctypes would cut what does not fit, and int() what is no integer
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{name}: {number} does not fit 64 bits")
    return number


def _symbol_values(symbols: Mapping[str, int] | None):
    pairs = [(k.encode(), _int64(v, k)) for k, v in (symbols or {}).items()]
    return (_ffi.accrt_symbol_value * max(len(pairs), 1))(*pairs), len(pairs), ctypes.sizeof(_ffi.accrt_symbol_value)


def _timepoints(pairs: Iterable[tuple[Semaphore, int]]):
    pairs = list(pairs)
    return (_ffi.accrt_timepoint * max(len(pairs), 1))(*[(s.handle, v) for s, v in pairs]), len(pairs)


class Program(Handle):
    """A bundle's code and weights on a device. Immutable but for `swap_weights`; shared by sessions; thread-safe.

    Args:
        bundle: an open Bundle, or what Bundle() takes. device: default: "host" of the bundle's instance.
        variant: consider only kernel variants of this architecture ("x86-64-v3"); default: the best.
        weights: accrt.Weights or a path, or several in the order in which they are searched, for constants that are not in the bundle.
        by_name: any bytes of the right type and shape will do for these: digests are not compared.
        rank, degree: of a bundle whose weights are parts of tensors that ranks share: which of how many this is. It reads the bytes
            of its rank alone.
    Raises:
        UntrustedError: the bundle has host machine code that no trusted key has signed. The message says what to do
            about it (docs/trust.md).
        NoVariantError: a kernel has no variant for this device; the message says for each why not.
        DataCorruptError, IoError, PermissionDeniedError: the weights (PermissionDeniedError: encrypted, and there was no key).
        NotFoundError, TypeMismatchError, ShapeMismatchError: a constant that is not in the bundle, where it was looked for.
    """

    __slots__ = ("bundle", "device")
    _release_name = "accrt_program_release"

    def __init__(self, bundle, device: Device | None = None, variant: str = "", weights=(), by_name: bool = False,
                 rank: int = 0, degree: int = 0) -> None:
        self._handle = None
        if not isinstance(bundle, Bundle):
            bundle = Bundle(bundle, instance=device.instance if device is not None else None)
        self.bundle = bundle
        self.device = device or bundle.instance.device("host")
        apply_trust(self.bundle.instance)
        if not 0 <= rank < 1 << 32 or not 0 <= degree < 1 << 32:
            raise ValueError(f"rank {rank} of {degree} ranks")
        options = struct(_ffi.accrt_program_options, variant_override=variant.encode() or None,
                         flags=_ffi.ACCRT_BIND_BY_NAME if by_name else 0, rank=rank, degree=degree)
        if weights is not None:  # a source without tensors is false, and is a source all the same
            from .weights import handles
            table, options.weight_count = handles(weights, bundle.instance)
            options.weights = table
        super().__init__(created(lib.accrt_program_create, self.device.handle, bundle.handle, ctypes.byref(options)))

    def session(self, symbols: Mapping[str, int] | None = None, stream: Stream | None = None, pool: Pool | None = None,
                max_plans: int = 0, label: str = "") -> Session:
        """Makes a session: state, plans, and an order of calls. symbols: values of session symbols (default: maxima)."""
        return Session(self, symbols, stream, pool, max_plans, label)

    def estimate(self, function: str, symbols: Mapping[str, int] | None = None) -> dict[str, int]:
        """Bytes that a function would need for the given symbol values, before anything is allocated."""
        values, count, size = _symbol_values(symbols)
        raw = filled(_ffi.accrt_memory_estimate, lib.accrt_program_estimate, self.handle, function.encode(), values, count, size)
        return {n: getattr(raw, n) for n, _ in raw._fields_ if n.endswith("_bytes")}

    def swap_weights(self, weights: Mapping[str, object]) -> None:
        """Replaces weights, all or none, between calls. Values: arrays of the same type and shape; they are copied."""
        views = {name: as_view(value, self.device) for name, value in weights.items()}
        table = (_ffi.accrt_weight * max(len(views), 1))()
        for entry, (name, view) in zip(table, views.items()):
            entry.name, entry.tensor = name.encode(), view.c
        check(lib.accrt_program_swap_weights(self.handle, table, len(views), ctypes.sizeof(_ffi.accrt_weight)))

    def load_weights(self, weights, names: Iterable[str] | None = None, by_name: bool = False) -> None:
        """Replaces weights by those of accrt.Weights or paths (one, or several in the order in which they are searched), all or none, between
        calls. names: constants to replace; None: all that are not in the bundle. by_name: digests are not compared."""
        from .weights import handles
        sources, count = handles(weights, self.bundle.instance)
        table = None
        if names is not None:
            encoded = [name.encode() for name in ([names] if isinstance(names, str) else names)]
            table = (ctypes.c_char_p * max(len(encoded), 1))(*encoded)
        check(lib.accrt_program_load_weights(self.handle, sources, count, table, len(encoded) if table is not None else 0,
                                             _ffi.ACCRT_BIND_BY_NAME if by_name else 0))

    def load_adapter(self, source, *, alpha: float = 0, scale: float = 0, partial: bool = False) -> Adapter:
        """Loads a LoRA adapter for the optional inputs that the bundle's adapter slots name (`bundle.adapters`): set it as `session.adapter`.

        Args:
            source: accrt.Weights, or what Weights() takes: an adapter's file, or PEFT's folder with `adapter_config.json` and
                `adapter_model.safetensors`. What the config beside a file says of alpha, rank and rslora is used unless it is given.
            alpha: of slots that are scaled by alpha / rank. scale: the factor itself. partial: pass over tensors without a slot.
        """
        return Adapter(self, source, alpha, scale, partial)

    def __repr__(self) -> str:
        return f"<accrt.Program {self.bundle.info['name']!r} on {self.device.name}>"


def _peft_config(path: str) -> dict:
    """PEFT's config; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
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
            raise ValueError(f"{path} has {key}, which slots with one factor do not express; give scale=")
    alpha, rank = config.get("lora_alpha", 0), config.get("r")
    if type(alpha) not in (int, float) or not abs(alpha) <= sys.float_info.max:
        raise ValueError(f"{path}: lora_alpha is {alpha!r}, which is no number")
    if rank is not None and (type(rank) is not int or rank < 1):
        raise ValueError(f"{path}: r is {rank!r}, which is no rank")
    for name, found in _peft_ranks(weights) if rank else ():
        if found != rank:
            raise ValueError(f"{path}: r is {rank}, but {name!r} is of rank {found}")
    if not config.get("use_rslora"):
        return alpha, 0
    if not rank:
        raise ValueError(f"{path}: use_rslora divides alpha by the square root of r, and r is not there")
    return 0, alpha / math.sqrt(rank)


def _peft_ranks(weights: Mapping) -> Iterator[tuple[str, int]]:
    """The rank of each tensor whose name says which of a pair it is: A is [rank, in], B is [out, rank]."""
    for name, tensor in weights.items():
        which = re.findall("lora_(?:embedding_)?([ABab])", name)
        if which and len(tensor.shape) > 1:
            yield name, tensor.shape[0 if which[-1] in "Aa" else 1]


class Adapter(Handle):
    """Tensors of a LoRA adapter on a program's device. Made by `Program.load_adapter`; any sessions of the program may have it."""

    __slots__ = ("program",)
    _release_name = "accrt_adapter_release"

    def __init__(self, program: Program, source, alpha: float = 0, scale: float = 0, partial: bool = False) -> None:
        from .weights import Weights
        self._handle = None
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
        super().__init__(created(lib.accrt_adapter_load, program.handle, source.handle, ctypes.byref(options)))
        self.program = program


class Session(Handle):
    """What runs: state (a KV cache), memory, plans. Functions of the bundle are its attributes: `session.encode(x)`.

    Calls on a session are ordered. Use a session from one thread at a time; many sessions run at once.
    """

    __slots__ = ("program", "_functions", "_calls", "_stream", "_adapter")
    _release_name = "accrt_session_release"

    def __init__(self, program: Program, symbols: Mapping[str, int] | None = None, stream: Stream | None = None,
                 pool: Pool | None = None, max_plans: int = 0, label: str = "") -> None:
        self._handle = None
        options = self._options(symbols, stream, pool, max_plans, label)
        handle = created(lib.accrt_session_create, program.handle, ctypes.byref(options))
        self._setup(handle, program, stream)

    @staticmethod
    def _options(symbols, stream, pool, max_plans, label):
        values, count, size = _symbol_values(symbols)
        options = struct(_ffi.accrt_session_options, symbol_count=count, symbol_size_bytes=size, max_plans=max_plans,
                         label=label.encode() or None, stream=stream.handle if stream else None,
                         pool=pool.handle if pool else None)
        options.symbols = values
        return options

    def _setup(self, handle: int, program: Program, stream: Stream | None) -> None:
        Handle.__init__(self, handle)
        self.program = program
        self._functions = {}  # name -> _Prepared
        self._calls = {}      # name -> the Call that Function.__call__ uses
        self._stream = stream
        self._adapter = None

    def close(self) -> None:
        """Gives the session back now, with the calls that it keeps; those that `bind` made keep it in use until they are closed."""
        for call in (getattr(self, "_calls", None) or {}).values():
            call.close()
        super().close()

    def clone(self, stream: Stream | None = None, label: str = "") -> Session:
        """Waits for calls in flight; a new session with a copy of the state."""
        options = self._options(None, stream, None, 0, label)
        handle = created(lib.accrt_session_clone, self.handle, ctypes.byref(options))
        other = Session.__new__(Session)
        other._setup(handle, self.program, stream)
        other._adapter = self._adapter
        return other

    @property
    def stream(self) -> Stream:
        """The stream that calls run on."""
        if self._stream is None:
            self._stream = Stream._borrowed(lib.accrt_session_stream(self.handle), self.program.device)
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
        check(lib.accrt_session_set_adapter(self.handle, value.handle if value is not None else None))
        self._adapter = value

    def reset(self) -> None:
        """Waits for calls in flight, gives the state its initial value, clears a failure."""
        check(lib.accrt_session_reset(self.handle))

    @property
    def error(self):
        """The failure that poisons the session, as an exception object, or None."""
        return failure(lib.accrt_session_error, self.handle)

    def state(self, name: str) -> Tensor:
        """A state's memory as a tensor, shared: read or write it when no call is in flight."""
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        check(lib.accrt_session_state(self.handle, name.encode(), ctypes.byref(out), shape, strides))
        return _tensor(out, shape, strides, self.program.device)

    def bind_state(self, name: str, buffer: Buffer | None, offset_bytes: int = 0) -> None:
        """Uses `buffer` as a state's storage from the next call on; None goes back to storage of its own, reset."""
        check(lib.accrt_session_bind_state(self.handle, name.encode(), buffer.handle if buffer else None, offset_bytes))

    def warmup(self, function: str, symbols: Mapping[str, int] | None = None) -> None:
        """Makes the plan for these symbol values ahead of the first call."""
        check(lib.accrt_session_warmup(self.handle, function.encode(), *_symbol_values(symbols)))

    def function(self, name: str) -> Function:
        """A function of the bundle as a callable. Raises NotFoundError with near names."""
        prepared = self._functions.get(name)
        if prepared is None:
            prepared = self._functions[name] = _Prepared(self.program.bundle.signature(name))
        return Function(self, prepared)

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.function(name)
        except LookupError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self):
        return [*super().__dir__(), *self.program.bundle.function_names()]

    def __repr__(self) -> str:
        return f"<accrt.Session of {self.program!r}>"


def _tensor(raw: _ffi.accrt_tensor, shape, strides, device: Device, stream: Stream | None = None) -> Tensor:
    """A Tensor for a borrowed C tensor with a buffer; `stream` when work there may still fill it."""
    rank = raw.rank
    return Tensor(Buffer.borrowed(raw.buffer, device, stream), raw.dtype, shape[:rank], strides[:rank], raw.offset_bytes)


class Call(Handle):
    """A function with its arguments bound, to be run many times: one foreign call each. Made by `Function.bind`.

    Runs as `call()`; the results come back as from the function. Rebind with `set`. Externally synchronized with its session.
    """

    __slots__ = ("_session", "_prepared", "_run", "_views", "_outputs", "_fixed", "_submitted", "_enqueue")
    _release_name = "accrt_call_release"

    def __init__(self, session: Session, prepared: _Prepared) -> None:
        self._handle = None
        super().__init__(created(lib.accrt_call_create, session.handle, prepared.signature.name.encode()))
        self._session, self._prepared = session, prepared
        self._submitted = False
        self._run = lib.accrt_call_run
        self._enqueue = lib.accrt_call_submit
        self._forget()

    @property
    def function(self) -> Function:
        """The function that it calls."""
        return Function(self._session, self._prepared)

    def _forget(self) -> None:
        self._views = {}    # argument index -> what keeps its memory alive
        self._outputs = {}  # result index -> the caller's object
        self._fixed = None if self._prepared.signature.results else ()  # the results, when all are the caller's

    def set(self, name_or_index: str | int, value, dtype: str | None = None) -> None:
        """Binds an argument (inputs, then results): an array or tensor, an int for scalar inputs, None to unbind.

        Args:
            dtype: take an array's elements as this type ("bf16" for bits held in uint16).
        """
        signature = self._prepared.signature
        index = name_or_index if isinstance(name_or_index, int) else self._prepared.index(name_or_index)
        inputs = len(signature.inputs)
        argument = (signature.inputs + signature.results)[index]
        if argument.kind == "scalar" and value is not None:
            check(lib.accrt_call_set_scalar(self.handle, index, _int64(value, argument.name)))
            return
        view = None
        if value is not None:
            session = self._session
            view = as_view(value, session.program.device, dtype_id(dtype) if dtype else None, session.stream)
            if view.read_only and argument.kind not in ("read", "scalar"):
                raise ValueError(f"{signature.name}: {argument.name} is written, and the array is read-only")
        check(lib.accrt_call_set_tensor(self.handle, index, ctypes.byref(view.c) if view else None))
        self._views[index] = view
        if index >= inputs:
            self._outputs[index - inputs] = value
            given = [self._outputs.get(i) for i in range(len(signature.results))]
            self._fixed = _unpack(given) if all(g is not None for g in given) else None

    def __call__(self):
        """Runs and waits; the GIL is released meanwhile. Returns the results: one alone, several as a tuple."""
        self._submitted = False
        status = self._run(self._handle, _INFINITE)
        if status:
            raise self._failure(status)
        return self._fixed if self._fixed is not None else self.results()

    def run(self, timeout: float | None = None):
        """As calling it, with a timeout in seconds. After TimeoutError the run goes on."""
        self._submitted = False
        status = self._run(self.handle, timeout_ns(timeout))
        if status:
            raise self._failure(status)
        return self._fixed if self._fixed is not None else self.results()

    def _failure(self, status: int):
        return last_error(status) if self._handle else ValueError("this Call is closed")

    def submit(self, waits: Iterable[tuple[Semaphore, int]] = (), signals: Iterable[tuple[Semaphore, int]] = ()) -> None:
        """Enqueues a run that waits for and signals (semaphore, value) pairs. Never blocks on the device; keep the arguments'
        memory as it is until it is complete."""
        self._submitted = True
        if not waits and not signals:
            status = self._enqueue(self._handle, None, 0, None, 0)
            if status:
                raise self._failure(status)
            return
        wait_table, wait_count = _timepoints(waits)
        signal_table, signal_count = _timepoints(signals)
        check(lib.accrt_call_submit(self.handle, wait_table, wait_count, signal_table, signal_count))

    def results(self):
        """The latest run's results: one alone, several as a tuple. Read them once the run is complete."""
        return _unpack([self._result(i) for i in range(len(self._prepared.signature.results))])

    def _result(self, index: int):
        given = self._outputs.get(index)
        if given is not None:
            return given
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        check(lib.accrt_call_result(self.handle, index, ctypes.byref(out), shape, strides))
        if out.buffer:
            session = self._session
            device = session.program.device
            pending = session.stream if self._submitted and not device.info.host_memory else None
            return _tensor(out, shape, strides, device, pending)
        # A result that must share the storage of an input given as plain memory.
        argument = self._prepared.signature.results[index]
        raise NotImplementedError(f"result {argument.name} lies in memory that the caller gave: read it there")

    def __repr__(self) -> str:
        return f"<accrt.Call of {self._prepared.signature}>"


def _unpack(values: Sequence):
    return values[0] if len(values) == 1 else tuple(values)


class _Prepared:
    """What a session keeps of a function between calls. It refers to no session: a program that is dropped gives its memory back at
    once, and does not wait for the collector of cycles, which knows nothing of a device's memory."""

    __slots__ = ("signature", "doc", "_indices")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
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
    """

    def __init__(self, session: Session, prepared: _Prepared) -> None:
        self.session = session
        self.signature = prepared.signature
        self._prepared = prepared
        self.__doc__ = prepared.doc

    def index(self, name: str) -> int:
        """Position of an argument: inputs first, then results."""
        return self._prepared.index(name)

    def bind(self, *inputs, out=None, **named) -> Call:
        """A Call with these arguments bound, to be run many times. Later changes of the arrays' contents are seen."""
        call = Call(self.session, self._prepared)
        self._bind(call, inputs, out, named)
        return call

    def __call__(self, *inputs, out=None, **named):
        calls, name = self.session._calls, self.signature.name
        call = calls.get(name)
        if call is None:
            # The session keeps it, so it does not keep the session.
            call = calls[name] = Call(weakref.proxy(self.session), self._prepared)
        try:
            self._bind(call, inputs, out, named)
            return call()
        finally:
            call._forget()

    async def call_async(self, *inputs, out=None, **named):
        """As calling it, awaited in an asyncio event loop: no thread is blocked."""
        call = self.bind(*inputs, out=out, **named)
        semaphore = Semaphore(self.session.program.device.instance)
        call.submit(signals=[(semaphore, 1)])
        await semaphore.wait_async(1)
        return call.results()

    def _bind(self, call: Call, inputs: Sequence, out, named: Mapping) -> None:
        signature = self.signature
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
            call.set(i, given.get(i))
        for i, value in enumerate(self._outputs(out)):
            call.set(count + i, value)

    def _outputs(self, out) -> Sequence:
        results = len(self.signature.results)
        outputs = out if isinstance(out, (tuple, list)) else (out,) + (None,) * (results - 1)
        if results == 0 and out is None:
            return ()
        if len(outputs) != results:
            raise TypeError(f"{self.signature.name}() has {results} results, out= has {len(outputs)}")
        return outputs

    def __repr__(self) -> str:
        return f"<accrt.Function {self.signature}>"


def load(path, device: str = "host", trust: str | None = None, symbols: Mapping[str, int] | None = None,
         options: Mapping[str, object] | None = None, keys=None, key=None, host_code: str | None = None, weights=(),
         by_name: bool = False, rank: int = 0, degree: int = 0) -> Session:
    """Opens a bundle and makes a session of it: the short way to run one.

    Args:
        path: the .accx file. device: its name. symbols: values of session symbols.
        trust, keys: whose machine code may run, as Instance() takes them. What you have compiled yourself runs; "all" runs
            whatever the bundle holds: only for bundles that you trust as much as this program.
        options: driver options, e.g. {"host.threads": 2}; a new instance is then made.
        key: gives the key of encrypted weights, as Bundle() takes it. host_code: an older name of trust.
        weights, by_name, rank, degree: where weights that are not in the bundle come from, as Program() takes them.
    """
    from .instance import Instance, default_instance, policy_of
    trust = policy_of(trust, host_code)
    instance = default_instance(trust) if not options and keys is None else Instance(trust, options=options, keys=keys)
    return Program(Bundle(path, instance, key=key), instance.device(device), weights=weights, by_name=by_name, rank=rank,
                   degree=degree).session(symbols)
