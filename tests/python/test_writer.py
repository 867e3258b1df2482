"""The public bundle writer: canonical bytes, errors in the author's terms, every structure as an
independent reader sees it."""

from __future__ import annotations

import importlib.util
import io
import os
import pathlib
import random
import struct
import subprocess
import sys

import numpy as np
import pytest

import accx_exec
import kernel_harness as kh
from accrt import bundle_writer as bw
from random_bundles import elf

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "scale_add.py"


def scale_add():
    """The bundle of tests/golden/scale_add.py, made by the writer alone."""
    spec = importlib.util.spec_from_file_location("golden_scale_add", GOLDEN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.build().to_bytes()


@pytest.fixture(scope="module")
def golden():
    _module, data = scale_add()
    return accx_exec.Program(data, kh.host_targets()[-1])


def test_hand_written_kernel_runs(golden):
    session = accx_exec.Session(golden)
    x, y = np.arange(2000, dtype=np.float32), np.ones(2000, np.float32)
    session.run("scale_add", x, y)
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_prepared_weight(golden):
    (y,) = accx_exec.Session(golden).run("weighted", np.ones(16, np.float32))
    np.testing.assert_array_equal(y, 2 + 2 * np.arange(16, dtype=np.float32))


def test_repeat_branch_call_and_optional_input(golden):
    session = accx_exec.Session(golden)
    y = np.ones(7, np.float32)
    session.run("steps", np.ones(7, np.float32), y, count=5)
    np.testing.assert_array_equal(y, 6)
    session.run("gated", np.ones(7, np.float32), y, np.ones(7, np.float32), flag=0)
    np.testing.assert_array_equal(y, 7)
    session.run("gated", np.ones(7, np.float32), y, None, flag=0)
    np.testing.assert_array_equal(y, 7)
    session.run("gated", np.ones(7, np.float32), y, None, flag=1)
    np.testing.assert_array_equal(y, 9)


def test_state_is_kept_and_apart(golden):
    a, b = accx_exec.Session(golden), accx_exec.Session(golden)
    for expected in (1, 2, 3):
        assert (a.run("count", np.ones(16, np.float32))[0] == expected).all()
    assert (b.run("count", np.ones(16, np.float32))[0] == 1).all()


# ---- Canonical encoding ----


def small(order: random.Random) -> bytes:
    """One content, declared in an order that the generator chooses."""
    b = bw.BundleWriter()
    names = ["n", "m", "k"]
    order.shuffle(names)
    symbols = {name: b.symbol(name, maximum=100, divisor=1 + len(name)) for name in names}
    parts = [
        lambda: b.metadata("z", "1"), lambda: b.metadata("a", "2"),
        lambda: b.constant("w1", np.arange(5, dtype=np.float32)), lambda: b.constant("w0", np.arange(300, dtype=np.int64)),
        lambda: b.state("s1", "f32", [4]), lambda: b.state("s0", "i8", [3, 2], fill_pattern=7),
        lambda: b.image("image.b", elf()), lambda: b.image("image.a", elf() + b"A" * 5000),
    ]  # fmt: skip
    order.shuffle(parts)
    for part in parts:
        part()
    images = {image.name: image for image in b._images}
    kernels = ["copy", "add"]
    order.shuffle(kernels)
    for name in kernels:
        b.kernel(name, [bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "write"), bw.Parameter("n", "symbol")])
    predicates = [bw.Predicate("divisible", "n", 4), bw.Predicate("aligned", "x", 64), bw.Predicate("at_most", "n", 50)]
    for name in ("copy", "add"):
        order.shuffle(predicates)
        b._kernels[name].variant(images["image.b"], arch="x86-64-v4", predicates=list(predicates))
        b._kernels[name].variant(images["image.a"], arch="x86-64-v3")
    functions = ["f", "g"]
    order.shuffle(functions)
    for name in functions:
        f = b.function(name)
        n, m, k = symbols["n"], symbols["m"], symbols["k"]
        x, y = f.input("x", "f32", [n, m]), f.result("y", "f32", [n, m])
        f.scalar("k", k)
        arena = f.transient(n * m * 4 + k)
        weights = [f.constant(b._constants["w1"]), f.constant(b._constants["w0"])]
        first = f.body.dispatch(b._kernels["copy"], {"x": x.read(0, n * m * 4), "y": arena.write(0, n * m * 4), "n": n * m}, (n, 1, 1))
        second = f.body.dispatch(b._kernels["add"], {"x": weights[0].read(), "y": y.write(0, 20), "n": m * k + n})
        third = f.body.dispatch(b._kernels["add"], {"x": weights[1].read(0, 8), "y": y.write(0, 20), "n": 5}, after=[second, first])
        f.body.copy(arena.read(4), f.state(b._states["s1"]).write(), 8, after=[third])
    return b.to_bytes()


