"""What families are written with: a Decoder has the step program (docs/serving-model.md) and the
parts that models are put together of.

A family is a class in a file of its own, which says whose configurations it reads and what is
different in it:

    class Qwen3(Decoder):
        types = architectures = ("qwen3",)

        def turned(self, x, name):                     # queries and keys have a norm of their own before they are turned
            return self.rope(self.rms_norm(x, name + "_norm"))

A Decoder as it is computes what Llama does: norms before attention and before the gated MLP,
grouped heads, rotary embeddings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..compiler import Module, SymbolClass
from ..compiler.declared import Constant, State
from ..compiler.ir import Function, Value
from . import _kv_scales, _rope
from ._checkpoint import Checkpoint, Tensor
from ._config import Config, Refused
from ._options import KV_BYTES, Options

#: The likeliest tokens that are said of each row.
TOP = 20
#: Tokens of a page, where nothing asks for more.
PAGE = 16
#: No published model has half as many layers.
MOST_LAYERS = 512
#: Points after which a model is refused at once: one that has no tensors may say that it has
#: millions of them.
MOST_POINTS = 4096
#: Kinds of layers, as configurations name them.
FULL, SLIDING = "full_attention", "sliding_attention"
#: Of a GGUF file: what frequencies of rotary embeddings are divided by.
_DIVISORS = "rope_freqs.weight"
#: LoRA adapters that a bundle has places for, and their rank.
MOST_ADAPTERS, MOST_RANK = 1024, 512


@dataclass
class Step:
    """The inputs of the function that is being made."""

    f: Function
    token_ids: Value
    positions: Value
    slots: Value
    token_rows: Value
    row_starts: Value
    row_ids: Value
    kv_lengths: Value
    sample_tokens: Value
    token_adapters: Optional[Value] = None
    #: Which layer is being made.
    layer: int = 0
    #: What a layer has made that others take as well, by what it is.
    shared: Dict[Any, Any] = field(default_factory=dict)


class Decoder:
    #: model_type of config.json, general.architecture of GGUF files.
    types: Tuple[str, ...] = ()
    architectures: Tuple[str, ...] = ()
    #: Where the layers of a GGUF file and their parts are called something else than in Llama:
    #: beginnings of names, Hugging Face's by GGUF's.
    gguf_names: Mapping[str, str] = {}
    #: Keys of the configuration by those of GGUF files, behind the architecture's name, where they
    #: are others than _gguf.py has; "": what this family has no use for.
    gguf_keys: Mapping[str, str] = {}
    #: What layer_types calls the layers for which a GGUF file says that they have 0 key heads.
    gguf_keyless = ""
    #: Keys of which a GGUF file may have a number for each layer.
    gguf_of_layers: Tuple[str, ...] = ()
    #: What every name begins with. Files of the model without its head leave it out.
    prefix = "model."
    #: Names that end so are no weights of the model.
    ignored: Tuple[str, ...] = (".rotary_emb.inv_freq",)
    embedding_name, final_norm, layer_name, attention_name = "embed_tokens", "norm", "layers.{}", "self_attn"
    #: The product behind attention; the head, whose name has no prefix.
    output_name, head_name = "o_proj", "lm_head"
    #: Keys of the configuration by what they are called in others, the first one that is there.
    keys: Mapping[str, Tuple[str, ...]] = {}
    #: Whether rotary embeddings turn neighbours, and not the halves of a head.
    interleaved = False
    #: Whether they turn a part of each head (partial_rotary_factor). False: whole heads, and the
    #: factor says nothing, as transformers has it. None: transformers fails where there is one.
    turns_part: Optional[bool] = False
    tied = False  # what a configuration without tie_word_embeddings means
    act = "silu"
    #: What Hugging Face takes where a configuration does not have a key (one that has it as null,
    #: has it).
    defaults: Mapping[str, Any] = {}
    #: Without one, ids are bytes.
    has_tokenizer = True

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        self.is_gguf = checkpoint.form == "gguf"
        self.checkpoint, self.options = checkpoint, options
        # a scaling in the older form stands in place of a default one
        defaults = {key: value for key, value in self.defaults.items() if key != "rope_parameters" or not checkpoint.config.get("rope_scaling")}
        self.config = Config({**({} if self.is_gguf else defaults), **checkpoint.config})
        self.config.points.extend(checkpoint.points)
        self.config.points.extend(point for name, point in checkpoint.unread.items() if not name.endswith(self.ignored))
        for ours, others in self.keys.items():
            found = [value for value in map(self.config.get, others) if value is not None]
            if found and checkpoint.config.get(ours) is None:
                self.config.values[ours] = found[0]
        self.m = Module("model")
        self._used: Dict[str, Constant] = {}
        #: Products that adapters change, by the names that PEFT has for them: what they take and
        #: what they give.
        self.adapted: Dict[str, Tuple[int, int]] = {}
        if not any(name.startswith(self.prefix) for name in checkpoint.tensors):
            self.prefix = ""
        self.setup()
        self.options = replace(options, page_size=options.page_size or self.fitting_page)
        self._check_vocabulary()
        self._check_options()
        self.config.check_unread()
        self._stop_if_refused()

    # -- what a configuration says

    def setup(self) -> None:
        """Reads the configuration. A family adds what it has."""
        config = self.config
        self.vocabulary, self.hidden = config.integer("vocab_size"), config.integer("hidden_size")
        self.layers, self.heads = config.integer("num_hidden_layers", maximum=MOST_LAYERS), config.integer("num_attention_heads", maximum=1 << 16)
        self.kv_heads = config.integer("num_key_value_heads", self.heads)
        self.head_size = config.integer("head_dim", max(self.hidden // self.heads, 1), maximum=1 << 16)
        if config.values.get("head_dim") is None and self.hidden % self.heads and not config.points:
            config.refuse(f"config: num_attention_heads is {self.heads}, which does not divide hidden_size, {self.hidden}")
        if self.heads % self.kv_heads and not config.points:
            config.refuse(f"config: num_key_value_heads is {self.kv_heads}, which does not divide num_attention_heads, {self.heads}")
        self.most = self.trained = config.integer("max_position_embeddings", 2048)
        self.eps = config.number("rms_norm_eps", 1e-6)
        self.act = config.choice("hidden_act", ACTIVATIONS, self.act)
        self.is_tied = config.flag("tie_word_embeddings", self.tied)
        self.intermediate = config.integer("intermediate_size", 4 * self.hidden)
        for name in ("attention_bias", "mlp_bias"):  # the tensors say it
            config.flag(name)
        self.setup_rope()

    def windows_of(self, default: Sequence[str]) -> List[Optional[int]]:
        """The window of each layer, as layer_types says it; `default`: where a configuration does
        not."""
        width = self.config.integer("sliding_window", 0, minimum=0)
        kinds = self.of_layers("layer_types", (FULL, SLIDING), default)
        return [width or None if kind == SLIDING else None for kind in kinds]

    def of_layers(self, name: str, known: Sequence[Any], default: Sequence[Any], may_be_longer: bool = False) -> List[Any]:
        """A list that has one of `known` for each layer; `default`: where a configuration has
        none."""
        found = self.config.get(name) or list(default)
        if not isinstance(found, list) or any(isinstance(item, bool) or item not in known for item in found) or not (
                self.layers <= len(found) if may_be_longer else self.layers == len(found)):
            self.config.refuse(f"config: {name} is {found!r}; there are {' and '.join(map(str, known))}, one for each layer")
            return [known[0]] * self.layers
        return found[: self.layers]

    def rope_of(self, config: Config, head_size: int) -> _rope.Rope:
        """The rotary embedding of heads of this size. A GGUF file says itself what is turned."""
        return _rope.make(config, head_size, self.options.max_position or 1, self.is_gguf or self.turns_part)

    def setup_rope(self) -> None:
        self.rotation = self.rope_of(self.config, self.head_size)
        self.most = self.trained = max(self.trained, 0 if self.is_gguf else self.rotation.stretched)
        self.trained = min(self.trained, self.rotation.longest or self.trained)

    def _check_vocabulary(self) -> None:
        """Before a table of so many tokens is made."""
        name = f"{self.prefix}{self.embedding_name}.weight"
        found = self.checkpoint.tensors.get(name)
        if found is not None and found.shape and found.shape[0] < self.vocabulary:
            self.config.refuse(f"config: vocab_size is {self.vocabulary}, and tensor {name} has {found.shape[0]} rows")
        for kind in ("bos_token_id", "eos_token_id"):
            for where, item in _given_ids(self.checkpoint, kind):
                if item is not None and not _is_whole(item):
                    self.config.refuse(f"{where}: {kind} is {item!r}, expected a token id or a list of them")
            for token in token_ids(self.checkpoint, kind):
                if token >= self.vocabulary and not self.config.points:
                    self.config.refuse(f"config: {kind} is {token}, and vocab_size {self.vocabulary}")

    def _check_options(self) -> None:
        if self.options.page_size < 1 or self.options.page_size & (self.options.page_size - 1):
            self.config.refuse(f"page_size is {self.options.page_size}, expected a power of two")
        if self.options.kv_type not in ("", *KV_BYTES):
            self.config.refuse(f"kv_type is {self.options.kv_type!r}; there are {', '.join(KV_BYTES)}")
        if not 0 <= self.options.max_position <= self.most:
            self.config.refuse(f"max_position is {self.options.max_position}; the model was made for {self.most}")
        self._check_adapters()

    def _check_adapters(self) -> None:
        options = self.options
        if not 0 <= options.adapters <= MOST_ADAPTERS or not 1 <= options.max_rank <= MOST_RANK:
            self.config.refuse(f"{options.adapters} adapters of rank {options.max_rank}; there may be {MOST_ADAPTERS}, of rank 1 to {MOST_RANK}")
        if options.adapters and self.is_gguf:
            # whose rows of queries and keys may be in another order
            self.config.refuse("adapters: they go with a model's folder, and not with a GGUF file")

    def _stop_if_refused(self) -> None:
        if self.config.points:
            raise Refused(self.checkpoint.path, self.config.points)

    def leave_out_predictors(self) -> None:
        """Layers behind the last one predict more tokens than the next; nothing else reads them.
        Some folders have them under a name of their own."""
        more = self.config.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
        names = ("mtp.", *(f"{self.prefix}{self.layer_name.format(self.layers + index)}." for index in range(more)))
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith(names))

    @property
    def generates(self) -> bool:
        """False of a decoder without a head, as models for embeddings are published: the bundle's
        program has the embedding in its place, and says that nothing is to be generated."""
        named = self.checkpoint.config.get("architectures")
        headless = isinstance(named, list) and bool(named) and all(isinstance(one, str) and one.endswith("Model") for one in named)
        return not headless or self.is_tied or self.is_gguf or self.has(f"{self.head_name}.weight")

    @property
    def max_position(self) -> int:
        return self.options.max_position or self.trained

    @property
    def float_type(self) -> str:
        """The type of the embedding; "" where it is packed."""
        found = self.checkpoint.tensors.get(f"{self.prefix}{self.embedding_name}.weight")
        return found.dtype if found is not None and found.layout == "plain" else ""

    @property
    def kv_type(self) -> str:
        return self.options.kv_type or self.float_type or "f16"

    @property
    def adapter_type(self) -> str:
        return self.float_type or "f16"

    # -- weights

    def has(self, name: str) -> bool:
        return self._key(name) in self.checkpoint.tensors

    def _key(self, name: str) -> str:
        return name if name.startswith(self.head_name) or name == _DIVISORS else self.prefix + name

    def weight(self, name: str, shape: Sequence[int]) -> Constant:
        """A weight of the checkpoint, which must have this shape. What is missing or different is
        refused at the end, with all others."""
        key = self._key(name)
        if key not in self._used:
            found = self.checkpoint.tensors.get(key)
            if found is None:
                self.config.refuse(f"tensor {key}: it is missing")
            elif tuple(found.shape) != tuple(shape):
                self.config.refuse(f"tensor {key}: its shape is {list(found.shape)}, expected {list(shape)}")
            if len(self.config.points) > MOST_POINTS:
                self._stop_if_refused()
            if found is None or tuple(found.shape) != tuple(shape):
                found = Tensor(key, "f32", tuple(shape))
            self._used[key] = self.m.external(
                found.source, found.dtype, found.shape, layout=found.layout, group=found.group if _has_free_group(found.layout) else 0,
                components=found.components, by_name=True,
            )  # fmt: skip
        return self._used[key]

    def constant(self, name: str, array: np.ndarray) -> Constant:
        """A weight that follows from the configuration."""
        name = f"accrt.{name}"
        return self.m.constants[name] if name in self.m.constants else self.m.constant(name, array)

    # -- parts

    def linear(self, x: Value, name: str, size: int, bias: Optional[bool] = None) -> Value:
        """x W^T + b. `bias` None: where the checkpoint has one."""
        b = self.weight(f"{name}.bias", [size]) if bias or (bias is None and self.has(f"{name}.bias")) else None
        return self.adapt(self.product(x, self.weight(f"{name}.weight", [size, int(x.shape[-1])]), b), x, name)

    def product(self, x: Value, weight: Constant, bias: Optional[Constant] = None) -> Value:
        return x.linear(weight, None if bias is None else self.float(bias, x.function))

    def adapt(self, y: Value, x: Value, name: str) -> Value:
        """y, the product of x with the weight `name`, and what the token's adapter adds to it."""
        options, name = self.options, type(self).prefix + name
        if self.step.token_adapters is None or (options.adapter_targets and not name.endswith(options.adapter_targets)):
            return y
        sizes = self.adapted[name] = (int(x.shape[-1]), int(y.shape[-1]))
        a, b = (self._factors(f"lora.{name}.{part}", size) for part, size in zip("ab", sizes))
        return y.lora_expand(x.lora_shrink(a, self.step.token_adapters), b, self.step.token_adapters)

    def _factors(self, name: str, size: int) -> State:
        options = self.options
        return self.m.states.get(name) or self.m.state(name, self.adapter_type, [options.adapters, options.max_rank, size])

    def float(self, constant: Constant, f: Optional[Function] = None) -> Value:
        """A small weight in f32."""
        value = (f or self.step.f).constant(constant)
        return value if value.dtype == "f32" else value.to_copy("f32")

    def rms_norm(self, x: Value, name: str) -> Value:
        return x.rms_norm(self.float(self.weight(f"{name}.weight", [int(x.shape[-1])])), self.eps)

    def layer_norm(self, x: Value, name: str) -> Value:
        """With a bias where the checkpoint has one."""
        size = [int(x.shape[-1])]
        bias = self.float(self.weight(f"{name}.bias", size)) if self.has(f"{name}.bias") else None
        return x.layer_norm(self.float(self.weight(f"{name}.weight", size)), bias, self.eps)

    def norm(self, x: Value, name: str) -> Value:
        return self.rms_norm(x, name)

    def rope(self, x: Value) -> Value:
        """x [tokens, heads, size], turned by the tokens' positions."""
        return x.rope_at(self.step.positions, self.frequencies(), self.rotation.scale, self.interleaved)

    def frequencies(self) -> Any:
        """GGUF files have the scaling of Llama 3 as a tensor of what each frequency is divided
        by."""
        plain = self.constant("rope.frequencies", self.rotation.frequencies.astype(np.float32))
        if _DIVISORS not in self.checkpoint.tensors:
            return plain
        return self.step.f.constant(plain) / self.float(self.weight(_DIVISORS, [len(self.rotation.frequencies)]))

    def turned(self, x: Value, name: str) -> Value:
        """Queries or keys as attention takes them."""
        return self.rope(x)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        """Queries, keys and values, [tokens, heads, size]."""
        sizes = (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        q, k, v = (self.split_heads(self.projected(x, f"{name}.{part}", heads * self.head_size), heads) for part, heads in sizes)
        return self.turned(q, f"{name}.q"), self.turned(k, f"{name}.k"), v

    #: Whether queries, keys and values have biases; None: where the checkpoint has them.
    qkv_bias: Optional[bool] = None
    #: Whether all queries of a token, and all its keys, have one norm before they are split.
    all_heads_normed = False
    #: What bounds queries, keys and values, on both sides; 0: nothing does.
    most_of_qkv = 0.0

    def projected(self, x: Value, name: str, size: int) -> Value:
        """All queries, keys or values, [tokens, heads * size]."""
        made = self.linear(x, f"{name}_proj", size, self.qkv_bias)
        if self.all_heads_normed and not name.endswith(".v"):
            made = self.rms_norm(made, f"{name}_norm")
        return self.bounded(made)

    def bounded(self, x: Value) -> Value:
        return x.clamp(-self.most_of_qkv, self.most_of_qkv) if self.most_of_qkv else x

    def split_heads(self, x: Value, heads: int) -> Value:
        return x.view([x.shape[0], heads, self.head_size])

    @property
    def joined_size(self) -> int:
        """Of one product for queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_size

    def split_in_three(self, joined: Value) -> Tuple[Value, Value, Value]:
        """Of one product whose results are all queries, then all keys, then all values."""
        counts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (self.split_heads(part, n) for part, n in zip(joined.split([n * self.head_size for n in counts], -1), counts))
        return q, k, v

    def split_groups(self, joined: Value) -> Tuple[Value, Value, Value]:
        """Of one product whose results are, for each key, the queries that share it, then it, then
        its value."""
        size, group = self.head_size, self.heads // self.kv_heads
        q, k, v = joined.view([joined.shape[0], self.kv_heads, (group + 2) * size]).split([group * size, size, size], -1)
        return self.split_heads(q, self.heads), k, v

    def window(self, layer: int) -> Optional[int]:
        """How many keys a layer sees; None: all."""
        return None

    scale: Optional[float] = None
    soft_cap: Optional[float] = None

    def chunk(self, layer: int) -> Optional[int]:
        """A layer sees the keys from the last multiple of this on; None: all."""
        return None

    def sinks(self, layer: int) -> Optional[Value]:
        """Scores [heads] of a key without a value, in a layer that has them."""
        return None

    @property
    def key_size(self) -> int:
        """Elements of a key as it is kept."""
        return self.head_size

    @property
    def value_size(self) -> int:
        return self.head_size

    def kept_by(self, layer: int) -> int:
        """The layer whose keys and values a layer sees."""
        return layer

    def kept(self, layer: int) -> Mapping[str, Sequence[int]]:
        """What is kept of each token of a sequence: shapes by names."""
        if self.kept_by(layer) != layer:
            return {}
        return {"k": (self.kv_heads, self.key_size), "v": (self.kv_heads, self.value_size)}

    def kept_of_pages(self, layer: int) -> Mapping[str, Sequence[int]]:
        """What is kept once for each page, of f32: what a layer knows of all tokens up to the last
        one of the page that was written."""
        return {}

    @property
    def page_bytes(self) -> int:
        """Of what is kept once for each page."""
        return 4 * sum(math.prod(shape) for layer in range(self.layers) for shape in self.kept_of_pages(layer).values())

    @property
    def keeps_of_pages(self) -> bool:
        return self.page_bytes > 0

    @property
    def fitting_page(self) -> int:
        """Tokens of a page, where the options do not say it."""
        return PAGE

    def page_of(self, position: Value, size: Any) -> Value:
        """The page, i64, of a position of each token's row, for pages of so many tokens; -1: there
        is none. Positions below 0 are taken as 0."""
        at, f = self.step, self.step.f
        # not the rows that the ids of tokens are looked up by: passes/steps.py takes those in
        row = at.row_ids.index_select(0, at.token_rows.to_copy("i64")).to_copy("i64")
        place = position.clamp(0, None).div(size, rounding_mode="floor").to_copy("i64")
        return f.state_gather(self.page_table, row * self.sizes["table_pages"] + place, 2).to_copy("i64")

    def attend(self, q: Value, k: Optional[Value], v: Optional[Value], layer: int) -> Value:
        """Writes keys and values where the step says, then attends; [tokens, heads * size]. None:
        another layer has written them."""
        source = self.kept_by(layer)
        at, (keys, values) = self.step, self.cache[source]
        scale, of_keys, of_values = self.scale, *self.kv_scales(source)
        for value, state, by in ((k, keys, of_keys), (v, values, of_values)):
            if value is None:
                continue
            if self.kv_type == "fp8":
                value.state_scatter_e4m3(state, at.slots, by)
            else:
                value.state_scatter(state, at.slots)
        if of_keys != 1:
            scale = of_keys * (1 / math.sqrt(self.key_size) if scale is None else scale)
        mixed = q.paged_attention(
            keys, values, self.page_table, at.row_ids, at.row_starts, at.kv_lengths,
            scale=scale, window=self.window(layer), soft_cap=self.soft_cap, sinks=self.sinks(layer), chunk=self.chunk(layer),
        )  # fmt: skip
        mixed = mixed if of_values == 1 else mixed * of_values
        return mixed.view([q.shape[0], self.heads * self.value_size])

    def kv_scales(self, layer: int) -> Tuple[float, float]:
        """What keys and values of a layer are divided by before they become fp8."""
        if self.kv_type != "fp8":
            return 1.0, 1.0
        name = f"{self.prefix}{self.layer_name.format(layer)}.{self.attention_name}"
        of_keys, of_values, points = _kv_scales.scales_of(self.checkpoint, name)
        for point in points:
            self.config.refuse(point)
        return of_keys, of_values

    def attention(self, x: Value, name: str, layer: int) -> Value:
        return self.linear(self.attend(*self.qkv(x, name), layer), f"{name}.{self.output_name}", self.hidden)

    def activation(self, x: Value) -> Value:
        return ACTIVATIONS[self.act](x)

    def mlp(self, x: Value, name: str) -> Value:
        return self.gated(x, name, self.intermediate)

    def gated(self, x: Value, name: str, size: int) -> Value:
        gate, up = (self.linear(x, f"{name}.{part}_proj", size) for part in ("gate", "up"))
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)

    def in_two(self, x: Value, name: str, up: str, down: str) -> Value:
        """An MLP without a gate."""
        return self.linear(self.activation(self.linear(x, f"{name}.{up}", self.intermediate)), f"{name}.{down}", self.hidden)

    def beside(self, x: Value, name: str, index: int, second: str = "") -> Value:
        """A layer whose attention and MLP take the same input, after one norm or (`second`) after
        one each."""
        normed = self.norm(x, f"{name}.input_layernorm")
        made = self.mlp(self.norm(x, f"{name}.{second}") if second else normed, f"{name}.mlp")
        return self.attention(normed, f"{name}.{self.attention_name}", index) + made + x

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.{self.attention_name}", index) + x
        return self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp") + x

    def embedding(self, ids: Value, name: str, rows: int) -> Value:
        found = self.step.f.constant(self.weight(f"{name}.weight", [rows, self.hidden])).embedding(ids)
        return found if found.dtype == "f32" else found.to_copy("f32")

    def embed(self, ids: Value) -> Value:
        """What the first layer takes."""
        return self.embedding(ids, self.embedding_name, self.vocabulary)

    def head(self, x: Value) -> Value:
        """Logits of normed rows. A head that the checkpoint does not have is the embedding, which
        is held once."""
        shape = [self.vocabulary, self.hidden]
        head = self.head_name
        own = self.has(f"{head}.weight") and (self.is_gguf or not self.is_tied)
        if not own and not self.is_tied and not self.is_gguf and self.generates:
            self.config.refuse(f"tensor {head}.weight: it is missing, and tie_word_embeddings is false")
        logits = self.product(x, self.weight(f"{head}.weight" if own else f"{self.embedding_name}.weight", shape))
        return logits + self.float(self.weight(f"{head}.bias", shape[:1])) if self.has(f"{head}.bias") else logits

    # -- the step program

    def build(self) -> Module:
        """The module with all functions. Raises Refused with everything that stands against it."""
        self._declare()
        for name, doc, last in (
            ("step", "one step of all running rows: their logits", ("logits", self.head)),
            ("embed", "as step, but what the head would be given", ("hidden", lambda x: x)),
        ):
            self._forward(name, doc, *last)
        if self.options.adapters:
            self._forward("step_plain", "the same for steps in which no row has an adapter", "logits", self.head, False)
        self._update_pages()
        # what a page knows of all its tokens says nothing of a part of them
        if not self.keeps_of_pages:
            self._copy_rows()
        self._samplers()
        self._check_all_used()
        if self.options.adapters and not self.adapted:
            self.config.refuse(f"adapter_targets are {', '.join(self.options.adapter_targets)}: no product of this model ends so")
        self._stop_if_refused()
        self.m.metadata.update(self.metadata())
        if self.float_type != "f32":  # values between layers pass the range of f16 in some models
            self.m.compute["cuda"] = self.float_type or "bf16"
        self.m.batch_invariant = self.options.batch_invariant
        return self.m

    def _declare(self) -> None:
        m, options = self.m, self.options
        most = {"tokens": max(options.token_buckets), "rows": max(options.row_buckets), "samples": max(options.sample_buckets),
                "changes": max(options.change_buckets), "edits": max(options.edit_buckets)}  # fmt: skip
        self.sizes = {name: m.symbol(name, minimum=1, maximum=maximum) for name, maximum in most.items()}
        longest = -(-self.max_position // options.page_size)
        for name, maximum in (("pages", 1 << 26), ("table_rows", 1 << 16), ("table_pages", longest)):
            self.sizes[name] = m.symbol(name, SymbolClass.SESSION, minimum=1, maximum=maximum)
        lead, kind = [self.sizes["pages"], options.page_size], "u8" if self.kv_type == "fp8" else self.kv_type
        self.cache = [tuple(m.state(f"kv.{layer}.{part}", kind, [*lead, *shape]) for part, shape in self.kept(layer).items()) for layer in range(self.layers)]
        self.page_states = [tuple(m.state(f"kv.{layer}.{part}", "f32", [lead[0], *shape]) for part, shape in self.kept_of_pages(layer).items()) for layer in range(self.layers)]
        self.page_table = m.state("page_table", "i32", [self.sizes["table_rows"], self.sizes["table_pages"]])
        self.last_token = m.state("last_token", "i32", [self.sizes["table_rows"]])

    def _forward(self, name: str, doc: str, result: str, last: Any, adapters: bool = True) -> None:
        f, sizes = self.m.function(name, doc=doc), self.sizes
        tokens, rows = sizes["tokens"], sizes["rows"]

        def ids(name: str, size: Any, doc: str) -> Value:
            return f.input(name, "i32", [size], doc=doc)

        given = ids("token_ids", tokens, "ids; -1: the last sampled token of its row")
        self.step = Step(
            f, given, ids("positions", tokens, "from 0, in their sequences"), ids("slots", tokens, "where keys and values go; -1: nowhere"),
            ids("token_rows", tokens, "rows of the batch"), ids("row_starts", rows + 1, "first token of each row, and the end"),
            ids("row_ids", rows, "rows of the page table"), ids("kv_lengths", rows, "keys after this step's"), given,
        )  # fmt: skip
        self._change_pages(f)
        self.step.sample_tokens = ids("sample_tokens", sizes["samples"], "tokens whose results are wanted")
        if self.options.adapters and adapters:
            self.step.token_adapters = ids("token_adapters", tokens, "adapters; -1: none")
        last_ids = f.state_gather(self.last_token, self.step.row_ids.index_select(0, self.step.token_rows))
        # An id that is none is for the engine to refuse; here it must not take the other rows' step
        # with it.
        self.step.token_ids = (given < 0).where(last_ids, given).clamp(0, self.vocabulary - 1)
        x = self.embed(self.step.token_ids)
        for layer in range(self.layers):
            self.step.layer = layer
            with f.label(f"layer {layer}"):
                x = self.layer(x, self.layer_name.format(layer), layer)
        f.result(result, last(self.norm(x.index_select(0, self.step.sample_tokens), self.final_norm)), doc=doc)

    def _change_pages(self, f: Function) -> None:
        slots = f.input("change_slots", "i32", [self.sizes["changes"]], doc="entries of the page table that change; -1: none")
        f.input("change_pages", "i32", [self.sizes["changes"]], doc="what they become").state_scatter(self.page_table, slots)

    def _update_pages(self) -> None:
        self._change_pages(self.m.function("update_pages", doc="changes of the page table that no step has room for"))

    def _copy_rows(self) -> None:
        f, sizes = self.m.function("copy_rows", doc="keys and values of some slots, copied to others"), self.sizes
        source = f.input("copy_from", "i32", [sizes["changes"]], doc="slots: page x page_size + offset")
        to = f.input("copy_to", "i32", [sizes["changes"]], doc="slots of other pages; -1: none")
        for state in (state for pair in self.cache for state in pair):
            f.state_gather(state, source, 2).state_scatter(state, to)

    def _samplers(self) -> None:
        samples, edits, words = self.sizes["samples"], self.sizes["edits"], -(-self.vocabulary // 32)
        inputs = (
            ("temperature", "f32", [samples]), ("top_k", "i32", [samples]), ("top_p", "f32", [samples]), ("min_p", "f32", [samples]),
            ("seed", "u32", [samples, 2]), ("position", "i32", [samples]), ("edit_starts", "i32", [samples + 1]), ("edit_tokens", "i32", [edits]),
            ("edit_multiply", "f32", [edits]), ("edit_add", "f32", [edits]), ("mask_rows", "i32", [samples]), ("mask_bits", "u32", [samples, words]),
        )  # fmt: skip
        f, logits, rows = self._sampler("sample", "a token for each row of logits, and what is said of it")
        results = f.sample(logits, *(f.input(name, dtype, shape) for name, dtype, shape in inputs), top=TOP)
        results[0].state_scatter(self.last_token, rows)
        for name, value in zip(("token", "logprob", "top_ids", "top_logprobs", "rank"), results):
            f.result(name, value)
        f, logits, rows = self._sampler("sample_greedy", "the likeliest token of each row of logits")
        token = logits.sample_greedy()
        token.state_scatter(self.last_token, rows)
        f.result("token", token)

    def _sampler(self, name: str, doc: str) -> Tuple[Function, Value, Value]:
        f = self.m.function(name, doc=doc)
        logits = f.input("logits", "f32", [self.sizes["samples"], self.vocabulary])
        return f, logits, f.input("sample_rows", "i32", [self.sizes["samples"]], doc="rows of the page table whose last token it is; -1: none")

    def _check_all_used(self) -> None:
        """A tensor that nothing reads is part of a model that is not the one built here."""
        passed = set(self._used) | set(self.checkpoint.unused)
        passed |= {f"{self.head_name}.weight"} if self.is_tied else set()
        for name in self.checkpoint.tensors:
            if name not in passed and not name.endswith(self.ignored):
                self.config.refuse(f"tensor {name}: this family has no use for it")

    def metadata(self) -> Dict[str, str]:
        def numbers(values: Sequence[int]) -> str:
            return ",".join(map(str, values))

        options, checkpoint = self.options, self.checkpoint
        kv_bytes = sum(math.prod(shape) for layer in range(self.layers) for shape in self.kept(layer).values()) * KV_BYTES[self.kv_type]
        kv_bytes += -(-self.page_bytes // options.page_size)
        return {
            "serve.version": "2" if self.keeps_of_pages else "1", "serve.family": self.types[0], "serve.name": checkpoint.name, "serve.vocab_size": str(self.vocabulary),
            "serve.hidden_size": str(self.hidden), "serve.layers": str(self.layers), "serve.page_size": str(options.page_size),
            "serve.max_position": str(self.max_position), "serve.kv_type": self.kv_type, "serve.kv_bytes_per_token": str(kv_bytes),
            "serve.bos": numbers(token_ids(checkpoint, "bos_token_id")), "serve.eos": numbers(token_ids(checkpoint, "eos_token_id")),
            "serve.token_buckets": numbers(options.token_buckets), "serve.row_buckets": numbers(options.row_buckets),
            "serve.sample_buckets": numbers(options.sample_buckets), "serve.change_buckets": numbers(options.change_buckets),
            "serve.edit_buckets": numbers(options.edit_buckets),
            # tested by test_batch_invariance.py, test_serve_invariance.py and, for GPUs, by
            # tests/gpu/test_invariance.py
            "serve.batch_invariant": "all" if options.batch_invariant else "host",
            **({} if self.generates else {"serve.generates": "0"}),
            **({"serve.states_of_pages": "1"} if self.keeps_of_pages else {}),
            **({"serve.adapters": str(options.adapters), "serve.adapter_rank": str(options.max_rank)} if options.adapters else {}),
        }  # fmt: skip


def token_ids(checkpoint: Checkpoint, name: str) -> List[int]:
    """Ids of a kind: those of generation_config.json, then those of config.json that are others."""
    return list(dict.fromkeys(item for _where, item in _given_ids(checkpoint, name) if _is_whole(item) and item >= 0))


def _given_ids(checkpoint: Checkpoint, name: str) -> List[Tuple[str, Any]]:
    """What both files say, with what a message calls the file. None or a negative number: none."""
    found: List[Tuple[str, Any]] = []
    for where, source in (("generation_config.json", checkpoint.json("generation_config.json")), ("config", checkpoint.config)):
        value = source.get(name)
        found += [(where, item) for item in (value if isinstance(value, list) else [value])]
    return found


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _has_free_group(layout: str) -> bool:
    from ..compiler.encodings import LAYOUTS

    return layout != "plain" and LAYOUTS[layout].free_group


ACTIVATIONS = {
    "silu": lambda x: x.silu(), "swish": lambda x: x.silu(), "gelu": lambda x: x.gelu(), "relu": lambda x: x.relu(), "gelu_new": lambda x: x.gelu("tanh"),
    "gelu_fast": lambda x: x.gelu("tanh"), "gelu_pytorch_tanh": lambda x: x.gelu("tanh"), "gelu_tanh": lambda x: x.gelu("tanh"), "relu2": lambda x: x.relu().square(),
}  # fmt: skip
