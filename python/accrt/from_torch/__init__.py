"""From a torch model to a bundle that runs without torch.

    import accrt
    accrt.from_torch(model, example_inputs, "model.accx")

The call exports the model with torch.export, lowers the export's own graph to the reference
compiler's IR, and compiles that. `convert` gives the IR alone. docs/from-torch.md is the guide,
with the table of operations.

What stands where: table.py has the functions by operation, ops_*.py the operations, lowering.py
goes through one graph, exported.py makes inputs, weights, states and results of an ExportedProgram,
sizes.py has the sizes of inputs, values.py has what a node of the graph may be.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from .exported import convert, exported, Method
from .values import UnsupportedOperations

__all__ = ["Method", "UnsupportedOperations", "convert", "exported", "from_torch"]


def from_torch(
    model: Any,
    args: Union[Tuple[Any, ...], Sequence[Any], Mapping[str, Any], Any] = (),
    path: Union[None, str, "os.PathLike[str]"] = None,
    *,
    kwargs: Optional[Mapping[str, Any]] = None,
    dynamic_shapes: Any = None,
    name: str = "",
    maximum: int = 1 << 16,
    **options: Any,
) -> Any:
    """Makes a bundle of a torch model.

    Args:
        model: a torch.nn.Module (in eval mode where it has dropout or batch norms), a
            torch.export.ExportedProgram, the path of a .pt2 file, or a dict from names of functions
            to any of these (or to a Method, which has arguments of its own). Functions of one dict
            share weights and written buffers that have one name.
        args: example inputs of a module: a tuple; one tensor; or a dict, which is taken as
            `kwargs`. Not used for programs.
        path: where the bundle is written; None: the bundle is opened and returned.
        kwargs: example inputs by name.
        dynamic_shapes: which dimensions vary, as torch.export takes it. Their sizes go from 1 to
            the Dim's max, or to maximum if that is less.
        name: of the bundle; default: the model's class.
        maximum: of each dimension that varies.
        options: of accrt.compiler.compile: targets, quantize, external, assets, signer,
            target_caps.
    Returns:
        accrt.Bundle of what was written, or of the bundle in memory.
    Raises:
        UnsupportedOperations: what has no lowering, in one list: each operation, how often, and
            where the model calls it.
        ImportError: torch is missing. TypeError, ValueError: an argument. What torch.export raises.
    """
    from .. import Bundle
    from .._library import known_options
    from ..compiler import compile

    known_options("from_torch", options, from_torch, compile)
    module = convert(model, args, kwargs=kwargs, dynamic_shapes=dynamic_shapes, name=name, maximum=maximum)
    if path is None:
        return Bundle(compile(module, **options))
    compile(module, path, **options)
    return Bundle(path)


class _Callable(types.ModuleType):
    """This package is what `accrt.from_torch` is, so it can be called: accrt.from_torch(model,
    inputs)."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return from_torch(*args, **named)


sys.modules[__name__].__class__ = _Callable
