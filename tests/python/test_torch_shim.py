"""accrt.torch: operators' kernels in C (python/native/torch_shim.c) and what Python calls
(torch_entry.c). test_torch_operators.py runs every operator both ways; this has what only kernels
in C can get wrong."""
from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import weakref

import pytest

import accrt
from accrt import _fast
from accrt.compiler import compile
import rotation
from test_torch_operators import arguments, module, NAMES, registered, TARGETS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

EIGHT = torch.arange(24.0).view(3, 8)
SAMPLES = {"rms_f32": arguments(grad=False), "rms_f64": arguments(torch.float64, grad=False), "silu_mul": (EIGHT, EIGHT + 1), "two": (EIGHT,), "take": (EIGHT, 2),
           "biased": (EIGHT[0], EIGHT[1]), "half": (EIGHT.bfloat16(), EIGHT.bfloat16())}


@pytest.fixture(scope="module")
def bundle(instance):
    return accrt.Bundle(compile(module(), targets=TARGETS), instance)


@pytest.fixture(scope="module")
def operators(bundle):
    from accrt.torch import _shim

    if not _shim._found():
        pytest.skip("accrt._native or torch's C functions are not there")
    return registered(bundle, "accrt_shim")


@pytest.fixture
def runs(monkeypatch):
    """Grows by one with each call that is done in Python."""
    import accrt.torch._operator as module

    seen, run = [], module.Runner.__call__
    monkeypatch.setattr(module.Runner, "__call__", lambda *given: (seen.append(given[1]), run(*given))[1])
    return seen


def learned(op, given, runs):
    """Calls until a call needs no Python: a call that took long on a busy machine is not
    remembered."""
    for _ in range(200):
        before = len(runs)
        with torch.no_grad():
            result = op(*given)
        if len(runs) == before:
            return result
    raise AssertionError("the kernel in C takes none of 200 calls")


def in_c(name):
    """Whether the kernel is in C: that of optional inputs is where torch has the function that
    frees their box, from 2.13 on."""
    from accrt.torch import _operator, _shim

    has = _operator._registered[f"accrt_shim::{name}"]._kernels is not None
    assert has or name == "biased" and "torch_delete_stable_ivalue" not in _shim._found()
    return has


