"""The kernels of operators in C (accrt._native.Shim), and what calls them from Python
(accrt._native.Entry). Both are optional: without them operators are the Python functions of
_operator.py, which do the same. docs/decisions/torch-kernels-in-c.md has the reasons.

`ACCRT_TORCH_SHIM=0` in the environment does without.
"""
from __future__ import annotations

import contextlib
import copyreg
import ctypes
import functools
import os
import threading
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

import torch

from .. import _fast
from .._system import loaded_library
from ..call import Call
from ..errors import Error
from . import _cuda, _shapes, _transforms

if TYPE_CHECKING:
    from ._operator import Operator

_INPUTS, _RESULTS = 16, 8  # as python/native/torch_shim.c has them
_MOST_KERNELS = 3  # of an operator: CPU, CUDA, and what is tried once
_SCALAR, _OPTIONAL = 1, 2
_SHORT = 0.006  # seconds: longer calls stay in Python, where Ctrl-C ends the wait
_TEXT = 500  # characters of an error
_CODES = {"bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
          "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


@functools.lru_cache(maxsize=None)
def _libraries() -> list[Any]:
    """Those that torch has loaded."""
    found = [loaded_library(name) for name in ("libtorch_cpu.so", "libtorch_cuda.so")]
    return [library for library in found if library is not None]  # a build for processors has one


def _address(name: str) -> int:
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return 0


@functools.lru_cache(maxsize=None)
def _found() -> frozenset[str]:
    """Names of torch's functions that are there; none: the shim is not to be had."""
    if _fast.native is None or os.environ.get("ACCRT_TORCH_SHIM") == "0":
        return frozenset()
    wanted = _fast.native.torch_functions()
    addresses = [_address(name) for name, _needed in wanted]
    if not all(address for address, (_name, needed) in zip(addresses, wanted) if needed):
        return frozenset()
    _fast.native.connect_torch(addresses)
    return frozenset(name for address, (name, _needed) in zip(addresses, wanted) if address)


@functools.lru_cache(maxsize=None)
def _code(dtype: torch.dtype) -> Optional[int]:
    """torch's number of a type in its C functions."""
    name = next(name for name, theirs in _shapes.DTYPES.items() if theirs == dtype)
    address = _address(f"aoti_torch_dtype_{_CODES[name]}")
    return ctypes.CFUNCTYPE(ctypes.c_int32)(address)() if address else None


def _device(kind: str) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int32)(_address(f"aoti_torch_device_type_{kind}"))()


@functools.lru_cache(maxsize=None)
def _knows_the_dispatcher() -> bool:
    """Whether Entry may call an operator without torch's dispatcher: it knows when there is nothing
    that the dispatcher would ask. What a thread has set up is asked in a new thread, and under what
    must show there."""
    if not _found():
        return False
    core = loaded_library("libc10.so")
    find = getattr(ctypes.CDLL(None), "dlsym", None)
    watchers, modes = _address("_ZN2at12hasCallbacksEv"), _address("_ZN2at4impl27torch_function_mode_enabledEv")
    if core is None or find is None or not watchers or not modes:
        return False
    _fast.native.connect_dispatcher(ctypes.cast(find, ctypes.c_void_p).value, core._handle, watchers, modes)
    states: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(AttributeError):  # of torch's, which has it no more
            states.append(_fast.native.dispatch_state())
            with torch.inference_mode():
                states.append(_fast.native.dispatch_state())
            with torch._C._AutoDispatchBelowAutograd():
                states.append(_fast.native.dispatch_state())
            with torch.autocast("cpu"):
                states.append(_fast.native.dispatch_state())
            states.append(_fast.native.dispatch_state())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    if len(states) != 5 or len(set(states[:4])) != 4 or states[0] != (0, 0) or states[4] != (0, 0):
        return False
    _fast.native.accept_states(*states[:3])  # without autocast's, which may have to cast
    _fast.learn_class(torch.Tensor)
    return True


def _maker(kind: str) -> Optional[Callable[..., torch.Tensor]]:
    """Makes a tensor of a size, strides and a type, on the current device of a kind: torch's short
    way."""
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), f"_empty_strided_{kind}", None)


