"""Small models of 36 families from their configurations alone, with random weights and example
inputs: what tests export.

MODELS[name]() gives (model, inputs by name). Sequences are inputs of integers of two dimensions; a
decoder's own have a length of their own. STATIC says which torch cannot export with sizes that
vary, and why.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Tuple

import numpy as np
import torch
import transformers as hf

VOCABULARY = 99
STATIC = {"mamba": "its scan is a Python loop over the sequence"}

BASE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=VOCABULARY, max_position_embeddings=64)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
PAIR = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
            decoder_ffn_dim=64, vocab_size=VOCABULARY)  # fmt: skip

Made = Tuple[Any, Dict[str, Any]]
MODELS: Dict[str, Callable[[], Made]] = {}


def ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _made(model: str, config: str, inputs: Callable[[], Dict[str, Any]], **given: Any) -> Callable[[], Made]:
    def make() -> Made:
        hf.logging.set_verbosity_error()
        warnings.filterwarnings("ignore")
        torch.manual_seed(0)
        return getattr(hf, model)(getattr(hf, config)(**given)).eval(), inputs()

    make.model = model  # type: ignore[attr-defined]
    return make


def masked() -> Dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return dict(input_ids=ids(), attention_mask=mask)


def plain() -> Dict[str, Any]:
    return dict(input_ids=ids(), use_cache=False)


def image() -> Dict[str, Any]:
    return dict(pixel_values=torch.randn(2, 3, 32, 32))


def pair() -> Dict[str, Any]:
    return dict(input_ids=ids(), decoder_input_ids=ids(2, 7), use_cache=False)


def _encoder(model: str, config: str, **more: Any) -> Callable[[], Made]:
    return _made(model, config, masked, **{**BASE, **more})


def _decoder(model: str, config: str, **more: Any) -> Callable[[], Made]:
    return _made(model, config, plain, **{**BASE, **TOKENS, **more})


_SPEECH = dict(max_source_positions=20, max_target_positions=30, num_mel_bins=8, decoder_start_token_id=1, **TOKENS)
MODELS.update(
    bert=_encoder("BertModel", "BertConfig"),
    roberta=_encoder("RobertaForSequenceClassification", "RobertaConfig", **TOKENS),
    distilbert=_made("DistilBertForSequenceClassification", "DistilBertConfig", masked, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                     vocab_size=VOCABULARY, max_position_embeddings=64),
    electra=_encoder("ElectraModel", "ElectraConfig", embedding_size=32),
    albert=_encoder("AlbertModel", "AlbertConfig", embedding_size=16),
    mpnet=_encoder("MPNetModel", "MPNetConfig"),
    deberta=_encoder("DebertaV2Model", "DebertaV2Config", type_vocab_size=0, relative_attention=True, position_biased_input=False,
                     pos_att_type=["p2c", "c2p"]),
    modernbert=_encoder("ModernBertModel", "ModernBertConfig", cls_token_id=1, sep_token_id=2, **TOKENS),
    gpt2=_made("GPT2LMHeadModel", "GPT2Config", plain, n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, **TOKENS),
    opt=_decoder("OPTForCausalLM", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
    gptneox=_decoder("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    llama=_decoder("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
    mistral=_decoder("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=8),
    qwen2=_decoder("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    qwen3=_decoder("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
    gemma=_decoder("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=8),
    gemma2=_decoder("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8),
    phi=_decoder("PhiForCausalLM", "PhiConfig"),
    phi3=_decoder("Phi3ForCausalLM", "Phi3Config", num_key_value_heads=2),
    falcon=_decoder("FalconForCausalLM", "FalconConfig"),
    bloom=_made("BloomForCausalLM", "BloomConfig", plain, hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, **TOKENS),
    stablelm=_decoder("StableLmForCausalLM", "StableLmConfig", num_key_value_heads=2),
    mixtral=_decoder("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4),
    olmo=_decoder("OlmoForCausalLM", "OlmoConfig", num_key_value_heads=2),
    mamba=_made("MambaForCausalLM", "MambaConfig", plain, hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY, state_size=4, **TOKENS),
    vit=_made("ViTForImageClassification", "ViTConfig", image, **IMAGE),
    deit=_made("DeiTModel", "DeiTConfig", image, **IMAGE),
    swin=_made("SwinModel", "SwinConfig", image, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=2, image_size=32, patch_size=4),
    resnet=_made("ResNetForImageClassification", "ResNetConfig", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    convnext=_made("ConvNextModel", "ConvNextConfig", image, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    clip=_made("CLIPModel", "CLIPConfig", lambda: {**masked(), **image()}, text_config={**BASE, **TOKENS}, vision_config=IMAGE),
    t5=_made("T5ForConditionalGeneration", "T5Config", pair, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY,
             decoder_start_token_id=0),
    bart=_made("BartModel", "BartConfig", pair, max_position_embeddings=64, **PAIR, **TOKENS),
    whisper=_made("WhisperModel", "WhisperConfig",
                  lambda: dict(input_features=torch.randn(2, 8, 40), decoder_input_ids=ids(2, 7), use_cache=False), **PAIR, **_SPEECH),
    whisper_encoder=_made("WhisperModel", "WhisperConfig", lambda: dict(input_features=torch.randn(2, 8, 40)), **PAIR, **_SPEECH),
    wav2vec2=_made("Wav2Vec2Model", "Wav2Vec2Config", lambda: dict(input_values=torch.randn(2, 400)), conv_dim=(8, 8), conv_stride=(4, 2),
                   conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
                   **{k: v for k, v in BASE.items() if k != "max_position_embeddings"}),
)  # fmt: skip
_whisper = MODELS["whisper_encoder"]
MODELS["whisper_encoder"] = lambda: (lambda made: (made[0].encoder, made[1]))(_whisper())


def for_onnx(name: str, model: Any) -> None:
    """Switches of a model that torch's exporter to ONNX needs, where it fails on what the model has
    by default."""
    if name in ("mixtral", "swin", "t5"):
        model.set_attn_implementation("eager")
    if name == "mixtral":
        model.set_experts_implementation("batched_mm")


def dynamic_shapes(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Batch and sequence vary."""
    batch, tokens, more = (torch.export.Dim(n, max=m) for n, m in (("batch", 8), ("tokens", 60), ("more", 60)))

    def dims(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        return {0: batch, 1: more if name.startswith("decoder") else tokens} if is_sequence(value) else {0: batch}

    return {name: dims(name, value) for name, value in inputs.items()}


def is_sequence(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype == torch.long


def resized(inputs: Dict[str, Any], batch: int, length: int) -> Dict[str, Any]:
    """Other inputs, which the export never saw."""

    def one(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not is_sequence(value):
            return torch.randn(batch, *value.shape[1:])
        if "mask" not in name:
            return ids(batch, length)
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length - length // 3 :] = 0
        return mask

    return {name: one(name, value) for name, value in inputs.items()}


#: Families that write: their inputs' last sequence grows by a token at each step.
DECODERS = [name for name, make in MODELS.items() if name not in STATIC and hasattr(make, "model") and any(w in make.model for w in ("CausalLM", "LMHead", "T5For"))]


def scaled(model: Any, factor: float) -> Any:
    """The model with larger matrices: those of a configuration alone are so small that a model
    repeats its last token, which its tied embeddings like best. Embeddings stay."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "emb" not in name and "wte" not in name and "shared" not in name:
                parameter.mul_(factor)
    return model


def greedy(model: Any, inputs: Dict[str, Any], name: str, steps: int) -> Tuple[list, float]:
    """The tokens that torch chooses in float64, and the least distance between the best two."""
    inputs, tokens, apart = dict(inputs), [], float("inf")
    with torch.no_grad():
        for _ in range(steps):
            best = model(**inputs).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            apart = min(apart, float(best.values[0] - best.values[1]))
            inputs[name] = torch.cat([inputs[name], best.indices[:1].unsqueeze(0)], 1)
    return tokens, apart


#: What roundings to a type of 16 bits may add up to in two layers, in units of its precision. Some
#: 40 follow one another, each half a unit or less: 20 would be all of them in one direction.
ROUNDINGS = 16
#: Families of text whose error in both types has been measured: 0.6 to 8.9 units. Torch cannot
#: export BART in f16, whose code branches on its content.
SIXTEEN_BITS = [name for name in MODELS if name in set(
    "bert roberta distilbert electra albert mpnet deberta modernbert gpt2 opt gptneox llama mistral qwen2 qwen3 gemma gemma2 phi phi3 falcon bloom".split())]
PRECISION = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def in_type(model: Any, inputs: Dict[str, Any], kind: torch.dtype) -> Made:
    """The model and its inputs with floats of that type."""
    return model.to(kind), {n: v.to(kind) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in inputs.items()}


def compare(session: Any, model: Any, inputs: Dict[str, Any], within: float = 1e-4) -> None:
    """Every element of every result of `session.forward` beside the model's in float64: within 1e-4
    of its size and of the result's root mean square together."""
    out = session.forward(**{name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)})
    compare_results([torch.from_dlpack(o).double() for o in (out if isinstance(out, (tuple, list)) else [out])], model, inputs, within)


def compare_results(out: Any, model: Any, inputs: Dict[str, Any], within: float = 1e-4) -> None:
    """The same of results that are there: arrays, or what a model of torch gives."""
    leaves, kind = torch.utils._pytree.tree_leaves, next(model.parameters()).dtype
    ours = [np.asarray(o, dtype=np.float64) for o in leaves(out) if hasattr(o, "__array__")]
    with torch.no_grad():
        given = {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in inputs.items()}
        theirs = [leaf for leaf in leaves(model.double()(**given)) if isinstance(leaf, torch.Tensor)]
    model.to(kind)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        b = b.numpy().astype(np.float64)
        assert a.shape == b.shape
        rms = np.sqrt((b**2).mean())
        assert (np.abs(a - b) <= within * (np.abs(b) + rms)).all(), (np.abs(a - b) / (np.abs(b) + rms)).max()
