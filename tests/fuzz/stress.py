"""Random work in flight, of which random references are dropped at random times: every result is compared with numpy.

    python3 tests/fuzz/stress.py --bundle B [--seed N] [--operations N]

B is the small golden bundle. What is dropped is given back while it is in flight if the package gets it wrong, and its memory is then used
again here: results differ, or the process dies.
"""
from __future__ import annotations

import argparse
import asyncio
import gc
import pathlib
import random
import sys
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import accrt  # noqa: E402 - from the tree


class Stress:
    def __init__(self, bundle: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.instance = accrt.Instance(trust="all", options={"host.threads": 2})
        self.device = self.instance.device("host")
        self.program = accrt.Program(accrt.Bundle(bundle, self.instance), self.device)
        self.pool = accrt.Pool(self.device)
        self.sessions = [self.program.session() for _ in range(3)]
        self.checks: list[tuple] = []  # (stream, result, expected)
        self.kept: list = []
        self.compared = 0

    def array(self, count: int):
        return self.random.randrange(8) * np.ones(count, np.float32)

    def count(self) -> int:
        return self.random.choice((16, 1000, 5000, 40000))

    # Each returns (stream, result, expected), or nothing where nothing can be compared.

    def call(self):
        session, n, times = self.random.choice(self.sessions), self.count(), self.random.randrange(6)
        x, y = self.array(n), self.array(n)
        expected = times * x + y
        call = session.steps.bind(x, y, count=times)
        call.submit()
        if self.random.random() < 0.3:
            self.kept.append(call)
        return (session.stream, y, expected) if self.random.random() < 0.6 else None

    def rebound(self):
        session, n = self.random.choice(self.sessions), self.count()
        call, found = session.scale_add.bind(self.array(n), self.array(n)), []
        for _ in range(3):
            x, y = self.array(n), self.array(n)
            expected = 2 * x + y
            call.set("x", x)
            call.set("y", y)
            call.submit()
            found.append((session.stream, y, expected))
        return self.random.choice(found)

    def result(self):
        session, x = self.random.choice(self.sessions), self.array(16)
        call = session.weighted.bind(x)
        call.submit()
        result = call.results()
        return session.stream, result, 2 * x + 2 * np.arange(16)

    def waited(self):
        session, n = self.random.choice(self.sessions), self.count()
        x, y = self.array(n), self.array(n)
        expected = 2 * x + y
        session.scale_add(x, y)
        return session.stream, y, expected

    def timed_out(self):
        session, n = self.random.choice(self.sessions), self.count()
        try:
            session.steps.bind(self.array(n), self.array(n), count=50).run(timeout=self.random.choice((0, 0.0001, 0.001)))
        except (TimeoutError, accrt.NotReadyError):
            pass

    def cancelled(self):
        session, n = self.random.choice(self.sessions), self.count()

        async def main():
            calls = [session.steps.call_async(self.array(n), self.array(n), count=20) for _ in range(2)]
            await asyncio.wait_for(asyncio.gather(*calls), self.random.choice((0.0001, 0.002)))
        try:
            asyncio.run(main())
        except asyncio.TimeoutError:
            pass

    def copies(self):
        stream, n = accrt.Stream(self.device), self.count()
        source, target, buffer = self.array(n), np.empty(n, np.float32), self.pool.buffer(4 * n)
        expected = source.copy()
        stream.copy(source, buffer)
        stream.copy(buffer, target)
        return (stream, target, expected) if self.random.random() < 0.7 else None

    def blocked(self):
        """Work that waits, whose gate opens later in another thread."""
        gate, session, n = accrt.Semaphore(self.instance), self.program.session(), self.count()
        x, y = self.array(n), self.array(n)
        expected = 2 * x + y
        session.scale_add.bind(x, y).submit(waits=[(gate, 1)])
        threading.Timer(self.random.random() / 50, gate.signal, [1]).start()
        return session.stream, y, expected

    def sessions_change(self):
        self.sessions[self.random.randrange(3)] = self.program.session()

    def drop(self):
        for _ in range(min(3, len(self.kept))):
            self.kept.pop(self.random.randrange(len(self.kept)))
        if self.random.random() < 0.2:
            gc.collect()

    def churn(self):
        """Takes what has become free, so that what is written too late is seen."""
        self.kept.extend(np.full(self.count(), 7e7, np.float32) for _ in range(3))

    def compare(self, all_of_them: bool = False) -> None:
        while self.checks and (all_of_them or len(self.checks) > 12):
            stream, result, expected = self.checks.pop(self.random.randrange(len(self.checks)))
            stream.synchronize(timeout=120)
            found = result if isinstance(result, np.ndarray) else result.numpy()
            if not np.array_equal(found, expected):
                where = np.flatnonzero(found != expected)
                raise SystemExit(f"{len(where)} of {len(expected)} elements differ, the first at {where[0]}: {found[where[0]]}, "
                                 f"not {expected[where[0]]}")
            self.compared += 1
        for kept in self.kept:
            if isinstance(kept, np.ndarray) and not (kept == np.float32(7e7)).all():
                raise SystemExit("memory that was free was written")

    def run(self, operations: int) -> None:
        actions = [self.call] * 4 + [self.rebound, self.result, self.result, self.waited, self.timed_out, self.cancelled, self.copies, self.copies,
                                     self.blocked, self.sessions_change, self.drop, self.drop, self.churn]
        for _ in range(operations):
            found = self.random.choice(actions)()
            if found is not None:
                self.checks.append(found)
            if len(self.kept) > 30:
                self.drop()
            self.compare()
        self.compare(all_of_them=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--operations", type=int, default=5000)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.operations} operations", flush=True)
    begin, stress = time.monotonic(), Stress(options.bundle, seed)
    stress.run(options.operations)
    print(f"{options.operations} operations, {stress.compared} results as numpy's, in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
