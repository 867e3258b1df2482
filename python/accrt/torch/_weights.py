"""The weights of a bundle that are tensors of torch: shared with the runtime where they lie as it
needs them, and else copied when they change."""
from __future__ import annotations

import json
import mmap
import threading
import warnings
from typing import Any, Callable, Container, Optional, Sequence

import torch

from ..bundle import Bundle
from ..errors import UnsupportedError, UntrustedError
from ..program import Program
from ..weights import Weights as Source
from . import _shapes

_PLAIN = 0  # of Constant.encoding: no layout of its own
_ALIGNED = 256  # bytes: where the runtime uses a weight in place
_CODES = {"bool": "BOOL", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64", "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "f16": "F16",
          "bf16": "BF16", "f32": "F32", "f64": "F64"}


class Shared:
    """Memory that tensors of torch and the host's program both use: laid out as a safetensors file,
    which the program takes weights from without a copy. Private to this process, also when it
    forks."""

    def __init__(self, bundle: Bundle, constants: Sequence[Any]) -> None:
        table, end, places = {}, 0, []
        for constant in constants:
            start = -(-end // _ALIGNED) * _ALIGNED
            if start > end:  # a file has no holes
                table[f"padding of {constant.name}"] = {"dtype": "U8", "shape": [start - end], "data_offsets": [end, start]}
            end = start + constant.size_bytes
            table[constant.name] = {"dtype": _CODES[constant.dtype], "shape": list(constant.shape), "data_offsets": [start, end]}
            places.append(start)
        header = json.dumps(table).encode()
        header += b" " * (-(8 + len(header)) % _ALIGNED)
        self._memory = mmap.mmap(-1, 8 + len(header) + end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[:8 + len(header)] = len(header).to_bytes(8, "little") + header
        self.tensors = []
        for constant, place in zip(constants, places):
            at = 8 + len(header) + place
            self._memory[at:at + constant.size_bytes] = bundle.constant_bytes(constant.name) if constant.size_bytes else b""
            dtype = _shapes.DTYPES[constant.dtype]
            count = constant.size_bytes // dtype.itemsize
            flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
            self.tensors.append(flat.view(constant.shape))
        self._addresses = [tensor.data_ptr() for tensor in self.tensors]
        self.source = Source(self._memory, bundle.instance)

    def has(self, at: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor is this memory, as the weight lies there."""
        return tensor.data_ptr() == self._addresses[at] and tensor.is_contiguous() and not tensor.is_cuda


class Weights:
    """The weights that come as tensors with each call.

    On the host, tensors of `tensors()` are the memory that the program reads: a change is there at
    once, and what prepare functions make of it (packed layouts) is made anew by the next call. On a
    GPU those of `lent()` are. Of other tensors a program has a copy, which is made anew where they
    have changed.
    """

    def __init__(self, bundle: Bundle, names: Optional[Container[str]] = None) -> None:
        """names: those alone; the others stay as the bundle has them."""
        constants = bundle.constants
        self.known = [c for c in constants if not c.prepared and not c.external and c.encoding == _PLAIN
                      and c.dtype in _shapes.DTYPES and (names is None or c.name in names)]
        self.names = [c.name for c in self.known]
        self._bundle = bundle
        # what prepare functions read, and pack: their inputs have the weights' names, or else all
        # may be
        packed = {a.name for name in bundle.function_names(internal=True) for signature in [bundle.signature(name)] if signature.prepare
                  for a in signature.inputs}
        known = packed <= {c.name for c in constants}
        self._packed = {at for at, name in enumerate(self.names) if name in packed or not known}
        self._lock = threading.Lock()  # a program's weights are those of one call at a time
        # what a new program has: (the tensor without its history, its version)
        self._first: list[Any] = [None] * len(self.known)
        self._seen: dict[Program, list[Any]] = {}  # and what those have that are there
        self._shared: Optional[Shared] = None
        self._joined: dict[Program, set[int]] = {}  # whose weights are in the shared memory
        #: The module whose parameters may be in a program's memory.
        self.owner: Callable[[], Any] = lambda: None
        #: Addresses of weights whose memory a program has lent, and reads.
        self._lent: dict[Program, dict[int, int]] = {}

    def __deepcopy__(self, memo: Any) -> Weights:
        return self  # a copied module has parameters of its own, and they come with each call

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an accrt.torch.Module cannot be pickled: save its state_dict(), make it anew of its bundle by accrt.torch.Module(path), "
                        "and load_state_dict()")

    def tensors(self) -> list[torch.Tensor]:
        """The bundle's own as tensors that may be written: shared with the program on the host,
        unless the instance takes no weights without a signature."""
        try:
            self._shared = Shared(self._bundle, self.known) if self.known else None
        except UntrustedError:
            return [self._copied(constant) for constant in self.known]
        return self._shared.tensors if self._shared is not None else []

    def _copied(self, constant: Any) -> torch.Tensor:
        tensor = torch.empty(constant.shape, dtype=_shapes.DTYPES[constant.dtype])
        if constant.size_bytes:
            with warnings.catch_warnings():
                # that the bytes cannot be written: they are copied
                warnings.simplefilter("ignore")
                raw = torch.frombuffer(self._bundle.constant_bytes(constant.name), dtype=torch.uint8)
            tensor.view(-1).view(torch.uint8).copy_(raw)
        return tensor

    def remember(self, tensors: Sequence[torch.Tensor]) -> None:
        """The bundle has these."""
        self._first = [mark(tensor) for tensor in tensors]

    def forget(self) -> None:
        with self._lock:
            self._first = [None] * len(self.known)
            self._seen = {}

    def lent(self, program: Program, at: int, values: torch.Tensor) -> torch.Tensor:
        """The same values in the memory that the program reads, to be written in place; or they
        themselves, where there is none: the program has a packed form of the weight, say."""
        constant = self.known[at]
        if values.dtype != _shapes.DTYPES[constant.dtype] or tuple(values.shape) != constant.shape or not values.numel():
            return values
        with self._lock:
            try:
                memory = torch.from_dlpack(program._weight(self.names[at]))
            except UnsupportedError:
                return values
            if memory.data_ptr() != values.data_ptr():
                memory.copy_(values.detach())
            seen = self._seen.setdefault(program, [None] * len(self.known))
            self._first = [None] * len(self.known)
            self._lent.setdefault(program, {})[at] = memory.data_ptr()
            seen[at] = mark(memory)
            return memory

    def check(self, where: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != len(self.known):
            raise ValueError(f"{where}: {len(tensors)} weights were given, and it has {len(self.known)}")
        for constant, tensor in zip(self.known, tensors):
            if tensor.dtype != _shapes.DTYPES[constant.dtype] or tuple(tensor.shape) != constant.shape:
                more = "" if tensor.dtype == _shapes.DTYPES[constant.dtype] else ": the bundle has the types that the model had when it was made"
                raise TypeError(f"{where}: weight {constant.name} is {tensor.dtype} {list(tensor.shape)}, and {constant.dtype}{list(constant.shape)} "
                                f"is needed{more}")

    def run(self, program: Program, tensors: Sequence[torch.Tensor], call: Callable[[], None], gpu: Optional[int] = None) -> None:
        """Calls `call` when the program has these weights. gpu: whose stream may still write
        them."""
        with self._lock:
            seen = self._seen.get(program)
            if seen is None:
                seen = self._seen[program] = self._first
                self._first = [None] * len(self.known)  # those tensors may go now
                if gpu is None and self._shared is not None:
                    self._join(program, [at for at, tensor in enumerate(tensors) if at not in self._packed and self._shared.has(at, tensor)])
            changed = {at: mark(tensor) for at, tensor in enumerate(tensors) if not same(seen[at], tensor)}
            for at in changed:
                if not has_memory(tensors[at]):
                    raise RuntimeError(f"weight {self.names[at]} has no memory: its storage has {tensors[at].untyped_storage().nbytes()} bytes")
            if changed:
                self._take(program, tensors, changed, gpu)
                for at, new in changed.items():
                    seen[at] = new
            call()

    def _take(self, program: Program, tensors: Sequence[torch.Tensor], changed: dict[int, Any], gpu: Optional[int]) -> None:
        lent = self._lent.get(program, {})
        # what is written there is there; no prepare function reads it
        there = {at for at in changed if lent.get(at) == tensors[at].data_ptr() and tensors[at].is_contiguous()}
        own = [at for at in changed if gpu is None and self._shared is not None and self._shared.has(at, tensors[at])]
        joined = self._joined.setdefault(program, set())
        self._join(program, [at for at in own if at in self._packed or at not in joined])
        others = {self.names[at]: new[0].contiguous() for at, new in changed.items() if at not in own and at not in there}
        if others:
            if gpu is not None:
                _settle(gpu)
            program.swap_weights(others)
            elsewhere = [at for at in changed if at not in own and at not in there]
            joined.difference_update(elsewhere)
            for at in elsewhere:
                lent.pop(at, None)

    def _join(self, program: Program, which: Sequence[int]) -> None:
        """The program reads these weights in the shared memory from now on."""
        if which:
            program.load_weights(self._shared.source, names=[self.names[at] for at in which], by_name=True)  # type: ignore[union-attr]
            self._joined.setdefault(program, set()).update(which)


def _settle(gpu: int) -> None:
    """The runtime takes weights in an order of its own: what torch has enqueued so far comes
    first."""
    with torch.cuda.device(gpu):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("weights have changed since the last call, and a CUDA graph that is being captured cannot take them: call the module once "
                               "before the capture")
        torch.cuda.synchronize()


def mark(tensor: torch.Tensor) -> Any:
    """What says later whether a tensor is the same, with the same content. It keeps the memory, so
    that no other tensor gets its address."""
    return tensor.detach(), None if tensor.is_inference() else tensor._version, tensor.data_ptr()


def same(before: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor is what `mark` was made of, unchanged and in the same memory."""
    if before is None or tensor.is_inference() or before[1] != tensor._version:
        return False
    return before[0].data_ptr() == tensor.data_ptr() == before[2] and before[0].stride() == tensor.stride()


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the storage reaches as far as the tensor: one that was resized since may not."""
    if not tensor.numel():
        return True
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()
