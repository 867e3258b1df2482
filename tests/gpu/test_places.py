"""Running sums, sorting, elements written at places, products of groups of rows and attention in a
window on a GPU: every type, every axis, lines of lengths that choose each of the kernels, against
the float64 reference; the runtime and the plain executor give the same bytes. Elements for one
place are joined in order: the bits are those of that order, in each run. Run as a program it prints
one line for each case that fails (`test_places.py [BUNDLE [FIRST STEP]]`).
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_compiler_ops as host_cases  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402
from accrt.compiler import expr as ex  # noqa: E402

TYPES = ("f32", "f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")
#: name: (builder of a function of sizes a, b, c and count; values of these; inputs of given shapes
#: by name; roundings and scale as in test_ops)
CASES = {}


def case(name, shapes, make=None, roundings=0.0, scale=1.0):
    def register(build):
        CASES[name] = (build, shapes, make or plain, roundings, scale)

    return register


def plain(random, name, dtype, shape, sizes):
    return ch.values(random, dtype, shape, -9, 9)


def special(random, name, dtype, shape, sizes):
    """Few values, so that many are equal; infinities, NaN and zeros of both signs among floats."""
    if dtype not in ch.EPSILON:
        return ch.values(random, dtype, shape, -3, 3)
    return kh.encode(random.choice(np.array([0.0, -0.0, 1.0, -1.5, 2.0, np.inf, -np.inf, np.nan]), shape), dtype)


# ---- Running sums --------------------------------------------------------------------------------

AXES = ((1, 1, 1), (3, 5, 2), (2, 33, 7), (4, 16, 130), (2, 0, 3), (0, 4, 2))
for _dtype in TYPES:
    for _axis in range(3):
        case(f"cumsum_{_dtype}_{_axis}", AXES + ((1, 9000, 1), (2, 1, 4097)), roundings=512 if _dtype == "f64" else 2, scale=64)(
            lambda f, a, b, c, count, d=_dtype, at=_axis: [f.input("x", d, [a, b, c]).cumsum(at)]
        )
for _dtype, _n in (("f32", 1), ("f32", 16), ("f16", 64), ("i64", 65), ("f32", 4096), ("bf16", 4097), ("f32", 100_000)):
    case(f"cumsum_{_dtype}_of_{_n}", ((3, 1, 1), (300, 1, 1)) if _n <= 64 else ((3, 1, 1),), roundings=2, scale=64)(
        lambda f, a, b, c, count, d=_dtype, n=_n: [f.input("x", d, [a, n]).cumsum(1)]
    )
case("cumsum_turned", ((3, 70, 6), (40, 5, 3)), roundings=2, scale=8)(
    lambda f, a, b, c, count: [f.input("x", "f32", [a, b, c]).transpose(0, 2).cumsum(1), f.input("z", "f32", [a, b, c])[:, 1:].transpose(1, 2).cumsum(-1)]
)


# ---- Sorting -------------------------------------------------------------------------------------

LINES = (1, 2, 63, 64, 65, 511, 513, 2048, 2049, 5000)
for _dtype in TYPES:
    for _down in (False, True):
        for _kind, _make in (("special", special), ("plain", plain)):
            case(f"sort_{_dtype}_{int(_down)}_{_kind}", AXES + tuple((2, n, 1) for n in LINES), _make)(
                lambda f, a, b, c, count, d=_dtype, down=_down: list(f.input("x", d, [a, b, c]).sort(1, down))
            )
for _axis in (0, 2):
    case(f"sort_f32_axis_{_axis}", AXES + ((3, 2, 70), (2100, 3, 5)), special)(
        lambda f, a, b, c, count, at=_axis: list(f.input("x", "f32", [a, b, c]).sort(at))
    )
#: Several blocks a line: one part, the most of them, and parts of several chunks.
LONG = (("f32", 2100), ("f16", 9000), ("bf16", 130_000), ("f64", 70_000), ("i8", 20_000), ("u8", 600_000), ("i32", 100_000), ("u32", 4099), ("f32", 1_200_000))
for _dtype, _n in LONG:
    for _kind, _make in (("special", special), ("plain", plain)):
        case(f"sort_{_dtype}_{_kind}_of_{_n}", ((3, 1, 1),), _make)(
            lambda f, a, b, c, count, d=_dtype, n=_n, down=_kind == "plain": list(f.input("x", d, [a, n]).sort(1, down))
        )
case("sort_many_long", ((70, 5, 2), (300, 1, 5)), special)(lambda f, a, b, c, count: list(f.input("x", "f32", [a, 2500, c]).sort(1)))
for _dtype, _n in (("f32", 10), ("bf16", 64), ("i64", 65), ("f64", 600), ("f16", 2048), ("f32", 3000), ("f32", 60_000), ("i64", 20_000)):
    case(f"sort_{_dtype}_of_{_n}", ((1, 1, 1), (200, 1, 1) if _n < 5000 else (3, 1, 1)), plain)(
        lambda f, a, b, c, count, d=_dtype, n=_n: list(f.input("x", d, [a, n]).sort(1, True))
    )
case("sort_turned", ((3, 70, 6), (40, 5, 3)), special)(lambda f, a, b, c, count: list(f.input("x", "f32", [a, b, c]).transpose(0, 2).sort(1)))


# ---- Elements at places --------------------------------------------------------------------------


def places(random, name, dtype, shape, sizes):
    """Many for one place, and integers that keep sums exact."""
    if name == "index":
        return random.integers(0, max(1, sizes["at"]), shape).astype(kh.NUMPY[dtype])
    return ch.values(random, dtype, shape, 0, 5)


def rough(random, name, dtype, shape, sizes):
    """Sums that depend on their order."""
    return places(random, name, dtype, shape, sizes) if name == "index" else kh.encode(random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape), dtype)


def _scatter(f, sizes, count, dtype, index, axis, add, form):
    given = [count if d == axis else s for d, s in enumerate(sizes)]
    of_index = {"full": given, "rows": [count], "lines": [s if d == axis else 1 for d, s in enumerate(given)]}[form]
    at = f.input("index", index, of_index)
    at = at.expand(given) if form == "lines" else at
    return [f.input("x", dtype, sizes).scatter(at, f.input("source", dtype, given), axis, add)]


COUNTS = (1, 4, 64, 65, 700, 2100)
SCATTERS = tuple((*shape, count) for shape in ((1, 1, 1), (3, 5, 2), (2, 33, 7), (4, 6, 130)) for count in COUNTS if count < 1000 or shape[2] < 7)
WIDE = tuple((*shape, count) for shape in ((2, 5, 600), (3, 4, 1024), (1, 7, 4096)) for count in (4, 40, 100))
#: Longer sums of 16 bits lose what is small: their order alone says what they are (`ordered`).
FEW = tuple(shape for shape in SCATTERS if shape[3] <= 65)
for _add in (False, True):
    for _dtype in TYPES[: -1 if _add else None]:
        case(f"scatter_{_dtype}_{int(_add)}", FEW if _add and _dtype.endswith("16") else SCATTERS, places, 64, 400)(
            lambda f, a, b, c, count, d=_dtype, add=_add: _scatter(f, [a, b, c], count, d, "i64", 1, add, "full")
        )
    for _index in ("i32", "u8", "u32"):
        case(f"scatter_f32_{_index}_{int(_add)}", SCATTERS, places, 64, 400)(
            lambda f, a, b, c, count, i=_index, add=_add: _scatter(f, [a, b, c], count, "f32", i, 1, add, "full")
        )
    for _axis in (0, 2):
        case(f"scatter_axis_{_axis}_{int(_add)}", SCATTERS, places, 64, 400)(
            lambda f, a, b, c, count, at=_axis, add=_add: _scatter(f, [a, b, c], count, "f32", "i64", at, add, "full")
        )
    for _form in ("rows", "lines"):
        for _axis in range(3):
            case(f"scatter_{_form}_{_axis}_{int(_add)}", SCATTERS + WIDE, places, 64, 400)(
                lambda f, a, b, c, count, at=_axis, add=_add, form=_form: _scatter(f, [a, b, c], count, "f32", "i64", at, add, form)
            )
for _dtype in ("bf16", "bool", "i64"):
    case(f"scatter_rows_{_dtype}", SCATTERS + WIDE, places)(lambda f, a, b, c, count, d=_dtype: _scatter(f, [a, b, c], count, d, "i32", 1, False, "rows"))
for _dtype in ("f32", "f16", "f64"):
    for _form in ("rows", "full"):
        case(f"ordered_{_dtype}_{_form}", SCATTERS + WIDE, rough, 64, 1e5)(
            lambda f, a, b, c, count, d=_dtype, form=_form: _scatter(f, [a, b, c], count, d, "i64", 1, True, form)
        )
for _count in (10, 200, 900, 3000, 40_000):
    for _add in (False, True):
        case(f"scatter_of_{_count}_{int(_add)}", ((7, 300, 1),), places, 64, 400)(
            lambda f, a, b, c, count, k=_count, add=_add: [f.input("x", "f32", [a, b]).scatter(f.input("index", "i32", [a, k]), f.input("source", "f32", [a, k]), 1, add)]
        )
#: An axis of known size: few digits say which place is meant.
for _index, _size in (("i64", 300), ("i32", 255), ("u32", 70_000), ("i64", 256)):
    case(f"scatter_within_{_index}_{_size}", ((3, 1, 1),), places, 64, 400)(
        lambda f, a, b, c, count, i=_index, n=_size: [f.input("x", "f32", [a, n]).scatter(f.input("index", i, [a, 5000]), f.input("source", "f32", [a, 5000]), 1, True)]
    )


# ---- Groups of rows ------------------------------------------------------------------------------


def groups(random, name, dtype, shape, sizes):
    """Ends of groups: some empty, some that fall, rows left over or none."""
    if name == "ends":
        made = np.sort(random.integers(0, sizes["a"] + 1, shape))
        made[random.integers(0, shape[0])] = random.integers(0, sizes["a"] + 3)
        return made.astype(kh.NUMPY[dtype])
    return ch.values(random, dtype, shape, -2, 2)


GROUPS = ((1, 8, 8), (20, 8, 64), (64, 16, 130), (5, 5, 3), (300, 72, 136), (0, 8, 8), (700, 64, 64), (1000, 33, 70))
for _x, _w in (("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16"), ("bf16", "f32"), ("f64", "f64")):
    for _form in ("kn", "nk"):
        case(f"grouped_{_x}_{_w}_{_form}", GROUPS, groups, 64 if _x == "f32" else 4, 32)(
            lambda f, a, b, c, count, x=_x, w=_w, form=_form: [
                f.input("x", x, [a, b]).grouped_matmul(
                    f.input("w", w, [5, b, c]) if form == "kn" else f.input("w", w, [5, c, b]).transpose(1, 2), f.input("ends", "i32" if form == "kn" else "i64", [5])
                )
            ]
        )
for _dtype in ("bf16", "f16"):
    case(f"grouped_{_dtype}_alone", GROUPS, groups, 4, 32)(
        lambda f, a, b, c, count, d=_dtype: [f.input("x", d, [a, b]).grouped_matmul(f.input("w", d, [1, b, c]), f.input("ends", "i32", [1]))]
    )


# ---- Gradients -----------------------------------------------------------------------------------


def gradient(random, name, dtype, shape, sizes):
    return ch.values(random, dtype, shape, -2, 2)


for _dtype in ("f32", "f16", "bf16", "f64"):
    _roundings = 1 << 12 if _dtype == "f64" else 64 if _dtype == "f32" else 16
    for _n in (1, 7, 384, 1000, 4096, 8000):
        for _kind in ("rms_norm", "layer_norm"):
            case(f"{_kind}_backward_{_dtype}_{_n}", ((1, 1, 1), (5, 1, 1), (700, 1, 1)) if _n in (7, 384) else ((3, 1, 1),), gradient, _roundings, 32)(
                lambda f, a, b, c, count, d=_dtype, n=_n, kind=_kind: list(
                    f.add(f"accrt.{kind}_backward", [f.input("g", d, [a, n]), f.input("x", d, [a, n]), f.input("w", d, [n])], {"eps": 1e-3}).results
                )
            )
    for _kind in ("rms_norm", "layer_norm"):
        case(f"{_kind}_backward_{_dtype}_of_any", ((1, 1, 1), (700, 33, 1), (300, 512, 1), (5, 4096, 1), (3, 4104, 1), (2, 8200, 1), (2, 8201, 1)), gradient, _roundings, 32)(
            lambda f, a, b, c, count, d=_dtype, kind=_kind: list(
                f.add(f"accrt.{kind}_backward", [f.input("g", d, [a, b]), f.input("x", d, [a, b]), f.input("w", d, [b])], {"eps": 1e-3}).results
            )
        )
    case(f"softmax_{_dtype}_of_any", ((1, 1, 1), (5, 8, 1), (3, 1000, 1), (700, 33, 1), (9, 1032, 1), (2, 9000, 1), (0, 4, 1)), gradient, _roundings, 64)(
        lambda f, a, b, c, count, d=_dtype: [f.input("x", d, [a, b]).softmax(-1)]
    )
    case(f"masked_softmax_{_dtype}_of_any", ((1, 1, 1), (5, 8, 3), (3, 1000, 2), (7, 33, 5), (9, 1032, 2), (2, 9000, 1), (0, 4, 1), (1, 8, 0)), gradient, _roundings, 64)(
        lambda f, a, b, c, count, d=_dtype: [f.input("x", d, [a, c, b]).masked_softmax(f.input("mask", d, [c, b]), 0.125)]
    )
    for _n in (1, 7, 384, 1000, 8192):
        case(f"masked_softmax_{_dtype}_{_n}", ((3, 1, 2),), gradient, _roundings, 64)(
            lambda f, a, b, c, count, d=_dtype, n=_n: [f.input("x", d, [a, c, n]).masked_softmax(f.input("mask", d, [c, n]), 0.125)]
        )
    case(f"masked_softmax_{_dtype}_by_bool", ((5, 8, 3), (3, 1000, 2), (7, 33, 5)), gradient, _roundings, 64)(
        lambda f, a, b, c, count, d=_dtype: [f.input("x", d, [a, c, b]).masked_softmax(f.input("mask", "f32", [c, b]).gt(-2.0), 0.125)]
    )
    case(f"softmax_backward_scaled_{_dtype}", ((5, 8, 1), (700, 33, 1), (2, 9000, 1)), gradient, _roundings, 4000)(
        lambda f, a, b, c, count, d=_dtype: [f.input("g", d, [a, b]).softmax_backward(f.input("r", d, [a, b]), -1, 0.125)]
    )
    case(f"softmax_backward_{_dtype}", ((1, 1, 1), (5, 8, 1), (3, 1000, 1), (700, 33, 1), (2, 9000, 1), (0, 4, 1)), gradient, _roundings, 4000)(
        lambda f, a, b, c, count, d=_dtype: [f.input("g", d, [a, b]).softmax_backward(f.input("r", d, [a, b]))]
    )
case("rms_norm_backward_mixed", ((300, 1, 1),), gradient, 16, 32)(
    lambda f, a, b, c, count: list(f.add("accrt.rms_norm_backward", [f.input("g", "bf16", [a, 384]), f.input("x", "bf16", [a, 384]), f.input("w", "f32", [384])], {"eps": 1e-3}).results)
)
case("layer_norm_backward_of_4", ((1, 1, 1),), gradient, 64, 32)(
    lambda f, a, b, c, count: list(f.add("accrt.layer_norm_backward", [f.input("g", "f32", [4, 40]), f.input("x", "f32", [4, 40]), f.input("w", "f32", [40])], {"eps": 1e-3}).results)
)


# ---- Attention in a window -----------------------------------------------------------------------


def small(random, name, dtype, shape, sizes):
    return ch.values(random, dtype, shape, -2, 2)


def _attention(f, n, m, dtype, head, heads, kv_heads, mask, causal, offset, first):
    q = f.input("q", dtype, [2, n, heads, head]).transpose(1, 2)
    k, v = (f.input(name, dtype, [2, m, kv_heads, head]).transpose(1, 2) for name in "kv")
    seen = {
        "none": lambda: None,
        "padding": lambda: f.input("mask", "bool", [2, 1, 1, m]),
        "any": lambda: f.input("mask", "bool", [2, heads, n, m]),
        "added": lambda: f.input("mask", dtype, [n, m]),
    }[mask]()
    return [q.scaled_dot_product_attention(k, v, seen, is_causal=causal, causal_offset=offset if causal else None, first_offset=first)]


#: Queries (a), keys (b), and the window (c).
WINDOWS = ((1, 1, 1), (1, 300, 40), (3, 5, 2), (33, 65, 7), (130, 200, 64), (70, 400, 100), (200, 130, 300))
for _dtype in ("f16", "bf16"):
    for _head in (32, 64, 96, 128, 160, 200):
        for _mask, _causal in (("none", True), ("none", False), ("padding", True), ("any", True), ("added", True)):
            case(f"window_{_dtype}_{_head}_{_mask}_{int(_causal)}", WINDOWS, small, 4, 2)(
                lambda f, a, b, c, count, d=_dtype, h=_head, mask=_mask, causal=_causal: _attention(f, a, b, d, h, 4, 2, mask, causal, b - a, b - a - c + 1)
            )
    for _head in (32, 64, 128, 160, 256):
        for _heads, _kv in ((8, 2), (80, 80)):
            case(f"window_decode_{_dtype}_{_head}_{_heads}", ((1, 1, 1), (1, 7, 3), (1, 300, 100), (1, 1025, 64), (1, 1025, 2000)), small, 4, 2)(
                lambda f, a, b, c, count, d=_dtype, h=_head, heads=_heads, kv=_kv: _attention(f, 1, b, d, h, heads, kv, "none", True, b - 1, b - c)
            )
case("window_f32", WINDOWS, small, 64, 2)(lambda f, a, b, c, count: _attention(f, a, b, "f32", 48, 6, 2, "none", True, b - a, b - a - c + 1))
case("window_late", WINDOWS, small, 4, 2)(lambda f, a, b, c, count: _attention(f, a, b, "bf16", 64, 4, 2, "none", False, None, 3))


# ---- Running -------------------------------------------------------------------------------------


def module(names=None):
    m = Module("places")
    sizes = [m.symbol(name, maximum=1 << 17) for name in ("a", "b", "c", "count")]
    for name, (build, *_rest) in CASES.items():
        if names is not None and name not in names:
            continue
        f = m.function(name)
        for index, result in enumerate(build(f, *sizes)):
            f.result(f"y{index}", result)
        host_cases._bind_sizes(f, sizes)
    return m


def inputs_of(function, make, random, given):
    """Arrays for the tensor inputs, and values of symbols that are arguments. For places: `at` is
    the size of the axis that they are of, the one that x and the source do not share."""
    sizes = {"count": 1, "at": 0, **dict(zip(("a", "b", "c", "count"), given))}
    tensors = {i.name: i.value for i in function.inputs if i.value is not None}
    shapes = {name: [ex.evaluate(s, sizes) for s in t.shape] for name, t in tensors.items()}
    if "source" in shapes:
        static = next((d for d, s in enumerate(tensors["source"].shape) if ex.symbols_of(s) == ["count"] or (isinstance(s, int) and s > 9)), None)
        sizes["at"] = shapes["x"][static]
    arrays = [make(random, name, t.dtype, shapes[name], sizes) for name, t in tensors.items()]
    return arrays, {i.name: sizes[i.symbol] for i in function.inputs if i.symbol}


def in_order(function, arrays, dtype):
    """A scatter that adds one element after the other in the type itself."""
    x, index, source = (dict(zip((i.name for i in function.inputs if i.value is not None), arrays))[name] for name in ("x", "index", "source"))
    y = x.copy()
    for j in range(source.shape[1]):
        at = np.broadcast_to(index[j] if index.ndim == 1 else index[:, j], (x.shape[0], x.shape[2]))
        o, i = np.indices(at.shape)
        y[o, at, i] = y[o, at, i] + source[:, j]
    return y


def run_case(program, m, name):
    import cuda_exec

    _build, shapes, make, roundings, scale = CASES[name]
    function = m.functions[name]
    for given in shapes:
        random = np.random.default_rng([kh.SEED, *given])
        arrays, scalars = inputs_of(function, make, random, given)
        got = cuda_exec.Session(program).run(name, *[x.copy() for x in arrays], **scalars)
        ch.both_agree(m, program.bundle.data, name, arrays, scalars, got, on_cuda=True)
        expected = Interpreter(m).run(name, *arrays, **scalars)
        for result, have, want in zip(function.results, got, expected):
            ch.assert_close(have, want, result.value.dtype, roundings, scale, f"{given}: ")
        if name.startswith("ordered"):
            assert got[0].tobytes() == in_order(function, arrays, function.results[0].value.dtype).tobytes(), f"{given}: not the bits of this order"


@pytest.fixture(scope="module")
def suite():
    why = test_ops.reason("places")
    if why:
        pytest.skip(why)
    import cuda_exec

    print(f"seed {kh.SEED}")
    m = module()
    return m, cuda_exec.Program(test_ops.built("places", m))


@pytest.mark.parametrize("name", CASES)
def test_places(suite, name):
    m, program = suite
    with np.errstate(all="ignore"):
        run_case(program, m, name)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("count", [10, 700])
def test_a_place_outside_writes_nothing(suite, add, count):
    import cuda_exec

    m, program = suite
    name = f"scatter_f32_{int(add)}"
    (index, x, source), scalars = inputs_of(m.functions[name], places, np.random.default_rng(kh.SEED), (3, 5, 2, count))
    index[:] = np.where(np.arange(count) % 2, -1, np.where(np.arange(count) % 4, 5, 1 << 40))[None, :, None]
    got = cuda_exec.Session(program).run(name, index, x, source, **scalars)
    np.testing.assert_array_equal(got[0], x)


@pytest.mark.parametrize("name", ["scatter_within_i64_300", "scatter_within_i32_255", "scatter_within_i64_256"])
def test_places_outside_an_axis_of_known_size_are_left_out(suite, name):
    import cuda_exec

    m, program = suite
    random, size = np.random.default_rng(kh.SEED), int(name.rsplit("_", 1)[1])
    (x, index, source), scalars = inputs_of(m.functions[name], places, random, (3, 1, 1))
    outside = random.random(index.shape) < 0.3
    index[outside] = random.choice(np.array([-1, -256, size, size + 1, 65536 + 7, -(1 << 31)]), index.shape)[outside]
    x, source = np.round(x), np.round(source)  # their sums are exact
    wanted = x.astype(np.float64)
    for line in range(3):
        np.add.at(wanted[line], index[line][~outside[line]], source[line][~outside[line]])
    got = cuda_exec.Session(program).run(name, x, index, source, **scalars)
    np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize("name, a, b, c", [("window_bf16_64_none_1", 130, 400, 40), ("window_decode_bf16_64_8", 1, 1025, 64), ("window_f32", 5, 400, 30)])
def test_keys_before_all_windows_are_not_read(suite, name, a, b, c):
    """They may be NaN; those of a block that some row sees are multiplied by zero."""
    import cuda_exec

    m, program = suite
    random, function = np.random.default_rng([kh.SEED, a]), m.functions[name]
    arrays, scalars = inputs_of(function, small, random, (a, b, c, 1))
    wanted = cuda_exec.Session(program).run(name, *[x.copy() for x in arrays], **scalars)
    nothing = kh.encode(np.full(1, np.nan), function.results[0].value.dtype)[0]
    for x in arrays[1:3]:
        x[:, : (b - a - c) // 64 * 64] = nothing
    got = cuda_exec.Session(program).run(name, *arrays, **scalars)
    assert got[0].tobytes() == wanted[0].tobytes()


def main():
    import cuda_exec

    first, step = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (0, 1)
    names = list(CASES)[first::step]
    m = module()
    with open(sys.argv[1], "rb") as file:
        program = cuda_exec.Program(file.read())
    failed = 0
    for name in names:
        try:
            with np.errstate(all="ignore"):
                run_case(program, m, name)
        except Exception as error:  # noqa: BLE001 - every kind of failure is a line of the table
            failed += 1
            lines = [line for line in str(error).splitlines() if line.strip()]
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAIL {name}: {type(error).__name__}: {' | '.join(lines[:4])[:200]} ({os.path.basename(where.filename)}:{where.lineno})")
            if "cuCtxSynchronize" in str(error):
                print("the context is lost; the rest was not run")
                break
    print(f"part {first}/{step} seed {kh.SEED}: {len(names)} cases, {failed} failed, {program.dispatches} launches")


if __name__ == "__main__":
    main()
