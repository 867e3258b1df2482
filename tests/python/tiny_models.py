"""Small models of every family with random weights, in the forms that people have them, and what
each computes: in float64 with numpy, written from the families' papers and their definition in
Hugging Face's modelling code, without the compiler and without accrt.models."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

# ---- Configurations ------------------------------------------------------------------------------

_SMALL = {"vocab_size": 320, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
          "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": 257,
          "eos_token_id": 258, "tie_word_embeddings": False}  # fmt: skip


def _of(model_type, **changes):
    return {**_SMALL, "model_type": model_type, **changes}


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LONG = {"type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)]}

CONFIGS = {
    "llama": _of("llama"),
    "llama-tied-rope3": _of("llama", tie_word_embeddings=True, rope_scaling=_LLAMA3, head_dim=8, num_attention_heads=6),
    "llama-linear-biases": _of("llama", rope_scaling={"type": "linear", "factor": 2.0}, attention_bias=True, mlp_bias=True, num_key_value_heads=6),
    "llama-yarn": _of("llama", rope_scaling=_YARN),
    "llama-new-form": {k: v for k, v in _of("llama", rope_parameters={**_LLAMA3, "rope_theta": 500000.0}).items() if k != "rope_theta"},
    "mistral": _of("mistral", sliding_window=7),
    "mistral-all": _of("mistral", sliding_window=None, head_dim=24),
    "qwen2": _of("qwen2", tie_word_embeddings=True, rope_theta=1000000.0, use_sliding_window=False, sliding_window=5, max_window_layers=1),
    "qwen2-windows": _of("qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": _of("qwen3", head_dim=32, rms_norm_eps=1e-6, attention_bias=False),
    "gemma2": {k: v for k, v in _of("gemma2", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, sliding_window=6,
                                    attn_logit_softcapping=2.0, final_logit_softcapping=10.0, tie_word_embeddings=True).items() if k != "hidden_act"},
    "phi3": _of("phi3", pad_token_id=0, sliding_window=9, head_dim=8, original_max_position_embeddings=256),
    "phi3-long": _of("phi3", pad_token_id=0, head_dim=16, num_attention_heads=3, num_key_value_heads=3, rope_scaling=_LONG, original_max_position_embeddings=64),
    "granite": _of("granite", embedding_multiplier=6.0, residual_multiplier=0.5, attention_multiplier=0.4, logits_scaling=3.0, tie_word_embeddings=True),
    "olmo2": _of("olmo2", rms_norm_eps=1e-6),
    "olmo2-biases": _of("olmo2", attention_bias=True, tie_word_embeddings=True),
    "smollm3": _of("smollm3", pad_token_id=0, num_hidden_layers=4, tie_word_embeddings=True),
    "smollm3-windows": _of("smollm3", pad_token_id=0, no_rope_layers=[0, 1, 0, 1], use_sliding_window=True, sliding_window=6),
    "gpt2": {"model_type": "gpt2", "vocab_size": 320, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 256, "layer_norm_epsilon": 1e-5,
             "activation_function": "gelu_new", "bos_token_id": 258, "eos_token_id": 258},
}  # fmt: skip
for _config in ("phi3", "phi3-long"):
    CONFIGS[_config].pop("head_dim")


_NORMS = {"gemma2": ("input", "post_attention", "pre_feedforward", "post_feedforward"), "olmo2": ("post_attention", "post_feedforward")}


def sizes(c):
    hidden, heads = c.get("hidden_size", c.get("n_embd")), c.get("num_attention_heads", c.get("n_head"))
    return hidden, heads, c.get("num_key_value_heads", heads), c.get("head_dim", hidden // heads)


def tensors(c, seed, gain=2.0):
    """{name: f32 array}, large enough that everything counts: attention is far from even, soft caps
    are reached. A smaller gain keeps roundings from growing from layer to layer."""
    rng = np.random.default_rng(seed)

    def matrix(*shape):
        return (rng.standard_normal(shape) * (gain / math.sqrt(shape[-1]))).astype(np.float32)

    def vector(size, around=0.0):
        return (around + 0.3 * rng.standard_normal(size)).astype(np.float32)

    hidden, heads, kv, size = sizes(c)
    kind, w = c["model_type"], {}
    if kind == "gpt2":
        w["transformer.wte.weight"], w["transformer.wpe.weight"] = matrix(c["vocab_size"], hidden), matrix(c["n_positions"], hidden)
        for i in range(c["n_layer"]):
            at = f"transformer.h.{i}."
            for name, n, k in (("attn.c_attn", 3 * hidden, hidden), ("attn.c_proj", hidden, hidden), ("mlp.c_fc", 4 * hidden, hidden), ("mlp.c_proj", hidden, 4 * hidden)):
                w[f"{at}{name}.weight"], w[f"{at}{name}.bias"] = np.ascontiguousarray(matrix(n, k).T), vector(n)
            for name in ("ln_1", "ln_2"):
                w[f"{at}{name}.weight"], w[f"{at}{name}.bias"] = vector(hidden, 1), vector(hidden)
        w["transformer.ln_f.weight"], w["transformer.ln_f.bias"] = vector(hidden, 1), vector(hidden)
        return w
    w["model.embed_tokens.weight"] = matrix(c["vocab_size"], hidden)
    one = 0.0 if kind == "gemma2" else 1.0
    for i in range(c["num_hidden_layers"]):
        at, wide = f"model.layers.{i}.", c["intermediate_size"]
        if kind == "phi3":
            w[f"{at}self_attn.qkv_proj.weight"] = matrix((heads + 2 * kv) * size, hidden)
            w[f"{at}mlp.gate_up_proj.weight"] = matrix(2 * wide, hidden)
        else:
            for part, n in (("q", heads), ("k", kv), ("v", kv)):
                w[f"{at}self_attn.{part}_proj.weight"] = matrix(n * size, hidden)
                if kind == "qwen2" or c.get("attention_bias"):
                    w[f"{at}self_attn.{part}_proj.bias"] = vector(n * size)
            w[f"{at}mlp.gate_proj.weight"], w[f"{at}mlp.up_proj.weight"] = matrix(wide, hidden), matrix(wide, hidden)
        w[f"{at}self_attn.o_proj.weight"], w[f"{at}mlp.down_proj.weight"] = matrix(hidden, heads * size), matrix(hidden, wide)
        if c.get("attention_bias"):
            w[f"{at}self_attn.o_proj.bias"] = vector(hidden)
        if c.get("mlp_bias"):
            for part, n in (("gate", wide), ("up", wide), ("down", hidden)):
                w[f"{at}mlp.{part}_proj.bias"] = vector(n)
        if kind in ("qwen3", "olmo2"):
            for part, n in (("q", heads), ("k", kv)):
                w[f"{at}self_attn.{part}_norm.weight"] = vector(size * (n if kind == "olmo2" else 1), 1)
        for name in _NORMS.get(kind, ("input", "post_attention")):
            w[f"{at}{name}_layernorm.weight"] = vector(hidden, one)
    w["model.norm.weight"] = vector(hidden, one)
    if not c["tie_word_embeddings"]:
        w["lm_head.weight"] = matrix(c["vocab_size"], hidden)
    return w


# ---- What they compute ---------------------------------------------------------------------------


def reference(c, weights, ids, max_position=0):
    """(logits [length, vocabulary], hidden states after the last norm [length, hidden]) of a whole
    sequence."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    return _gpt2(c, w, ids) if c["model_type"] == "gpt2" else _llamas(c, w, ids, max_position)


