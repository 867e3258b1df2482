"""What the compiler is given: shapes, sizes, dimensions, types and names are checked where they are
given, and what operations with ATen's names do is what ATen does, or refused.

The tests marked `torch` compare with torch itself (`./dev torch-test`); the others hold what it
does, made with torch 2.13.
"""

from __future__ import annotations

import itertools
import re

import compiler_harness as ch
import kernel_harness as kh
import numpy as np
import pytest
import rotation
from accrt.bundle_writer import BundleError
from accrt.compiler import CSource, Interpreter, IRError, KernelDef, Module, SymbolClass, TensorType, available_targets, cat, ceildiv, compile, minimum
from accrt.compiler.arguments import DTYPES
from accrt.compiler.declared import FLOATS
from accrt.compiler.kernels import image, kerneldef

RUNS_HERE = ch.target()


def module():
    m = Module("m")
    f = m.function("f")
    return m, f, f.input("x", "f32", [4, 6])


def refused(use, *words, error=IRError):
    with pytest.raises(error) as caught:
        use()
    for word in words:
        assert re.search(word, str(caught.value)), (word, str(caught.value))
    return str(caught.value)


# ---- Sizes, dimensions, flags, numbers, names ----------------------------------------------------

NO_SIZES = (2.9, 2.0, True, np.bool_(1), np.float32(3), "n", None, [1], np.array([3]), 1 << 70, 1j, {})
SIZES = (3, np.int64(3), np.uint8(3), np.array(3))


@pytest.mark.parametrize("wrong", NO_SIZES, ids=repr)
def test_what_is_no_size_is_refused_wherever_sizes_are_taken(wrong):
    m, f, x = module()
    n, state = m.symbol("n", maximum=9), m.state("s", "f32", [4, 6])
    k = kernel(lambda v: (1, 1, 1))
    for use, word in (
        (lambda: f.input("y", "f32", [4, wrong]), r"input 'y': shape\[1\]"), (lambda: m.state("t", "f32", [wrong]), r"state 't': shape\[0\]"),
        (lambda: m.external("e", "f32", [wrong], by_name=True), r"constant 'e': shape\[0\]"), (lambda: TensorType("f32", (wrong,)), r"shape\[0\]"),
        (lambda: x.view([4, wrong]), r"view: size\[1\]"), (lambda: x.reshape([wrong]), "size"), (lambda: x.expand([wrong, 4, 6]), r"expand: size\[0\]"),
        (lambda: x.narrow(0, wrong, 1), "narrow: start"), (lambda: x.narrow(0, 0, wrong), "narrow: length"), (lambda: x.select(0, wrong), "select: index"),
        (lambda: x.slice(0, 0, 4, wrong), "slice: step"), (lambda: x.split([wrong, 2]), "split"), (lambda: f.full([wrong], 1.0), r"full: size\[0\]"),
        (lambda: f.arange(wrong), "arange: end"), (lambda: f.arange(0, wrong), "arange: end"), (lambda: x.state_write(state, [0, wrong]), r"offsets\[1\]"),
        (lambda: f.repeat(wrong, [x], lambda i, v: v), "repeat: count"), (lambda: f.cond(wrong, lambda: x, lambda: x), "cond: condition"),
        (lambda: x.rope(position=wrong), "rope: position"), (lambda: m.symbol("q", maximum=wrong), "symbol 'q': maximum"),
        (lambda: m.symbol("q", buckets=[wrong]), r"buckets\[0\]"), (lambda: m.state("t", "f32", [4], fill_pattern=wrong), "fill_pattern"),
        (lambda: x.chunk(wrong), "chunk"), (lambda: f.call(inner(m), x, k=wrong), "call of 'inner': k"),
    ):  # fmt: skip
        if wrong is None and word in ("slice: step",):
            continue
        text = refused(use, word)
        assert "expected an integer" in text or "does not fit 64 bits" in text or "expected a list" in text, text
    for use in (lambda: n + wrong, lambda: wrong * n, lambda: ceildiv(n, wrong), lambda: minimum(n, wrong)):
        with pytest.raises((BundleError, TypeError)):
            use()
    assert len(f.kernel(k, [x], [x.type], n=4)) == 1


def inner(m):
    if "inner" not in m.functions:
        g = m.function("inner", internal=True)
        g.scalar("k", m.symbol("k", maximum=9))
        g.result("y", g.input("x", "f32", [4, 6]) * 1.0)
    return m.functions["inner"]


def test_a_name_in_place_of_a_symbol_says_what_a_symbol_is():
    m, f, x = module()
    refused(lambda: f.input("y", "f32", ["n"]), r"shape\[0\] is 'n'", r"m.symbol\('n'\) gives the expression")


@pytest.mark.parametrize("wrong", (4, "n", None, {}, "4,6"), ids=repr)
def test_shapes_that_are_no_lists(wrong):
    m, f, x = module()
    for use in (lambda: f.input("y", "f32", wrong), lambda: m.state("t", "f32", wrong), lambda: f.full(wrong, 1.0),
                lambda: m.external("e", "f32", wrong, by_name=True)):
        text = refused(use, "expected a list of integers")
        assert ("as [4]" in text) == (wrong == 4)
    refused(lambda: f.input("y", "f32", [-1]), r"input 'y'.*no tensor has the shape \[-1\]")
    refused(lambda: f.full([-1], 1.0), r"no tensor has the shape \[-1\]")


