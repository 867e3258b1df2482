"""docs/text-form.md against write/text: every word and every key that can be written is in its
tables, and nothing else."""

from __future__ import annotations

import json
import re

from accx_tool import ROOT, accx, needs_tool

#: Without the comments around what format/gen.py makes.
DOCUMENT = re.sub(r"^<!-- .* -->\n", "", (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8"), flags=re.M)
DEFINITION = (ROOT / "format" / "format.def").read_text(encoding="utf-8")
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "write" / "text").glob("*.c"))}

#: Rows of the table of words, and the tables of names.c.
WORDS = {
    "`class` of a symbol": "symbol_class", "`kind` of a file": "file", "`dtype`": "dtype", "`source` of a constant": "source",
    "roles of components": "role", "`kind` of an image": "image", "`traits`, `launch_traits`": "traits", "`kind` of a parameter": "parameter",
    "`access` of a parameter": "access", "`arch_kind`": "arch_kind", "`cpu_features`": "cpu", "conditions of `when`": "predicate",
    "`kind` of an argument": "argument", "commands": "opcode",
}  # fmt: skip
#: Functions that read a map whose keys depend on what else is there, and what the document calls
#: it.
SHARED = {'word != NULL ? word : "a command"': "a command", "operand_forms[kind][0]": "what is given"}


def table(heading: str) -> dict[str, list[str]]:
    """What stands in backticks in the second cell of each row, by the first cell: of the tables
    before the next heading."""
    text = re.split(r"\n##", DOCUMENT[DOCUMENT.index(f"\n### {heading}\n") + 4 :])[0]
    lines = re.findall(r"^\|.*\|$", text, re.M)
    rows = [line[2:-2].split(" | ", 1) for line, rule in zip(lines, lines[1:] + [""]) if "--" not in line and "--" not in rule]
    return {first: re.findall(r"`([^`]+)`", second) for first, second in rows}


def strings(text: str) -> list[str]:
    return re.findall(r'"([^"]*)"', text)


def words_of_code() -> dict[str, list[str]]:
    """By table: the words in the order of their numbers."""
    found = re.findall(r"^static const accx_word_t (\w+)_list\[\] = \{\n#define DEF_(\w+)\(", SOURCES["names.c"], re.M)
    return {name: re.findall(rf'^DEF_{kind}\(\d+, \w+, "(\w+)"', DEFINITION, re.M) for name, kind in found}


def keys_of_code() -> dict[str, list[str]]:
    """By what a map is: the keys that it may have."""
    found = {}
    for source in SOURCES.values():
        for match in re.finditer(r"static const char\* const keys\[\] = \{([^}]*?),?\s*NULL\};", source):
            what = re.search(r"accx_node_all_(?:used|known)\([\w>-]+, (.*?), keys,", source[match.end() :], re.S)
            assert what
            name = re.sub(r"\s+", " ", what.group(1))
            keys = match.group(1)
            if '#include "format/format.def"' in keys:
                # words of commands, then keys of their fields
                made = re.findall(r'^DEF_COMMAND\(\d+, \w+, ("\w+")', DEFINITION, re.M)
                made += re.findall(r'^DEF_KEYED\(\w+, \w+, \w+, \d, \w+, \w+, ("\w+")', DEFINITION, re.M)
                keys = " ".join(dict.fromkeys(made)) + keys.replace('#include "format/format.def"', "")
            found[SHARED.get(name) or strings(name)[0].strip("'")] = strings(keys)
    return found


def test_every_word_is_in_the_document() -> None:
    code, document = words_of_code(), table("Every word")
    assert len(code) == SOURCES["names.c"].count("WORDS(") - SOURCES["names.c"].count("define WORDS(")
    assert {row: document[row] for row in WORDS} == {row: code[name] for row, name in WORDS.items()}
    assert set(code) == set(WORDS.values())
    others = {"`encoding`", "operators", "functions"}
    assert set(document) == set(WORDS) | others


@needs_tool
def test_every_encoding_is_in_the_document() -> None:
    names = [encoding["name"] for encoding in json.loads(accx("caps", "--json"))["encodings"]]
    assert table("Every word")["`encoding`"] == names


def test_every_operator_and_function_is_in_the_document() -> None:
    source, document = SOURCES["expression_read.c"], table("Every word")
    taken = set(re.findall(r'take\(reading, "([^"]+)"\)', source)) - {"(", ")", ","}
    signs = source[source.index("signs[] =") :]
    taken |= set(re.findall(r'\{"([^"]+)", ACCRT_EXPR_', signs[: signs.index("};")]))
    assert set(document["operators"]) == taken
    calls = source[source.index("calls[] =") :]
    functions = set(re.findall(r'\{"(\w+)", ACCRT_EXPR_', calls[: calls.index("};")])) | set(re.findall(r'strcmp\(name, "(\w+)"\)', source))
    assert set(document["functions"]) == functions


def test_every_key_is_in_the_document() -> None:
    code, document = keys_of_code(), table("Every key")
    assert document.pop("a condition") == ["parameter"]
    assert document == code


def test_every_key_that_is_read_is_known() -> None:
    """No function asks for a key that its table lacks."""
    known = {key for keys in keys_of_code().values() for key in keys} | {"parameter", "digest"}
    for name, source in SOURCES.items():
        if not name.startswith("build") or name == "build_place.c":
            continue
        pattern = r'(?:accx_key_\w+\(builder|accx_node_get\(\w+(?:->\w+)?|key_\w+\(block|take_list\(builder|take_map\(block|build_inner\(block), (?:\w+(?:->\w+)?, )?"(\w+)"'
        read = set(re.findall(pattern, source))
        assert read and read <= known, (name, read - known)


def test_keys_and_words_of_the_prose_exist() -> None:
    """What the document says of a key in its upper part is said of one that there is."""
    upper = DOCUMENT[DOCUMENT.index("### Top level") : DOCUMENT.index("### Every word")]
    tables = [word for words in table("Every word").values() for word in words]
    known = {*tables, *(key for keys in table("Every key").values() for key in keys), "parameter", "true"}
    known |= {"inf", "-inf", "nan", "host", "$name", "accx caps"}
    for line in upper.splitlines():
        first = line.split(" | ")[0]
        for word in re.findall(r"`([^`]+)`", first if line.startswith("|") else ""):
            assert word.split(":")[0] in known, word


def test_fuzzing_has_every_word_and_key() -> None:
    dictionary = {word.strip(": ") for word in strings((ROOT / "tests" / "fuzz" / "yaml.dict").read_text(encoding="utf-8"))}
    words = {word for words in words_of_code().values() for word in words} | set(table("Every word")["functions"])
    assert words | {key for keys in keys_of_code().values() for key in keys} <= dictionary
