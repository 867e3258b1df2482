"""The operators of examples/torch_operators: RMSNorm, LayerNorm, softmax, SwiGLU and rotary
embedding, and those that do more at once, forward and backward, beside torch in float64. Runs where
torch is installed: `./dev torch-test`. tests/gpu/test_operators_to_copy.py has the same on a
GPU."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("rms_norm", "layer_norm", "softmax", "swiglu", "rope", "masked_softmax", "swiglu_halves", "rope_heads")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
#: Of a result's largest element, and of each element: a few roundings, more for f32 and f64, which
#: sums are calculated in.
ERRORS = {torch.float32: 2.0**-19, torch.float64: 2.0**-47, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
#: (3, 130) has groups of one row and of several; 4100 is more than a softmax keeps at once.
SHAPES = ((1, 4), (7, 6), (5, 33, 34), (2, 3, 17, 66), (3, 4100), (700, 130), (4, 1, 1, 256))


def example():
    spec = importlib.util.spec_from_file_location("torch_operators", ROOT / "examples/torch_operators/operators.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def device():
    return "cpu"


@pytest.fixture(scope="module")
def made(device):
    return example()


@pytest.fixture(scope="module")
def ops(made, device):
    return made.load(device, space=f"accrt_example_{device}")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def given(made, name, shape, dtype, device):
    tensors = made.arguments(name, shape, dtype, device)
    for tensor in made.differentiable(name, tensors):
        tensor.requires_grad_()
    return tensors


def call(source, name, *tensors):
    """An operator's result; several in one."""
    found = getattr(source, name)(*tensors)
    return torch.stack(found) if isinstance(found, tuple) else found


def gradients(found, tensors, grad):
    return torch.autograd.grad(found, [t for t in tensors if t.requires_grad], grad)


def near(found, wanted, factor=1.0):
    """Beside the exact one: `found` has its type, `wanted` is of float64."""
    assert found.shape == wanted.shape and found.device == wanted.device
    error, allowed = (found.double() - wanted).abs(), ERRORS[found.dtype] * factor
    assert (error <= allowed * wanted.abs() + allowed * (wanted.abs().max() if wanted.numel() else 0)).all(), error.max()


def both(made, ops, name, tensors, factor=1.0):
    """The result and the gradients, beside torch's in float64 of the same numbers."""
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    found, wanted = call(ops, name, *tensors), call(made.Eager(), name, *exact)
    near(found, wanted, factor)
    assert found.dtype == tensors[0].dtype
    grad = torch.randn_like(found)
    mine = gradients(found, tensors, grad)
    for one, other, tensor in zip(mine, gradients(wanted, exact, grad.double()), [t for t in tensors if t.requires_grad]):
        assert one.dtype == tensor.dtype
        # whose gradient is of the result, which is rounded
        near(one, other, factor * (2 if "softmax" in name else 1))
    return found, mine


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_beside_torch_in_float64(made, ops, device, name, dtype, shape):
    both(made, ops, name, given(made, name, shape, DTYPES[dtype], device))


