"""The project's own model of bytes (examples/bytelm): a Llama whose ids are the bytes
themselves."""

from __future__ import annotations

from ._blocks import Decoder


class ByteLM(Decoder):
    types = ("bytelm",)
    has_tokenizer = False
