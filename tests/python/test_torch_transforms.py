"""Operators of bundles under torch.func, forward-mode gradients, checkpoints and second
derivatives: each gives what torch gives for the same function, or says by name what is missing."""
from __future__ import annotations

import itertools

import pytest

import accrt
from accrt.compiler import compile, Module
import kernel_harness as kh

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

fresh = itertools.count()
FORWARD = r"t(_\d+)?::\w+ \(function '\w+' of .*\) has no derivative in forward mode \(torch.func.jvp, .*: take it in reverse"
NO_BACKWARD = r"t(_\d+)?::\w+ \(function '\w+' of .*\) has no backward: name the bundle's function that is it, as backward="


def module():
    m = Module("transforms")
    n = m.symbol("n", maximum=1024)
    f = m.function("mul")
    x, w = f.input("x", "f64", [n]), f.input("w", "f64", [n])
    f.result("y", x * x * w)
    g = m.function("mul_backward")
    dy, x, w = g.input("grad_y", "f64", [n]), g.input("x", "f64", [n]), g.input("w", "f64", [n])
    g.result("grad_x", dy * 2.0 * x * w)
    g.result("grad_w", dy * x * x)
    f = m.function("two")
    x = f.input("x", "f64", [n])
    f.result("a", x * 3.0)
    f.result("b", x * x)
    g = m.function("two_backward")
    da, db, x = g.input("grad_a", "f64", [n]), g.input("grad_b", "f64", [n]), g.input("x", "f64", [n])
    g.result("grad_x", da * 3.0 + db * 2.0 * x)
    f = m.function("into")
    x, y = f.input("x", "f64", [n], access="read_write"), f.input("by", "f64", [n])
    (x + y).write_input("x")
    return m


@pytest.fixture(scope="module")
def bundle(instance):
    return accrt.Bundle(compile(module(), targets=[kh.host_targets()[-1]]), instance)


def registered(bundle):
    import accrt.torch

    space = f"t_{next(fresh)}"
    made = {name: accrt.torch.operator(bundle, name, backward=f"{name}_backward", name=f"{space}::{name}") for name in ("mul", "two")}
    made["plain"] = accrt.torch.operator(bundle, "mul", name=f"{space}::plain")
    made["into"] = accrt.torch.operator(bundle, "into", name=f"{space}::into")
    return made


@pytest.fixture(scope="module", params=["native", "python"])
def operators(request, bundle):
    """With accrt._native, and without."""
    if request.param == "native":
        yield registered(bundle)
        return
    from accrt.torch import _shim

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shim._fast, "native", None)
        patch.setattr(_shim, "_fits", lambda operator: False)
        yield registered(bundle)


def mul(x, w):
    return x * x * w


def two(x):
    return x * 3, x * x


