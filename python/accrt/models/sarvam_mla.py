"""Sarvam 105B: DeepSeek V3 whose queries need not be made of latents, with experts in one group."""

from __future__ import annotations

from .deepseek_v3 import DeepseekV3


class SarvamMla(DeepseekV3):
    types, architectures = ("sarvam_mla",), ()
    defaults = {**DeepseekV3.defaults, "q_lora_rank": 0, "n_routed_experts": 128, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    #: As the models' own code calls them.
    keys = {"n_routed_experts": ("num_experts", "num_local_experts"), "n_shared_experts": ("num_shared_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)}

    def setup_rope(self) -> None:
        """The models' own code has a name for YaRN."""
        given = self.config.get("rope_scaling")
        if isinstance(given, dict) and "deepseek_yarn" in (given.get("type"), given.get("rope_type")):
            self.config.values["rope_scaling"] = {**{key: value for key, value in given.items() if key != "type"}, "rope_type": "yarn"}
        super().setup_rope()
