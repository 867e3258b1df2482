"""Tests of many cases, of which each run takes a part, from a seed.

`@pytest.mark.rotating(8)` leaves eight of a test's cases in a run of the whole folder, which is
what `./dev test` does: others the next time, and cases that are added later are among them. The
seed is said at the end and with each failure: ACCRT_TEST_SEED=N takes the same part again.
`rotating(8, by="kind")` leaves the cases of eight values of that parameter, the same ones in all
tests of the file that say so: what is made once for each value is made eight times.
ACCRT_TEST_ALL=1 takes all cases, and so does a run that names files or tests, or has `-k` or
`--lf`. `./dev soak rotating` runs all cases of all these tests.

`pytestmark = pytest.mark.one_target` in a file whose tests are parametrized by the targets of this
machine leaves each case once: with the target that the seed gives to the file. A case that is there
for one target alone stays.

`pytestmark = pytest.mark.quick_kernels` in a file whose tests are not about kernels: a run of the
whole folder compiles its kernels with -Og, but for one such file, by the seed. ACCRT_TEST_QUICK=1
does the same in a run that names files, as parts of `./dev check` do.
"""

from __future__ import annotations

import os
import platform
import random
import re
import shlex
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, TypeVar

import pytest

_Case = TypeVar("_Case")

#: One for all processes of a run: xdist's workers, which must choose alike, inherit it.
SEED = int(os.environ.get("ACCRT_TEST_PART") or os.environ.get("ACCRT_TEST_SEED") or 0) or random.SystemRandom().randrange(1, 1 << 32)
os.environ["ACCRT_TEST_PART"] = str(SEED)
ALL = os.environ.get("ACCRT_TEST_ALL") == "1"


def seed() -> int:
    """The seed of this run, said: for a test that draws. ACCRT_TEST_SEED=N draws the same again."""
    print(f"ACCRT_TEST_SEED={SEED}")
    return SEED


def part(cases: Sequence[_Case], count: int, what: str) -> List[_Case]:
    """So many of the cases, in their order, for a test of that name."""
    if ALL or count >= len(cases):
        return list(cases)
    chosen = random.Random(f"{SEED} {what}").sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]


def _takes_all(config: Any) -> bool:
    """Whether all are asked for, or the run names files or tests."""
    chosen = config.option.keyword or getattr(config.option, "lf", False)
    return ALL or bool(chosen) or not all(os.path.isdir(config.invocation_params.dir / arg) for arg in config.args)


def _is_quick(config: Any) -> bool:
    """Whether kernels of files with the mark are compiled quickly, but for one file."""
    return not ALL and (os.environ.get("ACCRT_TEST_QUICK") == "1" or not _takes_all(config))


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "rotating(count, by=None): so many of the cases, or cases of so many values of a parameter, in a run of the whole folder (tests/python/rotation.py)")
    config.addinivalue_line("markers", "one_target: each case with one of this machine's targets in a run of the whole folder")
    config.addinivalue_line("markers", "quick_kernels: kernels are compiled with -Og in a run of the whole folder")


def asked(request: Any, parameter: str) -> List[Any]:
    """Values of a parameter in this run's tests of the file, for a fixture that makes something for
    each of them."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return list(dict.fromkeys(call.params[parameter] for call in calls if parameter in call.params))


@pytest.fixture(scope="module", autouse=True)
def quick_kernels(request: Any) -> Iterator[None]:
    """Kernels of a file with that mark are compiled quickly: in its tests, and in what they
    start."""
    files = sorted({item.path.name for item in request.session.items if item.get_closest_marker("quick_kernels")})
    variable = f"ACCRT_KERNEL_CC_{platform.machine().upper()}"
    as_asked = not _is_quick(request.config) or variable in os.environ or request.path.name in part(files, 1, "optimized kernels")
    if request.path.name not in files or as_asked:
        yield
        return
    from accrt.compiler.kernels import image

    os.environ[variable] = f"sh {shlex.quote(str(Path(__file__).with_name('quick_cc.sh')))} -Og"
    image.find_compiler.cache_clear()
    yield
    del os.environ[variable]
    image.find_compiler.cache_clear()


_TARGET = re.compile(r"x86-64-v\d+|aarch64")


def _of_other_targets(items: Sequence[Any]) -> Set[Any]:
    """Cases that are there once more, with the target of their file."""
    # of a file, of a case without its target: by target
    targets: Dict[str, Dict[str, Dict[str, Any]]] = {}
    for item in items:
        found = _TARGET.findall(item.name)
        if item.get_closest_marker("one_target") and len(found) == 1:
            targets.setdefault(item.path.name, {}).setdefault(_TARGET.sub("", item.nodeid), {})[found[0]] = item
    out = set()
    for name, cases in targets.items():
        known = sorted({target for case in cases.values() for target in case})
        (chosen,) = part(known, 1, f"target of {name}")
        out |= {item for case in cases.values() if chosen in case for target, item in case.items() if target != chosen}
    return out


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: List[Any]) -> None:
    """Leaves out what is not of this run's part."""
    if _takes_all(config):
        return
    out = _of_other_targets(items)
    of_test: Dict[str, List[Any]] = {}
    for item in items:
        if item.get_closest_marker("rotating") and item not in out:
            of_test.setdefault(f"{item.path.name}::{item.originalname}", []).append(item)
    for what, cases in of_test.items():
        mark = cases[0].get_closest_marker("rotating")
        if by := mark.kwargs.get("by"):
            what = f"{cases[0].path.name} {by}"
            chosen = part(sorted({str(case.callspec.params[by]) for case in cases}), mark.args[0], what)
            out |= {case for case in cases if str(case.callspec.params[by]) not in chosen}
        else:
            out |= set(cases) - set(part(cases, mark.args[0], what))
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    report = (yield).get_result()
    rotates = item.get_closest_marker("rotating") or item.get_closest_marker("one_target")
    if report.failed and rotates and not _takes_all(item.config):
        report.sections.append(("one of a rotating part", f"ACCRT_TEST_SEED={SEED} takes this part again"))


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    taken = "all cases of rotating tests" if _takes_all(config) else f"rotating tests: the part of ACCRT_TEST_SEED={SEED}"
    quick = f"; kernels of one file as users have them: ACCRT_TEST_SEED={SEED}" if _takes_all(config) and _is_quick(config) else ""
    terminalreporter.write_line(taken + quick)
