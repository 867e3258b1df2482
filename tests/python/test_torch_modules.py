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
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

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


@pytest.fixture(scope="module")
def plain(instance):
    """y = x * w + b: no weight is packed. z: w of another type."""
    m = Module("plain")
    n = m.symbol("n", maximum=64)
    w, b = m.constant("w", np.full(5, 2, np.float32)), m.constant("deep.b", np.zeros((), np.float32))
    short = m.constant("short_w", np.arange(5, dtype=np.float16))
    f = m.function("forward")
    x = f.input("x", "f32", [n, 5])
    f.result("y", x * f.constant(w) + f.constant(b))
    f.result("z", f.constant(short).to_copy("f32") + x)
    g = m.function("forward_backward")
    dy, x = g.input("grad_y", "f32", [n, 5]), g.input("x", "f32", [n, 5])
    g.input("grad_z", "f32", [n, 5])
    g.result("grad_w", (dy * x).sum(0))
    g.result("grad_deep.b", dy.sum([0, 1]))
    return accrt.Bundle(compile(m, targets=TARGETS), instance)


def swaps(monkeypatch):
    """Names of weights that are copied into programs from now on."""
    names, copied = [], accrt.Program.swap_weights
    monkeypatch.setattr(accrt.Program, "swap_weights", lambda self, weights, *rest: (names.extend(weights), copied(self, weights, *rest))[1])
    return names


def test_parameters_are_the_memory_that_the_program_reads(plain, monkeypatch):
    import accrt.torch

    copied, ours, x = swaps(monkeypatch), accrt.torch.Module(plain), torch.randn(3, 5)
    w, b, half = ours.w, ours.get_parameter("deep.b"), ours.short_w
    assert [p.data_ptr() % 64 for p in (w, b, half)] == [0, 0, 0] and half.dtype == torch.float16
    for step in range(4):
        y, z = ours(x)
        close(y, x * w.detach() + b.detach())
        close(z, x + half.detach().float())
        w.data[step] = -step  # torch does not count this, and nothing is told of it
        b.data.add_(1.5)
        half.data.mul_(2)
    with torch.no_grad():
        w.fill_(3)
        torch._foreach_mul_([w, b], 2.0)
    close(ours(x)[0], x * 6 + 12)
    assert copied == []
    step = torch.optim.SGD([w, b], lr=0.5)
    ours(x)[0].sum().backward()
    step.step()
    close(ours(x)[0], x * (6 - 0.5 * x.sum(0)) + 12 - 7.5)
    assert copied == []


def test_what_is_shared_comes_and_goes(plain, monkeypatch):
    """Tensors of other memory are copied; the module's own are shared again after that."""
    import accrt.torch

    copied, ours, x = swaps(monkeypatch), accrt.torch.Module(plain), torch.ones(2, 5)
    second = copy.deepcopy(ours)
    assert second.w.data_ptr() != ours.w.data_ptr()
    rng = np.random.default_rng(7)
    for step in range(30):
        kind = int(rng.integers(4))
        if kind == 0:
            ours.w.data.fill_(step)
            assert (ours(x)[0] == step).all()
        elif kind == 1:
            with torch.no_grad():
                second.w.fill_(-step)
            assert (second(x)[0] == -step).all()
        elif kind == 2:
            assert (torch.func.functional_call(ours, {"w": torch.full((5,), 0.5)}, (x,))[0] == 0.5).all()
        else:
            assert (ours(x)[0] == ours.w.detach()).all() and (second(x)[0] == second.w.detach()).all()
    assert copied
    ours.w.data = torch.full((5,), 9.0)  # other memory
    assert (ours(x)[0] == 9).all()


