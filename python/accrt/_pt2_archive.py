"""What a .pt2 file (torch.export.save) may have, looked at before torch reads it.

torch.export.load believes what it finds. Pickles make any object, sizes are texts that sympy
evaluates, names of inputs become Python source, machine code of AOTInductor is loaded. So a file
of a stranger could run code, or take all memory. `check` refuses such files, in one line that
names the member. Who trusts the file loads it with torch.export.load, and gives the program.
"""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import zipfile
from typing import Any, BinaryIO, Dict, Iterator, List

#: How many bytes the weights of a file may have beyond what is stored of them: strides of 0.
SPREAD_BYTES = 256 << 20
MAX_EXPRESSION, MAX_EXPONENT = 20000, 64

_END, _END64, _LOCATOR64 = "<4s4H2IH", "<4sQ2H2I4Q", "<4sIQI"
#: Bytes of an element, by torch's ScalarType; of others: 1.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 8, 10: 8, 11: 16, 12: 1, 13: 2}
_NAME = re.compile(r"[A-Za-z0-9_]*")
_SYMBOL = re.compile(r"[a-z]{1,4}\d+")
_FLOAT, _LONG_FLOAT = re.compile(r"[-+]?[\d.]{1,40}([eE][-+]?\d{1,3})?"), re.compile(r"[\d.][eE][-+]?\d{4}")
_NAMES = {"true", "false", "oo", "int_oo", "nan"}
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"}
_FUNCTIONS = _POWERS | {
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Abs", "Mod", "PythonMod", "floor", "ceiling", "FloorDiv", "ModularIndexing",
    "Where", "CleanDiv", "CeilDiv", "CeilToInt", "FloorToInt", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal",
    "ToFloat", "Identity", "IsNonOverlappingAndDenseIndicator", "And", "Or", "Not", "Equality", "Unequality", "Eq", "Ne", "StrictGreaterThan",
    "GreaterThan", "StrictLessThan", "LessThan", "Gt", "Ge", "Lt", "Le", "BooleanTrue", "BooleanFalse", "Infinity", "NegativeInfinity",
    "OpaqueUnaryFn_sqrt",
}  # fmt: skip
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.UAdd, ast.USub, ast.BitAnd, ast.BitOr, ast.Invert)
_PLAIN_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.keyword, ast.Load, ast.cmpop, ast.Pow, *_OPERATORS)


class Refused(Exception):
    """Why a file is not read."""


def check(file: BinaryIO) -> List[str]:
    """Looks at a file. Gives the texts of its models. Raises Refused."""
    try:
        with _archive(file) as archive:
            return _check_members(archive, {name.partition("/")[2]: name for name in archive.namelist()})
    except (zipfile.BadZipFile, struct.error, NotImplementedError, UnicodeDecodeError, EOFError, OSError, ValueError) as error:
        raise Refused(f"a damaged archive: {error}") from error


def _check_members(archive: zipfile.ZipFile, members: Dict[str, str]) -> List[str]:
    read = {name: archive.read(full) for name, full in members.items() if not _is_weight(name)}
    _check_weights(archive, members, {name: _json(name, data) for name, data in read.items() if name.endswith("_config.json")})
    texts = []
    for name, full in members.items():
        if name.startswith("data/aotinductor/"):
            raise Refused(f"{name}: machine code that torch would load")
        if name.startswith("models/"):
            _check_model(name, _json(name, read[name]))
            texts.append(read[name].decode())
        elif name.lower().endswith(".pt") or not (_is_weight(name) or _is_text(name)):
            _check_pickle(name, archive.read(full))
    return texts


def _is_weight(name: str) -> bool:
    return name.startswith(("data/weights/", "data/constants/")) and not name.endswith(".json")


def _is_text(name: str) -> bool:
    """What torch reads as a text, or not at all."""
    return name in ("archive_format", "archive_version", "byteorder") or name.startswith((".data/", "extra/")) or name.endswith("_config.json")


