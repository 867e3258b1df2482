"""accrt.torch: functions of bundles as torch operators, with their kernels in Python and in C. Runs
where torch is installed: `./dev torch-test`."""
from __future__ import annotations

import gc
import itertools
import pathlib
import re
import subprocess
import sys
import threading
import types

import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile, Module

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = [kh.host_targets()[-1]]
SPACE = "accrt_test"
fresh = itertools.count()


def module():
    m = Module("operators")
    n, k = m.symbol("n", maximum=1 << 16), m.symbol("k", minimum=1, maximum=1 << 12)
    length = m.symbol("length", maximum=1 << 16)
    for dtype in ("f32", "f64"):
        f = m.function(f"rms_{dtype}")
        x, w, b = f.input("x", dtype, [n, 16]), f.input("w", dtype, [16]), f.input("b", dtype, [16])
        scale = ((x * x).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
        f.result("y", x * scale * w + b)
        f.result("scale", scale)
        g = m.function(f"rms_{dtype}_backward")
        dy, x, w = g.input("grad_y", dtype, [n, 16]), g.input("x", dtype, [n, 16]), g.input("w", dtype, [16])
        scale = g.input("scale", dtype, [n, 1])
        unit = x * scale
        inner = (dy * w * unit).sum(-1, keepdim=True) * (1 / 16)
        g.result("grad_x", (dy * w - unit * inner) * scale)
        g.result("grad_w", (dy * unit).sum(0))
        g.result("grad_b", dy.sum(0))
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
    f = m.function("biased")
    x, b = f.input("x", "f32", [n]), f.input("b", "f32", [n], optional=True)
    f.result("y", f.cond(f.present(b), lambda: x + b, lambda: x * 2.0)[0])
    f = m.function("half")
    f.result("y", f.input("x", "bf16", [n, 8]) + f.input("y2", "bf16", [n, 8]))
    f = m.function("mixed")
    x, w, scale = f.input("x", "bf16", [n, 8]), f.input("w", "f32", [8]), f.input("scale", "f16", [])
    f.input("count", "i64", [n])
    f.result("y", x.to_copy("f32") * w + scale.to_copy("f32"))
    g = m.function("mixed_backward")
    dy, x, w = g.input("grad_y", "f32", [n, 8]), g.input("x", "bf16", [n, 8]), g.input("w", "f32", [8])
    g.result("grad_x", (dy * w).to_copy("bf16"))
    g.result("grad_w", (dy * x.to_copy("f32")).sum(0))
    f = m.function("half_written")
    x = f.input("x", "bf16", [n, 8], access="read_write")
    (x + f.input("by", "bf16", [8])).write_input("x")
    f = m.function("given")
    f.result("y", f.input("x", "f32", [n, 8], access="donated") * 3.0)
    return m


@pytest.fixture(scope="module")
def bundle(instance):
    return accrt.Bundle(compile(module(), targets=TARGETS), instance)


NAMES = ("rms_f32", "rms_f64", "silu_mul", "two", "add_one", "take", "biased", "half", "given")


def registered(bundle, space):
    import accrt.torch

    program, backward = bundle.program(), {"rms_f32": "rms_f32_backward", "rms_f64": "rms_f64_backward"}
    return {name: accrt.torch.operator(program, name, backward=backward.get(name), name=f"{space}::{name}") for name in NAMES}


@pytest.fixture(scope="module")
def in_c(bundle):
    """Operators whose kernels are in C, where they can be."""
    from accrt.torch import _shim

    if not _shim._found():
        pytest.skip("accrt._native or torch's C functions are not there")
    return registered(bundle, f"{SPACE}_c")


@pytest.fixture(scope="module", params=("python", "c", "c again"))
def operators(request, bundle):
    """Every test is run with kernels in Python, in C, and in C with the shapes of the run
    before."""
    if request.param != "python":
        return request.getfixturevalue("in_c")
    from accrt.torch import _shim

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shim, "_fits", lambda operator: False)
        patch.setattr(_shim, "enter", lambda *given: None)
        return registered(bundle, SPACE)


def rms(x, w, b):
    return torch.nn.functional.rms_norm(x, (16,), w, 1e-5) + b


def arguments(dtype=torch.float32, rows=5, grad=True):
    torch.manual_seed(rows)
    return [torch.randn(*shape, dtype=dtype).requires_grad_(grad) for shape in ((rows, 16), (16,), (16,))]


