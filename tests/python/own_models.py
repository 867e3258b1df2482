"""Small models as people write them, which no library has: for test_from_torch_own_models.py."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402  - which needs torch
from torch.nn import functional as F  # noqa: E402


class Own(NamedTuple):
    """A model, what makes its inputs, its sizes by name (the example's, and those of two other
    calls), and of each input which dimensions have which size."""

    model: Callable[[], Any]
    inputs: Callable[..., Tuple[Any, ...]]
    sizes: Dict[str, Tuple[int, int, int]]
    dims: List[Dict[int, str]]


MODELS: Dict[str, Own] = {}


def own(inputs: Callable[..., Any], dims: List[Dict[int, str]], **sizes: Tuple[int, int, int]) -> Callable[[Any], Any]:
    def register(model: Any) -> Any:
        MODELS[model.__name__] = Own(model, inputs, sizes, dims)
        return model

    return register


# ---- pictures


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout * 2)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class SelfAttention2d(nn.Module):
    def __init__(self, c, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(4, c)
        self.qkv, self.proj = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        weights = torch.einsum("bhcn,bhcm->bhnm", q, k) * (c // self.heads) ** -0.5
        out = torch.einsum("bhnm,bhcm->bhcn", weights.softmax(-1), v)
        return x + self.proj(out.reshape(b, c, h, w))


@own(lambda B, H, W: (torch.randn(B, 3, 8 * H, 8 * W), torch.randint(0, 1000, (B,))), [{0: "B", 2: "8*H", 3: "8*W"}, {0: "B"}], B=(2, 1, 3), H=(2, 1, 3), W=(3, 4, 1))
class UNet(nn.Module):
    """With attention in the middle and a time as input."""

    def __init__(self, c=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(c, c, 32), ResBlock(c, 2 * c, 32), ResBlock(2 * c, 2 * c, 32)])
        self.downs = nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1), nn.Conv2d(2 * c, 2 * c, 3, 2, 1), nn.AvgPool2d(2)])
        self.mid = nn.ModuleList([ResBlock(2 * c, 2 * c, 32), SelfAttention2d(2 * c), ResBlock(2 * c, 2 * c, 32)])
        self.up = nn.ModuleList([ResBlock(4 * c, 2 * c, 32), ResBlock(4 * c, c, 32), ResBlock(2 * c, c, 32)])
        self.tail = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(8, device=x.device) / 8)
        angles = t[:, None].to(x.dtype) * freqs[None]
        e = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        h, skips = self.head(x), []
        for block, down in zip(self.down, self.downs):
            h = block(h, e)
            skips.append(h)
            h = down(h)
        h = self.mid[2](self.mid[1](self.mid[0](h, e)), e)
        for block in self.up:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = block(torch.cat([h, skips.pop()], dim=1), e)
        return self.tail(h)


class LayerNorm2d(nn.Module):
    def __init__(self, c, eps=1e-6):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.randn(c)), nn.Parameter(torch.randn(c)), eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@own(lambda B, H, W: (torch.randn(B, 3, H, W),), [{0: "B", 2: "H", 3: "W"}], B=(2, 1, 3), H=(20, 17, 9), W=(16, 23, 8))
class ConvNeXt(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 4, 4), LayerNorm2d(c))
        self.depthwise = nn.ModuleList(nn.Conv2d(c, c, 7, padding=3, groups=c) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)) for _ in range(2))
        self.gammas = nn.ParameterList(nn.Parameter(torch.full((c,), 0.5)) for _ in range(2))
        self.grn = nn.Parameter(torch.randn(1, 1, 1, c))
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        x = self.stem(x)
        for conv, norm, mlp, gamma in zip(self.depthwise, self.norms, self.mlps, self.gammas):
            y = conv(x).permute(0, 2, 3, 1)
            y = mlp(norm(y))
            response = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
            y = y + self.grn * (y * (response / (response.mean(dim=-1, keepdim=True) + 1e-6)))
            x = x + (gamma * y).permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


def window_partition(x, size):
    b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)


def window_reverse(windows, size, h, w):
    b = windows.shape[0] // (h * w // size // size)
    x = windows.view(b, h // size, w // size, size, size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, -1)


@own(lambda B: (torch.randn(B, 8, 12, 16),), [{0: "B"}], B=(2, 1, 5))
class ShiftedWindows(nn.Module):
    """Swin's block, with the mask made in the forward."""

    def __init__(self, c=16, size=4, shift=2, heads=2):
        super().__init__()
        self.size, self.shift, self.heads = size, shift, heads
        self.table = nn.Parameter(torch.randn((2 * size - 1) ** 2, heads))
        coords = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative[:, :, 0] += size - 1
        relative[:, :, 1] += size - 1
        relative[:, :, 0] *= 2 * size - 1
        self.register_buffer("index", relative.sum(-1))
        self.norm, self.qkv, self.proj = nn.LayerNorm(c), nn.Linear(c, 3 * c), nn.Linear(c, c)

    def mask(self, h, w, device):
        image = torch.zeros((1, h, w, 1), device=device)
        count = 0
        for hs in (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None)):
            for ws in (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None)):
                image[:, hs, ws, :] = count
                count += 1
        windows = window_partition(image, self.size).squeeze(-1)
        mask = windows.unsqueeze(1) - windows.unsqueeze(2)
        return mask.masked_fill(mask != 0, float(-100.0)).masked_fill(mask == 0, float(0.0))

    def forward(self, x):
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = window_partition(y, self.size)
        n, l, _ = windows.shape
        q, k, v = self.qkv(windows).reshape(n, l, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        attn = attn + self.table[self.index.view(-1)].view(l, l, -1).permute(2, 0, 1).unsqueeze(0)
        mask = self.mask(h, w, x.device)
        nw = mask.shape[0]
        attn = attn.view(n // nw, nw, self.heads, l, l) + mask.unsqueeze(1).unsqueeze(0)
        attn = attn.view(-1, self.heads, l, l).softmax(-1)
        y = self.proj((attn @ v).transpose(1, 2).reshape(n, l, c))
        y = window_reverse(y, self.size, h, w)
        return x + torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))


