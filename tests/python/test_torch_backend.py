"""torch.compile(model, backend="accrt"). Runs where torch is installed: `./dev torch-test`."""
from __future__ import annotations

import logging
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

F = torch.nn.functional


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.fixture
def compiled(caplog):
    """Compiles, with no graph of an earlier test, and with what is said of it."""
    import accrt.torch

    torch._dynamo.reset()
    caplog.set_level(logging.INFO, "accrt.torch")
    assert accrt.torch.backend
    return lambda model, **options: torch.compile(model, backend="accrt", **options)


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "accrt.torch"]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3)).eval()


def test_a_whole_model_and_its_changes(compiled, caplog):
    net = network()
    fast = compiled(net, fullgraph=True)
    with torch.no_grad():
        for rows in (5, 1, 9, 9, 12):
            x = torch.randn(rows, 8)
            close(fast(x), net(x))
        net[0].weight.add_(1)
        close(fast(x), net(x))
        net.load_state_dict({n: t * 0.5 for n, t in net.state_dict().items()})
        close(fast(x), net(x))
    with torch.inference_mode():
        close(fast(x), net(x))
    assert said(caplog) == []


def test_what_is_made_of_parameters_follows_them(compiled, caplog):
    weight = torch.nn.Parameter(torch.randn(4, 8))
    model = lambda x: F.linear(x, weight * 2 + torch.arange(8))  # noqa: E731
    fast, x = compiled(model, fullgraph=True), torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(3):
            close(fast(x), model(x))
            weight.mul_(-3)
    assert said(caplog) == []


def test_what_has_no_lowering_runs_in_torch_and_the_rest_in_bundles(compiled, caplog, monkeypatch):
    import accrt.torch._backend as backend

    wholes, make = [], backend._Whole.__init__
    monkeypatch.setattr(backend._Whole, "__init__", lambda self, *a: (make(self, *a), wholes.append(self))[0])
    linear = torch.nn.Linear(8, 8).eval()

    def model(x):
        y = F.gelu(linear(x)) * 2
        z = torch.special.airy_ai(y @ y.T + 1)
        return (z.softmax(-1) + 1) @ y, x.shape[0]

    fast, x = compiled(model, fullgraph=True), torch.randn(5, 8) * 0.1
    with torch.no_grad():
        for _ in range(2):
            found, wanted = fast(x), model(x)
            close(found[0], wanted[0])
            assert found[1] == 5
            linear.weight.mul_(0.5)
    assert said(caplog) == ["aten.special_airy_ai.default runs in torch"] and len(wholes) == 2


def test_training_is_refused_by_name(compiled):
    net = network()
    fast = compiled(net)
    with pytest.raises(RuntimeError, match="runs inference alone, and arguments or parameters require grad: call the model under torch.no_grad"):
        fast(torch.randn(5, 8))
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    close(fast(torch.ones(5, 8)), net(torch.ones(5, 8)))


def test_writes_and_views(compiled, caplog):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x):
            self.count.add_(x)
            return self.count * 2

    counter = Counter()
    fast = compiled(counter)
    with torch.no_grad():
        for n in range(1, 4):
            assert (fast(torch.ones(4)) == 2 * n).all() and (counter.count == n).all()
        x = torch.zeros(2, 3)
        assert (compiled(lambda x: x.add_(1) * 2)(x) == 2).all() and (x == 1).all()
        x = torch.zeros(2, 3)
        compiled(lambda x: x.view(-1))(x).add_(1)
        assert (x == 1).all()
        y, flat = compiled(lambda x: (lambda y: (y, y.view(-1)))(x + 1))(x)
        flat.add_(1)
        assert (y == 3).all()
        assert said(caplog) == []


PLACES = {
    "apart": lambda a: (a[:3].clone(), a[3:6].clone()),
    "beside": lambda a: (a[:3], a[3:6]),
    "after": lambda a: (a[:3], a[2:5]),
    "before": lambda a: (a[1:4], a[:3]),
    "same": lambda a: (a[:3], a[:3].view(3)),
    "within": lambda a: (a[::2], a[1:4]),
}


