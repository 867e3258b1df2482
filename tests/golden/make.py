#!/usr/bin/env python3
"""Makes the golden bundles of the current format version from kernels.c and the public writer.

    python3 tests/golden/make.py [FOLDER]

The files of a released version are never made again: they are what old files look like. Version 0.2 is not released yet, so
its files change with it. `minimal.accx` holds nothing; `everything.accx` holds every construct of the format that its version
can carry, and is what the hostile-input tests take apart.
"""

import array
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]



def writer():
    """accrt.bundle_writer alone: the package would load the shared library, which this needs not."""
    spec = importlib.util.spec_from_file_location("bundle_writer", ROOT / "python" / "accrt" / "bundle_writer" / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bw = writer()

FLAGS = ["-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", "-fno-stack-protector",
         "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--no-undefined", "-Wl,--hash-style=both", "-fno-ident",
         "-fno-asynchronous-unwind-tables", "-Wl,-z,max-page-size=4096"]  # fmt: skip


def image(compiler):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(__file__).with_name("kernels.c")
        command = [*compiler, *FLAGS, f"-I{ROOT / 'include'}", str(source), "-o", "image.so"]
        subprocess.run(command, check=True, cwd=folder)
        return pathlib.Path(folder, "image.so").read_bytes()


def compiled():
    """The host images by name."""
    return {
        "golden.x86-64": image(["gcc", "-fcf-protection=none", "-march=x86-64-v2"]),
        "golden.aarch64": image(["clang", "--target=aarch64-linux-gnu", "-fuse-ld=lld"]),
    }


def add_kernels(bundle, images):
    x86 = bundle.image("golden.x86-64", images["golden.x86-64"])
    arm = bundle.image("golden.aarch64", images["golden.aarch64"])
    ptx = bundle.image("golden.ptx", b"// not a program, but the shape of one\n\0", bw.ImageKind.PTX)
    P = bw.Parameter
    kernels = {
        "axpb": bundle.kernel("axpb", [P("x", "buffer", "read"), P("bias", "buffer", "read", optional=True),
                                       P("y", "buffer", "write"), P("alpha", "scalar", size_bytes=4), P("n", "symbol")]),
        "reverse": bundle.kernel("reverse", [P("source", "buffer", "read"), P("target", "buffer", "write"), P("n", "symbol")]),
        "rows": bundle.kernel("rows", [P("x", "tensor", "read"), P("sum", "buffer", "write"), P("scratch", "workspace"),
                                       P("square", "scalar", size_bytes=1)]),
    }  # fmt: skip
    predicates = [bw.Predicate("divisible", "n", 256), bw.Predicate("aligned", "x", 64), bw.Predicate("at_least", "n", 256),
                  bw.Predicate("at_most", "n", 1 << 20), bw.Predicate("equal", "alpha", 0x3F800000)]  # fmt: skip
    kernels["axpb"].variant(x86, arch="x86-64-v2", cpu_features=["x86_64_v2"], predicates=predicates, priority=1)
    for kernel in kernels.values():
        kernel.variant(x86, arch="x86-64-v2", cpu_features=["x86_64_v2"])
        kernel.variant(arm, arch="aarch64", arch_kind="exact", cpu_features=["arm_neon"])
        kernel.variant(ptx, driver="cuda", arch_kind="portable", arch="sm_80", block=(32, 4), dynamic_shared_bytes=4096)
    cubin = bundle.image("golden.cubin", b"the shape of a cubin", bw.ImageKind.CUBIN)
    operators = bundle.pack("golden.operators")
    traits = bw.TRAIT_COOPERATIVE | bw.TRAIT_OVERLAPS_PREVIOUS
    kernels["axpb"].variant(cubin, driver="cuda", arch="sm_90", block=256, cluster=(2, 1, 1), launch_traits=traits)
    kernels["rows"].variant(operators, driver="cuda", arch_kind="portable", entry="rows.operator", priority=3)
    return kernels


def add_versions(bundle, kernels, n, packed):
    """One function for any device, and one of its own for devices of the driver cuda, which calls another of those."""
    for target in ("", "cuda"):
        part = bundle.function("part", internal=True, target=target)
        x, y = part.input("x", "f32", [n]), part.result("y", "f32", [n])
        grid = bw.ceildiv(n, 128 if target else 256)
        part.body.dispatch(kernels["axpb"], {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 2.0, "n": n}, (grid, 1, 1))
        whole = bundle.function("whole", target=target, doc=f"for {target or 'any device'}")
        x, y = whole.input("x", "f32", [n]), whole.result("y", "f32", [n])
        done = whole.body.call(part, {"x": x.read(0, n * 4), "y": y.write(0, n * 4)})
        if target:
            whole.body.copy(whole.constant(packed).read(), y.write(), 4, after=[done])


def add_helper(bundle, kernels, n):
    """An internal function: y = 2 x + bias, bias optional; `twice` is given by the caller as a scalar."""
    helper = bundle.function("helper", internal=True, doc="doubles, with an optional bias")
    x = helper.input("x", "f32", [n])
    bias = helper.input("bias", "f32", [n], optional=True)
    steps = bundle.symbol("steps", bw.SymbolClass.RUNTIME, maximum=16)
    helper.scalar("steps", steps)
    y = helper.result("y", "f32", [n])
    branch = helper.body.branch(helper.present(bias))
    for block, extra in ((branch.then, {"bias": bias.read(0, n * 4)}), (branch.otherwise, {})):
        block.dispatch(kernels["axpb"], {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "alpha": 2.0, "n": n, **extra},
                       (bw.ceildiv(n, 256), bw.minimum(steps, 1), 1))
    return helper


def everything(images):
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/golden/make.py")
    bundle.metadata("license", "Apache-2.0 \u2014 \u00e9crit pour les tests")
    kernels = add_kernels(bundle, images)
    n = bundle.symbol("n", minimum=1, maximum=4096)
    rows = bundle.symbol("rows", bw.SymbolClass.BUCKET, minimum=2, maximum=60, divisor=2, buckets=[4, 16, 64])
    length = bundle.symbol("length", bw.SymbolClass.SESSION, minimum=1, maximum=1024)
    position = bundle.symbol("position", bw.SymbolClass.RUNTIME, maximum=1023)

    weight = bundle.constant("weight", array.array("f", range(8)), shape=(2, 4))
    bundle.constant("empty", array.array("f"), shape=(3, 0))
    bundle.constant("nibbles", bytes([0x21, 0x43, 0x05]), dtype="u4", shape=(5,))
    bundle.constant("table", bytes(range(100)), dtype="u8", shape=(100,), encoding=bw.Encoding.OPAQUE)
    packed = bundle.prepared("packed", 32)
    cache = bundle.state("cache", "f32", [length, 4], fill_pattern=0x3F800000)

    for target in ("", "cuda"):
        pack = bundle.function("pack", prepare=True, target=target)
        source, product = pack.source("weight", weight), pack.product("packed", packed)
        pack.body.dispatch(kernels["reverse"], {"source": source.read(0, 32), "target": product.write(0, 32), "n": 8})

    helper = add_helper(bundle, kernels, n)
    add_versions(bundle, kernels, n, packed)

    main = bundle.function("main", doc="one of everything")
    x = main.input("x", "f32", [rows, n], doc="read")
    bias = main.input("bias", "f32", [n], optional=True)
    update = main.input("update", "f32", [n], access="read_write")
    spare = main.input("spare", "f32", [n], access="donated")
    main.scalar("position", position)
    y = main.result("y", "f32", [n])
    sums = main.result("sums", "f32", [rows])
    main.result("updated", "f32", [n], alias=update, alias_kind=bw.AliasKind.MUST)
    main.result("kept", "f32", [n], alias=spare)
    w, table, state, arena = main.constant(packed), main.constant(weight), main.state(cache), main.transient(rows * 8 + n * 4)

    body = main.body
    row_bytes = n * 4
    dims = (rows, n)
    first = body.dispatch(kernels["rows"], {"x": x.read(0, rows * row_bytes).tensor("f32", dims), "sum": sums.write(0, rows * 4),
                                            "scratch": arena.update(0, rows * 8), "square": 1}, (rows, 1, 1), name="row sums")
    second = body.fill(arena.write(rows * 8, row_bytes), 0, 4, name="clear")
    third = body.call(helper, {"x": x.read(0, row_bytes), "bias": bias.read(0, row_bytes), "steps": position, "y": y.write(0, row_bytes)},
                      after=[first, second])
    body.marker("half way", after=[third])
    body.barrier()
    offset = bw.select(bw.logical_and(bw.less(position, length), bw.logical_not(bw.equal(position, 5))), position * 16, 0)
    body.copy(w.read(0), state.write(offset), (16, 1, 1), name="append")
    body.copy(table.read(16), state.write(bw.maximum(offset - 16, 0)), (8, 2), (8,), (8,), name="strided")
    repeat = body.repeat(bw.minimum(length, 3), name="rounds")
    inner = repeat.body.branch(bw.logical_or(bw.not_equal(bw.induction(0), 1), bw.less_equal(length, 2)))
    inner.then.dispatch(kernels["axpb"], {"x": update.read(0, row_bytes), "y": spare.write(0, row_bytes), "alpha": 0.5, "n": n},
                        (bw.ceildiv(n, 256) + bw.induction(0) % 1, 1, 1))
    nested = inner.otherwise.repeat(2)
    nested.body.copy(spare.read((bw.induction(1) // 2) * 4), update.write(0), 4)
    return bundle


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests" / "golden" / "0.2")
    folder.mkdir(parents=True, exist_ok=True)
    bw.BundleWriter().write(folder / "minimal.accx")
    everything(compiled()).write(folder / "everything.accx")


if __name__ == "__main__":
    main()