@own(lambda B: (torch.randn(B, 3, 16, 16),), [{0: "B"}], B=(2, 1, 4))
class Mixer(nn.Module):
    def __init__(self, patches=16, dim=16):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "n1": nn.LayerNorm(dim), "tokens": nn.Sequential(nn.Linear(patches, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, patches)),
                "n2": nn.LayerNorm(dim), "channels": nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim)),
            })
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        for block in self.blocks:
            x = x + block["tokens"](block["n1"](x).mT).mT
            x += block["channels"](block["n2"](x))
        return self.head(x.mean(dim=1)).log_softmax(dim=-1)


@own(lambda B: (torch.randn(B, 1, 12, 12), torch.randn(B, 4)), [{0: "B"}, {0: "B"}], B=(3, 1, 6))
class VAE(nn.Module):
    """The noise is an input, as a seeded sampler gives it."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 3, 2, 1), nn.ELU(), nn.Flatten())
        self.mu, self.logvar = nn.Linear(72, 4), nn.Linear(72, 4)
        self.dec = nn.Sequential(nn.Linear(4, 72), nn.Unflatten(1, (8, 3, 3)), nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.PReLU(8), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid())
        for module in self.enc:
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.normal_(module.running_mean)

    def forward(self, x, noise):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-10, 10)
        z = mu + torch.exp(0.5 * logvar) * noise
        recon = self.dec(z)
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
        bce = F.binary_cross_entropy(recon, x.sigmoid(), reduction="none").sum(dim=(1, 2, 3))
        return {"recon": recon, "loss": (bce + kl).mean(), "z": z}


@own(lambda B: (torch.randn(B, 3, 24, 20),), [{0: "B"}], B=(2, 1, 3))
class DetrHead(nn.Module):
    def __init__(self, dim=16, queries=6, classes=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, dim, 5, 4, 2), nn.ReLU())
        self.row, self.col = nn.Parameter(torch.rand(20, dim // 2)), nn.Parameter(torch.rand(20, dim // 2))
        self.queries = nn.Parameter(torch.rand(queries, dim))
        self.transformer = nn.Transformer(dim, 2, 1, 1, 32, dropout=0.0)
        self.classes, self.boxes = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def forward(self, image):
        h = self.backbone(image)
        H, W = h.shape[-2:]
        pos = torch.cat([self.col[:W].unsqueeze(0).repeat(H, 1, 1), self.row[:H].unsqueeze(1).repeat(1, W, 1)], dim=-1).flatten(0, 1).unsqueeze(1)
        h = self.transformer(pos + 0.1 * h.flatten(2).permute(2, 0, 1), self.queries.unsqueeze(1).expand(-1, image.size(0), -1)).transpose(0, 1)
        logits, boxes = self.classes(h), self.boxes(h).sigmoid()
        scores, labels = logits.softmax(-1)[..., :-1].max(-1)
        cx, cy, w, hh = boxes.unbind(-1)
        corners = torch.stack([cx - 0.5 * w, cy - 0.5 * hh, cx + 0.5 * w, cy + 0.5 * hh], dim=-1)
        scale = torch.tensor([W, H, W, H], dtype=torch.float32, device=image.device)
        return scores, labels, corners * scale


# ---- sequences


class Chomp(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, : -self.size].contiguous()


@own(lambda B, T: (torch.randn(B, 4, T),), [{0: "B", 2: "T"}], B=(2, 1, 3), T=(20, 13, 41))
class TCN(nn.Module):
    def __init__(self, channels=(4, 8, 8)):
        super().__init__()
        layers = []
        for i, (a, b) in enumerate(zip(channels, channels[1:])):
            d = 2**i
            conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(a, b, 3, padding=2 * d, dilation=d))
            layers += [conv, Chomp(2 * d), nn.ReLU(), nn.Dropout(0.2)]
        self.net, self.res, self.out = nn.Sequential(*layers), nn.Conv1d(4, 8, 1), nn.Linear(8, 3)

    def forward(self, x):
        y = F.relu(self.net(x) + self.res(x))
        return self.out(y[:, :, -1]), y


@own(lambda B: (torch.randint(1, 50, (B, 12)), torch.randint(1, 13, (B,))), [{0: "B"}, {0: "B"}], B=(3, 1, 5))
class RecurrentClassifier(nn.Module):
    """Both ways, with attention over the places that are not padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.attn, self.out = nn.Linear(8, 1, bias=False), nn.Linear(16, 3)

    def forward(self, tokens, lengths):
        x, _ = self.lstm(self.embed(tokens))
        x, hidden = self.gru(x)
        mask = torch.arange(tokens.size(1), device=tokens.device)[None, :] < lengths[:, None]
        scores = self.attn(torch.tanh(x)).squeeze(-1).masked_fill(~mask, -1e9)
        context = torch.bmm(scores.softmax(1).unsqueeze(1), x).squeeze(1)
        last = x[torch.arange(x.size(0)), lengths - 1]
        return self.out(torch.cat([context, last], dim=1)), hidden[-1]


