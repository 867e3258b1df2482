#!/usr/bin/env python3
"""Generates files from abi/api.def, abi/write.def, abi/serve.def, abi/http.def and the public
headers. `./dev gen` runs it; `--check` only compares.

Written: abi/libaccrt.map (version script), include/accrt/api.h (the table of accrt_get_api),
abi/api_table.inc (its contents), the same three for libaccrt_write and libaccrt_serve, the script
of libaccrt_http, python/accrt/_ffi.py (ctypes declarations), tests/abi/layout.c (prints C's sizes
and offsets, for the test that compares them with ctypes), abi/entries.c and abi/bodies.h (entry
points: abi/entries.py), the same of serve/ and serve/http/. It may not be needed to build the
library: what it writes is committed.
"""
from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from pycparser import c_ast, c_generator, c_parser

import entries as entry_points

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ("kernel", "base", "instance", "counters", "memory", "stream", "tensor", "commands", "bundle", "weights", "layout", "program",
           "trust")
WRITE_HEADERS = ("write", "write/bundle_writer", "write/quantize", "write/rewrite")
SERVE_HEADERS = ("serve",)
HTTP_HEADERS = ("http",)
DRIVER_HEADER = "sys/driver"


class Library:
    """One shared library: its generated files and their sources."""

    def __init__(self, suffix: str, headers: tuple[str, ...], has_table: bool = True) -> None:
        self.has_table = has_table
        folder = suffix.replace("_", "/")
        self.suffix = suffix
        self.headers = headers
        self.definition = f"abi/{suffix.lstrip('_') or 'api'}.def"
        self.map = f"abi/libaccrt{suffix}.map"
        self.node = "ACCRT" + suffix.upper()
        self.header = f"include/accrt{folder}/api.h"
        self.table = f"abi/{suffix.lstrip('_') or 'api'}_table.inc"
        self.all = "accrt/accrt.h" if not suffix else f"accrt{folder}.h"
        self.struct = f"accrt{suffix}_api"
        self.get = f"accrt{suffix}_get_api"
        self.guard = f"ACCRT{suffix.upper()}_API_H_"

    def read(self) -> list[tuple[str, int, int]]:
        text = (ROOT / self.definition).read_text()
        entries = [(n, int(a), int(b)) for n, a, b in re.findall(r"^ACCRT_FUNCTION\((\w+), (\d+), (\d+)\)$", text, re.M)]
        names = [n for n, _, _ in entries]
        if len(set(names)) != len(names):
            fail(f"{self.definition} names a function twice: " + ", ".join(sorted({n for n in names if names.count(n) > 1})))
        return entries

    def check(self, entries: list[tuple[str, int, int]], declared: set[str], strict: bool) -> None:
        """Checks that the listed functions are the declared ones."""
        listed = {n for n, _, _ in entries} - {self.get}
        if declared - listed:
            # A contract may be in the headers before the code is: it is not exported yet, and no
            # release may look like that.
            missing = f"in the headers but not in {self.definition}: " + ", ".join(sorted(declared - listed))
            if strict:
                fail(missing)
            print(f"note: {missing}", file=sys.stderr)
        if listed - declared:
            fail(f"in {self.definition} but not in the headers: " + ", ".join(sorted(listed - declared)))


MAIN, WRITE, SERVE = Library("", HEADERS), Library("_write", WRITE_HEADERS), Library("_serve", SERVE_HEADERS)
HTTP = Library("_http", HTTP_HEADERS, has_table=False)

# Enough of the C library for the public headers, which include nothing else.
FAKE_STDDEF = "typedef unsigned long size_t;\n#define NULL ((void*)0)\n#define offsetof(t, m) 0\n"
FAKE_STDINT = "".join(f"typedef {c} {n};\n" for n, c in (
    ("int8_t", "signed char"), ("uint8_t", "unsigned char"), ("int16_t", "short"), ("uint16_t", "unsigned short"),
    ("int32_t", "int"), ("uint32_t", "unsigned int"), ("int64_t", "long"), ("uint64_t", "unsigned long"),
    ("uintptr_t", "unsigned long"))) + (
    "#define UINT64_C(x) x##UL\n#define UINT64_MAX 0xFFFFFFFFFFFFFFFFUL\n")

