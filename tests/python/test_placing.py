"""Weights of files outside the bundle, put where the device can use them: many sizes, at any
address, checked by digest or not. The device is $ACCRT_DEVICE (the host); test_standin.py runs this
on one with memory of its own."""
from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
import xxhash

import accrt
from accrt import bundle_writer as bw
import rotation

DEVICE = os.environ.get("ACCRT_DEVICE", "host:0")
MIB = 1 << 20
# Sizes around what pieces and digests are made of; more large ones than are moved in turn.
SIZES = [0, 1, 15, 16, 17, 1000, MIB - 256, MIB - 1, MIB, MIB + 1, 2 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 3, 9 * MIB + 7, 0, 3]


def make_tensors(rng, count=20):
    sizes = SIZES + [int(n) for n in rng.integers(0, 3 * MIB // 2, count)] + [5 * MIB // 4 + 11 * i for i in range(18)]
    return {f"w{i:03d}": rng.integers(0, 256, n, dtype=np.uint8) for i, n in enumerate(rng.permutation(sizes))}


def save(path, tensors, skew):
    """Every tensor `skew` bytes behind a multiple of 16, but for those behind one of odd size."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * ((skew - 8 - len(text)) % 16)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data.tobytes() for data in tensors.values()))
    return path


def make_bundle(path, tensors, checked):
    """look() gives 64 bytes of the beginning and of the end of each weight; `checked`: names of
    those with digests."""
    bundle = bw.BundleWriter()
    f = bundle.function("look")
    out = f.result("out", "u8", [len(tensors), 128])
    zero = f.body.fill(out.write(0, len(tensors) * 128))
    for i, (name, data) in enumerate(tensors.items()):
        digest = xxhash.xxh3_128(data.tobytes()).digest() if name in checked else None
        slot, n = f.constant(bundle.external(name, "u8", data.shape, digest=digest)), min(data.nbytes, 64)
        if n:
            f.body.copy(slot.read(), out.write(i * 128), n, after=[zero])
            f.body.copy(slot.read(data.nbytes - n), out.write(i * 128 + 64), n, after=[zero])
    bundle.write(path)
    return path


def expected(tensors):
    rows = np.zeros((len(tensors), 128), np.uint8)
    for row, data in zip(rows, tensors.values()):
        n = min(data.nbytes, 64)
        row[:n] = data[:n]
        row[64:64 + n] = data[data.nbytes - n:]
    return rows


@pytest.fixture(scope="module")
def device():
    return accrt.Instance(trust="all").device(DEVICE)


@pytest.mark.parametrize("share", [0, 0.7])
@pytest.mark.parametrize("skew", [0, 1])
def test_every_byte_arrives(skew, share, device, tmp_path):
    rng = np.random.default_rng(rotation.seed())
    tensors = make_tensors(rng)
    checked = {name for name in tensors if rng.random() < share}
    path = save(tmp_path / "w", tensors, skew)
    bundle = accrt.Bundle(make_bundle(tmp_path / "m.accx", tensors, checked), device.instance)
    program = accrt.Program(bundle, device, weights=[accrt.Weights(path, device.instance)])
    assert np.array_equal(np.asarray(program.session().look().numpy()), expected(tensors))
    other = {name: data[::-1].copy() for name, data in tensors.items()}
    session = program.session()
    program.load_weights([accrt.Weights(save(tmp_path / "o", other, skew), device.instance)], by_name=True)
    assert np.array_equal(np.asarray(session.look().numpy()), expected(other))


def test_the_weight_with_other_bytes_is_named(device, tmp_path):
    rng = np.random.default_rng(rotation.seed())
    tensors = make_tensors(rng, 10)
    bundle = accrt.Bundle(make_bundle(tmp_path / "m.accx", tensors, set(tensors)), device.instance)
    named = [name for name, data in tensors.items() if data.nbytes]
    for name in [named[0], named[-1], *rng.choice(named, 6)]:
        wrong = {**tensors, name: tensors[name].copy()}
        wrong[name][rng.integers(0, wrong[name].nbytes)] ^= 1
        path = save(tmp_path / "w", wrong, 1)
        with pytest.raises(accrt.DataCorruptError, match=f"constant '{name}'.*has the digest"):
            accrt.Program(bundle, device, weights=[accrt.Weights(path, device.instance)])


def test_digests_of_what_is_used_in_place(tmp_path):
    """As many as several threads check: the same weight is named whoever finds it."""
    rng = np.random.default_rng(rotation.seed())
    tensors = {f"w{i:02d}": rng.integers(0, 256, MIB + 16 * i, dtype=np.uint8) for i in range(40)}
    make_bundle(tmp_path / "m.accx", tensors, set(tensors))
    wrong = dict(tensors)
    for name in ("w09", "w31"):
        wrong[name] = tensors[name] ^ 1
    for threads in (1, 2, 7):
        device = accrt.Instance(options={"host.threads": threads}).device("host:0")
        bundle = accrt.Bundle(tmp_path / "m.accx", device.instance)
        good = accrt.Weights(save(tmp_path / "w", tensors, 0), device.instance)
        assert np.array_equal(accrt.Program(bundle, device, weights=good).session().look(), expected(tensors))
        with pytest.raises(accrt.DataCorruptError, match="constant 'w09'.*has the digest"):
            accrt.Program(bundle, device, weights=save(tmp_path / "x", wrong, 0))


def test_threads_make_no_difference(tmp_path):
    rng = np.random.default_rng(7)
    tensors = make_tensors(rng)
    path = save(tmp_path / "w", tensors, 1)
    make_bundle(tmp_path / "m.accx", tensors, set(tensors))
    for threads in (1, 2, 5):
        device = accrt.Instance(options={"host.threads": threads}).device("host:0")
        bundle = accrt.Bundle(tmp_path / "m.accx", device.instance)
        program = accrt.Program(bundle, device, weights=[accrt.Weights(path, device.instance)])
        assert np.array_equal(program.session().look(), expected(tensors))
