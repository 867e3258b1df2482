"""accrt.jax: functions of bundles as functions of JAX. Runs where JAX is installed:
`./dev check interop`. tests/gpu/test_xla_frames.py has what XLA calls, without JAX."""

from __future__ import annotations

import copy
import gc
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import accrt
import kernel_harness as kh

jax = pytest.importorskip("jax", reason="JAX is not installed")

import accrt.jax  # noqa: E402
from accrt.compiler import compile, Module, TensorType  # noqa: E402
from jax import numpy as jnp  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
NATIVE = ROOT / "python/native"

KERNEL = """
int32_t look(const accrt_kernel_environment_t* environment, const accrt_kernel_dispatch_t* dispatch, const accrt_kernel_workgroup_t* workgroup) {
  const look_params_t* p = dispatch->params;
  const uint64_t address = (uint64_t)(uintptr_t)p->x;
  p->halves[0] = (int32_t)(uint32_t)address;
  p->halves[1] = (int32_t)(uint32_t)(address >> 32);
  return p->x[0] < 0 ? 7 : 0;
}
"""


def module(folder):
    m = Module("jaxed")
    n, k = m.symbol("n", maximum=1 << 16), m.symbol("k", minimum=1, maximum=1 << 12)
    length, fours = m.symbol("length", maximum=1 << 16), m.symbol("fours", divisor=4, maximum=1 << 16)
    f = m.function("rms", doc="RMS normalization of rows of 16")
    x, w, b = f.input("x", "f32", [n, 16]), f.input("w", "f32", [16]), f.input("b", "f32", [16])
    scale = ((x * x).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
    f.result("y", x * scale * w + b)
    f.result("scale", scale)
    for name, gives in (("rms_backward", "xwb"), ("rms_backward_of_x", "x")):
        g = m.function(name)
        dy, x, w = g.input("grad_y", "f32", [n, 16]), g.input("x", "f32", [n, 16]), g.input("w", "f32", [16])
        scale = g.input("scale", "f32", [n, 1])
        unit = x * scale
        inner = (dy * w * unit).sum(-1, keepdim=True) * (1 / 16)
        g.result("grad_x", (dy * w - unit * inner) * scale)
        if "w" in gives:
            g.result("grad_w", (dy * unit).sum(0))
            g.result("grad_b", dy.sum(0))
    f = m.function("silu_mul")
    x, y = f.input("x", "f32", [n, k]), f.input("y", "f32", [n, k])
    f.result("z", x.silu() * y)
    for name in ("add", "add_in_place"):
        f = m.function(name)
        x, by = f.input("x", "f32", [n, 8], access="read_write"), f.input("by", "f32", [8])
        if name == "add":
            f.result("before", x * 1.0)
        (x + by).write_input("x")
    f = m.function("take")
    x = f.input("x", "f32", [n, 8])
    f.scalar("count", length)
    f.result("y", x[:length])
    f = m.function("biased")
    x, b = f.input("x", "f32", [n]), f.input("b", "f32", [n], optional=True)
    f.result("y", f.cond(f.present(b), lambda: x + b, lambda: x * 2.0)[0])
    f = m.function("given")
    f.result("y", f.input("x", "f32", [n, 8], access="donated") * 3.0)
    f = m.function("wide")
    f.result("y", f.input("x", "f64", [n]) * 2.0)
    f = m.function("in_fours")
    f.result("y", f.input("x", "f32", [fours]) * 2.0)
    f = m.function("whole")
    f.result("total", f.input("x", "f32", [n, 8]).sum(0))
    f = m.function("number")
    f.result("y", f.input("x", "f32", []) * 2.0)
    source = folder / "look.c"
    source.write_text(KERNEL)
    look = accrt.Kernel.from_c(source, "look", [("x", "read f32"), ("halves", "write i32")], grid=lambda v: (1, 1, 1))
    f = m.function("look")
    (halves,) = f.kernel(look, [f.input("x", "f32", [n])], [TensorType("i32", (2,))])
    f.result("halves", halves)
    return m


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    compile(module(folder), folder / "jaxed.accx", targets=[kh.host_targets()[-1]])
    return folder / "jaxed.accx"


@pytest.fixture(scope="module")
def bundle(path, instance):
    return accrt.Bundle(path, instance)


@pytest.fixture(scope="module")
def rms(bundle):
    return accrt.jax.function(bundle, "rms", backward="rms_backward")


@pytest.fixture(scope="module")
def by_rows(bundle):
    return accrt.jax.function(bundle, "rms", backward="rms_backward", rows="n")


def random(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def weights():
    return random(16, seed=2), random(16, seed=3)


def exact(x, w, b):
    """In float64."""
    x, w, b = (np.asarray(v, np.float64) for v in (x, w, b))
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * scale * w + b, scale


def in_jax(x, w, b):
    scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * scale * w + b, scale


def agree(found, wanted, rtol=1e-5, atol=1e-5):
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol)


# ---- Values

@pytest.mark.parametrize("rows", [0, 1, 5, 300])
@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_are_numpys(rms, how, rows):
    x, (w, b) = random(rows, 16), weights()
    y, scale = how(rms)(x, w, b)
    assert isinstance(y, jax.Array) and y.shape == (rows, 16) and scale.shape == (rows, 1)
    agree((y, scale), exact(x, w, b))


def test_every_type(echo_bundle, instance, tmp_path):
    """Each goes through bit by bit, in a process where JAX has 64-bit types."""
    program = tmp_path / "every_type.py"
    program.write_text("""
import sys
import numpy as np, jax, accrt, accrt.jax
from jax import numpy as jnp
from accrt.jax import _types
jax.config.update("jax_enable_x64", True)
bundle = accrt.Bundle(sys.argv[1], accrt.Instance(host_code="all"))
done = 0
for ours, name in _types._DTYPES.items():
    if not hasattr(jnp, name):
        continue
    dtype = np.dtype(getattr(jnp, name))
    bits = np.random.default_rng(5).integers(0, 2 if ours == "bool" else 256, 40 * dtype.itemsize, np.uint8)
    x = jnp.asarray(bits.view(dtype))
    y = jax.jit(accrt.jax.function(bundle, ours))(x)
    assert y.dtype == dtype and np.asarray(y).tobytes() == bits.tobytes(), ours
    done += 1
print(done)
""")
    done = subprocess.run([sys.executable, program, echo_bundle], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0 and int(done.stdout) >= 15, done.stdout + done.stderr


def test_a_tensor_without_dimensions(bundle):
    assert float(accrt.jax.function(bundle, "number")(jnp.float32(4))) == 8


def test_numpy_arrays_and_names(rms):
    x, (w, b) = np.asarray(random(3, 16)), weights()
    agree(rms(x, b=b, w=w), exact(x, w, b))


def test_a_scalar_is_part_of_the_shape(bundle):
    take, x = accrt.jax.function(bundle, "take"), random(6, 8)
    assert take(x, 4).shape == (4, 8) and take(x, count=np.int32(0)).shape == (0, 8)
    agree(jax.jit(take, static_argnames="count")(x, count=2), x[:2])


def test_an_optional_input(bundle):
    biased, x = accrt.jax.function(bundle, "biased"), random(6)
    agree((biased(x), biased(x, x + 1), biased(x, None)), (x * 2, x + x + 1, x * 2))
    agree(jax.jit(biased)(x, b=x), x * 2)


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_is_written_comes_back_and_the_argument_stays(bundle, how):
    x, by = random(4, 8), random(8)
    kept = np.array(x)
    before, after = how(accrt.jax.function(bundle, "add"))(x, by)
    agree((before, after), (kept, kept + np.asarray(by)))
    assert np.array_equal(x, kept)
    agree(how(accrt.jax.function(bundle, "given"))(x), kept * 3)
    assert np.array_equal(x, kept)


def test_a_donated_array_is_written_where_it_lies(bundle):
    x, by = jax.block_until_ready(jnp.abs(random(1000, 8))), random(8)
    # numpy's view of x would keep x
    kept, where = np.abs(random(1000, 8)), x.unsafe_buffer_pointer()
    after = jax.jit(accrt.jax.function(bundle, "add_in_place"), donate_argnums=0)(x, by)
    assert after.unsafe_buffer_pointer() == where and x.is_deleted()
    agree(after, kept + np.asarray(by))


def test_arguments_are_not_copied(bundle):
    """The kernel gives the address that it has."""
    look = jax.jit(accrt.jax.function(bundle, "look"))
    for count in (1, 7, 1000, 65536):
        x = jax.block_until_ready(jnp.abs(random(count)))
        low, high = (int(v) & 0xFFFFFFFF for v in look(x))
        assert high << 32 | low == x.unsafe_buffer_pointer()


# ---- Transformations

def test_vmap_calls_for_each_element(rms):
    x, (w, b) = random(3, 5, 16), weights()
    agree(jax.vmap(rms, (0, None, None))(x, w, b), exact(x, w, b))
    agree(jax.jit(jax.vmap(rms, (1, None, None), out_axes=1))(x, w, b), exact(x, w, b))


def test_vmap_of_rows_is_one_call(by_rows):
    x, (w, b) = random(3, 5, 16), weights()
    over = jax.vmap(by_rows, (0, None, None))
    agree(over(x, w, b), exact(x, w, b))
    agree(jax.vmap(over, (1, None, None), out_axes=1)(random(3, 2, 5, 16), w, b), exact(random(3, 2, 5, 16), w, b))
    for how, given in (((None, 0, None), (x, random(4, 16), b)), ((None, None, 0), (x, w, random(4, 16)))):
        agree(jax.vmap(over, how)(*given), jax.vmap(jax.vmap(in_jax, (0, None, None)), how)(*given))
    text = jax.jit(over).lower(x, w, b).as_text()
    assert text.count("@accrt_call") == 1 and "while" not in text and "tensor<15x16xf32>" in text


def test_vmap_of_more_rows_than_the_bundle_takes(bundle):
    rows = accrt.jax.function(bundle, "silu_mul", rows="n")
    x = random(2, 40000, 2)
    agree(jax.vmap(rows)(x, x), np.asarray(jax.nn.silu(x) * x))


def test_vmap_where_rows_meet(bundle):
    """Its result is of all rows together, so that there is a call for each element."""
    x = random(3, 5, 8)
    agree(jax.vmap(accrt.jax.function(bundle, "whole", rows="n"))(x), np.asarray(x, np.float64).sum(1))


@pytest.mark.parametrize("count", [0, 2])
def test_vmap_of_what_writes(bundle, count):
    x, by = random(count, 4, 8), random(8)
    agree(jax.vmap(accrt.jax.function(bundle, "add"), (0, None))(x, by), (x, np.asarray(x) + np.asarray(by)))


def loss(f):
    return lambda *given: jnp.sum(jnp.sin(f(*given)[0]))


@pytest.mark.parametrize("which", ["rms", "by_rows"])
def test_gradients_are_jaxs(which, request):
    f, x, (w, b) = request.getfixturevalue(which), random(7, 16), weights()
    wanted = jax.grad(loss(in_jax), (0, 1, 2))(x, w, b)
    for found in (jax.grad(loss(f), (0, 1, 2)), jax.jit(jax.grad(loss(f), (0, 1, 2)))):
        agree(found(x, w, b), wanted, 1e-4, 1e-4)
    agree(jax.grad(loss(jax.checkpoint(f)))(x, w, b), wanted[0], 1e-4, 1e-4)


@pytest.mark.parametrize("which", ["rms", "by_rows"])
def test_gradients_of_vmap_and_vmap_of_gradients(which, request):
    f, x, (w, b) = request.getfixturevalue(which), random(3, 7, 16), weights()

    def both(f):
        over = jax.vmap(f, (0, None, None))
        return jax.grad(loss(over), (0, 1, 2))(x, w, b), jax.vmap(jax.grad(loss(f), (0, 1, 2)), (0, None, None))(x, w, b)

    agree(both(f), both(in_jax), 1e-4, 1e-4)


def test_gradients_are_numbers(rms):
    """Against differences, in float64."""
    x, (w, b) = random(2, 16), weights()
    found, step = np.asarray(jax.grad(lambda x: rms(x, w, b)[0].sum())(x)), 1e-6
    for at in ((0, 3), (1, 15)):
        moved = np.zeros((2, 16))
        moved[at] = step
        high, low = (exact(np.asarray(x, np.float64) + d, w, b)[0].sum() for d in (moved, -moved))
        assert abs(found[at] - (high - low) / (2 * step)) < 1e-4


def test_in_a_scan(rms):
    x, (w, b) = random(4, 16), weights()

    def run(f):
        return jax.jit(lambda x: jax.lax.scan(lambda carry, _: (f(carry, w, b)[0], carry.sum()), x, None, length=5))(x)

    agree(run(rms), run(in_jax), 1e-4, 1e-4)
    agree(jax.grad(lambda x: jnp.sin(jax.lax.scan(lambda c, _: (rms(c, w, b)[0], None), x, None, length=3)[0]).sum())(x),
          jax.grad(lambda x: jnp.sin(jax.lax.scan(lambda c, _: (in_jax(c, w, b)[0], None), x, None, length=3)[0]).sum())(x), 1e-3, 1e-3)


def test_gradients_that_the_backward_has_not(bundle):
    part = accrt.jax.function(bundle, "rms", backward="rms_backward_of_x")
    x, (w, b) = random(3, 16), weights()
    agree(jax.grad(loss(part))(x, w, b), jax.grad(loss(in_jax))(x, w, b), 1e-4, 1e-4)
    with pytest.raises(ValueError, match="gives no grad_w: stop the gradient with jax.lax.stop_gradient"):
        jax.grad(loss(part), (0, 1))(x, w, b)
    agree(jax.grad(lambda w: loss(part)(x * w, jax.lax.stop_gradient(w), b))(w), jax.grad(lambda w: loss(in_jax)(x * w, jax.lax.stop_gradient(w), b))(w),
          1e-4, 1e-4)


@pytest.mark.parametrize("how", [lambda f: f, jax.jit, jax.vmap, jax.checkpoint], ids=["eager", "jit", "vmap", "checkpoint"])
def test_gradients_of_results_that_the_backward_does_not_take(rms, by_rows, how):
    """The backward takes grad_y and no grad_scale: a gradient of scale is not lost in silence."""
    x, (w, b) = random(2, 3, 16), weights()
    for function in (rms, by_rows):
        lost = how(jax.grad(lambda x: sum(one.sum() for one in function(x, w, b))))
        with pytest.raises(ValueError, match="takes no grad_scale: stop the gradient of this result with jax.lax.stop_gradient"):
            jax.block_until_ready(lost(x if how is jax.vmap else x[0]))
        y_alone = lambda x: (lambda y, scale: (y + jax.lax.stop_gradient(scale)).sum())(*function(x, w, b))  # noqa: E731
        assert np.isfinite(how(jax.grad(y_alone))(x if how is jax.vmap else x[0])).all()


def test_a_backward_of_the_backward(bundle, rms):
    x, (w, b) = random(3, 16), weights()
    with pytest.raises(ValueError, match="'rms_backward' of .* has no backward: name the bundle's function"):
        jax.grad(lambda x: jax.grad(loss(rms))(x, w, b).sum())(x)
    with pytest.raises(ValueError, match="'take' of .* has no backward"):
        jax.grad(lambda x: accrt.jax.function(bundle, "take")(x, 2).sum())(random(4, 8))


# ---- What is wrong

@pytest.mark.parametrize("call, kind, text", [
    (lambda f, x, w: f["rms"](x[:, :8], w, w), ValueError, r"dimension 1 of x is 8, and f32\[n, 16\] is needed"),
    (lambda f, x, w: f["rms"](x[0], w, w), ValueError, r"x has 1 dimensions, and f32\[n, 16\] is needed"),
    (lambda f, x, w: f["rms"](x.astype(jnp.bfloat16), w, w), TypeError, "x is of bfloat16, and f32"),
    (lambda f, x, w: f["rms"](x, w), TypeError, "b is missing; it is rms"),
    (lambda f, x, w: f["rms"](x, w, w, w), TypeError, "4 arguments, and it takes 3"),
    (lambda f, x, w: f["rms"](x, w, w, x=x), TypeError, "'x' is given twice"),
    (lambda f, x, w: f["rms"](x, w, v=w), TypeError, "'v' is not one of its own"),
    (lambda f, x, w: f["silu_mul"](x, x[:2]), ValueError, r"dimension 0 of y is 2, and f32\[n, k\] is needed"),
    (lambda f, x, w: f["biased"](jnp.zeros(65537, jnp.float32)), ValueError, "n is 65537, and the bundle's limit is 65536"),
    (lambda f, x, w: f["take"](jnp.zeros((4, 8), jnp.float32), -1), ValueError, "length is -1, expected a number from 0 on"),
    (lambda f, x, w: f["take"](jnp.zeros((4, 8), jnp.float32), -(1 << 63)), ValueError, "length is -9223372036854775808, expected a number from 0 on"),
    (lambda f, x, w: jax.jit(f["take"])(x[:, :8], 3), TypeError, "count is a scalar, on which shapes depend: inside of jax.jit name it in static"),
    (lambda f, x, w: f["take"](x[:, :8], 2.5), TypeError, "count is a scalar, and 2.5 is no whole number"),
    (lambda f, x, w: f["take"](x[:, :8], 1 << 63), OverflowError, "does not fit in 64 bits"),
    (lambda f, x, w: f["wide"](w), ValueError, "JAX has no 64-bit types until jax.config.update"),
])
@pytest.mark.parametrize("how", [lambda f: f, lambda f: jax.vmap(f, in_axes=None, axis_size=2)], ids=["called", "vmap"])
def test_what_does_not_fit_is_said_in_python(bundle, call, kind, text, how):
    class Functions:
        def __getitem__(self, name):
            return accrt.jax.function(bundle, name)

    with pytest.raises(kind, match=text):
        how(lambda x: call(Functions(), x, random(16)))(random(4, 16))


@pytest.mark.parametrize("make, text", [
    (lambda b: accrt.jax.function(b, "rms", backward="take"), "takes 'count', which is no input or result of 'rms'"),
    (lambda b: accrt.jax.function(b, "rms", backward="silu_mul"), "gives 'z', which is no 'grad_' of an input|takes 'y'"),
    (lambda b: accrt.jax.function(b, "add", backward="rms_backward"), "one that writes an input has no gradient"),
    (lambda b: accrt.jax.function(b, "rms", rows="k"), "rows is 'k', expected a symbol that is the first dimension"),
    (lambda b: accrt.jax.function(b, "silu_mul", rows="k"), "rows is 'k', expected a symbol"),
    (lambda b: accrt.jax.function(b, "rmss"), "rms"),
])
def test_functions_that_cannot_be(bundle, make, text):
    with pytest.raises((ValueError, accrt.Error), match=text):
        make(bundle)


def test_a_traced_array_is_refused_with_what_to_use(bundle, instance):
    session = bundle.program().session()
    with pytest.raises(BufferError, match="silu_mul: x: .*accrt.jax.function"):
        jax.jit(lambda x: session.silu_mul(x, x))(random(2, 3))


def test_a_bundle_with_states(golden_bundle, instance):
    with pytest.raises(ValueError, match="the bundle has states"):
        accrt.jax.function(accrt.Bundle(golden_bundle, instance), "scale_add")


def test_errors_of_the_bundle_are_jaxs(bundle, path):
    """With the library's message; and the next call is as good as the first."""
    look = jax.jit(accrt.jax.function(bundle, "look"))
    kind = jax.errors.JaxRuntimeError
    for _ in range(3):
        with pytest.raises(kind, match="accrt: 'look' of .*look.* 7"):
            jax.block_until_ready(look(jnp.full(4, -1.0)))
        jax.block_until_ready(look(jnp.ones(4)))
    with pytest.raises(kind, match="INVALID_ARGUMENT.*fours"):
        jax.block_until_ready(accrt.jax.function(bundle, "in_fours")(random(5)))
    closed = accrt.jax.function(accrt.Bundle(path, accrt.Instance(host_code="none")), "number")
    with pytest.raises(kind, match="PERMISSION_DENIED.*accrt: 'number' of .*host"):
        jax.block_until_ready(closed(jnp.float32(1)))


LEAKS = """
import ctypes, sys, jax, accrt, accrt.jax
from jax import numpy as jnp
bundle = accrt.Bundle(sys.argv[1], accrt.Instance(host_code="all"))
look, add = (jax.jit(accrt.jax.function(bundle, name)) for name in ("look", "silu_mul"))
bad, x = jnp.full(4, -1.0), jnp.ones((3, 4))
def resident():
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4
def calls(count):
    for _ in range(count):
        add(x, x).block_until_ready()
        try:
            look(bad).block_until_ready()
        except jax.errors.JaxRuntimeError:
            pass
calls(300)
before = resident()
calls(1500)
print(resident() - before)
"""

FORGED = """
import sys
import jax, numpy as np
from jax import numpy as jnp
import accrt, accrt.jax
add = accrt.jax.function(accrt.Bundle(sys.argv[1], accrt.Instance(trust="all")), "add")
x, by, f32 = jnp.ones((20000, 8)), jnp.ones(8), jnp.float32
right = [((20000, 8), f32), ((20000, 8), f32)]
def call(results, *arguments, attribute=()):
    made = [jax.ShapeDtypeStruct(*one) for one in results]
    out = jax.ffi.ffi_call("accrt_call", made)(*arguments, accrt=np.array([add._number, *(attribute or (3,))], np.int64))
    return jax.block_until_ready(out)
assert (np.asarray(call(right, x, by)[1]) == 2).all()
wrong = 0
for results, arguments, attribute in (
        # what is written does not fit its result: the copy went past its end
        ([right[0], ((1, 8), f32)], (x, by), ()), ([right[0], ((20000, 8), jnp.uint8)], (x, by), ()), ([right[0], ((0, 8), f32)], (x, by), ()), ([right[0], ((20000 * 8,), f32)], (x, by), ()),
        ([right[0], ((), f32)], (x, by), ()), ([((1, 8), f32), right[1]], (x, by), ()), (right, (x[:1], by), ()), (right, (x, by[:1]), ()), (right, (by, x), ()),
        # more or fewer values than the function's: nothing writes them
        (right + [right[0]], (x, by), ()), (right[:1], (x, by), ()), (right, (x,), ()), (right, (x, by, by), ()), (right, (x, by), (3, 1)),
        *((right, (x, by), (mask,)) for mask in (0, 1, 2, 1 << 62))):
    try:
        call(results, *arguments, attribute=attribute)
        print("taken:", results, attribute)
    except Exception as error:
        assert "accrt: " in str(error) or "expected" in str(error), error
        wrong += 1
assert wrong == 18, wrong
assert (np.asarray(call(right, x, by)[1]) == 2).all()
"""


def test_programs_of_others_call_it_as_it_is_declared(path):
    """What jax.export reads is XLA's program of anybody: its calls may have any types."""
    done = subprocess.run([sys.executable, "-c", FORGED, str(path)], env=dict(os.environ, PYTHONPATH=str(ROOT / "python")), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr[-2000:]


def test_calls_and_errors_leave_nothing(path):
    """A session that each error left would be 10 KiB or more."""
    done = in_another_process(LEAKS, path)
    assert done.returncode == 0 and int(done.stdout) < 4000, done


def test_threads(rms):
    """Each has a session of its own, and the results of its own arguments."""
    (w, b), wrong = weights(), []
    compiled = jax.jit(rms)

    def work(seed):
        try:
            for step in range(20):
                x = random(1 + 13 * (seed + step) % 90, 16, seed=100 * seed + step)
                agree(compiled(x, w, b), exact(x, w, b))
        except BaseException as error:  # noqa: BLE001 - it is shown below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[0]


def test_compiled_functions_outlive_the_bundle(path):
    own = accrt.Bundle(path, accrt.Instance(host_code="all"))
    f = accrt.jax.function(own, "rms")
    x, (w, b) = random(3, 16), weights()
    jitted, ahead = jax.jit(f), jax.jit(f).lower(x, w, b).compile()
    wanted = exact(x, w, b)
    agree(jitted(x, w, b), wanted)
    own.close()
    del own, f
    gc.collect()
    agree((jitted(x, w, b), ahead(x, w, b)), (wanted, wanted))


def test_a_program_is_for_its_device_alone(bundle, device):
    f = accrt.jax.function(accrt.Program(bundle, device), "number")
    assert float(f(jnp.float32(2))) == 4


def in_another_process(text, *given):
    return subprocess.run([sys.executable, "-c", text, *map(str, given)], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip


EXPORTED = """
import sys, jax, accrt, accrt.jax
from jax import export, numpy as jnp
from accrt.jax import _calls
_calls.register()
kept, how, path = sys.argv[1:]
if how != "without":
    bundle = accrt.Bundle(path, accrt.Instance(host_code="all"))
    rms, number = (accrt.jax.function(bundle, name) for name in ("rms", "number"))
    assert accrt.jax.function(bundle, "number")._number == number._number
if how == "export":
    made = export.export(jax.jit(number), disabled_checks=[export.DisabledSafetyCheck.custom_call(_calls.TARGET)])
    open(kept, "wb").write(made(jnp.float32(0)).serialize())
else:
    print(float(export.deserialize(open(kept, "rb").read()).call(jnp.float32(21))))
"""


def test_what_is_exported_runs_where_the_function_is(path, tmp_path):
    pytest.importorskip("flatbuffers", reason="JAX's export needs flatbuffers, which are not installed")
    made, with_it, without = (in_another_process(EXPORTED, tmp_path / "number.bin", how, path) for how in ("export", "with", "without"))
    assert not made.returncode, made.stderr
    assert with_it.stdout == "42.0\n", with_it.stderr
    assert without.returncode and "the function is not there in this process" in without.stderr


AT_EXIT = """
import sys, jax, accrt, accrt.jax
from jax import numpy as jnp
f = jax.jit(accrt.jax.function(accrt.Bundle(sys.argv[1], accrt.Instance(host_code="all")), "silu_mul"))
x = jnp.ones((60000, 512))
jax.block_until_ready(f(x, x))
made = [f(x, x + one) for one in range(5)]
print("ends")
"""


def test_a_function_is_copied_and_not_pickled(rms):
    assert copy.copy(rms) is rms and copy.deepcopy({"f": rms})["f"] is rms
    with pytest.raises(TypeError, match="^a Function is a handle of this process: it can be neither copied nor pickled; another process makes its own$"):
        pickle.dumps(rms)


def test_the_process_ends_during_calls(path):
    done = in_another_process(AT_EXIT, path)
    assert done.returncode == 0 and done.stdout == "ends\n", done


def test_without_the_c_part(path):
    text = "import accrt.jax\ntry:\n    accrt.jax.function(__import__('sys').argv[1], 'rms')\nexcept ImportError as error:\n    print(error)"
    ran = subprocess.run([sys.executable, "-c", text, path], env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "ACCRT_NATIVE": "0"}, capture_output=True,
                         text=True, timeout=100, check=False)  # fmt: skip
    assert "accrt.jax needs accrt._native" in ran.stdout, ran.stderr


def test_the_guide_runs(tmp_path):
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/jax.md").read_text(), re.M | re.S)).replace("/tmp/", f"{tmp_path}/")
    done = in_another_process(code)
    assert done.returncode == 0 and done.stdout == "(2, 5, 16)\n", done.stderr


# ---- Declarations

#: Ours, XLA's, and members by both names.
STRUCTS = """
extension Extension_Base struct_size type next
version Api_Version struct_size extensions=extension_start major=major_version minor=minor_version
error_args Error_Create_Args struct_size extensions=extension_start message code=errc
error_destroy_args Error_Destroy_Args struct_size extensions=extension_start error
stream_args Stream_Get_Args struct_size extensions=extension_start context=ctx stream
ordinal_args DeviceOrdinal_Get_Args struct_size extensions=extension_start context=ctx ordinal=device_ordinal
buffer Buffer struct_size extensions=extension_start type=dtype data rank dims
array Array type=dtype count=size data
values Args struct_size extensions=extension_start count=size kinds=types values=args
values Rets struct_size extensions=extension_start count=size kinds=types values=rets
attributes Attrs struct_size extensions=extension_start count=size kinds=types names values=attrs
frame CallFrame struct_size extensions=extension_start api context=ctx stage arguments=args results=rets attributes=attrs
metadata Metadata struct_size version=api_version
metadata_extension Metadata_Extension base=extension_base metadata
api Api struct_size extensions=extension_start version=api_version error_create=XLA_FFI_Error_Create error_destroy=XLA_FFI_Error_Destroy
"""
#: Newer than the oldest jaxlib.
GROWN = {"frame", "metadata", "api"}
NUMBERS = """
XLA_MAJOR API_MAJOR|XLA_EXTENSION_METADATA Extension_Metadata|XLA_STAGE_EXECUTE ExecutionStage_EXECUTE|XLA_BUFFER ArgType_BUFFER|XLA_BUFFER RetType_BUFFER
XLA_ATTR_ARRAY AttrType_ARRAY|XLA_CANCELLED Error_Code_CANCELLED|XLA_INVALID_ARGUMENT Error_Code_INVALID_ARGUMENT|XLA_NOT_FOUND Error_Code_NOT_FOUND
XLA_PERMISSION_DENIED Error_Code_PERMISSION_DENIED|XLA_RESOURCE_EXHAUSTED Error_Code_RESOURCE_EXHAUSTED|XLA_INTERNAL Error_Code_INTERNAL
XLA_FAILED_PRECONDITION Error_Code_FAILED_PRECONDITION|XLA_UNIMPLEMENTED Error_Code_UNIMPLEMENTED
"""


def compiled_against_jaxlib(lines, tmp_path):
    source = tmp_path / "layout.c"
    source.write_text('#include "xla/ffi/api/c_api.h"\n#include "python/native/xla_functions.h"\n' + "\n".join(lines) + "\n")
    return subprocess.run(["cc", "-std=c11", "-fsyntax-only", f"-I{ROOT}", "-isystem", jax.ffi.include_dir(), source], capture_output=True, text=True, check=False)


def test_declarations_are_those_of_the_installed_jaxlib(tmp_path):
    header = pathlib.Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    lines = []
    for ours, theirs, *members in (line.split() for line in STRUCTS.split("\n") if line):
        if f"XLA_FFI_{theirs} " not in header:
            continue
        if ours not in GROWN:
            lines.append(f"_Static_assert(sizeof(xla_{ours}_t) == sizeof(struct XLA_FFI_{theirs}), \"size\");")
        for own, other in (member.split("=") if "=" in member else (member, member) for member in members):
            lines.append(f"_Static_assert(offsetof(xla_{ours}_t, {own}) == offsetof(struct XLA_FFI_{theirs}, {other}), \"{ours}.{own}\");")
            lines.append(f"_Static_assert(sizeof(((xla_{ours}_t*)0)->{own}) == sizeof(((struct XLA_FFI_{theirs}*)0)->{other}), \"{ours}.{own}\");")
    for member, function in (("stream_get", "Stream_Get"), ("ordinal_get", "DeviceOrdinal_Get")):
        if f"FIELD(XLA_FFI_{function})" in header:
            lines.append(f"_Static_assert(offsetof(xla_api_t, {member}) == offsetof(struct XLA_FFI_Api, XLA_FFI_{function}), \"{member}\");")
    for line in NUMBERS.strip().replace("\n", "|").split("|"):
        own, other = line.split()
        lines.append(f"_Static_assert((int){own} == (int)XLA_FFI_{other}, \"{own}\");")
    types = re.findall(r"X\((\w+), (\d+), \w+\)", (NATIVE / "xla_functions.h").read_text())
    assert len(types) == 16
    lines += [f"_Static_assert({number} == (int)XLA_FFI_DataType_{name}, \"{name}\");" for name, number in types if f"DataType_{name} " in header]
    assert len(lines) > 120
    done = compiled_against_jaxlib(lines, tmp_path)
    assert done.returncode == 0, done.stderr
    wrong = compiled_against_jaxlib(["_Static_assert(offsetof(xla_buffer_t, data) == offsetof(struct XLA_FFI_Buffer, rank), \"shown\");"], tmp_path)
    assert "shown" in wrong.stderr  # the check can fail
