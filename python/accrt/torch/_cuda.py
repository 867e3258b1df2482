"""A program on one of torch's GPUs: its functions are enqueued on torch's current stream, on
tensors where they lie. Nothing is copied, and no thread waits. docs/decisions/torch-on-gpus.md has
the reasons.

torch orders memory by streams: what is freed is used again by later work of the stream alone. The
work is on that stream when a call returns, so nothing has to be kept for it. Memory of accrt's own
that the work needs belongs to a session, and each session has one stream.
"""
from __future__ import annotations

import ctypes
import functools
import operator
import threading
from typing import Any, Callable, Optional, Sequence

import torch

from .. import _fast
from .._library import check, lib
from .._system import open_library
from .._waits import apart, SLICE_NS
from .._window import Window
from ..call import Call
from ..program import Program
from ..stream import Stream
from ..tensor import contiguous_strides, dtype_id, View
from . import _shapes

_QUICK_INPUTS = 16  # as python/native/enqueue.c has it
_DTYPES = {theirs: dtype_id(name) for name, theirs in _shapes.DTYPES.items()}


class Lane:
    """A session on one of torch's streams, and its calls. One thread has it at a time."""

    __slots__ = ("session", "calls", "quick")

    def __init__(self, program: Program, stream: int) -> None:
        self.session = program.session(stream=Stream.wrap(program.device, stream))
        self.calls: dict[str, Call] = {}
        self.quick: dict[str, Any] = {}  # function: native.Enqueuer

    def call(self, function: str) -> Call:
        found = self.calls.get(function)
        if found is None:
            found = self.calls[function] = Call(self.session, self.session.function(function)._prepared)
        return found


class OnGpu:
    """A program, and lanes of it on as many streams, for as many threads, as there are."""

    def __init__(self, program: Program, index: int) -> None:
        self.program, self.index = program, index
        self._idle: dict[int, list[Lane]] = {}
        self._window: Optional[Window] = None
        _fast.learn(torch.empty(0))

    def __call__(self, function: str, values: Sequence[Any], prepare: Optional[Callable[[], Sequence[Any]]] = None) -> None:
        """Enqueues the function. values: its arguments and results: tensors, numbers, None.
        prepare: gives them contiguous and aligned, on this GPU; without it, they are."""
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(function, values, prepare)
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        if torch._C._cuda_isCurrentStreamCapturing():
            captured(stream).enqueue(self, stream, function, values, prepare)
            return
        lanes = self._idle.get(stream)
        try:
            lane = lanes.pop()  # type: ignore[union-attr]
        except (AttributeError, IndexError):
            collect()
            lanes = self._idle.setdefault(stream, [])
            lane = Lane(self.program, stream)
        self.enqueue(lane, function, values, prepare)
        lanes.append(lane)  # type: ignore[union-attr]  # not after a failure: the next call begins anew

    def enqueue(self, lane: Lane, function: str, values: Sequence[Any], prepare: Optional[Callable[[], Sequence[Any]]]) -> None:
        quick = lane.quick.get(function)
        if quick is None or not quick(*values):
            self._in_steps(lane, function, values if prepare is None else prepare())

    def _in_steps(self, lane: Lane, function: str, values: Sequence[Any]) -> None:
        """In many steps, of which each says what is wrong."""
        call = lane.call(function)
        window = self.plan(call, values)
        check(lib.accrt_call_submit(call.handle, None, 0, None, 0))
        if _fast.native is not None:
            pointer = call.handle
            lane.quick[function] = _fast.native.Enqueuer(pointer, operator.index(pointer), window, operator.index(window.pointer), window.base,
                                                         *self.program.device.info.dlpack_device)

    def plan(self, call: Call, values: Sequence[Any]) -> Window:
        """Binds what is contiguous and aligned, and makes the plan, so that a submission waits for
        nothing. Gives the memory that all is in."""
        window = self._window
        places = [v.data_ptr() for v in values if isinstance(v, torch.Tensor) and v.numel()]
        if window is None and not places:
            # all are empty: there has to be some memory that they have none of
            places = [torch.empty(1, device=torch.device("cuda", self.index)).data_ptr()]
        if window is None or places and min(places) < window.base:
            window = self._window = Window(self.program.device, min(places))
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                offset = value.data_ptr() - window.base if value.numel() else 0
                view = View(window.pointer, None, offset, _DTYPES[value.dtype], value.shape, contiguous_strides(value.shape), window)
                check(lib.accrt_call_set_tensor(call.handle, index, ctypes.byref(view.c)))
            elif value is None:
                check(lib.accrt_call_set_tensor(call.handle, index, None))
            else:
                check(lib.accrt_call_set_scalar(call.handle, index, value))
        if not call._plan_within(SLICE_NS):
            apart(call._plan)
        return window

    def quick(self, function: str, inputs: int) -> Any:
        """What does a whole call of a function in C, once it has been called: accrt._native.Quick;
        None: nothing does."""
        if _fast.native is None or inputs > _QUICK_INPUTS:
            return None
        capturing = ctypes.cast(_driver().cuStreamIsCapturing, ctypes.c_void_p).value
        return _fast.native.Quick(self._idle, function, inputs, torch._C._cuda_getCurrentRawStream, (self.index,), _maker(), _fast.native.Enqueuer,
                                  capturing)