def alibi_slopes(heads):
    start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
    return [start * start**i for i in range(heads)]


@own(lambda B, T: (torch.randint(0, 40, (B, T)),), [{0: "B", 1: "T"}], B=(2, 1, 3), T=(9, 5, 17))
class Alibi(nn.Module):
    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(40, dim)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)).view(1, heads, 1, 1))
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.GELU(approximate="tanh"), nn.Linear(32, dim))

    def forward(self, tokens):
        B, T = tokens.shape
        x = self.embed(tokens)
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, dim=-1))
        context = torch.arange(T, device=x.device)[:, None]
        memory = torch.arange(T, device=x.device)[None, :]
        bias = -(memory - context).abs().unsqueeze(0).unsqueeze(0) * self.slopes
        bias = bias.masked_fill(memory > context, float("-inf"))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.n2(x))
        return x @ self.embed.weight.T


@own(lambda B, T: (torch.randn(B, T, 16), torch.arange(T)[None] < torch.randint(1, T + 1, (B, 1))), [{0: "B", 1: "T"}, {0: "B", 1: "T"}], B=(2, 1, 3), T=(11, 6, 19))
class Conformer(nn.Module):
    """With relative positions as in Transformer-XL."""

    def __init__(self, d=16, heads=2, kernel=5):
        super().__init__()
        self.heads, self.dk = heads, d // heads
        self.ff1 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, d))
        self.ff2 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, d))
        self.norm, self.q, self.k, self.v = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.pos, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d)
        self.u, self.w = nn.Parameter(torch.randn(heads, self.dk)), nn.Parameter(torch.randn(heads, self.dk))
        self.cnorm, self.pw1 = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1)
        self.dw, self.bn, self.pw2 = nn.Conv1d(d, d, kernel, padding="same", groups=d), nn.BatchNorm1d(d), nn.Conv1d(d, d, 1)
        self.final = nn.LayerNorm(d)

    def positions(self, x):
        t, d = x.size(1), x.size(2)
        position = torch.arange(t - 1, -t, -1, device=x.device, dtype=x.dtype).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) * -(math.log(10000.0) / d))
        pe = torch.zeros(2 * t - 1, d, device=x.device, dtype=x.dtype)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        return pe

    def shifted(self, x):
        b, h, t1, t2 = x.size()
        zero = torch.zeros((b, h, t1, 1), device=x.device, dtype=x.dtype)
        x = torch.cat([zero, x], dim=-1).view(b, h, t2 + 1, t1)
        return x[:, :, 1:].view(b, h, t1, t2)[:, :, :, : t2 // 2 + 1]

    def attend(self, x, mask):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.dk)
        k, v = (m(x).view(b, t, self.heads, self.dk).transpose(1, 2) for m in (self.k, self.v))
        p = self.pos(self.positions(x)).view(1, -1, self.heads, self.dk).transpose(1, 2)
        content = torch.matmul((q + self.u).transpose(1, 2), k.transpose(-2, -1))
        places = self.shifted(torch.matmul((q + self.w).transpose(1, 2), p.transpose(-2, -1)))
        scores = (content + places) / math.sqrt(self.dk)
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1).masked_fill(~mask[:, None, None, :], 0.0)
        return self.o(torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, t, -1))

    def convolve(self, x, mask):
        x = self.pw1(self.cnorm(x).transpose(1, 2))
        x = F.glu(x, dim=1).masked_fill(~mask.unsqueeze(1), 0)
        return self.pw2(F.silu(self.bn(self.dw(x)))).transpose(1, 2)

    def forward(self, x, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attend(self.norm(x), mask)
        x = x + self.convolve(x, mask)
        return self.final(x + 0.5 * self.ff2(x)) * mask.unsqueeze(-1)


@own(lambda B: (torch.randn(B, 10, 8),), [{0: "B"}], B=(2, 1, 4))
class MambaScan(nn.Module):
    """A selective scan, as a loop over the sequence."""

    def __init__(self, d=8, n=4, rank=2):
        super().__init__()
        self.inp, self.out = nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.conv = nn.Conv1d(2 * d, 2 * d, 4, groups=2 * d, padding=3)
        self.x_proj, self.dt_proj = nn.Linear(2 * d, rank + 2 * n, bias=False), nn.Linear(rank, 2 * d)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1, dtype=torch.float32).repeat(2 * d, 1)))
        self.D, self.n, self.rank = nn.Parameter(torch.ones(2 * d)), n, rank

    def forward(self, x):
        b, l, d = x.shape
        x, z = self.inp(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :l].transpose(1, 2))
        dt, B, C = self.x_proj(x).split([self.rank, self.n, self.n], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log)
        dA = torch.exp(dt.unsqueeze(-1) * A)
        dBx = dt.unsqueeze(-1) * B.unsqueeze(2) * x.unsqueeze(-1)
        state = torch.zeros(b, x.size(-1), self.n, device=x.device, dtype=x.dtype)
        ys = []
        for t in range(l):
            state = dA[:, t] * state + dBx[:, t]
            ys.append((state * C[:, t, None, :]).sum(-1))
        y = torch.stack(ys, dim=1) + x * self.D
        return self.out(y * F.silu(z)), state


