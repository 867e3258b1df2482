"""Bundles for given readers (docs/contract.md, "Writing for a target"): what the writer leaves out
for a reader that does not know it, and what it refuses. Each content goes to it twice: through
accrt.bundle_writer, and through C's own calls in another order (writer_replay). Both come to the
same, in the same words.

One content uses every number that a reader can be without; each is taken from the reader in turn. A
table has what that cannot show: places, and what is known by its version alone."""

from __future__ import annotations

import ctypes
import json
import random

import numpy as np
import pytest

import accrt
import accrt.bundle_reader
import rotation
import test_golden
import writer_replay
from accrt import _ffi
from accrt import bundle_writer as bw
from accrt._library import check, lib, struct
from accrt.bundle_writer import layouts
from accrt.bundle_writer.common import SECTIONS
from accrt.bundle_writer.common import EXPRESSION_OPS as OPS
from accrt.bundle_writer.common import OPCODES
from random_bundles import elf
from test_writer_0_3 import caps

E = bw.Encoding


def now(**changes):
    """What this library says of itself, as the JSON of `accx caps`."""
    mask = accrt.caps()
    known = {
        "container": "0.3", "commands": "0.1", "kernel_abi": "0.2", "layouts": "0.3", "max_rank": 8,
        "file_features": ["encrypted-data"], "function_features": ["target"], "variant_features": [],
        "sections": [name for name, (number, _size) in SECTIONS.items() if mask["section_mask"] >> number & 1],
        "expression_ops": list(OPS), "command_set": [word for word in OPCODES if word], "dtypes": list(bw.DTYPES),
        "encodings": [{"id": int(e), "name": e.name.lower()} for e in E],
        "image_kinds": ["host ELF", "cubin", "PTX", "fatbin", "pack"],
    }  # fmt: skip
    return {**known, **changes}


def c_caps(target):
    """The same JSON, as a C compiler reads it."""
    text = json.dumps(target).encode()
    made = struct(_ffi.accrt_caps)
    check(lib.accrt_caps_parse(text, len(text), None, ctypes.byref(made)))
    return made


def outcome(write, refusal):
    """The bytes, or the message."""
    try:
        return write()
    except refusal as problem:
        return getattr(problem, "message", None) or str(problem)


def both(build, target):
    """What the writers make of a content for a target: the same."""
    whole = bw.BundleWriter()
    build(whole)
    fitted = bw.BundleWriter(target)
    build(fitted)
    python = outcome(fitted.to_bytes, bw.TargetError)
    c = outcome(lambda: writer_replay.rewritten(whole.to_bytes(), random.Random(1), c_caps(target)), accrt.UnsupportedError)
    assert python == c
    return python


# ---- Contents ----


def quantized(b, encoding, name="w", shape=(8, 256), dtype="f32"):
    layout, group = layouts.of(encoding), 64 if layouts.of(encoding).free_group else 0
    parts = {role: (bytes(layouts.size_bytes(encoding, role, dtypes[0], shape, group)), dtypes[0])
             for role, dtypes in layout.components.items()}  # fmt: skip
    b.constant(name, parts, dtype=dtype, shape=shape, encoding=encoding, group_elements=group)


def every_operation(b, main, n, optional):
    """An expression with each operation once."""
    total = main.present(optional) + bw.induction(0)
    for op in (lambda a: a - 1, lambda a: a * 2, lambda a: a // 3, lambda a: bw.ceildiv(a, 4), lambda a: a % 5,
               lambda a: bw.minimum(a, 6), lambda a: bw.maximum(a, n), lambda a: bw.equal(a, 7), lambda a: bw.not_equal(a, 8),
               lambda a: bw.less(a, 9), lambda a: bw.less_equal(a, 1), lambda a: bw.logical_and(a, 1), lambda a: bw.logical_or(a, 0),
               bw.logical_not, lambda a: bw.select(a, 0, 4)):  # fmt: skip
        total = op(total)
    return total


