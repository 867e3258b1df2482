"""GGUF files: their metadata as a configuration with Hugging Face's keys, their tensors by Hugging
Face's names, their tokenizer as tokenizer.json."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._library import close
from ..weights import Weights
from ._checkpoint import Checkpoint, add_plain
from ._config import Refused, part_of

#: Keys of configurations by those of files, behind the architecture's name.
_KEYS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.layer_norm_epsilon": "layer_norm_epsilon", "context_length": "max_position_embeddings",
    "attention.sliding_window": "sliding_window", "rope.freq_base": "rope_theta", "rope.freq_base_swa": "rope_local_base_freq", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size", "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group", "expert_group_used_count": "topk_group", "attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank",
    "attention.clamp_kqv": "clip_qkv", "logit_scale": "logit_scale",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "attention.scale": "attention_multiplier",
    "expert_shared_count": "n_shared_experts", "leading_dense_block_count": "first_k_dense_replace", "nextn_predict_layers": "num_nextn_predict_layers",
    "use_parallel_residual": "use_parallel_residual", "attention.max_alibi_bias": "alibi",
}  # fmt: skip
#: Beginnings of names, behind "blk.N.".
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_PROJECTOR = "it is the part of a model that sees or hears: give the file of the part that reads text, which lies beside it"
#: What stands against architectures that people have.
_UNSERVED = (
    (("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert", "gemma-embedding", "llama-embed", "t5encoder"),
     "it is an encoder, which writes no text. accrt.from_torch makes a bundle of its folder"),
    (("t5",), "it is an encoder and a decoder, which is not served"), (("clip",), _PROJECTOR),
    (("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), "its layers have a recurrence that no family here has"),
    (("whisper", "wavtokenizer-dec", "flux", "sd1", "sd3", "sdxl", "wan", "lumina2", "qwen_image"), "it makes no text as a language model does"),
)  # fmt: skip
#: Of expert_gating_func: a share of each expert by itself.
_SIGMOID = 2
#: What becomes of the rows of a text's tokens, by `pooling_type`, as sentence-transformers call it.
_POOLINGS = {1: "mean", 2: "cls_token", 3: "lasttoken", 4: "rank"}
_KINDS = {"tokenizer.ggml.bos_token_id": "bos_token_id", "tokenizer.ggml.padding_token_id": "pad_token_id"}
#: Ids that end an answer: eos, the end of a turn, the end of a message.
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def read(path: str, source: Weights) -> Checkpoint:
    from . import _registry

    metadata = source.metadata
    for kind, what in (("adapter", "it is an adapter and no model: adapters are read from folders of PEFT, beside the model's folder"),
                       ("mmproj", _PROJECTOR)):  # fmt: skip
        if metadata.get("general.type") == kind:
            raise Refused(path, [f"general.type is {kind!r}: {what}"])
    architecture = str(metadata.get("general.architecture", ""))
    try:
        given = {"experts": "expert_count", "windows": "attention.sliding_window", "sigmoids": "expert_gating_func"}
        parts = {part: metadata.get(f"{architecture}.{key}") for part, key in given.items()}
        family = _registry.by_architecture(architecture, [part for part, value in parts.items() if (value == _SIGMOID if part == "sigmoids" else value)])
    except KeyError:
        raise Refused(path, [f"general.architecture is {architecture!r}{_no_family(architecture)}"]) from None
    made = Checkpoint(path, "gguf", {"model_type": family.types[0]}, {}, [path], {})
    _configuration(made, metadata, architecture, source, family)
    for name in source:
        add_plain(made, _renamed(name, family), source[name], name)
    made.files.update(tokenizer_files(metadata, made.points))
    pooling = metadata.get(f"{architecture}.pooling_type")
    if pooling in _POOLINGS:
        made.files["1_Pooling/config.json"] = json.dumps({"pooling_mode": _POOLINGS[pooling]}).encode()
    return made


def _no_family(name: str) -> str:
    """What stands against an architecture that no family has."""
    from . import _registry

    for names, what in _UNSERVED:
        if name in names:
            return f": {what}"
    known = sorted({name.partition(" with ")[0] for item in _registry.families() for name in item.architectures})
    near = close(name, known)
    return (f" (is it {near[0]!r}?)" if near else "") + f"; there are {', '.join(known)}"


def _renamed(name: str, family: Any) -> str:
    base, dot, end = name.rpartition(".")
    if name.startswith("blk.") and name.count(".") == 2:
        base, dot, end = name, "", ""
    heads = {"token_embd": family.prefix + family.embedding_name, "output_norm": family.prefix + family.final_norm, "output": family.head_name,
             "position_embd": family.prefix + "wpe"}  # fmt: skip
    if base in heads:
        return f"{heads[base]}{dot}{end}"
    if not base.startswith("blk.") or base.count(".") < 2:
        return f"{family.prefix}{family.gguf_names[base]}{dot}{end}" if base in family.gguf_names else name
    _blk, number, part = base.split(".", 2)
    names = {**_LAYER, **family.gguf_names}
    found = names.get(f"{part}.{end}") or f"{names.get(part, part)}{dot}{end}"
    return f"{family.prefix}{family.layer_name.format(number)}.{found}"


def _configuration(made: Checkpoint, metadata: Mapping[str, Any], architecture: str, source: Weights, family: Any) -> None:
    config = made.config
    for key, name in {**_KEYS, **family.gguf_keys}.items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None and name:
            config[name] = value
    if metadata.get(f"{architecture}.attention.causal") is False:
        made.points.append(f"metadata: {architecture}.attention.causal is false; models whose tokens see the text behind them are not served")
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if item else "full_attention" for item in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    more = config.get("num_nextn_predict_layers")
    if _is_size(more) and _is_size(config.get("num_hidden_layers")):
        config["num_hidden_layers"] -= more  # files count them
    if family.gguf_keyless and isinstance(config.get("num_key_value_heads"), list):
        _kinds(config, family.gguf_keyless)
    if any(isinstance(config.get(name), list) and name not in family.gguf_of_layers for name in ("num_key_value_heads", "intermediate_size")):
        made.points.append("metadata: layers of different sizes")
    if "vocab_size" not in config and "token_embd.weight" in source:
        config["vocab_size"] = source["token_embd.weight"].shape[0]
    given = {key[len(architecture) + 6 :]: value for key, value in metadata.items() if key.startswith(f"{architecture}.rope.")}
    _rope(made, given)
    if config.get("kv_lora_rank"):
        _latents(config, metadata, architecture)
    for key, name in _KINDS.items():
        if key in metadata:
            config[name] = metadata[key]
    ends = [metadata[key] for key in _ENDS if isinstance(metadata.get(key), int)]
    config["eos_token_id"] = list(dict.fromkeys(ends))


def _kinds(config: Dict[str, Any], keyless: str) -> None:
    """Key heads of each layer, 0 of those without attention, as one number and kinds of layers."""
    from ._blocks import FULL

    counts = config["num_key_value_heads"]
    if all(count == 0 or _is_size(count) for count in counts) and len({count for count in counts if count}) == 1:
        config.update(num_key_value_heads=max(counts), layer_types=[FULL if count else keyless for count in counts])


def _latents(config: Dict[str, Any], metadata: Mapping[str, Any], architecture: str) -> None:
    """Sizes of heads where keys and values are made of latents: newer files have those of latents
    under the plain names."""
    key, value = (metadata.get(f"{architecture}.attention.{part}_length_mla", metadata.get(f"{architecture}.attention.{part}_length")) for part in ("key", "value"))
    turned, by = metadata.get(f"{architecture}.rope.dimension_count"), metadata.get(f"{architecture}.rope.scaling.yarn_log_multiplier")
    for name in ("head_dim", "partial_rotary_factor", "num_key_value_heads"):
        config.pop(name, None)
    config.update(qk_rope_head_dim=turned, v_head_dim=value, qk_nope_head_dim=key - turned if _is_size(key) and _is_size(turned) else None)
    if isinstance(config.get("rope_scaling"), dict) and isinstance(by, float):
        config["rope_scaling"].update(mscale=10 * by, mscale_all_dim=10 * by)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _rope(made: Checkpoint, given: Mapping[str, Any]) -> None:
    config, kind = made.config, str(given.get("scaling.type", "none"))
    heads = config.get("num_attention_heads")
    head = config.get("head_dim") or (config["hidden_size"] // heads if _is_size(heads) and _is_size(config.get("hidden_size")) else 0)
    turned = given.get("dimension_count", head)
    if _is_size(head) and turned != head:
        config["partial_rotary_factor"] = part_of(turned, head) if _is_size(turned) else turned
    if kind in ("linear", "yarn") or given.get("scale_linear"):
        scaling = {"rope_type": kind if kind == "yarn" else "linear", "factor": given.get("scaling.factor", given.get("scale_linear")),
                   "original_max_position_embeddings": given.get("scaling.original_context_length"),
                   "beta_fast": given.get("scaling.yarn_beta_fast"), "beta_slow": given.get("scaling.yarn_beta_slow"),
                   "attention_factor": given.get("scaling.yarn_attn_factor")}  # fmt: skip
        config["rope_scaling"] = {key: value for key, value in scaling.items() if value is not None}
    elif kind not in ("none", "longrope"):
        made.points.append(f"metadata: rope.scaling.type is {kind!r}; there are linear, yarn and longrope")
    if "scaling.attn_factor" in given:
        config["rope_attention_factor"] = given["scaling.attn_factor"]
    if "scaling.original_context_length" in given:
        config["original_max_position_embeddings"] = given["scaling.original_context_length"]


# ---- Tokenizers ----------------------------------------------------------------------------------

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST
#: Marks are parts of words.
_MARKED = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _REST
_SEED = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _REST
#: Words by case: capitals, then small letters.
_BIG, _SMALL = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = "{0}*{1}+%s|{0}+{1}*%s|{2}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n{4}]*|{3}"
_TEKKEN = _CASED.format(_BIG, _SMALL, r"\p{N}", _REST, "/") % ("", "")
_GPT_4O = _CASED.format(_BIG, _SMALL, r"\p{N}{1,3}", _REST, "/") % (_ENDINGS + "?", _ENDINGS + "?")
#: Han signs are words of their own.
_KIMI = r"\p{Han}+|" + _CASED.format(*(part[:-1] + r"&&[^\p{Han}]]" for part in (_BIG, _SMALL)), r"\p{N}{1,3}", _REST, "") % (_ENDINGS + "?", _ENDINGS + "?")
_DEEPSEEK = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _REST)  # fmt: skip
_KANJI = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _KANJI, r"\p{N}")
#: Letters that have a case, then signs.
_DEEPSEEK_LLM = (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", _KANJI, r"\p{N}+")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_GPT_2: Tuple[str, ...] = ()  # the cut that ByteLevel makes by itself
_DIGITS = (r"\p{N}",)  # each digit by itself, then as GPT-2
#: How text is cut before merges, by tokenizer.ggml.pre: the names that share a cut, its patterns,
#: whether ByteLevel cuts after them, and whether a word that is a token is one before any merge.
_CUTS = {
    name: (patterns, then_bytes, whole_first)
    for names, patterns, then_bytes, whole_first in (
        ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", (_WORD % "{1,3}",), False, True),
        ("dbrx smaug-bpe glm4 chatglm-bpe", (_WORD % "{1,3}",), False, False),
        ("qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez", (_WORD % "",), False, False),
        ("qwen35", (_MARKED,), False, False),
        ("seed-coder", (_SEED,), False, False),
        ("tekken", (_TEKKEN,), False, True),
        ("gpt-4o llama4 minimax-m2", (_GPT_4O,), False, False),
        ("kimi-k2", (_KIMI,), False, True),
        ("deepseek-v3 hunyuan-dense", _DEEPSEEK, False, False),
        ("deepseek-llm", _DEEPSEEK_LLM, False, False),
        ("deepseek-coder", _DEEPSEEK_CODER, False, False),
        ("falcon", _GPT_2, True, False),
        ("bloom poro-chat gpt3-finnish", (_BLOOM,), False, False),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b", _DIGITS, True, False),
        ("gpt-2 gpt2 default phi-2 mpt olmo jais trillion granite-docling exaone4", _GPT_2, True, False),
    )
    for name in names.split()
}  # fmt: skip
#: What Falcon's has before the cut, and behind it, where letters stand for bytes.
_AROUND: Dict[str, Tuple[List[Any], List[Any]]] = {
    "falcon": ([{"type": "Punctuation", "behavior": "Contiguous"}],
               [{"type": "Digits", "individual_digits": False}, {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False}]),
}  # fmt: skip


def tokenizer_files(metadata: Mapping[str, Any], points: List[str]) -> Dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and the chat template, as far as the file has them."""
    files: Dict[str, bytes] = {}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template.encode()
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, (str, bytes)) for token in tokens):
        points.append("metadata: there is no tokenizer (tokenizer.ggml.tokens)")
        return files
    for key, kind in (("scores", float), ("token_type", int), ("merges", str)):
        given = metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(given, list) or not all(isinstance(item, kind) for item in given) or (given and kind is not str and len(given) != len(tokens)):
            points.append(f"metadata: tokenizer.ggml.{key} is no list of {kind.__name__}, one for each token")
            return files
    texts = [token if isinstance(token, str) else token.decode("utf-8", "replace") for token in tokens]
    made = _tokenizer(texts, metadata, points)
    if made is not None:
        files["tokenizer.json"] = json.dumps(made, ensure_ascii=False).encode()
    files["tokenizer_config.json"] = json.dumps(_settings(texts, metadata), ensure_ascii=False).encode()
    return files


