#!/usr/bin/env python3
"""Makes what is derived from format/format.def and is out of the preprocessor's reach. Run by
`./dev gen`; `--check` only compares.

Written: format/fields.h (structs of commands), blocks of constants in the public headers and in the
kernels' layouts.h, python/accrt/_format.py, tables in docs/. It may not be needed to build the
library: what it writes is committed. The second reader (python/accrt/bundle_reader) is written by
hand from docs/accx-format.md.
"""
from __future__ import annotations

import argparse
import ast
import functools
import pathlib
import re
import sys
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFINITION = "format/format.def"
COLUMNS = 100

#: C's type of a field, and what the specification calls it.
FIELD_TYPES = {"READ": ("accx_range_t", "range"), "PATTERN": ("uint64_t", "u64")}
for _kind in ("WRITE", "UPDATE", "READ_START", "WRITE_START"):
    FIELD_TYPES[_kind] = FIELD_TYPES["READ"]
for _kind in ("ITEM", "COUNT", "ZERO", "SIZE", "STRING", "DECIDED", "DECIDED_SIZE", "BLOCK", "MAYBE_BLOCK"):
    FIELD_TYPES[_kind] = ("uint32_t", "u32")
TYPE_BYTES = {"range": 16, "u64": 8, "u32": 4}


def fail(message: str) -> None:
    sys.exit(f"format/gen.py: {message}")


class Row:
    """A row of format.def: `number` and what else its macro names, texts without their quotes."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def __getattr__(self, name: str) -> str:
        return self.values[name]

    @property
    def n(self) -> int:
        return int(self.values.get("number", self.values.get("bit", "")))


def split(text: str) -> list[str]:
    """Arguments of a macro: commas within quotes and parentheses part nothing."""
    return [part.strip() for part in re.findall(r'((?:"(?:\\.|[^"\\])*"|\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,"()])+)', text)]


class Definition:
    def __init__(self) -> None:
        text = (ROOT / DEFINITION).read_text()
        heads = re.findall(r"^#define DEF_(\w+)\(((?:[^()]|\\\n)*)\)", text, re.M)
        self.columns = {name: [c.strip() for c in columns.replace("\\\n", " ").split(",")] for name, columns in heads}
        self.rows: dict[str, list[Row]] = {name: [] for name in self.columns}
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r"DEF_(\w+)\((.*)\)$", line)
            if not match:
                if line.startswith("DEF_"):
                    fail(f"{DEFINITION}:{number}: a row is one line")
                continue
            name, cells = match.group(1), split(match.group(2))
            if len(cells) != len(self.columns.get(name, ())):
                fail(f"{DEFINITION}:{number}: DEF_{name} has {', '.join(self.columns.get(name, ['no definition']))}")
            values = {c: ast.literal_eval(v) if v.startswith('"') else v for c, v in zip(self.columns[name], cells)}
            self.rows["FIELD" if name == "KEYED" else name].append(Row(values))
        self.check()
        self.sizes = self.read_sizes()

    def check(self) -> None:
        """Numbers and names ascend, each once; opcodes, operations and images leave none out, for
        tables go by their number."""
        for kind, rows in self.rows.items():
            if kind == "FIELD":
                continue
            numbers = [r.n for r in rows]
            if numbers != sorted(set(numbers)) or len({r.values.get("name", r.n) for r in rows}) != len(rows):
                fail(f"numbers and names of DEF_{kind} ascend, each once")
            words = [r.values["word"] for r in rows if "word" in r.values]
            if len(set(words)) != len(words):
                fail(f"a word of DEF_{kind} is there twice")
        gaps = [r.n for r in self.rows["RESERVED_COMMAND"]]
        for kind in ("COMMAND", "EXPRESSION", "IMAGE", "DTYPE", "SYMBOL", "ARGUMENT", "ROLE"):
            numbers = sorted([r.n for r in self.rows[kind]] + (gaps if kind == "COMMAND" else []))
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                fail(f"numbers of DEF_{kind} leave none out")
        for row in self.rows["FIELD"]:
            if row.kind not in FIELD_TYPES:
                fail(f"{row.struct}.{row.field}: no kind {row.kind}")
        for command in self.rows["COMMAND"]:
            size = sum(self.field_bytes(f) for f in self.fields(command.name))
            if size % 8 != 0:
                fail(f"the fields of {command.name} have {size} bytes, no multiple of 8")

    def read_sizes(self) -> dict[str, int]:
        """Bytes of the format's structs."""
        header = (ROOT / "format/format.h").read_text()
        sizes = {name: int(size) for name, size in re.findall(r"^ACCX_ASSERT_SIZE\((\w+), (\d+)\);", header, re.M)}
        sizes.update(accx_digest_t=16, int64_t=8)
        for command in self.rows["COMMAND"]:
            for field in self.fields(command.name):
                sizes[field.struct] = sizes.get(field.struct, 0) + self.field_bytes(field)
        return sizes

    def fields(self, command: str) -> list[Row]:
        return [f for f in self.rows["FIELD"] if f.command == command]

    @staticmethod
    def field_bytes(field: Row) -> int:
        return TYPE_BYTES[FIELD_TYPES[field.kind][1]] * int(field.count)

    def record_bytes(self, section: Row) -> int:
        match = re.fullmatch(r"sizeof\((\w+)\)", section.bytes)
        return self.sizes[match.group(1)] if match else int(section.bytes)


