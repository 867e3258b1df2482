#!/usr/bin/env python3
"""Compiles bytelm, a byte-level language model of the Llama architecture, into a bundle.

    python3 examples/bytelm/build.py -o build/models/bytelm.accx

Functions: prefill(tokens u8 [length], position) -> logits f32 [length, 256] takes a piece of text
of any length, decode(tokens u8 [1], position) -> logits f32 [1, 256] one byte. `position` is the
number of bytes before; row i scores the byte after tokens[i]. Keys and values live in the session's
state; `capacity` (a session symbol) is how many bytes it holds.
"""

import argparse
import json
import pathlib

import numpy as np

from accrt.compiler import Module, SymbolClass, command_line, quantize, safetensors

HERE = pathlib.Path(__file__).resolve().parent


def load(path=HERE / "weights.safetensors"):
    """({name: (data type, array)}, configuration)."""
    tensors, metadata = safetensors.read(path)

    def number(text):
        try:
            return json.loads(text)
        except ValueError:
            return text

    return tensors, {key: number(text) for key, text in metadata.items()}


def quantized(tensors, layout, group=0):
    """The matrices in a layout, {name: Quantized}. A matrix whose rows the layout cannot cut into
    blocks stays as it is."""
    made = {}
    for name, (_dtype, bits) in tensors.items():
        if bits.ndim == 2:
            array = (bits.astype(np.uint32) << 16).view(np.float32)
            try:
                made[name] = quantize(array, layout, group=group)
            except ValueError:
                continue
    return made


class Model:
    """The module, made function by function. `weights`: matrices that are quantized, by name."""

    def __init__(self, tensors, config, weights=None):
        self.m, self.config = Module("bytelm"), config
        weights = weights or {}
        for name, weight in weights.items():
            self.m.weight(name, weight)
        safetensors.add_constants(self.m, {name: tensor for name, tensor in tensors.items() if name not in weights})
        self.w = self.m.constants
        self.head = self.w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
        longest = config["max_position_embeddings"]
        self.length = self.m.symbol("length", minimum=1, maximum=longest)
        self.position = self.m.symbol("position", SymbolClass.RUNTIME, maximum=longest - 1)
        self.capacity = self.m.symbol("capacity", SymbolClass.SESSION, minimum=1, maximum=longest)
        self.cache = [{part: self._state(layer, part) for part in "kv"} for layer in range(config["num_hidden_layers"])]

    def _state(self, layer, part):
        shape = [self.capacity, self.config["num_key_value_heads"], self.config["head_dim"]]
        return self.m.state(f"layers.{layer}.{part}", "f32", shape)

    def function(self, name, length, doc):
        """One function: bytes and where they stand -> logits for what comes after each."""
        f = self.m.function(name, doc=doc)
        tokens = f.input("tokens", "u8", [length], doc="bytes of text")
        f.scalar("position", self.position, doc="number of bytes before them")
        x = f.constant(self.w["model.embed_tokens.weight"]).embedding(tokens).to_copy("f32")
        for layer in range(self.config["num_hidden_layers"]):
            with f.label(f"layer {layer}"):
                x = self.attention(f, self.norm(x, f"model.layers.{layer}.input_layernorm"), layer) + x
                x = self.mlp(self.norm(x, f"model.layers.{layer}.post_attention_layernorm"), f"model.layers.{layer}.mlp") + x
        logits = self.norm(x, "model.norm").linear(self.head)
        f.result("logits", logits, doc="scores of the 256 bytes that may come after each of the given ones")

    def norm(self, x, name):
        return x.rms_norm(self.w[name + ".weight"], self.config["rms_norm_eps"])

    def attention(self, f, x, layer):
        length, size = x.shape[0], self.config["head_dim"]
        name = f"model.layers.{layer}.self_attn"
        q, k, v = (x.linear(self.w[f"{name}.{part}_proj.weight"]).view([length, -1, size]) for part in "qkv")
        q, k = (self.rotate(part) for part in (q, k))
        keys, values = (self.remember(f, part, self.cache[layer][key]) for part, key in ((k, "k"), (v, "v")))
        mixed = q.transpose(0, 1).unsqueeze(0).scaled_dot_product_attention(
            keys, values, is_causal=True, causal_offset=self.position
        )
        return mixed.transpose(1, 2).view([length, -1]).linear(self.w[f"{name}.o_proj.weight"])

    def rotate(self, x):
        return x.transpose(0, 1).rope(self.position, self.config["rope_theta"]).transpose(0, 1)

    def remember(self, f, new, state):
        """Puts new keys or values into the cache; all up to them as [1, heads, position + length,
        size]."""
        new.state_write(state, [self.position, 0, 0])
        return f.state_read(state)[: self.position + new.shape[0]].transpose(0, 1).unsqueeze(0)

    def mlp(self, x, name):
        gate, up = (x.linear(self.w[f"{name}.{part}_proj.weight"]) for part in ("gate", "up"))
        return (gate.silu() * up).linear(self.w[f"{name}.down_proj.weight"])


def build(tensors, config, weights=None):
    model = Model(tensors, config, weights)
    model.function("prefill", model.length, "Reads a piece of text")
    model.function("decode", 1, "Reads one byte")
    model.m.metadata.update({"model": "bytelm", "license": "Apache-2.0"})
    return model.m


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command_line.add_arguments(parser)
    parser.add_argument("--weights", default=HERE / "weights.safetensors")
    parser.add_argument("--layout", help="quantize the matrices: q4_k, q8_0, i4_group, ... (docs/layouts.md)")
    parser.add_argument("--group", type=int, default=0, help="elements that share a scale, where the layout leaves it free")
    arguments = parser.parse_args()
    tensors, config = load(arguments.weights)
    module = build(tensors, config, quantized(tensors, arguments.layout, arguments.group) if arguments.layout else None)
    command_line.write(module, arguments)
