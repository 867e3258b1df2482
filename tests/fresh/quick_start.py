"""What README.md and docs/quick-start.md say of Python and accx, done with the installed wheel.
old_root.sh runs it in a bare root.

    python quick_start.py      in a folder with README.md, docs/quick-start.md and examples/bytelm

The bundle is compiled there. Python blocks run as they are written, and mypy --strict accepts each.
Lines of build/bin/accx run with the accx of the wheel.
"""
import os
import pathlib
import re
import subprocess
import sys
import time

DOCUMENTS = ("README.md", "docs/quick-start.md")
BIN = pathlib.Path(sys.executable).parent


def run(*words: "str | pathlib.Path") -> str:
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def blocks(document: str, language: str) -> "list[str]":
    return re.findall(rf"^```{language}\n(.*?)^```", pathlib.Path(document).read_text("utf-8"), re.M | re.S)


def main() -> None:
    import accrt
    import numpy
    if not accrt.__file__.startswith(sys.prefix) or os.environ.get("PYTHONPATH"):
        sys.exit(f"not the installed wheel: {accrt.__file__}")
    start = time.monotonic()
    pathlib.Path("build/models").mkdir(parents=True)
    run(sys.executable, "examples/bytelm/build.py", "-o", "build/models/bytelm.accx")
    print(f"Python {sys.version.split()[0]}, numpy {numpy.__version__}: compiled bytelm in {time.monotonic() - start:.0f} s")

    python = [(d, b) for d in DOCUMENTS for b in blocks(d, "python")]
    for number, (document, block) in enumerate(python):
        path = pathlib.Path(f"block_{number}.py")
        path.write_text(block, "utf-8")
        said = run(sys.executable, path)
        if not said.strip():
            sys.exit(f"{document}: a block printed nothing:\n{block}")
    print(f"{len(python)} Python blocks of {' and '.join(DOCUMENTS)} ran")

    lines = [line for d in DOCUMENTS for b in blocks(d, "sh") for line in b.splitlines() if line.startswith("build/bin/accx ")]
    for line in lines:
        run("sh", "-eu", "-c", line.replace("build/bin/accx", str(BIN / "accx"), 1))
    print(f"{len(lines)} lines of accx ran")

    for number, (document, block) in enumerate(python):
        run(sys.executable, "-m", "mypy", "--strict", f"block_{number}.py")
    if len(python) < 3 or len(lines) < 4:
        sys.exit("the documents have fewer blocks than expected")
    print(f"mypy --strict accepts each; {time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
