"""`accx pack` and `accx quantize` on checkpoints that keep codes and scales apart: joined to one
weight, read with their scales."""
from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

import accrt
from accrt import layouts
from accx_tool import ACCX, accx_output as accx, needs_tool
import rotation
from test_checkpoints import AWQ_ORDER, FP4, LAYER, As, G, K, N, bf16, f8_codes, f8_values, gptq, packed_fp4, save, words

pytestmark = needs_tool
W = f"{LAYER}.weight"


@pytest.fixture
def rng():
    return np.random.default_rng(rotation.seed())


def awq(rng):
    q, z = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // G, N))
    scales = (rng.standard_normal((K // G, N)) * 0.01).astype(np.float16)
    tensors = {f"{LAYER}.{part}": words(x.reshape(len(x), -1, 8)[:, :, AWQ_ORDER].reshape(len(x), -1))
               for part, x in (("qweight", q), ("qzeros", z))}  # fmt: skip
    return {**tensors, f"{LAYER}.scales": scales}, ((q - np.repeat(z, G, 0)) * np.repeat(scales, G, 0).astype(np.float32)).T


def fp8(rng, scale, values, suffix="_scale", n=N, k=K):
    codes = f8_codes(rng, (n, k))
    return {W: As("F8_E4M3", codes), W + suffix: scale}, f8_values(codes) * values


def blocks(rng, n=200, k=320):
    scale = (rng.random((2, 3)) * 0.01).astype(np.float32)
    return fp8(rng, scale, np.repeat(np.repeat(scale, 128, 0), 128, 1)[:n, :k], "_scale_inv", n, k)


def int8(rng, group):
    codes = rng.integers(-128, 128, (N, K), dtype=np.int8)
    scale, values = bf16(rng.random((N, K // group)) * 0.01)
    return {W: codes, f"{W}_scale": scale, f"{W}_zero_point": np.zeros(values.shape, np.int8)}, codes * np.repeat(values, group, 1)


def int4(rng, asymmetric=False, order="sorted"):
    q = rng.integers(-8, 8, (N, K))
    scale, values = bf16(rng.random((N, K // G)) * 0.01)
    g_idx = (np.arange(K) // G).astype(np.int32)
    g_idx = rng.permutation(g_idx) if order == "act" else g_idx
    tensors = {f"{W}_packed": words(q + 8), f"{W}_scale": scale, f"{W}_shape": np.array([N, K]), f"{W}_g_idx": g_idx}
    z = np.zeros((N, K // G), int)
    if asymmetric:
        z = rng.integers(-8, 8, (N, K // G))
        tensors[f"{W}_zero_point"] = words((z + 8).T).T.copy()
    return tensors, (q - z[:, g_idx]) * values[:, g_idx]


def mxfp4(rng, name, data, scales):
    codes, exponents = rng.integers(0, 16, (3, N, K), dtype=np.uint8), rng.integers(100, 140, (3, N, K // 32), dtype=np.uint8)
    values = FP4[codes] * np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, -1)
    return {name + data: packed_fp4(codes).reshape(3, N, K // 32, 16), name + scales: exponents}, values


def nvfp4(rng, divides):
    codes, scales, whole = rng.integers(0, 16, (N, K), dtype=np.uint8), f8_codes(rng, (N, K // 16)), np.float32(2.0**-9)
    names = (f"{W}_packed", f"{W}_global_scale") if divides else (W, f"{W}_scale_2")
    return {names[0]: packed_fp4(codes), f"{W}_scale": As("F8_E4M3", scales),
            names[1]: np.array([1 / whole if divides else whole], np.float32)}, FP4[codes] * np.repeat(f8_values(scales) * whole, 16, -1)  # fmt: skip


def mxfp8(rng):
    exponents = rng.integers(100, 140, (N, K // 32), dtype=np.uint8)
    return fp8(rng, exponents, np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, -1))


def pick(pair, version):
    return pair[0], pair[1][version]


MADE = {
    "gptq v1": (lambda r: pick(gptq(r, "act"), 1), LAYER, "gptq_v1", ["--gptq", "v1"]),
    "gptq v2": (lambda r: pick(gptq(r), 2), LAYER, "gptq_v2", ["--gptq", "v2"]),
    "awq": (awq, LAYER, "awq", []),
    "fp8 tensor": (lambda r: fp8(r, np.float32(0.03).reshape(()), np.float32(0.03)), W, "f8_tensor", []),
    "fp8 channel": (lambda r: (lambda s: fp8(r, s[0], s[1]))(bf16(r.random((N, 1)) * 0.01)), W, "f8_channel", []),
    "fp8 blocks": (blocks, W, "f8_block128", []),
    "int8 channel": (lambda r: int8(r, K), W, "i8_channel", []),
    "int8 group": (lambda r: int8(r, G), W, "i8_group", []),
    "int4": (int4, W, "i4_group", []),
    "int4 asymmetric": (lambda r: int4(r, True), W, "i4_group_asym", []),
    "int4 act order": (lambda r: int4(r, True, "act"), W, "i4_group_asym", []),
    "gpt-oss": (lambda r: mxfp4(r, "experts.gate_up_proj", "_blocks", "_scales"), "experts.gate_up_proj", "mxfp4", []),
    "gpt-oss original": (lambda r: mxfp4(r, "block.0.mlp.mlp1_weight", ".blocks", ".scales"), "block.0.mlp.mlp1_weight", "mxfp4", []),
    "mxfp8": (mxfp8, W, "mxfp8", []),
    "nvfp4 modelopt": (lambda r: nvfp4(r, False), W, "nvfp4", []),
    "nvfp4 compressed-tensors": (lambda r: nvfp4(r, True), W, "nvfp4", []),
}


@pytest.mark.parametrize("kind", MADE)
def test_joined(kind, rng, tmp_path):
    make, name, layout, options = MADE[kind]
    tensors, values = make(rng)
    values = np.asarray(values, np.float32)
    norm = {"model.norm.weight": np.arange(8, dtype=np.float32), f"{LAYER}.input_scale": np.float32(1).reshape(())}
    source = save(tmp_path / "model.safetensors", {**tensors, **norm})
    accx("pack", source, tmp_path / "pack.accx", *options)
    packed = accrt.Weights(tmp_path / "pack.accx")
    left = set(norm) | ({f"{LAYER}.bias"} if "gptq" in kind else set())
    assert set(packed) == {name} | left
    weight = packed[name]
    assert (weight.encoding, weight.shape) == (layouts.layout_id(layout), values.shape)
    assert np.array_equal(weight.dequantize(), values)
    # What is quantized anew are these values: the same bytes as the library makes of them.
    report = json.loads(accx("quantize", source, tmp_path / "q8.accx", "--layout", "q8_0", "--json", *options)[0])
    mine = [t for t in report["tensors"] if t["name"] == name]
    assert [(t["from"], t["quantized"]) for t in mine] == [(layout, True)]
    data = accrt.Weights(tmp_path / "q8.accx")[name].memoryview()
    assert bytes(data) == layouts.quantize(values, "q8_0").components["data"].data.tobytes()
    # A copy of a joined weight is the weight.
    accx("pack", tmp_path / "pack.accx", tmp_path / "again.accx")
    assert (tmp_path / "again.accx").read_bytes() == (tmp_path / "pack.accx").read_bytes()


def test_a_kept_weight_is_joined(rng, tmp_path):
    tensors, values = int4(rng, True)
    source = save(tmp_path / "m.safetensors", {**tensors, "other.weight": np.ones((4, 32), np.float32)})
    accx("quantize", source, tmp_path / "o.accx", "--layout", "q8_0", "--keep", W)
    assert np.array_equal(accrt.Weights(tmp_path / "o.accx")[W].dequantize(), values.astype(np.float32))


@pytest.mark.parametrize("verb", [["pack"], ["quantize", "--layout", "q8_0"]])
def test_gptq_needs_its_version(verb, rng, tmp_path):
    source = save(tmp_path / "m.safetensors", gptq(rng)[0])
    _, errors = accx(*verb, source, tmp_path / "o.accx", code=2)
    assert f"'{LAYER}' is a weight of GPTQ" in errors and "--gptq v1 or --gptq v2" in errors and len(errors.splitlines()) == 1
    assert "--gptq is v1 or v2" in accx(*verb, source, tmp_path / "o.accx", "--gptq", "3", code=2)[1]
    assert not (tmp_path / "o.accx").exists()


def test_apart(rng, tmp_path):
    tensors, _ = gptq(rng)
    source = save(tmp_path / "m.safetensors", {**tensors, "w": np.ones((4, 32), np.float32)})
    accx("pack", source, tmp_path / "o.accx", "--apart")
    packed = accrt.Weights(tmp_path / "o.accx")
    assert all(bytes(packed[name].memoryview()) == array.tobytes() for name, array in tensors.items())
    # Pieces of a weight are no weights: nothing reads codes as numbers.
    report = json.loads(accx("quantize", source, tmp_path / "q.accx", "--layout", "q8_0", "--apart", "--json")[0])
    why = {t["name"]: t["why"] for t in report["tensors"]}
    assert why[f"{LAYER}.scales"] == "a piece of a weight" and why["w"] is None and why[f"{LAYER}.bias"] == "a vector"


def broken():
    """Tensors that look like a weight and are none that a layout has, with what is said of them."""
    rng = np.random.default_rng(1)
    g, _ = gptq(rng)
    eight = {**g, f"{LAYER}.qweight": np.zeros((K // 4, N), np.int32), f"{LAYER}.qzeros": np.zeros((K // G, N // 4), np.int32)}
    i8, _ = int8(rng, K)
    i4, _ = int4(rng)
    f8, _ = fp8(rng, np.ones((5, 3), np.float32), np.float32(1))
    return {
        "8 bits": (eight, "it has not 4 bits"),
        "no zeros": ({k: v for k, v in g.items() if "qzeros" not in k}, "it has not the tensors"),
        "odd index": ({**g, f"{LAYER}.g_idx": np.zeros(K - 1, np.int32)}, "group index is not one number"),
        "index outside": ({**g, f"{LAYER}.g_idx": np.full(K, K // G, np.int32)}, "its group index names groups that are not there"),
        "odd groups": ({**g, f"{LAYER}.scales": np.ones((3, N), np.float16), f"{LAYER}.qzeros": np.zeros((3, N // 8), np.int32)},
                       "not so many whole groups"),
        "zero points": ({**i8, f"{W}_zero_point": np.ones((N, 1), np.int8)}, "no layout has its zero points"),
        "int8 tensor": ({W: i8[W], f"{W}_scale": np.ones((1,), np.float32)}, "no layout has scales of this shape"),
        "8 bits packed": ({**i4, f"{W}_shape": np.array([N, K // 2])}, "it has not 4 bits"),
        "scales": (f8, "no layout has scales of this shape"),
        "whole scales": ({W: i8[W], f"{W}_scale": np.ones((N, 1), np.int64)}, "of no type"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", broken())
def test_what_cannot_be_joined_is_named(kind, tmp_path):
    tensors, message = broken()[kind]
    source = save(tmp_path / "m.safetensors", {**tensors, "w": np.ones((4, 32), np.float32)})
    _, notes = accx("pack", source, tmp_path / "o.accx", "--gptq", "v1")
    assert "1 quantized weights stay as the tensors that they are" in notes and message in notes
    assert set(accrt.Weights(tmp_path / "o.accx")) == set(tensors) | {"w"}
    out, _ = accx("quantize", source, tmp_path / "q.accx", "--layout", "q8_0", "--gptq", "v1", "--json")
    assert [t["name"] for t in json.loads(out)["tensors"] if t["quantized"]] == ["w"]


def test_logical_type(rng, tmp_path):
    """By the scales, or as --dtype says: bytes are the same."""
    tensors, values = int4(rng)
    source = save(tmp_path / "m.safetensors", tensors)
    for options, dtype in (([], "bf16"), (["--dtype", "f16"], "f16"), (["--dtype", "f64"], "bf16")):
        accx("pack", source, tmp_path / "o.accx", *options)
        weight = accrt.Weights(tmp_path / "o.accx")[W]
        assert weight.dtype == dtype and np.array_equal(weight.dequantize(), values.astype(np.float32))


def test_many_names_are_quick(tmp_path):
    """Names that are not there are looked for without looking for near ones."""
    tensors = {}
    for i in range(3000):
        tensors[f"layers.{i}.weight"] = As("F8_E4M3", np.full((2, 32), 56, np.uint8))
        tensors[f"layers.{i}.weight_scale"] = np.ones((2, 1), np.float32)
    source = save(tmp_path / "m.safetensors", tensors)
    accx("pack", source, tmp_path / "o.accx")  # within the time limit, by far
    assert len(accrt.Weights(tmp_path / "o.accx")) == 3000


# ---- Links: what the user names may be one, and so may the shards of an index ----

@pytest.mark.parametrize("verb", [["pack"], ["quantize", "--layout", "q8_0"]])
def test_a_download_cache_of_links(verb, rng, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    names = {}
    for i in range(2):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        save(blobs / str(i), {f"w{i}": np.full((4, 32), i + 1, np.float32)})
        (snapshot / file).symlink_to(f"../../blobs/{i}")
        names[f"w{i}"] = file
    (blobs / "index").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (snapshot / "model.safetensors.index.json").symlink_to("../../blobs/index")
    for source in (snapshot / "model.safetensors.index.json", snapshot, snapshot / names["w0"]):
        accx(*verb, source, tmp_path / "o.accx")
    save(blobs / "importance", {"w0": np.ones(32, np.float32)})
    (tmp_path / "importance").symlink_to("blobs/importance")
    accx("quantize", snapshot, tmp_path / "o.accx", "--layout", "q8_0", "--importance", tmp_path / "importance")


def test_a_name_that_is_taken(rng, tmp_path):
    """A weight that would have the name of another tensor stays as its tensors (the pack had one
    name twice, and was refused)."""
    codes, scales, one = rng.integers(0, 256, (8, 16), dtype=np.uint8), np.full((8, 1), 127, np.uint8), np.ones(3, np.float32)
    for other in ("w", "w.qweight"):
        save(tmp_path / "m", {"w_blocks": codes.reshape(8, 1, 16), "w_scales": scales, other: one})
        done = subprocess.run([str(ACCX), "pack", str(tmp_path / "m"), str(tmp_path / "o.accx")], capture_output=True, text=True)
        assert done.returncode == 0 and "'w': another tensor has its name" in done.stderr
        assert set(accrt.Weights(tmp_path / "o.accx")) == {"w_blocks", "w_scales", other}
    save(tmp_path / "m", {"w_blocks": codes.reshape(8, 1, 16), "w_scales": scales, "v": one})
    subprocess.run([str(ACCX), "pack", str(tmp_path / "m"), str(tmp_path / "o.accx")], check=True)
    assert set(accrt.Weights(tmp_path / "o.accx")) == {"w", "v"}


def test_odd_names_and_shapes(tmp_path):
    """Whatever tensors are called and however large they are: each is in the pack once, alone or as
    a part of a weight."""
    rng = np.random.default_rng(rotation.seed())
    suffixes = ["", "_scale", "_scale_inv", "_scale_2", "_packed", "_shape", "_zero_point", "_g_idx", "_global_scale", "_blocks", "_scales",
                ".qweight", ".scales", ".qzeros", ".g_idx", ".blocks", "_scale_scale"]  # fmt: skip
    types = ["F32", "F16", "BF16", "I32", "I64", "I8", "U8", "F8_E4M3", "F8_E8M0", "F8_E5M2"]
    sizes = [0, 1, 2, 4, 8, 16, 32, 64]
    bits = {"F32": 32, "F16": 16, "BF16": 16, "I32": 32, "I64": 64, "I8": 8, "U8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2": 8}
    for turn in range(40):
        tensors = {}
        for i in range(40):
            for suffix in rng.choice(suffixes, rng.integers(2, 7), replace=False):
                kind = types[rng.integers(len(types))]
                shape = [sizes[k] for k in rng.integers(0, len(sizes), rng.integers(0, 4))]
                if 0 in shape and rng.random() < 0.3:
                    shape[rng.integers(len(shape))] = 1 << 50
                    shape[0] = 0
                n = 0 if 0 in shape else int(np.prod(shape, dtype=np.int64)) * bits[kind] // 8
                tensors[f"w{i}{suffix}"] = (kind, shape, rng.integers(0, 256, n, dtype=np.uint8).tobytes())
        header, data = {}, b""
        for name, (kind, shape, bytes_) in tensors.items():
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
            data += bytes_
        text = json.dumps(header).encode()
        (tmp_path / "m").write_bytes(len(text).to_bytes(8, "little") + text + data)
        done = subprocess.run([str(ACCX), "pack", str(tmp_path / "m"), str(tmp_path / "o.accx"), "--gptq", "v1"], capture_output=True, text=True)
        assert done.returncode == 0, (turn, done.returncode, done.stderr)
        packed = accrt.Weights(tmp_path / "o.accx")
        parts = sum(len(packed[name].components) for name in packed)
        # what is left out: shapes, indices in order, zero points of zero
        assert parts <= len(tensors)
        done = subprocess.run([str(ACCX), "quantize", str(tmp_path / "m"), str(tmp_path / "o.accx"), "--layout", "q8_0", "--gptq", "v1"],
                              capture_output=True, text=True)
        assert done.returncode in (0, 1), (turn, done.returncode, done.stderr)
