"""accrt.torch: operators that Python calls without torch's dispatcher
(python/native/torch_direct.c): when they may, and that they do what the dispatcher does."""
from __future__ import annotations

import contextlib
import random
import sys
import threading

import pytest

import accrt
from accrt.compiler import compile
import rotation
from test_torch_operators import module, registered, TARGETS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

EIGHT = torch.arange(24.0).view(3, 8)
SPACE = "accrt_direct"


@pytest.fixture(scope="module")
def operators(instance):
    from accrt.torch import _shim

    if not _shim._knows_the_dispatcher():
        pytest.skip("accrt._native or something of torch's is not there")
    return registered(accrt.Bundle(compile(module(), targets=TARGETS), instance), SPACE)


@pytest.fixture
def direct(operators):
    """A list that grows with each result that is made without the dispatcher."""
    from accrt.torch import _operator, _shim

    made, maker = [], _shim._maker("cpu")
    hosts = [one._kernels._host for name, one in _operator._registered.items() if name.startswith(f"{SPACE}::") and one._kernels is not None]
    for host in hosts:
        host.make_with(lambda *given: (made.append(given), maker(*given))[1])
    yield made
    for host in hosts:
        host.make_with(maker)


def learned(op, given, direct):
    """Calls until a call is direct: one that took long on a busy machine is not remembered."""
    for _ in range(200):
        before = len(direct)
        with torch.no_grad():
            result = op(*given)
        if len(direct) > before:
            return result
    raise AssertionError("none of 200 calls is direct")


def silu_mul(x, y):
    return torch.nn.functional.silu(x) * y


def is_direct(direct, op, *given, **named):
    """(whether the call was, its result)"""
    before = len(direct)
    result = op(*given, **named)
    return len(direct) > before, result


# ---- When it is


def test_plain_calls_are_direct(operators, direct):
    op = operators["silu_mul"]
    wanted = learned(op, (EIGHT, EIGHT), direct)
    torch.testing.assert_close(wanted, silu_mul(EIGHT, EIGHT))
    for called in (op, torch.ops.accrt_direct.silu_mul):
        was, made = is_direct(direct, called, EIGHT, EIGHT)
        assert was and torch.equal(made, wanted) and not made.requires_grad and made.is_leaf and type(made) is torch.Tensor
    a, b = learned(operators["two"], (EIGHT,), direct)
    assert torch.equal(a, EIGHT + 1) and torch.equal(b, torch.cat([EIGHT, EIGHT]))
    assert isinstance(operators["two"](EIGHT), tuple)
    assert torch.equal(learned(operators["take"], (EIGHT, 2), direct), EIGHT[:2])
    assert torch.equal(learned(operators["silu_mul"], (EIGHT[:0], EIGHT[:0]), direct), EIGHT[:0])


def test_gradients_and_what_turns_them_off(operators, direct):
    op = operators["rms_f32"]
    plain = [torch.randn(5, 16), torch.randn(16), torch.randn(16)][:len(op._schema.arguments)]
    learned(op, plain, direct)
    wanted = [t.clone().requires_grad_() for t in plain]
    was, made = is_direct(direct, op, *wanted)
    # a Function around the call, which is direct
    assert was and type(made[0].grad_fn).__name__.startswith("Graded_")
    made[0].sum().backward()
    assert all(t.grad is not None for t in wanted)
    with torch.no_grad():
        was, made = is_direct(direct, op, *wanted)
    assert was and made[0].grad_fn is None and not made[0].requires_grad
    with torch.inference_mode():
        was, made = is_direct(direct, op, *wanted)
        assert was and made[0].is_inference()
        assert is_direct(direct, op, made[0], *plain[1:])[0]
    parameter = torch.nn.Parameter(plain[1], requires_grad=False)
    assert is_direct(direct, op, plain[0], parameter, *plain[2:])[0]
    was, made = is_direct(direct, op, plain[0], torch.nn.Parameter(plain[1]), *plain[2:])
    assert was and type(made[0].grad_fn).__name__.startswith("Graded_")
    with torch.no_grad(), torch.enable_grad():
        assert op(*wanted)[0].grad_fn is not None