def _archive(file: BinaryIO) -> zipfile.ZipFile:
    """The archive, if zipfile and torch's own reader see the same members in it, and they are no
    larger than the file."""
    archive = zipfile.ZipFile(file)
    _check_end(file)
    size, total, seen, roots = file.seek(0, io.SEEK_END), 0, set(), set()
    for info in archive.infolist():
        root, slash, _name = info.filename.partition("/")
        roots.add(root if slash else "")
        if info.orig_filename != info.filename or not re.fullmatch(r"[!-\[\]-~ ]+", info.filename) or {"", ".", ".."} & set(info.filename.split("/")):
            raise Refused(f"a damaged archive: a member is named {info.filename[:200]!r}")
        if info.filename.lower() in seen:
            raise Refused(f"a damaged archive: {info.filename[:200]} is there twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise Refused(f"a damaged archive: {info.filename[:200]} is compressed, which torch.export.save does not do")
        seen.add(info.filename.lower())
        total += info.file_size
    if total > size:
        raise Refused("a damaged archive: its members overlap")
    if len(roots) != 1 or "" in roots:
        raise Refused("it is not what torch.export.save writes (since torch 2.8)")
    return archive


def _check_end(file: BinaryIO) -> None:
    """The directory ends where the end's record begins, which is the last thing in the file: so
    every reader finds the same one."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - 98, 0))
    tail = file.read().rjust(98, b"\0")
    mark, _disk, _from, _here, count, length, begin, comment = struct.unpack(_END, tail[-22:])
    end = size - 22
    if tail[-42:-38] == b"PK\x06\x07":
        _mark, _disk, place, _disks = struct.unpack(_LOCATOR64, tail[-42:-22])
        mark64, _size, _by, _needs, _disk, _from, _here, count64, length64, begin64 = struct.unpack(_END64, tail[:56])
        end = size - 98
        same = (count in (count64, 0xFFFF), length in (length64, 0xFFFFFFFF), begin in (begin64, 0xFFFFFFFF), place == end, mark64 == b"PK\x06\x06")
        if not all(same):
            raise ValueError("two ends that differ")
        length, begin = length64, begin64
    if mark != b"PK\x05\x06" or comment or begin + length != end:
        raise ValueError("its directory is not at its end")


def _json(name: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name}: {'too deep' if isinstance(error, RecursionError) else error}") from error


def _check_pickle(name: str, data: bytes) -> None:
    """A pickle of tensors alone: what torch's own reader of weights takes."""
    import torch

    if not data:
        return
    try:
        _archive(io.BytesIO(data)).close()
        torch.load(io.BytesIO(data), map_location="meta", weights_only=True)
    except Exception as error:  # of any kind: pickles do what they like
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise Refused(f"{name}: not a pickle of tensors alone{f' ({found[1]})' if found else ''}; it could run code") from error


def _check_weights(archive: zipfile.ZipFile, members: Dict[str, str], configs: Dict[str, Any]) -> None:
    """Each entry of the lists of weights has a member, which is a tensor's bytes or a pickle of
    tensors."""
    spread = 0
    for config, content in configs.items():
        entries = content.get("config") if isinstance(content, dict) else None
        if not isinstance(entries, dict):
            raise Refused(f"{config}: no list of weights")
        for entry, about in entries.items():
            where = f"{config}: {entry[:200]!r}"
            path = about.get("path_name") if isinstance(about, dict) else None
            member = f"{config.rpartition('/')[0]}/{path}"
            if not isinstance(path, str) or member not in members:
                raise Refused(f"{where} names {str(path)[:200]!r}, which the file does not have")
            if path.startswith(("custom_obj_", "opaque_obj_")):
                raise Refused(f"{where} is an object that is no tensor; it could run code")
            if about.get("use_pickle"):
                _check_pickle(member, archive.read(members[member]))
                continue
            spread += max(0, _bytes_of(where, about.get("tensor_meta")) - archive.getinfo(members[member]).file_size)
            if spread > SPREAD_BYTES:
                raise Refused(f"{where} has {spread} bytes more than are stored of it; the limit is {SPREAD_BYTES}")


def _bytes_of(where: str, meta: Any) -> int:
    shape = meta.get("sizes") if isinstance(meta, dict) else None
    sizes = [size.get("as_int") if isinstance(size, dict) else None for size in shape] if isinstance(shape, list) else [None]
    if not all(isinstance(size, int) and 0 <= size < 1 << 63 for size in sizes):
        raise Refused(f"{where} has no shape of numbers")
    total = next((size for kind, size in _SIZES.items() if kind == meta.get("dtype")), 1)
    for size in sizes:
        total *= size
    return total


def _walk(value: Any) -> Iterator[Any]:
    """Each (key, value) below a value of JSON."""
    rest = [value]
    while rest:
        item = rest.pop()
        pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        for key, part in pairs:
            yield key, part
            rest.append(part)


def _check_model(name: str, model: Any) -> None:
    for key, value in _walk(model):
        if key == "expr_str":
            _check_expression(name, value)
        elif key in ("name", "as_name") and value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            raise Refused(f"{name}: {str(value)[:200]!r} is no name of a value")
        elif key in ("in_spec", "out_spec") and isinstance(value, str):
            _check_spec(name, value)


def _check_spec(name: str, text: str) -> None:
    """What an argument or a result is made of: no part names a module to be imported."""
    for key, value in _walk(_json(name, text.encode("utf-8", "replace"))):
        if key == "context" and isinstance(value, str) and "default_factory_module" in value:
            about = _json(name, value.encode("utf-8", "replace"))
            module = about.get("default_factory_module") if isinstance(about, dict) else None
            if module not in ("builtins", "collections"):
                raise Refused(f"{name}: it would import the module {str(module)[:200]!r}")


def _check_expression(name: str, text: Any) -> None:
    """sympy gives the text to Python's eval. Only sums, products, known functions and symbols pass,
    with powers whose numbers stay small."""
    try:
        if not isinstance(text, str) or len(text) > MAX_EXPRESSION or _LONG_FLOAT.search(text):
            raise ValueError("too long, or no text")
        tree = ast.parse(text.strip(), mode="eval")
        powers = [_exponent(node) for node in ast.walk(tree) if _is_power(node)]
        bad = next((node for node in ast.walk(tree) if not _may(node)), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"{name}: {str(text)[:80]!r} is no size: {error}") from error
    product = 1
    for power in powers:
        product *= max(power, 1)
    if bad is not None or product > MAX_EXPONENT:
        raise Refused(f"{name}: {text[:80]!r} is no size{': its powers are too high' if bad is None else ''}")


def _is_power(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Pow)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _POWERS


def _exponent(node: Any) -> int:
    """The exponent of a power, at least; beyond every limit where it is no number."""
    second = node.right if isinstance(node, ast.BinOp) else node.args[1] if len(node.args) == 2 else None
    if isinstance(second, ast.Call) and isinstance(second.func, ast.Name) and second.func.id in ("Integer", "Rational") and second.args:
        second = second.args[0]
    if isinstance(second, ast.UnaryOp) and isinstance(second.op, ast.USub):
        second = second.operand
    value = second.value if isinstance(second, ast.Constant) else None
    return abs(value) if type(value) is int else MAX_EXPONENT + 1


def _may(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and _may_take(node.func.id, node.args, node.keywords)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (bool, float, _Text)) or isinstance(node.value, int) and abs(node.value) < 1 << 64
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or node.id in _NAMES or bool(_SYMBOL.fullmatch(node.id))
    return isinstance(node, _PLAIN_NODES)


class _Text(str):
    """A text that was looked at."""


def _may_take(function: str, args: List[ast.expr], named: List[ast.keyword]) -> bool:
    """Texts are names of symbols and digits of floats; what is given by name is true or false, or
    a float's precision."""
    pattern = {"Symbol": _NAME, "Float": _FLOAT}.get(function)
    if pattern is not None:
        if len(args) != 1 or not isinstance(args[0], ast.Constant) or not isinstance(args[0].value, str) or not pattern.fullmatch(args[0].value):
            return False
        args[0].value = _Text(args[0].value)
    values = [(item.arg, item.value.value if isinstance(item.value, ast.Constant) else None) for item in named]
    return all(isinstance(value, bool) or name == "precision" and type(value) is int and 0 < value <= 1000 for name, value in values)
