"""The second reader (accrt.bundle_reader): what it reads, and that it agrees with the library on
what it refuses."""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import accrt
import accrt.trust
from accrt import bundle_reader
from accrt import bundle_writer as bw
import rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("0.[0-9]/*.accx"))
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))


def accepted(path: pathlib.Path) -> bool:
    try:
        accrt.Bundle(path)
    except accrt.Error:
        return False
    return True


@pytest.mark.parametrize("path", [p for p in GOLDEN if accepted(p)], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_it_sees_what_the_library_sees(path: pathlib.Path) -> None:
    own, theirs = bundle_reader.read(path), accrt.Bundle(path)
    own.verify()
    assert own.metadata == theirs.metadata
    assert [(s.name, s.symbol_class, s.minimum, s.maximum, s.divisor, s.buckets) for s in own.symbols.values()] == [
        (s.name, s.symbol_class, s.minimum, s.maximum, s.divisor, s.buckets) for s in theirs.symbols]  # fmt: skip
    assert [(c.name, c.dtype, c.shape) for c in own.constants.values()] == [
        (c.name, str(c.dtype), tuple(c.shape)) for c in theirs.constants]
    assert own.versions["container"] == (theirs.info["container_major"], theirs.info["container_minor"])
    assert len(own.kernels) == theirs.info["kernel_count"] and len(own.images) == theirs.info["image_count"]


def test_every_rule_is_the_documents() -> None:
    text = (ROOT / "docs" / "accx-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([A-Z0-9_]+) \| ([A-Z_]+) \|", text, re.MULTILINE)
    assert {int(number): (name, status) for number, name, status in rows} == bundle_reader.RULES


def test_it_imports_nothing_else_of_accrt() -> None:
    code = (
        "import sys, types; package = types.ModuleType('accrt'); package.__path__ = [sys.argv[1]];"
        "sys.modules['accrt'] = package; import accrt.bundle_reader;"
        "print([m for m in sys.modules if m.startswith('accrt.') and not m.startswith('accrt.bundle_reader')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "python" / "accrt")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def small_bundle() -> bytes:
    writer = bw.BundleWriter()
    writer.metadata("license", "none")
    writer.constant("a", bytes(range(16)), dtype="u8", shape=[16])
    writer.constant("b", bytes(2 << 20), dtype="f32", shape=[1 << 19])
    return writer.to_bytes()


def test_weights_are_checked_before_they_are_handed_out() -> None:
    data = bytearray(small_bundle())
    bundle = bundle_reader.read(bytes(data))
    assert bytes(bundle.data(bundle.constants["a"])) == bytes(range(16))
    data[-1] ^= 1
    damaged = bundle_reader.read(bytes(data))
    assert bytes(damaged.data(damaged.constants["a"])) == bytes(range(16))
    with pytest.raises(bundle_reader.FormatError, match=r"chunk 2 .*\(rule 111") as caught:
        damaged.data(damaged.constants["b"])
    assert (caught.value.rule, caught.value.name, caught.value.status) == (111, "DATA_DIGEST", "DATA_CORRUPT")
    with pytest.raises(bundle_reader.FormatError):
        damaged.verify()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 200])
def test_short_files_are_refused(size: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "short.accx"
    path.write_bytes(small_bundle()[:size])
    with pytest.raises(bundle_reader.FormatError) as caught:
        bundle_reader.read(path)
    with pytest.raises(accrt.Error, match=rf"\(rule {caught.value.rule}\)"):
        accrt.Bundle(path)


def test_the_two_readers_agree_on_mutated_files(tmp_path: pathlib.Path) -> None:
    """A short run of tests/fuzz/differential.py; `./dev fuzz differential` goes on for as long as
    asked."""
    import differential

    assert differential.compare(4000, float("inf"), rotation.seed(), tmp_path, quiet=True) == 0


# ---- Signatures ----


def signed() -> bytes:
    return (ROOT / "tests" / "golden" / "0.3" / "signed.accx").read_bytes()


def signatures_of(data: bytes):
    return [(s.scope, s.key, s.valid) for s in bundle_reader.read(data).signatures()]


def with_signatures(data: bytes, change) -> bytes:
    """The file with other bytes in SIGNATURES, and digests that say so."""
    import struct

    import xxhash

    out = bytearray(data)
    count = struct.unpack_from("<I", out, 48)[0]
    for entry in range(128, 128 + 64 * count, 64):
        kind, _flags, offset, size = struct.unpack_from("<2I2Q", out, entry)
        if kind == 41:
            out[offset : offset + size] = change(bytes(out[offset : offset + size]))
            out[entry + 48 : entry + 64] = xxhash.xxh3_128_digest(bytes(out[offset : offset + size]))
    out[112:128] = bytes(16)
    out[112:128] = xxhash.xxh3_128_digest(bytes(out[: 128 + 64 * count]))
    return bytes(out)


def flipped(at: int):
    def change(content: bytes) -> bytes:
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return change


@pytest.mark.parametrize("at", [None, 40 + 5, 112 + 103, 8 + 3])
def test_signatures_are_worth_what_the_library_says(at) -> None:
    """Good ones; one of the code and one of the weights with another bit; one that says it is
    another key's."""
    pytest.importorskip("cryptography")
    data = signed() if at is None else with_signatures(signed(), flipped(at))
    own = signatures_of(data)
    assert [valid for _scope, _key, valid in own] == [at is None or at >= 112, at is None or at < 112]
    try:
        theirs = accrt.trust.report(accrt.Bundle(data))["signatures"]
    except accrt.UnsupportedError:
        pytest.skip("there is no libcrypto here")
    assert own == [(s["scope"], s["key"], s["valid"]) for s in theirs]


def test_signatures_without_the_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert [valid for _scope, _key, valid in signatures_of(signed())] == [None, None]
    assert signatures_of(small_bundle()) == []
