"""LoRA adapters as PEFT writes them (a folder with adapter_config.json and
adapter_model.safetensors), made into what a step program's states hold: factors padded to the
bundle's rank, the second one turned and scaled. What an adapter asks for beyond that is refused by
name.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from .._files import read_small
from ..errors import NotFoundError
from ..weights import Weight, Weights
from ..compiler import _bf16
from . import _parts
from ._config import Refused

#: Keys of adapter_config.json that change what an adapter computes, with the values that do not.
MEANINGFUL: Dict[str, Tuple[Any, ...]] = {
    "alora_invocation_tokens": ([],), "bias": ("none",), "layer_replication": ([],), "lora_bias": (False,), "megatron_config": ({},), "modules_to_save": ([],),
    "target_parameters": ([],), "trainable_token_indices": ([], {}), "use_bdlora": (False, {}), "use_dora": (False,), "use_qalora": (False,),
}  # fmt: skip
#: Ways to begin training that leave the model's own weights as they are.
BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight\Z", re.DOTALL)
#: What layers of Nemotron-H begin with in the code that its checkpoints come with, and so in
#: adapters that were trained with that code; transformers' own modules say `model.`
_PUBLISHED = "backbone."
_LIMIT = 16 << 20
_FLOATS = ("f32", "f16", "bf16")
_BF16_INFINITE = 0x7F80  # the bits of the exponent, all set in infinities


@dataclass(frozen=True)
class Adapter:
    """`tensors`: what each state of the step program gets, an array [max_rank, size] in the
    bundle's type (bf16 as bits); states that are not named get zeros. `rank`: the largest."""

    path: str
    rank: int
    tensors: Mapping[str, np.ndarray]


def layout_of(made: Any) -> Dict[str, Any]:
    """What a bundle says of its places for adapters: the asset serve.adapters."""
    options = made.options
    return {"adapters": options.adapters, "max_rank": options.max_rank, "dtype": made.adapter_type, "products": made.adapted}


