"""The families: every file of this folder that has no underscore before its name. Their classes say
what they read."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Dict, Sequence, Tuple, Type

from .._library import close
from . import _parts
from ._blocks import Decoder
from ._checkpoint import Checkpoint
from ._config import Refused
from ._options import Options


_SCANS = "its layers have a recurrence that no family here has; models with Mamba, gated delta nets or lightning attention are served"
_NOT_APART = "its part for text is not read apart"
_FOLDER = "it is computed by code that its folder brings, which is not run here"
_IMAGES = "it reads images and writes no text. accrt.from_torch makes a bundle of it"
_SOUND = "it is of sound and writes no text as a language model does. accrt.from_torch makes a bundle of modules"
_TWO = "it reads a text as a whole and is no decoder alone"
#: What stands against models that people have, by their model_type.
UNSERVED: Dict[str, str] = {
    **dict.fromkeys(("zamba", "recurrent_gemma", "rwkv", "xlstm"), _SCANS),
    "bailing_hybrid": "its layers have lightning attention or Kimi's delta attention among attention with latents, and no family here has these together",
    "bailing_moe_linear": "its lightning attention has rotary embeddings, which no family here has; MiniMax Text 01 and M1 are served",
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), f"{_NOT_APART}; GLM-4 and GLM-4.5 are served"),
    "hunyuan": f"{_FOLDER}; newer folders of the same models are of the type hunyuan_v1_moe or hunyuan_v1_dense, and served",
    "mimo_v2_flash": "its layers with windows have other numbers of key heads than those without, and keys are larger than values, which no family here has together",
    "deepseek_v4": "its attention chooses among the keys by an index, which no kernel of paged attention does; DeepSeek V3.2 is served up to the length at which it chooses all",
    **dict.fromkeys(("baichuan", "telechat", "telechat2", "minicpm", "phi3small", "xverse", "orion", "aquila", "deepseek", "grok-1", "skywork"), _FOLDER),
    "chatglm": f"{_FOLDER}; models whose names end in -hf are of the type glm or glm4, and served",
    "internlm": f"{_FOLDER}; InternLM 3 is served", "internlm2": f"{_FOLDER}; InternLM 3 is served", "qwen": f"{_FOLDER}; Qwen 1.5 and later are served",
    **dict.fromkeys(("t5", "mt5", "umt5", "bigbird_pegasus", "blenderbot", "blenderbot-small", "mvp", "plbart", "prophetnet", "t5gemma2", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper", "t5gemma"), f"{_TWO}: it is an encoder and a decoder"),
    **dict.fromkeys(("vit", "clip", "siglip", "siglip2", "dinov2", "dinov3_vit", "detr", "sam", "deit", "beit", "swin", "convnext", "resnet", "segformer", "yolos", "timm_wrapper", "trocr"), _IMAGES),
    **dict.fromkeys(("wav2vec2", "hubert", "speecht5", "bark", "musicgen", "musicgen_melody", "vits", "seamless_m4t", "encodec", "moshi"), _SOUND),
    **dict.fromkeys(("aria", "blip", "blip-2", "chameleon", "ernie4_5_vl_moe", "florence2", "fuyu", "git", "glm_ocr", "got_ocr2", "hunyuan_vl", "idefics", "instructblip", "kosmos-2", "minicpmv", "minicpmo",
                     "minimax_m3_vl", "molmo", "molmo2", "paddleocr_vl", "step3p7"), _NOT_APART),
    "paligemma": "its texts begin with a part whose tokens see one another, which no family here has; Gemma is served",
    **dict.fromkeys(("bert-generation", "big_bird", "camembert", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm", "roformer", "xlm", "xlm-roberta-xl", "xlnet", "bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2", "electra", "mpnet", "modernbert", "albert", "nomic_bert"),
                    f"{_TWO}: it is an encoder. accrt.from_torch makes a bundle of it"),
}  # fmt: skip


def families() -> Tuple[Type[Decoder], ...]:
    package = __name__.rpartition(".")[0]
    found: Dict[str, Type[Decoder]] = {}
    for info in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{package}.{info.name}")
            for item in vars(module).values():
                if isinstance(item, type) and issubclass(item, Decoder) and item.__module__ == module.__name__ and item.types:
                    found[item.__name__] = item
    return tuple(found.values())


def by_type(name: str) -> Type[Decoder]:
    """The family of a model_type. KeyError: there is none."""
    return {type_: family for family in families() for type_ in family.types}[name]


def by_architecture(name: str, has: Sequence[str] = ()) -> Type[Decoder]:
    """The family of a GGUF file's architecture. Files of some architectures may have experts, or
    windows, which makes them another family's. KeyError: there is none."""
    known = {type_: family for family in families() for type_ in family.architectures}
    return known[next((f"{name} with {part}" for part in has if f"{name} with {part}" in known), name)]


def decoder(checkpoint: Checkpoint, options: Options = Options()) -> Decoder:
    """The family's decoder for a checkpoint. Raises Refused."""
    name = checkpoint.config.get("model_type")
    if _parts.is_of_parts(checkpoint.config):
        checkpoint = _parts.text_alone(checkpoint)
        name = checkpoint.config["model_type"]
    if isinstance(name, str) and name in UNSERVED:
        raise Refused(checkpoint.path, [f"config: model_type is {name!r}: {UNSERVED[name]}"])
    try:
        family = by_type(str(name))
    except KeyError:
        known = sorted([type_ for family in families() for type_ in family.types] + list(_parts.OF_PARTS))
        own = f" ({_FOLDER})" if checkpoint.config.get("auto_map") else ""
        if name is None:
            raise Refused(checkpoint.path, ["config: there is no model_type: config.json is not that of a model, or of another form"]) from None
        near = close(name.lower().removesuffix("forcausallm"), known) if isinstance(name, str) else []
        own += f" (is it {near[0]!r}?)" if near and not own else ""
        raise Refused(checkpoint.path, [f"config: model_type is {name!r}{own}, none of the {len(known)} types that are served: docs/models.md lists them, and how another family is one short file"]) from None
    return family(checkpoint, options)
