"""What holds whatever the caller does, on a GPU: limits and cancels while kernels run, work in
flight that outlives its arrays (torch's, CuPy's, numpy's and JAX's), offsets that leave their
dimension. tests/python has the same on hosts."""

from __future__ import annotations

import gc
import os
import random
import sys
import time

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import test_ops  # noqa: E402
from accrt.compiler import Module, SymbolClass  # noqa: E402

SIZE, TIMES = 512, 600
SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261122"))


def module():
    m = Module("safe")
    k = m.symbol("k", SymbolClass.RUNTIME, maximum=8)
    f = m.function("part")
    x = f.input("x", "f32", [4, 4])
    f.scalar("k", k)
    f.result("y", x[:2, k : k + 2] * 1.0)

    capacity = m.symbol("capacity", SymbolClass.SESSION, minimum=2, maximum=8)
    state = m.state("cache", "f32", [2, capacity, 2])
    f = m.function("write")
    v = f.input("v", "f32", [1, 1, 2])
    position = m.symbol("position", SymbolClass.RUNTIME, maximum=30)
    f.scalar("position", position)
    (v * 2.0).state_write(state, [0, position, 0])
    f.result("all", f.state_read(state) * 1.0)

    # Products with the identity: many milliseconds, after which the values are what they were.
    f = m.function("slow")
    same = m.constant("same", np.eye(SIZE, dtype=np.float32))
    x = f.input("x", "f32", [SIZE, SIZE])
    f.result("y", f.repeat(TIMES, [x], lambda i, y: y.linear(same))[0] + 1.0)
    return m


@pytest.fixture(scope="module")
def program():
    why = test_ops.reason("safe")
    if why:
        pytest.skip(why)
    import accrt

    instance = accrt.default_instance("all")
    return accrt.Bundle(test_ops.built("safe", module()), instance).program(instance.device("cuda:0"))


def session(program):
    return program.session({"capacity": 5})


# ---- Dimensions ----------------------------------------------------------------------------------


def test_slices_stay_in_their_dimension(program):
    import accrt

    s, x = session(program), np.arange(16, dtype=np.float32).reshape(4, 4)
    for k in (2, 3, 1, 4, 0, 8, 2):
        if k <= 2:
            assert np.asarray(s.part(x, k)).tolist() == x[:2, k : k + 2].tolist()
        else:
            with pytest.raises(accrt.Error, match=f"dimension 1 of .*2 elements from {k} on do not fit in 4"):
                s.part(x, k)


def test_state_writes_stay_in_their_dimension(program):
    import accrt

    s, content = session(program), np.zeros((2, 5, 2), np.float32)
    for position in range(9):
        v = np.full((1, 1, 2), position + 1, np.float32)
        if position < 5:
            content[0, position] = 2 * (position + 1)
            assert np.array_equal(np.asarray(s.write(v, position)), content)
        else:
            with pytest.raises(accrt.Error, match=f"'cache', dimension 1 .*from {position} on do not fit in 5"):
                s.write(v, position)
    assert np.array_equal(np.asarray(s.state("cache")), content)


# ---- Limits and cancels --------------------------------------------------------------------------


def on_device(s, value):
    """An argument that lies there already: enqueuing it copies nothing."""
    return s.slow(np.full((SIZE, SIZE), value - 1, np.float32))


def busy(s, x, calls=60):
    """Work of a second or so, enqueued; its last call."""
    for _ in range(calls):
        call = s.slow.bind(x)
        call.submit()
    return call


def test_waits_end_at_their_limit(program):
    s = session(program)
    x, host = on_device(s, 1), np.ones((SIZE, SIZE), np.float32)
    busy(s, x, 2).wait()
    call = busy(s, x)
    for limit in (0.001, 0.01):
        start = time.perf_counter()
        with pytest.raises(TimeoutError):
            call.wait(limit)
        assert limit <= time.perf_counter() - start < limit + 0.5
    with pytest.raises(TimeoutError):
        s.stream.synchronize(timeout=0.001)
    call.wait()
    assert np.array_equal(np.asarray(call.results()), host + 1)