def test_schemas_are_exact(operators):
    said = {name: str(op._schema).partition("(")[2] for name, op in operators.items()}
    assert said["rms_f32"] == "Tensor x, Tensor w, Tensor b) -> (Tensor, Tensor)"
    assert said["add_one"] == "Tensor(a!) x, Tensor by) -> ()"
    assert said["take"] == "Tensor x, SymInt count) -> Tensor"
    assert said["biased"] == "Tensor x, Tensor? b) -> Tensor"
    assert said["given"] == "Tensor x) -> Tensor"
    assert torch.Tag.pt2_compliant_tag in operators["rms_f32"].tags


@pytest.mark.parametrize("rows", (0, 1, 5, 1000))
def test_forward_and_backward_beside_torch(operators, rows):
    ours, theirs = arguments(rows=rows), arguments(rows=rows)
    y, wanted = operators["rms_f32"](*ours)[0], rms(*theirs)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    given = torch.randn(rows, 16)
    y.backward(given)
    wanted.backward(given)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_a_result_without_a_gradient_says_so(operators):
    """rms_f32_backward takes grad_y and no grad_scale: a gradient of scale would be lost."""
    for _ in range(3):
        y, scale = operators["rms_f32"](*arguments())
        assert y.requires_grad and not scale.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        scale.sum().backward()
    torch._dynamo.reset()
    y, scale = torch.compile(lambda *a: operators["rms_f32"](*a), backend="aot_eager", fullgraph=True)(*arguments())
    assert y.requires_grad and not scale.requires_grad


def test_gradcheck(operators):
    inputs = arguments(torch.float64, 3)
    assert torch.autograd.gradcheck(lambda *a: operators["rms_f64"](*a)[0], inputs)


@pytest.mark.parametrize("name", ("rms_f32", "silu_mul", "two", "add_one", "take", "biased", "half", "given"))
def test_opcheck(operators, name):
    eight = torch.ones(3, 8)
    samples = {"rms_f32": arguments(), "silu_mul": (torch.ones(3, 7), torch.ones(3, 7)), "two": (eight,), "add_one": (eight, torch.ones(8)),
               "take": (eight, 2), "biased": (torch.ones(4), None), "half": (eight.bfloat16(), eight.bfloat16()), "given": (eight,)}
    found = torch.library.opcheck(operators[name], samples[name])
    assert set(found.values()) == {"SUCCESS"}
    if name == "biased":
        torch.library.opcheck(operators[name], (torch.ones(4), torch.ones(4)))


def test_it_runs_on_torchs_own_memory(operators, monkeypatch):
    import accrt.torch._operator as module

    seen, run = [], module.Runner.__call__
    monkeypatch.setattr(module.Runner, "__call__", lambda self, function, inputs, outputs: (seen.append([t.data_ptr() for t in (*inputs, *outputs)]),
                                                                                           run(self, function, inputs, outputs))[1])
    rows = 64 + next(fresh)  # shapes that are new are for the kernels in Python
    x, y = torch.randn(rows, 16), torch.randn(rows, 16)
    z = operators["silu_mul"](x, y)
    assert seen == [[x.data_ptr(), y.data_ptr(), z.data_ptr()]]


def test_strides_offsets_and_shapes(operators):
    op = operators["silu_mul"]
    base = torch.randn(9, 33)
    for x in (base[1:, 1:], base.T, base[:, ::2], base[::3], base[:0], torch.randn(1, 33).expand(9, 33), torch.randn(40)[3:12].view(3, 3)):
        y = torch.randn(*x.shape)
        torch.testing.assert_close(op(x, y), torch.nn.functional.silu(x) * y)
    before = base.clone()
    op(base.T, base.T)
    assert torch.equal(base, before)


def test_mutation_in_place_of_any_strides(operators):
    for x in (torch.zeros(3, 8), torch.zeros(8, 3).T, torch.zeros(4, 9)[1:, 1:]):
        version = x._version
        assert operators["add_one"](x, torch.ones(8)) is None
        assert (x == 1).all() and x._version > version
    x = torch.zeros(1, 8)
    operators["add_one"](x, x[0])  # what is read stays as it was
    assert (x == 0).all()
    with pytest.raises(RuntimeError, match="writes x, which requires grad"):
        operators["add_one"](torch.zeros(3, 8, requires_grad=True), torch.ones(8))
    given = torch.ones(3, 8)
    assert (operators["given"](given) == 3).all() and (given == 1).all()


