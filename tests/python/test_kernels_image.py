"""The image builder: what it refuses, that it is deterministic, its cache, its tables; KernelDef
and size helpers."""

import ctypes
import dataclasses
import hashlib
import os
import subprocess

import pytest

import kernel_harness as harness
from accrt.compiler.kernels import elementwise as ew
from accrt.compiler.kernels import expr, image, matmul
from accrt.compiler.kernels import tensor_ops as ops
from accrt.compiler.kernels.kerneldef import CSource, KernelDef, Predicate, TensorSpec, launch, layout, reads, scalar, symbol, writes

AVAILABLE, MISSING = image.available_targets()
ENTRY_TEXT = """
#include "accrt/kernel.h"
%s
int32_t NAME(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w);
int32_t NAME(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e; (void)d; (void)w;
  %s
}
"""


def small_kernel(name="small", before="", body="return 0;", params=(), struct="", flags=()):
    text = (ENTRY_TEXT % (before, body)).replace("NAME", "accrt_" + name)
    return KernelDef(name, "test", CSource(text=text, struct=struct, flags=flags), layout(params), lambda v: (1, 1, 1))


def test_every_target_can_be_built_or_says_why_not():
    assert set(AVAILABLE) | set(MISSING) == set(image.TARGETS)
    for reason in MISSING.values():
        assert "no C compiler for" in reason


@pytest.mark.parametrize("target", AVAILABLE)
def test_an_image_holds_the_kernels_asked_for(target):
    kernels = [ops.gather_kernel("i32"), matmul.gemm_kernel("f32", "f32", "f32"), small_kernel()]
    content = image.build_image(kernels, target)
    image.check_image(content, image.TARGETS[target])
    elf = image._Elf(content)
    names = {name for name, _info, _other, _index in elf.symbols(2)}
    assert {"accrt_gather_i32", "accrt_gemm_f32_f32_f32", "accrt_small"} <= names
    assert [name for name, *_ in elf.symbols(11)] == ["accrt_kernel_pack_query"]


@pytest.mark.parametrize("target", AVAILABLE)
def test_images_are_deterministic_and_cached(target, tmp_path, monkeypatch):
    kernels = [small_kernel("one"), small_kernel("two", body="return 2;")]
    built = []
    for directory in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / directory))
        built.append(image.build_image(kernels if directory == "a" else kernels[::-1], target))
    assert built[0] == built[1]
    assert str(tmp_path).encode() not in built[0] and str(harness.ROOT).encode() not in built[0]
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("the cache was not used"))
    assert image.build_image(kernels, target) == built[0]