@own(lambda B, T: (torch.randn(B, T, 8),), [{0: "B", 1: "T"}], B=(2, 1, 4), T=(10, 7, 16))
class SsmByCumsum(nn.Module):
    """The same kind of scan without a loop: by logarithms and cumsum, in segments."""

    def __init__(self, d=8, heads=2, n=4):
        super().__init__()
        self.heads, self.n = heads, n
        self.proj, self.dt, self.out = nn.Linear(d, d + 2 * n), nn.Linear(d, heads), nn.Linear(d, d)
        self.A = nn.Parameter(torch.rand(heads) + 0.5)

    @staticmethod
    def segsum(x):
        T = x.size(-1)
        x = x.unsqueeze(-1).expand(*x.shape, T)
        mask = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool), diagonal=-1)
        x = x.masked_fill(~mask, 0)
        sums = torch.cumsum(x, dim=-2)
        mask = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool), diagonal=0)
        return sums.masked_fill(~mask, -torch.inf)

    def forward(self, u):
        b, T, d = u.shape
        x, B, C = torch.split(self.proj(u), [d, self.n, self.n], dim=-1)
        dt = F.softplus(self.dt(u))
        x = x.reshape(b, T, self.heads, -1) * dt.unsqueeze(-1)
        decay = torch.exp(self.segsum((-self.A * dt).transpose(1, 2)))
        y = torch.einsum("btn,bsn,bhts,bshp->bthp", C, B, decay, x)
        return self.out(y.reshape(b, T, d))


@own(lambda B, T: (torch.randint(0, 30, (B, T)),), [{0: "B", 1: "T"}], B=(2, 1, 3), T=(8, 5, 12))
class TimeMixing(nn.Module):
    """RWKV's, with the decay as a matrix of powers."""

    def __init__(self, d=8):
        super().__init__()
        self.embed = nn.Embedding(30, d)
        self.mix = nn.ParameterDict({k: nn.Parameter(torch.rand(1, 1, d)) for k in "kvr"})
        self.time_decay, self.time_first = nn.Parameter(torch.rand(d)), nn.Parameter(torch.rand(d))
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.receptance, self.output = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, tokens):
        x = self.embed(tokens)
        xx = self.shift(x)
        k, v, r = (layer(x * self.mix[n] + xx * (1 - self.mix[n])) for n, layer in zip("kvr", (self.key, self.value, self.receptance)))
        T = x.shape[1]
        distance = torch.arange(T).view(-1, 1) - torch.arange(T).view(1, -1) - 1
        w = -torch.exp(self.time_decay)
        weights = torch.where(distance[..., None] >= 0, distance[..., None] * w, float("-inf"))
        weights = torch.where(torch.eye(T, dtype=torch.bool)[..., None], self.time_first, weights)
        logits = weights[None] + k[:, None]
        top = logits.amax(dim=2, keepdim=True)
        e = torch.exp(logits - top)
        wkv = (e * v[:, None]).sum(2) / e.sum(2)
        return self.output(torch.sigmoid(r) * wkv) @ self.embed.weight.t()