CTYPES = {
    "char": "c_char", "signed char": "c_int8", "unsigned char": "c_uint8", "int": "c_int", "unsigned int": "c_uint",
    "long": "c_long", "unsigned long": "c_ulong", "float": "c_float", "double": "c_double", "size_t": "c_size_t",
    "int8_t": "c_int8", "uint8_t": "c_uint8", "int16_t": "c_int16", "uint16_t": "c_uint16", "int32_t": "c_int32",
    "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64", "uintptr_t": "c_size_t",
}


def fail(message: str) -> None:
    sys.exit(f"abi/gen.py: {message}")


def preprocess(source: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as fake:
        (pathlib.Path(fake) / "stddef.h").write_text(FAKE_STDDEF)
        (pathlib.Path(fake) / "stdint.h").write_text(FAKE_STDINT)
        command = ["cc", "-E", "-nostdinc", "-undef", "-D__STDC_VERSION__=201112L", *options, f"-I{fake}",
                   f"-I{ROOT / 'include'}", "-x", "c", "-"]
        return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def drop_asserts(text: str) -> str:
    """Removes _Static_assert(...); which older pycparsers do not know."""
    out, start = [], 0
    for match in re.finditer(r"_Static_assert\s*\(", text):
        if match.start() < start:
            continue
        out.append(text[start:match.start()])
        depth, i, quoted = 1, match.end(), False
        while depth:
            c = text[i]
            if c == '"' and text[i - 1] != "\\":
                quoted = not quoted
            elif not quoted:
                depth += (c == "(") - (c == ")")
            i += 1
        while text[i] in " \n":
            i += 1
        start = i + (text[i] == ";")
    out.append(text[start:])
    return "".join(out)


class Api:
    """All declarations of the public headers, in order."""

    def __init__(self, headers: tuple[str, ...]) -> None:
        source = "".join(f'#include "accrt/{h}.h"\n' for h in headers)
        self.ast = c_parser.CParser().parse(drop_asserts(preprocess(source)))
        self.structs: dict[str, c_ast.Struct] = {}
        self.typedefs: dict[str, c_ast.Node] = {}
        self.functions: dict[str, c_ast.FuncDecl] = {}
        self.enumerators: list[tuple[str, int]] = []
        for node in self.ast.ext:
            if isinstance(node, c_ast.Typedef):
                self.typedefs[node.name] = node.type
                self.add_struct(node.type)
            elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
                self.functions[node.name] = node
            elif isinstance(node, c_ast.Decl):
                self.add_struct(node)
                if isinstance(node.type, c_ast.Enum):
                    self.add_enum(node.type)
        self.constants = self.read_constants(source)

    def add_struct(self, node: c_ast.Node) -> None:
        inner = getattr(node, "type", None)
        if isinstance(inner, c_ast.Struct) and inner.decls:
            self.structs[inner.name] = inner

    def add_enum(self, node: c_ast.Enum) -> None:
        for e in node.values.enumerators:
            self.enumerators.append((e.name, int(e.value.value, 0)))

    def read_constants(self, source: str) -> dict[str, int | str]:
        """Object-like macros ACCRT_* that are numbers or strings."""
        macros = dict(re.findall(r"^#define (ACCRT_\w+) (.+)$", preprocess(source, "-dM"), re.M))
        names = sorted(macros)
        probe = "".join(f'{{"{n}", {n}}}\n' for n in names)
        values: dict[str, int | str] = {}
        expanded = preprocess(source + "\n@@@\n" + probe).split("@@@\n", 1)[1]
        for name, line in re.findall(r'^\{"(\w+)", (.*)\}$', expanded, re.M):
            if line.startswith('"'):
                values[name] = line.strip('"')
                continue
            line = re.sub(r"\((?:uint32_t|accrt_dtype_t|uint64_t|int32_t)\)", "", line)
            line = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", line)
            if re.fullmatch(r"[0-9a-fA-FxX+*\-<>()| ]+", line):
                values[name] = eval(line, {"__builtins__": {}})  # noqa: S307 - digits and operators only, see the pattern
        return values


# ---- ctypes --------------------------------------------------------------------------------------

class Ctypes:
    def __init__(self, api: Api) -> None:
        self.api = api

    def handle(self, name: str) -> bool:
        """An opaque handle: a struct without fields."""
        node = self.api.typedefs.get(name)
        inner = getattr(node, "type", None)
        return isinstance(inner, c_ast.Struct) and not inner.decls and inner.name not in self.api.structs

    def handle_type(self, name: str) -> str:
        """A type for each kind of handle, so that ctypes refuses other kinds."""
        return "m." + re.sub(r"_t$", "", name) + "_p"

    def type_of(self, node: c_ast.Node) -> str:
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer(node.type)
        if isinstance(node, c_ast.ArrayDecl):
            return f"{self.type_of(node.type)} * {self.number(node.dim)}"
        if isinstance(node, c_ast.FuncDecl):
            return self.function(node)
        inner = node.type if isinstance(node, c_ast.TypeDecl) else node
        if isinstance(inner, c_ast.Struct):
            return "m." + inner.name
        name = " ".join(inner.names)
        if name == "void":
            return "None"
        if name in CTYPES:
            return CTYPES[name]
        target = self.api.typedefs[name]
        if isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.Struct):
            return "m." + target.type.name
        if isinstance(target, c_ast.PtrDecl):
            return "m." + re.sub(r"_t$", "", name)
        return self.type_of(target)

    def pointer(self, target: c_ast.Node) -> str:
        if isinstance(target, c_ast.FuncDecl):
            return self.function(target)
        if isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.Struct):
            name = target.type.name
            if not name.startswith("accrt_"):  # of another project's header
                return "c_void_p"
            return f"POINTER(m.{name})" if name in self.api.structs else self.handle_type(name)
        if isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.IdentifierType):
            name = " ".join(target.type.names)
            if name == "void":
                return "c_void_p"
            if self.handle(name):
                return self.handle_type(name)
            if name == "char":
                return "c_char_p" if "const" in target.quals else "c_void_p"
        return f"POINTER({self.type_of(target)})"

    def function(self, node: c_ast.FuncDecl) -> str:
        arguments = [self.parameter(p.type) for p in node.args.params] if node.args else []
        return f"CFUNCTYPE({', '.join([self.type_of(node.type)] + [a for a in arguments if a != 'None'])})"

    def parameter(self, node: c_ast.Node) -> str:
        if isinstance(node, c_ast.ArrayDecl):  # decays
            return f"POINTER({self.type_of(node.type)})"
        return self.type_of(node)

    def number(self, node: c_ast.Node) -> str:
        return str(eval(c_generator.CGenerator().visit(node), {"__builtins__": {}}))  # noqa: S307 - a constant expression

    def render(self, names: list[str], write_names: list[str], serve_names: list[str], http_names: list[str]) -> str:
        out = [FFI_HEAD]
        out.append("# ---- constants ----\n")
        for name, value in self.api.enumerators:
            out.append(f"{name} = {value}\n")
        for name, value in self.api.constants.items():
            out.append(f"{name} = {value!r}\n")
        out.append("\n# ---- structs, callback types and prototypes, by name; `m` is this module ----\n_FIELDS = {\n")
        for name, struct in self.api.structs.items():
            fields = "".join(f'        ("{d.name}", {self.type_of(d.type)}),\n' for d in struct.decls)
            out.append(f'    "{name}": lambda m: [\n{fields}    ],\n')
        out.append("}\n_CALLBACKS = {\n")
        for name in (n for n, t in self.api.typedefs.items() if isinstance(t, c_ast.PtrDecl)):
            out.append(f'    "{re.sub(r"_t$", "", name)}": lambda m: {self.type_of(self.api.typedefs[name])},\n')
        out.append("}\n_PROTOTYPES = {\n")
        for name in names + write_names + serve_names + http_names:
            node = self.api.functions[name].type
            params = [self.parameter(p.type) for p in node.args.params] if node.args else []
            out.append(f'    "{name}": lambda m: ({self.type_of(node.type)}, [{", ".join(p for p in params if p != "None")}]),\n')
        text = "".join(out)
        kinds = sorted(set(re.findall(r"\bm\.(accrt_\w+)_p\b", text)))
        return (text + "}\n_HANDLES = frozenset((\n" + "".join(f'    "{kind}",\n' for kind in kinds) + "))\n# Those of libaccrt_write.so.\n"
                "_WRITE = frozenset((\n" + "".join(f'    "{n}",\n' for n in write_names) + "))\n# Those of libaccrt_serve.so.\n"
                "_SERVE = frozenset((\n" + "".join(f'    "{n}",\n' for n in serve_names) + "))\n# Those of libaccrt_http.so.\n"
                "_HTTP = frozenset((\n" + "".join(f'    "{n}",\n' for n in http_names) + "))\n" + FFI_TAIL)


