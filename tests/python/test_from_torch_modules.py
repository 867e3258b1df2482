"""accrt.from_torch with modules as people write them: containers and dataclasses in and out, None
and keywords, bags of embeddings, sampling at places, and what asks for the content of a tensor.
Runs where torch is installed: `./dev torch-test`."""

from __future__ import annotations

import dataclasses
import threading
import typing

import numpy as np
import pytest

import accrt
from accrt.from_torch import convert, UnsupportedOperations
from test_from_torch import check, close, F, Of, session_of, some, torch, whole

pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance()


@dataclasses.dataclass
class Inner:
    count: typing.Any
    unused: typing.Any = None


@dataclasses.dataclass
class Outer:
    logits: typing.Any
    hidden: typing.Any
    inner: Inner


def test_a_dataclass_as_the_result_gives_the_names_of_its_fields(instance):
    class Model(torch.nn.Module):
        def forward(self, x):
            hidden = torch.relu(x)
            return Outer(hidden * 2, hidden, Inner(hidden.sum(0)))

    x, model = some(3, 4), Model().eval()
    session, module = session_of(model, (x,), instance)
    assert [result.name for result in module.functions["forward"].results] == ["logits", "hidden", "inner_count"]
    hidden = x.double().relu()
    for ours, theirs in zip(session.forward(x.numpy()), (hidden * 2, hidden, hidden.sum(0))):
        close(np.asarray(ours), theirs)
    assert isinstance(model(x), Outer) and not model._forward_hooks  # the model is as it was


def test_inputs_in_containers_none_and_keywords(instance):
    class Model(torch.nn.Module):
        def forward(self, batch, pair, mask=None, *, scale, **rest):
            y = batch["x"] * pair[0] + pair[1][0] + rest["bias"] * scale
            return {"y": y if mask is None else y * mask, "twice": (y * 2, [y - 1])}

    x, a, b, bias = some(3, 4), some(4), some(3, 4), some(4)
    session, module = session_of(Model().eval(), ({"x": x}, (a, [b]), None), instance, kwargs=dict(scale=2.0, bias=bias))
    assert [i.name for i in module.functions["forward"].inputs] == ["batch_x", "pair_0", "pair_1_0", "bias"]
    y = x.double() * a + b + bias.double() * 2
    given = {"batch_x": x, "pair_0": a, "pair_1_0": b, "bias": bias}
    for ours, theirs in zip(session.forward(**{name: tensor.numpy() for name, tensor in given.items()}), (y, y * 2, y - 1)):
        close(np.asarray(ours), theirs)


BAGS = {
    "even-sum": dict(mode="sum"), "even-mean": dict(mode="mean"), "even-max": dict(mode="max"), "padding": dict(mode="mean", padding_idx=2),
}  # fmt: skip


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings(instance, name):
    torch.manual_seed(1)
    bag, ids = torch.nn.EmbeddingBag(9, 4, **BAGS[name]), whole(3, 4)
    check(bag.eval(), (ids,), instance, [(whole(3, 4, most=3),)])
    check(bag.requires_grad_(False), (ids,), instance)  # torch has another operation for it


def test_bags_of_several_sizes(instance):
    """An empty bag is one of them."""
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.summed, self.mean = torch.nn.EmbeddingBag(9, 4, mode="sum"), torch.nn.EmbeddingBag(9, 4, mode="mean", include_last_offset=True)

        def forward(self, ids, offsets, ends, weights):
            return self.summed(ids, offsets, per_sample_weights=weights), self.mean(ids, ends)

    args = (whole(6), torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 4, 6]), some(6))
    check(Model().eval(), args, instance, [(whole(6, most=2), torch.tensor([0, 0, 1, 6]), torch.tensor([0, 0, 0, 6]), some(6))])


@pytest.mark.parametrize("last", [False, True])
def test_as_many_bags_as_the_call_says(instance, last):
    torch.manual_seed(1)
    bag = torch.nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=last).eval()
    shapes = ({0: torch.export.Dim("ids", max=64)}, {0: torch.export.Dim("bags", min=3, max=16)})
    session, _module = session_of(bag, (whole(6), torch.tensor([0, 2, 6])), instance, dynamic_shapes=shapes)
    for ids, offsets in ((whole(9), torch.tensor([0, 2, 2, 5, 9])), (whole(2, most=3), torch.tensor([0, 2, 2]))):
        close(np.asarray(session.forward(ids.numpy(), offsets.numpy())), bag.double()(ids, offsets).detach())


def test_bags_that_have_no_lowering_are_named():
    with pytest.raises(UnsupportedOperations, match="embedding_bag of mode 'max'"):
        convert(torch.nn.EmbeddingBag(9, 4, mode="max").eval(), (whole(6), torch.tensor([0, 2, 2, 5])))


