"""Every public status is provoked by a test, and documented."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
STATUSES = re.findall(r"^  X\((\w+), \d+,", (ROOT / "include/accrt/base.h").read_text(), re.M)


def class_name(status: str) -> str:
    name = "".join(word.capitalize() for word in status.split("_"))
    return name if name.endswith("Error") else name + "Error"


def text_of_tests() -> str:
    files = [*ROOT.glob("runtime/**/*_test.c"), *ROOT.glob("loader/*_test.c"), *ROOT.glob("format/*_test.c"), *ROOT.glob("write/**/*_test.c"), *ROOT.glob("abi/*_test.c"),
             *ROOT.glob("tests/**/*.c"), *ROOT.glob("tests/python/*.py")]
    return "\n".join(f.read_text() for f in files if f != pathlib.Path(__file__))


def test_every_status_is_expected_by_a_test():
    text = text_of_tests()
    missing = [s for s in STATUSES if not re.search(rf"\bACCRT_ERROR_{s}\b|\b{class_name(s)}\b", text)]
    assert len(STATUSES) == 29 and not missing


def test_every_status_is_documented():
    text = (ROOT / "docs/errors.md").read_text()
    assert [s for s in STATUSES if f"`ACCRT_ERROR_{s}`" not in text] == []


def documented():
    """{function: its comment}, of the public headers."""
    text = "".join(path.read_text() for path in sorted((ROOT / "include/accrt").rglob("*.h")))
    return {name: comment for comment, name in re.findall(r"(/\*\*(?:(?!\*/).)*\*/)\s*ACC\w+_API\s+[\w\s*]*?(accrt_\w+)\(", text, re.S)}


def test_functions_document_the_statuses_that_they_make():
    """A status that a public function fails with, in its own body, is in its comment, or in that of
    a function whose statuses it says it has. INVALID_ARGUMENT is everybody's."""
    comments, found, missing = documented(), 0, []

    def of(name, seen):
        comment = comments.get(name, "")
        return comment + "".join(of(other, seen | {name}) for other in re.findall(r"\b(?:as|and)\s+(?:\*\s+)?(accrt_\w+)", comment) if other not in seen)

    function = re.compile(r"^(?:ACCRT_\w+ )*accrt_status_t (accrt_\w+)\([^;{]*?\) \{\n(.*?)^\}", re.M | re.S)
    for path in (path for folder in ("runtime", "loader", "format", "write") for path in sorted((ROOT / folder).rglob("*.c"))):
        if path.name.endswith("_test.c"):
            continue
        for name, body in function.findall(path.read_text()):
            public = name.replace("accrt_inner_", "accrt_")
            statuses = set(re.findall(r"ACCRT_FAIL(?:_ERRNO)?\((\w+)", body)) - {"INVALID_ARGUMENT"} if public in comments else set()
            found += len(statuses)
            missing += [f"{public}: {status}" for status in sorted(statuses) if f"ACCRT_ERROR_{status}" not in of(public, frozenset())]
    assert found > 40 and not missing, "\n".join(missing)
