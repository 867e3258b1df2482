"""Layers whose sequences have a state that every token changes: Mamba 1 and 2, gated delta nets.

A page has the state behind its last token, and a convolution's last inputs, beside keys and values
(docs/decisions/states-of-scans.md)."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder, FULL

#: Bytes of a page's states that a token of it may take, and tokens of the largest page.
_OF_A_TOKEN, _LARGEST_PAGE = 1 << 15, 1024
LINEAR = "linear_attention"
#: The size of values of all heads, which GGUF files say.
_INNER = "ssm_inner_size"


def names_in_files(scan: str) -> Dict[str, str]:
    """What GGUF files call the parts of such a layer's `scan`. A has another name, since it is
    another number than A_log: -exp(A_log)."""
    parts = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_dt.bias": "dt_bias", "ssm_a": "A", "ssm_d": "D", "ssm_norm": "norm", "ssm_out": "out_proj"}
    return {theirs: f"{scan}.{ours}" for theirs, ours in parts.items()}


def keys_in_files(taps: str, heads: str, groups: str, state_size: str) -> Dict[str, str]:
    """Keys of the configuration by those of GGUF files."""
    return {"ssm.conv_kernel": taps, "ssm.time_step_rank": heads, "ssm.group_count": groups, "ssm.state_size": state_size, "ssm.inner_size": _INNER}


class WithScans(Decoder):
    """A decoder of whose layers some have scans, after `setup_scans`."""

    #: FULL or LINEAR for each layer; where nothing is said, all have scans.
    kinds: Sequence[str] = ()

    def setup_scans(self, heads: int, value_size: int, key_size: int, channels: int, taps: int) -> None:
        """The size of a state, and the channels and the reach of the convolution before it."""
        self.scan_shape, self.channels, self.taps = (heads, value_size, key_size), channels, taps

    def scans(self, layer: int) -> bool:
        return not self.kinds or self.kinds[layer] == LINEAR

    def attends(self, layer: int) -> bool:
        return not self.scans(layer)

    def kinds_of(self, key: str, others: Mapping[str, str], default: Sequence[str]) -> List[str]:
        """LINEAR or FULL for each layer, as a list of the configuration says it. `others`: further
        names of these."""
        known = {FULL: FULL, LINEAR: LINEAR, **others}
        return [known[kind] for kind in self.of_layers(key, list(known), default)]

    # -- what is kept

    def kept(self, layer: int) -> Mapping[str, Sequence[int]]:
        return super().kept(layer) if self.attends(layer) else {}

    def kept_of_pages(self, layer: int) -> Mapping[str, Sequence[int]]:
        if not self.scans(layer):
            return {}
        return {**({"inputs": (self.taps - 1, self.channels)} if self.taps > 1 else {}), "scan": self.scan_shape}

    @property
    def fitting_page(self) -> int:
        """So large that states take few bytes for each of its tokens."""
        page = super().fitting_page
        while page < min(_LARGEST_PAGE, self.max_position) and self.page_bytes > page * _OF_A_TOKEN:
            page *= 2
        return page

    # -- what is computed

    def convolved(self, x: Value, name: str, layer: int, has_bias: bool) -> Value:
        """x [tokens, channels] and the inputs of the tokens before, by weights of each channel. A
        row's own inputs are at hand, those before it in the page of the token before."""
        taps, channels = self.taps, self.channels
        by = self.filters(name)
        made = x * by.select(-1, taps - 1).view([channels])
        if taps > 1:
            state = self._state(layer, "inputs")
            inputs = [x, *(self._before(x, back, state) for back in range(1, taps))]
            for back in range(1, taps):
                made = made + inputs[back] * by.select(-1, taps - 1 - back).view([channels])
            page, is_last = self._ends()
            for back in range(taps - 1):
                inputs[back].state_scatter(state, is_last.where(page * self.number("taps", taps - 1) + back, self.step.f.full([1], -1, "i64")))
        return made + self.float(self.weight(f"{name}.bias", [channels])) if has_bias else made

    def filters(self, name: str) -> Value:
        """Weights of a convolution, [channels, 1, taps]; [channels, taps] of GGUF files."""
        return self.float(self.weight(f"{name}.weight", [self.channels, self.taps] if self.is_gguf else [self.channels, 1, self.taps]))

    def _state(self, layer: int, part: str) -> Any:
        return next(state for state in self.page_states[layer] if state.name == f"kv.{layer}.{part}")

    def number(self, name: str, number: float, dtype: type = np.int64) -> Value:
        """A number as a tensor, so that kernels are the same for all numbers."""
        return self.step.f.constant(self.constant(name, np.array([number], dtype)))

    def _before(self, x: Value, back: int, state: Any) -> Value:
        """The inputs of so many tokens before each one; of none, zeros."""
        f, places = self.step.f, self.step.shared
        if "before" not in places:
            places["before"] = self._before_rows()
        token, first, position, last, page = places["before"]
        is_own = token - back >= first
        beyond = last - position + back  # how many tokens before the row's last one
        is_there = (last >= 0) & (beyond >= 0) & (position >= back) & (page >= 0)
        slot = is_there.where(page * self.number("taps", self.taps - 1) + beyond, f.full([1], 0, "i64"))
        found = is_there.unsqueeze(1).where(f.state_gather(state, slot, 2), 0.0)
        return is_own.unsqueeze(1).where(x.index_select(0, (token - back).clamp(0, None)), found)

    def _before_rows(self) -> Tuple[Value, ...]:
        """Of each token: its place in the step, the first place of its row, its position, that of
        the token before the row in this step, and the page of that one."""
        at, size = self.step, self.number("page_size", self.options.page_size)
        token, position = at.f.arange(at.positions.shape[0]), at.positions.to_copy("i64")
        first = at.row_starts.index_select(0, at.token_rows.to_copy("i64")).to_copy("i64")
        last = position - (token - first) - 1
        return token, first, position, last, self.page_of(last, size)

    def _ends(self) -> Tuple[Value, Value]:
        """The page of each token, and whether the page's states are those behind this token: that
        of the row's end or the page's."""
        at, f, size = self.step, self.step.f, self.number("page_size", self.options.page_size)
        slot, token = at.slots.to_copy("i64"), f.arange(at.slots.shape[0])
        end = at.row_starts.index_select(0, at.token_rows.to_copy("i64") + 1).to_copy("i64")
        ends = (token + 1).eq(end) | (slot + 1).remainder(size).eq(0)
        return slot.div(size, rounding_mode="floor"), (slot >= 0) & ends

    def scan(self, query: Value, key: Value, value: Value, decay: Value, layer: int, beta: Any = None) -> Value:
        at = self.step
        return query.paged_scan(key, value, decay, self._state(layer, "scan"), self.page_table, at.row_ids, at.row_starts, at.kv_lengths, self.options.page_size, beta)

    def steps(self, x: Value, name: str, heads: int) -> Value:
        """The length of each head's step."""
        return (x + self.float(self.weight(f"{name}.dt_bias", [heads]))).softplus()

    def numbers(self, name: str, size: int) -> Value:
        """Small weights, of which GGUF files may have rows."""
        found = self.checkpoint.tensors.get(self._key(name))
        shape = found.shape if self.is_gguf and found is not None and math.prod(found.shape) == size else [size]
        made = self.float(self.weight(name, shape))
        return made if len(shape) == 1 else made.view([size])

    def decay(self, steps: Value, name: str, heads: int) -> Value:
        """What of a state is left after such steps, [tokens, heads, 1]."""
        if self.is_gguf:
            return (steps * self.numbers(f"{name}.A", heads)).exp().unsqueeze(-1)
        return (steps * self.rates(name, [heads])).exp().unsqueeze(-1)

    def rates(self, name: str, shape: Sequence[int]) -> Value:
        """What steps are multiplied by: decays are e to the power of it."""
        return self.float(self.weight(f"{name}.A_log", shape)).exp() * -1.0

    def norm_of_groups(self, x: Value, groups: int, name: str) -> Value:
        """x [tokens, size], normed in so many parts, and multiplied by weights of the whole."""
        tokens, size = x.shape[0], int(x.shape[-1])
        ones = self.step.f.constant(self.constant(f"ones.{size // groups}", np.ones(size // groups, np.float32)))
        return x.view([tokens, groups, size // groups]).rms_norm(ones, self.eps).view([tokens, size]) * self.numbers(f"{name}.weight", size)


class WithMamba2(WithScans):
    """Mixers of Mamba 2. `setup_mamba` reads the configuration."""

    #: What keys of the configuration are called.
    mamba_keys = {"heads": "mamba_n_heads", "head_size": "mamba_d_head", "groups": "mamba_n_groups", "state_size": "mamba_d_state", "taps": "mamba_d_conv",
                  "expand": "mamba_expand", "conv_bias": "mamba_conv_bias", "bias": "mamba_proj_bias"}  # fmt: skip
    #: Names of the norm within a mixer, of weights that are no matrices.
    ignored: Tuple[str, ...] = (*Decoder.ignored, ".mamba.mup_vector")
    norm_first = False
    mamba_normed = True

    def setup_mamba(self, inner: int = 0) -> None:
        config, keys = self.config, self.mamba_keys
        self.inner = inner or int(config.number(keys["expand"], 2) * self.hidden)
        if self.is_gguf:
            self.inner = config.integer(_INNER, self.inner)
        self.mamba_heads = config.integer(keys["heads"], 128, maximum=1 << 16)
        size = config.get(keys["head_size"], "auto")
        if size == "auto":
            config.values[keys["head_size"]] = max(self.inner // self.mamba_heads, 1)
        self.mamba_head_size = config.integer(keys["head_size"], maximum=1 << 16)
        self.mamba_groups, self.state_size = config.integer(keys["groups"], 1, maximum=1 << 16), config.integer(keys["state_size"], 256, maximum=1 << 12)
        self.conv_bias, self.mamba_bias = config.flag(keys["conv_bias"], True), config.flag(keys["bias"]) or (None if self.is_gguf else False)
        self.setup_step_limits()
        if self.mamba_heads * self.mamba_head_size != self.inner or self.mamba_heads % self.mamba_groups or self.inner % self.mamba_groups:
            config.refuse(f"config: {self.mamba_heads} heads of {self.mamba_head_size} in {self.mamba_groups} groups ({keys['heads']}, {keys['head_size']}, {keys['groups']}) "
                          f"are not the {self.inner} channels of its mixers")  # fmt: skip
            self.mamba_heads, self.mamba_head_size, self.mamba_groups = 1, self.inner, 1
        channels = self.inner + 2 * self.mamba_groups * self.state_size
        self.setup_scans(self.mamba_heads, self.mamba_head_size, self.state_size, channels, config.integer(keys["taps"], 4, maximum=64))

    def setup_step_limits(self) -> None:
        """transformers 5 saves an infinity as an object."""
        given: Any = self.config.get("time_step_limit", [0.0, math.inf])
        numbers = [math.inf if one == {"__float__": "Infinity"} else one for one in given] if isinstance(given, list) else []
        if len(numbers) != 2 or any(isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one for one in numbers):
            self.config.refuse(f"config: time_step_limit is {given!r}, expected two numbers from 0 on")
            numbers = [0.0, math.inf]
        self.step_limits = numbers

    def taken(self, x: Value) -> Value:
        """What the first product of a mixer made, as it is used."""
        return x

    def mamba(self, x: Value, name: str, layer: int) -> Value:
        tokens, heads, own = x.shape[0], self.mamba_heads, self.mamba_groups * self.state_size
        made = self.taken(self.linear(x, f"{name}.in_proj", self.inner + self.channels + heads, self.mamba_bias))
        gate, mixed, steps = made.split([self.inner, self.channels, heads], -1)
        mixed = self.activation(self.convolved(mixed, f"{name}.conv1d", layer, self.has(f"{name}.conv1d.bias") if self.is_gguf else self.conv_bias))
        mixed, key, query = mixed.split([self.inner, own, own], -1)
        query, key = (one.view([tokens, self.mamba_groups, self.state_size]) for one in (query, key))
        steps = self.steps(steps, name, heads)
        low, high = self.step_limits
        steps = steps.maximum(self.number("least_step", low, np.float32)) if low > 0 else steps
        steps = steps.minimum(self.number("most_step", high, np.float32)) if high < math.inf else steps
        decay = self.decay(steps, name, heads)
        value = mixed.view([tokens, heads, self.mamba_head_size])
        result = self.scan(query, key, value * steps.unsqueeze(-1), decay, layer)
        result = (result + value * self.numbers(f"{name}.D", heads).view([heads, 1])).view([tokens, self.inner])
        return self.linear(self.gated_norm(result, gate, f"{name}.norm"), f"{name}.out_proj", self.hidden, self.out_bias)

    @property
    def out_bias(self) -> Optional[bool]:
        return self.mamba_bias

    def gated_norm(self, x: Value, gate: Value, name: str) -> Value:
        if not (self.has(f"{name}.weight") if self.is_gguf else self.mamba_normed):
            return x * gate.silu()
        if self.norm_first and not self.is_gguf:
            return self.norm_of_groups(x, self.mamba_groups, name) * gate.silu()
        return self.norm_of_groups(x * gate.silu(), self.mamba_groups, name)


class WithMamba1(WithScans):
    """Mixers of Mamba 1: each channel is a head with one value, and has a decay of its own for each
    element of its state. `setup_mamba1` reads the configuration."""

    #: What keys of the configuration are called.
    #: `inner`: what says how many channels there are, before `expand` does; Jamba has no such key.
    mamba1_keys = {"inner": "intermediate_size", "state_size": "state_size", "taps": "conv_kernel", "expand": "expand", "rank": "time_step_rank", "conv_bias": "use_conv_bias", "bias": "use_bias"}

    def setup_mamba1(self) -> None:
        config, keys = self.config, self.mamba1_keys
        expanded = max(int(config.number(keys["expand"], 2) * self.hidden), 1)
        self.inner = config.integer(keys["inner"], expanded) if "inner" in keys else expanded
        self.state_size = config.integer(keys["state_size"], 16, maximum=1 << 12)
        if config.get(keys["rank"], "auto") == "auto":
            config.values[keys["rank"]] = -(-self.hidden // 16)
        self.rank = config.integer(keys["rank"])
        self.conv_bias, self.mamba_bias = config.flag(keys["conv_bias"], True), config.flag(keys["bias"])
        self.setup_scans(self.inner, 1, self.state_size, self.inner, config.integer(keys["taps"], 4, maximum=64))

    def normed_part(self, x: Value, name: str) -> Value:
        """What makes steps, keys or queries, as it is used. `name`: dt, b or c."""
        return x

    def mamba1(self, x: Value, name: str, layer: int) -> Value:
        tokens, inner, size = x.shape[0], self.inner, self.state_size
        mixed, gate = self.linear(x, f"{name}.in_proj", 2 * inner, self.mamba_bias).split([inner, inner], -1)
        mixed = self.activation(self.convolved(mixed, f"{name}.conv1d", layer, self.conv_bias))
        parts = self.linear(mixed, f"{name}.x_proj", self.rank + 2 * size, False).split([self.rank, size, size], -1)
        steps, key, query = (self.normed_part(part, f"{name}.{letter}_layernorm") for part, letter in zip(parts, ("dt", "b", "c")))
        steps = self.linear(steps, f"{name}.dt_proj", inner, True).softplus().unsqueeze(-1)
        decay = (steps * self.rates(name, [inner, size])).exp()
        query, key = (one.view([tokens, 1, size]) for one in (query, key))
        made = self.scan(query, key, mixed.unsqueeze(-1) * steps, decay, layer).view([tokens, inner])
        made = (made + mixed * self.float(self.weight(f"{name}.D", [inner]))) * gate.silu()
        return self.linear(made, f"{name}.out_proj", self.hidden, self.mamba_bias)