def test_what_torch_has_a_decomposition_for_beyond_its_exports(instance):
    """Sampling at places that the model calculates."""
    def sampled(x, turn):
        grid = F.affine_grid(turn, [2, 3, 4, 5], align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    check(Of(sampled).eval(), (some(2, 3, 4, 5), some(2, 2, 3)), instance)


class Recurrent(torch.nn.Module):
    """Layers that torch takes apart in several steps, between others that have a lowering."""

    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Linear(4, 4), torch.nn.Linear(8, 4)
        self.cell, self.grid = torch.nn.LSTMCell(4, 8), torch.nn.Unfold(2)

    def forward(self, x, picture):
        hidden, cell = self.cell(torch.relu(self.before(x)))
        return self.after(hidden), cell, self.grid(picture).sum(1), F.interpolate(picture, size=(3, 5), mode="bicubic")


@pytest.mark.parametrize("trained", [False, True])
def test_only_what_is_taken_apart_is_traced_and_once(instance, monkeypatch, trained):
    """torch's run_decompositions traces all of a model again, which took longer than its export."""
    from accrt import _torch_decompositions

    traced, trace = [], _torch_decompositions._traced
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda *_args, **_named: pytest.fail("all is traced again"))
    monkeypatch.setattr(_torch_decompositions, "_traced", lambda node, part: traced.append(node) or trace(node, part))
    model = Recurrent().eval().requires_grad_(trained)
    batch = torch.export.Dim("batch", max=9)
    check(model, (some(3, 4), some(3, 2, 6, 7)), instance, [(some(1, 4), some(1, 2, 6, 7))], dynamic_shapes=[{0: batch}, {0: batch}])
    assert sorted({str(node.target) for node in traced}) == ["aten.im2col.default", "aten.lstm_cell.default"]
    assert len(traced) == len(set(traced)), traced


def test_threads_that_take_operations_apart_leave_onednn_on():
    """It is off within, for the whole process: what a second thread finds is not how it was."""
    from accrt._torch_decompositions import _without_onednn

    within, leave = threading.Event(), threading.Event()

    def other():
        with _without_onednn():
            within.set()
            leave.wait(60)

    thread, before = threading.Thread(target=other), torch._C._get_mkldnn_enabled()
    try:
        with _without_onednn():
            thread.start()
            within.wait(0.2)
        leave.set()
        thread.join()
        assert before and torch._C._get_mkldnn_enabled()
    finally:
        torch._C._set_mkldnn_enabled(before)


@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
def test_distances_of_rows(instance, p):
    check(Of(lambda x, y: torch.cdist(x, y, p=p)).eval(), (some(2, 3, 4), some(5, 4)), instance)


def test_circular_padding(instance):
    check(Of(lambda x: (F.pad(x, (2, 1), "circular"), F.pad(x[None], (0, 2, 3, 1), "circular"))).eval(), (some(2, 3, 4),), instance)


def test_attention_over_the_edges_of_a_graph(instance):
    """A softmax over the edges that go to a node, by scattered extremes and sums; nodes without
    edges, and any number of both."""
    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.target, self.source = torch.nn.Linear(4, 6), torch.nn.Parameter(some(6)), torch.nn.Parameter(some(6).flip(0))

        def forward(self, x, edges):
            source, to = edges[0], edges[1]
            h = self.linear(x)
            e = F.leaky_relu((h[source] * self.source).sum(-1) + (h[to] * self.target).sum(-1), 0.2)
            most = x.new_full((x.shape[0],), float("-inf")).scatter_reduce(0, to, e, "amax")
            e = (e - most[to]).exp()
            share = e / x.new_zeros(x.shape[0]).scatter_add(0, to, e)[to]
            return torch.zeros_like(h).index_add(0, to, h[source] * share[:, None])

    def given(nodes, edges):
        return some(nodes, 4), torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(edges))

    torch.manual_seed(1)
    shapes = ({0: torch.export.Dim("nodes", max=64)}, {1: torch.export.Dim("edges", max=256)})
    check(Graph().eval(), given(5, 9), instance, [given(1, 3), given(17, 40), given(30, 1)], dynamic_shapes=shapes)


def branches(x):
    if x.sum().item() > 0:
        return x * 2
    return x - 1


def loops(x):
    for _ in range(int(x.max())):
        x = x + 1
    return x


def sizes(x):
    return x[: int(x.abs().max().item())]


@pytest.mark.parametrize("function", [branches, loops, sizes])
def test_code_that_asks_for_the_content_of_a_tensor_is_named_by_its_line(function):
    with pytest.raises(UnsupportedOperations) as caught:
        convert(Of(function).eval(), (some(5, 4),))
    ((operation, count, where, why),) = caught.value.operations
    line = next(n for n, text in enumerate(open(__file__), 1) if text.startswith(f"def {function.__name__}(")) + 1
    assert (operation, count) == ("aten.item.default", 1) and where == f"python/test_from_torch_modules.py:{line}, in {function.__name__}"
    assert "content of a tensor: " in why and ("item()" in why or "int(" in why)