def test_memory_that_a_program_lends_is_written_in_place(plain, monkeypatch):
    """The way of GPUs on the host, where weights that were swapped have memory of their own:
    tests/gpu/test_torch_operator.py is for real."""
    from accrt.torch import _weights

    program, weights = plain.program(), _weights.Weights(plain)
    first = weights.tensors()
    for at, tensor in enumerate(first):
        assert weights.lent(program, at, tensor) is tensor  # in the bundle's memory
    program.swap_weights(dict(zip(weights.names, [t.clone() for t in first])))
    copied, function = swaps(monkeypatch), program.session().function("forward")
    own = [weights.lent(program, at, tensor.clone()) for at, tensor in enumerate(first)]
    x = torch.randn(3, 5)

    def called(tensors):
        seen = []
        weights.run(program, tensors, lambda: seen.extend(torch.from_numpy(np.asarray(r).copy()) for r in function(x)))
        by_name = dict(zip(weights.names, tensors))
        close(seen[0], x * by_name["w"] + by_name["deep.b"])
        close(seen[1], x + by_name["short_w"].float())

    at = weights.names.index("w")
    for step in range(3):
        called(own)
        own[at].fill_(step)
        own[weights.names.index("short_w")].mul_(2)
    called(own)
    assert copied == [] and weights.lent(program, at, own[at]).data_ptr() == own[at].data_ptr()
    other = [tensor.clone() for tensor in own]
    other[at].fill_(7)
    called(other)  # in the place of the module's: copied, and what was lent is read by nobody
    assert copied and sorted(set(copied)) == sorted(weights.names)
    own[at].fill_(9)
    called(own)
    called(other)
    again = [weights.lent(program, at, tensor) for at, tensor in enumerate(own)]
    assert all(one.data_ptr() != before.data_ptr() for one, before in zip(again, own))
    copied.clear()
    again[at].fill_(11)
    called(again)
    assert copied == []
    for wrong in (torch.zeros(6), own[at].double(), torch.zeros(0)):
        assert weights.lent(program, at, wrong) is wrong
    assert weights.lent(program, at, own[at]).data_ptr() == again[at].data_ptr()


@pytest.mark.parametrize("size", (0, 4))
def test_a_storage_that_was_resized_is_no_weight(bundle, plain, size):
    """Freed, as sharded training does between steps, or too short: no call uses what a program has
    of it. With its memory back it is a weight again."""
    import accrt.torch

    for source, x, names in ((bundle, torch.randn(3, 8), ("0.weight", "2.bias")), (plain, torch.randn(3, 5), ("w",))):
        for name in names:
            ours = accrt.torch.Module(source)
            parameter = ours.get_parameter(name)
            parameter.data = parameter.detach().clone()
            wanted, kept = tensors(ours(x)), parameter.detach().clone()
            bytes_before = parameter.untyped_storage().nbytes()
            parameter.untyped_storage().resize_(size)
            for _ in range(2):
                with pytest.raises(RuntimeError, match=f"^weight {name} has no memory: its storage has {size} bytes$"):
                    ours(x)
            parameter.untyped_storage().resize_(bytes_before)
            with torch.no_grad():
                parameter.copy_(kept)
            for one, other in zip(tensors(ours(x)), wanted):
                close(one, other)


def tensors(made):
    return made if isinstance(made, (tuple, list)) else (made,)


def test_packed_weights_are_packed_anew_and_others_are_not_copied(bundle, monkeypatch):
    import accrt.torch

    copied, ours, net, x = swaps(monkeypatch), accrt.torch.Module(bundle), network(), torch.randn(5, 8)
    close(ours(x), net(x))
    for step in range(3):
        with torch.no_grad():
            for one, other in zip(ours.parameters(), net.parameters()):
                one.add_(0.1 * step)
                other.add_(0.1 * step)
        close(ours(x), net(x))
    assert copied == []
    ours.get_parameter("2.bias").data.add_(1)  # no prepare function reads it
    net[2].bias.data.add_(1)
    close(ours(x), net(x))
    ours.get_parameter("2.weight").data.add_(1)
    net[2].weight.data.add_(1)
    ours.refresh()
    close(ours(x), net(x))
    assert copied == []


def test_a_forked_child_has_its_own(plain):
    """As other memory of torch has."""
    import os

    import accrt.torch

    ours = accrt.torch.Module(plain)
    child = os.fork()
    if child == 0:
        ours.w.data.fill_(100)
        os._exit(0)
    os.waitpid(child, 0)
    assert (ours.w == 2).all()


