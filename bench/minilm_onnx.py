"""The MiniLM encoder as ONNX, for onnxruntime: the peer that bench_minilm.py measures against.

Builds the graph that an exporter would (standard operators only) from the same safetensors, and the
graph that onnxruntime's own transformer optimizer makes of it (fused attention, layer norms, GELU).
"""
from __future__ import annotations

import json
import pathlib
import struct

import numpy as np

HEADS, WIDTH, LAYERS = 12, 384, 6


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All f32 and i64 tensors of a safetensors file."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    types = {"F32": np.float32, "I64": np.int64}
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        out[name] = np.frombuffer(raw[8 + size + begin:8 + size + end], types[entry["dtype"]]).reshape(entry["shape"])
    return out


def build(weights: dict[str, np.ndarray]):
    """The plain graph: encode(input_ids, attention_mask) -> embeddings."""
    from onnx import TensorProto, helper, numpy_helper
    nodes, initializers, counter = [], [], [0]

    def constant(value, name=None):
        counter[0] += 1
        name = name or f"c{counter[0]}"
        initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(kind, *inputs, **attributes):
        counter[0] += 1
        out = f"v{counter[0]}"
        nodes.append(helper.make_node(kind, list(inputs), [out], name=f"{kind}_{counter[0]}", **attributes))
        return out

    def weight(name):
        return constant(weights[name], name)

    def linear(x, prefix):
        product = op("MatMul", x, constant(weights[prefix + ".weight"].T, prefix + ".weight_t"))
        return op("Add", weight(prefix + ".bias"), product)

    def norm(x, prefix):
        return op("LayerNormalization", x, weight(prefix + ".weight"), weight(prefix + ".bias"), axis=-1, epsilon=1e-12)

    def i64(*values):
        return constant(np.array(values, np.int64))

    shape = op("Shape", "input_ids")
    length = op("Gather", shape, constant(np.array(1, np.int64)), axis=0)
    positions = op("Unsqueeze", op("Range", constant(np.array(0, np.int64)), length, constant(np.array(1, np.int64))), i64(0))
    e = "embeddings."
    words = op("Gather", weight(e + "word_embeddings.weight"), "input_ids", axis=0)
    types = op("Gather", weight(e + "token_type_embeddings.weight"), op("Sub", "input_ids", "input_ids"), axis=0)
    x = op("Add", words, types)
    x = op("Add", x, op("Gather", weight(e + "position_embeddings.weight"), positions, axis=0))
    x = norm(x, e + "LayerNorm")

    mask = op("Cast", op("Unsqueeze", op("Unsqueeze", "attention_mask", i64(1)), i64(2)), to=TensorProto.FLOAT)
    bias = op("Mul", op("Sub", constant(np.array(1, np.float32)), mask), constant(np.array(np.finfo(np.float32).min, np.float32)))
    for layer in range(LAYERS):
        p = f"encoder.layer.{layer}."
        split = i64(0, 0, HEADS, WIDTH // HEADS)
        q = op("Transpose", op("Reshape", linear(x, p + "attention.self.query"), split), perm=[0, 2, 1, 3])
        k = op("Transpose", op("Reshape", linear(x, p + "attention.self.key"), split), perm=[0, 2, 3, 1])
        v = op("Transpose", op("Reshape", linear(x, p + "attention.self.value"), split), perm=[0, 2, 1, 3])
        scores = op("Div", op("MatMul", q, k), constant(np.array((WIDTH // HEADS) ** 0.5, np.float32)))
        attention = op("MatMul", op("Softmax", op("Add", scores, bias), axis=-1), v)
        joined = op("Reshape", op("Transpose", attention, perm=[0, 2, 1, 3]), i64(0, 0, WIDTH))
        x = norm(op("Add", linear(joined, p + "attention.output.dense"), x), p + "attention.output.LayerNorm")
        h = linear(x, p + "intermediate.dense")
        gate = op("Add", op("Erf", op("Div", h, constant(np.array(2 ** 0.5, np.float32)))), constant(np.array(1, np.float32)))
        h = op("Mul", op("Mul", h, gate), constant(np.array(0.5, np.float32)))
        x = norm(op("Add", linear(h, p + "output.dense"), x), p + "output.LayerNorm")

    keep = op("Cast", op("Unsqueeze", "attention_mask", i64(2)), to=TensorProto.FLOAT)
    total = op("ReduceSum", op("Mul", x, keep), i64(1), keepdims=0)
    count = op("Clip", op("ReduceSum", keep, i64(1), keepdims=0), constant(np.array(1e-9, np.float32)))
    mean = op("Div", total, count)
    length2 = op("Sqrt", op("ReduceSum", op("Mul", mean, mean), i64(1), keepdims=1))
    nodes.append(helper.make_node("Div", [mean, op("Clip", length2, constant(np.array(1e-12, np.float32)))], ["embeddings"]))
    graph = helper.make_graph(
        nodes, "minilm",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", WIDTH])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def optimize(model, path: pathlib.Path):
    """What onnxruntime's transformer optimizer makes of it; written to `path`. Returns the counts
    of fused operators."""
    import onnx
    from onnxruntime.transformers import optimizer
    plain = path.with_suffix(".plain.onnx")
    onnx.save(model, plain)
    fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0)
    fused.save_model_to_file(str(path))
    return {k: v for k, v in fused.get_fused_operator_statistics().items() if v}
