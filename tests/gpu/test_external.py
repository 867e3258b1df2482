"""Weights from GGUF and safetensors files, and from encrypted packs, on a GPU: bound at load in the
encodings that the files have, made into what the GPU's kernels read by prepare functions there, and
multiplied with rows of f16, against float64 on what the files' package reads
(tests/python/test_end_to_end.py says where from). Swapped while the program lives, and in parts of
ranks."""

from __future__ import annotations

import os
import pathlib
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import test_end_to_end as files  # noqa: E402
import test_ops  # noqa: E402
import test_quantized  # noqa: E402
from accrt.compiler import Module, Quantized, Shard, dequantize, packing, quantize  # noqa: E402

DTYPES = ("f16", "bf16")
ROWS = (1, 9, 40, 70)


def module(dtype):
    """For f16 the bundle names the files; for bf16 it takes what it is given."""
    return files.module(dtype, by_file=dtype == "f16")


def ranks_module():
    m = Module("ranks")
    rows = m.symbol("rows", minimum=1, maximum=64)
    f = m.function("part")
    w = m.external("w", "f16", (48, 256), layout="i8_group", group=64, components={"scales": "f16"}, by_name=True, shard=Shard(2, 1))
    f.result("y", f.input("x", "f16", [rows, 128]).linear(w))
    return m


EXPERTS = ("q4_k", "f8_block128", "i4_group", "mxfp4", "nvfp4")


def experts(layout):
    """Three matrices; tiles of 128 rows end with each."""
    array = np.random.default_rng([20261120, *layout.encode()]).standard_normal((3, 130, 256)) * 0.1
    q = quantize(array.astype(np.float32), layout)
    return Quantized(layout, q.shape, q.components, q.group, "f16", q.types)


def experts_module():
    m = Module("experts")
    rows = m.symbol("rows", minimum=1, maximum=64)
    for layout in EXPERTS:
        f, w = m.function(layout), m.weight(layout, experts(layout))
        x, v = f.input("x", "f16", [3, rows, 256]), f.input("v", "f16", [rows, 256])
        f.result("all", x.matmul(f.as_value(w).transpose(1, 2)))
        f.result("one", v.linear(f.as_value(w).select(0, 2)))
    return m


def bound(dtype):
    def of(name, x, w, exact):
        limit = test_quantized.limit(files.form_of(name), dtype, x, w, exact)
        return np.where(np.abs(exact) > 60000, np.inf, limit) if dtype == "f16" else limit

    return of


def written(name, folder, build):
    """The bundle of a module beside its files."""
    why = test_ops.reason(name)
    if why:
        pytest.skip(why)
    path = pathlib.Path(folder) / f"{name}.accx"
    path.write_bytes(test_ops.built(name, build()))
    return path


@pytest.fixture(scope="module", params=DTYPES)
def made(request, tmp_path_factory):
    import accrt

    dtype, folder = request.param, tmp_path_factory.mktemp("files")
    path = written(f"external_{dtype}", folder, lambda: module(dtype))
    values, instance = files.make_files(folder), accrt.default_instance("all")
    given = [] if dtype == "f16" else [accrt.Weights(folder / name, instance) for name in ("model.gguf", "model.safetensors")]
    return dtype, accrt.Bundle(path, instance).program(instance.device("cuda:0"), weights=given).session(), values


@pytest.mark.parametrize("name", files.CASES)
def test_files_to_results(made, name):
    dtype, session, values = made
    files.check(session, name, values[name], dtype, ROWS, bound(dtype))


def test_kernels_that_read_them_packed_are_among_them():
    kinds = {files.CASES[n].layout for n in files.CASES if packing.packed_bytes(files.form_of(n), "cuda") is not None}
    assert kinds >= {"q8_0", "q4_0", "q4_k", "mxfp4", "f8_channel", "f8_block128", "i8_channel", "i4_group"}


def test_encrypted_weights(tmp_path):
    if not files.has_crypto():
        pytest.skip("there is no libcrypto")
    path = written("external_bf16", tmp_path, lambda: module("bf16"))
    files.check_encrypted(tmp_path / "w", path, "cuda:0", "bf16", ROWS, bound("bf16"))