def everything(b):
    """Every section that is not about the finished file, opcode, operation, data type and
    layout."""
    b.metadata("license", "free")
    for dtype in bw.DTYPES:
        b.constant(f"plain.{dtype}", bytes(bw.dtype_size_bytes(dtype, 8)), dtype=dtype, shape=(8,))
    b.constant("opaque", b"1", dtype="u8", shape=(1,), encoding=E.OPAQUE)
    for encoding in (e for e in E if e > E.OPAQUE):
        quantized(b, encoding, f"quantized.{encoding.name}")
    outside = b.external("outside", "f32", (4,), file=b.file("w.gguf", bw.FileKind.GGUF))
    b.shard(outside, 2, axis=0, extent=8)
    b.asset("LICENSE", b"free")
    n, k = b.symbol("n", maximum=64), b.symbol("k", bw.SymbolClass.BUCKET, maximum=8, buckets=(4, 8))
    state = b.state("cache", "f32", [4])
    kernel = b.kernel("kernel", [bw.Parameter("t", "tensor", "read"), bw.Parameter("n", "symbol")])
    kernel.variant(b.image("host", elf()), arch_kind="portable", predicates=[bw.Predicate("divisible", "n", 1)])
    helper = b.function("helper", internal=True)
    helper.body.fill(helper.result("y", "f32", [4]).write())
    main = b.function("main")
    x, optional, y = main.input("x", "f32", [n, k]), main.input("lora", "f32", [n], optional=True), main.result("y", "f32", [4])
    b.adapter("lora_A", "lora")
    first = main.body.dispatch(kernel, {"t": x.read().tensor("f32", [n, k]), "n": n}).at(b.location("m.py", 1))
    main.body.copy(main.state(state).read(), y.write(), 16, after=[first])
    main.body.barrier()
    main.body.call(helper, {"y": y.write()})
    repeat = main.body.repeat(2)
    repeat.body.fill(y.write(every_operation(b, main, n, optional), 4))
    main.body.branch(main.present(optional)).then.marker("here")


def encrypted(b):
    b.section(44, "encryption", bytes([1]) + bytes(63))
    b.section(45, "tags", bytes(16))
    b.constant("w", b"1")


def one_variant(b, image, **fields):
    b.kernel("k", []).variant(image(b), **fields)


DEVICE = {"driver": "cuda", "arch": "sm_90", "block": 1}
IMAGES = {
    "host ELF": (lambda b: b.image("i", elf()), {"arch_kind": "portable"}),
    "cubin": (lambda b: b.image("i", b"1", bw.ImageKind.CUBIN), DEVICE),
    "PTX": (lambda b: b.image("i", b"1\0", bw.ImageKind.PTX), DEVICE),
    "fatbin": (lambda b: b.image("i", b"1", bw.ImageKind.FATBIN), DEVICE),
    "pack": (lambda b: b.pack("acme.i"), {"driver": "cuda", "arch_kind": "portable"}),
}

# ---- Every number, one after the other ----

#: What readers may be without, of what `everything` holds.
IGNORED = {("sections", n) for n in ("metadata", "assets", "asset_data", "locations", "adapters")} | {("command_set", "marker")}
#: Sections that `everything` does not hold.
ELSEWHERE = {"launches", "tree", "signatures", "leaves", "encryption", "tags"}


def without(member, name):
    names = now()[member]
    return now(**{member: [n for n in names if n != name and not (isinstance(n, dict) and n["name"] == name)]})


def names_of(member):
    return [n["name"] if isinstance(n, dict) else n for n in now()[member]]


CASES = [(member, name) for member in ("sections", "expression_ops", "command_set", "dtypes", "encodings") for name in names_of(member)
         if name not in ELSEWHERE]  # fmt: skip


@pytest.mark.parametrize("member,name", CASES, ids=lambda value: value)
def test_each_number_that_a_reader_does_not_know(member, name):
    found = both(everything, without(member, name))
    if (member, name) in IGNORED:
        accrt.Bundle(found)
        return
    kind = {"sections": "section", "expression_ops": "expression operation", "command_set": "opcode", "dtypes": "data type",
            "encodings": "layout"}[member]  # fmt: skip
    assert f"the target does not know {kind} " in found and found.endswith(f" ({name})"), found


def test_nothing_is_left_out_for_this_library():
    whole = bw.BundleWriter()
    everything(whole)
    assert both(everything, now()) == whole.to_bytes()
    held = {name for name in SECTIONS if both(everything, without("sections", name)) != whole.to_bytes()}
    # what is ignorable is kept, but for what came later
    assert held == set(SECTIONS) - ELSEWHERE - {"metadata", "asset_data"}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("case", ["alone", "beside", "unused"])
