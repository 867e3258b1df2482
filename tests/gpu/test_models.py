"""The example models on a GPU against their float64 references. Without MiniLM's weights its
architecture runs with random ones. Run as a program it prints what it finds."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter  # noqa: E402

pytestmark = pytest.mark.skipif(bool(test_ops.reason("bytelm_test")), reason=test_ops.reason("bytelm_test") or "a GPU is there")

#: As on hosts: f32 arithmetic through three layers.
LOGITS = 1e-4
#: f16 keeps 11 bits, bf16 keeps 8; errors of single roundings add up like a random walk through the
#: layers.
COSINE = {"f16": 0.99999, "bf16": 0.999}


def part(name, file):
    folder = ROOT / "examples" / name
    sys.path.insert(0, str(folder))
    sys.modules.pop("model", None)
    try:
        spec = importlib.util.spec_from_file_location(f"{name}_{file}", folder / f"{file}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


class Runtime:
    """A session of the runtime behind the executor's interface."""

    def __init__(self, program):
        self.session = program.session()

    def run(self, name, *tensors, **scalars):
        return [np.asarray(getattr(self.session, name)(*tensors, *scalars.values())).copy()]


def bytelm_module():
    build = part("bytelm", "build")
    return build.build(*build.load())


def minilm_module(dtype):
    """MiniLM's architecture with random weights."""
    sys.modules.pop("model", None)
    module = part("minilm", "build").build(SETTINGS, random_weights(SETTINGS))
    module.compute["cuda"] = dtype
    return module


def makers(name, module):
    """(name, function that makes a session): the executor's, and the runtime's where it is
    built."""
    import cuda_exec

    data = test_ops.built(name, module)
    program, loaded = cuda_exec.Program(data), ch.runtime_program(data, "", "cuda:0")
    return [("executor", lambda: cuda_exec.Session(program))] + ([("runtime", lambda: Runtime(loaded))] if loaded else [])


def run_bytelm():
    """For each way to run it, the largest difference of logits: of prefill, and of prefill and
    decode in turns."""
    reference = part("bytelm", "reference")
    weights, config = reference.load()
    text = (ROOT / "examples" / "bytelm" / "heldout.txt").read_bytes()
    return {name: _bytelm(make, reference, weights, config, text) for name, make in makers("bytelm_test", bytelm_module())}


def _bytelm(make, reference, weights, config, text):
    worst = 0.0
    for start, length in ((0, 1), (1000, 2), (5000, 33), (20000, 200)):
        piece = np.frombuffer(text[start : start + length], np.uint8)
        got = make().run("prefill", piece, position=0)[0]
        worst = max(worst, float(np.abs(got - reference.forward(weights, config, piece.tobytes())).max()))
    piece = np.frombuffer(text[300:380], np.uint8)
    session = make()
    parts = [session.run("prefill", piece[:50], position=0)[0]]
    parts += [session.run("decode", piece[i : i + 1], position=i)[0] for i in range(50, 70)]
    parts.append(session.run("prefill", piece[70:], position=70)[0])
    turns = float(np.abs(np.concatenate(parts) - reference.forward(weights, config, piece.tobytes())).max())
    return worst, turns


SETTINGS = {
    "num_attention_heads": 12, "num_hidden_layers": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 128,
    "hidden_size": 384, "intermediate_size": 1536, "vocab_size": 500,
}  # fmt: skip


def random_weights(settings):
    """Tensors by MiniLM's names, of sizes that keep values near 1."""
    random = np.random.default_rng(kh.SEED)
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (settings["vocab_size"], hidden), "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.position_embeddings.weight": (settings["max_position_embeddings"], hidden), "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }  # fmt: skip
    for layer in range(settings["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        for dense, shape in (("attention.self.query", (hidden, hidden)), ("attention.self.key", (hidden, hidden)),
                             ("attention.self.value", (hidden, hidden)), ("attention.output.dense", (hidden, hidden)),
                             ("intermediate.dense", (inner, hidden)), ("output.dense", (hidden, inner))):  # fmt: skip
            shapes[f"{name}{dense}.weight"], shapes[f"{name}{dense}.bias"] = shape, shape[:1]
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{name}{norm}.weight"] = shapes[f"{name}{norm}.bias"] = (hidden,)
    made = {}
    for name, shape in shapes.items():
        scale = 1 / np.sqrt(shape[-1]) if len(shape) > 1 and "dense" in name or "self" in name else 0.5
        shift = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        made[name] = ("f32", (random.standard_normal(shape) * scale + shift).astype(np.float32))
    return made


def run_minilm():
    """For each way to run it, the smallest cosine between a sentence's vector and the
    reference's."""
    found = {}
    for dtype in COSINE:
        module = minilm_module(dtype)
        oracle = Interpreter(module)
        found.update({(dtype, name): _minilm(make, oracle) for name, make in makers(f"minilm_{dtype}_test", module)})
    return found


def _minilm(make, oracle):
    random = np.random.default_rng(kh.SEED)
    worst, session = 1.0, make()
    for batch, seq in ((1, 1), (1, 32), (3, 17), (5, 128)):
        ids = random.integers(0, SETTINGS["vocab_size"], (batch, seq))
        lengths = random.integers(1, seq + 1, batch)
        mask = (np.arange(seq)[None] < lengths[:, None]).astype(np.int64)
        a, b = session.run("encode", ids, mask)[0].astype(np.float64), oracle.run("encode", ids, mask)[0]
        worst = min(worst, float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()))
    return worst


def test_bytelm():
    for way, found in run_bytelm().items():
        assert max(found) <= LOGITS, way


def test_minilm():
    for (dtype, way), worst in run_minilm().items():
        assert worst >= COSINE[dtype], way


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for name, run in (("bytelm, largest difference of logits", run_bytelm), ("minilm, smallest cosine", run_minilm)):
        try:
            print(name, run(), flush=True)
        except Exception as error:  # noqa: BLE001 - said, and the next one is tried
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
