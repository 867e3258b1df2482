"""Models of 38 families (torch_models.py) through torch.compile(backend="accrt"): every element of
every output beside torch's float64 result, with two sizes, and nothing that breaks the graph or
runs in torch. A part of them, from a seed that is printed; ACCRT_TEST_ALL=1: all. Runs where torch
and transformers are: `./dev check models`.

As a program it prints the table of docs/torch.md: one line for each model, those named or all.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

import rotation  # noqa: E402
import torch_models as models  # noqa: E402

import accrt.torch._backend as backend  # noqa: E402

SEED = rotation.SEED


def chosen(count: int = 6) -> List[str]:
    names = list(models.MODELS)
    return names if os.environ.get("ACCRT_TEST_ALL") == "1" else random.Random(SEED).sample(names, count)


class Said(logging.Handler):
    """What the backend said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def compiled(name: str) -> Dict[str, Any]:
    """Runs a model once for each of two sizes, and compares. Gives how many graphs and bundles
    there were, what broke graphs, and what was said to run in torch."""
    wholes: List[Any] = []
    make = backend._Whole.__init__

    def counted(self: Any, *args: Any) -> None:
        make(self, *args)
        wholes.append(self)

    model, inputs = models.MODELS[name]()
    rounds = [inputs, models.resized(inputs, 3, 9, name)]
    said, log = Said(), logging.getLogger("accrt.torch")
    level = log.level
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    backend._Whole.__init__ = counted  # type: ignore[method-assign]
    log.addHandler(said)
    log.setLevel(logging.INFO)
    try:
        fast = torch.compile(model, backend="accrt")
        with torch.no_grad():
            ours = [fast(**given) for given in rounds]
    finally:
        log.removeHandler(said)
        log.setLevel(level)
        backend._Whole.__init__ = make  # type: ignore[method-assign]
    if name == "mixtral":
        model.set_experts_implementation("eager")  # the other has no float64
    for given, found in zip(rounds, ours):
        models.compare_results(found, model, given)
    return {"graphs": counters["stats"]["unique_graphs"], "bundles": len(wholes), "breaks": dict(counters["graph_break"]), "said": said.lines}


@pytest.mark.parametrize("name", chosen())
def test_model(name: str) -> None:
    rotation.seed()
    torch.manual_seed(SEED & 0x7FFFFFFF)
    found = compiled(name)
    assert not found["breaks"] and not found["said"], found
    assert found["bundles"] >= 1


if __name__ == "__main__":
    for each in sys.argv[1:] or models.MODELS:
        print(each, compiled(each), flush=True)