FFI_HEAD = '''"""ctypes declarations of libaccrt and the libraries above it. Generated by abi/gen.py from the public headers: do not edit.

Structs, callback types and prototypes are made at their first use: a program needs few of them, and making all takes longer
than importing the rest of the package. A handle `accrt_x_t*` is of type accrt_x_p: no other kind of handle, and no number,
passes for one.
"""
# ruff: noqa
import sys
from _thread import RLock
from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int8, c_int16,
                    c_int32, c_int64, c_long, c_size_t, c_uint, c_uint8, c_uint16, c_uint32, c_uint64, c_ulong, c_void_p)

'''
FFI_TAIL = '''
STRUCTS = tuple(_FIELDS)
_this = sys.modules[__name__]  # which is not there any more while the interpreter ends
_lock = RLock()
_unfinished = {}


def _make(name):
    """A struct or callback type. The lock is held: other threads see only complete types."""
    if name in _CALLBACKS:
        return _CALLBACKS[name](_this)
    kind = _unfinished[name] = type(name, (Structure,), {"__module__": __name__})
    try:
        kind._fields_ = _FIELDS[name](_this)
    finally:
        del _unfinished[name]
    return kind


def __getattr__(name):
    handle = name[-2:] == "_p" and name[:-2] in _HANDLES
    if not handle and name not in _FIELDS and name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if name in _unfinished:
            return _unfinished[name]
        if name not in globals():
            globals()[name] = POINTER(type(name[:-2], (Structure,), {"__module__": __name__})) if handle else _make(name)
        return globals()[name]


class Library(CDLL):
    """The loaded library. A function gets its prototype at its first use; one of libaccrt_write comes from `write()`, one of
    libaccrt_serve from `serve()`, one of libaccrt_http from `http()`."""

    write = None
    serve = None
    http = None

    def __getitem__(self, name):
        if name in _WRITE and self.write is not None:
            return self.write()[name]
        if name in _SERVE and self.serve is not None:
            return self.serve()[name]
        if name in _HTTP and self.http is not None:
            return self.http()[name]
        function = super().__getitem__(name)
        if name in _PROTOTYPES:
            function.restype, function.argtypes = _PROTOTYPES[name](_this)
        return function
'''


