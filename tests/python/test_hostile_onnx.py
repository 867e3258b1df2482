"""ONNX models that somebody made to harm: they are refused in words, in a time that has a bound."""
from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from accrt import from_onnx  # noqa: E402
from accrt.from_onnx import lowering  # noqa: E402

node = helper.make_node
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]


def model(nodes, x=("n", 4), numbers=(), functions=()):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(np.array(v), k) for k, v in dict(numbers).items()])
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))


def function(name, *nodes):
    return helper.make_function("f", name, ["a"], ["b"], list(nodes), OPSETS)


def refused(proto, *words):
    with pytest.raises(ValueError) as caught:
        from_onnx.convert(proto)
    message = str(caught.value)
    assert "\033" not in message and len(message) < 2000
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize("nodes, options", [
    ([node("Add", [], ["y"])], {}), ([node("Relu", ["x"] * 1000, ["y"])], {}), ([node("Softmax", ["x"], ["y"], axis="evil")], {}),
    ([node("Transpose", ["x"], ["y"], perm=["a"])], {}), ([node("LeakyRelu", ["x"], ["y"], alpha=[1.0])], {}),
    ([node("Resize", ["x", "", "s"], ["y"])], {"x": (1, 1, 8, 8), "numbers": {"s": np.array([1, 1, np.inf, 1], "f4")}}),
    ([node("Resize", ["x", "", "s"], ["y"])], {"x": (1, 1, 8, 8), "numbers": {"s": np.array([1, 1, np.nan, 1], "f4")}}),
    ([node("Reshape", ["x", "s"], ["y"])], {"numbers": {"s": [1 << 32, 1 << 32, 0]}}),
    ([node("MaxPool", ["x"], ["y"], kernel_shape=[0, 0])], {"x": (1, 1, 8, 8)}),
    ([node("SpaceToDepth", ["x"], ["y"], blocksize=0)], {"x": (1, 1, 8, 8)}),
    ([node("Shape", ["x"], ["v0"]), *(node("Mul", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(400)), node("ConstantOfShape", ["v400"], ["y"])], {}),
], ids=range(11))  # fmt: skip
def test_inputs_and_attributes_that_do_not_fit_are_one_line(nodes, options):
    assert refused(model(nodes, **options), "no lowering for 1 operation").count("\n") == 1


@pytest.mark.parametrize("nodes", [[node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])], [node("Relu", ["x"], ["x"]), node("Neg", ["x"], ["y"])]])
def test_a_name_is_given_once(nodes):
    refused(model(nodes), "which is there already")


def test_a_function_that_calls_itself_is_refused():
    refused(model([node("A", ["x"], ["y"], domain="f")], functions=[function("A", node("A", ["a"], ["b"], domain="f"))]), "more than 64 deep, or themselves")
    deep = [function(f"A{i}", node(f"A{i + 1}", ["a"], ["b"], domain="f")) for i in range(3000)]
    refused(model([node("A0", ["x"], ["y"], domain="f")], functions=[*deep, function("A3000", node("Relu", ["a"], ["b"]))]), "more than 64 deep")


def test_functions_that_double_their_calls_end(monkeypatch):
    """40 functions that call the next one twice are 2^40 nodes."""
    monkeypatch.setattr(lowering, "MOST_NODES", 2000)
    double = [function(f"A{i}", node(f"A{i + 1}", ["a"], ["c"], domain="f"), node(f"A{i + 1}", ["c"], ["b"], domain="f")) for i in range(40)]
    begin = time.process_time()
    refused(model([node("A0", ["x"], ["y"], domain="f")], functions=[*double, function("A40", node("Relu", ["a"], ["b"]))]), "more than 2000 nodes")
    assert time.process_time() - begin < 30


@pytest.mark.parametrize("size", [3000, 1 << 40])
def test_windows_have_a_size(size):
    begin = time.process_time()
    refused(model([node("AveragePool", ["x"], ["y"], kernel_shape=[size, size], pads=[size - 1] * 4)], x=(1, 1, 8, 8)))
    assert time.process_time() - begin < 30


def test_names_control_no_terminal():
    refused(model([node("Evil\033[2J", ["x"], ["y"], name="\033]0;x\007")]), "Evil\\x1b[2J x1 (\\x1b]0;x\\x07)")
    refused(model([node("Add", ["x", "no\033[31m"], ["y"])]), "no\\x1b[31m")


