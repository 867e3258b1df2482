"""`./dev` in a tree that was copied or moved: old paths in the build folder and in .venv are found
and mended, with a line each.

The tree here is a small one: dev itself, and a project of one C file in place of the library. What
dev runs in it comes from a .ci/check.sh of the test's own, which calls the functions that every
verb calls.
"""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake")


def make_tree(folder):
    (folder / ".ci").mkdir(parents=True)
    # Without pip, which takes long to install and which nothing here uses.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    shutil.copy(ROOT / "dev", folder / "dev")
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nproject(small C)\nadd_executable(small small.c)\n"
                                           "target_compile_definitions(small PRIVATE WHERE=\"${CMAKE_SOURCE_DIR}\")\n")
    (folder / "small.c").write_text("#include <stdio.h>\n#include \"small.h\"\nint main(void) { puts(WHERE \" \" SMALL); return 0; }\n")
    (folder / "small.h").write_text('#define SMALL "first"\n')
    (folder / ".ci/check.sh").write_text('check_main() { mkdir -p "$BUILD"; make_venv; configure_and_build "$BUILD"; }\n')
    return folder


def build(folder, **environment):
    done = subprocess.run(["./dev", "check"], cwd=folder, capture_output=True, text=True, env={**os.environ, "ACCRT_JOBS": "1", **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run([folder / "build/small"], capture_output=True, text=True, check=True).stdout.strip()
    script = folder / ".venv/bin/probe"
    if not script.exists():  # as pip writes them
        script.write_text(f"#!{folder}/.venv/bin/python\nimport sys; print(sys.prefix)\n")
        script.chmod(0o755)
    prefix = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
    return done.stdout, said, prefix


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_tree_elsewhere_builds_what_lies_in_it(tmp_path, how):
    first, second = make_tree(tmp_path / "first"), tmp_path / "second place"
    text, said, prefix = build(first)
    assert "was made" not in text and said == f"{first} first" and prefix == str(first / ".venv")
    again, _, _ = build(first)
    assert "was made" not in again
    if how == "moved":
        first.rename(second)
    else:
        shutil.copytree(first, second, symlinks=True)
    (second / "small.h").write_text('#define SMALL "second"\n')
    text, said, prefix = build(second)
    assert said == f"{second} second"
    assert prefix == str(second / ".venv")
    assert text.count(f"build was made for the tree in {first}: it is configured and built again") == 1, text
    assert text.count(f".venv was made in {first}/.venv: its scripts now name this tree") == 1, text
    activated = subprocess.run(["sh", "-c", '. "$0" && echo "$VIRTUAL_ENV"', second / ".venv/bin/activate"], capture_output=True, text=True)
    assert activated.stdout.strip() == str(second / ".venv")
    text, _, _ = build(second)
    assert "was made" not in text
    if how == "copied":  # the first is as it was
        text, said, prefix = build(first)
        assert "was made" not in text and said == f"{first} first" and prefix == str(first / ".venv")


def test_a_tree_reached_by_a_link_is_not_another(tmp_path):
    first = make_tree(tmp_path / "first")
    build(first)
    (tmp_path / "link").symlink_to(first)
    text, _, _ = build(tmp_path / "link")
    assert "was made" not in text


def test_programs_that_are_gone(tmp_path):
    """A launcher of compilers that another machine had, as ccache."""
    first, tools = make_tree(tmp_path / "first"), tmp_path / "tools"
    tools.mkdir()
    (tools / "my-ccache").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "my-ccache").chmod(0o755)
    build(first, CMAKE_C_COMPILER_LAUNCHER=str(tools / "my-ccache"))
    cache = first / "build/CMakeCache.txt"
    if f"={tools}/my-ccache" not in cache.read_text():  # ccache itself is here, and dev takes that
        cache.write_text(cache.read_text().replace("CMAKE_C_COMPILER_LAUNCHER:UNINITIALIZED=ccache",
                                                   f"CMAKE_C_COMPILER_LAUNCHER:UNINITIALIZED={tools}/my-ccache"))
    assert f"={tools}/my-ccache" in cache.read_text(), sys.version
    shutil.rmtree(tools)
    text, said, _ = build(first)
    assert f"build was made with {tools}/my-ccache, which is not here: it is configured and built again" in text
    assert said == f"{first} first"
