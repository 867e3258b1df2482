"""Signatures and trust: what Python compiles runs, what others compiled does not; trees against
hashlib; encrypted weights."""
from __future__ import annotations

import json
import fcntl
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import accrt
from accrt import bundle_reader, trust
from accrt import bundle_writer as bw
from accrt.bundle_reader import trust as tree
import rotation
from safetensors_file import safetensors_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECRET = bytes(range(32))


def has_crypto() -> bool:
    try:
        trust.SigningKey(bytes(32))
        return True
    except accrt.UnsupportedError:
        return False


needs_crypto = pytest.mark.skipif(not has_crypto(), reason="no libcrypto.so.3 or .so.1.1 (Debian: libssl3)")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ACCRT_TRUST", raising=False)
    monkeypatch.delenv("ACCRT_TRUST_KEYS", raising=False)
    monkeypatch.setattr(trust, "_own", [])  # what other tests have made in this process
    return tmp_path / "config" / "accrt"


def compiled(path: pathlib.Path, name: str = "twice") -> pathlib.Path:
    """What a user compiles, in a process of its own."""
    code = ("import sys; from accrt.compiler import Module, compile; m = Module('m'); n = m.symbol('n', maximum=64);"
            f"f = m.function('{name}'); x = f.input('x', 'f32', [n]); f.result('y', x + x); compile(m, sys.argv[1])")
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], check=True,
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    return path


def twice(path, **options) -> list:
    x = np.arange(4, dtype=np.float32)
    return accrt.Program(accrt.Bundle(path, accrt.Instance(options={"host.threads": 1}, **options))).session().twice(x).tolist()


def weights_bundle(chunks: float = 2.5) -> bw.BundleWriter:
    """No code; two weights over some chunks."""
    bundle = bw.BundleWriter()
    size = int(chunks * (1 << 20)) // 4
    values = np.random.default_rng(7).standard_normal(size).astype(np.float32)
    bundle.metadata("license", "none")
    bundle.constant("a", values, dtype="f32", shape=[size])
    bundle.constant("b", values[:100], dtype="f32", shape=[100])
    return bundle


# ---- a user's own compiles

@needs_crypto
def test_own_compiles_run_and_others_do_not(home, tmp_path, monkeypatch):
    path = compiled(tmp_path / "m.accx")
    assert (home / "signing-key.pem").stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    assert twice(path) == [0, 2, 4, 6]
    # Another user, or another machine: refused until the key is trusted.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(accrt.UntrustedError, match="signed by ed25519:.*accx trust add"):
        twice(path)
    with pytest.raises(PermissionError):
        twice(path)
    assert twice(path, keys=[home / "trusted" / "own.pem"]) == [0, 2, 4, 6]
    assert twice(path, keys=home / "trusted") == [0, 2, 4, 6]
    assert twice(path, trust="all") == [0, 2, 4, 6]
    with pytest.raises(accrt.UntrustedError, match="no-host-code"):
        twice(path, trust="no-host-code", keys=home / "trusted")
    monkeypatch.setenv("ACCRT_TRUST_KEYS", str(home / "trusted"))
    assert twice(path) == [0, 2, 4, 6]
    monkeypatch.delenv("ACCRT_TRUST_KEYS")
    monkeypatch.setenv("ACCRT_TRUST", "all")
    assert twice(path) == [0, 2, 4, 6]
    with pytest.raises(accrt.UntrustedError):
        twice(path, trust="signed")


@needs_crypto
def test_the_same_user_gets_the_same_bytes(home, tmp_path):
    one, two = compiled(tmp_path / "one.accx").read_bytes(), compiled(tmp_path / "two.accx").read_bytes()
    assert one == two


def test_without_a_home_it_runs_in_this_process_alone(tmp_path, monkeypatch):
    from accrt.compiler import Module, compile
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    m = Module("m")
    n = m.symbol("n", maximum=64)
    f = m.function("twice")
    x = f.input("x", "f32", [n])
    f.result("y", x + x)
    before = accrt.Instance(options={"host.threads": 1})
    with pytest.warns(UserWarning, match="not signed"):
        compile(m, tmp_path / "m.accx", targets=["host"])
    assert trust.report(accrt.Bundle(tmp_path / "m.accx"))["signatures"] == []
    values = np.arange(4, dtype=np.float32)
    assert accrt.Program(accrt.Bundle(tmp_path / "m.accx", before)).session().twice(values).tolist() == [0, 2, 4, 6]
    assert twice(tmp_path / "m.accx") == [0, 2, 4, 6]
    with pytest.raises(accrt.UntrustedError, match="signed by no key"):
        twice(tmp_path / "m.accx", keys=())
    code = "import sys, accrt; accrt.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.accx")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 1 and "UntrustedError" in done.stderr


