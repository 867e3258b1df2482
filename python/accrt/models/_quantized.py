"""Quantized checkpoints of Hugging Face: which tensors are one weight, and in which layout
(docs/layouts.md). Nothing is unpacked here."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .._format import CONVENTIONS
from ..weights import Weight, Weights
from . import _kv_scales, _parts
from ._checkpoint import Checkpoint, Tensor, add_plain, twice

#: What stands beside a weight and changes nothing of it: scales of activations, which are computed
#: in floats here, and shapes.
_BESIDE = (".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale", ".weight_shape", ".input_zero_point", ".kv_scale")
_SCALES = ("f32", "f16", "bf16")
#: What stands behind a weight's name, by role.
_WORDS, _TILES, _ROWS, _INT4, _NVFP4, _MODELOPT, _BLOCKS = (
    CONVENTIONS[name] for name in ("gptq", "f8_tiles", "scaled", "int4_packed", "nvfp4_packed", "nvfp4", "mxfp4_blocks")
)  # fmt: skip


def gather(made: Checkpoint, source: Weights) -> None:
    """Fills `made.tensors` from a source, as `quantization_config` says."""
    given = made.config.get("quantization_config") or _of_text(made, "quantization_config") or {}
    if not isinstance(given, dict):
        made.points.append(f"config: quantization_config is {given!r}, expected an object")
        given = {}
    method = str(given.get("quant_method", "")) if given else ""
    _kv_scales.gather(made, source)
    taken: Dict[str, str] = {}
    if given:
        reader = _METHODS.get(method)
        if reader is None:
            made.points.append(f"config: quantization_config.quant_method is {method!r}; there are {', '.join(_METHODS)}: take the model's folder with plain weights, or one of these, or a GGUF file")
        else:
            taken = _join(made, source, given, reader)
            if reader is _bitnet and made.config.get("model_type") not in _OF_THREE_VALUES:
                made.points.append(f"config: quantization_config.quant_method is {method!r}; weights of three values are read of {' and '.join(_OF_THREE_VALUES)} alone")
    for name in source:
        if name not in taken and not name.endswith(_BESIDE if given else _kv_scales.ENDINGS):
            add_plain(made, name, source[name])


def _of_text(made: Checkpoint, key: str) -> Any:
    """What the configuration of a part for text says, in a model of several parts."""
    parts = (made.config.get(part) for part in _parts.TEXT_KEYS)
    return next((part[key] for part in parts if isinstance(part, dict) and part.get(key)), None)


def _join(made: Checkpoint, source: Weights, given: Mapping[str, Any], reader: Callable[..., Any]) -> Dict[str, str]:
    taken: Dict[str, str] = {}
    problems: Dict[str, str] = {}
    if reader is _compressed:
        _check_formats(given, problems)
    for name in source:
        found = reader(made, source, given, name, problems)
        if found is not None:
            base, tensor, members = found
            if base in made.tensors:
                problems.setdefault(twice(base), "")
            made.tensors[base] = tensor
            taken.update(dict.fromkeys(members, base))
    made.points.extend(problems)
    return taken


Found = Optional[Tuple[str, Tensor, Tuple[str, ...]]]


def _text(weight: Weight) -> str:
    return f"{weight.dtype or weight.type_name}{list(weight.shape)}"


def _is_whole(source: Weights, name: str, scales: str, problems: Dict[str, str]) -> bool:
    """Whether codes are a matrix and have scales."""
    if len(source[name].shape) != 2 or 0 in source[name].shape:
        problems.setdefault(f"tensor {name}: {_text(source[name])}; quantized weights are matrices", "")
        return False
    if scales not in source:
        problems.setdefault(f"tensor {name}: it is {source[name].type_name} and has no {scales}", "")
    return scales in source


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
    named = (read(key) for key in ("torch_dtype", "dtype") for read in (made.config.get, lambda key: _of_text(made, key)))
    dtype = str(next(filter(None, named), "float16"))
    return {"float32": "f32", "bfloat16": "bf16"}.get(dtype.replace("torch.", ""), "f16")


def _gptq(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    base = name.removesuffix(_WORDS["data"])
    if base == name:
        return None
    if given.get("bits", 4) != 4:
        problems.setdefault(f"config: quantization_config.bits is {given.get('bits')!r}; GPTQ of 4 bits is read", "")
        return None
    if not _is_whole(source, name, base + _WORDS["scales"], problems):
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
    if not _is_whole(source, name, base + _WORDS["scales"], problems):
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
        if block is not None and block != [128, 128]:
            problems.setdefault(f"config: quantization_config.weight_block_size is {block!r}; there is [128, 128]", "")
        return name, _scaled(made, source, weight, scales, "f8_block128", problems), (name, scales)
    return _f8(made, source, weight, problems)


def _f8(made: Checkpoint, source: Weights, weight: Weight, problems: Dict[str, str]) -> Found:
    scales = weight.name + _ROWS["scales"]
    if not _is_whole(source, weight.name, scales, problems):
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


#: Groups of modules of compressed-tensors. Checkpoints have one, or some tens.
_MOST_GROUPS = 1024
#: Formats of compressed-tensors whose tensors are read, each weight by what it has.
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "dense", "mixed-precision")


def _compressed(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """compressed-tensors: INT4 and INT8 by channel or group, FP8 by tensor, channel or tile, FP4
    with scales of 16 (NVFP4) or 32 (MXFP4)."""
    if name.endswith(".weight" + _INT4["data"]):
        return _packed(made, source, given, name.removesuffix(_INT4["data"]), problems)
    weight = source[name]
    if not name.endswith(".weight"):
        return None
    if weight.dtype.startswith("f8"):
        return _f8_tiles(made, source, given, weight, problems) or _f8(made, source, weight, problems)
    return _int8(made, source, given, weight, problems) if weight.dtype == "i8" else None


def _groups_of(given: Mapping[str, Any]) -> List[Tuple[str, Mapping[str, Any]]]:
    """The format and the scheme of weights of each group of modules."""
    groups = given.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    return [(str(group.get("format") or given.get("format") or ""), scheme) for group in found if isinstance(scheme := group.get("weights"), dict)]


def _check_formats(given: Mapping[str, Any], problems: Dict[str, str]) -> None:
    groups = given.get("config_groups")
    if isinstance(groups, dict) and len(groups) > _MOST_GROUPS:  # each tensor looks at all of them
        problems.setdefault(f"config: quantization_config has {len(groups)} config_groups; there may be {_MOST_GROUPS}", "")
        groups.clear()
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
    wrong = [tile for tile in tiles if tile is not None and tile != [128, 128]]
    if wrong:
        problems.setdefault(f"config: quantization_config has block_structure {wrong[0]!r}; there is [128, 128]", "")
    return weight.name, _scaled(made, source, weight, scales, "f8_block128", problems), (weight.name, scales)


def _int8(made: Checkpoint, source: Weights, given: Mapping[str, Any], weight: Weight, problems: Dict[str, str]) -> Found:
    """Zero points that are there must be zero where the configuration says so, which is seen when
    the weights are bound."""
    scales, zeros = weight.name + _ROWS["scales"], weight.name + _ROWS["zeros"]
    if not _is_whole(source, weight.name, scales, problems):
        return None
    shape, (n, k) = source[scales].shape, weight.shape
    groups = shape[1] if len(shape) == 2 else 1
    if not shape or shape[0] != n or groups < 1 or k % groups:
        problems.setdefault(f"tensor {weight.name}: INT8 has a scale for each row, or for each group of a row, in {scales}", "")
        return None
    asymmetric = zeros in source and any(scheme.get("symmetric") is False for _name, scheme in _groups_of(given))
    if asymmetric and (source[zeros].dtype != "i8" or source[zeros].shape != (n, groups)):
        problems.setdefault(f"tensor {zeros}: {_text(source[zeros])}; beside scales of {list(shape)} there are zero points i8[{n}, {groups}]", "")
        return None
    if asymmetric:
        components = {"scales": _scale_type(source[scales], problems)}
        return weight.name, Tensor(weight.name, _float(made), (n, k), "i8_asym", k // groups, components), (weight.name, scales, zeros)
    layout, group = ("i8_channel", 0) if groups == 1 else ("i8_group", k // groups)
    return weight.name, _scaled(made, source, weight, scales, layout, problems, group), _members(source, weight.name, scales, zeros)


def _packed(made: Checkpoint, source: Weights, given: Mapping[str, Any], base: str, problems: Dict[str, str]) -> Found:
    """Codes in words of 32 bits, or two of four bits to a byte."""
    data, scales = source[base + _INT4["data"]], base + _INT4["scales"]
    if not _is_whole(source, data.name, scales, problems):
        return None
    if data.dtype not in ("i32", "u8"):
        problems.setdefault(f"tensor {data.name}: {_text(data)}; codes are in words (i32), or two of four bits in a byte (u8)", "")
        return None
    return (_packed_words if data.dtype == "i32" else _packed_floats)(made, source, given, base, problems)


def _packed_floats(made: Checkpoint, source: Weights, given: Mapping[str, Any], base: str, problems: Dict[str, str]) -> Found:
    """NVFP4, whose global scale divides; MXFP4."""
    data, scales, whole = (source[base + _NVFP4[role]] if base + _NVFP4[role] in source else None for role in ("data", "scales", "global_scale"))
    n, k = data.shape[0], data.shape[1] * 2
    if scales.dtype in ("u8", "f8e8m0") and scales.shape == (n, k // 32) and k % 32 == 0 and whole is None:
        return base, Tensor(base, _float(made), (n, k), "mxfp4", 32), (data.name, scales.name)
    if scales.dtype != "f8e4m3fn" or scales.shape != (n, k // 16) or k % 16:
        problems.setdefault(f"tensor {scales.name}: {_text(scales)}; beside {_text(data)} NVFP4 has scales f8e4m3fn[{n}, {k // 16}], and MXFP4 bytes [{n}, {k // 32}]", "")
        return None
    if whole is None or whole.dtype != "f32" or whole.shape != (1,):
        name = base + _NVFP4["global_scale"]
        problems.setdefault(f"tensor {name}: " + ("it is missing: NVFP4 has one number, f32[1]" if whole is None else f"{_text(whole)}; NVFP4 has one number, f32[1]"), "")
        return None
    return base, Tensor(base, _float(made), (n, k), "ct_nvfp4", 16), (data.name, scales.name, whole.name)


def _packed_words(made: Checkpoint, source: Weights, given: Mapping[str, Any], base: str, problems: Dict[str, str]) -> Found:
    """INT4 or INT8, whose zero points are packed along the rows."""
    places = {role: base + suffix for role, suffix in _INT4.items()}
    data, scales = source[places["data"]], source[places["scales"]]
    zeros, index = (source[places[role]] if places[role] in source else None for role in ("zeros", "group_index"))
    bits = _bits_of_words(source, given, base, problems)
    if bits is None:
        return None
    n, k = data.shape[0], data.shape[1] * (32 // bits)
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    if groups < 1 or scales.shape[0] != n or k % groups:
        problems.setdefault(f"tensor {scales.name}: {_text(scales)}; there is a scale for each of {n} rows, or for each group of a row of {k}", "")
        return None
    expected = (-(-n * bits // 32), groups)
    if zeros is not None and (zeros.dtype != "i32" or zeros.shape != expected):
        problems.setdefault(f"tensor {zeros.name}: {_text(zeros)}; zero points of {32 // bits} rows are in a word, i32{list(expected)}", "")
        return None
    if index is not None and (bits == 8 or index.dtype != "i32" or index.shape != (k,)):
        problems.setdefault(f"tensor {index.name}: {_text(index)}; columns of INT4 alone may be in another order, i32[{k}]", "")
        return None
    components = {"scales": _scale_type(scales, problems), **({"group_index": "i32"} if index is not None else {})}
    layout = ("i4_group" if zeros is None else "ct_i4_asym") if bits == 4 else "ct_i8" if zeros is None else "ct_i8_asym"
    return base, Tensor(base, _float(made), (n, k), layout, k // groups, components), _members(source, *places.values())


def _bits_of_words(source: Weights, given: Mapping[str, Any], base: str, problems: Dict[str, str]) -> Optional[int]:
    """4 or 8: as the shape beside the weight says, or the configuration."""
    data, shape = source[base + _INT4["data"]], source[base + "_shape"] if base + "_shape" in source else None
    words = data.shape[1]
    if shape is not None and shape.shape == (2,) and shape.dtype in ("i32", "i64"):
        columns = int(shape.numpy()[1])
        if columns in (words * 8, words * 4):
            return 32 * words // columns
        problems.setdefault(f"tensor {data.name}: {_text(data)} for rows of {columns}; INT4 and INT8 in whole words are read", "")
        return None
    said = [scheme.get("num_bits") for name, scheme in _groups_of(given) if name in ("", "pack-quantized")]
    bits = {one if type(one) is int else repr(one) for one in said if one is not None}
    if len(bits) > 1 or bits - {4, 8}:
        problems.setdefault(f"config: quantization_config has num_bits {', '.join(sorted(map(str, bits)))} and no {base}_shape; INT4 and INT8 in whole words are read", "")
        return None
    return int(bits.pop()) if bits else 4


def _modelopt(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """ModelOpt: FP8 with one scale, and NVFP4 with a global scale that multiplies."""
    weight, scales, whole = source[name], name + _MODELOPT["scales"], name + _MODELOPT["global_scale"]
    if not name.endswith(".weight"):
        return None
    if weight.dtype.startswith("f8"):
        return _f8(made, source, weight, problems)
    if weight.dtype != "u8":
        return None
    if not _is_whole(source, name, scales, problems):
        return None
    n, k = weight.shape
    if k % 8 or whole not in source or source[scales].dtype != "f8e4m3fn" or source[scales].shape != (n, k // 8):
        problems.setdefault(f"tensor {name}: {_text(weight)}; NVFP4 has f8e4m3fn[{n}, {k // 8}] in {scales}, and a number in {whole}", "")
        return None
    return name, Tensor(name, _float(made), (n, 2 * k), "nvfp4", 16), (name, scales, whole)


def _mxfp4(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """Experts of GPT-OSS: blocks of 32 codes in 16 bytes, [experts, rows, blocks, 16]."""
    base = name.removesuffix(_BLOCKS["data"])
    if base == name:
        return None
    data, scales = source[name], base + _BLOCKS["scales"]
    if len(data.shape) != 4 or data.shape[3] != 16 or 0 in data.shape or data.dtype != "u8":
        problems.setdefault(f"tensor {name}: {_text(data)}; MXFP4 has blocks u8[experts, rows, blocks, 16]", "")
        return None
    if scales not in source or source[scales].dtype not in ("u8", "f8e8m0") or source[scales].shape != data.shape[:3]:
        problems.setdefault(f"tensor {name}: beside {_text(data)} MXFP4 has bytes {list(data.shape[:3])} in {scales}", "")
        return None
    return base, Tensor(base, _float(made), (*data.shape[:2], data.shape[2] * 32), "mxfp4", 32), (name, scales)


#: Families that compute with weights of three values (_three_values.py), by model_type.
_OF_THREE_VALUES = ("bitnet", "llama")


def _bitnet(made: Checkpoint, source: Weights, given: Mapping[str, Any], name: str, problems: Dict[str, str]) -> Found:
    """Weights of three values, four in a byte: those of a quarter of the rows each. They are
    unpacked by what computes with them."""
    weight = source[name]
    if not name.endswith(".weight") or weight.dtype != "u8" or len(weight.shape) != 2:
        return None
    return name, Tensor(name, "u8", weight.shape), (name,)


_METHODS = {"bitnet": _bitnet, "gptq": _gptq, "awq": _awq, "fp8": _fp8, "compressed-tensors": _compressed, "modelopt": _modelopt, "mxfp4": _mxfp4}