def test_each_kind_of_image(name, case):
    image, fields = IMAGES[name]
    number = list(IMAGES).index(name) + 1

    def build(b):
        if case == "unused":
            image(b)
            return
        one_variant(b, image, **fields)
        if case == "beside":
            other = bw.ImageKind.FATBIN if name != "fatbin" else bw.ImageKind.PTX
            b._kernels["k"].variant(b.image("other", b"1\0", other), driver="cuda", arch="sm_90", block=1)

    found = both(build, without("image_kinds", name))
    if case == "alone":
        assert found == f"kernel 'k': the target does not know image kind {number} ({name}), and there is no variant without"
    elif case == "unused":
        assert found.endswith(f": the target does not know image kind {number} ({name})")
    else:
        images = accrt.bundle_reader.read(found).images
        assert list(images) == ["other"]


# ---- What that does not show ----


def view(b, dtype="f8e8m0", shape=(2,)):
    kernel = b.kernel("k", [bw.Parameter("x", "buffer", "read"), bw.Parameter("t", "tensor", "read")])
    kernel.variant(b.image("i", elf()), arch_kind="portable")
    f = b.function("main")
    x = f.input("x", "f32", [4, 4])
    f.body.dispatch(kernel, {"x": x.read(), "t": x.read().tensor(dtype, shape)}, name="view")


def described(b, encoding=E.PLAIN, dtype="f32", kind="input", rank=1):
    f = b.function("main")
    getattr(f, kind)("x", dtype, [2] * rank, encoding=encoding)


def external(b, **fields):
    b.external("w", "f32", (2,), **fields)


def raw(b, required):
    f = b.function("main", required_features=1 << 40)
    f.body.raw(0x30, bytes(8), name="new", required=required)


def two(b, extra=0, plain=0):
    for target, bits in (("", plain), ("cuda", extra)):
        b.function("main", target=target, required_features=bits).result("y", "f32", [4])


def state(b, dtype="f32", rank=1):
    b.state("s", dtype, [3] * rank)


def extents(b):
    n = b.symbol("n", bw.SymbolClass.SESSION)
    b.state("s", "f32", [n * 2])
    f = b.function("main")
    k = b.symbol("k")
    f.input("y", "f32", [k])
    f.input("x", "f32", [k - 1])
    f.transient(bw.maximum(n, 3))


def launched(b, **fields):
    one_variant(b, IMAGES["cubin"][0], **{**DEVICE, **fields})


