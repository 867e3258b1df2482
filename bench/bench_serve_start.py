"""How long accrt-serve takes from the start of its process: to be up, and to its first answer. The
first start with a model (its bundle is made of kernels that are compiled already, its weights are
packed) and later ones (both are in the user's cache) are measured apart, beside an interpreter that
does nothing.

    ./dev kernels && python bench/bench_serve_start.py [--model examples/bytelm] [--rounds 9]
    python bench/bench_serve_start.py --python ENV/bin/python        # an installed wheel
    python bench/bench_serve_start.py --compiler                     # later starts alone, from a tree

No compiler is on the PATH but with --compiler, which needs no kernels that are compiled already.
Times of processors, which other work on the machine changes less, are those of all threads up to
the answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import common


def environment(python: str, home: str, cache: str, compiler: bool) -> "dict[str, str]":
    made = {"PATH": os.environ["PATH"] if compiler else "/nonexistent", "HOME": home, "XDG_CACHE_HOME": cache}
    if python == sys.executable:
        made.update(PYTHONPATH=str(common.ROOT / "python"), ACCRT_LIBRARY=str(common.ROOT / "build/lib/libaccrt.so"))
        if not compiler:
            made["ACCRT_PREBUILT_KERNELS"] = str(common.ROOT / "build/prebuilt")
    return made


def processor_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) has it


def start(python: str, model: str, variables: "dict[str, str]") -> "dict[str, float]":
    """Seconds until it is up, until the first answer, and of processors until then."""
    begin = time.perf_counter()
    server = subprocess.Popen([python, "-m", "accrt.serve", model, "--port", "0", "--quiet"], env=variables, stderr=subprocess.PIPE, text=True)
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if line.startswith("Serving"):
                break
        else:
            raise SystemExit("the server did not start:\n" + "".join(said))
        up = time.perf_counter() - begin
        connection = http.client.HTTPConnection(said[-1].split("//")[1].split()[0], timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "the", "max_tokens": 1}))
        answer = json.load(connection.getresponse())
        assert answer["usage"]["completion_tokens"] == 1, answer
        return {"up": up, "answer": time.perf_counter() - begin, "processors": processor_seconds(server.pid)}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def nothing(python: str) -> "dict[str, float]":
    begin = time.perf_counter()
    process = subprocess.Popen([python, "-c", "pass"])
    _pid, process.returncode, usage = os.wait4(process.pid, 0)
    return {"up": time.perf_counter() - begin, "processors": usage.ru_utime + usage.ru_stime}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(common.ROOT / "examples" / "bytelm"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compiler", action="store_true")
    given = parser.parse_args()
    if given.python == sys.executable and not given.compiler and not (common.ROOT / "build/prebuilt").is_dir():
        print("  build/prebuilt is not there: ./dev kernels makes it, and this measures nothing without it")
        return 0
    samples: "dict[str, list[float]]" = {}
    with tempfile.TemporaryDirectory() as home:
        kept = environment(given.python, home, f"{home}/kept", given.compiler)
        start(given.python, given.model, kept)  # which makes a key, and what is kept
        for round_ in range(given.rounds):
            kinds = {
                "first start": lambda: start(given.python, given.model, environment(given.python, home, f"{home}/cache{round_}", False)),
                "later start": lambda: start(given.python, given.model, kept),
                "an interpreter": lambda: nothing(given.python),
            }
            if given.compiler:
                del kinds["first start"]
            for kind in sorted(kinds, reverse=bool(round_ % 2)):
                for what, seconds in kinds[kind]().items():
                    samples.setdefault(f"{kind}, {what}", []).append(seconds)
    rows = {name: common.summary(samples[name]) for name in sorted(samples, reverse=True)}
    common.show(f"accrt-serve {os.path.basename(given.model)}", rows)
    common.save("serve_start", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