def _check(*given: Any) -> Optional[Callable[..., bool]]:
    """Says whether arguments are as these, which want no gradient: torch's check of compiled
    code's. It asks for the class, the dispatcher's keys, type, device, shape and strides. Where
    tensors are asked in C++, that is less than one such check."""
    guards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
    if guards is None or not all(isinstance(v, torch.Tensor) and not v.requires_grad and not v.is_neg() for v in given):
        return None
    shapes, strides = [list(v.shape) for v in given], [list(v.stride()) for v in given]
    return guards(*given, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check


_probe: Optional[torch.library.Library] = None


@functools.lru_cache(maxsize=None)
def _takes_scalars() -> bool:
    """Whether torch gives kernels in C the numbers of a SymInt. It is tried, since no function says
    so. The library stays: before 2.13 torch goes on listing operators that are gone, and then
    compiles nothing any more."""
    global _probe
    space = "accrt_probe"
    library = _probe = torch.library.Library(space, "FRAGMENT")
    library.define("scalar(SymInt n) -> SymInt")
    library.define("_scalar(SymInt n) -> SymInt")
    library.impl("_scalar", lambda n: n, "CompositeExplicitAutograd")
    _fast.native.Shim(space, "scalar", f"{space}::_scalar", "CompositeExplicitAutograd", 0, 0, ((_SCALAR, 0, 0),), ((_SCALAR, 0, 0),))
    try:
        return torch.ops.accrt_probe.scalar(7) == 7
    except RuntimeError:
        return False


def _fits(operator: "Operator") -> bool:
    """Whether a kernel in C can be an operator's: one that reads its inputs, none of which is a
    list."""
    found = _found()
    if not found or not operator.only_reads or operator.weights is not None or len(operator.inputs) > _INPUTS or len(operator.results) > _RESULTS:
        return False
    if _fast.native.kernels_left() < _MOST_KERNELS or any(_code(t.dtype) is None for _n, t in (*operator.tensors, *operator.results)):
        return False
    if any(optional for *_rest, optional in operator.inputs) and "torch_delete_stable_ivalue" not in found:
        return False
    return not operator.scalars or _takes_scalars()


class Kernels:
    """An operator's kernels in C, and the second operator that they go to: what it is in Python."""

    def __init__(self, operator: "Operator", library: torch.library.Library) -> None:
        self._operator, self._gpu_of, self._window = operator, None, None
        space, _, name = operator.name.partition("::")
        fallback = f"_{name}_in_python"
        library.define(fallback + operator.schema.removeprefix(name))
        library.impl(fallback, _noting(operator.run), "CPU")
        library.impl(fallback, _noting(operator.run_on_gpu), "CUDA")
        library.impl(fallback, torch.library.fallthrough_kernel, "Autograd")

        def declared(type_: Any, kind: int) -> tuple[int, int, int]:
            return (kind, 0, 0) if type_ is None else (kind, _code(type_.dtype), _cuda._DTYPES[type_.dtype])

        inputs = tuple(declared(type_, _SCALAR * (kind == "scalar") | _OPTIONAL * optional) for _n, kind, type_, optional in operator.inputs)
        results = tuple(declared(type_, 0) for _n, type_ in operator.results)
        self._host = _fast.native.Shim(space, name, f"{space}::{fallback}", "CPU", _device("cpu"), 0, inputs, results)
        self._gpu = None
        if {"aoti_torch_get_current_device_index", "aoti_torch_get_current_cuda_stream"} <= _found() and torch.cuda.is_available():
            capturing = ctypes.cast(_cuda._driver().cuStreamIsCapturing, ctypes.c_void_p).value
            self._gpu = _fast.native.Shim(space, name, f"{space}::{fallback}", "CUDA", _device("cuda"), capturing, inputs, results)
        else:
            library.impl(name, operator.run_on_gpu, "CUDA")
        _fast.learn_class(torch.Tensor)
        checker = () if _fast.asks_in_cpp else (_check,)
        for shim, place in ((self._host, "cpu"), (self._gpu, "cuda")):
            if shim is not None and _maker(place) is not None:
                shim.make_with(_maker(place), *checker)

    def shims(self) -> tuple[Any, Any]:
        """What may be called without torch's dispatcher: on processors, on GPUs."""
        return (self._host, self._gpu) if _knows_the_dispatcher() else (None, None)

    def learn(self, program: Any, given: Sequence[Any], made: Sequence[Any], seconds: float) -> None:
        """The next call on the host with these shapes is in C. seconds: that this one took."""
        if seconds < _SHORT and self._host.learn(*_shapes_of(given, made)) and self._host.lacks_lane(0):
            session = program.session()
            self._add(self._host, Call(session, session.function(self._operator.function)._prepared), 0)

    def learn_on_gpu(self, runner: _cuda.OnGpu, given: Sequence[Any], made: Sequence[Any]) -> None:
        """The same of the first GPU that there was a call on, and of the current stream."""
        stream = torch._C._cuda_getCurrentRawStream(runner.index)
        if self._gpu is None or self._gpu_of not in (None, runner) or torch._C._cuda_isCurrentStreamCapturing():
            return
        self._gpu_of = runner
        whole = all(v.is_contiguous() for v in given if isinstance(v, torch.Tensor))
        if self._gpu.learn(*_shapes_of(given, made)) and whole and self._gpu.lacks_lane(stream):
            call = _cuda.Lane(runner.program, stream).call(self._operator.function)
            try:
                runner.plan(call, (*given, *made))
            except Error:  # misaligned, say
                return
            self._add(self._gpu, call, stream)
        window = runner._window
        if window is not None and self._window is not window:
            self._window = window
            self._gpu.window(window, index(window.pointer), window.base, runner.index)

    @staticmethod
    def _add(shim: Any, call: Call, stream: int) -> None:
        shim.add_lane(call, index(call._pointer), stream)


def kernels(operator: "Operator", library: torch.library.Library) -> Optional[Kernels]:
    """Registers an operator's kernels in C; None: they cannot be had."""
    return Kernels(operator, library) if _fits(operator) else None


def _shapes_of(given: Sequence[Any], made: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Those of the inputs and of the results, and what the maker is called with for these."""
    shapes = tuple(tuple(v.shape) for v in made)
    return (tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in given), shapes,
            tuple((shape, v.stride(), v.dtype) for shape, v in zip(shapes, made)))


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch makes text of an exception that goes through a kernel in C. Entry gives callers the
    exception itself."""
    def called(*given: Any) -> Any:
        try:
            return function(*given)
        except BaseException as error:
            text = (str(error) or type(error).__name__)[:_TEXT].replace("\0", " ")
            _fast.native.note_error(error, text.encode(errors="replace").decode())
            raise

    return called


def _not_pickled(entry: Any) -> Any:
    raise TypeError("an operator of accrt.torch cannot be pickled: another process makes its own by accrt.torch.operator(path, function)")


if _fast.native is not None:
    copyreg.pickle(_fast.native.Entry, _not_pickled)


def enter(overload: Any, has_autograd: bool, kernels: Optional[Kernels], operator: "Operator", plan: Any) -> None:
    """Puts an Entry in front of what Python calls, or a function of Python where there is no
    Entry.

    has_autograd: there is Python code for gradients, which is left out where none is wanted.
    kernels: where they are in C. plan: of the backward, as _transforms.watched takes it.
    """
    names = ("_AutoDispatchBelowAutograd", "_len_torch_dispatch_stack", "_is_torch_function_mode_enabled", "_are_functorch_transforms_active")
    below, *states = [getattr(torch._C, name, None) for name in names]
    if not has_autograd or None in states:
        below, states = None, [bool] * 3
    shims = kernels.shims() if kernels is not None and _fast.native is not None else (None, None)
    graded = _transforms.graded(operator, overload, plan)
    for one in (overload, overload._overloadpacket):
        inner = one._op
        watched = _transforms.watched(operator, inner, plan)
        one._op = watched if _fast.native is None else _fast.native.Entry(
            inner, below, torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, tuple(states), shims, watched, _transforms.is_transformed,
            vars(_transforms.forward_ad), graded)
        with contextlib.suppress(AttributeError):
            # torch.jit.script knows operators by what is called
            torch.jit._builtins._register_builtin(one._op, overload._schema.name)
