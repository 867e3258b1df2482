"""Models of several parts, of which the one is served that reads and writes text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Dict, Optional, TypeVar

from ._checkpoint import Checkpoint, twice

#: Configurations of other parts, and beginnings of names of their tensors.
_OTHER_KEYS = ("vision_config", "audio_config", "text_config")
_OTHERS = ("vision_model.", "vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.", "visual.", "model.visual.",
           "model.audio_tower.", "model.embed_audio.", "model.embed_vision.", "model.vision_embedder.")  # fmt: skip
#: What names of the text's tensors begin with, and what they begin with in a model of text alone.
_TEXT = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model."}

T = TypeVar("T")


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint as it would be of the part that reads text. One of a single part stays as it
    is. A configuration may have the text's keys beside the other parts'."""
    text = checkpoint.config.get("text_config")
    if not isinstance(text, dict):
        if not isinstance(checkpoint.config.get("vision_config"), dict):
            return checkpoint
        text = {}
    outer = {key: value for key, value in checkpoint.config.items() if key not in _OTHER_KEYS}
    kept = [name for name in map(text_name, checkpoint.tensors) if name is not None]
    points = [*checkpoint.points, *(twice(name) for name, count in Counter(kept).items() if count > 1)]
    named = {field: _named(getattr(checkpoint, field)) for field in ("tensors", "unread", "kv_scales")}
    return replace(checkpoint, config={**outer, **text}, points=points, **named)


def _named(items: Dict[str, T]) -> Dict[str, T]:
    found = {name: text_name(name) for name in items}
    return {new: items[name] for name, new in found.items() if new is not None}


def text_name(name: str) -> Optional[str]:
    """A tensor's name in a model of text alone. None: it belongs to another part."""
    if name.startswith(_OTHERS):
        return None
    begins: Any = next((old for old in _TEXT if name.startswith(old)), "")
    return _TEXT[begins] + name[len(begins) :] if begins else name
