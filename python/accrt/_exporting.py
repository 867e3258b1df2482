"""Calls torch.export as accrt.from_torch needs it: results of a dataclass get the names of its
fields, a model whose code asks for a tensor's values is refused by the line that asks, torch's own
checks of values are left out, and what the model writes keeps the values that it has before the
export."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import gc
import inspect
import logging
import os
import threading
import traceback
import types
import warnings
from typing import Any, Iterator, List, Optional, Set, Tuple

from . import _export_hints, _torch_ones, _torch_state
from ._library import describe

_PACKED = "their sizes are the content of a tensor: give the layer the padded sequences, and leave out what lies behind an end"
#: Held while torch's own checks are off, which are switched for all threads.
_CHECKS = threading.RLock()


def example_inputs(model: Any, args: Any) -> Any:
    """The positional example inputs as a tuple; a dict, which has them by name, as it is."""
    import torch

    if isinstance(args, (str, bytes, os.PathLike)):
        raise TypeError(f"args is {args!r}, expected example inputs: a path comes behind them, or as path=")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("model is of torch.jit, which torch.export does not take: give the module that it was made of")
    if isinstance(args, torch.Tensor):
        return (args,)
    if isinstance(args, collections.abc.Mapping):
        return args
    if not isinstance(args, collections.abc.Iterable) or hasattr(args, "__array__"):
        raise TypeError(f"args is {describe(args)}, expected example inputs: a tuple of tensors, one tensor, or a dict of tensors by name")
    return tuple(args)


def advice(model: Any) -> str:
    """For what is no module: what it may be, and what would help."""
    import torch

    if inspect.isroutine(model):
        return ": call a function in the forward of a module"
    if isinstance(model, type):
        return f": give an object of the class, as {model.__name__}(...)"
    if isinstance(model, torch.Tensor):
        return ": a state_dict has weights alone, which load_state_dict puts into a module"
    return ": accrt.from_torch.Method(model, args) has example inputs" if isinstance(model, tuple) else ""


def _fitting(model: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
    """Raises TypeError for example inputs that are no forward's, or no tensors."""
    import torch
    from torch.utils import _pytree as pytree

    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # it has none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"the example inputs (args, kwargs) do not fit {type(model).__name__}.forward{signature}: {error}") from None
    for value in pytree.tree_leaves((args, kwargs)):
        if hasattr(value, "__array__") and not isinstance(value, torch.Tensor):
            raise TypeError(f"an example input is {describe(value)}, expected a torch.Tensor: torch.as_tensor makes one")


def export(model: Any, args: Tuple[Any, ...], kwargs: Any, dynamic_shapes: Any) -> Any:
    """torch.export.export of a module, without gradients. The module is as before, then.

    Raises:
        TypeError: the inputs do not fit. UnsupportedOperations: a branch, a loop or a size depends on the content of a tensor. What
            torch.export raises.
    """
    import torch
    from ._torch_quantized import kept_packed
    from .from_torch.values import UnsupportedOperations
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
    from torch.utils import _pytree as pytree

    def missing(error: Exception, operation: str, why: str) -> UnsupportedOperations:
        where, line = _place(error) or ("", "")
        return UnsupportedOperations(type(model).__name__, [(operation, 1, where, f"{why}: {line}")])

    _fitting(model, args, kwargs)
    before = [(bits, bits.clone()) for bits in map(_bits, _others(model))]
    hook = model.register_forward_hook(lambda _module, _inputs, output: _plain(output)) if hasattr(model, "register_forward_hook") else None
    try:
        with torch.no_grad(), kept_packed(model), _without_checks(), _torch_state.kept(model, pytree.tree_leaves((args, kwargs))) as again:
            with _torch_ones.asking() as asked:
                program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)

            def restore() -> None:
                again()
                _restore(before)

            program._accrt_ones = _torch_ones.differing(program, [*asked, *_torch_ones.squeezed(program)], args, kwargs, model, restore)
            return program
    except GuardOnDataDependentSymNode as error:
        raise missing(error, "aten.item.default", "a branch, a loop or a size depends on the content of a tensor") from error
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = "value" if isinstance(error, DataDependentOutputException) else "size"
        raise missing(error, str(error.func), f"its {what} depends on the content of a tensor, which torch does not export") from error
    except UnsupportedOperatorException as error:
        if "nested" not in str(error.func):
            raise
        raise missing(error, str(error.func), "bundles have no nested tensors: pad them to one length, and give a mask") from error
    except RuntimeError as error:
        _export_hints.explained(error)
        if _export_hints.is_of_packed_sequences(error):
            raise missing(error, "packed sequences", _PACKED) from error
        if ".numpy() is not supported" not in str(error):
            raise
        raise missing(error, "Tensor.numpy", "a trace has no content: write torch's functions in the place of numpy's") from error
    except (TypeError, ValueError) as error:
        if not _export_hints.is_of_packed_sequences(error):
            raise
        raise missing(error, "packed sequences", _PACKED) from error
    finally:
        if hook is not None:
            hook.remove()
        _restore(before)


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Within, torch.distributions and the Gaussian likelihood do not look whether their numbers are
    valid, and the decoder of torch.nn does not look whether a mask is the causal one, which is a
    hint only: torch.export would refuse all of it, as it branches on values. And torch does not
    print the graph of an export that fails."""
    import torch
    from torch.distributions import Distribution
    from torch.export import _trace
    from torch.nn.modules import transformer

    likelihood, are_any = torch.nn.functional.gaussian_nll_loss, torch.any

    def unchecked(*args: Any, **kwargs: Any) -> Any:
        own = threading.get_ident()

        def no(*of: Any, **how: Any) -> Any:
            return False if threading.get_ident() == own else are_any(*of, **how)

        torch.any = no  # type: ignore[assignment]  # one function, which torch declares as overloads
        try:
            return likelihood(*args, **kwargs)
        finally:
            torch.any = are_any

    with _CHECKS:
        # Private names, which another torch may not have.
        changed = [(Distribution, "_validate_args", False), (transformer, "_detect_is_causal_mask", lambda mask, given=None, size=None: given is True),
                   (torch.nn.functional, "gaussian_nll_loss", unchecked), (_trace, "print", lambda *_text, **_how: None)]  # fmt: skip
        _trace.print = print  # type: ignore[attr-defined]  # torch's module has none: it calls the builtin
        logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
        logger.addFilter(_is_wanted)
        before = [(owner, name, getattr(owner, name)) for owner, name, _new in changed if hasattr(owner, name)]
        for owner, name, new in changed:
            if hasattr(owner, name):
                setattr(owner, name, new)
        try:
            with warnings.catch_warnings():
                # torch's own recurrent layers do so, and lose nothing by it
                warnings.filterwarnings("ignore", r"The tensor attributes? \S*\._flat_weights\[", UserWarning)
                yield
        finally:
            logger.removeFilter(_is_wanted)
            for owner, name, old in before:
                setattr(owner, name, old)


def _is_wanted(record: logging.LogRecord) -> bool:
    """All but what from_torch's own message says better."""
    return not str(record.msg).startswith("Unable to find user code")