def test_a_decomposition_that_changes_nothing_ends(monkeypatch):
    """torch may take an operation apart into itself."""
    import torch._decomp

    op = torch.ops.aten.special_airy_ai.default
    monkeypatch.setitem(torch._decomp.decomposition_table, op, same := lambda x: op(x) * 1.0)
    same.__module__ = torch._decomp.decompositions.__name__
    with pytest.raises(UnsupportedOperations, match="special_airy_ai"):
        convert(Of(torch.special.airy_ai).eval(), (some(3),))


@pytest.mark.parametrize("function", [torch.special.airy_ai, lambda x: torch.igamma(x.abs(), x.abs()), lambda x: torch.igammac(x.abs(), x.abs()), torch.linalg.eigvals])
def test_what_is_missing_has_the_name_that_the_model_has(function):
    with pytest.raises(UnsupportedOperations) as caught:
        convert(Of(function).eval(), (some(4, 4),))
    assert all(name.startswith("aten.") for name, *_rest in caught.value.operations), caught.value.operations


def test_a_file_is_read_without_asking_for_each_records_fields(tmp_path, monkeypatch):
    """torch asks Python for the types of a class's fields at each record: half of the reading."""
    from torch._export.serde import serialize

    from accrt import _pt2

    program = torch.export.export(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20))).eval(), (torch.randn(2, 4),))
    torch.export.save(program, tmp_path / "model.pt2")
    asked, hints = [], typing.get_type_hints
    monkeypatch.setattr(typing, "get_type_hints", lambda kind, *more, **named: asked.append(kind) or hints(kind, *more, **named))
    read = _pt2.loaded(str(tmp_path / "model.pt2"))
    records = [kind for kind in asked if getattr(kind, "__module__", "").startswith("torch._export.serde")]
    assert records and len(records) == len(set(records))
    assert serialize.typing is typing
    assert [str(node) for node in read.graph.nodes] == [str(node) for node in program.graph.nodes]


@pytest.mark.parametrize("dims", [1, 2])
def test_convolutions_with_weights_of_each_sample(dims, instance):
    """As StyleGAN has them: one convolution with as many groups as there are samples."""
    convolution, size = (F.conv1d, [9]) if dims == 1 else (F.conv2d, [7, 6])

    def function(x, weight):
        batch, channels = x.shape[:2]
        made = convolution(x.reshape(1, batch * channels, *size), weight.reshape(batch * 5, channels, *[3] * dims), stride=2, padding=1, groups=batch)
        return made.view(batch, 5, *made.shape[2:])

    given = [(some(batch, 4, *size), some(batch, 5, 4, *[3] * dims)) for batch in (3, 1, 4)]
    rows = torch.export.Dim("rows", max=16)
    check(Of(lambda x, weight: function(x, weight)), given[0], instance, given[1:], dynamic_shapes=(({0: rows}, {0: rows}),))


def test_the_gaussian_likelihood_is_not_checked(instance):
    layer, likelihood, any_ = torch.nn.GaussianNLLLoss(full=True, reduction="none"), F.gaussian_nll_loss, torch.any
    check(Of(lambda x, y: (layer(x, y, y.exp()), F.gaussian_nll_loss(x, y, x.abs()), (x > 0).any())), (some(3, 4), some(3, 4)), instance)
    assert F.gaussian_nll_loss is likelihood and torch.any is any_


def test_other_threads_ask_meanwhile(monkeypatch):
    """What the likelihood is not asked while it is exported, another thread still is."""
    from accrt import _exporting

    answers = []

    def likelihood(*_args, **_kwargs):
        other = threading.Thread(target=lambda: answers.append(bool(torch.any(torch.tensor([True])))))
        other.start()
        other.join()
        answers.append(torch.any(torch.tensor([True])))

    monkeypatch.setattr(F, "gaussian_nll_loss", likelihood)
    with _exporting._without_checks():
        F.gaussian_nll_loss()
    assert answers == [True, False]


def test_what_torch_cannot_export_is_said_in_one_line_alone(capfd):
    """torch prints the graph so far, of many lines."""
    with pytest.raises(UnsupportedOperations, match="aten.item.default x1: a branch, .* depends on the content of a tensor: .*x.sum.* > 0"):
        convert(Of(lambda x: x + 1 if x.sum() > 0 else x), (some(3, 4),))
    assert capfd.readouterr() == ("", "")


def test_distributions_and_decoders(instance):
    """torch.distributions check their numbers, and a decoder looks whether its mask is causal,
    which torch does not export; the switch is as it was afterwards."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)

        def forward(self, x, memory):
            normal = torch.distributions.Normal(x, x.exp())
            mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            kl = torch.distributions.kl_divergence(normal, torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x)))
            return normal.log_prob(memory[:, :5]), kl, torch.distributions.Categorical(logits=x).entropy(), self.decoder(x, memory, tgt_mask=mask)

    before = torch.distributions.Distribution._validate_args, torch.nn.modules.transformer._detect_is_causal_mask
    check(Model().eval(), (some(2, 5, 8), some(2, 6, 8)), instance)
    assert (torch.distributions.Distribution._validate_args, torch.nn.modules.transformer._detect_is_causal_mask) == before
