"""How long `python -m accrt.compiler MODEL.pt2` takes: for this machine's own target and for all,
without a cache and with one.

    python bench/build_times.py [NAME...] [--rounds N]

Builds are processes of their own, which take turns; each has a cache folder of its own. Seconds are
those of a clock and, in brackets, of processors, which say more on a busy machine. "compiled" is
what the command says of itself: without the start of Python and torch, and without the reading of
the file. Needs torch and transformers; weights are random.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python")
sys.path.insert(0, PACKAGE)

import common  # noqa: E402
import from_torch  # noqa: E402

NAMES = ("minilm", "gpt2-prefill", "resnet-18")


def export(name: str, path: str) -> None:
    import torch

    torch.manual_seed(0)
    case = from_torch.models()[name]()
    torch.export.save(torch.export.export(case.model, (), case.inputs, strict=False), path)


def build(model: str, folder: str, cache: str, *targets: str) -> dict:
    """Seconds of one build."""
    output = os.path.join(folder, "model.accx")
    environment = dict(os.environ, PYTHONPATH=PACKAGE, XDG_CACHE_HOME=cache)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "accrt.compiler", model, "-o", output, *targets], env=environment, capture_output=True, text=True)
    clock, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(done.stderr)
    os.unlink(output)
    compiled = re.search(r"compiled in ([\d.]+) s", done.stderr)
    return {"clock": clock, "processors": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "compiled": float(compiled[1]) if compiled else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    results = {}
    for name in arguments.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.pt2")
            export(name, model)
            times: dict = {"host": [], "host, cached": [], "all": []}
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as cache:
                    times["host"].append(build(model, folder, cache, "--target", "host"))
                    times["host, cached"].append(build(model, folder, cache, "--target", "host"))
                with tempfile.TemporaryDirectory() as cache:
                    times["all"].append(build(model, folder, cache))
        medians = {kind: {key: statistics.median(t[key] for t in taken) for key in taken[0]} for kind, taken in times.items()}
        results[name] = medians
        print(name)
        for kind, row in medians.items():
            share = "" if kind == "all" else "  " + ", ".join(f"{row[key] / medians['all'][key]:.2f} of {key}" for key in row)
            print(f"  {kind:14} {row['clock']:6.1f} s ({row['processors']:5.1f} s), compiled {row['compiled']:5.1f} s{share}", flush=True)
    common.save("build_times", results)


if __name__ == "__main__":
    main()
