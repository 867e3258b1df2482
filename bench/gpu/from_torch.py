"""Models of torch through accrt.from_torch on one GPU, in bf16, beside torch and torch.compile.

    python3 bench/gpu/from_torch.py [NAME...] [--skip-compile-peer] [--json FILE] [--profile FILE]
    python3 bench/gpu/from_torch.py [NAME...] --make FOLDER    # fills the compiler's cache; needs no GPU

Weights are random, from a seed, of the models' own sizes. Of each model:

agreement   Each result beside that of the same module in float64 on the GPU, and beside the error
            of torch itself in bf16. An error is |a - b| / (|b| + root mean square of b). It agrees
            if the root mean square of the errors is at most 1.25 times torch's and the largest at
            most 2 times.
times       Milliseconds of a call: medians of rounds in which all take turns, and the quarters.
            graph: replays of a CUDA graph of the function. call: as users call it, many in a row,
            to completion. accrt has calls of accrt.torch.Module (session: of a bound call of a
            session, which is what a model with a cache has); torch, and torch.compile
            (its own graph: captured from its compiled calls, inputs in place).

Each model has a process of its own, which prepares (export, conversion, kernels, torch.compile)
while others do; then they are measured one after the other, alone. --budget SECONDS: who is not
ready by then is measured without torch.compile, or left out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (os.path.join(HERE, os.pardir, os.pardir, "python"), HERE):
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)

WHERE = os.environ.get("ACCRT_BENCH_ON", "cuda")  # cpu: to try this program, without graphs
BEGAN = time.monotonic()
ROUND_MS, ROUNDS = 30.0, 11  # of one peer in one round, and how many
RMS_FACTOR, MOST_FACTOR = 1.25, 2.0
PIECE = 4194301  # values that a large matrix repeats; a prime, so that no two rows are equal
CACHE, SEEN = 1024, 512  # tokens that Llama's cache holds, and those that are in it

# ---- Models: (module in bf16, inputs by name) ----------------------------------------------------


def bert():
    import torch
    import transformers as hf

    ids = torch.randint(1000, 29000, (8, 128))
    return hf.BertModel(hf.BertConfig(), add_pooling_layer=False), dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def vit():
    import torch
    import transformers as hf

    return hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000)), dict(pixel_values=torch.randn(8, 3, 224, 224))


@contextlib.contextmanager
def without_first_values():
    """Modules are made without random numbers, which take a minute for a billion parameters."""
    import torch

    plain = {name: getattr(torch.Tensor, name) for name in ("normal_", "uniform_")}
    for name in plain:
        setattr(torch.Tensor, name, lambda tensor, *_args, **_named: tensor)
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(torch.Tensor, name, function)


def llama(**smaller):
    """One token of Llama 3.2 1B's shape after 512 others, in a cache of 1024."""
    import torch
    import transformers as hf
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    shape = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                 max_position_embeddings=8192, rope_parameters=dict(rope_type="default", rope_theta=500000.0), tie_word_embeddings=True)  # fmt: skip
    with without_first_values():
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**shape, **smaller})).eval().to(torch.bfloat16)
    piece = (torch.randn(PIECE) * 0.02).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            for part in parameter.view(-1).split(PIECE) if parameter.dim() > 1 else ():
                part.copy_(piece[: part.numel()])
    settings = model.generation_config
    settings.use_cache, settings.cache_implementation = True, "static"
    cached = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=CACHE)
    return cached, dict(input_ids=torch.tensor([[11]]), cache_position=torch.tensor([SEEN]))


def whisper():
    """The encoder over 30 seconds, and the decoder over 32 tokens."""
    import torch
    import transformers as hf

    config = hf.WhisperConfig(vocab_size=51865, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
                              encoder_ffn_dim=2048, decoder_ffn_dim=2048)  # fmt: skip
    inputs = dict(input_features=torch.randn(1, 80, 3000), decoder_input_ids=torch.randint(3, 50000, (1, 32)), use_cache=False)
    return hf.WhisperForConditionalGeneration(config), inputs


def unet():
    """One step of SD1.5: two latents of 64 x 64 (with and without the text)."""
    import torch
    from torch_nets import UNet

    return UNet(), dict(latents=torch.randn(2, 4, 64, 64), time=torch.tensor([501.0, 501.0]), text=torch.randn(2, 77, 768))


def dit():
    """One step of DiT-XL/2 at 256 x 256 pixels: two latents of 32 x 32."""
    import torch
    from torch_nets import DiT

    return DiT(), dict(latents=torch.randn(2, 4, 32, 32), time=torch.tensor([501.0, 501.0]), label=torch.tensor([7, 1000]))


