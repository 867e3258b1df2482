"""python -m accrt.from_onnx MODEL.onnx -o MODEL.accx: as python -m accrt.compiler. --operations
prints what is covered."""

from __future__ import annotations

import sys

from ..compiler.__main__ import main
from . import convert  # noqa: F401  - it fills the table
from .table import TABLE

#: Lowered without the table: folding.py and lowering.py have them.
BESIDE = ("Constant", "If", "Shape", "Size")


def operations() -> str:
    """The covered operations, for docs/from-onnx.md."""
    return ", ".join(f"`{name}`" for name in sorted([*TABLE, *BESIDE]))


if __name__ == "__main__":
    if "--operations" in sys.argv[1:]:
        print(operations())
    else:
        main("accrt.from_onnx")
