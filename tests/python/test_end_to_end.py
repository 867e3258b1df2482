"""From the files that people have to results: GGUF and safetensors files, weights bound at load in
the encodings that these have, packed or dequantized by prepare functions, multiplied, and compared
with float64 on the values that the files' own package reads (GGUF), or that the numbers were packed
from (safetensors, as checkpoints of each kind have them). tests/gpu/test_external.py does the same
on a GPU.

The GGUF file was written by its package (tests/weights/make.py); where the package is installed
(`./dev check weights`), a new one is."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import pathlib
import shutil
import sys
from typing import Dict, Iterable, Tuple

import numpy as np
import pytest

import accrt
import compiler_harness as h
import kernel_harness as kh
import rotation
from accrt import bundle_writer as bw
from accrt import trust
from accrt.compiler import Module, compile, encodings, packing
from safetensors_file import safetensors_bytes
from test_packed_kernels import error_bound

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "weights" / "golden"
SECRET = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class Case:
    file: str
    tensor: str
    layout: str
    shape: Tuple[int, int]
    group: int = 0
    types: Tuple[Tuple[str, str], ...] = ()


def of_gguf(*names: str) -> Dict[str, Case]:
    return {f"gguf_{name}": Case("model.gguf", f"blk.0.{kind}.weight", name, (40, 256)) for name in names for kind in [name.replace("ggml_", "")]}


F16 = (("scales", "f16"),)
INDEXED = (*F16, ("group_index", "i32"))
CASES: Dict[str, Case] = {
    **of_gguf("q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "ggml_mxfp4", "ggml_nvfp4"),
    **{
        name: Case("model.safetensors", name, layout, shape, group, types)
        for name, layout, shape, group, types in (
            ("f8_channel", "f8_channel", (72, 256), 0, ()), ("f8_e5m2", "f8_channel", (33, 160), 0, (("data", "f8e5m2"),)),
            ("f8_block128", "f8_block128", (136, 300), 0, ()), ("i8_channel", "i8_channel", (40, 131), 0, (("scales", "bf16"),)),
            ("mxfp4", "mxfp4", (48, 256), 0, ()), ("i4_group", "i4_group", (40, 384), 128, F16), ("gptq_v1", "gptq_v1", (48, 256), 64, F16),
            ("gptq_v2", "gptq_v2", (48, 256), 128, F16), ("gptq_act_order", "gptq_v1", (40, 128), 32, INDEXED),
            ("awq", "awq", (48, 256), 128, F16), ("nvfp4", "nvfp4", (40, 256), 0, ()),
        )
    },
}  # fmt: skip


# ---- The safetensors file: numbers first, then as each kind of checkpoint packs them -------------


def numbers(name: str) -> Tuple[np.ndarray, Dict[str, Tuple[str, np.ndarray]]]:
    """A weight in float64, and its tensors in a checkpoint."""
    case = CASES[name]
    (n, k), rng = case.shape, np.random.default_rng([kh.SEED, *name.encode()])
    groups = -(-k // case.group) if case.group else 0
    if case.layout in ("f8_channel", "f8_block128"):
        # no NaN, no infinity
        codes = rng.integers(0, 256, (n, k), dtype=np.uint8) & (0xEF if case.types else 0xF7)
        values = encodings.f8_values(codes, bool(case.types)).astype(np.float64)
        tiled = case.layout == "f8_block128"
        scales = (rng.random((-(-n // 128), -(-k // 128)) if tiled else (n, 1)) * 1e-3).astype(np.float32)
        spread = np.repeat(np.repeat(scales, 128, 0)[:n], 128, 1)[:, :k] if tiled else scales
        kind = "F8_E5M2" if case.types else "F8_E4M3"
        return values * spread, {name: (kind, codes), name + ("_scale_inv" if tiled else "_scale"): ("F32", scales)}
    if case.layout == "i8_channel":
        codes, scales = rng.integers(-127, 128, (n, k), dtype=np.int8), kh.encode(rng.random((n, 1)) * 1e-2, "bf16")
        return codes * kh.decode(scales, "bf16").astype(np.float64), {name: ("I8", codes), name + "_scale": ("BF16", scales)}
    if case.layout in ("mxfp4", "nvfp4"):
        codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
        pairs, values = codes[:, ::2] | codes[:, 1::2] << 4, encodings.E2M1[codes].astype(np.float64)
        if case.layout == "mxfp4":
            scales = rng.integers(120, 127, (n, k // 32), dtype=np.uint8)
            spread = np.repeat(np.exp2(scales.astype(np.float64) - 127), 32, 1)
            return values * spread, {name + "_blocks": ("U8", pairs.reshape(n, k // 32, 16)), name + "_scales": ("U8", scales)}
        scales, whole = rng.integers(0x10, 0x50, (n, k // 16), dtype=np.uint8), np.float32(0.01)
        spread = np.repeat(encodings.f8_values(scales, False).astype(np.float64) * whole, 16, 1)
        return values * spread, {name: ("U8", pairs), name + "_scale": ("F8_E4M3", scales), name + "_scale_2": ("F32", np.array(whole))}
    q, scales = rng.integers(0, 16, (n, k), dtype=np.uint32), (rng.random((n, groups)) * 0.02).astype(np.float16)
    words = lambda nibbles: np.bitwise_or.reduce(nibbles << (4 * np.arange(8, dtype=np.uint32)), axis=-1).view(np.int32)  # noqa: E731
    index = rng.permutation(k) // case.group if "group_index" in dict(case.types) else np.arange(k) // case.group
    if case.layout == "i4_group":
        parts = {name + "_packed": ("I32", words(q.reshape(n, -1, 8))), name + "_scale": ("F16", scales)}
        return (q.astype(np.float64) - 8) * scales[:, index], parts
    zeros = rng.integers(1, 16, (n, groups), dtype=np.uint32)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    parts = {name + ".scales": ("F16", np.ascontiguousarray(scales.T))}
    if case.layout == "awq":
        parts[name + ".qweight"] = ("I32", words(q.T.reshape(k, -1, 8)[:, :, order]))
        parts[name + ".qzeros"] = ("I32", words(zeros.T.reshape(groups, -1, 8)[:, :, order]))
    else:
        parts[name + ".qweight"] = ("I32", words(q.T.reshape(k // 8, 8, n).transpose(0, 2, 1)))
        parts[name + ".qzeros"] = ("I32", words((zeros - (case.layout == "gptq_v1")).T.reshape(groups, -1, 8)))
        parts[name + ".g_idx"] = ("I32", index.astype(np.int32))
    return (q.astype(np.float64) - zeros[:, index]) * scales[:, index], parts


WRITTEN = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8",
           "U8": "uint8", "I32": "int32"}  # fmt: skip


def write_safetensors(path: pathlib.Path, tensors: Dict[str, Tuple[str, np.ndarray]]) -> None:
    """By its package, where that is there."""
    arrays = {name: np.ascontiguousarray(array) for name, (_kind, array) in tensors.items()}
    try:
        import safetensors
    except ImportError:
        path.write_bytes(safetensors_bytes(tensors))
        return
    plain = {name: {"dtype": WRITTEN[kind], "shape": list(array.shape), "data": arrays[name].tobytes()} for name, (kind, array) in tensors.items()}
    if hasattr(safetensors, "TensorSpec"):
        plain = {name: safetensors.TensorSpec(dtype=t["dtype"], shape=t["shape"], data_ptr=arrays[name].ctypes.data, data_len=len(t["data"]))
                 for name, t in plain.items()}  # fmt: skip
    path.write_bytes(safetensors.serialize(plain))


# ---- Files and programs --------------------------------------------------------------------------


def gguf_values(path: pathlib.Path) -> Dict[str, np.ndarray]:
    """What GGUF's package reads: by itself, or what the library reads, if it is what the package
    read in the golden file."""
    try:
        import gguf
    except ImportError:
        facts = json.loads((GOLDEN / "expected.json").read_text())["files"]["matrices.gguf"]
        source, found = accrt.Weights(path), {}
        for name in source:
            found[name] = np.asarray(source[name].dequantize())
            assert hashlib.sha256(found[name].tobytes()).hexdigest() == facts[name]["values"], name
        return found
    return {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def make_files(folder: pathlib.Path, fresh: bool = False) -> Dict[str, np.ndarray]:
    """Both files, and what every case's weight is, in float64."""
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        sys.path.insert(0, str(GOLDEN.parent))
        import make

        make.write_matrices(folder / "model.gguf", np.random.default_rng(rotation.seed()))
    else:
        shutil.copy(GOLDEN / "matrices.gguf", folder / "model.gguf")
    read, tensors = gguf_values(folder / "model.gguf"), {}
    values = {name: read[case.tensor].astype(np.float64) for name, case in CASES.items() if case.file == "model.gguf"}
    for name, case in CASES.items():
        if case.file == "model.safetensors":
            values[name], parts = numbers(name)
            tensors.update(parts)
    write_safetensors(folder / "model.safetensors", tensors)
    assert all(values[name].shape == case.shape for name, case in CASES.items())
    return values