def tensors(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def test_torch_can_list_its_operators(operators):
    """What was registered stays: before 2.13 torch lists operators that are gone, fails at them,
    and compiles nothing any more."""
    gc.collect()
    spaces = [space for space in torch.ops._dir if space.startswith("accrt")]
    assert "accrt_shim" in spaces
    for space in spaces:
        names = list(getattr(torch.ops, space))
        for name in names:
            assert getattr(getattr(torch.ops, space), name).overloads()
    assert "accrt_probe" not in spaces or torch.ops.accrt_probe.scalar(3) == 3


@pytest.mark.parametrize("name", SAMPLES)
def test_shapes_that_were_seen_need_no_python(operators, runs, name):
    op, given = operators[name], SAMPLES[name]
    if not in_c(name):
        pytest.skip("torch lacks a function")
    first = op(*given)
    made = learned(op, given, runs)
    assert tensors(made)[0].data_ptr() != tensors(first)[0].data_ptr()
    for one, other in zip(tensors(made), tensors(first)):
        assert torch.equal(one, other) and one.dtype == other.dtype and one.stride() == other.stride() and not one.requires_grad
    before = len(runs)
    for _ in range(10):
        op(*given)
    assert len(runs) == before
    if name == "biased":
        assert torch.equal(learned(op, (EIGHT[0], None), runs), EIGHT[0] * 2) and torch.equal(op(*given), EIGHT[0] + EIGHT[1])
    if name == "take":
        assert torch.equal(learned(op, (EIGHT, 3), runs), EIGHT) and torch.equal(op(EIGHT, 2), EIGHT[:2])


def test_what_writes_its_inputs_stays_in_python(operators, runs):
    for _ in range(3):
        x = torch.zeros(3, 8)
        operators["add_one"](x, torch.ones(8))
        assert (x == 1).all()
    assert len(runs) == 3


def test_empty_strided_and_misaligned_tensors(operators, runs):
    op, base = operators["silu_mul"], torch.randn(9, 33)
    for x in (base[:0], base[1:, 1:], base.T, base[:, :1], base.flatten()[1:289].view(9, 32), torch.randn(1, 33).expand(9, 33), base):
        y = torch.randn(*x.shape)
        for _ in range(4):
            torch.testing.assert_close(op(x, y), torch.nn.functional.silu(x) * y)
    assert learned(op, (base[:0], base[:0]), runs).shape == (0, 33)
    # nobody steps along the first dimension
    one = torch.empty_strided((1, 33), (7, 1)).copy_(base[:1])
    torch.testing.assert_close(learned(op, (one, one), runs), torch.nn.functional.silu(one) * one)


def test_random_calls(operators):
    """Shapes, forms and errors in any order, from two threads, beside torch's own. ACCRT_TEST_SEED
    has the seed of a run before."""
    seed = rotation.seed()
    problems = []

    def forms(x):
        spread = torch.zeros(x.shape[0], 2 * x.shape[1])
        spread[:, ::2] = x
        away = torch.zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)
        return [x, x, x, spread[:, ::2], x.T.contiguous().T, away, x.clone().requires_grad_()]

    def work(seed):
        rng = random.Random(seed)
        for _ in range(400):
            rows = rng.randrange(4)
            x, y = torch.rand(rows, 8), torch.rand(rows, 8)
            a, b = rng.choice(forms(x)), rng.choice(forms(y))
            wanted = [(operators["silu_mul"], (a, b), lambda: torch.nn.functional.silu(x) * y), (operators["two"], (a,), lambda: x + 1),
                      (operators["take"], (a, rows and 1), lambda: x[:rows and 1]), (operators["biased"], (x[:, 0], None), lambda: x[:, 0] * 2),
                      (operators["biased"], (x.flatten(), y.flatten()), lambda: (x + y).flatten()), (operators["take"], (a, rows + 1), None),
                      (operators["silu_mul"], (a.detach().double(), b), None), (operators["silu_mul"], (a, b[:, :3]), None)]
            op, given, right = rng.choice(wanted)
            try:
                made = tensors(op(*given))[0]
                if right is None or not torch.allclose(made, right()):
                    problems.append((seed, op, [v.shape if isinstance(v, torch.Tensor) else v for v in given]))
            except (TypeError, ValueError, accrt.OutOfRangeError) as error:
                if right is not None:
                    problems.append((seed, op, error))

    threads = [threading.Thread(target=work, args=(seed + at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_more_shapes_than_are_remembered(operators):
    for _ in range(2):
        for rows in range(40):
            x = torch.full((rows, 8), float(rows))
            a, b = operators["two"](x)
            assert torch.equal(a, x + 1) and torch.equal(b, torch.cat([x, x]))


def test_errors_are_those_of_python(operators, runs):
    x, w, b = SAMPLES["rms_f32"]
    op = operators["rms_f32"]
    learned(op, (x, w, b), runs)
    packet = torch.ops.accrt_shim.rms_f32
    wanted = x.clone().requires_grad_()
    for call in (op, packet, lambda *given: op(*given[:2], b=given[2])):
        for first in (x, wanted):
            for _ in range(2):
                with pytest.raises(TypeError, match=r"accrt_shim::rms_f32 .*x is of torch.float64, and f32\[n, 16\] is needed") as told:
                    call(first.double(), w, b)
                assert "\n" not in str(told.value)
                with pytest.raises(ValueError, match="dimension 1 of x is 8"):
                    call(first[:, :8], w, b)
    with pytest.raises(accrt.OutOfRangeError, match="9 elements from 0 on do not fit in 3"):
        operators["take"](EIGHT, 9)
    with pytest.raises(RuntimeError, match="expected at most 3 argument"):
        op(x, w, b, x)
    assert torch.equal(op(x, w, b)[0], op(x, w, b)[0])


def test_an_error_of_another_operator_stays_what_it_is(operators):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            with pytest.raises(ValueError):
                operators["silu_mul"](EIGHT, EIGHT[:2])
            raise RuntimeError("of the mode")

    with Other(), pytest.raises(RuntimeError, match="^of the mode$"):
        operators["two"](EIGHT)


def test_an_error_is_kept_by_nobody(operators):
    class Watched(ValueError):
        pass

    def fail(*_given, **_named):
        x = torch.randn(2, 3)  # what a frame of the traceback keeps
        seen.append(weakref.ref(x))
        raise Watched("watched")

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accrt.torch._shapes.bind", fail)
        for _ in range(3):
            with pytest.raises(Watched, match="watched"):
                operators["silu_mul"](torch.ones(2, 5), torch.ones(2, 5))
            try:
                # nothing takes this one
                torch.ops.accrt_shim._silu_mul_in_python(torch.ones(2, 5), torch.ones(2, 5))
            except Watched:
                pass
    assert len(seen) == 6 and all(one() is None for one in seen)


def test_nothing_of_the_arguments_is_kept(operators, runs):
    count = torch._C._storage_Use_Count
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    learned(operators["silu_mul"], (x, y), runs)
    before = [count(t.untyped_storage()._cdata) for t in (x, y)]
    for at in range(100):
        z = operators["silu_mul"](x, y)
        if at % 10 == 0:
            with pytest.raises(ValueError):
                operators["silu_mul"](x, y[:2])
    assert [count(t.untyped_storage()._cdata) for t in (x, y)] == before
    assert count(z.untyped_storage()._cdata) == count(torch.empty(2).untyped_storage()._cdata)


def test_threads_share_an_operator(operators, runs):
    x = torch.randn(6, 8)
    learned(operators["silu_mul"], (x, x), runs)
    wrong, start = [], threading.Barrier(8)

    def work(seed):
        own = torch.full((6, 8), float(seed))
        wanted = torch.nn.functional.silu(own) * own
        start.wait()
        for _ in range(200):
            if not torch.allclose(operators["silu_mul"](own, own), wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- What is between Python and the kernel


def test_gradients_are_there_where_they_are_wanted(operators, runs):
    op, (x, w, b) = operators["rms_f32"], arguments(grad=False)
    learned(op, (x, w, b), runs)
    wanted = [t.clone().requires_grad_() for t in (x, w, b)]
    op(x, wanted[1], b)[0].sum().backward()
    assert wanted[1].grad is not None and op(*wanted)[0].grad_fn is not None
    with torch.no_grad():
        assert op(*wanted)[0].grad_fn is None
    with torch.inference_mode():
        assert op(*wanted)[0].is_inference()
    assert not op(x, w, b)[0].requires_grad
    assert op(x, torch.nn.Parameter(w), b)[0].requires_grad and not op(x, torch.nn.Parameter(w, requires_grad=False), b)[0].requires_grad
    with pytest.raises(RuntimeError, match="silu_mul.* has no backward"):
        operators["silu_mul"](EIGHT.clone().requires_grad_(), EIGHT).sum().backward()


def test_gradients_need_no_dispatcher(operators, runs):
    """A plain call that wants gradients is one autograd.Function around what calls without
    gradients are; where anything looks into calls, torch's code for gradients is asked as before.
    Both give the same bits."""
    from accrt.torch import _shim

    op, calls = operators["rms_f32"], []
    learned(op, arguments(grad=False), runs)
    if not _shim._knows_the_dispatcher():
        pytest.skip("calls take torch's dispatcher")

    def both():
        given = arguments()
        y, scale = op(*given)
        calls.append(type(y.grad_fn).__name__)
        assert not scale.requires_grad
        return y, *torch.autograd.grad(y, given, torch.ones_like(y))

    plain = both()
    direct = 0
    for _ in range(40):  # a call that took long on a busy machine is not remembered
        before = len(runs)
        both()
        direct += len(runs) == before
    assert direct >= 20, f"the kernels in C took the function and its backward in {direct} of 40 calls"
    del calls[:-2]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        watched = both()
    assert all(map(torch.equal, plain, watched))
    assert [name.startswith("Graded_") for name in calls] == [True, True, False]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        assert all(map(torch.equal, plain, both()))
    assert kept, "what is saved goes through hooks"
    with torch._C._AutoDispatchBelowAutograd():
        assert op(*arguments())[0].grad_fn is None
    x = arguments()
    with pytest.raises(RuntimeError, match="rms_f32_backward.* has no backward"):
        torch.autograd.grad(torch.autograd.grad(op(*x)[0].sum(), x[0], create_graph=True)[0].sum(), x[0])
    with pytest.raises((ValueError, TypeError), match="is needed"):
        op(x[0], x[1][:3], x[2])


def test_arguments_like_those_before_are_checked_at_once(bundle, operators, runs, monkeypatch):
    """One question for all tensors of a plain call, in place of two for each; whatever differs is
    asked for as before."""
    from accrt.torch import _shim

    if not _shim._knows_the_dispatcher():
        pytest.skip("calls take torch's dispatcher")
    if _shim._check(EIGHT) is None:
        pytest.skip("torch has no check of a call's arguments")
    answers, real = [], _shim._check

    def counting(*given):
        check = real(*given)
        return check and (lambda *values: (answers.append(check(*values)), answers[-1])[1])

    monkeypatch.setattr(_shim, "_check", counting)
    monkeypatch.setattr(_fast, "asks_in_cpp", False)  # where tensors are, nothing else is
    made = registered(bundle, "accrt_checked")
    op, (a, b) = made["silu_mul"], (EIGHT.clone(), EIGHT + 1)
    wanted = torch.nn.functional.silu(a) * b
    learned(op, (a, b), runs)
    op(a, b)
    answers.clear()
    for x, y in ((a, b), (a.clone(), b), (torch.cat([a, a])[3:], b)):
        torch.testing.assert_close(op(x, y), wanted)
    assert answers == [True] * 3
    for x, y in ((torch._neg_view(-a), b), (a.t().contiguous().t(), b), (torch.nn.Parameter(a, requires_grad=False), b), (a[:2], b[:2])):
        answers.clear()
        torch.testing.assert_close(op(x, y), torch.nn.functional.silu(x) * y)
        assert answers[0] is False
    with torch.inference_mode():
        assert op(a.clone(), b).is_inference()
    with pytest.raises(TypeError, match="is needed"):
        op(a.double(), b)
    norm = made["rms_f32"]
    given = arguments(grad=False)
    for _ in range(3):
        learned(norm, given, runs)
    assert norm(given[0].requires_grad_(), *given[1:])[0].grad_fn is not None
    with torch.no_grad():
        assert norm(*given)[0].grad_fn is None
    threads = [threading.Thread(target=lambda: [op(a, b) for _ in range(300)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for rows in range(1, 60):  # more shapes than are remembered, meanwhile
        op(a[:1].expand(rows, 8).contiguous(), b[:1].expand(rows, 8).contiguous())
    for thread in threads:
        thread.join()
    torch.testing.assert_close(op(a, b), wanted)


def test_tensors_without_strides_are_refused_after_plain_calls(operators, runs):
    """torch's check of a call's arguments ends the process where a tensor has no strides."""
    op, (a, b) = operators["silu_mul"], (EIGHT.clone(), EIGHT + 1)
    learned(op, (a, b), runs)
    for _ in range(2):
        op(a, b)
    others = [a.to_sparse(), a.to_sparse_csr(), torch.nested.nested_tensor([a[0], a[1, :3]]), torch.nested.nested_tensor([a[0], a[1, :3]], layout=torch.jagged)]
    if torch.backends.mkldnn.is_available():
        others.append(a.to_mkldnn())
    for other in others:
        for given in ((other, b), (a, other), (other, other)):
            with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)):
                op(*given)
        torch.testing.assert_close(op(a, b), torch.nn.functional.silu(a) * b)


def test_modes_see_the_operator(operators, runs):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    op = operators["silu_mul"]
    learned(op, (EIGHT, EIGHT), runs)
    seen, weight = [], torch.ones(3, 8, requires_grad=True)

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            return made * weight if func is op else made  # which wants a gradient

    with Dispatch():
        op(EIGHT, EIGHT)
    assert seen == [op]
    with Function():
        assert op(EIGHT, EIGHT).requires_grad
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = op(mode.from_tensor(EIGHT), mode.from_tensor(EIGHT))
    assert type(made).__name__ == "FakeTensor" and made.shape == EIGHT.shape
    assert op(EIGHT.to("meta"), EIGHT.to("meta")).device.type == "meta"


def test_subclasses_transforms_and_traces(operators, runs):
    from torch.testing._internal.two_tensor import TwoTensor

    op = operators["silu_mul"]
    made = learned(op, (EIGHT, EIGHT), runs)
    both = op(TwoTensor(EIGHT, EIGHT), TwoTensor(EIGHT, EIGHT))
    assert type(both) is TwoTensor and torch.equal(both.a, made) and torch.equal(both.b, made)
    assert torch.equal(torch.vmap(op)(EIGHT.view(1, 3, 8), EIGHT.view(1, 3, 8))[0], made)
    traced = torch.fx.symbolic_trace(lambda x: op(x, x))
    assert torch.equal(traced(EIGHT), made)
    assert torch.equal(torch.func.functionalize(op)(EIGHT, EIGHT), made)
    compiled = torch.compile(lambda x: op(x, x + 0), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(compiled(EIGHT), made)
    assert torch.equal(torch.jit.script(jitted)(EIGHT), torch.ops.accrt_shim.silu_mul(EIGHT, EIGHT))


def jitted(x: torch.Tensor):
    return torch.ops.accrt_shim.silu_mul(x, x)


def test_opcheck_with_shapes_that_are_known(operators, runs):
    for name, given in SAMPLES.items():
        if in_c(name):
            learned(operators[name], given, runs)
        assert set(torch.library.opcheck(operators[name], tuple(given)).values()) == {"SUCCESS"}


def test_without_the_shim(tmp_path):
    path = tmp_path / "plain.accx"
    compile(module(), path, targets=TARGETS)
    code = ("import accrt, torch\nimport accrt.torch\nop = accrt.torch.operator(%r, 'silu_mul')\nfor _ in range(9): z = op(torch.ones(2, 3), torch.ones(2, 3))\n"
            "print(round(z.sum().item(), 3), hasattr(torch.ops.plain, '_silu_mul_in_python'))" % str(path))
    for name, is_there in (("ACCRT_NATIVE", False), ("ACCRT_TORCH_SHIM", False), ("ACCRT_NOTHING", True)):
        from accrt.torch import _shim

        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, name: "0"})
        assert done.stdout == f"4.386 {is_there and bool(_shim._found())}\n", done.stderr


# ---- The way of GPUs


def test_the_way_of_gpus_on_the_host(bundle, operators):
    """The kernel for CUDA with a stream of the host's in place of torch's:
    tests/gpu/test_torch_operator.py is for real."""
    from operator import index

    from accrt.torch import _cuda, _shim

    state = {"captured": 0, "stream": 7, "device": -1}
    number = ctypes.POINTER(ctypes.c_int32)
    is_capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, number)(lambda stream, out: (out.__setitem__(0, state["captured"]), 0)[1])
    device = ctypes.CFUNCTYPE(ctypes.c_int32, number)(lambda out: (out.__setitem__(0, state["device"]), 0)[1])
    stream = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(lambda at, out: (out.__setitem__(0, state["stream"]), 0)[1])
    ours = {"aoti_torch_get_current_device_index": device, "aoti_torch_get_current_cuda_stream": stream}
    names = [name for name, _needed in _fast.native.torch_functions()]
    calls = []
    library = torch.library.Library("accrt_gpu", "FRAGMENT")
    for name in ("two", "_two"):
        library.define(f"{name}(Tensor x) -> (Tensor, Tensor)")
    library.impl("_two", lambda x: (calls.append(x), (x + 1, torch.cat([x, x])))[1], "CPU")
    f32 = _cuda._DTYPES[torch.float32]
    declared = (0, _shim._code(torch.float32), f32)
    shim = _fast.native.Shim("accrt_gpu", "two", "accrt_gpu::_two", "CPU", _shim._device("cpu"), ctypes.cast(is_capturing, ctypes.c_void_p).value, (declared,),
                             (declared, declared))
    program, base = bundle.program(), 1 << 16  # below all tensors that come
    window = _cuda.Window(program.device, base)
    x = torch.randn(5, 8)

    def same(called):
        before = len(calls)
        a, b = torch.ops.accrt_gpu.two(x)
        session.stream.synchronize()
        assert torch.equal(a, x + 1) and torch.equal(b, torch.cat([x, x])) and len(calls) - before == called

    session = program.session(stream=accrt.Stream(program.device))
    call = _cuda.Call(session, session.function("two")._prepared)
    try:
        _fast.native.connect_torch([ctypes.cast(ours[n], ctypes.c_void_p).value if n in ours else _shim._address(n) for n in names])
        same(1)  # nothing is known
        assert shim.learn(((5, 8),), ((5, 8), (10, 8)))
        assert shim.lacks_lane(7)
        shim.add_lane(call, index(call._pointer), 7)
        assert not shim.lacks_lane(7) and shim.lacks_lane(8)
        same(1)  # there is no window
        shim.window(window, index(window.pointer), base, -1)
        for _ in range(3):
            same(0)
        for key, value in (("captured", 1), ("stream", 8), ("device", 1)):
            before, state[key] = state[key], value
            same(1)
            state[key] = before
        same(0)
        shim.window(window, index(window.pointer), 1 << 62, -1)  # above all tensors
        same(1)
        shim.window(window, index(window.pointer), base, -1)
        same(0)
        x = x[:0]
        assert shim.learn(((0, 8),), ((0, 8), (0, 8)))
        same(0)
        x = torch.randn(8, 5).T
        same(1)
    finally:
        _fast.native.connect_torch([_shim._address(name) for name in names])


def test_operators_are_pythons_when_no_kernel_is_left(bundle, operators, runs, monkeypatch):
    import accrt.torch

    assert _fast.native.kernels_left() > 400
    monkeypatch.setattr(_fast.native, "kernels_left", lambda: 2)
    op = accrt.torch.operator(bundle.program(), "two", name="accrt_shim::two_in_python")
    for _ in range(3):
        assert torch.equal(op(EIGHT)[0], EIGHT + 1)
    assert len(runs) == 3


def test_what_a_shim_refuses(operators):

    native = _fast.native
    for wrong in ([], [0], None, ["x"] * 17):
        with pytest.raises(TypeError):
            native.connect_torch(wrong)
    with pytest.raises(ValueError, match="more arguments than a Shim takes"):
        native.Shim("accrt_gpu", "none", "accrt_gpu::none", "CPU", 0, 0, ((0, 0, 0),) * 17, ())
    with pytest.raises(RuntimeError, match="torch does not take the kernel"):
        native.Shim("accrt_gpu", "none", "accrt_gpu::none", "no such key", 0, 0, (), ())
    assert sorted(NAMES) == sorted({*SAMPLES, "add_one", "given"})
