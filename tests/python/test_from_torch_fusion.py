"""accrt.from_torch: what the compiler has whole stays whole, and on hosts operations are fused with
their neighbours: which kernels are left of a chain, and that its values are torch's. Runs where
torch is installed: `./dev torch-test`."""

from __future__ import annotations

import pytest

import accrt
from accrt.compiler import passes
from accrt.from_torch import convert
from test_from_torch import check, F, some, torch

pytestmark = pytest.mark.torch

VIEWS = ("view", "slice", "select", "expand")


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance()


class Chain(torch.nn.Module):
    """A function of tensors, with weights of its own."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.conv, self.wide = torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.each, self.up = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4), torch.nn.ConvTranspose2d(4, 8, 2, 2)
        self.line, self.linear = torch.nn.Conv1d(4, 8, 3), torch.nn.Linear(6, 5)
        self.batch, self.group, self.instance = torch.nn.BatchNorm2d(8), torch.nn.GroupNorm(2, 4), torch.nn.InstanceNorm2d(4, affine=True)
        self.layer, self.rms = torch.nn.LayerNorm(6), torch.nn.RMSNorm(6, eps=1e-6)
        self.embedding = torch.nn.Embedding(9, 6)
        with torch.no_grad():
            for name, tensor in (*self.named_parameters(), *self.named_buffers()):
                if tensor.dim() == 1 and tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape) + 0.5)
        self.register_buffer("places", torch.arange(6).flip(0).expand(2, 4, 6, 6).contiguous())

    def forward(self, *args):
        return self.function(self, *args)


def chain(function):
    torch.manual_seed(5)
    return Chain(function).eval().requires_grad_(False)


def names(module):
    return [op.name.partition(".")[2] for op in module.functions["forward"].body.walk()]


def kernels(module):
    """What a call of a host runs, without views."""
    return [name for name in names(passes.run(module)) if name not in VIEWS]


X, WIDE = (2, 4, 6, 6), (2, 8, 6, 6)
IN, OUT = "permute", "permute"  # into the order of channels last, and back
#: What is left of a chain. Work before and after a kernel that takes none of it is one kernel each.
#: Lookups are part of the work, and "staged" is a reduction with the work before and behind it.
CHAINS = {
    "conv": (lambda m, x: F.gelu(m.conv(x)), (X,), [IN, "conv_packed", OUT]),
    "conv, added, activation": (lambda m, x, y: F.relu(m.conv(x) + y), (X, WIDE), [IN, IN, "conv_packed", OUT]),
    "conv, norm, activation": (lambda m, x: F.relu(m.batch(m.conv(x))), (X,), [IN, "conv_packed", OUT]),
    "a residual block": (lambda m, x: F.relu(m.batch(m.wide(F.relu(m.batch(m.wide(x))))) + x), (WIDE,), [IN, "conv_packed", "conv_packed", OUT]),
    "convs and pools": (lambda m, x: F.max_pool2d(F.silu(m.wide(F.relu(m.conv(x)))), 2), (X,), [IN, "conv_packed", "conv_packed", "window", OUT]),
    "depthwise": (lambda m, x: F.silu(m.each(x)), (X,), [IN, "window", OUT]),
    "conv1d": (lambda m, x: F.gelu(m.line(x[:, :, 0])), (X,), [IN, "conv_packed", OUT]),
    "conv, group norm, activation": (lambda m, x: F.silu(m.group(m.each(x))), (X,), [IN, "window", "group_norm_last", OUT]),
    "conv, group norm, added, activation": (lambda m, x: F.relu(m.group(m.each(x)) + x), (X,), [IN, "window", "group_norm_last", OUT]),
    "bits, comparisons, casts, whole numbers": (lambda m, x: ((((x > 0).int() * 7 - (x > 1).int() * 9) // 2 % 4 & 3) | 4).float() * x.floor(), (X,), ["elementwise"]),
    "sum": (lambda m, x: F.relu((x * 2 + 1).sum(1)) - 1, (X,), ["staged"]),
    "index": (lambda m, x: F.relu((x * 2 + 1)[m.places[0, 0, 0, :2]]) - 1, ((6, 4),), ["elementwise"]),
    "transposed": (lambda m, x: F.relu(m.up(x)), (X,), [IN, "conv_packed", "permute", "elementwise", OUT]),
    "linear": (lambda m, x: F.gelu(m.linear(x)), (X,), ["matmul_packed"]),
    "pad": (lambda m, x: F.relu(F.pad(x * 2 + 1, (1, 2), value=3.0)) - 1, (X,), [*["elementwise"] * 3, "cat"]),
    "roll": (lambda m, x: F.relu((x * 2 + 1).roll(1, 3)) - 1, (X,), ["elementwise", "elementwise", "cat"]),
    "sort": (lambda m, x: F.relu((x * 2 + 1).sort(-1)[0]) - 1, (X,), ["elementwise", "sort", "elementwise"]),
    "topk": (lambda m, x: F.relu((x * 2 + 1).topk(3)[0]) - 1, (X,), ["elementwise", "topk", "elementwise"]),
    "argmax": (lambda m, x: (x * 2 + 1).abs().argmax(-1) * 2 + 1, (X,), ["staged"]),
    "nearest": (lambda m, x: F.relu(F.interpolate(x * 2 + 1, scale_factor=2)) - 1, (X,), ["elementwise", "elementwise"]),
    "max_pool": (lambda m, x: F.relu(F.max_pool2d(x * 2 + 1, 2)), (X,), ["elementwise", IN, "window", OUT]),
    "avg_pool": (lambda m, x: F.relu(F.avg_pool2d(x * 2 + 1, 2)), (X,), ["elementwise", IN, "window", OUT]),
    "adaptive_pool": (lambda m, x: F.relu(F.adaptive_avg_pool2d(x * 2 + 1, 1)) - 1, (X,), ["staged"]),
    "group_norm": (lambda m, x: F.silu(m.group(x * 2 + 1)) - 1, (X,), ["elementwise", "layer_norm", "elementwise"]),
    "instance_norm": (lambda m, x: F.silu(m.instance(x * 2 + 1)) - 1, (X,), ["elementwise", "layer_norm", "elementwise"]),
    "layer_norm": (lambda m, x: F.silu(m.layer(x * 2 + 1)) - 1, (X,), ["elementwise", "layer_norm", "elementwise"]),
    "softmax": (lambda m, x: F.softmax(x * 2 + 1, -1) * 3 - 1, (X,), ["elementwise", "softmax", "elementwise"]),
    "scatter": (lambda m, x: F.relu((x * 2 + 1).scatter(3, m.places, x * 2 + 1)) - 1, (X,), ["elementwise", "scatter", "elementwise"]),
    "index_put": (lambda m, x: F.relu((x * 2 + 1).index_put((m.places[0, 0, 0, 4:],), x * 2 + 1, accumulate=True)) - 1, (X,), ["elementwise", "scatter", "elementwise"]),
    "cumsum": (lambda m, x: F.relu((x * 2 + 1).cumsum(1)) - 1, (X,), ["staged"]),
    "cat": (lambda m, x: F.relu(torch.cat([x * 2 + 1, x], 1)) - 1, (X,), ["elementwise", "cat"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name, instance):
    function, shapes, wanted = CHAINS[name]
    module = check(chain(function), tuple(some(*shape) for shape in shapes), instance)
    assert kernels(module) == wanted


#: Modules and functions, and what each is after conversion beside views and constants.
WHOLE = {
    "linear": (lambda m, x: m.linear(x), ["linear"]), "conv2d": (lambda m, x: m.conv(x), ["conv2d"]), "depthwise": (lambda m, x: m.each(x), ["conv2d"]),
    "conv1d": (lambda m, x: m.line(x[:, :, 0]), ["conv2d"]), "matmul": (lambda m, x: x @ x, ["matmul"]),
    "layer_norm": (lambda m, x: m.layer(x), ["layer_norm"]), "rms_norm": (lambda m, x: m.rms(x), ["rms_norm"]), "group_norm": (lambda m, x: m.group(x), ["group_norm"]),
    "instance_norm": (lambda m, x: m.instance(x), ["group_norm"]), "softmax": (lambda m, x: x.softmax(-1), ["softmax"]),
    "embedding": (lambda m, x: m.embedding(m.places[0, 0, 0]) + x, ["embedding", "add"]), "max_pool2d": (lambda m, x: F.max_pool2d(x, 2), ["max_pool2d"]), "avg_pool2d": (lambda m, x: F.avg_pool2d(x, 2), ["avg_pool2d"]),
    "sort": (lambda m, x: x.sort()[0], ["sort"]), "topk": (lambda m, x: x.topk(2)[0], ["topk"]), "cumsum": (lambda m, x: x.cumsum(1), ["cumsum"]), "argmax": (lambda m, x: x.argmax(1), ["argmax"]),
    "scatter": (lambda m, x: x.scatter(3, m.places, x), ["scatter"]), "mean": (lambda m, x: x.mean(1), ["mean"]), "attention": (lambda m, x: F.scaled_dot_product_attention(x, x, x), ["scaled_dot_product_attention"]),
    **{name: (lambda m, x, name=name: getattr(F, name)(x), [name]) for name in ("gelu", "silu", "relu")},
    **{name: (lambda m, x, name=name: getattr(torch, name)(x), [name]) for name in ("sigmoid", "tanh", "exp", "erf", "rsqrt", "expm1", "log1p", "atan", "floor", "sin")},
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_compiler_has_stays_whole(name):
    function, wanted = WHOLE[name]
    module = convert(chain(function), (some(*X).abs(),))
    assert [name for name in names(module) if name not in VIEWS + ("full",)] == wanted


@pytest.mark.parametrize("name", ["softplus", "hardswish", "elu", "mish", "hardsigmoid", "logsigmoid", "selu", "leaky_relu", "softsign", "tanhshrink"])
def test_what_is_made_of_several_is_one_kernel(name):
    assert kernels(convert(chain(lambda m, x: getattr(F, name)(x)), (some(*X),))) == ["elementwise"]


def test_a_batch_norm_after_a_convolution_is_its_weights():
    """Nothing of it is left for a call: what it does is done once, when the bundle is loaded."""
    assert kernels(convert(chain(lambda m, x: m.batch(m.conv(x))), (some(*X),))) == [IN, "conv_packed", OUT]
    assert kernels(convert(chain(lambda m, x: m.batch(x)), (some(*WIDE),))) == ["elementwise"]
