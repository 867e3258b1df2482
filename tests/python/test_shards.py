"""Bundles whose weights are parts of tensors that ranks share: every rank's bytes are its own and
no others, all ranks together have all of them, and what does not fit is told."""
from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

import accrt
from accrt import _ffi, layouts
from accrt import bundle_writer as bw
from accrt._library import Handle, created, lib
from test_standin import ROOT, environment, needs_stand_in
from safetensors_file import safetensors_bytes

SEED = 20261120
DEVICE = os.environ.get("ACCRT_DEVICE", "host")


def cut(rng: random.Random, degree: int, unit: int, tail: bool) -> list[bw.Segment]:
    """Segments of a tensor: each cut by all ranks, by groups of them, or by none."""
    begin, out = 0, []
    for _ in range(rng.randint(1, 3)):
        replicas = rng.choice([r for r in range(1, degree + 1) if degree % r == 0])
        size = degree // replicas * unit * rng.randint(1, 3)
        out.append(bw.Segment(begin, begin + size, replicas))
        begin += size
    if tail:
        out.append(bw.Segment(begin, begin + rng.randint(1, unit), degree))
    return out


def indices(segments: list[bw.Segment], degree: int, rank: int) -> np.ndarray:
    """What a rank has along the axis."""
    parts = []
    for s in segments:
        part = (s.end - s.begin) // (degree // s.replicas)
        first = s.begin + part * (rank // s.replicas)
        parts.append(np.arange(first, first + part))
    return np.concatenate(parts)


def sharded(path, name, dtype, shape, degree, axis, segments, *, digest=None, **how):
    """A bundle that gives a rank's components, one result each."""
    bundle = bw.BundleWriter()
    local = list(shape)
    if axis is not None:
        local[axis] = len(indices(segments, degree, 0))
    w = bundle.external(name, dtype, local, digest=digest, **how)
    bundle.shard(w, degree, axis=axis, extent=segments[-1].end if axis is not None else 0, segments=segments if axis is not None else ())
    f = bundle.function("look")
    for i, component in enumerate(w.components):
        y = f.result(f"y{i}", "u8", [component.size_bytes])
        f.body.copy(f.constant(w, i).read(), y.write(), component.size_bytes)
    bundle.write(path)
    return w


def look(bundle, weights, rank, degree, **options):
    device = bundle.instance.device(DEVICE)
    out = bundle.program(device, weights=weights, rank=rank, degree=degree, **options).session().look()
    return [y.numpy().copy() for y in (out if isinstance(out, tuple) else (out,))]


def check_cover(segments, degree, extent):
    """Every index has as many owners as its segment has replicas, and no rank has one twice."""
    owners = np.zeros(extent, int)
    for rank in range(degree):
        own = indices(segments, degree, rank)
        assert len(set(own)) == len(own)
        owners[own] += 1
    assert np.array_equal(owners, np.concatenate([np.full(s.end - s.begin, s.replicas) for s in segments]))


def test_plain(tmp_path, instance):
    print("seed", SEED)
    rng = random.Random(SEED)
    for case in range(60):
        degree = rng.choice([1, 2, 3, 4, 6, 8])
        rank_of = rng.randint(1, 4)
        axis = rng.randrange(rank_of)
        segments = cut(rng, degree, 1, rng.random() < 0.3)
        shape = [rng.randint(1, 5) for _ in range(rank_of)]
        shape[axis] = segments[-1].end
        check_cover(segments, degree, shape[axis])
        array = np.random.default_rng(case).standard_normal(shape, np.float32)
        path = tmp_path / f"{case}.accx"
        sharded(path, "w", "f32", shape, degree, axis, segments)
        pack = bw.BundleWriter()
        pack.constant("w", array)
        pack.write(tmp_path / "pack.accx")
        sources = [accrt.Weights(safetensors_bytes({"w": array}, pad=case), instance), accrt.Weights(tmp_path / "pack.accx", instance)]
        for rank in range(degree):
            expected = np.take(array, indices(segments, degree, rank), axis)
            for source in sources:
                (got,) = look(accrt.Bundle(path, instance), source, rank, degree)
                assert got.tobytes() == expected.tobytes(), (case, degree, rank, axis, segments)


def test_what_the_verifier_accepts_is_covered(tmp_path, instance, monkeypatch):
    """Random maps, most of them wrong, past a Python that does not look: those that are accepted
    give every element of the tensor to as many ranks as its segment says and to no rank twice;
    those that do so, in order and in equal parts, are accepted."""
    print("seed", SEED)
    monkeypatch.setattr(bw.BundleWriter, "_check_segments", staticmethod(lambda *_: None))
    rng = random.Random(SEED)
    counts = {True: 0, False: 0}
    for _ in range(400):
        degree = rng.choice([1, 2, 3, 4])
        segments = cut(rng, degree, 1, rng.random() < 0.3)
        extent, local = segments[-1].end, len(indices(segments, degree, 0))
        for _ in range(rng.choice([0, 1, 1, 2])):
            which = rng.randrange(4)
            i = rng.randrange(len(segments))
            s = segments[i]
            if which == 0:
                segments[i] = bw.Segment(max(0, s.begin + rng.choice([-1, 1])), s.end, s.replicas)
            elif which == 1:
                segments[i] = bw.Segment(s.begin, s.end + rng.choice([-1, 1, 2]), s.replicas)
            elif which == 2:
                segments[i] = bw.Segment(s.begin, s.end, rng.choice([0, 1, 2, 3, 4]))
            else:
                extent, local = extent + rng.choice([-1, 0, 1]), max(1, local + rng.choice([-1, 0, 1]))
        bundle = bw.BundleWriter()
        w = bundle.external("w", "f32", [local])
        bundle.shard(w, degree, axis=0, extent=extent, segments=segments)
        f = bundle.function("look")
        f.body.copy(f.constant(w).read(), f.result("y", "f32", [local]).write(), 4 * local)
        end, good = 0, True
        for s in segments:
            good = good and s.begin == end < s.end and s.replicas > 0 and degree % s.replicas == 0 and \
                (s.end - s.begin) % (degree // s.replicas) == 0
            end = s.end
        good = good and end == extent and local == len(indices(segments, degree, 0))
        try:
            bundle.write(tmp_path / "m.accx")
            accrt.Bundle(tmp_path / "m.accx", instance).close()
            accepted = True
        except bw.BundleError as error:
            assert "rule 131" in str(error) or "rule 130" in str(error), error
            accepted = False
        assert accepted == good, (segments, degree, extent, local)
        counts[accepted] += 1
        if accepted:
            check_cover(segments, degree, extent)
            assert all(len(indices(segments, degree, r)) == local for r in range(degree))
    print(counts)
    assert min(counts.values()) > 50


QUANTIZED = [(x.name, axis) for x in layouts.all_layouts() for axis in (-1, -2, -3)
             if x.id > 1 and not (axis == -3 and x.name in ("gptq_v1", "gptq_v2", "awq"))]


@pytest.mark.parametrize("name,axis", QUANTIZED)
def test_quantized(tmp_path, instance, name, axis):
    """A rank's components mean what its part of the full tensor means."""
    print("seed", SEED)
    info = layouts.info(name)
    rng = random.Random(f"{SEED} {name} {axis}")
    numbers = np.random.default_rng(abs(axis))
    group = 32 if info.free_group else 0
    kunit = max(info.block_elements, info.group_elements, group)
    if name == "i4_group_asym":
        kunit = 2 * group  # zero points of two groups share a byte
    unit = kunit if axis == -1 else max(info.row_multiple, info.tile_rows) if axis == -2 else 1
    for case in range(4):
        degree = rng.choice([2, 3, 4])
        segments = cut(rng, degree, unit, False)
        extent = segments[-1].end
        shape = [extent if axis == -1 else kunit * 2, extent if axis == -2 else info.row_multiple * 3, extent if axis == -3 else 2]
        shape = shape[2::-1] if axis == -3 else shape[1::-1]
        parts = {}
        for role in info.dtypes:
            if role in info.required:
                dtype = next(d for d in ("f32", *info.dtypes[role]) if d in info.dtypes[role])
                size = layouts.component_size(name, shape, role, dtype, group_elements=group)
                data = numbers.integers(0, 256, size, np.uint8)
                if dtype == "f32":
                    data = numbers.standard_normal(size // 4).astype(np.float32).view(np.uint8)
                parts[role] = layouts.Component(dtype, data)
        full = layouts.dequantize(layouts.Packed(info.id, tuple(shape), parts, group))
        encoding = bw.Encoding(info.id)
        pack = bw.BundleWriter()
        pack.constant("w", {r: (c.data, c.dtype) for r, c in parts.items()}, dtype="f32", shape=shape, encoding=encoding, group_elements=group)
        pack.write(tmp_path / "pack.accx")
        w = sharded(tmp_path / "m.accx", "w", "f32", shape, degree, len(shape) + axis, segments, encoding=encoding, group_elements=group,
                    components={r: c.dtype for r, c in parts.items()})
        source = accrt.Weights(tmp_path / "pack.accx", instance)
        for rank in range(degree):
            got = look(accrt.Bundle(tmp_path / "m.accx", instance), source, rank, degree)
            local = {role: layouts.Component(c.dtype, y) for (role, c), y in zip(parts.items(), got)}
            mine = layouts.dequantize(layouts.Packed(info.id, tuple(w.shape), local, group))
            expected = np.take(full, indices(segments, degree, rank), axis)
            assert np.array_equal(mine, expected, equal_nan=True), (case, degree, rank, segments)


def test_replicated(tmp_path, instance):
    array = np.arange(6, dtype=np.float32)
    sharded(tmp_path / "m.accx", "w", "f32", [6], 2, None, [])
    source = accrt.Weights(safetensors_bytes({"w": array}), instance)
    for rank in range(2):
        assert look(accrt.Bundle(tmp_path / "m.accx", instance), source, rank, 2)[0].tobytes() == array.tobytes()


READ = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)


class Counted(accrt.Weights):
    """A source that notes which bytes are read of it."""

    __slots__ = ("reads", "_read", "_image")

    def __init__(self, image: bytes, instance) -> None:
        self.instance, self.reads, self._image = instance, [], image

        def read(_self, offset, target, size):
            self.reads.append((offset, offset + size))
            ctypes.memmove(target, image[offset:offset + size], size)
            return 0

        self._read = READ(read)
        reader = _ffi.accrt_reader()
        reader.size_bytes = len(image)
        reader.read = ctypes.cast(self._read, type(reader.read)) if not isinstance(reader.read, int) else self._read
        Handle.__init__(self, created(lib.accrt_weights_open_callbacks, instance.handle, ctypes.byref(reader), None))
        self._count = 1
        self.reads.clear()


@pytest.mark.parametrize("axis", [0, 1])
def test_reads_own_bytes_alone(tmp_path, instance, axis):
    array = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    segments = [bw.Segment(0, 32), bw.Segment(32, array.shape[axis], 2)]
    sharded(tmp_path / "m.accx", "w", "f32", array.shape, 4, axis, segments)
    image = safetensors_bytes({"w": array})
    owned = np.zeros(len(image), int)
    for rank in range(4):
        source = Counted(image, instance)
        (got,) = look(accrt.Bundle(tmp_path / "m.accx", instance), source, rank, 4)
        own = np.zeros(array.shape, bool)
        if axis == 0:
            own[indices(segments, 4, rank)] = True
        else:
            own[:, indices(segments, 4, rank)] = True
        wanted = np.repeat(own.ravel(), 4)
        read = np.zeros(len(image), int)
        for begin, end in source.reads:
            read[begin:end] += 1
        assert np.array_equal(read[len(image) - array.nbytes:], wanted.astype(int)), "each byte once, and no other"
        assert not read[:len(image) - array.nbytes].any()
        owned += read
        assert got.tobytes() == np.take(array, indices(segments, 4, rank), axis).tobytes()
    assert owned[len(image) - array.nbytes:].min() == 1


def test_digest_is_of_the_full_tensor(tmp_path, instance):
    import xxhash
    array = np.arange(32, dtype=np.float32).reshape(4, 8)
    sharded(tmp_path / "m.accx", "w", "f32", [4, 8], 2, 1, [bw.Segment(0, 8)], digest=xxhash.xxh3_128(array.tobytes()).digest())
    bundle = accrt.Bundle(tmp_path / "m.accx", instance)
    for rank in range(2):
        assert look(bundle, accrt.Weights(safetensors_bytes({"w": array}), instance), rank, 2)[0].tobytes() == \
            array[:, 4 * rank:4 * rank + 4].tobytes()
    other = array.copy()
    other[0, 7] = 1  # a byte of rank 1: rank 0 finds it too
    source = accrt.Weights(safetensors_bytes({"w": other}), instance)
    with pytest.raises(accrt.DataCorruptError, match="'w'"):
        look(bundle, source, 0, 2)
    assert look(bundle, source, 0, 2, by_name=True)[0].tobytes() == array[:, :4].tobytes()


def test_load_weights(tmp_path, instance):
    one, two = (np.arange(8, dtype=np.float32) + x for x in (0, 100))
    sharded(tmp_path / "m.accx", "w", "f32", [8], 2, 0, [bw.Segment(0, 8)])
    program = accrt.Bundle(tmp_path / "m.accx", instance).program(weights=accrt.Weights(safetensors_bytes({"w": one}), instance), rank=1, degree=2)
    session = program.session()
    assert np.array_equal(np.asarray(session.look()).view(np.float32), one[4:])
    program.load_weights(accrt.Weights(safetensors_bytes({"w": two}), instance))
    assert np.array_equal(np.asarray(session.look()).view(np.float32), two[4:])


def test_refusals(tmp_path, instance):
    array = np.arange(32, dtype=np.float32).reshape(8, 4)
    sharded(tmp_path / "m.accx", "w", "f32", [8, 4], 2, 0, [bw.Segment(0, 8)])
    bundle = accrt.Bundle(tmp_path / "m.accx", instance)
    good = accrt.Weights(safetensors_bytes({"w": array}), instance)
    with pytest.raises(accrt.InvalidArgumentError, match=r"made for a degree of 2 \('w' has 4 of 8\): rank 0 of degree 0 \(none given\)"):
        bundle.program(weights=good)
    with pytest.raises(accrt.InvalidArgumentError, match=r"made for a degree of 2 \('w' has 4 of 8\): rank 1 of degree 4"):
        bundle.program(weights=good, rank=1, degree=4)
    with pytest.raises(accrt.InvalidArgumentError, match=r"rank 1 of degree 0"):
        bundle.program(weights=good, rank=1)
    with pytest.raises(accrt.OutOfRangeError, match="rank 2 of 2 ranks"):
        bundle.program(weights=good, rank=2, degree=2)
    for shape in ((4, 4), (16, 4)):  # one that is a part already, and one of another model
        with pytest.raises(accrt.ShapeMismatchError, match=rf"rank 1 of 2 \(which has 4 of 8 along axis 0\).*'w' is f32\[8, 4\].*f32\[{shape[0]}, 4\]"):
            bundle.program(weights=accrt.Weights(safetensors_bytes({"w": np.zeros(shape, np.float32)}), instance), rank=1, degree=2)
    path = tmp_path / "whole.accx"
    whole = bw.BundleWriter()
    f = whole.function("look")
    f.body.fill(f.result("y", "f32", [4]).write())
    whole.write(path)
    accrt.Bundle(path, instance).program(rank=0, degree=1)
    with pytest.raises(accrt.InvalidArgumentError, match="made for a degree of 1: rank 0 of degree 2"):
        accrt.Bundle(path, instance).program(degree=2)


def test_group_index_is_not_cut(tmp_path, instance):
    """Indices of groups are those of the full tensor: along K they would point elsewhere. Along N
    all ranks have them all."""
    shape, group = [4, 64], 32
    parts = {"data": ("u4", 128), "scales": ("f32", 32), "group_index": ("i32", 256)}
    pack = bw.BundleWriter()
    data = {r: (np.arange(n, dtype=np.uint8) if r != "group_index" else np.repeat(np.arange(2, dtype=np.int32), 32), d)
            for r, (d, n) in parts.items()}
    encoding = bw.Encoding.I4_GROUP
    pack.constant("w", data, dtype="f32", shape=shape, encoding=encoding, group_elements=group)
    pack.write(tmp_path / "pack.accx")
    source = accrt.Weights(tmp_path / "pack.accx", instance)
    how = {"encoding": encoding, "group_elements": group, "components": {r: d for r, (d, _) in parts.items()}}
    sharded(tmp_path / "k.accx", "w", "f32", shape, 2, 1, [bw.Segment(0, 64)], **how)
    with pytest.raises(accrt.UnsupportedError, match=r"'w' \(i4_group\): its component of role 3 cannot be cut along axis 1 for 2 ranks"):
        look(accrt.Bundle(tmp_path / "k.accx", instance), source, 0, 2)
    sharded(tmp_path / "n.accx", "w", "f32", shape, 2, 0, [bw.Segment(0, 4)], **how)
    got = look(accrt.Bundle(tmp_path / "n.accx", instance), source, 1, 2)
    assert got[0].tobytes() == bytes(range(64, 128)) and got[2].tobytes() == data["group_index"][0].tobytes()


@needs_stand_in
@pytest.mark.skipif(DEVICE != "host", reason="this is it")
def test_on_a_device_with_memory_of_its_own():
    """All of the above that reads weights, where they are uploaded: under the stand-in for CUDA's
    driver."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "plain or quantized or replicated or reads or digest",
               str(ROOT / "tests/python/test_shards.py"), str(ROOT / "tests/python/test_adapters.py") + "::test_scaling_is_one_rounded_product"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 60, done.stdout