def test_a_link_to_weights_is_refused_as_one(tmp_path):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="link")
    proto = model([node("Add", ["x", "w"], ["y"])])
    proto.graph.initializer.append(tensor)
    os.symlink("/etc/passwd", tmp_path / "link")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises((ValueError, OSError), match="link"):
        from_onnx.convert(tmp_path / "m.onnx")


def beside(tmp_path, dims, content=bytes(64), **entries):
    """A model whose weight w is in the file `w` beside it."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w", **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    proto = model([node("Add", ["x", "w"], ["y"])], x=(16,))
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "w").write_bytes(content)
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("dims, entries", [
    ([16], {"length": 60}), ([16], {"offset": 4}), ([16], {"offset": 64}), ([16], {"length": 0}), ([-16], {}), ([-1], {"length": 64}), ([1 << 62, 4], {}), ([0], {}), ([4, 3], {"length": 64}),
])  # fmt: skip
def test_sizes_of_weights_in_other_files_are_refused_by_name(tmp_path, dims, entries):
    with pytest.raises(ValueError, match=r"weight 'w': (it has -?\d+ bytes in 'w', expected \d+ for the dimensions|its dimensions are)"):
        from_onnx.convert(beside(tmp_path, dims, **entries))
    assert from_onnx.convert(beside(tmp_path, [16]))


def test_a_file_of_weights_takes_memory_by_the_models_sizes(tmp_path):
    """A model of 200 bytes, and a file of 1 TiB that takes no room on the disk."""
    path = beside(tmp_path, [16])
    os.truncate(tmp_path / "w", 1 << 40)
    with pytest.raises(ValueError, match="weight 'w': it has 1099511627776 bytes in 'w', expected 64"):
        from_onnx.convert(path)


@pytest.mark.parametrize("fields, words", [
    ({"dims": [1 << 40], "raw_data": b"xxxx"}, "it has 4 bytes, expected 4398046511104"), ({"dims": [16], "raw_data": b"x" * 65}, "it has 65 bytes, expected 64"),
    ({"dims": [-4], "raw_data": bytes(16)}, "of which one is negative"), ({"dims": [5], "float_data": [1.0] * 4}, "cannot reshape"), ({"dims": [1], "data_type": 99}, "type 99"),
    ({"dims": [4], "data_location": TensorProto.EXTERNAL}, "a tensor in another file"),
])  # fmt: skip
def test_weights_that_lie_are_refused_by_name(fields, words):
    """Those of a model in memory open no file either."""
    proto = model([node("Add", ["x", "w"], ["y"])])
    proto.graph.initializer.append(TensorProto(name="w", **{"data_type": TensorProto.FLOAT, **fields}))
    refused(proto, "weight 'w'", words)
    value = TensorProto(name="w", **{"data_type": TensorProto.FLOAT, **fields})
    refused(model([node("Constant", [], ["w"], value=value), node("Add", ["x", "w"], ["y"])]), words)


N = 1 << 15
#: Nodes that make much of little, all of it known: k is 4 GiB and more.
GROWING = {
    "Pad": ([node("Pad", ["c", "p"], ["k"])], {"c": np.ones(1, "f4"), "p": np.array([0, 1 << 30])}),
    "Add": ([node("Add", ["c", "d"], ["k"])], {"c": np.ones((N, 1), "f4"), "d": np.ones((1, N), "f4")}),
    "MatMul": ([node("MatMul", ["c", "d"], ["k"])], {"c": np.ones((N, 1), "f4"), "d": np.ones((1, N), "f4")}),
    "Gather": ([node("Gather", ["c", "i"], ["k"])], {"c": np.ones((1, N), "f4"), "i": np.zeros(N, "i8")}),
    "HannWindow": ([node("HannWindow", ["n"], ["k"])], {"n": np.array(1 << 30)}),
    "Resize": ([node("Resize", ["c", "", "s"], ["k"])], {"c": np.ones((1, 1, 1, 1), "f4"), "s": np.array([1, 1, N, N], "f4")}),
    "Concat": ([node("Concat", ["c"] * 4000, ["k"], axis=0)], {"c": np.ones(1 << 18, "f4")}),
    "ConvTranspose": ([node("ConvTranspose", ["c", "w"], ["k"], strides=[N, N])], {"c": np.ones((1, 1, 2, 2), "f4"), "w": np.ones((1, 1, 1, 1), "f4")}),
    "MelWeightMatrix": ([node("MelWeightMatrix", ["a", "n", "r", "l", "h"], ["k"])],
                        {"a": np.array(1 << 14), "n": np.array(1 << 17), "r": np.array(8000), "l": np.float32(0), "h": np.float32(4000)}),
    "Concat, in a chain": ([node("Concat", [f"k{i}" if i else "c"] * 2, [f"k{i + 1}" if i < 11 else "k"], axis=0) for i in range(12)], {"c": np.ones(1 << 18, "f4")}),
    "sizes": ([node("Shape", ["x"], ["h"]), node("Add", ["h", "c"], ["k"])], {"c": np.ones((1 << 22, 1), "i8")}),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_what_is_known_is_not_calculated_beyond_all_sizes(name):
    """What such a model makes of itself while it is read: nothing but errors, or nothing."""
    nodes, numbers = GROWING[name]
    rest = [node("ReduceSum", ["k"], ["s"], keepdims=0), node("Cast", ["s"], ["z"], to=TensorProto.FLOAT), node("Add", ["x", "z"], ["y"])]
    said, seconds, peak = converted_alone(model([*nodes, *rest], numbers=numbers))
    assert said == "taken\n" or "no lowering for" in said
    assert seconds < 20 and peak < 512 << 10, "KiB"


#: Of an image that is not known: places, shares and counts of which there are gigabytes.
CALCULATED = {
    **{f"Resize, {mode}, {scale}": (node("Resize", ["x", "", "s"], ["y"], mode=mode, **more), size, {"s": np.array([1, 1, scale, 1], "f4")}) for mode, more, size, scale in (
        ("nearest", {}, 4, 1e9), ("linear", {}, 4, 1e8), ("cubic", {}, 4, 3e6), ("linear", {"antialias": 1}, 1 << 24, 1e-7), ("linear", {"antialias": 1}, 1 << 24, 1e-3))},
    **{f"AveragePool, {pad}": (node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], pads=[pad] * 4), 4, {}) for pad in (1 << 22, 1 << 30)},
}  # fmt: skip


@pytest.mark.parametrize("name", CALCULATED)
def test_what_an_operation_calculates_for_itself_has_an_end(name):
    """Gigabytes of places were calculated, and each of ten million shares was an operation."""
    one, size, numbers = CALCULATED[name]
    said, seconds, peak = converted_alone(model([one], x=(1, 1, size, 4), numbers=numbers))
    assert "no lowering for 1 operation" in said and seconds < 20 and peak < 512 << 10, "KiB"


# A process of its own, and what its own memory had at most: ru_maxrss begins with the parent's.
ALONE = """
import re, sys, time
import numpy, onnx
from accrt import from_onnx
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
proto, said = onnx.load_from_string(sys.stdin.buffer.read()), "taken"
before, begin = peak(), time.process_time()
try:
    from_onnx.convert(proto)