@pytest.mark.parametrize("seed", range(4))
def test_arguments_that_overlap_see_what_is_written(compiled, seed):
    """Written memory is read as it is afterwards, through any argument; whatever came before."""
    import random

    def model(x, y):
        x.add_(1)
        z = y * 2
        y.mul_(3)
        return z, x + y

    order = random.Random(seed).choices(list(PLACES), k=8)
    fast = compiled(model)
    for name in order:
        one, other = torch.arange(1.0, 7.0), torch.arange(1.0, 7.0)
        close(fast(*PLACES[name](one)), model(*PLACES[name](other)))
        assert torch.equal(one, other), (name, order)


def test_overlaps_that_no_write_meets_run_in_bundles(compiled, monkeypatch):
    """Slices of one tensor are read, others are written."""
    import accrt.torch._backend as backend

    def model(q, k, v, keys, values, at):
        keys[at] = k
        values[at] = v.flip(0)
        return torch.softmax(q @ keys.T, -1) @ values

    def given():
        rows = torch.arange(12.0).reshape(2, 6) / 8
        kept = torch.zeros(8, 2)
        return *rows.split(2, 1), kept[:4], kept[4:], torch.tensor([2, 0])

    runs, plain = [], backend._Whole.__call__
    monkeypatch.setattr(backend._Whole, "__call__", lambda self, *args: (runs.append(backend._overlap(args, self.written)), plain(self, *args))[1])
    fast, one, other = compiled(model), given(), given()
    close(fast(*one), model(*other))
    assert torch.equal(one[3], other[3]) and torch.equal(one[4], other[4])
    assert runs == [False]
    kept = torch.zeros(4, 2)
    again = *given()[:3], kept[:], kept[:], torch.tensor([2, 0])
    same = torch.zeros(4, 2)
    close(fast(*again), model(*given()[:3], same, same, torch.tensor([2, 0])))
    assert torch.equal(kept, same)
    assert runs == [False, True]


def test_inference_tensors_are_written_in_their_mode_alone(compiled, caplog):
    """As torch has it; and a call that torch refuses leaves no plan that runs in torch."""
    import accrt.torch

    graph = torch.fx.symbolic_trace(lambda x: (x.add_(1).mul(2),))
    made = accrt.torch.backend(graph, [torch.zeros(4)])
    with torch.inference_mode():
        refused, kept = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                made(refused)
            assert (made(torch.zeros(4))[0] == 2).all()
    with torch.inference_mode():
        assert (made(kept)[0] == 2).all() and (kept == 1).all()
    assert said(caplog) == [] and [type(plan).__name__ for plan in made.plans.values()] == ["_Whole"]


