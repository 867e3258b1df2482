"""Rows of a benchmark whose operations take turns: what one costs on the caller's thread, or how
long its work takes. For the programs beside it."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List


class Rows:
    """Interleaved samples: nanoseconds of one operation. batch: calls of a round. done: the time of
    a round ends when its work has ended, and not when it is submitted."""

    def __init__(self, batch: int, done: bool = False) -> None:
        self.batch, self.done = batch, done
        self.rows: Dict[str, Any] = {}
        self.samples: Dict[str, List[float]] = {}

    def add(self, name: str, operation: Callable[[int], Any], finish: Callable[[], Any]) -> None:
        """operation: called with the number of the call. finish: after a round."""
        self.rows[name], self.samples[name] = (operation, finish), []

    def run(self, rounds: int) -> None:
        names = list(self.rows)
        for turn in range(rounds + 2):
            for name in names:
                operation, finish = self.rows[name]
                begin = time.perf_counter_ns()
                for i in range(self.batch):
                    operation(i)
                end = time.perf_counter_ns()
                finish()
                if self.done:
                    end = time.perf_counter_ns()
                if turn >= 2:
                    self.samples[name].append((end - begin) / self.batch)
            names.reverse()

    def table(self) -> List[Dict[str, Any]]:
        """Medians with quartiles."""
        found = []
        for name, samples in self.samples.items():
            low, _, high = statistics.quantiles(samples, n=4)
            found.append({"name": name, "median": statistics.median(samples), "p25": low, "p75": high, "unit": "ns"})
        return found


def says_help(program: str) -> bool:
    """Whether --help is asked for: then it prints what the program's docstring says."""
    asked = "--help" in sys.argv[1:] or "-h" in sys.argv[1:]
    if asked:
        print(program.strip())
    return asked


def save(name: str, title: str, table: List[Dict[str, Any]]) -> None:
    """As JSON in $ACCRT_BENCH_RESULTS, or here."""
    with open(os.path.join(os.environ.get("ACCRT_BENCH_RESULTS", "."), name), "w") as file:
        json.dump({"title": title, "rows": table}, file, indent=1)
