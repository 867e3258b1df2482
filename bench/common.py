"""What the benchmarks share: interleaved timing, medians with spread, tables, JSON. Measures
nothing by itself."""
from __future__ import annotations

import json
import os
import pathlib
import platform
import statistics
import time
from typing import Callable, Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = pathlib.Path(os.environ.get("ACCRT_BENCH_RESULTS", ROOT / "build" / "bench"))


def interleaved(candidates: Mapping[str, Callable[[], object]], seconds: float = 4.0, least: int = 7,
                warmup: int = 3) -> dict[str, list[float]]:
    """Times each candidate in turn, A B C A B C, until `seconds` have passed and each ran `least`
    times.

    Returns seconds per run for each. The order turns around from round to round, so that none
    always follows the same.
    """
    for _ in range(warmup):
        for run in candidates.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names, deadline = list(candidates), time.perf_counter() + seconds
    while time.perf_counter() < deadline or min(map(len, times.values())) < least:
        for name in names:
            begin = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - begin)
        names.reverse()
    return times


def summary(samples: list[float]) -> dict[str, float]:
    """Median, least, most and the quartiles, in seconds."""
    ordered = sorted(samples)
    quarter = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
    return {"median_s": statistics.median(ordered), "min_s": ordered[0], "p25_s": quarter[0], "p75_s": quarter[2],
            "max_s": ordered[-1], "runs": len(ordered)}


def show(title: str, rows: Mapping[str, dict[str, float]], unit: str = "ms", against: str | None = None) -> None:
    """Prints a table of summaries; with `against`, each median's ratio to that row's."""
    scale = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    print(f"\n{title}")
    print(f"  {'':34} {'median':>10} {'min':>10} {'p75':>10}  {'runs':>5}" + ("  ratio" if against else ""))
    for name, row in rows.items():
        ratio = f"  {row['median_s'] / rows[against]['median_s']:5.2f}" if against else ""
        print(f"  {name:34} {row['median_s'] * scale:8.3f}{unit:>2} {row['min_s'] * scale:8.3f}{unit:>2} "
              f"{row['p75_s'] * scale:8.3f}{unit:>2}  {row['runs']:5d}{ratio}")


def save(name: str, results: object) -> None:
    """Writes build/bench/NAME.json with what machine it was."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    machine = {"date": time.strftime("%Y-%m-%d"), "processor": model, "cores": os.cpu_count(), "kernel": platform.release(),
               "python": platform.python_version()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    print(f"  -> {path}")