# ---- the rest ------------------------------------------------------------------------------------

def render_map(library: Library, entries: list[tuple[str, int, int]]) -> str:
    """One node per minor version, each inheriting from the one before."""
    out, previous = [f"/* Generated by abi/gen.py from {library.definition}: do not edit. */\n"], ""
    for version in sorted({(a, b) for _, a, b in entries}):
        node = f"{library.node}_{version[0]}.{version[1]}"
        names = "".join(f"    {n};\n" for n, a, b in entries if (a, b) == version)
        extra = "    __jit_debug_register_code;\n    __jit_debug_descriptor;\n" if not previous and library is MAIN else ""
        out.append(f"{node} {{\n  global:\n{names}{extra}" + ("" if previous else "  local:\n    *;\n") + f"}}{previous};\n")
        previous = f" {node}"
    return "".join(out)


def star(text: str) -> str:
    """Writes pointers in the project's style, with the star at the type."""
    return re.sub(r" (\*+)(?=\w)", r"\1 ", text)


def render_api_header(library: Library, entries: list[tuple[str, int, int]], api: Api) -> str:
    generator = c_generator.CGenerator()
    members = []
    for name, major, minor in entries:
        if name == library.get:
            continue
        node = api.functions[name].type
        short = re.sub(r"^accrt_", "", name)
        parameters = ", ".join(generator.visit(p) for p in node.args.params) if node.args else "void"
        result = generator.visit(node.type).replace(" " + name, "").rstrip()
        result = re.sub(rf"\b{name}\b", "", result).replace(" *", "*").strip()
        members.append(f"  {result} (*{short})({star(parameters)}); /* {major}.{minor} */\n")
    last = re.sub(r"^accrt_", "", [n for n, _, _ in entries if n != library.get][-1])
    size = 8 * (len(members) + 1)
    text = API_HEAD + "".join(members) + API_TAIL
    for word, value in (("LAST", last), ("SIZE", str(size)), ("HEADER", library.header.removeprefix("include/")), ("ALL", library.all),
                        ("DEF", library.definition), ("GUARD", library.guard), ("STRUCT", library.struct), ("GET", library.get),
                        ("SINCE", "0.1" if library is MAIN else "0.4")):
        text = text.replace(f"@{word}@", value)
    return text