def test_scalars_and_optional_inputs(operators):
    x = torch.arange(40.0).view(5, 8)
    assert torch.equal(operators["take"](x, 3), x[:3])
    b = torch.ones(4)
    assert torch.equal(operators["biased"](b, None), b * 2) and torch.equal(operators["biased"](b, b + 1), b + 2)


def test_bfloat16(operators):
    x = torch.randn(3, 8).bfloat16()
    assert torch.equal(operators["half"](x, x), x + x)


def test_autocast_casts_to_the_declared_type(operators):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = operators["silu_mul"](torch.ones(2, 4).bfloat16(), torch.ones(2, 4))
    assert z.dtype == torch.float32


def test_autocast_casts_each_input_to_its_own_type(bundle):
    import accrt.torch

    mixed = accrt.torch.operator(bundle, "mixed", backward="mixed_backward", name=f"{SPACE}::mixed_{next(fresh)}")
    x, w, scale, count = torch.randn(3, 8), torch.randn(8), torch.tensor(0.5), torch.arange(3)
    wanted = x.bfloat16().float() * w + 0.5
    with pytest.raises(TypeError, match="x is of torch.float32"):
        mixed(x, w, scale, count)
    leaves = [x.clone().requires_grad_(), w.bfloat16().requires_grad_()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(mixed(x, w, scale, count), wanted)
        for call in (mixed, torch.compile(lambda *given: mixed(*given), fullgraph=True, backend="aot_eager")):
            for leaf in leaves:
                leaf.grad = None
            call(*leaves, scale, count).sum().backward()
            assert [leaf.grad.dtype for leaf in leaves] == [torch.float32, torch.bfloat16]
            torch.testing.assert_close(leaves[0].grad, w.bfloat16().float().bfloat16().float().expand(3, 8))
            torch.testing.assert_close(leaves[1].grad, x.bfloat16().float().sum(0).bfloat16())
        # which torch does not cast either
        with pytest.raises(TypeError, match="w is of torch.float64"):
            mixed(x, w.double(), scale, count)
        with pytest.raises(TypeError, match="count is of torch.float32"):
            mixed(x, w, scale, count.float())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False), pytest.raises(TypeError):
        mixed(x, w, scale, count)


def test_autocast_casts_nothing_that_is_written(bundle):
    import accrt.torch

    add = accrt.torch.operator(bundle, "half_written", name=f"{SPACE}::half_written_{next(fresh)}")
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        add(x, torch.ones(8))  # what is read alone is cast
        assert (x == 1).all()
        with pytest.raises(TypeError, match="x is of torch.float32"):
            add(x.float(), torch.ones(8))


def test_vmap_of_what_writes_is_refused_by_name(operators):
    x = torch.zeros(4, 3, 8)
    with pytest.raises(RuntimeError, match="add_one.*writes x, and torch.vmap maps no operator that writes: give what it writes as a result") as told:
        torch.vmap(operators["add_one"], in_dims=(0, None))(x, torch.ones(8))
    assert "\n" not in str(told.value) and (x == 0).all()


def test_tags(operators):
    for operator in operators.values():
        assert torch.Tag.pt2_compliant_tag in operator.tags
        assert {torch.Tag.needs_exact_strides, torch.Tag.needs_fixed_stride_order} & set(operator.tags)
        assert torch.Tag.flexible_layout not in operator.tags


def test_vmap(operators):
    x, y = torch.randn(3, 5, 7), torch.randn(5, 7)
    found = torch.vmap(operators["silu_mul"], in_dims=(0, None))(x, y)
    torch.testing.assert_close(found, torch.nn.functional.silu(x) * y)
    a, b = torch.vmap(operators["two"], in_dims=1)(torch.ones(4, 6, 8))
    assert a.shape == (6, 4, 8) and b.shape == (6, 8, 8)


@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_without_a_break(operators, dynamic):
    def model(x, w, b):
        return operators["rms_f32"](x * 2, w, b)[0].relu().sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (5, 9):
        ours, theirs = arguments(rows=rows), arguments(rows=rows)
        loss, wanted = compiled(*ours), rms(theirs[0] * 2, *theirs[1:]).relu().sum()
        torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-4)
        loss.backward()
        wanted.backward()
        for one, other in zip(ours, theirs):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


def test_mutation_under_compile(operators):
    def model(x):
        y = x + 1
        operators["add_one"](y, torch.ones(8))
        return y * 2

    assert (torch.compile(model, fullgraph=True, backend="aot_eager")(torch.zeros(3, 8)) == 4).all()