def test_tensors_without_an_address_do_not_overlap():
    import accrt.torch._backend as backend

    class Two(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (4,), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError(func)

    assert not backend._overlap([Two(), Two()]) and not backend._overlap([Two(), Two(), torch.ones(4)], [0, 2])


def test_what_functions_of_functions_write_is_seen_through_others(compiled):
    """A graph that is taken apart before it is lowered has no operations that write."""

    def model(x, y):
        z = torch.func.vmap(lambda row: row * 2)(y)
        x.add_(1)
        return z + y

    fast = compiled(model)
    for shift in (3, 1):
        one, other = torch.arange(1.0, 7.0), torch.arange(1.0, 7.0)
        close(fast(one[:3], one[shift : shift + 3]), model(other[:3], other[shift : shift + 3]))
        assert torch.equal(one, other), shift


def test_results_that_are_views_are_made_by_torch_and_the_rest_by_bundles(compiled, caplog, monkeypatch):
    import accrt.torch._backend as backend

    wholes, make = [], backend._Whole.__init__
    monkeypatch.setattr(backend._Whole, "__init__", lambda self, *a: (make(self, *a), wholes.append(self))[0])
    net = network()

    def model(x):
        hidden = net(x).relu() + 1
        return hidden, hidden[:, 0], x.view(-1), hidden * 2

    fast, x = compiled(model, fullgraph=True), torch.randn(5, 8)
    with torch.no_grad():
        found, wanted = fast(x), model(x)
        for one, other in zip(found, wanted):
            close(one, other)
        found[1].fill_(7)
        assert (found[0][:, 0] == 7).all() and found[2].data_ptr() == x.data_ptr()
    assert len(wholes) == 1 and said(caplog) == []


@pytest.fixture
def wholes(monkeypatch):
    """The bundles that are made."""
    import accrt.torch._backend as backend

    made, make = [], backend._Whole.__init__
    monkeypatch.setattr(backend._Whole, "__init__", lambda self, *a: (make(self, *a), made.append(self))[0])
    return made


def test_batch_norms_are_in_bundles_and_follow_their_statistics(compiled, caplog, wholes):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.BatchNorm2d(4, affine=False)).eval()
    fast, x = compiled(net, fullgraph=True), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for step in range(3):
            close(fast(x), net(x))
            for norm in (net[1], net[3]):
                norm.running_mean.add_(step)
                norm.running_var.mul_(2.5)
        net[1].train()
        before = net[1].running_mean.clone()
        twin = torch.nn.BatchNorm2d(4)
        twin.load_state_dict(net[1].state_dict())
        close(fast(x), net[3](net[2](twin(net[0](x)))))
    assert not torch.equal(net[1].running_mean, before) and torch.equal(net[1].running_mean, twin.running_mean)
    assert len(wholes) >= 1 and all("batch_norm" in line or "in place" in line for line in said(caplog)), said(caplog)


def test_transformations_of_torch_func_are_in_bundles(compiled, caplog, wholes):
    def model(x, y):
        pairs = torch.vmap(torch.vmap(lambda a, b: a * 2 + b.sin(), in_dims=(None, 0)), in_dims=(0, None))(x, y)
        return pairs, torch.vmap(torch.dot)(x, y)

    fast, x, y = compiled(model, fullgraph=True), torch.randn(5, 8), torch.randn(5, 8)
    with torch.no_grad():
        for found, wanted in zip(fast(x, y), model(x, y)):
            close(found, wanted)
    assert said(caplog) == [] and len(wholes) == 1


def test_a_part_may_write_its_own_values_and_no_argument(compiled, caplog, wholes):
    def own(x):
        y = torch.special.airy_ai(x * 0.1 + 2) + 1
        y[0].mul_(2).add_(1)
        z = (y * 2).relu_()
        z[:, 1] = 7.0
        return y, z, y[0], z.view(-1)

    def argument(x):
        y = torch.special.airy_ai(x * 0.1 + 2)
        x.add_(1)
        return y * x + 1

    x = torch.randn(4, 4)
    with torch.no_grad():
        found, wanted = compiled(own, fullgraph=True)(x), own(x)
        for one, other in zip(found, wanted):
            close(one, other)
        found[2].fill_(3), found[3].fill_(4)
        assert (found[0][0] == 3).all() and (found[1] == 4).all()
        assert said(caplog) == ["aten.special_airy_ai.default runs in torch"] and wholes
        twin = x.clone()
        close(compiled(argument, fullgraph=True)(x), argument(twin))
        assert torch.equal(x, twin)
    assert said(caplog)[-1] == "a graph runs in torch: it writes in place, or calls what is no operation"


LAID = {
    "as_strided behind a part": lambda x: (x.relu() + x).as_strided((60,), (1,)) * 2,
    "transposed": lambda x: x.relu() + x,
    "clone": lambda x: (x + 1).clone().as_strided((10,), (2,)),
    "expanded": lambda x: (x.relu() + x)[:, :1].expand(5, 3, 4) + 0,
    "its own strides": lambda x: (lambda y: (y, y.stride()))(x.relu() + x),
    "channels last": lambda x: F.conv2d(x[None].to(memory_format=torch.channels_last), torch.ones(2, 5, 1, 1)).relu(),
    "contiguous": lambda x: x.contiguous().sigmoid() + 1,
}  # fmt: skip


