"""From an ONNX model to a bundle that runs without onnx.

    import accrt
    accrt.from_onnx("model.onnx", "model.accx")

The call lowers the model's graph to the reference compiler's IR, and compiles that. `convert` gives
the IR alone. docs/from-onnx.md is the guide, with the table of operations.

What stands where: table.py has the functions by operation, ops_*.py the operations, lowering.py
goes through a graph, folding.py calculates what is known, convert.py makes inputs, weights and
results, values.py has what a name of the graph may be. Masks, failures and what torch has alike are
from_torch's.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Mapping, Optional, Union

from .convert import convert, Method, Range
from .values import UnsupportedOperations

__all__ = ["Method", "UnsupportedOperations", "convert", "from_onnx"]


def from_onnx(
    model: Any,
    path: Union[None, str, "os.PathLike[str]"] = None,
    *,
    sizes: Optional[Mapping[str, Range]] = None,
    constants: Optional[Mapping[str, Any]] = None,
    name: str = "",
    maximum: int = 1 << 16,
    **options: Any,
) -> Any:
    """Makes a bundle of an ONNX model.

    Args:
        model: an onnx.ModelProto, the path of a .onnx file (with its external data beside it), or a
            dict from names of functions to any of these (or to a Method, which has sizes and
            constants of its own). Functions of one dict share weights that have one name and
            content.
        path: where the bundle is written; None: the bundle is opened and returned.
        sizes: of dimensions that vary, by their name in the model: one size, or (least, most).
        constants: arrays by the name of an input: the input is no input of the bundle, and may
            decide shapes.
        name: of the bundle; default: the file's, or the graph's.
        maximum: of a dimension that varies and stands not in `sizes`.
        options: of accrt.compiler.compile: targets, quantize, external, assets, signer,
            target_caps.
    Returns:
        accrt.Bundle of what was written, or of the bundle in memory.
    Raises:
        UnsupportedOperations: what has no lowering, in one list: each operation, how often, and the
            first node.
        ImportError: onnx is missing. TypeError, ValueError: an argument. OSError: the file.
    """
    from .. import Bundle
    from .._library import known_options
    from ..compiler import compile

    known_options("from_onnx", options, from_onnx, compile)
    module = convert(model, sizes=sizes, constants=constants, name=name, maximum=maximum)
    if path is None:
        return Bundle(compile(module, **options))
    compile(module, path, **options)
    return Bundle(path)


class _Callable(types.ModuleType):
    """This package is what `accrt.from_onnx` is, so it can be called: accrt.from_onnx(model)."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return from_onnx(*args, **named)


sys.modules[__name__].__class__ = _Callable
