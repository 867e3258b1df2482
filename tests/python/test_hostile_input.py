"""Files made to harm, by hand: what happened to other formats, tried here; and
docs/hostile-input.md held against the sources."""

from __future__ import annotations

import json
import os
import pathlib
import re
import struct
import subprocess
import time

import pytest

import accrt
from accx_tool import ACCX, ROOT, needs_tool

DOCUMENT = ROOT / "docs" / "hostile-input.md"


# ---- The document ----


def rows() -> list[list[str]]:
    """Rows of the table of checks: number, check, rules, where, tests."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_check_is_there_in_order():
    assert [int(row[0]) for row in rows()] == list(range(1, 12))


def test_rules_named_exist():
    rules = {int(number) for number in re.findall(r"X\(\w+, (\d+), ", (ROOT / "format/rules.h").read_text())}
    weights = set(re.findall(r"X\((\w+), \w+, (\d+), ", (ROOT / "loader/weights_rules.h").read_text()))
    for row in rows():
        for kind, numbers in re.findall(r"(safetensors|gguf|index)? ?((?:\d+(?:-\d+)?,? ?)+)", row[2]):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
                both = (int(first), int(last or first))
                known = {int(n) for f, n in weights if f == kind} if kind else rules
                assert set(both) <= known, (row[0], kind, both)


def names_in(cells: list[str]) -> list[tuple[str, str]]:
    return [pair for cell in cells for pair in re.findall(r"`([\w./-]+\.(?:c|h|py)):(\w+)`", cell)]


def test_places_and_tests_named_exist():
    text = DOCUMENT.read_text()
    table, attacks = names_in([cell for row in rows() for cell in row[3:]]), names_in([text.split("## Attacks")[1]])
    assert len(table) > 40 and len(attacks) > 20
    for path, name in [*table, *attacks]:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{path} has no {name}"
    for row in rows():
        assert names_in([row[3]]) and names_in([row[4]]), f"check {row[0]} names no code or no test"


def test_nothing_aborts():
    """Check 11: errors are returned. Nothing of the library asserts, aborts or exits."""
    for folder in ("format", "loader", "write", "runtime", "abi"):
        for path in sorted((ROOT / folder).rglob("*.c")):
            if path.name.endswith("_test.c"):
                continue
            text = path.read_text()
            # What only builds with assertions have: those stop on purpose.
            text = re.sub(r"^#if defined\(ACCRT_ASSERTIONS\) && ACCRT_ASSERTIONS$.*?^#endif$", "", text, flags=re.M | re.S)
            code = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", "", text, flags=re.S)
            assert not re.search(r"(?<![\w.>])(assert|abort|exit|_exit|__builtin_trap)\s*\(", code), path


# ---- Weight files ----


def safetensors(header: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + data


GOOD = safetensors('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"1234")


def refused(path: pathlib.Path | bytes, *words: str) -> None:
    with pytest.raises(accrt.Error) as caught:
        accrt.Weights(path)
    assert any(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("begin, deeper, count", [("", "[", 200_000), ("", '{"a":', 100_000), ('{"a":', "[", 1_000_000)])
def test_deep_json(tmp_path, begin, deeper, count):
    text = begin + deeper * count
    begin = time.process_time()
    refused(safetensors(text), "safetensors rule", "neither")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text if text.startswith("{") else '{"weight_map":' + text)
    refused(path, "index rule 2")
    assert time.process_time() - begin < 5


def index_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": name}}))
    return path


def test_names_of_files(tmp_path):
    """No name leads out of the folder, or to what is no file."""
    inside, outside = tmp_path / "inside", tmp_path / "outside.safetensors"
    inside.mkdir()
    outside.write_bytes(GOOD)
    (inside / "good.safetensors").write_bytes(GOOD)
    assert accrt.Weights(index_of(inside, "good.safetensors")) is not None
    for name in ("../outside.safetensors", str(outside), "..", ".", "", "a/b", "x" * 256, "x" * 4096, "/" * 4096):
        refused(index_of(inside, name), "index rule 3")
    refused(index_of(inside, "good.safetensors\0.json"), "index rule")
    (inside / "link").symlink_to(outside)
    refused(index_of(inside, "link"), "symbolic link")
    (inside / "folder").mkdir()
    refused(index_of(inside, "folder"), "not a regular file")
    os.mkfifo(inside / "fifo")
    refused(index_of(inside, "fifo"), "not a regular file")
    (inside / "device").symlink_to("/dev/zero")
    refused(index_of(inside, "device"), "symbolic link")
    (inside / "through").symlink_to(tmp_path)
    refused(index_of(inside, "through/outside.safetensors"), "index rule 3")


def gguf(tensors: int, keys: int, body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def gguf_tensor(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    "body, tensors, keys",
    [
        # CVE-2024-23496: a string's length, whose + 1 wraps
        (struct.pack("<Q", (1 << 64) - 1), 0, 1),
        (struct.pack("<Q", 1 << 63) + b"x" * 64, 0, 1),
        # an array of so many numbers
        (struct.pack("<Q1sIIQ", 1, b"a", 9, 10, (1 << 64) - 1), 0, 1),
        (struct.pack("<Q1sIIQ", 1, b"a", 9, 8, 1 << 61), 0, 1),  # and of so many strings
        (b"", (1 << 64) - 1, 0),
        (b"", 0, (1 << 64) - 1),
        (gguf_tensor(b"a", [1 << 32, 1 << 32], 0, 0), 1, 0),  # bytes wrap to 0
        (gguf_tensor(b"a", [(1 << 63) - 1, 2], 24, 0), 1, 0),
        (gguf_tensor(b"a", [(1 << 64) - 4], 24, 0) + bytes(64), 1, 0),  # padding wraps to 0
        (gguf_tensor(b"a", [(1 << 62) - 1], 0, 0) + bytes(64), 1, 0),
        # CVE-2025-53630, CVE-2026-27940, CVE-2026-33298: sums of sizes that wrap.
        (gguf_tensor(b"a", [1 << 62], 24, 0) + gguf_tensor(b"b", [1 << 62], 24, 1 << 62) + gguf_tensor(b"c", [1 << 62], 24, 1 << 63) + bytes(64), 3, 0),
        (gguf_tensor(b"a", [32], 24, (1 << 64) - 32) + bytes(64), 1, 0),
        # CVE-2026-7482: more than the file has
        (gguf_tensor(b"a", [1 << 20], 24, 0) + bytes(64), 1, 0),
    ],
)  # fmt: skip
def test_gguf_sizes(body, tensors, keys):
    refused(gguf(tensors, keys, body), "gguf rule")


def test_safetensors_sizes():
    for shape, offsets in (
        ([1 << 32, 1 << 32], [0, 0]), ([(1 << 63) - 1, 2], [0, 0]), ([(1 << 64) - 4], [0, 4]), ([1 << 64], [0, 4]), ([-4], [0, 4]),
        ([4], [0, (1 << 64) + 4]), ([4], [(1 << 64) - 4, 0]), ([4], [4, 8]), ([4], [0, 5]),
    ):  # fmt: skip
        header = json.dumps({"a": {"dtype": "U8", "shape": shape, "data_offsets": offsets}})
        refused(safetensors(header, b"1234"), "safetensors rule")
    for size in ((1 << 64) - 1, 1 << 63, 1 << 32, 100_000_001):
        refused(struct.pack("<Q", size) + b"{}", "safetensors rule 1", "neither")


def seconds(data: bytes) -> float:
    begin = time.process_time()
    try:
        accrt.Weights(data)
    except accrt.Error:
        pass
    return time.process_time() - begin


GOOD_ENTRY = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@pytest.mark.parametrize("header, words", [
    ("[" * 100000, "cannot be read"), ("{", "cannot be read"), ("[]", "its header is \\[\\], expected an object"), ("7", "its header is 7"),
    ('{"a":1}', "expected its dtype, its shape"), ('{"a":{"dtype":["F32"],"shape":[],"data_offsets":[0,4]}}', "expected its dtype"),
    ('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', "expected its dtype"), ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0.0,8]}}', "expected its dtype"),
    ('{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', "expected its dtype"), ('{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}', "expected its dtype"),
    ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}', "expected its dtype"), ('{"a":{"dtype":"F32","shape":[2]}}', "expected its dtype"),
    ('{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % ",".join(["2"] + ["1"] * 99), "of shape"),
    ('{"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,8]}}', "of shape"), ('{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}', "of shape"),
    ("{%s,%s}" % (GOOD_ENTRY, GOOD_ENTRY), "'a' is there twice"), ("{%s,%s}" % (GOOD_ENTRY, GOOD_ENTRY.replace("a", "b", 1)), "tensors 'a' and 'b' share bytes from 0 on"),
    ('{%s,"b":{"dtype":"U8","shape":[9],"data_offsets":[7,16]}}' % GOOD_ENTRY, "share bytes from 7 on"), ('{"__metadata__":{"a":{}}}', "expected texts by name"),
    ('{"__metadata__":[]}', "expected texts by name"), ('{"a":{"dtype":"%s","shape":[2],"data_offsets":[0,8]}}' % ("x" * 9999), "which is not known here"),
])  # fmt: skip
def test_the_compilers_reader_of_safetensors(tmp_path, header, words):
    """What libaccrt refuses by its rules, this one refuses too, in a short line of its own."""
    from accrt.compiler import safetensors as compilers

    (tmp_path / "w.safetensors").write_bytes(safetensors(header, bytes(16)))
    with pytest.raises(compilers.SafetensorsError, match=words) as caught:
        compilers.read(tmp_path / "w.safetensors")
    assert len(str(caught.value)) < 1000 + len(str(tmp_path))
    (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(compilers.SafetensorsError, match="0 bytes are no safetensors file"):
        compilers.read(tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(safetensors("{%s}" % GOOD_ENTRY, bytes(8)))
    assert compilers.read(tmp_path / "w.safetensors")[0]["a"][1].tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["gguf", "gguf keys", "safetensors"])
def test_many_names_take_linear_time(kind):
    """GGUF's own reader looks for duplicates among all names before: 2^17 of them are 8 thousand
    million comparisons."""

    def make(count: int) -> bytes:
        # the last one is there twice
        names = [b"blk.%d.weight" % i for i in range(count - 1)] + [b"blk.0.weight"]
        if kind == "gguf":
            return gguf(count, 0, b"".join(gguf_tensor(name, [0], 24, 0) for name in names) + bytes(32))
        if kind == "gguf keys":
            return gguf(0, count, b"".join(struct.pack("<Q", len(name)) + name + struct.pack("<IB", 0, 1) for name in names))
        entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
        return safetensors("{" + ",".join(f'"{name.decode()}":{entry}' for name in names) + "}")

    small, large = make(1 << 14), make(1 << 17)
    refused(large, "gguf rule 5", "gguf rule 9", "safetensors rule 4")
    first = max(min(seconds(small) for _ in range(3)), 1e-3)
    # eight times as many; squared it would be 64 times
    assert min(seconds(large) for _ in range(3)) < 40 * first


# ---- Bundles ----


def test_counts_of_sections(golden_bundle):
    """2^31 sections, and other numbers that would make a table larger than the file."""
    data = bytearray(pathlib.Path(golden_bundle).read_bytes())
    for count in (0, 65, 1 << 31, (1 << 32) - 1):
        data[48:52] = struct.pack("<I", count)
        with pytest.raises(accrt.Error, match=r"\(rule 5\)"):
            accrt.Bundle(bytes(data))


# ---- Texts ----


def build(folder: pathlib.Path, text: str) -> str:
    (folder / "hostile.yaml").write_text(text)
    begin = time.monotonic()
    done = subprocess.run([ACCX, "build", folder / "hostile.yaml", "--output", folder / "out.accx"], capture_output=True, text=True, timeout=60)
    assert done.returncode > 0 and not (folder / "out.accx").exists(), done
    assert time.monotonic() - begin < 20
    return done.stderr


LAUGHS = "accx: 1\na: &a [x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9))


TEXTS = {
    "lists": ("accx: 1\nmetadata: " + "[" * 100_000, "nest more than"),
    "maps": ("accx: 1\nmetadata: " + "{a: " * 100_000, "nest more than"),
    "block": ("accx: 1\n" + "".join(" " * i + "a:\n" for i in range(2000)), "nest more than"),
    "laughs": (LAUGHS, "anchors"),
    "tags": ("%TAG !a! tag:a\n---\naccx: 1\n", "hostile.yaml:1:1: anchors, aliases and tags"),
    "tags behind": ("accx: 1\n...\n%TAG !a! tag:a\n---\n", "hostile.yaml:3:1: anchors, aliases and tags"),
    "alias": ("accx: 1\nmetadata: {a: *a}\n", "anchors"),
    "twice": ("accx: 1\nmetadata: {" + ", ".join(["a: b"] * 20_000) + "}\n", "twice"),
}


@needs_tool
@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path, name):
    text, words = TEXTS[name]
    assert re.search(words, build(tmp_path, text))


@needs_tool
def test_files_of_a_text(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_bytes(b"1234")
    (inside / "link").symlink_to(outside)
    (inside / "up").symlink_to(tmp_path)
    os.mkfifo(inside / "fifo")
    (inside / "folder").mkdir()
    for name in ("../outside", str(outside), "link", "up/outside", "fifo", "folder", "..", "", "x" * 5000, "/dev/zero"):
        text = f"accx: 1\nconstants:\n- {{name: w, dtype: u8, shape: [4], data: {{file: {json.dumps(name)}}}}}\n"
        assert re.search(r"hostile\.yaml:\d+:\d+: ", build(inside, text)), name