def test_inside_of_an_autograd_function(operators, direct):
    op = operators["silu_mul"]
    learned(op, (EIGHT, EIGHT), direct)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return op(x, x)

        @staticmethod
        def backward(ctx, grad):
            return op(grad, grad)

    x = EIGHT.clone().requires_grad_()
    y = Function.apply(x)
    torch.testing.assert_close(y, silu_mul(EIGHT, EIGHT))
    y.backward(EIGHT)
    torch.testing.assert_close(x.grad, silu_mul(EIGHT, EIGHT))


def _mode_contexts():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    return {
        "autocast": lambda: torch.autocast("cpu"),
        "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
        "dispatch mode": Dispatch,
        "function mode": Function,
        "a default device": lambda: torch.device("cpu"),
        "python dispatcher": torch._dispatch.python.enable_python_dispatcher,
        "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    }


@pytest.mark.parametrize("name", ("autocast", "fake", "dispatch mode", "function mode", "a default device", "python dispatcher", "profiler"))
def test_what_is_set_up_is_asked(operators, direct, name):
    from accrt import _fast

    op = operators["silu_mul"]
    wanted = learned(op, (EIGHT, EIGHT), direct)
    with _mode_contexts()[name]():
        assert not _fast.native.calls_are_direct()
        was, made = is_direct(direct, op, EIGHT, EIGHT)
    # where what is set up calls the operator again, that call may be direct
    assert not was or name in ("autocast", "function mode", "a default device")
    assert made.shape == wanted.shape and (name == "fake" or torch.equal(made, wanted))
    assert is_direct(direct, op, EIGHT, EIGHT)[0]


def test_every_key_of_the_dispatcher_is_asked(operators):
    """Whatever is added for a thread, or taken away, its calls are not direct."""
    from accrt import _fast

    keys = [key for name, key in vars(torch._C.DispatchKey).items() if isinstance(key, torch._C.DispatchKey) and name != "Undefined"]
    tried, state = 0, _fast.native.dispatch_state()
    assert _fast.native.calls_are_direct()
    for key in keys:
        for guard in (torch._C._IncludeDispatchKeyGuard, lambda key: torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))):
            with contextlib.suppress(RuntimeError):  # of aliases, and of backends alone
                with guard(key):
                    if _fast.native.dispatch_state() != state:  # it was not there already
                        tried += 1
                        assert not _fast.native.calls_are_direct(), (guard, key)
    assert tried > 20 and _fast.native.calls_are_direct()


def test_the_profiler_sees_the_operator(operators, direct):
    op = operators["silu_mul"]
    learned(op, (EIGHT, EIGHT), direct)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op(EIGHT, EIGHT)
    assert any(event.key == f"{SPACE}::silu_mul" for event in profile.key_averages())


def test_autocast_still_casts(operators, direct):
    op = operators["silu_mul"]
    learned(op, (EIGHT, EIGHT), direct)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = op(EIGHT.bfloat16(), EIGHT)
    torch.testing.assert_close(made, silu_mul(EIGHT, EIGHT), rtol=1e-2, atol=1e-2)