def wrap(text: str, indent: str) -> str:
    """A comment of as many lines as it needs."""
    lines, line = [], "/** " + text.split(" ", 1)[0]
    for word in text.split(" ")[1:]:
        if len(indent + line + " " + word) > COLUMNS:
            lines.append(line)
            line = " * " + word
        else:
            line += " " + word
    if len(indent + line + " */") > COLUMNS:
        head, last = line.rsplit(" ", 1)
        lines.append(head)
        line = " * " + last
    return "".join(indent + x + "\n" for x in [*lines, line + " */"])


def put(lines: list[tuple[str, str]], open_comment: str = "/**<", indent: str = "") -> str:
    """Lines of C with their comments, as clang-format sets them: comments of neighbours in one
    column; one that is too long for it stands above its line."""
    out: list[str] = []
    run: list[tuple[str, str]] = []

    def flush() -> None:
        column = max((len(code) for code, _ in run), default=0)
        out.extend(f"{code:<{column}} {open_comment} {note} */\n" for code, note in run)
        run.clear()

    for code, note in lines:
        code = indent + code
        if not note:
            flush()
            out.append(code + "\n")
            continue
        widest = max([len(c) for c, _ in run] + [len(code)])
        fits = [widest + len(f" {open_comment} {n} */") <= COLUMNS for _, n in [*run, (code, note)]]
        if len(code) + len(f" {open_comment} {note} */") > COLUMNS:
            flush()
            out.append(wrap(note, indent).replace("/** ", open_comment.rstrip("<") + " ", 1))
            out.append(code + "\n")
        elif all(fits):
            run.append((code, note))
        else:
            flush()
            run.append((code, note))
    flush()
    return "".join(out)


def defines(prefix: str, form: str = "{}u", mark: str = "/**<") -> Callable[[list[Row]], str]:
    return lambda rows: put([(f"#define {prefix}{r.name} {form.format(r.n)}", r.values.get("note", "")) for r in rows], mark)


