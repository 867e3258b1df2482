#!/usr/bin/env python3
"""Makes the golden bundles of the current format version from kernels.c and the public writer.

    python3 tests/golden/make.py [FOLDER]

Files are never made again once they are in checksums.txt: they are what old files look like. The
script only adds those that are missing, with their line in manifest.txt (what a reader has to make
of them) and in checksums.txt. `minimal.accx` holds nothing; `everything.accx` holds every construct
of the format that its version can carry, and is what the hostile-input tests take apart. The others
are small bundles with something in them that their reader does not know (unknown/), or that a later
version might bring (next/).
"""

import array
import hashlib
import pathlib
import struct
import subprocess
import sys
import tempfile

import xxhash

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


sys.path.insert(0, str(ROOT / "python"))
from accrt import bundle_writer as bw  # noqa: E402

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
    """One function for any device, and one of its own for devices of the driver cuda, which calls
    another of those."""
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
    """An internal function: y = 2 x + bias, bias optional; `twice` is given by the caller as a
    scalar."""
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


# ---- Container 0.3 ----


def everything_0_3(images):
    """All of 0.2, and what 0.3 brought: weights outside and in quantized layouts, shards, adapters,
    assets, locations."""
    bundle = everything(images)
    add_weights(bundle)
    bundle.asset("tokenizer.json", b'{"model": "bytes"}', media_type="application/json")
    bundle.asset("LICENSE", b"Apache-2.0\n")
    bundle.asset("empty", b"")
    bundle.section(0x10000, "acme.tuning", b"only acme knows", record_bytes=5, record_count=3)
    main = bundle._functions["main", ""]
    for line, command in enumerate(main.commands()):
        command.at(bundle.location("model.py", 10 + line, 5, command.name))
    main.body.marker("the end").at(bundle.location("model.py", 10, 5, "row sums"))
    bundle.adapter("layers.0.lora_A.weight", "bias")
    bundle.adapter("layers.0.lora_B.weight", "bias", scaled=True)
    return bundle


