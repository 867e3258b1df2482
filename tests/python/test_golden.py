"""The golden files: what each reader makes of them, that they never change, and that today's writer
makes what it made then.

tests/golden/make.py adds files; checksums.txt says what they are, and nothing in it may change. The
vectors of the layouts and the reader of the first draft are among them.
"""

import hashlib
import importlib.util
import pathlib
import platform
import shutil
import struct
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden"
pytest.importorskip("xxhash")

from accrt import bundle_reader  # noqa: E402


def load(name):
    spec = importlib.util.spec_from_file_location("golden_" + name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make():
    return load("make")


def manifest():
    """(name, status, rule) of each file."""
    lines = (FOLDER / "manifest.txt").read_text().splitlines()
    return [(name, status, int(rule)) for name, status, rule, *_ in (line.split() for line in lines if line[0] != "#")]


def images_of(file):
    """Images of a bundle by name, read with struct alone."""
    sections = {}
    for i in range(struct.unpack_from("<I", file, 48)[0]):
        kind, _flags, offset, size = struct.unpack_from("<2I2Q", file, 128 + 64 * i)
        sections[kind] = (offset, size)
    strings, (images, size), code = sections[1][0], sections[19], sections[62][0]
    found = {}
    for at in range(images, images + size, 24):
        _kind, name, offset, length = struct.unpack_from("<2I2Q", file, at)
        start = strings + name
        found[file[start : file.index(b"\0", start)].decode()] = file[code + offset : code + offset + length]
    return found


# ---- The files themselves ----


#: What never changes once it is there.
FROZEN = ("*/**/*.accx", "layouts/*.bin", "layouts/manifest*.txt", "reader_*.py")


def check_frozen(folder):
    """Every file that is frozen is listed with its digest, and every one that is listed is
    there."""
    listed = dict(reversed(line.split("  ")) for line in (folder / "checksums.txt").read_text().splitlines())
    files = {str(path.relative_to(folder)): path for pattern in FROZEN for path in folder.glob(pattern)}
    assert not set(listed) - set(files), "golden files are missing"
    assert not set(files) - set(listed), "golden files without a line in checksums.txt"
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name], f"{name} has changed: add a file instead"


def test_files_never_change():
    check_frozen(FOLDER)


