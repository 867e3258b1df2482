#!/usr/bin/env python3
"""Trains bytelm, a byte-level language model of the Llama architecture, and writes its weights.

The text is the King James Bible (public domain) as Debian's package bible-kjv prints it, one verse
a line, each after its reference:

    bible -f 'Gen1:1-Rev22:21'        # 4,404,412 bytes, 31,102 lines, plain ASCII

The split is fixed and by whole chapters, numbered through the whole text from 0: chapter n is held
out when n % 20 == 19, and trained on otherwise. Settings were chosen with --split dev, which trains
without the chapters n % 20 == 9 too and measures on those, so that nothing was chosen by looking at
the held-out part. A token is a byte; there are no special tokens.

    python3 train.py --compile     # trains, measures, writes weights.safetensors and heldout.txt
    python3 train.py --steps 0     # measures the weights that are there, writes heldout.txt

It needs torch 2.9 or later and, without --text, the bible command. It runs on a CUDA device where
there is one (two minutes on an H200) and on the CPU otherwise. The seed is fixed, but the last bits
of a run depend on the device and on torch's version.
"""

import argparse
import hashlib
import json
import math
import struct
import subprocess
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
TEXT_SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
EXCERPT_BYTES = 65536
HEADER_ALIGN = 256  # every tensor here is a multiple of 256 bytes, so each starts on one as well


@dataclass
class Settings:
    """The model's shape and how it is trained; each is also a command-line option."""

    layers: int = 3
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 256
    tied: int = 1  # 1: the head reuses the embedding, stored once
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    steps: int = 10000
    batch: int = 32
    dropout: float = 0.1
    lr: float = 3e-3  # embedding, head and norms (AdamW)
    matrix_lr: float = 2e-2  # the matrices between them (Muon)
    weight_decay: float = 0.1
    warmup: int = 200
    clip: float = 1.0
    seed: int = 20241


# ---- text ---------------------------------------------------------------------------------------


def load_text(path):
    """The whole text: from a file if one is given, else from the bible command."""
    if path:
        text = Path(path).read_bytes()
    else:
        command = ["bible", "-f", "Gen1:1-Rev22:21"]
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    digest = hashlib.sha256(text).hexdigest()
    if digest != TEXT_SHA256:
        raise SystemExit(f"the text has sha256 {digest}, expected {TEXT_SHA256}")
    return text


def split_text(text, part):
    """(learned, measured) bytes: whole chapters, in the order of the text.

    For part "heldout", every chapter but the held-out ones is learned; for "dev", the held-out
    chapters are left out of both.
    """
    learned, measured = [], []
    chapter, last = -1, None
    for line in text.splitlines(keepends=True):
        name = line[: line.index(b":")]  # "Ge1" of "Ge1:1 In the beginning ..."
        if name != last:
            chapter, last = chapter + 1, name
        kind = {19: "heldout", 9: "dev"}.get(chapter % 20)
        if kind == part:
            measured.append(line)
        elif kind != "heldout":
            learned.append(line)
    return b"".join(learned), b"".join(measured)


