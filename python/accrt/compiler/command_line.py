"""What programs that compile a model have in common on their command lines (examples/*/build.py): where the bundle goes, what for.

    parser = argparse.ArgumentParser(description=__doc__)
    command_line.add_arguments(parser)
    arguments = parser.parse_args()
    command_line.write(build(), arguments)
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import bundle_writer as bw
from .driver import compile
from .ir import IRError, Module
from .kernels.image import ImageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --output, --target, --target-caps and --print."""
    parser.add_argument("-o", "--output", required=True, help="the bundle to write")
    parser.add_argument("--target", action="append", help="only these targets (default: all that can be built here)")
    parser.add_argument("--target-caps", metavar="FILE", help="what the bundle will run on: what `accx caps --json` prints there")
    parser.add_argument("--print", action="store_true", help="also print the IR")


def write(module: Module, arguments: argparse.Namespace, **options: Any) -> None:
    """Compiles a module as the arguments say; `options` are those of `compile`. Ends the program with one line where that fails."""
    if arguments.print:
        print(module)
    try:
        compile(module, arguments.output, targets=arguments.target, target_caps=arguments.target_caps, **options)
    except (bw.BundleError, IRError, ImageError, OSError) as problem:
        sys.exit(f"{sys.argv[0]}: {problem}")
