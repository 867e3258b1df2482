"""Models through accrt.from_torch beside torch and onnxruntime, on hosts: medians of calls that
take turns, and the time from the start of a process to the first result.

    python bench/from_torch.py [NAME...] [--calls N] [--threads N] [--compile]

Needs torch and transformers; onnxruntime and onnx are peers where they are installed, torch.compile
with --compile. Weights are random, shapes are the models' own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))


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


def models():
    import torch
    import transformers as hf

    hf.logging.set_verbosity_error()
    ids = torch.randint(3, 9999, (1, 128))
    bert = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    image = dict(pixel_values=torch.randn(1, 3, 224, 224))
    return {
        "minilm": lambda: (hf.BertModel(hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)), bert),
        "distilbert": lambda: (hf.DistilBertModel(hf.DistilBertConfig()), bert),
        "vit-tiny": lambda: (hf.ViTModel(hf.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)), image),
        "gpt2-prefill": lambda: (hf.GPT2LMHeadModel(hf.GPT2Config()), dict(input_ids=ids, use_cache=False)),
        "resnet-18": lambda: (hf.ResNetModel(hf.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")), image),
        "unet": lambda: (unet(), dict(x=torch.randn(1, 3, 128, 128))),
    }


def peers(model, inputs, folder, threads, with_compile):
    """Functions to call, by name; each takes no argument."""
    import torch

    import accrt

    found = {}
    path = os.path.join(folder, "model.accx")
    begin = time.perf_counter()
    accrt.from_torch(model, inputs, path, targets=[native()])
    print(f"  converted and compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    instance = accrt.Instance(host_code="all", options={"host.threads": str(threads)})
    session = accrt.Program(accrt.Bundle(path, instance)).session()
    arrays = {k: v.numpy() for k, v in inputs.items() if isinstance(v, torch.Tensor)}
    call = session["forward"]
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

        onnx = os.path.join(folder, "model.onnx")
        torch.onnx.export(model, (), onnx, kwargs=inputs, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        run = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        wanted = {i.name for i in run.get_inputs()}
        found["onnxruntime"] = lambda: run.run(None, {k: v for k, v in arrays.items() if k in wanted})
    except Exception as problem:
        print(f"  without onnxruntime: {str(problem).splitlines()[0][:150]}", flush=True)
    return found, path


def native():
    flags = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    return "x86-64-v4" if " avx512vl " in flags else "x86-64-v3" if " avx2 " in flags else "aarch64"


def first_result(path, inputs, folder):
    """Seconds from the start of a process to its first result."""
    import numpy as np

    np.savez(os.path.join(folder, "inputs.npz"), **{k: v.numpy() for k, v in inputs.items() if hasattr(v, "numpy")})
    code = f"import accrt, numpy as np; accrt.load({path!r}).forward(**dict(np.load({os.path.join(folder, 'inputs.npz')!r})))"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[:1]), ACCRT_TRUST="all")
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile too, which compiles for a minute")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(arguments.threads)
    made = models()
    for name in arguments.names or made:
        torch.manual_seed(0)
        model, inputs = made[name]()
        model.eval()
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            calls, path = peers(model, inputs, folder, arguments.threads, arguments.compile)
            times = {peer: [] for peer in calls}
            for call in calls.values():
                call()
            for _ in range(arguments.calls):
                for peer, call in calls.items():
                    begin = time.perf_counter()
                    call()
                    times[peer].append((time.perf_counter() - begin) * 1e3)
            best = min(statistics.median(t) for peer, t in times.items() if peer != "accrt")
            for peer, taken in times.items():
                taken.sort()
                share = f"  {statistics.median(taken) / best:.2f} x the best peer" if peer == "accrt" else ""
                print(f"  {peer:14} {statistics.median(taken):9.2f} ms  ({taken[len(taken) // 10]:.2f} to {taken[-len(taken) // 10]:.2f}){share}", flush=True)
            print(f"  process start to first result {first_result(path, inputs, folder):.3f} s", flush=True)


if __name__ == "__main__":
    main()