def _rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def _layer(x, weight, bias, eps=1e-5):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.mean(centered**2, -1, keepdims=True) + eps) * weight + bias


def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x):
    return x / (1 + np.exp(-x))


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _attention(q, k, v, scale, window=None, cap=None):
    """q [length, heads, size], k and v [length, kv heads, size]."""
    length, heads, _size = q.shape
    out = np.empty_like(q)
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        scores = q[:, h] @ k[:, kv].T * scale
        if cap:
            scores = cap * np.tanh(scores / cap)
        i, j = np.arange(length)[:, None], np.arange(length)[None, :]
        seen = (j <= i) & (j > i - window if window else True)
        out[:, h] = _softmax(np.where(seen, scores, -np.inf)) @ v[:, kv]
    return out.reshape(length, -1)


def _frequencies(c, size, max_position):
    """(inverse frequencies, what cos and sin are multiplied by)."""
    scaling = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or c["rope_theta"]
    inv = 1.0 / theta ** (np.arange(0, size, 2) / size)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "linear":
        return inv / scaling["factor"], 1.0
    if kind == "llama3":
        old, factor, low, high = scaling["original_max_position_embeddings"], scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        found = []
        for f in inv:
            wave = 2 * math.pi / f
            if wave < old / high:
                found.append(f)
            elif wave > old / low:
                found.append(f / factor)
            else:
                smooth = (old / wave - low) / (high - low)
                found.append((1 - smooth) * f / factor + smooth * f)
        return np.array(found), 1.0
    if kind == "yarn":
        old, factor = scaling["original_max_position_embeddings"], scaling["factor"]

        def dim_of(turns):
            return size * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(dim_of(32)), 0), min(math.ceil(dim_of(1)), size - 1)
        keep = 1 - np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
        return inv / factor * (1 - keep) + inv * keep, 0.1 * math.log(factor) + 1
    if kind == "longrope":
        old = c["original_max_position_embeddings"]
        factors = np.array(scaling["long_factor"] if max_position > old else scaling["short_factor"])
        return inv / factors, math.sqrt(1 + math.log(c["max_position_embeddings"] / old) / math.log(old))
    return inv, 1.0


