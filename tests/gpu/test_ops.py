"""Every operation of the compiler on a GPU: the cases of tests/python/test_compiler_ops.py,
compiled for CUDA, against the float64 reference. Run as a program it prints one line for each case
that fails (`test_ops.py [BUNDLE [FIRST STEP]]`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_compiler_ops as host_cases  # noqa: E402
from accrt.compiler import Interpreter, Module, available_targets, compile  # noqa: E402
from accrt.compiler import expr as ex  # noqa: E402

#: Types and shapes that the host's cases do not have; the same fields.
CASES = dict(host_cases.CASES)


def case(name, low=-2.0, high=2.0, roundings=8.0, scale=1.0, shapes=((1, 1), (3, 5), (17, 33), (64, 136), (0, 4))):
    def register(build):
        CASES[name] = (build, low, high, roundings, scale, shapes)

    return register


for _dtype in ("f16", "bf16", "f64"):
    case(f"wide_chain_{_dtype}", roundings=16)(
        lambda f, n, m, d=_dtype: (f.input("x", d, [n, m]) * 2.0 + f.input("y", d, [m])).gelu() - f.input("z", d, [n, 1])
    )
    for _kind in ("sum", "mean", "amax", "amin"):
        for _dim in (0, 1, None):
            case(f"gpu_{_kind}_{_dim}_{_dtype}", roundings=64, scale=64)(
                lambda f, n, m, k=_kind, d=_dim, t=_dtype: getattr(f.input("x", t, [n, m]), k)(d)
            )
for _dtype in ("i8", "u8", "i16", "u16", "u32", "i64", "u64"):
    case(f"gpu_sum_{_dtype}", 0, 9)(lambda f, n, m, d=_dtype: f.input("x", d, [n, m]).sum(0))
    case(f"gpu_amax_{_dtype}", -9 if _dtype[0] == "i" else 0, 9)(lambda f, n, m, d=_dtype: f.input("x", d, [n, m]).amax(1))
for _dtype in ("i8", "i16", "u16", "i32", "u32", "i64", "u64"):
    case(f"gpu_mm_{_dtype}", 0, 3)(lambda f, n, m, d=_dtype: f.input("x", d, [n, m]) @ f.input("y", d, [m, 7]))
for _dtype in ("bool", "f16", "f64", "i64"):
    case(f"gpu_permute_{_dtype}", 0, 9)(lambda f, n, m, d=_dtype: f.input("x", d, [n, 3, m]).permute([2, 1, 0]).clone())
    case(f"gpu_slices_{_dtype}", 0, 9)(lambda f, n, m, d=_dtype: f.input("x", d, [n, 2 * m + 3])[:, 1 : 2 * m + 1 : 2].clone())
case("gpu_long_rows", roundings=64, scale=64, shapes=((2, 5000), (1, 70001)))(lambda f, n, m: f.input("x", "f32", [n, m]).sum(1))
case("gpu_long_columns", roundings=64, scale=64, shapes=((5000, 3), (3001, 129)))(lambda f, n, m: f.input("x", "f32", [n, m]).mean(0))
case("gpu_unaligned", shapes=((1, 7), (5, 64)))(lambda f, n, m: f.input("x", "f32", [n * m + 3])[3:] * 2.0)
case("gpu_five_axes", shapes=((2, 3), (3, 8)))(
    lambda f, n, m: f.input("x", "f32", [n, 2, m, 3, 4]).permute([3, 1, 4, 0, 2]) + f.input("y", "f32", [2, 1, n, 1])
)
case("gpu_mixed_product", roundings=64, scale=16)(
    lambda f, n, m: f.input("x", "f32", [n, m]) @ f.input("y", "bf16", [9, m]).t()
)
for _dtype in ("f32", "f16", "bf16"):
    case(f"gpu_linear_{_dtype}", roundings=128 if _dtype == "f32" else 4, scale=8, shapes=((1, 1), (1, 4), (5, 3), (130, 2), (33, 40)))(
        lambda f, n, m, d=_dtype: _linear(f, n, m, d)
    )


def _linear(f, n, m, dtype):
    """Weights that are constants, with bias, activation and residual."""
    random = np.random.default_rng(5)
    weights = []
    for name, shape in (("w", (72, 40)), ("b", (72,)), ("v", (40, 72))):
        data = kh.encode(random.uniform(-0.3, 0.3, shape), dtype)
        weights.append(f.module.constant(f"{f.name}.{name}", data, dtype))
    x = f.input("x", dtype, [n, m, 40])
    return x.linear(weights[0], weights[1]).gelu().linear(weights[2]) + x


def module():
    m = Module("ops")
    sizes = [m.symbol(name, maximum=1 << 17) for name in ("n", "m")]
    for name, (build, *_rest) in CASES.items():
        f = m.function(name)
        f.result("y", build(f, *sizes))
        host_cases._bind_sizes(f, sizes)
    return m


def has_device():
    try:
        library, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        return library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


def prebuilt(name):
    """The bundle of a test's module that prebuild.py made where nvcc was, or None."""
    path = os.path.join(os.environ.get("ACCRT_GPU_TEST_BUNDLES", os.path.join(HERE, "bundles")), f"{name}.accx")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def built(name, module):
    """The module compiled for the device that is there: beforehand, or now."""
    import cuda_exec

    arch = cuda_exec.driver().arch
    return prebuilt(name) or compile(module, targets=[arch if arch in ("sm_80", "sm_90") else "ptx"])


