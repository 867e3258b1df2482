"""Tests of many cases, of which each run takes a part, from a seed.

`@pytest.mark.rotating(8)` leaves eight of a test's cases in a run of the whole folder, which is
what `./dev test` does: others the next time, and cases that are added later are among them. The
seed is said at the end and with each failure: ACCRT_TEST_SEED=N takes the same part again.
ACCRT_TEST_ALL=1 takes all cases, and so does a run that names files or tests, or has `-k` or
`--lf`. `./dev soak rotating` runs all cases of all these tests.
"""

from __future__ import annotations

import os
import random
from typing import Any, Dict, Iterator, List, Sequence, TypeVar

import pytest

_Case = TypeVar("_Case")

#: One for all processes of a run: xdist's workers, which must choose alike, inherit it.
SEED = int(os.environ.get("ACCRT_TEST_PART") or os.environ.get("ACCRT_TEST_SEED") or 0) or random.SystemRandom().randrange(1, 1 << 32)
os.environ["ACCRT_TEST_PART"] = str(SEED)
ALL = os.environ.get("ACCRT_TEST_ALL") == "1"


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


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "rotating(count): so many of the cases in a run of the whole folder (tests/python/rotation.py)")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: List[Any]) -> None:
    """Leaves out what is not of this run's part."""
    if _takes_all(config):
        return
    of_test: Dict[str, List[Any]] = {}
    for item in items:
        if item.get_closest_marker("rotating"):
            of_test.setdefault(f"{item.path.name}::{item.originalname}", []).append(item)
    out = set()
    for what, cases in of_test.items():
        count = cases[0].get_closest_marker("rotating").args[0]
        out |= set(cases) - set(part(cases, count, what))
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    report = (yield).get_result()
    if report.failed and item.get_closest_marker("rotating") and not _takes_all(item.config):
        report.sections.append(("one of a rotating part", f"ACCRT_TEST_SEED={SEED} takes this part again"))


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    terminalreporter.write_line("all cases of rotating tests" if _takes_all(config) else f"rotating tests: the part of ACCRT_TEST_SEED={SEED}")