def _rotate(x, inv, scale):
    angles = np.arange(len(x))[:, None, None] * inv
    half = x.shape[-1] // 2
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _llamas(c, w, ids, max_position):
    hidden, heads, kv, size = sizes(c)
    kind, eps = c["model_type"], c["rms_norm_eps"]
    gemma, behind = kind == "gemma2", kind == "olmo2"  # whose norms are behind the blocks alone

    def norm(x, name):
        return _rms(x, w[name + ".weight"] + (1.0 if gemma else 0.0), eps)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    inv, scale = _frequencies(c, size, max_position)
    act = _gelu_tanh if gemma else _silu
    x = w["model.embed_tokens.weight"][ids] * (math.sqrt(hidden) if gemma else c.get("embedding_multiplier", 1.0))
    residual = c.get("residual_multiplier", 1.0)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        h = x if behind else norm(x, at + "input_layernorm")
        if kind == "phi3":
            q, k, v = np.split(linear(h, at + "self_attn.qkv_proj"), [heads * size, (heads + kv) * size], -1)
        else:
            q, k, v = (linear(h, f"{at}self_attn.{part}_proj") for part in "qkv")
        if kind == "olmo2":
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        q, k, v = q.reshape(-1, heads, size), k.reshape(-1, kv, size), v.reshape(-1, kv, size)
        if kind == "qwen3":
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        unturned = kind == "smollm3" and not c.get("no_rope_layers", [1, 1, 1, 0] * c["num_hidden_layers"])[i]
        q, k = (q, k) if unturned else (_rotate(q, inv, scale), _rotate(k, inv, scale))
        window = c.get("sliding_window") if kind != "smollm3" or unturned else None
        if gemma and i % 2 == 1 or kind == "qwen2" and not (c.get("use_sliding_window") and i >= c["max_window_layers"]):
            window = None
        factor = c["query_pre_attn_scalar"] ** -0.5 if gemma else c.get("attention_multiplier", size**-0.5)
        mixed = linear(_attention(q, k, v, factor, window, c.get("attn_logit_softcapping")), at + "self_attn.o_proj")
        x = x + (norm(mixed, at + "post_attention_layernorm") if gemma or behind else mixed * residual)
        h = x if behind else norm(x, at + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"))
        if kind == "phi3":
            gate, up = np.split(linear(h, at + "mlp.gate_up_proj"), 2, -1)
        else:
            gate, up = linear(h, at + "mlp.gate_proj"), linear(h, at + "mlp.up_proj")
        made = linear(act(gate) * up, at + "mlp.down_proj")
        x = x + (norm(made, at + "post_feedforward_layernorm") if gemma or behind else made * residual)
    x = norm(x, "model.norm")
    logits = x @ (w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]).T / c.get("logits_scaling", 1.0)
    cap = c.get("final_logit_softcapping")
    return (cap * np.tanh(logits / cap) if cap else logits), x


