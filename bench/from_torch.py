"""Models through accrt.from_torch beside torch, torch.compile and onnxruntime, on hosts: medians of
calls that take turns, and the time from the start of a process to the first result of each.

    python bench/from_torch.py [NAME...] [--calls N] [--threads N] [--compile] [--json FILE]
    python bench/from_torch.py --compile --starts 0      # calls of all six, beside all three
    python bench/from_torch.py --compile --calls 0       # starts of all six: one table

Without names: all six that the figures ask for. Needs torch and transformers; onnxruntime and onnx
are peers where they are installed, torch.compile with --compile. Figures are medians and, in
brackets, quartiles. A start is a fresh process that has a file only: the bundle, the .onnx file, or
the saved module, which torch.compile compiles with the caches of an earlier start and ("cold") with
empty ones; imports count. Weights are random, shapes are the models' own. The order of the peers
turns around from round to round, with a pause before each call, so that no peer's waiting threads
run in another's time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

#: Between calls, in seconds: threads of pools go on spinning for some milliseconds.
PAUSE = 0.02
SIX = ("minilm", "distilbert", "vit-tiny", "gpt2-prefill", "gpt2-decode", "resnet-18")
CONTEXT = 128  # tokens that a decoder has seen

def unet():
    """Two levels down and up, with batch norms, as for segmentation."""
    import torch
    from torch import nn

    def double(inputs, outputs):
        each = [(inputs, outputs), (outputs, outputs)]
        return nn.Sequential(*(m for i, o in each for m in (nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())))

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.low = double(3, 32), double(32, 64), double(64, 128)
            self.up_second, self.up_first = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
            self.second_back, self.first_back, self.last = double(128, 64), double(64, 32), nn.Conv2d(32, 2, 1)
            self.down = nn.MaxPool2d(2)

        def forward(self, x):
            first = self.first(x)
            second = self.second(self.down(first))
            low = self.low(self.down(second))
            second = self.second_back(torch.cat([second, self.up_second(low)], 1))
            return self.last(self.first_back(torch.cat([first, self.up_first(second)], 1)))

    return Unet()


class Case:
    """A model, its inputs by name, and where it matters what each peer takes instead."""

    def __init__(self, model, inputs, onnx=None):
        self.model, self.inputs = model.eval(), inputs
        self.onnx = onnx or (self.model, inputs)


def gpt2_decode():
    """One token after 128 others. A cache of fixed size lives in the session, and in torch's
    module; onnxruntime takes the keys and values as inputs and gives the longer ones, as is usual
    there."""
    import torch
    import transformers as hf
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    model = hf.GPT2LMHeadModel(hf.GPT2Config()).eval()
    settings = model.generation_config
    settings.use_cache, settings.cache_implementation = True, "static"
    with torch.no_grad():
        cached = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=CONTEXT + 64)

    class Growing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, position, keys, values):
            cache = hf.DynamicCache(list(zip(keys.unbind(0), values.unbind(0))))
            out = self.model(input_ids=input_ids, position_ids=position, past_key_values=cache, use_cache=True)
            layers = out.past_key_values.layers
            return out.logits, torch.stack([layer.keys for layer in layers]), torch.stack([layer.values for layer in layers])

    token, shape = torch.tensor([[11]]), (12, 1, 12, CONTEXT, 64)
    growing = dict(input_ids=token, position=torch.tensor([[CONTEXT]]), keys=torch.randn(shape), values=torch.randn(shape))
    return Case(cached, dict(input_ids=token, cache_position=torch.tensor([CONTEXT])), (Growing().eval(), growing))


def models():
    import torch
    import transformers as hf

    hf.logging.set_verbosity_error()
    ids = torch.randint(3, 9999, (1, 128))
    bert = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    image = dict(pixel_values=torch.randn(1, 3, 224, 224))
    return {
        "minilm": lambda: Case(hf.BertModel(hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)), bert),
        "distilbert": lambda: Case(hf.DistilBertModel(hf.DistilBertConfig()), bert),
        "vit-tiny": lambda: Case(hf.ViTModel(hf.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)), image),
        "gpt2-prefill": lambda: Case(hf.GPT2LMHeadModel(hf.GPT2Config()), dict(input_ids=ids, use_cache=False)),
        "gpt2-decode": gpt2_decode,
        "resnet-18": lambda: Case(hf.ResNetModel(hf.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")), image),
        "unet": lambda: Case(unet(), dict(x=torch.randn(1, 3, 128, 128))),
    }


def arrays_of(inputs):
    return {name: value.numpy() for name, value in inputs.items() if hasattr(value, "numpy")}


def peers(case, folder, threads, with_compile):
    """Functions to call, by name; each takes no argument. Leaves model.accx, model.pt and
    model.onnx in the folder."""
    import torch

    import accrt

    model, inputs, found = case.model, case.inputs, {}
    path = os.path.join(folder, "model.accx")
    begin = time.perf_counter()
    program = accrt.from_torch.exported(model, inputs)
    middle = time.perf_counter()
    accrt.from_torch(program, path=path, targets=[native()])
    print(f"  exported in {middle - begin:.1f} s, converted and compiled in {time.perf_counter() - middle:.1f} s", flush=True)
    torch.save(model, os.path.join(folder, "model.pt"))
    instance = accrt.Instance(host_code="all", options={"host.threads": str(threads)})
    session = accrt.Program(accrt.Bundle(path, instance)).session()
    arrays, call = arrays_of(inputs), session["forward"]
    found["accrt"] = lambda: call(**arrays)

    def eager():
        with torch.inference_mode():
            return model(**inputs)

    found["torch"] = eager
    if with_compile:
        compiled = torch.compile(model)

        def inductor():
            with torch.inference_mode():
                return compiled(**inputs)

        found["torch.compile"] = inductor
    try:
        import onnxruntime

        onnx, (module, given) = os.path.join(folder, "model.onnx"), case.onnx
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(module, (), onnx, kwargs=given, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        run = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        wanted = {i.name for i in run.get_inputs()}
        feed = {k: v for k, v in arrays_of(given).items() if k in wanted}
        found["onnxruntime"] = lambda: run.run(None, feed)
    except Exception as problem:
        print(f"  without onnxruntime: {str(problem).splitlines()[0][:150]}", flush=True)
    return found


def native():
    flags = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    return "x86-64-v4" if " avx512vl " in flags else "x86-64-v3" if " avx2 " in flags else "aarch64"


#: What a process does that has only a file: "{folder}" has the files, `inputs` is there.
STARTS = {
    "accrt": """
