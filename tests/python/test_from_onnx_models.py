"""Whole models of 38 families (torch_models.py) through torch's exporter to ONNX and
accrt.from_onnx: every element of every result beside torch's float64 result, with fixed sizes, with
sizes that vary, and with two sizes that the export never saw. A part of them, from a seed that is
printed; ACCRT_TEST_ALL=1: all. Runs where torch, transformers, onnx and onnxscript are: `./dev
check models`."""

from __future__ import annotations

import logging
import os
import random

import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile
from accrt.from_onnx import convert

torch = pytest.importorskip("torch", reason="torch is not installed")
for _name in ("transformers", "onnx", "onnxscript"):
    pytest.importorskip(_name, reason=f"{_name} is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

import rotation  # noqa: E402
import torch_models as models  # noqa: E402

SEED = rotation.SEED


def chosen():
    names = list(models.MODELS)
    if os.environ.get("ACCRT_TEST_ALL") == "1":
        return names
    return random.Random(SEED).sample(names, 6)


@pytest.mark.parametrize("sizes", ["fixed", "vary"])
@pytest.mark.parametrize("name", chosen())
def test_model(name, sizes, instance):
    rotation.seed()
    model, inputs = models.MODELS[name]()
    models.for_onnx(name, model)
    logging.disable(logging.WARNING)  # what the exporter says of itself
    named = "" if name in models.ONNX_FIXED else name
    shapes = models.dynamic_shapes(inputs, named) if sizes == "vary" else None
    exported = torch.onnx.export(model, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, verbose=False)
    logging.disable(logging.NOTSET)
    module = convert(exported.model_proto, sizes=models.ONNX_SIZES.get(name) if sizes == "vary" else None)
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    torch.manual_seed(SEED & 0x7FFFFFFF)
    if name == "mixtral":
        model.set_experts_implementation("eager")  # the other has no float64
    models.compare(session, model, inputs)
    if sizes == "vary":
        for batch, length in ((1, 5), (3, 17)):
            models.compare(session, model, models.resized(inputs, batch, length, named))