def _settings(texts: List[str], metadata: Mapping[str, Any]) -> Dict[str, Any]:
    made: Dict[str, Any] = {}
    for name in ("bos", "eos", "unknown", "padding"):
        at = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(at, int) and 0 <= at < len(texts):
            made[{"unknown": "unk", "padding": "pad"}.get(name, name) + "_token"] = texts[at]
    adds = metadata.get("tokenizer.ggml.add_bos_token")
    made["add_bos_token"] = bool(adds) if adds is not None else metadata.get("tokenizer.ggml.model") == "llama"
    made["add_eos_token"] = bool(metadata.get("tokenizer.ggml.add_eos_token"))
    return made


def _tokenizer(texts: List[str], metadata: Mapping[str, Any], points: List[str]) -> Optional[Dict[str, Any]]:
    kind = metadata.get("tokenizer.ggml.model")
    vocabulary: Dict[str, int] = {}
    for at, text in enumerate(texts):
        vocabulary.setdefault(text, at)
    if kind == "gpt2":
        parts = _bytes_bpe(vocabulary, metadata, points)
    elif kind == "llama":
        parts = _pieces_bpe(vocabulary, texts, metadata)
    else:
        points.append(f"metadata: tokenizer.ggml.model is {kind!r}; there are gpt2 and llama")
        return None
    types = metadata.get("tokenizer.ggml.token_type") or []
    added = [{"id": at, "content": texts[at], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": type_ == 3}
             for at, type_ in enumerate(types) if type_ in (3, 4) and at < len(texts)]  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts, "post_processor": _start(texts, metadata, parts)}