def _gpt2(c, w, ids):
    hidden, heads, _kv, size = sizes(c)
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    for i in range(c["n_layer"]):
        at = f"transformer.h.{i}."

        def conv(y, name):
            return y @ w[f"{at}{name}.weight"] + w[f"{at}{name}.bias"]

        joined = conv(_layer(x, w[at + "ln_1.weight"], w[at + "ln_1.bias"]), "attn.c_attn")
        q, k, v = (part.reshape(-1, heads, size) for part in np.split(joined, 3, -1))
        x = x + conv(_attention(q, k, v, size**-0.5), "attn.c_proj")
        x = x + conv(_gelu_tanh(conv(_layer(x, w[at + "ln_2.weight"], w[at + "ln_2.bias"]), "mlp.c_fc")), "mlp.c_proj")
    x = _layer(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    return x @ w["transformer.wte.weight"].T, x


# ---- Folders -------------------------------------------------------------------------------------


def to_bf16(array):
    """Rounded to bf16, as f32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return rounded.reshape(np.shape(array))  # also of a single number


def _stored(array, dtype):
    if dtype == "BF16":
        return (to_bf16(array).view(np.uint32) >> 16).astype(np.uint16)
    return array.astype({"F32": np.float32, "F16": np.float16}[dtype])


def write_safetensors(path, arrays):
    """`arrays`: {name: (type as the file has it, array)}."""
    header, at, parts = {}, 0, []
    for name, (dtype, array) in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def write_folder(folder, config, weights, dtype="F32", shards=1, tokenizer=True, **files):
    """A model's folder. `files`: further ones by name, as text or as what becomes JSON."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: (dtype, _stored(array, dtype)) for name, array in weights.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", stored)
    else:
        names, places = list(stored), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            write_safetensors(folder / file, {name: stored[name] for name in names[shard::shards]})
            places.update(dict.fromkeys(names[shard::shards], file))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    if tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def byte_letters():
    """GPT-2's letters for bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
    letters, more = {}, 0
    for byte in range(256):
        letters[byte] = chr(byte) if byte in plain else chr(256 + more)
        more += byte not in plain
    return letters


def byte_tokenizer():
    """Byte-level BPE: the bytes, one merge, three special tokens."""
    letters = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    vocabulary["th"] = 256
    added = [{"id": 257 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": text != "<tool>"}
             for i, text in enumerate(("<s>", "</s>", "<tool>"))]  # fmt: skip
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "vocab": vocabulary, "merges": [["t", "h"]]}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": whole,
            "post_processor": None, "decoder": whole, "model": model}  # fmt: skip


# ---- GGUF ----------------------------------------------------------------------------------------

_LAYER_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
                "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                "mlp.gate_up_proj": "ffn_up", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
                "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}  # fmt: skip
_GEMMA_NAMES = {"pre_feedforward_layernorm": "ffn_norm", "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "transformer.wte": "token_embd",
              "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}  # fmt: skip


_PERMUTED = ("llama", "mistral", "granite", "smollm3")


def gguf_name(name, kind):
    base, _, end = name.rpartition(".")
    if base in _TOP_NAMES:
        return f"{_TOP_NAMES[base]}.{end}"
    number, part = base.split(".", 2)[2].split(".", 1)
    return f"blk.{number}.{({**_LAYER_NAMES, **_GEMMA_NAMES} if kind in _NORMS else _LAYER_NAMES)[part]}.{end}"


def _permuted(array, heads):
    """Rows of queries and keys as llama.cpp has them for Llama: the halves of each head become
    pairs."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def gguf_tensors(c, weights):
    """What llama.cpp's converter makes of them: {name: array}."""
    _hidden, heads, kv, size = sizes(c)
    kind, found = c["model_type"], {}
    for name, array in weights.items():
        if kind in _PERMUTED and ".q_proj." in name:
            array = _permuted(array, heads)
        if kind in _PERMUTED and ".k_proj." in name:
            array = _permuted(array, kv)
        if kind == "gemma2" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if kind == "gpt2" and ".c_" in name and name.endswith(".weight"):
            array = np.ascontiguousarray(array.T)
        found[gguf_name(name, kind)] = array
    scaling = c.get("rope_scaling") or {}
    inv = 1.0 / c.get("rope_theta", 1e4) ** (np.arange(0, size, 2) / size)
    if scaling.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = (inv / _frequencies(c, size, 0)[0]).astype(np.float32)
    if scaling.get("type") == "longrope":
        for part in ("short", "long"):
            found[f"rope_factors_{part}.weight"] = np.asarray(scaling[f"{part}_factor"], np.float32)
    return found


def gguf_metadata(c, tokens=None):
    """Keys as llama.cpp's converter writes them."""
    hidden, heads, kv, size = sizes(c)
    kind = "llama" if c["model_type"] == "mistral" else c["model_type"]
    made = {"general.architecture": kind, "general.name": "tiny"}
    keys = {"block_count": c.get("num_hidden_layers", c.get("n_layer")), "embedding_length": hidden, "attention.head_count": heads,
            "feed_forward_length": c.get("intermediate_size", 4 * hidden), "context_length": c.get("max_position_embeddings", c.get("n_positions"))}  # fmt: skip
    if kind == "gpt2":
        keys["attention.layer_norm_epsilon"] = 1e-5
    else:
        keys.update({"attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "rope.freq_base": c["rope_theta"],
                     "rope.dimension_count": size, "attention.key_length": size, "attention.value_length": size})  # fmt: skip
    if kind == "gemma2":
        keys.update({"attn_logit_softcapping": c["attn_logit_softcapping"], "final_logit_softcapping": c["final_logit_softcapping"]})
    if kind == "granite":
        keys.update({"embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"], "attention.scale": c["attention_multiplier"],
                     "logit_scale": c["logits_scaling"]})  # fmt: skip
    if c.get("sliding_window") and kind in ("gemma2", "phi3"):
        keys["attention.sliding_window"] = c["sliding_window"]
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        keys.update({"rope.scaling.type": "yarn", "rope.scaling.factor": scaling["factor"], "rope.scaling.original_context_length": 64})
    if scaling.get("type") == "longrope":
        keys.update({"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": _frequencies(c, size, 0)[1]})
    made.update({f"{kind}.{key}": value for key, value in keys.items()})
    tokenizer = byte_tokenizer()
    count = c["vocab_size"]
    texts, types = [f"<unused{i}>" for i in range(count)], [5] * count
    for text, at in tokenizer["model"]["vocab"].items():
        texts[at], types[at] = text, 1
    for added in tokenizer["added_tokens"]:
        texts[added["id"]], types[added["id"]] = added["content"], 3 if added["special"] else 4
    made.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types,
                 "tokenizer.ggml.merges": ["t h"], "tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": 258,
                 "tokenizer.chat_template": "{{ messages }}"})  # fmt: skip
    made.update(tokens or {})
    return made


