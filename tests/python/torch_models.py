"""Small models of 38 families, and of others, from their configurations alone, with random weights
and example inputs: what tests export.

MODELS[name]() gives (model, inputs by name). Sequences are inputs of integers of two dimensions; a
decoder's own have a length of their own. FIXED says which dimension beside the batch cannot vary,
and why.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Callable, Dict, Tuple

import numpy as np
import torch
import transformers as hf

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench", "gpu"))
import torch_nets  # noqa: E402

VOCABULARY = 99
#: The batch varies in every model, and so do sequences, pictures of convolutions alone, and sound.
FIXED = {
    "mamba": "the sequence: its scan is a Python loop over it", "whisper": "the sound: the model takes one length", "whisper_encoder": "the sound: the model takes one length",
    "vit": "the picture: positions are learned", "deit": "the picture: positions are learned", "clip": "the picture: positions are learned",
    "dit": "the picture: positions are a table", "swin": "the picture: torch's export does not hold for other sizes",
}  # fmt: skip

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

    make.model, make.inputs = model, inputs  # type: ignore[attr-defined]
    return make


def masked() -> Dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return dict(input_ids=ids(), attention_mask=mask)


def plain() -> Dict[str, Any]:
    return dict(input_ids=ids(), use_cache=False)


def image() -> Dict[str, Any]:
    return dict(pixel_values=torch.randn(2, 3, 32, 32))


def noise(**condition: Any) -> Callable[[], Dict[str, Any]]:
    return lambda: dict(latents=torch.randn(2, 4, 8, 8), time=torch.tensor([501.0, 20.0]), **{name: make() for name, make in condition.items()})


def _plain_torch(make: Callable[[], Any], inputs: Callable[[], Dict[str, Any]]) -> Callable[[], Made]:
    def made() -> Made:
        torch.manual_seed(0)
        return make().eval(), inputs()

    made.inputs = inputs  # type: ignore[attr-defined]
    return made


def pair() -> Dict[str, Any]:
    return dict(input_ids=ids(), decoder_input_ids=ids(2, 7), use_cache=False)


def _encoder(model: str, config: str, **more: Any) -> Callable[[], Made]:
    return _made(model, config, masked, **{**BASE, **more})


def _decoder(model: str, config: str, **more: Any) -> Callable[[], Made]:
    return _made(model, config, plain, **{**BASE, **TOKENS, **more})


_SPEECH = dict(max_source_positions=20, max_target_positions=64, num_mel_bins=8, decoder_start_token_id=1, **TOKENS)
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
    bart=_made("BartForConditionalGeneration", "BartConfig", pair, max_position_embeddings=64, **PAIR, **TOKENS),
    whisper=_made("WhisperForConditionalGeneration", "WhisperConfig",
                  lambda: dict(input_features=torch.randn(2, 8, 40), decoder_input_ids=ids(2, 7), use_cache=False), **PAIR, **_SPEECH),
    whisper_encoder=_made("WhisperModel", "WhisperConfig", lambda: dict(input_features=torch.randn(2, 8, 40)), **PAIR, **_SPEECH),
    wav2vec2=_made("Wav2Vec2Model", "Wav2Vec2Config", lambda: dict(input_values=torch.randn(2, 400)), conv_dim=(8, 8), conv_stride=(4, 2),
                   conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
                   **{k: v for k, v in BASE.items() if k != "max_position_embeddings"}),
    unet=_plain_torch(lambda: torch_nets.UNet((32, 64), context=16, heads=2, layers=1), noise(text=lambda: torch.randn(2, 5, 16))),
    dit=_plain_torch(lambda: torch_nets.DiT(side=8, width=32, heads=4, layers=2, labels=11), noise(label=lambda: torch.tensor([7, 10]))),
)  # fmt: skip
_whisper = MODELS["whisper_encoder"]


def _whisper_encoder() -> Made:
    model, inputs = _whisper()
    return model.encoder, inputs


_whisper_encoder.inputs = _whisper.inputs  # type: ignore[attr-defined]
MODELS["whisper_encoder"] = _whisper_encoder


class Recurrent(torch.nn.Module):
    """Layers over time, which torch writes out, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(32, 5)
        self.lstm = torch.nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(32, 32, batch_first=True)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(self.words(input_ids))[0])[0])