def reason(name="ops"):
    if not has_device():
        return "no CUDA device"
    return "" if prebuilt(name) or available_targets(["cuda"]) else f"no nvcc, and no {name}.accx that was made where nvcc is"


def run_case(program, m, name):
    import cuda_exec

    _build, low, high, roundings, scale, shapes = CASES[name]
    function = m.functions[name]
    for n, k in shapes:
        random = np.random.default_rng([kh.SEED, n, k])
        sizes = {"n": n, "m": k}
        tensors = [i.value for i in function.inputs if i.value is not None]
        inputs = [ch.values(random, t.dtype, [ex.evaluate(s, sizes) for s in t.shape], low, high) for t in tensors]
        scalars = {i.name: sizes[i.symbol] for i in function.inputs if i.symbol}
        got = cuda_exec.Session(program).run(name, *[x.copy() for x in inputs], **scalars)
        # The runtime takes a library's product where the executor has the kernel in its place.
        same = not any(kernel.endswith("_lt") for kernel in cuda_exec.launched)
        made = ch.both_agree(m, program.bundle.data, name, inputs, scalars, got, on_cuda=True, same_kernels=same)
        expected = Interpreter(m).run(name, *inputs, **scalars)
        for results in (got, *([made] if made else [])):
            for result, have, want in zip(function.results, results, expected):
                ch.assert_close(have, want, result.value.dtype, roundings, scale, f"{n} x {k}: ")


@pytest.fixture(scope="module")
def suite():
    why = reason()
    if why:
        pytest.skip(why)
    import cuda_exec

    m = module()
    return m, cuda_exec.Program(built("ops", m))


@pytest.mark.parametrize("name", CASES)
def test_operation(suite, name):
    m, program = suite
    run_case(program, m, name)


def main():
    import cuda_exec

    m = module()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "rb") as file:
            data = file.read()
    else:
        data = compile(m, targets=["cuda"])
    first, step = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (0, 1)
    program = cuda_exec.Program(data)
    names = list(CASES)[first::step]
    failed = 0
    for name in names:
        try:
            with np.errstate(all="ignore"):
                run_case(program, m, name)
        except Exception as error:  # noqa: BLE001 - every kind of failure is a line of the table
            failed += 1
            lines = [line for line in str(error).splitlines() if line.strip()]
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAIL {name}: {type(error).__name__}: {' | '.join(lines[:4])[:300]} ({os.path.basename(where.filename)}:{where.lineno})")
            if "cuCtxSynchronize" in str(error):
                print("the context is lost; the rest was not run")
                break
    beside = "" if ch.runtime_program(data, "", "cuda:0") is None else ", and the runtime beside"
    print(f"part {first}/{step}{beside}: {len(names)} cases, {failed} failed, {program.dispatches} launches")


if __name__ == "__main__":
    main()