@pytest.mark.parametrize("right", SIZES, ids=repr)
def test_integers_of_numpy_are_integers(right):
    m, f, x = module()
    assert f.input("y", "f32", [right]).shape == (3,) and m.symbol("n", maximum=right) is not None
    assert x.narrow(np.int64(1), right, right).shape == (4, 3) and x.select(1, right).shape == (4,) and x.slice(0, 0, right).shape == (3, 6)
    assert x.view([right, 8]).shape == x.view(right, 8).shape == (3, 8) and x.sum(np.int32(1), np.bool_(True)).shape == (4, 1)
    assert x.softmax(np.int64(-1)).shape == x.shape and f.arange(right).shape == (3,) and x[:, right].shape == (4,)
    assert type(x.narrow(1, right, right).shape[1]) is int


@pytest.mark.parametrize("wrong", (1.0, True, "0", None, [0.0], np.float32(0), 7, -3, [True]), ids=repr)
def test_dimensions(wrong):
    """Of every operation that takes one; 7 and -3 are outside."""
    m, f, x = module()
    uses = {
        "softmax": lambda: x.softmax(wrong), "sum": lambda: x.sum(wrong), "amax": lambda: x.amax([0, wrong]), "select": lambda: x.select(wrong, 0),
        "slice": lambda: x.slice(wrong), "narrow": lambda: x.narrow(wrong, 0, 1), "unsqueeze": lambda: x.unsqueeze(wrong), "squeeze": lambda: x.squeeze(wrong),
        "split": lambda: x.split(2, wrong), "chunk": lambda: x.chunk(2, wrong), "transpose": lambda: x.transpose(wrong, 0), "permute": lambda: x.permute([0, wrong]),
        "cat": lambda: f.cat([x, x], wrong), "gather": lambda: x.gather(wrong, f.input("i", "i64", [1, 1])), "flatten": lambda: x.flatten(wrong),
        "index_select": lambda: x.index_select(wrong, f.input("j", "i64", [1])), "mean": lambda: x.mean(dim=[wrong]),
    }  # fmt: skip
    for name, use in uses.items():
        if wrong is None and name in ("sum", "squeeze") or wrong == -3 and name == "unsqueeze":
            continue
        refused(use, "function 'f'", name)


def test_flags_numbers_and_names():
    m, f, x = module()
    q = f.input("q", "f32", [1, 2, 4, 8])
    for wrong in ("yes", 2, None, 0.5, []):
        for use in (lambda: x.sum(0, wrong), lambda: q.scaled_dot_product_attention(q, q, is_causal=wrong), lambda: f.input("o", "f32", [2], optional=wrong)):
            refused(use, "expected True or False")
    assert x.sum(0, 1).shape == x.sum(0, True).shape == (1, 6)
    for wrong in ("a", None, [1], True, float("nan"), 1j):
        for use in (lambda: x.layer_norm(eps=wrong), lambda: x.rope(theta=wrong)):
            refused(use, "expected a number")
    for wrong in ("a", [1], 1j, x, np.ones(2)):
        for use in (lambda: x.clamp(wrong), lambda: f.full([2], wrong), lambda: x.clamp(max=wrong)):
            refused(use, "expected a number")
    for wrong in (3, None, b"x", ""):
        for use in (lambda: Module(wrong), lambda: m.symbol(wrong), lambda: m.function(wrong), lambda: f.input(wrong, "f32", [2]), lambda: f.result(wrong, x),
                    lambda: m.constant(wrong, np.ones(2, np.float32)), lambda: m.state(wrong, "f32", [2])):
            refused(use, "name")


def test_data_types_say_which_is_meant():
    m, f, x = module()
    for wrong, meant in (("float32", "f32"), (np.float32, "f32"), (np.dtype("int64"), "i64"), ("torch.bfloat16", "bf16"), ("half", "f16"), ("long", "i64")):
        for use in (lambda: f.input("y", wrong, [2]), lambda: m.state("t", wrong, [2]), lambda: x.to_copy(wrong), lambda: TensorType(wrong, (2,)),
                    lambda: f.full([2], 1, wrong), lambda: f.arange(2, dtype=wrong), lambda: m.external("e", wrong, [2], by_name=True)):
            refused(use, f"did you mean '{meant}'")
    refused(lambda: f.input("y", "f33", [2]), "no data type 'f33'; there are bool, i8")


def test_symbols_are_declared_rightly():
    m = Module("m")
    for kwargs, word in (({"minimum": -1}, "minimum is -1"), ({"minimum": 5, "maximum": 2}, "minimum 5 is more than maximum 2"), ({"divisor": 0}, "divisor is 0"),
                         ({"buckets": 4}, "expected a list"), ({"symbol_class": "session"}, "did you mean 'SESSION'"), ({"symbol_class": 9}, "SymbolClass")):
        refused(lambda: m.symbol("n", **kwargs), word)
    assert not m.symbols
    n = m.symbol("n", SymbolClass.SESSION)
    for use in (lambda: n / 2, lambda: 2 / n, lambda: n < 3, lambda: n >= 3, lambda: 3 > n, lambda: 3 if n else 4):
        with pytest.raises(BundleError, match="while compiling|sizes are integers"):
            use()