def test_transforms_and_traces(operators, direct):
    from torch.fx.experimental.proxy_tensor import make_fx

    op = operators["silu_mul"]
    wanted = learned(op, (EIGHT, EIGHT), direct)
    assert torch.equal(torch.vmap(op)(EIGHT.view(1, 3, 8), EIGHT.view(1, 3, 8))[0], wanted)
    assert torch.equal(torch.func.functionalize(op)(EIGHT, EIGHT), wanted)
    with pytest.raises(RuntimeError, match="silu_mul.* has no backward"):
        torch.func.grad(lambda x: op(x, x).sum())(EIGHT)
    for options in ({}, {"pre_dispatch": True}, {"tracing_mode": "fake"}, {"tracing_mode": "symbolic"}):
        graph = make_fx(lambda x: op(x, x), **options)(EIGHT)
        assert any(node.target is op for node in graph.graph.nodes), options
        assert torch.equal(graph(EIGHT), wanted)
    class Net(torch.nn.Module):
        def forward(self, x):
            return op(x, x)

    exported = torch.export.export(Net(), (EIGHT,))
    assert any(node.target is op for node in exported.graph.nodes) and torch.equal(exported.module()(EIGHT), wanted)
    traced = torch.jit.trace(lambda x: op(x, x), EIGHT)
    assert f"{SPACE}::silu_mul" in str(traced.graph) and torch.equal(traced(EIGHT), wanted)
    compiled = torch.compile(lambda x: op(x, x + 0), fullgraph=True, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(EIGHT), wanted)
    seen = []

    def backend(graph, _inputs):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    torch.compile(lambda x: op(x, x), fullgraph=True, backend=backend)(EIGHT)
    assert op in seen


def test_subclasses_are_asked(operators, direct):
    from torch.testing._internal.two_tensor import TwoTensor

    op = operators["silu_mul"]
    wanted, seen = learned(op, (EIGHT, EIGHT), direct), []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    was, made = is_direct(direct, op, EIGHT.as_subclass(Watching), EIGHT)
    assert not was and seen and type(made) is Watching
    was, both = is_direct(direct, op, TwoTensor(EIGHT, EIGHT), TwoTensor(EIGHT, EIGHT))
    # inside of it the plain parts may be direct
    assert type(both) is TwoTensor and torch.equal(both.a, wanted) and torch.equal(both.b, wanted)


def test_tensors_whose_memory_is_not_what_they_are(operators, direct):
    op = operators["silu_mul"]
    one = torch.tensor([[1.5 + 2.5j]])
    shapes = {t.shape for t in (EIGHT, one)}
    for shape in shapes:
        learned(op, (torch.ones(shape), torch.ones(shape)), direct)
    for x in (one.conj().imag, torch._neg_view(EIGHT), torch._efficientzerotensor((3, 8)), EIGHT.T.contiguous().T, EIGHT[:1].expand(3, 8),
              torch._to_functional_tensor(EIGHT)):
        y = torch.ones(x.shape)
        was, made = is_direct(direct, op, x, y)
        assert not was
        if torch._is_functional_tensor(made):
            made, x = torch._from_functional_tensor(made), EIGHT
        torch.testing.assert_close(made, silu_mul(torch.zeros(3, 8) if x._is_zerotensor() else x.clone(), y))
    assert op(EIGHT.to("meta"), EIGHT.to("meta")).device.type == "meta"
    for wrong in (EIGHT.to_sparse(), EIGHT.to("meta")):
        with pytest.raises(Exception):
            op(wrong, EIGHT)


def test_other_arguments(operators, direct):
    op = operators["take"]
    learned(op, (EIGHT, 2), direct)
    for given, named in (((EIGHT,), {"count": 2}), ((EIGHT, True), {}), ((EIGHT, torch.tensor(2)), {})):
        was, made = is_direct(direct, op, *given, **named)
        assert not was and torch.equal(made, EIGHT[:int((*given, *named.values())[1])])
    for wrong in ((EIGHT, 1 << 70), (EIGHT, None), (None, 2), (EIGHT, "2"), (EIGHT,), (), (EIGHT, 2, 3), (2, EIGHT), ([EIGHT], 2)):
        with pytest.raises((RuntimeError, TypeError, ValueError, OverflowError)):
            op(*wrong)
    assert is_direct(direct, op, EIGHT, 2)[0]


# ---- What it does


