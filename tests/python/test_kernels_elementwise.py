"""Generated element-wise kernels against numpy: types, broadcasting, strides, zero lengths, extreme
values, fusion."""

import math

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import elementwise as ew
from accrt.compiler.kernels import tensor_ops
from accrt.compiler.kernels.kerneldef import TensorSpec

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
N = ew.Node
TARGETS = harness.host_targets()
RNG = np.random.default_rng(harness.SEED)


def random_array(shape, dtype):
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    if dtype in ew.INTEGERS:
        low, high = ew.RANGES[dtype]
        wild = RNG.integers(low, high, shape, dtype=harness.NUMPY[dtype], endpoint=True)
        tame = RNG.integers(max(low, -9), 10, shape).astype(wild.dtype)
        return np.where(RNG.random(shape) < 0.5, wild, tame)
    return harness.encode(RNG.uniform(-9, 9, shape), dtype)


def strided(shape, numpy_type, strides):
    return np.ndarray(shape, numpy_type, bytearray(sum(n * s for n, s in zip(shape, strides))), 0, strides)


def run(program, arrays, dtypes, target, shape=None, out_strides=None, **launch_args):
    """Runs a program on arrays; outputs are C-contiguous unless `out_strides` (bytes)."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays]) if shape is None else shape
    outputs = {}
    for i, index in enumerate(program.outputs):
        numpy_type = harness.NUMPY[program.nodes[index].dtype]
        outputs[f"y{i}"] = np.empty(shape, numpy_type) if out_strides is None else strided(shape, numpy_type, out_strides)
    specs = [harness.spec_of(array, dtype) for array, dtype in zip(arrays, dtypes)]
    out_specs = [harness.spec_of(outputs[f"y{i}"], program.nodes[index].dtype) for i, index in enumerate(program.outputs)]
    launch = ew.lower(program, specs, out_specs, **launch_args)
    result = harness.run(launch, {f"x{i}": a for i, a in enumerate(arrays)}, outputs, target, threads=2)
    return [result[f"y{i}"] for i in range(len(program.outputs))]


def binary(op, dtype, result=None):
    return ew.Program((N("input", dtype, (), 0), N("input", dtype, (), 1), N(op, result or dtype, (0, 1))), (2,))


def binaries(ops, dtype, result=None):
    """All of `ops` in one kernel: compiling is most of what these tests cost."""
    nodes = (N("input", dtype, (), 0), N("input", dtype, (), 1), *[N(op, result or dtype, (0, 1)) for op in ops])
    return ew.Program(nodes, tuple(range(2, 2 + len(ops))))


def unary(op, dtype, result=None):
    return ew.Program((N("input", dtype, (), 0), N(op, result or dtype, (0,))), (1,))


def trunc_divide(a, b):
    """Truncation and 0 for a zero divisor, in Python's integers."""
    out = [0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.ravel().tolist(), b.ravel().tolist())]
    return np.array(out, dtype=object).reshape(a.shape)


def wrap(values, dtype):
    low, high = ew.RANGES[dtype]
    span = high - low + 1
    wrapped = [(int(v) - low) % span + low for v in np.asarray(values, dtype=object).ravel()]
    return np.array(wrapped, dtype=object).reshape(np.shape(values)).astype(harness.NUMPY[dtype])


INTEGER_REFERENCE = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": trunc_divide,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ew.INTEGERS)
def test_integer_arithmetic_is_exact_and_wraps(dtype, target):
    a, b = random_array((7, 37), dtype), random_array((7, 37), dtype)
    low, high = ew.RANGES[dtype]
    a[0, :4], b[0, :4] = [low, low, high, high], [low, -1 if low else high, high, 0]
    results = run(binaries(INTEGER_REFERENCE, dtype), [a, b], [dtype, dtype], target)
    for op, got in zip(INTEGER_REFERENCE, results):
        expected = wrap(INTEGER_REFERENCE[op](a.astype(object), b.astype(object)), dtype)
        np.testing.assert_array_equal(got, expected, err_msg=op)


@pytest.mark.parametrize("dtype", ew.INTEGERS)
def test_integer_power(dtype):
    a, b = np.arange(-6, 7).repeat(9), np.tile(np.arange(-2, 7), 13)
    if dtype in ew.UNSIGNED:
        a, b = np.abs(a), np.abs(b)
    expected = [0 if y < 0 and abs(x) != 1 else (1 if y % 2 == 0 or x == 1 else -1) if y < 0 else x**y for x, y in zip(a.tolist(), b.tolist())]
    kind = harness.NUMPY[dtype]
    (got,) = run(binary("pow", dtype), [a.astype(kind), b.astype(kind)], [dtype, dtype], TARGETS[0])
    np.testing.assert_array_equal(got, wrap(np.array(expected, dtype=object), dtype))


