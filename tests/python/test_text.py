"""The text form of bundles: accx dump, build and diff."""
from __future__ import annotations

import os
import pathlib
import random
import re
import subprocess

import numpy as np
import pytest

import accrt
import random_bundles
from accrt import bundle_writer as bw

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCX = ROOT / "build" / "bin" / "accx"
if not ACCX.exists():
    ACCX = pathlib.Path(os.environ.get("ACCRT_LIBRARY", "")).resolve().parents[1] / "bin" / "accx"


SEED = int(os.environ.get("ACCRT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
ROUNDS = int(os.environ.get("ACCRT_TEST_ROUNDS", "40"))


def accx(*arguments: object, code: int | None = 0) -> str:
    done = subprocess.run([str(ACCX), *map(str, arguments)], capture_output=True, text=True)
    assert code is None or done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def accepted(path: pathlib.Path) -> bool:
    return subprocess.run([str(ACCX), "verify", str(path)], capture_output=True).returncode == 0


def round_trip(path: pathlib.Path, folder: pathlib.Path, *options: object) -> str:
    text = folder / "bundle.yaml"
    accx("dump", path, "--output", text, *options)
    accx("build", text, "--output", folder / "again.accx")
    assert (folder / "again.accx").read_bytes() == path.read_bytes()
    assert accx("diff", path, folder / "again.accx") == "no differences\n"
    return text.read_text(encoding="utf-8")


GOLDEN = [p for p in sorted((ROOT / "tests" / "golden").glob("**/*.accx")) if "next" not in p.parts]
MODELS = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", ROOT / "build" / "models"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: str(p.relative_to(ROOT / "tests" / "golden")))
def test_golden_bundles_come_back_byte_for_byte(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not accepted(path):
        assert "(rule " in accx("dump", path, code=3)
        return
    round_trip(path, tmp_path)


@pytest.mark.parametrize("name", ["bytelm", "minilm"])
def test_models_come_back_byte_for_byte(name: str, tmp_path: pathlib.Path) -> None:
    path = MODELS / f"{name}.accx"
    if not path.exists():
        pytest.skip(f"no {path}")
    text = round_trip(path, tmp_path)
    assert len(text) < 1 << 20


def test_what_needs_newer_versions_is_not_written_out(tmp_path: pathlib.Path) -> None:
    path = ROOT / "tests" / "golden" / "0.3" / "next" / "minor-additions.accx"
    assert accx("dump", path).startswith("accx: 1\n")
    assert "needs newer versions" in accx("dump", path, "--output", tmp_path / "x.yaml", code=3)
    assert list(tmp_path.iterdir()) == []


# ---- Random bundles -------------------------------------------------------------------------------


def test_random_bundles_come_back_byte_for_byte(tmp_path: pathlib.Path) -> None:
    """Kernels with variants, calls, control flow, weights in layouts, files, shards, sections that nobody knows, and odd names."""
    path = tmp_path / "random.accx"
    for seed in range(SEED, SEED + ROUNDS):
        print("seed", seed)
        rng = random.Random(seed)
        path.write_bytes(random_bundles.random_bundle(rng, newest=seed % 4 > 0, odd=rng.choice([0, 0.3, 0.8])).to_bytes())
        round_trip(path, tmp_path, "--inline", rng.choice([0, 8, 64, 4096]))


def test_signed_and_encrypted_bundles_come_back_byte_for_byte(tmp_path: pathlib.Path) -> None:
    """Trees, leaves, signatures, and tags of encrypted weights are kept as they are."""
    key, secret, plain = tmp_path / "key.pem", tmp_path / "secret", tmp_path / "random.accx"
    if accx("keygen", "--output", key, code=None):
        pytest.skip("no libcrypto")
    accx("keygen", "--secret", "--output", secret)
    for seed in range(SEED, SEED + ROUNDS // 8):
        print("seed", seed)
        path = plain
        path.write_bytes(random_bundles.random_bundle(random.Random(seed), odd=0.2).to_bytes())
        if seed % 2:
            path = tmp_path / "encrypted.accx"
            accx("encrypt", plain, "--secret-key", secret, "--output", path)
        accx("sign", path, "--vouch", "--key", key, "--output", tmp_path / "signed.accx")
        text = round_trip(tmp_path / "signed.accx", tmp_path)
        assert "signatures" in text and ("encryption" in text) == (seed % 2 == 1)


def test_shared_and_deep_expressions_stay_short(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    n = writer.symbol("n", bw.SymbolClass.SPECIALIZE, maximum=4)
    doubled = n
    for _ in range(60):
        doubled = doubled + doubled
    deep = n
    for index in range(3000):
        deep = deep + index
    function = writer.function("f")
    x = function.input("x", "f32", [n])
    y = function.result("y", "f32", [n])
    function.body.copy(x.read(doubled), y.write(deep), extent=4)
    path = tmp_path / "shared.accx"
    path.write_bytes(writer.to_bytes())
    assert len(round_trip(path, tmp_path)) < 60_000


# ---- By hand --------------------------------------------------------------------------------------


def example() -> str:
    text = (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    return found.group(1)


def test_the_document_s_example_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rows.yaml").write_text(example(), encoding="utf-8")
    accx("build", tmp_path / "rows.yaml", "--output", tmp_path / "rows.accx")
    accx("verify", "--full", tmp_path / "rows.accx")
    x = np.arange(6, dtype=np.float32)
    expected = np.stack([x, x, x])
    expected[0, :4] = [1, 2.5, -3, 4]
    rows = np.asarray(accrt.Program(tmp_path / "rows.accx").session().rows(x))
    np.testing.assert_array_equal(rows, expected)


# What is wrong in a copy of the example, and what is said of it.
MISTAKES = [
    ("accx: 1", "accx: 2", r":1:7: text form 2; this tool reads form 1"),
    ("class: specialize", "class: special", r":4:24: no class 'special', did you mean 'specialize'\? \(there are specialize, bucket"),
    ("minimum: 1,", "minimun: 1,", r":4:36: a symbol has no 'minimun', did you mean 'minimum'\?"),
    ("minimum: 1,", "minimum: one,", r":4:45: 'one' is no whole number"),
    ("dtype: f32, shape: [4], values", "dtype: f33, shape: [4], values", r":6:28: no dtype 'f33'"),
    ("values: [1, 2.5, -3, 4]", "values: [1, 2.5, -3]", r":6:3: .*first_row"),
    ("values: [1, 2.5, -3, 4]", "values: [1, two, -3, 4]", r":6:57: 'two' is no number"),
    ("from: {input: x}", "from: {input: y}", r":18:21: no input 'y'"),
    ("offset: induction(0) * width * 4", "offset: induction(0) * widht * 4", r":19:49: no symbol 'widht'"),
    ("extent: width * 4", "extent: width * (4", r":20:\d+: 'width \* \(4': '\)' is expected"),
    ("extent: width * 4", "extent: [width * 4, 1, 1, 1]", r":20:15: 'extent' has at most 3 entries"),
    ("after: [0]", "after: [1]", r":22:13: 1 is no earlier command of this block; this is command 1"),
    ("- copy: true\n    after", "- kopy: true\n    after", r":21:5: a command has one of dispatch.*, did you mean 'copy'\?"),
    ("- copy: true\n    after", "- copy:\n    after", r":21:10: 'copy' must be true"),
    ("    extent: width * 4", "    extent: width * 4\n      grid: 4", r":21:7: copy has no 'grid' beside the rest of this"),
    ("dtype: f32, shape: [4], values", "dtyp: f32, shape: [4], values", r":6:21: a constant needs 'dtype', which 'dtyp' may be meant"),
    ("from: {constant: first_row}", "from: {constant: frist_row}", r"no constant 'frist_row', did you mean 'first_row'\?"),
    ("- repeat: 3", "- call: row", r"no function 'row', did you mean 'rows'\?"),
    ("name: rows\n", "name: \"ro\\x1b[2Jws\\\\\\n'\"\n- name: \"ro\\x1b[2Jws\\\\\\n'\"\n",
     r":9:3: 'ro\\x1b\[2Jws\\\\\\n\\'' is there already, in line 8"),
    ("accx: 1", "accx: 1\nsymbol: []", r":2:1: the text has no 'symbol', did you mean 'symbols'\?"),
    ("name: x,", "name: *x,", r":11:12: anchors"),
    ("name: x,", "name: &a x,", r"anchors, aliases and tags are not used"),
    ("name: x,", "name: !!str x,", r"anchors, aliases and tags are not used"),
    ("name: x,", "name: x, name: z,", r":11:15: the key 'name' is there twice"),
    ("accx: 1", "accx: 1\n---\naccx: 1", r"second document"),
    ("  doc: three", "\tdoc: three", r":\d+:\d+: "),
]


@pytest.mark.parametrize("old,new,said", MISTAKES, ids=[new.split("\n")[0][:30] for _, new, _ in MISTAKES])
def test_mistakes_are_told_with_their_place(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    text = example()
    assert old in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    message = accx("build", path, "--output", tmp_path / "wrong.accx", code=1)
    assert message.count("\n") == 1
    assert re.search(said, message), message
    assert not (tmp_path / "wrong.accx").exists()


def test_what_only_shows_as_a_whole_is_told_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(example().replace("shape: [width]", "shape: [8]").replace("shape: [3, width]", "shape: [3, 8]"), encoding="utf-8")
    assert "width" in accx("build", path, "--output", tmp_path / "wrong.accx", code=1)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "link", "folder/link", ".", "missing", "folder"])
def test_files_lie_beneath_the_text(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_bytes(b"1234")
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    (here / "link").symlink_to("../secret")
    (here / "folder" / "link").symlink_to("/etc/hostname")
    (here / "text.yaml").write_text(f"accx: 1\nconstants:\n- {{name: w, dtype: u8, shape: [4], data: {{file: {name}}}}}\n", encoding="utf-8")
    message = accx("build", here / "text.yaml", "--output", here / "out.accx", code=1)
    assert re.search(r"text.yaml:3:\d+: '", message), message
    assert not (here / "out.accx").exists()


def test_text_that_was_only_for_reading_is_refused(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    writer.constant("w", bytes(1000))
    (tmp_path / "w.accx").write_bytes(writer.to_bytes())
    (tmp_path / "w.yaml").write_text(accx("dump", tmp_path / "w.accx"), encoding="utf-8")
    assert "only their digest is here" in accx("build", tmp_path / "w.yaml", "--output", tmp_path / "x.accx", code=1)


def test_damaged_weights_do_not_become_good_text(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    writer.constant("w", bytes(1000))
    data = bytearray(writer.to_bytes())
    data[-1] ^= 1
    (tmp_path / "w.accx").write_bytes(data)
    assert "does not match its digest" in accx("dump", tmp_path / "w.accx", "--output", tmp_path / "w.yaml", code=3)
    assert not (tmp_path / "w.yaml").exists()


# ---- Differences ----------------------------------------------------------------------------------


def test_differences_are_told_in_words(tmp_path: pathlib.Path) -> None:
    def built(name: str, text: str) -> pathlib.Path:
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        accx("build", tmp_path / f"{name}.yaml", "--output", tmp_path / f"{name}.accx")
        return tmp_path / f"{name}.accx"

    changed = example().replace("maximum: 4096", "maximum: 512").replace("-3, 4]", "-3, 5]").replace("- repeat: 3", "- repeat: 2")
    changed = changed.replace("symbols:", "symbols:\n- {name: extra, class: runtime, maximum: 3}", 1)
    said = accx("diff", built("a", example()), built("b", changed)).splitlines()
    assert "symbol 'width', maximum: 4096 in A, 512 in B" in said
    assert "only in B: symbol 'extra'" in said
    assert any(line.startswith("constant 'first_row'") for line in said)
    assert "function 'rows', command 0 (repeat), repeat: 3 in A, 2 in B" in said
    assert len(said) == 4
