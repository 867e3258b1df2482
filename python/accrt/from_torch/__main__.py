"""python -m accrt.from_torch MODEL.pt2 -o MODEL.accx: as python -m accrt.compiler. --operations
prints what is covered."""

from __future__ import annotations

import sys

from ..compiler.__main__ import main
from . import exported  # noqa: F401  - it fills the table
from .table import TABLE


def operations() -> str:
    """The covered operations, for docs/from-torch.md: names with their overloads."""
    names: dict = {}
    for target in sorted(TABLE):
        packet, _, overload = target.removeprefix("aten.").rpartition(".")
        names.setdefault(packet, []).append(overload)
    return "\n".join(f"| `{name}` | {', '.join(overloads)} |" for name, overloads in names.items())


if __name__ == "__main__":
    if "--operations" in sys.argv[1:]:
        print(operations())
    else:
        main("accrt.from_torch")
