"""docs/accx-format.md against the C structs, enums and rules: every table of the document is held
against loader/."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITION = (ROOT / "format" / "format.def").read_text()
#: Without the comments around what format/gen.py makes.
DOCUMENT = re.sub(r"^<!-- .* -->\n", "", (ROOT / "docs" / "accx-format.md").read_text(), flags=re.M)
COMPILER = shlex.split(os.environ.get("CC", "cc"))

TYPES = {
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i32": "int32_t", "i64": "int64_t",
    "char": "char", "version": "accx_version_t", "digest": "accx_digest_t", "type": "accx_type_t", "range": "accx_range_t",
}  # fmt: skip


def rows_of(text):
    """Cells of the lines of a Markdown table, without its two head lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def table_after(heading):
    """The first table after a line that begins with `heading`."""
    start = DOCUMENT.index("\n" + heading)
    return rows_of(re.search(r"(?:^\|.*\n)+", DOCUMENT[start:], re.M).group(0))


def structs():
    """(name, size, rows) of each struct with a byte table."""
    found = []
    for match in re.finditer(r"^### (accx_\w+), (\d+) bytes\n\n((?:\|.*\n)+)", DOCUMENT, re.M):
        found.append((match.group(1), int(match.group(2)), rows_of(match.group(3))))
    return found


