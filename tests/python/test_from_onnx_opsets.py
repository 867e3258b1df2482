"""accrt.from_onnx of models by their opset: what torch's exporter makes in its oldest and its
newest ones, and older operations that mean the same."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt.compiler import compile
from accrt.from_onnx import convert, UnsupportedOperations

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.torch

SEED = rotation.SEED
TARGETS = [kh.host_targets()[-1]]


class Block(torch.nn.Module):
    """A layer of a transformer, with operations whose form changed between opsets."""

    def __init__(self, reduces):
        super().__init__()
        self.reduces = reduces  # torch's exporter makes no opset 17 of such
        self.norm, self.much = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48)
        self.project, self.conv = torch.nn.Linear(16, 16), torch.nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.much(self.norm(x)).chunk(3, -1))
        x = x + self.project(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + torch.nn.functional.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        out = x, x.squeeze(0).softmax(-1)
        return (*out, x.mean(1), x.amax(-1).clamp(min=0.1)) if self.reduces else out


def exported(model, args, opset):
    """The model in this opset; None where torch's exporter has none of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            proto = torch.onnx.export(model, args, dynamo=True, opset_version=opset, verbose=False).model_proto
        except Exception:  # of many kinds, by version
            return None
    return proto if {o.domain: o.version for o in proto.opset_import}[""] == opset else None


def close(proto, args, wanted):
    session = accrt.Program(accrt.Bundle(compile(convert(proto), targets=TARGETS))).session()
    out = session.forward(*[a.numpy() for a in args])
    for ours, theirs in zip(out if isinstance(out, tuple) else (out,), wanted):
        np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("which", ["17", "18", "23", "newest"])
def test_what_torchs_exporter_gives(which):
    torch.manual_seed(SEED & 0x7FFFFFFF)
    model, args = Block(which != "17").eval(), (torch.randn(1, 5, 16),)
    opsets = range(onnx.defs.onnx_opset_version(), 16, -1) if which == "newest" else [int(which)]
    proto = next((made for made in (exported(model, args, opset) for opset in opsets) if made is not None), None)
    assert proto is not None, f"torch's exporter gives no opset {which}"
    print(f"opset {proto.opset_import[0].version}")
    with torch.no_grad():
        wanted = model(*args)
    close(proto, args, wanted)


def test_older_operations_that_mean_the_same():
    """Opset 11: what only takes more types since is lowered, what changed is refused by name."""
    from onnx import helper

    rng, F32 = np.random.default_rng(SEED), onnx.TensorProto.FLOAT
    x = torch.from_numpy(rng.standard_normal((3, 4)).astype(np.float32))
    nodes = [helper.make_node("ReduceMax", ["x"], ["a"], axes=[1], keepdims=1), helper.make_node("Sub", ["x", "a"], ["b"]), helper.make_node("Exp", ["b"], ["c"]),
             helper.make_node("Dropout", ["c"], ["d"], ratio=0.5), helper.make_node("Clip", ["d", "low"], ["y"])]  # fmt: skip

    def model(nodes):
        low = helper.make_tensor("low", F32, [], [0.25])
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", F32, [3, 4])], [helper.make_tensor_value_info("y", F32, [3, 4])], [low])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)

    close(model(nodes), (x,), [(x - x.amax(1, keepdim=True)).exp().clamp(min=0.25)])
    for operation in ("Softmax", "Hardmax", "LogSoftmax"):
        with pytest.raises(UnsupportedOperations, match="as opset 11 has it"):
            convert(model([helper.make_node(operation, ["x"], ["y"])]))