# ---- model (module names give the tensors their Hugging Face names) -----------------------------


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def rotate(x, cos, sin):
    """Rotary embedding with the halves split (rotate_half): i pairs with i + head_dim/2."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, -1, self.s.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.s.heads // self.s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        dropout = self.s.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden, s.norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden, s.norm_eps)
        self.mlp = Mlp(s)
        self.drop = nn.Dropout(s.dropout)

    def forward(self, x, cos, sin):
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    """The model without its head: model.* of the tensors' names."""

    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(256, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = RMSNorm(s.hidden, s.norm_eps)
        self.drop = nn.Dropout(s.dropout)
        exponent = -torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim
        frequency = s.rope_theta**exponent
        angle = torch.outer(torch.arange(s.context, dtype=torch.float64), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.drop(self.embed_tokens(tokens))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class ByteLM(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.model = Llama(s)
        self.lm_head = nn.Linear(s.hidden, 256, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                ends_branch = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * s.layers) if ends_branch else 0.02)
        if s.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


# ---- measuring ----------------------------------------------------------------------------------


@torch.no_grad()
def bits_per_byte(model, text, context, stride):
    """Mean -log2 p over every byte of the text but the first, in float32.

    Windows of `context` bytes start every `stride` bytes; each predicts the byte after each of its
    positions, and only the predictions that no earlier window made are counted.
    """
    model.eval()
    device = next(model.parameters()).device
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device).long()
    total, done = 0.0, 1  # bytes before `done` are counted already, or (the first) given
    for start in range(0, len(text) - 1, stride):
        stop = min(start + context, len(text) - 1)
        if stop < done:
            break
        logits = model(data[None, start:stop])[0]
        losses = F.cross_entropy(logits, data[start + 1 : stop + 1], reduction="none")
        total += losses[done - start - 1 :].double().sum().item()
        done = stop + 1
    return total / (len(text) - 1) / math.log(2)


# ---- training -----------------------------------------------------------------------------------


def make_optimizers(model, s):
    """Muon for the matrices inside the layers, AdamW for the embedding, the head and the norms."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if n.endswith("_proj.weight")]
    rows = [p for n, p in named if p.dim() == 2 and not n.endswith("_proj.weight")]
    vectors = [p for _, p in named if p.dim() == 1]
    groups = [
        {"params": rows, "weight_decay": s.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [
        torch.optim.AdamW(groups, lr=s.lr, betas=(0.9, 0.98)),
        torch.optim.Muon(matrices, lr=s.matrix_lr, weight_decay=s.weight_decay),
    ]


def train(s, text, device, compiled):
    """Trains on random windows of the text and returns the model."""
    torch.manual_seed(s.seed)
    model = ByteLM(s).to(device)
    run = torch.compile(model) if compiled else model
    optimizers = make_optimizers(model, s)
    peaks = [[g["lr"] for g in o.param_groups] for o in optimizers]
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    offsets = torch.arange(s.context + 1, device=device)
    began = time.monotonic()
    for step in range(s.steps):
        ramp = min(1.0, (step + 1) / s.warmup)
        scale = ramp * 0.5 * (1 + math.cos(math.pi * step / s.steps))
        for optimizer, peak in zip(optimizers, peaks):
            for group, lr in zip(optimizer.param_groups, peak):
                group["lr"] = lr * scale
        starts = torch.randint(len(text) - s.context, (s.batch, 1), device=device)
        rows = data[starts + offsets].long()
        model.train()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = run(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0 or step + 1 == s.steps:
            bits, seconds = loss.item() / math.log(2), time.monotonic() - began
            progress = f"step {step + 1}/{s.steps}  train {bits:.3f} bits/byte"
            print(f"{progress}  {seconds:.0f} s", flush=True)
    return model


# ---- the weights file ---------------------------------------------------------------------------


def named_tensors(model, s):
    return {n: p for n, p in model.state_dict().items() if not (s.tied and n == "lm_head.weight")}


def metadata(s):
    """The configuration, in the names Hugging Face uses; safetensors metadata are strings."""
    values = {
        "format": "pt",
        "architecture": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": 256,
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": s.norm_eps,
        "rope_theta": s.rope_theta,
        "max_position_embeddings": s.context,
        "tie_word_embeddings": "true" if s.tied else "false",
        "text_sha256": TEXT_SHA256,
    }
    return {key: str(value) for key, value in values.items()}


def save_weights(path, model, s):
    """Writes the weights rounded to bf16, by hand: a JSON header and the raw tensors."""
    header, blobs, offset = {"__metadata__": metadata(s)}, [], 0
    for name, tensor in named_tensors(model, s).items():
        words = tensor.detach().cpu().bfloat16().contiguous().view(torch.int16).flatten().tolist()
        blob = struct.pack(f"<{len(words)}h", *words)
        span = [offset, offset + len(blob)]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": span}
        blobs.append(blob)
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % HEADER_ALIGN)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load_weights(path):
    """(model, settings) of a file that save_weights wrote, the bf16 weights widened to float32."""
    raw = Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:start])
    meta = header.pop("__metadata__")
    s = Settings(
        layers=int(meta["num_hidden_layers"]),
        hidden=int(meta["hidden_size"]),
        heads=int(meta["num_attention_heads"]),
        kv_heads=int(meta["num_key_value_heads"]),
        head_dim=int(meta["head_dim"]),
        ffn=int(meta["intermediate_size"]),
        tied=int(meta["tie_word_embeddings"] == "true"),
        context=int(meta["max_position_embeddings"]),
        rope_theta=float(meta["rope_theta"]),
        norm_eps=float(meta["rms_norm_eps"]),
    )
    model = ByteLM(s)
    for name, tensor in named_tensors(model, s).items():
        entry = header.pop(name)
        blob = bytearray(raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        assert entry["dtype"] == "BF16" and entry["shape"] == list(tensor.shape), name
        tensor.data.copy_(torch.frombuffer(blob, dtype=torch.bfloat16).view(tensor.shape).float())
    assert not header, f"unknown tensors: {sorted(header)}"
    return model, s


# ---- command line -------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains and measures bytelm.")
    for f in fields(Settings):
        parser.add_argument("--" + f.name.replace("_", "-"), type=f.type, default=f.default)
    parser.add_argument("--text", help="the text, instead of running the bible command")
    parser.add_argument("--split", choices=("heldout", "dev"), default="heldout")
    parser.add_argument("--out", default=str(HERE / "weights.safetensors"))
    parser.add_argument("--excerpt", default=str(HERE / "heldout.txt"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads for torch")
    return parser.parse_args()


def main():
    args = parse_arguments()
    s = Settings(**{f.name: getattr(args, f.name) for f in fields(Settings)})
    if args.threads:
        torch.set_num_threads(args.threads)
    learned, measured = split_text(load_text(args.text), args.split)
    print(f"{len(learned)} bytes to learn, {len(measured)} to measure ({args.split})", flush=True)
    if s.steps:
        save_weights(args.out, train(s, learned, args.device, args.compile), s)
    model, s = load_weights(args.out)
    model.to(args.device)
    count = sum(p.numel() for p in named_tensors(model, s).values())
    print(f"{count} parameters, {Path(args.out).stat().st_size} bytes")
    texts = {args.split: measured}
    if args.split == "heldout":
        texts["excerpt"] = measured[:EXCERPT_BYTES]
        Path(args.excerpt).write_bytes(texts["excerpt"])
    for name, text in texts.items():
        for stride in (s.context, s.context // 2):
            bits = bits_per_byte(model, text, s.context, stride)
            windows = f"context {s.context}, stride {stride}"
            print(f"{name}: {bits:.4f} bits/byte ({windows})", flush=True)


if __name__ == "__main__":
    main()
