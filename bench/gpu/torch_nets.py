"""Two diffusion networks in plain torch, for machines without diffusers: the UNet of Stable
Diffusion 1.5 and DiT-XL/2, by their papers' shapes, with random weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def angles(time, width):
    """Sines and cosines of a time [batch], in float32."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32, device=time.device) * (-9.210340371976184 / half))
    turned = time.float()[:, None] * rates
    return torch.cat([turned.cos(), turned.sin()], -1)


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


# ---- The UNet of Stable Diffusion 1.5 ------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with group norms; the time is added between them."""

    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width, heads, context=None):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(context or width, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        q, k, v = (heads_of(part, self.heads) for part in (self.q(x), self.k(context), self.v(context)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Attention among places, attention to the text, and a gated mlp."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.norm, self.into, self.back = nn.GroupNorm(32, width, eps=1e-6), nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.own, self.text = Attention(width, heads), Attention(width, heads, context)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x, text):
        batch, width, high, wide = x.shape
        h = self.into(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, high * wide, width)
        n = self.norm1(h)
        h = h + self.own(n, n)
        h = h + self.text(self.norm2(h), text)
        value, gate = self.wide(self.norm3(h)).chunk(2, -1)
        h = h + self.narrow(value * F.gelu(gate))
        return x + self.back(h.reshape(batch, high, wide, width).permute(0, 3, 1, 2))


class UNet(nn.Module):
    """The 2D UNet with a text as condition: widths 320, 640, 1280, 1280, two layers down and three
    up at each, text of 768."""

    def __init__(self, widths=(320, 640, 1280, 1280), channels=4, context=768, heads=8, layers=2):
        super().__init__()
        time = 4 * widths[0]
        self.first_width, last = widths[0], len(widths) - 1
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.into = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.smaller, kept, width = nn.ModuleList(), nn.ModuleList(), [widths[0]], widths[0]
        for level, wide in enumerate(widths):
            for _ in range(layers):
                self.down.append(self._layer(width, wide, time, heads, context, level < last))
                width = wide
                kept.append(wide)
            if level < last:
                self.smaller.append(nn.Conv2d(wide, wide, 3, stride=2, padding=1))
                kept.append(wide)
        self.middle = nn.ModuleList([Residual(width, width, time), Transformer(width, heads, context), Residual(width, width, time)])
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for level, wide in reversed(list(enumerate(widths))):
            for _ in range(layers + 1):
                self.up.append(self._layer(width + kept.pop(), wide, time, heads, context, level < last))
                width = wide
            if level:
                self.larger.append(nn.Conv2d(wide, wide, 3, padding=1))
        self.norm, self.back, self.layers = nn.GroupNorm(32, width), nn.Conv2d(width, channels, 3, padding=1), layers

    @staticmethod
    def _layer(inputs, outputs, time, heads, context, attends):
        return nn.ModuleList([Residual(inputs, outputs, time), *([Transformer(outputs, heads, context)] if attends else [])])

    def forward(self, latents, time, text):
        emb = self.time(angles(time, self.first_width).to(latents.dtype))
        x = self.into(latents)
        kept = [x]
        for at, layer in enumerate(self.down):
            x = self._run(layer, x, emb, text)
            kept.append(x)
            if at % self.layers == self.layers - 1 and at // self.layers < len(self.smaller):
                x = self.smaller[at // self.layers](x)
                kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, emb), text), emb)
        for at, layer in enumerate(self.up):
            x = self._run(layer, torch.cat([x, kept.pop()], 1), emb, text)
            if at % (self.layers + 1) == self.layers and at // (self.layers + 1) < len(self.larger):
                x = self.larger[at // (self.layers + 1)](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.back(F.silu(self.norm(x)))

    @staticmethod
    def _run(layer, x, emb, text):
        x = layer[0](x, emb)
        return layer[1](x, text) if len(layer) > 1 else x


# ---- DiT-XL/2 ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and a mlp; scales, shifts and gates come from the time and the label."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.condition = nn.Linear(width, 6 * width)

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.condition(F.silu(c)).unsqueeze(1).chunk(6, -1)
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale2) + shift2
        return x + gate2 * self.narrow(F.gelu(self.wide(h), approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer over latents [batch, 4, 32, 32]; gives the noise and its variance."""

    def __init__(self, channels=4, side=32, patch=2, width=1152, heads=16, layers=28, labels=1001):
        super().__init__()
        self.patch, self.side, self.outputs = patch, side, 2 * channels
        self.into = nn.Conv2d(channels, width, patch, patch)
        self.register_buffer("places", torch.randn(1, (side // patch) ** 2, width) * 0.5)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(labels, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.back = nn.Linear(width, 2 * width), nn.Linear(width, patch * patch * self.outputs)

    def forward(self, latents, time, label):
        c = self.time(angles(time, 256).to(latents.dtype)) + self.label(label)
        x = self.into(latents).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.last(F.silu(c)).unsqueeze(1).chunk(2, -1)
        x = self.back(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        n = self.side // self.patch
        return x.view(-1, n, n, self.patch, self.patch, self.outputs).permute(0, 5, 1, 3, 2, 4).reshape(-1, self.outputs, self.side, self.side)
