"""How long accrt.from_torch.convert takes beside torch's own export, over the families of models
that tests convert (tests/python/torch_models.py): processor time, so that it means something on a
busy machine.

    python bench/from_torch_times.py [NAME...] [--rounds N]

Needs torch and transformers. Models are small, and their graphs as long as two layers make them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, "python"), os.path.join(HERE, os.pardir, "tests", "python")]


def seconds(call):
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def main():
    import torch
    import torch_models

    from accrt.from_torch import convert

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    every, shares = {**torch_models.MODELS, **torch_models.OTHERS}, []
    for name in arguments.names or every:
        model, inputs = every[name]()
        shapes = torch_models.dynamic_shapes(inputs, name)
        exports, conversions = [], []
        for _ in range(arguments.rounds):
            taken, program = seconds(lambda: torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False))
            exports.append(taken)
            conversions.append(seconds(lambda: convert(program))[0])
        shares.append(min(conversions) / min(exports))
        print(f"{name:16} export {min(exports):6.2f} s  convert {min(conversions):6.2f} s  {shares[-1]:.2f}", flush=True)
    print(f"{len(shares)} models: median {statistics.median(shares):.2f}, most {max(shares):.2f}")


if __name__ == "__main__":
    main()
