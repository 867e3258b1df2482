"""The families: every file of this folder that has no underscore before its name. Their classes say
what they read."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Dict, Sequence, Tuple, Type

from ._blocks import Decoder
from ._checkpoint import Checkpoint
from ._config import Refused
from ._options import Options


def families() -> Tuple[Type[Decoder], ...]:
    package = __name__.rpartition(".")[0]
    found: Dict[str, Type[Decoder]] = {}
    for info in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{package}.{info.name}")
            for item in vars(module).values():
                if isinstance(item, type) and issubclass(item, Decoder) and item.__module__ == module.__name__ and item.types:
                    found[item.__name__] = item
    return tuple(found.values())


def by_type(name: str) -> Type[Decoder]:
    """The family of a model_type. KeyError: there is none."""
    return {type_: family for family in families() for type_ in family.types}[name]


def by_architecture(name: str, has: Sequence[str] = ()) -> Type[Decoder]:
    """The family of a GGUF file's architecture. Files of some architectures may have experts, or
    windows, which makes them another family's. KeyError: there is none."""
    known = {type_: family for family in families() for type_ in family.architectures}
    return known[next((f"{name} with {part}" for part in has if f"{name} with {part}" in known), name)]


def decoder(checkpoint: Checkpoint, options: Options = Options()) -> Decoder:
    """The family's decoder for a checkpoint. Raises Refused."""
    name = checkpoint.config.get("model_type")
    try:
        family = by_type(str(name))
    except KeyError:
        known = sorted(type_ for family in families() for type_ in family.types)
        raise Refused(checkpoint.path, [f"config: model_type is {name!r}; there are {', '.join(known)}; another family is one short file (docs/models.md)"]) from None
    return family(checkpoint, options)