NO = "the target does not know "
ONLY = ", and there is no variant without"
SMALL = "the target knows ranks up to 2, not 3"
REFUSALS = [
    # Data types and ranks, wherever there are some.
    (lambda b: b.constant("w", b"1", dtype="i4", shape=(1,)), without("dtypes", "i4"), f"constant 'w': {NO}data type 18 (i4)"),
    (lambda b: quantized(b, E.NVFP4), without("dtypes", "f8e4m3fn"), f"constant 'w': {NO}data type 14 (f8e4m3fn)"),
    (lambda b: quantized(b, E.Q8_0, dtype="bf16"), without("dtypes", "bf16"), f"constant 'w': {NO}data type 11 (bf16)"),
    (lambda b: state(b, "u64"), without("dtypes", "u64"), f"state 's': {NO}data type 9 (u64)"),
    (lambda b: described(b, dtype="i8"), without("dtypes", "i8"), f"function 'main', input 'x': {NO}data type 2 (i8)"),
    (lambda b: described(b, dtype="i8", kind="result"), without("dtypes", "i8"), f"function 'main', result 'x': {NO}data type 2 (i8)"),
    (view, without("dtypes", "f8e8m0"), f"function 'main', command 0 (dispatch 'view'), parameter 't': {NO}data type 16 (f8e8m0)"),
    (lambda b: b.constant("w", bytes(4), dtype="i8", shape=(1, 2, 2)), now(max_rank=2), f"constant 'w': {SMALL}"),
    (lambda b: state(b, rank=3), now(max_rank=2), f"state 's': {SMALL}"),
    (lambda b: described(b, rank=3), now(max_rank=2), f"function 'main', input 'x': {SMALL}"),
    (lambda b: view(b, "f32", (1, 2, 2)), now(max_rank=2), f"function 'main', command 0 (dispatch 'view'), parameter 't': {SMALL}"),
    # Layouts, which arguments have too.
    (lambda b: described(b, E.OPAQUE), without("encodings", "opaque"), f"function 'main', input 'x': {NO}layout 1 (opaque)"),
    (lambda b: external(b, encoding=E.OPAQUE, size_bytes=3), without("encodings", "opaque"), f"constant 'w': {NO}layout 1 (opaque)"),
    # Operations, where they are first used.
    (extents, without("expression_ops", "mul"), f"state 's': {NO}expression operation 5 (mul)"),
    (extents, without("expression_ops", "sub"), f"function 'main', input 'x': {NO}expression operation 4 (sub)"),
    (extents, without("expression_ops", "max"), f"function 'main': {NO}expression operation 10 (max)"),
    # Commands.
    (lambda b: raw(b, True), now(function_features=["bit 40"]), f"function 'main', command 0 (command 'new'): {NO}opcode 48"),
    # Features: of the file, functions, variants.
    (encrypted, now(file_features=[]), f"{NO}file feature bit 0 (encrypted-data)"),
    (encrypted, without("sections", "encryption"), f"{NO}section 44 (encryption)"),
    (encrypted, without("sections", "tags"), f"{NO}section 45 (tags)"),
    (lambda b: raw(b, False), now(), f"function 'main': {NO}function feature bit 40"),
    (lambda b: b.function("f", target="cuda"), now(function_features=[]),
     f"function 'f' for cuda: {NO}function feature bit 0 (target), and there is no version without"),
    (lambda b: two(b, extra=1 << 63), now(), f"function 'main' for cuda: {NO}function feature bit 63"),
    (lambda b: two(b, plain=1 << 63), now(function_features=[]), f"function 'main': {NO}function feature bit 63"),
    (lambda b: launched(b, required_features=1 << 40), now(), f"kernel 'k': {NO}variant feature bit 40{ONLY}"),
    # What came with a version and has no number of its own.
    (external, now(container="0.2"), f"constant 'w': {NO}EXTERNAL constants (container 0.3)"),
    (lambda b: quantized(b, E.I8_GROUP), now(container="0.2"), f"constant 'w': {NO}group sizes of layouts (container 0.3)"),
    (lambda b: external(b, file=b.file("f", bw.FileKind.GGUF)), without("sections", "files"), f"file 'f': {NO}section 37 (files)"),
    (lambda b: b.shard(b.external("w", "f32", (2,)), 2), without("sections", "shards"), f"shard 'w': {NO}section 38 (shards)"),
    (launched, without("sections", "launches"), f"kernel 'k': {NO}section 21 (launches){ONLY}"),
    (launched, now(kernel_abi="0.1"), f"kernel 'k': {NO}launches (kernel ABI 0.2){ONLY}"),
    (lambda b: one_variant(b, IMAGES["pack"][0], **IMAGES["pack"][1]), now(kernel_abi="0.1"),
     f"kernel 'k': {NO}kernel packs (kernel ABI 0.2){ONLY}"),
    (lambda b: one_variant(b, IMAGES["host ELF"][0], arch_kind="portable", arch="x86-64-v3"), now(container="0.1"),
     f"kernel 'k': {NO}portable variants with an architecture (container 0.2){ONLY}"),
    (lambda b: b.file("f", bw.FileKind.GGUF), now(container="0.2"), f"file 'f': {NO}section 37 (files)"),
    # The versions themselves, last.
    (lambda b: None, now(container="1.0"), "the bundle needs container 0.1, the target reads 1.0"),
    (lambda b: None, now(commands="0.0"), "the bundle needs command set 0.1, the target reads 0.0"),
    (lambda b: None, now(kernel_abi="2.7"), "the bundle needs kernel ABI 0.1, the target reads 2.7"),
    (lambda b: quantized(b, E.Q8_0), now(layouts="0.1"), "the bundle needs layouts 0.2, the target reads 0.1"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(REFUSALS)))
def test_what_a_target_cannot_do_is_named(index, tmp_path):
    build, target, message = REFUSALS[index]
    assert both(build, target) == message
    bundle = bw.BundleWriter(target)
    build(bundle)
    with pytest.raises(bw.TargetError):
        bundle.write(tmp_path / "never.accx")
    assert not list(tmp_path.iterdir())