def _restore(before: List[Tuple[Any, Any]]) -> None:
    """Gives tensors the content that they had: torch runs what a model writes to tensors that are
    no parameters or buffers while it traces, so its program would begin with what the trace left.
    """
    import torch

    with torch.no_grad():
        for tensor, content in before:
            if not torch.equal(tensor, content):
                tensor.copy_(content)


def _others(model: Any) -> Iterator[Any]:
    """The tensors that a model can reach and that are no parameters and no buffers, for which torch
    has stand-ins while it traces: its attributes, those in containers and objects, those of
    classes, and those outside that its code names. A buffer that is one of these too is there."""
    import torch

    # by id, and kept, so that no id comes again
    seen = {id(module._buffers): module._buffers for module in (model.modules() if isinstance(model, torch.nn.Module) else ())}
    found = [model]
    while found:
        item = found.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, types.ModuleType, torch.nn.Parameter)):
            continue
        seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            if type(item) in (torch.Tensor, torch.nn.Buffer) and item.layout == torch.strided and not item.is_meta:
                with torch.no_grad():
                    yield functools.reduce(_once, range(item.dim()), item)
        elif isinstance(item, types.FunctionType) and _is_own(item):
            found += [item.__globals__[name] for name in _names(item.__code__) & item.__globals__.keys()]
            found += item.__closure__ or ()
        elif isinstance(item, type) and _is_own(item):
            found += [*vars(item).values(), *item.__bases__]
        elif not isinstance(item, (types.FunctionType, type)):
            found += gc.get_referents(item)


def _bits(tensor: Any) -> Any:
    """The same memory as whole numbers, where torch can see it so: NaN differs from itself, and of
    some types nothing is compared or copied."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    is_other = tensor.is_complex() or tensor.is_quantized or tensor.is_neg() or tensor.element_size() not in kinds
    with torch.no_grad():
        return tensor if is_other else tensor.view(kinds[tensor.element_size()])


def _once(tensor: Any, dim: int) -> Any:
    """The tensor with one of the elements that an expanded dimension repeats."""
    return tensor.narrow(dim, 0, 1) if tensor.stride(dim) == 0 < tensor.size(dim) else tensor


def _names(code: types.CodeType) -> Set[str]:
    """The names outside of itself that a function's code uses, those of functions in it too."""
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _is_own(item: Any) -> bool:
    """Whether a class or a function is a model's: not one of torch, and not of Python."""
    return str(item.__module__).partition(".")[0] not in ("torch", "builtins", "typing", "collections", "abc")


def _plain(output: Any) -> Any:
    """A result of the model whose dataclasses, as far as torch has no way to go through them, are
    dicts by the names of their fields."""
    from torch.utils import _pytree as pytree

    if isinstance(output, type) or type(output) in pytree.SUPPORTED_NODES:
        return output
    if dataclasses.is_dataclass(output):
        return {item.name: _plain(getattr(output, item.name)) for item in dataclasses.fields(output)}
    return output


def _place(error: BaseException) -> Optional[Tuple[str, str]]:
    """The last line of an error's traceback that is not torch's own: as "folder/file:12, in
    forward", and its text."""
    import torch

    own = (os.path.dirname(torch.__file__) + os.sep, os.path.abspath(__file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not os.path.abspath(frame.filename).startswith(own)]
    if not frames:
        return None
    frame = frames[-1]
    return f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}, in {frame.name}", (frame.line or "").strip()
