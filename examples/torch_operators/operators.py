"""Operators of transformers as operators of torch, forward and backward: RMSNorm, LayerNorm,
softmax, SwiGLU, rotary embedding; and three that do more at once, as a model needs it: scale, mask
and softmax; both halves of a SwiGLU; queries, keys and values of one product with rotary embedding.

    python examples/torch_operators/operators.py            each beside torch's own
    ops = operators.load(); y = ops.rms_norm(x, weight)     in a program (docs/torch.md)

One bundle has a pair of functions for each operator and type, with symbolic sizes. Copy what you
need: a function of the bundle, its backward, and the method of Operators that calls it.
"""

from __future__ import annotations

import pathlib
import tempfile

import torch

import accrt
import accrt.torch
from accrt.compiler import Module, cat, compile

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
EPS = 1e-5
SCALE = 0.125  # of scores: heads of 64
NAMES = ("rms_norm", "layer_norm", "softmax", "swiglu", "rope", "masked_softmax", "swiglu_halves", "rope_heads")


# ---- The functions of the bundle ----
# An input `grad_y` of a backward is the gradient of the result y, other inputs are the forward
# function's inputs and results by their names, and a result `grad_x` is the gradient of the input
# x. Values of 16 bits are calculated in f32 and rounded once, at the end.


def wide(value):
    return value if value.dtype == "f64" else value.to_copy("f32")


def inputs(function, dtype, **shapes):
    return [function.input(name, dtype, shape) for name, shape in shapes.items()]


def results(function, **values):
    for name, value in values.items():
        function.result(name, value)


def rms_norm(forward, backward, dtype, n, k, length, heads):
    x, weight = inputs(forward, dtype, x=[n, k], weight=[k])
    results(forward, y=x.rms_norm(weight, EPS))
    grad, x, weight = inputs(backward, dtype, grad_y=[n, k], x=[n, k], weight=[k])
    grad_x, grad_weight = grad.rms_norm_backward(x, weight, EPS)
    results(backward, grad_x=grad_x, grad_weight=grad_weight)


def layer_norm(forward, backward, dtype, n, k, length, heads):
    x, weight, bias = inputs(forward, dtype, x=[n, k], weight=[k], bias=[k])
    results(forward, y=x.layer_norm(weight, bias, EPS))
    grad, x, weight = inputs(backward, dtype, grad_y=[n, k], x=[n, k], weight=[k])
    grad_x, grad_weight, grad_bias = grad.layer_norm_backward(x, weight, EPS)
    results(backward, grad_x=grad_x, grad_weight=grad_weight, grad_bias=grad_bias)


def softmax(forward, backward, dtype, n, k, length, heads):
    (x,) = inputs(forward, dtype, x=[n, k])
    results(forward, y=x.softmax(-1))
    grad, y = inputs(backward, dtype, grad_y=[n, k], y=[n, k])
    results(backward, grad_x=grad.softmax_backward(y))


def swiglu(forward, backward, dtype, n, k, length, heads):
    gate, up = inputs(forward, dtype, gate=[n], up=[n])
    results(forward, y=gate.silu() * up)
    grad, gate, up = (wide(v) for v in inputs(backward, dtype, grad_y=[n], gate=[n], up=[n]))
    sigmoid = gate.sigmoid()
    grad_gate = grad * up * sigmoid * (gate * (1.0 - sigmoid) + 1.0)
    results(backward, grad_gate=grad_gate.to_copy(dtype), grad_up=(grad * gate * sigmoid).to_copy(dtype))


def rope(forward, backward, dtype, n, k, length, heads):
    """x is [n, length, 2 * k], the two of a pair in one half each; pair i at place t turns by the
    angle of cos[t, i] and sin[t, i]."""
    for function, name, result in ((forward, "x", "y"), (backward, "grad_y", "grad_x")):
        (x,) = inputs(function, dtype, **{name: [n, length, 2 * k]})
        cos, sin = inputs(function, "f64" if dtype == "f64" else "f32", cos=[length, k], sin=[length, k])
        a, b = wide(x[..., :k]), wide(x[..., k:])
        sin = -sin if function is backward else sin  # the gradient turns back
        results(function, **{result: cat([(a * cos - b * sin).to_copy(dtype), (b * cos + a * sin).to_copy(dtype)], -1)})


def masked_softmax(forward, backward, dtype, n, k, length, heads):
    x, mask = inputs(forward, dtype, x=[n, length, k], mask=[length, k])
    results(forward, y=x.masked_softmax(mask, SCALE))
    grad, y = inputs(backward, dtype, grad_y=[n, length, k], y=[n, length, k])
    results(backward, grad_x=grad.softmax_backward(y, -1, SCALE))


