"""Random LoRA adapters for the models of tiny_models.py: folders as PEFT writes them, and the
weights that the model would have if an adapter were merged into it (W + scale B A, in float64)."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np

import tiny_models as tiny


def products(weights):
    """{name of a product: [what it takes, what it gives]} of every matrix that is no embedding and
    no head."""
    found = {}
    for name, array in weights.items():
        if array.ndim == 2 and re.search(r"\.(self_attn|attn|mlp)\.", name):
            # GPT-2 has them the other way round
            shape = array.shape[::-1] if ".h." not in name else array.shape
            found[name[: -len(".weight")]] = shape
    return found


def random_adapter(weights, seed, rank=4, chosen=None, gain=1.0):
    """{product: (A [rank, in], B [out, rank])} of some products, large enough that they count."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, (taken, given) in products(weights).items():
        if chosen is None or name.endswith(tuple(chosen)):
            a = rng.standard_normal((rank, taken)) * (gain / math.sqrt(taken))
            found[name] = a.astype(np.float32), rng.standard_normal((given, rank)).astype(np.float32)
    return found


def config_of(adapter, alpha, **changes):
    rank = next(iter(adapter.values()))[0].shape[0] if adapter else 1
    return {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": None,
            "target_modules": sorted({name.rpartition(".")[2] for name in adapter}), "task_type": "CAUSAL_LM", **changes}  # fmt: skip


def write_adapter(folder, adapter, alpha=8.0, dtype="F32", **changes):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config_of(adapter, alpha, **changes)))
    arrays = {}
    for name, (a, b) in adapter.items():
        for part, array in (("A", a), ("B", b)):
            arrays[f"base_model.model.{name}.lora_{part}.weight"] = (dtype, tiny._stored(array, dtype))
    tiny.write_safetensors(folder / "adapter_model.safetensors", arrays)
    return folder


def merged(weights, adapter, scale):
    """`scale`: one number, or a function of the product's name."""
    made = {name: array.astype(np.float64) for name, array in weights.items()}
    for name, (a, b) in adapter.items():
        delta = (scale(name) if callable(scale) else scale) * (b.astype(np.float64) @ a.astype(np.float64))
        made[name + ".weight"] += delta.T if ".h." in name else delta
    return made