def variants(b, *extra):
    kernel = b.kernel("k", [])
    kernel.variant(b.image("plain", elf()), arch_kind="portable")
    for at, (image, fields) in enumerate(extra):
        kernel.variant(image(b), **fields, priority=at)


#: What is written without something, for readers that do not know it; and the same content without
#: it.
OMISSIONS = [
    (lambda b: variants(b, (IMAGES["cubin"][0], {**DEVICE, "required_features": 2})), variants, now()),
    (lambda b: variants(b, IMAGES["cubin"]), variants, without("sections", "launches")),
    (lambda b: variants(b, IMAGES["pack"]), variants, now(kernel_abi="0.1")),
    (lambda b: variants(b, (lambda b: b._images[0], {"arch_kind": "portable", "arch": "x86-64-v3"})), variants, now(container="0.1")),
    (two, lambda b: b.function("main").result("y", "f32", [4]), now(function_features=[])),
    (lambda b: two(b, extra=1 << 63), lambda b: b.function("main").result("y", "f32", [4]), now(function_features=[])),
    (lambda b: [b.asset("a", b"1"), described(b)], described, without("sections", "assets")),
    # whatever sections it lists
    (lambda b: [b.asset("a", b"1"), described(b)], described, now(container="0.2")),
    (lambda b: [b.asset("a", b"1"), described(b)], described, now(container="0.1")),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(OMISSIONS)))
def test_what_a_target_does_without_is_left_out(index):
    build, less, target = OMISSIONS[index]
    expected = bw.BundleWriter()
    less(expected)
    assert both(build, target) == expected.to_bytes()


def test_what_a_target_knows_is_written():
    """Numbers that this library has no names for."""
    target = now(function_features=["target", "bit 40"], variant_features=["bit 63"], command_set=[*OPCODES[1:], "bit 48"])

    def build(b):
        raw(b, True)
        launched(b, required_features=1 << 63)

    whole = bw.BundleWriter()
    build(whole)
    assert both(build, target) == whole.to_bytes()


# ---- The devices of the target ----


def devices(*there, cpu_features=()):
    """ "host:x86-64-v4" and so on, as `accx caps` has them."""
    drivers = {}
    for device in there:
        driver, arch = device.split(":")
        drivers.setdefault(driver, []).append(arch)
    return now(drivers=[{"name": name, "devices": len(archs), "architectures": archs} for name, archs in drivers.items()],
               cpu_features=list(cpu_features))  # fmt: skip


def code(b, driver):
    made = [image for image in b._images if image.name == driver]
    return made[0] if made else b.image(driver, elf()) if driver == "host" else b.image(driver, b"1\0", bw.ImageKind.PTX)


def placed(b, /, **functions):
    """Functions by name, "f_for_cuda" for CUDA alone: each dispatches kernels that are given as
    (driver, arch, fields) of their variants."""
    for name, kernels in functions.items():
        f = b.function(name.split("_for_")[0], target=name.partition("_for_")[2])
        f.result("y", "f32", [4])
        for index, variants in enumerate(kernels):
            kernel = b.kernel(f"{name}.{index}", [])
            for driver, arch, fields in variants:
                block = None if driver == "host" else 1
                kernel.variant(code(b, driver), driver=driver, arch=arch, block=block, **{"arch_kind": "family" if arch else "portable", **fields})
            f.body.dispatch(kernel, {})


def host(arch, **fields):
    return [("host", arch, fields)]


def cuda(arch, **fields):
    return [("cuda", arch, fields)]


def called(b):
    placed(b, main=[], other=[host("x86-64-v4")])
    helper = b.function("helper", internal=True)
    y = helper.result("y", "f32", [4])
    helper.body.call(b._functions["other", ""], {"y": y.write()})
    b._functions["main", ""].body.call(helper, {"y": b._functions["main", ""].transient(16).write()})
    b._functions["other", ""].internal = True


