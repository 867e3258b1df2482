"""Each sentence of accrt/sys/driver.h has a mutant that breaks it, or a reason why none does:
docs/driver-obligations.md.

`python tests/python/test_driver_obligations.py` writes the table again after the header has
changed: what is known of a sentence stays, and a new sentence has "?" until somebody names its
mutants or the reason.
"""

from __future__ import annotations

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_cts_mutants import MUTANTS, THREADED_MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/accrt/sys/driver.h"
DOCUMENT = ROOT / "docs/driver-obligations.md"
NAMES = {obligation for obligation, *_rest in MUTANTS + THREADED_MUTANTS}

#: How a reason begins.
REASONS = ("what ", "a promise to the driver", "a permission", "neither driver ", "no ")
HEAD = "| sentence of the header | mutants that break it, or why there is none |\n| --- | --- |\n"


def sentences() -> list[str]:
    """The sentences of the header's comments, each once, in its order."""
    found: dict[str, None] = {}
    for comment in re.findall(r"/\*+<?(.*?)\*/", HEADER.read_text(), re.S):
        lines = "\n".join(re.sub(r"^\s*\* ?", "", line) for line in comment.splitlines())
        for paragraph in re.split(r"\n\s*\n", lines):
            text = " ".join(paragraph.replace("----", "").split())
            for sentence in re.split(r"(?<=[.:;])\s+(?=[A-Z`@]|[a-z]+_[a-z]+ )", text):
                if re.search(r"[a-z]{2}", sentence):
                    found[sentence.replace("|", "/")] = None
    return list(found)


def rows(text: str) -> dict[str, str]:
    """The table's rows: what is said of each sentence."""
    table = text.partition(HEAD)[2]
    return dict(re.match(r"\| (.*) \| (.*) \|$", line).groups() for line in table.splitlines() if line)  # type: ignore[union-attr]


def written(text: str) -> str:
    """The document with a row for each sentence."""
    known = rows(text)
    return text.partition(HEAD)[0] + HEAD + "".join(f"| {s} | {known.get(s, '?')} |\n" for s in sentences())


def test_each_sentence_has_a_row():
    text = DOCUMENT.read_text()
    known = rows(text)
    assert [s for s in sentences() if s not in known] == [], "new sentences: run this file as a program, then fill in the rows"
    assert [s for s in known if s not in sentences()] == [], "sentences that the header lost: run this file as a program"
    assert text == written(text), "rows in another order: run this file as a program"


def test_each_row_names_mutants_or_a_reason():
    for sentence, said in rows(DOCUMENT.read_text()).items():
        mutants = re.findall(r"`([^`]+)`", said)
        assert set(mutants) <= NAMES, f"{sentence}: {sorted(set(mutants) - NAMES)} are no mutants"
        assert bool(mutants) != said.startswith(REASONS), f"{sentence}: neither mutants nor a reason, or both: {said}"
        assert not mutants or not re.sub(r"`[^`]+`|, ", "", said), f"{sentence}: more than mutants: {said}"


def test_most_sentences_have_mutants():
    said = rows(DOCUMENT.read_text()).values()
    guide = " ".join((ROOT / "docs/driver-obligations.md").read_text().split())
    assert f"{sum('`' in row for row in said)} of its {len(said)} sentences" in guide


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
