"""Models of several parts, of which the one is served that reads and writes text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Dict, Optional, TypeVar

from ._checkpoint import Checkpoint, twice
from ._config import Refused

#: Configurations of other parts, and beginnings of names of their tensors.
_OTHER_KEYS = ("vision_config", "audio_config", "text_config")
_OTHERS = ("vision_model.", "vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.", "visual.", "model.visual.",
           "audio_tower.", "model.audio_tower.", "model.embed_audio.", "model.embed_vision.", "model.vision_embedder.", "model.vision_model.", "model.connector.")  # fmt: skip
#: What names of the text's tensors begin with, and what they begin with in a model of text alone.
_TEXT = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model.", "model.text_model.": "model."}
#: Models that see images or hear, and whose part for text is a model of another type, which the
#: configuration of that part says.
OF_PARTS = ("audioflamingo3", "aya_vision", "cohere2_vision", "deepseek_vl", "exaone4_5", "fast_vlm", "granite_speech", "hyperclovax_vision_v2", "idefics2", "idefics3", "internvl", "internvl_chat",
            "janus", "kimi_k25", "lfm2_vl", "lighton_ocr", "llava", "llava_next", "llava_next_video", "llava_onevision", "minicpmv4_6", "ovis2", "perception_lm", "qwen2_audio",
            "smolvlm", "video_llama_3", "video_llava", "vipllava", "voxtral")  # fmt: skip
#: What they call that part's configuration.
TEXT_KEYS = ("text_config", "llm_config")
#: What transformers leaves out of that configuration, as it takes the same by default.
SIZES: Dict[str, Dict[str, Any]] = {
    "llama": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "mistral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
              "max_position_embeddings": 32768},
}  # fmt: skip

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


def is_of_parts(config: Dict[str, Any]) -> bool:
    """Whether a model's part for text is one of another type. Mistral 4 is published as a part of
    the type that has others of Mistral, too."""
    text = config.get("text_config")
    return config.get("model_type") in OF_PARTS or (config.get("model_type") == "mistral3" and isinstance(text, dict) and text.get("model_type") == "mistral4")


def text_alone(checkpoint: Checkpoint) -> Checkpoint:
    """Of a model of OF_PARTS the part for text, as a checkpoint of its own type. Tensors whose
    names do not say that they are the text's are the other parts'. Raises Refused."""
    key, given = next(((key, checkpoint.config[key]) for key in TEXT_KEYS if isinstance(checkpoint.config.get(key), dict)), ("text_config", {}))
    kind = given.get("model_type")
    if not isinstance(kind, str):
        raise Refused(checkpoint.path, [f"config: {key} has no model_type, which says what the part of this {checkpoint.config.get('model_type')!r} is that reads text"])
    begins = (*_TEXT, "lm_head.")
    config = {**{name: value for name, value in checkpoint.config.items() if name not in TEXT_KEYS}, "text_config": {**SIZES.get(kind, {}), **given}}
    kept: Any = {field: {name: item for name, item in getattr(checkpoint, field).items() if name.startswith(begins)} for field in ("tensors", "unread", "kv_scales")}
    text = text_part(replace(checkpoint, config=config, **kept))
    tied = [one.get("tie_word_embeddings") for one in (checkpoint.config, given)]
    if all(one in (None, True, False) for one in tied):
        # the model says it, or its part does; a head of its own is read where there is one
        text.config["tie_word_embeddings"] = "lm_head.weight" not in text.tensors and (any(tied) or None in tied)
    return text


def _named(items: Dict[str, T]) -> Dict[str, T]:
    found = {name: text_name(name) for name in items}
    return {new: items[name] for name, new in found.items() if new is not None}


def text_name(name: str) -> Optional[str]:
    """A tensor's name in a model of text alone. None: it belongs to another part."""
    if name.startswith(_OTHERS):
        return None
    begins: Any = next((old for old in _TEXT if name.startswith(old)), "")
    return _TEXT[begins] + name[len(begins) :] if begins else name
