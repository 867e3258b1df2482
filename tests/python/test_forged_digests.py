"""XXH3 is no cryptography: the fast digests of a file can be kept while its weights are replaced, by algebra alone.

Of eight bytes whose lower half is that of the secret at their place, XXH3 adds the eight bytes and a product that is 0. So two such
words of a block may swap their upper halves, and no digest changes: `forged` is that. What the library keeps or believes because of a
digest must not take one file for the other.
"""

import os
import shutil
import struct
import subprocess
import sys

import accrt
import numpy as np
import pytest
import xxhash
from accrt import bundle_writer as bw
from accrt import trust

SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1c")  # the beginning of XXH3's own, which is published
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
    """The files differ in the weights' eight bytes alone: every table, with every digest, is the same. And they verify."""
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
    """A signed file whose weights are replaced keeps its digests and loses its leaves: nothing of it is given out, and none of it gets
    into the cache."""
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
    # By its tree, which is signed, the replaced file is the honest one: it gets what was made of that, and never makes an entry itself.
    assert run(tmp_path / "b", **{"prepare.cache": str(cache)}) == HONEST
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    assert run(tmp_path / "b", **{"prepare.cache": str(other)}) == FORGED and list(other.rglob("*")) == []


def test_under_signed_weights_nothing_unsigned_enters(tmp_path):
    """A file that an unsigned bundle, or nobody, has signed is no source of weights, whatever its digests."""
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
