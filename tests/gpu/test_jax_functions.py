"""accrt.jax on a GPU: a bundle's functions under jax.jit, jax.vmap and jax.grad, on XLA's streams.
tests/python/test_jax.py has the rest, on the host. Needs a GPU and JAX with CUDA; the bundle is
made where nvcc is (prebuild.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others use the GPU, too

import accrt  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Module  # noqa: E402

try:
    import jax
    from jax import numpy as jnp
except ImportError:
    jax = None

SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261128"))


def why_not():
    if jax is None:
        return "JAX is not installed"
    try:
        return "" if jax.devices("cuda") else "JAX has no GPU"
    except RuntimeError as error:
        return str(error).partition("\n")[0]


WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")


def module():
    m = Module("jaxed")
    n, k = m.symbol("n", maximum=1 << 20), m.symbol("k", minimum=1, maximum=1 << 12)
    length = m.symbol("length", maximum=1 << 20)
    f = m.function("rms")
    x, w = f.input("x", "f32", [n, 16]), f.input("w", "f32", [16])
    scale = ((x * x).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
    f.result("y", x * scale * w)
    f.result("scale", scale)
    g = m.function("rms_backward")
    dy, x, w = g.input("grad_y", "f32", [n, 16]), g.input("x", "f32", [n, 16]), g.input("w", "f32", [16])
    scale = g.input("scale", "f32", [n, 1])
    unit = x * scale
    inner = (dy * w * unit).sum(-1, keepdim=True) * (1 / 16)
    g.result("grad_x", (dy * w - unit * inner) * scale)
    g.result("grad_w", (dy * unit).sum(0))
    f = m.function("silu_mul")
    x, y = f.input("x", "bf16", [n, k]), f.input("y", "bf16", [n, k])
    f.result("z", x.silu() * y)
    f = m.function("add")
    x, by = f.input("x", "f32", [n, 8], access="read_write"), f.input("by", "f32", [8])
    (x + by).write_input("x")
    f = m.function("take")
    x = f.input("x", "f32", [n, 8])
    f.scalar("count", length)
    f.result("y", x[:length])
    return m


@pytest.fixture(scope="module")
def bundle():
    why = test_ops.reason("jaxed")
    if why:
        pytest.skip(why)
    return accrt.Bundle(test_ops.built("jaxed", module()), accrt.default_instance("all"))


@pytest.fixture(scope="module")
def rms(bundle):
    import accrt.jax
    return accrt.jax.function(bundle, "rms", backward="rms_backward", rows="n")


def random(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(SEED + seed).standard_normal(shape), jnp.float32)


def in_jax(x, w):
    scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * scale * w, scale


def exact(x, w):
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * scale * w, scale


def agree(found, wanted, rtol=1e-5, atol=1e-5):
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("rows", (0, 1, 5, 70001))
@pytest.mark.parametrize("compiled", (False, True))
def test_values(rms, rows, compiled):
    x, w = random(rows, 16), random(16, seed=2)
    y, scale = (jax.jit(rms) if compiled else rms)(x, w)
    assert y.devices() == x.devices()
    agree((y, scale), exact(x, w))


def test_inside_of_other_work(rms):
    """What comes before it and after it is XLA's, on XLA's stream. The chain enlarges roundings, in
    one column of 16 to some 0.005: so ours and JAX's own are both held against f64."""
    w = random(16, seed=2)

    def chain(f, library):
        def run(x, w):
            for _ in range(6):
                x = library.sin(f(library.cos(x) * 2, w)[0]) + x
            return x
        return run

    ours, theirs = jax.jit(chain(rms, jnp)), jax.jit(chain(in_jax, jnp))
    for seed in range(5):
        x = random(4000, 16, seed=seed)
        wanted = chain(exact, np)(np.asarray(x, np.float64), w)
        away = [np.abs(np.asarray(f(x, w), np.float64) - wanted) for f in (ours, theirs)]
        assert away[0].mean() < 2 * away[1].mean() < 1e-4 and away[0].max() < 10 * away[1].max() + 1e-5


def test_gradients(rms):
    x, w = random(7, 16), random(16, seed=2)

    def loss(f):
        return lambda *given: jnp.sum(jnp.sin(f(*given)[0]))

    wanted = jax.grad(loss(in_jax), (0, 1))(x, w)
    agree(jax.grad(loss(rms), (0, 1))(x, w), wanted, 1e-4, 1e-4)
    agree(jax.jit(jax.grad(loss(rms), (0, 1)))(x, w), wanted, 1e-4, 1e-4)


