"""Makes docs/benchmarks/gpu.md's tables of the JSON that `run.sh bench` left.

    report.py RESULTS_FOLDER > tables.md

A row's ratio is to the row named beside it; "asked" is what the figure was meant to reach.
"""
from __future__ import annotations

import json
import pathlib
import sys

ORDER = (
    "gpu_launch", "gpu_commands", "gpu_objects", "gpu_transfer", "gpu_load", "gpu_start", "gpu_python", "gpu_minilm", "gpu_rows", "gpu_packed", "gpu_experts"
)  # fmt: skip


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def spread(row: dict) -> str:
    low, high = row.get("p25", row.get("min")), row.get("p75", row.get("max"))
    return f" ({number(low)} to {number(high)})" if low is not None else ""


def line(row: dict) -> str:
    if "median" not in row:
        return f"| {row['name']} | {row['value']:.7f} | | |"
    against = f"{row['ratio']:.3f}" + (f" x {row['against']}" if "against" in row else "") if "ratio" in row else ""
    asked = number(row["asked"]) if "asked" in row else ""
    return f"| {row['name']} | {number(row['median'])} {row.get('unit', '')}{spread(row)} | {against} | {asked} |"


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    for name in ORDER:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        table = json.loads(path.read_text())
        print(f"\n### {table['title']} (`{name}`)\n\n| | median (quartiles) | ratio | asked |\n| --- | --- | --- | --- |")
        for row in table["rows"]:
            print(line(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
