"""What people give in place of a model, and what they are to do then: words for messages, found in
names and in the first bytes of files alone."""

from __future__ import annotations

import contextlib
import os
from typing import List

from .._files import read_beginning

#: Weights that are not read, by the ends of their names.
UNREAD_WEIGHTS = (".bin", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".npz")
#: What downloads that were broken off leave.
_BROKEN_OFF = (".incomplete", ".part", ".crdownload", ".aria2")
#: How many folders are looked into.
_MOST = 64


def _names(path: str) -> List[str]:
    with contextlib.suppress(OSError):  # a file, or a folder that is not to be read
        return sorted(os.listdir(path))
    return []


def without_weights(path: str) -> str:
    """Of a folder that has a configuration."""
    names = _names(path)
    others, files = ([name for name in names if name.endswith(ends)] for ends in (UNREAD_WEIGHTS, ".gguf"))
    broken = [name for name in names if name.endswith(_BROKEN_OFF)]
    if files:
        return f"there is {files[0]} and no model.safetensors: give the file, {os.path.join(path, files[0])}"
    if others:
        return f"weights are read from safetensors files, not from {others[0]}: save_pretrained of transformers writes them"
    if broken:
        return f"there are no weights, and the download of {broken[0]} was broken off: download it again"
    return "there are no weights: no model.safetensors, and no index of its parts"


def without_configuration(path: str) -> str:
    """Of a folder that has none, what may have been meant, with ": " before it; or ""."""
    names = _names(path)
    if "model_index.json" in names:
        return ": model_index.json says that it makes images, which is not done here"
    if "params.json" in names:
        return ": params.json is another form than Hugging Face's, whose folders have config.json"
    inside = [os.path.join(path, one, *more) for one in names[:_MOST] for more in ((), *((two,) for two in _names(os.path.join(path, one))[:_MOST]))]
    found = [folder for folder in inside if os.path.isfile(os.path.join(folder, "config.json"))]
    if len(found) == 1:
        return f": {found[0]} has one, give that folder"
    return f": {len(found)} folders in it have one, give one of them ({found[0]} is the first)" if found else ""


def no_weights_at_all(path: str, error: str) -> str:
    """Of a file that is of no form that is read, or that ends before its weights do, as the error
    says, what is the matter, with ": " before it; or ""."""
    if "(gguf rule 14)" in error:
        return ": it is cut short. Download it again"
    with contextlib.suppress(OSError, ValueError):  # the error says enough
        beginning = read_beginning(path, min(os.path.getsize(path), 256))
        if not beginning:
            return ": it is empty. Download it again"
        if beginning.startswith(b"version https://git-lfs"):
            return ": it is a pointer of git-lfs and no weights: git lfs pull fetches them"
        if beginning.lstrip().lower().startswith((b"<!doctype html", b"<html")):
            return ": it is a web page. Download the file itself: hf download fetches it"
        if path.endswith(UNREAD_WEIGHTS):
            return ": weights are read from safetensors and GGUF files. save_pretrained of transformers writes safetensors"
    return ""


__all__ = ["UNREAD_WEIGHTS", "no_weights_at_all", "without_configuration", "without_weights"]
