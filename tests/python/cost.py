"""What tests cost: `./dev test --slowest [N]` lists files and tests by the seconds of processors
that they took, children included, and fixtures by what making them took.

Seconds of a processor are the same on a busy machine, but for its caches; durations are not. A
fixture of a file or of a session counts for the test that was first to ask for it.
ACCRT_TEST_COSTS=N says how many are listed.
"""

from __future__ import annotations

import collections
import os
from typing import Any, Counter, Dict, Iterator, List, Tuple

import pytest

#: How many are listed; 0: nothing is measured.
COUNT = int(os.environ.get("ACCRT_TEST_COSTS") or 0)
#: Fixtures and tests below are left out.
_LEAST = 0.05
_taken: Dict[str, Counter[str]] = {"files": collections.Counter(), "tests": collections.Counter(), "fixtures": collections.Counter()}


def seconds() -> float:
    """Of processors, by this process and by its children that have ended."""
    return sum(os.times()[:4])


class Costs:
    """Measures in each process of a run, and adds up in the one that reports."""

    def __init__(self) -> None:
        self._of_fixtures: List[Tuple[str, float]] = []
        self._begun = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        begun, inner = seconds(), len(self._of_fixtures)
        yield
        taken = seconds() - begun - sum(cost for _name, cost in self._of_fixtures[inner:])
        if fixturedef.scope != "function" and taken >= _LEAST:
            where = "" if fixturedef.scope == "session" else f" of {request.node.name}"
            self._of_fixtures.append((f"{fixturedef.argname}{where}", taken))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._begun = seconds()
        self._of_fixtures = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        if call.when == "teardown":
            item.user_properties.append(("cost", (seconds() - self._begun, self._of_fixtures)))
        yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        for name, found in report.user_properties if report.when == "teardown" else ():
            if name == "cost":
                cost, of_fixtures = found
                _taken["tests"][report.nodeid.rpartition("/")[2]] += cost
                _taken["files"][report.nodeid.partition("::")[0].rpartition("/")[2]] += cost
                for fixture, made in of_fixtures:
                    _taken["fixtures"][fixture] += made

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for what, taken in _taken.items():
            terminalreporter.section(f"the most seconds of processors, of {sum(taken.values()):.0f}: {what}")
            for name, cost in taken.most_common(COUNT):
                if cost >= _LEAST:
                    terminalreporter.write_line(f"{cost:8.1f}  {name}")


def register(config: Any) -> None:
    """For a conftest's pytest_configure."""
    if COUNT:
        config.pluginmanager.register(Costs(), "costs")