def test_equal_content_gives_equal_bytes():
    made = {small(random.Random(seed)) for seed in range(12)}
    assert len(made) == 1
    accx_exec.Bundle(made.pop())


def test_bytes_and_files_agree(tmp_path):
    module, data = scale_add()
    path = tmp_path / "a.accx"
    module.build().write(path)
    assert path.read_bytes() == data
    stream = io.BytesIO(b"before")
    stream.seek(6)
    module.build().write(stream)
    assert stream.getvalue() == b"before" + data
    assert [p.name for p in tmp_path.iterdir()] == ["a.accx"]


def test_writing_twice_gives_the_same():
    module, data = scale_add()
    bundle = module.build()
    assert bundle.to_bytes() == bundle.to_bytes() == data


def test_nothing_is_left_when_writing_fails(tmp_path):
    bundle = bw.BundleWriter()
    bundle.prepared("p", 8)
    with pytest.raises(bw.BundleError, match="no prepare function makes 'p'"):
        bundle.write(tmp_path / "a.accx")
    assert not list(tmp_path.iterdir())


def test_every_flipped_byte_is_noticed():
    """Each byte of a small file is covered by a digest, by a rule, or by both."""
    data = small(random.Random(0))
    generator = random.Random(kh.SEED)
    print("seed", kh.SEED)
    for at in [*range(0, 128), *generator.sample(range(128, len(data)), 400)]:
        broken = bytearray(data)
        broken[at] ^= 1 << generator.randrange(8)
        with pytest.raises((accx_exec.FormatError, struct.error, ValueError, IndexError, KeyError)):
            accx_exec.Bundle(bytes(broken))


def test_weights_lie_aligned_and_are_digested_in_chunks():
    b = bw.BundleWriter()
    arrays = {f"w{i}": np.random.default_rng(i).integers(0, 255, 700_001, np.uint8) for i in range(4)}
    arrays["empty"] = np.zeros((0, 3), np.float32)
    for name, array in arrays.items():
        b.constant(name, array)
    b.constant("bits", np.arange(3, dtype=np.uint16), dtype="bf16")
    parsed = accx_exec.Bundle(b.to_bytes())
    assert parsed.sections[63][0] % 4096 == 0 and parsed.sections[20][2] == 3
    for constant in parsed.constants:
        if constant["name"] in arrays:
            assert constant["bytes"] == arrays[constant["name"]].tobytes()
            assert constant["shape"] == arrays[constant["name"]].shape


def test_an_empty_bundle():
    parsed = accx_exec.Bundle(bw.BundleWriter().to_bytes())
    assert list(parsed.sections) == [1] and len(parsed.data) == 128 + 64 + 1