def compile_and_run(folder, body):
    if shutil.which(COMPILER[0]) is None:
        pytest.skip("no C compiler")
    source = folder / "check.c"
    source.write_text('#include <stdio.h>\n#include "accrt/kernel.h"\n#include "format/format.h"\n#include "loader/bundle.h"\n'
                      "#define MATCH(a, b) _Generic((a), b: 1, default: 0)\n"
                      "int main(void) {\n" + body + "return 0;\n}\n")  # fmt: skip
    program = folder / "check"
    command = [*COMPILER, "-std=c11", f"-I{ROOT}", f"-I{ROOT / 'include'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


def test_versions_are_those_of_the_latest_rows():
    """The library's, of the command set and of the container, and those of the second reader."""
    from accrt.bundle_reader.records import VERSIONS
    header = (ROOT / "format" / "format.h").read_text() + (ROOT / "format" / "fields.h").read_text()
    minors = dict(re.findall(r"^#define ACCX_(\w+)_MINOR (\d+)", header, re.M))
    commands = [int(since) for since in re.findall(r"^DEF_COMMAND\(\d+, .*, (\d+), [01], \"", DEFINITION, re.M)]
    images = [int(since) for since in re.findall(r"^DEF_IMAGE\(\d+, .*, [01], (\d+), \"", DEFINITION, re.M)]
    assert len(commands) == DEFINITION.count("\nDEF_COMMAND(") and len(images) == DEFINITION.count("\nDEF_IMAGE(")
    assert int(minors["COMMANDS"]) == max(commands) and max(images) <= int(minors["CONTAINER"])
    assert {what: VERSIONS[what.lower()][1] for what in ("CONTAINER", "COMMANDS", "LAYOUTS")} == {
        what: int(minors[what]) for what in ("CONTAINER", "COMMANDS", "LAYOUTS")}


def test_every_struct_has_a_table():
    header = (ROOT / "format" / "format.h").read_text() + (ROOT / "format" / "fields.h").read_text()
    assert sorted(set(re.findall(r"ACCX_ASSERT_SIZE\((accx_\w+),", header)) | {"accx_digest_t", "accx_version_t"}) == sorted(
        name for name, _, _ in structs()
    )


def test_offsets_sizes_and_types(tmp_path):
    body, expected = [], []
    for name, size, rows in structs():
        body.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {size}")
        end = 0
        for offset, bytes_, kind, field, _meaning in rows:
            field = field.strip("`")
            base, _, count = kind.partition("[")
            element = f"(({name}*)0)->{field}" + ("[0]" if count else "")
            body.append(
                f'printf("{name}.{field} %zu %zu %d\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}), '
                f"MATCH({element}, {TYPES[base]}));"
            )
            expected.append(f"{name}.{field} {offset} {bytes_} 1")
            assert int(offset) == end, f"{name}.{field} does not follow the field before it"
            end += int(bytes_)
        assert end == size, f"the fields of {name} do not fill it"
    assert compile_and_run(tmp_path, "\n".join(body)) == expected


def test_section_numbers(tmp_path):
    rows = table_after("### Sections")
    records = {name: kind.strip("`") for _, name, _, kind, _ in rows}
    body = [f'printf("%d\\n", ACCX_SECTION_{name.strip("`").upper()});' for _, name, _, _, _ in rows]
    assert compile_and_run(tmp_path, "\n".join(body)) == [number for number, *_ in rows]
    kinds = re.findall(r"^DEF_SECTION\(\d+, (\w+), \"(\w+)\", (\S+), \w+, (true|false), \d+,", DEFINITION, re.M)
    assert [name.strip("`") for _, name, *_ in rows] == [name for _, name, *_ in kinds]
    for (constant, name, size, required), row in zip(kinds, rows):
        assert constant == name.upper()
        assert row[2] == {"true": "yes", "false": "no"}[required]
        record = records[f"`{name}`"]
        assert size == {"": "0", "i64": "sizeof(int64_t)"}.get(record, f"sizeof({record})")


def test_operations_and_opcodes(tmp_path):
    expressions = rows_of(DOCUMENT[DOCUMENT.index("| op | name |") :].split("\n\n")[0])
    opcodes = rows_of(DOCUMENT[DOCUMENT.index("| opcode | name |") :].split("\n\n")[0])
    body = [f'printf("%d\\n", ACCX_EXPR_{name});' for _, name, *_ in expressions]
    body += [f'printf("%d\\n", ACCX_COMMAND_{name});' for _, name, *_ in opcodes]
    assert compile_and_run(tmp_path, "\n".join(body)) == [row[0] for row in expressions + opcodes]
    assert len(expressions) == DEFINITION.count("\nDEF_EXPRESSION(") and len(opcodes) == DEFINITION.count("\nDEF_COMMAND(")


def test_rules():
    listed = re.findall(r'X\((\w+), (\d+), (\w+), "([^"]*)"\)', (ROOT / "format" / "rules.h").read_text())
    documented = [tuple(row) for row in table_after("| rule |")]
    assert documented == [(number, name, status, text) for name, number, status, text in listed]
    numbers = [int(number) for _, number, *_ in listed]
    assert numbers == sorted(set(numbers))


def test_limits(tmp_path):
    limits = {row[0]: row[1] for row in table_after("## Limits")}
    body = """
    printf("%u\\n", ACCX_MAX_SECTIONS);
    printf("%llu GiB\\n", (unsigned long long)ACCX_MAX_METADATA_BYTES >> 30);
    printf("%llu GiB\\n", (unsigned long long)ACCX_MAX_CODE_BYTES >> 30);
    printf("%d\\n", ACCX_MAX_RECORDS == 1u << 24);
    printf("%u / %u\\n", ACCX_MAX_STRING_BYTES, ACCX_MAX_NAME_BYTES);
    printf("%d\\n", ACCX_MAX_RANK);
    printf("%d\\n", ACCX_MAX_SYMBOL_VALUE == INT64_C(1) << 48);
    printf("%u\\n", ACCX_MAX_ARGUMENTS);
    printf("%u / %u\\n", ACCX_MAX_BLOCK_DEPTH, ACCX_MAX_CALL_DEPTH);
    printf("%d\\n", ACCX_MAX_EXPANDED_COMMANDS == UINT64_C(1) << 24);
    printf("%d / %d\\n", ACCRT_KERNEL_MAX_PARAMS, ACCRT_KERNEL_MAX_PARAMS_BYTES);
    printf("%u\\n", ACCX_MAX_FUNCTION_TARGETS);
    printf("%u / %u\\n", ACCX_MAX_BLOCK_THREADS, ACCX_MAX_CLUSTER_BLOCKS);
    printf("%u\\n", ACCX_MAX_PACK_NAME_BYTES);
    """
    assert compile_and_run(tmp_path, body) == [
        limits["sections"], limits["all sections but CODE and DATA together"], limits["CODE"], "1",
        limits["bytes of a string / of a name"], limits["rank"], "1", limits["arguments of a function"],
        limits["nesting of blocks / of calls"], "1", limits["parameters of a kernel / bytes of its block"],
        limits["functions of one name"], limits["threads of a workgroup / workgroups of a cluster"], limits["bytes of a pack's name"],
    ]  # fmt: skip
