"""Qwen 3 VL, which sees images: the part that reads text, which is a Qwen 3."""

from __future__ import annotations

from .qwen2_vl import OfText
from .qwen3 import Qwen3


class Qwen3VL(OfText, Qwen3):
    types = ("qwen3_vl",)
    architectures = ()
    defaults = {"head_dim": 128, "max_position_embeddings": 128000, "rope_theta": 5e5}
