"""Sizes out of type texts such as "f32[batch, seq + 1, max(n, 4)]", given the symbols' values.

C describes a dimension that is an expression as text alone. The grammar is that of
tools/accx/size_text.c; long expressions are cut with "..." and then have no value here.
"""
from __future__ import annotations

from typing import Dict, List, Optional, Sequence

_MAX_DEPTH = 64
#: Longer operators first, where one begins another.
_OPERATORS = ("//", "==", "!=", "<=", "<", "+", "-", "*", "%", "and ", "or ")
_END_OF_NAME = " ,()[]"


class _NoValue(Exception):
    """Syntax that is not known here."""


def dimension(text: str, index: int, symbols: Dict[str, int], present: Sequence[bool]) -> Optional[int]:
    """The value of one dimension of a type's text.

    Args:
        text: as accrt_bundle_argument_type_text gives it. index: which dimension. symbols: values
            by name.
        present: which inputs are given.
    Returns:
        None: it has no value (a symbol without one, overflow, division by zero), or it is not known
            here.
    """
    parts = _parts(text)
    if index >= len(parts):
        return None
    parser = _Parser(parts[index], symbols, present)
    try:
        value = parser.expression(0)
        return value if not parser.rest() else None
    except _NoValue:
        return None


def _parts(text: str) -> List[str]:
    parts, depth = [""], 0
    for c in text[text.find("[") + 1:-1]:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


class _Parser:
    def __init__(self, text: str, symbols: Dict[str, int], present: Sequence[bool]) -> None:
        self.text, self.at, self.symbols, self.present = text, 0, symbols, present

    def rest(self) -> str:
        return self.text[self.at:].strip(" ")

    def take(self, word: str) -> bool:
        while self.text.startswith(" ", self.at):
            self.at += 1
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def expression(self, depth: int) -> Optional[int]:
        if depth > _MAX_DEPTH:
            raise _NoValue
        left = self.term(depth)
        for op in _OPERATORS:
            if self.take(op):
                return _apply(op.strip(), [left, self.term(depth)])
        return left

    def term(self, depth: int) -> Optional[int]:
        if self.take("("):
            value = self.expression(depth + 1)
            if not self.take(")"):
                raise _NoValue
            return value
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in _END_OF_NAME:
            self.at += 1
        word = self.text[begin:self.at]
        if word[:1] == "-" or word[:1].isdigit():
            return _number(word)
        if self.text.startswith("(", self.at):
            self.at += 1
            return self.named(word, depth)
        if not word or "..." in word:
            raise _NoValue
        return self.symbols.get(word)

    def named(self, name: str, depth: int) -> Optional[int]:
        values = [self.expression(depth + 1)]
        while self.take(","):
            values.append(self.expression(depth + 1))
        if not self.take(")"):
            raise _NoValue
        if name == "present":
            which = values[0]
            return int(which is not None and 0 <= which < len(self.present) and self.present[which])
        return _apply(name, values)


def _number(word: str) -> int:
    if not (word[1:] if word[0] == "-" else word).isdecimal() or not word.isascii():
        raise _NoValue
    return int(word)


def _apply(op: str, values: List[Optional[int]]) -> Optional[int]:
    """None is a value that is not there: of an operand that matters it is the result's."""
    if op == "select" and len(values) == 3:
        return None if values[0] is None else values[1 if values[0] else 2]
    if op in ("and", "or") and values[0] is not None and bool(values[0]) == (op == "or"):
        return int(op == "or")
    if any(value is None for value in values):
        return None
    if op not in _OPERATIONS or len(values) != (1 if op == "not" else 2):
        raise _NoValue
    if op in ("//", "%", "ceildiv") and values[1] == 0:
        return None
    result = int(_OPERATIONS[op](*values))
    return result if -(1 << 63) <= result < 1 << 63 else None


_OPERATIONS = {
    "//": lambda a, b: a // b, "ceildiv": lambda a, b: -(-a // b), "%": lambda a, b: a % b, "+": lambda a, b: a + b,
    "-": lambda a, b: a - b, "*": lambda a, b: a * b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, "min": min, "max": max, "and": lambda a, b: bool(b), "or": lambda a, b: bool(b),
    "not": lambda a: not a}
