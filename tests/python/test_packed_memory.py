"""Bytes that packed weights take, as accrt_program_estimate says them, against the bytes of the
file that they come from: on hosts, and on a GPU under the stand-in for CUDA's driver, whose kernels
do nothing here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import kernel_harness as kh
import test_standin

import accrt
from accrt.compiler import Module, available_targets, compile
from accrt.compiler.cuda import packed
from accrt.compiler.encodings import Quantized
from test_packed_kernels import random_weight

N, K = 512, 1024
#: The layouts of matrices in files that people download; the first is that of the embedding.
MIXES = {
    "Q4_K_M": ("q6_k", "q4_k", "q6_k"), "Q4_K_M, rows that 256 does not divide": ("q8_0", "q5_0", "q8_0"), "Q5_K_M": ("q6_k", "q5_k", "q6_k"),
    "Q3_K_M": ("q6_k", "q3_k", "q4_k", "q5_k"), "Q2_K": ("q6_k", "q2_k", "q3_k"), "Q4_0": ("q6_k", "q4_0"), "Q4_1": ("q6_k", "q4_1"), "Q5_1": ("q6_k", "q5_1"),
    "IQ4_NL": ("q6_k", "iq4_nl", "q5_k"), "MXFP4": ("q8_0", "ggml_mxfp4"), "Q8_0": ("q8_0",),
}  # fmt: skip
CASES = [(mix, True) for mix in MIXES] + [("Q4_K_M", False), ("Q3_K_M", False)]
_RUN = """
import json, sys, accrt
instance = accrt.default_instance("all")
program = accrt.Program(accrt.Bundle(sys.argv[1], instance), instance.device("cuda:0"))
print(json.dumps(program.estimate("step")))
"""

needs_tools = pytest.mark.skipif("sm_90" not in available_targets() or shutil.which("cc") is None, reason="no nvcc, or no C compiler")


def step(layouts, tied):
    """Lookups and products of rows in 16 bits, as in a step of a model; and the bytes of the
    weights in their layouts."""
    m, rng = Module("mix"), np.random.default_rng([kh.SEED, *"".join(layouts).encode()])
    f = m.function("step")
    x = f.input("index", "i32", [m.symbol("rows", minimum=1, maximum=8)])

    def weight(name, layout, n, k):
        q = random_weight(layout, n, k, rng)
        stored.append(sum(array.nbytes for array in q.components.values()))
        return m.weight(name, Quantized(q.layout, q.shape, q.components, q.group, "f16", q.types))

    stored = []
    table = weight("table", layouts[0], 2 * N, K)
    x = f.as_value(table).embedding(x)
    for i, layout in enumerate(layouts[1:]):
        x = x.linear(weight(f"down.{i}", layout, N, K)).linear(weight(f"up.{i}", layout, K, N))
    f.result("y", x.linear(table if tied else weight("head", layouts[0], 2 * N, K)))
    return m, sum(stored)


@needs_tools
@test_standin.needs_stand_in
@pytest.mark.rotating(2)
@pytest.mark.parametrize("mix, tied", CASES)
def test_a_mix_takes_a_tenth_more_than_its_file_at_most(mix, tied, tmp_path):
    m, stored = step(MIXES[mix], tied)
    (tmp_path / "m.accx").write_bytes(compile(m, targets=["sm_90"]))
    entries = sorted(set(re.findall(rb"accrt_[a-z][a-z0-9_]+", (tmp_path / "m.accx").read_bytes())))
    source = "".join(f"int fakecuda_{entry.decode()}(const void* const* p, const void* b) {{ (void)p, (void)b; return 0; }}\n" for entry in entries)
    (tmp_path / "twins.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", tmp_path / "twins.so", tmp_path / "twins.c"], check=True)
    env = {**test_standin.environment(arch=90), "FAKECUDA_KERNELS": str(tmp_path / "twins.so")}
    done = subprocess.run([sys.executable, "-c", _RUN, tmp_path / "m.accx"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)["weight_bytes"]
    assert 0.95 * stored <= taken <= 1.1 * stored, f"{taken / stored:.3f} of the file's bytes"


@pytest.mark.rotating(2)
@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("mix, tied", CASES)
def test_a_mix_takes_no_more_on_a_host(mix, tied, on, tmp_path):
    m, stored = step(MIXES[mix], tied)
    (tmp_path / "m.accx").write_bytes(compile(m, targets=[on]))
    instance = accrt.default_instance("all")
    program = accrt.Program(accrt.Bundle(tmp_path / "m.accx", instance), instance.device("host"))
    taken = program.estimate("step")["weight_bytes"]
    assert 0.95 * stored <= taken <= 1.1 * stored, f"{taken / stored:.3f} of the file's bytes"


@pytest.mark.parametrize("layout", [name for names in MIXES.values() for name in names])
def test_a_layout_s_records_are_as_large_as_its_blocks(layout):
    """But for what fills up the last block of rows."""
    from accrt.compiler.packing import form_of

    q = random_weight(layout, 1 << 10, 1024, np.random.default_rng(kh.SEED))
    stored = sum(array.nbytes for array in q.components.values())
    assert stored <= packed.packed_bytes(form_of(q)) <= 1.07 * stored