@own(lambda B, T: (torch.randn(B, T, 2, 8), torch.randn(B, T, 2, 8)), [{0: "B", 1: "T"}, {0: "B", 1: "T"}], B=(2, 1, 3), T=(6, 4, 9))
class ComplexRope(nn.Module):
    """As in the Llama that Meta published."""

    def __init__(self, head=8, end=32):
        super().__init__()
        freqs = 1.0 / (10000.0 ** (torch.arange(0, head, 2)[: head // 2].float() / head))
        t = torch.arange(end, dtype=torch.float32)
        self.freqs_cis = torch.polar(torch.ones(end, head // 2), torch.outer(t, freqs))

    def forward(self, xq, xk):
        q = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
        k = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
        f = self.freqs_cis[: xq.shape[1]].view(1, xq.shape[1], 1, -1)
        q, k = torch.view_as_real(q * f).flatten(3), torch.view_as_real(k * f).flatten(3)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).tril()
        return q.type_as(xq), k.type_as(xk), scores


@own(lambda B, T: (torch.randn(B, T, 12), torch.randn(B, 5, 12)), [{0: "B", 1: "T"}, {0: "B"}], B=(2, 1, 3), T=(14, 3, 30))
class Perceiver(nn.Module):
    def __init__(self, d=12, latents=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, d))
        self.cross = nn.MultiheadAttention(d, 3, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(d, 3, 24, batch_first=True, norm_first=True, activation="gelu")
        self.decode = nn.MultiheadAttention(d, 3, batch_first=True)

    def forward(self, x, queries):
        z = self.latents.expand(x.shape[0], -1, -1)
        z = z + self.cross(z, x, x, need_weights=False)[0]
        z = self.layer(z)
        out, weights = self.decode(queries, z, z)
        return out, weights
# ---- graphs, tables and the rest


@own(lambda N, E: (torch.randn(N, 6), torch.randint(0, N, (2, E)), torch.arange(N) % 3), [{0: "N"}, {1: "E"}, {0: "N"}], N=(7, 4, 12), E=(15, 2, 30))
class GraphNet(nn.Module):
    """Messages along edges, sums by index_add, a softmax over the edges of each node, and a mean of
    each graph."""

    def __init__(self, d=6, h=8):
        super().__init__()
        self.msg, self.upd = nn.Linear(2 * d, h), nn.GRUCell(h, d)
        self.att, self.out = nn.Parameter(torch.randn(2 * d)), nn.Linear(d, 2)

    def forward(self, x, edge_index, batch):
        src, dst = edge_index
        for _ in range(2):
            pair = torch.cat([x[src], x[dst]], dim=-1)
            alpha = F.leaky_relu(pair @ self.att, 0.2)
            top = x.new_full((x.size(0),), float("-inf")).scatter_reduce(0, dst, alpha, reduce="amax")
            alpha = torch.exp(alpha - top[dst])
            total = x.new_zeros(x.size(0)).index_add_(0, dst, alpha)
            m = F.relu(self.msg(pair)) * (alpha / (total[dst] + 1e-16)).unsqueeze(-1)
            agg = torch.zeros(x.size(0), m.size(1), dtype=m.dtype).index_add_(0, dst, m)
            x = self.upd(agg, x)
        degree = torch.zeros(x.size(0), dtype=torch.long).scatter_add_(0, dst, torch.ones_like(dst))
        sums = torch.zeros(3, x.size(1), dtype=x.dtype).index_add(0, batch, x)
        count = F.one_hot(batch, 3).sum(0).clamp(min=1)
        return self.out(sums / count.unsqueeze(-1)), degree


@own(lambda B: (torch.randn(B, 6),), [{0: "B"}], B=(4, 1, 7))
class Flow(nn.Module):
    """RealNVP with an invertible matrix between couplings."""

    def __init__(self, d=6):
        super().__init__()
        self.W = nn.ParameterList(nn.Parameter(torch.linalg.qr(torch.randn(d, d))[0]) for _ in range(2))
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(d // 2, 16), nn.Tanh(), nn.Linear(16, d)) for _ in range(2))
        self.loc, self.log_scale = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        log_det = x.new_zeros(x.shape[0])
        x = (x + self.loc) * self.log_scale.exp()
        log_det = log_det + self.log_scale.sum()
        for W, net in zip(self.W, self.nets):
            x = torch.einsum("ij,bj->bi", W, x)
            log_det = log_det + torch.linalg.slogdet(W)[1]
            a, b = x.chunk(2, dim=1)
            log_s, t = net(a).chunk(2, dim=1)
            s = torch.sigmoid(log_s + 2)
            x = torch.cat([a, (b + t) * s], dim=1)
            log_det += torch.log(s).sum(dim=1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(dim=1)
        return x, prior + log_det


@own(lambda B: (torch.randn(B, 10, 8),), [{0: "B"}], B=(2, 1, 5))
class QuantileHead(nn.Module):
    """Quantiles that do not cross, the interquartile mean, ranks, and nucleus sampling's filter."""

    def __init__(self, d=8, q=7):
        super().__init__()
        self.first, self.rest, self.logits = nn.Linear(d, 1), nn.Linear(d, q - 1), nn.Linear(d, 20)

    def forward(self, x):
        first, steps = self.first(x), F.softplus(self.rest(x))
        quantiles = torch.cat([first, first + torch.cumsum(steps, dim=-1)], dim=-1)
        ordered, order = torch.sort(x.flatten(1), dim=1, descending=True)
        ranks = torch.argsort(order, dim=1)
        trimmed = ordered[:, 20:60].mean(1)
        top, where = torch.topk(x.norm(dim=-1), k=3, dim=1)
        picked = torch.gather(x, 1, where.unsqueeze(-1).expand(-1, -1, x.size(-1)))
        logits = self.logits(x[:, -1])
        s, i = torch.sort(logits, descending=True)
        remove = torch.cumsum(F.softmax(s, dim=-1), dim=-1) > 0.8
        remove[..., 1:] = remove[..., :-1].clone()
        remove[..., 0] = 0
        remove = remove.scatter(1, i, remove)
        logits = logits.masked_fill(remove, -1e4)
        return quantiles, ranks, trimmed, top, picked, logits, torch.quantile(x, 0.3, dim=1), x.median(dim=1).values


@own(lambda B: (torch.randint(0, 40, (B * 3,)), torch.arange(0, 3 * B, 3), torch.rand(B * 3)), [{0: "3*B"}, {0: "B"}, {0: "3*B"}], B=(4, 1, 6))
class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(40, 6, mode="sum"), nn.EmbeddingBag(40, 6, mode="mean")
        self.out = nn.Linear(12, 3)

    def forward(self, words, offsets, weights):
        return self.out(torch.cat([self.sums(words, offsets, weights), self.means(words, offsets)], 1))


@own(lambda B: (torch.randn(B, 3, 20), torch.randn(B, 3), torch.randint(0, 20, (B, 3, 6)), torch.rand(B, 3) < 0.3), [{0: "B"}] * 4, B=(2, 1, 4))
class BeamStep(nn.Module):
    def forward(self, logits, scores, sequences, done):
        b, k, v = logits.shape
        logp = F.log_softmax(logits, dim=-1)
        only_pad = torch.full((v,), float("-inf"), dtype=logp.dtype)
        only_pad[0] = 0.0
        logp = torch.where(done.unsqueeze(-1), only_pad, logp)
        total = (scores.unsqueeze(-1) + logp).view(b, k * v)
        best, index = total.topk(k, dim=-1)
        beam, token = torch.div(index, v, rounding_mode="floor"), index % v
        rows = torch.arange(b).unsqueeze(1)
        sequences = torch.cat([sequences[rows, beam], token.unsqueeze(-1)], dim=-1)
        return best, sequences, done[rows, beam] | (token == 0)


@own(lambda N: (torch.rand(N, 4) * 10, torch.rand(N)), [{0: "N"}, {0: "N"}], N=(8, 5, 20))
class NmsByMatrix(nn.Module):
    """All boxes at once: a box goes when a better one that stays overlaps it."""

    def forward(self, boxes, scores):
        boxes = torch.cat([torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:]) + 0.5], dim=1)
        order = scores.argsort(descending=True)
        b = boxes[order]
        area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        lt, rb = torch.max(b[:, None, :2], b[None, :, :2]), torch.min(b[:, None, 2:], b[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        iou = inter / (area[:, None] + area[None, :] - inter)
        over = torch.triu(iou > 0.3, diagonal=1).float()
        keep = torch.ones_like(scores)
        for _ in range(8):
            keep = ((over * keep[:, None]).sum(0) == 0).to(scores.dtype)
        decay = torch.exp(-torch.triu(iou, 1).max(dim=0)[0] ** 2 / 0.5)
        return keep.bool(), order, scores[order] * decay, iou


@own(lambda B, T: (torch.randn(B, 16 * T),), [{0: "B", 1: "16*T"}], B=(2, 1, 3), T=(8, 5, 11))
class StftFeatures(nn.Module):
    """Logarithms of mel bands, with deltas and normalisation by their own statistics."""

    def __init__(self, n=32, hop=16, mels=6):
        super().__init__()
        self.n, self.hop = n, hop
        self.register_buffer("window", torch.hann_window(n))
        self.register_buffer("mel", torch.rand(mels, n // 2 + 1))

    def forward(self, x):
        x = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], dim=1)
        s = torch.stft(x, self.n, self.hop, window=self.window, center=True, return_complex=True)
        power = s.abs() ** 2
        logmel = torch.clamp(self.mel @ power, min=1e-8).log10()
        logmel = torch.maximum(logmel, logmel.amax(dim=(1, 2), keepdim=True) - 8.0)
        delta = F.pad(logmel, (1, 1), mode="replicate").unfold(2, 3, 1)
        delta = (delta[..., 2] - delta[..., 0]) / 2
        out = torch.cat([logmel, delta], dim=1)
        return (out - out.mean(2, keepdim=True)) / (out.std(2, keepdim=True) + 1e-5)


@own(lambda B: (torch.rand(B, 4) * 2 - 1,), [{0: "B"}], B=(5, 1, 9))
class KanLayer(nn.Module):
    def __init__(self, cin=4, cout=3, grid=5, order=3):
        super().__init__()
        h = 2 / grid
        g = (torch.arange(-order, grid + order + 1) * h - 1).expand(cin, -1).contiguous()
        self.register_buffer("grid", g)
        self.base, self.spline = nn.Parameter(torch.randn(cout, cin)), nn.Parameter(torch.randn(cout, cin, grid + order))
        self.order = order

    def splines(self, x):
        x, g = x.unsqueeze(-1), self.grid
        b = ((x >= g[:, :-1]) & (x < g[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            b = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)]) * b[:, :, :-1] + (g[:, k + 1 :] - x) / (g[:, k + 1 :] - g[:, 1:-k]) * b[:, :, 1:]
        return b.contiguous()

    def forward(self, x):
        return F.linear(F.silu(x), self.base) + F.linear(self.splines(x).view(x.size(0), -1), self.spline.view(self.spline.size(0), -1))


@own(lambda B, C: (torch.randn(B, C), torch.randn(B, C), torch.randint(0, 5, (B,)), torch.randn(B, 5)), [{0: "B", 1: "C"}, {0: "B", 1: "C"}, {0: "B"}, {0: "B"}], B=(4, 2, 7), C=(6, 3, 9))
class Losses(nn.Module):
    """Losses as a model: to judge what another one gives."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("weight", torch.rand(5) + 0.5)

    def forward(self, a, b, labels, logits):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        sim = a @ b.t() / self.temperature.exp()
        target = torch.arange(a.shape[0])
        clip = (F.cross_entropy(sim, target) + F.cross_entropy(sim.t(), target)) / 2
        ce = F.cross_entropy(logits, labels, weight=self.weight, label_smoothing=0.1, ignore_index=2)
        p = logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
        focal = (-((1 - p) ** 2) * p.log()).mean()
        huber = F.huber_loss(a, b, delta=0.2) + F.smooth_l1_loss(a, b, beta=0.5)
        kl = F.kl_div(logits.log_softmax(1), logits.roll(1, 1).softmax(1), reduction="batchmean")
        hinge = F.margin_ranking_loss(a[:, 0], b[:, 0], torch.ones_like(a[:, 0]), margin=0.5) + F.triplet_margin_loss(a, b, b.flip(0), margin=0.3)
        cosine = F.cosine_embedding_loss(a, b, (labels > 2).to(a.dtype) * 2 - 1, margin=0.1)
        bce = F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 5).to(a.dtype), pos_weight=self.weight)
        nll = F.poisson_nll_loss(logits, labels[:, None].to(a.dtype)) + F.gaussian_nll_loss(a, b, b.exp())
        dice = 1 - (2 * (a * b).sum()) / (a.pow(2).sum() + b.pow(2).sum() + 1e-6)
        return torch.stack([clip, ce, focal, huber, kl, hinge, cosine, bce, nll, dice]), sim


@own(lambda T: (torch.randn(T, 8),), [{0: "T"}], T=(9, 2, 20))
class MoeByIndexPut(nn.Module):
    """Experts with a capacity: what does not fit goes past them."""

    def __init__(self, d=8, experts=4, capacity=4):
        super().__init__()
        self.gate, self.experts, self.capacity = nn.Linear(d, experts), experts, capacity
        self.w1, self.w2 = nn.Parameter(torch.randn(experts, d, 16) / 4), nn.Parameter(torch.randn(experts, 16, d) / 4)

    def forward(self, x):
        probs, expert = self.gate(x).softmax(-1).max(-1)
        hot = F.one_hot(expert, self.experts)
        place = (hot.cumsum(0) * hot).sum(-1) - 1
        fits = place < self.capacity
        slot = torch.where(fits, place, torch.full_like(place, self.capacity))
        buffer = x.new_zeros(self.experts, self.capacity + 1, x.shape[1])
        buffer[expert, slot] = x
        h = torch.bmm(F.gelu(torch.bmm(buffer, self.w1)), self.w2)
        y = h[expert, slot] * probs.unsqueeze(-1)
        return torch.where(fits.unsqueeze(-1), y, x), hot.sum(0)


@own(lambda B: (torch.randint(0, 7, (B, 3), dtype=torch.int32), torch.randint(0, 100, (B, 4), dtype=torch.int16), torch.rand(B, 2, dtype=torch.float64), torch.rand(B, 2) < 0.5), [{0: "B"}] * 4, B=(4, 1, 9))
class Tabular(nn.Module):
    """Categories, counts, money and flags in one row."""

    def __init__(self):
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(7, 3) for _ in range(3))
        self.bn, self.net = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(17, 16), nn.Mish(), nn.Linear(16, 2))
        self.register_buffer("edges", torch.tensor([5.0, 20.0, 50.0]))

    def forward(self, categories, counts, money, flags):
        e = torch.cat([m(categories[:, i].clamp(max=6)) for i, m in enumerate(self.embed)], dim=1)
        numbers = torch.cat([counts.to(self.edges.dtype).log1p(), money.to(self.edges.dtype)], dim=1)
        buckets = torch.bucketize(counts[:, :1].to(self.edges.dtype), self.edges).to(self.edges.dtype)
        missing = (counts == 0).any(1, keepdim=True)
        x = torch.cat([e, self.bn(numbers), buckets, flags.to(numbers.dtype).mean(1, keepdim=True) - missing.to(numbers.dtype)], dim=1)
        return self.net(x), (counts.sum(1) + categories[:, 0]) % 10, torch.logical_xor(flags[:, 0], flags[:, 1])


@own(lambda B: (torch.randn(B, 12, 5),), [{0: "B"}], B=(2, 1, 3))
class Crf(nn.Module):
    """Viterbi with backtracking, and the partition."""
    def __init__(self, k=5):
        super().__init__()
        self.t, self.s = nn.Parameter(torch.randn(k, k)), nn.Parameter(torch.randn(k))
    def forward(self, e):
        b, T, k = e.shape
        v, a = self.s + e[:, 0], self.s + e[:, 0]
        back = []
        for t in range(1, T):
            m = v.unsqueeze(2) + self.t
            best, arg = m.max(dim=1)
            v = best + e[:, t]
            a = torch.logsumexp(a.unsqueeze(2) + self.t, dim=1) + e[:, t]
            back.append(arg)
        score, last = v.max(dim=1)
        path = [last]
        for arg in reversed(back):
            path.append(arg.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        path.reverse()
        return score, torch.stack(path, 1), torch.logsumexp(a, 1)


@own(lambda B, N: (torch.randn(B, 3, N),), [{0: "B", 2: "N"}], B=(2, 1, 3), N=(12, 7, 20))
class Dgcnn(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.k, self.conv, self.bn = k, nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.tnet = nn.Linear(8, 9)
    def forward(self, x):
        b, d, n = x.shape
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x**2, dim=1, keepdim=True)
        idx = (-xx - inner - xx.transpose(2, 1)).topk(k=self.k, dim=-1)[1]
        base = torch.arange(0, b).view(-1, 1, 1) * n
        idx = (idx + base).view(-1)
        pts = x.transpose(2, 1).contiguous()
        feat = pts.view(b * n, -1)[idx, :].view(b, n, self.k, d)
        c = pts.view(b, n, 1, d).repeat(1, 1, self.k, 1)
        f = torch.cat((feat - c, c), dim=3).permute(0, 3, 1, 2).contiguous()
        h = F.leaky_relu(self.bn(self.conv(f)), 0.2).max(dim=-1)[0]
        t = self.tnet(F.adaptive_max_pool1d(h, 1).view(b, -1)).view(b, 3, 3) + torch.eye(3, device=x.device)
        return torch.bmm(t, x), h


@own(lambda B, W: (torch.randn(B, 2, 8, 2 * W),), [{0: "B", 3: "2*W"}], B=(2, 1, 3), W=(5, 4, 6))
class Fno(nn.Module):
    """A Fourier layer: complex weights for the low frequencies."""
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(2, 3, 3, 3, 2)), nn.Parameter(torch.randn(2, 3, 3, 3, 2))
        self.skip = nn.Conv2d(2, 3, 1)
    def forward(self, x):
        b, c, h, w = x.shape
        f = torch.fft.rfft2(x)
        out = torch.zeros(b, 3, h, w // 2 + 1, dtype=f.dtype, device=x.device)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, :3, :3], torch.view_as_complex(self.w1))
        out[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, -3:, :3], torch.view_as_complex(self.w2))
        return F.gelu(torch.fft.irfft2(out, s=(h, w)) + self.skip(x))


@own(lambda B: (torch.randn(B, 5, 4), torch.randint(0, 9, (B, 3))), [{0: "B"}, {0: "B"}], B=(3, 1, 5))
class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList([nn.EmbeddingBag(9, 4, mode="sum") for _ in range(3)])
        self.register_buffer("iu", torch.tril_indices(8, 8, -1))
        self.top = nn.Linear(28, 1)
    def forward(self, dense, sparse):
        offs = torch.arange(sparse.shape[0])
        ly = [m(sparse[:, i], offs) for i, m in enumerate(self.e)]
        t = torch.cat([dense, torch.stack(ly, 1)], 1)
        z = torch.bmm(t, t.mT)
        return torch.sigmoid(self.top(z[:, self.iu[0], self.iu[1]])).squeeze(-1)


@own(lambda B: (torch.randn(B, 6, 4), torch.randn(B, 4)), [{0: "B"}, {0: "B"}], B=(2, 1, 3))
class Kalman(nn.Module):
    """A filter with solves, an ODE step (RK4), Sinkhorn, and a fixed point."""
    def __init__(self):
        super().__init__()
        self.A, self.H, self.Q, self.R = nn.Parameter(torch.randn(4, 4) / 3), nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.f = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    def forward(self, z, x):
        Q, R = self.Q @ self.Q.T + torch.eye(4), torch.diag_embed(self.R.exp())
        P = torch.eye(4).to(x.dtype).repeat(x.shape[0], 1, 1)
        for t in range(z.shape[1]):
            x = torch.einsum("ij,bj->bi", self.A, x)
            P = self.A @ P @ self.A.T + Q
            S = self.H @ P @ self.H.T + R
            K = torch.linalg.solve(S, self.H @ P).transpose(1, 2)
            x = x + torch.bmm(K, (z[:, t] - x @ self.H.T).unsqueeze(-1)).squeeze(-1)
            P = (torch.eye(4) - K @ self.H) @ P
        for _ in range(3):
            h = 0.1
            k1 = self.f(x)
            k2 = self.f(x + h / 2 * k1)
            k3 = self.f(x + h / 2 * k2)
            k4 = self.f(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        C = torch.cdist(z, z.flip(1)) / 3
        u = v = torch.zeros(z.shape[0], 6, dtype=x.dtype)
        for _ in range(5):
            u = -torch.logsumexp(-C + v[:, None], dim=2)
            v = -torch.logsumexp(-C + u[:, :, None], dim=1)
        return x, torch.exp(u[:, :, None] + v[:, None] - C), torch.linalg.cholesky(P + torch.eye(4)).diagonal(dim1=1, dim2=2).log().sum(1)
