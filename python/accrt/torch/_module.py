"""A bundle's function as a torch.nn.Module, with the bundle's weights as its parameters."""
from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Container, Optional, Sequence

import torch

from ..bundle import Bundle
from ..program import Program
from . import _operator, _shapes


_PLAIN = 0  # of Constant.encoding: no layout of its own


class Weights:
    """The weights that come as tensors with each call. Each program has a copy, which is made anew
    where they have changed since."""

    def __init__(self, bundle: Bundle, names: Optional[Container[str]] = None) -> None:
        """names: those alone; the others stay as the bundle has them."""
        self.known = [c for c in bundle.constants if not c.prepared and not c.external and c.encoding == _PLAIN
                      and c.dtype in _shapes.DTYPES and (names is None or c.name in names)]
        self.names = [c.name for c in self.known]
        self._bundle = bundle
        self._lock = threading.Lock()  # a program's weights are those of one call at a time
        # what a new program has: (the tensor without its history, its version)
        self._first: list[Any] = [None] * len(self.known)
        self._seen: dict[Program, list[Any]] = {}  # and what those have that are there

    def __deepcopy__(self, memo: Any) -> Weights:
        return self  # a copied module has parameters of its own, and they come with each call

    def tensors(self) -> list[torch.Tensor]:
        """The bundle's own, as tensors of their own memory."""
        made = []
        for constant in self.known:
            tensor = torch.empty(constant.shape, dtype=_shapes.DTYPES[constant.dtype])
            if constant.size_bytes:
                with warnings.catch_warnings():
                    # that the bytes cannot be written: they are copied
                    warnings.simplefilter("ignore")
                    raw = torch.frombuffer(self._bundle.constant_bytes(constant.name), dtype=torch.uint8)
                tensor.view(-1).view(torch.uint8).copy_(raw)
            made.append(tensor)
        return made

    def remember(self, tensors: Sequence[torch.Tensor]) -> None:
        """The bundle has these."""
        self._first = [mark(tensor) for tensor in tensors]

    def forget(self) -> None:
        with self._lock:
            self._first = [None] * len(self.known)
            self._seen = {}

    def check(self, where: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != len(self.known):
            raise ValueError(f"{where}: {len(tensors)} weights were given, and it has {len(self.known)}")
        for constant, tensor in zip(self.known, tensors):
            if tensor.dtype != _shapes.DTYPES[constant.dtype] or tuple(tensor.shape) != constant.shape:
                raise TypeError(f"{where}: weight {constant.name} is {tensor.dtype} {list(tensor.shape)}, and {constant.dtype}{list(constant.shape)} "
                                "is needed")

    def run(self, program: Program, tensors: Sequence[torch.Tensor], call: Callable[[], None], gpu: Optional[int] = None) -> None:
        """Calls `call` when the program has these weights. gpu: whose stream may still write
        them."""
        with self._lock:
            seen = self._seen.get(program)
            if seen is None:
                seen = self._seen[program] = self._first
                self._first = [None] * len(self.known)  # those tensors may go now
            changed = {at: mark(tensor) for at, tensor in enumerate(tensors) if not same(seen[at], tensor)}
            if changed:
                if gpu is not None:
                    _settle(gpu)
                program.swap_weights({self.names[at]: new[0].contiguous() for at, new in changed.items()})
                for at, new in changed.items():
                    seen[at] = new
            call()


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
    return tensor.detach(), None if tensor.is_inference() else tensor._version


def same(before: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor is what `mark` was made of, and unchanged."""
    if before is None or tensor.is_inference() or before[1] != tensor._version:
        return False
    return before[0].data_ptr() == tensor.data_ptr() and before[0].stride() == tensor.stride()


class Module(torch.nn.Module):
    """A function of a bundle as a torch.nn.Module, on the host or on a GPU. Its parameters are the
    bundle's weights, under their names.

    Changes of parameters (an optimizer's step, load_state_dict) are seen by the next call, which
    gives them to the runtime; what is written through `.data` is seen after `refresh()`. Quantized
    weights and weights outside of the bundle stay in it.

    Args:
        bundle: a path, or an accrt.Bundle. function: its name; default: "forward", or the only one.
        backward: the function that is its backward, as `accrt.torch.operator` has it; its result
            `grad_w` of a weight w makes that parameter trainable. Default: the function's name with
            "_backward" behind it, if there is such a function.
        parameters: inputs of the function that are parameters of the module too, by name, with
            their first values: factors of adapters, for example. They are trainable if the backward
            gives their gradient. They are not arguments of the module's calls.
        name: of the operator that is registered.
    """

    def __init__(self, bundle: Any, function: str = "", *, backward: Optional[str] = None,
                 parameters: Optional[Mapping[str, torch.Tensor]] = None, name: str = "") -> None:
        super().__init__()
        if isinstance(bundle, Program):
            raise TypeError("bundle is a Program, whose weights others may use: give its path, or an accrt.Bundle")
        programs = _operator.Programs(bundle)
        bundle = programs.bundle
        names = bundle.function_names()
        if not function:
            function = "forward" if "forward" in names or not names else names[0]
            if function not in names or len([n for n in names if n != f"{function}_backward"]) != 1 and function != "forward":
                raise ValueError(f"the bundle has the functions {', '.join(names) or 'none'}: say which")
        backward = f"{function}_backward" if backward is None and f"{function}_backward" in names else backward
        weights = Weights(bundle)
        made = weights.tensors()
        weights.remember(made)
        self.accrt_weights, self.accrt_function = weights, function
        self._own(bundle, backward, made, parameters or {})
        base = name or _operator.default_name(bundle, function)
        self.accrt_operator = _operator.register(programs, function, backward, base if name else _operator.free_name(base), weights)

    def _own(self, bundle: Bundle, backward: Optional[str], made: Sequence[torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
        gradients = {r.name[5:] for r in bundle.signature(backward).results} if backward else set()
        inputs = [a.name for a in bundle.signature(self.accrt_function).inputs]
        unknown = [n for n in parameters if n not in inputs]
        if unknown:
            raise ValueError(f"parameters has {unknown[0]!r}, which is no input of {bundle.signature(self.accrt_function)}")
        for name, tensor in [*zip(self.accrt_weights.names, made), *parameters.items()]:
            trained = name in gradients and tensor.is_floating_point()
            _put(self, name, torch.nn.Parameter(tensor.detach(), requires_grad=trained))
        self.accrt_inputs, self.accrt_given = inputs, [n for n in inputs if n not in parameters]
        self.accrt_optional = [a.name for a in bundle.signature(self.accrt_function).inputs if a.optional]

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        """As torch's. The counters of batch norms (`num_batches_tracked`), which serve training
        alone, are passed over."""
        own = self.state_dict().keys()
        kept = {name: value for name, value in state_dict.items() if name in own or name.rpartition(".")[2] != "num_batches_tracked"}
        return super().load_state_dict(kept, *args, **named)

    def refresh(self) -> None:
        """All parameters are given to the runtime anew by the next call: after writes that torch
        does not count, through `.data`."""
        self.accrt_weights.forget()

    def forward(self, *args: Any, **named: Any) -> Any:
        if len(args) > len(self.accrt_given):
            raise TypeError(f"{self.accrt_function}() takes {len(self.accrt_given)} inputs ({', '.join(self.accrt_given)}), {len(args)} were given")
        values = dict(zip(self.accrt_given, args))
        for name, value in named.items():
            if name not in self.accrt_given or name in values:
                raise TypeError(f"{self.accrt_function}() got {name!r}" + (" twice" if name in values else f", and takes {', '.join(self.accrt_given)}"))
            values[name] = value
        missing = [n for n in self.accrt_given if n not in values and n not in self.accrt_optional]
        if missing:
            raise TypeError(f"{self.accrt_function}() misses {', '.join(missing)}")
        given = [values.get(n) if n in self.accrt_given else _found(self, n) for n in self.accrt_inputs]
        return self.accrt_operator(*given, [_found(self, n) for n in self.accrt_weights.names])


def _found(module: torch.nn.Module, name: str) -> Any:
    """What stands under a name with points: a parameter, or the tensor that stands in for it
    (torch.func.functional_call)."""
    value: Any = module
    for word in name.split("."):
        value = getattr(value, word)
    return value


def _put(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Under a name with points, in modules of these names, as the model had it that the bundle was
    made of."""
    *folders, last = name.split(".")
    for folder in folders:
        if not isinstance(getattr(module, folder, None), torch.nn.Module):
            module.add_module(folder, torch.nn.Module())
        module = getattr(module, folder)
    module.register_parameter(last, parameter)