FLOAT_REFERENCE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ew.FLOATS)
def test_float_arithmetic_rounds_once(dtype, target):
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504, 3e38, -1])
    with np.errstate(over="ignore", under="ignore"):
        a = harness.encode(np.concatenate([RNG.uniform(-50, 50, 400), np.repeat(special, 9)]), dtype)
        b = harness.encode(np.concatenate([RNG.uniform(-50, 50, 400), np.tile(special, 9)]), dtype)
    results = run(binaries(FLOAT_REFERENCE, dtype), [a, b], [dtype, dtype], target)
    for op, got in zip(FLOAT_REFERENCE, results):
        with np.errstate(all="ignore"):
            # f32 arithmetic on 16-bit values, rounded once more when it is stored, is what the
            # kernel promises.
            wide = np.float64 if dtype == "f64" else np.float32
            exact = FLOAT_REFERENCE[op](harness.decode(a, dtype).astype(wide), harness.decode(b, dtype).astype(wide))
            expected = harness.encode(exact, dtype)
        np.testing.assert_array_equal(harness.decode(got, dtype), harness.decode(expected, dtype), err_msg=op)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "u32", "i64"])
def test_comparisons_and_logic(dtype, target):
    a, b = random_array((300,), dtype), random_array((300,), dtype)
    b[::3] = a[::3]
    compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    for op, got in zip(compare, run(binaries(compare, dtype, "bool"), [a, b], [dtype, dtype], target)):
        np.testing.assert_array_equal(got, compare[op](harness.decode(a, dtype), harness.decode(b, dtype)), err_msg=op)
    p, q = random_array((300,), "bool"), random_array((300,), "bool")
    logic = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}
    for op, got in zip(logic, run(binaries(logic, "bool"), [p, q], ["bool"] * 2, target)):
        np.testing.assert_array_equal(got, logic[op](p, q), err_msg=op)
    np.testing.assert_array_equal(run(unary("logical_not", "bool"), [p], ["bool"], target)[0], ~p)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ew.DTYPES)
def test_casts_between_all_types(source, target):
    values = random_array((999,), source)
    if source in ew.FLOATS:
        extreme = [0.5, -0.5, 127.9, -128.9, 255.9, 300, -300, 2**31, -(2.0**31), 2**32, 2**63, -(2.0**63), 1e30, -1e30, np.inf, -np.inf, np.nan]
        values[: len(extreme)] = harness.encode(extreme, source)
    exact = harness.decode(values, source)
    program = ew.Program(
        (N("input", source, (), 0), *[N("cast", dtype, (0,)) for dtype in ew.DTYPES]), tuple(range(1, 1 + len(ew.DTYPES)))
    )
    results = run(program, [values], [source], target)
    for dtype, got in zip(ew.DTYPES, results):
        np.testing.assert_array_equal(harness.decode(got, dtype), cast_reference(exact, source, dtype), err_msg=f"{source} to {dtype}")


