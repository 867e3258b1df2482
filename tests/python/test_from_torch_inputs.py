"""Models of transformers whose inputs are not one text or one picture through accrt.from_torch:
boxes of words, sound, videos, text beside pictures, and what a decoder begins with. Tiny ones, of
configurations alone, with a batch that varies, beside torch in float64. Runs where torch and
transformers are: `./dev check models`."""

from __future__ import annotations

import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt.compiler import compile
from accrt.from_torch import convert

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

import torch_models as models  # noqa: E402

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
PICTURE = dict(image_size=32, patch_size=8)
PLACES = dict(vocab_size=64, max_position_embeddings=40)
HEADS = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48)
SOUND = dict(num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2)


def tokens(batch, length=8):
    return torch.randint(3, 60, (batch, length))


def picture(batch, size=32):
    return torch.randn(batch, 3, size, size)


def ones(batch, length=8):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return mask


def boxes(batch, length=8):
    corners = torch.randint(0, 20, (batch, length, 2))
    return torch.cat([corners, corners + torch.randint(0, 20, (batch, length, 2))], -1)


def detr():
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1] * 4, layer_type="basic", out_features=["stage4"])
    return dict(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32, num_queries=5, **HEADS)


def captions():
    vision = transformers.ViTModel(transformers.ViTConfig(**SMALL, **PICTURE))
    text = dict(vocab_size=64, d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=48, max_position_embeddings=32, cross_attention_hidden_size=32)
    writer = transformers.TrOCRForCausalLM(transformers.TrOCRConfig(**text, is_decoder=True, add_cross_attention=True, use_cache=False))
    return transformers.VisionEncoderDecoderModel(encoder=vision, decoder=writer)


def of(model, config, **given):
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**given))


#: By name: what makes the model, and its inputs of a batch.
MODELS = {
    "detr": (lambda: transformers.DetrForObjectDetection(transformers.DetrConfig(**detr())), lambda b: dict(pixel_values=picture(b, 64))),
    "yolos": (of("YolosForObjectDetection", "YolosConfig", **dict(SMALL, image_size=[32, 32], patch_size=8, num_detection_tokens=4)), lambda b: dict(pixel_values=picture(b))),
    "layoutlm": (of("LayoutLMForTokenClassification", "LayoutLMConfig", **SMALL, **PLACES, max_2d_position_embeddings=64),
                 lambda b: dict(input_ids=tokens(b), bbox=boxes(b), attention_mask=ones(b), token_type_ids=tokens(b) % 2)),
    "layoutlmv3": (of("LayoutLMv3ForTokenClassification", "LayoutLMv3Config", **SMALL, **PLACES, max_2d_position_embeddings=64, coordinate_size=4, shape_size=8,
                      input_size=32, patch_size=8, rel_pos_bins=8, max_rel_pos=16, rel_2d_pos_bins=8, max_rel_2d_pos=16),
                   lambda b: dict(input_ids=tokens(b), bbox=boxes(b), pixel_values=picture(b), attention_mask=ones(b))),
    "hubert": (of("HubertForCTC", "HubertConfig", **SMALL, **SOUND, conv_dim=(8, 8, 8), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3, vocab_size=20),
               lambda b: dict(input_values=torch.randn(b, 800))),
    "owlvit": (of("OwlViTForObjectDetection", "OwlViTConfig", text_config=dict(**SMALL, vocab_size=64, max_position_embeddings=16, bos_token_id=1, eos_token_id=2),
                  vision_config=dict(**SMALL, **PICTURE), projection_dim=32),
               lambda b: dict(input_ids=tokens(2 * b, 6), pixel_values=picture(b), attention_mask=ones(2 * b, 6))),
    "blip": (of("BlipForImageTextRetrieval", "BlipConfig", vision_config=dict(**SMALL, **PICTURE), image_text_hidden_size=16,
                text_config=dict(**SMALL, vocab_size=64, encoder_hidden_size=32, max_position_embeddings=16, bos_token_id=1, eos_token_id=2, pad_token_id=0, sep_token_id=2)),
             lambda b: dict(input_ids=tokens(b), pixel_values=picture(b), attention_mask=ones(b))),
    "videomae": (of("VideoMAEForVideoClassification", "VideoMAEConfig", **SMALL, image_size=16, patch_size=8, num_frames=4, tubelet_size=2),
                 lambda b: dict(pixel_values=torch.randn(b, 4, 3, 16, 16))),
    "trocr": (captions, lambda b: dict(pixel_values=picture(b), decoder_input_ids=tokens(b, 6))),
    "speecht5": (of("SpeechT5ForSpeechToText", "SpeechT5Config", **HEADS, **SOUND, vocab_size=64, hidden_size=32, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3),
                    num_feat_extract_layers=2, max_speech_positions=200, max_text_positions=50),
                 lambda b: dict(input_values=torch.randn(b, 400), decoder_input_ids=tokens(b, 6))),
    "perceiver": (of("PerceiverForSequenceClassification", "PerceiverConfig", num_latents=8, d_latents=32, d_model=24, num_blocks=1, num_self_attends_per_block=2,
                     num_self_attention_heads=4, num_cross_attention_heads=4, vocab_size=64, max_position_embeddings=8),
                  lambda b: dict(inputs=tokens(b), attention_mask=ones(b))),
}  # fmt: skip


@pytest.mark.rotating(3)
@pytest.mark.parametrize("name", rotation.part(list(MODELS), 3, "models with inputs of their own"))
def test_model(name, instance):
    make, inputs = MODELS[name]
    torch.manual_seed(rotation.seed() & 0x7FFFFFFF)
    model = make().eval().requires_grad_(False)
    batch = torch.export.Dim("batch", max=16)
    given = inputs(2)
    shapes = {key: {0: 2 * batch if len(value) == 4 else batch} for key, value in given.items()}
    module = convert(model, given, dynamic_shapes=shapes)
    assert not module.functions["forward"].required  # a batch of 1 is allowed
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    for size in (2, 1, 3):
        models.compare(session, model, inputs(size))