except ValueError as error:
    said = str(error)
print(time.process_time() - begin, peak() - before, said)
"""


def converted_alone(proto):
    """What a conversion says, the seconds that it calculates, and the KiB that it adds to the most
    that the process had."""
    ran = subprocess.run([sys.executable, "-c", ALONE], input=proto.SerializeToString(), capture_output=True, timeout=300, check=False)
    assert not ran.returncode, ran.stderr.decode()
    seconds, peak, said = ran.stdout.decode().split(" ", 2)
    return said, float(seconds), int(peak)


def test_memory_that_a_conversion_takes_is_seen():
    """A child begins with a peak of its own, whatever this process had."""
    chain = [node("Concat", [f"k{i}" if i else "c"] * 2, [f"k{i + 1}"], axis=0) for i in range(6)]
    large = model([*chain, node("ReduceSum", ["k6"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])], numbers={"c": np.ones(1 << 18, "f4")})
    held = np.ones(1 << 26, "f4")
    assert converted_alone(model([node("Relu", ["x"], ["y"])]))[2] < 32 << 10 < converted_alone(large)[2]
    assert held.all()


def test_chains_of_weights_are_calculated_within_their_bytes():
    """A weight's types and shapes change at no cost when the model runs."""
    weight = np.arange(1 << 21, dtype=np.float16)
    made = from_onnx.convert(model([node("Cast", ["c"], ["k"], to=TensorProto.FLOAT), node("Reshape", ["k", "s"], ["m"]), node("ReduceSum", ["m"], ["z"], keepdims=0),
                                    node("Add", ["x", "z"], ["y"])], numbers={"c": weight, "s": np.array([-1, 4])}))  # fmt: skip
    assert len(made.functions) == 1