def test_workers_of_a_data_loader_are_told_what_to_do(plain):
    import accrt.torch

    ours = accrt.torch.Module(plain)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, row):
            return ours(torch.full((2, 5), float(row)))

    first, _ = ours(torch.ones(2, 5))
    with pytest.raises(accrt.ForkedError, match="start workers by spawn, not fork"):
        list(torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork"))
    assert torch.equal(ours(torch.ones(2, 5))[0], first)


def test_an_instance_that_takes_no_weights_without_a_signature_has_copies(monkeypatch, tmp_path):
    import accrt.torch

    path = tmp_path / "plain.accx"
    m = Module("plain")
    f = m.function("forward")
    f.result("y", f.input("x", "f32", [2, 5]) * f.constant(m.constant("w", np.full(5, 2, np.float32))))
    compile(m, path, targets=TARGETS)
    strict = accrt.Instance(host_code="all", options={"trust.weights": "signed"})
    copied, ours, x = swaps(monkeypatch), accrt.torch.Module(accrt.Bundle(path, strict)), torch.ones(2, 5)
    assert (ours(x) == 2).all()
    with torch.no_grad():
        ours.w.fill_(4)
    assert (ours(x) == 4).all() and copied == ["w"]


def test_an_adapter_is_trained_and_the_base_stays(instance):
    """LoRA: the factors are parameters beside the bundle's weights, the backward gives their
    gradients alone."""
    import accrt.torch

    torch.manual_seed(3)
    rank, base = 2, torch.randn(6, 8) * 0.3
    m = Module("lora")
    n = m.symbol("n", maximum=64)
    w = m.constant("proj.weight", base.numpy())
    f = m.function("forward")
    x, a, b = f.input("x", "f32", [n, 8]), f.input("lora_a", "f32", [rank, 8]), f.input("lora_b", "f32", [6, rank])
    f.result("y", x.linear(w) + x.linear(a).linear(b))
    g = m.function("forward_backward")
    dy, x = g.input("grad_y", "f32", [n, 6]), g.input("x", "f32", [n, 8])
    a, b = g.input("lora_a", "f32", [rank, 8]), g.input("lora_b", "f32", [6, rank])
    g.result("grad_x", dy @ g.constant(w) + (dy @ b) @ a)
    g.result("grad_lora_b", dy.t() @ x.linear(a))
    g.result("grad_lora_a", (dy @ b).t() @ x)
    bundle = accrt.Bundle(compile(m, targets=TARGETS), instance)
    ours = accrt.torch.Module(bundle, parameters={"lora_a": torch.randn(rank, 8) * 0.1, "lora_b": torch.zeros(6, rank)})
    assert {n: p.requires_grad for n, p in ours.named_parameters()} == {"proj.weight": False, "lora_a": True, "lora_b": True}
    wanted_a, wanted_b = (ours.lora_a.detach().clone().requires_grad_(), ours.lora_b.detach().clone().requires_grad_())
    # a change that these factors can make
    goal = base + torch.randn(6, rank) @ torch.randn(rank, 8)
    own = torch.optim.Adam([p for p in ours.parameters() if p.requires_grad], lr=0.05)
    other, losses = torch.optim.Adam([wanted_a, wanted_b], lr=0.05), []
    for step in range(300):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        for run, optimizer in ((lambda: ours(x), own), (lambda: F.linear(x, base) + F.linear(F.linear(x, wanted_a), wanted_b), other)):
            optimizer.zero_grad()
            loss = F.mse_loss(run(), F.linear(x, goal))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    ours_at, theirs = losses[::2], losses[1::2]
    assert ours_at[-1] < 0.01 * ours_at[0], (ours_at[0], ours_at[-1])
    np.testing.assert_allclose(ours_at[:50], theirs[:50], rtol=1e-2)
    assert torch.equal(ours.get_parameter("proj.weight"), base)
    with bundle.program().session() as session:  # and the bundle's own is as it was
        x = torch.randn(4, 8)
        made = session.forward(x, np.zeros((rank, 8), np.float32), np.zeros((6, rank), np.float32))
        close(torch.from_numpy(np.array(made)), F.linear(x, base))


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


def test_an_optimizer_says_that_it_leaves_what_has_no_backward(bundle, trained, recwarn):
    import accrt.torch

    x = torch.randn(5, 8)
    for ours in (accrt.torch.Module(bundle), copy.deepcopy(accrt.torch.Module(bundle))):
        head = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*ours.parameters(), *head.parameters()], 0.1)
        before = {name: p.clone() for name, p in ours.named_parameters()}
        head(ours(x)).sum().backward()  # as a part that stays as it is
        with pytest.warns(UserWarning, match="function 'forward' of .* has no backward, so SGD leaves its parameters as they are: compile .* with a backward"):
            optimizer.step()
        assert all(torch.equal(before[name], p) for name, p in ours.named_parameters())
        recwarn.clear()
        optimizer.step()  # once
        torch.optim.Adam(head.parameters()).step()
        assert not recwarn.list
        assert "no backward: nothing is trained" in repr(ours)
        ours.requires_grad_(True)
        with pytest.raises(RuntimeError, match="has no backward: name the bundle's function that is it, as backward="):
            ours(x).sum().backward()
    ours = accrt.torch.Module(trained, parameters={"scale": torch.ones(4)})
    torch.optim.SGD(ours.parameters(), 0.1).step()
    assert not recwarn.list and "backward 'forward_backward'" in repr(ours)


