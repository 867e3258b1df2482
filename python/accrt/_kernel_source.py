"""Kernels of hosts from C source: `Kernel.from_c` compiles what it is given with the reference
compiler's machinery, into the same cache."""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Sequence

from ._files import regular
from ._library import describe, shown

#: How C sees the elements of a buffer. The 16-bit floats come as their bits.
C_TYPES = {"bool": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t",
           "u32": "uint32_t", "u64": "uint64_t", "f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "f64": "double"}
_ACCESS = ("read", "write", "read_write")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}\Z")
_KEYWORDS = frozenset("""auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while""".split())
#: Of the function, as docs/kernel-abi.md has it.
_TAKES = ("const accrt_kernel_environment_t*", "const accrt_kernel_dispatch_t*", "const accrt_kernel_workgroup_t*")
#: A pointer of another type than the parameter that it is made of, and a way out without a value,
#: are wrong numbers.
_ERRORS = ("-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-Werror=return-type")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEFINES = re.compile(r"\b([A-Za-z_]\w*)\s*\([^(){};]*\)\s*{")  # a function
_FEW = 8


def is_name(text: Any) -> bool:
    """Whether something in C can be named like this."""
    return isinstance(text, str) and _NAME.match(text) is not None and text not in _KEYWORDS


def parsed(where: str, parameters: Any) -> list[tuple[str, str, str]]:
    """(name, kind, element type) of each: kind is an access, "symbol" or "scalar"; the element type
    of a buffer may be ""."""
    pairs = list(parameters.items()) if isinstance(parameters, Mapping) else parameters
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Sequence):
        raise TypeError(f"{where}: parameters is {describe(parameters)}, expected (name, type) pairs as in [('x', 'read f32'), ('n', 'symbol')]")
    found, names = [], set()
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise TypeError(f"{where}: parameter {pair!r}, expected (name, type)")
        name, kind = pair
        if not is_name(name) or name in names:
            raise ValueError(f"{where}: parameter {name!r} is no name in C, or there twice")
        names.add(name)
        found.append((name, *_kind(f"{where}: parameter {name}", kind)))
    return found


def _kind(where: str, text: str) -> tuple[str, str]:
    access, _, dtype = text.partition(" ")
    if access in _ACCESS and (not dtype or dtype in C_TYPES):
        return access, dtype
    if text == "symbol":
        return "symbol", "i64"
    if text in C_TYPES and text not in ("f16", "bf16"):
        return "scalar", text
    raise ValueError(f"{where} is {text!r}, expected 'read', 'write' or 'read_write' with an element type behind it (as 'read f32'), "
                     f"'symbol', or a scalar's type (no 16-bit float); types are {', '.join(C_TYPES)}")


def struct_of(entry: str, parameters: Sequence[tuple[str, str, str]]) -> str:
    """The C struct of the parameters, on one line."""
    members = []
    for name, kind, dtype in parameters:
        c = C_TYPES.get(dtype, "void")
        members.append(f"{c} {name};" if kind in ("symbol", "scalar") else f"{'const ' if kind == 'read' else ''}{c}* {name};")
    return f"typedef struct {entry}_params {{ {' '.join(members) or 'char none;'} }} {entry}_params_t;"


def prototype_of(entry: str) -> str:
    """What the function has to be: a declaration ahead of its definition, so that compilers refuse
    another one."""
    return f"int32_t {entry}({', '.join(_TAKES)});"


