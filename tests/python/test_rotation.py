"""Of rotating tests a run of a folder takes a part, from a seed that it says; in time all cases are
run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accrt
import rotation

TESTS = """
import pytest

@pytest.mark.rotating(3)
@pytest.mark.parametrize("kind", "xy")
@pytest.mark.parametrize("name", range(4))
def test_many(name, kind):
    assert name != 2

def test_one():
    pass
"""


def run(folder, *arguments, **environment):
    """The cases that were run, and what was said."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("ACCRT_TEST_", "PYTEST_"))}
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "rotation", "-v", *arguments], cwd=folder, capture_output=True, text=True,
                          env={**plain, "PYTHONPATH": str(Path(__file__).parent), **environment})  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return set(re.findall(r"::(test_\S+)", done.stdout)), done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def test_a_run_takes_a_part_that_its_seed_takes_again(folder):
    cases, said = run(folder)
    assert len(cases) == 4 and "test_one" in cases, "three, and the test that does not rotate"
    seed = re.search(r"the part of ACCRT_TEST_SEED=(\d+)", said)[1]
    assert run(folder, ACCRT_TEST_SEED=seed)[0] == cases


def test_tests_that_draw_take_the_seed_of_the_run():
    """One number repeats whatever has failed. kernel_harness has the same seed in each run."""
    own = re.compile(r'SystemRandom|urandom|default_rng\(\)|Random\(\)|environ.*"ACCRT_TEST_SEED"|seed.*(time_ns|time\.time)\(')
    elsewhere = {"rotation.py", "kernel_harness.py", Path(__file__).name, "serve_reference.py"}
    found = [f"{path.name}: {line.strip()}" for path in sorted(Path(__file__).parent.glob("*.py")) if path.name not in elsewhere
             for line in path.read_text().splitlines() if own.search(line)]  # fmt: skip
    assert found == []


KINDS = """
import pytest

@pytest.mark.rotating(2, by="kind")
@pytest.mark.parametrize("kind", "abcdefg")
@pytest.mark.parametrize("work", "xyz")
def test_one(kind, work):
    pass

@pytest.mark.rotating(2, by="kind")
@pytest.mark.parametrize("kind", "abcdefg")
def test_other(kind):
    pass
"""


def test_tests_of_a_file_take_the_same_values(tmp_path):
    (tmp_path / "test_it.py").write_text(KINDS)
    chosen = set()
    for seed in map(str, range(1, 5)):
        cases = run(tmp_path, ACCRT_TEST_SEED=seed)[0]
        kinds = {re.search(r"\[(?:\w-)?(\w)\]", case)[1] for case in cases}
        assert len(kinds) == 2 and cases == {f"test_one[{work}-{kind}]" for work in "xyz" for kind in kinds} | {f"test_other[{kind}]" for kind in kinds}
        chosen |= kinds
    assert len(chosen) > 2


TARGETS = """
import pytest

pytestmark = pytest.mark.one_target

@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", "ab")
def test_many(name, target):
    pass

@pytest.fixture(params=["c-x86-64-v3", "c-x86-64-v4", "d-x86-64-v4"])
def made(request):
    return request.param

def test_fixture(made):
    pass

@pytest.mark.parametrize("words", ["x86-64-v3,x86-64-v4"])
def test_both(words):
    pass

def test_none():
    pass
"""


def test_a_file_takes_one_target_that_its_seed_takes_again(tmp_path):
    (tmp_path / "test_it.py").write_text(TARGETS)
    always = {"test_none", "test_both[x86-64-v3,x86-64-v4]", "test_fixture[d-x86-64-v4]"}
    found = {}
    for seed in map(str, range(1, 9)):
        cases = run(tmp_path, ACCRT_TEST_SEED=seed)[0]
        assert always <= cases
        (found[seed],) = {re.search(r"v[34]", case)[0] for case in cases - always}
        assert {case.replace(found[seed], "*") for case in cases - always} == {"test_many[a-x86-64-*]", "test_many[b-x86-64-*]", "test_fixture[c-x86-64-*]"}
    assert set(found.values()) == {"v3", "v4"}
    seed = next(seed for seed in found if found[seed] == "v3")
    assert run(tmp_path, ACCRT_TEST_SEED=seed)[0] == run(tmp_path, ACCRT_TEST_SEED=seed)[0]
    assert len(run(tmp_path, "test_it.py")[0]) == len(run(tmp_path, ACCRT_TEST_ALL="1")[0]) == 9