def test_values_are_asked_for_by_name():
    m, f, x = module()
    other = m.function("g").input("y", "f32", [4, 6])
    array = np.ones((4, 6), np.float32)
    for wrong, word in ((array, "m.constant"), ([1.0], "m.constant"), ("y", "'y' is no value"), (None, "None is no value"), (other, "function 'g'")):
        for use in (lambda: x + wrong, lambda: x @ wrong, lambda: x.linear(wrong), lambda: f.cat([x, wrong]), lambda: f.result("r", wrong),
                    lambda: x.index_select(0, wrong), lambda: f.repeat(2, [wrong], lambda i, v: v), lambda: f.cond(1, lambda: x, lambda: wrong if not isinstance(wrong, list) else x + wrong),
                    lambda: x.layer_norm(wrong) if wrong is not None else x + wrong):
            refused(use, word)
    refused(lambda: x.linear(3.0), "3.0 is no value")
    for number in (2, 2.5, True, np.float32(2.5), np.int64(2), np.bool_(True), np.float64(2)):
        assert (x * number).shape == (number * x).shape == (number - x).shape == (x == number).shape == (x < number).shape == (4, 6)
        assert (np.float32(2) / x).dtype == "f32" and (x ** np.float64(2)).dtype == "f32"


def test_control_of_what_bodies_are():
    m, f, x = module()
    for use in (lambda: f.repeat(2, [x], x), lambda: f.cond(1, x, x)):
        refused(use, "expected a function that makes values")
    refused(lambda: f.cond(x.sum(), lambda: x, lambda: x), "not known while compiling", r"where\(\) chooses by element")
    refused(lambda: f.call("g", x), "'g' is no function of this module; there are f")
    refused(lambda: f.state_read("s"), "'s' is no state")
    refused(lambda: f.state_read(Module("o").state("s", "f32", [2])), "of another module")
    refused(lambda: f.scalar("s", "n"), "takes what m.symbol")


def test_constants_hold_what_they_say():
    m = Module("m")
    for data, dtype, word in (
        (np.ones(2, np.float32), "bf16", "bits as uint16"), (np.ones(2), "f32", r"astype\('float32'\)"), (np.ones(2, np.int32), "i64", r"astype\('int64'\)"),
        (np.ones(2, np.complex64), "", "no data type 'complex64'"), ([1.0], "", "numpy.asarray"), (np.ma.ones(2), "", "mask"),
    ):  # fmt: skip
        refused(lambda: m.constant("w", data, dtype), "constant 'w'", word)
    assert not m.constants and m.constant("w", np.ones(2, np.uint16), "bf16").type.dtype == "bf16"


# ---- f.constant, cat, view -----------------------------------------------------------------------


def test_constant_cat_and_view_can_be_called():
    m, f, x = module()
    w = m.constant("w", np.ones((4, 6), np.float32))
    assert f.constant(w).relu().shape == (4, 6) and f.constant(w) is f.constant(w)
    refused(lambda: f.constant(np.ones(2)), r"m.constant\(name, array\)")
    refused(lambda: f.constant(2.0), "f.full")
    with pytest.raises(AttributeError, match=r"f.constant\(...\) makes it a value"):
        w.relu()
    assert f.cat([x, w]).shape == f.cat([w, w]).shape == cat([x, w]).shape == cat([x, x], dim=0).shape == (8, 6)
    assert f.cat([x, w], -1).shape == f.cat(tensors=[x, w], dim=1).shape == (4, 12)
    for wrong in ([], x, None, 3, [w]):
        refused(lambda: cat(wrong), "cat")
    refused(lambda: f.cat([]), "cat of no values")
    assert x.view(24).shape == x.view([24]).shape == x.view(-1).shape == (24,) and x.view(2, 2, 6).shape == x.reshape((2, 2, 6)).shape == x.view(size=[2, 2, 6]).shape
    assert x.permute(1, 0).shape == x.permute([1, 0]).shape == x.permute(dims=(1, 0)).shape == (6, 4)
    assert x.unsqueeze(0).expand(2, -1, -1).shape == x.unsqueeze(0).expand([2, 4, 6]).shape == (2, 4, 6)
    for name in ("cat", "call", "kernel", "elementwise", "dequantize"):
        assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=r"f.cat\(...\)"):
        x.cat([x])
    with pytest.raises(AttributeError, match=r"x.view\(...\)"):
        f.view([4])


def test_every_method_says_what_it_takes():
    from accrt.compiler import Value, ir
    for kind, names in ((Value, [n for n in dir(Value) if not n.startswith("_") and n not in ("shape", "dtype", "rank")]), (ir.Function, ("cat", "full", "arange", "constant"))):
        for name in names:
            assert (getattr(kind, name).__doc__ or "").strip(), name
    assert "dim, index" in Value.select.__doc__ and "keepdim=False" in Value.sum.__doc__