#: Blocks of constants: file, name of the block, kind of row, how it is written.
HEADER_BLOCKS = (
    ("include/accrt/write/bundle_writer.h", "opcodes", "COMMAND", defines("ACCRT_OPCODE_")),
    ("include/accrt/write/bundle_writer.h", "operations", "EXPRESSION", defines("ACCRT_EXPR_")),
    ("include/accrt/write/bundle_writer.h", "sources", "SOURCE", defines("ACCRT_CONSTANT_")),
    ("include/accrt/write/bundle_writer.h", "files", "FILE", defines("ACCRT_FILE_")),
    ("include/accrt/write/bundle_writer.h", "shards", "SHARD", defines("ACCRT_SHARD_")),
    ("include/accrt/write/bundle_writer.h", "images", "IMAGE", defines("ACCRT_IMAGE_")),
    ("include/accrt/write/bundle_writer.h", "predicates", "PREDICATE", defines("ACCRT_PREDICATE_")),
    ("include/accrt/write/bundle_writer.h", "operands", "OPERAND", defines("ACCRT_OPERAND_")),
    ("include/accrt/layout.h", "layouts", "LAYOUT", defines("ACCRT_LAYOUT_")),
    ("include/accrt/layout.h", "roles", "ROLE", defines("ACCRT_LAYOUT_ROLE_")),
    ("include/accrt/bundle.h", "symbol classes", "SYMBOL", defines("ACCRT_SYMBOL_")),
    ("include/accrt/bundle.h", "arguments", "ARGUMENT", defines("ACCRT_ARGUMENT_")),
    ("include/accrt/bundle.h", "aliases", "ALIAS", defines("ACCRT_ALIAS_")),
    ("include/accrt/bundle.h", "architectures", "ARCH", defines("ACCRT_ARCH_")),
    ("include/accrt/kernel.h", "data types", "DTYPE", defines("ACCRT_DTYPE_", "((accrt_dtype_t){})", "/*")),
    ("include/accrt/kernel.h", "CPU features", "CPU", defines("ACCRT_CPU_", "(UINT64_C(1) << {})", "/*")),
    ("python/accrt/compiler/kernels/layouts.h", "layouts", "LAYOUT",
     lambda rows: "enum {\n" + "".join(f"  {r.name} = {r.n},\n" for r in rows if r.n > 1) + "};\n"),
)  # fmt: skip
#: What headers with long comments say by hand, and this holds against the definition: file, prefix,
#: kind of row, bits.
CHECKED = (
    ("include/accrt/kernel.h", "ACCRT_KERNEL_PARAM_", "PARAMETER", False),
    ("include/accrt/kernel.h", "ACCRT_KERNEL_ACCESS_", "ACCESS", False),
    ("include/accrt/kernel.h", "ACCRT_KERNEL_TRAIT_", "TRAIT", True),
    ("include/accrt/trust.h", "ACCRT_SCOPE_", "SCOPE", False),
    ("include/accrt/write/bundle_writer.h", "ACCRT_FUNCTION_", "FUNCTION_FLAG", True),
)  # fmt: skip


def check_headers(definition: Definition) -> None:
    for path, prefix, kind, bits in CHECKED:
        text = (ROOT / path).read_text()
        for row in definition.rows[kind]:
            match = re.search(rf"^#define {prefix}{row.name} \(?(\d+)u(?: << (\d+))?\)?", text, re.M)
            if not match:
                fail(f"{path} has no {prefix}{row.name}")
            value = int(match.group(1)) << int(match.group(2) or 0)
            if value != (1 << row.n if bits else row.n):
                fail(f"{path}: {prefix}{row.name} is {value}; {DEFINITION} has {row.n}")


def between(text: str, path: str, begin: str, end: str, made: str) -> str:
    if text.count(begin) != 1 or text.count(end) != 1:
        fail(f"{path} has no comments '{begin.strip()}' and '{end.strip()}', each once")
    head, rest = text.split(begin)
    return head + begin + made + end + rest.split(end)[1]


def render_fields(definition: Definition) -> str:
    out = ["/* format/fields.h - the own fields of commands, in the order of their opcodes. Included by format/format.h alone.\n"
           " * Generated by format/gen.py from format/format.def: do not edit. */\n/* clang-format off */\n",
           f"#define ACCX_COMMANDS_MINOR {max(int(command.since) for command in definition.rows['COMMAND'])}\n",
           f"#define ACCX_LAYOUTS_MINOR {max(int(layout.since) for layout in definition.rows['LAYOUT'])}\n\n"]
    for command in definition.rows["COMMAND"]:
        fields = definition.fields(command.name)
        if not fields:
            continue
        struct = fields[0].struct
        out.append(f"typedef struct {struct.removesuffix('_t')} {{\n")
        for field in fields:
            count = f"[{field.count}]" if field.count != "1" else ""
            out.append(f"  {FIELD_TYPES[field.kind][0]} {field.field}{count}; /* {field.meaning} */\n")
        out.append(f"}} {struct};\nACCX_ASSERT_SIZE({struct}, {definition.sizes[struct]});\n\n")
    return "".join(out) + "/* clang-format on */\n"


def roles_of(layout: Row) -> list[int]:
    return [i for i, extent in enumerate(layout.extents.strip("()").split(",")) if extent.strip() != "NONE"]


def table(name: str, note: str, items: list[str], ends: str = "{}") -> str:
    """A dict or tuple of Python, with lines that are not too long."""
    out, line = [f"#: {note}\n{name} = {ends[0]}\n"], "   "
    for item in items:
        if len(line) + len(item) + 2 > COLUMNS:
            out.append(line + "\n")
            line = "   "
        line += f" {item},"
    return "".join(out) + f"{line}\n{ends[1]}\n"