@pytest.mark.parametrize("value, text", [(np.ones((5, 8), np.float32), "a value of type ndarray, .*: torch.from_dlpack makes one"), ([[1.0] * 8], "a value of type list"),
                                         ("x", "a value of type str"), (3, "a value of type int"), (1.5, "a value of type float")])  # fmt: skip
def test_inputs_that_are_no_tensors_are_named(bundle, instance, value, text):
    import accrt.torch

    ours = accrt.torch.Module(bundle)
    for call in (lambda: ours(value), lambda: ours(input=value)):
        with pytest.raises(TypeError, match=rf"forward\(\): input is {text}.*") as caught:
            call()
        assert "expected a torch.Tensor" in str(caught.value) and "\n" not in str(caught.value)
    mine = accrt.from_dlpack(np.ones((5, 8), np.float32), instance.device("host"))
    with pytest.raises(TypeError, match="expected a torch.Tensor: torch.from_dlpack makes one"):
        ours(mine)
    for function in (None, 3, b"forward"):
        with pytest.raises(TypeError, match="function is .*, expected the name of a function"):
            accrt.torch.operator(bundle, function)
    with pytest.raises(TypeError, match="backward is 3, expected the name|backward is a value of type int, expected the name"):
        accrt.torch.operator(bundle, "forward", backward=3, name="never::made")


def test_a_module_says_how_it_is_saved(bundle, tmp_path):
    import pickle
    from multiprocessing.reduction import ForkingPickler

    import accrt.torch

    ours, x = accrt.torch.Module(bundle), torch.randn(5, 8)
    text = r"an accrt.torch.Module cannot be pickled: save its state_dict\(\), make it anew of its bundle"
    for module in (ours, torch.nn.Sequential(ours)):
        for save in (pickle.dumps, lambda m: torch.save(m, tmp_path / "m.pt"), ForkingPickler.dumps):
            with pytest.raises(TypeError, match=text):
                save(module)
    torch.save(ours.state_dict(), tmp_path / "weights.pt")
    other = accrt.torch.Module(bundle)
    with torch.no_grad():
        next(other.parameters()).fill_(7)
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    close(other(x), ours(x))
    close(copy.copy(ours)(x), ours(x))
    operator = accrt.torch.operator(bundle, "forward", name="copies::forward")
    assert copy.deepcopy(operator) is operator
    with pytest.raises(TypeError, match=r"^an operator of accrt.torch cannot be pickled: another process makes its own by accrt.torch.operator\(path, function\)$"):
        pickle.dumps(operator)


