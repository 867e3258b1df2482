"""What processes of accrt._limited may take, whatever this machine has and whatever other tests
took."""

from __future__ import annotations

import resource
from pathlib import Path

from accrt import _limited

#: What a process may have given back since its limit was set.
_SLACK = 1 << 20


class Watched:
    """Of each question that is asked from now on: how much more address space its process may take,
    and how many bytes its answer may have."""

    def __init__(self, monkeypatch):
        self.rooms, self.answers, ask = [], [], _limited._Process.ask

        def asking(process, question, seconds, most):
            limit, _hard = resource.prlimit(process._process.pid, resource.RLIMIT_AS)
            assert limit != resource.RLIM_INFINITY
            taken = int(Path(f"/proc/{process._process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
            self.rooms.append(limit - taken)
            self.answers.append(most)
            return ask(process, question, seconds, most)

        monkeypatch.setattr(_limited._Process, "ask", asking)

    def fit(self, memory, answer):
        """Whether there were questions, of which none may take more."""
        return bool(self.rooms) and max(self.rooms) <= memory + _SLACK and max(self.answers) <= answer