def text_of(source: Any) -> tuple[str, str]:
    """The C text, and the file that it is from ("": it was given)."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, ""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source is {describe(source)}, expected C text or the path of a C file")
    if not os.fspath(source):
        raise ValueError("source is empty, expected C text or the path of a C file")
    path = os.path.abspath(os.fsdecode(source))
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            return file.read(), path
    except FileNotFoundError as error:
        more = " (C text has a line break or a brace)" if isinstance(source, str) else ""
        raise FileNotFoundError(error.errno, f"no such file{more}", path) from None


def _included(text: str, folder: str) -> str:
    """A comment with the digests of what the text includes beside it, so that the cache sees a
    change there."""
    lines, pending, seen = [], _INCLUDE.findall(text), set()
    while pending:
        path = os.path.normpath(os.path.join(folder, pending.pop()))
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        with open(path, encoding="utf-8", opener=regular) as file:
            content = file.read()
        pending += _INCLUDE.findall(content)
        lines.append(hashlib.sha256(content.encode()).hexdigest())
    return f"/* {' '.join(sorted(lines))} */\n" if lines else ""


def definition(source: Any, name: str, parameters: Any, grid: Any, entry: str = "", flags: Sequence[str] = (), cuda: Any = None,
               block: Sequence[int] = (256,)):
    """The KernelDef of C source, and the parameters as `parsed` gives them."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a kernel's name is {shown(name)}, expected a str")
    where = f"kernel {name}"
    entry = entry or name
    if not is_name(entry):
        raise ValueError(f"{where}: its entry is {entry!r}, which is no name in C: give entry=, the name of the C function")
    known = parsed(where, parameters)
    if not callable(grid):
        raise TypeError(f"{where}: grid is {describe(grid)}, expected a function from the values to (x, y, z), as "
                        "lambda v: ((v['n'] + 255) // 256, 1, 1)")
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError(f"{where}: flags is {shown(flags)}, expected a list of options, as ['-ffast-math']")
    from .compiler import CSource, CudaSource, KernelDef  # here: it takes long to import
    from .compiler.kernels import kerneldef

    def param(name: str, kind: str, dtype: str):
        if kind == "symbol":
            return kerneldef.symbol(name)
        return kerneldef.scalar(name, dtype) if kind == "scalar" else kerneldef.Param(name, "buffer", kind, dtype=dtype)

    def sizes(values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        found = grid(values)
        parts = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if not 1 <= len(parts) <= 3:
            raise TypeError(f"{where}: grid is {found!r:.80}, expected 1 to 3 whole numbers, workgroups in x, y, z")
        return (*parts, 1, 1)[:3]

    params = kerneldef.layout([param(*each) for each in known])
    text, path = text_of(source)
    folder = os.path.dirname(path)
    unit = f'#include <stddef.h>\n#include "accrt/kernel.h"\n{struct_of(entry, known)}\n{prototype_of(entry)}\n'
    unit += (_included(text, folder) if path else "") + f'#line 1 "{os.path.basename(path) or name}"\n{text}\n'
    more = (*_ERRORS, *flags, *((f"-I{folder}",) if path else ()))
    device = None
    if cuda is not None and hasattr(cuda, "image"):
        from ._kernel_bundle import counterpart
        device = counterpart(cuda, name, known, sizes)
    elif cuda is not None:
        device = KernelDef(f"{name}.cuda", name, CudaSource(text=text_of(cuda)[0]), params, sizes, entry=entry, family="cuda",
                           block=tuple((*block, 1, 1)[:3]))
    return KernelDef(name, name, CSource(text=unit, struct=f"{entry}_params_t" if params else "", flags=more), params, sizes, entry=entry,
                     cuda=device), known


def target_of(arch: str) -> str:
    """The best target that a host of this architecture runs."""
    from .compiler.kernels import image
    fitting = [name for name in image.TARGETS if name == arch or arch == "x86-64-v4" and name == "x86-64-v3"]
    if not fitting:
        raise image.ImageError(f"there is no target that this host ({arch}) runs, but {', '.join(image.TARGETS)}")
    return fitting[-1]


def image_of(kernel: Any, arch: str) -> bytes:
    """The image for the best target that a host of this architecture runs."""
    from .compiler.kernels import image
    try:
        return image.build_image([kernel], target_of(arch), kernel.name)
    except image.ImageError as error:
        raise image.ImageError(_why(kernel, str(error)) + str(error)) from None


def _why(kernel: Any, said: str) -> str:
    """What is wrong with the function itself, ahead of what the compiler and the linker say of
    it."""
    entry, text = kernel.entry, kernel.producer.text.partition("#line 1 ")[2]
    found = re.search(rf"(\w[\w \t*]*?)\b{entry}\s*\(([^(){{}};]*)\)\s*{{", _COMMENT.sub(" ", text))
    has = " ".join(f"{found[1]}{entry}({found[2]})".split()) if found else entry
    if re.search(rf"static declaration of \W*{entry}\b", said):
        return f"kernel {kernel.name}: the function {entry} is static: remove the word, so that it can be called\n"
    if re.search(rf"(conflicting types for|number of arguments doesn.t match prototype|different type of symbol)\W*({entry}\b|$)", said, re.MULTILINE):
        values = ", ".join(p.name for p in kernel.params)
        comes = f"; its values ({values}) come in `const {kernel.producer.struct}* p = dispatch->params`" if kernel.params else ""
        return f"kernel {kernel.name}: the source has `{has}`, and a kernel's function is `{prototype_of(entry)[:-1]}`{comes}\n"
    other = re.search(r"(?:unknown type name|undeclared identifier) \W*(\w+_params_t)\b|\W(\w+_params_t)\W+ undeclared", said)
    if other or re.search(rf"undefined (reference to|symbol:?) \W*{entry}\b", said):
        there = [name for name in dict.fromkeys(_DEFINES.findall(_COMMENT.sub(" ", text))) if name not in _KEYWORDS]
        if entry in there:
            return f"kernel {kernel.name}: the source names {other[1] or other[2]}, and the parameters of {entry} are {kernel.producer.struct}\n"
        return (f"kernel {kernel.name}: the source has no function {entry}" + (f"; it has {', '.join(there[:_FEW])}" if there else "") +
                ": give entry=, the name of the C function\n")
    return ""