def test_exported_with_dynamic_rows(operators):
    class Model(torch.nn.Module):
        def forward(self, x, y):
            return operators["silu_mul"](x, y), operators["two"](x)[1]

    rows = torch.export.Dim("rows", min=2, max=100)
    program = torch.export.export(Model(), (torch.ones(4, 8), torch.ones(4, 8)), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    z, twice = program.module()(torch.ones(9, 8), torch.ones(9, 8))
    assert z.shape == (9, 8) and twice.shape == (18, 8)


def test_the_cast_of_a_weight_is_python():
    from accrt import _dimensions

    wanted = _dimensions.Type(torch.float32, (2,), "f32[2]")
    with pytest.raises(TypeError, match=r"^f: 0\.bias is of torch\.float64, and f32\[2\] is needed: tensor\.to\(torch\.float32\) converts it$"):
        _dimensions.bind("f", [("0.bias", wanted)], [torch.ones(2).double()], {}, [True])


def test_wrong_tensors_are_one_clear_line(operators):
    x, w, b = arguments()
    op = operators["rms_f32"]
    for wrong, error, text in (((x.double(), w, b), TypeError, r"x is of torch.float64, and f32\[n, 16\] is needed"),
                               ((x, w[None], b), ValueError, r"w has 2 dimensions, and f32\[16\] is needed"),
                               ((x[:, :8], w, b), ValueError, "dimension 1 of x is 8"),
                               ((x.to("meta"), w.to("meta")[:3], b.to("meta")), ValueError, "dimension 0 of w is 3"),
                               ((x.bfloat16(), w, b), TypeError, r"is needed: x\.to\(torch\.float32\) converts it$"),
                               ((x.detach().to_sparse(), w, b), TypeError, r"'rms_f32'.*: x is a torch\.sparse_coo tensor: pass x\.to_dense\(\)$"),
                               ((x, w.detach().to_sparse(), b), TypeError, r"w is a torch\.sparse_coo tensor"),
                               ((x.detach().to_sparse_csr(), w, b), TypeError, r"x is a torch\.sparse_csr tensor: pass x\.to_dense\(\)$"),
                               ((x.detach().to_mkldnn(), w, b), TypeError, r"x is a torch\._mkldnn tensor: pass x\.to_dense\(\)$"),
                               ((torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), w, b), TypeError, r"x is a quantized tensor: pass x\.dequantize\(\)$"),
                               ((torch.nested.nested_tensor([x.detach()[0], x.detach()[1]]), w, b), TypeError, r"x is a nested tensor: pass torch\.nested\.to_padded_tensor\(x, 0\.\)$")):
        with pytest.raises(error, match=text) as told:
            op(*wrong)
        assert "\n" not in str(told.value)
    for name in ("add_one", "given"):  # of a copy, the caller would not see the result
        with pytest.raises(TypeError, match=r"x is of torch\.float64, and f32\[n, 8\] is needed: pass a tensor of torch\.float32$"):
            operators[name](torch.ones(2, 8).double(), *[torch.ones(8)] * (name == "add_one"))
    with pytest.raises(accrt.OutOfRangeError, match="9 elements from 0 on do not fit in 3"):
        operators["take"](torch.ones(3, 8), 9)
    # the next call is fine
    assert torch.equal(operators["take"](torch.ones(3, 8), 2), torch.ones(2, 8))
    with pytest.raises(RuntimeError, match="silu_mul.* has no backward"):
        operators["silu_mul"](torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize("at", (0, 1))
def test_meta_tensors_among_others_are_refused(operators, at):
    """torch gives them to what makes the results of meta tensors: nothing had been written
    there."""
    given = [torch.ones(3, 7), torch.ones(3, 7)]
    given[at] = given[at].to("meta")
    with pytest.raises(ValueError, match="its tensors are on (cpu and on meta|meta and on cpu)"):
        operators["silu_mul"](*given)
    assert operators["silu_mul"](*[t.to("meta") for t in given]).shape == (3, 7)


def test_none_is_refused(operators):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with pytest.raises(TypeError, match="by is None, and is not optional"):
        operators["add_one"](torch.ones(3, 8), None)
    with FakeTensorMode(), pytest.raises(TypeError, match="by is None, and is not optional"):
        operators["add_one"](torch.ones(3, 8), None)


def test_a_negated_view_is_written(operators):
    base = torch.zeros(3, 8)
    x = torch._neg_view(base)
    operators["add_one"](x, torch.ones(8))
    assert (x == 1).all() and (base == -1).all()


def test_from_many_threads(operators):
    def work(seed):
        x = torch.full((50, 16), float(seed))
        for _ in range(30):
            z = operators["silu_mul"](x, x)
        right[seed] = torch.allclose(z, torch.nn.functional.silu(x) * x)

    right = {}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == dict.fromkeys(range(4), True)


def test_results_live_on_their_own(operators):
    x = torch.randn(1000, 16)
    z = operators["silu_mul"](x, x)
    wanted = torch.nn.functional.silu(x) * x
    del x
    gc.collect()
    assert torch.allclose(z, wanted)


def test_what_cannot_be_an_operator_is_refused(bundle, instance, operators):
    import accrt.torch

    taken = operators["two"]._schema.name
    with pytest.raises(ValueError, match=f"there is an operator {taken} already"):
        accrt.torch.operator(bundle, "two", name=taken)
    with pytest.raises(ValueError, match="expected 'namespace::operator'"):
        accrt.torch.operator(bundle, "two", name="two")
    with pytest.raises(accrt.NotFoundError, match="silu_mul"):
        accrt.torch.operator(bundle, "silu_mull")
    with pytest.raises(ValueError, match="takes 'y', which is no input or result of 'two'"):
        accrt.torch.operator(bundle, "two", backward="silu_mul", name=f"{SPACE}::two_again")
    m = Module("kept")
    f, state = m.function("f"), m.state("total", "f32", [4])
    (f.state_read(state) + f.input("x", "f32", [4])).state_write(state, [0])
    with pytest.raises(ValueError, match="the bundle has states"):
        accrt.torch.operator(accrt.Bundle(compile(m, targets=TARGETS), instance), "f", name=f"{SPACE}::kept")
    m = Module("shared")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [4], access="donated") + 1.0, alias="x")
    m2 = Module("must")
    f = m2.function("f")
    f.result("y", f.input("x", "f32", [4], access="donated") + 1.0, alias="x", alias_must=True)
    with pytest.raises(ValueError, match="shares the memory of an input"):
        accrt.torch.operator(accrt.Bundle(compile(m2, targets=TARGETS), instance), "f", name=f"{SPACE}::must")
    given = torch.ones(4)
    shared = accrt.torch.operator(accrt.Bundle(compile(m, targets=TARGETS), instance), "f", name=f"{SPACE}::shared_{next(fresh)}")
    # it may share, and has memory of its own
    assert (shared(given) == 2).all() and (given == 1).all()