@pytest.mark.parametrize("dtype", ("bf16", "f16", "f32"))
@pytest.mark.parametrize("name", NAMES)
def test_as_near_as_torch_itself(made, ops, device, name, dtype):
    """Largest errors of the result and of each gradient beside those of torch's own operators in
    this type."""
    tensors = given(made, name, (64, 200), DTYPES[dtype], device)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    wanted = call(made.Eager(), name, *exact)
    grad = torch.randn_like(wanted).to(tensors[0].dtype)
    right = [wanted, *gradients(wanted, exact, grad.double())]
    errors = []
    for source in (ops, made.Eager()):
        found = call(source, name, *tensors)
        errors.append([(a.double() - b).abs().max().item() for a, b in zip([found, *gradients(found, tensors, grad)], right)])
    rounding = {"bf16": 2.0**-9, "f16": 2.0**-12, "f32": 2.0**-22}[dtype]
    for mine, torchs, exactly in zip(*errors, right):
        assert mine <= 1.5 * torchs + rounding * exactly.abs().max().item()


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(made, ops, device, name):
    for shape in ((3, 4), (2, 3, 6), (1, 2)):
        assert torch.autograd.gradcheck(lambda *t: call(ops, name, *t), given(made, name, shape, torch.float64, device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(made, ops, device, name, dtype):
    raw = ops.raw[name, DTYPES[dtype]]
    flat = {"swiglu": (24,), "swiglu_halves": (3, 2, 8)}.get(name, (2, 5, 8) if name in ("rope", "rope_heads", "masked_softmax") else (3, 8))
    tensors = given(made, name, flat, DTYPES[dtype], device)
    turned = [t.detach().t().contiguous().t().requires_grad_() if t.dim() == 2 else t for t in tensors]
    for sample in (tensors, turned, [t.detach() for t in tensors]):
        assert set(torch.library.opcheck(raw, sample).values()) == {"SUCCESS"}


LAYOUTS = {
    "turned": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "a part": lambda t: torch.nn.functional.pad(t, (3, 5, 1, 2))[..., 1:-2, 3:-5], "an odd address": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_not_contiguous(made, ops, device, name, layout):
    """Results have the same bits; gradients reach the tensor that was given."""
    for dtype in (torch.float32, torch.bfloat16):
        plain = [t.detach() for t in given(made, name, (4, 6, 10), dtype, device)]
        other = [LAYOUTS[layout](t) if t.dim() > 2 else t for t in plain]
        assert not any(o.is_contiguous() and layout != "an odd address" for o, p in zip(other, plain) if p.dim() > 2)
        for tensors in (plain, other):
            tensors[0].requires_grad_()
        found = [call(ops, name, *tensors) for tensors in (plain, other)]
        assert torch.equal(*found)
        grad = torch.randn_like(found[0])
        for layouts in (grad, grad.transpose(0, 1).contiguous().transpose(0, 1)):
            one, two = (torch.autograd.grad(f, t[0], layouts, retain_graph=True)[0] for f, t in zip(found, (plain, other)))
            assert torch.equal(one, two)
    x, *rest = [t.detach() for t in given(made, name, (4, 6, 10), torch.float32, device)]
    x = x[:1, :1].expand(x.shape)
    assert torch.equal(call(ops, name, x, *rest), call(ops, name, x.contiguous(), *rest))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_at_all(made, ops, device, name, dtype):
    """Without rows there are no results, and gradients of weights are zeros."""
    for shape in ((0, 8), (4, 0, 8), (0, 3, 8), (2, 0, 0, 8)):
        tensors = given(made, name, shape, DTYPES[dtype], device)
        found = call(ops, name, *tensors)
        assert found.shape == call(made.Eager(), name, *tensors).shape and found.dtype == DTYPES[dtype]
        for made_of, grad in zip([t for t in tensors if t.requires_grad], gradients(found, tensors, torch.zeros_like(found))):
            assert grad.shape == made_of.shape and (grad == 0).all()


@pytest.mark.parametrize("dtype", ("f32", "bf16", "f16"))
def test_numbers_at_the_edges(made, ops, device, dtype):
    kind, inf, most = DTYPES[dtype], float("inf"), {"f32": 1e18, "bf16": 1e18, "f16": 6e4}[dtype]
    x = torch.tensor([[0.0, -inf, 1.0, -inf], [most, -most, 0.0, 0.0], [-inf] * 4, [float("nan"), 0, 0, 0]], dtype=kind, device=device)
    y = ops.softmax(x.requires_grad_())
    torch.testing.assert_close(y, x.detach().softmax(-1), equal_nan=True)
    near(torch.autograd.grad(y[:2].sum(), x)[0][:2], torch.zeros(2, 4, dtype=torch.float64, device=device))
    gate = torch.tensor([-most, -100.0, -0.0, 100.0, most], dtype=kind, device=device, requires_grad=True)
    z = ops.swiglu(gate, torch.ones_like(gate))
    assert z.tolist()[:3] == [0.0, 0.0, 0.0] and torch.equal(z[3:], gate[3:]) and torch.autograd.grad(z.sum(), gate)[0].tolist() == [0, 0, 0.5, 1, 1]
    zeros = torch.zeros(2, 8, dtype=kind, device=device, requires_grad=True)
    ones = torch.ones(8, dtype=kind, device=device)
    for found in (ops.rms_norm(zeros, ones), ops.layer_norm(zeros, ones, ones * 0)):
        assert (found == 0).all() and torch.autograd.grad(found.sum(), zeros)[0].isfinite().all()
    # the variance is not taken from squares
    far = (torch.randn(4, 512, device=device) + 1e3).requires_grad_()
    both(made, ops, "layer_norm", [far, torch.ones(512, device=device), torch.zeros(512, device=device)], 2**8)


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_refused(made, ops, device, name):
    x, *rest = given(made, name, (3, 4, 8), torch.float32, device)
    with pytest.raises(KeyError):
        getattr(ops, name)(x.long(), *rest)
    if rest:
        with pytest.raises((ValueError, TypeError), match="is needed"):
            getattr(ops, name)(x, *[t[..., :3] for t in rest])
        with pytest.raises(TypeError, match="is needed"):
            getattr(ops, name)(x, *[t.half() for t in rest])


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_exported(made, ops, device, name, dynamic):
    """No graph breaks, forward and backward; sizes stay symbols."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: call(ops, name, *t).sin(), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (5, 9):
        tensors = given(made, name, (3, rows, 8), torch.float32, device)
        plain = call(ops, name, *tensors).sin()
        found = compiled(*tensors)
        torch.testing.assert_close(found, plain)
        for one, other in zip(gradients(found, tensors, torch.ones_like(found)), gradients(plain, tensors, torch.ones_like(plain))):
            torch.testing.assert_close(one, other)

    class Model(torch.nn.Module):
        def forward(self, *t):
            return call(ops, name, *t)

    first = [t.detach() for t in given(made, name, (4, 6, 8), torch.float32, device)]
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = (tuple({0: batch} if t.dim() > 2 else None for t in first),)
    exported = torch.export.export(Model(), tuple(first), dynamic_shapes=shapes)
    other = [t.detach() for t in given(made, name, (9, 6, 8), torch.float32, device)]
    assert torch.equal(exported.module()(*other), call(ops, name, *other))


@pytest.mark.parametrize("at_once", (False, True))
def test_a_block_trains(made, ops, device, at_once):
    """Ten steps of a transformer block of these operators go as with torch's own."""
    seen = torch.zeros(10, 10, device=device).masked_fill(torch.ones(10, 10, dtype=torch.bool, device=device).triu(1), -torch.inf)

    def block(source, p, x, cos, sin):
        h = source.rms_norm(x, p["norm"])
        product = (h @ p["qkv"]).view(*x.shape[:-1], 3, 2, 8)
        if at_once:
            q, k, v = source.rope_heads(product, cos, sin)
            weights = source.masked_softmax(q @ k.mT, seen)
        else:
            q, k, v = product.permute(2, 0, 3, 1, 4).unbind(0)
            q, k = source.rope(q, cos, sin), source.rope(k, cos, sin)
            weights = source.softmax(q @ k.mT / 8**0.5)
        x = x + (weights @ v).transpose(1, 2).flatten(2) @ p["out"]
        h = source.layer_norm(x, p["weight"], p["bias"]) @ p["up"]
        return x + (source.swiglu_halves(h) if at_once else source.swiglu(*h.chunk(2, -1))) @ p["down"]

    shapes = {"norm": (16,), "qkv": (16, 48), "out": (16, 16), "weight": (16,), "bias": (16,), "up": (16, 64), "down": (32, 16)}
    start = {name: torch.randn(shape, device=device) * 0.3 for name, shape in shapes.items()}
    x, target, losses = torch.randn(2, 10, 16, device=device), torch.randn(2, 10, 16, device=device), []
    for source in (ops, made.Eager()):
        p = {name: t.clone().requires_grad_() for name, t in start.items()}
        step = torch.optim.SGD(p.values(), lr=0.05)
        losses.append([])
        for _ in range(10):
            loss = (block(source, p, x, *made.angles(10, 8, device=device)) - target).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-3, atol=1e-4)
    assert losses[0][-1] < losses[0][0]


# ---- More than 2^31 elements ----

ROWS, COLUMNS = 2**21 + 2**10, 2**10  # of 2 bytes: 4.3 GB for each tensor
BLOCK = 2**10  # rows, of which all are copies, so that what is right is known


def free_bytes(device):
    if device != "cpu":
        return torch.cuda.mem_get_info()[0]
    text = pathlib.Path("/proc/meminfo").read_text()
    return 1024 * int(text.split("MemAvailable:")[1].split()[0])


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("name", NAMES[:5])
def test_more_than_two_to_the_31_elements(made, ops, device, name, backward):
    if not os.environ.get("ACCRT_TEST_ALL"):
        pytest.skip("it takes a minute and up to 22 GB: ACCRT_TEST_ALL=1 runs it")
    dtype, large = torch.bfloat16, 2 * ROWS * COLUMNS
    count = (3 if name == "swiglu" else 2) + backward * (2 if name == "swiglu" else 1)
    if free_bytes(device) < (count + 0.25) * large:
        pytest.skip(f"{count} tensors of {large / 1e9:.1f} GB do not fit in the {free_bytes(device) / 1e9:.1f} GB that are free")
    function = ops.raw[name, dtype]
    if backward:
        function = getattr(torch.ops, function.namespace).__getattr__(f"{function._opname}_backward").default
    few = [t.detach() for t in made.arguments(name, (1, BLOCK, COLUMNS), dtype, device)]
    small = [*([torch.randn_like(few[0])] if backward else []), *(few[:-1] if backward and name == "layer_norm" else few)]
    if backward and name == "rope":
        small.pop(1)
    row = (lambda t: t.flatten()) if name == "swiglu" else (lambda t: t) if name == "rope" else (lambda t: t.flatten(0, 1) if t.dim() == 3 else t)
    wanted = function(*map(row, small))
    big = [row(t.expand(ROWS // BLOCK, *t.shape[1:]).reshape(-1, *t.shape[1:]) if t.dim() == 3 else t) for t in small]
    found = function(*big)
    for one, right in zip(*((made if isinstance(made, tuple) else (made,)) for made in (found, wanted))):
        if one.numel() > 2**31:
            assert all(torch.equal(part, right.flatten()) for part in one.view(-1, BLOCK * COLUMNS))
        else:  # a weight's gradient: sums of ROWS / BLOCK copies
            torch.testing.assert_close(one.float(), right.float() * (ROWS // BLOCK), rtol=0.02, atol=0.05 * (ROWS // BLOCK))
