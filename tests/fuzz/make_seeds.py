"""Makes the seeds of the fuzz targets that are about bundles and images: small files that between
them use every section and command. `python tests/fuzz/make_seeds.py` writes them to
tests/fuzz/corpus; they are committed, and made again when the format grows."""
from __future__ import annotations

import pathlib
import random
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

from accrt import bundle_reader  # noqa: E402
from accrt import bundle_writer as bw  # noqa: E402
from accrt.bundle_reader import records  # noqa: E402

CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def elf_header() -> bytes:
    """The least that the verifier takes for a host image: a header and one empty program header."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + bytes(56)


def kernels() -> bytes:
    """Kernels of every kind of image, with predicates and launches, and the commands that use
    them."""
    w = bw.BundleWriter()
    n = w.symbol("n", bw.SymbolClass.BUCKET, maximum=64, buckets=[8, 64])
    m = w.symbol("m", bw.SymbolClass.RUNTIME, maximum=9, divisor=3)
    k = w.kernel("k", [bw.Parameter("x", "buffer", "read"), bw.Parameter("t", "tensor", "write"), bw.Parameter("s", "scalar", size_bytes=4),
                       bw.Parameter("n", "symbol"), bw.Parameter("w", "workspace")])  # fmt: skip
    k.variant(w.image("host", elf_header()), arch="x86-64-v3", predicates=[bw.Predicate("divisible", "n", 4), bw.Predicate("aligned", "x", 16)])
    k.variant(w.image("cubin", b"cubin", bw.ImageKind.CUBIN), driver="cuda", arch="sm_90", block=(32, 2, 1), cluster=(2, 1, 1))
    k.variant(w.image("ptx", b".version 8.0\0", bw.ImageKind.PTX), driver="cuda", arch_kind="portable", arch="sm_80", block=64)
    k.variant(w.pack("some.pack"), entry="k", driver="cuda", arch_kind="portable")
    state = w.state("cache", "f16", [4, 4], fill_pattern=0x3C00)
    weight = w.constant("weight", bytes(300), dtype="u8", shape=[300])
    f = w.function("f", doc="all of it")
    x, y = f.input("x", "f32", [n]), f.result("y", "f32", [n])
    f.scalar("m", m)
    extra = f.input("extra", "f32", [4], optional=True)
    arena = f.transient(1024)
    first = f.body.dispatch(k, {"x": x.read(0, n * 4), "t": y.write().tensor("f32", [n]), "s": bw.scalar(1.5, "f32"), "n": n,
                                "w": arena.update(0, 256)}, grid=(bw.ceildiv(n, 8), 1, 1), name="first")  # fmt: skip
    f.body.copy(f.constant(weight).read(), arena.write(0), extent=16, after=[first])
    f.body.barrier()
    loop = f.body.repeat(3)
    loop.body.fill(f.state(state).write(bw.induction(0) * 8, 8), 7, 4)
    branch = f.body.branch(f.present(extra))
    branch.then.copy(extra.read(), y.write(), extent=(4, 2, 1), source_strides=(4, 0), target_strides=(8, 0))
    branch.otherwise.marker("nothing given")
    return w.to_bytes()


def calls() -> bytes:
    """Functions that call, versions for targets, a prepare function, aliases."""
    w = bw.BundleWriter()
    w.metadata("made.by", "make_seeds")
    a = w.symbol("a", bw.SymbolClass.SPECIALIZE, minimum=1, maximum=1 << 20)
    source = w.constant("raw", bytes(range(64)), dtype="u8", shape=[64])
    made = w.prepared("made", 64)
    prepare = w.function("pack", prepare=True)
    prepare.body.copy(prepare.source("raw", source).read(), prepare.product("made", made).write(), extent=64)
    inner = w.function("inner", internal=True)
    one, two = inner.input("one", "f32", [a]), inner.result("two", "f32", [a])
    inner.body.copy(one.read(), two.write(), extent=a * 4)
    for target in ("", "cuda"):
        f = w.function("outer", target=target)
        x = f.input("x", "f32", [a], access="read_write")
        y = f.result("y", "f32", [a], alias=x)
        f.body.call(inner, {"one": x.read(), "two": y.write()})
        f.body.copy(f.constant(made).read(), y.write(), extent=bw.minimum(a * 4, 64))
    return w.to_bytes()


def _pick(dtype: int) -> int:
    """A byte that layout_fuzz.c takes for this data type."""
    return next(p for p in range(240) if p % 21 == dtype and p % 5 != 4)


def weights() -> dict[str, bytes]:
    """A weight in each layout, as layout_fuzz.c reads it: two blocks or groups by eight rows."""
    made = {}
    for line in (ROOT / "tests" / "golden" / "layouts" / "manifest.txt").read_text().splitlines():
        name, layout, _dtype, group, _rows, _columns, *parts = line.split()
        dtypes = {int(role): int(dtype) for role, dtype, _size in (part.split(":") for part in parts)}
        # index of a size: 256, 64, 32 elements
        wide = {"19": 7, "20": 7, "21": 7, "23": 5}.get(layout, 4)
        head = bytes([int(layout), 12, int(group) // 8, 2, 2, 1, wide, 2])
        picks = bytes(_pick(dtypes[role]) if role in dtypes else 4 for role in range(5))
        made[name] = head + picks + random.Random(name).randbytes(256)
    return made


def _word(data: bytes) -> str:
    plain = all(32 < byte < 127 and byte not in b'"\\\\' for byte in data)
    return '"' + (data.decode() if plain else "".join(f"\\x{byte:02x}" for byte in data)) + '"'


def dictionary(name: str, comment: str, words: list[bytes]) -> None:
    """tests/fuzz/NAME.dict: words that libFuzzer should try."""
    lines = [f"# {comment} Made by make_seeds.py.", *(_word(word) for word in dict.fromkeys(words))]
    (CORPUS.parent / f"{name}.dict").write_text("\n".join(lines) + "\n")


def dictionaries() -> None:
    """Those of binary formats: what the tables of the second reader have."""
    u16, u32 = lambda value: struct.pack("<H", value), lambda value: struct.pack("<I", value)
    sections = [u32(kind) + u32(flags) for kind in [*sorted(records.SECTION_KINDS), 0x10000] for flags in (0, 1)]
    names = [kind.name.encode().ljust(16, b"\0") for _, kind in sorted(records.SECTION_KINDS.items())]
    opcodes = [u16(opcode) + u16(flags) for opcode in [*sorted(records.COMMAND_KINDS), 0x8000] for flags in (0, 1)]
    dtypes = [u32(dtype) for dtype in sorted(records.DTYPE_BITS)]
    layouts = [u32(layout) for layout in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26)]
    edges = [u32(records.NONE), u32(1 << 20), struct.pack("<q", 1 << 48), struct.pack("<q", -1), struct.pack("<q", 256), bytes(16)]
    dictionary("container", "Section types with flags, names, opcodes, data types, edges.",
               [records.MAGIC, *sections, *names, *opcodes, *dtypes, *layouts, *edges, b"cuda", b"host", b"x86-64-v3", b"sm_90", b"\x7fELF"])  # fmt: skip
    dictionary("commands", "Opcodes with flags, ops of expressions, edges.",
               [*opcodes, *(u32(op) for op in range(len(records.EXPR_OPERANDS))), *dtypes, *edges])  # fmt: skip
    table = [bytes([value]) for value in (0, 1, 2, 3, 4, 5, 8, 16, 64, 200, 220, 240, 255)]
    dictionary("pack", "Bytes that pack_fuzz.c decides by, and names.", [*table, b"k\0", b"x\0", b"add", u32(4096), u32(1 << 30)])
    elf = [b"\x7fELF\x02\x01\x01", u16(3), u16(62), u16(183), u16(56), u16(64), b"accrt_kernel_pack_query\0"]
    segments = [u32(kind) for kind in (1, 2, 3, 4, 6, 7, 0x6474E551, 0x6474E552)]
    tags = [struct.pack("<Q", tag) for tag in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 22, 23, 25, 30, 0x6FFFFEF5)]
    relocations = [struct.pack("<Q", kind) for kind in (1, 6, 7, 8, 37, 257, 1025, 1026, 1027)]
    dictionary("elf", "Headers, kinds of segments, dynamic tags, relocations.", [*elf, *segments, *tags, *relocations])
    cubin = [b"\x7fELF\x02\x01\x01\x41\x08", u16(190), u16(2), u16(1), *(u32(kind) for kind in (1, 2, 3, 4, 7, 8, 9, 11, 0x70000000, 0x70000001))]
    fatbin = [b"\x50\xed\x55\xba\x01\0\x10\0", b"\xb1\x43\x62\x46", u16(0x0101), u32(64), u32(80), u32(0x8011), u32(0x2011), b"\x28\xb5\x2f\xfd"]
    dictionary("device_image", "Headers of cubins and fatbins, kinds of sections and entries.", [*cubin, *fatbin, b".text.", b".nv.info"])


def main() -> None:
    dictionaries()
    container = CORPUS / "container"
    container.mkdir(parents=True, exist_ok=True)
    for name, data in (("kernels", kernels()), ("calls", calls())):
        bundle_reader.read(data)
        (container / f"{name}.accx").write_bytes(data)
        print(f"{name}.accx: {len(data)} bytes")
    commands = CORPUS / "commands"
    commands.mkdir(parents=True, exist_ok=True)
    parts = bundle_reader.read(kernels()).container
    seed = b""
    for name, kind in (("expressions", 5), ("slots", 11), ("views", 12), ("blocks", 13), ("commands", 14)):
        content = parts.sections.get(name, b"")
        count = parts.by_type[kind].record_count if kind in parts.by_type else 0
        seed += struct.pack("<HH", len(content), count) + bytes(content)
    (commands / "kernels").write_bytes(seed)
    pack = CORPUS / "pack"
    pack.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for size in (40, 120, 400):
        (pack / f"bytes-{size}").write_bytes(bytes(rng.choices(range(256), [9] * 16 + [1] * 240, k=size)))
    elf = CORPUS / "elf"
    elf.mkdir(parents=True, exist_ok=True)
    (elf / "header").write_bytes(elf_header())
    layout = CORPUS / "layout"
    layout.mkdir(parents=True, exist_ok=True)
    for name, data in weights().items():
        (layout / name).write_bytes(data)
    golden = bundle_reader.read(ROOT / "tests" / "golden" / "0.1" / "everything.accx")
    for name, image in golden.images.items():
        if image.kind == "host_elf":
            (elf / name.replace("/", "_")).write_bytes(golden.code(image))


if __name__ == "__main__":
    main()