@pytest.mark.parametrize("what", LAID)
def test_results_lie_as_torchs_do(compiled, what):
    """Code behind a part, and the caller, may depend on strides."""
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(3)).transpose(0, 1)
    with torch.no_grad():
        wanted, made = LAID[what](x), compiled(LAID[what])(x)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (made, wanted))):
        if isinstance(b, torch.Tensor):
            close(a, b)
            assert a.stride() == b.stride()
        else:
            assert a == b


def test_control_flow_breaks_and_numbers(compiled):
    def model(x, n, scale):
        if x.sum() > 0:  # breaks the graph
            x = x * scale
        return x[:n] + n

    fast = compiled(model)
    with torch.no_grad():
        for n, scale in ((2, 0.5), (3, 2.5), (4, -1.0)):
            x = torch.ones(6, 3)
            close(fast(x, n, scale), model(x, n, scale))


def test_dropout_in_training_mode_and_other_types(compiled):
    net = torch.nn.Dropout(0.5).train()
    with torch.no_grad():
        found = compiled(net)(torch.ones(1000))
        assert set(found.unique().tolist()) == {0.0, 2.0}
        x = torch.arange(6)
        assert compiled(lambda x: (x + 1, x > 2, x.to(torch.complex64)))(x)[2].dtype == torch.complex64
        assert torch.equal(compiled(lambda x: (x.bfloat16() * 2, None))(torch.ones(3))[0], torch.full((3,), 2, dtype=torch.bfloat16))
        assert compiled(lambda x: x * 2)(torch.ones(0, 4)).shape == (0, 4)


def test_threads(compiled):
    net, right = network(), {}
    fast = compiled(net)

    def work(seed):
        with torch.no_grad():
            x = torch.full((4, 8), float(seed))
            right[seed] = all(torch.allclose(fast(x), net(x), atol=1e-4) for _ in range(20))

    with torch.no_grad():
        fast(torch.ones(4, 8))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == dict.fromkeys(range(3), True)


def test_options_are_refused():
    import accrt.torch

    with pytest.raises(ValueError, match="has no options, mode was given"):
        accrt.torch.backend(torch.fx.symbolic_trace(torch.nn.ReLU()), [], mode="x")


def test_numbers_that_only_look_the_same_have_plans_of_their_own():
    """As torch.fx gives them to who calls the backend itself: 0.0 equals -0.0, and nan nothing."""
    from accrt.torch._backend import backend

    graph, x = torch.fx.symbolic_trace(lambda x, s: x / s), torch.ones(3)
    made = backend(graph, [x, 0.0])
    with torch.no_grad():
        for s in (0.0, -0.0, float("nan"), float("nan"), 2.0, -0.0):
            (y,) = made(x, s)
            assert torch.equal(y.nan_to_num(7.0), (x / s).nan_to_num(7.0)), s
    assert len(made.plans) == 4


@pytest.mark.parametrize("whole", [True, False])
def test_autocast_around_a_call_has_torchs_types(compiled, caplog, whole):
    """Also of a graph of which a part runs in torch."""
    net = network()
    model = net if whole else lambda x: torch.igamma(net(x).float().abs() + 1, torch.full_like(net(x).float(), 2.0)) * 2 + net(x)  # noqa: E731
    fast, x = compiled(model), torch.randn(5, 8)
    with torch.no_grad():
        plain = fast(x)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                made, wanted = fast(x), model(x)
            assert made.dtype == wanted.dtype
            torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
        assert torch.equal(fast(x), plain)
    assert set(said(caplog)) == (set() if whole else {"aten.igamma.default runs in torch"})


def test_a_dropout_that_is_off_stays_in_the_bundle(compiled, caplog):
    """With dynamic=True torch gives its probability as a tensor."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU()).eval()
    fast = compiled(net, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            close(fast(x), net(x))
    assert said(caplog) == []
