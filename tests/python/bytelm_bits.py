"""Held-out bits per byte of bytelm with its matrices in layouts: of programs that multiply straight
from the packed weights, and of the f32 program on their exact values, which are those of the
oracles of docs/layouts.md to the bit. One bundle has a function for each layout, and no matrix:
these come from sources at load."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import tempfile
from typing import NamedTuple

import numpy as np

import accrt
from accrt import bundle_writer as bw
from accrt import layouts
from accrt.compiler import Module, SymbolClass, declared, encodings, packing

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTELM = ROOT / "examples" / "bytelm"
#: What packed programs may differ by from the exact values, in bits per byte.
MOST = 1e-3
WINDOW = 1024


class Variant(NamedTuple):
    """A layout; none: f32. `data`: the type of its elements, where it leaves a choice."""

    layout: str = ""
    group: int = 0
    data: str = ""

    def __str__(self) -> str:
        return f"{self.layout or 'f32'}{self.group or ''}{self.data}"

    @property
    def types(self) -> dict[str, str]:
        return {"data": self.data} if self.data else {}


EXACT = Variant()
#: Layouts that products read packed, with the groups that are tried.
PACKED = [Variant(*parts) for parts in (
    ("i8_channel",), ("i8_group", 64), ("i4_group", 32), ("i4_group", 128), ("i4_group_asym", 32), ("i4_group_asym", 128), ("q8_0",), ("q4_0",),
    ("q4_1",), ("q4_k",), ("q5_k",), ("q6_k",), ("f8_tensor",), ("f8_channel",), ("f8_block128",), ("mxfp4",), ("ggml_mxfp4",), ("mxfp8",),
)]  # fmt: skip

#: Layouts that products read packed and that nothing here makes: the matrices of this model have no
#: nearest values in them, or checkpoints alone have them.
READ_ALONE = {"gptq_v1", "gptq_v2", "awq", "q5_0", "q5_1", "q2_k", "q3_k", "iq4_nl", "nvfp4", "ggml_nvfp4", *encodings.APART}


def example(name: str):
    spec = importlib.util.spec_from_file_location(f"bytelm_{name}", BYTELM / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(count: int) -> np.ndarray:
    return np.frombuffer((BYTELM / "heldout.txt").read_bytes(), np.uint8)[:count]


def matrices() -> dict[str, np.ndarray]:
    tensors, _config = example("build").load()
    return {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, (_dtype, bits) in tensors.items() if bits.ndim == 2}


def is_packed(key: Variant, family: str) -> bool:
    known = declared(key.layout, (512, 512), group=key.group, components=key.types)
    return packing.packed_bytes(packing.form_of(known), family) is not None


def module(variants, cuda: str = "") -> Module:
    """A function for each of the variants. `cuda`: the type that is worked in there."""
    build = example("build")
    tensors, config = build.load()
    m = Module("bits")
    if cuda:
        m.compute["cuda"] = cuda
    longest = config["max_position_embeddings"]
    norms = {name: m.constant(name, bits, dtype) for name, (dtype, bits) in tensors.items() if bits.ndim == 1}
    model = build.Model.__new__(build.Model)
    model.m, model.config = m, config
    model.length = m.symbol("length", minimum=1, maximum=longest)
    model.position = m.symbol("position", SymbolClass.RUNTIME, maximum=longest - 1)
    model.capacity = m.symbol("capacity", SymbolClass.SESSION, minimum=1, maximum=longest)
    model.cache = [{part: model._state(layer, part) for part in "kv"} for layer in range(config["num_hidden_layers"])]
    for key in variants:
        model.w = dict(norms)
        for tensor, array in matrices().items():
            name, layout = f"{key}/{tensor}", key.layout or "plain"
            model.w[tensor] = m.external(name, "f32", array.shape, layout=layout, group=key.group, components=key.types, by_name=True)
        model.head = model.w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
        model.function(str(key), model.length, "Reads a piece of text")
    return m


def source(weights, instance) -> accrt.Weights:
    """{variant: {name: array or layouts.Packed}} as a source."""
    pack = bw.BundleWriter()
    for key, tensors in weights.items():
        for tensor, w in tensors.items():
            name = f"{key}/{tensor}"
            if isinstance(w, np.ndarray):
                pack.constant(name, w)
            else:
                parts = {role: (c.data, c.dtype) for role, c in w.components.items()}
                pack.constant(name, parts, dtype="f32", shape=w.shape, encoding=bw.Encoding(w.layout), group_elements=w.group_elements)
    return accrt.Weights(pack.to_bytes(), instance)


def nearest(key: Variant, importance=None) -> dict[str, layouts.Packed]:
    how = {"group_elements": key.group, **key.types}
    return {name: layouts.quantize(w, key.layout, importance=importance[name] if importance else None, **how) for name, w in matrices().items()}


def exact(packed) -> dict[str, np.ndarray]:
    return {name: layouts.dequantize(p) for name, p in packed.items()}


def program(data: bytes, weights: accrt.Weights, instance, device: str = "host"):
    handle, path = tempfile.mkstemp(suffix=".accx")
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    try:
        return accrt.Bundle(path, instance).program(instance.device(device), weights=[weights])
    finally:
        os.unlink(path)


def bits_per_byte(loaded, key: Variant, text: np.ndarray, rows: int = WINDOW) -> float:
    """`rows` bytes at a time, in windows of 1,024."""
    session, total = loaded.session(), 0.0
    function = getattr(session, str(key))
    for start in range(0, len(text) - 1, WINDOW):
        window = text[start : start + WINDOW + 1]
        for at in range(0, len(window) - 1, rows):
            piece = window[at : min(at + rows, len(window) - 1)].copy()
            logits = np.asarray(function(piece, at)).astype(np.float64)
            logits -= logits.max(1, keepdims=True)
            chosen = logits[np.arange(len(piece)), window[at + 1 : at + 1 + len(piece)]]
            total += (np.log(np.exp(logits).sum(1)) - chosen).sum()
    return float(total / (len(text) - 1) / np.log(2))