def swiglu_halves(forward, backward, dtype, n, k, length, heads):
    """x is [n, 2, k]: gates, and what they let through."""
    (x,) = inputs(forward, dtype, x=[n, 2, k])
    results(forward, y=x[:, 0].silu() * x[:, 1])
    grad, x = inputs(backward, dtype, grad_y=[n, k], x=[n, 2, k])
    grad, gate, up = wide(grad.unsqueeze(1)), wide(x[:, :1]), wide(x[:, 1:])
    sigmoid = gate.sigmoid()
    grad_gate = grad * up * sigmoid * (gate * (1.0 - sigmoid) + 1.0)
    results(backward, grad_x=cat([grad_gate.to_copy(dtype), (grad * gate * sigmoid).to_copy(dtype)], 1))


def rope_heads(forward, backward, dtype, n, k, length, heads):
    """x is [n, length, 3, heads, 2 * k], as one product gives queries, keys and values; the results
    are [n, heads, length, 2 * k], as attention takes them."""
    def angles(function):
        return inputs(function, "f64" if dtype == "f64" else "f32", cos=[length, k], sin=[length, k])

    (x,) = inputs(forward, dtype, x=[n, length, 3, heads, 2 * k])
    cos, sin = angles(forward)
    for at, name in enumerate(("query", "key", "value")):
        one = x[:, :, at].transpose(1, 2)
        a, b = wide(one[..., :k]), wide(one[..., k:])
        turned = cat([(a * cos - b * sin).to_copy(dtype), (b * cos + a * sin).to_copy(dtype)], -1)
        results(forward, **{name: one.clone() if name == "value" else turned})
    grads = inputs(backward, dtype, **{f"grad_{name}": [n, heads, length, 2 * k] for name in ("query", "key", "value")})
    cos, sin = (v.unsqueeze(1).unsqueeze(1) for v in angles(backward))
    query, key, value = (v.transpose(1, 2).unsqueeze(2) for v in grads)
    parts = [value]
    for grad in (key, query):
        a, b = wide(grad[..., :k]), wide(grad[..., k:])
        parts.insert(0, cat([(a * cos + b * sin).to_copy(dtype), (b * cos - a * sin).to_copy(dtype)], -1))
    results(backward, grad_x=cat(parts, 2))


def module(types=tuple(TYPES)):
    m = Module("torch_operators")
    sizes = [m.symbol("n", maximum=1 << 36), m.symbol("k", minimum=1, maximum=1 << 20), m.symbol("length", maximum=1 << 24),
             m.symbol("heads", minimum=1, maximum=1 << 16)]
    for dtype in types:
        for add in (rms_norm, layer_norm, softmax, swiglu, rope, masked_softmax, swiglu_halves, rope_heads):
            name = f"{add.__name__}_{dtype}"
            add(m.function(name), m.function(f"{name}_backward"), dtype, *sizes)
    return m


# ---- The operators ----


