"""What the Python writer makes of container 0.3: weights outside and quantized, shards, adapters,
assets, locations, sections and commands as bytes; and what it writes, or refuses to write, for a
given target."""

from __future__ import annotations

import array
import ctypes
import json

import numpy as np
import pytest

import accrt
from accrt import bundle_reader
from accrt import bundle_writer as bw
from accrt.bundle_writer import layouts
from random_bundles import elf

E = bw.Encoding


def opened(bundle):
    """Both readers open it; what the second one reads."""
    data = bundle.to_bytes()
    accrt.Bundle(data)
    return bundle_reader.read(data)


def versions(bundle):
    return opened(bundle).versions


def function(bundle):
    n = bundle.symbol("n", maximum=100)
    main = bundle.function("main")
    x, y = main.input("x", "f32", [n]), main.result("y", "f32", [n])
    main.body.copy(x.read(), y.write(), n * 4)
    return main


# ---- Records ----


@pytest.mark.parametrize("encoding", [e for e in E if e > E.OPAQUE], ids=lambda e: e.name)
def test_sizes_are_those_of_the_library(encoding):
    """Each component of each layout, for shapes that fit: a bundle of it opens, and the library
    says the same size."""
    layout, group = layouts.of(encoding), 64 if layouts.of(encoding).free_group else 0
    for shape in [(8, 256), (16, 768)] + ([] if encoding in (E.GPTQ_V1, E.GPTQ_V2, E.AWQ) else [(2, 8, 512), (256,)]):
        bundle = bw.BundleWriter()
        parts = {}
        for role, dtypes in layout.components.items():
            size = layouts.size_bytes(encoding, role, dtypes[-1], shape, group)
            parts[role] = (bytes(size), dtypes[-1])
        bundle.constant("w", parts, shape=shape, encoding=encoding, group_elements=group)
        bundle.external("x", "f16", shape, encoding=encoding, group_elements=group)
        found = opened(bundle)
        assert found.versions["layouts"] == (0, 3 if encoding >= E.Q5_0 else 2)
        assert [c.size_bytes for c in found.constants["w"].components] == [len(data) for data, _ in parts.values()]
        accrt.Bundle(bundle.to_bytes())


def test_ids_are_those_of_the_library():
    from accrt import _ffi, _library

    info = _ffi.accrt_layout_info(ctypes.sizeof(_ffi.accrt_layout_info))
    for encoding in E:
        assert _library.lib.accrt_layout_info(int(encoding), ctypes.byref(info)) == 0
        assert info.name.decode() == encoding.name.lower()


def test_minimum_versions():
    plain = bw.BundleWriter()
    plain.constant("w", np.zeros(4, np.float32))
    assert versions(plain)["container"] == (0, 1) and versions(plain)["layouts"] == (0, 1)
    quantized = bw.BundleWriter()
    quantized.constant("w", bytes(34), shape=(32,), encoding=E.Q8_0)
    assert versions(quantized)["container"] == (0, 1) and versions(quantized)["layouts"] == (0, 2)
    grouped = bw.BundleWriter()
    grouped.constant("w", {"data": bytes(32), "scales": array.array("f", [1])}, shape=(32,), encoding=E.I8_GROUP, group_elements=32)
    assert versions(grouped)["container"] == (0, 3)
    for add in (lambda b: b.asset("a", b"1"), lambda b: b.external("w", "f32", (2,)), lambda b: b.file("f", bw.FileKind.GGUF)):
        bundle = bw.BundleWriter()
        add(bundle)
        assert versions(bundle)["container"] == (0, 3)


def test_order_of_declaration_does_not_matter():
    def make(order):
        bundle = bw.BundleWriter()
        main = function(bundle)
        files = {name: bundle.file(name, bw.FileKind.SAFETENSORS) for name in order(["a.st", "b.st"])}
        for name in order(["u", "v", "w"]):
            bundle.external(name, "f32", (4,), file=files["b.st"] if name == "u" else None, digest=b"d" * 16)
        for name in order(["u", "v", "w"]):
            bundle.shard(bundle._constants[name], 2, axis=0 if name == "v" else None, extent=8 if name == "v" else 0)
        for name in order(["x", "y", "z"]):
            bundle.asset(name, name.encode() * 3)
        main.body.commands[0].at(bundle.location("m.py", 3))
        main.body.marker("a").at(bundle.location("m.py", 2))
        return bundle.to_bytes()

    assert make(list) == make(lambda names: names[::-1])