# ---- Names that are near -------------------------------------------------------------------------


def test_what_is_unknown_says_what_is_near():
    m, f, x = module()
    f.result("y", x * 2.0)
    with pytest.raises(AttributeError, match="did you mean .*'softmax'"):
        x.sofmax(-1)
    with pytest.raises(AttributeError, match="docs/compiler.md lists"):
        x.quux()
    with pytest.raises(AttributeError, match="did you mean 'arange'"):
        f.arrange(3)
    refused(lambda: x.softmax(axis=1), r"'axis' is unknown; it takes \(self, dim=-1\)")
    refused(lambda: x.select(0), r"'index' is missing; it takes \(self, dim, index\)")
    refused(lambda: Interpreter(m).run("g", np.ones((4, 6))), "there is no function 'g'; there are f")
    refused(lambda: Interpreter(m).run("f", np.ones((4, 6)), n=3), r"takes the scalars \[\], \['n'\] are given")
    refused(lambda: Interpreter(m).run("f", "text"), "input 'x'")
    refused(lambda: compile(f), "expected a Module", ".module")
    for wrong in ("q4_k", ["*"], 3):
        refused(lambda: compile(m, targets=[RUNS_HERE], quantize=wrong), "quantize is", '"q4_k"')
        refused(lambda: compile(m, targets=[RUNS_HERE], external=wrong), "external is", "model.safetensors")


@pytest.mark.parametrize("take", (lambda targets: compile(module()[0], targets=targets), available_targets))
def test_targets_say_what_there_is(take):
    for wrong, word in (
        ("x86-64-v3", r"a str, expected a list of names: \['x86-64-v3'\]"), ("x86", "a str.*did you mean 'x86-64-v3'"), (["x86-64-v33"], "did you mean 'x86-64-v3'"),
        (["X86-64-V4"], "'x86-64-v4'"), (["sm_86"], "'sm_80' or 'sm_90'"), (["gpu"], "there are x86-64-v3, x86-64-v4, aarch64, .*host \\(this machine's\\)"), ([3], "no target 3"), (3, "expected a list of names"),
    ):  # fmt: skip
        refused(lambda: take(wrong), word, error=image.ImageError)
    if take is not available_targets:
        refused(lambda: take([]), "empty list; there are x86-64-v3", error=image.ImageError)


class Torchs:
    """As a torch tensor is seen from here."""

    dtype, shape, layout = "torch.float32", (2,), "torch.strided"

    def detach(self):
        return self

    def view(self, *shape):
        return self

    def __array__(self, dtype=None, copy=None):
        return np.zeros(2, np.float32)


def test_what_people_try_first():
    m, f, x = module()
    for use in (lambda: m.constant("w", Torchs()), lambda: m.weight("w", Torchs())):
        refused(use, r"t.detach\(\).numpy\(\)", "torch.uint16")
    between = (x > 0) & (x < 1) | ~(x >= 2) ^ True
    assert between.dtype == "bool" and (True & (x > 0)).dtype == "bool" and abs(x).op.name == "aten.abs"
    for use, word in ((lambda: x & x, "& of f32 and f32.*takes bools"), (lambda: (x > 0) | 1, r"\| of bool and 1"), (lambda: ~x, "~ of f32"),
                      (lambda: x.div(2, rounding_mode="floor"), "x // y"), (lambda: x[x > 0], r"where\(\)"),
                      (lambda: x[f.input("i", "i64", [2])], "index_select"), (lambda: compile(m, targets=[RUNS_HERE], signer="key.pem"), r"SigningKey.read")):
        refused(use, word)
    run_in = Module("m")
    f = run_in.function("f")
    x = f.input("x", "f32", [6])
    f.result("y", (x > 1) & (x < 4) | ~(x < 5))
    assert Interpreter(run_in).run("f", np.arange(6))[0].tolist() == [False, False, True, True, False, True]


# ---- A kernel of the user's own ------------------------------------------------------------------

SOURCE = """
#include "accrt/kernel.h"
typedef struct { const float* x; float* y; int64_t n; } copies_params_t;
int32_t copies(const accrt_kernel_environment_t* environment, const accrt_kernel_dispatch_t* dispatch, const accrt_kernel_workgroup_t* workgroup) {
  const copies_params_t* p = dispatch->params;
  (void)environment; (void)workgroup;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->x[i];
  return p->n == 3 ? 7 : 0;
}
"""


def kernel(grid):
    params = kerneldef.layout([kerneldef.reads("x"), kerneldef.writes("y"), kerneldef.symbol("n")])
    return KernelDef("my.copies", "my.copies", CSource(text=SOURCE, struct="copies_params_t"), params, grid=grid, entry="copies")


def with_kernel(grid, label="", size=None):
    m = Module("mine")
    n = m.symbol("n", maximum=64) if size is None else size
    f = m.function("copy")
    with f.label(label or "layer 1"):
        (y,) = f.kernel(kernel(grid), [f.input("x", "f32", [n])], [TensorType("f32", (n,))], n=n)
    f.result("y", y)
    return m


