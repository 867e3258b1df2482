"""Decode steps of a served model on a GPU: Llama 3.2 1B's shape with random weights in bf16, 512
keys a row.

    python3 bench/gpu/served_decode.py [BUNDLE]          # compiled here where there is no bundle
    python3 bench/gpu/served_decode.py --make BUNDLE     # compiles it, for a machine without nvcc

Says how long a step, and a step with its sampling pass, takes when it is submitted again and again;
and, where torch is, in which kernels the time goes.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CONFIG = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip
KEYS, PAGE, ROWS = 512, 16, (1, 256)
#: Numbers that weights repeat after: odd, so that no row of a matrix is another's, which would
#: give many tokens the same logit.
PIECE = (1 << 22) + 1
TYPES = {"int32": "i32", "float32": "f32", "uint32": "u32"}


def shapes():
    c = CONFIG
    hidden, wide, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (wide, hidden)), ("mlp.up_proj", (wide, hidden)), ("mlp.down_proj", (hidden, wide)), ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):  # fmt: skip
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)


def write_model(folder, content=True):
    """A folder with random weights of about 0.02; without content the file is a hole, which is
    enough to compile."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, at = {}, 0
    for name, shape in shapes():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = ((np.random.default_rng(1).standard_normal(PIECE) * 0.02).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin = file.tell()
        for _ in range(at // len(piece) if content else 0):
            file.write(piece)
        file.write(piece[: at % len(piece)] if content else b"")
        file.truncate(begin + at)


def module(folder):
    from accrt import models

    options = models.Options(token_buckets=ROWS, row_buckets=ROWS, sample_buckets=ROWS, change_buckets=(16,), edit_buckets=(1,))
    return models.decoder(models.read(folder), options).build()


class Model:
    def __init__(self, bundle, folder):
        import accrt
        from accrt import models

        self.accrt, instance = accrt, accrt.default_instance("all")
        program = accrt.Bundle(bundle, instance).program(instance.device("cuda:0"), weights=list(models.read(folder).weights))
        each = KEYS // PAGE
        self.session = program.session({"pages": max(ROWS) * each, "table_rows": max(ROWS), "table_pages": each})
        self.pool, self.stream = accrt.Pool(program.device), self.session.stream
        state, table = self.session.state("page_table"), np.random.default_rng(1).permutation(max(ROWS) * each).astype(np.int32)
        self.stream.copy(table, state.buffer, table.nbytes, target_offset=state.offset_bytes)
        self.stream.synchronize()
        self.table = table.reshape(max(ROWS), each)

    def tensor(self, x):
        buffer = self.pool.buffer(max(x.nbytes, 16))
        self.stream.copy(x, buffer, x.nbytes)
        self.stream.synchronize()
        return self.accrt.Tensor(buffer, TYPES[x.dtype.name], x.shape)

    def calls(self, rows):
        """A step of one token a row, and the sampling pass of its logits."""
        i32, every = np.int32, np.arange(rows, dtype=np.int32)
        slots = (self.table[:rows, (KEYS - 1) // PAGE] * PAGE + (KEYS - 1) % PAGE).astype(i32)
        given = (
            every + 5, np.full(rows, KEYS - 1, i32), slots, every, np.arange(rows + 1, dtype=i32), every, np.full(rows, KEYS, i32),
            np.full(16, -1, i32), np.zeros(16, i32), every,
        )  # fmt: skip
        vocab = CONFIG["vocab_size"]
        logits = self.tensor(np.zeros((rows, vocab), np.float32))
        step = self.session.step.bind(*map(self.tensor, given), out=logits)
        f32 = np.float32
        how = (
            every, np.full(rows, 0.8, f32), np.full(rows, 40, i32), np.full(rows, 0.9, f32), np.zeros(rows, f32), np.ones((rows, 2), np.uint32), every,
            np.zeros(rows + 1, i32), np.zeros(1, i32), np.ones(1, f32), np.zeros(1, f32), np.full(rows, -1, i32), np.zeros((rows, -(-vocab // 32)), np.uint32),
        )  # fmt: skip
        return step, self.session.sample.bind(logits, *map(self.tensor, how))

    def timed(self, calls, count=20):
        """Microseconds: median, least and most of nine runs."""
        took = []
        for _ in range(9):
            self.stream.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                for call in calls:
                    call.submit()
            self.stream.synchronize()
            took.append((time.perf_counter() - begin) / count * 1e6)
        return statistics.median(took), min(took), max(took)


def where_time_goes(model, calls, most=12):
    try:
        from torch.profiler import ProfilerActivity, profile
    except ImportError:
        return
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            for call in calls:
                call.submit()
        model.stream.synchronize()
    found = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
    for event in found[:most]:
        print(f"    {event.device_time_total / 5:9.1f} us in {event.count / 5:5.0f} x {event.key[:90]}")


def main():
    from accrt.compiler import compile

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = Path(name)
        make = len(sys.argv) > 2 and sys.argv[1] == "--make"
        write_model(folder, not make)
        if make:
            Path(sys.argv[2]).write_bytes(compile(module(folder), targets=["sm_90"]))
            return
        model = Model(sys.argv[1] if len(sys.argv) > 1 else compile(module(folder), targets=["sm_90"]), folder)
        for rows in ROWS:
            step, sample = model.calls(rows)
            for what, calls in (("step", (step,)), ("step and sample", (step, sample))):
                middle, least, most = model.timed(calls)
                print(f"{rows:4d} rows, {what:16s} {middle:9.1f} us ({least:.1f} to {most:.1f})", flush=True)
            where_time_goes(model, (step, sample))


if __name__ == "__main__":
    main()