class Operators:
    """What a model calls: tensors with any leading dimensions, of one type. `raw` has torch's
    operators by name and type."""

    def __init__(self, bundle, space="accrt_example", types=tuple(TYPES)):
        self.raw = {}
        for dtype in types:
            for name in NAMES:
                function = f"{name}_{dtype}"
                made = accrt.torch.operator(bundle, function, backward=f"{function}_backward", name=f"{space}::{function}")
                self.raw[name, TYPES[dtype]] = made

    def rms_norm(self, x, weight):
        return self.raw["rms_norm", x.dtype](rows(x), weight).view(x.shape)

    def layer_norm(self, x, weight, bias):
        return self.raw["layer_norm", x.dtype](rows(x), weight, bias).view(x.shape)

    def softmax(self, x):
        return self.raw["softmax", x.dtype](rows(x)).view(x.shape)

    def swiglu(self, gate, up):
        return self.raw["swiglu", gate.dtype](gate.flatten(), up.flatten()).view(gate.shape)

    def rope(self, x, cos, sin):
        """x [..., length, size] by cos and sin [length, size / 2], which are f32 (f64 for x of
        f64)."""
        return self.raw["rope", x.dtype](x.flatten(0, -3) if x.dim() > 2 else x[None], cos, sin).view(x.shape)

    def masked_softmax(self, x, mask):
        """softmax of SCALE * x + mask: x [..., length, size], mask [length, size], -inf where
        nothing is to be seen."""
        return self.raw["masked_softmax", x.dtype](x.flatten(0, -3) if x.dim() > 2 else x[None], mask).view(x.shape)

    def swiglu_halves(self, x):
        """SwiGLU of gates and values that are the halves of the last dimension of x."""
        y = self.raw["swiglu_halves", x.dtype](rows(x).unflatten(-1, (2, -1)))
        return y.view(*x.shape[:-1], x.shape[-1] // 2)

    def rope_heads(self, x, cos, sin):
        """x [..., length, 3, heads, size] gives queries, keys and values [..., heads, length,
        size], the first two by cos and sin [length, size / 2]."""
        made = self.raw["rope_heads", x.dtype](x.flatten(0, -5) if x.dim() > 4 else x[None], cos, sin)
        return tuple(t.view(*x.shape[:-4], *t.shape[1:]) for t in made)


def rows(x):
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def load(device="cpu", types=tuple(TYPES), space="accrt_example", threads=0, bundle=None):
    """Compiles the bundle, for this processor, or for it and GPUs, and registers its operators;
    `bundle`: one that is compiled already. `threads` on the host: 0 is all processors."""
    with tempfile.TemporaryDirectory() as folder:
        if bundle is None:
            bundle = pathlib.Path(folder) / "torch_operators.accx"
            compile(module(types), bundle, targets=["host", "cuda"] if device == "cuda" else ["host"])
        return Operators(accrt.load(bundle, options={"host.threads": threads}).program if threads else accrt.Bundle(bundle), space, types)


# ---- The same in torch: what they are compared with ----


class Eager:
    """In the type of x, as models write it; `in_f64` calculates in float64, whatever comes in."""

    def __init__(self, in_f64=False):
        self.in_f64 = in_f64

    def _done(self, function, *tensors):
        if not self.in_f64:
            return function(*tensors)
        return function(*(t.double() for t in tensors)).to(tensors[0].dtype)

    def rms_norm(self, x, weight):
        return self._done(lambda x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, EPS), x, weight)

    def layer_norm(self, x, weight, bias):
        return self._done(lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, EPS), x, weight, bias)

    def softmax(self, x):
        return self._done(lambda x: x.softmax(-1), x)

    def swiglu(self, gate, up):
        return self._done(lambda gate, up: torch.nn.functional.silu(gate) * up, gate, up)

    def rope(self, x, cos, sin):
        def turned(x, cos, sin):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

        return self._done(turned, x, cos, sin)

    def masked_softmax(self, x, mask):
        return self._done(lambda x, mask: (x * SCALE + mask).softmax(-1), x, mask)

    def swiglu_halves(self, x):
        return self.swiglu(*x.chunk(2, -1))

    def rope_heads(self, x, cos, sin):
        query, key, value = x.transpose(-4, -2).unbind(-3)
        return self.rope(query, cos, sin), self.rope(key, cos, sin), value


def angles(length, size, dtype=torch.float32, theta=10000.0, device="cpu"):
    """cos and sin [length, size / 2] of rotary embedding."""
    rates = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    turned = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return turned.cos().to(device, dtype), turned.sin().to(device, dtype)


def arguments(name, shape, dtype, device="cpu"):
    """Random arguments of an operator, for x of a shape: of each head in rope_heads, which gets
    two."""
    whole = (*shape[:-1], 3, 2, shape[-1]) if name == "rope_heads" else shape
    random = [torch.randn(s, dtype=torch.float32).to(device, dtype) for s in (whole, shape, shape[-1:], shape[-1:])]
    if name in ("rope", "rope_heads"):
        return [random[0], *angles(*shape[-2:], torch.float64 if dtype == torch.float64 else torch.float32, device=device)]
    if name == "masked_softmax":
        return [random[0], random[2] + torch.full(shape[-2:], -torch.inf, device=device, dtype=dtype).triu(1)]
    taken = {"rms_norm": [random[0], random[2]], "layer_norm": [random[0], *random[2:]], "swiglu": random[:2]}
    return taken.get(name, random[:1])


def differentiable(name, tensors):
    """Those of an operator's arguments that have gradients: no angles, no masks."""
    return tensors[:1] if name in ("rope", "rope_heads", "masked_softmax") else tensors


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, exact = load(device), Eager(in_f64=True)
    for name in NAMES:
        for dtype in TYPES.values():
            given = arguments(name, (2, 3, 16, 64), dtype, device)
            asked = [t.requires_grad_() for t in differentiable(name, given)]
            found, wanted = (one if isinstance(one, tuple) else (one,) for one in (getattr(source, name)(*given) for source in (ours, exact)))
            grad = [torch.randn_like(one) for one in found]
            pairs = [*zip(found, wanted), *zip(torch.autograd.grad(found, asked, grad), torch.autograd.grad(wanted, asked, grad))]
            errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
            print(f"{name:14} {str(dtype)[6:]:8} largest error: results {max(errors[:len(found)]):.1e}, gradients {max(errors[len(found):]):.1e}")


if __name__ == "__main__":
    main()
