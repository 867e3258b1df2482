"""Weights whose bytes are known here, but are to be left out of the bundle."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
from typing import Any, Callable, Mapping

import numpy as np
import xxhash

from ..encodings import APART, LAYOUTS, Quantized
from ..declared import External
from ..ir import IRError, Module
from .tidy import clone


def digest_of(data: Any, algorithm: Callable[[], Any] = xxhash.xxh3_128) -> bytes:
    """What binds a weight to its bytes: XXH3-128 (or another digest) of its components, one after
    another in order of role."""
    hashed = algorithm()
    arrays = [data.components[r] for r in LAYOUTS[data.layout].roles if r in data.components] if isinstance(data, Quantized) else [data]
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return hashed.digest()


def leave_out(module: Module, wanted: Mapping[str, Any]) -> Module:
    """A copy of the module whose weights are outside the bundle where their names fit a pattern (as
    a shell's): `wanted` has what the file beside the bundle is called ("": what is given at load),
    or an External. The first pattern that fits holds; None leaves a weight in the bundle. Unless it
    is by name alone, a weight is bound to the bytes that it has here."""
    work = clone(module)
    for pattern in wanted:
        if not fnmatch.filter(work.constants, pattern):
            raise IRError(f"external: no constant's name fits {pattern!r}")
    for name, constant in list(work.constants.items()):
        place = next((place for pattern, place in wanted.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if place is None or constant.data is None or constant.external is not None:
            # made at load, or outside already
            continue
        place = External(place) if isinstance(place, str) else place
        if place.shard is not None:
            raise IRError(f"constant {name!r}: its bytes are known here, a part of them has a digest of its own: Module.external has shards")
        if isinstance(constant.data, Quantized) and constant.data.layout in APART and not place.by_name:
            raise IRError(f"constant {name!r}: {constant.data.layout} is several tensors, which are bound by their names: by_name=True")
        if not place.by_name and place.digest is None:
            if isinstance(constant.data, Quantized) and constant.data.components["data"] is None:
                raise IRError(f"constant {name!r}: its bytes are not known here, so it has no digest: give it, or by_name=True")
            place = dataclasses.replace(place, digest=digest_of(constant.data), sha256=digest_of(constant.data, hashlib.sha256))
        if place.file and place.file not in work.files:
            work.file(place.file)
        replaced = dataclasses.replace(constant, external=place)
        work.constants[name] = replaced
        for function in work.functions.values():
            if name in function.constants:
                function.constants[name].constant = replaced
    return work
