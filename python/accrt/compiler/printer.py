"""The IR as text. Values print as %name or %number; expressions as in Python."""

from __future__ import annotations

from typing import Any, Dict, List

from . import expr as ex
from .declared import TensorType
from .ir import Block, Function, Input, Module, Op, Value
from .kernels.elementwise import Program


def print_module(module: Module) -> str:
    lines = [f"module {module.name}"]
    for s in module.symbols.values():
        divisor = f", divisor {s.divisor}" if s.divisor != 1 else ""
        buckets = f", buckets {list(s.buckets)}" if s.buckets else ""
        lines.append(f"symbol {s.name}: {s.symbol_class.name.lower()} [{s.minimum}, {s.maximum}]{divisor}{buckets}")
    for c in module.constants.values():
        lines.append(f"constant @{c.name}: {c.type}" + (" external" if c.external else " prepared" if c.data is None else ""))
    for state in module.states.values():
        lines.append(f"state @{state.name}: {state.type}")
    for function in module.functions.values():
        lines += ["", print_function(function)]
    return "\n".join(lines)


class _Names:
    def __init__(self) -> None:
        self.names: Dict[int, str] = {}

    def of(self, value: Value) -> str:
        if value.constant is not None:
            return "@" + value.constant.name
        if id(value) not in self.names:
            taken = set(self.names.values())
            name = f"%{value.name}" if value.name else f"%{len(self.names)}"
            while name in taken:
                name += "_"
            self.names[id(value)] = name
        return self.names[id(value)]


def print_function(function: Function) -> str:
    names = _Names()
    inputs = [f"{names.of(i.value)}: {_access(i.access)}{i.value.type}{_slot(i)}" if i.value is not None else f"{i.name} -> {i.symbol}" for i in function.inputs]
    kind = "prepare " if function.prepare else "internal " if function.internal else ""
    lines = [f"{kind}function {function.name}({', '.join(inputs)}) {{"]
    lines += _block(function.body, names, "  ")
    results = [f"{r.name} = {names.of(r.value)}" for r in function.results]
    return "\n".join(lines + [f"  return {', '.join(results)}", "}"])


def _access(access: str) -> str:
    return "" if access == "read" else access + " "


def _slot(i: Input) -> str:
    return f" adapter {i.adapter!r}" + " scaled" * i.scaled if i.adapter else ""


def _block(block: Block, names: _Names, indent: str) -> List[str]:
    lines: List[str] = []
    for op in block.ops:
        lines += _op(op, names, indent)
    if block.parent is not None:
        lines.append(f"{indent}yield {', '.join(names.of(v) for v in block.yields)}")
    return lines


def _op(op: Op, names: _Names, indent: str) -> List[str]:
    operands = ["none" if v is None else names.of(v) for v in op.operands]
    attrs = [f"{key}={attribute_text(value)}" for key, value in op.attrs.items()]
    results = ", ".join(names.of(v) for v in op.results)
    types = ", ".join(str(v.type) for v in op.results)
    head = f"{indent}{results} = " if results else indent
    label = f"  # {op.label}" if op.label else ""
    line = f"{head}{op.name}({', '.join(operands + attrs)})" + (f" : {types}" if types else "")
    if not op.regions:
        return [line + label]
    lines = [line + " {" + label]
    for index, region in enumerate(op.regions):
        if index:
            lines.append(indent + "} else {")
        if region.args:
            lines.append(f"{indent}  carries {', '.join(names.of(v) for v in region.args)}")
        lines += _block(region, names, indent + "  ")
    return lines + [indent + "}"]


def attribute_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(attribute_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {attribute_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, ex.Expr):
        return ex.size_text(value)
    if isinstance(value, TensorType):
        return str(value)
    if isinstance(value, Program):
        return program_text(value)
    return str(getattr(value, "name", value))


def program_text(program: Program) -> str:
    """A fused chain as nested calls; x0, x1, ... are its inputs."""
    texts: List[str] = []
    for node in program.nodes:
        if node.op == "input":
            texts.append(f"x{node.value}")
        elif node.op == "take":
            index, axes = node.value
            texts.append(f"x{index}[{', '.join(f'{axis}: {texts[a]}' for axis, a in zip(axes, node.args))}]")
        elif node.op == "const":
            texts.append(f"{node.value!r}")
        elif node.op in ("symbol", "scalar"):
            texts.append(f"{node.op}{node.value}")
        else:
            kind = f".{node.dtype}" if node.op == "cast" else ""
            texts.append(f"{node.op}{kind}({', '.join(texts[a] for a in node.args)})")
    return ", ".join(texts[index] for index in program.outputs)
