"""Makes a model of Qwen2.5-0.5B's shape with random weights, as people have it: a folder in bf16,
or a GGUF file in Q8_0.

    python bench/make_serve_model.py PLACE          # PLACE/bf16, a folder of 988 MB, and PLACE/q8_0.gguf, of 531 MB

Its vocabulary has 151,936 tokens, most of them made up. `bench/bench_serve_start.py --model`
measures how it starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
import tiny_models as tiny  # noqa: E402

CONFIG = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
          "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
          "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": True, "use_sliding_window": False, "bos_token_id": 257,
          "eos_token_id": 258, "torch_dtype": "bfloat16"}  # fmt: skip
PIECE = 1 << 22  # random values, which come again and again


def shapes(c):
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    kv = hidden // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj.weight", (hidden, hidden)), ("self_attn.q_proj.bias", (hidden,)), ("self_attn.k_proj.weight", (kv, hidden)),
            ("self_attn.k_proj.bias", (kv,)), ("self_attn.v_proj.weight", (kv, hidden)), ("self_attn.v_proj.bias", (kv,)),
            ("self_attn.o_proj.weight", (hidden, hidden)), ("mlp.gate_proj.weight", (wide, hidden)), ("mlp.up_proj.weight", (wide, hidden)),
            ("mlp.down_proj.weight", (hidden, wide)), ("input_layernorm.weight", (hidden,)), ("post_attention_layernorm.weight", (hidden,)),
        ):  # fmt: skip
            yield f"model.layers.{i}.{name}", shape
    yield "model.norm.weight", (hidden,)


def values(shape, piece):
    count = int(np.prod(shape))
    return np.resize(piece, count).reshape(shape)


def main() -> int:
    place = Path(sys.argv[1])
    (place / "bf16").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    floats = (rng.standard_normal(PIECE) * 0.02).astype(np.float32)
    bits = tiny._stored(floats, "BF16")
    tiny.write_safetensors(place / "bf16" / "model.safetensors", {name: ("BF16", values(shape, bits)) for name, shape in shapes(CONFIG)})
    (place / "bf16" / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = tiny.byte_tokenizer()
    known = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    tokenizer["model"]["vocab"].update({f"made{i}": i for i in range(known, CONFIG["vocab_size"])})
    (place / "bf16" / "tokenizer.json").write_text(json.dumps(tokenizer))
    blocks = np.frombuffer(tiny.q8_0(floats), np.uint8)
    arrays, types = {}, {}
    for name, shape in shapes(CONFIG):
        called = tiny.gguf_name(name, "qwen2")
        arrays[called] = values(shape, floats[: 1 << 20]) if len(shape) == 1 else np.broadcast_to(np.float32(0), shape)
        if len(shape) == 2:
            types[called] = (8, values((int(np.prod(shape)) // 32 * 34,), blocks).tobytes())
    tiny.write_gguf(place / "q8_0.gguf", tiny.gguf_metadata(CONFIG), arrays, types)
    for path in (place / "bf16" / "model.safetensors", place / "q8_0.gguf"):
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
