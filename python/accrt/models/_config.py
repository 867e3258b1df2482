"""What a model's configuration asks for, read so that nothing it asks for is passed over: what is
wrong, what no family can do and what this family does not do are gathered, and refused together."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Union

#: Keys that change what a model computes, with the values that do not. A key that is set and that
#: its family has not read is refused.
MEANINGFUL: Dict[str, Sequence[Any]] = {
    "add_cross_attention": (False,), "alibi": (False,), "attention_bias": (False,), "attention_chunk_size": (), "attention_multiplier": (),
    "attention_out_bias": (False,), "attention_sinks": (False,), "attn_logit_softcapping": (), "clip_qkv": (), "dim_model_base": (), "do_layer_norm_before": (True,), "embedding_multiplier": (1,),
    "final_logit_softcapping": (), "first_k_dense_replace": (0,), "head_dim": (), "is_encoder_decoder": (False,), "kv_lora_rank": (0,), "layer_types": (),
    "lm_head_bias": (False,), "logit_scale": (1,), "logits_scaling": (1,), "mlp_bias": (False,), "n_routed_experts": (0,), "no_rope_layers": ([],),
    "num_experts": (0, 1), "num_kv_shared_layers": (0,), "num_local_experts": (0, 1), "num_nextn_predict_layers": (0,), "partial_rotary_factor": (1,),
    "parallel_attn": (False,), "q_lora_rank": (), "qk_layernorm": (False,), "query_pre_attn_scalar": (), "residual_multiplier": (1,), "rope_parameters": ({},),
    "rope_scaling": ({},), "rope_local_base_freq": (), "rotary_dim": (), "rotary_emb_base": (10000,), "rotary_pct": (1,), "scale_attn_by_inverse_layer_idx": (False,), "routed_scaling_factor": (1,), "scale_depth": (), "scale_emb": (1,), "scale_embedding": (False,),
    "shared_expert_intermediate_size": (0,), "sliding_window": (0,), "sliding_window_pattern": (), "use_bidirectional_attention": (False,), "use_parallel_residual": (False,), "use_qk_norm": (False,),
    "use_sliding_window": (False,), "vision_config": (),
}  # fmt: skip


#: No size of a model is larger.
MOST = (1 << 31) - 1
_SHOWN = 200
#: Letters of a point that are shown of its beginning, and of its end.
_BEGIN, _END = 500, 200


def parsed(content: Union[str, bytes]) -> Any:
    """JSON of a file. ValueError: it is none, or its lists and objects are nested
    deeper than Python reads."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def part_of(turned: int, size: int) -> float:
    """The partial_rotary_factor by which so many elements of a head are turned: where the quotient
    is rounded down, the product with the size would be one element less."""
    return (turned + 0.5) / size if turned < size else turned / size


def shown(point: str) -> str:
    """A point as a line for a terminal: names and values of a file may be of any length, and have
    any letters in them."""
    if len(point) > _BEGIN + _END + 5:
        point = f"{point[:_BEGIN]} ... {point[-_END:]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in point)


class Refused(ValueError):
    """A model that cannot be made into a bundle: `points` says everything that stands against it,
    one line each. The message has the first 200."""

    def __init__(self, what: str, points: Sequence[str]):
        self.what, self.points = what, tuple(map(shown, points))
        super().__init__(f"{what}: {self.points[0]}" if len(points) == 1 else f"{what} is refused:" + "".join(f"\n  - {point}" for point in self._lines()))

    def _lines(self) -> List[str]:
        """The points that are shown."""
        more = len(self.points) - _SHOWN
        return [*self.points[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


class Config:
    """The keys of config.json, read by name and type."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = dict(values)
        self.points: List[str] = []
        self._read: Set[str] = set()
        self._refused: Set[str] = set()

    def refuse(self, point: str) -> None:
        if point not in self._refused:
            self._refused.add(point)
            self.points.append(point)

    def get(self, name: str, default: Any = None) -> Any:
        """A value as it is; None in the file is as good as nothing there."""
        self._read.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: Any = None, minimum: int = 1, maximum: int = MOST) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.refuse(f"config: {name} is {value!r}, expected an integer from {minimum} to {maximum}")
            return minimum
        return value

    def number(self, name: str, default: Any = None, minimum: float = 0.0) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value < 1e30:
            self.refuse(f"config: {name} is {value!r}, expected a number from {minimum:g} on")
            return 1.0
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.refuse(f"config: {name} is {value!r}, expected true or false")
        return bool(value)

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in known:
            self.refuse(f"config: {name} is {value!r}; there are {', '.join(known)}")
            return default
        return value

    def changed(self, **values: Any) -> "Config":
        """The same with other values. What is read and refused of it is read and refused of this
        one."""
        made = Config({**self.values, **values})
        made.points, made._refused, made._read = self.points, self._refused, self._read
        return made

    def check_unread(self) -> None:
        """Refuses what would change the results and was not looked at."""
        for name, neutral in MEANINGFUL.items():
            value = self.values.get(name)
            if value is not None and name not in self._read and value not in neutral:
                self.refuse(f"config: {name} is {value!r}, which this family does not do")
