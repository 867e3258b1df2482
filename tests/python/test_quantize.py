"""`accx quantize`: weight packs in every layout, the same bytes as the library's from Python, on
any number of threads."""
import json
import subprocess

import numpy as np
import pytest

import accrt
from accrt import layouts
from accx_tool import ACCX, ROOT, accx, needs_tool
from safetensors_file import safetensors_bytes

SEED = 20261120
WRITABLE = [i for i in layouts.all_layouts() if i.writable and i.id > 1]

pytestmark = needs_tool


def save(path, tensors):
    """A safetensors file; uint16 are the bits of bf16."""
    typed = {name: ("BF16", array) if array.dtype == np.uint16 else array for name, array in tensors.items()}
    path.write_bytes(safetensors_bytes(typed, {"license": "none"}))
    return path


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(SEED)
    wide = (rng.standard_normal((300, 512)) * 0.02).astype(np.float32)
    return {"a.weight": wide, "b.weight": (rng.standard_normal((3, 256, 256)) * 0.1).astype(np.float16),
            "c.weight": (wide[:64, :256].view(np.uint32) >> 16).astype(np.uint16), "c.bias": np.arange(7, dtype=np.float32),
            "odd": rng.standard_normal((5, 7)).astype(np.float32), "steps": np.arange(12).reshape(3, 4)}


@pytest.fixture(scope="module")
def source(tensors, tmp_path_factory):
    return save(tmp_path_factory.mktemp("weights") / "model.safetensors", tensors)


@pytest.mark.parametrize("info", WRITABLE, ids=lambda i: i.name)
def test_bytes_are_those_of_the_library(info, source, tensors, tmp_path):
    one, many = tmp_path / "one.accx", tmp_path / "many.accx"
    report = json.loads(accx("quantize", source, one, "--layout", info.name, "--threads", 1, "--search", "--json"))
    accx("quantize", source, many, "--layout", info.name, "--threads", 7, "--search")
    assert one.read_bytes() == many.read_bytes()
    accx("verify", one)
    by_name = {t["name"]: t for t in report["tensors"]}
    assert by_name["c.bias"]["why"] == "a vector" and by_name["steps"]["why"].startswith("no numbers")
    for name in ("a.weight", "b.weight"):
        packed = layouts.quantize(tensors[name].astype(np.float32), info.id, search=True)
        assert by_name[name]["size_bytes"] == packed.size_bytes
        assert by_name[name]["rms_error"] == pytest.approx(packed.error.rms_error, rel=1e-6)
        data = packed.components["data"].data.tobytes()
        assert data in one.read_bytes()


def test_what_is_kept_stays_as_it_is(source, tensors, tmp_path):
    out = tmp_path / "out.accx"
    text = accx("quantize", source, out, "--layout", "q8_0", "--only", "*.weight", "--keep", "b*")
    assert "kept" in text and "not chosen" in text
    assert tensors["b.weight"].tobytes() in out.read_bytes() and tensors["odd"].tobytes() in out.read_bytes()
    bundle = accrt.Bundle(out)
    assert {c.name for c in bundle.constants} == set(tensors)
    assert bundle.metadata["license"] == "none" and bundle.metadata["accx.quantize"] == "q8_0"


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_importance_from_files(kind, source, tensors, tmp_path):
    importance = np.where(np.arange(512) % 8 == 0, 50.0, 0.02).astype(np.float32)
    path = tmp_path / f"importance.{kind}"
    if kind == "npz":
        np.savez(path, **{"a.weight": importance.astype(np.float64)})
    else:
        save(path, {"a.weight": importance})
    out = tmp_path / "out.accx"
    report = json.loads(accx("quantize", source, out, "--layout", "i4_group", "--group", 64, "--scales", "f16", "--only", "a.*",
                             "--importance", path, "--json"))
    mine = next(t for t in report["tensors"] if t["name"] == "a.weight")
    packed = layouts.quantize(tensors["a.weight"], "i4_group", group_elements=64, scales="f16", importance=importance)
    assert mine["weighted"] and mine["weighted_sqnr_db"] == pytest.approx(packed.error.weighted_sqnr_db, abs=1e-6)
    assert all(c.data.tobytes() in out.read_bytes() for c in packed.components.values())
    np.savez(tmp_path / "short.npz", **{"a.weight": importance[:100]})
    assert "100 values" in accx("quantize", source, tmp_path / "no.accx", "--layout", "q4_k", "--importance",
                                tmp_path / "short.npz", code=1)
    assert not (tmp_path / "no.accx").exists()


