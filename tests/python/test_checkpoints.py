"""Quantized checkpoints as other projects write them (names, types, shapes), through EXTERNAL
constants to values.

Each file is made from codes and scales as that project stores them, and the values are that
project's formula over those in numpy."""
from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

import numpy as np
import pytest

import accrt
from accrt import bundle_writer as bw
from accrt import layouts
import rotation
from safetensors_file import safetensors_bytes

N, K, G = 64, 256, 64
Encoding, Role = bw.Encoding, bw.Role
ROLES = ("data", "scales", "zeros", "group_index", "global_scale")
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.fixture
def rng():
    return np.random.default_rng(rotation.seed())


# ---- Files ----

class As(NamedTuple):
    """An array whose bits are of a type that numpy has not."""

    dtype: str
    array: np.ndarray


def save(path, tensors):
    path.write_bytes(safetensors_bytes(dict(sorted(tensors.items())), {"format": "pt"}, align=8))
    return path


def bf16(array):
    """Its bits, and the values that they have."""
    bits = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return As("BF16", bits), (bits.astype(np.uint32) << 16).view(np.float32)


def f8_values(codes):
    """f8e4m3fn, from its definition."""
    e, m = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    value = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    return np.where(codes >> 7, -value, value).astype(np.float32)


def f8_codes(rng, shape):
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    return np.where((codes & 0x7F) == 0x7F, np.uint8(0), codes)


def words(nibbles):
    """Runs of eight 4-bit values along the last axis, the first in the low bits of an i32."""
    n = nibbles.astype(np.uint32).reshape(*nibbles.shape[:-1], -1, 8)
    return np.ascontiguousarray((n << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32))


def packed_fp4(codes):
    return codes[..., 0::2] | codes[..., 1::2] << 4


# ---- From a constant to values ----

def bound(path, name, encoding, shape, components, instance, *, group=0, dtype="f16", tensor=""):
    """Makes a bundle whose only weight is outside, gives it the file, and reads the components that
    the program has."""
    bundle = bw.BundleWriter()
    weight = bundle.external(name, dtype, shape, encoding=encoding, group_elements=group, components=components, tensor=tensor)
    f = bundle.function("look")
    for i, component in enumerate(weight.components):
        f.body.copy(f.constant(weight, i).read(), f.result(f"y{i}", "u8", [component.size_bytes]).write(), component.size_bytes)
    out = path.parent / "look.accx"
    bundle.write(out)
    program = accrt.Bundle(out, instance).program(weights=accrt.Weights(path, instance))
    results = program.session().look()
    results = results if isinstance(results, tuple) else (results,)
    parts = {ROLES[c.role]: layouts.Component(c.dtype, np.frombuffer(bytes(memoryview(r.numpy() if hasattr(r, "numpy") else r)), np.uint8))
             for c, r in zip(weight.components, results)}
    return layouts.dequantize(layouts.Packed(int(encoding), shape, parts, group, dtype))


def same(found, expected):
    assert found.shape == expected.shape
    assert np.array_equal(found, expected.astype(np.float32), equal_nan=True)


# ---- GPTQ and AWQ: AutoGPTQ, GPTQModel, AutoAWQ ----

LAYER = "model.layers.0.self_attn.q_proj"
INT4 = {"data": "i32", "scales": "f16", "zeros": "i32"}
INDEXED = {**INT4, "group_index": "i32"}