PORTABLE = {"arch_kind": "portable"}
EXACT = {"arch_kind": "exact"}
PLACES = [
    # What is refused: (functions, devices), and where.
    (dict(f=[host("x86-64-v3")]), devices("host:aarch64"), "f", "f.0"),
    (dict(f=[host("x86-64-v4")]), devices("host:x86-64-v3"), "f", "f.0"),
    (dict(f=[host("aarch64")]), devices("host:x86-64-v4"), "f", "f.0"),
    (dict(f=[host("", cpu_features=["avx512_vnni"])]), devices("host:x86-64-v4", cpu_features=["x86-64-v4", "amx-int8"]), "f", "f.0"),
    (dict(f=[cuda("sm_90")]), devices("host:x86-64-v4", "cuda:sm_100"), "f", "f.0"),
    (dict(f=[cuda("sm_90", **EXACT)]), devices("cuda:sm_89"), "f", "f.0"),
    (dict(f=[cuda("sm_90a", **EXACT)]), devices("cuda:sm_100"), "f", "f.0"),
    (dict(f=[cuda("sm_100f")]), devices("cuda:sm_90"), "f", "f.0"),
    (dict(f=[cuda("sm_90", **PORTABLE)]), devices("cuda:sm_80"), "f", "f.0"),
    (dict(f=[cuda("sm_80") + host("x86-64-v4")]), devices("host:x86-64-v3"), "f", "f.0"),
    (dict(f=[host(""), host("aarch64"), host("x86-64-v4")]), devices("host:x86-64-v2"), "f", "f.1"),
    (dict(a=[host("")], b=[host("aarch64")]), devices("host:x86-64-v4", "cuda:sm_90"), "b", "b.0"),
    (dict(f=[host("aarch64")], f_for_cuda=[cuda("sm_90")]), devices("host:x86-64-v4"), "f", "f.0"),
    (dict(f=[host("")], f_for_cuda=[cuda("sm_90")]), devices("cuda:sm_80"), "f' for cuda", "f_for_cuda.0"),
    (called, devices("host:x86-64-v3"), "main", "other.0"),
    (dict(f=[host("")], f_for_cuda=[cuda("sm_90")]), {**devices("cuda:sm_90"), "function_features": []}, "f", "f.0"),
    # What is written.
    (dict(f=[host("x86-64-v3")]), devices("host:x86-64-v4"), None, None),
    (dict(f=[host("x86-64")]), devices("host:x86-64-v2"), None, None),
    (dict(f=[host("", cpu_features=["avx512_vnni", "x86_64_v4"])]), devices("host:x86-64-v4", cpu_features=["x86-64-v4", "avx512-vnni"]), None, None),
    (dict(f=[host("aarch64", cpu_features=["arm_sve"])]), devices("host:aarch64", cpu_features=["sve", "neon"]), None, None),
    (dict(f=[cuda("sm_90")]), devices("host:x86-64-v4", "cuda:sm_80", "cuda:sm_90"), None, None),
    (dict(f=[cuda("sm_80", **PORTABLE)]), devices("cuda:sm_100"), None, None),
    (dict(f=[cuda("sm_90a", **EXACT)]), devices("cuda:sm_90"), None, None),
    (dict(f=[cuda("sm_100f")]), devices("cuda:sm_103"), None, None),
    (dict(f=[host("")], f_for_cuda=[cuda("sm_90")]), devices("host:x86-64-v4"), None, None),
    (dict(f=[host("aarch64")], f_for_cuda=[cuda("sm_90")]), devices("host:x86-64-v4", "cuda:sm_90"), None, None),
    (dict(g_for_cuda=[cuda("sm_90")]), devices("host:x86-64-v4"), None, None),
    (called, devices("host:x86-64-v4"), None, None),
    (dict(f=[host("x86-64-v4")]), devices(), None, None),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(PLACES)))
def test_a_device_of_the_target_runs_it(index):
    functions, target, function, kernel = PLACES[index]
    found = both(functions if callable(functions) else lambda b: placed(b, **functions), target)
    if function is None:
        accrt.Bundle(found)
        return
    there = " ".join(f"{d['name']}:{arch}" for d in target["drivers"] for arch in d["architectures"])
    function = f"function '{function}" + ("" if function.endswith("cuda") else "'")
    assert found == f"{function}: kernel '{kernel}' has no variant for the devices of the target ({there})"


