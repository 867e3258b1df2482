"""ONNX's own conformance tests of nodes (onnx.backend.test) through accrt.from_onnx and its
kernels, with their own tolerances.

A test is covered when all of its operations have a lowering of their own, and none of its tensors
is of a type that bundles do not have. Inputs that decide shapes are constants. NOT_YET says which
of the covered fail, and why; each of them must fail still. The figures stand in docs/from-onnx.md:
`python tests/python/test_onnx_conformance.py` prints them. Runs where onnx is: `./dev check
onnx`."""

from __future__ import annotations

import fnmatch
import pathlib
import sys
import warnings

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile
from accrt.from_onnx import convert, Method, UnsupportedOperations
from accrt.from_onnx.__main__ import BESIDE
from accrt.from_onnx.table import TABLE

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

#: Inputs that decide shapes, by operation.
DECIDING = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Tile": (1,), "Pad": (1, 3), "TopK": (1,), "Range": (0, 1, 2), "Squeeze": (1,),
    "Unsqueeze": (1,), "ConstantOfShape": (0,), "Resize": (1, 2, 3), "Split": (1,), "OneHot": (1,), "CumSum": (1,), "CumProd": (1,), "Trilu": (1,),
    "CenterCropPad": (1,), "Dropout": (1, 2), "If": (0,), "AffineGrid": (1,), "Col2Im": (1, 2), "BlackmanWindow": (0,), "HannWindow": (0,),
    "HammingWindow": (0,), **{f"Reduce{r}": (1,) for r in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")},
}  # fmt: skip
#: Which of the covered tests fail, by name, and why.
NOT_YET = {
    **dict.fromkeys(("test_batchnorm_example_training_mode", "test_batchnorm_epsilon_training_mode"), "training: the statistics of the batch"),
    **dict.fromkeys((f"test_training_dropout{which}" for which in ("", "_default", "_mask", "_default_mask")), "training: random numbers"),
    "test_attention_4d_causal_fp16_expanded": "two elements of 192 differ by the last bit of f16, where the tolerance is less than that",
}
TARGETS = [kh.host_targets()[-1]]
TOGETHER = 40  # models that are compiled as one bundle


def cases():
    """Every test of a node: (name, model, inputs, outputs, tolerances)."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx import numpy_helper

    def array(item):
        return np.asarray(numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item) if not isinstance(item, list) else item

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        for inputs, outputs in case.data_sets[:1]:
            yield case.name, case.model, [array(i) for i in inputs], [array(o) for o in outputs], case.rtol, case.atol


def operations_of(graph):
    for node in graph.node:
        yield node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from operations_of(attribute.g)


def is_covered(model):
    return set(operations_of(model.graph)) <= {*TABLE, *BESIDE}


def constants_of(model, inputs):
    """Inputs that decide shapes."""
    names = [i.name for i in model.graph.input]
    decide = [n.input[at] for n in model.graph.node for at in DECIDING.get(n.op_type, ()) if at < len(n.input)]
    return {name: inputs[names.index(name)] for name in decide if name in names}


def integers_of(model, inputs):
    """Inputs of whole numbers: one of them decides shapes, where operations that calculate with it
    are before those of DECIDING."""
    return {i.name: x for i, x in zip(model.graph.input, inputs) if isinstance(x, np.ndarray) and x.dtype.kind == "i"}


def reason(name):
    return NOT_YET.get(name, "")


def method_of(model, inputs):
    """What from_onnx takes; a string says why it does not."""
    refused = ""
    for constants in (constants_of(model, inputs), {**constants_of(model, inputs), **integers_of(model, inputs)}):
        method = Method(model, constants=constants)
        try:
            convert({"f": method})
            return method
        except UnsupportedOperations as error:
            kinds = {why.startswith("tensors of ") or name.startswith("input ") for name, _count, _where, why in error.operations}
            refused = refused or ("type" if kinds == {True} else str(error))
            if refused == "type":
                break
    return refused


def compiled(methods):
    """Sessions by name: of all together, or of each."""
    try:
        session = accrt.Program(accrt.Bundle(compile(convert(methods, name="conformance"), targets=TARGETS))).session()
        return dict.fromkeys(methods, session)
    except Exception as error:
        if len(methods) == 1:
            return {name: error for name in methods}
        half = len(methods) // 2
        items = list(methods.items())
        return {**compiled(dict(items[:half])), **compiled(dict(items[half:]))}


def problem(session, method, name, model, inputs, outputs, rtol, atol):
    """What is wrong with the results; None: nothing."""
    if isinstance(session, Exception):
        return f"{type(session).__name__}: {session}"
    given = [x for value, x in zip(model.graph.input, inputs) if value.name not in method.constants]
    try:
        out = session[name](*given)
        ours = [o.numpy() if hasattr(o, "numpy") else np.asarray(o) for o in (out if isinstance(out, (tuple, list)) else [out])]
        assert len(ours) == len(outputs), (len(ours), len(outputs))
        for a, b in zip(ours, outputs):
            assert a.shape == np.shape(b) and str(a.dtype) == str(b.dtype), (a.shape, np.shape(b), a.dtype, b.dtype)
            # as onnx's runner has it
            own = max(rtol, 2**-6) if b.dtype.name == "bfloat16" else rtol
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=own, atol=atol)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(chosen):
    """{name: None (passed), "type", or what is wrong} of tests."""
    found, rest = {}, {}
    for case in chosen:
        method = method_of(case[1], case[2])
        if isinstance(method, str):
            found[case[0]] = method
        else:
            rest[case[0]] = (method, case)
    names = list(rest)
    for at in range(0, len(names), TOGETHER):
        part = names[at : at + TOGETHER]
        sessions = compiled({name: rest[name][0] for name in part})
        for name in part:
            method, case = rest[name]
            found[name] = problem(sessions[name], method, *case)
    return found


@pytest.mark.parametrize("part", range(8))
def test_nodes(part):
    """Every covered test passes, but those of NOT_YET, which fail."""
    chosen = [case for case in cases() if is_covered(case[1])][part::8]
    found = run(chosen)
    wrong = {name: why for name, why in found.items() if why not in (None, "type") and not reason(name)}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    better = [name for name, why in found.items() if why is None and reason(name)]
    assert not better, f"these pass now: take them out of NOT_YET: {better}"
    assert sum(why is None for why in found.values()) > len(chosen) // 2


def test_what_fails_is_a_test():
    """NOT_YET names tests that are there."""
    assert set(NOT_YET) <= {case[0] for case in cases() if is_covered(case[1])}


def figures(names=()):
    """passed / covered / all, as docs/from-onnx.md has them."""
    every = [case for case in cases() if not names or any(fnmatch.fnmatch(case[0], name) for name in names)]
    typed = {case[0] for case in every if method_of(case[1], case[2]) == "type"}
    covered = [case for case in every if is_covered(case[1]) and case[0] not in typed]
    others = [case for case in every if not is_covered(case[1]) and case[0] not in typed]
    found = run(covered)
    passed = sum(why is None for why in found.values())
    more = sum(why is None for why in run(others).values())
    return passed, len(covered), len(every), len(typed), more, {name: why for name, why in found.items() if why is not None}


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    passed, covered, every, typed, more, wrong = figures(sys.argv[1:])
    for name, why in wrong.items():
        print(name, why.replace("\n", " ")[:200])
    print(f"{passed} passed / {covered} covered / {every} all ({typed} of types that bundles do not have; of the other operations {more} pass)")
