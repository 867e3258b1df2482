"""Weights of three values, as BitNet's folders and some Llamas have them: four in a byte, or
plain ones that become such; what products multiply by them is rounded to 8 bits."""

from __future__ import annotations

from typing import Any, Optional

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import Decoder

#: Weights of a byte, two bits each.
_IN_BYTE = 4
#: The least that a largest value, or a mean of weights, is taken as.
_LEAST = 1e-5


class WithThreeValues(Decoder):
    """A decoder whose products may have such weights (_quantized.py says of which families)."""

    def setup(self) -> None:
        super().setup()
        config = self.config
        given: Any = config.get("quantization_config")
        given = given if isinstance(given, dict) and given.get("quant_method") == "bitnet" else {}
        self.rounds = bool(given)
        for key, known in (("linear_class", ("bitlinear", "autobitlinear")), ("quantization_mode", ("offline", "online")), ("use_rms_norm", (False,))):
            if given.get(key, known[0]) not in known:
                config.refuse(f"config: quantization_config.{key} is {given[key]!r:.80}, which this family does not do")
        if (given.get("modules_to_not_convert") or ["lm_head"]) != ["lm_head"]:
            config.refuse(f"config: quantization_config.modules_to_not_convert is {given['modules_to_not_convert']!r:.80}; there is lm_head alone")
        self.divides = given.get("linear_class", "bitlinear") == "bitlinear"
        self.is_online = given.get("quantization_mode") == "online" and not self.divides

    def linear(self, x: Value, name: str, size: int, bias: Optional[bool] = None) -> Value:
        if not self.rounds:
            return super().linear(x, name, size, bias)
        inputs = int(x.shape[-1])
        made = self._rounded(x).linear(self._of_three_values(name, size, inputs))
        b = self.float(self.weight(f"{name}.bias", [size])) if self.has(f"{name}.bias") else None
        if b is not None and not self.divides:
            made = made + b
        if not self.is_online:
            scale = self.float(self.weight(f"{name}.weight_scale", [1]))
            made = made / scale if self.divides else made * scale
        if b is not None and self.divides:
            made = made + b
        return self.adapt(made, x, name)

    def _rounded(self, x: Value) -> Value:
        """To 8 bits, in steps of 1 / 127 of a token's largest value."""
        step = x.abs().amax(-1, True).clamp(_LEAST, None) * (1 / 127)
        return (x / step).round().clamp(-128, 127) * step

    def _of_three_values(self, name: str, size: int, inputs: int) -> Value:
        """The weights of a product, which are made when a program is."""
        found = self.checkpoint.tensors.get(self._key(f"{name}.weight"))
        f, kind = self.step.f, self.float_type or "bf16"
        if found is not None and found.dtype == "u8":
            rows = f.constant(self.weight(f"{name}.weight", [size // _IN_BYTE, inputs]))
            parts = [rows.bitwise_right_shift(2 * at).bitwise_and(3) for at in range(_IN_BYTE)]
            return (cat(parts, 0).to_copy("f32") - 1.0).to_copy(kind)
        weight = self.float(self.weight(f"{name}.weight", [size, inputs]))
        if not self.is_online:
            return weight.to_copy(kind)
        mean = weight.abs().mean().clamp(_LEAST, None)
        return ((weight / mean).round().clamp(-1, 1) * mean).to_copy(kind)
