"""XXH3 is no cryptography: the fast digests of a file can be kept while its weights are replaced,
by algebra alone.

Of eight bytes whose lower half is that of the secret at their place, XXH3 adds the eight bytes and
a product that is 0. So two such words of a block may swap their upper halves, and no digest
changes: `forged` is that. What the library keeps or believes because of a digest must not take one
file for the other.
"""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time

import accrt
import numpy as np
import pytest
import xxhash
from accrt import bundle_writer as bw
from accrt import trust

# the beginning of XXH3's own, which is published
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1c")
BYTES = 4096


def weights(first: float, second: float) -> bytes:
    """Whose digest is the same when the two numbers are swapped."""
    data = bytearray(np.arange(BYTES // 4, dtype=np.float32).tobytes())
    for at, secret, value in ((0, 0, first), (64, 8, second)):
        data[at : at + 8] = SECRET[secret : secret + 4] + struct.pack("<f", value)
    return bytes(data)


HONEST, FORGED = weights(1.0, 1000.0), weights(1000.0, 1.0)


def bundle(path, data, signer=None):
    """main() -> y: what a prepare function has copied from the constant."""
    b = bw.BundleWriter()
    w = b.constant("w", data, dtype="f32", shape=(BYTES // 4,))
    made = b.prepared("made", BYTES, dtype="f32", shape=(BYTES // 4,), encoding=bw.Encoding.PLAIN)
    f = b.function("prepare", prepare=True)
    source, product = f.source("w", w), f.product("made", made)
    f.body.copy(source.read(), product.write(), BYTES)
    main = b.function("main")
    made = main.constant(made)
    y = main.result("y", "f32", [BYTES // 4])
    main.body.copy(made.read(), y.write(), BYTES)
    b.write(str(path), signer) if signer else b.write(str(path))
    return path


def run(path, **options):
    instance = accrt.Instance(trust="all", options=options)
    program = accrt.Program(accrt.Bundle(str(path), instance), instance.device("host"))
    return np.asarray(program.session().main()).tobytes()


def test_all_digests_are_the_same(tmp_path):
    """The files differ in the weights' eight bytes alone: every table, with every digest, is the
    same. And they verify."""
    assert HONEST != FORGED and xxhash.xxh3_128_digest(HONEST) == xxhash.xxh3_128_digest(FORGED)
    a, b = (bundle(tmp_path / name, data).read_bytes() for name, data in (("a", HONEST), ("b", FORGED)))
    at = a.index(HONEST)
    assert b == a[:at] + FORGED + a[at + BYTES :]
    accrt.Bundle(str(tmp_path / "b")).verify()


@pytest.mark.parametrize("signed", [False, True])
def test_results_of_prepare_functions_are_not_mixed_up(tmp_path, signed):
    """The second bundle got what was made of the first one's weights, and the other way round."""
    signer = trust.SigningKey.generate() if signed else None
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    a, b = bundle(tmp_path / "a", HONEST, signer), bundle(tmp_path / "b", FORGED, signer)
    for path, data in ((a, HONEST), (b, FORGED), (a, HONEST)):
        assert run(path, **{"prepare.cache": str(cache)}) == data
    assert len(list(cache.rglob("*"))) == 2, "nothing was kept: then this test shows nothing"


def test_signed_weights_that_somebody_replaces_are_refused(tmp_path):
    """A signed file whose weights are replaced keeps its digests and loses its leaves: nothing of
    it is given out, and none of it gets into the cache."""
    signer = trust.SigningKey.generate()
    signer.write_public(tmp_path / "key.pem")
    path, cache = bundle(tmp_path / "a", HONEST, signer), tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (tmp_path / "b").write_bytes(path.read_bytes().replace(HONEST, FORGED))
    options = {"prepare.cache": str(cache), "trust.weights": "signed", "trust.keys": str(tmp_path / "key.pem")}
    with pytest.raises(accrt.DataCorruptError):
        run(tmp_path / "b", **options)
    assert list(cache.rglob("*")) == []
    assert run(path, **options) == HONEST
    # By its tree, which is signed, the replaced file is the honest one: it gets what was made of
    # that, and never makes an entry itself.
    assert run(tmp_path / "b", **{"prepare.cache": str(cache)}) == HONEST
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    assert run(tmp_path / "b", **{"prepare.cache": str(other)}) == FORGED and list(other.rglob("*")) == []


def test_under_signed_weights_nothing_unsigned_enters(tmp_path):
    """A file that an unsigned bundle, or nobody, has signed is no source of weights, whatever its
    digests."""
    signer = trust.SigningKey.generate()
    signer.write_public(tmp_path / "key.pem")
    strict = {"trust.weights": "signed", "trust.keys": str(tmp_path / "key.pem")}
    with pytest.raises(accrt.UntrustedError):
        run(bundle(tmp_path / "plain", FORGED), **strict)
    beside = tmp_path / "beside"
    beside.mkdir()
    b = bw.BundleWriter()
    file = b.file("w.accx", bw.FileKind.ACCX)
    w = b.external("w", file=file, dtype="f32", shape=(BYTES // 4,), digest=xxhash.xxh3_128_digest(HONEST))
    main = b.function("main")
    y = main.result("y", "f32", [BYTES // 4])
    main.body.copy(main.constant(w).read(), y.write(), BYTES)
    b.write(str(beside / "main.accx"), signer)
    for name, data, key in (("honest", HONEST, signer), ("unsigned", FORGED, None)):
        bundle(tmp_path / name, data, key)
        shutil.copy(tmp_path / name, beside / "w.accx")
        if key is not None:
            assert run(beside / "main.accx", **strict) == data
        else:
            assert run(beside / "main.accx") == data  # by its fast digest it is the file
            with pytest.raises(accrt.UntrustedError):
                run(beside / "main.accx", **strict)


def test_an_entry_that_is_a_fifo_hangs_no_run(tmp_path):
    """Whoever could write to the cache's folder hung every run for ever."""
    path, cache = bundle(tmp_path / "a", HONEST), tmp_path / "cache"
    cache.mkdir(mode=0o700)
    assert run(path, **{"prepare.cache": str(cache)}) == HONEST
    (entry,) = cache.rglob("*")
    entry.unlink()
    os.mkfifo(entry)
    code = "import sys; import test_forged_digests as t; t.run(sys.argv[1], **{'prepare.cache': sys.argv[2]})"
    folders = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(accrt.__file__))])
    subprocess.run([sys.executable, "-c", code, str(path), str(cache)], env={**os.environ, "PYTHONPATH": folders}, timeout=60, check=True)


# ---- Weights outside the bundle ----


def safetensors(path, data, name="w"):
    header = json.dumps({name: {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]}}).encode()
    header = header.ljust(1016)  # the data begins a block of XXH3
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def named(folder, *, whole=False, sha256=True, data=HONEST):
    """A bundle whose weight is in the file `side`: bound by its bytes, or by name from a file with
    a digest."""
    honest = safetensors(folder / "side", data).read_bytes()
    of_file = {"digest": xxhash.xxh3_128_digest(honest), "sha256": hashlib.sha256(honest).digest() if sha256 else None}
    of_weight = {"digest": xxhash.xxh3_128_digest(data), "sha256": hashlib.sha256(data).digest() if sha256 else None}
    b = bw.BundleWriter()
    file = b.file("side", bw.FileKind.SAFETENSORS, **(of_file if whole else {}))
    w = b.external("w", file=file, dtype="f32", shape=(BYTES // 4,), **({} if whole else of_weight))
    main = b.function("main")
    y = main.result("y", "f32", [BYTES // 4])
    main.body.copy(main.constant(w).read(), y.write(), BYTES)
    b.write(str(folder / "main.accx"))
    return folder / "main.accx"


def test_weights_outside_are_bound_by_sha256(tmp_path):
    """Other weights with the same digest were taken, whatever the bundle said."""
    path = named(tmp_path)
    assert run(path) == HONEST
    safetensors(tmp_path / "side", FORGED)
    with pytest.raises(accrt.DataCorruptError, match=r"constant 'w': 'w' in side has the SHA-256 [0-9a-f]{64}, not [0-9a-f]{64}"):
        run(path)
    instance = accrt.Instance(trust="all")
    given = accrt.Weights(str(safetensors(tmp_path / "given", FORGED)), instance=instance)
    with pytest.raises(accrt.DataCorruptError, match="SHA-256"):
        accrt.Bundle(str(path), instance).program(instance.device("host"), weights=[given])
    safetensors(tmp_path / "side", HONEST)
    program = accrt.Bundle(str(path), instance).program(instance.device("host"))
    with pytest.raises(accrt.DataCorruptError, match="SHA-256"):
        program.load_weights(given)
    program.load_weights(given, by_name=True)
    assert np.asarray(program.session().main()).tobytes() == FORGED


def test_files_are_bound_by_sha256(tmp_path):
    """A whole file by its digest: the file's XXH3 is forged as that of its weights is."""
    for folder, sha256 in (("with", True), ("without", False)):
        (tmp_path / folder).mkdir()
        path = named(tmp_path / folder, whole=True, sha256=sha256)
        assert run(path) == HONEST
        side = tmp_path / folder / "side"
        honest = side.read_bytes()
        forged = safetensors(side, FORGED).read_bytes()
        assert forged != honest and xxhash.xxh3_128_digest(forged) == xxhash.xxh3_128_digest(honest)
        if sha256:
            with pytest.raises(accrt.DataCorruptError, match="file 'side' of .* has the digest [0-9a-f]{64}, not [0-9a-f]{64}"):
                run(path)
        else:
            assert run(path) == FORGED


def test_the_compiler_records_sha256(tmp_path):
    from accrt.compiler import Module, compile

    m = Module("outside")
    w = m.constant("w", np.frombuffer(HONEST, np.float32))
    f = m.function("main")
    f.result("y", f.input("x", "f32", [BYTES // 4]) + w)
    compile(m, str(tmp_path / "main.accx"), targets=["host"], external={"w": "side.safetensors"})
    safetensors(tmp_path / "side.safetensors", HONEST)
    session = accrt.load(str(tmp_path / "main.accx"))
    zero = np.zeros(BYTES // 4, np.float32)
    assert np.asarray(session.main(zero)).tobytes() == HONEST
    safetensors(tmp_path / "side.safetensors", FORGED)
    with pytest.raises(accrt.DataCorruptError, match="SHA-256"):
        accrt.load(str(tmp_path / "main.accx"))


def test_what_matched_is_remembered_until_the_file_changes(tmp_path):
    """The user's cache has the file's identity, its change time too: no SHA-256 again. A file that
    others may change is no such file."""
    path, side, cache = named(tmp_path), tmp_path / "side", tmp_path / "cache"
    cache.mkdir(mode=0o700)
    options = {"prepare.cache": str(cache)}
    side.chmod(0o666)
    assert run(path, **options) == HONEST and list(cache.rglob("*")) == []
    side.chmod(0o644)
    assert run(path, **options) == HONEST
    (entry,) = cache.rglob("*")
    assert run(path, **options) == HONEST and list(cache.rglob("*")) == [entry]
    facts = side.stat()
    time.sleep(0.1)  # a change time has the grain of the kernel's clock
    for replaced in (False, True):
        if replaced:
            safetensors(tmp_path / "new", FORGED).rename(side)
        else:
            safetensors(side, FORGED)
        os.utime(side, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        with pytest.raises(accrt.DataCorruptError, match="SHA-256"):
            run(path, **options)
        assert list(cache.rglob("*")) == [entry]
    # An entry is a fact about one file and one SHA-256: the honest file elsewhere makes its own.
    safetensors(tmp_path / "new", HONEST).rename(side)
    assert run(path, **options) == HONEST and len(list(cache.rglob("*"))) == 2


def test_a_sha256_that_is_none_is_no_weight(tmp_path):
    """What the metadata says need not be digits: then no bytes match it."""
    for value in ("", "0" * 63, "G" * 64, "0" * 65):
        b = bw.BundleWriter()
        b.metadata("sha256/" + xxhash.xxh3_128_digest(HONEST).hex(), value)
        w = b.external("w", dtype="f32", shape=(BYTES // 4,), digest=xxhash.xxh3_128_digest(HONEST))
        main = b.function("main")
        main.body.copy(main.constant(w).read(), main.result("y", "f32", [BYTES // 4]).write(), BYTES)
        b.write(str(tmp_path / "main.accx"))
        instance = accrt.Instance(trust="all")
        given = accrt.Weights(str(safetensors(tmp_path / "side", HONEST)), instance=instance)
        with pytest.raises(accrt.DataCorruptError, match="SHA-256"):
            accrt.Bundle(str(tmp_path / "main.accx"), instance).program(instance.device("host"), weights=[given])
    with pytest.raises(bw.BundleError, match="goes with a digest"):
        bw.BundleWriter().external("w", dtype="f32", shape=(1,), sha256=bytes(32))
    b = bw.BundleWriter()
    b.external("v", dtype="f32", shape=(1,), digest=b"d" * 16, sha256=bytes(32))
    with pytest.raises(bw.BundleError, match="constant 'w': something else has the digest"):
        b.external("w", dtype="f32", shape=(1,), digest=b"d" * 16, sha256=b"s" * 32)