MODELS = {"bert-base": bert, "vit-b": vit, "llama-1b-decode": llama, "whisper-base": whisper, "sd15-unet": unet, "dit-xl-2": dit}
TINY = {"tiny-decode": lambda: llama(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=999)}
#: Inputs that stay in float32: times, from which the networks make sines.
EXACT = ("time",)


def made(name):
    """The model and its inputs on the host."""
    import torch
    import transformers as hf

    hf.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if name.endswith("decode") else torch.float32)
    model, inputs = {**MODELS, **TINY}[name]()
    torch.set_default_dtype(torch.float32)
    floats = {n: v.bfloat16() for n, v in inputs.items() if hasattr(v, "dtype") and v.is_floating_point() and n not in EXACT}
    return model.eval().to(torch.bfloat16), {**inputs, **floats}


def tensors_of(inputs):
    return {name: value for name, value in inputs.items() if hasattr(value, "dtype")}


def moved(inputs, where, kind=None):
    """Inputs on a device; kind: the type of their floats that are not exact."""
    found = {}
    for name, value in inputs.items():
        if hasattr(value, "dtype"):
            value = value.to(where)
            value = value.to(kind) if kind is not None and value.is_floating_point() and name not in EXACT else value
        found[name] = value
    return found


def tie(model):
    """The tensors of a static cache are those of the module's buffers again, after a move."""
    for at, layer in enumerate(model.static_cache.layers if hasattr(model, "static_cache") else ()):
        layer.keys, layer.values = getattr(model, f"key_cache_{at}"), getattr(model, f"value_cache_{at}")
        layer.cumulative_length, layer.device = getattr(model, f"cumulative_length_{at}"), layer.keys.device
    return model


def wait():
    import torch

    if WHERE == "cuda":
        torch.cuda.synchronize()


def leaves(result):
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def convert(name, model, inputs, path, tell):
    import accrt
    from accrt.compiler import compile

    begin = time.perf_counter()
    program = accrt.from_torch.exported(model, dict(inputs))
    exported = time.perf_counter()
    module = accrt.from_torch.convert(program, name=name.replace("-", "_"))
    converted = time.perf_counter()
    compile(module, path, targets=["sm_90" if WHERE == "cuda" else "host"])
    end = time.perf_counter()
    tell(export_s=exported - begin, convert_s=converted - exported, compile_s=end - converted)
    return program


# ---- In a process of one model -------------------------------------------------------------------