def test_a_result_that_cannot_be_made_goes_to_the_dispatcher(operators, direct):
    from accrt.torch import _operator, _shim

    op = operators["two"]
    learned(op, (EIGHT,), direct)
    host = _operator._registered[f"{SPACE}::two"]._kernels._host
    maker = _shim._maker("cpu")

    def fail(*_given):
        raise MemoryError("none")

    for bad in (fail, lambda *_given: None, lambda size, stride, dtype: maker((1, *size), (1, *stride), dtype),
                lambda size, stride, dtype: maker(size, stride, torch.float64), lambda size, stride, dtype: maker(size, tuple(2 * s for s in stride), dtype),
                lambda size, stride, dtype: torch.empty(size, dtype=dtype, device="meta")):
        host.make_with(bad)
        for _ in range(70):  # more than there are lanes: each is given back
            assert torch.equal(op(EIGHT)[0], EIGHT + 1)
    host.make_with(lambda *given: (direct.append(given), maker(*given))[1])
    assert is_direct(direct, op, EIGHT)[0]


@pytest.mark.parametrize("first", ("in inference mode", "that want a gradient", "that are parameters"))
def test_a_check_that_keeps_failing_is_made_again(operators, first):
    """torch's check of arguments is made of the first plain call. Where those that follow are of
    another kind, one of them makes it again; kinds that alternate make few."""
    from accrt.torch import _operator, _shim

    op, host = operators["silu_mul"], _operator._registered[f"{SPACE}::silu_mul"]._kernels._host
    direct, made, said, maker = [], [], [], _shim._maker("cpu")

    def checker(*given):
        check = _shim._check(*given)
        made.append(check)
        return check and (lambda *others: (said.append(check(*others)), said[-1])[1])

    host.make_with(lambda *given: (direct.append(given), maker(*given))[1], checker)
    try:
        rows = {"in inference mode": 31, "that want a gradient": 32, "that are parameters": 33}[first]
        # torch's check says no to one tensor in two places
        plain, others = (torch.rand(rows, 8), torch.rand(rows, 8)), (torch.rand(rows, 8), torch.rand(rows, 8))
        if first != "in inference mode":
            others = [torch.nn.Parameter(one, requires_grad=first == "that want a gradient") for one in others]
        mode = torch.inference_mode if first == "in inference mode" else torch.no_grad
        with mode():
            learned(op, others, direct)
            torch.testing.assert_close(op(*others), silu_mul(*others))
        for _ in range(20):
            torch.testing.assert_close(op(*plain), silu_mul(*plain))
        assert len(said) >= 10 and all(said[-10:]), (made, said)
        before = len(made)
        for _ in range(3000):
            op(*plain)
            with mode():
                op(*others)
        assert len(made) - before <= 12
    finally:
        host.make_with(maker, lambda *given: None)


def test_nothing_is_kept(operators, direct):
    op = operators["silu_mul"]
    x = torch.randn(3, 8)
    learned(op, (x, x), direct)
    before = torch._C._storage_Use_Count(x.untyped_storage()._cdata), sys.getrefcount(x)
    for _ in range(300):
        made = op(x, x)
    assert (torch._C._storage_Use_Count(x.untyped_storage()._cdata), sys.getrefcount(x)) == before
    assert sys.getrefcount(made) == 2  # `made`, and the argument here
    held = [op(x, x) for _ in range(50)]
    assert len({t.data_ptr() for t in held}) == 50


