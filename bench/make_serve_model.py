"""Makes a model of Qwen2.5-0.5B's shape with random weights, as people have it: a folder in bf16,
or GGUF files in Q8_0 and in Q4_K. A row of 896 is no whole number of Q4_K's superblocks of 256: as
where people quantize it, the products of such rows are in Q5_0 and the embedding in Q8_0.

    python bench/make_serve_model.py PLACE          # PLACE/bf16, a folder of 988 MB, PLACE/q8_0.gguf, of 531 MB, PLACE/q4_k.gguf
    python bench/make_serve_model.py PLACE gguf     # the two GGUF files alone
    python bench/make_serve_model.py PLACE experts  # PLACE/experts.gguf, of 325 MB: four layers as Qwen3-MoE has them, 64 experts in Q4_K

Its vocabulary has 151,936 tokens, most of them made up. `bench/bench_serve_start.py --model`
measures how it starts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

for part in ("tests/python", "python"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / part))
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


def layout_of(name, shape):
    """As llama.cpp's Q4_K_S has it."""
    return "q8_0" if name == "model.embed_tokens.weight" else "q4_k" if shape[-1] % 256 == 0 else "q5_0"


def q5_0(floats):
    """Blocks of 32: a scale, 32 high bits, and 16 bytes of low bits, of the second half above."""
    blocks = floats.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 15).astype(np.float16)
    codes = (np.rint(blocks / scale.astype(np.float32)[:, None]) + 16).clip(0, 31).astype(np.uint8)
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    low = (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4
    return np.concatenate([scale[:, None].view(np.uint8), high, low], axis=1).ravel()


def write_q4_k(path, floats):
    """Values come again and again, so they are quantized once for each layout."""
    from accrt.layouts import quantize

    # GGUF's number, values and bytes of a block.
    kinds = {"q8_0": (8, 32, 34), "q5_0": (6, 32, 22), "q4_k": (12, 256, 144)}
    packed = {"q8_0": np.frombuffer(tiny.q8_0(floats), np.uint8), "q5_0": q5_0(floats),
              "q4_k": quantize(floats.reshape(-1, 256), "q4_k").components["data"].data.view(np.uint8).ravel()}  # fmt: skip
    arrays, types = {}, {}
    for name, shape in shapes(CONFIG):
        called = tiny.gguf_name(name, "qwen2")
        arrays[called] = values(shape, floats[: 1 << 20]) if len(shape) == 1 else np.broadcast_to(np.float32(0), shape)
        if len(shape) == 2:
            layout = layout_of(name, shape)
            number, elements, size = kinds[layout]
            types[called] = (number, values((int(np.prod(shape)) // elements * size,), packed[layout]).tobytes())
    tiny.write_gguf(path, tiny.gguf_metadata(CONFIG), arrays, types)


EXPERTS = {"block_count": 4, "embedding_length": 1024, "feed_forward_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 4, "attention.key_length": 64,
           "attention.value_length": 64, "context_length": 4096, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "expert_count": 64,
           "expert_used_count": 8, "expert_feed_forward_length": 512}  # fmt: skip


def write_experts(path, floats):
    from accrt.layouts import quantize

    hidden, wide, experts = (EXPERTS[key] for key in ("embedding_length", "expert_feed_forward_length", "expert_count"))
    packed = quantize(floats.reshape(-1, 256), "q4_k").components["data"].data.view(np.uint8).ravel()
    metadata = {key: value for key, value in tiny.gguf_metadata(CONFIG).items() if not key.startswith("qwen2.")}
    metadata.update({"general.architecture": "qwen3moe", **{f"qwen3moe.{key}": value for key, value in EXPERTS.items()}})
    sizes = {"token_embd.weight": (len(metadata["tokenizer.ggml.tokens"]), hidden), "output_norm.weight": (hidden,)}
    for i in range(EXPERTS["block_count"]):
        sizes.update({f"blk.{i}.{name}.weight": shape for name, shape in (
            ("attn_norm", (hidden,)), ("attn_q", (hidden, hidden)), ("attn_k", (256, hidden)), ("attn_v", (256, hidden)), ("attn_output", (hidden, hidden)),
            ("attn_q_norm", (64,)), ("attn_k_norm", (64,)), ("ffn_norm", (hidden,)), ("ffn_gate_inp", (experts, hidden)),
            ("ffn_gate_exps", (experts, wide, hidden)), ("ffn_up_exps", (experts, wide, hidden)), ("ffn_down_exps", (experts, hidden, wide)),
        )})  # fmt: skip
    arrays, types = {}, {}
    for name, shape in sizes.items():
        is_plain = len(shape) == 1 or "gate_inp" in name
        arrays[name] = values(shape, floats[: 1 << 20]) if is_plain else np.broadcast_to(np.float32(0), shape)
        if "gate_inp" in name:  # else experts are alike, and all tokens go through the same ones
            arrays[name] = np.random.default_rng(len(types)).standard_normal(shape).astype(np.float32) * 0.02
        if not is_plain:
            types[name] = (12, values((int(np.prod(shape)) // 256 * 144,), packed).tobytes())
    tiny.write_gguf(path, metadata, arrays, types)


def write_q8_0(path, floats):
    blocks = np.frombuffer(tiny.q8_0(floats), np.uint8)
    arrays, types = {}, {}
    for name, shape in shapes(CONFIG):
        called = tiny.gguf_name(name, "qwen2")
        arrays[called] = values(shape, floats[: 1 << 20]) if len(shape) == 1 else np.broadcast_to(np.float32(0), shape)
        if len(shape) == 2:
            types[called] = (8, values((int(np.prod(shape)) // 32 * 34,), blocks).tobytes())
    tiny.write_gguf(path, tiny.gguf_metadata(CONFIG), arrays, types)


def write_bf16(folder, floats):
    folder.mkdir(parents=True, exist_ok=True)
    bits = tiny._stored(floats, "BF16")
    tiny.write_safetensors(folder / "model.safetensors", {name: ("BF16", values(shape, bits)) for name, shape in shapes(CONFIG)})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = tiny.byte_tokenizer()
    known = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    tokenizer["model"]["vocab"].update({f"made{i}": i for i in range(known, CONFIG["vocab_size"])})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("what", nargs="?", choices=("gguf", "experts"))
    options = parser.parse_args()
    place = options.place
    place.mkdir(parents=True, exist_ok=True)
    floats = (np.random.default_rng(1).standard_normal(PIECE) * 0.02).astype(np.float32)
    if options.what == "experts":
        write_experts(place / "experts.gguf", floats)
        return 0
    paths = [place / "q8_0.gguf", place / "q4_k.gguf"]
    write_q8_0(paths[0], floats)
    write_q4_k(paths[1], floats)
    if options.what != "gguf":
        write_bf16(place / "bf16", floats)
        paths.append(place / "bf16" / "model.safetensors")
    for path in paths:
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