def test_a_kernels_failure_has_its_name():
    import accrt
    m = with_kernel(lambda v: (1, 1, 1))
    program = ch.runtime_program(compile(m, targets=[RUNS_HERE]), RUNS_HERE)
    if program is None:
        pytest.skip("the library is not built")
    session = program.session()
    assert session.copy(np.ones(4, np.float32)).tolist() == [1.0] * 4
    with pytest.raises(accrt.KernelError, match=r"kernel 'layer 1/my.copies' returned 7"):
        session.copy(np.ones(3, np.float32))


@pytest.mark.parametrize("grid", ((0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1), (1,), (1, 1, 1, 1), (1.5, 1, 1), 1, None, "abc", (True, 1, 1)), ids=repr)
def test_grids_that_launch_nothing_are_refused(grid):
    refused(lambda: compile(with_kernel(lambda v: grid), targets=[RUNS_HERE]), "function 'copy'", "the grid of kernel 'my.copies'")


def test_grids_that_follow_from_sizes():
    refused(lambda: compile(with_kernel(lambda v: (v["n"] - v["n"], 1, 1)), targets=[RUNS_HERE]), "launches nothing")
    refused(lambda: compile(with_kernel(lambda v: (v["k"], 1, 1)), targets=[RUNS_HERE]), r"asks for 'k'; the values are \['n'\]")
    with pytest.raises(ValueError, match="expected a function from the values"):
        kernel((1, 1, 1))
    for m in (with_kernel(lambda v: (v["n"], 1, 1)), with_kernel(lambda v: (v["n"], 1, 1), size=0)):
        # nothing to write: nothing to launch
        compile(m, targets=[RUNS_HERE])


# ---- What ATen does ------------------------------------------------------------------------------


def run(make, *shapes):
    """What a function of the compiler gives of arrays 0, 1, 2, ..., or that it is refused."""
    m = Module("m")
    f = m.function("f")
    inputs = [f.input(f"x{i}", "f32", list(shape)) for i, shape in enumerate(shapes)]
    try:
        made = make(f, *inputs)
    except IRError:
        return None
    for i, value in enumerate(made if isinstance(made, (list, tuple)) else [made]):
        f.result(f"y{i}", value)
    arrays = [np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) for shape in shapes]
    return [np.asarray(y) for y in Interpreter(m).run("f", *arrays)]


#: Calls that mean the same of a torch tensor and of a value, on a tensor of the shape.
CALLS = [
    *[((4, 6), lambda x, a=a: x.narrow(*a)) for a in itertools.product((0, -1), (-7, -6, -2, 0, 1, 4, 6, 7), (-1, 0, 1, 2, 5))],
    *[((5, 1, 4), lambda x, a=a: x.unsqueeze(a)) for a in range(-6, 6)], *[((5, 1, 4), lambda x, a=a: x.squeeze(a)) for a in (-4, -3, -2, -1, 0, 1, 2, 3)],
    ((1, 3, 1), lambda x: x.squeeze()), ((1, 3, 1), lambda x: x.squeeze((0, 2))), ((1, 3, 1), lambda x: x.squeeze((0, 0))), ((), lambda x: x.squeeze()), ((), lambda x: x.squeeze(0)),
    *[((5, 4), lambda x, a=a: x.split(*a)) for a in itertools.product((0, 1, 2, 3, 5, 7, (2, 3), (2, 2), (3, 3), (0, 5), (6, -1), (4,), (1, 3)), (0, 1, -1, 2))],
    *[((5, 4), lambda x, a=a: x.chunk(*a)) for a in itertools.product((0, 1, 2, 3, 4, 5, 9), (0, -1, 2))], ((0, 4), lambda x: x.chunk(3, 0)), ((0, 4), lambda x: x.split(2, 0)),
    *[((3, 1), lambda x, a=a: x.expand(*a)) for a in ((3, 4), (3, -1), (2, 3, 4), (-1, 3, 4), (3,), (1,), (-1, -1), (6, 1), (3, 0), (2, -1, 5), (-2, 4), (1, 1))],
    *[((4, 6), lambda x, a=a: x.reshape(*a)) for a in ((24,), (-1,), (2, -1), (-1, -1), (5, -1), (-2, -12), (4, 6, 1), (0, -1), (3, 9))],
    *[((0, 3), lambda x, a=a: x.reshape(*a)) for a in ((0,), (-1,), (-1, 0), (3, 0), (0, -1, 3), (5, 0), (-1, 3))],
    *[((2, 3, 4), lambda x, a=a: x.transpose(*a)) for a in itertools.product((-4, -3, -1, 0, 2, 3), repeat=2)], *[((2, 3, 4), lambda x, a=a: x.permute(*a)) for a in (
        (2, 0, 1), (-1, 0, 1), (0, 0, 1), (0, 1), (3, 0, 1), (0, -2, -1))],
    *[(s, lambda x: x.t()) for s in ((), (3,), (2, 3), (2, 3, 4))], *[(s, lambda x, a=a: x.flatten(*a)) for s in ((2, 3, 4), (), (3,)) for a in (
        (), (1,), (0, 1), (1, 2), (-2, -1), (2, 1), (0, 3), (-4,))],
    *[((4, 6), lambda x, a=a: x.select(*a)) for a in itertools.product((0, 1, -1, 2), (-7, -6, -1, 0, 5, 6))],
    *[((2, 3, 4), lambda x, a=a, n=n: getattr(x, n)(a)) for n in ("sum", "mean", "amax") for a in ([], [0, 1], [0, -3], [1, 1], [-1, 0], 3, -4, [2, 0, 1])],
    *[((2, 0, 4), lambda x, a=a, n=n: getattr(x, n)(a)) for n in ("sum", "amax", "amin") for a in (0, 1, [0, 1])],
    ((3,), lambda x: x.clamp()), ((3,), lambda x: x.clamp(2, 1)), ((3,), lambda x: x.clamp(min=1)), ((3,), lambda x: x.logical_not()), ((3,), lambda x: x.logical_and(x)),
]  # fmt: skip