def test_an_encrypted_bundle(tmp_path):
    """The bundle's own weights: the same bytes as without encryption, and no program without the
    key."""
    if not files.has_crypto():
        pytest.skip("there is no libcrypto")
    import accrt
    from accrt import trust

    path = written("quantized", tmp_path, test_quantized.module)
    trust.encrypt(path, tmp_path / "sealed.accx", files.SECRET)
    instance = accrt.default_instance("all")
    device = instance.device("cuda:0")
    plain = accrt.Bundle(path, instance).program(device).session()
    sealed = accrt.Bundle(tmp_path / "sealed.accx", instance, key=lambda _id: files.SECRET).program(device).session()
    name = next(n for n in test_quantized.CASES if n.startswith("q8_0_f16"))
    k = test_quantized.CASES[name][3]
    for function, x in ((name, np.linspace(-1, 1, 3 * k, dtype=np.float16).reshape(3, k)), ("lookup", np.array([1, 5, 0], np.int32))):
        one, other = (getattr(session, function)(x) for session in (plain, sealed))
        pairs = list(zip(one, other)) if isinstance(one, tuple) else [(one, other)]
        assert pairs and all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and np.any(np.asarray(a)) for a, b in pairs)
    with pytest.raises(accrt.PermissionDeniedError):
        accrt.Bundle(tmp_path / "sealed.accx", instance).program(device)


@pytest.mark.parametrize("layout", EXPERTS)
def test_experts(layout, tmp_path):
    """A batch of products with all matrices, dequantized; one with a single matrix, which is read
    packed."""
    import accrt

    instance = accrt.default_instance("all")
    session = accrt.Bundle(written("experts", tmp_path, experts_module), instance).program(instance.device("cuda:0")).session()
    w = dequantize(experts(layout)).astype(np.float64)
    rng = np.random.default_rng(20261120)
    x, v = rng.standard_normal((3, 5, 256)).astype(np.float16), rng.standard_normal((5, 256)).astype(np.float16)
    every, one = (np.asarray(y).astype(np.float64) for y in getattr(session, layout)(x, v))
    for got, rows, matrix in [*zip(every, x, w), (one, v, w[2])]:
        exact = rows.astype(np.float64) @ matrix.T
        allowed = 2.0**-11 * (np.abs(rows) @ np.abs(matrix).T) * 1.05 + 2.0**-10 * (np.abs(exact) + 2.0**-14)
        assert (np.abs(got - exact) <= allowed).all(), np.abs(got - exact).max()


def test_swapped_while_the_program_lives(tmp_path):
    """What the GPU's kernels read is made again of what is bound then."""
    import accrt

    path = written("external_f16", tmp_path, lambda: module("f16"))
    values, instance = files.make_files(tmp_path), accrt.default_instance("all")
    program = accrt.Bundle(path, instance).program(instance.device("cuda:0"))
    before = program.session()
    files.check(before, "mxfp4", values["mxfp4"], "f16", (3,), bound("f16"))
    _w, parts = files.numbers("mxfp4")
    parts = {key: (kind, array ^ np.uint8(0x88) if key.endswith("_blocks") else array) for key, (kind, array) in parts.items()}
    files.write_safetensors(tmp_path / "other.safetensors", parts)  # all signs turned
    program.load_weights(accrt.Weights(tmp_path / "other.safetensors", instance), ["mxfp4"])
    files.check(before, "mxfp4", -values["mxfp4"], "f16", (3, 70), bound("f16"))


def test_parts_of_ranks(tmp_path):
    import accrt
    from accrt import bundle_writer as bw
    from accrt import layouts

    path, instance = written("external_ranks", tmp_path, ranks_module), accrt.default_instance("all")
    rng = np.random.default_rng(20261120)
    packed = layouts.quantize((rng.standard_normal((48, 256)) * 0.1).astype(np.float32), "i8_group", group_elements=64, scales="f16", dtype="f16")
    pack = bw.BundleWriter()
    parts = {role: (c.data, c.dtype) for role, c in packed.components.items()}
    pack.constant("w", parts, dtype="f16", shape=packed.shape, encoding=bw.Encoding(packed.layout), group_elements=64)
    source, w = accrt.Weights(pack.to_bytes(), instance), layouts.dequantize(packed).astype(np.float64)
    x = rng.standard_normal((5, 256)).astype(np.float16)
    bundle, total = accrt.Bundle(path, instance), 0
    for rank in range(2):
        session = bundle.program(instance.device("cuda:0"), weights=source, rank=rank, degree=2).session()
        own = slice(128 * rank, 128 * rank + 128)
        y = np.asarray(session.part(x[:, own].copy())).astype(np.float64)
        exact = x[:, own].astype(np.float64) @ w[:, own].T
        assert np.abs(y - exact).max() <= 2.0**-10 * np.abs(exact).max() + 1e-3
        total = total + y
    assert np.abs(total - x.astype(np.float64) @ w.T).max() < 2e-2
