"""LFM2: layers with attention among others that have a short convolution over the last tokens,
whose inputs are kept of each token as keys are. So pages that requests share, copies of them and
drafts that are taken back are right for convolutions, too."""

from __future__ import annotations

from typing import List, Mapping, Sequence, Tuple

from ..compiler.ir import Value
from ._blocks import FULL, Decoder

CONV = "conv"


class Lfm2(Decoder):
    types: Tuple[str, ...] = ("lfm2",)
    architectures: Tuple[str, ...] = ("lfm2",)
    gguf_names = {"token_embd_norm": "embedding_norm", "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_q_norm": "self_attn.q_layernorm",
                  "attn_k_norm": "self_attn.k_layernorm", "attn_output": "self_attn.out_proj", "shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj",
                  "shortconv.out_proj": "conv.out_proj", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2"}  # fmt: skip
    gguf_keys = {"shortconv.l_cache": "conv_L_cache"}
    gguf_keyless = CONV
    final_norm, output_name = "embedding_norm", "out_proj"
    tied = True
    known_kinds: Tuple[str, ...] = (FULL, CONV)
    keys = {"rms_norm_eps": ("norm_eps",)}
    defaults = {"norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 128000, "intermediate_size": 12288}

    def setup(self) -> None:
        config = self.config
        for ours, older in (("intermediate_size", "block_ff_dim"), ("tie_word_embeddings", "tie_embedding")):
            config.values[ours] = config.get(older, config.values.get(ours))
        super().setup()
        full = config.get("full_attn_idxs", list(range(self.layers)))
        self.full = full if isinstance(full, list) else []
        self.kinds = self.of_layers("layer_types", self.known_kinds, self.default_kinds())
        self.convolves = [kind == CONV for kind in self.kinds]
        self.taps = config.integer("conv_L_cache", 3, maximum=64)
        self.has_biases = config.flag("conv_bias")
        if any(self.convolves) and self.kv_type == "fp8":
            config.refuse("kv_type is 'fp8'; inputs of convolutions are kept beside keys, which 8 bits do not hold")
        multiple, factor = config.integer("block_multiple_of", 256), config.number("block_ffn_dim_multiplier", 1.0)
        if config.flag("block_auto_adjust_ff_dim", not self.is_gguf):
            self.intermediate = -(-int(factor * int(2 * self.intermediate / 3)) // multiple) * multiple

    def default_kinds(self) -> List[str]:
        return [FULL if layer in self.full else CONV for layer in range(self.layers)]

    def kept(self, layer: int) -> Mapping[str, Sequence[int]]:
        return {"inputs": (self.hidden,)} if self.convolves[layer] else super().kept(layer)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_layernorm"))

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.mixed(self.norm(x, f"{name}.operator_norm"), name, index) + x
        return self.feed_forward(self.norm(x, f"{name}.ffn_norm"), f"{name}.feed_forward") + x

    def mixed(self, x: Value, name: str, index: int) -> Value:
        """By a convolution or attention, as the layer has it."""
        if self.convolves[index]:
            return self.convolution(x, f"{name}.{CONV}", index)
        return self.attention(x, f"{name}.{self.attention_name}", index)

    def feed_forward(self, x: Value, name: str) -> Value:
        gate, up = (self.linear(x, f"{name}.{part}", self.intermediate) for part in ("w1", "w3"))
        return self.linear(self.activation(gate) * up, f"{name}.w2", self.hidden)

    def convolution(self, x: Value, name: str, layer: int) -> Value:
        (state,) = self.cache[layer]
        before, after, own = self.linear(x, f"{name}.in_proj", 3 * self.hidden, self.has_biases).split([self.hidden] * 3, -1)
        taken = before * own
        taken.state_scatter(state, self.step.slots)
        by = self.float(self.weight(f"{name}.conv.weight", [self.hidden, self.taps] if self.is_gguf else [self.hidden, 1, self.taps]))
        made = taken * by.select(-1, self.taps - 1).view([self.hidden])
        for back in range(1, self.taps):
            if back not in self.step.shared:
                self.step.shared[back] = self.slots_before(back)
            slots, is_there = self.step.shared[back]
            found = self.step.f.state_gather(state, slots, 2)
            found = found if found.dtype == "f32" else found.to_copy("f32")
            made = made + is_there.where(found, 0.0) * by.select(-1, self.taps - 1 - back).view([self.hidden])
        if self.has_biases:
            made = made + self.float(self.weight(f"{name}.conv.bias", [self.hidden]))
        return self.linear(after * made, f"{name}.out_proj", self.hidden, self.has_biases)

    def slots_before(self, back: int) -> Tuple[Value, Value]:
        """Where each token's sequence has its inputs of so many tokens before, and whether there is
        such a token; slots of others are 0."""
        size = self.options.page_size
        position = self.step.positions - back
        is_there = position >= 0
        page, nothing = self.page_of(position, size), self.step.f.full([1], 0, "i64")
        return (is_there & (page >= 0)).where(page * size + position.remainder(size).to_copy("i64"), nothing), is_there.unsqueeze(1)