_GGUF_TYPES = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}


def write_gguf(path, metadata, arrays, types=None):
    """`types`: what a tensor is stored as, by name: F32 (the default), F16, BF16, Q8_0, or (number,
    bytes) of another."""
    def text(value):
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def value(item):
        if isinstance(item, bool):
            return struct.pack("<IB", 7, item)
        if isinstance(item, int):
            return struct.pack("<II", 4, item)
        if isinstance(item, float):
            return struct.pack("<If", 6, item)
        if isinstance(item, str):
            return struct.pack("<I", 8) + text(item)
        kind = 8 if isinstance(item[0], str) else 6 if isinstance(item[0], float) else 7 if isinstance(item[0], bool) else 5
        body = b"".join(text(one) for one in item) if kind == 8 else np.asarray(item, {5: np.int32, 6: np.float32, 7: np.bool_}[kind]).tobytes()
        return struct.pack("<IIQ", 9, kind, len(item)) + body

    infos, parts, at = b"", [], 0
    for name, array in arrays.items():
        stored = (types or {}).get(name, "F32")
        number, content = stored if isinstance(stored, tuple) else (_GGUF_TYPES[stored], q8_0(array) if stored == "Q8_0" else _stored(array, stored).tobytes())
        infos += text(name) + struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}Q", *reversed(array.shape)) + struct.pack("<IQ", number, at)
        parts.append(content + b"\0" * (-len(content) % 32))
        at += len(parts[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(metadata)) + b"".join(text(key) + value(item) for key, item in metadata.items()) + infos
    Path(path).write_bytes(b"".join((head, b"\0" * (-len(head) % 32), *parts)))


def q8_0(array):
    """Blocks of 32: a scale and 32 bytes."""
    blocks = array.reshape(-1, 32).astype(np.float32)
    scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
    codes = np.rint(blocks / np.where(scale == 0, 1, scale).astype(np.float32)[:, None]).clip(-127, 127).astype(np.int8)
    return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scale, codes))


