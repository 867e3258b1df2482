"""What programs that compile a model have in common on their command lines (examples/*/build.py):
where the bundle goes, its targets, and how progress is shown.

    parser = argparse.ArgumentParser(description=__doc__)
    command_line.add_arguments(parser)
    arguments = parser.parse_args()
    command_line.write(build(), arguments)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Dict, List, Optional, TextIO, Tuple

from .. import bundle_writer as bw
from . import progress
from .driver import _expanded, compile
from .ir import IRError, Module
from .kernels.image import ImageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --output, --target, --target-caps, --print, --jobs, --quiet and --verbose."""
    parser.add_argument("-o", "--output", required=True, help="the bundle to write")
    parser.add_argument("--target", action="append", metavar="NAMES",
                        help="only these targets, with commas between them: host (this machine), hosts (all of hosts), cuda (all of CUDA), x86-64-v3, "
                             "sm_90, ... (default: all that can be built here)")  # fmt: skip
    parser.add_argument("--target-caps", metavar="FILE", help="a file with the output of `accx caps --json` of the machine that will run the bundle")
    parser.add_argument("--print", action="store_true", help="also print the module as text")
    parser.add_argument("-j", "--jobs", type=int, default=0, metavar="N", help="most compilers that run at the same time (default: one for each processor)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("-v", "--verbose", action="store_true", help="print a line for each finished part, also without a terminal")


def targets(arguments: argparse.Namespace) -> Optional[List[str]]:
    """The names behind --target, one by one; None where there is none. Ends the program with one
    line where there is no such target."""
    if not arguments.target:
        return None
    try:
        return _expanded([name.strip() for names in arguments.target for name in names.split(",") if name.strip()])
    except ImageError as problem:
        sys.exit(f"{sys.argv[0]}: {problem}")


def write(module: Module, arguments: argparse.Namespace, **options: Any) -> None:
    """Compiles a module as the arguments say; `options` are those of `compile`. Ends the program
    with one line where that fails."""
    if arguments.print:
        print(module)
    wanted = targets(arguments)
    shown = Progress(sys.stderr, quiet=arguments.quiet, verbose=arguments.verbose)
    try:
        with progress.watching(shown, arguments.jobs):
            compile(module, arguments.output, targets=wanted, target_caps=arguments.target_caps, **options)
    except (bw.BundleError, IRError, ImageError, OSError) as problem:
        shown.clear()
        sys.exit(f"{sys.argv[0]}: {problem}")
    shown.end(arguments.output)


class Progress:
    """Progress on a stream: on a terminal one line that changes, and a line for each part that is
    done; elsewhere the last line alone, which has the times of all parts."""

    def __init__(self, stream: TextIO, quiet: bool = False, verbose: bool = False) -> None:
        self.stream, self.quiet = stream, quiet
        self.live = not quiet and stream.isatty()
        self.lines = not quiet and (verbose or self.live)
        self.began = self.since = time.monotonic()
        self.part: Tuple[str, str] = ("", "")
        self.seconds: Dict[str, float] = {}
        self.steps: Dict[Tuple[str, str], progress.Step] = {}

    def __call__(self, step: progress.Step) -> None:
        now = time.monotonic()
        if self.part != step[:2]:
            self.part, self.since = (step.part, step.target), now
        before = self.steps.get(self.part)
        self.steps[self.part] = step
        if step.done < step.total:
            self._show(_now(step))
        elif before is None or before.done < before.total:
            self.seconds[step.part] = self.seconds.get(step.part, 0.0) + now - self.since
            self.clear()
            if self.lines and step.part != "bundle":
                print(f"{_done(step)} in {now - self.since:.1f} s", file=self.stream, flush=True)

    def _show(self, text: str) -> None:
        if self.live:
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()

    def clear(self) -> None:
        """Takes away the line that changes."""
        self._show("")

    def end(self, output: str) -> None:
        """The last line: the bundle's size, what it is for, and the times."""
        self.clear()
        if self.quiet:
            return
        kernels = [step for (part, _target), step in self.steps.items() if part == "kernels"]
        count, cached = sum(s.total for s in kernels), sum(s.cached for s in kernels)
        said = {"functions": "functions planned in", "kernels": f"{count} pieces of code ({cached} cached) in", "bundle": "written in"}
        parts = "".join(f", {said[part]} {seconds:.1f} s" for part, seconds in self.seconds.items() if part in said)
        size = os.path.getsize(output)
        amount = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        where = ", ".join(s.target for s in kernels) or "every device"
        print(f"{output}: {amount} for {where}; compiled in {time.monotonic() - self.began:.1f} s{parts}", file=self.stream, flush=True)


def _now(step: progress.Step) -> str:
    if step.part == "functions":
        return f"{step.target}: planning {step.name or 'functions'} ({step.done + 1} of {step.total})"
    return f"{step.target}: {step.done} of {step.total} pieces of code" if step.part == "kernels" else "writing the bundle"


def _done(step: progress.Step) -> str:
    if step.part == "functions":
        return f"{step.target}: {step.total} function{'s' if step.total != 1 else ''} planned"
    return f"{step.target}: {step.total} pieces of code ({step.cached} cached)"


__all__ = ["Progress", "add_arguments", "targets", "write"]
