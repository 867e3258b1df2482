"""python -m accrt.from_torch MODEL.pt2 -o MODEL.accx: compiles an exported model. --operations prints what is covered."""

from __future__ import annotations

import argparse
import sys
import time

from ..compiler import command_line
from . import UnsupportedOperations
from .exported import convert
from .table import TABLE


def operations() -> str:
    """The covered operations, for docs/from-torch.md: names with their overloads."""
    names: dict = {}
    for target in sorted(TABLE):
        packet, _, overload = target[len("aten.") :].rpartition(".")
        names.setdefault(packet, []).append(overload)
    return "\n".join(f"| `{name}` | {', '.join(overloads)} |" for name, overloads in names.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m accrt.from_torch", description="Compiles what torch.export.save wrote (.pt2) into a bundle.")
    parser.add_argument("model", nargs="?", help="the .pt2 file")
    parser.add_argument("--name", default="", help="name of the bundle (default: the file's)")
    parser.add_argument("--maximum", type=int, default=1 << 16, help="of dimensions that vary and have no maximum (default: %(default)s)")
    parser.add_argument("--operations", action="store_true", help="print the operations that are covered, and end")
    if "--operations" in sys.argv[1:]:
        print(operations())
        return
    command_line.add_arguments(parser)
    arguments = parser.parse_args()
    if not arguments.model:
        parser.error("the .pt2 file is missing")
    begin = time.monotonic()
    try:
        module = convert(arguments.model, name=arguments.name, maximum=arguments.maximum)
    except (UnsupportedOperations, ImportError, OSError, TypeError, ValueError) as problem:
        sys.exit(f"accrt.from_torch: {problem}")
    lowered = time.monotonic()
    print(f"{arguments.model}: {len(module.constants)} weights, lowered in {lowered - begin:.1f} s", file=sys.stderr)
    command_line.write(module, arguments)
    print(f"{arguments.output}: compiled in {time.monotonic() - lowered:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
