"""`accx run` and `accx bench` with weights from outside the bundle, a rank's part of them, and
adapters; outputs that are inputs."""
from __future__ import annotations

import json

import numpy as np
import pytest
import xxhash

import accrt
from accrt import bundle_writer as bw
from accx_tool import ACCX, accx, needs_tool
from test_checkpoints import save

pytestmark = needs_tool
W = np.arange(32, dtype=np.float32).reshape(4, 8)


def look(path, *, digest=None, degree=0):
    """look() gives the weight `w`, which is outside; of a rank its rows."""
    bundle = bw.BundleWriter()
    weight = bundle.external("w", "f32", (4 // (degree or 1), 8), digest=digest)
    if degree:
        bundle.shard(weight, axis=0, degree=degree, extent=4)
    f = bundle.function("look")
    f.body.copy(f.constant(weight).read(), f.result("y", "f32", [4 // (degree or 1), 8]).write(), W.nbytes // (degree or 1))
    bundle.write(path)
    return path


def result(tmp_path, *arguments):
    accx("run", *arguments, "--output", f"y={tmp_path / 'y.npy'}")
    return np.load(tmp_path / "y.npy")


def test_weights(tmp_path):
    model = look(tmp_path / "m.accx", digest=xxhash.xxh3_128(W.tobytes()).digest())
    good, other, none = (save(tmp_path / n, t) for n, t in (("good", {"w": W}), ("other", {"w": -W}), ("none", {"v": W})))
    assert np.array_equal(result(tmp_path, model, "--weights", good), W)
    assert np.array_equal(result(tmp_path, model, "--weights", none, "--weights", good), W)
    assert np.array_equal(result(tmp_path, model, "--weights", other, "--by-name"), -W)
    assert "digest" in accx("run", model, "--weights", other, code=3)
    assert "no weights were given; --weights PATH" in accx("run", model, code=1)
    assert "--weights PATH" not in accx("run", model, "--weights", none, code=1)
    assert "--weights" in accx("run", model, "--weights", tmp_path / "missing", code=1)
    assert json.loads(accx("bench", model, "--weights", good, "--repeat", 2, "--json"))


def test_ranks(tmp_path):
    model, weights = look(tmp_path / "m.accx", degree=2), save(tmp_path / "w", {"w": W})
    for rank in range(2):
        assert np.array_equal(result(tmp_path, model, "--weights", weights, "--rank", rank, "--degree", 2), W[2 * rank:2 * rank + 2])
    assert "together" in accx("run", model, "--weights", weights, "--rank", 1, code=2)
    assert "--rank N --degree N" in accx("run", model, "--weights", weights, code=1)
    assert "degree of 2" in accx("run", model, "--weights", weights, "--rank", 1, "--degree", 4, code=1)


def test_the_short_way_in_python(tmp_path):
    weights = save(tmp_path / "w", {"w": W})
    assert np.array_equal(accrt.load(look(tmp_path / "m.accx"), weights=weights).look().numpy(), W)
    model = look(tmp_path / "rank.accx", degree=2)
    assert np.array_equal(accrt.load(model, weights=[weights], rank=1, degree=2).look().numpy(), W[2:])
    session = accrt.load(tmp_path / "m.accx", weights=weights)
    session.program.load_weights(save(tmp_path / "other", {"w": -W}), names="w")
    assert np.array_equal(session.look().numpy(), -W)
    with pytest.raises(ValueError, match="rank -1 of 2 ranks"):
        accrt.load(model, weights=weights, rank=-1, degree=2)


def test_a_bundle_is_no_text(tmp_path):
    assert "accx dump" in accx("build", look(tmp_path / "m.accx"), "--output", tmp_path / "o.accx", code=1)


def test_a_key_that_was_not_given(tmp_path):
    bundle = bw.BundleWriter()
    f = bundle.function("look")
    f.body.copy(f.constant(bundle.constant("w", W)).read(), f.result("y", "f32", [4, 8]).write(), W.nbytes)
    bundle.write(tmp_path / "m.accx")
    accx("keygen", "--secret", "--output", tmp_path / "key")
    accx("encrypt", tmp_path / "m.accx", "--output", tmp_path / "e.accx", "--secret-key", tmp_path / "key")
    assert "--secret-key FILE" in accx("run", tmp_path / "e.accx", code=1)
    accx("run", tmp_path / "e.accx", "--secret-key", tmp_path / "key")


@pytest.fixture(scope="module")
def adapter_bundle():
    path = ACCX.parents[1] / "tests/bundles/adapter.accx"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


#: Of an adapter of rank 2, and the words of the tool and of Python.
PEFT_MISTAKES = (
    ('{"lora_alpha": 8, "r": 2, "use_dora": true}', "use_dora"),
    ('{"lora_alpha": 8, "use_rslora": true}', "square root of r, and r is not there"),
    ('{"lora_alpha": 8, "r": 4}', "r is 4, but 'base_model.model.m.lora_A' is of rank 2"),
    ('{"lora_alpha": 8, "r": 0}', "r is 0, which is no rank"),
    ('{"lora_alpha": 8, "r": 2.5}', "r is 2.5, which is no rank"),
    ('{"lora_alpha": 8, "r": -1}', "r is -1, which is no rank"),
    ('{"lora_alpha": 8, "r": "2"}', 'r is "2", which is no rank'),
    ('{"lora_alpha": 8, "r": true}', "r is true, which is no rank"),
    *(('{"lora_alpha": 8, "r": %s}' % r, "r is beyond 2^32 - 1, which is no rank")
      for r in (2**32, 2**32 + 2, -(2**32), 2**63 + 2, 2**64 + 2, 2**128 + 2, "1" * 5000, "-" + "1" * 5000, "1e300", "2e999")),
    *(('{"lora_alpha": %s, "r": 2}' % alpha, "lora_alpha is beyond 2^53, which is no number")
      for alpha in (2**53 + 1 << 1, 2**64, "7" * 5000, "-" + "7" * 5000, "7" * 5000 + ".5", "1e999", "-Infinity")),
    ('{"lora_alpha": NaN, "r": 2}', "lora_alpha is NaN, which is no number"),
    ('{"lora_alpha": "x", "r": 2}', 'lora_alpha is "x", which is no number'),
    ('{"lora_alpha": "%s", "r": 2}' % ("x" * 500), 'lora_alpha is "%s, which is no number' % ("x" * 79)),
    ('{"lora_alpha": null, "r": 2}', "lora_alpha is null, which is no number"),
    ("[]", "no JSON object"),
    ("{", "not JSON"),
)


def test_adapters(adapter_bundle, tmp_path):
    a, b = np.arange(1, 9, dtype=np.float32).reshape(2, 4), np.full((4, 2), 3, np.float32)
    tensors = {"base_model.model.m.lora_A": a, "base_model.model.m.lora_B": b}
    folder = tmp_path / "adapter"
    folder.mkdir()
    save(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 2, "use_dora": False, "rank_pattern": {}}))
    results = {}
    for name, options in (("none", []), ("folder", ["--adapter", folder]),
                          ("file", ["--adapter", folder / "adapter_model.safetensors"])):
        out = tmp_path / name
        out.mkdir()
        accx("run", adapter_bundle, "--function", "look", "--input", "zeros", "--out-dir", out, *options)
        results[name] = [np.load(file).ravel() for file in sorted(out.glob("*.npy"))]
    program = accrt.Program(accrt.Bundle(adapter_bundle))
    session = program.session()
    session.adapter = program.load_adapter(folder)
    assert results["folder"] and not np.array_equal(results["none"][0], results["folder"][0])
    assert np.array_equal(results["folder"][0], results["file"][0])
    # B times alpha / rank, A as it is
    assert 12 in results["folder"][0] and 1 in results["folder"][0]
    for config, words in PEFT_MISTAKES:
        (folder / "adapter_config.json").write_text(config)
        said = accx("run", adapter_bundle, "--function", "look", "--input", "zeros", "--adapter", folder, code=1)
        assert "adapter_config.json" in said and words in said, (config, said)
        with pytest.raises(ValueError, match="adapter_config.json") as failure:
            program.load_adapter(folder)
        assert words in str(failure.value).replace("is not JSON", "not JSON"), config


@pytest.mark.parametrize("verb", [["pack"], ["quantize", "--layout", "q8_0"]])
def test_an_output_that_is_an_input_is_refused(verb, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    source = save(folder / "model.safetensors", {"w": np.ones((4, 32), np.float32)})
    before = source.read_bytes()
    (tmp_path / "link").symlink_to(source)
    for inputs in (source, folder, tmp_path / "link"):
        for output in (source, tmp_path / "link"):
            assert "is read from" in accx(*verb, inputs, output, code=2)
    assert source.read_bytes() == before
