"""Writes .accx bundles: the public module for compiler authors. docs/accx-format.md specifies the
bytes.

    from accrt import bundle_writer as bw

    bundle = bw.BundleWriter()
    n = bundle.symbol("n", bw.SymbolClass.SPECIALIZE, maximum=1 << 20)
    kernel = bundle.kernel("double", [bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "write"),
                                      bw.Parameter("n", "symbol")])
    kernel.variant(bundle.image("double.x86-64-v3", elf_bytes), arch="x86-64-v3")
    main = bundle.function("main")
    x, y = main.input("x", "f32", [n]), main.result("y", "f32", [n])
    main.body.dispatch(kernel, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "n": n}, grid=(bw.ceildiv(n, 256), 1, 1))
    bundle.write("double.accx")

A bundle may be for several kinds of device at once. `bundle.function(name, target="cuda")` makes a
version of a function for the devices of one driver beside others of the same name and signature; a
device uses its driver's, or else the one without a target. Device code says how it is launched:

    kernel.variant(bundle.image("double.sm_90", cubin, bw.ImageKind.CUBIN), driver="cuda", arch="sm_90", block=256)
    kernel.variant(bundle.pack("accrt.cublaslt"), entry="matmul", driver="cuda", arch_kind="portable")  # an installed pack

Sizes are `int` or `Expr`: symbols and what `+ - * // %`, `ceildiv`, `minimum`, `maximum`, `select`,
`equal`, `less` ... make of them. Encoding is canonical: the same content gives the same bytes. The
order in which symbols, constants, states, kernels, functions, images and metadata were declared
does not matter (that of arguments, commands and variants has a meaning). Mistakes raise
BundleError, which names the function, command, kernel, parameter or argument.

The parts are kept in Python; writing hands them to the C writer (libaccrt_write.so,
accrt/write/bundle_writer.h), which encodes and checks them. Numpy is not needed.
"""

from __future__ import annotations

from .common import (
    CPU_FEATURES, DTYPES, SYMBOL_LIMIT, TRAIT_CAPTURABLE, TRAIT_COOPERATIVE, TRAIT_DETERMINISTIC,
    TRAIT_OVERLAPS_PREVIOUS, TRAIT_READS_HOST_METADATA, TRAIT_SERIAL, TRAIT_ZEROED_WORKSPACE, AliasKind, BundleError, Encoding,
    FileKind, ImageKind, Role, SymbolClass, dtype_size_bytes,
)  # fmt: skip
from .expressions import (
    Expr, Size, ceildiv, constant, equal, induction, less, less_equal, logical_and, logical_not, logical_or, maximum, minimum,
    not_equal, present, same, select,
)  # fmt: skip
from .extras import Adapter, Asset, File, Location, Segment, Shard
from .functions import Block, Command, Function, Range, Scalar, Slot, TensorRange, scalar
from .kernels import Image, Kernel, Parameter, Predicate
from .emit import Signer
from .model import BundleWriter, Component, Constant, State
from .target import TargetCaps, TargetError

__all__ = [
    "Adapter", "AliasKind", "Asset", "Block", "BundleError", "BundleWriter", "Command", "Component", "Constant", "DTYPES",
    "Encoding", "Expr", "File", "FileKind", "Function", "Image", "ImageKind", "Kernel", "Location", "Parameter",
    "Predicate", "Range", "Role", "Scalar", "Segment", "Shard", "Signer", "Slot", "State", "SymbolClass", "TargetCaps",
    "TargetError", "TensorRange", "ceildiv", "constant", "dtype_size_bytes", "equal", "induction", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "maximum", "minimum", "not_equal", "present", "same", "scalar", "select",
]  # fmt: skip
