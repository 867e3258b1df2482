"""docs/decisions/safe-in-every-hand.md names a test for each crash, lie and bypass: every one of
them exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/decisions/safe-in-every-hand.md"


def rows():
    """[(cells of a row)] of every table but its head."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith(("| --- ", "| what ", "| attack ", "| file "))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named():
    """(file, test, parameters) of each name; `::test` and `[parameter]` follow what was named
    before."""
    for row in rows():
        file = test = None
        for name in re.findall(r"`([^`]*)`", row[2]):
            found = re.fullmatch(r"([\w./]*)(?:::(\w+))?(?:\[([^`]+)\])?", name)
            assert found, name
            if found[1]:
                file = ROOT / ("" if "/" in found[1] else "tests/python") / found[1]
            test = found[2] or (None if found[1] else test)
            yield name, file, test, found[3]


def test_every_row_says_all():
    assert len(rows()) > 70
    for row in rows():
        assert len(row) == 4 and all(row), row


def test_every_test_exists():
    names = list(named())
    assert len(names) > 90
    for name, file, test, parameter in names:
        assert file is not None and file.is_file(), name
        text = file.read_text()
        if test is None:
            assert parameter is None, name
        elif file.suffix == ".py":
            assert test in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}, name
        else:
            assert re.search(rf"^static void {test}\(", text, re.M) and re.search(rf"(?<!void )\b{test}\b", text), name


def test_parameters_are_those_of_the_tests():
    import in_flight
    import test_bounded
    import test_cts_mutants

    known = {
        "test_in_flight": set(in_flight.SCENARIOS),
        "test_mutant": {m[0].replace(" ", "-") for m in test_cts_mutants.MUTANTS + test_cts_mutants.THREADED_MUTANTS},
        "test_plans_that_multiply": set(test_bounded.PLANS),
        "test_cost_doubles_with_the_file": {f"{kind}-{work}" for kind in test_bounded.KINDS for work in ("open", "find", "program")},
    }
    for name, _, test, parameter in named():
        assert parameter is None or parameter in known[test], name