def test_vmap(rms):
    x, w = random(3, 5, 16), random(16, seed=2)
    agree(jax.jit(jax.vmap(rms, (0, None)))(x, w), exact(x, w))
    agree(jax.vmap(rms, (None, 0))(x[0], random(4, 16)), jax.vmap(in_jax, (None, 0))(x[0], random(4, 16)))


def test_bfloat16(bundle):
    import accrt.jax
    x, y = (random(33, 7, seed=s).astype(jnp.bfloat16) for s in (1, 2))
    z = jax.jit(accrt.jax.function(bundle, "silu_mul"))(x, y)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    agree(z, x / (1 + np.exp(-x)) * y, 2e-2, 2e-2)


def test_what_is_written_comes_back(bundle):
    import accrt.jax
    x, by = random(40, 8), random(8, seed=2)
    kept = np.array(x)
    agree(jax.jit(accrt.jax.function(bundle, "add"))(x, by), kept + np.asarray(by))
    assert np.array_equal(x, kept)
    agree(jax.jit(accrt.jax.function(bundle, "take"), static_argnames="count")(x, count=3), kept[:3])


def test_in_a_scan(rms):
    x, w = random(4, 16), random(16, seed=2)

    def run(f):
        return jax.jit(lambda x: jax.lax.scan(lambda carry, _: (f(carry, w)[0], carry.sum()), x, None, length=50))(x)

    agree(run(rms), run(in_jax), 1e-3, 1e-3)


def test_threads(rms):
    f, w, wrong = jax.jit(rms), random(16, seed=2), []

    def work(seed):
        for turn in range(20):
            x = random(50 + seed, 16, seed=seed * 100 + turn)
            if not np.allclose(np.asarray(f(x, w)[0]), exact(x, w)[0], 1e-4, 1e-4):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_an_array_is_an_argument_of_a_plain_call(bundle):
    """Through DLPack, with nothing of accrt.jax's."""
    session = accrt.Program(bundle, accrt.default_instance("all").device("cuda:0")).session()
    x, w = random(30, 16), random(16, seed=2)
    agree([np.asarray(v) for v in session.rms(x, w)], exact(x, w))


def test_errors_are_jaxs(bundle):
    import accrt.jax
    take = accrt.jax.function(bundle, "take")
    with pytest.raises(Exception, match="count|length|slice|size|9") as told:
        jax.block_until_ready(take(random(4, 8), 9))
    assert told.value is not None
    agree(take(random(4, 8), 2), np.asarray(random(4, 8))[:2])


EXPORTED = """
import sys
import jax, accrt, accrt.jax
import numpy as np
from jax import export, numpy as jnp
from accrt.jax import _calls

path, kept, how = sys.argv[1:]
_calls.register()
rng = np.random.default_rng(7)
x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 16), (16,)))
if how != "without":
    rms = accrt.jax.function(accrt.Bundle(path, accrt.default_instance("all")), "rms", backward="rms_backward", rows="n")
if how == "export":
    checks = [export.DisabledSafetyCheck.custom_call(_calls.TARGET)]
    made = export.export(jax.jit(lambda x, w: rms(x, w)[0]), platforms=["cuda"], disabled_checks=checks)(x, w)
    open(kept, "wb").write(made.serialize(vjp_order=1))
    sys.exit()
made = export.deserialize(open(kept, "rb").read())
y, back = jax.vjp(made.call, jnp.asarray(x), jnp.asarray(w))
np.savez(kept + ".npz", x=x, w=w, y=y, **dict(zip(("grad_x", "grad_w"), back(jnp.ones_like(y)))))
print(next(iter(y.devices())).platform)
"""


def test_what_is_exported_runs_in_another_process(bundle, tmp_path):
    """With its backward; and not where the function is not there."""
    pytest.importorskip("flatbuffers", reason="JAX's export needs flatbuffers, which are not installed")
    kept, path = str(tmp_path / "rms.bin"), tmp_path / "jaxed.accx"
    made = test_ops.built("jaxed", module())
    path.write_bytes(made if isinstance(made, bytes) else open(made, "rb").read())

    def run(how):
        return subprocess.run([sys.executable, "-c", EXPORTED, str(path), kept, how], capture_output=True, text=True, timeout=300,
                              check=False)  # fmt: skip

    made = run("export")
    assert not made.returncode, made.stderr
    called = run("with")
    assert called.stdout == "gpu\n", called.stderr
    with np.load(kept + ".npz") as found:
        x, w = found["x"], found["w"]
        agree(found["y"], exact(x, w)[0])
        wanted = jax.vjp(lambda *given: in_jax(*given)[0], jnp.asarray(x), jnp.asarray(w))[1](jnp.ones((5, 16)))
        agree((found["grad_x"], found["grad_w"]), wanted, 1e-4, 1e-4)
    without = run("without")
    assert without.returncode and "the function is not there in this process" in without.stderr
