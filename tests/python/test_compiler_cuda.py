"""CUDA versions of functions, without a GPU: selection for every operation, passes, images and
their parameters, targets."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import accx_exec
import kernel_harness as kh
import rotation
import test_compiler_ops as cases
from accrt.compiler import CSource, CudaSource, Interpreter, KernelDef, Module, SymbolClass, TensorType, available_targets, compile
from accrt.compiler import driver, passes
from accrt.compiler import expr as ex
from accrt.compiler.cuda import convolutions, gradients, norms, nvcc, stream
from accrt.compiler.kernels import image, kerneldef
from accrt.compiler.ops import cat

needs_nvcc = pytest.mark.skipif(not nvcc.available_targets()[0], reason="no nvcc")
HOST = kh.host_targets()[-1]


def small_module():
    m = Module("small")
    n = m.symbol("n", minimum=1, maximum=64)
    w = m.constant("w", np.random.default_rng(3).uniform(-1, 1, (16, 8)).astype(np.float32))
    b = m.constant("b", np.random.default_rng(4).uniform(-1, 1, 16).astype(np.float32))
    f = m.function("project")
    x = f.input("x", "f32", [n, 8])
    f.result("y", x.linear(w, b).gelu().softmax(-1))
    return m


def tiny_module():
    """What nvcc compiles soonest: one kernel, without a product."""
    m = Module("tiny")
    n = m.symbol("n", minimum=1, maximum=64)
    f = m.function("smooth")
    f.result("y", f.input("x", "f32", [n, 8]).gelu())
    return m


def test_every_operation_has_cuda_kernels():
    m = Module("ops")
    sizes = [m.symbol(name, maximum=1 << 16) for name in ("n", "m")]
    for name, (build, *_rest) in cases.CASES.items():
        f = m.function(name)
        f.result("y", build(f, *sizes))
        cases._bind_sizes(f, sizes)
    _work, planned = driver._planned(m, "cuda", True)
    assert [b.function.name for b, _p in planned if not b.function.prepare] == list(cases.CASES)
    kernels = {c.launch.kernel.name: c.launch.kernel for b, _p in planned for c in b.commands if c.launch is not None}
    assert all(k.family == "cuda" and k.name.startswith("cuda.") for k in kernels.values())


#: What passes of hosts alone make: packed weights.
HOSTS_ALONE = {"accrt.pack", "accrt.matmul_packed", "accrt.staged"}


def test_whatever_hosts_have_a_kernel_for_has_one_on_cuda():
    select = sys.modules["accrt.compiler.select"]
    assert select.has_rule("aten.sort", "cuda")  # its modules are there now
    assert set(select._RULES["host"]) - set(select._RULES["cuda"]) == HOSTS_ALONE


@pytest.mark.parametrize("mask", [None, "bool", "f32"])
@pytest.mark.parametrize("dtype, head", [("bf16", 64), ("bf16", 200), ("f32", 64)])
def test_a_window_is_no_mask(mask, dtype, head):
    """Kernels begin with the first key of a window: nothing is made for it."""
    m = Module("window")
    n = m.symbol("n", maximum=64)
    for name, length in (("attend", n), ("decode", 1)):
        f = m.function(name)
        q, k = f.input("q", dtype, [1, 2, length, head]), f.input("k", dtype, [1, 2, n, head])
        given = None if mask is None else f.input("mask", dtype if mask == "f32" else mask, [1, 1, 1, n])
        f.result("y", q.scaled_dot_product_attention(k, k, given, is_causal=True, causal_offset=n - length, first_offset=n - length - 3))
    _work, planned = driver._planned(m, "cuda", True)
    for buffers, _plan in planned:
        (command,) = [c for c in buffers.commands if c.launch is not None]
        assert all(choice.kernel.name.endswith("_window") for choice in command.launch.choices())


def kernels_of(module):
    """Names of kernels, in order: the first choice of each launch, and those within branches."""
    _work, planned = driver._planned(module, "cuda", True)

    def names(commands):
        for command in commands:
            if command.launch is not None:
                yield command.launch.kernel.name
            for block in command.blocks or ():
                yield from names(block)

    return [name for buffers, _plan in planned for name in names(buffers.commands)]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("rows", [16, 300])
@pytest.mark.parametrize("head", [8, 40, 72, 80, 128, 136, 160, 192, 200, 256])
def test_attention_of_16_bits_is_on_the_tensor_cores(dtype, rows, head):
    m = Module("heads")
    f = m.function("attend")
    q, k = f.input("q", dtype, [2, 4, rows, head]), f.input("k", dtype, [2, 4, 77, head])
    f.result("y", q.scaled_dot_product_attention(k, k))
    (name,) = kernels_of(m)
    assert "_any_" not in name, name
    padded = int(re.search(r"_h(\d+)", name).group(1))
    assert head <= padded < max(head + 64, 33) and ("_few_" in name) == (rows == 16)


def test_long_lines_are_sorted_by_several_blocks():
    m = Module("lines")
    n = m.symbol("n", maximum=1 << 20)
    for name, shape, dtype in (("long", [1, 128256], "f32"), ("halves", [3, 5000], "bf16"), ("short", [4096, 512], "f32"), ("many", [1 << 15, 4096], "f32"), ("any", [2, n], "u8")):
        f = m.function(name)
        for index, made in enumerate(f.input("x", dtype, shape).sort(1)):
            f.result(f"y{index}", made)
    names = [name.removeprefix("cuda.sort_") for name in kernels_of(m)]
    passes = ["pass_f32_first", "pass_f32", "pass_f32", "pass_f32_last"]
    assert names[:5] == ["count_f32", *passes]
    assert names[5:8] == ["count_bf16", "pass_bf16_first", "pass_bf16_last"]
    assert names[8:10] == ["f32_512", "f32_any"]
    assert names[10:] == ["u8_any", "u8_any", "count_u8", "pass_u8_first_last"]


def test_lines_with_an_index_of_their_own_are_added_in_one_launch():
    m = Module("places")
    for name, size, count in (("one", 1000, 1000), ("little", 70, 200), ("long", 1000, 5000)):
        f = m.function(name)
        index, source = f.input("index", "i64", [40, count]), f.input("source", "f32", [40, count])
        f.result("y", f.input("x", "f32", [40, size]).scatter(index, source, 1, True))
    names = kernels_of(m)
    assert names[:2] == ["cuda.scatter_lines_f32_i64_1024", "cuda.scatter_lines_f32_i64_256"]
    assert names[2:] == ["cuda.sort_count_i64_place2", "cuda.sort_pass_i64_place2_first", "cuda.sort_pass_i64_place2_last", "cuda.scatter_sorted_add_f32_i64"]


@pytest.mark.parametrize("n", (384, 4096, 4097, 20000, None))
def test_gradients_of_norms_go_through_the_rows_once(n):
    """Rows of any length, known or not, have a kernel: no chain of simpler operations with values
    between them."""
    m = Module("gradients")
    f = m.function("f")
    rows, n = m.symbol("rows"), n or m.symbol("n", minimum=1)
    given = [f.input("g", "bf16", [rows, n]), f.input("x", "bf16", [rows, n]), f.input("w", "bf16", [n])]
    for index, made in enumerate(f.add("accrt.layer_norm_backward", given, {"eps": 1e-5}).results):
        f.result(f"y{index}", made)
    _work, planned = driver._planned(m, "cuda", True)
    first, *sums = [c.launch for b, _p in planned for c in b.commands if c.launch is not None]
    short, long = (f"cuda.layer_norm_backward_bf16_bf16_{each}" for each in (256, 512))
    wanted = [short, long] if not isinstance(n, int) else [short] if n <= 4096 else [long]
    assert [choice.kernel.name for choice in first.choices()] == wanted
    assert len(sums) == 2 and all("reduce_sum" in one.kernel.name for one in sums)


def test_short_rows_share_a_block():
    """A softmax whose rows may have any length has no more blocks than its rows keep busy."""
    for n, rows, blocks in ((512, 8192, 1024), (1024, 8192, 1024), (1032, 8192, 2048), (8192, 100, 100), (100_000, 7, 7), (4, 0, 1)):
        assert norms.softmax_grid("bf16")({"n": n, "rows": rows})[0] == blocks
    for n, rows, blocks in ((256, 16, 2), (512, 4096, 264), (2048, 100, 50), (4096, 100, 100), (20000, 100, 100), (64, 0, 1)):
        assert gradients.norm_blocks(rows, n) == blocks


@pytest.mark.parametrize("mask", (None, "bf16", "bool"))
def test_scale_mask_and_softmax_are_one_kernel(mask):
    m = Module("weights")
    f, n, k = m.function("f"), m.symbol("n", maximum=64), m.symbol("k", minimum=1, maximum=64)
    given = [f.input("mask", mask, [k, k])] if mask else []
    f.result("y", f.input("x", "bf16", [n, k, k]).masked_softmax(*given, scale=0.125))
    _work, planned = driver._planned(m, "cuda", True)
    (launch,) = [c.launch for b, _p in planned for c in b.commands]
    assert launch.kernel.name == f"cuda.masked_softmax_bf16_{mask or 'bool'}_0x4_0"


def test_experts_have_the_type_that_a_module_asks_for():
    m = Module("experts")
    m.compute["cuda"] = "bf16"
    f = m.function("mix")
    w = m.constant("w", np.zeros((4, 64, 32), np.float32))
    f.result("y", f.input("x", "f32", [m.symbol("n", maximum=64), 64]).grouped_matmul(w, f.input("ends", "i32", [4])))
    _work, planned = driver._planned(m, "cuda", True)
    names = {choice.kernel.name for b, _p in planned for c in b.commands if c.launch is not None for choice in c.launch.choices()}
    assert {"cuda.grouped_bf16_i32_kn_64", "cuda.grouped_bf16_i32_kn_128"} <= names


def test_a_convolution_of_patches_is_one_product():
    """As vision transformers begin: the image is copied once, not once for each place of the
    kernel."""
    m = Module("patches")
    f = m.function("embed")
    w = m.constant("w", np.zeros((768, 3, 16, 16), np.float32))
    f.result("y", f.input("x", "f32", [m.symbol("n", maximum=8), 3, 224, 224]).conv2d(w, None, 16))
    _work, planned = driver._planned(m, "cuda", True)
    (buffers,) = [b for b, _plan in planned if not b.function.prepare]
    assert len(buffers.commands) <= 3


def image_module(dtype="f32", size=16, channels=64):
    """As a block of a diffusion model; then what classifiers have."""
    m = Module("images")
    random = np.random.default_rng(kh.SEED)

    def constant(*shape):
        name = f"c{len(m.constants)}"
        return m.constant(name, kh.encode(random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])), dtype), dtype)

    f = m.function("block")
    x = f.input("x", dtype, [2, 4, size, size])
    first = x.conv2d(constant(channels, 4, 3, 3), constant(channels), 1, 1)
    y = first.group_norm(32, constant(channels), constant(channels), 1e-5).silu().conv2d(constant(channels, channels, 3, 3), constant(channels), 1, 1)
    y = y.group_norm(16, None, None, 1e-5).silu().conv2d(constant(channels, channels, 3, 3), None, 1, 1) + first.conv2d(constant(channels, channels, 1, 1))
    up = y.conv2d(constant(channels, channels, 3, 3), None, 2, 1).upsample_nearest(None, [2.0, 2.0])
    f.result("y", cat([up, y], 1).conv2d(constant(channels, 2 * channels, 3, 3), None, 1, 1))
    f = m.function("classify")
    x = f.input("x", dtype, [1, 3, size, size])
    y = ((x.conv2d(constant(channels, 3, 7, 7), None, 2, 3) * constant(channels, 1, 1) + constant(channels, 1, 1)).relu()).max_pool2d(3, 2, 1)
    y = (y.conv2d(constant(channels, channels, 3, 3), constant(channels), 1, 1) + y).relu()
    y = y.conv2d(constant(channels, 1, 3, 3), None, 1, 1, groups=channels).conv2d(constant(channels, 2, 3, 3), None, 1, 1, groups=channels // 2)
    f.result("y", y.mean([2, 3]))
    f = m.function("hear")
    y = f.input("x", dtype, [1, 8, 5 * size])
    for inputs, step in ((8, 1), (channels, 2)):
        y = y.unsqueeze(2).conv2d(constant(channels, inputs, 1, 3), constant(channels), [1, step], [0, 0, 1, 1]).select(2, 0).gelu()
    f.result("y", y.permute([0, 2, 1]).layer_norm())
    return m


def test_convolutions_keep_channels_last():
    """Nothing is copied between convolutions, norms, sums, joins and twice the size."""
    _work, planned = driver._planned(image_module(), "cuda", True)
    kernels = {b.function.name: [c.launch.kernel.name.replace("cuda.", "") for c in b.commands if c.launch is not None] for b, _p in planned}
    moved = [name for name in kernels["block"] if "transpose" in name]
    assert moved == ["transpose_32"] and kernels["block"][-1] == moved[0], "the result alone is channels first"
    assert sum(name.startswith("conv_plain") for name in kernels["block"]) == 5 and sum(name.startswith("product") for name in kernels["block"]) == 1
    for name in ("classify", "hear"):
        assert not any("transpose" in kernel or kernel.startswith("ew") for kernel in kernels[name]), kernels[name]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_convolutions_of_short_types_are_on_tensor_cores(dtype):
    m = image_module(dtype, 64, 320)
    _work, planned = driver._planned(m, "cuda", True)
    kernels = [c.launch.kernel for b, _p in planned if b.function.name == "block" for c in b.commands if c.launch is not None]
    convolutions = [k for k in kernels if k.name.startswith("cuda.conv_") and "join" not in k.name]
    assert len(convolutions) == 5 and all(k.name.startswith(f"cuda.conv_{dtype}_") for k in convolutions)
    large = [k for k in convolutions if k.name.endswith(("_128", "_160"))]
    assert large and all([v.arch for v in k.specials] == ["sm_90a"] for k in large)


@pytest.mark.parametrize("compute", ["", "f16", "bf16"])
def test_passes_keep_what_images_mean(compute):
    m = image_module()
    m.compute.update({"cuda": compute} if compute else {})
    random = np.random.default_rng(kh.SEED)
    inputs = {name: random.standard_normal(f.inputs[0].value.shape) for name, f in m.functions.items()}
    wanted = {name: Interpreter(m).run(name, x)[0] for name, x in inputs.items()}

    def check(name, work):
        for function, x in inputs.items():
            np.testing.assert_allclose(Interpreter(work).run(function, x)[0], wanted[function], rtol=1e-9, atol=1e-9, err_msg=f"{name}, seed {kh.SEED}")

    work = passes.run(m, [p for p in passes.CUDA_PIPELINE if p[0] != "hoist_constants"], observe=check)
    made = [op for f in work.functions.values() for op in f.body.walk() if op.name in ("accrt.conv_packed", "accrt.group_norm_last", "accrt.window")]
    assert {op.result.dtype for op in made} == {compute or "f32"}
    assert {op.name for op in made} == {"accrt.conv_packed", "accrt.group_norm_last", "accrt.window"}


def test_shares_of_a_convolution_cover_it():
    """Parts of k are all there, none is empty; what is small is cut so that most of the machine has
    work."""
    random = np.random.default_rng(kh.SEED)
    for _at in range(300):
        m, n, k = (int(2 ** random.uniform(0, top)) for top in (18, 11, 15))
        _tile, parts = convolutions.tiling(m, n, k)
        steps = -(-k // convolutions.STAGE_K)
        each = -(-steps // parts)
        assert (parts - 1) * each < steps <= parts * each, f"{m} x {n} x {k}, seed {kh.SEED}"
    for m, n, k in ((64, 1280, 11520), (256, 1280, 11520), (49, 512, 4608)):
        tile, parts = convolutions.tiling(m, n, k)
        assert -(-m // tile.down) * -(-n // tile.across) * parts >= 66, f"{m} x {n} x {k}"


@pytest.mark.parametrize("compute", ["", "f16", "bf16"])
def test_passes_keep_what_a_function_means(compute):
    m = small_module()
    m.compute.update({"cuda": compute} if compute else {})
    f = m.function("block")
    x = f.input("x", "f32", [3, 2, 8])
    q = x.linear(m.constants["w"], m.constants["b"])
    mixed = q.view([3, 2, 2, 8]).transpose(1, 2).scaled_dot_product_attention(*(x.view([3, 2, 1, 8]).transpose(1, 2),) * 2)
    f.result("y", (mixed.transpose(1, 2).view([3, 2, 16]) + q).layer_norm().sum(1))
    inputs = {"project": np.linspace(-1, 1, 24).reshape(3, 8), "block": np.linspace(-2, 1, 48).reshape(3, 2, 8)}
    wanted = {name: Interpreter(m).run(name, x)[0] for name, x in inputs.items()}

    def check(name, work):
        for function, x in inputs.items():
            np.testing.assert_allclose(Interpreter(work).run(function, x)[0], wanted[function], rtol=1e-9, atol=1e-12, err_msg=name)

    # Constants that prepare functions make have no content for the interpreter: the passes before
    # are compared.
    pipeline = [p for p in passes.CUDA_PIPELINE if p[0] != "hoist_constants"]
    work = passes.run(m, pipeline, observe=check)
    types = {op.result.dtype for op in work.functions["block"].body.walk() if op.name == "accrt.product"}
    assert types == {compute or "f32"}
    assert work.functions["block"].results[0].value.dtype == "f32"


@needs_nvcc
def test_a_bundle_has_both_versions_and_is_reproducible(tmp_path, monkeypatch):
    made = []
    for cache in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        made.append(compile(tiny_module(), targets=[HOST, "sm_90", "ptx"]))
    assert made[0] == made[1]
    bundle = accx_exec.Bundle(made[0])
    assert sorted({(f.name, f.target) for f in bundle.functions if not f.flags & 1}) == [("smooth", ""), ("smooth", "cuda")]
    kinds = {bundle.string(name).rpartition("tiny.")[2].split(".")[0]: kind for kind, name, _offset, _size in bundle.images}
    assert (kinds[HOST.split(".")[0]], kinds["sm_90"], kinds["compute_80"]) == (1, 2, 3)
    got = accx_exec.Session(accx_exec.Program(made[0], HOST)).run("smooth", np.ones((3, 8), np.float32))[0]
    np.testing.assert_allclose(got, Interpreter(tiny_module()).run("smooth", np.ones((3, 8)))[0], rtol=1e-5)


@needs_nvcc
def test_a_kernel_whose_parameters_are_others_is_refused():
    text = 'extern "C" __global__ void twice(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    params = kerneldef.layout([kerneldef.reads("x"), kerneldef.writes("y"), kerneldef.symbol("n")])
    kernel = KernelDef("twice", "twice", CudaSource(text=text), params, lambda v: (1, 1, 1), family="cuda", block=(32, 1, 1), entry="twice")
    with pytest.raises(image.ImageError, match=r"twice: .* its parameters .*\(16, 4\).* its record says .*\(16, 8\)"):
        nvcc.build_images([kernel], ["sm_90"])
    with pytest.raises(image.ImageError, match="has no kernel 'thrice'"):
        nvcc.build_images([KernelDef("t", "t", CudaSource(text=text), params, lambda v: (1, 1, 1), family="cuda", block=(32, 1, 1), entry="thrice")], ["sm_90"])
    bounded = text.replace("void twice", "void __launch_bounds__(64) twice").replace("int n", "long long n")
    with pytest.raises(image.ImageError, match=r"blocks of \(128, 1, 1\) threads, but the image for sm_90 is for at most 64"):
        nvcc.build_images([KernelDef("t", "t", CudaSource(text=bounded), params, lambda v: (1, 1, 1), family="cuda", block=(128, 1, 1), entry="twice")], ["sm_90"])


def test_a_lowering_may_be_several_launches():
    """Few sums of many elements in pieces; large products with an activation that cuBLASLt has not,
    told from small ones by a branch."""
    m = Module("steps")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("total")
    f.result("y", f.input("x", "f32", [n]).sum(0))
    g = m.function("dense")
    w = m.constant("w", np.zeros((512, 384), np.float16))
    g.result("y", g.input("x", "f16", [n, 384]).linear(w).gelu())
    _work, planned = driver._planned(m, "cuda", True)
    total, dense = (b.commands for b, _p in planned if not b.function.prepare)
    assert [c.launch.kernel.name for c in total] == ["cuda.reduce_sum_f32_f32_256_pieces", "cuda.reduce_sum_f32_f32_32"]
    assert total[1].predecessors == [0]
    (branch,) = dense
    for file in ("stream_row.cuh", *("stream.cuh" for _rows in stream.ROWS)):
        few, (branch,) = branch.blocks
        assert [c.launch.kernel.producer.file for c in few] == [file]
    then, otherwise = branch.blocks
    assert [c.kind for c in then] == ["dispatch"] and "gelu" in then[0].launch.kernel.name
    assert otherwise[0].launch.kernel.operator.pack == "accrt.cublaslt" and otherwise[1].launch.kernel.name.startswith("cuda.ew_gelu")
    assert otherwise[1].predecessors == [0]


@pytest.mark.parametrize("dtype, columns, steps", [("f16", 512, 2), ("bf16", 48, 2), ("f32", 512, 1)])
def test_batch_invariant_products_have_one_kernel(dtype, columns, steps):
    """Whatever the number of rows: no branch, no kernel for few rows, and cuBLASLt is told."""
    found = {}
    for invariant in (False, True):
        m = Module("steps")
        m.batch_invariant = invariant
        n = m.symbol("n", maximum=1 << 20)
        g = m.function("dense")
        w = m.constant("w", kh.encode(np.zeros((columns, 384)), dtype), dtype)
        g.result("y", (lambda x: x.relu() if dtype == "f32" else x.gelu())(g.input("x", dtype, [n, 384]).linear(w)))
        _work, planned = driver._planned(m, "cuda", True)
        (found[invariant],) = (b.commands for b, _p in planned if not b.function.prepare)
    # else this test shows nothing: cuBLASLt is asked anew for each number of rows
    assert any(c.kind != "dispatch" or c.launch.kernel.operator for c in found[False])
    assert [c.kind for c in found[True]] == ["dispatch"] * steps
    product = found[True][0].launch
    if dtype == "f32":
        assert product.kernel.operator is None
    else:
        assert product.kernel.operator.pack == "accrt.cublaslt" and product.values["form"] >> 35 & 1 == 1


def _users_kernel(cuda):
    host = """