def test_raw_sections_and_commands_stay_as_they_are():
    bundle = bw.BundleWriter()
    main = function(bundle)
    main.body.raw(0x8001, b"\1\2\3\4\5\6\7\0", name="acme.prefetch", after=main.body.commands)
    bundle.section(0x10000, "acme.tuning", b"12345", record_bytes=0, record_count=0)
    bundle.section(50, "later", b"abc")
    bundle.string("only in a section")
    found = opened(bundle)
    assert found.container.kept == {0x10000: b"12345", 50: b"abc"}
    required = bw.BundleWriter()
    required.section(0x10000, "acme.needed", b"1", required=True)
    with pytest.raises(accrt.VersionMismatchError, match="acme.needed"):
        accrt.Bundle(required.to_bytes())


MISTAKES = [
    (lambda b: b.file("a/b", bw.FileKind.GGUF), "bare file name"),
    (lambda b: b.file("..", bw.FileKind.GGUF), "bare file name"),
    (lambda b: [b.file("a", bw.FileKind.GGUF), b.file("a", bw.FileKind.GGUF)], "two files named 'a'"),
    (lambda b: b.external("w", "f32", (2,), digest=b"short"), "constant 'w': a digest of 16 bytes"),
    (lambda b: b.external("w", "f32", (2,), file=bw.BundleWriter().file("x", bw.FileKind.GGUF)), "belongs to another bundle"),
    (lambda b: b.external("w", "i32", (2, 32), encoding=E.Q8_0), "q8_0\\) of i32, .*a quantized weight is f32, f16 or bf16"),
    (lambda b: b.external("w", "f32", (2, 33), encoding=E.Q8_0), "columns 33, .* no multiple of the layout's block, 32"),
    (lambda b: b.external("w", "f32", (2, 32), encoding=E.I8_GROUP), "i8_group\\) .*group 0: a free group is a multiple of 8"),
    (lambda b: b.external("w", "f32", (2, 32), encoding=E.Q8_0, group_elements=8), "q8_0\\) .*group 8: a free group is a multiple of 8 up to 2\\^24, any other is 0"),
    (lambda b: b.external("w", "f32", (2,), group_elements=8), "PLAIN has no group size"),
    (lambda b: b.constant("w", bytes(33), shape=(32,), encoding=E.Q8_0), "33 bytes of DATA; Q8_0 \\[32\\] has 34"),
    (lambda b: b.constant("w", {"data": bytes(32)}, shape=(32,), encoding=E.I8_CHANNEL), "needs the component SCALES"),
    (lambda b: b.constant("w", {"zeros": bytes(32)}, shape=(32,), encoding=E.Q8_0), "no component 'zeros'"),
    (lambda b: b.constant("w", bytes(34), encoding=E.Q8_0), "give the shape"),
    (lambda b: b.prepared("w", 34, dtype="f32", shape=(32,), encoding=E.I8_CHANNEL), "a prepared constant has one"),
    (lambda b: b.shard(b.external("w", "f32", (3,)), 2, axis=0, extent=7), "does not cut into 2 equal parts"),
    (lambda b: b.shard(b.external("w", "f32", (3,)), 2, axis=0, extent=8), "give a rank 4 of axis 0, which has 3"),
    (lambda b: b.shard(b.external("w", "f32", (3,)), 2, axis=1, extent=6), "axis 1 of rank 1"),
    (lambda b: b.shard(b.external("w", "f32", (3,)), 2, extent=6), "without an axis"),
    (lambda b: b.shard(b.external("w", "f32", (2, 96), encoding=E.I8_GROUP, group_elements=64), 2, axis=1, extent=192),
     "parts of 96, which cut what must stay whole: 64"),
    (lambda b: b.shard(b.external("w", "f32", (100, 256), encoding=E.F8_BLOCK128), 2, axis=0, extent=200), "must stay whole: 128"),
    (lambda b: b.shard(b.external("w", "u4", (3,)), 2, axis=0, extent=6), "must stay whole: 2"),
    (lambda b: [b.shard(b.external(n, "f32", (3,)), d) for n, d in (("a", 2), ("b", 3))], "the same for all"),
    (lambda b: function(b).input("q", "f32", [32], encoding=E.Q8_0), "quantized are only constants"),
    (lambda b: b.section(6, "constants", b"1"), "which the writer makes itself"),
    (lambda b: [b.constant("w", b"1"), b.section(63, "data", b"1"), b.to_bytes()], "only encrypted ones may be"),
    (lambda b: b.section(0x10000, "a name", b"1"), "1 to 16 characters"),
    (lambda b: function(b).body.raw(3, b""), "opcodes from 9 up"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_mistake(index):
    mistake, message = MISTAKES[index]
    with pytest.raises(bw.BundleError, match=message):
        mistake(bw.BundleWriter())


def test_mistakes_that_show_when_writing():
    bundle = bw.BundleWriter()
    function(bundle)
    bundle.adapter("lora", "x")
    with pytest.raises(bw.BundleError, match="adapters\\[0\\].input: 'x' is no OPTIONAL input"):
        bundle.to_bytes()
    bundle = bw.BundleWriter()
    bundle.shard(bundle.external("a", "f32", (3,)), 2)
    bundle.external("b", "f32", (3,))
    with pytest.raises(bw.BundleError, match="'b' is EXTERNAL and has no shard"):
        bundle.to_bytes()


# ---- Targets ----


def caps(**changes):
    """What a library of 0.1 said of itself."""
    first = {
        "container": "0.1", "commands": "0.1", "kernel_abi": "0.1", "layouts": "0.1", "max_rank": 8, "file_features": [],
        "function_features": [], "variant_features": [], "encodings": ["plain", "opaque"],
        "command_set": ["dispatch", "copy", "fill", "barrier", "call", "repeat", "branch", "marker"],
        "dtypes": [d for d in bw.DTYPES if d != "u4"], "image_kinds": ["host ELF", "cubin", "PTX", "fatbin"],
    }  # fmt: skip
    return {**first, **changes}


def test_ignorable_sections_are_left_out():
    def make(target=None, full=True):
        bundle = bw.BundleWriter(target)
        main = function(bundle)
        bundle.section(0x10000, "acme.tuning", b"1")
        if full:
            bundle.asset("tokenizer", b"bytes", media_type="text/plain")
            main.body.commands[0].at(bundle.location("m.py", 3, 0, "layer"))
        return bundle.to_bytes()

    assert make(caps()) == make(full=False) and make(caps()) != make()
    assert make(accrt.caps()) == make() == make(json.dumps(caps(container="0.3")))


def test_the_current_library_is_a_target_for_everything(tmp_path):
    bundle = bw.BundleWriter(accrt.caps())
    function(bundle)
    bundle.external("w", "f32", (2, 64), encoding=E.NVFP4, file=bundle.file("f", bw.FileKind.GGUF))
    assert opened(bundle).versions["container"] == (0, 3)


def two_versions(target=None):
    bundle = bw.BundleWriter(target)
    n = bundle.symbol("n", maximum=100)
    kernel = bundle.kernel("k", [bw.Parameter("y", "buffer", "write"), bw.Parameter("n", "symbol")])
    kernel.variant(bundle.image("host", elf()), arch_kind="portable")
    kernel.variant(bundle.image("cubin", b"cubin", bw.ImageKind.CUBIN), driver="cuda", arch="sm_90", block=128)
    kernel.variant(bundle.pack("accrt.test"), driver="cuda", arch_kind="portable", entry="operator")
    for name in ("", "cuda"):
        main = bundle.function("main", target=name)
        y = main.result("y", "f32", [n])
        main.scalar("n", n)
        main.body.dispatch(kernel, {"y": y.write(), "n": n})
    return bundle


def test_targets_and_variants_that_mean_nothing_are_left_out():
    data = two_versions(caps()).to_bytes()
    assert data[8:12] == b"\0\0\1\0"  # container 0.1
    assert b"operator" not in data and b"cubin" not in data and b"cuda" not in data
    assert b"operator" in two_versions(accrt.caps()).to_bytes() == two_versions().to_bytes()


def test_what_only_a_left_out_version_needs_goes_with_it():
    """A kernel without a host variant, a weight that is packed for CUDA alone, the functions in
    between."""

    def make(target, cuda):
        bundle = bw.BundleWriter(target)
        n = bundle.symbol("n", maximum=100)
        parameters = [bw.Parameter("y", "buffer", "write")]
        host = bundle.kernel("host", parameters).variant(bundle.image("h", elf()), arch_kind="portable")
        weight = bundle.constant("weight", np.arange(4, dtype=np.float32))
        kernels = {"": host}
        if cuda:
            image = bundle.image("c", b"cubin", bw.ImageKind.CUBIN)
            kernels["cuda"] = bundle.kernel("device", parameters).variant(image, driver="cuda", arch="sm_90", block=1)
            packed = bundle.prepared("packed", 16)
            bundle.shard(packed, 2)
            pack = bundle.function("pack", prepare=True, target="cuda")
            pack.body.copy(pack.source("w", weight).read(), pack.product("p", packed).write(), 16)
            part = bundle.function("part", internal=True, target="cuda")
            part.body.dispatch(kernels["cuda"], {"y": part.result("y", "f32", [4]).write()})
        for name, kernel in kernels.items():
            main = bundle.function("main", target=name)
            y = main.result("y", "f32", [n])
            main.scalar("n", n)
            main.body.dispatch(kernel, {"y": y.write()})
            main.body.copy(main.constant(packed if name else weight).read(), y.write(), 4)
        return bundle.to_bytes()

    assert make(caps(), True) == make(None, False) != make(None, True)


def test_the_tool_prints_a_target(tmp_path):
    from test_tool import accx

    path = tmp_path / "target.json"
    path.write_text(accx("caps", "--json"))
    for given in (path, str(path), path.read_text(), json.loads(path.read_text()), accrt.caps()):
        found = bw.TargetCaps.of(given)
        assert found == bw.TargetCaps.of(accrt.caps())


@pytest.mark.parametrize("given,why", [
    ({"container": "0.3"}, "there is no 'commands'"), (caps(container=3), "byte 14: a string is missing \\(at 'container'"), (caps(container="0.x"), "byte 19: this is not a version \\(at 'container'"),
    (caps(max_rank="many"), ".*: a whole number is missing \\(at 'max_rank'"), (caps(dtypes=7), ".*: a list is missing \\(at 'dtypes'"), (caps(sections=[3]), ".*: a string is missing \\(at 'sections'"),
    (caps(encodings=[{"name": "plain"}]), ".*: an object without an id \\(at 'encodings'"), (caps(drivers=[{}]), ".*: a driver without a name \\(at 'drivers'"), ({"command_mask": 1}, "there is no 'container"),
    ([], ".*object"), ("{", "byte 1: a string is missing"),
])  # fmt: skip
def test_what_is_no_target_is_said(given, why, tmp_path):
    with pytest.raises(bw.BundleError, match=f"^target_caps: {why}"):
        bw.BundleWriter(given)
    path = tmp_path / "target.json"
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(bw.BundleError, match=f"^target_caps: {path}: {why}"):
        bw.BundleWriter(path)


def test_the_compiler_writes_for_a_target(tmp_path):
    """What it makes for hosts alone is what an old runtime gets of a bundle for hosts and GPUs."""
    from accrt.compiler import Module, available_targets
    from accrt.compiler import compile as compile_module
    from accrt.compiler.driver import compile_writer

    hosts = [t for t in available_targets() if t.startswith("x86") or t == "aarch64"][:1]
    devices = [t for t in available_targets() if t == "ptx"]
    if not hosts:
        pytest.skip("no C compiler")

    def module():
        m = Module("example")
        w = m.constant("w", np.ones((16, 8), np.float32))
        f = m.function("project")
        f.result("y", f.input("x", "f32", [m.symbol("n", maximum=9), 8]).linear(w, None).softmax(-1))
        return m

    path = tmp_path / "caps.json"
    path.write_text(json.dumps(caps()))
    made = compile_module(module(), targets=hosts + devices, target_caps=path)
    # and unsigned: such a target knows no signatures
    assert made == compile_writer(module(), hosts).to_bytes()
    with pytest.raises(bw.TargetError, match="constant 'w.*data type 12 \\(f32\\)"):
        compile_module(module(), tmp_path / "never.accx", targets=hosts, target_caps=caps(dtypes=["i64"]))
    assert not (tmp_path / "never.accx").exists()


def test_programs_that_compile_share_their_arguments(tmp_path, capsys):
    import argparse

    from accrt.compiler import Module, available_targets, command_line

    hosts = [t for t in available_targets() if t.startswith("x86") or t == "aarch64"][:1]
    if not hosts:
        pytest.skip("no C compiler")
    m = Module("example")
    f = m.function("twice")
    f.result("y", f.input("x", "f32", [8]) * 2.0)
    target = tmp_path / "target.json"
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    arguments = parser.parse_args(["-o", str(tmp_path / "a.accx"), "--target", hosts[0], "--target-caps", str(target), "--print"])
    target.write_text(json.dumps(caps()))
    command_line.write(m, arguments)
    assert "twice" in capsys.readouterr().out
    assert bundle_reader.read(tmp_path / "a.accx").versions["container"] == (0, 1)
    target.write_text(json.dumps(caps(dtypes=["i64"])))
    with pytest.raises(SystemExit, match=r": function 'twice', input 'x': the target does not know data type 12 \(f32\)$"):
        command_line.write(m, arguments)


# ---- What the library and the tool show of it ----


def described():
    bundle = bw.BundleWriter()
    function(bundle).body.commands[0].at(bundle.location("m.py", 3, 4, "layer"))
    file = bundle.file("w.gguf", bw.FileKind.GGUF, size_bytes=123, digest=b"f" * 16)
    bundle.shard(bundle.external("w", "f32", (4, 512), file=file, tensor="blk.0", encoding=E.Q4_K, digest=b"d" * 16), 2, axis=0, extent=8)
    bundle.constant("q", {"data": bytes(64), "scales": array.array("f", [1, 2])}, shape=(2, 32), encoding=E.I8_GROUP, group_elements=32)
    bundle._functions["main", ""].input("lora", "f32", [4], optional=True)
    bundle.adapter("lora_A", "lora", scaled=True)
    bundle.asset("LICENSE", b"free", media_type="text/plain")
    bundle.asset("nothing", b"")
    return bundle


def test_reflection():
    bundle = accrt.Bundle(described().to_bytes())
    w, q = bundle.constants[1], bundle.constants[0]
    assert (w.external, w.file, w.tensor, w.digest, w.encoding, w.size_bytes) == (True, "w.gguf", "blk.0", b"d" * 16, 19, 4 * 288)
    assert (q.external, q.file, q.digest, q.group_elements) == (False, "", b"", 32)
    assert bundle.files == ["w.gguf"] and bundle.adapters == {"lora_A": "lora"}
    assert bundle.assets["LICENSE"].data == b"free" and bundle.assets["nothing"].data == b""
    info = bundle.info
    assert (info["shard_count"], info["location_count"], info["asset_count"]) == (1, 1, 2)


def test_inspect_shows_it(tmp_path):
    from test_tool import accx, accx_json

    path = tmp_path / "described.accx"
    described().write(path)
    seen = accx_json("inspect", path)
    q, w = seen["constants"]
    assert (w["source"], w["file"], w["tensor"], w["encoding"]) == ("external", "w.gguf", "blk.0", "q4_k")
    assert w["digest"] == "64" * 16 and seen["files"][0]["digest"] == "66" * 16
    assert w["shard"] == {"kind": "split", "degree": 2, "axis": 0, "extent": 8, "segments": [{"begin": 0, "end": 8, "replicas": 1}]}
    assert [(c["role"], c["dtype"], c["size_bytes"]) for c in q["components"]] == [("data", "i8", 64), ("scales", "f32", 8)]
    assert seen["adapters"] == [{"slot": "lora_A", "input": "lora", "scaled": True}]
    assert seen["locations"] == [{"file": "m.py", "line": 3, "column": 4, "name": "layer"}]
    text = accx("inspect", path, "--section", "constants,files,adapters,assets")
    assert "external: w.gguf, q4_k" in text and "1 weights for each of 2 ranks" in text and "text/plain" in text


def test_a_failure_says_where_its_command_comes_from():
    bundle = bw.BundleWriter()
    n = bundle.symbol("n", maximum=100)
    main = bundle.function("main")
    x, y = main.input("x", "f32", [n]), main.result("y", "f32", [4])
    main.body.copy(x.read(), y.write(), 4)
    main.body.copy(x.read(8), y.write(), 16, name="tail").at(bundle.location("model.py", 12, 3, "block.0"))
    session = accrt.Program(accrt.Bundle(bundle.to_bytes())).session()
    session.main(np.zeros(8, np.float32))
    with pytest.raises(accrt.Error, match=r"command 1 'tail' \(model.py:12\)"):
        session.main(np.zeros(4, np.float32))
