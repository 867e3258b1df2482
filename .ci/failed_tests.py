"""Prints which tests of a ctest run failed, all names first, then the end of what each one printed.

    failed_tests.py RESULTS.xml     (what `ctest --output-junit` wrote)
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# of everything together: who reads it may see no more than the first lines of a long report
MOST_LINES = 60
LINES_OF_A_SANITIZER = r"(WARNING: ThreadSanitizer|ERROR: AddressSanitizer|ERROR: LeakSanitizer|SUMMARY: )"


def what_it_said(output, most):
    """The lines of OUTPUT in which a sanitizer speaks or an assertion fails, and those after each;
    else its last lines."""
    lines = output.rstrip().splitlines()
    marks = [i for i, line in enumerate(lines) if re.search(LINES_OF_A_SANITIZER + r"|Assertion|\[  (ERROR|FAILED)|\[   LINE", line)]
    first = marks[0] if marks else max(0, len(lines) - most)
    return lines[first : first + most]


def main():
    results = ElementTree.fromstring(re.sub(r"[^\t\n\x20-\ufffd]", "?", pathlib.Path(sys.argv[1]).read_text("utf-8", "replace")))
    failed = [case for case in results.iter("testcase") if case.get("status") == "fail"]
    print(f"{len(failed)} of {len(list(results.iter('testcase')))} tests failed:", *(case.get("name") for case in failed))
    share = max(8, MOST_LINES // max(1, len(failed)))
    for case in failed[: MOST_LINES // share]:
        why = case.find("failure")
        print(f"{case.get('name')}: {'' if why is None else why.get('message', '')} after {float(case.get('time', 0)):.0f} s")
        for line in what_it_said(case.findtext("system-out") or "", share):
            print("   ", line[:160])


if __name__ == "__main__":
    main()