def module(dtype: str, by_file: bool = True, names: Iterable[str] = tuple(CASES)) -> Module:
    """A function for each of the cases, whose weight is in a file beside the bundle, or in what is
    given."""
    m = Module(f"files_{dtype}")
    rows = m.symbol("rows", minimum=1, maximum=4096)
    for name in names:
        f, case = m.function(name), CASES[name]
        w = m.external(
            name, dtype, case.shape, layout=case.layout, group=case.group, components=dict(case.types), by_name=True,
            file=case.file if by_file else "", tensor=case.tensor,
        )  # fmt: skip
        f.result("y", f.input("x", dtype, [rows, case.shape[1]]).linear(w))
    return m


def form_of(name: str) -> packing.Form:
    case = CASES[name]
    return packing.form_of(encodings.declared(case.layout, case.shape, group=case.group, components=dict(case.types)))


def host_bound(name: str, x: np.ndarray, w: np.ndarray, exact: np.ndarray) -> np.ndarray:
    form = form_of(name)
    if packing.packed_bytes(form, "host") is not None:
        return error_bound(form, x, w, "f32", exact)
    magnitude = np.abs(x) @ np.abs(w).T
    return 2.0**-24 * (magnitude * (len(w[0]) + 8) + 8 * np.abs(x).sum(1, keepdims=True) * np.abs(w).max())


