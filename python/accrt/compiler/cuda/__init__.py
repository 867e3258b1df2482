"""CUDA kernels of the reference compiler: their records, their sources (*.cu, *.cuh) and what
builds them (nvcc.py, cuda/rtc.py).

A kernel is a KernelDef of family "cuda" whose producer is a CudaSource; a module here registers
which operations it does:

    from .. import select
    from ..kernels.kerneldef import CudaSource, KernelDef, layout, launch, reads, symbol, writes

    @functools.lru_cache(maxsize=None)
    def double_kernel(dtype):
        params = layout([reads("x"), writes("out"), symbol("n")])     # extern "C" __global__ void accrt_double_f32(
        name = f"cuda.double_{dtype}"                                  #     const float* x, float* out, long long n)
        source = CudaSource("double.cu", defines=(("TAG", dtype), ("ENTRY", f"accrt_double_{dtype}")))
        grid = lambda v: (ex.maximum(ex.ceildiv(v["n"], 256), 1), 1, 1)
        return KernelDef(name, "double", source, params, grid, family="cuda", block=(256, 1, 1), entry=f"accrt_double_{dtype}")

    @select.rule("accrt.double", "cuda", priority=10)
    def _double(op, operands, results):                                # TensorSpecs: dtype, shape, strides in elements
        if operands[0].dtype != "f32": raise ValueError("double: f32 is needed")   # the next rule is tried
        made = launch(double_kernel("f32"), {"x": "x", "out": "out"}, {"n": ...})
        return select.named(made, x=("in", 0), out=("out", 0))

Rules of one operation are tried from the highest priority down: fast kernels with conditions have
10 and more, the plain ones that take everything have 0. Where none takes an operation it is
decomposed (norms, softmax, attention). Products are `aten.matmul` (two tensors) and `accrt.product`
(self, weight [k, n], bias, residual; attributes columns, activation - none, relu, gelu, gelu_tanh,
silu, tanh, sigmoid - and dtype of the result). Results may be written over operand 0 of the
operations in select.IN_PLACE and over the residual of a product: no __restrict__ between them.
Names begin with "cuda.", entries with "accrt_". `local_memory_bytes` is dynamic shared memory;
`specials` are implementations for one architecture (sm_90a); `operator=OperatorSource(pack, name)`
names a host operator of the same parameters, preferred where its pack is there. A kernel whose
first statement is begin_kernel() (or wait_for_previous()) has `traits=elementwise.TRAITS`: it may
be launched before the one ahead has ended (from sm_90 on).

A lowering may be more than one launch: `before` are lowerings that come first, `temporaries` memory
between them (bound as ("temporary", i)). `alternatives` of a launch or of a lowering are
(condition, other): a plan takes the one that suits its number of rows, by branches of the bundle.
"""

from __future__ import annotations

import importlib
import pkgutil

from .tensor_ops import copy  # noqa: F401

# Every module of kernels registers its rules when it is imported; which there are is of no concern
# here.
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("nvcc", "rtc")):
    importlib.import_module(f"{__name__}.{_module}")
