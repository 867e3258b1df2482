"""Sources of weights from Python: golden files made by the formats' own packages, the mapping, and
the rules' table in the docs."""
from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

import accrt
from safetensors_file import safetensors_bytes
from weights_compare import compare

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "weights" / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())["files"]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_golden(name):
    counts = compare(GOLDEN / name, EXPECTED[name])
    assert counts.tensors > (7 if name == "matrices.gguf" else 30)
    assert counts.values >= {"all.gguf": 12, "matrices.gguf": 8}.get(name, 0)


def test_metadata():
    assert accrt.Weights(GOLDEN / "all.safetensors").metadata == {"format": "pt", "\u00fcber": "\u00e9"}
    metadata = accrt.Weights(GOLDEN / "all.gguf").metadata
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b\u00fc", "", "<eos>"]
    assert metadata["numbers"] == [1, -2, 3]
    assert (metadata["quarter"], metadata["yes"], metadata["large"], metadata["text"]) == (0.25, True, 1 << 63, "two\nlines")


def test_mapping(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "any.name"
    path.write_bytes(safetensors_bytes({"a": array, "b": np.array(7)}))
    with open(path, "rb") as file:
        for source in (path, str(path), path.read_bytes(), file.fileno()):
            weights = accrt.Weights.open(source)
            assert list(weights) == ["a", "b"] and len(weights) == 2 and "a" in weights and "c" not in weights and 3 not in weights
            assert np.array_equal(weights["a"].numpy(), array) and not weights["a"].numpy().flags.writeable
            assert weights["b"].numpy() == 7 and weights["b"].shape == ()
            assert np.array_equal(np.asarray(weights["a"], dtype=np.float64), array)
            assert weights["a"].read(4, 8) == array.tobytes()[4:12]
    with pytest.raises(KeyError, match="did you mean 'a'"):
        weights["aa"]
    seen = []
    loaded = weights.load(progress=lambda done, total: seen.append((done, total)))
    assert np.array_equal(loaded["a"], array) and seen == [(48, 56), (56, 56)]
    assert weights.info.kind == "safetensors" and weights.info.files
    view = weights["a"].numpy()
    weights.close()
    with pytest.raises(ValueError):
        weights["a"]
    del view


def test_a_program_of_many_weights_asks_for_few_of_them(tmp_path, monkeypatch):
    """What Python asks about a model's weights does not grow with them: 2,000 questions took 7 ms
    of a start of 1 ms."""
    from accrt import bundle, bundle_writer as bw
    count, writer = 300, bw.BundleWriter()
    function = writer.function("peek")
    out = function.result("out", "u8", [count, 16])
    for i in range(count):
        function.body.copy(function.constant(writer.external(f"w{i}", "u8", (16,))).read(), out.write(16 * i), 16)
    writer.write(tmp_path / "many.accx")
    (tmp_path / "w.safetensors").write_bytes(safetensors_bytes({f"w{i}": np.full(16, i % 251, np.uint8) for i in range(count)}))
    opened, asked, filled = accrt.Bundle(tmp_path / "many.accx"), [], bundle.filled
    monkeypatch.setattr(bundle, "filled", lambda *arguments: asked.append(arguments[1]) or filled(*arguments))
    program = accrt.Program(opened, weights=[tmp_path / "w.safetensors"], by_name=True)
    program.load_weights([tmp_path / "w.safetensors"], by_name=True)
    assert len(asked) < 10
    assert (program.session().peek()[:, 0].numpy() == np.arange(count) % 251).all()


def test_refusals(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\x03" + b"\0" * 7 + b"{}")
    with pytest.raises(accrt.InvalidFormatError, match=r"safetensors rule 1\)"):
        accrt.Weights(path)
    with pytest.raises(accrt.NotFoundError):
        accrt.Weights(tmp_path / "none")
    with pytest.raises(ValueError, match="verify"):
        accrt.Weights(path, verify="much")


def test_bundle_as_source(golden_bundle, instance):
    bundle = accrt.Bundle(golden_bundle, instance)
    stored = [c for c in bundle.constants if not c.prepared]
    weights = accrt.Weights(bundle)
    assert weights.info.kind == "accx" and sorted(weights) == sorted(c.name for c in stored)
    by_path = accrt.Weights(golden_bundle, instance)
    for constant in stored:
        assert bytes(weights[constant.name].memoryview()) == bytes(bundle.constant_bytes(constant.name))
        assert bytes(by_path[constant.name].memoryview()) == bytes(bundle.constant_bytes(constant.name))
        assert weights[constant.name].shape == tuple(constant.shape)


def external(path, image_bundle, **options):
    """A bundle whose only weight lies outside: look() gives it."""
    from accrt import bundle_writer as bw
    bundle = bw.BundleWriter()
    weight = bundle.external("w", "f32", (4,), **options)
    f = bundle.function("look")
    f.body.copy(f.constant(weight).read(), f.result("y", "f32", [4]).write(), 16)
    bundle.write(path)


def test_program(tmp_path, instance):
    import xxhash
    one, two = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    external(tmp_path / "m.accx", None, digest=xxhash.xxh3_128(one.tobytes()).digest())
    bundle = accrt.Bundle(tmp_path / "m.accx", instance)
    first, second = (accrt.Weights(safetensors_bytes({"w": x}), instance) for x in (one, two))
    with pytest.raises(accrt.NotFoundError, match="'w'.*no weights were given"):
        bundle.program()
    with pytest.raises(accrt.DataCorruptError):
        bundle.program(weights=second)
    empty = accrt.Weights(safetensors_bytes({}), instance)
    assert not empty
    with pytest.raises(accrt.NotFoundError, match="'w'") as problem:
        bundle.program(weights=empty)
    assert "no weights were given" not in str(problem.value)
    for none in ((), [], None):
        with pytest.raises(accrt.NotFoundError, match="'w'.*no weights were given"):
            bundle.program(weights=none)
    assert np.array_equal(bundle.program(weights=iter([empty, first])).session().look(), one)
    program = bundle.program(weights=[first])
    session = program.session()
    assert np.array_equal(session.look(), one)
    program.load_weights(second, ["w"], by_name=True)
    assert np.array_equal(session.look(), two)
    with pytest.raises(accrt.DataCorruptError):
        program.load_weights([second])
    program.load_weights([first])
    assert np.array_equal(session.look(), one)
    assert np.array_equal(bundle.program(weights=[second], by_name=True).session().look(), two)


def test_memory_lives_as_long_as_what_is_bound_to_it(tmp_path, instance):
    """A source in memory may be let go of: the program that uses its bytes in place keeps them, and
    no longer than that."""
    import gc
    import weakref
    external(tmp_path / "m.accx", None)

    def source(first):
        memory = np.frombuffer(safetensors_bytes({"w": np.arange(first, first + 4, dtype=np.float32)}, pad=16), np.uint8).copy()
        return accrt.Weights(memory, instance), weakref.ref(memory)

    weights, one = source(1)
    program = accrt.Bundle(tmp_path / "m.accx", instance).program(weights=weights)
    del weights
    gc.collect()
    assert one() is not None and np.array_equal(program.session().look(), [1, 2, 3, 4])
    weights, two = source(5)
    program.load_weights(weights)
    del weights
    gc.collect()
    assert one() is None and two() is not None and np.array_equal(program.session().look(), [5, 6, 7, 8])
    with pytest.raises(accrt.InvalidFormatError):
        accrt.Weights(np.zeros(16, np.uint8), instance)
    bundle = accrt.Bundle(np.frombuffer((tmp_path / "m.accx").read_bytes(), np.uint8).copy(), instance)
    weights, three = source(9)
    inside = bundle.program(weights=weights).session()
    del weights, bundle
    gc.collect()
    assert np.array_equal(inside.look(), [9, 10, 11, 12])
    program.close()
    del inside
    gc.collect()
    assert two() is None and three() is None


def test_signed_weights_alone(tmp_path):
    """Foreign files have no signatures: under that policy they are no way round it."""
    strict = accrt.Instance(options={"trust.weights": "signed"})
    (tmp_path / "w").write_bytes(safetensors_bytes({"w": np.zeros(4, np.float32)}))
    for source in (tmp_path / "w", GOLDEN / "all.gguf", GOLDEN / "sharded"):
        with pytest.raises(accrt.UntrustedError, match="files of this format have no signatures"):
            accrt.Weights(source, strict)


def test_modules_are_there_when_they_are_named():
    import subprocess
    import sys
    code = "import accrt; accrt.trust.sign, accrt.layouts.info, accrt.bundle_writer.BundleWriter, accrt.errors.Error"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_paths_and_mistakes(tmp_path, instance):
    """Paths do where sources do; what is neither is told."""
    one, two = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    external(tmp_path / "m.accx", None)
    for name, array in (("one", one), ("two", two)):
        (tmp_path / name).write_bytes(safetensors_bytes({"w": array}))
    bundle = accrt.Bundle(tmp_path / "m.accx", instance)
    for weights in (tmp_path / "one", str(tmp_path / "one"), [tmp_path / "one"]):
        program = bundle.program(weights=weights)
        session = program.session()
        assert np.array_equal(session.look(), one)
        program.load_weights(tmp_path / "two")
        assert np.array_equal(session.look(), two)
    with pytest.raises(accrt.NotFoundError, match="no such file"):
        bundle.program(weights=tmp_path / "tow")
    with pytest.raises(TypeError, match="weights are accrt.Weights or paths, not int"):
        program.load_weights([7])
    for source in (None, [tmp_path / "one"], {"w": one}):
        with pytest.raises(TypeError, match="a source of weights is a path"):
            accrt.Weights(source)
    with pytest.raises(TypeError, match="load_adapter"):
        session.adapter = "lora"


def test_a_download_cache(tmp_path):
    """Links: refused by the word that allows them."""
    (tmp_path / "blob").write_bytes(safetensors_bytes({"w": np.zeros(4, np.float32)}))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to("../blob")
    with pytest.raises(accrt.PermissionDeniedError, match="is a symbolic link.*follow_links=True"):
        accrt.Weights(snapshot)
    assert list(accrt.Weights(snapshot, follow_links=True)) == ["w"] == list(accrt.Weights(snapshot / "model.safetensors"))


def test_files_beside(tmp_path, instance):
    """Files that the bundle names: kind, size and digest are what it says; a pack is one such
    kind."""
    import os

    import xxhash
    from accrt import bundle_writer as bw
    array = np.arange(4, dtype=np.float32)
    side = safetensors_bytes({"w": array})
    (tmp_path / "side").write_bytes(side)
    pack = bw.BundleWriter()
    pack.constant("inner", array)
    pack.write(tmp_path / "pack.accx")
    digest = xxhash.xxh3_128(side).digest()

    def look(**facts):
        bundle = bw.BundleWriter()
        f = bundle.function("look")
        weights = [bundle.external("a", "f32", (4,), file=bundle.file("side", bw.FileKind.SAFETENSORS, **facts), tensor="w"),
                   bundle.external("b", "f32", (4,), file=bundle.file("pack.accx", bw.FileKind.ACCX), tensor="inner")]  # fmt: skip
        for i, weight in enumerate(weights):
            f.body.copy(f.constant(weight).read(), f.result(f"y{i}", "f32", [4]).write(), 16)
        bundle.write(tmp_path / "m.accx")
        return accrt.Bundle(tmp_path / "m.accx", instance).program().session().look()

    for facts in ({}, {"size_bytes": len(side)}, {"digest": digest}, {"size_bytes": len(side), "digest": digest}):
        assert all(np.array_equal(y, array) for y in look(**facts))
    with pytest.raises(accrt.DataCorruptError, match="bytes, not"):
        look(size_bytes=len(side) + 1)
    with pytest.raises(accrt.DataCorruptError, match="has the digest"):
        look(digest=bytes(range(16)))
    os.link(tmp_path / "side", tmp_path / "other")
    with pytest.raises(accrt.PermissionDeniedError, match="2 hard links"):
        look()
    assert all(np.array_equal(y, array) for y in look(digest=digest))
    # A digest that would not be compared otherwise: of a constant with one of its own, bound by
    # name alone, or in a hurry.
    other = safetensors_bytes({"w": array + 1})
    (tmp_path / "other").unlink()
    (tmp_path / "side").write_bytes(other)
    os.link(tmp_path / "side", tmp_path / "other")
    bundle = bw.BundleWriter()
    side = bundle.file("side", bw.FileKind.SAFETENSORS, digest=digest)
    weight = bundle.external("w", "f32", (4,), file=side, digest=xxhash.xxh3_128(array.tobytes()).digest())
    f = bundle.function("look")
    f.body.copy(f.constant(weight).read(), f.result("y", "f32", [4]).write(), 16)
    bundle.write(tmp_path / "m.accx")
    for linked in (True, False):
        for verify, options in (("default", {"by_name": True}), ("no-data", {})):
            opened = accrt.Bundle(tmp_path / "m.accx", instance, verify=verify)
            if linked:
                with pytest.raises(accrt.DataCorruptError, match="'side' .* has the digest"):
                    opened.program(**options)
            else:
                assert np.array_equal(opened.program(**options).session().look(), array + 1)
        (tmp_path / "other").unlink(missing_ok=True)


def test_rules_document():
    """docs/weights.md has the rules of loader/weights_rules.h."""
    source = (ROOT / "loader" / "weights_rules.h").read_text()
    rules = re.findall(r'X\((\w+), (\w+), (\d+), (\w+), "(.*)"\)', source)
    text = (ROOT / "docs" / "weights.md").read_text()
    rows = re.findall(r"^\| (safetensors|index|gguf) (\d+) \| (\w+) \| (\w+) \| (.*) \|$", text, re.M)
    assert [(f, n, name, status, words) for f, name, n, status, words in rules] == rows
    assert len(rules) == 33


def test_a_set_of_hard_links_needs_leave(tmp_path):
    """A second name of a file that an index names may be one that somebody else has elsewhere."""
    import os
    (tmp_path / "part.safetensors").write_bytes(safetensors_bytes({"w": np.arange(4, dtype=np.float32)}))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": {"w": "part.safetensors"}}))
    assert list(accrt.Weights(index)) == ["w"]
    os.link(tmp_path / "part.safetensors", tmp_path / "elsewhere")
    with pytest.raises(accrt.PermissionDeniedError, match="2 hard links.*follow_links"):
        accrt.Weights(index)
    assert list(accrt.Weights(index, follow_links=True)) == ["w"]
    assert list(accrt.Weights(tmp_path / "part.safetensors")) == ["w"]  # the user has named it
