"""Calls in a process of their own, and the most memory that it has had. In the process of the tests
an earlier peak would hide that of a call. The process is started once for many calls: its limit
counts from its start, so that no call hides another one."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

CHILD = r"""
import importlib, json, re, sys, time
module, name = sys.argv[1].split(":")
call, answers = getattr(importlib.import_module(module), name), sys.stdout
sys.stdout = sys.stderr
def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s*(\d+)", status.read())[1])
def answer(argument):
    begin = time.process_time()
    said = call(argument)
    return said, time.process_time() - begin, peak()
answer(json.loads(sys.argv[2]))
first = peak()
for line in sys.stdin:
    said, seconds, most = answer(json.loads(line))
    answers.write(json.dumps((said, seconds, most - first)) + "\n")
    answers.flush()
"""


class Answer(NamedTuple):
    said: object
    #: That the process calculated for this call.
    seconds: float
    #: The most memory since the process was ready, in KiB beyond what it had then at most.
    peak: int


class Apart:
    """A process that calls a function: "module:name", with arguments and results of JSON. `first`
    is the argument of a call that makes ready what all calls use, and is not counted."""

    def __init__(self, function: str, first: object) -> None:
        self.command = [sys.executable, "-c", CHILD, function, json.dumps(first)]
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, argument: object) -> Answer:
        if self.process is None:
            path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *filter(None, sys.path)])
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(argument) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return Answer(*json.loads(line))

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
