"""Each public C function begins with one macro: it notes the function's name for error records,
refuses a forked child, and refuses what is NULL by its name (runtime/core/fork.h).
"""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = {"api.def": ("runtime", "loader", "format"), "write.def": ("write",)}
#: ACCRT_ENTER, and what is made of it for records with an index, for recordings, for files that are
#: opened, for writers, and for two functions that differ in a budget.
BEGINNINGS = re.compile(r"\b(ACCRT_ENTER(_AS|_INNER)?|ACCX_ENTER_INDEX|ENTER_RECORDING|begin_open|begin_work|accx_writer_begin|WRITER_(ENTER|ENTER_FOR|BEGIN))\(|\b(swap_tensors|load_sources)\(ACCRT_THIS_FUNCTION")
#: function: why it has no such beginning.
OTHERS = {
    "accrt_last_error": "it must not replace the record that it gives",
    "accrt_set_error": "a bad argument must not become the record",
    "accrt_get_api": "it has no handle, and a child may ask", "accrt_write_get_api": "as accrt_get_api",
    "accrt_query_caps": "it has no handle, and a child may ask", "accrt_caps_parse": "it has no handle, and a child may ask",
    "accrt_layout_quantize": "it has no handle, and a child may ask",
    "accrt_bundle_check": "it has no handle, and a child may ask",
    "accrt_semaphore_wait_many": "an empty list of time points is NULL",
    "accrt_bundle_writer_create": "a writer needs no instance, and a child may have one",
}
FUNCTION = re.compile(r"^(?:ACCRT_\w+ )*accrt_status_t (accrt_\w+)\(([^;{]*?)\) \{\n(.*?)^\}", re.M | re.S)


def sources(folders):
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.c")) if not path.name.endswith("_test.c"))


@pytest.mark.parametrize("listed", FOLDERS)
def test_public_functions_begin_with_the_macro(listed):
    public = set(re.findall(r"\baccrt_[a-z0-9_]+", (ROOT / "abi" / listed).read_text()))
    found, wrong = 0, []
    for path in sources(FOLDERS[listed]):
        for name, _, body in FUNCTION.findall(path.read_text()):
            if name not in public:
                continue
            found += 1
            if not BEGINNINGS.search(body) and name not in OTHERS:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert found >= (170 if listed == "api.def" else 30)
    assert not wrong, "these begin otherwise than with ACCRT_ENTER:\n" + "\n".join(wrong)


def test_what_begins_otherwise_still_notes_its_name():
    """Or an error record names the function that was called before."""
    for path in sources(folder for folders in FOLDERS.values() for folder in folders):
        for name, _, body in FUNCTION.findall(path.read_text()):
            if name in OTHERS and name not in ("accrt_last_error", "accrt_set_error"):
                assert "accrt_error_enter(ACCRT_THIS_FUNCTION)" in body or "accrt_check_fork()" in body, name


def status_functions(listed):
    """The public functions of a list that return a status: those that can make a record."""
    headers = "".join(path.read_text() for path in sorted((ROOT / "include" / "accrt").rglob("*.h")))
    public = set(re.findall(r"\baccrt_[a-z0-9_]+", (ROOT / "abi" / listed).read_text()))
    return public & set(re.findall(r"\baccrt_status_t (\w+)\(", headers))


def uses(path, functions):
    """(line, function) of each mention in code, definitions and names of records aside."""
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', lambda m: re.sub(r"[^\n]", " ", m.group()), path.read_text(), flags=re.S)
    for match in re.finditer(r"(?<!accrt_status_t )\b(accrt_[a-z0-9_]+)\b", text):
        if match.group(1) in functions:
            yield text.count("\n", 0, match.start()) + 1, match.group(1)


def test_the_library_calls_no_function_that_notes_its_name():
    """The record of a failure would name that one, and not the one that the user called: also
    of a failure behind it. What both use is accrt_inner_... (ACCRT_ENTER_INNER)."""
    public = status_functions("api.def") - {"accrt_last_error", "accrt_set_error"}
    assert len(public) >= 170 and "accrt_stream_copy" in public
    wrong = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in sources(FOLDERS["api.def"]) for line, name in uses(path, public)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library, folder, own", (("serve", "serve", {"accrt_serve_get_api"}), ("http", "serve/http", set())))
def test_the_libraries_above_name_their_own_functions(library, folder, own):
    """What fails in an inner function, or in libaccrt, gets the name of what the user called."""
    text = "".join(path.read_text() for path in sorted((ROOT / folder).glob("*.c")) if not path.name.endswith("_test.c"))
    public = status_functions(f"{library}.def")
    assert len(public) >= 10
    for name in public - own:
        bodies = re.findall(rf"^accrt_status_t {name}\([^;{{]*\) \{{\n(.*?)^\}}", text, re.M | re.S)
        assert any("accsv_named(__func__, " in body for body in bodies), name
