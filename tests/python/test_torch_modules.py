"""accrt.torch.Module: a bundle's function with its weights as parameters. Runs where torch is
installed: `./dev torch-test`."""
from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile, Module

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

F = torch.nn.functional
TARGETS = [kh.host_targets()[-1]]


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module")
def bundle(instance):
    module = accrt.from_torch.convert(network(), (torch.ones(4, 8),), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},), name="net")
    return accrt.Bundle(compile(module, targets=TARGETS), instance)


@pytest.fixture(scope="module")
def trained(instance):
    m = Module("train")
    n = m.symbol("n", maximum=64)
    w = m.constant("proj.weight", np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
    f = m.function("forward")
    f.result("y", f.input("x", "f32", [n, 8]).linear(w) * f.input("scale", "f32", [4]))
    g = m.function("forward_backward")
    dy, x, scale = g.input("grad_y", "f32", [n, 4]), g.input("x", "f32", [n, 8]), g.input("scale", "f32", [4])
    g.result("grad_x", (dy * scale) @ g.constant(w))
    g.result("grad_proj.weight", (dy * scale).t() @ x)
    g.result("grad_scale", (dy * x.linear(w)).sum(0))
    return accrt.Bundle(compile(m, targets=TARGETS), instance)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_batch_norms_keep_their_names(instance):
    import accrt.torch

    def net(seed):
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        made(torch.randn(8, 3, 8, 8))
        return made.eval()

    one, other, x = net(0), net(1), torch.randn(2, 3, 8, 8)
    ours = accrt.torch.Module(accrt.Bundle(compile(accrt.from_torch.convert(one, (x,)), targets=TARGETS), instance))
    close(ours(x), one(x))
    ours.load_state_dict(other.state_dict())
    close(ours(x), other(x))
    one.load_state_dict(ours.state_dict(), strict=False)
    close(one(x), other(x))
    with pytest.raises(RuntimeError, match="Unexpected key.*more"):
        ours.load_state_dict({**other.state_dict(), "more": x})


def test_parameters_are_the_weights_and_changes_are_seen(bundle):
    import accrt.torch

    ours, net, other, x = accrt.torch.Module(bundle), network(), network(1), torch.randn(5, 8)
    assert ours.state_dict().keys() == net.state_dict().keys()
    assert all(torch.equal(ours.state_dict()[n], t) for n, t in net.state_dict().items())
    assert not any(p.requires_grad for p in ours.parameters())
    close(ours(x), net(x))
    ours.load_state_dict(other.state_dict())
    close(ours(input=x), other(x))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert (ours(x) == 0).all()
    for parameter in ours.parameters():
        parameter.data.fill_(1)  # torch does not count this
    ours.refresh()
    assert (ours(x) != 0).all()


def test_copies_and_functional_calls_have_weights_of_their_own(bundle):
    import accrt.torch

    ours, net, other, x = accrt.torch.Module(bundle), network(), network(1), torch.randn(5, 8)
    second = copy.deepcopy(ours)
    second.load_state_dict(other.state_dict())
    for _ in range(2):
        close(ours(x), net(x))
        close(second(x), other(x))
    close(torch.func.functional_call(ours, dict(other.state_dict()), (x,)), other(x))
    close(ours(x), net(x))
    with torch.inference_mode():
        close(ours(x), net(x))


def test_compiled_and_exported(bundle):
    import accrt.torch

    ours, net, other, x = accrt.torch.Module(bundle), network(), network(1), torch.randn(5, 8)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    close(compiled(x), net(x))
    ours.load_state_dict(other.state_dict())
    close(compiled(x), other(x))
    program = torch.export.export(ours, (x,), dynamic_shapes=(({0: torch.export.Dim("rows", min=2, max=64)},),))
    close(program.module()(torch.ones(9, 8)), other(torch.ones(9, 8)))


def test_training_as_torch_does(trained):
    import accrt.torch

    ours = accrt.torch.Module(trained, parameters={"scale": torch.ones(4)})
    assert {n: p.requires_grad for n, p in ours.named_parameters()} == {"proj.weight": True, "scale": True}
    weight, scale = ours.get_parameter("proj.weight").detach().clone().requires_grad_(), torch.ones(4, requires_grad=True)
    step, wanted = torch.optim.AdamW(ours.parameters(), lr=0.01), torch.optim.AdamW([weight, scale], lr=0.01)
    for seed in range(10):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        for run, optimizer in ((lambda: ours(x), step), (lambda: F.linear(x, weight) * scale, wanted)):
            optimizer.zero_grad()
            run().square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.get_parameter("proj.weight"), weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.scale, scale, rtol=1e-3, atol=1e-3)
    found = torch.library.opcheck(ours.accrt_operator, (x, ours.scale, [ours.get_parameter("proj.weight")]))
    assert set(found.values()) == {"SUCCESS"}


def test_threads_with_different_weights(bundle):
    import accrt.torch

    first, nets = accrt.torch.Module(bundle), [network(seed) for seed in range(3)]
    modules = [copy.deepcopy(first) for _ in nets]
    for module, net in zip(modules, nets):
        module.load_state_dict(net.state_dict())
    x, right = torch.randn(5, 8), {}

    def work(at):
        right[at] = all(torch.allclose(modules[at](x), nets[at](x), atol=1e-5) for _ in range(20))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == dict.fromkeys(range(3), True)


def test_what_is_wrong_is_one_line(bundle, trained):
    import accrt.torch

    ours, x = accrt.torch.Module(bundle), torch.randn(5, 8)
    for call, error, text in ((lambda: ours(), TypeError, "misses input"), (lambda: ours(x, x), TypeError, "takes 1 inputs .input., 2 were given"),
                              (lambda: ours(y=x), TypeError, "got 'y', and takes input"),
                              (lambda: copy.deepcopy(ours).double()(x), TypeError, "weight 0.bias is torch.float64"),
                              (lambda: ours(torch.ones(65, 8)), accrt.Error, "got 65, allowed: 1 to 64"),
                              (lambda: accrt.torch.Module(bundle.program()), TypeError, "Program"),
                              (lambda: accrt.torch.Module(trained, parameters={"s": x}), ValueError, "'s', which is no input"),
                              (lambda: accrt.torch.Module(trained, "none"), accrt.NotFoundError, "none")):
        with pytest.raises(error, match=text) as told:
            call()
        assert "\n" not in str(told.value)
    close(ours(x), network()(x))