def gptq(rng, order="sorted", group=G):
    """AutoGPTQ's tensors of one layer, and the values by version."""
    groups = -(-K // group)
    q = rng.integers(0, 16, (K, N))
    stored = rng.integers(0, 15, (groups, N))
    scales = (rng.standard_normal((groups, N)) * 0.01).astype(np.float16)
    g_idx = (np.arange(K) // group).astype(np.int32)
    if order == "act":
        g_idx = rng.permutation(g_idx)
    tensors = {f"{LAYER}.qweight": words(q.T).T.copy(), f"{LAYER}.qzeros": words(stored), f"{LAYER}.scales": scales,
               f"{LAYER}.g_idx": g_idx, f"{LAYER}.bias": np.zeros(N, np.float16)}  # fmt: skip
    s = scales.astype(np.float32)
    return tensors, {v: ((q - (stored + (v == 1))[g_idx]) * s[g_idx]).T for v in (1, 2)}


@pytest.mark.parametrize("version, encoding", [(1, Encoding.GPTQ_V1), (2, Encoding.GPTQ_V2)])
@pytest.mark.parametrize("order", ["sorted", "act"])
def test_gptq(version, encoding, order, rng, tmp_path, instance):
    tensors, values = gptq(rng, order)
    path = save(tmp_path / "model.safetensors", tensors)
    assert tensors[f"{LAYER}.qweight"].shape == (K // 8, N) and tensors[f"{LAYER}.qzeros"].shape == (K // G, N // 8)
    same(bound(path, LAYER, encoding, (N, K), INDEXED, instance, group=G), values[version])
    assert not np.array_equal(values[1], values[2])
    if order == "sorted":
        same(bound(path, LAYER, encoding, (N, K), INT4, instance, group=G), values[version])
        return
    with pytest.raises(accrt.TypeMismatchError, match="g_idx', without which values are wrong.*not in the order of their groups"):
        bound(path, LAYER, encoding, (N, K), INT4, instance, group=G)


def test_gptq_without_an_index(rng, tmp_path, instance):
    """Files of before act-order have no g_idx: a constant that wants one is told so, one that wants
    none is served."""
    tensors, values = gptq(rng)
    del tensors[f"{LAYER}.g_idx"]
    path = save(tmp_path / "model.safetensors", tensors)
    same(bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=G), values[1])
    with pytest.raises(accrt.NotFoundError, match="qweight' and no '.*g_idx'"):
        bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INDEXED, instance, group=G)
    with pytest.raises(accrt.TypeMismatchError, match="role 1 is f16"):
        bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=G // 2)
    same(bound(path, "other.name", Encoding.GPTQ_V1, (N, K), INT4, instance, group=G, tensor=LAYER), values[1])


@pytest.mark.parametrize("wrong", [-1, K // G, 100000000])
def test_an_index_that_names_no_group(wrong, rng, tmp_path, instance):
    """Kernels would read outside of the scales."""
    tensors, _ = gptq(rng, "act")
    tensors[f"{LAYER}.g_idx"][77] = wrong
    path = save(tmp_path / "model.safetensors", tensors)
    with pytest.raises(accrt.DataCorruptError, match=f"column 77 into group {wrong} of {K // G}"):
        bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INDEXED, instance, group=G)


def test_gptq_of_a_whole_column(rng, tmp_path, instance):
    """group_size -1: one group."""
    tensors, values = gptq(rng, group=K)
    path = save(tmp_path / "model.safetensors", tensors)
    same(bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=K), values[1])


def test_packs_say_how_they_differ(rng, tmp_path, instance):
    """Kind and shape alike: group, components or what values are read as are not."""
    tensors, values = gptq(rng)
    pack = bw.BundleWriter()
    q = {role: tensors[f"{LAYER}.{name}"] for role, name in (("data", "qweight"), ("scales", "scales"), ("zeros", "qzeros"))}
    pack.constant(LAYER, q, dtype="f16", shape=(N, K), encoding=Encoding.GPTQ_V1, group_elements=G)
    pack.write(tmp_path / "pack.accx")
    same(bound(tmp_path / "pack.accx", LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=G), values[1])
    with pytest.raises(accrt.TypeMismatchError, match=r"gptq_v1\[64, 256\] of f16 with groups of 64 and 4 components, but .* of f16 with 64 and 3"):
        bound(tmp_path / "pack.accx", LAYER, Encoding.GPTQ_V1, (N, K), INDEXED, instance, group=G)
    with pytest.raises(accrt.TypeMismatchError, match="of bf16 with groups of 64 and 3 components, but .* of f16"):
        bound(tmp_path / "pack.accx", LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=G, dtype="bf16")


def test_awq(rng, tmp_path, instance):
    q, z = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // G, N))
    scales = (rng.standard_normal((K // G, N)) * 0.01).astype(np.float16)
    tensors = {f"{LAYER}.{part}": words(x.reshape(len(x), -1, 8)[:, :, AWQ_ORDER].reshape(len(x), -1))
               for part, x in (("qweight", q), ("qzeros", z))}  # fmt: skip
    path = save(tmp_path / "awq.safetensors", {**tensors, f"{LAYER}.scales": scales})
    expected = ((q - np.repeat(z, G, 0)) * np.repeat(scales, G, 0).astype(np.float32)).T
    same(bound(path, LAYER, Encoding.AWQ, (N, K), INT4, instance, group=G), expected)
    # Both have as many bytes: the shape says which it is.
    with pytest.raises(accrt.TypeMismatchError, match="qweight"):
        bound(path, LAYER, Encoding.GPTQ_V1, (N, K), INT4, instance, group=G)
    other = save(tmp_path / "gptq.safetensors", gptq(rng)[0])
    with pytest.raises(accrt.TypeMismatchError, match="qweight"):
        bound(other, LAYER, Encoding.AWQ, (N, K), INT4, instance, group=G)


# ---- FP8: compressed-tensors' float-quantized, ModelOpt, DeepSeek ----

F8 = {"data": "f8e4m3fn"}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_fp8_per_tensor(shape, rng, tmp_path, instance):
    codes, scale = f8_codes(rng, (N, K)), np.full(shape, 0.037, np.float32)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes), f"{LAYER}.weight_scale": scale,
                                             f"{LAYER}.input_scale": scale})  # fmt: skip
    found = bound(path, f"{LAYER}.weight", Encoding.F8_TENSOR, (N, K), {**F8, "scales": "f32"}, instance, dtype="bf16")
    same(found, f8_values(codes) * scale.reshape(()))


def test_fp8_per_channel(rng, tmp_path, instance):
    codes = f8_codes(rng, (N, K))
    scale, values = bf16(rng.random((N, 1)) * 0.01)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes), f"{LAYER}.weight_scale": scale})
    found = bound(path, f"{LAYER}.weight", Encoding.F8_CHANNEL, (N, K), {**F8, "scales": "bf16"}, instance, dtype="bf16")
    same(found, f8_values(codes) * values)
    with pytest.raises(accrt.TypeMismatchError, match="role 1 is f32"):
        bound(path, f"{LAYER}.weight", Encoding.F8_CHANNEL, (N, K), {**F8, "scales": "f32"}, instance, dtype="bf16")
    across, _ = bf16(rng.random((1, N)))  # as many, and of columns
    square = save(tmp_path / "s.safetensors", {f"{LAYER}.weight": As("F8_E4M3", f8_codes(rng, (N, N))), f"{LAYER}.weight_scale": across})
    with pytest.raises(accrt.TypeMismatchError, match="role 1 is bf16"):
        bound(square, f"{LAYER}.weight", Encoding.F8_CHANNEL, (N, N), {**F8, "scales": "bf16"}, instance, dtype="bf16")
    turned = save(tmp_path / "t.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes.T), f"{LAYER}.weight_scale": scale})
    with pytest.raises(accrt.TypeMismatchError, match="role 0 is f8e4m3fn"):
        bound(turned, f"{LAYER}.weight", Encoding.F8_CHANNEL, (N, K), {**F8, "scales": "bf16"}, instance, dtype="bf16")


@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale"])
def test_fp8_blocks(suffix, rng, tmp_path, instance):
    """DeepSeek-V3's weight_scale_inv, which multiplies; compressed-tensors calls it weight_scale.
    Ragged edges."""
    n, k = 200, 300
    codes, scale = f8_codes(rng, (n, k)), (rng.random((2, 3)) * 0.01).astype(np.float32)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes), f"{LAYER}.weight{suffix}": scale})
    found = bound(path, f"{LAYER}.weight", Encoding.F8_BLOCK128, (n, k), {**F8, "scales": "f32"}, instance, dtype="bf16")
    same(found, f8_values(codes) * np.repeat(np.repeat(scale, 128, 0), 128, 1)[:n, :k])
    turned = save(tmp_path / "t.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes), f"{LAYER}.weight{suffix}": scale.T})
    with pytest.raises(accrt.TypeMismatchError, match="role 1 is f32"):
        bound(turned, f"{LAYER}.weight", Encoding.F8_BLOCK128, (n, k), {**F8, "scales": "f32"}, instance, dtype="bf16")


# ---- compressed-tensors' integers ----

@pytest.mark.parametrize("zero_point", [None, 0, 3])
@pytest.mark.parametrize("group", [0, G])
def test_int8(group, zero_point, rng, tmp_path, instance):
    codes = rng.integers(-128, 128, (N, K), dtype=np.int8)
    scale, values = bf16(rng.random((N, K // group if group else 1)) * 0.01)
    tensors = {f"{LAYER}.weight": codes, f"{LAYER}.weight_scale": scale}
    if zero_point is not None:
        tensors[f"{LAYER}.weight_zero_point"] = np.full(values.shape, zero_point, np.int8)
    path = save(tmp_path / "m.safetensors", tensors)
    arguments = (f"{LAYER}.weight", Encoding.I8_GROUP if group else Encoding.I8_CHANNEL, (N, K), {"scales": "bf16"}, instance)
    if zero_point:
        with pytest.raises(accrt.TypeMismatchError, match="weight_zero_point', without which"):
            bound(path, *arguments, group=group, dtype="bf16")
    else:
        same(bound(path, *arguments, group=group, dtype="bf16"), codes * np.repeat(values, group or K, 1))


@pytest.mark.parametrize("order", ["none", "sorted", "unset", "act"])
def test_packed_int4(order, rng, tmp_path, instance):
    q = rng.integers(-8, 8, (N, K))
    scale, values = bf16(rng.random((N, K // G)) * 0.01)
    g_idx = (np.arange(K) // G).astype(np.int32)
    g_idx = {"act": rng.permutation(g_idx), "unset": np.full(K, -1, np.int32)}.get(order, g_idx)
    tensors = {f"{LAYER}.weight_packed": words(q + 8), f"{LAYER}.weight_scale": scale, f"{LAYER}.weight_shape": np.array([N, K])}
    if order != "none":
        tensors[f"{LAYER}.weight_g_idx"] = g_idx
    path = save(tmp_path / "m.safetensors", tensors)
    parts = {"data": "u4", "scales": "bf16"}
    arguments = (f"{LAYER}.weight", Encoding.I4_GROUP, (N, K))
    if order == "act":
        with pytest.raises(accrt.TypeMismatchError, match="weight_g_idx', without which"):
            bound(path, *arguments, parts, instance, group=G, dtype="bf16")
        found = bound(path, *arguments, {**parts, "group_index": "i32"}, instance, group=G, dtype="bf16")
    else:
        found = bound(path, *arguments, parts, instance, group=G, dtype="bf16")
    same(found, q * values[:, np.arange(K) // G if order == "unset" else g_idx])


def test_packed_int4_with_zero_points(rng, tmp_path, instance):
    """Zero points are packed along N there, and along K here: nothing in a file says so but the
    name."""
    q, z = rng.integers(-8, 8, (N, K)), rng.integers(-8, 8, (N, K // G))
    scale, _ = bf16(rng.random((N, K // G)) * 0.01)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight_packed": words(q + 8), f"{LAYER}.weight_scale": scale,
                                             f"{LAYER}.weight_zero_point": words((z + 8).T).T.copy()})  # fmt: skip
    parts = {"data": "u4", "scales": "bf16"}
    with pytest.raises(accrt.TypeMismatchError, match="weight_zero_point.* means something else: `accx pack`"):
        bound(path, f"{LAYER}.weight", Encoding.I4_GROUP_ASYM, (N, K), {**parts, "zeros": "u4"}, instance, group=G, dtype="bf16")
    with pytest.raises(accrt.TypeMismatchError, match="weight_zero_point', without which"):
        bound(path, f"{LAYER}.weight", Encoding.I4_GROUP, (N, K), parts, instance, group=G, dtype="bf16")


# ---- Microscaling formats ----

@pytest.mark.parametrize("style", ["gpt-oss", "original", "compressed-tensors"])
def test_mxfp4(style, rng, tmp_path, instance):
    shape = (3, N, K) if style != "compressed-tensors" else (N, K)
    codes, exponents = rng.integers(0, 16, shape, dtype=np.uint8), rng.integers(100, 140, (*shape[:-1], K // 32), dtype=np.uint8)
    name, data, scales = {
        "gpt-oss": ("model.layers.0.mlp.experts.gate_up_proj", "_blocks", "_scales"),
        "original": ("block.0.mlp.mlp1_weight", ".blocks", ".scales"),
        "compressed-tensors": (f"{LAYER}.weight", "_packed", "_scale"),
    }[style]
    blocks = packed_fp4(codes)
    if style != "compressed-tensors":
        blocks = blocks.reshape(*shape[:-1], K // 32, 16)
    path = save(tmp_path / "m.safetensors", {name + data: blocks, name + scales: exponents, name + "_bias": np.zeros(N, np.float32)})
    found = bound(path, name, Encoding.MXFP4, shape, None, instance, dtype="bf16")
    same(found, FP4[codes] * np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, -1))


def test_mxfp8(rng, tmp_path, instance):
    codes, exponents = f8_codes(rng, (N, K)), rng.integers(100, 140, (N, K // 32), dtype=np.uint8)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight": As("F8_E4M3", codes), f"{LAYER}.weight_scale": exponents})
    found = bound(path, f"{LAYER}.weight", Encoding.MXFP8, (N, K), {"data": "f8e4m3fn"}, instance, dtype="bf16")
    same(found, f8_values(codes) * np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, -1))


def test_nvfp4(rng, tmp_path, instance):
    """ModelOpt's global scale multiplies, and is bound; that of compressed-tensors divides, and is
    refused."""
    codes, scales = rng.integers(0, 16, (N, K), dtype=np.uint8), f8_codes(rng, (N, K // 16))
    whole = np.float32(0.0021)
    path = save(tmp_path / "m.safetensors", {f"{LAYER}.weight": packed_fp4(codes), f"{LAYER}.weight_scale": As("F8_E4M3", scales),
                                             f"{LAYER}.weight_scale_2": np.array(whole)})  # fmt: skip
    found = bound(path, f"{LAYER}.weight", Encoding.NVFP4, (N, K), None, instance, dtype="bf16")
    same(found, FP4[codes] * np.repeat(f8_values(scales) * whole, 16, -1))
    other = save(tmp_path / "c.safetensors", {f"{LAYER}.weight_packed": packed_fp4(codes), f"{LAYER}.weight_scale": As("F8_E4M3", scales),
                                              f"{LAYER}.weight_global_scale": np.array([1 / whole], np.float32)})  # fmt: skip
    with pytest.raises(accrt.TypeMismatchError, match="weight_global_scale.* means something else: `accx pack`"):
        bound(other, f"{LAYER}.weight", Encoding.NVFP4, (N, K), None, instance, dtype="bf16")


def test_the_document_has_every_suffix():
    """docs/weights.md shows the conventions of format/conventions.def, and no others."""
    root = pathlib.Path(__file__).resolve().parents[2]
    rows = re.findall(r"^ACCX_CONVENTION\((.*)\)$", (root / "format/conventions.def").read_text(), re.M)
    told = {s.lstrip("!") for row in rows for s in re.findall(r'"([^"]*)"', row)} - {""}
    table = (root / "docs/weights.md").read_text().split("| layout | data |")[1].split("\n\n")[0]
    shown = set(re.findall(r"`([._][a-z0-9_]+)`", table))
    # named in the text below the table, as what is refused
    refused = {"_zero_point", "_global_scale"}
    assert len(rows) > 5 and shown | refused == told, (shown, told)


def test_nobody_else_spells_a_suffix():
    """The tool and accrt.models take them from the table."""
    root = pathlib.Path(__file__).resolve().parents[2]
    rows = re.findall(r"^ACCX_CONVENTION\((.*)\)$", (root / "format/conventions.def").read_text(), re.M)
    suffixes = {s.lstrip("!") for row in rows for s in re.findall(r'"([^"]*)"', row)} - {""}
    found = []
    for path in [*(root / "python/accrt/models").glob("*.py"), *(root / "tools/accx").glob("*.c"), *(root / "runtime/program").glob("*.c")]:
        if not path.name.endswith("_test.c"):
            found += [f"{path.name}: {text}" for text in re.findall(r'"((?:\.?weight)?[._][a-z0-9_]+)"', path.read_text())
                      if any(text in (s, ".weight" + s) for s in suffixes)]
    assert not found, found
