"""Random work in flight, of which random references are dropped at random times: every result is
compared with numpy.

    python3 tests/fuzz/stress.py --bundle B --pack P [--seed N] [--operations N]

B is the small golden bundle, P its kernel alone (tests/golden/scale_add.c); typed_bundle.py gives
another bundle. What is dropped is given back while it is in flight if the package gets it wrong,
and its memory is then used again here: results differ, or the process dies. What is dropped can be
compared all the same: it is copied by the same stream first. Work whose wait was ended goes on, or
has not begun.
"""
from __future__ import annotations

import argparse
import asyncio
import gc
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import accrt  # noqa: E402 - from the tree
import typed_bundle  # noqa: E402

TYPES = ("bool", "u8", "i16", "f16", "i32", "f32", "i64", "f64")
SHARE = 1024  # elements of a workgroup of P


class Foreign:
    """Memory of another library, which DLPack says nothing about but what it gives."""

    def __init__(self, array) -> None:
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **named):
        return self.array.__dlpack__(**named)


class Stress:
    def __init__(self, bundle: str, pack: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.instance = accrt.Instance(trust="all", options={"host.threads": 2})
        self.device = self.instance.device("host")
        self.program = accrt.Program(accrt.Bundle(bundle, self.instance), self.device)
        self.typed = accrt.Program(accrt.Bundle(typed_bundle.build().to_bytes(), self.instance), self.device)
        self.kernel = accrt.KernelPack(self.instance, pack).kernel("scale_add")
        self.pool = accrt.Pool(self.device)
        self.sessions = [self.program.session() for _ in range(3)]
        self.typed_session = self.typed.session()
        self.kept_state = np.zeros((typed_bundle.ROWS, 3), np.int64)
        self.data = np.random.default_rng(seed).integers(0, 255, 1 << 16, np.uint8)
        self.file = tempfile.NamedTemporaryFile(prefix="accrt-stress-")  # noqa: SIM115 - lives as long as this
        self.file.write(self.data.tobytes())
        self.file.flush()
        self.checks: list[tuple] = []  # (stream, result, what it may be)
        self.kept: list = []
        self.compared = self.forks = 0
        self.done: Counter = Counter()

    def array(self, count: int):
        return self.random.randrange(8) * np.ones(count, np.float32)

    def count(self) -> int:
        return self.random.choice((16, 1000, 5000, 40000))

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def written(self, stream, y, *expected) -> None:
        """To be compared: y itself, or a copy that the stream makes of it, and y is dropped."""
        if self.chance(0.5):
            target = np.full_like(y, 5)
            stream.copy(y, target)
            y = target
        self.checks.append((stream, y, expected))

    # Each makes work, and says what comes of it.

    def call(self):
        session, n, times = self.random.choice(self.sessions), self.count(), self.random.randrange(6)
        x, y = self.array(n), self.array(n)
        expected = times * x + y
        call = session.steps.bind(x, y, count=times)
        call.submit()
        if self.chance(0.3):
            self.kept.append(call)
        self.written(session.stream, y, expected)

    def rebound(self):
        session, n = self.random.choice(self.sessions), self.count()
        call = session.scale_add.bind(self.array(n), self.array(n))
        for _ in range(3):
            x, y = self.array(n), self.array(n)
            expected = 2 * x + y
            call.set("x", x)
            call.set("y", y)
            call.submit()
            self.written(session.stream, y, expected)

    def result(self):
        session, x = self.random.choice(self.sessions), self.array(16)
        call = session.weighted.bind(x)
        call.submit()
        self.checks.append((session.stream, call.results(), (2 * x + 2 * np.arange(16),)))

    def waited(self):
        session, n = self.random.choice(self.sessions), self.count()
        x, y = self.array(n), self.array(n)
        expected = 2 * x + y
        session.scale_add(x, y)
        self.written(session.stream, y, expected)

    def timed_out(self):
        """The work goes on, or, where its plan was not made in time, has not begun."""
        session, n = self.random.choice(self.sessions), self.count()
        x, y = self.array(n), self.array(n)
        before, after = y.copy(), 50 * x + y
        try:
            session.steps.bind(x, y, count=50).run(timeout=self.random.choice((0, 0.0001, 0.001)))
        except (TimeoutError, accrt.NotReadyError):
            pass
        self.written(session.stream, y, before, after)

    def cancelled(self):
        session, n = self.random.choice(self.sessions), self.count()
        pairs = [(self.array(n), self.array(n)) for _ in range(2)]
        expected = [(y.copy(), 20 * x + y) for x, y in pairs]

        async def main():
            calls = [session.steps.call_async(x, y, count=20) for x, y in pairs]
            await asyncio.wait_for(asyncio.gather(*calls), self.random.choice((0.0001, 0.002)))
        try:
            asyncio.run(main())
        except asyncio.TimeoutError:
            pass
        for (_, y), wanted in zip(pairs, expected):
            self.written(session.stream, y, *wanted)

    def copies(self):
        stream, n = accrt.Stream(self.device), self.count()
        source, target, buffer = self.array(n), np.empty(n, np.float32), self.pool.buffer(4 * n)
        expected = source.copy()
        stream.copy(source, buffer)
        stream.copy(buffer, target)
        self.checks.append((stream, target, (expected,)))

    def blocked(self):
        """Work that waits, whose gate opens later in another thread."""
        gate, session, n = accrt.Semaphore(self.instance), self.program.session(), self.count()
        x, y = self.array(n), self.array(n)
        expected = 2 * x + y
        session.scale_add.bind(x, y).submit(waits=[(gate, 1)])
        threading.Timer(self.random.random() / 50, gate.signal, [1]).start()
        self.written(session.stream, y, expected)

    def listed(self):
        """A list of commands that is dropped with its arrays: y = 3 x + (2 x + y), where x comes by
        the binding table or was recorded."""
        stream, n = accrt.Stream(self.device), self.count()
        x, y, between = self.array(n), self.array(n), self.pool.buffer(4 * n)
        expected = 3 * x + (2 * x + y)
        bound = self.chance(0.5)
        commands = accrt.Commands(self.device, 2 if bound else 0)
        first, last = (commands.binding(0), commands.binding(1)) if bound else (x, y)
        grid = (-(-n // SHARE),)
        commands.fill(between, 4 * n, 0, 4)
        commands.dispatch(self.kernel, grid, first, between, n, 3.0)
        commands.dispatch(self.kernel, grid, first, last, n, 2.0)
        commands.dispatch(self.kernel, grid, between, last, n, 1.0)
        given = (x, y) if bound else ()
        commands.finalize()
        if self.chance(0.3):
            commands.run(stream, *given)
        else:
            commands.submit(stream, *given)
        if self.chance(0.3):
            self.kept.append(commands)
        self.written(stream, y, expected)

    def launched(self):
        stream, n = accrt.Stream(self.device), self.count()
        x, y = self.array(n), self.array(n)
        expected = 4 * x + y
        way, grid = self.random.randrange(3), (-(-n // SHARE),)
        if way == 0:
            accrt.launch(stream, self.kernel, grid, x, y, n, 4.0)
        elif way == 1:
            prepared = accrt.Launch(self.device, self.kernel)
            for index, value in enumerate((x, y, n, 4.0)):
                prepared.set(index, value)
            prepared(stream, grid)
        else:
            self.kernel(x, y, n, 4.0, grid=grid, stream=stream)
        self.written(stream, y, expected)

    def foreign(self):
        """Memory of others in, by an array, a tensor or a producer that is dropped at once."""
        session, n = self.random.choice(self.sessions), self.count()
        x, y = self.array(n), self.array(n)
        expected = 2 * x + y
        given = self.random.choice((Foreign, lambda array: accrt.from_dlpack(array, self.device), memoryview, lambda array: memoryview(bytearray(array)).cast("f")))(x)
        session.scale_add.bind(given, y).submit()
        self.written(session.stream, y, expected)

    def taken_over(self):
        """Results that go to others: who takes them has the memory, whoever drops the tensor."""
        session, x = self.random.choice(self.sessions), self.array(16)
        result, expected = session.weighted(x), 2 * x + 2 * np.arange(16)
        if self.chance(0.3):
            result.__dlpack__(), result.__dlpack__(max_version=(1, 0))  # nobody takes these
        array = self.random.choice((np.from_dlpack, np.asarray, lambda tensor: np.frombuffer(tensor.memoryview(), np.float32), accrt.Tensor.numpy))(result)
        again = session.weighted(array) if self.chance(0.3) else None
        self.checks.append((session.stream, array, (expected,)))
        if again is not None:
            self.checks.append((session.stream, again, (2 * expected + 2 * np.arange(16),)))

    def types(self):
        """Other types and ranks, and a state that is written from row `slot` on."""
        dtype, rank = self.random.choice(TYPES), self.random.randrange(4)
        name = {"bool": "?", "f16": "f2", "f32": "f4", "f64": "f8"}.get(dtype, dtype[0] + str(typed_bundle.TYPES[dtype]))
        x = np.full((self.random.randrange(4), self.random.randrange(1, 300), 2)[:rank], self.random.randrange(2), name)
        call = self.typed_session[f"echo_{dtype}_{rank}"].bind(x)
        call.submit()
        self.checks.append((self.typed_session.stream, call.results(), (x.copy(),)))
        rows = self.random.randrange(1, 5)
        slot, value = self.random.randrange(typed_bundle.ROWS - rows + 1), self.random.randrange(1 << 40)
        self.kept_state[slot:slot + rows] = value
        call = self.typed_session.keep_i64.bind(np.full((rows, 3), value), slot=slot)
        call.submit()
        self.checks.append((self.typed_session.stream, call.results(), (self.kept_state.copy(),)))

    def read(self):
        """Of a file that is closed at once, into a buffer that is dropped."""
        stream, size = accrt.Stream(self.device), self.random.choice((1, 100, 4096, 50000))
        offset, skipped = self.random.randrange(len(self.data) - size), self.random.choice((0, 64))
        buffer, target = self.pool.buffer(size + skipped), np.empty(size, np.uint8)
        with open(self.file.name, "rb") as file:
            stream.read_file(file, buffer, size, offset, skipped)
        stream.copy(buffer, target, size, skipped)
        self.checks.append((stream, target, (self.data[offset:offset + size].copy(),)))

    def shared(self):
        """Threads with one program and pool, some with one session: a thread gets its results, or
        is told that another is in it."""
        sessions = [self.random.choice(self.sessions) if self.chance(0.3) else self.program.session() for _ in range(3)]
        n, found, told = self.count(), [], []

        def work(session, x, y):
            expected = 2 * x + y
            try:
                for _ in range(3):
                    before = y.copy()
                    session.scale_add(x, y)
                    if not np.array_equal(y, 2 * x + before):
                        told.append(f"a thread got {y[0]}, not {2 * x[0] + before[0]}")
                    expected = y.copy()
            except accrt.InvalidStateError:
                expected = y.copy()  # it did not run
            found.append((session.stream, y, (expected,)))
        threads = [threading.Thread(target=work, args=(session, self.array(n), self.array(n))) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if told or len(found) != len(threads):
            raise SystemExit(told[0] if told else "a thread ended in an exception")
        self.checks += found

    def forked(self):
        """A child gives back all that it has, is refused, and disturbs nothing."""
        if not self.chance(0.1):
            return
        self.forks += 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                session = self.sessions[0]
                self.kept.clear()
                self.checks.clear()
                self.sessions.clear()
                gc.collect()
                try:
                    session.scale_add(self.array(16), self.array(16))
                except accrt.ForkedError:
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"a forked child ended with {status}")

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
            if not any(np.array_equal(found, one) for one in expected):
                where = np.flatnonzero(found != expected[-1])
                raise SystemExit(f"{len(where)} of {found.size} elements differ, the first at {where[0]}: {found.ravel()[where[0]]}, "
                                 f"not {expected[-1].ravel()[where[0]]}")
            self.compared += 1
        for kept in self.kept:
            if isinstance(kept, np.ndarray) and not (kept == np.float32(7e7)).all():
                raise SystemExit("memory that was free was written")

    def run(self, operations: int) -> None:
        actions = [self.call] * 3 + [self.rebound, self.result, self.waited, self.timed_out, self.cancelled, self.copies, self.blocked, self.listed,
                                     self.listed, self.launched, self.launched, self.foreign, self.foreign, self.taken_over, self.types, self.types,
                                     self.read, self.shared, self.forked, self.sessions_change, self.drop, self.drop, self.churn]
        for _ in range(operations):
            action = self.random.choice(actions)
            self.done[action.__name__] += 1
            try:
                action()
            except SystemExit:
                print(f"in {action.__name__}", file=sys.stderr, flush=True)
                raise
            if len(self.kept) > 30:
                self.drop()
            self.compare()
        self.compare(all_of_them=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--operations", type=int, default=5000)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.operations} operations", flush=True)
    begin, stress = time.monotonic(), Stress(options.bundle, options.pack, seed)
    stress.run(options.operations)
    print(f"{options.operations} operations, {stress.compared} results as numpy's, {stress.forks} forks, in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