DAMAGES = {
    "empty": lambda data: b"", "cut": lambda data: data[: len(data) // 2], "short": lambda data: data[:10], "zero": lambda data: bytes(len(data)),
    "longer": lambda data: data + b"x", "first bit": lambda data: bytes([data[0] ^ 1]) + data[1:], "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "middle bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
}  # fmt: skip


def test_damaged_entries_are_made_again(tmp_path, monkeypatch):
    """What a disk, or a person, did to machine code is neither linked nor run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels = [small_kernel("damaged")]
    built = image.build_image(kernels, AVAILABLE[0])
    entries = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(entries) >= 2
    for name, damage in DAMAGES.items():
        for path, content in entries.items():
            path.write_bytes(damage(content))
        assert image.build_image(kernels, AVAILABLE[0]) == built, name
        assert {path: path.read_bytes() for path in entries} == entries, name


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert image.build_image([small_kernel("uncached")], AVAILABLE[0])


@pytest.mark.parametrize("target", harness.host_targets()[:1])
def test_table_describes_parameters(target):
    struct = "typedef struct { const float* x; float* y; int64_t n; float a; double b; int8_t c; int16_t d; } p_t;"
    params = [reads("x"), writes("y", optional=True), symbol("n"), scalar("a", "f32"), scalar("b", "f64"), scalar("c", "i8"), scalar("d", "i16")]
    kernel = small_kernel("table", struct, params=params, struct="p_t")
    record = harness.load([kernel], target)["table"]
    assert (record.param_count, record.params_size_bytes, record.traits) == (7, 48, 1)
    raw = ctypes.string_at(record.params, 24 * 7)
    rows = [raw[i * 24 + 8 : i * 24 + 24] for i in range(7)]
    offsets = [int.from_bytes(row[4:8], "little") for row in rows]
    assert offsets == [0, 8, 16, 24, 32, 40, 42]
    assert [row[0] for row in rows] == [1, 1, 4, 3, 3, 3, 3] and [row[1] for row in rows] == [1, 2, 0, 0, 0, 0, 0]
    assert [row[2] for row in rows] == [0, 1, 0, 0, 0, 0, 0] and [row[3] for row in rows] == [3, 3, 3, 2, 3, 0, 1]


def test_a_struct_that_differs_from_the_record_does_not_compile():
    kernel = small_kernel("moved", "typedef struct { int64_t n; const float* x; } p_t;", params=[reads("x"), symbol("n")], struct="p_t")
    with pytest.raises(image.ImageError, match="moved: x is elsewhere"):
        image.build_image([kernel], AVAILABLE[0])


def test_two_kernels_of_one_name_are_refused():
    with pytest.raises(image.ImageError, match="two different kernels are named 'same'"):
        image.build_image([small_kernel("same"), small_kernel("same", body="return 1;")], AVAILABLE[0])
    with pytest.raises(image.ImageError, match="no kernel has code"):
        image.build_image([], AVAILABLE[0])


@pytest.mark.parametrize(
    "before,body,text",
    [
        ("int puts(const char*);", 'return puts("x");', "puts"),
        ("static __thread int counter;", "return counter++;", "thread-local"),
        ("static int x; __attribute__((constructor)) static void start(void) { x = 1; }", "return x;", "constructors"),
        ("static int x; __attribute__((destructor)) static void stop(void) { x = 1; }", "return x;", "destructors"),
        ("__attribute__((visibility(\"default\"))) int leaked; int leaked;", "return leaked;", "it exports"),
        (
            "static int one(void) { return 1; } static void* pick(void) { return (void*)one; }\n"
            "int chosen(void) __attribute__((ifunc(\"pick\")));",
            "return chosen();",
            "indirect function|relocations other than relative",
        ),
    ],
)
def test_rules_of_the_kernel_abi(before, body, text):
    # Thread-local storage of a hidden symbol needs a function of the loader: the linker then
    # refuses it first.
    with pytest.raises(image.ImageError, match=text + "|undefined"):
        image.build_image([small_kernel("ruled", before, body)], AVAILABLE[0])


def test_what_is_no_image_is_refused():
    target = image.TARGETS[AVAILABLE[0]]
    good = image.build_image([small_kernel()], AVAILABLE[0])
    for bad in (b"", b"\x7fELF", good[:64], good[: len(good) // 2], b"\x7fELF\x01" + good[5:]):
        with pytest.raises(image.ImageError):
            image.check_image(bad, target)
    others = [name for name in image.TARGETS if image.TARGETS[name].arch != target.arch]
    with pytest.raises(image.ImageError, match="its machine is"):
        image.check_image(good, image.TARGETS[others[0]])
    executable = bytearray(good)
    executable[16] = 2
    with pytest.raises(image.ImageError, match="not ET_DYN"):
        image.check_image(bytes(executable), target)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("ACCRT_KERNEL_CC_X86_64", "/no/such/compiler")
    image.find_compiler.cache_clear()
    try:
        with pytest.raises(image.ImageError, match="tried /no/such/compiler"):
            image.find_compiler("x86-64-v3")
    finally:
        image.find_compiler.cache_clear()


def test_an_error_in_a_users_kernel_shows_the_compilers_message():
    with pytest.raises(image.ImageError, match="undeclared_name"):
        image.build_image([small_kernel("wrong", body="return undeclared_name;")], AVAILABLE[0])


@pytest.mark.skipif(os.uname().machine != "x86_64" or "x86-64-v3" not in AVAILABLE, reason="needs a compiler for x86-64")
def test_a_compiler_that_crashes_is_asked_for_less(tmp_path, monkeypatch):
    """A compiler that crashes at -O3 alone: the kernel is built. One that always does: an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = tmp_path / "cc"
    for crash, built in (('*" -O2 "*', True), ("nothing", False)):
        command.write_text(f"""#!/bin/sh
case " $* " in *" -c "*) case " $* " in {crash}) ;; *) echo "unit.c:1:1: internal compiler error: in extract_insn" >&2; exit 1;; esac;; esac
exec {image.find_compiler("x86-64-v3").command[0]} "$@"
""")
        command.chmod(0o755)
        monkeypatch.setenv("ACCRT_KERNEL_CC_X86_64", str(command))
        image.find_compiler.cache_clear()
        try:
            kernels = [small_kernel("built" if built else "refused")]
            if built:
                assert image.build_image(kernels, "x86-64-v3")
            else:
                with pytest.raises(image.ImageError, match="internal compiler error"):
                    image.build_image(kernels, "x86-64-v3")
        finally:
            monkeypatch.delenv("ACCRT_KERNEL_CC_X86_64")
            image.find_compiler.cache_clear()


def test_errors_come_before_warnings():
    """However many warnings there are: a message is cut."""
    body = "".join(f"\n  int unused_{i};" for i in range(200)) + "\n  return undeclared_name;"
    with pytest.raises(image.ImageError, match=r"(?s)failed:\n[^\n]*error: [^\n]*undeclared_name"):
        image.build_image([small_kernel("noisy", body=body)], AVAILABLE[0])


def test_both_compilers_build_every_family(tmp_path, monkeypatch):
    spec = TensorSpec.contiguous
    node = ew.Node
    program = ew.Program((node("input", "f32", (), 0), node("gelu", "f32", (0,)), node("cast", "bf16", (1,))), (2,))
    kernels = [
        ew.lower(program, [spec("f32", (8,))], [spec("bf16", (8,))]).kernel, matmul.gemm_kernel("f32", "bf16", "f32"),
        ops.norm_kernel("layer_norm", "f32", "f32"), ops.softmax_kernel("f32"), ops.reduce_kernel("sum", "f32", "f32"),
    ]  # fmt: skip
    for compiler in ("gcc", "clang"):
        if image._version((compiler,)) is None or os.uname().machine != "x86_64":
            continue
        monkeypatch.setenv("ACCRT_KERNEL_CC_X86_64", compiler)
        image.find_compiler.cache_clear()
        try:
            assert image.build_image(kernels, "x86-64-v3")
        finally:
            monkeypatch.delenv("ACCRT_KERNEL_CC_X86_64")
            image.find_compiler.cache_clear()


# ---- KernelDef and sizes -------------------------------------------------------------------------


def test_kernel_records_check_themselves():
    with pytest.raises(ValueError, match="kernel name"):
        small_kernel("no spaces")
    with pytest.raises(ValueError, match="at most 64 in 4096 fit"):
        small_kernel("many", params=[symbol(f"n{i}") for i in range(65)])
    kernel = small_kernel("bound", params=[reads("x"), writes("y", optional=True), symbol("n")])
    with pytest.raises(ValueError, match="buffer 'x' is not bound"):
        launch(kernel, {}, {"n": 1})
    with pytest.raises(ValueError, match="value 'n' is not bound"):
        launch(kernel, {"x": "x"}, {})
    assert launch(kernel, {"x": "x"}, {"n": 1}).buffers["x"].operand == "x"
    picky = dataclasses.replace(kernel, predicates=(Predicate("n divisible by 4", lambda v: v["n"] % 4 == 0),))
    assert launch(picky, {"x": "x"}, {"n": 8}).grid == (1, 1, 1)
    with pytest.raises(ValueError, match="n divisible by 4 is needed"):
        launch(picky, {"x": "x"}, {"n": 6})
    with pytest.raises(KeyError, match="no parameter 'z'"):
        kernel.param("z")


class Sym:
    """A size that is only a name, enough to record what is asked of it."""

    def __init__(self, text):
        self.text = text

    def _make(self, op, other):
        return Sym(f"({self.text}{op}{getattr(other, 'text', other)})")

    __add__ = lambda self, other: self._make("+", other)  # noqa: E731
    __mul__ = __rmul__ = lambda self, other: self._make("*", other)  # noqa: E731
    __floordiv__ = lambda self, other: self._make("//", other)  # noqa: E731
    __sub__ = lambda self, other: self._make("-", other)  # noqa: E731


def test_grids_take_symbolic_sizes():
    expr.register(
        Sym, minimum=lambda a, b: a._make(" min ", b), maximum=lambda a, b: a._make(" max ", b),
        equal=lambda a, b: isinstance(b, Sym) and a.text == b.text,
    )  # fmt: skip
    m = Sym("m")
    made = matmul.lower_matmul_packed(TensorSpec("f32", (m, 384), (384, 1)), matmul.packed_spec(384, 384, "f32"), TensorSpec("f32", (m, 384), (384, 1)))
    assert made.grid[0] == 12 and made.grid[1].text == "(((m+111)//112) max 1)"
    assert expr.minimum(3, 4) == 3 and expr.maximum(m, 2).text == "(m max 2)" and expr.minimum(2, m).text == "(m min 2)"
    assert expr.equal(m, Sym("m")) and not expr.equal(m, 3) and not expr.equal(3, m)
    with pytest.raises(TypeError, match="no minimum is registered"):
        expr.minimum("n", 2)


def test_an_entry_of_the_cache_is_no_others(tmp_path, monkeypatch):
    """One under another one's name (a copy of a cache that went wrong) was linked as it was: the
    bundle had another kernel, signed with the user's key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = [small_kernel("one")], [small_kernel("other")]
    good = image.build_image(one, AVAILABLE[0]), image.build_image(other, AVAILABLE[0])
    entries = [next(p for p in tmp_path.rglob("*") if p.is_file() and p.read_bytes().endswith(content)) for content in good]
    contents = [entry.read_bytes() for entry in entries]
    for entry, content in zip(entries, reversed(contents)):
        entry.write_bytes(content)
    assert good == (image.build_image(one, AVAILABLE[0]), image.build_image(other, AVAILABLE[0]))


@pytest.mark.parametrize("attack", ["folder", "above", "entry", "link", "fifo", "relative"])
def test_a_cache_that_others_may_write_is_not_believed(attack, tmp_path, monkeypatch):
    """What it holds is machine code that the compiler signs with the user's key."""
    kernels = [small_kernel("mine")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    planted = image.build_image([small_kernel("theirs")], AVAILABLE[0])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good = image.build_image(kernels, AVAILABLE[0])
    (entry,) = [p for p in (tmp_path / "cache" / "accrt" / "kernels").rglob("*") if p.is_file() and p.read_bytes().endswith(good)]
    entry.write_bytes(hashlib.sha256(entry.name.encode() + b"\0" + planted).digest() + planted)
    assert image.build_image(kernels, AVAILABLE[0]) == planted  # this user wrote it
    if attack == "folder":
        entry.parent.chmod(0o777)
    elif attack == "above":
        (tmp_path / "cache").chmod(0o770)
    elif attack == "entry":
        entry.chmod(0o666)
    elif attack == "link":
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    elif attack == "fifo":
        entry.unlink()
        os.mkfifo(entry)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert image.build_image(kernels, AVAILABLE[0]) == good
