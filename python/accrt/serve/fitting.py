"""Whether what is asked for can work with a model, by what its bundle says of itself. It is looked
at before anything is compiled or loaded, which may take minutes."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from . import options as given_options
from .engine import Engine, Model

#: Rows and tokens of a step that a simulated model may have.
_MOST_ROWS, _MOST_TOKENS = 1 << 12, 1 << 20


class Wanted(NamedTuple):
    """What a caller will make of the model: options of its engine, and folders of adapters by their
    names."""

    engine: Mapping[str, Any] = {}
    adapters: Sequence[Tuple[str, str]] = ()


class Place(NamedTuple):
    """Where it will run."""

    name: str
    is_host: bool
    memory_bytes: int


def check(
    metadata: Mapping[str, str], layout: Optional[bytes], chosen: Mapping[str, Any], wanted: Wanted, place: Place, weight_bytes: int = 0,
) -> None:  # fmt: skip
    """Raises ValueError, or what the engine says of its options, or what reading an adapter raises.

    Args:
        metadata: the bundle's. layout: its asset serve.adapters; None: it has no places for
            adapters. chosen: options of the model.
        weight_bytes: of the files that the weights come from; 0: that is not known.
    """
    largest = {name: _number(metadata, f"serve.{name}_buckets") for name in ("row", "sample", "token")}
    rows, length = min(largest.values()), _number(metadata, "serve.max_position")
    given_options.limits(chosen, {"max_rows": rows, "max_length": length}, "the model")
    rows, length = chosen["max_rows"] or rows, chosen["max_length"] or length
    _check_memory(metadata, chosen["kv_bytes"], rows * length, place, weight_bytes)
    _check_engine(wanted.engine, rows, largest["token"], metadata, place)
    _check_adapters(wanted.adapters, layout)


def _number(metadata: Mapping[str, str], name: str) -> int:
    """A number, or the last one of a list."""
    last = metadata.get(name, "").rpartition(",")[2]
    if not last.isdecimal():
        raise ValueError(f"the bundle is no model that can be served: {name} is {metadata.get(name)!r}")
    return int(last)


def _check_memory(metadata: Mapping[str, str], kv_bytes: int, most_tokens: int, place: Place, weight_bytes: int) -> None:
    page_tokens, token_bytes = _number(metadata, "serve.page_size"), _number(metadata, "serve.kv_bytes_per_token")
    page_bytes = page_tokens * token_bytes
    if kv_bytes and kv_bytes < page_bytes:
        raise ValueError(f"kv_bytes is {kv_bytes}, and a page for {page_tokens} tokens takes {page_bytes}")
    if not place.memory_bytes:
        return
    if min(kv_bytes, most_tokens * token_bytes) > place.memory_bytes:
        raise ValueError(f"kv_bytes is {kv_bytes}, and {place.name} has {place.memory_bytes} bytes of memory")
    if not place.is_host and weight_bytes + page_bytes > place.memory_bytes:
        # of a host they are files that are mapped
        raise ValueError(f"the weights take {size_text(weight_bytes)}, and {place.name} has {size_text(place.memory_bytes)} of memory")


def _check_engine(given: Mapping[str, Any], rows: int, tokens: int, metadata: Mapping[str, str], place: Place) -> None:
    """The engine's own rules, which it says of a model that computes nothing."""
    options = {name: value for name, value in given.items() if value}
    invariant = metadata.get("serve.batch_invariant")
    if options.pop("batch_invariant", False) and not (invariant == "all" or place.is_host and invariant == "host"):
        reason = "of a model that does not say otherwise" if place.is_host else f"on {place.name}, of a bundle that was made without it,"
        raise ValueError(f"batch_invariant is asked for, and results {reason} depend on what else is in a step")
    if options:
        flags = _ffi.ACCRT_SERVE_MODEL_STATES_OF_PAGES if metadata.get("serve.states_of_pages") else 0
        with Model.simulated(max_rows=min(rows, _MOST_ROWS), max_tokens=min(tokens, _MOST_TOKENS), flags=flags) as model, Engine(model, **options):
            pass


def _check_adapters(folders: Sequence[Tuple[str, str]], layout: Optional[bytes]) -> None:
    names = [name for name, _folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two adapters are called {name!r}")
    places: Optional[Dict[str, Any]] = json.loads(layout) if layout is not None else None
    if names and (places is None or len(names) > places["adapters"]):
        raise ValueError(f"{len(names)} adapters are to be loaded, and the model has places for {places['adapters'] if places else 0}")
    for _name, folder in folders:
        from ..models import read_adapter

        read_adapter(folder, places)


def size_text(count: int) -> str:
    """Bytes for people."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


__all__ = ["Place", "Wanted", "check", "size_text"]
