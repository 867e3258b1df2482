#!/usr/bin/env python3
"""Makes the bundles that the C tests of programs, sessions and calls run.

    python3 tests/bundles/make.py FOLDER [COMPILER]

Code is compiled for this machine from kernels.c. `program.accx` has one function for each thing to
be shown; the others are refused by accrt_program_create, each for the reason in its name.
"""

import array
import pathlib
import subprocess
import sys
import tempfile

import xxhash

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", "-fno-stack-protector",
         "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--no-undefined"]  # fmt: skip


sys.path.insert(0, str(ROOT / "python"))
from accrt import bundle_writer as bw  # noqa: E402

P = bw.Parameter
Class = bw.SymbolClass


def compile_image(compiler, *defines):
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "image.so")
        source = pathlib.Path(__file__).with_name("kernels.c")
        subprocess.run([compiler, *FLAGS, *defines, f"-I{ROOT / 'include'}", str(source), "-o", str(target)], check=True)
        return target.read_bytes()


PARAMETERS = {
    "empty": [],
    "affine": [P("x", "buffer", "read"), P("y", "buffer", "write"), P("alpha", "scalar", size_bytes=4),
               P("beta", "scalar", size_bytes=4), P("n", "symbol")],
    "add": [P("x", "buffer", "read"), P("y", "buffer", "read", optional=True), P("z", "buffer", "write"), P("n", "symbol")],
    "fail": [P("code", "symbol")],
    "iota": [P("y", "buffer", "write"), P("first", "symbol"), P("count", "symbol")],
    "digit": [P("y", "buffer", "read_write"), P("digit", "symbol")],
    "total": [P("x", "tensor", "read"), P("y", "buffer", "write")],
    "scratch": [P("scratch", "workspace"), P("y", "buffer", "write"), P("size", "symbol")],
    "which": [P("y", "buffer", "write"), P("x", "buffer", "read"), P("n", "symbol"), P("mode", "scalar", size_bytes=4)],
    "reverse": [P("x", "buffer", "read"), P("y", "buffer", "write"), P("n", "symbol")],
}  # fmt: skip
TRAITS = {"scratch": bw.TRAIT_DETERMINISTIC | 1 << 2}
LOCAL = {"reverse": 64}
BLOCKS = {"affine": 64, "add": 32, "iota": 32, "digit": 32, "reverse": 16}
ON_CUDA = {"driver": "cuda", "arch_kind": "portable", "arch": "sm_80"}


def declare(bundle, name):
    return bundle.kernel(name, PARAMETERS[name], traits=TRAITS.get(name, bw.TRAIT_DETERMINISTIC), local_memory_bytes=LOCAL.get(name, 0))


class Kernels:
    """The kernels of kernels.c, each portable among hosts; with `device`, the PTX of kernels.cu,
    for GPUs too."""

    def __init__(self, bundle, first, second, device=None):
        for name in PARAMETERS:
            kernel = declare(bundle, name)
            setattr(self, name, kernel)
            if name == "which":
                self.add_choices(kernel, first, second, device)
                continue
            kernel.variant(first, arch_kind="portable")
            if device:
                kernel.variant(device, **ON_CUDA, block=BLOCKS.get(name, 1), dynamic_shared_bytes=LOCAL.get(name, 0))

    @staticmethod
    def add_choices(kernel, first, second, device):
        """The second image where every predicate is proved, else the first for modes up to 9; no
        other."""
        proved = [bw.Predicate("divisible", "n", 8), bw.Predicate("aligned", "x", 16), bw.Predicate("at_least", "n", 16),
                  bw.Predicate("at_most", "n", 64), bw.Predicate("equal", "mode", 3)]  # fmt: skip
        kernel.variant(second, arch_kind="portable", priority=1, predicates=proved)
        kernel.variant(first, arch_kind="portable", predicates=[bw.Predicate("at_most", "mode", 9)])
        if device:
            kernel.variant(device, **ON_CUDA, block=1, entry="which_second", priority=1, predicates=proved)
            kernel.variant(device, **ON_CUDA, block=1, predicates=[bw.Predicate("at_most", "mode", 9)])


def add_simple(bundle, k, n):
    f = bundle.function("empty", doc="one kernel that does nothing")
    f.body.dispatch(k.empty, {})
    bundle.function("nothing", doc="no command at all")

    f = bundle.function("affine", doc="y = 2 x + 1")
    x, y = f.input("x", "f32", [n]), f.result("y", "f32", [n])
    f.body.dispatch(k.affine, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 2.0, "beta": 1.0, "n": n},
                    (bw.ceildiv(n, 64), 1, 1))  # fmt: skip

    f = bundle.function("inplace", doc="x = 2 x + 1, in place")
    x = f.input("x", "f32", [n], access="read_write")
    f.result("y", "f32", [n], alias=x, alias_kind=bw.AliasKind.MUST)
    f.body.dispatch(k.affine, {"x": x.read(0, n * 4), "y": x.write(0, n * 4), "alpha": 2.0, "beta": 1.0, "n": n},
                    (bw.ceildiv(n, 64), 1, 1))  # fmt: skip

    f = bundle.function("donate", doc="y = 2 x + 1, where y may lie in x")
    x = f.input("x", "f32", [n], access="donated")
    y = f.result("y", "f32", [n], alias=x, alias_kind=bw.AliasKind.MAY)
    f.body.dispatch(k.affine, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 2.0, "beta": 1.0, "n": n},
                    (bw.ceildiv(n, 64), 1, 1))  # fmt: skip

    f = bundle.function("add", doc="z = x + y, or x when y is not given; chosen says which")
    x, y = f.input("x", "f32", [n]), f.input("y", "f32", [n], optional=True)
    z, chosen = f.result("z", "f32", [n]), f.result("chosen", "i64", [1])
    f.body.dispatch(k.add, {"x": x.read(0, n * 4), "y": y.read(0, n * 4), "z": z.write(0, n * 4), "n": n})
    branch = f.body.branch(f.present(y))
    branch.then.dispatch(k.iota, {"y": chosen.write(), "first": 11, "count": 1})
    branch.otherwise.dispatch(k.iota, {"y": chosen.write(), "first": 22, "count": 1})


