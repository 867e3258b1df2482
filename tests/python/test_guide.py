"""docs/guide/: each page has the program of examples/guide/ and what it prints, and its Python
block runs.

The C programs are run by CTest (examples.guide.*).
"""
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = sorted(p.stem for p in (ROOT / "examples/guide").glob("*.c"))
HEADINGS = ["When to use it", "Example", "What goes wrong", "What it costs"]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / f"docs/guide/{name}.md").read_text(), re.M | re.S)


def test_every_program_has_a_page_and_the_other_way_round():
    pages = sorted(p.stem for p in (ROOT / "docs/guide").glob("*.md") if p.stem != "README")
    assert len(PROGRAMS) >= 8 and pages == PROGRAMS
    listed = re.findall(r"\]\((\w+)\.md\)", (ROOT / "docs/guide/README.md").read_text())
    assert sorted(listed) == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_has_the_program_and_what_it_prints(name):
    assert blocks(name, "c") == [(ROOT / f"examples/guide/{name}.c").read_text()]
    assert blocks(name, "text") == [(ROOT / f"examples/guide/{name}.expected").read_text()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_has_its_sections_and_its_statuses(name):
    text = (ROOT / f"docs/guide/{name}.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    known = set(re.findall(r"X\((\w+), \d+,", (ROOT / "include/accrt/base.h").read_text()))
    named = set(re.findall(r"ACCRT_ERROR_(\w+)", text)) - {"INIT"}
    assert named and named <= known


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_block_runs(name):
    (program,) = blocks(name, "python")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