def enumeration(name: str, note: str, rows: list[Row]) -> str:
    out = [f'\n\nclass {name}(enum.IntEnum):\n    """{note}"""\n\n']
    for row in rows:
        about = row.values.get("note", "")
        out.append(f"    {row.name} = {row.n}" + (f"  #: {about}" if about else "") + "\n")
    return "".join(out)


def conventions() -> list[str]:
    """The rows of format/conventions.def: what stands behind a weight's name, by role."""
    roles = ("data", "scales", "zeros", "group_index", "global_scale")
    out = []
    for row in re.findall(r"^ACCX_CONVENTION\((.*)\)$", (ROOT / "format/conventions.def").read_text(), re.M):
        name, _, _, *suffixes = (word.strip().strip('"').lstrip("!") for word in row.split(","))
        shown = ", ".join(f'"{role}": "{suffix}"' for role, suffix in zip(roles, suffixes) if suffix or role == "data")
        out.append(f'    "{name.lower()}": {{{shown}}},\n')
    return out


def render_python(definition: Definition) -> str:
    rows = definition.rows
    numbered = lambda kind: [f'"{r.word}": {r.n}' for r in rows[kind]]  # noqa: E731
    words = lambda kind: [f'"{r.word}"' for r in rows[kind]]  # noqa: E731
    roles = [r.word for r in rows["ROLE"]]
    known = {r.n: r.word for r in rows["COMMAND"]}
    opcodes = [f'"{known.get(n, "")}"' for n in range(max(known) + 1)]
    layouts = []
    for r in rows["LAYOUT"]:
        own = "(" + "".join(f'"{roles[i]}", ' for i in roles_of(r)).rstrip(" ") + ")"
        own = own.replace(",)", ")") if own.count('"') > 2 else own
        layouts.append(f'"{r.word}": ({r.n}, {own}, {r.block_elements}, {r.block_bytes}, {r.group_elements}, {"FREE" in r.flags})')
    fields = {command.word: [f'("{f.field}", "{f.kind}", {f.count}, "{f.member}")' for f in definition.fields(command.name)
                             if f.member != "opcode"] for command in rows["COMMAND"]}  # fmt: skip
    out = [
        '"""Numbers of the .accx format and their words. Generated by format/gen.py from format/format.def: do not edit."""\n'
        "import enum\n\n",
        table("DTYPES", "Data types by name: (id, bits an element).", [f'"{r.word}": ({r.n}, {r.bits})' for r in rows["DTYPE"]]),
        table("SECTIONS", "Number and record size (of the newest form) of each section; 0: not of records.",
              [f'"{r.word}": ({r.n}, {definition.record_bytes(r)})' for r in rows["SECTION"]]),
        table("EXPRESSION_OPS", "Words for operations of expressions, by number.", words("EXPRESSION"), "()"),
        table("EXPRESSION_OPERANDS", "How many operands each has.", [f'"{r.word}": {r.operands}' for r in rows["EXPRESSION"]]),
        table("OPCODES", "Words for opcodes; 0 and reserved ones have none.", opcodes, "()"),
        "#: What a command has of its own beside operands and blocks, by opcode: (name, kind, count, field of accrt_writer_command_t).\n"
        "COMMAND_FIELDS = {\n" + "".join(f"    {r.n}: (" + "".join(f"\n        {f}," for f in fields[r.word]) +
                                          ("\n    " if fields[r.word] else "") + "),\n" for r in rows["COMMAND"]) + "}\n",
        table("LAYOUTS", "Layouts by name: (id, roles, elements and bytes of a block, elements of a group, whether that is free).", layouts),
        "#: How checkpoints name the tensors of one weight: what stands behind its name, by role (format/conventions.def).\n"
        "CONVENTIONS = {\n" + "".join(conventions()) + "}\n",
        table("ROLES", "What components of a weight are, by number.", words("ROLE"), "()"),
        table("SYMBOL_CLASSES", "Classes of symbols, by number.", words("SYMBOL"), "()"),
        table("ARGUMENT_KINDS", "Kinds of arguments, by number.", words("ARGUMENT"), "()"),
        table("ARCH_KINDS", "Which devices can run a variant.", numbered("ARCH")),
        table("PARAMETER_KINDS", "Kinds of a kernel's parameters.", numbered("PARAMETER")),
        table("ACCESSES", "What is done to memory.", numbered("ACCESS")),
        table("PREDICATES", "Conditions of variants.", numbered("PREDICATE")),
        table("CPU_FEATURES", "CPU features, as in accrt/kernel.h.", [f'"{r.word}": 1 << {r.n}' for r in rows["CPU"]]),
        "#: Where a constant's bytes are.\n" + "".join(f"{r.name} = {r.n}\n" for r in rows["SOURCE"]),
        "#: Traits of kernels, as in accrt/kernel.h; the last two are of launches.\n" +
        "".join(f"TRAIT_{r.name} = {1 << r.n}\n" for r in rows["TRAIT"]),
        "".join(f"FEATURE_{r.name} = {1 << r.n}\n" for r in rows["FUNCTION_FEATURE"]),
        enumeration("Opcode", "What a command is.", rows["COMMAND"]),
        enumeration("OperandKind", "What an operand is.", rows["OPERAND"]),
        enumeration("ArgumentKind", "What an argument is.", rows["ARGUMENT"]),
        enumeration("SymbolClass", "Who fixes a symbol's value, and when.", rows["SYMBOL"]),
        enumeration("Encoding", "The layout registry: docs/layouts.md says what the bytes of each mean.", rows["LAYOUT"]),
        enumeration("Role", "What a component of a weight is.", rows["ROLE"]),
        enumeration("FileKind", "What a file of weights is.", rows["FILE"]),
        enumeration("ImageKind", "What an image is.", rows["IMAGE"]),
        enumeration("AliasKind", "How a result's storage relates to an input's.", rows["ALIAS"]),
    ]
    return "".join(out)