def cast_reference(exact, source, dtype):
    if dtype == "bool":
        return exact != 0
    if dtype in ew.INTEGERS and source in ew.FLOATS:
        low, high = ew.RANGES[dtype]
        found = [0 if math.isnan(v) else low if v <= low else high if v >= high else int(v) for v in exact.tolist()]
        return np.array(found, dtype=object).astype(harness.NUMPY[dtype])
    if dtype in ew.INTEGERS:
        return wrap(exact.astype(object), dtype)
    with np.errstate(over="ignore"):
        return harness.decode(harness.encode(exact if dtype != "bf16" else exact.astype(np.float32), dtype), dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "shapes",
    [
        [(5,), (5,)], [(1,), ()], [(3, 384), (384,)], [(3, 384), (3, 1)], [(2, 1, 7, 33), (4, 1, 33)], [(0, 5), (5,)],
        [(4, 0), (4, 1)], [(1, 2, 1, 3, 1, 2, 2, 3), (2, 1, 2, 1, 2, 1, 1, 1)], [(70000,), (1,)],
    ],
)  # fmt: skip
def test_broadcasting(shapes, target):
    a, b = (RNG.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    (got,) = run(binary("sub", "f32"), [a, b], ["f32", "f32"], target)
    np.testing.assert_array_equal(got, a - b)


@pytest.mark.parametrize("target", TARGETS)
def test_strides_of_inputs_and_outputs(target):
    base = RNG.uniform(-1, 1, (13, 20, 18)).astype(np.float32)
    a, b = base[::2, 3:15:3, 1::2], base.transpose(2, 1, 0)[:7, :4, :9]
    (got,) = run(binary("add", "f32"), [a, b], ["f32", "f32"], target, out_strides=(4 * 1000, 4 * 100, 4 * 2))
    np.testing.assert_array_equal(got, a + b)
    flipped = base.transpose(1, 0, 2)
    (got,) = run(binary("mul", "f32"), [flipped, flipped], ["f32", "f32"], target)
    np.testing.assert_array_equal(got, flipped * flipped)


@pytest.mark.parametrize("target", TARGETS)
def test_fused_chain_equals_its_parts_bit_for_bit(target):
    # (a * b + c) would differ in its last bit if the compiler contracted it.
    nodes = (
        N("input", "f32", (), 0), N("input", "f32", (), 1), N("input", "f32", (), 2), N("mul", "f32", (0, 1)),
        N("add", "f32", (3, 2)), N("tanh", "f32", (4,)), N("const", "f32", (), 0.5), N("gt", "bool", (5, 6)),
        N("where", "f32", (7, 5, 2)), N("scalar", "f32", (), 0), N("mul", "f32", (8, 9)), N("cast", "bf16", (10,)),
    )  # fmt: skip
    arrays = [RNG.uniform(-1, 1, (33, 65)).astype(np.float32) for _ in range(3)]
    values, rounded = run(ew.Program(nodes, (10, 11)), arrays, ["f32"] * 3, target, scalars=(3.0,))
    (inner,) = run(unary("tanh", "f32"), [arrays[0] * arrays[1] + arrays[2]], ["f32"], target)
    expected = np.where(inner > np.float32(0.5), inner, arrays[2]) * np.float32(3)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(rounded, harness.bf16_from(expected))


@pytest.mark.parametrize("target", TARGETS)
def test_unary_of_every_float_type(target):
    x64 = RNG.uniform(0.1, 4, 257)
    reference = {
        "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0), "floor": np.floor, "ceil": np.ceil, "reciprocal": lambda x: 1 / x,
    }  # fmt: skip
    for dtype, rtol in (("f64", 1e-14), ("f32", 3e-7), ("f16", 1e-3), ("bf16", 8e-3)):
        x = harness.encode(x64, dtype)
        program = ew.Program((N("input", dtype, (), 0), *[N(op, dtype, (0,)) for op in reference]), tuple(range(1, 1 + len(reference))))
        for op, got in zip(reference, run(program, [x], [dtype], target)):
            # Tolerance: the rounding of the result's type and a few ULP of the function.
            exact = reference[op](harness.decode(x, dtype))
            np.testing.assert_allclose(harness.decode(got, dtype), exact, rtol=rtol, atol=rtol, err_msg=op)


@pytest.mark.parametrize("target", TARGETS)
def test_nan_passes_through_min_max_clamp_and_relu(target):
    x = np.array([np.nan, 1, 5, -5, np.inf], np.float32)
    nodes = (N("input", "f32", (), 0), N("const", "f32", (), -2.0), N("const", "f32", (), 3.0), N("clamp", "f32", (0, 1, 2)), N("relu", "f32", (0,)))
    clamped, relu = run(ew.Program(nodes, (3, 4)), [x], ["f32"], target)
    np.testing.assert_array_equal(clamped, np.array([np.nan, 1, 3, -2, 3], np.float32))
    np.testing.assert_array_equal(relu, np.array([np.nan, 1, 5, 0, np.inf], np.float32))
    y = np.array([1, np.nan, 2, 2, 2], np.float32)
    np.testing.assert_array_equal(run(binary("max", "f32"), [x, y], ["f32"] * 2, target)[0], np.maximum(x, y))


def test_powers_of_64_bits_without_a_sign():
    a, b = np.array([3, 2**64 - 1, 2, 1, 0, 2**63 + 1], np.uint64), np.array([41, 2**64 - 1, 63, 2**64 - 1, 0, 2**63 + 3], np.uint64)
    (got,) = run(binary("pow", "u64"), [a, b], ["u64", "u64"], TARGETS[0])
    assert got.tolist() == [pow(x, y, 2**64) for x, y in zip(a.tolist(), b.tolist())]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ew.INTEGERS)
def test_integers_are_clamped(dtype, target):
    x = random_array((401,), dtype)
    low, high = ew.RANGES[dtype][0] + 3, ew.RANGES[dtype][1] - 5
    nodes = (N("input", dtype, (), 0), N("const", dtype, (), low), N("const", dtype, (), high), N("clamp", dtype, (0, 1, 2)))
    (got,) = run(ew.Program(nodes, (3,)), [x], [dtype], target)
    assert got.tolist() == [min(max(v, low), high) for v in x.tolist()]