def test_declaring_needs_neither_library_nor_numpy():
    """Where the library is missing, a bundle can be declared, and writing it says in one line what
    is missing."""
    where = str(pathlib.Path(bw.__file__).resolve().parents[2])
    code = f"""import sys; sys.path.insert(0, {where!r})
from accrt import bundle_writer as bw
b = bw.BundleWriter()
b.constant("w", b"1234", dtype="f32", shape=(1,))
b.function("main").result("y", "f32", [b.symbol("n")])
assert not {{"numpy", "accrt._library"}} & set(sys.modules)
try: b.to_bytes()
except ImportError as error: print(error)
"""
    environment = {**os.environ, "ACCRT_LIBRARY": "/nonexistent/libaccrt.so"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.startswith("libaccrt.so was not found; set ACCRT_LIBRARY") and done.stdout.count("\n") == 1, done


class Sink(io.RawIOBase):
    """Takes a few bytes at a time, and tries to keep what it was given."""

    def __init__(self):
        self.stream, self.given = io.BytesIO(), []

    def write(self, data):
        self.given.append(data)
        return self.stream.write(data[: 7919 if len(data) > 7919 else len(data)])

    def seek(self, *arguments):
        return self.stream.seek(*arguments)

    def tell(self):
        return self.stream.tell()


def test_files_that_take_little_and_keep_what_they_get():
    b = bw.BundleWriter()
    b.constant("w", np.arange(1 << 18, dtype=np.float32))
    sink = Sink()
    b.write(sink)
    assert sink.stream.getvalue() == b.to_bytes()
    with pytest.raises(ValueError):  # memory of the writer, which may be gone
        bytes(sink.given[0])


def test_what_a_file_raises_comes_back():
    class Full(io.BytesIO):
        def write(self, data):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bw.BundleWriter().write(Full())
    with pytest.raises(FileNotFoundError, match="nowhere/a.accx"):
        bw.BundleWriter().write("/nowhere/a.accx")
    with pytest.raises(ValueError, match="null byte"):
        bw.BundleWriter().write("/tmp/a\0.accx")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_weights_are_written_in_little_memory(tmp_path):
    """A file of 1 GiB, mapped: writing it copies no weight."""
    source = tmp_path / "weights.bin"
    with open(source, "wb") as file:
        file.truncate(1 << 30)
    code = f"""
import mmap, re, sys
from accrt import bundle_writer as bw
b = bw.BundleWriter()
with open({str(source)!r}, "rb") as file:
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
b.constant("w", data, dtype="u8", shape=(1 << 30,))
b.to_bytes and bw.BundleWriter().to_bytes()
memory = lambda: sum(int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1]) for name in ("RssAnon",))
class Null:
    at = most = 0
    def tell(self): return self.at
    def seek(self, at): self.at = at
    def write(self, data): self.at += len(data); Null.most = max(Null.most, memory())
before = memory()
b.write(Null())
print(Null.most - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert int(done.stdout) < 16 << 10, f"{done.stdout} KiB"


# ---- Several kinds of device ----


def two_targets(order):
    """A function for any device and a version of it for cuda, which calls a version of its own and
    uses a constant."""
    b = bw.BundleWriter()
    n = b.symbol("n", maximum=100)
    w = b.constant("w", np.arange(4, dtype=np.float32))
    kernel = b.kernel("k", [bw.Parameter("y", "buffer", "write"), bw.Parameter("n", "symbol")])
    kernel.variant(b.image("host", elf()), arch_kind="portable")
    kernel.variant(b.image("cubin", b"cubin", bw.ImageKind.CUBIN), driver="cuda", arch="sm_90", arch_kind="family", block=128)
    kernel.variant(b.image("ptx", b"ptx\0", bw.ImageKind.PTX), driver="cuda", arch="sm_80", arch_kind="portable",
                   block=(16, 8), cluster=(2, 2), dynamic_shared_bytes=100_000, launch_traits=bw.TRAIT_OVERLAPS_PREVIOUS)
    kernel.variant(b.pack("accrt.test"), driver="cuda", arch_kind="portable", entry="operator", priority=1)
    parts = {}
    targets = ["", "cuda"]
    order.shuffle(targets)
    for target in targets:
        part = parts[target] = b.function("part", internal=True, target=target)
        y = part.result("y", "f32", [n])
        part.scalar("n", n)
        part.body.dispatch(kernel, {"y": y.write(), "n": n})
        main = b.function("main", target=target, doc=target)
        _x, y = main.input("x", "f32", [n, n * 2]), main.result("y", "f32", [n])
        if target:
            main.body.copy(main.constant(w).read(), y.write(), 4)
        main.body.call(part, {"y": y.write(0, n * 4), "n": n})
    return b


def test_functions_for_several_targets():
    made = {two_targets(random.Random(seed)).to_bytes() for seed in range(4)}
    assert len(made) == 1
    bundle = accx_exec.Bundle(made.pop())
    assert [(f.name, f.target) for f in bundle.functions] == [("part", ""), ("part", "cuda"), ("main", ""), ("main", "cuda")]
    assert bundle.function("main").target == "" and len(bundle.function("main").slots) == 2
    assert bundle.versions == (0, 2, 0, 1, 0, 2, 0, 1)
    assert bundle.launches == [(1, 0, 128, 1, 1, 0, 0, 0, 0, 0), (2, 64, 16, 8, 1, 2, 2, 1, 100_000, 0)]
    assert [kind for kind, *_ in bundle.images] == [5, 2, 1, 3] and bundle.images[0][2:] == (0, 0)


def test_versions_are_the_least_that_is_needed():
    b = bw.BundleWriter()
    assert accx_exec.Bundle(b.to_bytes()).versions == (0, 1) * 4
    b.function("f", target="cuda")
    assert accx_exec.Bundle(b.to_bytes()).versions == (0, 2, 0, 1, 0, 1, 0, 1)
    b.kernel("k", []).variant(b.pack("p"), arch_kind="portable")
    assert accx_exec.Bundle(b.to_bytes()).versions == (0, 2, 0, 1, 0, 2, 0, 1)


def test_a_pack_is_one_image():
    b = bw.BundleWriter()
    assert b.pack("a.b") is b.pack("a.b")
    assert b.pack("a.c") is not b.pack("a.b")


# ---- Mistakes ----


class Parts:
    """A bundle with one of everything, for making mistakes with."""

    def __init__(self):
        self.b = bw.BundleWriter()
        self.n = self.b.symbol("n")
        self.image = self.b.image("i", elf())
        self.kernel = self.b.kernel(
            "k", [bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "write", optional=True),
                  bw.Parameter("n", "symbol"), bw.Parameter("a", "scalar", size_bytes=4)]
        )  # fmt: skip
        self.kernel.variant(self.image, arch="x86-64-v3")
        self.f = self.b.function("f")
        self.x, self.y = self.f.input("x", "f32", [self.n]), self.f.result("y", "f32", [self.n])
        self.args = {"x": self.x.read(), "y": self.y.write(), "n": self.n, "a": 1.0}

    def cubin(self, driver="cuda", **launch):
        return self.kernel.variant(self.b.image("c", b"c", bw.ImageKind.CUBIN), driver=driver, arch="sm_90", **launch)

    def callee(self):
        g = self.b.function("g")
        g.input("x", "f32", [self.n]), g.result("y", "f32", [self.n])
        return g

    def tensor(self, shape):
        return self.f.body.dispatch(self.b.kernel("t", [bw.Parameter("x", "tensor", "read")]), {"x": self.x.read().tensor("f32", shape, [1] * len(shape))})

    def dispatch(self, **changes):
        return self.f.body.dispatch(self.kernel, {**self.args, **changes})


MISTAKES = [
    (lambda p: p.dispatch(z=1), r"kernel 'k'.*no parameter 'z'"),
    (lambda p: p.dispatch(x=None), r"function 'f', command 0.*kernel 'k'.*parameter 'x'.*no argument"),
    (lambda p: p.dispatch(x=p.x.write()), r"parameter 'x': the kernel declares read, the range is for write"),
    (lambda p: p.dispatch(y=p.x.write()), r"input 'x' is read only"),
    (lambda p: p.dispatch(x=5), r"parameter 'x': a buffer needs a Range, not int"),
    (lambda p: p.dispatch(a="1"), r"parameter 'a'"),
    (lambda p: p.dispatch(a=1 << 40), r"parameter 'a': .* does not fit 4 bytes"),
    (lambda p: p.dispatch(n="n"), r"must be an integer or an expression"),
    (lambda p: p.dispatch(x=p.b.function("g").input("x", "f32", [1]).read()), r"belongs to another function"),
    (lambda p: p.dispatch(y=p.f.constant(p.b.constant("w", b"1234")).write()), r"constant 'w' is read only"),
    (lambda p: p.f.body.dispatch(p.kernel, p.args, (1, 1)), r"grid needs three sizes"),
    (lambda p: p.f.body.dispatch(p.kernel, p.args, after=[p.b.function("g").body.barrier()]), r"earlier command of the same block"),
    (lambda p: p.f.input("x", "f32", [1]), r"function 'f', input 'x'.*twice"),
    (lambda p: p.f.input("q", "f33", [1]), r"input 'q': no data type 'f33'"),
    (lambda p: p.f.input("q", "f32", [1] * 9), r"rank 9"),
    (lambda p: p.f.input("q", "f32", [1], access="write"), r"no access 'write'"),
    (lambda p: p.f.scalar("q", bw.constant(3)), r"scalar 'q': 3 is no symbol"),
    (lambda p: p.f.result("z", "f32", [1], alias=p.x), r"input 'x' is read only"),
    (lambda p: p.f.result("z", "f32", [1], alias="x"), r"result 'z': alias is 'x'; it must be what input\(\) returned"),
    (lambda p: p.b.symbol("n"), r"two symbols named 'n'"),
    (lambda p: p.b.symbol("m", minimum=5, maximum=4), r"symbol 'm': range \[5, 4\]"),
    (lambda p: p.b.symbol("m", maximum=1.5), r"symbol 'm': maximum is 1.5; it is a whole number"),
    (lambda p: p.b.kernel("m", [], traits=-1), r"kernel 'm': traits \(.*\) is -1; it is a whole number from 0 to 31"),
    (lambda p: p.b.kernel("m", [], traits=32), r"kernel 'm': traits \(TRAIT_\*, without those of launches\) is 32"),
    (lambda p: p.b.kernel("m" * 1024, []), r"kernel 'm*'...: a name has at most 1023 bytes"),
    (lambda p: p.b.function("m" * 1024), r"function 'm*'...: a name has at most 1023 bytes"),
    (lambda p: p.f.input("m" * 1024, "f32", [1]), r"function 'f', input 'm*'...: a name has at most 1023 bytes"),
    (lambda p: p.f.result("\u00e9" * 512, "f32", [1]), r"function 'f', result '\u00e9*'...: a name has at most 1023 bytes"),
    (lambda p: p.b.external("m", "f32", [1], tensor="m" * 1024), r"constant 'm', tensor 'm*'...: a name has at most 1023 bytes"),
    (lambda p: p.b.symbol("m", minimum=5, maximum=7, divisor=4), r"symbol 'm': range \[5, 7\] in multiples of 4, with none in it"),
    (lambda p: p.b.kernel("m", [], traits="serial"), r"kernel 'm': traits \(.*\) is 'serial'"),
    (lambda p: p.b.kernel("m", [], local_memory_bytes=1 << 32), r"kernel 'm': local_memory_bytes is 4294967296"),
    (lambda p: p.kernel.variant(p.b.image("m", b"m"), arch="x86-64", priority=1 << 31), r"kernel 'k', variant for host 'x86-64': priority is 2147483648"),
    (lambda p: p.kernel.variant(p.b.image("m", b"m"), arch="x86-64", cpu_features=1 << 64), r"cpu_features is 18446744073709551616"),
    (lambda p: p.kernel.variant(p.b.image("m", b"m"), arch="x86-64", required_features="x"), r"required_features is 'x'"),
    (lambda p: p.b.image("m", "m.so"), r"image 'm': its bytes are needed, not 'm.so'"),
    (lambda p: p.f.body.fill(p.y.write(), 1.5), r"command 0 \(fill ''\): pattern is 1.5; it is a whole number"),
    (lambda p: p.b.symbol("m", bw.SymbolClass.BUCKET, maximum=9), r"symbol 'm': BUCKET symbols have buckets"),
    (lambda p: p.b.symbol("m", bw.SymbolClass.BUCKET, maximum=9, buckets=[4, 8]), r"must ascend and reach the maximum 9"),
    (lambda p: p.b.constant("w", b"123", dtype="f32", shape=[1]), r"constant 'w': 3 bytes for f32 \[1\], which has 4"),
    (lambda p: p.b.constant("w", np.zeros((4, 4), np.float32)[:, 1]), r"constant 'w': .*not contiguous"),
    (lambda p: p.b.constant("w", np.zeros(2, np.complex64)), r"constant 'w': no data type for buffer format"),
    (lambda p: p.b.image("i", b"x"), r"image 'i'.*used twice"),
    (lambda p: p.b.image("ptx", b"x", bw.ImageKind.PTX), r"PTX ends with a NUL"),
    (lambda p: p.kernel.variant(p.image), r"kernel 'k', variant for host ''"),
    (lambda p: p.kernel.variant(p.image, arch="a", cpu_features=["avx9"]), r"no CPU feature 'avx9'"),
    (lambda p: p.kernel.variant(p.image, arch="a", predicates=[bw.Predicate("equal", "q", 1)]), r"parameter 'q'"),
    (lambda p: p.kernel.variant(p.image, arch="a", predicates=[bw.Predicate("aligned", "n", 8)]), r"aligned is not for 'n', a symbol"),
    (lambda p: p.b.kernel("l", [bw.Parameter("x", "buffer")]), r"kernel 'l', parameter 'x': a buffer with access 'none'"),
    (lambda p: p.b.kernel("l", [bw.Parameter("x", "scalar", size_bytes=3)]), r"scalar of 3 bytes"),
    (lambda p: p.b.kernel("l", [bw.Parameter(f"p{i}", "symbol") for i in range(65)]), r"65 parameters"),
    (lambda p: p.f.body.fill(p.y.write(), 300, 1), r"pattern 300 of 1 bytes"),
    (lambda p: p.f.body.copy(p.x.read(), p.y.write(0, 4), 4), r"without a size"),
    (lambda p: p.f.body.call(p.b.function("g"), {"x": 1}), r"call of 'g'.*no argument 'x'"),
    (lambda p: bool(p.n < 3), None),
    (lambda p: p.b.state("s", "f32", [2], fill_pattern=1 << 33), r"state 's'"),
    (lambda p: p.f.present(p.x), r"no optional input"),
    (lambda p: p.b.function("f"), r"function 'f' for any driver.*there is one already"),
    (lambda p: [p.b.function("f", target=f"t{i}") for i in range(16)], r"function 'f': more than 16 targets"),
    (lambda p: p.b.image("p", b"", bw.ImageKind.PACK), r"name it with pack\(\)"),
    (lambda p: p.b.pack("../evil"), r"pack '../evil': a name is letters"),
    (lambda p: p.b.pack(".hidden"), r"pack '.hidden': a name is letters"),
    (lambda p: p.b.pack("i"), r"pack 'i': an image has this name"),
    (lambda p: p.kernel.variant(p.image, arch="a", block=4), r"image 'i' is of kind HOST_ELF, which is not launched in blocks"),
    (lambda p: p.cubin(), r"device code needs block="),
    (lambda p: p.cubin(block=2048), r"block 2048: .* at most 1024"),
    (lambda p: p.cubin(block=(8, 0)), r"block \(8, 0\): "),
    (lambda p: p.cubin(block=(8, 8, 8, 8)), r"block \(8, 8, 8, 8\): one to three"),
    (lambda p: p.cubin(block=8, cluster=65), r"cluster 65: .* at most 64"),
    (lambda p: p.cubin(block=8, dynamic_shared_bytes=-1), r"-1 bytes of dynamic shared memory"),
    (lambda p: p.cubin(block=8, launch_traits=bw.TRAIT_SERIAL), r"launch traits 0x10"),
    (lambda p: p.cubin(block=8, driver="host"), r"image 'c' is of kind CUBIN; the host runs HOST_ELF and PACK"),
    (lambda p: p.f.source("w", p.b.constant("w", b"1")), r"prepare functions read constants"),
    (lambda p: p.dispatch(x=p.x.read(-4)), r"function 'f', command 0 \(dispatch of kernel 'k'\), parameter 'x': the offset in 'x' is -4, which is neg"),
    (lambda p: p.dispatch(y=p.y.write(0, -8)), r"function 'f', command 0 .*parameter 'y': the size of the range of 'y' is -8, which is negative"),
    (lambda p: p.f.body.dispatch(p.kernel, p.args, (1, -2, 1)), r"command 0 .*kernel 'k'\): y of the grid is -2, which is negative"),
    (lambda p: p.f.body.fill(p.y.write(-1), name="z"), r"function 'f', command 0 \(fill 'z'\): the offset in 'y' is -1"),
    (lambda p: p.f.body.fill(p.f.transient(64).write(0, -1)), r"command 0 \(fill ''\): the size of the range of 'transient memory' is -1"),
    (lambda p: p.f.body.copy(p.x.read(-4), p.y.write(), 4), r"command 0 \(copy ''\): the offset in 'x' is -4"),
    (lambda p: p.f.body.copy(p.x.read(), p.y.write(), (4, -2), (4,), (4,)), r"command 0 \(copy ''\): extent 1 is -2"),
    (lambda p: p.f.body.copy(p.x.read(), p.y.write(), (4, 2), (4,), (-4,)), r"command 0 \(copy ''\): stride 0 of the target is -4"),
    (lambda p: p.f.body.call(p.callee(), {"x": p.x.read(-4), "y": p.y.write()}), r"command 0 \(call of 'g'\), argument 'x': the offset in 'x' is -4"),
    (lambda p: p.f.body.repeat(-1, name="l"), r"function 'f', command 0 \(repeat 'l'\): the count is -1"),
    (lambda p: p.f.body.repeat(1).body.fill(p.y.write(bw.constant(-1))), r"the offset in 'y' is -1"),
    (lambda p: p.f.transient(-256), r"function 'f': the size of its transient memory is -256"),
    (lambda p: p.f.input("q", "f32", [p.n, -1]), r"function 'f', input 'q': dimension 1 is -1"),
    (lambda p: p.f.result("q", "f32", [-1]), r"function 'f', result 'q': dimension 0 is -1"),
    (lambda p: p.b.state("s", "f32", [2, -2]), r"state 's': dimension 1 is -2"),
    (lambda p: p.tensor([4, -1]), r"function 'f', command 0 \(dispatch of kernel 't'\), parameter 'x': dimension 1 of the tensor is -1"),
]


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_mistake(index):
    mistake, message = MISTAKES[index]
    with pytest.raises((bw.BundleError, TypeError) if message is None else bw.BundleError, match=message):
        mistake(Parts())


LATE = [
    (lambda p: p.b.function("g").body.dispatch(p.kernel, {"x": p.b._functions["g", ""].input("x", "f32", [4]).read(), "n": p.n, "a": 1}),
     r"functions\[1\]: 'g' needs symbol 'n', but no input has it as a dimension and no scalar gives it"),
    (lambda p: p.b.state("s", "f32", [p.n]), r"state 's': a dimension depends on symbol 'n', which is of class SPECIALIZE"),
    (lambda p: p.b.kernel("l", []), r"kernels\[1\].variant_count: 'l' has no variant"),
    (lambda p: p.f.body.call(p.f, {"x": p.x.read(), "y": p.y.write()}), r"function 'f': it calls itself"),
    (lambda p: p.b.function("g", prepare=True), r"prepare function 'g' makes nothing"),
    (lambda p: p.dispatch(n=Parts().b.symbol("elsewhere")), r"symbol 'elsewhere' is not declared"),
    (lambda p: p.b.metadata("a", "x\0y"), r"may not hold NUL"),
    (lambda p: p.b.metadata("a", "x" * 65536), r"metadata key 'a': the value has 65536 bytes; the limit is 65535"),
    (lambda p: p.b.metadata("a", 5), r"5 stands where a text is"), (lambda p: p.b.metadata("a", "\ud800"), r"'\\ud800' stands where a text is"),
    (lambda p: p.b.function("f", target="cuda").input("x", "f32", [p.n]), r"'f' for 'cuda' differs from function 0 for ''"),
    (lambda p: p.f.body.call(p.b.function("g", target="cuda"), {}), r"function 'f', command 0 \(call 'g'\): the function is for 'cuda'; only functions without a target"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(LATE)))
def test_mistake_that_shows_when_writing(index):
    mistake, message = LATE[index]
    parts = Parts()
    mistake(parts)
    with pytest.raises(bw.BundleError, match=message):
        parts.b.to_bytes()