def test_random_bundles_on_random_devices():
    import os

    import random_bundles

    seed = rotation.seed()
    there = ["host:x86-64-v4", "host:x86-64-v2", "host:aarch64", "cuda:sm_90", "cuda:sm_80", "cuda:sm_100", "other:thing"]
    outcomes = set()
    for at in range(seed, seed + int(os.environ.get("ACCRT_TEST_ROUNDS", "40"))):
        print("seed", at)
        rng = random.Random(at)
        target = devices(*rng.sample(there, rng.randint(1, 2)), cpu_features=rng.choice([(), ("avx512-vnni", "neon")]))
        whole = random_bundles.random_bundle(random.Random(at), newest=False).to_bytes()
        fitted = random_bundles.random_bundle(random.Random(at), newest=False)
        fitted._target = bw.TargetCaps.of(target)
        python = outcome(fitted.to_bytes, bw.TargetError)
        c = outcome(lambda: writer_replay.rewritten(whole, random.Random(at), c_caps(target)), accrt.UnsupportedError)
        # names are cut in C
        assert python == c or (isinstance(c, str) and python.split(" has ")[0][:64] in c)
        outcomes.add(type(python))
    assert outcomes == {bytes, str}


# ---- The JSON, in C ----


def test_c_reads_what_the_tool_prints():
    from test_tool import accx

    text = accx("caps", "--json").encode()
    found, own = struct(_ffi.accrt_caps), struct(_ffi.accrt_caps)
    check(lib.accrt_caps_parse(text, len(text), None, ctypes.byref(found)))
    check(lib.accrt_query_caps(ctypes.byref(own)))
    there = json.loads(text)["drivers"]
    assert found.devices.decode() == " ".join(f"{d['name']}:{arch}" for d in there for arch in d["architectures"])
    assert own.devices == b""
    assert bytes(found)[: type(own).devices.offset] == bytes(own)[: type(own).devices.offset]


@pytest.mark.parametrize("target", [caps(), now(), now(sections=["strings", "later"], dtypes=[]), caps(encodings=["plain", "q8_0", "bit 9"])])
def test_masks_say_what_the_json_says(target):
    found = c_caps(target)
    fields = {name: getattr(found, name) for name, _kind in found._fields_ if name not in ("next", "struct_size", "cpu_arch")}
    assert bw.TargetCaps.of(fields) == bw.TargetCaps.of(target)


WRONG = [
    ("container", 0.3), ("container", "0.3 "), ("commands", "0.1.0"), ("kernel_abi", "\u0660.\u0662"), ("layouts", "0.65536"), ("layouts", None),
    ("max_rank", "8"), ("max_rank", 8.5), ("max_rank", True), ("max_rank", -1), ("max_rank", 2**32), ("sections", "strings"), ("sections", {}),
    ("dtypes", [1]), ("dtypes", None), ("command_set", [None]), ("encodings", [{}]), ("encodings", [{"id": "3"}]), ("encodings", [{"id": 1.0}]),
    ("encodings", [{"id": -1}]), ("encodings", [{"id": True}]), ("function_features", "target"), ("drivers", {}), ("drivers", [1]), ("drivers", [{}]),
    ("drivers", [{"name": ""}]), ("drivers", [{"name": "a:b"}]), ("drivers", [{"name": 1}]), ("drivers", [{"name": "a", "architectures": "sm_90"}]),
    ("drivers", [{"name": "a", "architectures": [90]}]), ("drivers", [{"name": "a", "architectures": ["sm 90"]}]),
]  # fmt: skip


@pytest.mark.parametrize("member, value", WRONG)
def test_both_refuse_what_is_no_target(member, value):
    with pytest.raises(accrt.errors.InvalidFormatError, match=member):
        c_caps(now(**{member: value}))
    with pytest.raises(bw.BundleError, match=f"^target_caps: .*'{member}'"):
        bw.TargetCaps.of(now(**{member: value}))


@pytest.mark.parametrize("drivers", [[], [{"name": "host", "devices": 1}], [{"name": "host"}, {"name": "cuda"}]])
def test_devices_that_nobody_told(drivers):
    """As older versions wrote it: nothing is known of the devices, and nothing refused for them."""
    target = now(drivers=drivers, encodings=["plain", "bit 64", "bit 70", {"id": 64}, "bit -1", "bit "])
    assert c_caps(target).devices == b""
    assert bw.TargetCaps.of(target).architectures is None
    assert bw.TargetCaps.of(target).raw.encoding_mask == 1


