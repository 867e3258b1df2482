"""What a test run printed, counted: passed, failed, skipped with reasons. Used by run.sh.

    count_tests.py one SUITE LOG EXIT_CODE SECONDS OUT    appends a record to OUT and prints one line
    count_tests.py table RECORDS JSON TEXT                makes both tables of all records
"""

from __future__ import annotations

import json
import re
import sys


def of_pytest(text: str) -> dict | None:
    found = re.findall(r"^(?=.*\b(?:passed|failed|skipped|errors?)\b)(?:\x1b\[\d+m|=| )*((?:\d+ \w+(?:, )?)+) in [\d.]+", text, re.M)
    if not found:
        return None
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", found[-1])}
    reasons: dict[str, int] = {}
    for number, why in re.findall(r"^SKIPPED \[(\d+)\] [^:]+:(?:\d+:)? ?(.*)$", text, re.M):
        reasons[why] = reasons.get(why, 0) + int(number)
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    return {"passed": counts.get("passed", 0), "failed": failed, "skipped": counts.get("skipped", 0),
            "reasons": [f"{number} x {why}" for why, number in reasons.items()]}  # fmt: skip


def of_cmocka(text: str) -> dict | None:
    if not re.search(r"^\[==========\].* \d+ test\(s\) run", text, re.M):
        return None
    passed = sum(map(int, re.findall(r"^\[ *PASSED *\] (\d+) test", text, re.M)))
    failed = set(re.findall(r"^\[ *FAILED *\] ([A-Za-z]\S*)", text, re.M))
    skipped = re.findall(r"^(.*)\n\[ *SKIPPED *\] ([A-Za-z]\S*)$", text, re.M)
    reasons: dict[str, set] = {}
    for line, name in skipped:
        if not line.startswith("["):  # the list of names at the end
            reasons.setdefault(line.strip(), set()).add(name)
    listed = set(re.findall(r"^\[ *SKIPPED *\] ([A-Za-z]\S*)$", text, re.M))
    told = set().union(*reasons.values())
    if listed - told:
        reasons["it does not say why"] = listed - told
    return {"passed": passed, "failed": len(failed), "skipped": len(listed),
            "reasons": [f"{len(names)} x {why}: {' '.join(sorted(names))}" for why, names in reasons.items()]}  # fmt: skip


def one(suite: str, log: str, code: str, seconds: str, out: str) -> None:
    with open(log, errors="replace") as file:
        text = file.read()
    found = of_pytest(text) or of_cmocka(text) or {"passed": int(code == "0"), "failed": 0, "skipped": 0, "reasons": []}
    if code == "77":
        found = {"passed": 0, "failed": 0, "skipped": 1, "reasons": [(text.strip().splitlines() or ["it says that it cannot run"])[-1]]}
    # 5: pytest found no test. Whatever ends with a failure has failed, also where it was not
    # counted.
    if code not in ("0", "77") and not found["failed"]:
        found["failed"] = 1
    word = "FAILED" if found["failed"] else "passed" if found["passed"] else "skipped"
    record = {"suite": suite, "result": word, **found, "exit": int(code), "seconds": int(seconds)}
    with open(out, "a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{suite:<18} {word:<8} {found['passed']:5} passed {found['failed']:3} failed {found['skipped']:3} skipped {seconds:>4} s"
          + "".join(f"\n    skipped: {why}" for why in found["reasons"]))  # fmt: skip


def table(records: str, as_json: str, as_text: str) -> int:
    with open(records) as file:
        rows = [json.loads(line) for line in file]
    total = {key: sum(row[key] for row in rows) for key in ("passed", "failed", "skipped")}
    with open(as_json, "w") as file:
        json.dump({"suites": rows, "total": total}, file, indent=1)
    lines = [f"{'suite':<18} {'result':<8} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}"]
    lines += [f"{r['suite']:<18} {r['result']:<8} {r['passed']:6} {r['failed']:6} {r['skipped']:7} {r['seconds']:7}" for r in rows]
    lines += [f"{'all':<18} {'':<8} {total['passed']:6} {total['failed']:6} {total['skipped']:7}", ""]
    lines += [f"skipped in {r['suite']}: {why}" for r in rows for why in r["reasons"]]
    with open(as_text, "w") as file:
        file.write("\n".join(lines) + "\n")
    print(f"all: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(*sys.argv[2:7])
    else:
        sys.exit(table(*sys.argv[2:5]))