def test_without_libcrypto_what_is_unsigned_works(tmp_path):
    instance = accrt.Instance(options={"crypto.library": ""})
    weights_bundle().write(tmp_path / "w.accx")
    bundle = accrt.Bundle(tmp_path / "w.accx", instance, verify="full")
    assert trust.report(bundle)["code_root"] == tree.code_root(bundle_reader.read(tmp_path / "w.accx").container)


# ---- keys

@needs_crypto
def test_keys_of_a_user_are_made_once(home):
    first = trust.signing_key()
    assert trust.signing_key().public_key == first.public_key
    assert trust.read_public_key(home / "trusted" / "own.pem") == first.public_key
    with pytest.raises(accrt.AlreadyExistsError):
        first.write(home / "signing-key.pem")
    assert len(first.sign(b"x")) == 64 and first.sign(b"x") == trust.SigningKey.read(home / "signing-key.pem").sign(b"x")
    os.chmod(home / "signing-key.pem", 0o644)
    with pytest.raises(accrt.PermissionDeniedError, match="chmod 600"):
        trust.signing_key()


@needs_crypto
def test_openssl_reads_and_writes_the_same_files(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command")
    subprocess.run([openssl, "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "o.pem"], check=True)
    os.chmod(tmp_path / "o.pem", 0o600)
    public = subprocess.run([openssl, "pkey", "-in", tmp_path / "o.pem", "-pubout"], check=True, capture_output=True).stdout
    (tmp_path / "o.pub").write_bytes(public)
    key = trust.SigningKey.read(tmp_path / "o.pem")
    assert trust.read_public_key(tmp_path / "o.pub") == key.public_key
    key.write(tmp_path / "own.pem")
    again = subprocess.run([openssl, "pkey", "-in", tmp_path / "own.pem", "-pubout"], check=True, capture_output=True).stdout
    assert again == public
    (tmp_path / "message").write_bytes(b"a message")
    (tmp_path / "signature").write_bytes(key.sign(b"a message"))
    subprocess.run([openssl, "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "o.pub", "-rawin", "-in", tmp_path / "message",
                    "-sigfile", tmp_path / "signature"], check=True, capture_output=True)


# ---- trees, against hashlib

@needs_crypto
@pytest.mark.parametrize("chunks", [0.0005, 1, 2.5])
def test_the_tree_is_what_the_document_says(home, tmp_path, chunks):
    path = tmp_path / "w.accx"
    writer = weights_bundle(chunks)
    writer.write(path)
    trust.sign(path, tmp_path / "signed.accx", vouch=True)
    read = bundle_reader.read(tmp_path / "signed.accx")
    read.verify()
    content = read.container.sections
    assert bytes(content["leaves"]) == tree.leaves(content["data"])
    assert bytes(content["tree"][8:40]) == tree.code_root(read.container) == writer.code_root
    report = trust.report(accrt.Bundle(tmp_path / "signed.accx", accrt.Instance(), verify="full"))
    assert report["weight_root"] == tree.weight_root(len(content["data"]), content["leaves"])
    assert report["code_trusted"] and report["weights_trusted"] and [s["scope"] for s in report["signatures"]] == ["code", "weights"]
    # The Python writer signs as it writes, and makes the same file.
    assert writer.to_bytes(trust.signing_key()) == (tmp_path / "signed.accx").read_bytes()


@needs_crypto
def test_both_readers_find_what_was_changed(home, tmp_path):
    data = bytearray(weights_bundle().to_bytes(trust.signing_key()))
    read = bundle_reader.read(bytes(data))
    section = {s.name.rstrip(b"\0"): s for s in read.container.table}
    seed = rotation.seed()
    choose = random.Random(seed)

    def rules(name: bytes) -> tuple:
        changed, place = bytearray(data), section[name]
        changed[place.offset + choose.randrange(place.size_bytes)] ^= 1 << choose.randrange(8)
        fixed = repaired(changed)
        try:
            bundle_reader.read(fixed).verify()
            mine = 0
        except bundle_reader.FormatError as problem:
            mine = problem.rule
        try:
            accrt.Bundle(fixed, verify="full")
            theirs = 0
        except accrt.Error as problem:
            theirs = int(problem.message.rsplit("(rule ", 1)[1].split(")")[0])
        return mine, theirs

    for _ in range(8):
        assert rules(b"data") == (144, 144) and rules(b"leaves") == (144, 144), seed
        mine, theirs = rules(b"signatures")
        assert (mine, theirs) in ((0, 145), (141, 141)), seed  # Python checks no signatures


def repaired(data: bytearray) -> bytes:
    """The file with right fast digests."""
    import struct

    import xxhash
    count = struct.unpack_from("<I", data, 48)[0]
    places = [struct.unpack_from("<2I2Q", data, 128 + 64 * i) for i in range(count)]
    by_type = {kind: (offset, size) for kind, _flags, offset, size in places}
    if 63 in by_type:
        offset, size = by_type[63]
        for i, at in enumerate(range(offset, offset + size, 1 << 20)):
            chunk = bytes(data[at:min(at + (1 << 20), offset + size)])
            data[by_type[20][0] + 16 * i:by_type[20][0] + 16 * i + 16] = xxhash.xxh3_128_digest(chunk)
    for i, (kind, _flags, offset, size) in enumerate(places):
        offset, size = by_type[20] if kind == 63 else (offset, size)
        data[128 + 64 * i + 48:128 + 64 * i + 64] = xxhash.xxh3_128_digest(bytes(data[offset:offset + size]))
    data[112:128] = bytes(16)
    data[112:128] = xxhash.xxh3_128_digest(bytes(data[:128 + 64 * count]))
    return bytes(data)


@needs_crypto
@pytest.mark.parametrize("encrypted", [False, True])
def test_many_chunks_are_checked_by_threads(home, tmp_path, encrypted):
    """The lowest of the chunks that are wrong is named, or one that a thread was at then."""
    path = tmp_path / "w.accx"
    weights_bundle(70).write(path)
    if encrypted:
        trust.encrypt(path, path, SECRET)
    trust.sign(path, vouch=True)
    accrt.Bundle(path, verify="full", key=lambda _: SECRET)
    accrt.Bundle(path, verify="full")
    data = bytearray(path.read_bytes())
    offset = next(s.offset for s in bundle_reader.read(path).container.table if s.type == 63)
    for chunk in (66, 40):
        data[offset + (chunk << 20) + 5] ^= 1
        with pytest.raises(accrt.DataCorruptError, match=rf"data\[(40|{chunk})\].*rule 144"):
            accrt.Bundle(repaired(data), verify="full")
    path.write_bytes(repaired(data))
    with pytest.raises(accrt.DataCorruptError, match="rule 144"):
        accrt.Bundle(path, verify="full", key=lambda _: SECRET)


@needs_crypto
def test_signing_again_wants_a_word(home, tmp_path):
    weights_bundle().write(tmp_path / "w.accx")
    with pytest.raises(accrt.PermissionDeniedError, match="vouch"):
        trust.sign(tmp_path / "w.accx")
    trust.sign(tmp_path / "w.accx", scope="weights")
    trust.sign(tmp_path / "w.accx", vouch=True)
    other = trust.SigningKey.generate()
    with pytest.raises(accrt.PermissionDeniedError):
        trust.sign(tmp_path / "w.accx", key=other)
    (tmp_path / "link.accx").symlink_to("w.accx")
    trust.sign(tmp_path / "link.accx", key=other, scope="weights")
    assert (tmp_path / "link.accx").is_symlink()
    assert len(trust.report(accrt.Bundle(tmp_path / "w.accx"))["signatures"]) == 3
    with pytest.raises(ValueError, match="scope"):
        trust.sign(tmp_path / "w.accx", scope="all")


@needs_crypto
def test_weights_may_have_to_be_signed(home, tmp_path):
    strict = accrt.Instance(options={"trust.weights": "signed"})
    writer = weights_bundle()
    writer.write(tmp_path / "w.accx")
    with pytest.raises(accrt.UntrustedError, match="trust.weights"):
        accrt.Bundle(tmp_path / "w.accx", strict)
    writer.write(tmp_path / "w.accx", trust.signing_key())
    with pytest.raises(accrt.UntrustedError, match="ed25519"):
        accrt.Bundle(tmp_path / "w.accx", strict)  # it was made before the key
    later = accrt.Instance(options={"trust.weights": "signed"})
    assert len(accrt.Bundle(tmp_path / "w.accx", later).constant_bytes("b")) == 400


def test_a_target_without_signatures_gets_none(home):
    caps = accrt.caps()
    caps["section_mask"] &= ~(1 << 40 | 1 << 41 | 1 << 43)
    writer = bw.BundleWriter(target_caps=caps)
    writer.metadata("a", "b")

    class Never(bw.Signer):
        public_key = bytes(32)

        def sign(self, message: bytes) -> bytes:
            raise AssertionError("nothing is signed")

    assert b"signatures" not in writer.to_bytes(Never())
    # whatever it says of sections
    writer = bw.BundleWriter(target_caps={**accrt.caps(), "container_minor": 2})
    assert b"signatures" not in writer.to_bytes(Never())
    given = bw.BundleWriter()
    given.section(40, "tree", bytes(80))
    with pytest.raises(bw.BundleError, match="not signed too"):
        given.to_bytes(Never())


# ---- encryption

@needs_crypto
def test_encrypted_weights(home, tmp_path):
    writer = weights_bundle()
    writer.write(tmp_path / "w.accx", trust.signing_key())
    trust.encrypt(tmp_path / "w.accx", tmp_path / "e.accx", SECRET)
    plain, sealed = accrt.Bundle(tmp_path / "w.accx"), (tmp_path / "e.accx").read_bytes()
    assert bytes(plain.constant_bytes("b")) not in sealed
    asked = []

    def key(identity):
        asked.append(identity)
        return SECRET

    bundle = accrt.Bundle(tmp_path / "e.accx", key=key, verify="full")
    assert asked == [trust.key_id(SECRET)]
    assert bytes(bundle.constant_bytes("a")) == bytes(plain.constant_bytes("a"))
    report = trust.report(bundle)
    assert report["encrypted"] and [s["scope"] for s in report["signatures"]] == ["code"]
    bundle_reader.read(tmp_path / "e.accx").verify()
    with pytest.raises(accrt.PermissionDeniedError, match="rule 151"):
        accrt.Bundle(tmp_path / "e.accx").constant_bytes("a")
    for wrong in (lambda _: bytes(32), lambda _: None):
        with pytest.raises(accrt.PermissionDeniedError, match="rule 151"):
            accrt.Bundle(tmp_path / "e.accx", key=wrong)
    with pytest.raises(accrt.PermissionDeniedError) as caught:
        accrt.Bundle(tmp_path / "e.accx", key=lambda _: b"short")
    assert isinstance(caught.value.__cause__, ValueError) and "32 bytes" in str(caught.value.__cause__)
    trust.decrypt(tmp_path / "e.accx", tmp_path / "d.accx", SECRET)
    assert bytes(accrt.Bundle(tmp_path / "d.accx", verify="full").constant_bytes("a")) == bytes(plain.constant_bytes("a"))
    trust.sign(tmp_path / "e.accx", scope="weights")
    accrt.Bundle(tmp_path / "e.accx", key=key, verify="full")


def independent_decryption(path: pathlib.Path) -> bytes:
    """DATA in the clear, by hmac and the openssl command's library through Python's own means."""
    cryptography = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
    import hashlib
    import hmac

    def hkdf(salt: bytes, info: bytes) -> bytes:
        return hmac.new(hmac.new(salt, SECRET, hashlib.sha256).digest(), info + b"\1", hashlib.sha256).digest()

    read = bundle_reader.read(path)
    content = read.container.sections
    record = bytes(content["encryption"])
    assert record[8:24] == hkdf(bytes(32), b"accrt key id v1")[:16]
    cipher = cryptography.AESGCM(hkdf(record[24:56], b"accrt weights v1"))
    out = b""
    for i, at in enumerate(range(0, len(content["data"]), 1 << 20)):
        chunk = bytes(content["data"][at:at + (1 << 20)]) + bytes(content["tags"][16 * i:16 * i + 16])
        root = tree.code_root(read.container) if record[0] == 2 else None
        out += cipher.decrypt(bytes(4) + i.to_bytes(8, "little"), chunk, root)
    return out


@needs_crypto
@pytest.mark.parametrize("word", ["required", "bound"])
def test_files_that_cannot_be_encrypted_are_refused_where_weights_must_be(home, tmp_path, word):
    """safetensors, GGUF and what names them: they have no encryption; with `any` they open."""
    plain = tmp_path / "w.safetensors"
    plain.write_bytes(safetensors_bytes({"w": np.ones(4, np.float32)}))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": plain.name}}))
    b = bw.BundleWriter()
    f = b.function("main")
    w = b.external("w", "f32", [4], file=b.file(plain.name, bw.FileKind.SAFETENSORS))
    f.body.copy(f.constant(w).read(), f.result("y", "f32", [4]).write(), 16)
    outside = tmp_path / "outside.accx"
    b.write(outside)
    gguf = pathlib.Path(__file__).resolve().parents[1] / "weights" / "golden" / "all.gguf"
    works = [lambda i, source=source: accrt.Weights(source, i) for source in (plain, index, gguf, plain.read_bytes())]
    works.append(lambda i: accrt.Program(accrt.Bundle(outside, instance=i), weights=plain))
    works.append(lambda i: accrt.Program(accrt.Bundle(outside, instance=i)))
    for work in works:
        work(accrt.Instance(options={"trust.encryption": "any"}))
        with pytest.raises(accrt.UntrustedError, match="trust.encryption"):
            work(accrt.Instance(options={"trust.encryption": word}))


def test_bundles_with_sections_behind_the_weights_are_encrypted(home, tmp_path):
    writer = weights_bundle()
    writer.section(0x10000, "acme.tuning", b"12345678")
    writer.write(tmp_path / "w.accx")
    trust.encrypt(tmp_path / "w.accx", tmp_path / "e.accx", SECRET)
    sealed = accrt.Bundle(tmp_path / "e.accx", key=lambda _: SECRET, verify="full")
    assert bytes(sealed.constant_bytes("a")) == bytes(accrt.Bundle(tmp_path / "w.accx").constant_bytes("a"))
    trust.decrypt(tmp_path / "e.accx", tmp_path / "d.accx", SECRET)
    assert (tmp_path / "d.accx").read_bytes() == (tmp_path / "w.accx").read_bytes()


def test_encryption_is_what_the_document_says(home, tmp_path):
    weights_bundle().write(tmp_path / "w.accx")
    trust.encrypt(tmp_path / "w.accx", tmp_path / "e.accx", SECRET)
    wanted = bytes(bundle_reader.read(tmp_path / "w.accx").container.sections["data"])
    assert independent_decryption(tmp_path / "e.accx") == wanted


# ---- the tool

ACCX = shutil.which("accx") or str(ROOT / "build" / "bin" / "accx")
needs_tool = pytest.mark.skipif(not os.path.exists(ACCX), reason="no accx")


def accx(*arguments, code: int = 0) -> str:
    done = subprocess.run([ACCX, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def others_key(folder: pathlib.Path) -> pathlib.Path:
    """The public key that another user sends: a file that is called own.pem, as each user's is."""
    folder.mkdir()
    key = trust.SigningKey.generate()
    key.write_public(folder / "own.pem")
    return folder / "own.pem"


@needs_crypto
def test_another_users_key_does_not_take_the_place_of_the_own_one(home, tmp_path):
    (home / "trusted").mkdir(parents=True)
    sent = others_key(tmp_path / "sent").rename(home / "trusted" / "own.pem")
    other = sent.read_bytes()
    path = compiled(tmp_path / "m.accx")
    own = trust.SigningKey.read(home / "signing-key.pem").public_key
    assert sent.read_bytes() == other
    assert trust.read_public_key(home / "trusted" / f"own-{own.hex()[:16]}.pem") == own
    assert twice(path) == [0, 2, 4, 6]


@needs_tool
@needs_crypto
def test_the_tool_keeps_the_name_own_for_the_own_key(home, tmp_path):
    sent = others_key(tmp_path / "sent")
    line = accx("trust", "add", sent, code=1)
    assert "'own' is the name of your own key" in line and "--name" in line
    accx("trust", "add", sent, "--name", "own")
    made = accx("keygen")
    own = trust.SigningKey.read(home / "signing-key.pem").public_key
    assert str(home / "trusted" / f"own-{own.hex()[:16]}.pem") in made
    path = compiled(tmp_path / "m.accx")
    accx("run", path, "--function", "twice", "--symbol", "n=4")


@needs_tool
@needs_crypto
def test_the_tool_and_python_share_keys(home, tmp_path):
    path = compiled(tmp_path / "m.accx")
    run = ("run", path, "--function", "twice", "--symbol", "n=4")
    accx(*run)
    assert f"code     signed by ed25519:{trust.signing_key().public_key.hex()[:16]}: trusted" in accx("verify", "--full", path)
    assert accx("trust", "path").strip() == str(home / "trusted")
    assert "own" in accx("trust", "list")
    line = accx(*run, "--trust", "no-host-code", code=4)  # trusted as it is
    assert "policy no-host-code" in line and "trust add" not in line
    assert "contradict" in accx(*run, "--trust", "no-host-code", "--allow-host-code", code=2)
    accx("trust", "remove", "own")
    line = accx(*run, code=4)
    assert "accx trust add" in line and "ACCRT_ERROR_UNTRUSTED" in line
    accx(*run, "--trust", "all")
    accx(*run, "--allow-host-code")
    accx(*run, "--trust", "no-host-code", code=4)
    accx(*run, "--trust", "some", code=1)
    trust.SigningKey.read(home / "signing-key.pem").write_public(tmp_path / "me.pub")
    accx(*run, "--trust-keys", tmp_path / "me.pub")
    assert "trusted as 'acme'" in accx("trust", "add", tmp_path / "me.pub", "--name", "acme")
    accx(*run)
    assert "already" in accx("trust", "add", tmp_path / "me.pub", "--name", "acme", code=1)
    assert "no name" in accx("trust", "add", tmp_path / "me.pub", "--name", "../x", code=2)
    assert "accx trust list" in accx("trust", "remove", "nobody", code=1)
    assert "did you mean 'list'" in accx("trust", "lst", code=2)


# ---- keys that end

def _changes(way: str, tmp_path):
    """The same changes through the tool and through Python: role, expire, revoke, floor."""
    if way == "python":
        return trust.set_role, trust.expire, trust.revoke, trust.floor
    return (lambda key, role: accx("trust", "role", key, role),
            lambda key, until: accx("trust", "expire", key, until or "never"),
            lambda key, reason: accx("trust", "revoke", key, "--reason", reason),
            lambda name, version: accx("trust", "floor", name, version))


@needs_crypto
@pytest.mark.parametrize("way", ["python", pytest.param("tool", marks=needs_tool)])
def test_keys_end(home, tmp_path, monkeypatch, way):
    path = compiled(tmp_path / "m.accx")
    role, expire, revoke, floor = _changes(way, tmp_path)
    assert twice(path) == [0, 2, 4, 6]
    assert [(k.name, k.role, k.not_after, k.revoked, k.source) for k in trust.keys()] == [("own", "both", None, None, "")]
    rules = home / "trusted" / "trust.rules"
    role("own", "weights")
    with pytest.raises(accrt.UntrustedError, match=r"signed by ed25519:[0-9a-f]{16}, whose key is trusted only for weights \(by .*trust.rules"):
        twice(path)
    role("own", "code")
    assert twice(path) == [0, 2, 4, 6] and trust.keys()[0].role == "code"
    role("own", "both")
    assert trust.keys()[0].role == "both"
    expire("own", "2000-02-29")
    with pytest.raises(accrt.UntrustedError, match=r"whose key expired at 2000-02-29T23:59:59Z \(by .*trust.rules"):
        twice(path)
    assert trust.keys()[0].expired
    expire("own", "2999-01-01")
    assert twice(path) == [0, 2, 4, 6]
    expire("own", None)
    assert trust.keys()[0].not_after is None
    before = rules.read_text()
    for bad in ("2027-02-30", "2027-13-01T00:00:00Z"):
        # the library refuses the new file: the old one stays
        with pytest.raises((accrt.InvalidFormatError, AssertionError)):
            expire("own", bad)
        assert rules.read_text() == before and sorted(p.name for p in rules.parent.iterdir()) == ["own.pem", "trust.rules"]
    assert rules.stat().st_mode & 0o777 == 0o644
    floor("other", 5)
    assert twice(path) == [0, 2, 4, 6] and trust.floors() == {"other": 5}
    revoke("own", "lost laptop")
    with pytest.raises(accrt.UntrustedError, match=r"was revoked at 20\d\d-.*Z, lost laptop \(by .*trust.rules"):
        twice(path)
    # However the key is given now, and whoever asks: a revocation stays.
    (home / "trusted" / "own.pem").rename(tmp_path / "again.pem")
    with pytest.raises(accrt.UntrustedError, match="revoked"):
        twice(path, keys=[tmp_path / "again.pem", home / "trusted"])
    assert twice(path, keys=[tmp_path / "again.pem"]) == [0, 2, 4, 6]  # a store without that rule
    with pytest.raises(accrt.UntrustedError, match="revoked"):
        compiled(tmp_path / "n.accx") and twice(tmp_path / "n.accx")


@needs_tool
@needs_crypto
def test_the_tool_lists_how_far_keys_are_trusted(home, tmp_path):
    path = compiled(tmp_path / "m.accx")
    other = trust.SigningKey(bytes(range(32)))
    other.write_public(tmp_path / "other.pub")
    run = ("run", path, "--function", "twice", "--symbol", "n=4")
    accx("trust", "add", tmp_path / "other.pub", "--name", "acme", "--role", "weights", "--until", "10d")
    listed = accx("trust", "list")
    assert "acme" in listed and "weights" in listed and "ends soon: " in listed
    accx("trust", "floor", "llama", 12)
    assert "--lower" in accx("trust", "floor", "llama", 11, code=1)
    accx("trust", "floor", "llama", 11, "--lower")
    accx("trust", "revoke", other.public_key.hex(), "--reason", "stolen")
    assert "revoked" in accx("trust", "revoke", "acme", code=1)
    accx("trust", "expire", "own", "2001-01-01")
    data = json.loads(accx("trust", "list", "--json"))
    acme, own = data["keys"]
    assert acme["name"] == "acme" and acme["reason"] == "stolen" and acme["role"] == "weights" and acme["revoked"]
    assert own["expired"] and own["not_after"] == "2001-01-01T23:59:59Z" and own["source"].endswith("trust.rules")
    assert data["floors"] == [{"name": "llama", "version": "11"}]
    listed = accx("trust", "list")
    assert "expired" in listed and "revoked 20" in listed and "stolen" in listed and "nothing below version 11" in listed
    line = accx(*run, code=4)
    assert "expired at 2001-01-01T23:59:59Z" in line and "trust.rules" in line and "ACCRT_ERROR_UNTRUSTED" in line
    accx("trust", "remove", "acme")
    assert "not trusted again" in accx("trust", "add", tmp_path / "other.pub", "--name", "acme", code=1)
    for arguments in (("role", "own"), ("role", "own", "all"), ("expire", "own", "soon"), ("revoke",), ("floor", "x", "-1"),
                      ("floor", "x")):
        accx("trust", *arguments, code=2)
    assert "no key 'nobody'" in accx("trust", "revoke", "nobody", code=1)
    # A rules file that is not understood trusts nobody, and says which line.
    with (home / "trusted" / "trust.rules").open("a") as file:
        file.write("key x\n")
    assert "trust.rules: line 7: the key is not 64" in accx(*run, code=1)


@needs_crypto
def test_old_versions_are_refused(home, tmp_path):
    """Rollback: an older bundle by the same signer, which ran before."""
    code = ("import sys; from accrt.compiler import Module, compile; m = Module('m'); n = m.symbol('n', maximum=64);"
            "f = m.function('twice'); x = f.input('x', 'f32', [n]); f.result('y', x + x);"
            "m.metadata.update(name='doubler', version=sys.argv[2]); compile(m, sys.argv[1])")
    for version in ("7", "8", "10"):
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path / version), version], check=True,
                       env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert twice(tmp_path / "7") == [0, 2, 4, 6]
    trust.floor("doubler", 8)
    with pytest.raises(accrt.UntrustedError, match=r"'doubler' has version 7, and nothing below 8 is trusted \(by .*trust.rules\)"):
        twice(tmp_path / "7")
    assert twice(tmp_path / "8") == twice(tmp_path / "10") == [0, 2, 4, 6]
    # nothing rises by itself
    assert twice(tmp_path / "10") == [0, 2, 4, 6] and trust.floors() == {"doubler": 8}
    with pytest.raises(ValueError, match="lower=True"):
        trust.floor("doubler", 7)
    # The version is under the signature: a changed one is no better.
    data = bytearray((tmp_path / "7").read_bytes())
    data[data.index(b"\x007\x00") + 1] = ord("9")
    (tmp_path / "forged").write_bytes(data)
    with pytest.raises(accrt.Error):
        twice(tmp_path / "forged")
    strict = {"trust.floors": "required"}
    unnamed = compiled(tmp_path / "m.accx")
    for path, good in ((tmp_path / "10", True), (unnamed, False)):
        program = lambda: accrt.Program(accrt.Bundle(path, accrt.Instance(options=strict)))  # noqa: B023, E731
        if good:
            program()
        else:
            with pytest.raises(accrt.UntrustedError, match="has no floor of versions"):
                program()


@needs_tool
def test_leftovers_of_killed_processes_go(home, tmp_path):
    """What a process that is gone has left is taken away by the next; what one that lives is making
    stays; others' files, too."""
    weights_bundle(1.5).write(tmp_path / "w.accx")
    held = f"o.accx.{os.getpid()}.7.part"
    stay = [held, "o.accx.part", "o.accx.12.x.part", "xo.accx.999999999.0.part", "p.accx.999999999.0.part"]
    for name in ["o.accx.999999999.0.part", f"o.accx.{os.getpid()}.8.part", *stay]:
        # the number of a process says nothing
        (tmp_path / name).write_bytes(b"half")
    lock = open(tmp_path / held)
    fcntl.flock(lock, fcntl.LOCK_EX)
    rng = random.Random(20261122)
    command = [ACCX, "pack", str(tmp_path / "w.accx"), str(tmp_path / "o.accx")]
    for _ in range(12):  # killed wherever it is
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(timeout=rng.random() * 0.05)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        if (tmp_path / "o.accx").exists():  # whole, or not there
            accx("verify", "--full", tmp_path / "o.accx")
    accx(*command[1:])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.endswith(".part")) == sorted(stay)
    lock.close()
    accx(*command[1:])
    assert not (tmp_path / held).exists()


@needs_tool
@needs_crypto
def test_the_tool_signs_and_encrypts(home, tmp_path):
    path = tmp_path / "w.accx"
    weights_bundle().write(path)
    assert "accx keygen" in accx("sign", path, "--in-place", "--vouch", code=1)
    accx("keygen")
    assert "not replaced" in accx("keygen", code=1)
    assert "--vouch" in accx("sign", path, "--in-place", code=1)
    accx("sign", path, "--output", tmp_path / "s.accx", "--vouch")
    accx("sign", path, code=2)
    (tmp_path / "same.accx").symlink_to(path)
    assert "say --in-place" in accx("sign", path, "--output", tmp_path / "same.accx", "--vouch", code=2)
    accx("sign", path, "--output", tmp_path / "t.accx", "--scope", "neither", code=2)
    accx("keygen", "--output", tmp_path / "release.pem")
    accx("sign", tmp_path / "s.accx", "--in-place", "--key", tmp_path / "release.pem", "--scope", "weights")
    text = accx("verify", "--full", tmp_path / "s.accx")
    assert text.count("signed by") == 3 and text.count("not trusted") == 1
    accx("keygen", "--secret", "--output", tmp_path / "k.pem")
    accx("keygen", "--secret", code=2)
    accx("encrypt", tmp_path / "s.accx", "--output", tmp_path / "e.accx", "--secret-key", tmp_path / "k.pem")
    assert "weights  encrypted" in accx("verify", "--full", tmp_path / "e.accx")
    accx("decrypt", tmp_path / "e.accx", "--output", tmp_path / "d.accx", "--secret-key", tmp_path / "k.pem")
    assert bytes(accrt.Bundle(tmp_path / "d.accx").constant_bytes("b")) == bytes(accrt.Bundle(path).constant_bytes("b"))
    accx("encrypt", path, "--in-place", "--secret-key", tmp_path / "release.pem", code=3)


@pytest.mark.parametrize("bad", ["\n", "\r", "\v", "\f", "\0", "\x1c", "\x7f", "\x85", "\u2028", "\u2029"])
def test_a_text_of_a_rule_ends_no_line(home, bad):
    """Such a text is not taken; of one that is there the next test says what becomes."""
    for change in (lambda: trust.revoke(b"\3" * 32, f"x{bad}floor m 5"), lambda: trust.floor(f"m{bad}x", 3),
                   lambda: trust.expire(b"\3" * 32, f"2027-01-31T00:00:00Z{bad}floor m 5")):
        with pytest.raises(ValueError, match="cannot be in it"):
            change()
    assert trust.floors() == {}


@needs_tool
@pytest.mark.parametrize("bad", ["\n", "\r", "\t", "\v", "\f", "\x1c", "\x7f", "\x85", "\u2028", "\u2029"])
def test_the_tool_writes_no_such_text_either(home, bad):
    """A line feed began another rule."""
    said = accx("trust", "revoke", "03" * 32, "--reason", f"x{bad}floor m 5", code=2)
    assert "cannot be a rule: there is a control character or a separator of lines" in said
    assert trust.floors() == {} and not os.path.exists(os.path.join(trust.folder(), "trust.rules"))


def test_lines_of_rules_end_where_c_ends_them(home):
    trust.floor("n", 2)
    rules = pathlib.Path(trust.folder()) / "trust.rules"
    # of another tool: comments hold anything
    comment = "# laptop\u0085floor n 9\u2028\t".encode() + b"\xff\n"
    rules.write_bytes(rules.read_bytes() + comment)
    trust.floor("m", 3)
    trust.revoke(b"\4" * 32, "stolen")
    assert trust.floors() == {"n": 2, "m": 3} and comment in rules.read_bytes()


@pytest.mark.parametrize("bad, wrong", [(c.encode(), "there is a control character or a separator of lines")
                                        for c in "\r\t\v\f\x1c\x7f\x85\u2028\u2029"] + [(b"\xff", "it is not UTF-8"), (b"\xe2\x80", "it is not UTF-8")])
def test_rules_that_some_readers_cut_are_refused_by_c_and_by_python(home, bad, wrong):
    """The C reader took U+0085 in a reason, at which others end lines."""
    trust.floor("n", 2)
    rules = pathlib.Path(trust.folder()) / "trust.rules"
    before = rules.read_bytes() + b"key " + b"03" * 32 + b" revoked 2026-01-01T00:00:00Z laptop" + bad + b" lost\n"
    rules.write_bytes(before)
    line = f"trust.rules: line 3: {wrong}"
    for ask in (trust.floors, lambda: trust.floor("m", 3), trust.keys, lambda: accrt.Instance("no-host-code", keys=[rules])):
        with pytest.raises(accrt.InvalidFormatError, match=re.escape(line)):
            ask()
    if os.path.exists(ACCX):
        assert line in accx("trust", "list", code=1)
    assert rules.read_bytes() == before


def low_order_keys():
    """All encodings of the points of order 1, 2, 4 and 8, worked out from the curve."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    ys = [y for y in (0, 1, p - 1, p, p + 1)]
    # Of a point of order 8 the double has y = 0: x^2 = -y^2, so d y^4 + 2 y^2 - 1 = 0.
    root = pow(1 + d, (p + 3) // 8, p)
    root = root if root * root % p == (1 + d) % p else root * pow(2, (p - 1) // 4, p) % p
    for square in ((root - 1) * pow(d, -1, p) % p, (-root - 1) * pow(d, -1, p) % p):
        y = pow(square, (p + 3) // 8, p)
        y = y if y * y % p == square else y * pow(2, (p - 1) // 4, p) % p
        ys += [y, p - y] if y * y % p == square else []
    assert len(ys) == 7
    return [(y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


def test_keys_for_which_anybody_can_sign_are_refused(home, tmp_path):
    import base64
    instance = accrt.Instance(trust="signed", keys=[])
    for key in low_order_keys():
        raw = (trust._ffi.accrt_key)()
        raw.bytes[:] = key
        assert trust.lib.accrt_instance_trust_key(instance.handle, trust.ctypes.byref(raw)) != 0
        text = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + key).decode()
        (tmp_path / "weak.pem").write_text(f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
        with pytest.raises(accrt.InvalidFormatError, match="low order"):
            trust.read_public_key(tmp_path / "weak.pem")
    assert trust.SigningKey.generate().public_key