class Case:
    """One model, ready to be measured."""

    def __init__(self, name, folder, report):
        self.name, self.folder, self.report, self.calls, self.keep = name, folder, report, {}, []

    def prepare(self, with_compile):
        import torch

        warnings.filterwarnings("ignore")
        torch.set_num_threads(2)
        self.path = os.path.join(self.folder, f"{self.name}.accx")
        # Beside torch.compile, which takes longer: the same weights come of the seed.
        command = [sys.executable, os.path.abspath(__file__), self.name, "--make", self.folder]
        converting = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        model, inputs = made(self.name)
        self.model, self.inputs = tie(model.to(WHERE)), moved(inputs, WHERE)
        self.tensors = tensors_of(self.inputs)
        for name, buffer in self.model.named_buffers():
            if "_cache_" in name:
                buffer[:, :, :SEEN].normal_()
        with torch.no_grad():
            self.model(**self.inputs)
        if with_compile:
            self.peer_compiled()
        said, _ = converting.communicate()
        if converting.returncode:
            raise RuntimeError("the conversion failed")
        self.tell(**json.loads(said.strip().splitlines()[-1]))
        self.ours()
        self.peer_eager()
        wait()

    def tell(self, **values):
        self.report.update(values)
        words = (f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print(f"  {self.name}, after {time.monotonic() - BEGAN:.0f} s: {', '.join(words)}", file=sys.stderr, flush=True)

    def states(self):
        return [name for name, _buffer in self.model.named_buffers() if "_cache_" in name]

    def ours(self):
        import torch

        import accrt
        import accrt.torch

        begin = time.perf_counter()
        if not self.states():
            module = accrt.torch.Module(self.path).to(WHERE)
            values = list(self.tensors.values())

            def call():
                with torch.no_grad():
                    return module(*values)

            self.result = leaves(call())
            wait()
            self.calls["accrt call"] = call
            self.capture("accrt graph", call)
        # A session of its own, with arguments bound.
        device = accrt.default_instance().device("cuda:0" if WHERE == "cuda" else "host")
        session = accrt.Program(accrt.Bundle(self.path, device.instance), device).session()
        with torch.no_grad():
            out = tuple(torch.empty_like(r) for r in leaves(self.model(**self.inputs)))
        for state in self.states():
            torch.from_dlpack(session.state(state)).copy_(getattr(self.model, state))
        wait()
        bound = session["forward"].bind(*self.tensors.values(), out=out if len(out) > 1 else out[0])
        bound()
        session.stream.synchronize()
        self.calls["accrt session"] = bound.submit
        self.finish = session.stream.synchronize
        self.keep += [session, bound, out]
        if self.states():
            self.result = [o.clone() for o in out]
        self.session_result = out
        self.tell(first_call_s=time.perf_counter() - begin)

    def capture(self, who, call):
        """Adds replays of a CUDA graph of a call."""
        import torch

        if WHERE != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
        graph.replay()
        wait()
        self.keep += [graph, result, side]
        self.calls[who] = graph.replay

    def peer_eager(self):
        import torch

        def eager():
            with torch.no_grad():
                return self.model(**self.inputs)

        self.calls["torch call"] = eager
        try:
            self.capture("torch graph", eager)
        except Exception as problem:
            self.tell(torch_graph=f"failed: {str(problem)[:100]!r}")

    def peer_compiled(self):
        import torch

        begin = time.perf_counter()
        try:
            compiled = torch.compile(self.model)

            def call():
                with torch.no_grad():
                    return compiled(**self.inputs)

            call()
            wait()
            self.calls["torch.compile call"] = call
            self.capture("torch.compile graph", call)
            self.compiled_result = leaves(call())
        except Exception as problem:
            self.tell(torch_compile=f"failed: {str(problem)[:200]!r}")
        self.tell(torch_compile_s=time.perf_counter() - begin)

    # -- agreement

    def agree(self):
        import torch

        with torch.no_grad():
            theirs = [t.clone() for t in leaves(self.model(**self.inputs))]
            exact = tie(copy.deepcopy(self.model).double())
            reference = leaves(exact(**moved(self.inputs, WHERE, torch.float64)))
        del exact
        good, said = True, {}
        candidates = {"accrt": self.result, "accrt session": self.session_result, "torch.compile": getattr(self, "compiled_result", None)}
        bounds = [errors(a, b) for a, b in zip(theirs, reference)]
        for who, results in candidates.items():
            if results is None:
                continue
            found = [errors(a, b) for a, b in zip(results, reference)]
            fits = len(results) == len(reference) and all(
                r <= RMS_FACTOR * tr and m <= MOST_FACTOR * tm and r == r for (r, m), (tr, tm) in zip(found, bounds))  # fmt: skip
            said[who] = dict(rms=[r for r, _ in found], most=[m for _, m in found], within=fits)
            good = good and (fits or who == "torch.compile")
        said["torch"] = dict(rms=[r for r, _ in bounds], most=[m for _, m in bounds])
        self.report["agreement"] = said
        self.report["agrees"] = good
        torch.cuda.empty_cache()

    # -- times

    def measure(self):
        def finish():
            self.finish()
            wait()

        def sample(call, count):
            finish()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            finish()
            return (time.perf_counter() - begin) / count * 1e3

        counts, samples = {}, {who: [] for who in self.calls}
        for who, call in self.calls.items():
            sample(call, 3)
            counts[who] = max(3, int(ROUND_MS / sample(call, 3)))
        for at in range(ROUNDS):
            for who in list(self.calls)[:: 1 if at % 2 else -1]:
                samples[who].append(sample(self.calls[who], counts[who]))
        self.report["times_ms"] = {who: quarters(s) for who, s in samples.items()}

    def profile(self):
        """Where the GPU's time goes: kernels of one call, the most expensive first."""
        import torch

        found = {}
        for who in ("accrt graph", "accrt session", "torch.compile graph", "torch graph"):
            if who not in self.calls or who == "accrt session" and "accrt graph" in self.calls:
                continue
            calls = 5
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(calls):
                    self.calls[who]()
                self.finish()
                wait()
            kernels = {}
            for event in profiler.events():
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    taken, count = kernels.get(event.name, (0.0, 0))
                    kernels[event.name] = taken + event.device_time / calls, count + 1
            found[who] = sorted(([n[:90], t, c / calls] for n, (t, c) in kernels.items()), key=lambda k: -k[1])[:25]
        self.report["kernels"] = found


def quarters(samples):
    low, _, high = statistics.quantiles(samples, n=4)
    return [statistics.median(samples), low, high]


def errors(a, b):
    """Root mean square and largest of the errors, by size and root mean square of the reference."""
    a, b = a.double(), b.double()
    if a.shape != b.shape:
        return float("inf"), float("inf")
    e = (a - b).abs() / (b.abs() + (b * b).mean().sqrt())
    return float((e * e).mean().sqrt()), float(e.max())


def child(name, arguments):
    """Prepares, says so, waits for its turn, measures; the report is the last line."""
    report = {"name": name}
    with tempfile.TemporaryDirectory() as folder:
        case = Case(name, folder, report)
        try:
            case.prepare(not arguments.skip_compile_peer)
            print("READY", flush=True)
            sys.stdin.readline()
            case.agree()
            case.measure()
            if arguments.profile:
                case.profile()
        except Exception as problem:
            import traceback

            report["failure"] = f"{type(problem).__name__}: {problem}"[:600]
            traceback.print_exc()
        print("REPORT " + json.dumps(report), flush=True)
    sys.stdout.flush()
    os._exit(0)


# ---- The one that starts them --------------------------------------------------------------------


class Child:
    def __init__(self, name, more):
        self.name, self.state, self.report = name, "preparing", None
        command = [sys.executable, os.path.abspath(__file__), "--child", name, *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.changed = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("READY"):
                self.state = "ready"
            elif line.startswith("REPORT "):
                self.report, self.state = json.loads(line[7:]), "done"
            self.changed.set()
        self.state = "done"
        self.changed.set()

    def turn(self, seconds):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:
            return
        end = time.monotonic() + seconds
        while self.state != "done" and time.monotonic() < end:
            time.sleep(0.02)
        self.process.kill()


def line_of(report):
    if "failure" in report:
        return f"{report['name']:16} FAILED: {report['failure'].splitlines()[0][:140]}"
    times = report["times_ms"]
    peers = {who: t[0] for who, t in times.items() if who.startswith("torch")}
    best = min(peers.values())
    own = min(t[0] for who, t in times.items() if who.startswith("accrt"))
    a = report["agreement"]
    ours, torchs = a["accrt"], a["torch"]
    text = f"{report['name']:16} {'agrees' if report['agrees'] else 'DISAGREES'} (rms {max(ours['rms']):.2g}, torch {max(torchs['rms']):.2g}; "
    text += f"most {max(ours['most']):.2g}, torch {max(torchs['most']):.2g})  {own / best:.2f} x torch's best\n"
    text += "\n".join(f"    {who:22} {t[0]:9.3f} ms  ({t[1]:.3f} to {t[2]:.3f})" for who, t in times.items())
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)} (default: all), or tiny-decode, to try this program")
    parser.add_argument("--skip-compile-peer", action="store_true")
    parser.add_argument("--json", help="writes the figures to this file")
    parser.add_argument("--profile", help="writes the kernels that take the most time to this file")
    parser.add_argument("--budget", type=float, default=600, help="seconds for all")
    parser.add_argument("--make", help="converts and compiles into this folder, in this process, and stops")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments)
    begin = time.monotonic()
    names = arguments.names or list(MODELS)
    if arguments.make:
        os.makedirs(arguments.make, exist_ok=True)
        warnings.filterwarnings("ignore")
        for name in names:
            convert(name, *made(name), os.path.join(arguments.make, f"{name}.accx"), lambda **t: print(json.dumps(t), flush=True))
        return 0
    more = [f"--{n}" for n in ("skip-compile-peer",) if getattr(arguments, n.replace("-", "_"))] + (["--profile", "yes"] if arguments.profile else [])
    children = {name: Child(name, more) for name in names}
    # All prepare first: nothing else runs while one is measured.
    while any(c.state == "preparing" for c in children.values()) and time.monotonic() - begin < arguments.budget * 0.75:
        time.sleep(0.05)
    reports = []
    for name, c in children.items():
        if c.state == "preparing":
            c.process.kill()
            reports.append({"name": name, "failure": f"was not ready after {time.monotonic() - begin:.0f} s"})
    for name, c in children.items():
        if c.state == "ready":
            c.turn(max(5.0, arguments.budget - (time.monotonic() - begin)))
        if any(r["name"] == name for r in reports):
            continue
        if c.report or c.state == "done":
            reports.append(c.report or {"name": name, "failure": "its process ended"})
        else:
            reports.append({"name": name, "failure": "was not measured in time"})
    reports.sort(key=lambda r: names.index(r["name"]))
    for report in reports:
        print(line_of(report), flush=True)
        print("    " + ", ".join(f"{k[:-2]} {v:.1f} s" for k, v in report.items() if k.endswith("_s")))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(reports, file, indent=1)
    if arguments.profile:
        with open(arguments.profile, "w") as file:
            for report in reports:
                for who, kernels in report.get("kernels", {}).items():
                    file.write(f"{report['name']}, {who}: {sum(t for _n, t, _c in kernels) / 1e3:.3f} ms in these\n")
                    file.writelines(f"  {t:10.1f} us {c:6.1f} x  {n}\n" for n, t, c in kernels)
    return 0 if all(r.get("agrees") for r in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