_N = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, **TOKENS)
#: Families that from_torch alone is tried with: those that strangers brought.
OTHERS: Dict[str, Callable[[], Made]] = dict(
    biogpt=_decoder("BioGptForCausalLM", "BioGptConfig"),
    ctrl=_made("CTRLLMHeadModel", "CTRLConfig", plain, dff=64, **_N),
    openai_gpt=_made("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", lambda: dict(input_ids=ids()), **_N),
    gpt_bigcode=_made("GPTBigCodeForCausalLM", "GPTBigCodeConfig", plain, **_N),
    convbert=_encoder("ConvBertModel", "ConvBertConfig", embedding_size=32),
    siglip=_made("SiglipVisionModel", "SiglipVisionConfig", image, **IMAGE),
    dinov2=_made("Dinov2Model", "Dinov2Config", image, mlp_ratio=2, **{k: v for k, v in IMAGE.items() if k != "intermediate_size"}),
    convnextv2=_made("ConvNextV2Model", "ConvNextV2Config", image, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    segformer=_made("SegformerForSemanticSegmentation", "SegformerConfig", image, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2,
                    num_attention_heads=[1, 2], sr_ratios=[4, 1], patch_sizes=[3, 3], strides=[2, 2], mlp_ratios=[2, 2], decoder_hidden_size=16),
    prophetnet=_made("ProphetNetModel", "ProphetNetConfig", pair, hidden_size=32, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
                     num_decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=VOCABULARY, max_position_embeddings=64, **TOKENS),
    recurrent=_plain_torch(Recurrent, lambda: dict(input_ids=ids(2, 7))),
)  # fmt: skip
FIXED.update(
    prophetnet="the sequences: torch's export fixes the decoder's",
    recurrent="the sequence: torch writes out its layers", siglip="the picture: positions are learned", dinov2="the picture: the example's size alone is tried",
)


def for_onnx(name: str, model: Any) -> None:
    """Switches of a model that torch's exporter to ONNX needs, where it fails on what the model has
    by default."""
    if name in ("mixtral", "swin", "t5"):
        model.set_attn_implementation("eager")
    if name == "mixtral":
        model.set_experts_implementation("batched_mm")


#: Whose sequences have one length: FIXED says why.
ONE_LENGTH = ("mamba", "prophetnet", "recurrent")
#: What varies beside the batch and the sequences: (name of the size, its multiple) by input and
#: dimension.
_PICTURE = {"pixel_values": {2: ("high", 1), 3: ("wide", 1)}}
MORE = {
    "resnet": _PICTURE, "convnext": _PICTURE, "segformer": _PICTURE, "convnextv2": _PICTURE, "wav2vec2": {"input_values": {1: ("samples", 1)}},
    "unet": {"latents": {2: ("rows", 2), 3: ("columns", 2)}, "text": {1: ("words", 1)}},
}  # fmt: skip
#: The least that torch's export asks for.
LEAST = {"high": 16, "wide": 16, "samples": 32, "rows": 1, "columns": 1, "words": 1}


#: ONNX has no ranges, and the lengths of sound that the convolutions leave are divided.
ONNX_SIZES = {"wav2vec2": {"samples": (32, 2000)}}
#: ONNX has no dimensions that are multiples, so that an odd picture would not fit itself: only the
#: batch varies.
ONNX_FIXED = ("unet",)


def dynamic_shapes(inputs: Dict[str, Any], model: str = "") -> Dict[str, Any]:
    """Batch and sequence vary, and what MORE says of the model."""
    batch, tokens, more = (torch.export.Dim(n, max=m) for n, m in (("batch", 8), ("tokens", 60), ("more", 60)))
    others = {name: torch.export.Dim(name, min=least, max=2000) for name, least in LEAST.items()}

    def dims(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if is_sequence(value) and model not in ONE_LENGTH:
            return {0: batch, 1: more if name.startswith("decoder") else tokens}
        sizes = MORE.get(model, {}).get(name, {})
        return {0: batch, **{d: others[size] if times == 1 else times * others[size] for d, (size, times) in sizes.items()}}

    return {name: dims(name, value) for name, value in inputs.items()}


def is_sequence(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype == torch.long


def resized(inputs: Dict[str, Any], batch: int, length: int, model: str = "") -> Dict[str, Any]:
    """Other inputs, which the export never saw."""
    sizes = {"high": 16 + length, "wide": 16 + 2 * length, "samples": 300 + 11 * length, "rows": length // 2 + 1, "columns": 3, "words": length}

    def one(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype == torch.long and value.dim() == 1:
            return torch.randint(0, 10, (batch,))
        if not is_sequence(value):
            shape = [batch, *value.shape[1:]]
            for d, (size, times) in MORE.get(model, {}).get(name, {}).items():
                shape[d] = times * sizes[size]
            return 500 * torch.rand(shape) if name == "time" else torch.randn(shape)
        tokens = value.shape[1] if model in ONE_LENGTH else length
        if "mask" not in name:
            return ids(batch, tokens)
        mask = torch.ones(batch, tokens, dtype=torch.long)
        mask[0, tokens - tokens // 3 :] = 0
        return mask

    return {name: one(name, value) for name, value in inputs.items()}


#: Families that write: their inputs' last sequence grows by a token at each step.
DECODERS = [name for name, make in MODELS.items() if any(w in getattr(make, "model", "") for w in ("CausalLM", "LMHead", "ForConditional"))]


def table() -> str:
    """What varies in which models, as docs/from-torch.md has it."""
    rows: Dict[Tuple[str, str, str], list] = {}
    for name, make in {**MODELS, **OTHERS}.items():
        shapes = dynamic_shapes(make.inputs(), name)  # type: ignore[attr-defined]
        sizes = {getattr(dim, "root", dim).__name__ for dims in shapes.values() if dims for dim in dims.values()}
        order = [*NAMED, *sorted(sizes - set(NAMED))]
        varies = ", ".join(NAMED[size] for size in order if size in sizes)
        rows.setdefault((varies, FIXED.get(name, ""), "yes" if name in DECODERS else ""), []).append(name)
    head = "| models | what varies | what is fixed, and why | 32 tokens |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items())])


#: Words for sizes.
NAMED = {
    "batch": "batch", "tokens": "tokens", "more": "the decoder's tokens", "high": "height", "rows": "height", "wide": "width", "columns": "width",
    "samples": "samples of sound", "words": "the text's tokens",
}  # fmt: skip


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
        # ProphetNet multiplies a mask of the default type by the least number of the model's type,
        # which only a mask of float64 has: of float32 all would be NaN.
        torch.set_default_dtype(torch.float64)
        try:
            theirs = [leaf for leaf in leaves(model.double()(**given)) if isinstance(leaf, torch.Tensor)]
        finally:
            torch.set_default_dtype(torch.float32)
    model.to(kind)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        b = b.numpy().astype(np.float64)
        assert a.shape == b.shape
        rms = np.sqrt((b**2).mean())
        assert (np.abs(a - b) <= within * (np.abs(b) + rms)).all(), (np.abs(a - b) / (np.abs(b) + rms)).max()


if __name__ == "__main__":
    print(table())
