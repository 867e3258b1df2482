"""Lowerings by operation: TABLE["Gather"] is a function of (lowering, *inputs, **attributes), with
ONNX's own names. Operations of other domains have theirs before the name: "com.microsoft.Gelu"."""

from __future__ import annotations

from ..from_torch.table import new_table

TABLE, lowers = new_table()