@pytest.mark.parametrize("target", TARGETS)
def test_in_place(target):
    x = RNG.uniform(-2, 2, 70001).astype(np.float32)
    launch = ew.lower(unary("neg", "f32"), [harness.spec_of(x, "f32")], [harness.spec_of(x, "f32")])
    memory = harness.Memory()
    memory.add("x0", x, poison=False)
    memory.arrays["y0"], memory._blocks["y0"] = memory.arrays["x0"], memory._blocks["x0"]
    harness.run_launch(launch, memory, target)
    np.testing.assert_array_equal(memory.arrays["x0"], -x)


@pytest.mark.parametrize("target", TARGETS)
def test_fill_and_iota(target):
    for dtype in ew.DTYPES:
        value = True if dtype == "bool" else 3
        out = np.empty((5, 7), harness.NUMPY[dtype])
        launch = tensor_ops.lower_fill(harness.spec_of(out, dtype), value)
        np.testing.assert_array_equal(harness.decode(harness.run(launch, {}, {"y0": out}, target)["y0"], dtype), np.full((5, 7), value))
    for dtype in ("i32", "i64", "f32", "f64"):
        out = np.empty(100003, harness.NUMPY[dtype])
        launch = tensor_ops.lower_iota(harness.spec_of(out, dtype), 5, -3)
        np.testing.assert_array_equal(harness.run(launch, {}, {"y0": out}, target)["y0"], 5 - 3 * np.arange(100003))


def of_constants(dtype, numbers):
    """Each number clamps, is added and is compared with; of floats it is divided by too."""
    nodes, outputs = [N("input", dtype, (), 0)], []
    for number in numbers:
        at = len(nodes)
        nodes += [N("const", dtype, value=number), N("min", dtype, (0, at)), N("add", dtype, (0, at)), N("lt", "bool", (0, at))]
        outputs += [at + 1, at + 2, at + 3]
        nodes += [N("div", dtype, (0, at))] * (number != 0)
        outputs += [at + 4] * (number != 0)
    return ew.Program(tuple(nodes), tuple(outputs))


@pytest.mark.parametrize("dtype, numbers", [("f32", (30.0, 0.1, 0.5, 32.0, -7.25)), ("f64", (0.1, 3e200)), ("i32", (151935, -3, 8)), ("u32", (4000000000,)), ("i64", (1 << 40, 0))])
def test_numbers_become_arguments_with_the_same_bits(dtype, numbers):
    program = of_constants(dtype, numbers)
    changed, values = ew.with_arguments(program)
    kept = {"f32": {0.5, 32.0}, "i32": {151935, -3, 8}, "u32": {4000000000}, "i64": {1 << 40, 0}}.get(dtype, set())
    assert values == [number for number in numbers if number not in kept]
    x = random_array((3001,), dtype)
    expected = run(program, [x], [dtype], TARGETS[0])
    for one, other in zip(expected, run(changed, [x], [dtype], TARGETS[0], scalars=values)):
        assert one.tobytes() == other.tobytes()


def test_one_kernel_serves_every_number():
    def made(cap, vocabulary):
        program = ew.Program((N("input", "f32", (), 0), N("const", "f32", value=cap), N("mul", "f32", (0, 1)), N("cast", "i64", (2,)), N("const", "i64", value=0),
                              N("const", "i64", value=vocabulary), N("clamp", "i64", (3, 4, 5))), (6,))  # fmt: skip
        return ew.with_arguments(program)

    (first, numbers), (second, others) = made(30.0, 32000), made(50.0, 151936)
    assert first == second and (numbers, others) == ([30.0, 32000], [50.0, 151936])
    assert sum(node.op == "const" for node in first.nodes) == 1  # the zero


def test_bad_programs_are_named():
    for nodes, text in (
        ((N("input", "f32", (), 0), N("input", "i32", (), 1), N("add", "f32", (0, 1))), "arguments of types"),
        ((N("input", "i32", (), 0), N("exp", "i32", (0,))), "a float type is needed"),
        ((N("input", "f32", (), 0), N("frobnicate", "f32", (0,))), "no such operation"),
        ((N("input", "i4", (), 0),), "host kernels know"),
        ((N("input", "f32", (), 0), N("neg", "f32", (2,))), "not earlier nodes"),
        ((N("input", "f32", (), 0), N("add", "f32", (0,))), "2 arguments are needed"),
    ):
        with pytest.raises(ValueError, match=text):
            ew.verify(ew.Program(nodes, (0,)))
    with pytest.raises(ValueError, match="does not broadcast"):
        ew.lower(unary("neg", "f32"), [TensorSpec.contiguous("f32", (3,))], [TensorSpec.contiguous("f32", (4,))])
    with pytest.raises(ValueError, match="does not fit"):
        tensor_ops.lower_fill(TensorSpec.contiguous("u8", (3,)), 256)