@functools.lru_cache(maxsize=None)
def _maker() -> Callable[..., torch.Tensor]:
    """Makes a tensor of a size, strides and a type on the current GPU: torch's own short way where
    there is one GPU and it is there."""
    short = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
    return short if short is not None and torch.cuda.device_count() == 1 else torch.empty_strided


def spec(shape: Sequence[int], dtype: torch.dtype, index: int) -> tuple[Any, Any]:
    """What the maker is called with."""
    size = tuple(shape)
    if _maker() is torch.empty_strided:
        return (size, contiguous_strides(size)), {"dtype": dtype, "device": torch.device("cuda", index)}
    return (size, contiguous_strides(size), dtype), None


# ---- Graphs that torch captures

class _Captured:
    """What the calls of one captured graph need, for as long as the graph is there. Calls of one
    function on one stream, on arguments of the same shapes, share a session: they run one after the
    other, in the same memory.

    CUDA posts a semaphore when the graph and what was made of it are gone: a C function, which
    needs neither the interpreter nor its lock. The semaphore is malloc's, because the process may
    end before that.
    """

    def __init__(self, graph: int) -> None:
        self.lanes: dict[Any, Lane] = {}
        self._gone = ctypes.c_void_p(_libc().calloc(1, 64))  # a sem_t of value 0
        _libc().sem_init(self._gone, 0, 0)
        made, post = ctypes.c_void_p(), ctypes.cast(_libc().sem_post, ctypes.c_void_p)
        _cuda_check("cuUserObjectCreate", _driver().cuUserObjectCreate(ctypes.byref(made), self._gone, post, 1, 1))
        _cuda_check("cuGraphRetainUserObject", _driver().cuGraphRetainUserObject(ctypes.c_void_p(graph), made, 1, 1))

    def is_gone(self) -> bool:
        value = ctypes.c_int()
        _libc().sem_getvalue(self._gone, ctypes.byref(value))
        return value.value > 0

    def end(self) -> None:
        _libc().free(self._gone)

    def enqueue(self, runner: OnGpu, stream: int, function: str, values: Sequence[Any], prepare: Optional[Callable[[], Sequence[Any]]]) -> None:
        key = (runner, stream, function, tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in values))
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(runner.program, stream)
        runner.enqueue(lane, function, values, prepare)


_captures: dict[int, _Captured] = {}  # by CUDA's number of the capture
_capturing = threading.Lock()


def captured(stream: int) -> _Captured:
    """What belongs to the capture that this stream is in."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    _cuda_check("cuStreamGetCaptureInfo", _driver().cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number),
                                                                              ctypes.byref(graph), None, None))
    found = _captures.get(number.value)
    if found is None:
        collect()
        with _capturing:
            found = _captures[number.value] = _captures.get(number.value) or _Captured(graph.value or 0)
    return found


def collect() -> None:
    """Gives back what graphs had that are gone."""
    if _captures:
        with _capturing:
            for number in [n for n, one in _captures.items() if one.is_gone()]:
                _captures.pop(number).end()


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    return open_library("libcuda.so.1")


@functools.lru_cache(maxsize=None)
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.calloc.restype, libc.calloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    return libc


def _cuda_check(name: str, result: int) -> None:
    if result:
        raise RuntimeError(f"{name} gave {result}, of CUDA's driver")