@pytest.mark.parametrize("name", ["0.3/minimal.accx", "layouts/q4_k.bin", "layouts/manifest.txt", "reader_0_1.py"])
def test_a_change_is_seen(name, tmp_path):
    """One byte of a file that is another, a file that is gone, a file that nobody lists."""
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    check_frozen(folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(AssertionError, match="has changed"):
        check_frozen(folder)
    (folder / name).unlink()
    with pytest.raises(AssertionError, match="missing"):
        check_frozen(folder)
    (folder / name).write_bytes(content)
    (folder / "layouts" / "new.bin").write_bytes(b"1")
    with pytest.raises(AssertionError, match="without a line"):
        check_frozen(folder)


def test_the_vectors_are_those_of_their_manifest():
    """loader/layout_golden_test.c reads what the manifest names: nothing may lie beside it
    unread."""
    folder = FOLDER / "layouts"
    named = [line.split()[0] + ".bin" for manifest in folder.glob("manifest*.txt") for line in manifest.read_text().splitlines()]
    assert sorted(named) == sorted(path.name for path in folder.glob("*.bin"))


def test_every_file_has_its_outcome():
    assert sorted(name for name, _status, _rule in manifest()) == sorted(
        str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/**/*.accx")
    )


@pytest.mark.parametrize("name,status,rule", manifest())
def test_the_second_reader(name, status, rule):
    """loader/golden_test.c holds the library against the same list."""
    if status == "OK":
        bundle_reader.read((FOLDER / name).read_bytes())
        return
    with pytest.raises(bundle_reader.FormatError) as refused:
        bundle_reader.read((FOLDER / name).read_bytes())
    assert (refused.value.rule, refused.value.status) == (rule, status), refused.value


# ---- The writer ----


def test_the_writer_makes_what_it_made():
    """With the images that are in it: compilers differ."""
    make = load("make")
    golden = (FOLDER / "0.2" / "everything.accx").read_bytes()
    assert make.everything(images_of(golden)).to_bytes() == golden
    for version in ("0.1", "0.2", "0.3"):
        assert make.bw.BundleWriter().to_bytes() == (FOLDER / version / "minimal.accx").read_bytes()


def test_the_script_makes_the_corpus(make):
    images = images_of((FOLDER / "0.3" / "everything.accx").read_bytes())
    for name, data, _status, _rule, _what in make.corpus(images):
        assert data == (FOLDER / "0.3" / f"{name}.accx").read_bytes(), name


def test_conditions_mean_what_they_meant(make):
    """Their bytes, their text, and what they refuse: when a plan is made and at each call, with one
    name."""
    path = FOLDER / "0.4" / "conditions.accx"
    assert make.conditions().to_bytes() == path.read_bytes()
    import accrt
    session = accrt.load(path)
    for start in range(3):
        for position in range(3):
            assert session.main(start=start, position=position).tolist() == [7] * 16
    for values, dimension in (({"start": 3, "position": 0}, 0), ({"start": 8, "position": 8}, 0), ({"start": 2, "position": 3}, 1)):
        with pytest.raises(accrt.OutOfRangeError) as refused:
            session.main(**values)
        bad = max(values.values())
        said = f"slice of 'x', dimension {dimension}: 2 elements from {bad} on do not fit in 4 ({2 - bad} would be left)"
        assert refused.value.message.endswith(said) and refused.value.message.count("slice of") == 1, refused.value.message


def test_the_corpus_has_every_section_and_command():
    names = set()
    for name, status, _rule in manifest():
        data = (FOLDER / name).read_bytes() if status == "OK" else b""
        names |= set(bundle_reader.read(data).container.sections) if data else set()
    known = importlib.import_module("accrt.bundle_writer.common").SECTIONS
    assert set(known) == names
    reader = load("reader_0_1")
    assert set(reader.read((FOLDER / "0.1" / "everything.accx").read_bytes()).commands) == set(range(1, 9))


def test_signatures_hold():
    accrt = pytest.importorskip("accrt")
    from accrt import _ffi
    from accrt._library import filled, lib

    bundle = accrt.Bundle(FOLDER / "0.3" / "signed.accx", verify="full")
    for index in range(bundle.info["signature_count"]):
        try:
            found = filled(_ffi.accrt_signature_info, lib.accrt_bundle_signature, bundle.handle, index)
        except accrt.UnsupportedError:
            pytest.skip("this build has no libcrypto")
        assert (found.scope, found.valid, found.trusted) == (index + 1, 1, 0)
    assert bundle.info["signature_count"] == 2


# ---- Programs ----


def run_main(name):
    """What `main` of a golden bundle gives, with the session's state after it."""
    accrt, np = pytest.importorskip("accrt"), pytest.importorskip("numpy")
    instance = accrt.Instance(host_code="all")
    program = accrt.Program(accrt.Bundle(FOLDER / name, instance=instance), device=instance.device("host"))
    session = program.session({"length": 8})
    x, bias = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones(4, np.float32)
    out = (np.zeros(4, np.float32), np.zeros(2, np.float32), np.full(4, 3, np.float32), np.zeros(4, np.float32))
    session.main(x, bias, out[2], out[3], 3, out=out)
    np.testing.assert_array_equal(out[0], 2 * x[0] + bias)
    np.testing.assert_array_equal(out[1], (x * x).sum(axis=1))
    return [array.tolist() for array in out] + [session.state("cache").numpy().tolist()]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the images are for x86-64 and for nothing that runs here")
def test_old_programs_run_as_new_ones_do():
    results = [run_main(f"{version}/everything.accx") for version in ("0.1", "0.2", "0.3")]
    assert results[0] == results[1] == results[2]
    # what the prepare function made, and the weight's second row
    assert results[0][4][2:4] == [[4, 5, 6, 7], [7, 6, 5, 4]]


def test_a_function_with_an_unknown_feature_costs_nothing_but_itself():
    accrt, np = pytest.importorskip("accrt"), pytest.importorskip("numpy")
    program = accrt.Program(accrt.Bundle(FOLDER / "0.3" / "unknown" / "feature-function.accx"))
    session, x = program.session(), np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(session.main(x).numpy()[2:], x[2:])
    with pytest.raises(accrt.VersionMismatchError, match="'other' requires feature bit 40"):
        session.function("other")()


# ---- The reader of the first draft ----


def test_the_first_reader_reads_what_it_read():
    reader = load("reader_0_1")
    bundle = reader.read((FOLDER / "0.1" / "everything.accx").read_bytes())
    assert not bundle.newer and not bundle.ignored
    assert bundle.constants["weight"] == (12, 0, (2, 4), struct.pack("<8f", *range(8)))
    assert bundle.functions["main"][2] == ["y", "sums", "updated", "kept"]


def test_the_first_reader_reads_what_is_written_now(make):
    """Content that needs 0.1 alone, written by the newest writer."""
    reader = load("reader_0_1")
    data = make.plain_0_1().to_bytes()
    bundle = reader.read(data)
    assert not bundle.newer and not bundle.ignored and bundle.commands == [2, 2]
    assert bundle.constants["w"] == (12, 0, (2, 3), struct.pack("<6f", *range(6)))
    richer = make.plain_0_1()
    richer.asset("notes", b"text")
    assert reader.read(richer.to_bytes()).ignored == ["assets", "asset_data"]


def refused(make):
    """Content that needs more, and what each is refused for."""
    bw = make.bw

    def external(bundle):
        bundle.external("x", "f32", (2,))

    def files(bundle):
        bundle.external("x", "f32", (2,), file=bundle.file("w.gguf", bw.FileKind.GGUF))

    def quantized(bundle):
        bundle.constant("x", bytes(34), shape=(1, 32), encoding=bw.Encoding.Q8_0)

    def pack(bundle):
        bundle.kernel("k", []).variant(bundle.pack("p"), driver="cuda", arch_kind="portable")

    return [(external, "constants"), (files, "constants"), (quantized, "encoding 16"), (pack, "kind 5")]


@pytest.mark.parametrize("index", range(4))
def test_the_first_reader_refuses_the_rest_by_version(make, index):
    reader = load("reader_0_1")
    add, what = refused(make)[index]
    bundle = make.plain_0_1()
    add(bundle)
    with pytest.raises(reader.Refused, match=what) as problem:
        reader.read(bundle.to_bytes())
    assert problem.value.status == "VERSION_MISMATCH"


@pytest.mark.parametrize("name", ["0.2/everything", "0.3/everything", "0.3/next/major-container"])
def test_the_first_reader_and_newer_files(name):
    reader = load("reader_0_1")
    with pytest.raises(reader.Refused) as problem:
        reader.read((FOLDER / f"{name}.accx").read_bytes())
    assert problem.value.status == "VERSION_MISMATCH"


@pytest.mark.parametrize("name,algorithm", [("0.3/encrypted", 1), ("0.4/encrypted", 2)])
def test_encrypted_weights_are_what_they_were(name, algorithm):
    """Both algorithms, from now on: the second binds weights to the code beside them."""
    import accrt
    data = (FOLDER / f"{name}.accx").read_bytes()
    container = bundle_reader.read(data).container
    assert struct.unpack_from("<I", container.sections["encryption"], 0)[0] == algorithm
    try:
        bundle = accrt.Bundle(data, key=lambda _id: bytes(range(32)))
    except accrt.UnsupportedError as error:  # this machine has no libcrypto
        pytest.skip(str(error))
    plain = accrt.Bundle((FOLDER / "0.3/neighbours.accx").read_bytes())
    stored = [c.name for c in plain.constants if not c.prepared and not c.external]
    assert stored and [c.name for c in bundle.constants] == [c.name for c in plain.constants]
    for weight in stored:
        assert bundle.constant_bytes(weight) == plain.constant_bytes(weight), weight
    bundle.verify()
