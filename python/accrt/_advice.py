"""What the message of an array, or of a file, that is refused says would help."""
from __future__ import annotations

import os
from typing import Any

from ._bits import BIT_TYPES, ML_DTYPES
from ._copies import copies, fits
from ._incoming import _is_torch
from .errors import Error
from .tensor import _NAMES, _TYPESTR, Tensor


def advised(error: Exception, argument, value: Any, view, copy: bool) -> Exception:
    """The error of an argument that is refused, whose message also says what would help. view: None
    where it could not be read."""
    own = argument.type.partition("[")[0]
    advice = ""
    if view is None or not fits(view):
        if argument.kind != "read":
            advice = "; it is written: pass a contiguous array, as numpy.empty gives"
        elif not copy and copies(value):
            advice = "; give copy=True to have it copied"
    elif _NAMES[view.c.dtype] != own:
        advice = _type_advice(own, _NAMES[view.c.dtype], argument, value)
    return with_advice(error, advice)


def with_advice(error: Exception, advice: str) -> Exception:
    """The error with something at the end of its message."""
    if advice:
        text = f"{error}".replace(" (copy it first)", "") + advice  # one advice, not two
        error.args = (text,)
        if isinstance(error, Error):
            error.message = text
    return error


#: By the ends of names.
_OTHER_FILES = {
    ".gguf": "accrt.LLM runs a GGUF file, and accrt.models.open makes a bundle of it",
    ".safetensors": "it has weights alone: accrt.LLM and accrt.models.open take the folder that it lies in",
    ".onnx": "accrt.from_onnx makes a bundle of it", ".pt2": "accrt.from_torch makes a bundle of it",
    ".pt": "accrt.from_torch makes a bundle of a torch.nn.Module", ".pth": "accrt.from_torch makes a bundle of a torch.nn.Module",
}  # fmt: skip


def file_advice(path: Any) -> str:
    """For what is no bundle, and may be a model of another kind."""
    if isinstance(path, bytes):
        is_path = len(path) < 4096 and b"\0" not in path and os.path.exists(path)
        return "; bytes are the content of a bundle, and these are a path: give os.fsdecode(path)" if is_path else ""
    try:
        name = os.fsdecode(path)
        if os.path.isfile(os.path.join(name, "config.json")):
            return "; it is a model's folder: accrt.LLM runs it, and accrt.models.open makes a bundle of it"
    except (TypeError, ValueError, OSError):
        return ""
    advice = _OTHER_FILES.get(os.path.splitext(name)[1].lower())
    return f"; {advice}" if advice and os.path.exists(name) else ""


def _converted(own: str, value: Any) -> str:
    """How a value becomes one of this type, which numpy has."""
    if _is_torch(value):
        return f"tensor.to(torch.{_NUMPY_NAMES[own]}) converts it"
    if isinstance(value, (bytes, bytearray)):
        return f"numpy.frombuffer(data, {_NUMPY_NAMES[own]!r}) takes bytes as such numbers"
    return f"array.astype({_NUMPY_NAMES[own]!r}) converts it"


def weight_advice(own: str, value: Any = None) -> str:
    """For arrays of another type than the weight's."""
    if own in BIT_TYPES:
        return f"; pass an accrt.Tensor or accrt.Weight of {own}, a torch tensor, or an array of ml_dtypes.{ML_DTYPES[own]}"
    return f"; {_converted(own, value)}" if own in _NUMPY_NAMES else ""


def unless_written(kind: str, way: str, wanted: str) -> str:
    """The way to convert an argument, or what to pass in its place: of an argument that is written
    or taken, a copy would get the results, and the caller would not see them."""
    return way if kind == "read" else f"pass {wanted}"


def _type_advice(own: str, got: str, argument, value: Any) -> str:
    typestr = _TYPESTR.get(got, "")
    if BIT_TYPES.get(own) == typestr:
        return (f"; numbers and the bits of {own} look alike there. Pass an accrt.Tensor, a torch tensor, array.view(ml_dtypes."
                f"{ML_DTYPES[own]}), or a list of numbers with copy=True; if they are bits: "
                f"call.set({argument.name!r}, array, dtype={own!r})")
    if own in _TYPESTR and isinstance(value, Tensor) and argument.kind == "read":
        return f"; numpy.asarray(tensor, {_NUMPY_NAMES[own]!r}) converts it"
    if own in _TYPESTR and (typestr or _is_torch(value) or hasattr(value, "astype")) and not isinstance(value, Tensor):
        return f"; {unless_written(argument.kind, _converted(own, value), f'an array of {_NUMPY_NAMES[own]}')}"
    if own in BIT_TYPES:
        return f"; pass array.astype(ml_dtypes.{ML_DTYPES[own]}), a torch tensor of that type, or a list of numbers with copy=True"
    return ""


_NUMPY_NAMES = {"bool": "bool", **{f"{letter}{bits}": f"{word}{bits}" for letter, word, sizes in (
    ("i", "int", (8, 16, 32, 64)), ("u", "uint", (8, 16, 32, 64)), ("f", "float", (16, 32, 64))) for bits in sizes}}
