"""A bundle's function as a torch.nn.Module, with the bundle's weights as its parameters."""
from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Optional, Sequence

import torch

from .._library import describe
from ..bundle import Bundle
from ..errors import Error
from ..program import Program
from ..tensor import Tensor
from . import _operator, _rules
from ._weights import Weights

#: What callers give in place of tensors. Others may be: torch.fx's proxies, say.
_NO_TENSORS = (list, tuple, dict, str, bytes, int, float, complex, Tensor)


class Module(torch.nn.Module):
    """A function of a bundle as a torch.nn.Module, on the host or on a GPU. Its parameters are the
    bundle's weights, under their names.

    The parameters are the memory that the program reads, on the host and, after `to("cuda")`, on a
    GPU, so changes take effect at once. If the program has a copy or a packed form of a weight, the
    next call makes it again (docs/torch.md has the cases); there, writes through `.data` take
    effect after `refresh()`. Quantized weights and weights outside of the bundle stay in it.

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
        if not isinstance(parameters, (Mapping, type(None))) or not all(isinstance(p, torch.Tensor) for p in (parameters or {}).values()):
            raise TypeError("parameters is no mapping from names of inputs to tensors")
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
        weights.owner = weakref.ref(self)
        self.accrt_weights, self.accrt_function, self.accrt_programs = weights, function, programs
        self._own(bundle, backward, made, parameters or {})
        self.accrt_backward = backward
        self._mark()
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
        self.accrt_scalars = {a.name for a in bundle.signature(self.accrt_function).inputs if a.kind == "scalar"}
        self.accrt_optional = [a.name for a in bundle.signature(self.accrt_function).inputs if a.optional]

    def _mark(self) -> None:
        """Without a backward, an optimizer that gets the parameters says that it leaves them."""
        if self.accrt_backward is not None:
            return
        for name in (*self.accrt_weights.names, *[n for n in self.accrt_inputs if n not in self.accrt_given]):
            parameter = _found(self, name, None)
            if isinstance(parameter, torch.Tensor) and parameter.is_floating_point():
                parameter.accrt_frozen = self._where()
        _watch_optimizers()

    def _where(self) -> str:
        return f"function {self.accrt_function!r} of {self.accrt_programs.bundle.info['name']!r}"

    def __setstate__(self, state: Any) -> None:
        """Of a copy, whose parameters are new."""
        super().__setstate__(state)
        self._mark()

    def extra_repr(self) -> str:
        return self._where() + (", no backward: nothing is trained" if self.accrt_backward is None else f", backward {self.accrt_backward!r}")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As torch's, for `to`, `cuda` and the like. On a GPU the weights are in the memory that
        the program reads there, one after the other: there is no second copy."""
        if self.accrt_weights.owner() is not self:  # a copy, which has memory of its own
            return super()._apply(fn, recurse)
        known = {id(_found(self, name, None)): at for at, name in enumerate(self.accrt_weights.names)}

        def applied(tensor: torch.Tensor) -> torch.Tensor:
            made = fn(tensor)
            at = known.get(id(tensor))
            return made if at is None or not made.is_cuda else self._lent(at, made)

        return super()._apply(applied, recurse)

    def _lent(self, at: int, made: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return made
        try:
            runner = self.accrt_programs.gpu(made.device.index)
        except Error:  # the first call says what is wrong
            return made
        with torch.no_grad(), torch.cuda.device(made.device):
            return self.accrt_weights.lent(runner.program, at, made)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        """As torch's. The counters of batch norms (`num_batches_tracked`), which serve training
        alone, are passed over."""
        if isinstance(state_dict, Mapping):
            own = self.state_dict().keys()
            state_dict = {name: value for name, value in state_dict.items() if name in own or str(name).rpartition(".")[2] != "num_batches_tracked"}
        return super().load_state_dict(state_dict, *args, **named)

    def refresh(self) -> None:
        """Lets the next call make again what the program has besides the parameters' memory, such
        as packed forms. Call it after writes through `.data`, which torch does not count."""
        self.accrt_weights.forget()

    def forward(self, *args: Any, **named: Any) -> Any:
        if len(args) > len(self.accrt_given):
            raise TypeError(f"{self.accrt_function}() takes {len(self.accrt_given)} input{'s'[:len(self.accrt_given) != 1]} ({', '.join(self.accrt_given)}), {len(args)} were given")
        values = dict(zip(self.accrt_given, args))
        for name, value in named.items():
            if name not in self.accrt_given or name in values:
                raise TypeError(f"{self.accrt_function}() got {name!r}" + (" twice" if name in values else f", and takes {', '.join(self.accrt_given)}"))
            values[name] = value
        for name, value in values.items():
            if name not in self.accrt_scalars and (isinstance(value, _NO_TENSORS) or hasattr(value, "__array_interface__")):
                more = ": torch.from_dlpack makes one" if hasattr(value, "__dlpack__") else ""
                raise TypeError(f"{self.accrt_function}(): {name} is {describe(value)}, expected a torch.Tensor{more}")
        missing = [n for n in self.accrt_given if n not in values and n not in self.accrt_optional]
        if missing:
            raise TypeError(f"{self.accrt_function}() misses {', '.join(missing)}")
        given = [values.get(n) if n in self.accrt_given else _found(self, n) for n in self.accrt_inputs]
        try:
            return self.accrt_operator(*given, [_found(self, n) for n in self.accrt_weights.names])
        except NotImplementedError as error:  # of a jagged tensor, which is a class of its own
            raise _rules.of_layout(f"{self.accrt_function}()", values) or error from None


@functools.lru_cache(maxsize=None)
def _watch_optimizers() -> None:
    """Once: before a step of any optimizer of torch's."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    register_optimizer_step_pre_hook(_warn_of_frozen)


def _warn_of_frozen(optimizer: Any, _args: Any, _named: Any) -> None:
    """Of parameters that have no gradient since their module has no backward: once for each
    optimizer, and not where the caller said requires_grad_(True), which fails in backward()."""
    if optimizer.__dict__.get("accrt_warned"):
        return
    optimizer.accrt_warned = True
    frozen = {text for group in optimizer.param_groups for p in group["params"] if not p.requires_grad and (text := getattr(p, "accrt_frozen", ""))}
    for text in sorted(frozen):
        warnings.warn(f"accrt.torch.Module of {text} has no backward, so {type(optimizer).__name__} leaves its parameters as they are: compile the bundle "
                      "with a backward function (docs/torch.md, Training), or leave them out of the optimizer", stacklevel=4)


def _found(module: torch.nn.Module, name: str, *default: Any) -> Any:
    """What stands under a name with points: a parameter, or the tensor that stands in for it
    (torch.func.functional_call)."""
    value: Any = module
    for word in name.split("."):
        value = getattr(value, word, *default)
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
