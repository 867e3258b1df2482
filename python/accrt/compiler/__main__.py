"""python -m accrt.compiler MODEL -o MODEL.accx: compiles what torch.export.save wrote (.pt2), an
ONNX model (.onnx), or what a Python program builds (.py: its function `build()` gives a Module, or
`module` is one). Several .pt2, or .onnx, become functions of one bundle."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import runpy
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._advice import file_advice
from .._arguments import Parser, need_place
from . import command_line
from .arguments import IRError
from .ir import Module

#: Packages that convert a file, by how its name ends: convert(path, name=, maximum=) gives a
#: Module.
CONVERTERS: Dict[str, str] = {".pt2": "accrt.from_torch", ".onnx": "accrt.from_onnx"}


def read(path: str, name: str = "", maximum: int = 1 << 16, sizes: Optional[Mapping[str, Any]] = None) -> Module:
    """The module of a model's file. `sizes`: of an ONNX model's dimensions. Raises what converters
    raise, ImportError, OSError, ValueError."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (*CONVERTERS, ".py"):
        raise ValueError(f"{path}: expected a model in .pt2 (torch.export.save), .onnx or .py{file_advice(path)}")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: there is no such file")
    if sizes and suffix != ".onnx":
        raise ValueError(f"{path}: --size is of ONNX models")
    if suffix == ".py":
        return _built(path)
    return _converted(path, suffix, path, name=name, maximum=maximum, **({"sizes": sizes} if sizes else {}))


def _converted(where: str, suffix: str, model: Any, **options: Any) -> Module:
    try:
        converter: Any = importlib.import_module(CONVERTERS[suffix])
    except ModuleNotFoundError as problem:
        raise ImportError(f"{where}: {suffix} needs {CONVERTERS[suffix]}: {problem}") from problem
    return converter.convert(model, **options)


def read_several(paths: Sequence[str], name: str = "", maximum: int = 1 << 16, sizes: Optional[Mapping[str, Any]] = None) -> Module:
    """The module of several files of one kind: each is a function with the file's name, and they
    share weights and states. One file is as `read` has it. Raises as `read`."""
    if len(paths) == 1:
        return read(paths[0], name, maximum, sizes)
    suffixes = {os.path.splitext(path)[1].lower() for path in paths}
    suffix = suffixes.pop()
    if suffixes or suffix not in CONVERTERS:
        raise ValueError(f"{', '.join(paths)}: several files are all .pt2, or all .onnx")
    if sizes:
        raise ValueError("--size is of one ONNX model; accrt.from_onnx takes sizes for each of several")
    functions = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
    if len(functions) < len(paths):
        raise ValueError(f"{', '.join(paths)}: two files have one name, which the function gets")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise FileNotFoundError(f"{missing[0]}: there is no such file")
    return _converted(paths[0], suffix, functions, name=name, maximum=maximum)


def _built(path: str) -> Module:
    """What a program builds. Its own errors stay as they are, with the line."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    found = runpy.run_path(path, run_name="__accrt__")
    made = found["build"]() if callable(found.get("build")) else found.get("module")
    if not isinstance(made, Module):
        raise ValueError(f"{path}: expected a function build() that gives an accrt.compiler.Module, or a Module named module")
    return made


def _pairs(items: Optional[List[str]], parser: argparse.ArgumentParser) -> Dict[str, str]:
    pairs = [item.rpartition("=") for item in items or ()]
    for item, (pattern, _, layout) in zip(items or (), pairs):
        if not pattern or not layout:
            parser.error(f"--quantize {item}: expected PATTERN=LAYOUT, as 'layers.*=q4_k'")
    return {pattern: layout for pattern, _, layout in pairs}


def _sizes(items: Optional[List[str]], parser: argparse.ArgumentParser) -> Dict[str, Any]:
    """batch=8 or batch=1:64."""
    found: Dict[str, Any] = {}
    for item in items or ():
        name, _, size = item.rpartition("=")
        numbers = size.split(":")
        if not name or len(numbers) > 2 or not all(n.isdigit() for n in numbers):
            parser.error(f"--size {item}: expected NAME=SIZE, as batch=8 or batch=1:64")
        found[name] = int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))
    return found


def main(program: str = "accrt.compiler") -> None:
    parser = Parser(prog=f"python -m {program}", description="Compiles a model into a bundle. The model is a .pt2 file (torch.export.save), an .onnx file, or a .py file with a function build() that returns a Module.")
    parser.add_argument("model", nargs="+", help="the model's file; several become functions with the files' names: prefill.pt2 decode.pt2")
    parser.add_argument("--name", default="", help="name of the bundle (default: the file's; of several: model)")
    parser.add_argument("--maximum", type=int, default=1 << 16, help="the largest size of dimensions that vary and have no maximum of their own (default: %(default)s)")
    parser.add_argument("--size", action="append", metavar="NAME=SIZE", help="the size, or the range of sizes, of a dimension that varies in an ONNX model: batch=8 or batch=1:64 (may be given again)")
    parser.add_argument("--quantize", action="append", metavar="PATTERN=LAYOUT", help="quantize matrices whose names match, as 'layers.*=q4_k' (may be given again)")
    command_line.add_arguments(parser)
    arguments = parser.parse_args()
    sys.argv[0] = program
    quantize, sizes = _pairs(arguments.quantize, parser), _sizes(arguments.size, parser)
    command_line.targets(arguments)
    try:
        need_place(arguments.output)
    except OSError as problem:
        sys.exit(f"{program}: {problem}")
    begin = time.monotonic()
    # What is imported and read stays until the end: to look through it for garbage, again and again
    # and once more at the end, took a tenth of a build.
    gc.disable()
    try:
        module = read_several(arguments.model, arguments.name, arguments.maximum, sizes)
    except (IRError, ImportError, OSError, TypeError, ValueError) as problem:
        sys.exit(f"{program}: {problem}")
    gc.freeze()
    gc.enable()
    if not arguments.quiet:
        count = len(module.functions)
        print(f"{', '.join(arguments.model)}: {count} function{'s' if count != 1 else ''}, {len(module.constants)} weights, read in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    command_line.write(module, arguments, quantize=quantize)


if __name__ == "__main__":
    main()
