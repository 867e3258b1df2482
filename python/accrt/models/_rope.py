"""Frequencies of rotary embeddings, plain and scaled: linear, dynamic, Llama 3, YaRN,
LongRoPE; proportional, of which a part of a head is turned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from ._config import Config, MOST


@dataclass(frozen=True)
class Rope:
    """`frequencies`: radians a position, of each pair of elements; cos and sin are multiplied by
    `scale`. `longest`: positions that these frequencies are for (0: any); `stretched`: positions
    that the scaling makes of those of the training (0: no more)."""

    frequencies: np.ndarray
    scale: float = 1.0
    longest: int = 0
    stretched: int = 0


def _plain(theta: float, size: int) -> np.ndarray:
    return theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)


def settings(config: Config) -> Tuple[float, Dict[str, Any]]:
    """Theta and the scaling, from either of the forms that config.json has had."""
    given: Dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        found = config.get(name, {})
        if not isinstance(found, dict):
            config.refuse(f"config: {name} is {found!r}, expected an object")
            continue
        found = {**({"rope_type": found["type"]} if "type" in found else {}), **{key: value for key, value in found.items() if key != "type"}}
        for key in sorted(key for key in found.keys() & given.keys() if found[key] != given[key]):
            config.refuse(f"config: {key} is {given[key]!r} in rope_scaling and {found[key]!r} in rope_parameters: leave one of the two out")
        given.update(found)
    given["rope_type"] = str(given.get("rope_type") or "default")
    if given["rope_type"] == "su":
        given["rope_type"] = "longrope"
    if not given.get("original_max_position_embeddings"):
        given["original_max_position_embeddings"] = config.get("original_max_position_embeddings")
    for name, default in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        value = given.get(name, config.get(name, default))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30 or (value > 1 and name[0] == "p"):
            config.refuse(f"config: {name} is {value!r}, expected a number above 0")
            value = default
        given[name] = float(value)
    return given["rope_theta"], given


def make(config: Config, head_size: int, max_position: int, turns_part: Optional[bool] = False) -> Rope:
    """What a configuration asks for. `max_position`: the longest sequence that is served, by which
    LongRoPE chooses its factors. `turns_part`: as of a Decoder."""
    theta, given = settings(config)
    kind = given["rope_type"]
    part = head_size if kind == "proportional" else int(head_size * given["partial_rotary_factor"])
    if part != head_size and not turns_part:
        if kind != "default" or turns_part is None:
            config.refuse(f"config: partial_rotary_factor is {given['partial_rotary_factor']:g} with rope_type {kind!r}, which this family does not do")
        part = head_size
    size = part // 2 * 2
    if kind not in _KINDS:
        config.refuse(f"config: rope_type is {kind!r}; there are {', '.join(_KINDS)}")
        kind = "default"
    try:
        with np.errstate(all="ignore"):
            made = _KINDS[kind](theta, size, given, config, max_position)
        with np.errstate(over="ignore"):
            narrow = made.frequencies.astype(np.float32)
        if made.stretched > MOST:
            config.refuse(f"config: rope_scaling of type {kind!r}: its factor gives {float(made.stretched):g} positions, expected at most {MOST}")
        elif np.isfinite(narrow).all() and math.isfinite(made.scale) and size >= 2:
            return made
        else:
            config.refuse(f"config: rope_scaling of type {kind!r}: its frequencies are not finite, or there are none")
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        config.refuse(f"config: rope_scaling of type {kind!r}: {error!r}")
    return Rope(_plain(theta, max(size, 2)))


def _default(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    return Rope(_plain(theta, size))


def _proportional(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    """Of all pairs of a head the first ones are turned, as if all were."""
    turned = np.arange(size // 2) < int(given["partial_rotary_factor"] * size // 2)
    return Rope(np.where(turned, _plain(theta, size) / float(given.get("factor", 1.0)), 0.0))


def _linear(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    factor = float(given["factor"])
    return Rope(_plain(theta, size) / factor, stretched=int(int(config.get("max_position_embeddings", 0)) * factor))


def _dynamic(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    """Frequencies that change while a text grows behind the length of training: a sequence keeps
    its keys, so it ends there."""
    return Rope(_plain(theta, size))


def _llama3(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    """Long waves are slowed down by the factor, short ones are not, those between by a part of
    it."""
    plain, factor = _plain(theta, size), float(given["factor"])
    low, high, original = (float(given[name]) for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    waves = 2 * math.pi / plain
    part = (original / waves - low) / (high - low)
    between = (1 - part) * plain / factor + part * plain
    return Rope(np.where(waves > original / low, plain / factor, np.where(waves < original / high, plain, between)))


def _mscale(factor: float, by: float = 1.0) -> float:
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    original = float(given["original_max_position_embeddings"] or config.get("max_position_embeddings"))
    factor = float(given.get("factor") or config.get("max_position_embeddings") / original)
    scale = given.get("attention_factor")
    if scale is None:
        both = given.get("mscale") and given.get("mscale_all_dim")
        scale = _mscale(factor, given["mscale"]) / _mscale(factor, given["mscale_all_dim"]) if both else _mscale(factor)

    def border(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = border(float(given.get("beta_fast") or 32)), border(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    plain = _plain(theta, size)
    return Rope(plain / factor * ramp + plain * (1 - ramp), float(scale), stretched=int(original * factor))


def _longrope(theta: float, size: int, given: Mapping[str, Any], config: Config, max_position: int) -> Rope:
    """The short factors up to the length of training, the long ones for everything else: a sequence
    keeps its keys, so the factors cannot change while it grows."""
    original = int(given["original_max_position_embeddings"])
    longest = int(config.get("max_position_embeddings") or original)
    factor, scale = float(given.get("factor") or longest / original), given.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    is_long = max_position > original
    factors = np.asarray(given["long_factor" if is_long else "short_factor"], np.float64)
    if factors.shape != (size // 2,):
        raise ValueError(f"{len(factors)} factors for {size // 2} pairs")
    return Rope(_plain(theta, size) / factors, float(scale), 0 if is_long else original)


_KINDS = {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope, "proportional": _proportional}