API_HEAD = '''/* @HEADER@ - the API as one table, for programs that load the library with dlopen.
 * Generated by abi/gen.py from @DEF@: do not edit.
 */
#ifndef @GUARD@
#define @GUARD@

#include "@ALL@"

ACCRT_BEGIN

/* clang-format off */
/** Every function of the API but @GET@. Append-only: a member never moves. Members beyond `struct_size` do not exist. */
typedef struct @STRUCT@ {
  uint32_t struct_size; /**< bytes filled */
  uint32_t library_version; /**< ACCRT_MAKE_VERSION */
'''
API_TAIL = '''} @STRUCT@_t;
/* clang-format on */
ACCRT_STATIC_ASSERT(sizeof(void*) != 8 || (sizeof(@STRUCT@_t) == @SIZE@ && offsetof(@STRUCT@_t, @LAST@) == @SIZE@ - 8),
                    "append only");

/** Fills `table` with as many functions as both sides know. Thread-safe, never blocks.
 * @param version the ACCRT_VERSION that the caller was built for. While the major version is 0,
 *   library and caller must have the same minor version too; from 1 on, the same major version.
 * @param size_bytes sizeof(@STRUCT@_t) of the caller. A smaller table gets its first functions. A
 *   larger one is filled up to the end of the library's, and zeroed after it; table->struct_size
 *   says how many bytes hold functions.
 * @return ACCRT_OK; ACCRT_ERROR_VERSION_MISMATCH (both versions in the message; the table is
 *   zeroed). Since: @SINCE@ */
ACCRT_API accrt_status_t @GET@(uint32_t version, @STRUCT@_t* table, size_t size_bytes);
/** Type of @GET@, for dlsym. */
typedef accrt_status_t (*@GET@_fn_t)(uint32_t version, @STRUCT@_t* table, size_t size_bytes);

ACCRT_END
#endif /* @GUARD@ */
'''


def render_table(library: Library, entries: list[tuple[str, int, int]], stubs: set[str]) -> str:
    return (f"/* Generated by abi/gen.py from {library.definition}: do not edit. */\n" +
            "".join(f"{'ENTRY_MEMBER' if n in stubs else 'MEMBER'}({re.sub(r'^accrt_', '', n)})\n"
                    for n, _, _ in entries if n != library.get))


def render_layout(api: Api) -> str:
    out = ['/* Prints the size of every public struct and the offset and size of every field, as JSON.\n'
           ' * Generated by abi/gen.py: do not edit. */\n#include <stdio.h>\n\n#include "accrt/accrt.h"\n#include "accrt/http.h"\n#include "accrt/serve.h"\n'
           '#include "accrt/write.h"\n\n'
           '/* clang-format off */\nint main(void) {\n  printf("{\\n");\n']
    typedef_of = {t.type.name: n for n, t in api.typedefs.items()
                  if isinstance(t, c_ast.TypeDecl) and isinstance(t.type, c_ast.Struct)}
    for i, (name, struct) in enumerate(api.structs.items()):
        t = typedef_of.get(name, f"struct {name}")
        out.append(f'  printf("{"," if i else ""}\\"{name}\\": {{\\"size\\": %zu, \\"fields\\": {{", sizeof({t}));\n')
        for j, d in enumerate(struct.decls):
            out.append(f'  printf("{", " if j else ""}\\"{d.name}\\": [%zu, %zu]", offsetof({t}, {d.name}), '
                       f'sizeof((({t}*)0)->{d.name}));\n')
        out.append('  printf("}}\\n");\n')
    out.append('  printf("}\\n");\n  return 0;\n}\n')
    return "".join(out)