def test_a_path_and_its_default_name(tmp_path):
    path = tmp_path / "my-norms.accx"
    compile(module(), path, targets=TARGETS)
    program = ("import accrt, torch\nop = accrt.torch.operator(%r, 'silu_mul')\nassert op is torch.ops.my_norms.silu_mul.default, op\n"
               "print(op(torch.zeros(2, 3), torch.zeros(2, 3)).sum().item())" % str(path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "0.0\n", done.stderr


def test_the_guide_runs(tmp_path):
    # this tree is not installed
    text = (ROOT / "docs/torch.md").read_text().replace('backend="accrt"', "backend=accrt.torch.backend")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)).replace("/tmp/", f"{tmp_path}/")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "norms::rms_norm(Tensor x, Tensor w) -> (Tensor, Tensor)\n" in done.stdout, done.stderr


def test_the_way_of_gpus_on_the_host(bundle, monkeypatch):
    """accrt.torch._cuda and its C part, with a stream of the host's in place of torch's:
    tests/gpu/test_torch_operator.py is for real."""
    import ctypes

    from accrt import _fast
    from accrt.torch import _cuda

    captured = []
    is_capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(
        lambda stream, out: (out.__setitem__(0, len(captured)), 0)[1])
    for name, value in (("_cuda_getCurrentRawStream", lambda index: 7), ("_cuda_getDevice", lambda: 0), ("_cuda_isCurrentStreamCapturing", lambda: False)):
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(_cuda.Stream, "wrap", lambda device, native: accrt.Stream(device))
    monkeypatch.setattr(_cuda, "_driver", lambda: type("Driver", (), {"cuStreamIsCapturing": is_capturing}))
    monkeypatch.setattr(_cuda, "_maker", lambda: torch.empty_strided)
    runner = _cuda.OnGpu(bundle.program(), 0)
    runner._window = _cuda.Window(runner.program.device, 1 << 16)  # below all tensors that come

    def done():
        for lane in runner._idle[7]:
            lane.session.stream.synchronize()

    x, y, wide = torch.randn(5, 8), torch.nn.Parameter(torch.randn(5, 8)).requires_grad_(False), torch.randn(5, 16)
    wanted = torch.nn.functional.silu(x) * y
    for _ in range(2):
        z = torch.empty(5, 8)
        runner("silu_mul", (x, y, z))
        done()
        torch.testing.assert_close(z, wanted)
    z = torch.empty(5, 8)
    copy = wide[:, ::2].contiguous()  # which torch's allocator keeps in order on a GPU
    runner("silu_mul", (wide[:, ::2], y, z), lambda: (copy, y, z))
    done()
    torch.testing.assert_close(z, torch.nn.functional.silu(wide[:, ::2]) * y)
    with pytest.raises(accrt.Error):
        runner("silu_mul", (x, y[:3], z))
    with pytest.raises(accrt.Error):
        runner("silu_mul", (x.double(), y, z))
    runner("silu_mul", (x[:0], y[:0], z[:0]))
    done()
    if _fast.native is None:
        return
    quick = runner.quick("silu_mul", 2)
    assert quick(x, y) is NotImplemented  # of shapes that are new
    quick.learn((x, y), (((tuple(x.shape), x.stride()), {"dtype": torch.float32}),))
    z = quick(x, y)
    done()
    torch.testing.assert_close(z, wanted)
    for given in ((x[:3], y), (x,), (x, None), (x, 3), (wide[:, ::2], y), (x.double(), y), (x.to("meta"), y), ("x", y)):
        assert quick(*given) is NotImplemented
    captured.append(1)
    assert quick(x, y) is NotImplemented
    captured.clear()
    for rows in range(20):  # more than it remembers
        quick.learn((x[:rows], y[:rows]), (((tuple(x[:rows].shape), (8, 1)), {"dtype": torch.float32}),))
    runner._idle[7].clear()
    assert quick(x, y) is NotImplemented
    # kept, as torch's allocator keeps them in order on a GPU
    results = torch.empty(2, 8), torch.empty(5, 8), torch.empty(10, 8)
    take = runner.quick("take", 2)
    runner("take", (x, 2, results[0]))
    done()
    take.learn((x, 2), ((((2, 8), (8, 1)), {"dtype": torch.float32}),))
    assert take(x, 3) is NotImplemented
    z = take(x, 2)
    done()
    assert torch.equal(z, x[:2])
    two = runner.quick("two", 1)
    runner("two", (x, *results[1:]))
    done()
    two.learn((x,), ((((5, 8), (8, 1)), {"dtype": torch.float32}), (((10, 8), (8, 1)), {"dtype": torch.float32})))
    a, b = two(x)
    done()
    assert torch.equal(a, x + 1) and torch.equal(b, torch.cat([x, x]))


