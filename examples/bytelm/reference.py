#!/usr/bin/env python3
"""The float64 reference of bytelm: what the compiled model is compared with.

Plain numpy, written for being read rather than for speed, and independent of the runtime and of
torch. It reads the bf16 weights exactly and computes everything else in float64.

    weights, config = load("weights.safetensors")
    logits = forward(weights, config, b"In the beginning")    # float64, one row of 256 a byte
    bits_per_byte(weights, config, text)
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def load(path=HERE / "weights.safetensors"):
    """(weights, config): float64 arrays by tensor name, and the configuration of the metadata."""
    raw = Path(path).read_bytes()
    start = 8 + struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:start])
    config = parse_config(header.pop("__metadata__"))
    weights = {name: bf16_tensor(raw, start, entry) for name, entry in header.items()}
    if config["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights, config


def parse_config(metadata):
    """The metadata's values are strings; numbers and truth values become themselves again."""

    def parse(text):
        try:
            return json.loads(text)
        except ValueError:
            return text

    return {key: parse(text) for key, text in metadata.items()}


def bf16_tensor(raw, start, entry):
    """A bf16 value is the upper half of a float32."""
    if entry["dtype"] != "BF16":
        raise ValueError(f"dtype {entry['dtype']}, expected BF16")
    begin, end = entry["data_offsets"]
    halves = np.frombuffer(raw, dtype="<u2", count=(end - begin) // 2, offset=start + begin)
    singles = (halves.astype(np.uint32) << 16).view(np.float32)
    return singles.astype(np.float64).reshape(entry["shape"])


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, theta):
    """Rotary embedding of [heads, positions, head_dim], dimension i paired with i + head_dim/2."""
    _, length, size = x.shape
    frequency = theta ** (-np.arange(0, size, 2) / size)
    angle = np.outer(np.arange(length), frequency)
    cos, sin = np.cos(angle), np.sin(angle)
    low, high = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def attention(x, w, prefix, config):
    """Causal grouped-query attention: query head h reads key and value head h / group."""
    length, size = x.shape[0], config["head_dim"]

    def heads(name):
        return (x @ w[f"{prefix}.{name}.weight"].T).reshape(length, -1, size).transpose(1, 0, 2)

    q = rotate(heads("q_proj"), config["rope_theta"])
    k = rotate(heads("k_proj"), config["rope_theta"])
    v = heads("v_proj")
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    future = np.triu(np.ones((length, length), dtype=bool), 1)
    mixed = np.empty_like(q)
    for h in range(config["num_attention_heads"]):
        scores = q[h] @ k[h // group].T / np.sqrt(size)
        mixed[h] = softmax(np.where(future, -np.inf, scores)) @ v[h // group]
    return mixed.transpose(1, 0, 2).reshape(length, -1) @ w[f"{prefix}.o_proj.weight"].T


def mlp(x, w, prefix):
    gate = silu(x @ w[f"{prefix}.gate_proj.weight"].T)
    return (gate * (x @ w[f"{prefix}.up_proj.weight"].T)) @ w[f"{prefix}.down_proj.weight"].T


def forward(weights, config, tokens):
    """Logits [len(tokens), 256]: row i scores the byte after tokens[0..i]."""
    tokens = np.frombuffer(bytes(tokens), dtype=np.uint8)
    eps = config["rms_norm_eps"]
    if not 0 < len(tokens) <= config["max_position_embeddings"]:
        raise ValueError(f"{len(tokens)} tokens, expected 1 to {config['max_position_embeddings']}")
    x = weights["model.embed_tokens.weight"][tokens]
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        y = rms_norm(x, weights[f"{layer}.input_layernorm.weight"], eps)
        x = x + attention(y, weights, f"{layer}.self_attn", config)
        y = rms_norm(x, weights[f"{layer}.post_attention_layernorm.weight"], eps)
        x = x + mlp(y, weights, f"{layer}.mlp")
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T


def bits_per_byte(weights, config, text, stride=None):
    """Mean -log2 p over every byte of the text but the first.

    Windows of the model's context start every `stride` bytes (left out: the context, so that they
    do not overlap); each predicts the byte after each of its positions, and only the predictions
    that no earlier window made are counted.
    """
    context = config["max_position_embeddings"]
    stride = stride or context
    if not 0 < stride <= context or len(text) < 2:
        raise ValueError(f"stride {stride} not in 1..{context}, or {len(text)} bytes, fewer than 2")
    values = np.frombuffer(text, dtype=np.uint8)
    total, done = 0.0, 1  # bytes before `done` are counted already, or (the first) given
    for start in range(0, len(text) - 1, stride):
        stop = min(start + context, len(text) - 1)
        if stop < done:
            break
        logits = forward(weights, config, values[start:stop])[done - start - 1 :]
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(logits)), values[done : stop + 1]]
        total += np.sum(np.log(np.exp(logits).sum(axis=1)) - chosen)
        done = stop + 1
    return total / (len(text) - 1) / np.log(2)


def main():
    text = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "heldout.txt").read_bytes()
    weights, config = load()
    print(f"{len(text)} bytes: {bits_per_byte(weights, config, text):.4f} bits per byte")


if __name__ == "__main__":
    main()
