"""Ctrl-C ends every wait: no function of the C library that may wait or work without a limit is
called where Python cannot hear of it.

Which functions those are, the public headers say: their comments say "Blocks" or "May block", or
they take a limit of time. Each place in the package that names one is inside of `apart` or `until`
(_waits.py), or stands in ELSEWHERE with what makes it harmless there.
"""
from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "accrt"

# (file, function, what of C) -> why Ctrl-C is heard all the same.
ELSEWHERE = {
    ("_in_flight.py", "_drain", "accrt_stream_synchronize"): "a slice, at the end of the interpreter",
    ("kernels.py", "KernelPack.__init__", "accrt_kernel_pack_open"): "the one or the other is called by apart, below",
    ("kernels.py", "Commands.run", "accrt_stream_run"): "a slice, unless the list's latest run was short and the stream is idle",
    ("call.py", "Call.run", "accrt_call_run"): "the limit is a slice at most",
    ("call.py", "", "accrt_call_attempt"): "_SHORTEST: Call.__call__ and Call.run give it a slice",
    ("call.py", "", "accrt_call_submit"): "Call.submit has the plan made before",
    ("call.py", "Call._submit_in_steps", "accrt_call_submit"): "the plan is made before",
    ("call.py", "Call._plan_within", "accrt_call_plan"): "a slice, or some milliseconds",
    ("torch/_cuda.py", "OnGpu._in_steps", "accrt_call_submit"): "the plan is made before",
    ("serve/engine.py", "Engine.drain", "accrt_serve_engine_drain"): "_within gives it to until, as it is",
    ("serve/engine.py", "Engine._ready", "accrt_serve_engine_wait"): "its limit is 0",
    ("serve/adapters.py", "Adapters.unload", "accrt_serve_engine_unload_adapter"): "a slice at most",
    ("serve/server.py", "Server._work", "accrt_http_next"): "on threads of the server's own, where no signal is handled",
    ("weights.py", "Weight.component", "accrt_weights_data"): "some KiB",
}
# Read by hand: these do not wait, whatever the words around them say.
QUICK = {"accrt_launch_params"}


def blocking() -> set[str]:
    found = set()
    for header in sorted((ROOT / "include" / "accrt").rglob("*.h")):
        if "sys" in header.parts:
            continue
        for comment, name, parameters in re.findall(
                r"/\*\*((?:(?!\*/).)*)\*/\s*(?:ACCRT_\w*API )[^;{]*?\b(accrt_\w+)\(([^;]*);", header.read_text(), re.DOTALL):
            words = " ".join(re.sub(r"\n \*", " ", comment).split())
            if re.search(r"\bBlocks\b|\b[Mm]ay block\b", words) or "timeout_ns" in parameters:
                found.add(name)
    return found - QUICK


def names_of_c(node: ast.AST) -> str:
    """The C function that this expression names, or ""."""
    if isinstance(node, ast.Attribute) and node.attr.startswith("accrt_"):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"accrt_\w+", node.value):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_call" and node.args:
        first = node.args[0]  # of bundle_writer/emit.py
        return f"accrt_bundle_writer_{first.value}" if isinstance(first, ast.Constant) else ""
    return ""


class Calls(ast.NodeVisitor):
    def __init__(self) -> None:
        self.scope: list[str] = []
        self.apart = 0
        self.found: list[tuple[str, str, int]] = []  # outside: function, what of C, line
        self.taken: set[str] = set()  # names that are called inside of apart

    def visit_ClassDef(self, node):
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef

    def visit(self, node):
        name = names_of_c(node)
        if name and not self.apart:
            self.found.append((".".join(self.scope), name, node.lineno))
        if self.apart and isinstance(node, (ast.Name, ast.Attribute)):
            self.taken.add(node.id if isinstance(node, ast.Name) else node.attr)
        return super().visit(node)

    def visit_Call(self, node):
        own = isinstance(node.func, ast.Name) and node.func.id in ("apart", "until")
        self.apart += own
        self.generic_visit(node)
        self.apart -= own


def outside(names: set[str]) -> dict[tuple[str, str, str], int]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "_ffi.py":
            continue
        calls = Calls()
        calls.visit(ast.parse(path.read_text()))
        for scope, name, line in calls.found:
            if name in names and scope.rpartition(".")[2] not in calls.taken:
                found[str(path.relative_to(PACKAGE)), scope, name] = line
    return found


def test_the_headers_say_which_functions_block():
    names = blocking()
    assert len(names) > 40
    assert {"accrt_bundle_open_path", "accrt_call_run", "accrt_call_submit", "accrt_program_create", "accrt_program_estimate", "accrt_semaphore_wait",
            "accrt_session_bind_state", "accrt_session_reset", "accrt_session_warmup", "accrt_stream_run", "accrt_bundle_sign"} <= names
    assert not names & {"accrt_stream_copy", "accrt_stream_cancel", "accrt_stream_query", "accrt_bundle_info", "accrt_buffer_info"}


def test_what_blocks_is_called_apart_or_in_slices():
    found = outside(blocking())
    new = {place: line for place, line in found.items() if place not in ELSEWHERE}
    assert not new, "call these inside of apart() or until(), or say in ELSEWHERE why Ctrl-C is heard: " + "; ".join(
        f"{file}:{line}: {function} calls {name}" for (file, function, name), line in new.items())
    assert not set(ELSEWHERE) - set(found), "places of ELSEWHERE that are gone"