class _Config:
    """adapter_config.json, read by name and type."""

    def __init__(self, values: Mapping[str, Any], points: List[str]):
        self.values, self.points = values, points
        self.rank = self._rank(values.get("r"), "r")
        self.alpha = self._number(values.get("lora_alpha"), "lora_alpha")
        self.rooted = values.get("use_rslora") or False
        if not isinstance(self.rooted, bool):
            points.append(f"adapter_config.json: use_rslora is {self.rooted!r:.40}, expected true or false")
        self.ranks = self._pattern("rank_pattern", self._rank)
        self.alphas = self._pattern("alpha_pattern", self._number)
        self._check()

    def _check(self) -> None:
        kind = self.values.get("peft_type")
        if kind != "LORA":
            self.points.append(f"adapter_config.json: peft_type is {kind!r:.40}; there is LORA")
        for name, neutral in MEANINGFUL.items():
            value = self.values.get(name)
            if value is not None and value not in neutral:
                self.points.append(f"adapter_config.json: {name} is {json.dumps(value):.80}, which is not done here")
        begun = self.values.get("init_lora_weights", True)
        if begun is not None and begun not in BEGINNINGS:
            self.points.append(f"adapter_config.json: init_lora_weights is {begun!r:.40}: the model's own weights were changed, too")

    def _rank(self, value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.points.append(f"adapter_config.json: {name} is {value!r:.40}, expected an integer from 1 on")
            return 1
        return value

    def _number(self, value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e30:
            self.points.append(f"adapter_config.json: {name} is {value!r:.40}, expected a number")
            return 1.0
        return float(value)

    def _pattern(self, name: str, read: Any) -> Dict[str, Tuple[int, Any]]:
        """Names, or ends of names, of products with a value of their own, and their place in the
        file: the first one counts."""
        given = self.values.get(name) or {}
        if not isinstance(given, dict):
            self.points.append(f"adapter_config.json: {name} is {json.dumps(given):.40}, expected an object")
            return {}
        found: Dict[str, Tuple[int, Any]] = {}
        for place, (key, value) in enumerate(given.items()):
            if re.search(r"[][^$*+?(){}|\\]", key[1:] if key.startswith("^") else key):
                self.points.append(f"adapter_config.json: {name} has the regular expression {key!r:.80}; names are read")
            found[key] = place, read(value, f"{name}[{key!r:.80}]")
        return found

    def rank_of(self, name: str) -> int:
        """Of a product by the name that the adapter has for it, as its patterns have."""
        return _matching(self.ranks, name, self.rank)

    def scale_of(self, name: str) -> float:
        rank = self.rank_of(name)
        return _matching(self.alphas, name, self.alpha) / (math.sqrt(rank) if self.rooted else rank)


def _matching(pattern: Mapping[str, Tuple[int, Any]], product: str, default: Any) -> Any:
    """The value of the first key that is the product's name, or an end of it. A file may have
    hundreds of thousands."""
    names = {"^" + product, product, *(product[at.end():] for at in re.finditer(r"\.", product))}
    return min((pattern[name] for name in names if name in pattern), default=(0, default))[1]


def read_adapter(path: "str | os.PathLike[str]", layout: Mapping[str, Any]) -> Adapter:
    """An adapter's folder, for a bundle whose asset serve.adapters is `layout`. Raises Refused with
    everything that stands against it, NotFoundError, and what opening weights raises."""
    path = os.path.abspath(os.fspath(path))
    points: List[str] = []
    config = _Config(_config(path), points)
    source = _source(path)
    pairs = _pairs(source, layout["products"], points)
    tensors: Dict[str, np.ndarray] = {}
    largest = 0
    for product, (name, pair) in pairs.items():
        rank = config.rank_of(name)
        largest = max(largest, rank)
        if _fits(product, pair, rank, layout, points):
            with np.errstate(over="ignore"):
                factors = {"a": _values(pair["A"], points), "b": _values(pair["B"], points).T * np.float32(config.scale_of(name))}
            for part, array in factors.items():
                padded = np.zeros((layout["max_rank"], array.shape[1]), np.float32)
                padded[:rank] = array
                tensors[f"lora.{product}.{part}"] = _stored(padded, layout["dtype"], product, points)
    if not pairs and not points:
        points.append("adapter_model.safetensors: it has no factors")
    if points:
        raise Refused(path, points)
    return Adapter(path, largest, tensors)


def _config(path: str) -> Dict[str, Any]:
    file = os.path.join(path, "adapter_config.json")
    if not os.path.isfile(file):
        raise NotFoundError(f"{path}: there is no adapter_config.json: it is no folder of a PEFT adapter")
    try:
        found = json.loads(read_small(file, _LIMIT))
    except (ValueError, RecursionError) as error:
        raise Refused(file, [f"it is not JSON: {error}"]) from None
    if not isinstance(found, dict):
        raise Refused(file, [f"it is {json.dumps(found):.40}, expected an object"])
    return found


def _source(path: str) -> Weights:
    file = os.path.join(path, "adapter_model.safetensors")
    if os.path.isfile(file):
        return Weights(file, one_file=True, follow_links=True)
    pickled = os.path.isfile(os.path.join(path, "adapter_model.bin"))
    raise Refused(path, ["there is no adapter_model.safetensors" + (": adapter_model.bin is not read" if pickled else "")])


def _pairs(source: Weights, products: Mapping[str, Any], points: List[str]) -> Dict[str, Tuple[str, Dict[str, Weight]]]:
    """The adapter's name for each product, and its factors, by the bundle's names."""
    found: Dict[str, Tuple[str, Dict[str, Weight]]] = {}
    for key in source:
        match = _KEY.match(str(key))
        product: Optional[str] = _parts.text_name(match.group(1)) if match else None
        if product is not None and product not in products and product.startswith(_PUBLISHED):
            product = "model." + product[len(_PUBLISHED) :]
        if match is None:
            points.append(f"tensor {key!s:.200}: it is no factor of a product")
        elif product is None:
            points.append(f"tensor {key!s:.200}: it is of a part that does not read text, which is not served")
        elif ".experts." in product:
            points.append(f"tensor {key!s:.200}: adapters do not change experts here")
        elif product not in products:
            points.append(f"tensor {key!s:.200}: this model has no place for an adapter of {product:.200}")
        elif found.setdefault(product, (match.group(1), {}))[0] != match.group(1):
            points.append(f"tensor {key!s:.200}: the product has a tensor by the name {found[product][0]:.200}, too")
        elif match.group(2) in found[product][1]:
            points.append(f"tensor {key!s:.200}: it is there twice")
        else:
            found[product][1][match.group(2)] = source[key]
    for product, (_name, pair) in found.items():
        points += [f"tensor {product}.lora_{part}.weight: it is missing" for part in "AB" if part not in pair]
    return found


def _fits(product: str, pair: Mapping[str, Weight], rank: int, layout: Mapping[str, Any], points: List[str]) -> bool:
    taken, given = layout["products"][product]
    before = len(points)
    if rank > layout["max_rank"]:
        points.append(f"{product}: its rank is {rank}; this model was made for rank {layout['max_rank']} at most, as max_rank says")
    for part, wanted in (("A", (rank, taken)), ("B", (given, rank))):
        weight = pair.get(part)
        if weight is not None and (weight.encoding or weight.dtype not in _FLOATS):
            points.append(f"tensor {weight.name}: its type is {weight.type_name}; there are {', '.join(_FLOATS)}")
        elif weight is not None and tuple(weight.shape) != wanted:
            points.append(f"tensor {weight.name}: its shape is {list(weight.shape)}, expected {list(wanted)}")
    return len(pair) == 2 and len(points) == before


def _values(weight: Weight, points: List[str]) -> np.ndarray:
    """As f32. They are read: who can cut the file ends a process that looks at its mapping."""
    kind = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[weight.dtype]
    array = np.frombuffer(weight.read(0, weight.nbytes), kind).reshape(weight.shape)
    array = np.asarray(array.astype(np.uint32) << 16, np.uint32).view(np.float32) if weight.dtype == "bf16" else array.astype(np.float32)
    if not np.isfinite(array).all():
        points.append(f"tensor {weight.name}: it has numbers that are not finite")
    return array


def _stored(array: np.ndarray, dtype: str, product: str, points: List[str]) -> np.ndarray:
    with np.errstate(over="ignore"):
        made = _bf16.bits(array) if dtype == "bf16" else array.astype({"f32": np.float32, "f16": np.float16}[dtype])
    if not (made & _BF16_INFINITE != _BF16_INFINITE if dtype == "bf16" else np.isfinite(made)).all():
        points.append(f"{product}: its numbers are too large for {dtype}")
    return made


__all__ = ["Adapter", "layout_of", "read_adapter"]