def add_shapes(bundle, k, n):
    b = bundle.symbol("b", Class.BUCKET, minimum=1, maximum=100, buckets=[16, 64, 128])
    m = bundle.symbol("m", minimum=8, maximum=64, divisor=8)
    d = bundle.symbol("d", maximum=10)
    f = bundle.function("bucket", doc="y = 2 x + 1 in two steps through transient memory")
    x, y = f.input("x", "f32", [b, 4]), f.result("y", "f32", [b, 4])
    t = f.transient(b * 16 + 256)
    size = b * 16
    first = f.body.dispatch(k.affine, {"x": x.read(0, size), "y": t.write(256, size), "alpha": 2.0, "beta": 0.0, "n": b * 4},
                            (bw.ceildiv(b * 4, 64), 1, 1))  # fmt: skip
    f.body.dispatch(k.affine, {"x": t.read(256, size), "y": y.write(0, size), "alpha": 1.0, "beta": 1.0, "n": b * 4},
                    (bw.ceildiv(b * 4, 64), 1, 1), after=[first])  # fmt: skip

    f = bundle.function("dims", doc="equality checks: nothing is computed")
    f.input("x", "f32", [n, 3])
    f.input("y", "f32", [n * 2])
    f.input("z", "f32", [m, n])
    f.input("w", "f32", [5], optional=True)
    f.result("r", "f32", [n + m])

    f = bundle.function("divide", doc="a grid of n / d")
    x = f.input("x", "f32", [n])
    f.scalar("d", d)
    y = f.result("y", "f32", [n])
    f.body.dispatch(k.affine, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 1.0, "beta": 0.0, "n": n}, (n // d, 1, 1))

    f = bundle.function("huge", doc="a result whose size does not fit")
    f.input("x", "u8", [n])
    f.result("y", "f64", [n * (1 << 40), 1 << 24])

    f = bundle.function("optional_symbol", doc="d is bound only when y is given")
    f.scalar("d", d, optional=True)
    y = f.result("y", "i64", [1])
    f.body.dispatch(k.iota, {"y": y.write(), "first": d, "count": 1})


def add_state(bundle, k, position, cap):
    cache = bundle.state("cache", "f32", [cap, 4], fill_pattern=0x3F800000)
    counter = bundle.state("counter", "i64", [1], fill_pattern=7)
    f = bundle.function("append", doc="writes a row of the cache, gives the sum of the rows up to it")
    v = f.input("v", "f32", [4])
    f.scalar("position", position)
    total = f.result("total", "f32", [1])
    state = f.state(cache)
    f.body.copy(v.read(), state.write(position * 16), 16, name="store")
    f.body.barrier()
    f.body.dispatch(k.total, {"x": state.read(0, (position + 1) * 16).tensor("f32", (position + 1, 4)), "y": total.write()})

    f = bundle.function("iota", doc="four numbers from position on")
    f.scalar("position", position)
    y = f.result("y", "i64", [4])
    f.body.dispatch(k.iota, {"y": y.write(), "first": position, "count": 4})

    f = bundle.function("count", doc="counter = counter * 10 + digit")
    f.scalar("digit", position)
    y = f.result("y", "i64", [1])
    state = f.state(counter)
    one = f.body.dispatch(k.digit, {"y": state.update(), "digit": position})
    f.body.copy(state.read(), y.write(), 8, after=[one])

    f = bundle.function("spread", doc="copies a row of the cache over the one before it: position 0 leaves the state")
    f.scalar("position", position)
    state = f.state(cache)
    f.body.copy(state.read(position * 16), state.write((position - 1) * 16), 16)

    f = bundle.function("overlap", doc="copies 32 bytes of the cache to offset position * 8: overlaps below 4")
    f.scalar("position", position)
    state = f.state(cache)
    f.body.copy(state.read(0), state.write(position * 8), 32)

    f = bundle.function("rows", doc="4 rows of 8 bytes to rows position * 4 bytes apart: they overlap below 2; then two proved ones")
    f.scalar("position", position)
    state = f.state(cache)
    t = f.transient(1024)
    f.body.copy(state.read(), t.write(), (8, 4), (16,), (position * 4,), name="onto")
    f.body.copy(state.read(), t.write(), (8, position), (0,), (8,), name="tight")
    f.body.copy(state.read(), t.write(), (4, position, 2), (0, 4), (8, 4), name="exchanged")

    f = bundle.function("planes", doc="2 x 2 rows of 8 bytes, planes position * 8 bytes apart: they overlap below 2")
    f.scalar("position", position)
    state = f.state(cache)
    t = f.transient(1024)
    f.body.copy(state.read(), t.write(), (8, 2, 2), (0, 0), (8, position * 8))

    f = bundle.function("onto", doc="position rows onto one: two and more overlap")
    f.scalar("position", position)
    state = f.state(cache)
    t = f.transient(1024)
    f.body.copy(state.read(), t.write(), (8, position), (0,), (0,))

    f = bundle.function("grid", doc="a grid of position - 5")
    f.scalar("position", position)
    f.body.dispatch(k.empty, {}, (position - 5, 1, 1))

    f = bundle.function("view", doc="a view that reaches past its range when position is above 3")
    f.scalar("position", position)
    y = f.result("y", "f32", [1])
    state = f.state(cache)
    f.body.dispatch(k.total, {"x": state.read(0, 64).tensor("f32", (position + 1, 4)), "y": y.write()})

    add_views(bundle, k, position, cache)

    f = bundle.function("fills", doc="fills position * 2 bytes of transient memory with a pattern of 4")
    f.scalar("position", position)
    t = f.transient(256)
    f.body.fill(t.write(0, position * 2), 5, 4)

    f = bundle.function("overflow", doc="an offset of position * 2^62")
    f.scalar("position", position)
    t = f.transient(256)
    f.body.fill(t.write((position * (1 << 61)) * 2, 0), 0, 1)


def add_views(bundle, k, position, cache):
    """Views whose strides are no constants, and views that walk backwards."""

    def view(name, doc, shape, strides, offset, size, dtype="f32"):
        f = bundle.function(name, doc=doc)
        f.scalar("position", position)
        y = f.result("y", "f32", [1])
        f.body.dispatch(k.total, {"x": f.state(cache).read(offset, size).tensor(dtype, shape, strides), "y": y.write()})

    same = (position + 1) // (position + 1)
    view("unproved_stride", "rows 16 elements apart, which nothing proves", (4, 4), (same * 16, 1), 0, 64)
    view("unproved_back", "rows 16 elements backwards", (4, 4), (1, same * -16), 64, 64)
    view("moving_stride", "rows (position - 8) * 4 elements apart, from byte 256 on", (4, 4), ((position - 8) * 4, 1), 256, 256)
    view("back", "four rows backwards from row position on", (4, 4), (-4, 1), position * 16, 16)
    view("back_nibbles", "two halves of a byte, backwards", (1, position), (1, -1), 1, 1, "u4")
    view("hollow_view", "no element, however far apart", (position - position, 4), (position * (1 << 40), -(1 << 50)), 0, 0)
    f = bundle.function("conditions", doc="position + 2 <= 8, twice; the first of a row's elements")
    f.scalar("position", position)
    y = f.result("y", "i64", [1])
    f.body.check(position, 2, 8, y, name="slice of 'x', dimension 1")
    f.body.check(position, 2, 8, y, name="the same again")
    f.body.check(3, 2, 5, y, name="numbers that hold")
    before = f.body.copy(y.read(), y.write(), (0, position, 40 - position), name="neither may be below 0")
    f.body.dispatch(k.iota, {"y": y.write(), "first": position, "count": 1}, after=[before])

    f = bundle.function("reach_back", internal=True, doc="a view that begins before its argument")
    x, y = f.input("x", "f32", [4]), f.result("y", "f32", [1])
    f.body.dispatch(k.total, {"x": x.read().tensor("f32", (2, 4), (-4, 1)), "y": y.write()})
    g = bundle.function("callee_back", doc="its argument is not the first row of the cache")
    g.scalar("position", position)
    y = g.result("y", "f32", [1])
    g.body.call(f, {"x": g.state(cache).read(position * 16, 16), "y": y.write(0, 4)})


def add_order(bundle, k, rounds, position):
    """Functions whose result says in which order commands ran."""
    f = bundle.function("order", doc="1 2 3 5 4 6 by predecessors, loops, branches and barriers")
    f.scalar("rounds", rounds)
    y = f.result("y", "i64", [1])
    y_all = lambda digit: {"y": y.update(), "digit": digit}  # noqa: E731
    zero = f.body.fill(y.write(0, 8), 0, 8)
    one = f.body.dispatch(k.digit, y_all(1), after=[zero])
    two = f.body.repeat(rounds, after=[one])
    two.body.dispatch(k.digit, y_all(bw.induction(0) + 2))
    choice = f.body.branch(bw.less(1, rounds), after=[two])
    choice.then.dispatch(k.digit, y_all(5))
    f.body.barrier()
    f.body.dispatch(k.digit, y_all(4))
    f.body.barrier()
    f.body.marker("end")
    last = f.body.branch(0)
    last.then.dispatch(k.fail, {"code": 1})
    f.body.dispatch(k.digit, y_all(6), after=[last])

    step = bundle.function("step", internal=True, doc="y = y * 10 + digit, through transient memory")
    digit = bundle.symbol("digit", Class.RUNTIME, maximum=1000)
    step.scalar("digit", digit)
    io = step.input("io", "i64", [1], access="read_write")
    t = step.transient(64)
    keep = step.body.copy(io.read(0), t.write(0), 8)
    work = step.body.dispatch(k.digit, {"y": t.update(0, 8), "digit": digit}, after=[keep])
    step.body.copy(t.read(0), io.write(0), 8, after=[work])

    f = bundle.function("calls", doc="digits position, 1, 2, 3 in the first lane; position + 1 in the second, side by side")
    f.scalar("position", position)
    y = f.result("y", "i64", [2])
    f.transient(32)
    zero = f.body.fill(y.write(0, 16), 0, 8)
    first = f.body.call(step, {"digit": position, "io": y.update(0, 8)}, after=[zero])
    f.body.call(step, {"digit": position + 1, "io": y.update(8, 8)}, after=[zero])
    loop = f.body.repeat(3, after=[first])
    loop.body.call(step, {"digit": bw.induction(0) + 1, "io": y.update(0, 8)})

    f = bundle.function("short_call", doc="gives a callee 4 bytes for an argument of 8 when position is 1")
    f.scalar("position", position)
    t = f.transient(64)
    f.body.call(step, {"digit": 1, "io": t.update(0, 8 - position * 4)})

    f = bundle.function("scratch", doc="bytes of a zeroed workspace that are not zero, twice")
    y = f.result("y", "i64", [2])
    t = f.transient(4096)
    one = f.body.dispatch(k.scratch, {"scratch": t.update(128, 100), "y": y.write(0, 8), "size": 100})
    f.body.dispatch(k.scratch, {"scratch": t.update(128, 100), "y": y.write(8, 8), "size": 100}, after=[one])


def add_choice(bundle, k, n):
    b8 = bundle.symbol("b8", Class.BUCKET, minimum=8, maximum=128, divisor=8, buckets=[15, 64, 128])
    for name, size, mode, offset in (("which", n, 3, 0), ("which_live", b8, 3, 0), ("which_mode", n, 4, 0),
                                     ("which_none", n, 10, 0), ("which_offset", n, 3, 4)):  # fmt: skip
        f = bundle.function(name, doc="which image the kernel came from")
        x, y = f.input("x", "f32", [size]), f.result("y", "i64", [1])
        f.body.dispatch(k.which, {"y": y.write(), "x": x.read(offset), "n": size, "mode": mode})


def add_edges(bundle, k, n, position, cap):
    """What is rare: inputs that are not given and needed, elements of less than a byte, extents of
    0, counts below 0."""
    d, rounds = bw.Expr("symbol", (), "d"), bw.Expr("symbol", (), "rounds")
    f = bundle.function("needs_optional", doc="a kernel that cannot do without x")
    f.scalar("rounds", rounds)
    x, y = f.input("x", "f32", [4], optional=True), f.result("y", "f32", [4])
    way = f.body.branch(bw.equal(rounds, 0))
    way.then.dispatch(k.affine, {"x": x.read(), "y": y.write(), "alpha": 1.0, "beta": 0.0, "n": 4})
    other = way.otherwise.branch(bw.equal(rounds, 1))
    other.then.copy(x.read(), y.write(), 16)
    z = f.input("z", "f32", [4], access="read_write", optional=True)
    other.otherwise.fill(z.write(), 0, 4)

    f = bundle.function("nibbles", doc="y = x and the state's first byte, elements of half a byte")
    x, y, first = f.input("x", "u4", [n]), f.result("y", "u4", [n]), f.result("first", "u8", [1])
    state = f.state(bundle.state("nibbles", "u4", [cap], fill_pattern=0x5))
    f.state(bundle.state("hollow", "f32", [cap, 0]))
    f.body.copy(x.read(), y.write(), (n + 1) // 2)
    f.body.copy(state.read(), first.write(), 1)

    f = bundle.function("backwards", doc="a loop of rounds - 5")
    f.scalar("rounds", rounds)
    f.body.repeat(rounds - 5)

    f = bundle.function("quotient", doc="a result of n / d elements")
    f.input("x", "f32", [n])
    f.scalar("d", d)
    f.result("y", "f32", [n // d])

    f = bundle.function("column", doc="the first column of position rows of the cache")
    f.scalar("position", position)
    y = f.result("y", "f32", [64])
    cache = next(state for name, state in bundle._states.items() if name == "cache")
    fill = f.body.fill(y.write(), 0, 4)
    f.body.copy(f.state(cache).read(), y.write(), (4, position), (16,), (4,), after=[fill])

    f = bundle.function("negative_view", doc="a view of position - 3 rows")
    f.scalar("position", position)
    y = f.result("y", "f32", [1])
    f.body.dispatch(k.total, {"x": f.state(cache).read(0, 64).tensor("f32", (position - 3, 1)), "y": y.write()})


def add_weights(bundle, k):
    weight = bundle.constant("weight", array.array("f", range(8)), shape=(8,))
    bias = bundle.constant("bias", array.array("f", [0.5] * 8), shape=(8,))
    reversed_ = bundle.prepared("reversed", 32, dtype="f32", shape=(8,), encoding=bw.Encoding.PLAIN)
    doubled = bundle.prepared("doubled", 32)
    f = bundle.function("make_reversed", prepare=True)
    x, y = f.source("x", weight), f.product("y", reversed_)
    f.body.dispatch(k.reverse, {"x": x.read(0, 32), "y": y.write(0, 32), "n": 8})
    f = bundle.function("make_doubled", prepare=True)
    w, b, y, t = f.source("w", weight), f.source("b", bias), f.product("y", doubled), f.transient(64)
    half = f.body.dispatch(k.affine, {"x": w.read(), "y": t.write(0, 32), "alpha": 2.0, "beta": 0.0, "n": 8})
    f.body.dispatch(k.add, {"x": t.read(0, 32), "y": b.read(), "z": y.write(), "n": 8}, after=[half])

    f = bundle.function("weights", doc="weight + 10, reversed, doubled")
    results = [f.result(name, "f32", [8]) for name in ("w", "r", "d")]
    sources = [f.constant(c) for c in (weight, reversed_, doubled)]
    for source, result, beta in zip(sources, results, (10.0, 0.0, 0.0)):
        f.body.dispatch(k.affine, {"x": source.read(), "y": result.write(), "alpha": 1.0, "beta": beta, "n": 8})
    f = bundle.function("scale_weight", doc="y = weight + x")
    x, y, w = f.input("x", "f32", [8]), f.result("y", "f32", [8]), f.constant(weight)
    f.body.dispatch(k.add, {"x": x.read(), "y": w.read(), "z": y.write(), "n": 8})


def program(first, second, device=None):
    bundle = bw.BundleWriter()
    images = [bundle.image("tests.first", first), bundle.image("tests.second", second)]
    k = Kernels(bundle, *images, bundle.image("tests.device", device, bw.ImageKind.PTX) if device else None)
    n = bundle.symbol("n", minimum=0, maximum=4096)
    position = bundle.symbol("position", Class.RUNTIME, maximum=63)
    cap = bundle.symbol("cap", Class.SESSION, minimum=1, maximum=64)
    rounds = bundle.symbol("rounds", maximum=1 << 40)
    code = bundle.symbol("code", Class.RUNTIME, maximum=1000)
    add_simple(bundle, k, n)
    add_shapes(bundle, k, n)
    add_state(bundle, k, position, cap)
    add_order(bundle, k, rounds, position)
    add_choice(bundle, k, n)
    add_edges(bundle, k, n, position, cap)
    add_weights(bundle, k)
    f = bundle.function("fail", doc="fails with code, unless that is 0")
    f.scalar("code", code)
    f.body.dispatch(k.fail, {"code": code})
    f = bundle.function("fail_early", doc="fails with code, unless that is 0, before its other commands")
    f.scalar("code", code)
    for value in (code, 0, 0):
        f.body.dispatch(k.fail, {"code": value})
    return bundle


def device_bundle(first, second, ptx):
    """program() with CUDA variants of its kernels, and what only makes sense there:
    tests/gpu/test_programs.py runs it."""
    bundle = program(first, second, ptx)
    images, kernels = {image.name: image for image in bundle._images}, bundle._kernels
    host, device = images["tests.first"], images["tests.device"]
    n, position = bw.Expr("symbol", (), "n"), bw.Expr("symbol", (), "position")
    # In order of preference: no device is of this architecture, its PTX is too new, no device has
    # so much shared memory.
    picky = bundle.kernel("picky", PARAMETERS["affine"]).variant(host, arch_kind="portable", entry="affine")
    picky.variant(device, driver="cuda", arch="sm_20", arch_kind="exact", entry="affine", block=64, priority=4)
    newer = bundle.image("tests.newer", b".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry affine() { ret; }\0", bw.ImageKind.PTX)
    picky.variant(newer, **ON_CUDA, entry="affine", block=64, priority=3)
    picky.variant(device, **ON_CUDA, entry="affine", block=64, dynamic_shared_bytes=230 << 10, priority=2)
    picky.variant(device, **ON_CUDA, entry="affine", block=64)
    f = bundle.function("picky", doc="y = 2 x + 1 by the last of the variants")
    x, y = f.input("x", "f32", [n]), f.result("y", "f32", [n])
    f.body.dispatch(picky, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 2.0, "beta": 1.0, "n": n}, (bw.ceildiv(n, 64), 1, 1))

    # The parameters leave gaps; the host has no such kernel and its version of the function fills
    # in the result.
    gaps = [P("y", "buffer", "read_write"), P("a", "scalar", size_bytes=1), P("n", "symbol"), P("b", "scalar", size_bytes=2)]
    padded = [bundle.kernel(name, gaps).variant(device, **ON_CUDA, block=1) for name in ("padded", "padded_block")]
    for target in ("", "cuda"):
        f = bundle.function("padded", target=target, doc="(200 + position + 3000) * 1001, by parameters with gaps between them")
        f.scalar("position", position)
        y = f.result("y", "i64", [1])
        if target:
            last = f.body.fill(y.write(), 0, 8)
            for kernel in padded:
                last = f.body.dispatch(kernel, {"y": y.update(), "a": 200, "n": position, "b": 3000}, after=[last])
        else:
            f.body.dispatch(kernels["iota"], {"y": y.write(), "first": (position + 3200) * 1001, "count": 1})

    for target, number in (("", 1), ("cuda", 2)):
        f = bundle.function("whose", target=target, doc="1 from the version for any device, 2 from the one for CUDA")
        y = f.result("y", "i64", [1])
        f.body.dispatch(kernels["iota"], {"y": y.write(), "first": number, "count": 1})

    pack = bundle.pack("tests.copies")
    twice = [P("x", "buffer", "read"), P("y", "buffer", "write"), P("size", "symbol")]
    refuse = bundle.kernel("refuse", [P("code", "symbol")]).variant(pack, arch_kind="portable").variant(pack, driver="cuda", arch_kind="portable")
    f = bundle.function("refuse", doc="an operator that fails with rounds, unless that is 0")
    rounds = bw.Expr("symbol", (), "rounds")
    f.scalar("rounds", rounds)
    f.body.dispatch(refuse, {"code": rounds}, (0, 0, 0))
    for name, entry in (("operator", "twice"), ("operator_uncaptured", "twice_uncaptured")):
        kernel = bundle.kernel(entry, twice).variant(pack, arch_kind="portable").variant(pack, driver="cuda", arch_kind="portable")
        f = bundle.function(name, doc="2 x + 1 twice, one after the other, plus 1: kernel, operator with workspace, kernel")
        x, y = f.input("x", "f32", [n]), f.result("y", "f32", [2, n])
        t, u = f.transient(n * 4 + 64), f.transient(n * 8 + 64)
        line = {"alpha": 2.0, "beta": 1.0, "n": n}
        one = f.body.dispatch(kernels["affine"], {"x": x.read(0, n * 4), "y": t.write(0, n * 4), **line}, (bw.ceildiv(n, 64), 1, 1))
        two = f.body.dispatch(kernel, {"x": t.read(0, n * 4), "y": u.write(0, n * 8), "size": n * 4}, (0, 0, 0), after=[one])
        line = {"alpha": 1.0, "beta": 1.0, "n": n * 2}
        f.body.dispatch(kernels["affine"], {"x": u.read(0, n * 8), "y": y.write(0, n * 8), **line}, (bw.ceildiv(n, 32), 1, 1), after=[two])
    return bundle


def no_device_variant(ptx):
    """Its kernel is for GPUs of the future, its image alike."""
    bundle = bw.BundleWriter()
    image = bundle.image("future", ptx, bw.ImageKind.PTX)
    kernel = bundle.kernel("future", PARAMETERS["affine"])
    for arch in ("sm_251", "sm_250"):
        kernel.variant(image, driver="cuda", arch=arch, arch_kind="portable", block=64, entry="affine")
    f = bundle.function("use")
    t = f.transient(256)
    f.body.dispatch(kernel, {"x": t.read(0, 64), "y": t.write(64, 64), "alpha": 2.0, "beta": 1.0, "n": 16})
    return bundle


def one_kernel(image, name="affine", variants=(), **changes):
    """A bundle whose kernel is declared otherwise than its image says."""
    bundle = bw.BundleWriter()
    parameters = changes.get("parameters", PARAMETERS[name])
    kernel = bundle.kernel(name, parameters, traits=changes.get("traits", TRAITS.get(name, bw.TRAIT_DETERMINISTIC)),
                           local_memory_bytes=changes.get("local", LOCAL.get(name, 0)))  # fmt: skip
    code = bundle.image("tests", image)
    for variant in variants or [{"arch_kind": "portable", "entry": changes.get("entry", "")}]:
        kernel.variant(code, **variant)
    f = bundle.function("use")
    t = f.transient(256)
    ranges = {"read": t.read, "write": t.write, "read_write": t.update}
    arguments = {p.name: 0 if p.kind in ("scalar", "symbol") else ranges[p.access](0, 64) for p in kernel.parameters}
    f.body.dispatch(kernel, arguments)
    return bundle


def refused(image):
    a = PARAMETERS["affine"]
    yield "wrong_kind", one_kernel(image, parameters=[*a[:4], P("n", "scalar", size_bytes=8)])
    yield "wrong_access", one_kernel(image, parameters=[a[0], P("y", "buffer", "read_write"), *a[2:]])
    yield "wrong_offset", one_kernel(image, parameters=[*a[:3], P("beta", "scalar", size_bytes=4, offset_bytes=28),
                                                        P("n", "symbol", offset_bytes=32)])  # fmt: skip
    yield "wrong_size", one_kernel(image, parameters=[*a[:2], P("alpha", "scalar", size_bytes=2), *a[3:]])
    yield "wrong_flags", one_kernel(image, parameters=[P("x", "buffer", "read", optional=True), *a[1:]])
    yield "wrong_count", one_kernel(image, parameters=a[:4])
    yield "wrong_local", one_kernel(image, "reverse", local=128)
    yield "wrong_traits", one_kernel(image, traits=0)
    yield "wrong_entry", one_kernel(image, entry="no_such_entry")
    yield "no_variant", one_kernel(image, variants=[
        {"driver": "cuda", "arch_kind": "exact", "arch": "sm_90"}, {"arch": "z80"},
        {"arch_kind": "portable", "cpu_features": ["avx512_vnni", "arm_sve"]}, {"arch_kind": "exact", "arch": "x86-64-v9"}])  # fmt: skip
    bundle = bw.BundleWriter()
    kernel = declare(bundle, "fail").variant(bundle.image("tests", image), arch_kind="portable")
    made = bundle.prepared("made", 8)
    f = bundle.function("broken", prepare=True)
    f.product("y", made)
    f.body.dispatch(kernel, {"code": 5})
    f = bundle.function("read")
    y = f.result("y", "u8", [8])
    f.body.copy(f.constant(made).read(), y.write(), 8)
    yield "broken_prepare", bundle


def module_bundle():
    """A kernel that is not host code: the test's own driver loads it."""
    bundle = bw.BundleWriter()
    image = bundle.image("module", b"module of the test\0", bw.ImageKind.PTX)
    kernel = declare(bundle, "iota")
    kernel.variant(image, driver="cuda", arch="sm_test", arch_kind="exact", entry="device_iota", block=(32, 2), cluster=2,
                   dynamic_shared_bytes=1024, launch_traits=bw.TRAIT_COOPERATIVE)
    weight = bundle.constant("weight", array.array("q", [5, 6, 7, 8]), shape=(4,))
    f = bundle.function("count")
    position = bundle.symbol("position", Class.RUNTIME, maximum=63)
    f.scalar("position", position)
    y, w = f.result("y", "i64", [4]), f.result("w", "i64", [4])
    one = f.body.dispatch(kernel, {"y": y.write(), "first": position, "count": 4})
    f.body.copy(f.constant(weight).read(), w.write(), 32, after=[one])
    return bundle


def targets_bundle(image):
    """One bundle for hosts and for devices of the driver cuda, which the test has: each uses its
    own functions alone."""
    bundle = bw.BundleWriter()
    host = bundle.image("host", image)
    iota = declare(bundle, "iota").variant(host, arch_kind="portable")
    device = bundle.kernel("device_iota", PARAMETERS["iota"])
    # In order of preference: not for this device, refused by the driver, not found in its image, a
    # pack that is nowhere.
    for name, arch in (("other", "sm_90"), ("refused", "sm_test")):
        module = bundle.image(f"module.{name}", name.encode() + b"\0", bw.ImageKind.PTX)
        device.variant(module, driver="cuda", arch=arch, arch_kind="exact", block=64, priority=5)
    device.variant(bundle.pack("no.such.pack"), driver="cuda", arch_kind="portable", priority=4)
    module = bundle.image("module", b"module of the test\0", bw.ImageKind.PTX)
    device.variant(module, driver="cuda", arch="sm_test", arch_kind="exact", entry="too_large", block=1024, priority=3)
    device.variant(module, driver="cuda", arch="sm_test", arch_kind="exact", block=32, dynamic_shared_bytes=4096)

    source = bundle.constant("source", array.array("q", [1, 2, 3, 4]), shape=(4,))
    bundle.constant("unused", array.array("q", [9]), shape=(1,))
    packed = {}
    for target in ("host", "cuda"):
        packed[target] = bundle.prepared(f"packed.{target}", 32, dtype="i64", shape=(4,), encoding=bw.Encoding.PLAIN)
        pack = bundle.function(f"pack.{target}", prepare=True, target=target)
        x, y = pack.source("x", source), pack.product("y", packed[target])
        pack.body.copy(x.read(), y.write(), 32)
    shared = bundle.prepared("shared", 32, dtype="i64", shape=(4,), encoding=bw.Encoding.PLAIN)
    for target, kernel, first in (("", iota, 50), ("cuda", device, 60)):
        make = bundle.function("make_shared", prepare=True, target=target)
        y = make.product("y", shared)
        make.body.dispatch(kernel, {"y": y.write(), "first": first, "count": 4})
        part = bundle.function("part", internal=True, target=target)
        y = part.result("y", "i64", [4])
        part.body.dispatch(kernel, {"y": y.write(), "first": first + 100, "count": 4})
        count = bundle.function("count", target=target, doc=f"for {target or 'any device'}")
        y, p, s = (count.result(name, "i64", [4]) for name in ("y", "packed", "shared"))
        count.body.call(part, {"y": y.write(0, 32)})
        count.body.copy(count.constant(packed[target or "host"]).read(), p.write(), 32)
        count.body.copy(count.constant(shared).read(), s.write(), 32)
    # Types of their own, so that a message about one shows no other's.
    for name, dtype, size in (("shows_a", "f32", 3), ("shows_b", "i8", 5), ("shows_c", "u16", 7)):
        for target in ("", "cuda", "host"):
            f = bundle.function(name, target=target)
            x, y = f.input("x", dtype, [size]), f.result("y", dtype, [size])
            f.body.copy(x.read(), y.write(), size * (1 if dtype == "i8" else 2 if dtype == "u16" else 4))
    bundle.function("only_cuda", target="cuda")
    bundle.function("only_host", target="host")
    return bundle


def operators_bundle():
    """Functions whose work host operators do, out of a pack that the test registers
    (runtime/program/operator_test.c)."""
    bundle = bw.BundleWriter()
    pack = bundle.pack("test.operators")
    n = bundle.symbol("n", minimum=1, maximum=4096)
    rows = bundle.symbol("rows", Class.BUCKET, minimum=1, maximum=16, buckets=[4, 16])
    times = bundle.symbol("times", Class.RUNTIME, maximum=1000)
    scale = bundle.kernel("scale", [P("x", "tensor", "read"), P("y", "tensor", "write"), P("times", "symbol"), P("plus", "scalar", size_bytes=4)])
    scale.variant(pack, arch_kind="portable")
    fail = bundle.kernel("fail", [P("code", "symbol"), P("where", "scalar", size_bytes=4)]).variant(pack, arch_kind="portable")
    gone = bundle.kernel("gone", [P("code", "symbol")]).variant(pack, arch_kind="portable", entry="no_such_operator")
    gone.variant(pack, arch_kind="portable", entry="cuda_only").variant(pack, arch_kind="portable", entry="fail")
    gone.variant(pack, arch_kind="portable", entry="quiet")

    f = bundle.function("scale", doc="y = x * times + 1, transposed")
    x, y = f.input("x", "f32", [n, 3]), f.result("y", "f32", [3, n])
    f.scalar("times", times)
    f.body.dispatch(scale, {"x": x.read().tensor("f32", (n, 3)), "y": y.write().tensor("f32", (n, 3), (1, n)),
                            "times": times, "plus": 1.0}, (0, 0, 0))  # fmt: skip
    f = bundle.function("chain", doc="y = (x * 2 + 1) * 2 + 1, by way of the arena, beside z = x * 2 + 1")
    x, y, z = f.input("x", "f32", [n]), f.result("y", "f32", [n]), f.result("z", "f32", [n])
    t = f.transient(n * 4 + 4)
    view = {"dtype": "f32", "shape": (n,)}
    common = {"times": 2, "plus": 1.0}
    first = f.body.dispatch(scale, {"x": x.read().tensor(**view), "y": t.write(0, n * 4).tensor(**view), **common})
    f.body.dispatch(scale, {"x": t.read(0, n * 4).tensor(**view), "y": y.write().tensor(**view), **common}, after=[first])
    f.body.dispatch(scale, {"x": x.read().tensor(**view), "y": z.write().tensor(**view), **common})
    f = bundle.function("bucket", doc="a shape that changes from call to call")
    x, y = f.input("x", "f32", [rows]), f.result("y", "f32", [rows])
    f.body.dispatch(scale, {"x": x.read().tensor("f32", (rows,)), "y": y.write().tensor("f32", (rows,)), **common})
    either = bundle.kernel("scale_either", list(scale.parameters))
    either.variant(pack, arch_kind="portable", entry="scale").variant(pack, arch_kind="portable", entry="scale_kernel")
    for name, size in (("bucket_or", rows), ("n_or", n)):
        f = bundle.function(name, doc="the operator, or a kernel where the shape changes from call to call")
        x, y = f.input("x", "f32", [size]), f.result("y", "f32", [size])
        f.body.dispatch(either, {"x": x.read().tensor("f32", (size,)), "y": y.write().tensor("f32", (size,)), **common})
    for name, where in (("fail", 0), ("fail_prepare", 1), ("fail_query", 2)):
        f = bundle.function(name)
        f.scalar("times", times)
        f.body.dispatch(fail, {"code": times, "where": where})
    stays = bundle.kernel("stays", [P("code", "symbol")]).variant(pack, arch_kind="portable")
    f = bundle.function("stays")
    f.scalar("times", times)
    f.body.dispatch(stays, {"code": times})
    f = bundle.function("gone")
    f.scalar("times", times)
    f.body.dispatch(gone, {"code": times})
    return bundle


def wide_bundle():
    """A state whose size may not fit."""
    bundle = bw.BundleWriter()
    cap = bundle.symbol("cap", Class.SESSION, minimum=1, maximum=1 << 40)
    bundle.state("wide", "u8", [cap, cap])
    bundle.function("nothing")
    return bundle


def damage_data(path):
    """One bit of the weights, which opening does not read."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.with_name("damaged.accx").write_bytes(data)


def large_bundle():
    """Weights of several chunks of 1 MiB, read where they lie; one that no function uses has a
    chunk of its own."""
    bundle = bw.BundleWriter()
    f = bundle.function("ends", doc="the first and the last byte of each")
    names = {"a": 1_500_000, "b": 100, "c": 1, "large": 2_800_000, "spare": 2_300_000, "tail": 1_234}
    y = f.result("y", "u8", [2 * len(names)])
    for i, (name, size) in enumerate(names.items()):
        data = bytes((k * 7 + (k >> 10) + i) & 255 for k in range(size))
        weight = bundle.constant(name, data, dtype="u8", shape=(size,))
        if name == "spare":
            continue
        f.body.copy(f.constant(weight).read(), y.write(2 * i), 1)
        f.body.copy(f.constant(weight).read(size - 1), y.write(2 * i + 1), 1)
    return bundle


def external_bundle(image):
    """Weights that lie outside: bound by digest or by name, in one tensor or several, some by a
    prepare function alone."""
    bundle = bw.BundleWriter()
    code = bundle.image("first", image)
    k = {name: declare(bundle, name) for name in ("affine", "reverse")}
    for kernel in k.values():
        kernel.variant(code, arch_kind="portable")
    digest = lambda *parts: xxhash.xxh3_128(b"".join(parts)).digest()  # noqa: E731
    floats = array.array("f", range(8)).tobytes()
    sized = bytes((i * 7 + (i >> 10)) & 255 for i in range(2_800_000))
    scales = array.array("f", [0.5, 1.0, 1.5, 2.0]).tobytes()
    weight = bundle.external("weight", "f32", (8,), digest=digest(floats))
    side = bundle.file("side.safetensors", bw.FileKind.SAFETENSORS)
    free = bundle.external("free", "f32", (8,), file=side, tensor="model.free")
    large = bundle.external("large", "u8", (len(sized),), digest=digest(sized))
    packed = bundle.external("packed", "f32", (4, 8), encoding=bw.Encoding.I8_CHANNEL, digest=digest(bytes(range(32)), scales))
    block = bundle.external("block", "f32", (2, 32), encoding=bw.Encoding.Q8_0, digest=digest(bytes(range(68))))
    bundle.external("unused", "f32", (8,), digest=digest(floats))
    stored = bundle.constant("stored", array.array("f", [3.0] * 8), shape=(8,))
    reversed_ = bundle.prepared("reversed", 32, dtype="f32", shape=(8,), encoding=bw.Encoding.PLAIN)
    f = bundle.function("make_reversed", prepare=True)
    x, y = f.source("x", weight), f.product("y", reversed_)
    f.body.dispatch(k["reverse"], {"x": x.read(0, 32), "y": y.write(0, 32), "n": 8})
    f = bundle.function("look", doc="what all of them hold")
    for name, constant in (("r", reversed_), ("f", free), ("s", stored)):
        y = f.result(name, "f32", [8])
        f.body.dispatch(k["affine"], {"x": f.constant(constant).read(), "y": y.write(), "alpha": 1.0, "beta": 0.0, "n": 8})
    y = f.result("bytes", "u8", [32 + 16 + 68 + 2])
    f.body.copy(f.constant(packed).read(), y.write(0), 32)
    f.body.copy(f.constant(packed, 1).read(), y.write(32), 16)
    f.body.copy(f.constant(block).read(), y.write(48), 68)
    f.body.copy(f.constant(large).read(), y.write(116), 1)
    f.body.copy(f.constant(large).read(len(sized) - 1), y.write(117), 1)
    return bundle


def adapter_bundle():
    """Optional inputs that an adapter fills: look() gives the first row of a, and of b."""
    bundle = bw.BundleWriter()
    rank = bundle.symbol("r", minimum=1, maximum=64)
    f = bundle.function("look")
    a, b = f.input("a", "f32", [rank, 4], optional=True), f.input("b", "f32", [4, rank], optional=True)
    y = f.result("y", "f32", [5])
    cleared = f.body.fill(y.write())
    f.body.branch(f.present(a), after=[cleared]).then.copy(a.read(), y.write(), 16)
    f.body.branch(f.present(b), after=[cleared]).then.copy(b.read(), y.write(16), 4)
    bundle.adapter("m.lora_A", "a")
    bundle.adapter("m.lora_B", "b", scaled=True)
    return bundle


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    compiler = sys.argv[2] if len(sys.argv) > 2 else "cc"
    first = compile_image(compiler)
    second = compile_image(compiler, "-DACCRT_TEST_SECOND")
    program(first, second).write(folder / "program.accx")
    damage_data(folder / "program.accx")
    ptx = pathlib.Path(__file__).with_name("kernels.ptx").read_bytes() + b"\0"
    device_bundle(first, second, ptx).write(folder / "device.accx")
    no_device_variant(ptx).write(folder / "no_device_variant.accx")
    module_bundle().write(folder / "module.accx")
    targets_bundle(first).write(folder / "targets.accx")
    operators_bundle().write(folder / "operators.accx")
    wide_bundle().write(folder / "wide.accx")
    large_bundle().write(folder / "large.accx")
    external_bundle(first).write(folder / "external.accx")
    adapter_bundle().write(folder / "adapter.accx")
    for name, bundle in refused(first):
        bundle.write(folder / f"{name}.accx")


if __name__ == "__main__":
    main()