#include "accrt/kernel.h"
typedef struct { const float* x; float* y; int64_t n; } twice_params_t;
int32_t twice(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e, (void)w;
  const twice_params_t* p = d->params;
  for (int64_t i = 0; i < p->n; i++) p->y[i] = 2 * p->x[i];
  return 0;
}
"""
    device = """
extern "C" __global__ void twice(const float* x, float* y, long long n) {
  const long long i = (long long)blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""
    params = kerneldef.layout([kerneldef.reads("x"), kerneldef.writes("y"), kerneldef.symbol("n")])
    other = KernelDef("my.twice.cuda", "twice", CudaSource(text=device), params, lambda v: ((v["n"] + 127) // 128, 1, 1),
                      family="cuda", block=(128, 1, 1), entry="twice")  # fmt: skip
    return KernelDef("my.twice", "twice", CSource(text=host, struct="twice_params_t"), params, lambda v: (1, 1, 1), entry="twice",
                     cuda=other if cuda else None)  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("cuda", [False, True])
def test_a_users_kernel_with_and_without_a_counterpart(cuda):
    m = small_module()
    f = m.function("doubled")
    n = m.symbol("k", maximum=100)
    (y,) = f.kernel(_users_kernel(cuda), [f.input("x", "f32", [n])], [TensorType("f32", (n,))], n=n)
    f.result("y", y + 1.0)
    if not cuda:
        with pytest.raises(ValueError, match="'my.twice' is for host, not for cuda"):
            compile(m, targets=[HOST, "sm_90"])
    _work, planned = driver._planned(m, "cuda", cuda)
    assert [b.function.name for b, _p in planned if not b.function.prepare] == ["project"] + (["doubled"] if cuda else [])
    if cuda:
        assert compile(m, targets=["sm_90"])


def test_targets_have_names():
    assert driver._expanded(["cuda", "x86-64-v3"]) == ["sm_80", "sm_90", "ptx", "x86-64-v3"]
    with pytest.raises(image.ImageError, match=r"no target 'sm_70'; did you mean 'sm_80' or 'sm_90'\? There are .*, cuda \(all of CUDA's\), host"):
        compile(small_module(), targets=["sm_70"])


def test_without_nvcc_hosts_are_compiled_for_as_before():
    code = (
        "import numpy as np, test_compiler_cuda as t\n"
        "from accrt.compiler import available_targets, compile\n"
        "assert not set(available_targets()) & {'sm_80', 'sm_90', 'ptx'}\n"
        f"assert compile(t.small_module()) and compile(t.small_module(), targets=['{HOST}'])\n"
        "try:\n    compile(t.small_module(), targets=['sm_90'])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    environment = dict(os.environ, ACCRT_NVCC="/nowhere/nvcc", PYTHONPATH=os.pathsep.join([os.path.join(here, "..", "..", "python"), here]))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ImageError no CUDA compiler: tried /nowhere/nvcc" in done.stdout


@needs_nvcc
def test_a_cache_is_carried_to_where_no_nvcc_is(tmp_path):
    def run(code, **changed):
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.pathsep.join([os.path.join(here, "..", "..", "python"), here])
        environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=path, **changed)
        code = "import test_compiler_cuda as t\nfrom accrt.compiler import compile\n" + code
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    make = "import sys\nsys.stdout.buffer.write(compile(t.tiny_module(), targets=['sm_90']))"
    refuse = "try:\n    %s\nexcept Exception as error:\n    print(type(error).__name__, error)"
    told = run(refuse % "compile(t.tiny_module(), targets=['sm_90'])", ACCRT_NVCC="cache")
    assert told.startswith(b"ImageError no CUDA compiler: ACCRT_NVCC is 'cache', and ") and told.endswith(b"has nothing of one\n")
    made = run(make)
    assert made and run(make, ACCRT_NVCC="cache") == made
    told = run(refuse % "compile(t.tiny_module(), targets=['sm_80'])", ACCRT_NVCC="cache")
    assert b"has not the kernels that are wanted, for sm_80" in told


@needs_nvcc
def test_a_state_is_shared_by_both_versions():
    m = Module("state")
    position = m.symbol("position", SymbolClass.RUNTIME, maximum=15)
    total = m.state("total", "f32", [16, 4])
    f = m.function("put")
    x = f.input("x", "f32", [1, 4])
    f.scalar("position", position)
    x.state_write(total, [position, 0])
    f.result("y", f.state_read(total).sum(0))
    bundle = accx_exec.Bundle(compile(m, targets=[HOST, "sm_90"]))
    assert [s["name"] for s in bundle.states] == ["total"]
    assert [f.target for f in bundle.functions] == ["", "cuda"]
    assert available_targets(["cuda"]) == ["sm_80", "sm_90", "ptx"]


@needs_nvcc
@pytest.mark.parametrize("targets, kv_heads, pages, taken", [(["sm_90"], 8, 8192, True), (["sm_90"], 2, 256, True), (["sm_90"], 2, 257, False), (["sm_80", "sm_90"], 8, 256, False), (["ptx"], 8, 256, False)])
def test_attention_of_one_token_is_one_kernel_where_there_are_clusters(targets, kv_heads, pages, taken):
    m = Module("decode")
    states = [m.state(n, "bf16", [pages, 16, kv_heads, 64]) for n in "kv"]
    table = m.state("table", "i32", [1, pages])
    f = m.function("attend")
    q = f.input("q", "bf16", [1, 4 * kv_heads, 64])
    given = f.input("row_ids", "i32", [1]), f.input("row_starts", "i32", [2]), f.input("kv_lengths", "i32", [1])
    f.result("y", q.paged_attention(*states, table, *given))
    _work, planned = driver._planned(m, "cuda", True, targets)
    names = [c.launch.kernel.name for b, _p in planned for c in b.commands if c.launch is not None]
    assert any("paged_one" in name for name in names) == taken, names


@needs_nvcc
def test_sums_of_weights_are_added_up_as_they_were_written():
    """Short rows, and as many as a call has: the kernel that adds up the sums of blocks reads as
    many rows as there are blocks."""
    m = Module("gradients")
    rows = m.symbol("rows", maximum=1 << 17)
    f = m.function("backward")
    g, x, w = f.input("g", "f32", [rows, 7]), f.input("x", "f32", [rows, 7]), f.input("w", "f32", [7])
    for i, result in enumerate(f.add("accrt.layer_norm_backward", [g, x, w], {"eps": 1e-3}).results):
        f.result(f"y{i}", result)
    _work, planned = driver._planned(m, "cuda", True)
    made = [c.launch for b, _p in planned for c in b.commands if c.launch is not None]
    first, adding = made[0], made[1:]
    assert len(adding) == 2 and all("reduce_sum" in k.kernel.name for k in adding)
    for count in (1, 3, 8, 9, 5000):
        blocks = ex.evaluate(first.kernel.grid(first.values)[0], {"rows": count})
        assert blocks == min((count + 7) // 8, 264)
        assert [ex.evaluate(k.values["r0"], {"rows": count}) * ex.evaluate(k.values["r1"], {"rows": count}) for k in adding] == [blocks] * 2


@needs_nvcc
@pytest.mark.rotating(1)
def test_kernels_that_overlap_wait_first():
    """A kernel that is launched before the one ahead has ended touches nothing, and does not end,
    before it has waited. Of the kernels, three."""
    m = small_module()
    f = m.function("more")
    x = f.input("x", "f32", [3, 2, 8])
    y = f.constant(m.constants["w"]).embedding(f.input("i", "i64", [3])) + x.transpose(0, 2).clone().sum([0, 1]).unsqueeze(1)
    f.result("y", y.rope().to_copy("f16").layer_norm())
    _work, planned = driver._planned(m, "cuda", True)
    kernels = {c.launch.kernel.name: c.launch.kernel for b, _p in planned for c in b.commands if c.launch is not None}
    overlapping = [k for k in kernels.values() if k.traits & kerneldef.TRAIT_OVERLAPS_PREVIOUS]
    assert len(overlapping) >= 6
    for kernel in rotation.part(overlapping, 3, "kernels that overlap"):
        text = nvcc.compile_unit(kernel.producer, "compute_90").decode()
        body = text[text.index(f".entry {kernel.entry}(") :]
        before = body[: body.index("griddepcontrol.wait")]
        assert not any(word in before for word in ("ld.global", "st.global", "bra", "ret;", "atom")), kernel.name
        assert "griddepcontrol.wait" not in nvcc.compile_unit(kernel.producer, "compute_80").decode()
