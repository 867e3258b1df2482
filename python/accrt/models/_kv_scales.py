"""Scales of keys and values in 8 bits, as checkpoints have them: one number for the keys of a layer
and one for its values, k_scale and v_scale. They are a part of the program, not weights of it."""

from __future__ import annotations

import math
import struct
from typing import Any, Dict, Mapping, Tuple

from ..weights import Weight, Weights
from ._checkpoint import Checkpoint

#: What stands behind a layer's name, by "k" and "v": of compressed-tensors and vLLM, of quantizers
#: that name the product, of older files, and of those that have one scale for both.
_NAMES = {
    kind: (f".{kind}_scale", f".attn.{kind}_scale", f".{kind}_proj.{kind}_scale", f".{kind}_proj.output_scale", f".qkv_proj.{kind}_scale", ".kv_scale")
    for kind in "kv"
}
#: No tensor whose name ends so is a weight, whether or not the rest of the checkpoint is quantized.
ENDINGS = tuple({ending for endings in _NAMES.values() for ending in endings})
#: Formats of struct, by type; bf16 is the upper half of f32.
_TYPES = {"f32": "<f", "f16": "<e", "bf16": "<f"}


def gather(made: Checkpoint, source: Weights) -> None:
    """Fills `made.kv_scales` from a source."""
    for name in source:
        if name.endswith(ENDINGS):
            made.kv_scales[name] = _number(source[name])


def _number(weight: Weight) -> float:
    """NaN: it is not one number."""
    kind = _TYPES.get(weight.dtype or "")
    if kind is None or math.prod(weight.shape) != 1:
        return math.nan
    content = weight.read(0, struct.calcsize(kind) if weight.dtype != "bf16" else 2)
    return float(struct.unpack(kind, content if weight.dtype != "bf16" else b"\0\0" + content)[0])


def scales_of(made: Checkpoint, name: str) -> Tuple[float, float, Tuple[str, ...]]:
    """Of keys and values of the layer whose attention has this name, 1 where there are none; and
    what stands against them."""
    points = _scheme(made.config)
    found: Dict[str, float] = {}
    for kind, endings in _NAMES.items():
        key = next((name + ending for ending in endings if name + ending in made.kv_scales), "")
        found[kind] = made.kv_scales.get(key, 1.0)
        if not 0 < found[kind] < math.inf:
            points += (f"tensor {key}: a scale of keys and values in fp8 is one number of f32, f16 or bf16, and more than 0",)
            found[kind] = 1.0
    return found["k"], found["v"], points


def _scheme(config: Mapping[str, Any]) -> Tuple[str, ...]:
    """Scales of a scheme other than floats of 8 bits are no scales of these."""
    given = config.get("quantization_config")
    scheme = given.get("kv_cache_scheme") if isinstance(given, dict) else None
    if not isinstance(scheme, dict) or (scheme.get("type", "float"), scheme.get("num_bits", 8)) == ("float", 8):
        return ()
    return (f"config: quantization_config.kv_cache_scheme is of {scheme.get('num_bits')} bits and type {scheme.get('type')!r}; its scales are none of fp8, which has floats of 8 bits",)