def q8_0_values(array):
    raw = np.frombuffer(q8_0(array), np.uint8).reshape(-1, 34)
    return (np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32) * raw[:, 2:].view(np.int8)).reshape(array.shape)


# ---- Steps ---------------------------------------------------------------------------------------


class Batches:
    """Sequences that are computed in steps, with pages of their own, as an engine would: `run` is
    called with the arrays of one step in the order of the function's inputs, and gives its
    result."""

    def __init__(self, run, page_size, pages, table_rows, table_pages, rng):
        self.run, self.page_size, self.table_pages, self.rng = run, page_size, table_pages, rng
        self.free = list(rng.permutation(pages))
        self.tables = [[] for _ in range(table_rows)]
        self.done = [0] * table_rows
        self.changes = []

    def step(self, work, ids, tokens, rows, samples, changes):
        """`work`: [(table row, number of tokens)]; `ids`: of each table row. The other arguments
        are the sizes that are padded to. Returns what the function gave for the last token of each
        row in `work`."""
        token_ids, positions, slots, token_rows = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32), np.full(tokens, -1, np.int32), np.zeros(tokens, np.int32)
        starts, row_ids, lengths = np.zeros(rows + 1, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        wanted, at = np.zeros(samples, np.int32), 0
        for r, (row, count) in enumerate(work):
            for position in range(self.done[row], self.done[row] + count):
                token_ids[at], positions[at], token_rows[at] = ids[row][position], position, r
                slots[at] = self._page(row, position) * self.page_size + position % self.page_size
                at += 1
            self.done[row] += count
            starts[r + 1], row_ids[r], lengths[r], wanted[r] = at, row, self.done[row], at - 1
        starts[len(work) + 1 :] = at
        slot, page = np.full(changes, -1, np.int32), np.zeros(changes, np.int32)
        assert len(self.changes) <= changes
        for i, (where, what) in enumerate(self.changes):
            slot[i], page[i] = where, what
        self.changes = []
        return self.run(token_ids, positions, slots, token_rows, starts, row_ids, lengths, slot, page, wanted)[: len(work)]

    def _page(self, row, position):
        table = self.tables[row]
        if position // self.page_size == len(table):
            table.append(int(self.free.pop()))
            self.changes.append((row * self.table_pages + len(table) - 1, table[-1]))
        return table[position // self.page_size]