def add_weights(bundle):
    """Weights in files, by name alone, from anywhere; quantized ones; a prepare function that reads
    all of a quantized one."""
    E = bw.Encoding
    first = bundle.file("model-00001-of-00002.safetensors", bw.FileKind.SAFETENSORS, size_bytes=4096, digest=bytes(range(16)))
    second = bundle.file("model.gguf", bw.FileKind.GGUF)
    wq = bundle.external("wq", "f32", (6, 8), file=first, tensor="model.layers.0.q.weight", digest=bytes(range(1, 17)))
    wk = bundle.external("wk", "f16", (4, 512), file=second, encoding=E.Q4_K)
    wv = bundle.external("wv", "f32", (4, 64), encoding=E.I4_GROUP_ASYM, group_elements=32,
                         components={"scales": "f16", "group_index": "i32"})  # fmt: skip
    bundle.shard(wq, 4, axis=0, extent=16, segments=[bw.Segment(0, 8, 1), bw.Segment(8, 16, 2)])
    bundle.shard(wk, 4)
    bundle.shard(wv, 4, axis=1, extent=256)
    int4 = bundle.constant("int4", {"data": bytes(range(64)), "scales": array.array("f", [0.5, 0.25, 2, 1]),
                                    "group_index": array.array("i", [k // 32 for k in range(64)])},
                           shape=(2, 64), encoding=E.I4_GROUP, group_elements=32)  # fmt: skip
    bundle.constant("nvfp4", {"data": bytes(16), "scales": bytes([0x38, 0x40]), "global_scale": array.array("f", [0.5])},
                    dtype="bf16", shape=(2, 16), encoding=E.NVFP4)  # fmt: skip
    bundle.constant("blocks", bytes(34 * 4), dtype="f16", shape=(2, 64), encoding=E.Q8_0)
    scales = bundle.prepared("int4.scales", 16, dtype="f32", shape=(2, 2), encoding=E.PLAIN)
    pack = bundle.function("pack.int4", prepare=True)
    pack.source("int4", int4)
    target = pack.product("scales", scales)
    pack.body.copy(pack.constant(int4, 1).read(), target.write(), 16)


def plain_0_1():
    """What 0.3 writes for content that needs 0.1 alone: the first draft's reader takes it."""
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/golden/make.py")
    n = bundle.symbol("n", maximum=100)
    w = bundle.constant("w", array.array("f", range(6)), shape=(2, 3))
    main = bundle.function("main")
    x, y = main.input("x", "f32", [n]), main.result("y", "f32", [n])
    first = main.body.copy(x.read(), y.write(), n * 4)
    main.body.copy(main.constant(w).read(4), y.write(), 8, after=[first])
    return bundle


# ---- Files that no writer makes: a bundle taken apart, changed, put together ----

REQUIRED = 1


class Parts:
    """Header fields and sections of a bundle; `build` makes offsets, sizes and digests right
    again."""

    def __init__(self, data):
        self.versions = list(struct.unpack_from("<8H", data, 8))
        self.features = list(struct.unpack_from("<2Q", data, 32))
        self.sections = {}
        for i in range(struct.unpack_from("<I", data, 48)[0]):
            kind, flags, offset, size, record_bytes, count, name = struct.unpack_from("<2I2Q2I16s", data, 128 + 64 * i)
            self.sections[kind] = [flags, record_bytes, count, name, bytearray(data[offset : offset + size])]

    def add(self, kind, name, data, flags=0, record_bytes=0, count=0):
        self.sections[kind] = [flags, record_bytes, count, name.encode(), bytearray(data)]
        return self

    def put(self, kind, index, offset, form, *values):
        """Writes fields of a record."""
        section = self.sections[kind]
        struct.pack_into("<" + form, section[4], index * section[1] + offset, *values)
        return self

    def lengthen(self, kind, extra):
        """Makes the records of a section longer: the last byte of each is 1, as if it had a field
        that is in use."""
        section = self.sections[kind]
        size, data = section[1], section[4]
        records = [data[at : at + size] + bytes(extra - 1) + b"\1" for at in range(0, len(data), size)]
        section[1], section[4] = size + extra, bytearray(b"".join(records))
        return self

    def needs(self, container=None, commands=None, kernel_abi=None, layouts=None):
        for at, version in enumerate((container, commands, kernel_abi, layouts)):
            if version is not None:
                self.versions[2 * at : 2 * at + 2] = version
        return self

    def build(self):
        end, table, body = 128 + 64 * len(self.sections), b"", b""
        for kind, (flags, record_bytes, count, name, data) in sorted(self.sections.items()):
            align = 4096 if kind in (62, 63) else 8
            start = (end + align - 1) // align * align
            body += bytes(start - end) + data
            content = self.sections[20][4] if kind == 63 else data
            table += struct.pack("<2I2Q2I16s", kind, flags, start, len(data), record_bytes, count, name)
            table += xxhash.xxh3_128_digest(bytes(content))
            end = start + len(data)
        head = struct.pack("<8s8H3Q2I2Q40x", b"\x89ACCX\r\n\x1a", *self.versions, end, *self.features, len(self.sections), 64, 128, 0)
        return head + xxhash.xxh3_128_digest(head + bytes(16) + table) + table + body


#: Numbers that no section has: before, between and after those that are known, and a vendor's.
FREE_SECTIONS = (22, 31, 34, 36, 47, 61, 64, 0x10001)
#: Opcodes that no command has, the second a vendor's.
FREE_OPCODES = (9, 0x8001)


def neighbours():
    """A small bundle with every section that an unknown one can stand beside."""
    bundle = plain_0_1()
    bundle.asset("notes", b"text")
    file = bundle.file("w.safetensors", bw.FileKind.SAFETENSORS)
    bundle.external("v", "f32", (2,), file=file)
    bundle.function("other").body.marker("here").at(bundle.location("model.py", 1))
    kernel = bundle.kernel("k", [])
    kernel.variant(bundle.image("k.ptx", b"// nothing\n\0", bw.ImageKind.PTX), driver="cuda", arch_kind="portable", block=32)
    return bundle


def unknown_sections():
    """(name, bytes, status, rule, what it is) of each."""
    for number in FREE_SECTIONS:
        for required in (0, REQUIRED):
            data = Parts(neighbours().to_bytes()).add(number, "new.thing", b"not known", required).build()
            word = "required" if required else "ignorable"
            expected = ("VERSION_MISMATCH", 13) if required else ("OK", 0)
            yield (f"unknown/section-{number}-{word}", data, *expected, f"section {number}, {word}, that nobody knows")


def unknown_commands():
    for opcode in FREE_OPCODES:
        for required in (0, REQUIRED):
            bundle = plain_0_1()
            main = bundle._functions["main", ""]
            main.body.raw(opcode, b"12345678", name="new", after=[main.body.commands[-1]])
            parts = Parts(bundle.to_bytes())
            last = parts.sections[14][4]
            size = 24 + 8 + 8
            struct.pack_into("<2H", last, len(last) - size, opcode, required)
            word = "required" if required else "ignorable"
            expected = ("VERSION_MISMATCH", 85) if required else ("OK", 0)
            yield (f"unknown/command-{opcode}-{word}", parts.build(), *expected, f"opcode {opcode}, {word}, that nobody knows")


def unknown_features():
    def base():
        return Parts(neighbours().to_bytes())

    required, optional, function, variant = base(), base(), base(), base()
    required.features[0] = 1 << 40
    optional.features[1] = 1 << 40
    function.put(9, 1, 8, "Q", 1 << 40)
    variant.put(17, 0, 24, "Q", 1 << 40)
    yield "unknown/feature-file-required", required.build(), "VERSION_MISMATCH", 7, "required feature bit 40 of the file"
    yield "unknown/feature-file-optional", optional.build(), "OK", 0, "optional feature bit 40 of the file"
    yield "unknown/feature-function", function.build(), "OK", 0, "feature bit 40 of function 'other': refused when called"
    yield "unknown/feature-variant", variant.build(), "OK", 0, "feature bit 40 of a variant: never chosen"


def next_versions():
    def base():
        return Parts(neighbours().to_bytes())

    minor = base().needs(container=(0, 4))
    yield ("next/minor-additions", base().needs(container=(0, 4)).add(47, "reviews", b"0.4 has these").build(), "OK", 0,
           "container 0.4: a section that may be ignored")  # fmt: skip
    yield "next/minor-optional-feature", with_optional(minor).build(), "OK", 0, "container 0.4: an optional feature of the file"
    yield ("next/minor-section", base().needs(container=(0, 4)).add(47, "reviews", b"needed", REQUIRED).build(),
           "VERSION_MISMATCH", 13, "container 0.4: a section that is required")  # fmt: skip
    yield ("next/minor-longer-records", base().needs(container=(0, 4)).lengthen(6, 8).build(), "VERSION_MISMATCH", 16,
           "container 0.4: constants have grown")  # fmt: skip
    yield ("next/minor-longer-ignorable", base().needs(container=(0, 4)).lengthen(32, 8).build(), "VERSION_MISMATCH", 16,
           "container 0.4: assets have grown")  # fmt: skip
    yield ("next/minor-field", base().needs(container=(0, 4)).put(37, 0, 36, "I", 1).build(), "VERSION_MISMATCH", 120,
           "container 0.4: a reserved field of a file is in use")  # fmt: skip
    yield ("next/minor-value", base().needs(container=(0, 4)).put(37, 0, 4, "I", 4).build(), "VERSION_MISMATCH", 120,
           "container 0.4: a new kind of file")  # fmt: skip
    yield ("next/minor-layout", base().needs(layouts=(0, 3)).put(6, 1, 12, "I", 12).build(), "VERSION_MISMATCH", 50,
           "layouts 0.3: a new layout")  # fmt: skip
    yield ("next/minor-operation", base().needs(commands=(0, 2)).put(5, 0, 0, "I", 20).build(), "VERSION_MISMATCH", 44,
           "commands 0.2: a new operation")  # fmt: skip
    yield ("next/minor-untrue", base().lengthen(6, 8).build(), "INVALID_FORMAT", 16,
           "constants have grown, though the file says 0.3")  # fmt: skip
    for which in ("container", "commands", "kernel_abi", "layouts"):
        yield f"next/major-{which}", base().needs(**{which: (1, 0)}).build(), "VERSION_MISMATCH", 3, f"{which} 1.0"


def with_optional(parts):
    parts.features[1] = 1
    return parts


def corpus(images):
    """All files of this version: (name, bytes, status, rule, what it is)."""
    yield "minimal", bw.BundleWriter().to_bytes(), "OK", 0, "nothing"
    yield "everything", everything_0_3(images).to_bytes(), "OK", 0, "one of everything"
    yield "plain-0.1", plain_0_1().to_bytes(), "OK", 0, "what needs 0.1 alone"
    yield "neighbours", neighbours().to_bytes(), "OK", 0, "what the files of unknown/ and next/ are made of"
    yield from unknown_sections()
    yield from unknown_commands()
    yield from unknown_features()
    yield from next_versions()


def add_line(path, line):
    with path.open("a") as file:
        file.write(line + "\n")


def conditions():
    """What 0.4 says of dimensions: copies of nothing, which readers of all versions check at each
    call. `start` is known when a plan is made, `position` at the call."""
    b = bw.BundleWriter()
    start, position = b.symbol("start", maximum=8), b.symbol("position", bw.SymbolClass.RUNTIME, maximum=8)
    f = b.function("main", doc="y = the place of a slice of 2 in 4, in each of two ways")
    f.scalar("start", start)
    f.scalar("position", position)
    y = f.result("y", "u8", [16])
    f.body.check(start, 2, 4, y, name="slice of 'x', dimension 0")
    f.body.check(position, 2, 4, y, name="slice of 'x', dimension 1")
    f.body.fill(y.write(), 7)
    return b


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    made = [(f"0.3/{name}", data, status, rule, what) for name, data, status, rule, what in corpus(compiled())]
    made.append(("0.4/conditions", conditions().to_bytes(), "OK", 0, "conditions on dimensions"))
    later = Parts(neighbours().to_bytes()).needs(layouts=(0, 4)).put(6, 1, 12, "I", 12).build()
    made.append(("0.4/next/minor-layout", later, "VERSION_MISMATCH", 50, "layouts 0.4: a new layout"))
    for name, data, status, rule, what in made:
        path = folder / f"{name}.accx"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        add_line(folder / "manifest.txt", f"{name}.accx {status} {rule} {what}")
        add_line(folder / "checksums.txt", f"{hashlib.sha256(data).hexdigest()}  {name}.accx")


if __name__ == "__main__":
    main()
