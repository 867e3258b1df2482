"""accrt.torch on CUDA tensors: operators on torch's streams, in captured graphs, compiled,
differentiated; modules; the backend. Needs a GPU and torch with CUDA; bundles are made where nvcc
is (prebuild.py)."""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import accrt  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Module  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

WHY_NOT = "torch is not installed" if torch is None else "" if torch.cuda.is_available() else "torch has no CUDA"
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")

SPACE = "accrt_gpu"
WIDTH = 256
DTYPES = ("f32", "f64", "bf16")


def module():
    m = Module("torch_operator")
    n, k = m.symbol("n", maximum=1 << 20), m.symbol("k", minimum=1, maximum=1 << 14)
    length = m.symbol("length", maximum=1 << 20)
    for dtype in DTYPES:
        f = m.function(f"rms_{dtype}")
        x, w = f.input("x", dtype, [n, 16]), f.input("w", dtype, [16])
        wide = x.to_copy("f64" if dtype == "f64" else "f32")
        scale = ((wide * wide).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
        f.result("y", (wide * scale).to_copy(dtype) * w)
        f.result("scale", scale)
        if dtype == "bf16":
            continue
        g = m.function(f"rms_{dtype}_backward")
        dy, x, w = g.input("grad_y", dtype, [n, 16]), g.input("x", dtype, [n, 16]), g.input("w", dtype, [16])
        scale = g.input("scale", dtype, [n, 1])
        unit = x * scale
        inner = (dy * w * unit).sum(-1, keepdim=True) * (1 / 16)
        g.result("grad_x", (dy * w - unit * inner) * scale)
        g.result("grad_w", (dy * unit).sum(0))
    f = m.function("silu_mul")
    x, y = f.input("x", "f32", [n, k]), f.input("y", "f32", [n, k])
    f.result("z", x.silu() * y)
    f = m.function("two")
    x = f.input("x", "f32", [n, 8])
    f.result("a", x + 1.0)
    f.result("b", f.cat([x, x], 0))
    f = m.function("add_one")
    x, by = f.input("x", "f32", [n, 8], access="read_write"), f.input("by", "f32", [8])
    (x + by).write_input("x")
    f = m.function("take")
    x = f.input("x", "f32", [n, 8])
    f.scalar("count", length)
    f.result("y", x[:length])
    f = m.function("given")
    f.result("y", f.input("x", "f32", [n, 8], access="donated") * 3.0)
    f = m.function("products")  # several kernels, with memory of the session's between them
    a, b = f.input("a", "f32", [n, WIDTH]), f.input("b", "f32", [WIDTH, WIDTH])
    f.result("y", ((a @ b).softmax(-1) @ b).softmax(-1) @ b)
    return m


def trained_module():
    m = Module("torch_trained")
    n = m.symbol("n", maximum=64)
    w = m.constant("proj.weight", np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
    f = m.function("forward")
    f.result("y", f.input("x", "f32", [n, 8]).linear(w) * f.input("scale", "f32", [4]))
    g = m.function("forward_backward")
    dy, x, scale = g.input("grad_y", "f32", [n, 4]), g.input("x", "f32", [n, 8]), g.input("scale", "f32", [4])
    g.result("grad_x", (dy * scale) @ g.constant(w))
    g.result("grad_proj.weight", (dy * scale).t() @ x)
    g.result("grad_scale", (dy * x.linear(w)).sum(0))
    return m


def bundle_of(name, build):
    why = test_ops.reason(name)
    if why:
        pytest.skip(why)
    return accrt.Bundle(test_ops.built(name, build()), accrt.default_instance("all"))


@pytest.fixture(scope="module")
def operators():
    import accrt.torch

    bundle = bundle_of("torch_operator", module)
    make = {"rms_f32": "rms_f32_backward", "rms_f64": "rms_f64_backward"}
    names = ("rms_f32", "rms_f64", "rms_bf16", "silu_mul", "two", "add_one", "take", "given", "products")
    return {name: accrt.torch.operator(bundle, name, backward=make.get(name), name=f"{SPACE}::{name}") for name in names}


@pytest.fixture(scope="module")
def trained():
    return bundle_of("torch_trained", trained_module)


def rms(x, w):
    return torch.nn.functional.rms_norm(x, (16,), w, 1e-5)


def arguments(dtype=None, rows=5, grad=True):
    torch.manual_seed(rows)
    return [torch.randn(*shape, dtype=dtype or torch.float32, device="cuda").requires_grad_(grad) for shape in ((rows, 16), (16,))]


def products(a, b):
    return ((a @ b).softmax(-1) @ b).softmax(-1) @ b


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


# ---- Eager ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", (0, 1, 5, 70001))
def test_forward_and_backward_beside_torch(operators, rows):
    ours, theirs = arguments(rows=rows), arguments(rows=rows)
    y, wanted = operators["rms_f32"](*ours)[0], rms(*theirs)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    given = torch.randn(rows, 16, device="cuda")
    y.backward(given)
    wanted.backward(given)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=2e-3)


def test_gradcheck(operators):
    assert torch.autograd.gradcheck(lambda *a: operators["rms_f64"](*a)[0], arguments(torch.float64, 3))


def test_bfloat16(operators):
    x, w = (a.detach().bfloat16() for a in arguments(rows=300))
    torch.testing.assert_close(operators["rms_bf16"](x, w)[0], rms(x.float(), w.float()).bfloat16(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ("rms_f32", "rms_f64", "silu_mul", "two", "add_one", "take", "given", "products"))
def test_opcheck(operators, name):
    eight, seven = torch.ones(3, 8, device="cuda"), torch.ones(3, 7, device="cuda")
    samples = {"rms_f32": arguments(), "rms_f64": arguments(torch.float64), "silu_mul": (seven, seven), "two": (eight,),
               "add_one": (eight, torch.ones(8, device="cuda")), "take": (eight, 2), "given": (eight,),
               "products": (torch.ones(3, WIDTH, device="cuda"), torch.eye(WIDTH, device="cuda"))}
    found = torch.library.opcheck(operators[name], samples[name])
    assert set(found.values()) == {"SUCCESS"}


def test_strides_offsets_and_shapes(operators):
    op, base = operators["silu_mul"], torch.randn(9, 33, device="cuda")
    odd = torch.randn(40, device="cuda")[3:12].view(3, 3)  # misaligned
    for x in (base[1:, 1:], base.T, base[:, ::2], base[::3], base[:0], torch.randn(1, 33, device="cuda").expand(9, 33), odd):
        y = torch.randn(*x.shape, device="cuda")
        close(op(x, y), torch.nn.functional.silu(x) * y)


def test_copies_are_made_on_the_quick_way(operators, monkeypatch):
    """A call with a tensor that is not contiguous, misaligned or negated is one step, once its
    shapes are known."""
    from accrt.torch import _operator

    op, base = operators["silu_mul"], torch.randn(9, 33, device="cuda")
    x, y = torch.randn(9, 33, device="cuda"), torch.randn(9, 33, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            op(x, y)
        op(base.T.contiguous().T, y)
        monkeypatch.setattr(_operator.Operator, "_outputs", lambda *given: pytest.fail("it was done in many steps"))
        for other in (base.T.contiguous().T, torch.randn(9 * 33 + 1, device="cuda")[1:].view(9, 33), torch._neg_view(base), torch.randn(9, 66, device="cuda")[:, ::2]):
            close(op(other, y), torch.nn.functional.silu(other) * y)
            close(op(y, other), torch.nn.functional.silu(y) * other)


def test_parameters_and_scalars(operators):
    w = torch.nn.Parameter(torch.rand(16, device="cuda"))
    x = torch.randn(4, 16, device="cuda")
    for _ in range(3):
        close(operators["rms_f32"](x, w)[0], rms(x, w))
    y = torch.arange(40.0, device="cuda").view(5, 8)
    assert all(torch.equal(operators["take"](y, count), y[:count]) for count in (3, 5, 1, 0))
    with pytest.raises(accrt.OutOfRangeError):
        operators["take"](y, 9)
    assert torch.equal(operators["take"](y, 2), y[:2])


def test_mutation_in_place(operators):
    for x in (torch.zeros(3, 8, device="cuda"), torch.zeros(8, 3, device="cuda").T, torch.zeros(4, 9, device="cuda")[1:, 1:]):
        version = x._version
        assert operators["add_one"](x, torch.ones(8, device="cuda")) is None
        assert (x == 1).all() and x._version > version
    given = torch.ones(3, 8, device="cuda")
    assert (operators["given"](given) == 3).all() and (given == 1).all()


def test_wrong_tensors_are_one_clear_line(operators):
    x, w = (a.detach() for a in arguments())
    op = operators["rms_f32"]
    op(x, w)
    for wrong, error, text in (((x.double(), w), TypeError, r"x is of torch.float64, and f32\[n, 16\] is needed"),
                               ((x[:, :8], w), ValueError, "dimension 1 of x is 8"),
                               ((x, w.cpu()), ValueError, "w is a torch.strided tensor on cpu, and one on cuda:0 is needed"),
                               ((x.cpu(), w), ValueError, "x is a torch.strided tensor on cpu, and one on cuda:0 is needed")):
        with pytest.raises(error, match=text) as told:
            op(*wrong)
        assert "\n" not in str(told.value)
    close(op(x, w)[0], rms(x, w))


def test_autocast_and_vmap(operators):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert operators["silu_mul"](torch.ones(2, 4, device="cuda").bfloat16(), torch.ones(2, 4, device="cuda")).dtype == torch.float32
    x, y = torch.randn(3, 5, 7, device="cuda"), torch.randn(5, 7, device="cuda")
    close(torch.vmap(operators["silu_mul"], in_dims=(0, None))(x, y), torch.nn.functional.silu(x) * y)


# ---- Streams and memory --------------------------------------------------------------------------


def sleep():
    torch.cuda._sleep(20_000_000)  # some 10 ms on the current stream


def test_nobody_waits(operators):
    """A call returns while the device is busy with what came before it."""
    x, y = torch.randn(1000, 64, device="cuda"), torch.randn(1000, 64, device="cuda")
    operators["silu_mul"](x, y)
    torch.cuda.synchronize()
    before = torch.cuda.Event()
    sleep()
    before.record()
    found = [operators["silu_mul"](x, y) for _ in range(10)]
    assert not before.query()
    torch.cuda.synchronize()
    assert all(torch.equal(z, found[0]) for z in found)


def test_a_producer_on_a_side_stream_and_a_consumer_on_another(operators):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = torch.randn(500, WIDTH, device="cuda"), torch.randn(WIDTH, WIDTH, device="cuda") / 16
    wanted = products(a * 2, b) + 1
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(first):
            sleep()
            late = a * 2
            y = operators["products"](late, b)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            z = y + 1
        y.record_stream(second)
        torch.cuda.current_stream().wait_stream(second)
        close(z, wanted)
        z.record_stream(torch.cuda.current_stream())


def test_memory_that_is_freed_at_once_is_not_used_early(operators):
    """torch gives what was freed to later work of the stream: it must not come before the
    operator's."""
    b = torch.randn(WIDTH, WIDTH, device="cuda") / 16
    wanted = [products(torch.full((300, WIDTH), float(i), device="cuda"), b) for i in range(20)]
    found = []
    sleep()
    for i in range(20):
        a = torch.full((300, WIDTH), float(i), device="cuda")
        found.append(operators["products"](a, b))
        del a
        torch.full((300, WIDTH), float("nan"), device="cuda")
    for have, want in zip(found, wanted):
        close(have, want)


def test_sessions_of_two_streams_share_no_memory(operators):
    b = torch.randn(WIDTH, WIDTH, device="cuda") / 16
    inputs = [torch.randn(2000, WIDTH, device="cuda") for _ in range(4)]
    wanted = [products(a, b) for a in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(10):
        found = []
        for stream, a in zip(streams, inputs):
            with torch.cuda.stream(stream):
                found.append(operators["products"](a, b))
        torch.cuda.synchronize()
        for have, want in zip(found, wanted):
            close(have, want)


def test_from_many_threads(operators):
    b = torch.randn(WIDTH, WIDTH, device="cuda") / 16
    right = {}

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.current_stream()):
            a = torch.full((50, WIDTH), float(seed), device="cuda")
            for _ in range(50):
                y = operators["products"](a, b)
            right[seed] = torch.allclose(y, products(a, b), rtol=1e-3, atol=1e-4)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == dict.fromkeys(range(4), True)


def test_other_gpus_of_the_machine(operators):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x = torch.randn(5, 7, device="cuda:1")
    close(operators["silu_mul"](x, x), torch.nn.functional.silu(x) * x)


def test_kernels_in_c_take_what_was_seen(operators, monkeypatch):
    """On each stream, and not in a captured graph: those calls are Python's."""
    from accrt.torch import _operator, _shim

    if not _shim._found():
        pytest.skip("accrt._native or torch's C functions are not there")
    x = torch.randn(5, 8, device="cuda")
    operators["two"](x)
    in_python, run = [], _operator._registered[f"{SPACE}::two"]
    assert run._kernels._gpu is not None

    class Counted:
        def __call__(self, *given):
            in_python.append(given)
            return NotImplemented

        def learn(self, *given):
            pass

    monkeypatch.setattr(run, "_quick", Counted())

    def right():
        a, b = operators["two"](x)
        assert torch.equal(a, x + 1) and torch.equal(b, torch.cat([x, x]))

    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            right()
            in_python.clear()
            for _ in range(10):
                right()
        assert not in_python
        torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a, _b = operators["two"](x)
    assert len(in_python) == 1
    x.fill_(3)
    graph.replay()
    assert (a == 4).all()
    right()
    assert len(in_python) == 1


def test_direct_calls(operators):
    """Plain calls leave torch's dispatcher out; all others are what they were."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from accrt.torch import _operator, _shim

    if not _shim._knows_the_dispatcher():
        pytest.skip("something of torch's is not there")
    op, shim = operators["silu_mul"], _operator._registered[f"{SPACE}::silu_mul"]._kernels._gpu
    made, maker = [], _shim._maker("cuda")
    shim.make_with(lambda *given: (made.append(given), maker(*given))[1])
    x = torch.randn(5, 8, device="cuda")
    right = torch.nn.functional.silu(x) * x

    def is_direct(*given):
        before = len(made)
        found = op(*given)
        return len(made) > before, found

    for _ in range(3):
        op(x, x)
    was, found = is_direct(x, x)
    close(found, right)
    assert was and not found.requires_grad and found.device == x.device
    wanted = x.clone().requires_grad_()
    with torch.no_grad():
        assert is_direct(wanted, x)[0]
    with torch.inference_mode():
        was, found = is_direct(wanted, x)
        assert was and found.is_inference()
    was, found = is_direct(wanted, x)
    assert not was and found.requires_grad
    with pytest.raises(RuntimeError, match="silu_mul.* has no backward"):
        found.sum().backward()

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for mode in (Dispatch(), FakeTensorMode(allow_non_fake_inputs=True), torch.profiler.profile()):
        with mode:
            was, found = is_direct(x, x)
        assert not was and found.shape == x.shape
    with torch.autocast("cuda", dtype=torch.bfloat16):
        close(op(x, x), right)
        torch.testing.assert_close(op(x.bfloat16(), x), right, rtol=2e-2, atol=2e-2)
    close(torch.vmap(op)(x[None], x[None])[0], right)
    for other in (x.T.contiguous().T, torch._neg_view(-x)):
        was, found = is_direct(other, other)
        assert not was
        close(found, right)
    for wrong in ((x, x.cpu()), (x.cpu(), x), (x.cpu(), x.cpu())):  # no code for processors
        with pytest.raises((RuntimeError, ValueError, accrt.Error)):
            op(*wrong)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    for given in ((freed, x), (x, freed)):
        with pytest.raises((RuntimeError, ValueError, accrt.Error)):
            op(*given)
    close(op(x, x), right)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            was, found = is_direct(x, x)
        assert was
    torch.cuda.current_stream().wait_stream(side)
    close(found, right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        was, found = is_direct(x, x)
    assert not was
    x.fill_(2)
    graph.replay()
    close(found, torch.nn.functional.silu(x) * x)
    compiled = torch.compile(lambda a: op(a + 1, a), fullgraph=True)
    for _ in range(3):
        close(compiled(x), torch.nn.functional.silu(x + 1) * x)
    assert is_direct(x, x)[0]
    for _ in range(3000):  # more than a stream takes at once, and memory that comes back at once
        found = op(found, x)
    assert found.shape == x.shape
    shim.make_with(maker, _shim._check)


@pytest.mark.parametrize("first", ("plain", "in inference mode", "parameters"))
def test_the_check_of_a_plain_call(operators, first):
    """torch's check of compiled code's arguments says yes to tensors on a GPU like the first ones.
    It is made again where it keeps failing, and what it refuses, and what has no strides, is what
    it was."""
    from accrt.torch import _operator, _shim

    if not _shim._knows_the_dispatcher() or _shim._check(torch.ones(2, device="cuda")) is None:
        pytest.skip("something of torch's is not there")
    op, shim, maker = operators["silu_mul"], _operator._registered[f"{SPACE}::silu_mul"]._kernels._gpu, _shim._maker("cuda")
    made, said = [], []

    def checker(*given):
        check = _shim._check(*given)
        made.append(check)
        return check and (lambda *others: (said.append(check(*others)), said[-1])[1])

    shim.make_with(maker, checker)
    try:
        rows = {"plain": 31, "in inference mode": 32, "parameters": 33}[first]
        x, y = torch.randn(rows, 8, device="cuda"), torch.randn(rows, 8, device="cuda")
        right = torch.nn.functional.silu(x) * y
        others = [torch.nn.Parameter(one, requires_grad=False) for one in (x, y)] if first == "parameters" else (x.clone(), y.clone())
        with torch.inference_mode(first == "in inference mode"):
            for _ in range(4):
                close(op(*others), right)
        for _ in range(30):
            close(op(x, y), right)
        assert len(said) >= 10 and all(said[-10:]), (made, said)
        for a, b in ((x.clone(), y), (torch.cat([x, x])[rows:], y)):
            close(op(a, b), right)
            assert said[-1] is True
        for a, b in ((torch._neg_view(-x), y), (x.T.contiguous().T, y), (x[:2], y[:2])):
            said.clear()
            close(op(a, b), torch.nn.functional.silu(a) * b)
            assert not said or said[0] is False
        for other in (x.to_sparse(), x.to_sparse_csr(), torch.nested.nested_tensor([x[0], x[1, :3]]), x.cpu(), x.double(), None):
            for given in ((other, y), (x, other), (other, other)):
                with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)):
                    op(*given)
            close(op(x, y), right)
        before = len(made)
        for _ in range(300):
            op(x, y)
            op(*others)
        assert len(made) - before <= 12
    finally:
        shim.make_with(maker, _shim._check)


# ---- Captured graphs -----------------------------------------------------------------------------


def test_captured_and_replayed(operators):
    a, b = torch.randn(300, WIDTH, device="cuda"), torch.randn(WIDTH, WIDTH, device="cuda") / 16
    x, w = (t.detach() for t in arguments(rows=40))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        operators["products"](a, b)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = operators["products"](a, b)
        z = operators["products"](y, b)
        n = operators["rms_f32"](x, w)[0]
        operators["add_one"](x.view(-1, 8), torch.ones(8, device="cuda"))
    for seed in range(4):
        torch.manual_seed(seed)
        a.copy_(torch.randn(300, WIDTH, device="cuda"))
        before = x.clone()
        graph.replay()
        # Eager calls meanwhile do not touch the graph's memory.
        other = operators["products"](a + 1, b)
        close(y, products(a, b))
        close(z, products(products(a, b), b))
        close(n, rms(before, w))
        assert torch.equal(x, before + 1)
        close(other, products(a + 1, b))


def test_captured_without_a_call_before(operators):
    import accrt.torch

    op = accrt.torch.operator(bundle_of("torch_operator", module), "products", name=f"{SPACE}::fresh")
    a, b = torch.randn(7, WIDTH, device="cuda"), torch.randn(WIDTH, WIDTH, device="cuda") / 16
    products(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(a, b)
    graph.replay()
    close(y, products(a, b))


def test_what_a_graph_had_is_given_back(operators):
    from accrt.torch import _cuda

    a, b = torch.randn(30, WIDTH, device="cuda"), torch.randn(WIDTH, WIDTH, device="cuda") / 16
    gc.collect()
    for _ in range(6):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = operators["products"](a, b)
        graph.replay()
        close(y, products(a, b))
        torch.cuda.synchronize()
        del graph, y
        gc.collect()
    torch.cuda.synchronize()
    _cuda.collect()
    assert len(_cuda._captures) <= 2


def test_a_graph_of_training(operators):
    """Forward, backward and step, captured as a whole."""
    torch.manual_seed(0)
    w = torch.ones(16, device="cuda", requires_grad=True)
    x, target = torch.randn(64, 16, device="cuda"), torch.randn(64, 16, device="cuda")
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (operators["rms_f32"](x, w)[0] - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.item())
    plain = torch.ones(16, device="cuda", requires_grad=True)
    optimizer, wanted = torch.optim.SGD([plain], lr=0.1), []
    for _ in range(3 + len(losses)):
        optimizer.zero_grad(set_to_none=True)
        loss = (rms(x, plain) - target).square().mean()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    assert losses[-1] < losses[0]
    close(torch.tensor(losses), torch.tensor(wanted[3:]))
    close(w.detach(), plain.detach())


# ---- Compiled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_compiled_without_a_break(operators, backend):
    def model(x, w):
        return operators["rms_f32"](x * 2, w)[0].relu().sum()

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for rows in (5, 9):
        ours, theirs = arguments(rows=rows), arguments(rows=rows)
        try:
            loss = compiled(*ours)
        except Exception as error:
            # Triton needs a C compiler, which a machine with a GPU need not have
            if backend == "inductor" and "compiler" in str(error).lower():
                pytest.skip(str(error).partition("\n")[0])
            raise
        wanted = rms(theirs[0] * 2, theirs[1]).relu().sum()
        close(loss, wanted)
        loss.backward()
        wanted.backward()
        for one, other in zip(ours, theirs):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


def test_compiled_on_cudagraphs(operators):
    def model(a, b):
        return operators["products"](a, b) + 1

    compiled = torch.compile(model, fullgraph=True, backend="cudagraphs")
    b = torch.randn(WIDTH, WIDTH, device="cuda") / 16
    with torch.no_grad():
        for seed in range(5):
            torch.manual_seed(seed)
            a = torch.randn(20, WIDTH, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            close(compiled(a, b), products(a, b) + 1)


# ---- Modules -------------------------------------------------------------------------------------


def test_a_module_on_a_gpu(trained):
    import accrt.torch

    model = accrt.torch.Module(trained, parameters={"scale": torch.ones(4)}, name=f"{SPACE}::on_gpu").to("cuda")
    assert all(p.is_cuda for p in model.parameters())
    torch.manual_seed(1)
    x, target = torch.randn(16, 8, device="cuda"), torch.randn(16, 4, device="cuda")
    w, scale = model.proj.weight.detach().clone().requires_grad_(), torch.ones(4, device="cuda", requires_grad=True)
    ours, theirs = torch.optim.SGD(model.parameters(), lr=0.05), torch.optim.SGD([w, scale], lr=0.05)
    for _ in range(5):
        for optimizer, run in ((ours, lambda: model(x)), (theirs, lambda: torch.nn.functional.linear(x, w) * scale)):
            optimizer.zero_grad()
            (run() - target).square().mean().backward()
            optimizer.step()
        close(model.proj.weight, w)
        close(model.scale, scale)
    close(model(x), torch.nn.functional.linear(x, w) * scale)


def test_parameters_are_the_memory_that_the_program_reads(trained, monkeypatch):
    """An optimizer's step is there in the next call: nothing is copied, and nobody waits."""
    import accrt.torch
    from accrt.torch import _weights

    model = accrt.torch.Module(trained, name=f"{SPACE}::shared")
    before = torch.cuda.memory_allocated()
    model.to("cuda")
    assert torch.cuda.memory_allocated() == before  # it is the program's
    weight, program = model.proj.weight, model.accrt_programs.gpu(0).program
    assert weight.data_ptr() == torch.from_dlpack(program._weight("proj.weight")).data_ptr() and weight.is_leaf and weight.requires_grad
    monkeypatch.setattr(accrt.Program, "swap_weights", lambda *given: pytest.fail("weights were copied"))
    monkeypatch.setattr(_weights, "_settle", lambda gpu: pytest.fail("the device was waited for"))
    x, scale = torch.randn(16, 8, device="cuda"), torch.ones(4, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(8):
        y = model(x, scale)
        close(y, torch.nn.functional.linear(x, weight) * scale)
        optimizer.zero_grad()
        y.square().mean().backward()
        close(weight.grad, (2 / y.numel() * y.detach()).t() @ x)
        optimizer.step()
    with torch.no_grad():
        weight.data.fill_(2)
        close(model(x, scale), x.sum(1, keepdim=True).expand(16, 4) * 2)
    model.load_state_dict({"proj.weight": torch.full((4, 8), 3.0)})
    model.to("cuda")
    close(model(x, scale), x.sum(1, keepdim=True).expand(16, 4) * 3)


def test_other_weights_on_a_gpu_and_back(trained):
    import copy

    import accrt.torch

    model = accrt.torch.Module(trained, name=f"{SPACE}::others").to("cuda")
    x, scale = torch.randn(16, 8, device="cuda"), torch.ones(4, device="cuda")
    own = model.proj.weight.detach().clone()

    def right(called, weight):
        with torch.no_grad():
            close(called(x, scale), torch.nn.functional.linear(x, weight) * scale)

    twin = copy.deepcopy(model)
    assert twin.proj.weight.data_ptr() != model.proj.weight.data_ptr()
    with torch.no_grad():
        twin.proj.weight.fill_(2)
    for _ in range(2):
        right(model, own)
        right(twin, torch.full((4, 8), 2.0, device="cuda"))
        twin.to("cuda")
    assert torch.equal(model.proj.weight, own)
    other = torch.randn(4, 8, device="cuda")
    with torch.no_grad():
        made = torch.func.functional_call(model, {"proj.weight": other}, (x, scale))
    close(made, torch.nn.functional.linear(x, other) * scale)
    right(model, own)
    with torch.no_grad():
        model.proj.weight.mul_(3)
    right(model, own * 3)
    model.to("cuda")  # and it is the program's memory again
    with torch.no_grad():
        model.proj.weight.data.mul_(2)
    right(model, own * 6)
    model.to("cpu")
    close(model.proj.weight, (own * 6).cpu())
    model.to("cuda")
    right(model, own * 6)
    kept = model.proj.weight.detach()
    del model, twin
    gc.collect()
    close(kept, own * 6)


def test_a_captured_module(trained):
    """A graph sees what is written into parameters, as those of torch's own modules do. Other
    tensors in their place have to be there before the capture."""
    import accrt.torch

    model = accrt.torch.Module(trained, name=f"{SPACE}::kept").to("cuda").requires_grad_(False)
    x, scale = torch.randn(16, 8, device="cuda"), torch.ones(4, device="cuda")
    with torch.no_grad():
        before = model(x, scale)
        graph = torch.cuda.CUDAGraph()
        model.proj.weight.mul_(1)
        with torch.cuda.graph(graph):
            y = model(x, scale)
        model.proj.weight.mul_(2)
        close(model(x, scale), before * 2)
        graph.replay()
        close(y, before * 2)
        other = {"proj.weight": model.proj.weight * 2}
        with pytest.raises(RuntimeError, match="weights have changed since the last call"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.func.functional_call(model, other, (x, scale))
        close(torch.func.functional_call(model, other, (x, scale)), before * 4)
        close(model(x, scale), before * 2)
        graph.replay()
        close(y, before * 2)


# ---- The backend of torch.compile ----------------------------------------------------------------


def networks():
    """Networks and inputs, on the host. `test_torch_operator.py TARGET` compiles their kernels into
    the cache, for machines without nvcc."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = torch.nn.LayerNorm(64), torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            return x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    chain = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8), torch.nn.Softmax(-1))
    return {"chain": (chain.eval(), torch.randn(5, 32)), "attention": (Attention().eval(), torch.randn(2, 24, 64))}


@pytest.mark.parametrize("name", ("chain", "attention"))
def test_the_backend_on_a_gpu(name, caplog):
    import accrt.torch
    from accrt.compiler import available_targets

    if not available_targets(["cuda"]):
        pytest.skip("no nvcc, and no cache from a machine that has one")
    accrt.default_instance("all")
    net, x = networks()[name]
    net, x = net.to("cuda"), x.to("cuda")
    fast = torch.compile(net, backend=accrt.torch.backend)
    with caplog.at_level("INFO", "accrt.torch"), torch.no_grad():
        close(fast(x), net(x))
        close(fast(x + 1), net(x + 1))
        torch.cuda.synchronize()
        given, graph = x.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(given)
        given.copy_(x * 3)
        graph.replay()
        close(y, net(x * 3))
        for parameter in net.parameters():
            parameter.mul_(1.5)
        close(fast(x), net(x))
    assert not caplog.records, caplog.text


def test_the_backend_says_that_nvcc_is_missing(monkeypatch, caplog):
    import accrt.torch
    from accrt.compiler.cuda import nvcc

    torch._dynamo.reset()  # what was compiled for the test before would do for this network, too
    monkeypatch.setattr(nvcc, "available_targets", lambda: ([], dict.fromkeys(nvcc.TARGETS, "no CUDA compiler: tried nothing")))
    net, x = networks()["chain"]
    net, x = net.to("cuda"), x.to("cuda")
    with caplog.at_level("INFO", "accrt.torch"), torch.no_grad():
        close(torch.compile(net, backend=accrt.torch.backend)(x), net(x))
    assert [r.getMessage() for r in caplog.records] == [
        "a graph runs in torch: bundles for cuda:0 are compiled by nvcc or NVRTC, and there is no CUDA compiler: tried nothing"]


if __name__ == "__main__":
    for _name, (_net, _x) in networks().items():
        accrt.compiler.compile(accrt.from_torch.convert(_net, (_x,), name="graph"), targets=sys.argv[1:])