def test_packs_are_quantized_again(source, tmp_path):
    accx("quantize", source, tmp_path / "q8.accx", "--layout", "q8_0")
    report = json.loads(accx("quantize", tmp_path / "q8.accx", tmp_path / "q4.accx", "--layout", "q4_k", "--json"))
    assert {t["from"] for t in report["tensors"] if t["quantized"]} == {"q8_0"}


def test_why_a_weight_does_not_fit_is_said(source, tmp_path):
    report = json.loads(accx("quantize", source, tmp_path / "out.accx", "--layout", "q8_0", "--json"))
    (why,) = [t["why"] for t in report["tensors"] if t["name"] == "odd"]
    assert "rows 5, columns 7" in why and "the columns are no multiple of the layout's block, 32" in why


def test_every_type_of_a_gguf_file(tmp_path):
    """What the gguf package wrote, type by type: numbers of the registry's layouts are quantized,
    other tensors are copied."""
    file = ROOT / "tests/weights/golden/all.gguf"
    out = tmp_path / "out.accx"
    tensors = json.loads(accx("quantize", file, out, "--layout", "q8_0", "--json"))["tensors"]
    quantized = {t["from"] for t in tensors if t["quantized"]}
    assert {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"} <= quantized
    assert not quantized & {"IQ2_XXS", "I32", "Q8_K"}
    accx("verify", "--full", out)
    assert {c.name for c in accrt.Bundle(out).constants} == {t["name"] for t in tensors}


@pytest.mark.parametrize("options, code, message", [
    ([], 2, "--layout is needed"), (["--layout", "q3_k_m"], 2, "no layout is named"), (["--layout", "awq"], 2, "not made"),
    (["--layout", "q4_k", "--group", "32"], 2, "no group size"), (["--layout", "q4_k", "--data", "f8e5m2"], 2, "does not have"),
    (["--layout", "q4_k", "--only", "nothing"], 1, "no weight whose name fits --only"),
    (["--layout", "q4_k", "--only", "odd"], 1, "(for instance 'odd': layout "), (["--layout", "i4_group", "--group", "12"], 2, "a multiple of 8"),
])  # fmt: skip
def test_refusals(options, code, message, source, tmp_path):
    assert message in accx("quantize", source, tmp_path / "no.accx", *options, code=code)
    assert not (tmp_path / "no.accx").exists()


def test_a_glob_that_fits_no_name_is_noted(source, tmp_path):
    done = subprocess.run([str(ACCX), "quantize", str(source), str(tmp_path / "q.accx"), "--layout", "q8_0", "--keep", "*emdeb*", "--keep", "odd*"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "accx: note: --keep '*emdeb*' fits no name\n"
    done = subprocess.run([str(ACCX), "pack", str(source), str(tmp_path / "p.accx"), "--exclude", "od", "--only", "*"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "accx: note: --exclude 'od' fits no name\n"


def test_a_value_that_is_not_finite_leaves_no_file(tmp_path):
    wrong = np.zeros((4, 64), np.float32)
    wrong[2, 5] = np.inf
    source = save(tmp_path / "wrong.safetensors", {"w": wrong})
    message = accx("quantize", source, tmp_path / "no.accx", "--layout", "q8_0", "--threads", 3, code=1)
    assert "row 2, column 5" in message and len(message.splitlines()) == 1
    assert not (tmp_path / "no.accx").exists()
