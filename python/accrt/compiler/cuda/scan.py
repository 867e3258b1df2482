"""Record of the recurrence over ragged rows with states in pages (paged_scan.cuh)."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Tuple

from .. import select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import scan
from ..kernels.kerneldef import KernelDef
from .norms import entry_kernel

#: Elements of a key that the kernel has room for; values of a block: those of a warp, and warps.
MOST, _ROWS, _WARPS = 512, 4, 4


@functools.lru_cache(maxsize=None)
def scan_kernel(key_size: int) -> KernelDef:
    if key_size > MOST:
        raise ValueError(f"a scan: keys of {key_size}, at most {MOST} are possible")
    chunks = 1
    while 32 * chunks < key_size:
        chunks *= 2
    rows = _ROWS if chunks <= 8 else 2

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (v["heads"] * ex.ceildiv(v["value_size"], rows * _WARPS), ex.maximum(v["rows"], 1), 1)

    return entry_kernel(f"paged_scan_{chunks}", "paged_scan", "paged_scan.cuh", "ACCRT_CUDA_PAGED_SCAN", (chunks, rows), scan.PARAMETERS, grid, 32 * _WARPS)


@select.rule("accrt.paged_scan", "cuda")
def _paged_scan(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that a row that does not fit gives zeros."""
    return select.paged_scan(op, operands, results, scan_kernel)
