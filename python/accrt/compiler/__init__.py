"""The reference compiler: from the IR (ir.py, built by a Python API) to an .accx bundle.

    from accrt.compiler import Module, compile

    m = Module("scale")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("scale")
    x = f.input("x", "f32", [n, 8])
    f.result("y", (x * 2.0).relu())
    compile(m, "scale.accx")

Passes stand apart: passes/ (decompose, merge, pack, fuse, hoist), select.py, bufferize.py, plan.py,
emit.py; emission goes through accrt.bundle_writer alone. reference.py is the float64 oracle. It
needs numpy, xxhash and a C compiler, and for CUDA nvcc (cuda/).
"""

from __future__ import annotations

try:
    import numpy as _numpy  # noqa: F401  - looked for here, to say what brings it
    import xxhash as _xxhash  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"accrt.compiler needs the package {error.name!r}: pip install 'accrt[compiler]'", name=error.name) from None

from ..bundle_writer import Segment, SymbolClass
from . import ops as _ops  # noqa: F401  - makes operations methods of Value and Function
from .driver import available_targets, compile, compile_writer
from .encodings import Quantized, declared, dequantize
from .expr import Expr, ceildiv, equal, maximum, minimum, select
from .declared import Constant, External, Shard, State, TensorType
from .ir import Function, IRError, Module, Value
from .verifier import verify
from .kernels.kerneldef import CSource, CudaSource, CudaVariant, KernelDef, OperatorSource, Param
from .ops import cat
from .quantizers import quantize
from .reference import Interpreter

__all__ = [
    "CSource", "Constant", "CudaSource", "CudaVariant", "Expr", "External", "Function", "IRError", "Interpreter", "KernelDef", "Module",
    "OperatorSource", "Param", "Quantized", "Segment", "Shard", "State", "SymbolClass", "TensorType", "Value", "available_targets", "cat", "ceildiv", "compile",
    "compile_writer", "declared", "dequantize", "equal", "maximum", "minimum", "quantize", "select", "verify",
]  # fmt: skip
