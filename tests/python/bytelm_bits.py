"""Held-out bits per byte of bytelm with its matrices in a layout: of the program that multiplies straight from the packed weights, and of the
f32 program on the exact values, which are those of the oracles of docs/layouts.md to the bit. Weights are outside the bundles, so
one program of each kind serves all weights of its layout."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import tempfile

import numpy as np

import accrt
from accrt import bundle_writer as bw
from accrt import layouts
from accrt.compiler import External, compile, declared

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTELM = ROOT / "examples" / "bytelm"
#: What packed programs may differ by from the exact values, in bits per byte.
MOST = 1e-3
WINDOW = 1024
#: Layouts that products read packed, with the groups that are tried.
PACKED = [("i8_channel", 0), ("i8_group", 64), ("i4_group", 32), ("i4_group", 128), ("i4_group_asym", 32), ("i4_group_asym", 128),
          ("q8_0", 0), ("q4_0", 0), ("q4_k", 0), ("f8_tensor", 0), ("f8_channel", 0), ("f8_block128", 0), ("mxfp4", 0),
          ("ggml_mxfp4", 0), ("mxfp8", 0)]  # fmt: skip


def _build():
    spec = importlib.util.spec_from_file_location("bytelm_build", BYTELM / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(count: int) -> np.ndarray:
    return np.frombuffer((BYTELM / "heldout.txt").read_bytes(), np.uint8)[:count]


def matrices() -> dict[str, np.ndarray]:
    tensors, _config = _build().load()
    return {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, (_dtype, bits) in tensors.items() if bits.ndim == 2}


def module(layout: str = "", group: int = 0, cuda: str = ""):
    """bytelm whose matrices are f32, or in a layout; `cuda`: the type that is worked in there."""
    build = _build()
    tensors, config = build.load()
    wide = {name: ("f32", array) for name, array in matrices().items()}
    known = {name: declared(layout, array.shape, group=group) for name, (_dtype, array) in wide.items()} if layout else None
    made = build.build({**tensors, **wide}, config, known)
    made.name = f"bytelm_{layout or 'f32'}{group or ''}"
    if cuda:
        made.compute["cuda"] = cuda
    return made


def compiled(targets, layout: str = "", group: int = 0, cuda: str = "") -> bytes:
    return compile(module(layout, group, cuda), targets=targets, external={name: External(by_name=True) for name in matrices()})


def source(weights, instance) -> accrt.Weights:
    """Arrays, or layouts.Packed, as a source."""
    pack = bw.BundleWriter()
    for name, w in weights.items():
        if isinstance(w, np.ndarray):
            pack.constant(name, w)
        else:
            parts = {role: (c.data, c.dtype) for role, c in w.components.items()}
            pack.constant(name, parts, dtype="f32", shape=w.shape, encoding=bw.Encoding(w.layout), group_elements=w.group_elements)
    return accrt.Weights(pack.to_bytes(), instance)


def nearest(layout: str, group: int, importance=None) -> dict[str, layouts.Packed]:
    return {name: layouts.quantize(w, layout, group_elements=group, importance=importance[name] if importance else None)
            for name, w in matrices().items()}  # fmt: skip


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


def bits_per_byte(loaded, text: np.ndarray, rows: int = WINDOW) -> float:
    """`rows` bytes at a time, in windows of 1,024."""
    session, total = loaded.session(), 0.0
    for start in range(0, len(text) - 1, WINDOW):
        window = text[start : start + WINDOW + 1]
        for at in range(0, len(window) - 1, rows):
            piece = window[at : min(at + rows, len(window) - 1)].copy()
            logits = np.asarray(session.prefill(piece, at)).astype(np.float64)
            logits -= logits.max(1, keepdims=True)
            chosen = logits[np.arange(len(piece)), window[at + 1 : at + 1 + len(piece)]]
            total += (np.log(np.exp(logits).sum(1)) - chosen).sum()
    return float(total / (len(text) - 1) / np.log(2))


def name_of(layout: str, group: int) -> str:
    return f"{layout} {group}" if group else layout