def test_a_run_with_a_limit_goes_on(program):
    s = session(program)
    x, host = on_device(s, 1), np.ones((SIZE, SIZE), np.float32)
    busy(s, x, 2).wait()
    busy(s, x)
    call = s.slow.bind(2 * host)
    with pytest.raises(TimeoutError):
        call.run(timeout=0.002)
    call.wait()
    assert np.array_equal(np.asarray(call.results()), 2 * host + 1)


def test_work_is_cancelled(program):
    import accrt

    s = session(program)
    x, host = on_device(s, 1), np.ones((SIZE, SIZE), np.float32)
    busy(s, x, 2).wait()
    start = time.perf_counter()
    busy(s, x, 3).wait()
    one_s = (time.perf_counter() - start) / 3
    busy(s, x, 100)
    s.stream.cancel()
    start = time.perf_counter()
    with pytest.raises(accrt.CancelledError):
        s.stream.synchronize(timeout=60)
    s.reset()
    print(f"cancelled 100 calls of {1e3 * one_s:.2f} ms: over after {1e3 * (time.perf_counter() - start):.1f} ms")
    assert np.array_equal(np.asarray(s.slow(3 * host)), 3 * host + 1)


# ---- Work in flight ------------------------------------------------------------------------------


class Numpy:
    def __init__(self):
        self.full = lambda value: np.full((SIZE, SIZE), value, np.float32)


class Torch:
    def __init__(self):
        torch = pytest.importorskip("torch", reason="no torch")
        if not torch.cuda.is_available():
            pytest.skip("torch has no CUDA")
        self.full = lambda value: torch.full((SIZE, SIZE), float(value), device="cuda")


class Cupy:
    def __init__(self):
        cupy = pytest.importorskip("cupy", reason="no CuPy")
        self.full = lambda value: cupy.full((SIZE, SIZE), value, cupy.float32)


class Jax:
    def __init__(self):
        pytest.importorskip("jax", reason="no JAX")
        import jax
        import jax.numpy as jnp

        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU")
        self.full = lambda value: jnp.full((SIZE, SIZE), float(value), jnp.float32).block_until_ready()


@pytest.mark.parametrize("peer", [Numpy, Torch, Cupy, Jax], ids=["numpy", "torch", "cupy", "jax"])
def test_arrays_may_go_while_work_is_in_flight(program, peer):
    peer, choose = peer(), random.Random(SEED)
    print("seed", SEED)
    sessions = [session(program) for _ in range(3)]
    waiting = []
    for i in range(60):
        s = choose.choice(sessions)
        x = peer.full(i)
        call = s.slow.bind(x)
        call.submit()
        if choose.random() < 0.5:
            waiting.append((call.results(), i))
        del x, call
        if choose.random() < 0.3:
            gc.collect()
        junk = [peer.full(-1) for _ in range(choose.randrange(3))]
        del junk
    for s in sessions:
        s.stream.synchronize(timeout=120)
    assert waiting
    for result, i in waiting:
        assert np.array_equal(np.asarray(result.numpy()) if hasattr(result, "numpy") else np.asarray(result), np.full((SIZE, SIZE), i + 1, np.float32))


def test_results_outlive_their_session_and_go_to_jax_and_torch(program):
    jax = Jax()
    import jax.numpy as jnp

    s = session(program)
    result = s.slow(jax.full(5))
    joined = jnp.from_dlpack(result)
    del result, s
    gc.collect()
    again = session(program)
    for i in range(5):
        again.slow(jax.full(i))
    assert (np.asarray(joined) == 6).all()
    torch = pytest.importorskip("torch", reason="no torch")
    result = again.slow(torch.full((SIZE, SIZE), 8.0, device="cuda"))
    joined = torch.from_dlpack(result)
    del result, again
    gc.collect()
    assert bool((joined == 9).all())
