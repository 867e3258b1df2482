"""Programs: a bundle's code and weights on a device. `load` opens a bundle and makes a session of
it at once."""
from __future__ import annotations

import ctypes
import operator
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Iterable, overload

from . import _ffi, budget as _budgets
from ._advice import weight_advice, with_advice
from ._bits import bits_of
from ._library import Handle, allowed, c_text, check, created, describe, filled, lib, never_raises, shown, struct
from ._waits import apart
from .adapter import Adapter as Adapter
from .bundle import Bundle
from .call import Call as Call, Function as Function
from .errors import TypeMismatchError, listing
from .instance import Device
from .memory import Buffer, Pool
from .session import Session as Session, symbol_values
from .stream import Stream
from .tensor import _NAMES, as_view, contiguous_strides, dtype_id, Tensor
from .trust import apply as apply_trust

if TYPE_CHECKING:
    from typing import Literal, Union
    from .sandbox import SandboxSession
    from .weights import Weights
    Path = Union[str, "os.PathLike[str]"]
    Source = Union[Weights, Path]


class Program(Handle):
    """A bundle's code and weights on a device. Immutable but for `swap_weights`; shared by
    sessions; thread-safe.

    Args:
        bundle: an open Bundle, or what Bundle() takes. device: default: "host" of the bundle's
            instance.
        variant: consider only kernel variants of this architecture ("x86-64-v3"); default: the
            best.
        weights: accrt.Weights or a path, or several in the order in which they are searched, for
            constants that are not in the bundle.
        by_name: accept any bytes of the right type and shape for these: digests are not compared.
        rank, degree: for a bundle whose weights are divided among ranks: the number of this rank,
            and of all ranks. Only the bytes of this rank are read.
        budget: what making it may cost (accrt.Budget); default: limits in proportion to the bundle.
    Raises:
        BudgetError, TimeoutError, CancelledError: making it passed a limit of the budget.
        UntrustedError: the bundle has host machine code that no trusted key has signed. The message
            says what to do about it (docs/trust.md).
        NoVariantError: a kernel has no variant for this device; the message says for each why not.
        DataCorruptError, IoError, PermissionDeniedError: the weights (PermissionDeniedError:
            encrypted, and there was no key).
        NotFoundError, TypeMismatchError, ShapeMismatchError: a constant that is not in the bundle,
            where it was looked for.
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
        """Makes a session: state, plans, and an order of calls. symbols: values of session symbols
        (default: maxima). budget: what making it, with its states, and then each plan may cost
        (accrt.Budget): BudgetError, TimeoutError, CancelledError at a limit."""
        return Session(self, symbols, stream, pool, max_plans, label, budget)

    def estimate(self, function: str, symbols: Mapping[str, int] | None = None) -> dict[str, int]:
        """Bytes that a function would need for the given symbol values, before anything is
        allocated."""
        values, count, size = symbol_values(symbols, self.bundle)
        handle = self.handle
        raw = apart(lambda: filled(_ffi.accrt_memory_estimate, lib.accrt_program_estimate, handle, c_text(function), values, count, size))
        return {n: getattr(raw, n) for n, _ in raw._fields_ if n.endswith("_bytes")}

    def swap_weights(self, weights: Mapping[str, object], budget: _budgets.Budget | None = None) -> None:
        """Replaces weights, all or none, between calls. Values: arrays, Tensors or accrt.Weight of
        the same type and shape; they are copied. budget: what it may cost, with the prepare
        functions that run again: BudgetError, TimeoutError, CancelledError at a limit, and all
        weights stay as they were."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights is {describe(weights)}, expected a dict from names of constants to arrays; load_weights takes files")
        views = {name: self._weight_view(name, value) for name, value in weights.items()}
        table = (_ffi.accrt_weight * max(len(views), 1))()
        for entry, (name, view) in zip(table, views.items()):
            entry.name, entry.tensor = c_text(name), view.c
        limits = ctypes.byref(budget._c()) if budget is not None else None
        try:
            with listing(lambda: [c.name for c in self.bundle.constants if not c.prepared], next(iter(views)) if len(views) == 1 else None):
                apart(lambda: check(lib.accrt_program_swap_weights_within(self.handle, table, len(views), ctypes.sizeof(_ffi.accrt_weight), limits)))
        except TypeMismatchError as error:
            own = {constant.name: constant.dtype for constant in self.bundle.constants}
            wrong = [n for n, v in views.items() if str(error).startswith(f"weight {n!r} ") and own.get(n, "") != _NAMES[v.c.dtype]]
            raise with_advice(error, weight_advice(own[wrong[0]], weights[wrong[0]]) if wrong else "") from None

    def _weight(self, name: str) -> Tensor:
        """The memory of a weight, to be read and written in place (accrt_program_weight): the
        Tensor keeps it. No other thread may replace weights meanwhile. UnsupportedError: there is
        none that may be written."""
        out = _ffi.accrt_tensor()
        check(lib.accrt_program_weight(self.handle, c_text(name), ctypes.byref(out)))
        shape = tuple(out.shape[at] for at in range(out.rank))
        return Tensor._of(Buffer.borrowed(out.buffer, self.device), out.dtype, shape, contiguous_strides(shape), out.offset_bytes)

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

    def load_weights(self, weights, names: Iterable[str] | None = None, by_name: bool = False,
                     budget: _budgets.Budget | None = None) -> None:
        """Replaces weights by those of accrt.Weights or paths (one, or several in the order in
        which they are searched), all or none, between calls. names: constants to replace; None: all
        that are not in the bundle (ValueError if the bundle has all of them, because nothing would
        be loaded). by_name: digests are not compared. budget: as of swap_weights."""
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
        limits = ctypes.byref(budget._c()) if budget is not None else None
        apart(lambda: check(lib.accrt_program_load_weights_within(self.handle, sources, count, table, total, flags, limits)))

    def load_adapter(self, source, *, alpha: float = 0, scale: float = 0, partial: bool = False) -> Adapter:
        """Loads a LoRA adapter for the optional inputs that the bundle's adapter tensors name
        (`bundle.adapters`): set it as `session.adapter`.

        Args:
            source: accrt.Weights, or what Weights() takes: an adapter's file, or PEFT's folder with
                `adapter_config.json` and `adapter_model.safetensors`. Alpha, rank and rslora come
                from the config beside the file, unless you pass them.
            alpha: for adapter tensors that are scaled by alpha / rank. scale: this factor itself.
                partial: ignore tensors for which the bundle has no input.
        """
        return Adapter(self, source, alpha, scale, partial)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Program {self.bundle.info['name']!r} on {self.device.name}>"


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
        trust, keys: whose machine code may run, as Instance() takes them. Code that you have
            compiled runs. "all" runs any code of the bundle: use it only for bundles that you trust
            as much as this program.
        options: driver options, e.g. {"host.threads": 2}; a new instance is then made.
        key: gives the key of encrypted weights, as Bundle() takes it. host_code: an older name of
            trust.
        weights, by_name, rank, degree: where weights that are not in the bundle come from, as
            Program() takes them.
        timeout: seconds for all of it, the session's states too (TimeoutError). budget: limits of
            steps and memory too, and a way to cancel (accrt.Budget); its time is for all of this as
            well, and then for each plan that the session makes. Opening, the program, the session
            and each plan have the whole of its steps and memory; on the host, states are memory as
            well.
        sandbox: True: run it in a process that can open no file and reach no network, on the host
            device; the result is an `accrt.sandbox.SandboxSession`, whose functions take and give
            numpy arrays. Unsigned code runs there unless `trust` says otherwise. A dict gives
            limits: "memory_mib", "cpu_s", "timeout"; {"weak": True} does without Landlock.
            docs/trust.md has the rest.
    """
    from .instance import Instance, default_instance, policy_of
    if not isinstance(device, str):
        raise TypeError(f"device is {shown(device)}, expected a name: {_device_names(instance_of=device)}")
    limits = _limits_of(sandbox)
    if limits is not None:
        return _load_confined(path, device, policy_of(trust, host_code), symbols, options, key, weights, limits,
                              keys is not None or by_name or rank or degree or timeout is not None or budget is not None)
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


_LIMITS = ("memory_mib", "cpu_s", "timeout", "weak")


def _limits_of(sandbox: object) -> dict[str, Any] | None:
    """Limits of a sandbox, also where there are none. None: no sandbox is asked for."""
    if sandbox is None or isinstance(sandbox, bool):
        return {} if sandbox else None
    if not isinstance(sandbox, Mapping):
        raise TypeError(f"sandbox is {shown(sandbox)}, expected True, False or a dict of limits")
    unknown = [name for name in sandbox if name not in _LIMITS]
    if unknown:
        raise TypeError(f"sandbox has no limit {shown(unknown[0])}: there are {', '.join(_LIMITS)}")
    if not isinstance(sandbox.get("weak", False), bool):
        raise TypeError(f"sandbox: weak is {shown(sandbox['weak'])}, expected True or False")
    return dict(sandbox)


def _load_confined(path, device, trust, symbols, options, key, weights, limits, other):
    from .sandbox import SandboxSession
    more = dict(options or {})
    threads = more.pop("host.threads", None)
    if device not in ("host", "host:0"):
        raise ValueError(f"device is {device!r}: a sandbox has the host's processor alone")
    if more or key is not None or other:
        raise ValueError("a sandbox takes no options but host.threads, no keys, no key of encrypted weights, no by_name, rank, degree, timeout or budget")
    sources = [weights] if isinstance(weights, (str, os.PathLike)) else list(weights or ())
    return SandboxSession(path, sources, symbols, threads=threads, trust=trust, **limits)