def test_sizes_are_expressions_that_are_read_and_not_run():
    from accrt.torch import _shapes

    found = _shapes.parsed("x", "f32[ceildiv(n, 4) * 2, max(n, 3), select(not(n == 3), 5, 7), n // 2 % 3]")
    assert [_shapes.size_of(d, {"n": 10}, []) for d in found.dims] == [6, 10, 5, 2]
    for text in ("f32[__import__('os')]", "f32[n.real]", "f32[...]", "f32[n", "f32 opaque[4]", "f8[4]", "f32['a']", "f32[[1]]", "f32[n for n in x]"):
        with pytest.raises(ValueError, match="x is "):
            _shapes.parsed("x", text)


def test_a_gpu_call_that_is_refused_for_its_layout_is_tried_with_copies(monkeypatch):
    """The step in C takes contiguous and aligned tensors: others are copied for it, but not in a
    capture."""
    from accrt.torch import _operator

    given, capturing = [], [False]

    def quick(*values):
        given.append(values)
        return "made" if all(map(_operator._is_plain, values)) else NotImplemented

    class Stopped(Exception):
        pass

    def slow(_values):
        raise Stopped

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    operator = types.SimpleNamespace(_quick=quick, weights=None, _index=slow)
    x = torch.arange(64.0).view(8, 8)
    for tensor, calls in ((x, 1), (x.T, 2), (torch.arange(65.0)[1:], 2), (torch._neg_view(x), 2), (None, 1)):
        given.clear()
        assert _operator.Operator.run_on_gpu(operator, tensor, 3) == "made" and len(given) == calls
        assert tensor is None or torch.equal(given[-1][0], tensor)
    capturing[0] = True
    with pytest.raises(Stopped):
        _operator.Operator.run_on_gpu(operator, x.T, 3)