def test_a_failure_says_the_seed(folder):
    seeds = (str(seed) for seed in range(1, 100))
    said = next(said for _cases, said in (run(folder, ACCRT_TEST_SEED=seed) for seed in seeds) if "FAILED" in said)
    assert re.search(r"one of a rotating part -*\nACCRT_TEST_SEED=\d+ takes this part again", said)


def test_workers_choose_alike(folder):
    pytest.importorskip("xdist")
    cases, said = run(folder, "-n", "2")
    assert len(cases) == 4, said


def test_who_names_a_test_or_asks_for_all_gets_all(folder):
    for arguments, environment in ((["test_it.py"], {}), (["-k", "many or one"], {}), ([], {"ACCRT_TEST_ALL": "1"})):
        cases, said = run(folder, *arguments, **environment)
        assert len(cases) == 9 and "all cases of rotating tests" in said and "ACCRT_TEST_SEED" not in said


def test_what_failed_last_is_taken_whatever_the_seed(folder):
    (folder / "test_it.py").write_text(TESTS.replace("name != 2", "name == 2"))
    failed = run(folder, ACCRT_TEST_ALL="1")[0] - {"test_one", "test_many[2-x]", "test_many[2-y]"}
    assert len(failed) == 6 and run(folder, "--lf", ACCRT_TEST_SEED="1")[0] == failed


def test_all_are_chosen_in_time(monkeypatch):
    monkeypatch.setattr(rotation, "ALL", False)
    chosen = set()
    for seed in range(100):
        monkeypatch.setattr(rotation, "SEED", seed)
        found = rotation.part("abcdefghij", 3, "test")
        assert len(found) == 3 and found == sorted(found)
        chosen |= set(found)
    assert chosen == set("abcdefghij")


QUICK = """
import os, platform, subprocess, sys
import pytest

pytestmark = pytest.mark.quick_kernels
CHILD = "from accrt.compiler.kernels import image; print(image.find_compiler('x86-64-v3' if 'x86' in __import__('platform').machine() else 'aarch64').command)"

@pytest.fixture(scope="module")
def early():
    return os.environ.get(f"ACCRT_KERNEL_CC_{platform.machine().upper()}", "")

def test_it(early):
    told = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert ("quick_cc.sh" in early) == ("quick_cc.sh" in told)
    print("quick" if early else "as asked")
"""


def test_files_that_are_not_about_kernels_compile_them_quickly(tmp_path):
    """But for one file, by the seed; and where all is asked for, none."""
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(QUICK)
    (tmp_path / "test_plain.py").write_text(QUICK.replace("pytestmark =", "mark ="))
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(accrt.__file__).parents[1])])}
    said = run(tmp_path, "-s", **path)[1]
    assert (said.count("quick\n"), said.count("as asked\n")) == (2, 2), said
    assert run(tmp_path, "-s", ACCRT_TEST_ALL="1", **path)[1].count("as asked\n") == 4
    named = ["test_a.py", "test_b.py", "test_c.py", "test_plain.py"]
    assert run(tmp_path, "-s", *named, **path)[1].count("as asked\n") == 4
    said = run(tmp_path, "-s", *named, ACCRT_TEST_QUICK="1", ACCRT_TEST_SEED="7", **path)[1]
    assert said.count("quick\n") == 2 and "kernels of one file as users have them: ACCRT_TEST_SEED=7" in said
    said = run(tmp_path, "-s", *named, ACCRT_TEST_QUICK="1", ACCRT_TEST_ALL="1", **path)[1]
    assert said.count("as asked\n") == 4 and "ACCRT_TEST_SEED" not in said


def test_the_quick_compiler_optimizes_less():
    """Its own option is the last, so that it counts; all others are passed on."""
    command = ["sh", str(Path(__file__).with_name("quick_cc.sh")), "-Og", "-###", "-O3", "-DGIVEN=1", "-c", "it.c"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert re.findall(r"-O\w", said)[-1] == "-Og" and "GIVEN=1" in said


def test_the_quick_compiler_leaves_what_has_an_argument_as_it_is_asked_for():
    for given, level in (("-DGIVEN=1", "-O3"), ("-DGIVEN=12", "-Og"), ("-DGIVEN", "-Og")):
        command = ["sh", str(Path(__file__).with_name("quick_cc.sh")), "-Og,-DGIVEN=1", "-###", "-O3", given, "-c", "it.c"]
        said = subprocess.run(command, capture_output=True, text=True).stderr
        assert re.findall(r"-O\w", said)[-1] == level, given