def test_inputs_that_stay_where_they_were(operators, direct):
    """An input that a call is bound to already is not bound again: what lies there now is used, in
    any order of shapes and memory, directly and by the dispatcher."""
    from accrt import _fast

    seed = rotation.seed()
    rng, memory = random.Random(seed), torch.rand(4, 3 * 8)
    parts = [memory[row, :8 * rows].view(rows, 8) for row in range(4) for rows in range(4)]
    accepted = [(0, 0)]
    for step in range(600):
        if step % 3 == 0:
            memory[rng.randrange(4)].fill_(step)
        x = rng.choice(parts)
        y = rng.choice([part for part in parts if part.shape == x.shape])
        if rng.randrange(4) == 0:
            _fast.native.accept_states()
        try:
            torch.testing.assert_close(operators["silu_mul"](x, y), silu_mul(x, y))
            assert torch.equal(operators["take"](x, len(x) // 2), x[:len(x) // 2])
        finally:
            _fast.native.accept_states(*accepted)
    from accrt.torch import _shim

    assert direct
    assert _shim._knows_the_dispatcher.__wrapped__()  # and accepts the other states again


def test_other_threads_run_python_meanwhile(operators, direct):
    op = operators["silu_mul"]
    learned(op, (EIGHT, EIGHT), direct)
    wrong, start = [], threading.Barrier(6)

    def work(seed):
        own = torch.full((3, 8), float(seed))
        wanted = silu_mul(own, own)
        start.wait()
        with torch.no_grad() if seed % 2 else torch.inference_mode():
            for _ in range(200):
                if not torch.allclose(op(own, own), wanted):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_both_ways_give_the_same(operators, direct):
    """Random arguments, modes and mistakes, direct and by the dispatcher. ACCRT_TEST_SEED has the
    seed of a run before."""
    from accrt import _fast
    from accrt.torch import _shim

    seed = rotation.seed()
    rng = random.Random(seed)
    accepted = [(0, 0)]
    with torch.inference_mode():
        accepted.append(_fast.native.dispatch_state())
    _shim._knows_the_dispatcher()
    calls = (("silu_mul", 2, False), ("two", 1, False), ("take", 1, True))

    def tensor():
        x = torch.rand(rng.randrange(4), 8)
        forms = (x, x, x, x.T.contiguous().T, torch._neg_view(x), x.double(), x[:, :5], x.clone().requires_grad_(), torch.nn.Parameter(x), x.to("meta"), None, 3,
                 x.bool(), x.view(-1), x.to_sparse())
        return rng.choice(forms)

    def outcome(op, given):
        try:
            made = op(*given)
        except Exception as error:
            return type(error), str(error).splitlines()[:1]
        made = made if isinstance(made, tuple) else (made,)
        return [(t.dtype, t.shape, t.stride(), t.requires_grad, t.is_inference(), t.device, None if t.is_meta else t.tolist()) for t in made]

    for _ in range(500):
        name, count, scalar = rng.choice(calls)
        given = (*[tensor() for _ in range(count)], *([rng.randrange(4)] if scalar else ()))
        mode = rng.choice((contextlib.nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")))
        with mode():
            first = outcome(operators[name], given)
            _fast.native.accept_states()
            try:
                second = outcome(operators[name], given)
            finally:
                _fast.native.accept_states(*accepted)
        assert first == second, (name, given, first, second)
    assert direct


def test_without_what_it_needs_of_torch(operators, monkeypatch):
    """It is not used, and nothing else changes."""
    from accrt import _fast
    from accrt.torch import _shim

    address, library = _shim._address, _shim.loaded_library
    for missing in ("_ZN2at12hasCallbacksEv", "_ZN2at4impl27torch_function_mode_enabledEv"):
        monkeypatch.setattr(_shim, "_address", lambda name, missing=missing: 0 if name == missing else address(name))
        assert not _shim._knows_the_dispatcher.__wrapped__()
    monkeypatch.setattr(_shim, "_address", address)
    monkeypatch.setattr(_shim, "loaded_library", lambda name: None if name == "libc10.so" else library(name))
    assert not _shim._knows_the_dispatcher.__wrapped__()
    monkeypatch.setattr(_shim, "loaded_library", library)
    for shown in ([(0, 0)] * 5, [None] * 5, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], [(9, 0), (1, 1), (2, 2), (3, 3), (9, 0)]):
        states = iter(shown)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_fast.native, "dispatch_state", lambda states=states: next(states))
            assert not _shim._knows_the_dispatcher.__wrapped__()
    assert _shim._knows_the_dispatcher.__wrapped__()


def test_captured_streams_and_other_devices_are_left_to_the_dispatcher(operators):
    """The way of GPUs on the host: tests/gpu/test_torch_operator.py is for real."""
    from accrt.torch import _operator

    kernels = _operator._registered[f"{SPACE}::silu_mul"]._kernels
    assert kernels.shims()[0] is kernels._host and (torch.cuda.is_available() or kernels.shims()[1] is None)
