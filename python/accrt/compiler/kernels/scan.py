"""Record of the recurrence over ragged rows with states in pages (paged_scan.c)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, Sequence, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, updates, writes
from .matmul import require_contiguous_last

#: The operands of the operation, in its order.
READ = ("query", "key", "value", "decay", "row_ids", "row_starts", "kv_lengths", "beta")
SIZES = ("tokens", "rows", "heads", "group", "key_size", "value_size", "decay_size", "pages", "page_size", "table_rows", "table_pages")
STEPS = tuple(f"{name}_{step}" for name in ("query", "key", "value", "decay", "beta", "out") for step in ("token", "head"))
PARAMETERS = [
    *(reads(name) for name in READ[:-1]), reads("beta", optional=True), reads("table"), updates("states"), writes("out"),
    *(symbol(name) for name in (*SIZES, *STEPS)),
]  # fmt: skip


@functools.lru_cache(maxsize=None)
def scan_kernel(key_size: int) -> KernelDef:
    """The same for all sizes."""

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (v["heads"], ex.maximum(v["rows"], 1), 1)

    producer = CSource("paged_scan.c", defines=(("ENTRY", "accrt_paged_scan"),), struct="paged_scan_params_t")
    return KernelDef("paged_scan", "paged_scan", producer, layout(PARAMETERS), grid)


def lower_scan(
    operands: Sequence[Any], states: TensorSpec, table: TensorSpec, out: TensorSpec, page_size: int, make_kernel: Callable[[int], KernelDef]
) -> Launch:  # fmt: skip
    """Operands: READ, table, states, out."""
    given = dict(zip(READ, operands))
    for name in ("query", "key", "value", "decay"):
        require_contiguous_last(given[name], name)
    require_contiguous_last(out, "out")
    query, value, decay, beta = (given[name] for name in ("query", "value", "decay", "beta"))
    (tokens, key_heads, key_size), (_tokens, heads, value_size) = query.shape, value.shape
    values = {
        "tokens": tokens, "rows": given["row_ids"].shape[0], "heads": heads, "group": heads // key_heads, "key_size": key_size, "value_size": value_size,
        "decay_size": decay.shape[2], "pages": states.shape[0], "page_size": page_size, "table_rows": table.shape[0], "table_pages": table.shape[1],
    }  # fmt: skip
    for name in ("query", "key", "value", "decay", "beta"):
        steps = (0, 0) if given[name] is None else given[name].strides[:2]
        values.update({f"{name}_token": steps[0], f"{name}_head": steps[1]})
    values.update({"out_token": out.strides[0], "out_head": out.strides[1]})
    buffers = [name for name in (*READ, "table", "states", "out") if name != "beta" or beta is not None]
    return launch(make_kernel(key_size), {name: name for name in buffers}, values)
