"""Embeddings: how the rows of a text's tokens become one, and what a request may ask for."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .. import _ffi
from .parameters import PARAMETERS, BadParameter, Parameter, checked, flag, near, shown, text, whole

POOLINGS = {"last": _ffi.ACCRT_SERVE_EMBED_LAST, "mean": _ffi.ACCRT_SERVE_EMBED_MEAN}
#: Files of sentence-transformers that say how a model's folder wants it.
MODULES, POOLING = "modules.json", "1_Pooling/config.json"


class Pooling(NamedTuple):
    """`mode`: one of POOLINGS. `reason`: why the folder's own way is not done here; a request must
    then name one."""

    mode: str = "last"
    normalize: bool = True
    reason: str = ""


def pooling_of(assets: Mapping[str, bytes]) -> Pooling:
    """What the files of a model's folder say; without them the last token, normalized."""
    modules, config = (_read(assets, name) for name in (MODULES, POOLING))
    kinds: List[str] = [str(one.get("type", "")).rpartition(".")[2] for one in modules if isinstance(one, dict)] if isinstance(modules, list) else []
    normalize = "Normalize" in kinds if kinds else True
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        return Pooling(normalize=normalize, reason=f"{MODULES} has a module {unknown[0]}")
    if not isinstance(config, dict):
        return Pooling(normalize=normalize)
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    modes = modes or [f"pooling_mode_{config['pooling_mode']}"] if config.get("pooling_mode") else modes
    known = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean", "pooling_mode_mean": "mean"}
    if len(modes) != 1 or modes[0] not in known:
        return Pooling(normalize=normalize, reason=f"{POOLING} asks for {', '.join(modes) or 'nothing'}")
    return Pooling(known[modes[0]], normalize)


def _read(assets: Mapping[str, bytes], name: str) -> Any:
    try:
        return json.loads(assets[name]) if name in assets else None
    except RecursionError:
        raise ValueError(f"{name}: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name}: it is not JSON: {error}") from None


def _pooling(name: str, value: Any) -> str:
    if text(name, value) not in POOLINGS:
        raise BadParameter(name, f"{name} is {shown(value)}, expected one of {', '.join(POOLINGS)}")
    return value


OWN: Dict[str, Parameter] = {
    "dimensions": Parameter(None, whole(1), "the first so many numbers alone; without it, all"),
    "pooling": Parameter(None, _pooling, "last: the last token's row; mean: the mean of all; default: as the model's folder says, else last"),
    "normalize": Parameter(None, flag, "the numbers are divided by their norm; default: as the model's folder says, else true"),
}
#: Parameters of other requests that embeddings have too.
SHARED = ("user", "priority", "timeout", "cache_salt", "adapter")


class Embed(NamedTuple):
    """What the engine is asked, in its own terms."""

    kind: int
    dimensions: int
    flags: int


def parameters(given: Dict[str, Any], pooling: Pooling, size: int) -> Dict[str, Any]:
    """All parameters of a request, with an Embed as `embed`. `size`: numbers of the model's
    embeddings; 0: it gives none."""
    if size == 0:
        raise BadParameter(None, "this model gives no embeddings: its bundle was made without the function that does", "unsupported")
    for name in given:
        if name not in OWN and name not in SHARED:
            meant = near(name, ["input", *OWN, *SHARED])
            why = " of embeddings" if name in PARAMETERS else ""
            raise BadParameter(name, f"{shown(name)} is no parameter{why}" + (f"; did you mean {meant}?" if meant else ""), "unknown_parameter")
    own = {name: None if given.get(name) is None else parameter.check(name, given[name]) for name, parameter in OWN.items()}
    if own["pooling"] is None and pooling.reason:
        raise BadParameter("pooling", f"{pooling.reason}, which is not done here: name a pooling, last or mean", "unsupported")
    if own["dimensions"] is not None and own["dimensions"] > size:
        raise BadParameter("dimensions", f"dimensions is {own['dimensions']}, and the model's embeddings have {size}")
    normalize = pooling.normalize if own["normalize"] is None else own["normalize"]
    values = checked({name: value for name, value in given.items() if name in SHARED})
    flags = 0 if normalize else _ffi.ACCRT_SERVE_EMBED_RAW
    return {**values, "temperature": 0.0, "embed": Embed(POOLINGS[own["pooling"] or pooling.mode], own["dimensions"] or 0, flags)}


def inputs(name: str, given: Any) -> Tuple[List[Any], bool]:
    """Texts or lists of token ids, and whether a list of them was given."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, list, tuple)) for one in given):
        return list(given), True
    if isinstance(given, (list, tuple)) and not given:
        raise BadParameter(name, f"{name} is an empty list, expected at least one text")
    return [given], False


__all__ = ["Embed", "MODULES", "POOLING", "POOLINGS", "Pooling", "inputs", "parameters", "pooling_of"]