def test_functional_calls_under_transforms(trained):
    import accrt.torch

    ours, x = accrt.torch.Module(trained, parameters={"scale": torch.ones(4)}), torch.randn(6, 8)
    weights = {name: torch.randn_like(p) for name, p in ours.named_parameters()}

    def loss(call):
        return lambda given, x: call(given, x).square().mean()

    mine = loss(lambda given, x: torch.func.functional_call(ours, given, (x,)))
    theirs = loss(lambda given, x: F.linear(x, given["proj.weight"]) * given["scale"])
    for transform in (torch.func.grad, lambda f: torch.vmap(torch.func.grad(f), in_dims=(None, 0)), torch.func.jacrev):
        given = x if transform is not torch.func.jacrev else x[:2]
        given = given.unsqueeze(1) if transform not in (torch.func.grad, torch.func.jacrev) else given
        torch.testing.assert_close(transform(mine)(weights, given), transform(theirs)(weights, given), rtol=1e-4, atol=1e-5)
    many = {name: torch.stack([w, w * 2, w * 3]) for name, w in weights.items()}  # an ensemble
    torch.testing.assert_close(torch.vmap(mine, in_dims=(0, None))(many, x), torch.vmap(theirs, in_dims=(0, None))(many, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="no derivative in forward mode"):
        torch.func.jvp(lambda given: mine(given, x), (weights,), (weights,))


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
    for call, error, text in ((lambda: ours(), TypeError, "misses input"), (lambda: ours(x, x), TypeError, "takes 1 input .input., 2 were given"),
                              (lambda: ours(y=x), TypeError, "got 'y', and takes input"),
                              (lambda: copy.deepcopy(ours).double()(x), TypeError, r"weight 0.bias is torch.float64 .* is needed: the bundle has the types that the model had"),
                              (lambda: ours(x.to_sparse()), TypeError, r"input is a torch\.sparse_coo tensor: pass input\.to_dense\(\)"),
                              (lambda: ours(torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)), TypeError, r"input is a nested tensor: pass torch\.nested\.to_padded_"),
                              (lambda: ours(torch.ones(65, 8)), accrt.Error, "got 65, allowed: 1 to 64"),
                              (lambda: accrt.torch.Module(bundle.program()), TypeError, "Program"),
                              (lambda: accrt.torch.Module(trained, parameters={"s": x}), ValueError, "'s', which is no input"),
                              (lambda: accrt.torch.Module(trained, "none"), accrt.NotFoundError, "none")):
        with pytest.raises(error, match=text) as told:
            call()
        assert "\n" not in str(told.value)
    close(ours(x), network()(x))


def test_parameters_elsewhere_are_refused(bundle):
    import accrt.torch

    module = accrt.torch.Module(bundle)
    module.to("meta")
    with pytest.raises(ValueError, match="its tensors are on cpu and on meta"):
        module(torch.ones(2, 8))
    assert module(torch.ones(2, 8, device="meta")).shape == (2, 3)


@pytest.mark.parametrize("parameters", ({"scale": 5}, [torch.ones(4)], 5, {"scale": None}))
def test_what_are_no_parameters_is_refused(trained, parameters):
    import accrt.torch

    with pytest.raises(TypeError, match="parameters is no mapping from names of inputs to tensors"):
        accrt.torch.Module(trained, parameters=parameters)


@pytest.mark.parametrize("state", (None, 5, []))
def test_what_is_no_state_dict_is_refused(bundle, state):
    import accrt.torch

    with pytest.raises(TypeError, match="dict-like"):
        accrt.torch.Module(bundle).load_state_dict(state)


def test_a_scalar_may_be_a_number_of_numpy(instance):
    import accrt.torch

    m = Module("scaled")
    n, by = m.symbol("n", maximum=64), m.symbol("by", maximum=64)
    f = m.function("forward")
    f.scalar("by", by)
    f.result("y", f.input("x", "f32", [n]) + f.full([by], 0.0, "f32").sum(0))
    made = accrt.torch.Module(accrt.Bundle(compile(m, targets=TARGETS), instance))
    order = [a.name for a in made.accrt_programs.bundle.signature("forward").inputs]
    for number in (3, np.int64(3), np.int32(3), torch.tensor(3)):
        close(made(**{name: number if name == "by" else torch.ones(2) for name in order}), torch.ones(2))
    with pytest.raises(TypeError, match="x is a value of type float64|x is .*, expected a torch.Tensor"):
        made(**{name: np.float64(3) if name == "x" else 3 for name in order})
