"""Operators of examples/torch_operators beside torch eager and torch.compile, forward and forward +
backward, alone and as a block.

    ./dev bench torch_operators                              this processor, needs torch in .venv and a C++ compiler
    python bench/bench_torch_operators.py --device cuda      a GPU
    ... --quick: small shapes alone; --only NAME...; --seconds S: for each case; --plot FOLDER: only draws what a run has saved, as SVG;
        --kernels: what a GPU does in a call, kernel by kernel, as torch.profiler has it

All three run interleaved in one process, in an order that turns around. The times are those of
calls that return when the work is done. A backward is that of the sum of the result times a tensor
that is there; gradients are thrown away between calls.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import pathlib
import sys
import warnings

import common

FOLDER = common.ROOT / "examples" / "torch_operators"
NAMES = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "softmax": "softmax", "swiglu": "SwiGLU", "rope": "rotary embedding"}
BLOCKS = ("accrt", "accrt in torch.compile", "accrt at once", "accrt at once in torch.compile")
SHAPES = {"cpu": ((16, 256), (256, 1024), (2048, 2048)), "cuda": ((16, 256), (2048, 2048), (16384, 4096))}
PEERS = ("eager", "torch.compile", "accrt")
DTYPES = ("f32", "bf16", "f16")


def example():
    spec = importlib.util.spec_from_file_location("torch_operators", FOLDER / "operators.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def moved(name, tensors, backward):
    """Bytes that a kernel cannot avoid: each tensor that is read or written, once."""
    size = [t.numel() * t.element_size() for t in tensors]
    forward = sum(size) + size[0]
    reads = {"softmax": size[0], "rope": sum(size[1:])}.get(name, sum(size) - (size[-1] if name == "layer_norm" else 0))
    writes = {"softmax": size[0], "rope": size[0]}.get(name, sum(size))
    return forward + (size[0] + reads + writes if backward else 0)


# ---- A block ----


def block(torch, source, p, x, cos, sin, at_once=False):
    """One of a Llama's: the operators are source's, all else is torch's. at_once: by those that do
    more at once."""
    heads = x.shape[-1] // 64
    h = source.rms_norm(x, p["before"])
    product = torch.nn.functional.linear(h, p["qkv"]).view(*x.shape[:-1], 3, heads, 64)
    if at_once:
        q, k, v = source.rope_heads(product, cos, sin)
        weights = source.masked_softmax(q @ k.transpose(-1, -2), p["mask"])
    else:
        q, k, v = product.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = source.rope(q, cos, sin), source.rope(k, cos, sin)
        weights = source.softmax(q @ k.transpose(-1, -2) * 0.125 + p["mask"])
    x = x + torch.nn.functional.linear((weights @ v).transpose(1, 2).flatten(2), p["out"])
    h = torch.nn.functional.linear(source.rms_norm(x, p["after"]), p["up"])
    gated = source.swiglu_halves(h) if at_once else source.swiglu(*h.chunk(2, -1))
    return x + torch.nn.functional.linear(gated, p["down"])


def block_case(torch, example, device, dtype, batch, length, width):
    shapes = {"before": (width,), "after": (width,), "qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 2 * width)}
    p = {name: (torch.randn(shape) / width**0.5 + (len(shape) == 1)).to(device, dtype).requires_grad_() for name, shape in shapes.items()}
    p["mask"] = torch.full((length, length), float("-inf")).triu(1).to(device, dtype)
    x = torch.randn(batch, length, width).to(device, dtype).requires_grad_()
    return p, x, example.angles(length, 64, device=device)


# ---- Measuring ----


def candidates(torch, run, sources, leaves, like, backward):
    """By peer: what is timed."""
    made = {}
    for peer, source in sources.items():
        call = run(source)
        if peer == "torch.compile":
            call = torch.compile(call, dynamic=False)

        def timed(call=call):
            if backward:
                torch.autograd.backward(call(), like)
                for leaf in leaves:
                    leaf.grad = None
            else:
                with torch.no_grad():
                    call()
            if like.is_cuda:
                torch.cuda.synchronize()

        made[peer] = timed
    return made


def measured(torch, made, seconds):
    torch._dynamo.reset()
    times = common.interleaved(made, seconds=seconds, least=7, warmup=4)
    return {peer: common.summary(samples) for peer, samples in times.items()}


def kernels(torch, made, calls=5):
    """By peer: (us of a call, launches of a call, name) of each kernel on the GPU, from the longest
    down. One that was put on the GPU ahead of its turn has its wait in its time."""
    found = {}
    for peer, call in made.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(calls):
                call()
        events = [e for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
        found[peer] = sorted(((e.self_device_time_total / calls, e.count / calls, e.key) for e in events), reverse=True)
    return found


def show_kernels(torch, made):
    for peer, found in kernels(torch, made).items():
        print(f"      {peer:24} {sum(us for us, _n, _name in found):8.1f} us on the GPU, {sum(n for _us, n, _name in found):.0f} launches")
        for us, launches, name in found[:16]:
            print(f"        {us:8.1f} us {launches:4.0f} x {name[:100]}", flush=True)


def row(title, rows, more=""):
    text = "  ".join(f"{peer} {rows[peer]['median_s'] * 1e6:9.1f} us" for peer in PEERS)
    print(f"  {title:44} {text}  accrt / torch.compile {rows['accrt']['median_s'] / rows['torch.compile']['median_s']:5.2f}{more}", flush=True)


def measure(arguments):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(arguments.threads)
    there = example()
    device, results = arguments.device, {"operators": [], "blocks": [], "torch": torch.__version__, "device": arguments.device}
    results["threads"] = torch.get_num_threads()
    sources = {"eager": there.Eager(), "torch.compile": there.Eager(), "accrt": there.load(device, types=DTYPES, threads=arguments.threads if device == "cpu" else 0, bundle=arguments.bundle)}
    shapes = SHAPES[device][:1 if arguments.quick else None]
    for name in [n for n in NAMES if n in arguments.only]:
        for dtype in arguments.dtypes:
            for rows, columns in shapes:
                shape = (4, rows // 4, columns) if name != "rope" else (rows * columns // 64 // 128 or 1, 128, 64)
                tensors = there.arguments(name, shape, there.TYPES[dtype], device)
                leaves = [t.requires_grad_() for at, t in enumerate(tensors) if name != "rope" or at == 0]
                for backward in (False, True):
                    made = candidates(torch, lambda s: lambda: getattr(s, name)(*tensors), sources, leaves, torch.randn_like(tensors[0]), backward)
                    times = measured(torch, made, arguments.seconds)
                    entry = {"operator": name, "dtype": dtype, "shape": list(shape), "backward": backward, "bytes": moved(name, tensors, backward), "times": times}
                    results["operators"].append(entry)
                    row(f"{name} {dtype} {list(shape)}{' + backward' if backward else ''}", times)
                    if arguments.kernels:
                        show_kernels(torch, made)
                    save(results)
    for dtype in [d for d in arguments.dtypes if d != "f16"] if "block" in arguments.only else ():
        for batch, length, width in ((1, 128, 256), (4, 256, 512))[:1 if arguments.quick else None] if device == "cpu" else ((1, 512, 1024), (8, 1024, 2048)):
            p, x, tables = block_case(torch, there, device, there.TYPES[dtype], batch, length, width)
            leaves = [x, *(t for t in p.values() if t.requires_grad)]
            for backward in (False, True):
                made = candidates(torch, lambda s: lambda: block(torch, s, p, x, *tables), sources, leaves, torch.randn_like(x), backward)
                ways = {at_once: (lambda at_once=at_once: block(torch, sources["accrt"], p, x, *tables, at_once=at_once)) for at_once in (False, True)}
                calls = [ways[False], torch.compile(ways[False], dynamic=False), ways[True], torch.compile(ways[True], dynamic=False)]
                for peer, call in zip(BLOCKS, calls):
                    made[peer] = candidates(torch, lambda s, call=call: call, {"accrt": None}, leaves, torch.randn_like(x), backward)["accrt"]
                times = measured(torch, made, 2 * arguments.seconds)
                results["blocks"].append({"dtype": dtype, "shape": [batch, length, width], "backward": backward, "times": times})
                row(f"block {dtype} {[batch, length, width]}{' + backward' if backward else ''}", times,
                    "".join(f", {peer[6:]} {times[peer]['median_s'] / times['torch.compile']['median_s']:5.2f}" for peer in BLOCKS[1:]))
                if arguments.kernels:
                    show_kernels(torch, made)
                save(results)
    print(f"  -> {common.RESULTS}")


def save(results):
    """After each case: who ends it has what there is."""
    with contextlib.redirect_stdout(None):
        common.save("torch_operators" + ("_cuda" if results["device"] == "cuda" else f"_{results['threads']}"), results)


# ---- Plots ----


def plot(source, folder):
    """SVG files of a saved run: one for each way (forward, with backward) and one of blocks."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "accrt", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    saved = json.loads(source.read_text())["results"]
    colours = {"eager": "#b0b0b0", "torch.compile": "#5b8fc7", "accrt": "#d9782d", "accrt in torch.compile": "#7d4a1c", "accrt at once": "#e8b23a",
               "accrt at once in torch.compile": "#8a6a12"}
    where = "a GPU" if saved["device"] == "cuda" else f"{saved['threads']} thread{'s' * (saved['threads'] > 1)}"
    prefix = "torch-operators-" + ("gpu-" if saved["device"] == "cuda" else "")

    def bars(axis, entries, labels, peers):
        width = 0.8 / len(peers)
        for at, peer in enumerate(peers):
            middle = [e["times"][peer]["median_s"] / e["times"]["torch.compile"]["median_s"] for e in entries]
            low = [m - e["times"][peer]["p25_s"] / e["times"]["torch.compile"]["median_s"] for m, e in zip(middle, entries)]
            high = [e["times"][peer]["p75_s"] / e["times"]["torch.compile"]["median_s"] - m for m, e in zip(middle, entries)]
            places = [i + (at - (len(peers) - 1) / 2) * width for i in range(len(entries))]
            axis.bar(places, middle, width, color=colours[peer], label=peer, yerr=[[max(v, 0) for v in low], [max(v, 0) for v in high]], error_kw={"lw": 0.7})
        axis.axhline(1, color="#404040", lw=0.6)
        axis.set_xticks(range(len(entries)), labels)
        axis.set_ylim(0, 3)

    dtypes = [d for d in DTYPES if any(e["dtype"] == d for e in saved["operators"])]
    for backward, word in ((False, "forward"), (True, "backward")):
        figure, axes = pyplot.subplots(len(NAMES), len(dtypes), figsize=(3 * len(dtypes) + 2 * (len(dtypes) == 1), 10), sharey=True, layout="constrained", squeeze=False)
        for line, name in zip(axes, NAMES):
            for axis, dtype in zip(line, dtypes):
                entries = [e for e in saved["operators"] if (e["operator"], e["dtype"], e["backward"]) == (name, dtype, backward)]
                bars(axis, entries, ["x".join(map(str, e["shape"])) for e in entries], PEERS)
                axis.set_title(f"{NAMES[name]}, {dtype}", fontsize=9)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PEERS), frameon=False)
        figure.supylabel("time / that of torch.compile (median, quartiles; cut at 3)")
        figure.suptitle(("Forward and backward" if backward else "Forward") + f", {where}")
        figure.savefig(folder / f"{prefix}{word}.svg", metadata={"Date": None})
        pyplot.close(figure)
    print(table(saved))
    if not saved["blocks"]:
        return
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, backward in zip(axes, (False, True)):
        entries = [e for e in saved["blocks"] if e["backward"] == backward]
        peers = [peer for peer in colours if all(peer in e["times"] for e in saved["blocks"])]
        bars(axis, entries, [f"{e['dtype']}\n{'x'.join(map(str, e['shape']))}" for e in entries], peers)
        axis.set_title(f"a block, forward{' and backward' if backward else ''}, {where}", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    axes[0].set_ylabel("time / that of torch.compile")
    figure.savefig(folder / f"{prefix}block.svg", metadata={"Date": None})


def table(saved):
    """In Markdown: microseconds of accrt, and in how many of torch.compile's times that is."""
    def cell(entry, peer="accrt"):
        time, other = (entry["times"][p]["median_s"] * 1e6 for p in (peer, "torch.compile"))
        return f"{time:.0f} ({time / other:.2f})"

    shapes = list(dict.fromkeys((e["operator"] == "rope", "x".join(map(str, e["shape"]))) for e in saved["operators"]))
    lines = []
    for turned in (False, True):
        columns = [shape for is_rope, shape in shapes if is_rope == turned]
        heads = [f"{shape}{', and backward' if backward else ''}" for backward in (False, True) for shape in columns]
        lines += [f"| us (of torch.compile's) | {' | '.join(heads)} |", "| --- " * (1 + len(heads)) + "|"]
        for name in [n for n in NAMES if (n == "rope") == turned]:
            for dtype in DTYPES:
                found = [e for backward in (False, True) for e in saved["operators"] if (e["operator"], e["dtype"], e["backward"]) == (name, dtype, backward)]
                lines += [f"| {NAMES[name]}, {dtype} | {' | '.join(map(cell, found))} |"] if found else []
        lines.append("")
    peers = [peer for peer in (*BLOCKS, "torch.compile", "eager") if all(peer in e["times"] for e in saved["blocks"])]
    lines += [] if not saved["blocks"] else [f"| block | {' | '.join(peers)} |", "| --- " * (1 + len(peers)) + "|"]
    for e in saved["blocks"]:
        what = f"{e['dtype']}, {'x'.join(map(str, e['shape']))}{', and backward' if e['backward'] else ''}"
        lines.append("| " + " | ".join([what, *(cell(e, peer) for peer in peers)]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[*NAMES, "block"], choices=[*NAMES, "block"])
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1, help="of each peer, on a processor")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--bundle", type=pathlib.Path, help="of the example, if it is compiled already")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, default=common.RESULTS / "torch_operators_1.json", help="with --plot: the saved run")
    arguments = parser.parse_args()
    if arguments.plot:
        return plot(arguments.source, arguments.plot)
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench_torch_operators: torch is not installed (.venv/bin/pip install torch)")
    measure(arguments)


if __name__ == "__main__":
    main()