# ---- documents

def document_table(head: list[str], align: str, rows: list[list[str]]) -> str:
    rule = ["--:" if a == "r" else "---" for a in align]
    return "".join("| " + " | ".join(cells).replace("|  |", "| |").replace("|  |", "| |").rstrip() + " |\n" for cells in [head, rule, *rows])


def since(minor: int, first: int = 1) -> str:
    return f" (since 0.{minor})" if minor > first else ""


def section_table(definition: Definition) -> str:
    rows = []
    for r in definition.rows["SECTION"]:
        record = r.bytes.replace("sizeof(int64_t)", "i64")
        record = re.sub(r"sizeof\((\w+)\)", r"`\1`", record) if record != "0" else ""
        rows.append([str(r.n), f"`{r.word}`", "yes" if r.required == "true" else "no", record, r.meaning + since(int(r.since))])
    return document_table(["type", "name", "required", "record", "content"], "rllll", rows)


def command_table(definition: Definition) -> str:
    rows = []
    for r in definition.rows["COMMAND"]:
        own = re.sub(r"sizeof\((\w+)\)", r"`\1`", r.bytes) if r.bytes != "0" else ""
        own += ", operands" if r.operands == "1" else ""
        rows.append([str(r.n), r.name, "yes" if r.required == "true" else "no", own, r.meaning + since(int(r.since))])
    return document_table(["opcode", "name", "required", "own fields", "meaning"], "rllll", rows)


def expression_table(definition: Definition) -> str:
    rows = [[str(r.n), r.name, " ".join("abc"[:int(r.operands)]), r.meaning] for r in definition.rows["EXPRESSION"]]
    return document_table(["op", "name", "operands", "value"], "rlll", rows)


def layout_table(definition: Definition) -> str:
    versions: dict[int, list[str]] = {}
    for r in definition.rows["LAYOUT"]:
        versions.setdefault(int(r.since), []).append(f"`{r.word}`")
    return document_table(["since", "layouts"], "ll", [[f"0.{minor}", ", ".join(words)] for minor, words in sorted(versions.items())])


def field_table(definition: Definition, command: str) -> str:
    rows, offset = [], 0
    for f in definition.fields(command):
        size, kind = definition.field_bytes(f), FIELD_TYPES[f.kind][1]
        rows.append([str(offset), str(size), kind + (f"[{f.count}]" if f.count != "1" else ""), f"`{f.field}`", f.meaning])
        offset += size
    return document_table(["offset", "size", "type", "field", "meaning"], "rrlll", rows)