def values(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def close(found, wanted):
    torch.testing.assert_close(found, wanted)


@pytest.fixture(autouse=True)
def seed():
    chosen = torch.seed() % (1 << 32)
    print("seed", chosen)
    torch.manual_seed(chosen)


#: Each is right: computed with an operator, and with torch's own operations.
RIGHT = {
    "grad": lambda mul, two: torch.func.grad(lambda x, w: mul(x, w).sum(), argnums=(0, 1))(*X[:2]),
    "grad of one": lambda mul, two: torch.func.grad(lambda w: mul(X[0], w).sum())(X[1]),
    "grad by name": lambda mul, two: torch.func.grad(lambda w: mul(w=w, x=X[0]).sum())(X[1]),
    "grad_and_value": lambda mul, two: torch.func.grad_and_value(lambda x: mul(x, X[1]).sum())(X[0]),
    "vjp": lambda mul, two: torch.func.vjp(lambda x: mul(x, X[1]), X[0])[1](X[2]),
    "vjp of two": lambda mul, two: torch.func.vjp(two, X[0])[1]((X[1], X[2])),
    "one result": lambda mul, two: torch.func.grad(lambda x: two(x)[1].sum())(X[0]),
    "jacrev": lambda mul, two: torch.func.jacrev(mul, argnums=(0, 1))(*X[:2]),
    "jacrev of two": lambda mul, two: torch.func.jacrev(two)(X[0]),
    "jacrev in chunks": lambda mul, two: torch.func.jacrev(mul, chunk_size=2)(*X[:2]),
    "vmap": lambda mul, two: torch.vmap(mul, in_dims=(0, None))(B, X[0]),
    "vmap of dim 1": lambda mul, two: torch.vmap(mul, in_dims=(1, 1), out_dims=1)(B.T, B.T),
    "vmap of nothing": lambda mul, two: torch.vmap(mul, in_dims=(0, None))(B[:0], X[0]),
    "vmap of nothing, two": lambda mul, two: torch.vmap(two)(B[:0]),
    "vmap of vmap": lambda mul, two: torch.vmap(torch.vmap(mul, in_dims=(0, None)), in_dims=(None, 0))(B, B),
    "vmap of grad": lambda mul, two: torch.vmap(torch.func.grad(lambda x, w: mul(x, w).sum()), in_dims=(0, None))(B, X[0]),
    "vmap of jacrev": lambda mul, two: torch.vmap(torch.func.jacrev(two))(B),
    "grad of vmap": lambda mul, two: torch.func.grad(lambda b: torch.vmap(mul, in_dims=(0, None))(b, X[0]).sum())(B),
    "unbatched": lambda mul, two: torch.vmap(lambda b: b * mul(X[0], X[1]))(B),
    "grad of what is not asked": lambda mul, two: torch.func.grad(lambda x: (x * mul(X[0], X[1])).sum())(X[2]),
    "grad of grad by another": lambda mul, two: torch.func.grad(lambda w: torch.func.grad(lambda x: (x * mul(X[0], w)).sum())(X[2]).sum())(X[1]),
    "jvp of what is not asked": lambda mul, two: torch.func.jvp(lambda x: x * mul(X[0], X[1]), (X[2],), (X[0],)),
    "linear by a constant": lambda mul, two: torch.func.jacfwd(lambda x: x * mul(X[0], X[1]))(X[2]),
    "checkpoint": lambda mul, two: by_checkpoint(mul, False),
    "reentrant checkpoint": lambda mul, two: by_checkpoint(mul, True),
    "functional.jacobian": lambda mul, two: torch.autograd.functional.jacobian(mul, tuple(X[:2]), vectorize=True),
    "batched grads": lambda mul, two: by_batched_grads(mul),
    "functional_call": lambda mul, two: torch.func.functional_call(Scaled(mul), {"w": X[2]}, (X[0],)),
    "grad of functional_call": lambda mul, two: torch.func.grad(lambda w: torch.func.functional_call(Scaled(mul), {"w": w}, (X[0],)).sum())(X[2]),
    "an ensemble": lambda mul, two: torch.vmap(lambda w: torch.func.functional_call(Scaled(mul), {"w": w}, (X[0],)))(B),
    "functionalize": lambda mul, two: torch.func.functionalize(lambda x: mul(x, X[1]))(X[0]),
    "linearize in reverse": lambda mul, two: torch.autograd.functional.vjp(lambda x: mul(x, X[1]), X[0], X[2]),
}
X = B = ()


class Scaled(torch.nn.Module):
    def __init__(self, mul):
        super().__init__()
        self.mul, self.w = mul, torch.nn.Parameter(torch.ones(5, dtype=torch.float64))

    def forward(self, x):
        return self.mul(x, self.w)


def by_checkpoint(mul, reentrant):
    from torch.utils.checkpoint import checkpoint
    x = X[0].clone().requires_grad_()
    checkpoint(lambda x: mul(x.sin(), X[1]), x, use_reentrant=reentrant).sum().backward()
    return x.grad


def by_batched_grads(mul):
    x = X[0].clone().requires_grad_()
    return torch.autograd.grad(mul(x, X[1]), x, torch.eye(5, dtype=torch.float64), is_grads_batched=True)


@pytest.mark.parametrize("name", RIGHT)
def test_right(operators, name):
    global X, B
    X, B = [values(5) for _ in range(3)], values(4, 5)
    close(RIGHT[name](operators["mul"], operators["two"]), RIGHT[name](mul, two))


def dual(op, *given):
    from torch.autograd import forward_ad
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(op(forward_ad.make_dual(given[0], torch.ones_like(given[0])), *given[1:])).tangent


FORWARD_MODE = {
    "jvp": lambda op, x, w: torch.func.jvp(op, (x, w), (w, x)),
    "jvp of one": lambda op, x, w: torch.func.jvp(lambda x: op(x, w), (x,), (w,)),
    "jvp by name": lambda op, x, w: torch.func.jvp(lambda x: op(w=w, x=x), (x,), (w,)),
    "jvp beside a parameter": lambda op, x, w: (lambda p: torch.func.jvp(lambda x: op(x, p), (x,), (w,)))(w.clone().requires_grad_()),
    "jacfwd": lambda op, x, w: torch.func.jacfwd(op)(x, w),
    "hessian": lambda op, x, w: torch.func.hessian(lambda x: op(x, w).sum())(x),
    "vmap of jvp": lambda op, x, w: torch.vmap(lambda x: torch.func.jvp(lambda x: op(x, w), (x,), (w,)))(torch.stack([x, w])),
    "jvp of vmap": lambda op, x, w: torch.func.jvp(lambda x: torch.vmap(op, in_dims=(0, None))(x, w), (torch.stack([x, w]),), (torch.stack([x, w]),)),
    "jvp of grad": lambda op, x, w: torch.func.jvp(torch.func.grad(lambda x: op(x, w).sum()), (x,), (w,)),
    "grad of jvp": lambda op, x, w: torch.func.grad(lambda x: torch.func.jvp(lambda x: op(x, w), (x,), (w,))[1].sum())(x),
    "linearize": lambda op, x, w: torch.func.linearize(lambda x: op(x, w), x)[1](w),
    "dual": dual,
    "dual without gradients": lambda op, x, w: torch.no_grad()(dual)(op, x, w),
    "dual beside a parameter": lambda op, x, w: dual(op, x, w.clone().requires_grad_()),
    "dual of what requires grad": lambda op, x, w: dual(op, x.clone().requires_grad_(), w),
    "functional.jacobian": lambda op, x, w: torch.autograd.functional.jacobian(op, (x, w), strategy="forward-mode", vectorize=True),
    "gradcheck": lambda op, x, w: torch.autograd.gradcheck(op, (x.requires_grad_(), w), check_forward_ad=True, check_backward_ad=False),
}


@pytest.mark.parametrize("op", ["mul", "plain"])
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_is_refused(operators, name, op):
    operators[op](values(5), values(5))  # its shapes are known: the next call could be in C
    with pytest.raises(RuntimeError, match=FORWARD):
        FORWARD_MODE[name](operators[op], values(5), values(5))
    close(operators[op](one := values(5), one), mul(one, one))


def test_forward_mode_of_what_writes_is_refused(operators):
    x = values(5)
    with pytest.raises(RuntimeError, match=FORWARD):
        dual(lambda by: operators["into"](x, by) or x, values(5))
    with pytest.raises(RuntimeError, match=FORWARD):
        torch.func.jvp(lambda by: operators["into"](x, by) or by, (values(5),), (values(5),))


#: Second derivatives, and first ones of what has no backward.
NOT_THERE = {
    "grad": lambda ops, x, w: torch.func.grad(lambda x: ops["plain"](x, w).sum())(x),
    "jacrev": lambda ops, x, w: torch.func.jacrev(ops["plain"])(x, w),
    "vmap of grad": lambda ops, x, w: torch.vmap(torch.func.grad(lambda x: ops["plain"](x, w).sum()))(torch.stack([x, w])),
    "backward": lambda ops, x, w: ops["plain"](x.requires_grad_(), w).sum().backward(),
    "grad of grad": lambda ops, x, w: torch.func.grad(lambda x: torch.func.grad(lambda x: ops["mul"](x, w).sum())(x).sum())(x),
    "jacrev of jacrev": lambda ops, x, w: torch.func.jacrev(torch.func.jacrev(lambda x: ops["mul"](x, w).sum()))(x),
    "double backward": lambda ops, x, w: torch.autograd.grad(
        torch.autograd.grad(ops["mul"](x.requires_grad_(), w).sum(), x, create_graph=True)[0].sum(), x),
    "functional.hessian": lambda ops, x, w: torch.autograd.functional.hessian(lambda x: ops["mul"](x, w).sum(), x),
    "gradgradcheck": lambda ops, x, w: torch.autograd.gradgradcheck(ops["mul"], (x.requires_grad_(), w)),
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_has_no_backward_says_so(operators, name):
    with pytest.raises(RuntimeError, match=NO_BACKWARD):
        NOT_THERE[name](operators, values(5), values(5))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_transforms_in_compiled_functions(operators, backend):
    torch._dynamo.reset()
    x, w = values(5), values(5)
    for function in (torch.func.grad(lambda x, op: op(x, w).sum()), lambda x, op: torch.vmap(op, in_dims=(0, None))(torch.stack([x, w]), w)):
        close(torch.compile(lambda x: function(x, operators["mul"]), backend=backend)(x), function(x, mul))
