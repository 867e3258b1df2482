#!/usr/bin/env python3
"""MiniLM in numpy, float64 throughout: what the bundle's results are held against. It knows nothing
of the compiler."""

import math

import numpy as np

import model


class Reference:
    """encode(input_ids, attention_mask) with the weights in float64."""

    def __init__(self):
        self.settings = model.settings()
        self.weights = {name: array.astype(np.float64) for name, (_dtype, array) in model.weights().items()}

    def dense(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        centered = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centered**2).mean(-1, keepdims=True) + self.settings["layer_norm_eps"])
        return centered / scale * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def attention(self, x, mask, name):
        batch, seq, hidden = x.shape
        heads = self.settings["num_attention_heads"]
        parts = [self.dense(x, f"{name}.self.{part}") for part in ("query", "key", "value")]
        q, k, v = (part.reshape(batch, seq, heads, hidden // heads).transpose(0, 2, 1, 3) for part in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(hidden // heads)
        scores = np.where(mask[:, None, None, :], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = (scores / scores.sum(-1, keepdims=True)) @ v
        return self.dense(context.transpose(0, 2, 1, 3).reshape(batch, seq, hidden), f"{name}.output.dense")

    def layer(self, x, mask, index):
        name = f"encoder.layer.{index}"
        x = self.norm(self.attention(x, mask, f"{name}.attention") + x, f"{name}.attention.output.LayerNorm")
        inner = self.dense(x, f"{name}.intermediate.dense")
        inner = _gelu(inner)
        return self.norm(self.dense(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def encode(self, input_ids, attention_mask):
        w, mask = self.weights, attention_mask != 0
        x = w["embeddings.word_embeddings.weight"][input_ids]
        x = x + w["embeddings.position_embeddings.weight"][: input_ids.shape[1]] + w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for index in range(self.settings["num_hidden_layers"]):
            x = self.layer(x, mask, index)
        kept = mask[..., None].astype(np.float64)
        mean = (x * kept).sum(1) / np.maximum(kept.sum(1), 1e-9)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def _gelu(x, piece=1 << 15):
    """x * (1 + erf(x / sqrt 2)) / 2, in pieces that stay in the processor's cache."""
    flat = x.reshape(-1)
    y = np.empty_like(flat)
    for first in range(0, flat.size, piece):
        part = flat[first : first + piece]
        y[first : first + piece] = 0.5 * part * (1 + _erf(part / math.sqrt(2)))
    return y.reshape(x.shape)


_STEP = 1.0 / 256
_GRID = np.arange(0, 6 + _STEP, _STEP)
_ERF = np.array([math.erf(x) for x in _GRID])
_SLOPE = 2 / math.sqrt(math.pi) * np.exp(-_GRID * _GRID)


def _erf(x):
    """erf in float64: the Taylor series around the nearest of 1,537 points, exact to about 1e-16; 1
    beyond 6."""
    a = np.minimum(np.abs(x), 6.0)
    near = np.rint(a / _STEP).astype(np.int32)
    x0 = near * _STEP
    d = a - x0
    q = x0 * x0
    series = 1 + d * (-x0 + d * ((4 * q - 2) / 6 + d * ((12 - 8 * q) * x0 / 24 + d * (16 * q * q - 48 * q + 12) / 120)))
    return np.copysign(_ERF[near] + _SLOPE[near] * d * series, x)
