"""`./dev check` runs each part once, two at a time where they wait, and none before what it uses
has ended."""
import itertools
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: What it calls for each part.
DEV = """#!/bin/sh
case $2 in
  reported) exec sh -c "$CHECK" sh reported "$3" ;;
  one) echo "begin $3" >>"$ROOT/log"; sleep 0.0$(( $$ % 7 )); echo "end $3" >>"$ROOT/log" ;;
esac
"""
CHECK = """set -eu
. .ci/check.sh
ensure_packages() { :; }
cmd_setup() { :; }
step() { echo "$*"; }
die() { echo "$*"; exit 1; }
APT_TEST='' APT_CHECK='' B='' G='' R='' N=''
check_main "$@"
"""


def run(folder, *parts):
    (folder / "dev").write_text(DEV)
    (folder / "dev").chmod(0o755)
    done = subprocess.run(["sh", "-c", CHECK, "sh", *parts], cwd=ROOT, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "ROOT": str(folder), "BUILD": str(folder / "build"), "CHECK": CHECK})  # fmt: skip
    return done, (folder / "log").read_text().splitlines()


def test_all_run_once_and_behind_what_they_use(tmp_path):
    done, log = run(tmp_path)
    assert done.returncode == 0 and "All checks passed" in done.stdout, done
    listed = subprocess.run(["sh", "-c", CHECK, "sh", "list"], cwd=ROOT, capture_output=True, text=True).stdout.partition(" (")[0].split()
    assert sorted(log) == sorted(f"{word} {part}" for word in ("begin", "end") for part in listed)
    for first, then in (("gcc", "symbols"), ("gcc", "size"), ("gcc", "release"), ("release", "wheel"), ("asan", "pyfuzz"), ("torch", "models")):
        assert log.index(f"end {first}") < log.index(f"begin {then}"), log


@pytest.mark.parametrize("named", itertools.permutations(("pyfuzz", "asan", "format")))
def test_named_parts_wait_for_one_another_too(tmp_path, named):
    done, log = run(tmp_path, *named)
    assert done.returncode == 0, done
    assert log == [f"{word} {part}" for part in ("format", "asan", "pyfuzz") for word in ("begin", "end")]
