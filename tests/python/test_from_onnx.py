"""accrt.from_onnx: sizes that vary and shapes made of them, weights by name, external data,
branches, functions, and what is said of what cannot be done. Runs where onnx is: `./dev check
onnx`. ONNX's own tests: test_onnx_conformance.py; whole models: test_from_onnx_models.py."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile, Interpreter
from accrt.from_onnx import convert, Method, UnsupportedOperations

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

from onnx import helper, numpy_helper, TensorProto  # noqa: E402

TARGETS = [kh.host_targets()[-1]]
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
rng = np.random.default_rng(3)


def node(kind, inputs, outputs="y", **named):
    return helper.make_node(kind, inputs.split(), outputs.split(), **named)


def model(nodes, inputs, weights=(), outputs="y", opset=20, functions=(), domains=()):
    """A model; inputs are (name, type, shape); weights arrays by name."""
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, F32, None) for n in outputs.split()],
        [numpy_helper.from_array(a, n) for n, a in dict(weights).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def refused(proto, **options):
    with pytest.raises(UnsupportedOperations) as caught:
        convert(proto, **options)
    return str(caught.value)


def test_shapes_that_are_calculated_become_expressions():
    """x[batch, length, 6] -> heads: [batch, 2, length, 3], by Shape, Gather, Concat and Reshape."""
    proto = model([
        node("Shape", "x", "s"), node("Gather", "s zero", "b"), node("Gather", "s one", "l"), node("Unsqueeze", "b axis", "b1"),
        node("Unsqueeze", "l axis", "l1"), node("Concat", "b1 l1 two three", "wanted", axis=0), node("Reshape", "x wanted", "split"),
        node("Transpose", "split", "y", perm=[0, 2, 1, 3]),
    ], [("x", F32, ["batch", "length", 6])], dict(zero=np.array(0), one=np.array(1), axis=np.array([0]), two=np.array([2]), three=np.array([3])))  # fmt: skip
    module = convert(proto)
    assert list(module.symbols) == ["batch", "length"]
    assert [op.name for op in module.functions["forward"].body.ops] == ["aten.view", "aten.permute"]
    for batch, length in ((1, 1), (3, 5)):
        x = rng.standard_normal((batch, length, 6)).astype(np.float32)
        (y,) = Interpreter(module).run("forward", x)
        assert (y == x.reshape(batch, length, 2, 3).transpose(0, 2, 1, 3)).all()


def test_a_shape_by_where_and_constant_of_shape():
    """What torch's older exporter writes for expand(-1, ...): Where(wanted == -1, ones, wanted)."""
    proto = model([
        node("Shape", "x", "s"), node("Gather", "s first", "n"), node("Concat", "n minus", "wanted", axis=0), node("Shape", "wanted", "rank"),
        node("ConstantOfShape", "rank", "ones", value=numpy_helper.from_array(np.array([1]))), node("Mul", "ones minus", "other"),
        node("Equal", "wanted other", "is"), node("Where", "is ones wanted", "shape"), node("Expand", "row shape", "y"),
    ], [("x", F32, ["n", 2])], dict(first=np.array([0]), minus=np.array([-1]), row=np.array([[1.0, 2.0]], np.float32)))  # fmt: skip
    (y,) = Interpreter(convert(proto)).run("forward", np.zeros((3, 2), np.float32))
    assert y.tolist() == [[1.0, 2.0]] * 3


def test_positions_and_a_causal_mask_need_no_tensor():
    """Range, LessOrEqual and Attention: the mask is recognized."""
    proto = model([
        node("Shape", "q", "n1", start=2, end=3), node("Squeeze", "n1 axis", "n"), node("Range", "zero n one", "at"), node("Unsqueeze", "at last", "rows"),
        node("LessOrEqual", "at rows", "seen"), node("Attention", "q k v seen", "y"),
    ], [(name, F32, [1, 2, "n", 4]) for name in "qkv"],
       dict(axis=np.array([0]), last=np.array([1]), zero=np.array(0), one=np.array(1)), opset=23)  # fmt: skip
    module = convert(proto)
    (made,) = [op for op in module.functions["forward"].body.ops if op.name == "aten.scaled_dot_product_attention"]
    assert made.attrs["is_causal"] and made.operands[3] is None