def put_between(path: str, mark: str, text: str) -> str:
    """The document with `text` between its two comments `mark`."""
    begin, end = f"<!-- {mark}: written by abi/gen.py from the headers -->\n", f"<!-- {mark}: end -->\n"
    document = (ROOT / path).read_text()
    if begin not in document or end not in document:
        fail(f"{path} has no comments '{mark}'")
    head, rest = document.split(begin, 1)
    return head + begin + text + end + rest.split(end, 1)[1]


def render_struct_fields(api: Api) -> str:
    """The fields of extensible structs. One of more than 8 bytes is LONG: a struct_size that ends
    within one is refused (runtime/core/struct.c). Tests look at the others too."""
    out = ["/* Generated by abi/gen.py from the public headers: do not edit. */\n"]
    for name, struct in api.structs.items():
        if struct.decls[0].name != "struct_size":
            continue
        for field in struct.decls:
            inner = field.type.type if isinstance(field.type, c_ast.TypeDecl) else None
            whole = isinstance(inner, c_ast.IdentifierType) and " ".join(inner.names).removesuffix("_t") in api.structs
            kind = "LONG" if isinstance(field.type, c_ast.ArrayDecl) or whole else "SHORT"
            out.append(f"{kind}({name}_t, {field.name})\n")
    return "".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when something is out of date")
    options = parser.parse_args()
    below, both, three = Api(HEADERS), Api(HEADERS + WRITE_HEADERS), Api(HEADERS + WRITE_HEADERS + SERVE_HEADERS)
    api = Api(HEADERS + WRITE_HEADERS + SERVE_HEADERS + HTTP_HEADERS)
    outputs, names = {}, {}
    functions = {MAIN: set(below.functions), WRITE: set(both.functions) - set(below.functions),
                 SERVE: set(three.functions) - set(both.functions), HTTP: set(api.functions) - set(three.functions)}
    for library in MAIN, WRITE, SERVE, HTTP:
        entries = library.read()
        declared = {n for n in functions[library] if n.startswith("accrt_")}
        library.check(entries, declared, options.check)
        names[library] = [n for n, _, _ in entries if n != library.get]
        outputs[library.map] = render_map(library, entries)
        if not library.has_table:
            continue
        outputs[library.header] = render_api_header(library, entries, api)
        stubs = entry_points.stubs(api, names[library]) if library is MAIN else set()
        outputs[library.table] = render_table(library, entries, stubs)
    outputs["python/accrt/_ffi.py"] = Ctypes(api).render(names[MAIN], names[WRITE], names[SERVE], names[HTTP])
    outputs["tests/abi/layout.c"] = render_layout(api)
    outputs["abi/entries.c"] = entry_points.render_entries(api, names[MAIN], star)
    outputs["abi/bodies.h"] = entry_points.render_bodies(api, names[MAIN])
    for library, folder in (SERVE, "serve"), (HTTP, "serve/http"):
        prefix = library.suffix.lstrip("_") + "_"
        outputs[f"{folder}/entries.c"] = entry_points.render_above_entries(
            api, names[library], prefix, folder, library.definition, library.all, star)
        outputs[f"{folder}/bodies.h"] = entry_points.render_above_bodies(api, names[library], prefix, folder, star)
    outputs["tests/api_fuzz/calls.inc"] = entry_points.render_fuzz(both, names[MAIN] + names[WRITE])
    outputs["runtime/core/struct_fields.inc"] = render_struct_fields(both)
    outputs["docs/hostile-input.md"] = put_between("docs/hostile-input.md", "two handles", entry_points.render_together(api, names[MAIN] + names[WRITE] + names[SERVE] + names[HTTP]))
    outputs["docs/concepts.md"] = put_between("docs/concepts.md", "handles", entry_points.render_ownership(api, names[MAIN] + names[SERVE] + names[HTTP]))
    stale = [p for p, text in outputs.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != text]
    if options.check:
        if stale:
            fail("out of date, run ./dev gen: " + ", ".join(stale))
        return
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(outputs[path])
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