def check(session, name: str, w: np.ndarray, dtype: str, rows, bound) -> None:
    for count in rows:
        x = kh.encode(np.random.default_rng([kh.SEED, count]).standard_normal((count, w.shape[1])), dtype)
        values = kh.decode(x, dtype).astype(np.float64)
        call = accrt.Call(session, session.function(name)._prepared)
        got = np.empty((count, w.shape[0]), kh.NUMPY[dtype])
        call.set(0, x, dtype)
        call.set(1, got, dtype)
        call()
        exact = values @ w.T
        error, limit = np.abs(kh.decode(got, dtype) - exact), bound(name, values, w, exact)
        assert (error <= limit).all(), f"{name}, {count} rows: error {error.max():.3g}, allowed {limit.flat[error.argmax()]:.3g}"


ROWS = (1, 5, 33)


@pytest.fixture(scope="module", params=["golden", "new"] if importlib.util.find_spec("gguf") else ["golden"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    values = make_files(folder, request.param == "new")
    compile(module("f32", names=rotation.asked(request, "name")), folder / "model.accx", targets=[h.target()])
    instance = accrt.Instance(host_code="all", options={"host.threads": 2})
    return accrt.Bundle(folder / "model.accx", instance).program().session(), values


@pytest.mark.rotating(8)
@pytest.mark.parametrize("name", CASES)
def test_files_to_results(made, name):
    session, values = made
    check(session, name, values[name], "f32", ROWS, host_bound)


def packed_as_stored(name: str) -> bool:
    return packing.packed_bytes(form_of(name), "host") is not None


def test_packed_kernels_are_among_them():
    assert {CASES[name].layout for name in CASES if packed_as_stored(name)} >= {
        "q8_0", "q4_0", "q4_k", "ggml_mxfp4", "mxfp4", "f8_channel", "f8_block128", "i8_channel", "i4_group"}  # fmt: skip


# ---- Encrypted -----------------------------------------------------------------------------------


def inline(source: accrt.Weights) -> bw.BundleWriter:
    """A pack with the weights of a source under the names of the cases."""
    pack = bw.BundleWriter()
    for name, case in CASES.items():
        if case.file == "model.gguf":
            parts = {"data": (np.frombuffer(source[case.tensor].memoryview(), np.uint8), "u8")}
            pack.constant(name, parts, dtype="f32", shape=case.shape, encoding=bw.Encoding(encodings.LAYOUTS[case.layout].id))
    return pack


def check_encrypted(folder: pathlib.Path, bundle_path: pathlib.Path, device: str, dtype: str, rows, bound, names: Iterable[str] = tuple(CASES)) -> None:
    """Weights at rest encrypted in a pack, bound to a program on the device, which has functions of
    those names; and not without the key."""
    values = make_files(folder)
    instance = accrt.default_instance("all")
    pack = inline(accrt.Weights(folder / "model.gguf", instance))
    for constant in list(pack._constants.values()):
        constant.dtype = dtype  # what they stand for on the device
    pack.write(folder / "pack.accx")
    trust.encrypt(folder / "pack.accx", folder / "sealed.accx", SECRET)
    data = (folder / "sealed.accx").read_bytes()
    assert np.frombuffer(accrt.Weights(folder / "model.gguf")["blk.0.q8_0.weight"].memoryview(), np.uint8).tobytes() not in data
    bundle = accrt.Bundle(bundle_path, instance)
    foreign = accrt.Weights(folder / "model.safetensors", instance)
    with pytest.raises(accrt.PermissionDeniedError):
        bundle.program(instance.device(device), weights=[accrt.Weights(accrt.Bundle(folder / "sealed.accx", instance)), foreign])
    sealed = accrt.Weights(accrt.Bundle(folder / "sealed.accx", instance, key=lambda _id: SECRET))
    session = bundle.program(instance.device(device), weights=[sealed, foreign]).session()
    for name in names:
        if CASES[name].file == "model.gguf":
            check(session, name, values[name], dtype, rows, bound)


def has_crypto() -> bool:
    try:
        trust.key_id(SECRET)
    except accrt.Error:
        return False
    return True


@pytest.mark.skipif(not has_crypto(), reason="there is no libcrypto")
def test_encrypted_weights(tmp_path):
    """Which layouts does not matter here: three that are encrypted and one that is not."""
    of_gguf = [name for name in CASES if CASES[name].file == "model.gguf"]
    names = [*rotation.part(of_gguf, 3, "encrypted weights"), next(name for name in CASES if name not in of_gguf)]
    compile(module("f32", by_file=False, names=names), tmp_path / "model.accx", targets=[h.target()])
    check_encrypted(tmp_path / "w", tmp_path / "model.accx", "host", "f32", ROWS, host_bound, names)