def test_places_that_count_from_the_end():
    """Range - 2 begins below 0: in GatherND, as in Gather, these count from the end."""
    nodes = [node("Shape", "x", "n"), node("Squeeze", "n", "count"), node("Range", "zero count one", "at"), node("Sub", "at two", "places")]
    weights = dict(zero=np.array(0), one=np.array(1), two=np.array(2), last=np.array([1]))
    x = rng.standard_normal(6).astype(np.float32)
    for more in ([node("Gather", "x places")], [node("Unsqueeze", "places last", "wide"), node("GatherND", "x wide")]):
        (y,) = Interpreter(convert(model(nodes + more, [("x", F32, ["n"])], weights))).run("forward", x)
        assert (y == x[np.arange(6) - 2]).all()


def test_images_that_vary_are_repeated():
    proto = model([helper.make_node("Resize", ["x", "", "factors"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
                  [("x", F32, [1, 2, "h", "w"])], dict(factors=np.array([1, 1, 2, 3], np.float32)))  # fmt: skip
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    (y,) = Interpreter(convert(proto)).run("forward", x)
    assert (y == x.repeat(2, 2).repeat(3, 3)).all()
    assert "a dimension of h by linear" in refused(model([helper.make_node("Resize", ["x", "", "factors"], ["y"], mode="linear")], [("x", F32, [1, 2, "h", 4])],
                                                         dict(factors=np.array([1, 1, 2, 2], np.float32))))  # fmt: skip


def test_sizes_fix_and_bound_what_varies():
    proto = model([node("Relu", "x")], [("x", F32, ["batch", "length", None])])
    assert [(s.name, s.minimum, s.maximum) for s in convert(proto, maximum=9).symbols.values()] == [("batch", 1, 9), ("length", 1, 9), ("x_2", 1, 9)]
    module = convert(proto, sizes={"batch": 2, "length": (4, 16)})
    assert [(s.name, s.minimum, s.maximum) for s in module.symbols.values()] == [("length", 4, 16), ("x_2", 1, 1 << 16)]
    assert module.functions["forward"].inputs[0].value.shape[0] == 2
    with pytest.raises(ValueError, match="sizes has 'rows'; the model's dimensions that vary are batch, length, x_2"):
        convert(proto, sizes={"rows": 2})


def test_constants_decide_shapes():
    proto = model([node("Reshape", "x shape")], [("x", F32, [2, 3]), ("shape", I64, [2])])
    assert "Reshape x1: the shape of a reshape, which only a call knows: constants= gives" in refused(proto)
    module = convert(proto, constants={"shape": np.array([3, -1])})
    assert [i.name for i in module.functions["forward"].inputs] == ["x"]
    assert Interpreter(module).run("forward", np.zeros((2, 3), np.float32))[0].shape == (3, 2)
    with pytest.raises(ValueError, match="constants has 'size', which is no input"):
        convert(proto, constants={"size": np.array([3, -1])})


def test_all_that_is_missing_is_one_list():
    loop = helper.make_graph([], "body", [], [])
    proto = model([
        helper.make_node("NonZero", ["x"], ["a"], name="first"), node("NonZero", "x", "b"), node("Loop", "trips more x", "c", body=loop), node("Add", "a c", "y"),
    ], [("x", F32, [2]), ("trips", I64, []), ("more", TensorProto.BOOL, [])])  # fmt: skip
    with pytest.raises(UnsupportedOperations) as caught:
        convert(proto, name="m")
    assert caught.value.operations == [("Loop", 1, "c", ""), ("NonZero", 2, "first", "")]
    assert str(caught.value) == "m: no lowering for 2 operations:\n  Loop x1 (c)\n  NonZero x2 (first)"
    typed = model([node("Identity", "x")], [("x", TensorProto.STRING, [2])])
    assert "input 'x' x1: tensors of STRING" in refused(typed)
    assert "opset 11 has it" in refused(model([node("Softmax", "x")], [("x", F32, [2, 3])], opset=11))
    assert "with the attribute 'colour'" in refused(model([node("Tanh", "x", colour=3)], [("x", F32, [2])]))


def test_a_branch_whose_condition_is_known_is_taken():
    def branch(kind):
        return helper.make_graph([node(kind, "x", "out")], kind, [], [helper.make_tensor_value_info("out", F32, None)])

    nodes = [node("Shape", "x", "s"), node("Size", "s", "rank"), node("Equal", "rank two", "is"),
             node("If", "is", "y", then_branch=branch("Neg"), else_branch=branch("Abs"))]  # fmt: skip
    for shape, wanted in (((1, 3), -1.0), ((3,), 1.0)):
        (y,) = Interpreter(convert(model(nodes, [("x", F32, shape)], dict(two=np.array(2))))).run("forward", np.ones(shape, np.float32))
        assert (y == wanted).all()
    unknown = [node("If", "is", "y", then_branch=branch("Neg"), else_branch=branch("Abs"))]
    assert "its condition is known to the call alone" in refused(model(unknown, [("x", F32, [3]), ("is", TensorProto.BOOL, [])]))


def test_functions_of_the_model_are_inlined():
    scaled = helper.make_function(
        "own", "Scaled", ["a", "b"], ["c"], [node("Mul", "a b", "d"), helper.make_node("Elu", ["d"], ["c"])], [helper.make_opsetid("", 20)]
    )
    scaled.node[1].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    scaled.attribute.append("alpha")
    proto = model([helper.make_node("Scaled", ["x", "w"], ["y"], domain="own", alpha=2.0)], [("x", F32, [2])], dict(w=np.array([1.0, -1.0], np.float32)),
                  functions=[scaled], domains=["own"])  # fmt: skip
    (y,) = Interpreter(convert(proto)).run("forward", np.ones(2, np.float32))
    np.testing.assert_allclose(y, [1.0, 2 * np.expm1(-1.0)], rtol=1e-6)


def test_what_onnx_defines_by_others_is_lowered_as_those():
    proto = model([node("MeanVarianceNormalization", "x")], [("x", F32, [2, 3, 4, 5])])
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    (y,) = Interpreter(convert(proto)).run("forward", x)
    axes = (0, 2, 3)
    np.testing.assert_allclose(y, (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True), rtol=1e-4, atol=1e-5)


def test_weights_keep_their_names_and_lie_beside(tmp_path, instance):
    """External data; a bundle with weights by name; the bundle runs without onnx."""
    w = rng.standard_normal((64, 32)).astype(np.float32)
    proto = model([node("MatMul", "x layer.weight", "h"), node("Relu", "h")], [("x", F32, ["n", 64])], {"layer.weight": w})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=0)
    assert (tmp_path / "model.data").stat().st_size >= w.nbytes
    bundle = accrt.from_onnx(path, tmp_path / "model.accx", targets=TARGETS)
    assert [c.name for c in bundle.constants][:1] == ["layer.weight"]
    x = rng.standard_normal((3, 64)).astype(np.float32)
    code = ("import sys; sys.modules['onnx'] = None; import accrt, numpy as np; "
            f"print(np.asarray(accrt.load({str(tmp_path / 'model.accx')!r}).forward(np.load({str(tmp_path / 'x.npy')!r}))).tolist())")
    np.save(tmp_path / "x.npy", x)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()).stdout
    np.testing.assert_allclose(np.array(eval(out)), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)


def external(path, location, **fields):
    """A model with one weight in another file, as its text says."""
    proto = model([node("MatMul", "x w")], [("x", F32, ["n", 4])], {"w": np.ones((4, 4), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    path.write_bytes(proto.SerializeToString())


def test_files_beside_are_regular_and_beneath_the_model(tmp_path):
    """A model's text names them: links, other folders and what is no file are refused, and nothing
    waits for a FIFO."""
    folder, path = tmp_path / "model", tmp_path / "model" / "model.onnx"
    (folder / "inner").mkdir(parents=True)
    data = np.ones((4, 4), np.float32).tobytes()
    for name in ("w", "inner/w", "../outside", "named"):
        (folder / name).write_bytes(data)
    (folder / "link").symlink_to("w")
    (folder / "way").symlink_to("inner")
    os.link(folder / "named", folder / "twice")
    os.mkfifo(folder / "fifo")
    for location in ("w", "./w", "inner/w"):
        external(path, location)
        assert list(convert(path).constants) == ["w"]
    external(path, "w", offset=0, length=64)
    convert(path)
    for location, wanted in (("link", "link"), ("way/w", "way/w"), ("fifo", "no regular file"), ("twice", "other names"), ("inner", "no regular file"),
                             ("../outside", "not beneath"), (str(folder / "w"), "not beneath"), ("", "not beneath"), ("none", "none"),
                             ("inner/../w", "not beneath"), ("w/", "not beneath")):  # fmt: skip
        external(path, location)
        with pytest.raises((OSError, ValueError), match=re.escape(wanted)):
            convert(path)
    for fields, wanted in (({"offset": 4, "length": 64}, "64 bytes from 4 on are not in 'w', which has 64"), ({"offset": -1}, "bytes from -1"),
                           ({"length": 1 << 62}, "are not in 'w'"), ({"offset": "x"}, "no number"), ({"offset": 65}, "are not in 'w'")):  # fmt: skip
        external(path, "w", **fields)
        with pytest.raises(ValueError, match=wanted):
            convert(path)


def test_several_models_share_weights():
    w = np.ones((4, 4), np.float32)
    first = model([node("MatMul", "x w")], [("x", F32, ["n", 4])], dict(w=w))
    second = model([node("MatMul", "x w", "h"), node("Add", "h b")], [("x", F32, ["n", 4])], dict(w=w, b=np.zeros(4, np.float32)))
    third = model([node("MatMul", "x w")], [("x", F32, ["n", 4])], dict(w=2 * w))
    module = convert({"encode": first, "decode": Method(second, sizes={"n": 1}), "other": third})
    assert sorted(module.functions) == ["decode", "encode", "other"]
    assert sorted(module.constants) == ["b", "other.w", "w"] and list(module.symbols) == ["n"]
    session = accrt.Program(accrt.Bundle(compile(module, targets=TARGETS))).session()
    assert np.asarray(session.other(np.ones((2, 4), np.float32))).tolist() == [[8.0] * 4] * 2


def test_the_command_line(tmp_path):
    onnx.save(model([node("Mul", "x two")], [("x", F32, ["n", 4])], dict(two=np.array(2.0, np.float32))), tmp_path / "twice.onnx")
    onnx.save(model([node("NonZero", "x")], [("x", F32, [4])]), tmp_path / "places.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    run = [sys.executable, "-m", "accrt.from_onnx"]

    def ran(*words):
        return subprocess.run([*run, *words, "--target", TARGETS[0]], cwd=tmp_path, capture_output=True, text=True, env=environment())

    done = ran("twice.onnx", "-o", "twice.accx", "--size", "n=1:8")
    assert done.returncode == 0 and "twice.onnx: 1 function" in done.stderr, done.stderr
    assert np.asarray(accrt.load(tmp_path / "twice.accx").forward(np.ones((3, 4), np.float32))).tolist() == [[2.0] * 4] * 3
    for name, wanted in (("missing.onnx", "missing.onnx"), ("text.onnx", "text.onnx is no ONNX model"), ("places.onnx", "no lowering for 1 operation")):
        done = ran(name, "-o", "x.accx")
        assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = ran("twice.onnx", "-o", "x.accx", "--size", "n=few")
    assert done.returncode == 2 and "--size n=few: expected NAME=SIZE, as batch=8 or batch=1:64" in done.stderr, done.stderr


def test_the_document_has_the_table_of_what_is_covered():
    from accrt.from_onnx.__main__ import operations

    document = (pathlib.Path(__file__).resolve().parents[2] / "docs/from-onnx.md").read_text()
    assert operations() in document.replace("\n", " "), "python -m accrt.from_onnx --operations"


def environment():
    return dict(os.environ, PYTHONPATH=str(pathlib.Path(accrt.__file__).parents[1]))


@pytest.mark.parametrize("nodes, opset, reason", [
    ([node("LayerNormalization", "x w", "y")], 1, "which opset 1 does not have"),
    ([node("Less", "x x", "y")], 0, "which opset 0 does not have"),
    ([node("Einsum", "x w", "y", equation=[1, 2])], 20, "its attribute 'equation' is of another type than STRING"),
    ([node("Softmax", "x", "y", axis="last")], 20, "its attribute 'axis' is of another type than INT"),
    ([node("Add", "x", "y")], 20, "with 1 inputs; it has at least 2"),
    ([node("Relu", "x w", "y")], 20, "with 2 inputs; it has at most 1"),
])  # fmt: skip
def test_nodes_in_a_wrong_form_are_told(nodes, opset, reason):
    proto = model(nodes, [("x", F32, [4, 4])], dict(w=np.ones((4, 4), np.float32)), opset=opset)
    assert reason in refused(proto)


def test_a_division_by_zero_is_told():
    """The sum over an axis of a size, which has no axes."""
    proto = model([node("Shape", "x", "s"), node("Gather", "s first", "n"), node("ReduceSum", "n axes", "m"), node("Reshape", "x m", "y")],
                  [("x", F32, ["n", 4])], dict(first=np.array(0), axes=np.array([0])))  # fmt: skip
    assert "Reshape x1" in refused(proto)


def test_a_missing_file_is_the_packages_error(tmp_path):
    with pytest.raises(accrt.MissingFileError, match="none.onnx: no such file") as said:
        accrt.from_onnx(str(tmp_path / "none.onnx"))
    assert said.value.filename == str(tmp_path / "none.onnx")
