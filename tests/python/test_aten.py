"""What an operation with ATen's name does is what ATen's does; and what Python cannot know of a
value while compiling is refused.

The tests marked `torch` compare with torch itself (`./dev torch-test`); the others hold a table
that was made with it.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, Module
from accrt.compiler.ir import IRError

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
INTS = ("bool", "i8", "u8", "i16", "i32", "i64")
#: Of which torch has few operations, and no common type beside other integers.
UNSIGNED = ("u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")


def value(dtype="f32", shape=(2, 3), name="x"):
    m = Module("values")
    return m.function("f").input(name, dtype, list(shape))


def symbolic():
    m = Module("values")
    n = m.symbol("n", maximum=8)
    return m.function("f").input("x", "f32", [n, 3]), n


# ---- Control flow --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: 1 if x.sum() > 0 else 2, lambda x: x and 1, lambda x: not x, lambda x: 1 if x == 0 else 2, lambda x: x != x or 1,
        lambda x: 0 < x.sum() < 1, lambda x: max(x[0], x[1]), lambda x: 3.0 in x, lambda x: [1, 2][x.sum()], lambda x: int(x.sum()),
        lambda x: float(x.sum()), lambda x: range(x.sum()), lambda x: np.exp(x), lambda x: np.asarray(x), lambda x: assert_true(x),
    ],
)  # fmt: skip
def test_control_flow_on_values_is_refused(use):
    with pytest.raises(IRError, match="function 'f': .* is not known while compiling; "):
        use(value())


def assert_true(x):
    assert x.all_equal if hasattr(x, "all_equal") else x


def test_a_dimension_that_is_known_is_iterated_and_no_other():
    x = value()
    assert len(x) == 2 and [row.shape for row in x] == [(3,), (3,)] and [v.rank for v in value(shape=(4,))] == [0] * 4
    x, n = symbolic()
    for use in (list, len, lambda x: [row for row in x], lambda x: list(zip(x, x)), lambda x: (lambda *rows: rows)(*x), sum):
        with pytest.raises(IRError, match=r"dimension 0 \(n\)|the length, n"):
            use(x)
    with pytest.raises(IRError, match="no dimension"):
        list(value(shape=()))
    with pytest.raises(TypeError):
        range(n)
    with pytest.raises(Exception, match="truth of n is not known while compiling"):
        bool(n)


@pytest.mark.parametrize(
    "use, text",
    [
        (lambda x: x.shape[0] == 3, "n == 3"), (lambda x: x.shape[0] != 3, "n == 3"), (lambda x: 3 == x.shape[0], "n == 3"),
        (lambda x: 4 in x.shape, "n == 4"), (lambda x: x.shape == (3, 3), "n == 3"), (lambda x: (3, 3) != x.shape, "n == 3"),
        (lambda x: x.shape.count(2), "n == 2"), (lambda x: x.shape.index(3), "n == 3"), (lambda x: np.int64(3) == x.shape[0], "n == 3"),
        (lambda x: x.shape[0] == 2 * x.shape[0], r"n == \(2 \* n\)"), (lambda x: x.type == value(shape=(4, 3)).type, "n == 4"),
        (lambda x: x.shape[0] < 3, "n compares with 3"), (lambda x: 3 >= x.shape[0], "n compares with 3"), (lambda x: x.shape < (3, 3), "n == 3"),
        (lambda x: sorted(x.shape), "n compares with|compares with n"), (lambda x: max(x.shape), "compares with"),
    ],
)  # fmt: skip
def test_a_comparison_that_only_a_call_decides_is_refused(use, text):
    with pytest.raises(ValueError, match=f"{text}.* is not known while compiling; use "):
        use(symbolic()[0])


def test_a_comparison_that_is_the_same_at_each_call_is_answered():
    x, n = symbolic()
    y = (x * 2.0).relu()
    assert x.shape == y.shape and x.shape == (n, 3) and not x.shape != y.shape and x.type == y.type and n in x.shape
    assert x.shape[0] == n and n + n == 2 * n and (n + 1) - n == 1 and x.shape.index(n) == 0
    # dimensions are 0 or more
    assert n != -1 and n + 1 != n and n != n + 2 and 2 * n + 1 != 0 and not n == -3
    assert x.shape != (n,) and x.shape != (n, 4) and n is not None and n != None and n != "n"  # noqa: E711
    assert len({n, n + 1, n + 2, n - 1, n - 2, x.shape[0]}) == 5 and {n: 1}[x.shape[0]] == 1


def test_what_does_not_index_is_refused_by_name():
    x = value()
    for item, text in (
        (value("i64", (2,), "i"), "use index_select"), (slice(0, value("i64", (), "i")), "use index_select"), ([0, 1], "indexed by"),
        (0.5, "indexed by 0.5"), ("a", "indexed by 'a'"), (True, "indexed by True"), ((0, 0, 0), "is of more"),
        ((Ellipsis, Ellipsis), "is of more"), (np.array([0]), "indexed by"), (7, "index 7"),
    ):  # fmt: skip
        with pytest.raises(IRError, match=text):
            x[item]


def test_values_are_compared_by_element_and_hashed_by_identity():
    x = value()
    assert (x == 1).dtype == "bool" and (x != x).op.name == "aten.ne" and {x: 1}[x] == 1
    assert x != None and not (x == "text")  # noqa: E711  (no values: identity)


# ---- Types ---------------------------------------------------------------------------------------

#: Made with torch.result_type of torch 2.13: type of a [2] tensor, type of another tensor, its
#: rank, what they promote to.
PROMOTIONS = [
    ("i64", "f16", 1, "f16"), ("f16", "bf16", 1, "f32"), ("f16", "f32", 0, "f16"), ("i32", "f64", 0, "f64"), ("i8", "i64", 0, "i8"),
    ("bool", "i8", 0, "i8"), ("bool", "u8", 1, "u8"), ("u8", "i32", 1, "i32"), ("f32", "f64", 1, "f64"), ("f64", "f32", 1, "f64"),
    ("i8", "u8", 1, "i16"), ("u8", "i16", 1, "i16"), ("i16", "i32", 1, "i32"), ("u64", "f16", 1, "f16"), ("i32", "i64", 1, "i64"), ("bf16", "i64", 1, "bf16"), ("bool", "f32", 0, "f32"),
]  # fmt: skip
#: The same for numbers.
NUMBERS = [("i32", 2.5, "f32"), ("f16", 2.5, "f16"), ("bool", 3, "i64"), ("u8", 3, "u8"), ("bool", True, "bool"), ("i8", True, "i8"), ("bf16", 7, "bf16")]


@pytest.mark.parametrize("first,second,rank,wanted", PROMOTIONS)
def test_tensors_promote_as_in_torch(first, second, rank, wanted):
    f = Module("m").function("f")
    a, b = f.input("a", first, [2]), f.input("b", second, [2] * rank)
    assert a.eq(b).op.operands[0].dtype == wanted
    assert b.eq(a).op.operands[0].dtype == wanted
    if wanted != "bool":
        assert a.mul(b).dtype == wanted


@pytest.mark.parametrize("dtype,number,wanted", NUMBERS)
def test_numbers_promote_as_in_torch(dtype, number, wanted):
    x = value(dtype)
    assert x.eq(number).op.operands[0].dtype == wanted
    if wanted != "bool":
        assert (x * number).dtype == (number * x).dtype == wanted


def test_what_has_no_common_type_is_refused():
    for first, second in (("i8", "u16"), ("i32", "u32"), ("u32", "i64"), ("u64", "i64"), ("u16", "u64")):
        f = Module("m").function("f")
        with pytest.raises(IRError, match="have no common type; cast one"):
            f.input("a", first, [2]) + f.input("b", second, [2])


def test_sums_quotients_and_constants_have_the_types_of_torch():
    for dtype in INTS + UNSIGNED:
        assert value(dtype).sum().dtype == "i64"
        if dtype != "bool":
            x = value(dtype)
            assert (x / 2).dtype == x.div(x.function.full((), 2)).dtype == "f32"
            assert value(dtype).exp().dtype == value(dtype).sigmoid().dtype == "f32"
            assert (value(dtype) // 2).dtype == (value(dtype) % 2).dtype == dtype
        with pytest.raises(IRError, match=f"mean of {dtype}"):
            value(dtype).mean()
    f = Module("m").function("f")
    assert [f.full((), v).dtype for v in (True, 1, 1.0)] == ["bool", "i64", "f32"] and f.arange(3).dtype == "i64"


def test_causal_attention_sees_keys_up_to_the_querys_own_number():
    """Also where there are more keys than queries, which is where an alignment shows."""
    m = Module("causal")
    f = m.function("f")
    q, k, v = (f.input(n, "f32", [1, 1, s, 4]) for n, s in (("q", 2), ("k", 3), ("v", 3)))
    f.result("y", q.scaled_dot_product_attention(k, v, is_causal=True))
    f.result("z", q.scaled_dot_product_attention(k, v, is_causal=True, causal_offset=1))
    random = np.random.default_rng(kh.SEED)
    inputs = [random.standard_normal((1, 1, s, 4)).astype(np.float32) for s in (2, 3, 3)]
    y, z = Interpreter(m).run("f", *inputs)
    # query 0 sees key 0 alone
    np.testing.assert_allclose(y[0, 0, 0], inputs[2][0, 0, 0], rtol=1e-6)
    assert abs(z[0, 0, 0] - inputs[2][0, 0, 0]).max() > 1e-3
    ch.compare(m, ch.program(m), "f", inputs, {}, 64, 1)


# ---- Beside torch --------------------------------------------------------------------------------


def _torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names = dict(bool="bool", i8="int8", u8="uint8", i16="int16", u16="uint16", i32="int32", u32="uint32", i64="int64", u64="uint64", f16="float16", bf16="bfloat16", f32="float32", f64="float64")
    return torch, {ours: getattr(torch, theirs) for ours, theirs in names.items()}


def _draw(random, dtype, shape):
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        return random.integers(0 if dtype == "u8" else -9, 10, shape)
    return random.standard_normal(shape) * 3


@pytest.mark.torch
def test_promotion_beside_torch():
    torch, types = _torch()
    for first, second, rank in itertools.product(INTS + FLOATS, INTS + FLOATS, (0, 1)):
        f = Module("m").function("f")
        ours = f.input("a", first, [2]).eq(f.input("b", second, [2] * rank)).op.operands[0].dtype
        theirs = torch.result_type(torch.ones(2, dtype=types[first]), torch.ones([2] * rank, dtype=types[second]))
        assert types[ours] == theirs, (first, second, rank)
    for first, second in itertools.product(UNSIGNED, FLOATS):
        f = Module("m").function("f")
        ours = f.input("a", first, [2]).eq(f.input("b", second, [2])).op.operands[0].dtype
        assert types[ours] == torch.result_type(torch.ones(2, dtype=types[first]), torch.ones(2, dtype=types[second])), (first, second)
    for first, number in itertools.product(INTS + UNSIGNED + FLOATS, (True, 3, 2.5)):
        ours = value(first).eq(number).op.operands[0].dtype
        assert types[ours] == torch.result_type(torch.ones(2, dtype=types[first]), number), (first, number)


UNARY = (
    "neg abs relu sqrt rsqrt reciprocal floor ceil exp log tanh erf sin cos sigmoid silu gelu logical_not sum mean amax amin softmax"
).split()  # fmt: skip
BINARY = "add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor floor_divide remainder".split()


#: At +infinity and -infinity, as ATen's own kernels have them in every type.
AT_INFINITY = {"gelu": (np.inf, np.nan), "silu": (np.inf, np.nan), "relu": (np.inf, 0.0), "tanh": (1.0, -1.0), "sigmoid": (1.0, 0.0),
               "erf": (1.0, -1.0)}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", AT_INFINITY)
def test_activations_at_infinity(name, dtype):
    m = Module("m")
    f = m.function("f")
    f.result("y", getattr(f.input("x", dtype, [3]), name)())
    (y,) = Interpreter(m).run("f", np.array([np.inf, -np.inf, np.nan]))
    np.testing.assert_array_equal(y.astype(np.float64), [*AT_INFINITY[name], np.nan])


@pytest.mark.rotating(2)
@pytest.mark.parametrize("target", kh.host_targets())
@pytest.mark.parametrize("dtype", FLOATS)
def test_compiled_activations_at_infinity(dtype, target):
    """In vectors and in what is left of them, alone and at the end of a product."""
    x = np.resize(np.array([np.inf, -np.inf, np.nan, 1.0, -1e30 if dtype != "f16" else -6e4]), 37)
    m = Module("m")
    for name in AT_INFINITY:
        f = m.function(name)
        f.result("y", getattr(f.input("x", dtype, [37]), name)())
        f = m.function(name + "_of_product")
        f.result("y", getattr(f.input("x", dtype, [37, 1]).linear(f.input("w", dtype, [1, 1])), name)())
    f = m.function("gelu_tanh")
    f.result("y", f.input("x", dtype, [37]).gelu("tanh"))
    session = ch.session(ch.program(m, target))
    for name in m.functions:
        product = name.endswith("_of_product")
        inputs = [x.reshape(37, 1), np.ones((1, 1))] if product else [x]
        (y,) = session.run(name, *(kh.encode(array, dtype) for array in inputs))
        wanted = [*AT_INFINITY[name.removesuffix("_of_product").removesuffix("_tanh")], np.nan]
        got = kh.decode(y, dtype).reshape(-1)
        for at, value in enumerate(wanted):
            np.testing.assert_array_equal(got[at::5], np.full(len(got[at::5]), value), err_msg=f"{name} of {dtype} at {x[at]}")
        assert np.isfinite(got[3::5]).all() and (got[4::5] == (-1 if name.startswith(("tanh", "erf")) else 0)).all(), name


def _theirs(torch, name, *tensors):
    if name in ("relu", "silu", "gelu"):
        return getattr(torch.nn.functional, name)(*tensors)
    if name == "softmax":
        return torch.softmax(tensors[0], -1)
    return getattr(torch, name)(*tensors)


@pytest.mark.torch
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_operations_beside_torch(name):
    """Each operation on each type: refused, or torch's type and torch's numbers, also of zeros,
    infinities and NaN."""
    torch, types = _torch()
    random = np.random.default_rng([kh.SEED, len(name)])
    refused = []
    for dtype in INTS + FLOATS:
        m = Module("m")
        f = m.function("f")
        count = 2 if name in BINARY else 1
        inputs = [f.input(f"x{i}", dtype, [3, 5]) for i in range(count)]
        try:
            result = getattr(inputs[0], name)(*inputs[1:])
        except IRError:
            refused.append(dtype)
            continue
        f.result("y", result)
        arrays = [_draw(random, dtype, (3, 5)) for _ in range(count)]
        if dtype in FLOATS:
            arrays[0][0, :4] = [0.0, np.inf, -np.inf, np.nan]
        if name in ("floor_divide", "remainder"):
            arrays[1] = np.where(arrays[1] == 0, 3, arrays[1])
        tensors = [torch.tensor(a).to(types[dtype]) for a in arrays]
        # oneDNN, which takes over on some processors, has other values at infinities and zeros than
        # ATen.
        with torch.backends.mkldnn.flags(enabled=False):
            wanted = _theirs(torch, name, *tensors)
        assert wanted.dtype == types[result.dtype], (dtype, result.dtype)
        exact = [t.to(torch.float64).numpy() if t.is_floating_point() else t.numpy() for t in tensors]
        (ours,) = Interpreter(m).run("f", *exact)
        tolerance = {"f16": 2e-2, "bf16": 0.15}.get(dtype, 1e-4)
        np.testing.assert_allclose(
            ours.astype(np.float64), wanted.to(torch.float64).numpy(), rtol=tolerance, atol=tolerance, err_msg=f"{name} of {dtype}")  # fmt: skip
    assert len(refused) < len(INTS + FLOATS)


@pytest.mark.torch
def test_causal_attention_and_norms_beside_torch():
    torch, _types = _torch()
    random = np.random.default_rng(kh.SEED)
    for queries, keys in ((2, 5), (5, 2), (3, 3)):
        m = Module("m")
        f = m.function("f")
        q, k, v = (f.input(n, "f32", [1, 2, s, 4]) for n, s in (("q", queries), ("k", keys), ("v", keys)))
        f.result("y", q.scaled_dot_product_attention(k, v, is_causal=True))
        f.result("n", q.rms_norm())
        arrays = [random.standard_normal((1, 2, s, 4)) for s in (queries, keys, keys)]
        tensors = [torch.tensor(a) for a in arrays]
        y, n = Interpreter(m).run("f", *arrays)
        np.testing.assert_allclose(y, torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True).numpy(), rtol=1e-6)
        theirs = torch.nn.functional.rms_norm(tensors[0].float() * 1e-3, (4,)).numpy()
        (_y, n) = Interpreter(m).run("f", arrays[0] * 1e-3, *arrays[1:])
        np.testing.assert_allclose(n, theirs, rtol=1e-5)
