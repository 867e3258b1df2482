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
