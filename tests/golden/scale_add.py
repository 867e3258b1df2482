#!/usr/bin/env python3
"""Makes a small bundle with the public writer alone, around one hand-written kernel: y = a * x + y
(scale_add.c).

    python3 tests/golden/scale_add.py -o scale_add.accx

Functions: scale_add(x, y inout) -> () with a = 2; weighted(x) -> y = 2 * x + w, whose weight w is
doubled by a prepare function at load; steps(x, y inout, count) runs it `count` times; gated(x, y
inout, extra?, flag) shows optional inputs, a branch and a call; count(x) adds x to a state and
gives the state back.
"""

import argparse
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from accrt import bundle_writer as bw  # noqa: E402

TARGETS = {
    "x86-64-v3": ["gcc", "-march=x86-64-v3"],
    "x86-64-v4": ["gcc", "-march=x86-64-v4"],
    "aarch64": ["clang", "--target=aarch64-linux-gnu", "-fuse-ld=lld"],
}
FLAGS = ["-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", "-Wl,--build-id=none"]
FILL = 16  # elements of the weight and the state


def image(target):
    """The kernel pack for one target, or None where its compiler is missing."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "scale_add.so"
        source = pathlib.Path(__file__).with_name("scale_add.c")
        command = [*TARGETS[target], *FLAGS, f"-I{ROOT / 'include'}", str(source), "-o", str(out)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            return None
        return out.read_bytes()


def add(block, kernel, x, y, n, a, after=()):
    size = n * 4
    arguments = {"x": x.read(0, size), "y": y.update(0, size), "n": n, "a": bw.scalar(a, "f32")}
    return block.dispatch(kernel, arguments, (bw.ceildiv(n, 1024), 1, 1), after=after)


def build():
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/golden/scale_add.py")
    n = bundle.symbol("n", maximum=1 << 20)
    count = bundle.symbol("count", maximum=1000)
    flag = bundle.symbol("flag", maximum=1)
    parameters = [
        bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "read_write"), bw.Parameter("n", "symbol"),
        bw.Parameter("a", "scalar", size_bytes=4),
    ]  # fmt: skip
    kernel = bundle.kernel("scale_add", parameters)
    for target in TARGETS:
        data = image(target)
        if data:
            kernel.variant(bundle.image(f"scale_add.{target}", data), arch=target)

    simple = bundle.function("scale_add", doc="y = 2 * x + y")
    x, y = simple.input("x", "f32", [n]), simple.input("y", "f32", [n], access="read_write")
    add(simple.body, kernel, x, y, n, 2.0)

    weight = bundle.constant("w", struct.pack(f"<{FILL}f", *range(FILL)), dtype="f32", shape=[FILL])
    doubled = bundle.prepared("w.doubled", 4 * FILL, dtype="f32", shape=[FILL], encoding=bw.Encoding.PLAIN)
    prepare = bundle.function("prepare", prepare=True)
    source, product = prepare.source("w", weight), prepare.product("w.doubled", doubled)
    zero = prepare.body.fill(product.write(0, 4 * FILL), 0, 4)
    add(prepare.body, kernel, source, product, bw.constant(FILL), 2.0, [zero])

    weighted = bundle.function("weighted", doc="y = 2 * x + 2 * w")
    x, y = weighted.input("x", "f32", [FILL]), weighted.result("y", "f32", [FILL])
    copied = weighted.body.copy(weighted.constant(doubled).read(), y.write(), 4 * FILL)
    add(weighted.body, kernel, x, y, bw.constant(FILL), 2.0, [copied])

    steps = bundle.function("steps", doc="y += x, count times, through transient memory")
    x, y = steps.input("x", "f32", [n]), steps.input("y", "f32", [n], access="read_write")
    steps.scalar("count", count)
    arena = steps.transient(n * 4)
    cleared = steps.body.fill(arena.write(0, n * 4), 0, 4)
    loop = steps.body.repeat(count, after=[cleared])
    add(loop.body, kernel, x, arena, n, 1.0)
    add(steps.body, kernel, arena, y, n, 1.0, [loop])

    gated = bundle.function("gated", doc="y += 2 * x where flag, else y += extra where given")
    x, y = gated.input("x", "f32", [n]), gated.input("y", "f32", [n], access="read_write")
    extra = gated.input("extra", "f32", [n], optional=True)
    gated.scalar("flag", flag)
    branch = gated.body.branch(flag)
    branch.then.call(simple, {"x": x.read(0, n * 4), "y": y.update(0, n * 4)})
    inner = branch.otherwise.branch(gated.present(extra))
    add(inner.then, kernel, extra, y, n, 1.0)
    gated.body.marker("end of gated", after=[branch])

    state = bundle.state("total", "f32", [FILL])
    counter = bundle.function("count", doc="total += x; y = total")
    x, y = counter.input("x", "f32", [FILL]), counter.result("y", "f32", [FILL])
    total = counter.state(state)
    added = add(counter.body, kernel, x, total, bw.constant(FILL), 1.0)
    counter.body.copy(total.read(), y.write(), 4 * FILL, after=[added])
    return bundle


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    build().write(parser.parse_args().output)