def test_the_tool_builds_for_a_target(tmp_path):
    from accx_tool import accx

    whole, fitted = bw.BundleWriter(), bw.BundleWriter(without("sections", "assets"))
    everything(whole)
    everything(fitted)
    whole.write(tmp_path / "whole.accx")
    accx("dump", tmp_path / "whole.accx", "--output", tmp_path / "whole.yaml")

    def build(target, code=0):
        (tmp_path / "target.json").write_text(json.dumps(target))
        arguments = ("build", tmp_path / "whole.yaml", "--output", tmp_path / "fitted.accx", "--target-caps", tmp_path / "target.json")
        return accx(*arguments, code=code)

    build(without("sections", "assets"))
    assert (tmp_path / "fitted.accx").read_bytes() == fitted.to_bytes()
    assert "the target does not know opcode 6 (repeat)" in build(without("command_set", "repeat"), code=1)
    assert "target.json: byte" in build([], code=3)


# ---- Older readers, and larger contents ----


def golden_content(make, name):
    import test_golden

    images = test_golden.images_of((test_golden.FOLDER / name / "everything.accx").read_bytes())
    return lambda: (make.everything_0_3 if name == "0.3" else make.everything)(images)


SECOND = {"container": "0.2", "kernel_abi": "0.2", "function_features": ["target"],
          "image_kinds": ["host ELF", "cubin", "PTX", "fatbin", "pack"], "dtypes": list(bw.DTYPES)}  # fmt: skip
TARGETS = {
    "0.1": {"dtypes": list(bw.DTYPES)}, "0.2": SECOND, "without-packs": {**SECOND, "image_kinds": ["host ELF", "cubin", "PTX", "fatbin"]},
    "without-versions": {**SECOND, "function_features": []}, "without-repeat": {**SECOND, "command_set": ["dispatch", "copy", "fill"]},
    "without-select": {**SECOND, "expression_ops": ["constant", "symbol", "add", "mul"]}, "small-rank": {**SECOND, "max_rank": 1},
    "now": None,
}  # fmt: skip


def helpers(bw_):
    """What only the version for one driver needs: a kernel without a host variant, a packed weight,
    functions in between."""
    bundle = bw_.BundleWriter()
    parameters = [bw_.Parameter("y", "buffer", "write")]
    ptx = {"driver": "cuda", "arch_kind": "portable", "block": 1}
    device = bundle.kernel("device", parameters).variant(bundle.image("c", b"1\0", bw_.ImageKind.PTX), **ptx)
    weight, packed = bundle.constant("weight", np.arange(4, dtype=np.float32)), bundle.prepared("packed", 16)
    pack = bundle.function("pack", prepare=True, target="cuda")
    pack.body.copy(pack.source("w", weight).read(), pack.product("p", packed).write(), 16)
    part = bundle.function("part", internal=True, target="cuda")
    part.body.dispatch(device, {"y": part.result("y", "f32", [4]).write()})
    for target in ("", "cuda"):
        main = bundle.function("main", target=target)
        y = main.result("y", "f32", [4])
        main.body.copy(main.constant(packed if target else weight).read(), y.write(), 4)
        if target:
            main.body.call(part, {"y": y.write()})
    return bundle


@pytest.mark.parametrize("content", ["0.2", "0.3", "richer", "device-only", "helpers"])
@pytest.mark.parametrize("name", list(TARGETS))
def test_contents_of_golden_files_for_a_target(content, name):
    make = test_golden.load("make")
    bw_ = make.bw
    target = now() if TARGETS[name] is None else caps(**TARGETS[name])
    if content in ("0.2", "0.3"):
        model = golden_content(make, content)
    elif content == "helpers":
        def model():
            return helpers(bw_)
    elif content == "richer":
        def model():
            bundle = make.plain_0_1()
            bundle.asset("notes", b"text")
            main = bundle._functions["main", ""]
            main.body.marker("here").at(bundle.location("model.py", 1))
            return bundle
    else:
        def model():
            bundle = make.neighbours()
            bundle._constants.pop("v")
            bundle._files.clear()
            return bundle
    whole = model()
    bundle = model()
    bundle._target = bw_.TargetCaps.of(target)
    assert outcome(lambda: bundle.to_bytes(), bw_.TargetError) == outcome(
        lambda: writer_replay.rewritten(whole.to_bytes(), random.Random(1), c_caps(target)), accrt.UnsupportedError
    )