import accrt
instance = accrt.Instance(host_code="all", options={{"host.threads": "{threads}"}})
accrt.Program(accrt.Bundle("{folder}/model.accx", instance)).session().forward(**inputs)""",
    "onnxruntime": """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
run = onnxruntime.InferenceSession("{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
run.run(None, {{k: v for k, v in others.items() if k in [i.name for i in run.get_inputs()]}})""",
    "torch": """
import torch
torch.set_num_threads({threads})
model = torch.load("{folder}/model.pt", weights_only=False)
with torch.no_grad():
    model(**{{k: torch.from_numpy(v) for k, v in inputs.items()}}{more})""",
    "torch.compile": """
import torch
torch.set_num_threads({threads})
model = torch.compile(torch.load("{folder}/model.pt", weights_only=False))
with torch.no_grad():
    model(**{{k: torch.from_numpy(v) for k, v in inputs.items()}}{more})""",
}
HEAD = """
import numpy as np
inputs, others = (dict(np.load("{folder}/" + name)) for name in ("inputs.npz", "others.npz"))
"""


def first_results(case, folder, names, threads, rounds):
    """By peer, seconds and processor seconds from the start of a process to its first result, in
    turn. torch.compile has its caches of an earlier start, and none under the name "cold". None: it
    fails."""
    import numpy as np

    names = [*names, *(["torch.compile, cold"] if "torch.compile" in names else [])]

    np.savez(os.path.join(folder, "inputs.npz"), **arrays_of(case.inputs))
    np.savez(os.path.join(folder, "others.npz"), **arrays_of(case.onnx[1]))
    more = "".join(f", {k}={v!r}" for k, v in case.inputs.items() if not hasattr(v, "numpy"))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[:1]))
    commands = {name: [sys.executable, "-c", (HEAD + STARTS[name.partition(",")[0]]).format(folder=folder, threads=threads, more=more)] for name in names}
    tool = os.environ.get("ACCRT_ACCX") or os.path.join(os.path.dirname(sys.path[0]), "build", "bin", "accx")
    if os.path.exists(tool):
        for name, array in arrays_of(case.inputs).items():
            np.save(os.path.join(folder, f"{name}.npy"), array)
        given = [word for name in arrays_of(case.inputs) for word in ("--input", f"{name}={folder}/{name}.npy")]
        commands["accrt from C"] = [tool, "run", os.path.join(folder, "model.accx"), "--trust", "all", "--threads", str(threads), *given]
    times = {name: [] for name in commands}
    for at in range(rounds + 1):  # the first fills caches
        for name, command in commands.items():
            cold = name.endswith("cold")
            if times[name] is None or cold and at != 1:  # a minute each: one is enough
                continue
            environment["TORCHINDUCTOR_CACHE_DIR"] = environment["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=folder) if cold else os.path.join(folder, "inductor")
            begin, used = time.perf_counter(), os.times()
            if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
                times[name] = None
                continue
            after = os.times()
            if at:
                times[name].append((time.perf_counter() - begin, sum(after[2:4]) - sum(used[2:4])))
    return {name: None if not t else [statistics.median(column) for column in zip(*t)] for name, t in times.items()}


def table(figures):
    """Of all models: seconds from the start of a process to its first result and, in brackets, of
    processors."""
    peers_of = list(dict.fromkeys(peer for row in figures.values() for peer in row["starts"]))
    print("\n| first result | " + " | ".join(peers_of) + " |\n|" + " --- |" * (len(peers_of) + 1))
    for name, row in figures.items():
        cells = ["-" if row["starts"].get(peer) is None else "{:.2f} s ({:.2f})".format(*row["starts"][peer]) for peer in peers_of]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


@contextlib.contextmanager
def right_of_way(wanted):
    """All threads of the process go before those of others, where the system allows it."""

    def give(policy, priority):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread), policy, os.sched_param(priority))

    if wanted:
        give(os.SCHED_RR, 1)
    try:
        yield
    finally:
        if wanted:
            give(os.SCHED_OTHER, 0)


def taken(calls, rounds):
    """Milliseconds of each call by peer, sorted."""
    times = {peer: [] for peer in calls}
    for call in calls.values():
        call()
        call()
    for at in range(rounds):
        for peer in list(calls)[:: 1 if at % 2 else -1]:
            time.sleep(PAUSE)
            begin = time.perf_counter()
            calls[peer]()
            times[peer].append((time.perf_counter() - begin) * 1e3)
    return {peer: sorted(t) for peer, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--starts", type=int, default=3, help="measured processes of each peer; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile too, which compiles for a minute")
    parser.add_argument("--first", action="store_true", help="calls go before other processes' work, on a busy machine")
    parser.add_argument("--json", help="writes the figures to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(arguments.threads)
    made, figures = models(), {}
    for name in arguments.names or SIX:
        torch.manual_seed(0)
        case = made[name]()
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            calls = peers(case, folder, arguments.threads, arguments.compile)
            times = {}
            if arguments.calls:
                for call in calls.values():  # which makes threads
                    call()
                with right_of_way(arguments.first):
                    times = taken(calls, arguments.calls)
            starts = first_results(case, folder, list(calls), arguments.threads, arguments.starts) if arguments.starts else {}
        quarters = {peer: statistics.quantiles(t, n=4) for peer, t in times.items()}
        figures[name] = {"starts": starts}
        best = [] if not quarters else [min(q[at] for peer, q in quarters.items() if peer != "accrt") for at in range(3)]
        for peer, (low, median, high) in quarters.items():
            figures[name][peer] = {"median": median, "low": low, "high": high}
            share = f"  {median / best[1]:.2f} x the best peer (lower quartiles: {low / best[0]:.2f})" if peer == "accrt" else ""
            start = "" if not starts.get(peer) else f"  first result {starts[peer][0]:.2f} s, {starts[peer][1]:.2f} s of processors"
            print(f"  {peer:14} {median:9.2f} ms  ({low:.2f} to {high:.2f}){share}{start}", flush=True)
    if arguments.starts:
        table(figures)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