def _start(texts: List[str], metadata: Mapping[str, Any], parts: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """What puts the first token before a text, and the last one behind it, where the file asks for
    that."""
    settings = _settings(texts, metadata)
    added = {kind: settings[f"{kind}_token"] for kind in ("bos", "eos") if settings[f"add_{kind}_token"] and f"{kind}_token" in settings}
    if not added:
        return parts.get("post_processor")

    def around(sequence: str, type_id: int) -> List[Dict[str, Any]]:
        first, last = ([{"SpecialToken": {"id": added[kind], "type_id": type_id}}] if kind in added else [] for kind in ("bos", "eos"))
        return [*first, {"Sequence": {"id": sequence, "type_id": type_id}}, *last]

    special = {text: {"id": text, "ids": [metadata[f"tokenizer.ggml.{kind}_token_id"]], "tokens": [text]} for kind, text in added.items()}
    return {"type": "TemplateProcessing", "single": around("A", 0), "pair": around("A", 0) + around("B", 1), "special_tokens": special}


def _bytes_bpe(vocabulary: Dict[str, int], metadata: Mapping[str, Any], points: List[str]) -> Dict[str, Any]:
    pre = str(metadata.get("tokenizer.ggml.pre") or "default")
    if pre not in _CUTS:
        points.append(f"metadata: tokenizer.ggml.pre is {pre!r}; there are {', '.join(_CUTS)}")
    patterns, then_bytes, whole_first = _CUTS.get(pre, (_GPT_2, True, False))
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": then_bytes}
    before, behind = _AROUND.get(pre, ([], []))
    splits = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in patterns]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": whole_first, "vocab": vocabulary, "merges": metadata.get("tokenizer.ggml.merges") or []}  # fmt: skip
    return {"normalizer": {"type": "NFC"} if pre in ("qwen2", "qwen35") else None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, *splits, bytes_, *behind]} if splits or before else bytes_, "model": model}  # fmt: skip


def _pieces_bpe(vocabulary: Dict[str, int], texts: List[str], metadata: Mapping[str, Any]) -> Dict[str, Any]:
    """SentencePiece's BPE, whose merges follow from the scores: of two that could be made, that of
    the better piece comes first."""
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(texts)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = unknown if isinstance(unknown, int) else len(texts)
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [{"type": "Prepend", "prepend": "\u2581"}] * prefixed + [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    back = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    model = {"type": "BPE", "dropout": None, "unk_token": texts[unknown] if unknown < len(texts) else None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary,
             "merges": [list(pair) for pair in merges_of(vocabulary, scores)]}  # fmt: skip
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None, "model": model,
            "decoder": {"type": "Sequence", "decoders": back + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefixed}}  # fmt: skip


def merges_of(vocabulary: Mapping[str, int], scores: List[float]) -> List[Tuple[str, str]]:
    found = []
    for text, at in vocabulary.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[at], at, vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_order, left, right in found]
