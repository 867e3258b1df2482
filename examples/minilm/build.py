#!/usr/bin/env python3
"""Compiles the sentence encoder all-MiniLM-L6-v2 into a bundle.

    python3 examples/minilm/build.py -o build/models/minilm.accx

The bundle has one function, encode(input_ids i64 [batch, seq], attention_mask i64 [batch, seq]) ->
embeddings f32 [batch, 384]: mean of the last hidden states over the tokens that the mask keeps,
scaled to length 1. batch is 1 to 256, seq 1 to 512. Weights keep their names. On CUDA it calculates
in f16 (half the memory to move, and tensor cores), on hosts in f32.
"""

import argparse

import model
from accrt.compiler import Module, command_line, safetensors


def dense(x, weights, name):
    return x.linear(weights[name + ".weight"], weights[name + ".bias"])


def norm(x, weights, name, eps):
    return x.layer_norm(weights[name + ".weight"], weights[name + ".bias"], eps)


def attention(x, mask, weights, name, heads):
    """Self-attention with its output projection; mask is true where a key may be seen."""
    batch, seq, hidden = x.shape
    parts = [dense(x, weights, f"{name}.self.{part}") for part in ("query", "key", "value")]
    q, k, v = (part.view([batch, seq, heads, hidden // heads]).transpose(1, 2) for part in parts)
    context = q.scaled_dot_product_attention(k, v, mask).transpose(1, 2).view([batch, seq, hidden])
    return dense(context, weights, f"{name}.output.dense")


def encoder_layer(f, x, mask, weights, index, settings):
    name, eps = f"encoder.layer.{index}", settings["layer_norm_eps"]
    with f.label(f"layer {index}"):
        attended = attention(x, mask, weights, f"{name}.attention", settings["num_attention_heads"])
        x = norm(attended + x, weights, f"{name}.attention.output.LayerNorm", eps)
        inner = dense(x, weights, f"{name}.intermediate.dense").gelu()
        return norm(dense(inner, weights, f"{name}.output.dense") + x, weights, f"{name}.output.LayerNorm", eps)


def pool(x, mask):
    """Mean over the tokens that the mask keeps, then length 1."""
    batch, seq, hidden = x.shape
    kept = mask.to_copy("f32")
    total = kept.view([batch, 1, seq]).matmul(x).view([batch, hidden])
    mean = total / kept.sum(1, True).clamp(min=1e-9)
    length = (mean * mean).sum(1, True).sqrt().clamp(min=1e-12)
    return mean / length


def build(settings, tensors):
    """The module for the given settings and weights."""
    m = Module("minilm")
    safetensors.add_constants(m, tensors)
    m.metadata.update({"model": "sentence-transformers/all-MiniLM-L6-v2", "license": "Apache-2.0"})
    m.compute["cuda"] = "f16"
    weights = m.constants
    batch = m.symbol("batch", minimum=1, maximum=256)
    seq = m.symbol("seq", minimum=1, maximum=settings["max_position_embeddings"])

    f = m.function("encode", doc="Sentence embeddings: tokens and mask to unit vectors")
    ids = f.input("input_ids", "i64", [batch, seq], doc="token ids, as the model's tokenizer gives them")
    mask = f.input("attention_mask", "i64", [batch, seq], doc="1 for tokens, 0 for padding")
    with f.label("embeddings"):
        words = f.constant(weights["embeddings.word_embeddings.weight"]).embedding(ids)
        kinds = f.constant(weights["embeddings.token_type_embeddings.weight"]).select(0, 0)
        places = (f.constant(weights["embeddings.position_embeddings.weight"]) + kinds).slice(0, 0, seq)
        x = norm(words + places, weights, "embeddings.LayerNorm", settings["layer_norm_eps"])
    seen = mask.ne(0).view([batch, 1, 1, seq])
    for index in range(settings["num_hidden_layers"]):
        x = encoder_layer(f, x, seen, weights, index, settings)
    with f.label("pool"):
        f.result("embeddings", pool(x, mask), doc="one vector of length 1 for each sentence")
    return m


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command_line.add_arguments(parser)
    arguments = parser.parse_args()
    module = build(model.settings(), model.weights())
    command_line.write(module, arguments)
