"""Bundles of four torch models, for the C programs of this folder (docs/torch-to-c.md).

    python examples/torch/export.py FOLDER [NAME...] [--target host]

Weights are random, from a seed: nothing is fetched. Needs torch, and transformers for the first
two.
"""

from __future__ import annotations

import argparse
import pathlib
import warnings

import torch

import accrt
from accrt.from_torch import Method

Dim = torch.export.Dim


# ---- A classifier of transformers ----


class Probabilities(torch.nn.Module):
    """What the C program calls has tensors alone: inputs by name, the logits as the one result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def classifier():
    import transformers

    config = transformers.DistilBertConfig(vocab_size=1000, dim=64, n_layers=2, n_heads=4, hidden_dim=128, num_labels=3, initializer_range=0.2)
    model = Probabilities(transformers.DistilBertForSequenceClassification(config)).eval()
    example = dict(input_ids=torch.ones(2, 12, dtype=torch.long), attention_mask=torch.ones(2, 12, dtype=torch.long))
    sizes = {0: Dim("texts", max=32), 1: Dim("tokens", max=128)}
    return {"forward": Method(model, kwargs=example, dynamic_shapes={name: sizes for name in example})}


# ---- Speech: two functions that share weights ----


class Encode(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, sound):
        return self.model.model.encoder(sound).last_hidden_state


class Decode(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, heard):
        hidden = self.model.model.decoder(input_ids=tokens, encoder_hidden_states=heard, use_cache=False).last_hidden_state
        return self.model.proj_out(hidden[:, -1])


def speech():
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=300, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=50, max_target_positions=32, init_std=0.3, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    tokens = {1: Dim("tokens", max=32)}
    return {
        "encode": Method(Encode(model).eval(), (torch.zeros(1, 16, 100),)),
        "decode": Method(Decode(model).eval(), (torch.ones(1, 4, dtype=torch.long), torch.zeros(1, 50, 64)), dynamic_shapes=(tokens, None)),
    }


# ---- A diffusion transformer ----


class Block(torch.nn.Module):
    """Attention and a mlp; scales, shifts and gates come from the time and the label."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(4 * width, width))
        self.condition = torch.nn.Linear(width, 6 * width)

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.condition(torch.nn.functional.silu(c)).unsqueeze(1).chunk(6, -1)
        h = torch.nn.functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate * self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = torch.nn.functional.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2
        return x + gate2 * self.mlp(h)


class DiffusionTransformer(torch.nn.Module):
    def __init__(self, channels=4, side=16, patch=2, width=64, heads=4, layers=2, labels=10):
        super().__init__()
        self.patch, self.side, self.channels = patch, side, channels
        self.into = torch.nn.Conv2d(channels, width, patch, patch)
        self.places = torch.nn.Parameter(torch.randn(1, (side // patch) ** 2, width) * 0.1)
        self.time = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.label = torch.nn.Embedding(labels, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.back = torch.nn.Linear(width, patch * patch * channels)
        self.register_buffer("frequencies", torch.exp(torch.arange(width // 2) * (-9.2 / (width // 2))))

    def forward(self, picture, time, label):
        angles = time[:, None] * 1000 * self.frequencies
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.label(label)
        x = self.into(picture).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, c)
        n = self.side // self.patch
        x = self.back(x).view(-1, n, n, self.patch, self.patch, self.channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.channels, self.side, self.side)


def diffusion():
    return {"forward": Method(DiffusionTransformer().eval(), (torch.zeros(1, 4, 16, 16), torch.zeros(1), torch.zeros(1, dtype=torch.long)))}


# ---- A UNet ----


def twice(a, b):
    one = [torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.ReLU()]
    return torch.nn.Sequential(*one, torch.nn.Conv2d(b, b, 3, padding=1), torch.nn.GroupNorm(4, b), torch.nn.SiLU())


class UNet(torch.nn.Module):
    def __init__(self, channels=3, classes=2, width=16):
        super().__init__()
        self.first, self.second, self.third = twice(channels, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.up2, self.up1 = torch.nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), torch.nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.joined2, self.joined1 = twice(4 * width, 2 * width), twice(2 * width, width)
        self.last = torch.nn.Conv2d(width, classes, 1)

    def forward(self, picture):
        a = self.first(picture)
        b = self.second(torch.nn.functional.max_pool2d(a, 2))
        c = self.third(torch.nn.functional.max_pool2d(b, 2))
        b = self.joined2(torch.cat([self.up2(c), b], 1))
        return self.last(self.joined1(torch.cat([self.up1(b), a], 1)))


def unet():
    return {"forward": Method(UNet().eval(), (torch.zeros(1, 3, 32, 32),))}


MODELS = {"classifier": classifier, "speech": speech, "diffusion": diffusion, "unet": unet}


def made(name):
    """The methods of a model, with weights from a seed."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    return MODELS[name]()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--target", default="host", help="what the bundles are for, with commas between them (default: this machine)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or MODELS:
        path = arguments.folder / f"{name}.accx"
        accrt.from_torch(made(name), path=path, name=name, targets=arguments.target.split(","))
        print(path)
