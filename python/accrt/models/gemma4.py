"""Gemma 4: layers that see all have larger heads than those with windows, of which a part is
turned, and may take keys as values; embeddings in every layer, or experts beside the MLP; the last
layers may see keys and values of earlier ones. Of models that see and hear, the part that reads
text."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Tuple

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._experts import WithExperts
from ._own_embeddings import WithOwnEmbeddings

_ROPES = {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}


class Gemma4(WithExperts, WithOwnEmbeddings):
    types: Tuple[str, ...] = ("gemma4_text", "gemma4")
    architectures: Tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {
        "sliding_window": 512, "head_dim": 256, "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 131072, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "rope_parameters": _ROPES,
    }  # fmt: skip
    keys = {"num_experts_per_tok": ("top_k_experts",)}

    def setup(self) -> None:
        config = self.config
        kinds = config.get("layer_types")
        if isinstance(kinds, list) and kinds:
            # the last one sees all, whatever is said of it
            config.values["layer_types"] = [*kinds[:-1], FULL]
        self.keys_are_values, is_wide = config.flag("attention_k_eq_v"), config.flag("use_double_wide_mlp")
        super().setup()
        self.scale, self.soft_cap = 1.0, None
        self.setup_sharing()
        self.setup_own(0)
        self.sizes_of_mlps = [self.intermediate * (2 if is_wide and layer >= self.first_shared else 1) for layer in range(self.layers)]
        self.has_experts = config.flag("enable_moe_block")
        if self.has_experts:
            self.setup_experts("moe_intermediate_size")
        # a text has no images, whose parts see each other
        if config.get("use_bidirectional_attention") not in (None, False, "vision"):
            config.refuse(f"config: use_bidirectional_attention is {config.get('use_bidirectional_attention')!r}, which this family does not do")

    def windows_of(self, default: Sequence[str]) -> List[Any]:
        self.config.integer("sliding_window")
        return super().windows_of(default)

    def layer_types(self) -> List[str]:
        return [FULL if (layer + 1) % 6 == 0 or layer == self.layers - 1 else SLIDING for layer in range(self.layers)]

    def setup_rope(self) -> None:
        """Layers that see all have sizes of their own, and frequencies for these."""
        super().setup_rope()
        config, kinds = self.config, self.of_layers("layer_types", (FULL, SLIDING), self.layer_types())
        own = {kind: self._sizes(kind, [layer for layer in range(self.layers) if kinds[layer] == kind]) for kind in (FULL, SLIDING)}
        #: Numbers of keys, and sizes of heads, of each layer.
        self.key_sizes = [own[kind] for kind in kinds]
        given = config.get("rope_parameters")
        given = given.get(FULL, given) if isinstance(given, dict) else given
        self.rotation = self.rope_of(config.changed(rope_parameters=given), own[FULL][1])
        if any(self.heads % heads for heads, _size in own.values()) and not config.points:
            config.refuse(f"config: num_global_key_value_heads is {own[FULL][0]}, which does not divide num_attention_heads, {self.heads}")

    def _sizes(self, kind: str, layers: Sequence[int]) -> Tuple[int, int]:
        """Keys and size of a head in layers of a kind, as models are published or as transformers
        saves them."""
        config, sizes = self.config, {"num_key_value_heads": self.kv_heads, "head_dim": self.head_size}
        each = config.get("per_layer_config")
        if each is None:
            if kind == FULL:
                sizes["head_dim"] = config.integer("global_head_dim", 512, maximum=1 << 16)
                if self.keys_are_values:
                    sizes["num_key_value_heads"] = config.integer("num_global_key_value_heads", self.kv_heads)
            return sizes["num_key_value_heads"], sizes["head_dim"]
        # transformers writes 05 where there are ten layers or more
        numbered = {key.lstrip("0") or "0": value for key, value in each.items()} if isinstance(each, dict) else None
        found = [numbered.get(str(layer), {}) for layer in layers] if numbered is not None else [None]
        first = found[0] if found else {}
        fits = isinstance(first, dict) and all(one == first for one in found) and all(
            key in sizes and isinstance(size, int) and not isinstance(size, bool) and 0 < size <= 1 << 16 for key, size in first.items())  # fmt: skip
        if not fits:
            config.refuse(f"config: per_layer_config is {each!r:.120}, expected num_key_value_heads and head_dim, the same for all layers of a kind")
            return self.kv_heads, self.head_size
        sizes.update(first)
        return sizes["num_key_value_heads"], sizes["head_dim"]

    def kept(self, layer: int) -> Mapping[str, Sequence[int]]:
        return {name: self.key_sizes[layer] for name in super().kept(layer)}

    def embed(self, ids: Value) -> Value:
        x = super().embed(ids)
        if self.own_size:
            self.step.shared["own"] = self.own_embeddings(ids, x)
        return x

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        sizes = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}

        def made(part: str) -> Value:
            return self.split_heads(self.projected(x, f"{name}.{part}", sizes[part] * self.head_size), sizes[part])

        q, k = made("q"), made("k")
        v = k if self.keys_are_values and self.windows[self.step.layer] is None else made("v")
        return self.turned(q, f"{name}.q"), self.turned(k, f"{name}.k"), v

    def mlp(self, x: Value, name: str) -> Value:
        return self.gated(x, name, self.sizes_of_mlps[self.step.layer])

    def layer(self, x: Value, name: str, index: int) -> Value:
        self.kv_heads, self.head_size = self.key_sizes[index]
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index)
        x = self.norm(mixed, f"{name}.post_attention_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp")
        if self.has_experts:
            made = self.norm(made, f"{name}.post_feedforward_layernorm_1") + self.norm(self.mixture(x, name), f"{name}.post_feedforward_layernorm_2")
        x = self.norm(made, f"{name}.post_feedforward_layernorm") + x
        if self.own_size:
            x = x + self.of_own(x, name, index)
        return x * self.float(self.weight(f"{name}.layer_scalar", [1]))

    # -- experts, which take what the MLP takes, after a norm of their own

    def mixture(self, x: Value, name: str) -> Value:
        shares, chosen = self.routed(x, f"{name}.router")
        return self._in_groups(self.norm(x, f"{name}.pre_feedforward_layernorm_2"), f"{name}.{self.experts_name}", shares, chosen)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        scaled = self.without_weight(x) * self.float(self.weight(f"{name}.scale", [self.hidden])) * self.hidden**-0.5
        shares, chosen = super().routed(scaled, f"{name}.proj")
        each = self.float(self.weight(f"{name}.per_expert_scale", [self.experts])).index_select(0, chosen.view([-1]).to_copy("i64"))
        return shares * each.view([x.shape[0], self.chosen]), chosen

    may_join = False

    def _all(self, name: str, part: str) -> List[Value]:
        """Gates and what they multiply are rows of one tensor."""
        is_last, size = part == self.parts[2], self.expert_size
        shape = [self.experts, self.hidden, size] if is_last else [self.experts, 2 * size, self.hidden]
        found = self.step.f.constant(self.weight(f"{name}.{'down_proj' if is_last else 'gate_up_proj'}", shape))
        first = size if part == self.parts[1] else 0
        return [found if is_last else found.slice(1, first, first + size)]


class Gemma4Unified(Gemma4):
    """Without embeddings in every layer and without experts."""

    types = ("gemma4_unified_text", "gemma4_unified")
    defaults = {**Gemma4.defaults, "sliding_window": 1024, "max_position_embeddings": 262144, "hidden_size_per_layer_input": 0}
