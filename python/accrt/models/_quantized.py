"""Quantized checkpoints of Hugging Face: which tensors are one weight, and in which layout
(docs/layouts.md). Nothing is unpacked here."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .._format import CONVENTIONS
from ..weights import Weight, Weights
from . import _kv_scales
from ._checkpoint import Checkpoint, Tensor, add_plain

#: What stands beside a weight and changes nothing of it: scales of activations, which are computed
#: in floats here, and shapes.
_BESIDE = (".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale", ".weight_shape", ".input_zero_point", ".kv_scale")
_SCALES = ("f32", "f16", "bf16")
#: What stands behind a weight's name, by role.
_WORDS, _TILES, _ROWS, _INT4 = (CONVENTIONS[name] for name in ("gptq", "f8_tiles", "scaled", "int4_packed"))


def gather(made: Checkpoint, source: Weights) -> None:
    """Fills `made.tensors` from a source, as `quantization_config` says."""
    given = made.config.get("quantization_config") or {}
    if not isinstance(given, dict):
        made.points.append(f"config: quantization_config is {given!r}, expected an object")
        given = {}
    method = str(given.get("quant_method", "")) if given else ""
    _kv_scales.gather(made, source)
    taken: Dict[str, str] = {}
    if given:
        reader = _METHODS.get(method)
        if reader is None:
            made.points.append(f"config: quantization_config.quant_method is {method!r}; there are {', '.join(_METHODS)}")
        else:
            taken = _join(made, source, given, reader)
    for name in source:
        if name not in taken and not name.endswith(_BESIDE if given else _kv_scales.ENDINGS):
            add_plain(made, name, source[name])


def _join(made: Checkpoint, source: Weights, given: Mapping[str, Any], reader: Callable[..., Any]) -> Dict[str, str]:
    taken: Dict[str, str] = {}
    problems: Dict[str, str] = {}
    for name in source:
        found = reader(made, source, given, name, problems)
        if found is not None:
            base, tensor, members = found
            made.tensors[base] = tensor
            taken.update(dict.fromkeys(members, base))
    made.points.extend(problems)
    return taken


Found = Optional[Tuple[str, Tensor, Tuple[str, ...]]]


def _members(source: Weights, *names: str) -> Tuple[str, ...]:
    return tuple(name for name in names if name in source)


def _group(given: Mapping[str, Any], k: int, problems: Dict[str, str]) -> int:
    size = given.get("group_size", 128)
    if isinstance(size, bool) or not isinstance(size, int) or size < -1 or size == 0:
        problems.setdefault(f"config: quantization_config.group_size is {size!r}", "")
        return k
    return k if size == -1 else size


def _scale_type(weight: Weight, problems: Dict[str, str]) -> str:
    if weight.dtype not in _SCALES:
        problems.setdefault(f"tensor {weight.name}: scales of {weight.type_name}; there are {', '.join(_SCALES)}", "")
    return weight.dtype if weight.dtype in _SCALES else "f32"


def _float(made: Checkpoint) -> str:
    """The type that a packed weight stands for."""
    dtype = str(made.config.get("torch_dtype") or made.config.get("dtype") or "float16")
    return {"float32": "f32", "bfloat16": "bf16"}.get(dtype.replace("torch.", ""), "f16")


def _gptq(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    base = name.removesuffix(_WORDS["data"])
    if base == name:
        return None
    if given.get("bits", 4) != 4:
        problems.setdefault(f"config: quantization_config.bits is {given.get('bits')!r}; GPTQ of 4 bits is read", "")
        return None
    words = source[name].shape
    k, n = words[0] * 8, words[1]
    version = "gptq_v2" if given.get("checkpoint_format") == "gptq_v2" else "gptq_v1"
    components = {"scales": _scale_type(source[base + _WORDS["scales"]], problems)}
    if given.get("desc_act"):
        components["group_index"] = "i32"
    members = _members(source, *(base + suffix for suffix in _WORDS.values()))
    return base + ".weight", Tensor(base, _float(made), (n, k), version, _group(given, k, problems), components), members


def _awq(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    base = name.removesuffix(_WORDS["data"])
    if base == name:
        return None
    if given.get("bits", 4) != 4 or str(given.get("version", "gemm")).lower() != "gemm":
        problems.setdefault(f"config: quantization_config has bits {given.get('bits', 4)!r} and version {given.get('version')!r}; AWQ of 4 bits in version 'gemm' is read", "")
        return None
    words = source[name].shape
    k, n = words[0], words[1] * 8
    members = _members(source, *(base + _WORDS[role] for role in ("data", "scales", "zeros")))
    components = {"scales": _scale_type(source[base + _WORDS["scales"]], problems)}
    return base + ".weight", Tensor(base, _float(made), (n, k), "awq", _group(given, k, problems), components), members


def _fp8(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """FP8 of 128 x 128 blocks, as DeepSeek and Qwen have it, or with one scale."""
    weight = source[name]
    if not name.endswith(".weight") or not weight.dtype.startswith("f8"):
        return None
    scales = name + _TILES["scales"]
    if scales in source:
        block = given.get("weight_block_size")
        if block is not None and list(block) != [128, 128]:
            problems.setdefault(f"config: quantization_config.weight_block_size is {block!r}; there is [128, 128]", "")
        return name, _scaled(made, source, weight, scales, "f8_block128", problems), (name, scales)
    return _f8(made, source, weight, problems)


def _f8(made: Checkpoint, source: Weights, weight: Weight, problems: Dict[str, str]) -> Found:
    scales = weight.name + _ROWS["scales"]
    if scales not in source:
        problems.setdefault(f"tensor {weight.name}: it is {weight.type_name} and has no {scales}", "")
        return None
    count = 1
    for extent in source[scales].shape:
        count *= extent
    layout = "f8_tensor" if count == 1 else "f8_channel"
    if count not in (1, weight.shape[0]):
        problems.setdefault(f"tensor {scales}: shape {list(source[scales].shape)}; there is one scale, or one for each row", "")
    return weight.name, _scaled(made, source, weight, scales, layout, problems), (weight.name, scales)


def _scaled(made: Checkpoint, source: Weights, weight: Weight, scales: str, layout: str, problems: Dict[str, str], group: int = 0) -> Tensor:
    components = {"data": weight.dtype, "scales": _scale_type(source[scales], problems)}
    return Tensor(weight.name, _float(made), weight.shape, layout, group, components)


#: Formats of compressed-tensors whose tensors are read, each weight by what it has.
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision")


def _compressed(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """compressed-tensors: symmetric INT4 by group, INT8 by channel or group, FP8 by tensor, channel
    or tile."""
    _check_formats(given, problems)
    if name.endswith(".weight" + _INT4["data"]):
        return _packed_int4(made, source, given, name.removesuffix(_INT4["data"]), problems)
    weight = source[name]
    if not name.endswith(".weight"):
        return None
    if weight.dtype.startswith("f8"):
        return _f8_tiles(made, source, given, weight, problems) or _f8(made, source, weight, problems)
    return _int8(made, source, weight, problems) if weight.dtype == "i8" else None


def _groups_of(given: Mapping[str, Any]) -> List[Tuple[str, Mapping[str, Any]]]:
    """The format and the scheme of weights of each group of modules."""
    groups = given.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    return [(str(group.get("format") or given.get("format") or ""), scheme) for group in found if isinstance(scheme := group.get("weights"), dict)]


def _check_formats(given: Mapping[str, Any], problems: Dict[str, str]) -> None:
    sparse = given.get("sparsity_config")
    formats = [str(given.get("format") or ""), *(name for name, _scheme in _groups_of(given)), str(sparse.get("format") or "") if isinstance(sparse, dict) else ""]
    for name in formats:
        if name and name not in _FORMATS:
            problems.setdefault(f"config: quantization_config has the format {name!r}; there are {', '.join(_FORMATS)}", "")


def _f8_tiles(made: Checkpoint, source: Weights, given: Mapping[str, Any], weight: Weight, problems: Dict[str, str]) -> Found:
    """A scale for each tile, where a group of modules has the strategy `block`."""
    scales = weight.name + _ROWS["scales"]
    tiles = [scheme.get("block_structure") for _format, scheme in _groups_of(given) if scheme.get("strategy") == "block"]
    if not tiles or scales not in source or len(weight.shape) != 2:
        return None
    if source[scales].shape != tuple(-(-size // 128) for size in weight.shape):
        return None
    wrong = [tile for tile in tiles if tile is not None and list(tile) != [128, 128]]
    if wrong:
        problems.setdefault(f"config: quantization_config has block_structure {wrong[0]!r}; there is [128, 128]", "")
    return weight.name, _scaled(made, source, weight, scales, "f8_block128", problems), (weight.name, scales)


def _int8(made: Checkpoint, source: Weights, weight: Weight, problems: Dict[str, str]) -> Found:
    """Zero points that are there must be zero, which is seen when the weights are bound."""
    scales, zeros, (n, k) = weight.name + _ROWS["scales"], weight.name + _ROWS["zeros"], weight.shape
    shape = source[scales].shape if scales in source else ()
    groups = shape[1] if len(shape) == 2 else 1
    if not shape or shape[0] != n or groups < 1 or k % groups:
        problems.setdefault(f"tensor {weight.name}: INT8 has a scale for each row, or for each group of a row, in {scales}", "")
        return None
    layout, group = ("i8_channel", 0) if groups == 1 else ("i8_group", k // groups)
    return weight.name, _scaled(made, source, weight, scales, layout, problems, group), _members(source, weight.name, scales, zeros)


def _packed_int4(made: Checkpoint, source: Weights, given: Mapping[str, Any], base: str, problems: Dict[str, str]) -> Found:
    places = {role: base + suffix for role, suffix in _INT4.items()}
    packed, scales = source[places["data"]], places["scales"]
    bits = {scheme.get("num_bits") for name, scheme in _groups_of(given) if name in ("", "pack-quantized")}
    if bits - {4} or packed.dtype != "i32" or len(packed.shape) != 2 or scales not in source:
        problems.setdefault(f"tensor {packed.name}: {packed.type_name} of {sorted(map(str, bits))} bits; INT4 in words is read", "")
        return None
    if places["zeros"] in source:
        problems.setdefault(f"tensor {places['zeros']}: zero points are packed along the other dimension: `accx pack` makes a file that is read", "")
    n, k = packed.shape[0], packed.shape[1] * 8
    groups = source[scales].shape[-1]
    components = {"scales": _scale_type(source[scales], problems)}
    if places["group_index"] in source:
        components["group_index"] = "i32"
    members = _members(source, *places.values())
    return base, Tensor(base, _float(made), (n, k), "i4_group", k // groups, components), members


_METHODS = {"gptq": _gptq, "awq": _awq, "fp8": _fp8, "compressed-tensors": _compressed}
