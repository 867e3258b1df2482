"""The examples in README.md and docs/ work as written."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PYTHON_DOCS = ["README.md", "docs/quick-start.md", "docs/python-guide.md", "docs/compiler.md"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)


def environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT / "python"))


@pytest.mark.parametrize("document", PYTHON_DOCS)
def test_python_examples(document):
    """All Python blocks of a document, one after the other in one program, from the repository's root."""
    program = "\n".join(blocks(document, "python"))
    assert program, f"{document} has no Python example"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_readme_python_prints_what_comes_next():
    done = subprocess.run([sys.executable, "-c", blocks("README.md", "python")[0]], cwd=ROOT, env=environment(),
                          capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["t", "h"]


def test_readme_c_example(tmp_path):
    """Compiled as C11 without a warning, linked with pkg-config from an installed tree, and run."""
    source = tmp_path / "readme.c"
    source.write_text(blocks("README.md", "c")[0])
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path / "installed"], check=True, capture_output=True)
    pc = next((tmp_path / "installed").rglob("accrt.pc"))
    env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent), LD_LIBRARY_PATH=str(pc.parent.parent))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "accrt"], env=env, capture_output=True, text=True,
                           check=True).stdout.split()
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "readme", source, *flags], check=True)
    done = subprocess.run([tmp_path / "readme", BUILD / "models/bytelm.accx"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r'score of \' \' after "In": -?\d+\.\d+\n', done.stdout)
    wrong = subprocess.run([tmp_path / "readme", source], env=env, capture_output=True, text=True)
    assert wrong.returncode == 1 and "ACCRT_ERROR_INVALID_FORMAT" in wrong.stderr


@pytest.mark.skipif(shutil.which("accx") is None and not (BUILD / "bin/accx").exists(), reason="the tool was not built")
def test_readme_shell_examples():
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines() if line.startswith("build/bin/accx")]
    assert len(lines) >= 2
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)


def test_every_link_leads_somewhere():
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"
