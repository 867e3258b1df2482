"""Calls torch.export as accrt.from_torch needs it: results of a dataclass get the names of its
fields, and a model whose code asks for a tensor's values is refused by the line that asks."""

from __future__ import annotations

import dataclasses
import os
import traceback
from typing import Any, Optional, Tuple


def export(model: Any, args: Tuple[Any, ...], kwargs: Any, dynamic_shapes: Any) -> Any:
    """torch.export.export of a module, without gradients.

    Raises:
        UnsupportedOperations: a branch, a loop or a size depends on the content of a tensor. What
            torch.export raises.
    """
    import torch
    from .from_torch.values import UnsupportedOperations
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    hook = model.register_forward_hook(lambda _module, _inputs, output: _plain(output)) if hasattr(model, "register_forward_hook") else None
    try:
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except GuardOnDataDependentSymNode as error:
        where, line = _place(error) or ("", "")
        why = f"a branch, a loop or a size depends on the content of a tensor: {line}"
        raise UnsupportedOperations(type(model).__name__, [("aten.item.default", 1, where, why)]) from error
    finally:
        if hook is not None:
            hook.remove()


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