#: Rows of the table of words: where they stand, and the kind of row; a pair of texts stands for
#: itself.
WORD_ROWS = (
    ("`class` of a symbol", "SYMBOL"), ("`kind` of a file", "FILE"), ("`dtype`", "DTYPE"), ("`encoding`", "LAYOUT"),
    ("`source` of a constant", "SOURCE"), ("roles of components", "ROLE"), ("`kind` of an image", "IMAGE"),
    ("`traits`, `launch_traits`", "TRAIT"), ("`kind` of a parameter", "PARAMETER"), ("`access` of a parameter", "ACCESS"),
    ("`arch_kind`", "ARCH"), ("`cpu_features`", "CPU"), ("conditions of `when`", "PREDICATE"), ("`kind` of an argument", "ARGUMENT"),
    ("commands", "COMMAND"),
)  # fmt: skip


def word_rows(definition: Definition) -> str:
    return document_table(["where", "words"], "ll",
                          [[where, ", ".join(f"`{r.word}`" for r in definition.rows[kind])] for where, kind in WORD_ROWS])


DOCUMENT_BLOCKS: tuple[tuple[str, str, Callable[[Definition], str]], ...] = (
    ("docs/accx-format.md", "sections", section_table),
    ("docs/accx-format.md", "operations", expression_table),
    ("docs/accx-format.md", "opcodes", command_table),
    ("docs/layouts.md", "versions", layout_table),
    ("docs/text-form.md", "words", word_rows),
)


def plan(definition: Definition) -> dict[str, str]:
    """Every file that is made, whole."""
    outputs = {"format/fields.h": render_fields(definition)}

    def load(path: str) -> str:
        return outputs[path] if path in outputs else (ROOT / path).read_text()

    for path, name, kind, render in HEADER_BLOCKS:
        if render is not None:
            begin, end = f"/* {name}: made of format/format.def */\n", f"/* {name}: end */\n"
            outputs[path] = between(load(path), path, begin, end, render(definition.rows[kind]))
    outputs["python/accrt/_format.py"] = render_python(definition)
    documents = [*DOCUMENT_BLOCKS]
    for command in definition.rows["COMMAND"]:
        if definition.fields(command.name):
            documents.append(("docs/accx-format.md", f"fields of {command.name}", functools.partial(field_table, command=command.name)))
    outputs["docs/text-form.md"] = command_keys(definition, load("docs/text-form.md"))
    for path in ("tests/fuzz/yaml.dict", "tests/fuzz/caps.dict"):
        outputs[path] = dictionary(definition, path, load(path))
    for path, name, write in documents:
        begin, end = f"<!-- {name}: made of format/format.def -->\n", f"<!-- {name}: end -->\n"
        outputs[path] = between(load(path), path, begin, end, write(definition))
    return outputs


def command_keys(definition: Definition, text: str) -> str:
    """docs/text-form.md with the keys of a command: words and keys of the definition, then those of
    the row that are in all commands."""
    made = dict.fromkeys(r.word for r in definition.rows["COMMAND"])
    for command in definition.rows["COMMAND"]:
        made.update(dict.fromkeys(f.key for f in definition.fields(command.name) if "key" in f.values))
    row = re.search(r"^\| a command \| (.*) \|$", text, re.M)
    if not row:
        fail("docs/text-form.md has no row '| a command |'")
    keys = dict.fromkeys([*made, *re.findall(r"`(\w+)`", row.group(1))])
    return text.replace(row.group(0), "| a command | " + ", ".join(f"`{k}`" for k in keys) + " |")


def dictionary(definition: Definition, path: str, text: str) -> str:
    """A fuzzer's dictionary, with every word of the definition."""
    shown = path.endswith("caps.dict")  # names as JSON strings
    words = []
    for kind in ("COMMAND", "EXPRESSION", "SECTION", "LAYOUT", "DTYPE", "IMAGE") if shown else [kind for _, kind in WORD_ROWS]:
        words += [r.values.get("shown", r.word) if shown else r.word for r in definition.rows[kind]]
    words += [] if shown else [f.key for f in definition.rows["FIELD"] if "key" in f.values]
    lines = text.splitlines()
    have = {word.strip(": ") for line in lines if not line.startswith("#") for word in re.findall(r"[\w .:-]+", line.replace("\\\"", ""))}
    return "\n".join([*lines, *(f'"\\"{w}\\""' if shown else f'"{w}"' for w in dict.fromkeys(words) if w not in have)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when something is out of date")
    options = parser.parse_args()
    definition = Definition()
    check_headers(definition)
    outputs = plan(definition)
    stale = [p for p, text in outputs.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != text]
    if options.check:
        if stale:
            fail("out of date, run ./dev gen: " + ", ".join(stale))
        return
    for path in stale:
        (ROOT / path).write_text(outputs[path])
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