@pytest.mark.torch
def test_shapes_beside_torch():
    """torch's shape and numbers; and where torch refuses, so do we. What torch takes and we refuse
    is listed."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for shape, call in CALLS:
        tensor = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
        try:
            theirs = call(tensor)
            theirs = [t.numpy() for t in (theirs if isinstance(theirs, (list, tuple)) else [theirs])]
        except (RuntimeError, IndexError, ValueError):
            theirs = None
        ours = run(lambda f, x: call(x), shape)
        assert (ours is None) == (theirs is None), (shape, call.__defaults__, ours, theirs)
        if ours is not None:
            assert [o.shape for o in ours] == [t.shape for t in theirs], (shape, call.__defaults__)
            for o, t in zip(ours, theirs):
                np.testing.assert_allclose(o.astype(np.float64), t.astype(np.float64), equal_nan=True)


@pytest.mark.torch
def test_gather_products_and_arange_beside_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for source, index, dim in itertools.product(((4, 6), (4,)), ((4, 2), (5, 2), (2, 9), (4, 6), (3,), (9,)), (0, 1, -1)):
        m = Module("m")
        f = m.function("f")
        x, i = f.input("x", "f32", list(source)), f.input("i", "i64", list(index))
        try:
            theirs = torch.zeros(source).gather(dim, torch.zeros(index, dtype=torch.int64)).shape
        except (RuntimeError, IndexError):
            refused(lambda: x.gather(dim, i))
            continue
        assert x.gather(dim, i).shape == tuple(theirs)
    for args in ((3,), (2, 5), (2, 9, 3), (5, 2), (0,), (5, 2, -1), (-3,)):
        ours = run(lambda f: f.arange(*args))
        try:
            theirs = torch.arange(*args).numpy()
        except RuntimeError:
            theirs = None
        assert (ours is None) == (theirs is None) and (ours is None or ours[0].tolist() == theirs.tolist()), args
    for a, b in (((1, 2, 3), (2, 3, 4)), ((2, 2, 3), (2, 3, 4))):
        m = Module("m")
        f = m.function("f")
        x, y = f.input("x", "f32", list(a)), f.input("y", "f32", list(b))
        try:
            torch.zeros(a).bmm(torch.zeros(b))
        except RuntimeError:
            refused(lambda: x.bmm(y), "batch of bmm")
        else:
            assert x.bmm(y).shape == (2, 2, 4)
    for c in ((4, 3), (3,), (1, 3), (1,), (), (2, 4, 3), (5, 3), (4, 1)):
        m = Module("m")
        f = m.function("f")
        x, y, z = f.input("x", "f32", [4, 6]), f.input("y", "f32", [6, 3]), f.input("z", "f32", list(c))
        try:
            torch.zeros(c).addmm(torch.zeros(4, 6), torch.zeros(6, 3))
        except RuntimeError:
            refused(lambda: z.addmm(x, y), "addmm")
        else:
            assert z.addmm(x, y).shape == (4, 3)


#: The same without torch: what a call gives of x = 0, 1, 2, ... of the shape; None: torch refuses,
#: and so do we.
HELD = [
    ((6,), lambda x: x.narrow(0, 4, 2), [[4, 5]]), ((6,), lambda x: x.narrow(0, 4, 3), None), ((6,), lambda x: x.narrow(0, -2, 2), [[4, 5]]),
    ((6,), lambda x: x.narrow(0, -2, 3), None), ((6,), lambda x: x.narrow(0, 6, 0), [[]]), ((6,), lambda x: x.narrow(0, 7, 0), None), ((6,), lambda x: x.narrow(0, 0, -1), None),
    ((2,), lambda x: x.unsqueeze(2), None), ((2,), lambda x: x.unsqueeze(-1), [[[0], [1]]]), ((2,), lambda x: x.squeeze(0), [[0, 1]]), ((1, 2), lambda x: x.squeeze(), [[0, 1]]),
    ((5,), lambda x: x.split(2), [[0, 1], [2, 3], [4]]), ((5,), lambda x: x.split([2, 2]), None), ((5,), lambda x: x.split([2, 3]), [[0, 1], [2, 3, 4]]), ((5,), lambda x: x.split([3, 3]), None),
    ((5,), lambda x: x.chunk(4), [[0, 1], [2, 3], [4]]), ((5,), lambda x: x.chunk(0), None), ((2, 1), lambda x: x.expand(2), None), ((2, 1), lambda x: x.expand(-1, 2, 1), None),
    ((0, 2), lambda x: x.view(-1, 0), None), ((2, 2), lambda x: x.sum([]), [6]), ((2, 2), lambda x: x.sum([0, 0]), None), ((0,), lambda x: x.amax(0), None),
    ((2,), lambda x: x.t(), [[0, 1]]), ((2, 2), lambda x: x.flatten(1), [[[0, 1], [2, 3]]]), ((3,), lambda x: x.logical_not(), [[True, False, False]]), ((3,), lambda x: x.clamp(), None),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(HELD)))
def test_shapes_as_torch(index):
    shape, call, wanted = HELD[index]
    ours = run(lambda f, x: call(x), shape)
    assert ours is None if wanted is None else ours is not None and [y.tolist() for y in ours] == wanted


def test_arange_is_torchs():
    for args, wanted in (((3,), [0, 1, 2]), ((2, 5), [2, 3, 4]), ((2, 9, 3), [2, 5, 8]), ((5, 2), None), ((5, 2, -1), [5, 4, 3])):
        ours = run(lambda f: f.arange(*args))
        assert (ours and ours[0].tolist()) == wanted
    assert run(lambda f: f.arange(5, start=3))[0].tolist() == [3, 4] and run(lambda f: f.arange(start=1, end=7, step=3))[0].tolist() == [1, 4]
    for wrong in ((), (1, 2, 3, 4)):
        refused(lambda: module()[1].arange(*wrong), "it takes")
    refused(lambda: module()[1].arange(3, step=0), "step 0")


def test_integers_and_numbers_as_torch():
    m, f, x = module()
    i = f.input("i", "i32", [3])
    assert i.clamp(0.5).dtype == "f32" and i.clamp(1, 2).dtype == "i32" and i.clamp(max=np.float32(1)).dtype == "f32"
    refused(lambda: i.pow(-1), "no negative powers")
    refused(lambda: i ** np.int64(-2), "no negative powers")
    assert (i**2).dtype == "i32" and (x**-1).dtype == "f32" and (i**-1.0).dtype == "f32"
    for dtype, value in (("u8", 300), ("u8", -1), ("i8", 128), ("i32", float("inf")), ("i64", float("nan")), ("i32", 2.5)):
        refused(lambda: f.full([2], value, dtype), f"is no {dtype}")


def test_dimensions_that_calls_bring():
    """Of sizes that are known when it runs: what ATen refuses is refused then, by name."""
    import accrt
    m = Module("m")
    n, k = m.symbol("n", maximum=8), m.symbol("k", maximum=16)
    f = m.function("narrowed")
    x = f.input("x", "f32", [n])
    f.scalar("k", k)
    f.result("y", x.narrow(0, k, 2) * 1.0)
    f = m.function("last")
    f.result("y", f.input("x", "f32", [n]).narrow(0, -2, 2) * 1.0)
    f = m.function("gathered")
    x, i = f.input("x", "f32", [n, 3]), f.input("i", "i64", [m.symbol("rows", maximum=8), 2])
    f.result("y", x.gather(1, i))
    f = m.function("halves")
    a, b = f.input("x", "f32", [n]).split([2, n - 2])
    f.result("a", a * 1.0)
    f.result("b", b * 1.0)
    g = m.function("g")
    y = g.input("y", "f32", [n, 1])
    for use in (lambda: y.squeeze(), lambda: y.squeeze(0), lambda: y.split(2), lambda: y.chunk(2), lambda: y.split([2, 3])):
        refused(use, "function 'g'")
    assert y.squeeze(1).rank == 1
    del m.functions["g"]
    program = ch.runtime_program(compile(m, targets=[RUNS_HERE]), RUNS_HERE)
    if program is None:
        pytest.skip("the library is not built")
    session, x = program.session(), np.arange(5, dtype=np.float32)
    assert session.narrowed(x, 3).tolist() == [3, 4] and session.last(x).tolist() == [3, 4]
    for use in (lambda: session.narrowed(x, 4), lambda: session.last(x[:1].copy()), lambda: session.halves(x[:1].copy())):
        with pytest.raises((accrt.OutOfRangeError, accrt.OverflowError), match="do not fit in|dimension"):
            use()
    assert [y.tolist() for y in session.halves(x)] == [[0, 1], [2, 3, 4]]
    x, i = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[2, 0]] * 4)
    assert session.gathered(x, i).tolist() == np.take_along_axis(x, i, 1).tolist() and session.gathered(x, i[:2].copy()).shape == (2, 2)
    with pytest.raises(accrt.OutOfRangeError, match="dimension 0"):
        session.gathered(x, np.array([[2, 0]] * 5))


# ---- Mixed data types ----------------------------------------------------------------------------


def constant(f, dtype, shape):
    m = f.module
    return f.constant(m.constant(f"w{len(m.constants)}", kh.encode(np.arange(np.prod(shape)).reshape(shape) % 3, dtype), dtype))


#: Operations of two data types, each on what `other` makes of the second one.
TWO = {
    "matmul": lambda f, x, a, other: x.matmul(other([6, 5])), "one row": lambda f, x, a, other: x[:1].matmul(other([6, 5])),
    "linear": lambda f, x, a, other: x.linear(other([5, 6])), "bias": lambda f, x, a, other: x.linear(constant(f, a, [5, 6]), other([5])),
    "addmm": lambda f, x, a, other: other([5]).addmm(x, constant(f, a, [6, 5])), "bmm": lambda f, x, a, other: x.unsqueeze(0).bmm(other([1, 6, 5])),
    "layer_norm": lambda f, x, a, other: x.layer_norm(other([6]), other([6])), "rms_norm": lambda f, x, a, other: x.rms_norm(other([6])),
    "attention": lambda f, x, a, other: x.view(1, 2, 2, 6).scaled_dot_product_attention(other([1, 2, 4, 6]), other([1, 2, 4, 6])),
    "values": lambda f, x, a, other: x.view(1, 2, 2, 6).scaled_dot_product_attention(constant(f, a, [1, 2, 4, 6]), other([1, 2, 4, 6])),
    "mask": lambda f, x, a, other: x.view(1, 2, 2, 6).scaled_dot_product_attention(x.view(1, 2, 2, 6), x.view(1, 2, 2, 6), other([2, 2])),
    "cat": lambda f, x, a, other: f.cat([x, other([4, 6])]), "where": lambda f, x, a, other: (x > 1).where(x, other([4, 6])),
    "logical": lambda f, x, a, other: x.logical_and(other([4, 6])).logical_or(x.logical_not()), "add": lambda f, x, a, other: x + other([4, 6]),
    "gather": lambda f, x, a, other: other([4, 6]).gather(1, x.clamp(0, 5)), "embedding": lambda f, x, a, other: other([5, 6]).embedding(x.clamp(0, 4)),
    "state": lambda f, x, a, other: (other([2]).state_write(f.module.states.get(a) or f.module.state(a, a, [2]), [0]), x * 1)[1] if a != "bool" else x.sum(),
}  # fmt: skip


def two_data_types(name):
    """The operation with each pair of types, with weights and with inputs: a module with those that
    there are."""
    m = Module("m")
    for a, b, weights in itertools.product(DTYPES, DTYPES, (False, True)):
        f = m.function(f"{a}.{b}.{weights}", internal=True)
        f.internal = False
        x = f.input("x", a, [4, 6])
        try:
            y = TWO[name](f, x, a, lambda shape: constant(f, b, shape) if weights else f.input(f"y{len(f.inputs)}", b, shape))
        except IRError as error:
            assert str(error).startswith("function '") and "operation " in str(error)
            del m.functions[f.name]
            continue
        f.result("y", y)
    m.states.clear() if name != "state" else None
    return m


@pytest.mark.parametrize("name", TWO)
def test_two_data_types_are_converted_by_rule_or_refused(name):
    """Each pair: an IRError of the operation before any C is made, or an operation."""
    kept = {one.rpartition(".")[0] for one in two_data_types(name).functions}
    wanted = {"f32.f32", "f64.f64"} if name not in ("gather", "embedding") else {"i64.f32"}
    assert wanted <= kept and ("f32.f64" in kept) == (name in ("where", "logical", "add")) and len(kept) < len(DTYPES) ** 2 - 20 or name in ("logical", "where")


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", TWO)
def test_two_data_types_give_the_numbers_of_the_reference(name):
    """Each pair that there is; of many, a part."""
    m = two_data_types(name)
    built = rotation.part(list(m.functions.values()), 6, f"two data types of {name}")
    m.functions = {f.name: f for f in built}
    running = ch.program(m)
    random = np.random.default_rng(kh.SEED)
    for f in built:
        dtype = {i.value.dtype for i in f.inputs} | {f.results[0].value.dtype} | {"bf16" if ".bf16" in f.name or "bf16." in f.name else "f32"}
        coarse = 64 * (2 if dtype & {"f16", "bf16"} else 1)
        inputs = [ch.values(random, i.value.dtype, i.value.shape, 0, 2) for i in f.inputs]
        got = ch.session(running).run(f.name, *[x.copy() for x in inputs])
        expected = Interpreter(m).run(f.name, *inputs)
        worst = max(dtype & set(FLOATS), key=lambda d: ch.EPSILON[d]) if dtype & set(FLOATS) else "f32"
        for have, want in zip(got, expected):
            kind = f.results[0].value.dtype
            if kind not in FLOATS:
                np.testing.assert_array_equal(have, want)
            else:
                error = np.abs(kh.decode(have, kind) - want) / np.maximum(np.abs(want), 4)
                assert error.max() <= coarse * ch.EPSILON[worst], (f.name, error.max())


def test_one_type_products_that_there_are_not():
    m, f, x = module()
    y = f.input("bools", "bool", [4, 4])
    for use in (lambda: y @ y, lambda: y.linear(y), lambda: y.addmm(y, y), lambda: y.mm(y)):
        refused(use, r"of bool: there are products of f16, bf16, f32, f64, i8, i16, i32")
    refused(lambda: x.linear(m.constant("w", np.ones((3, 6)))), "operation aten.linear: linear of f32 and f64", r"to_copy\(\)")
