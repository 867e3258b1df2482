"""Work on files from anybody is bounded: attacks on opening, verifying, preparing and planning,
what they cost counted in basic blocks (not in seconds: build/tests/bounded.count), and the limits
of a budget."""
from __future__ import annotations

import gc
import math
import os
import pathlib
import re
import struct
import subprocess
import threading
import time

import numpy as np
import pytest

import accrt
from accrt.bundle_writer import BundleWriter, Encoding, SymbolClass
from accx_tool import ACCX, ROOT, needs_tool
from bounded_files import KINDS, LARGEST, calls_and_symbols, many_commands, many_constants, many_functions, sum_of
from safetensors_file import safetensors_bytes

BUILD = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so")).parents[1]
COUNT = BUILD / "tests/bounded.count"
needs_count = pytest.mark.usefixtures("counter")


@pytest.fixture(scope="session")
def counter():
    """The library once more, with a call at each basic block: nothing else needs it, so that it is
    built here."""
    if not (BUILD / "build.ninja").exists() or "bounded.count" not in (BUILD / "build.ninja").read_text():
        pytest.skip("bounded.count cannot be built here (sanitizers, no build folder)")
    subprocess.run(["ninja", "-C", BUILD, "bounded.count"], check=True, capture_output=True, timeout=1200)


def count(work: str, *files: pathlib.Path, function: str = "main") -> list[tuple[int, int, int, str]]:
    """Of each file: basic blocks, steps charged, status, message."""
    plans = [function] if work in ("estimate", "warmup") else []
    done = subprocess.run([COUNT, work, *plans, *files], capture_output=True, text=True, timeout=300, check=True)
    rows = [line.split(" ", 3) for line in done.stdout.splitlines()]
    return [(int(blocks), int(steps), int(status), message) for blocks, steps, status, message in rows]


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The path of a file of n records of a kind, made once."""
    folder = tmp_path_factory.mktemp("kinds")

    def make(kind: str, n: int) -> pathlib.Path:
        path = folder / f"{kind}-{n}.accx"
        if not path.exists():
            path.write_bytes(KINDS[kind](n).to_bytes())
        return path

    return make


def assert_linear(what: str, numbers: list[int]) -> None:
    """Twice the records may cost twice, and a little for logarithms: what 2n more cost against n
    more, whatever every file costs."""
    one, two, four = numbers
    few = 500  # blocks of a search in a handful of names
    assert four - two <= 2.25 * max(two - one, 0) + few, f"{what}: {numbers} for n, 2n, 4n"


@pytest.mark.rotating(9, by="kind")
@needs_count
@pytest.mark.parametrize("work", ["open", "find", "program"])
@pytest.mark.parametrize("kind", KINDS)
def test_cost_doubles_with_the_file(written, kind, work):
    n = LARGEST.get(kind, 2000)
    files = [written(kind, size) for size in (1, n, 2 * n, 4 * n)]
    rows = count(work, files[0], *files)[1:]  # the first of all pays for what is made once
    assert all(status == 0 for _, _, status, _ in rows), rows
    assert_linear(f"{work} {kind}", [blocks for blocks, _, _, _ in rows[1:]])
    for file, (blocks, steps, _, _) in zip(files, rows):
        # No honest file comes near the default, which is 2^22 and 16 for each byte; and steps stand
        # for what is done.
        assert steps <= 4 * file.stat().st_size + 100_000, (kind, steps)
        assert blocks <= 40 * file.stat().st_size + 400_000, (kind, blocks)


def seconds(work) -> float:
    """The processor's time of `work()`, children included."""
    begin = os.times()
    work()
    return sum(os.times()[:4]) - sum(begin[:4])


def assert_time_is_linear(what: str, work, files: list) -> None:
    """Where no blocks can be counted (Python, libyaml): a file with eight times the records may
    take 1.5 times as long as eight times the small file (which the clock of 10 ms sees as well),
    once in some attempts on a busy machine. What is quadratic takes eight times as long. Python's
    collector leaves out what other tests of this process have left: each object that a large file
    becomes would have it looked through again."""
    few, tried, (small, large) = 0.05, [], files
    gc.collect()
    gc.freeze()
    try:
        for _ in range(5):
            tried.append([seconds(lambda: [work(small) for _ in range(8)]), seconds(lambda: work(large))])
            if tried[-1][1] <= 1.5 * tried[-1][0] + few:
                return
    finally:
        gc.unfreeze()
    raise AssertionError(f"{what}: {tried} s for eight times n, 8n")


@pytest.mark.rotating(9, by="kind")
@pytest.mark.parametrize("kind", KINDS)
def test_time_of_the_python_reader_grows_with_the_file(written, kind):
    from accrt import bundle_reader
    n = LARGEST.get(kind, 4000) // 8
    assert_time_is_linear(kind, lambda path: bundle_reader.read(str(path)), [written(kind, n), written(kind, 8 * n)])


TEXTS = {
    "long words": lambda n: "metadata: {a: " + "x" * (256 * n) + "}\n",
    "quoted words": lambda n: 'metadata: {a: "' + "\\x41" * (64 * n) + '"}\n',
    "folded words": lambda n: "metadata:\n  a: >\n" + "    word\n" * (32 * n),
    "words of many lines": lambda n: "metadata:\n  a: word\n" + "    word\n" * (32 * n),
    "empty lines": lambda n: "metadata: {a: b}\n" + "\n" * (256 * n),
    "comments": lambda n: "# a comment\n" * (32 * n) + "metadata: {a: b}\n",
    "keys": lambda n: "metadata:\n" + "".join(f"  key{i}: value\n" for i in range(8 * n)),
    "keys in one line": lambda n: "metadata: {" + ", ".join(f"key{i}: v" for i in range(8 * n)) + "}\n",
    "lists in lists": lambda n: "metadata: {a: " + ("[" * 60 + "]" * 60 + ", ") * n + "}\n",
    "deep lists": lambda n: "metadata: {a: " + "[" * (64 * n) + "\n",
    "deep maps": lambda n: "metadata: {a: " + "{a: " * (64 * n) + "\n",
    "deep blocks": lambda n: "metadata:\n" + "".join(" " * i + "a:\n" for i in range(1, 200)) * (n // 16),
    "dashes": lambda n: "metadata:\n  " + "- " * (64 * n) + "\n",
    "question marks": lambda n: "metadata:\n  " + "? " * (64 * n) + "\n",
    "aliases": lambda n: "metadata: {" + "".join(f"k{i}: *a, " for i in range(8 * n)) + "}\n",
    "anchors": lambda n: "metadata: {" + "".join(f"k{i}: &a{i} b, " for i in range(8 * n)) + "}\n",
    "tags": lambda n: "%TAG !a! tag:a\n" * 1 + "---\nmetadata: {" + "".join(f"k{i}: !a!b c, " for i in range(8 * n)) + "}\n",
    "tag directives": lambda n: "".join(f"%TAG !a{i}! tag:a\n" for i in range(4 * n)) + "---\nmetadata: {a: b}\n",
    "expressions": lambda n: 'symbols: [{name: s, class: runtime, maximum: 8}]\nfunctions:\n- name: f\n  commands:\n  - {repeat: "'
                             + "1 + " * (16 * n) + '1"}\n',
    "parentheses": lambda n: 'functions:\n- name: f\n  commands:\n  - {repeat: "' + "(" * (16 * n) + '1"}\n',
    "commands": lambda n: "functions:\n- name: f\n  commands:\n" + "  - {barrier: true}\n" * (4 * n),
    "predecessors": lambda n: "functions:\n- name: f\n  commands:\n" + "  - {barrier: true}\n" * 8
                              + "  - {marker: m, after: [" + "0, " * (4 * n) + "0]}\n",
    "values": lambda n: f"constants: [{{name: c, dtype: f32, shape: [{16 * n}], values: [" + "1.5, " * (16 * n) + "]}]\n",
    "zeros": lambda n: "constants: [{name: c, dtype: u8, shape: [1], data: {hex: '" + "00" * (64 * n) + "'}}]\n",
}


@needs_tool
@pytest.mark.parametrize("kind", TEXTS)
def test_time_of_a_text_grows_with_it(tmp_path, kind):
    """Texts that are refused, and those that are not: libyaml, the tree, words and expressions."""
    def build(path):
        done = subprocess.run([ACCX, "build", path, "--output", tmp_path / "out.accx"], capture_output=True, timeout=300)
        assert done.returncode in (0, 1), done

    files = []
    for n in (500, 4000):
        files.append(tmp_path / f"{n}.yaml")
        files[-1].write_text(("" if "%" in TEXTS[kind](8)[:1] else "accx: 1\n") + TEXTS[kind](n))
    assert_time_is_linear(kind, build, files)


@pytest.mark.rotating(9, by="kind")
@needs_tool
@pytest.mark.parametrize("kind", KINDS)
def test_time_of_a_bundles_text_grows_with_it(written, tmp_path, kind):
    """From bundle to text and back, for each kind of record."""
    n = LARGEST.get(kind, 4000) // 8

    def there_and_back(path):
        text, again = tmp_path / f"{path.stem}.yaml", tmp_path / "again.accx"
        subprocess.run([ACCX, "dump", path, "--output", text], check=True, capture_output=True, timeout=300)
        subprocess.run([ACCX, "build", text, "--output", again], check=True, capture_output=True, timeout=300)
        assert again.read_bytes() == path.read_bytes()

    assert_time_is_linear(kind, there_and_back, [written(kind, n), written(kind, 8 * n)])


def gguf_file(names: list[bytes], keys: list[bytes]) -> bytes:
    pairs = b"".join(struct.pack("<Q", len(k)) + k + struct.pack("<IB", 0, 1) for k in keys)
    tensors = b"".join(struct.pack("<Q", len(k)) + k + struct.pack("<IQIQ", 1, 0, 24, 0) for k in names)
    return b"GGUF" + struct.pack("<IQQ", 3, len(names), len(keys)) + pairs + tensors + bytes(64)


def safetensors_file(names: list[str], metadata: int = 0) -> bytes:
    parts = ['"__metadata__":{%s}' % ",".join(f'"k{i}":"v"' for i in range(metadata))] if metadata else []
    parts += [f'"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for name in names]
    text = ("{" + ",".join(parts) + "}").encode()
    return struct.pack("<Q", len(text)) + text


WEIGHTS = {
    "gguf tensors": lambda n: gguf_file([b"t%d" % i for i in range(n)], []),
    "gguf keys": lambda n: gguf_file([], [b"k%d" % i for i in range(n)]),
    # below 1 MiB, which is read at once
    "gguf long keys": lambda n: gguf_file([], [b"x" * 4000 + b"%d" % i for i in range(n // 64 + 1)]),
    "safetensors tensors": lambda n: safetensors_file([f"t{i}" for i in range(n)]),
    "safetensors metadata": lambda n: safetensors_file([], n),
    "safetensors escapes": lambda n: safetensors_file(["\\u0041" * 20 + str(i) for i in range(n)]),
}


@needs_count
@pytest.mark.parametrize("kind", WEIGHTS)
def test_cost_of_weights_doubles_with_the_file(tmp_path, kind):
    files = []
    for n in (1, 4000, 8000, 16000):
        files.append(tmp_path / f"{n}.weights")
        files[-1].write_bytes(WEIGHTS[kind](n))
    rows = count("weights", files[0], *files)[1:]
    assert all(status == 0 for _, _, status, _ in rows), rows
    assert_linear(kind, [blocks for blocks, _, _, _ in rows[1:]])


def placed_names(n: int, wanted) -> BundleWriter:
    """Names of n inputs, strings of the file between them, so that each name begins where the hash
    that the verifier had before seeds (a multiplication) puts it into the place `wanted(i)` of a
    table of 2n."""
    b, texts, names, at = BundleWriter(), 0, [], 1
    capacity = 1 << (2 * n - 1).bit_length()
    for i in range(n):
        target, begin = wanted(i) % capacity, at
        while (begin * 2654435761 & 0xFFFFFFFF) >> 7 & capacity - 1 != target or 0 < begin - at < 16:
            begin += 1
        while at < begin:
            left = begin - at
            size = left if left <= 60_000 else 30_000
            b.string(f"{texts:07}".ljust(size - 1, "x"))
            texts, at = texts + 1, at + size
        names.append(f"{texts:07}")
        texts, at = texts + 1, at + 8
    f = b.function("main")
    for name in names:
        f.input(name, "u8", [1])
    return b


@needs_count
def test_names_that_meet_in_an_unseeded_hash(tmp_path):
    """All in one place of a table, where it was searched as a list, cost what names do that are
    spread. The seed is another one at each open."""
    files = [tmp_path / "spread.accx", tmp_path / "together.accx"]
    files[0].write_bytes(placed_names(1000, lambda i: i * 977).to_bytes())
    files[1].write_bytes(placed_names(1000, lambda i: 0).to_bytes())
    rows = count("open", files[0], *files)[1:]
    assert all(status == 0 for _, _, status, _ in rows), rows
    spread, together = (blocks / file.stat().st_size for (blocks, _, _, _), file in zip(rows, files))
    assert together <= 1.2 * spread, (rows, [file.stat().st_size for file in files])


# ---- What multiplies without being large ----


def save(tmp_path, bundle: BundleWriter) -> str:
    path = tmp_path / "attack.accx"
    path.write_bytes(bundle.to_bytes())
    assert path.stat().st_size < 7 << 20
    return str(path)


def nested_barriers(depth: int = 10, times: int = 1 << 18, each: int = 500, fill=None) -> BundleWriter:
    """25 KB that took minutes: repeats in repeats of barriers, which are no commands of a plan."""
    b = BundleWriter()
    f = b.function("main")
    block = f.body
    for _ in range(depth):
        block = block.repeat(times).body
    for _ in range(each):
        (fill or (lambda inside: inside.barrier()))(block)
    return b


def multiplying_calls(depth: int = 15, width: int = 2) -> BundleWriter:
    """f0 does nothing, f1 calls f0 twice, f2 calls f1 twice ... each in a loop."""
    b = BundleWriter()
    before = b.function("f0", internal=True)
    for level in range(1, depth):
        f = b.function(f"f{level}", internal=True)
        for _ in range(width):
            f.body.repeat(1000).body.call(before, {})
        before = f
    f = b.function("main")
    f.body.call(before, {})
    return b


def calls_with_symbols(n: int = 4000) -> BundleWriter:
    return calls_and_symbols(n)


def descending_joins(n: int = 1500, times: int = 400) -> BundleWriter:
    """Each branch that is not taken stands for what it follows, the last first: a join of them is
    made backwards."""
    b = BundleWriter()
    f = b.function("main")
    y = f.result("y", "u8", [4])
    fills = [f.body.fill(y.write(), 1) for _ in range(n)]
    for command in reversed(fills):
        f.body.branch(0, after=[command])
    f.body.barrier()
    return b


PLANS = {
    "barriers": lambda: nested_barriers(),
    "empty repeats": lambda: nested_barriers(each=0),
    "branches": lambda: nested_barriers(each=100, fill=lambda block: block.branch(0)),
    "repeats of nothing": lambda: nested_barriers(depth=3, each=100, fill=lambda block: block.repeat(0)),
    "calls": multiplying_calls,
}


@pytest.mark.parametrize("kind", PLANS)
def test_plans_that_multiply(tmp_path, kind):
    """The default budget ends them in seconds, with a line that says where; the session goes on."""
    session = accrt.load(save(tmp_path, PLANS[kind]()))
    for work in (lambda: session.main(), lambda: session.program.estimate("main")):
        begin = time.monotonic()
        with pytest.raises(accrt.BudgetError, match=r"planning 'main'.*more than 67108864 steps \(the default of max_steps\)"):
            work()
        assert time.monotonic() - begin < 60  # on a busy machine: it is less than a second alone
    assert not isinstance(session, Exception)


@pytest.mark.parametrize("kind", PLANS)
def test_plans_end_at_their_limits(tmp_path, kind):
    path = save(tmp_path, PLANS[kind]())
    # Without a limit of steps: a fast machine plans the default's 2^26 in less than 0.2 s.
    budget = accrt.Budget(timeout=0.2, max_steps=math.inf)
    session = accrt.Program(path).session(budget=budget)
    begin = time.monotonic()
    with pytest.raises(accrt.TimeoutError, match=r"planning 'main'.*longer than its limit of 200000000 ns"):
        session.main()
    assert time.monotonic() - begin < 5
    session = accrt.Program(path).session(budget=accrt.Budget(max_steps=1000))
    with pytest.raises(accrt.BudgetError, match=r"more than 1000 steps$"):
        session.main()
    budget = accrt.Budget(max_steps=math.inf)
    session = accrt.Program(path).session(budget=budget)
    timer = threading.Timer(0.1, budget.cancel)
    timer.start()
    with pytest.raises(accrt.CancelledError, match=r"planning 'main'.*it was cancelled after \d+ steps"):
        session.main()
    assert budget.cancelled
    timer.join()


def test_counts_from_a_call(tmp_path):
    """A scalar of a call says how often: 2^18 times nothing, each time 2^18 times, is refused in
    bounded time; then a small one runs."""
    b = BundleWriter()
    n = b.symbol("n", SymbolClass.SPECIALIZE, maximum=1 << 18)
    f = b.function("main")
    f.scalar("n", n)
    f.body.repeat(n).body.repeat(n).body.barrier()
    session = accrt.load(save(tmp_path, b))
    with pytest.raises(accrt.BudgetError, match="planning 'main'"):
        session.main(n=1 << 18)
    session.main(n=3)


def test_memory_of_a_plan(tmp_path):
    b = BundleWriter()
    n = b.symbol("n", SymbolClass.SPECIALIZE, maximum=1 << 18)
    f = b.function("main")
    f.scalar("n", n)
    y = f.result("y", "u8", [4])
    f.body.repeat(n).body.fill(y.write(), 1)
    program = accrt.Program(save(tmp_path, b))
    session = program.session(budget=accrt.Budget(max_memory=1 << 20))
    session.main(n=10)
    with pytest.raises(accrt.BudgetError, match=r"planning 'main'.*bytes of host memory after \d+ pass the limit of 1048576$"):
        session.main(n=1 << 17)
    session.main(n=11)


@needs_count
def test_joins_made_backwards(tmp_path):
    files = []
    for n in (1, 1000, 2000, 4000):
        files.append(tmp_path / f"{n}.accx")
        files[-1].write_bytes(descending_joins(n).to_bytes())
    rows = count("warmup", *files)
    assert all(status == 0 for _, _, status, _ in rows), rows
    # A list is moved as it grows: what that takes is charged, so a budget ends it.
    assert rows[3][1] >= 4000 * 4000 // 4


def unions(k: int, j: int, m: int) -> BundleWriter:
    """j functions each call k functions that need m symbols: a union of sets along a graph, which
    nothing makes linear."""
    b = BundleWriter()
    symbols = [b.symbol(f"s{i:05}", SymbolClass.SPECIALIZE, maximum=8) for i in range(m)]
    total = sum_of(symbols)
    inner = []
    for i in range(k):
        inner.append(b.function(f"inner{i:05}", internal=True))
        inner[-1].body.repeat(total)
    for i in range(j):
        f = b.function(f"outer{i:05}", internal=True)
        for callee in inner:
            f.body.call(callee, {})
    return b


def test_symbols_times_calls_is_charged(tmp_path):
    path = save(tmp_path, unions(60, 60, 700))
    accrt.Bundle(path)  # 2.5 million: the default allows it
    with pytest.raises(accrt.BudgetError, match=r"opening '.*attack.accx', functions and commands: it takes more than 1500000 steps$"):
        accrt.Bundle(path, budget=accrt.Budget(max_steps=1_500_000))


# ---- Budgets ----


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.accx"
    path.write_bytes(many_constants(20_000).to_bytes())
    return str(path)


def test_opening_ends_at_each_limit(large):
    accrt.Bundle(large, budget=accrt.Budget(60, math.inf, math.inf))
    with pytest.raises(accrt.BudgetError, match=r"opening '.*large.accx', \w+.*: it takes more than 100 steps$"):
        accrt.Bundle(large, budget=accrt.Budget(max_steps=100))
    with pytest.raises(accrt.BudgetError, match=r"opening .*: \d+ bytes of host memory after \d+ pass the limit of 100000$"):
        accrt.Bundle(large, budget=accrt.Budget(max_memory=100_000))
    with pytest.raises(accrt.TimeoutError, match=r"opening .*: it takes longer than its limit of 1000 ns"):
        accrt.Bundle(large, budget=accrt.Budget(timeout=1e-6))
    with pytest.raises(TimeoutError):
        accrt.load(large, timeout=1e-6)
    budget = accrt.Budget()
    budget.cancel()
    for work in (lambda: accrt.Bundle(large, budget=budget), lambda: accrt.Bundle(large).verify(budget),
                 lambda: accrt.Bundle(large).program().session(budget=budget) and accrt.load(large, budget=budget)):
        with pytest.raises(accrt.CancelledError, match="it was cancelled after"):
            work()
    accrt.Bundle(large).verify(accrt.Budget(timeout=60))
    with pytest.raises(accrt.TimeoutError, match="verifying"):
        accrt.Bundle(large).verify(accrt.Budget(timeout=1e-6))


def test_weights_end_at_each_limit(tmp_path):
    for name, data in (("w.gguf", WEIGHTS["gguf tensors"](20_000)), ("w.safetensors", WEIGHTS["safetensors tensors"](20_000))):
        path = tmp_path / name
        path.write_bytes(data)
        accrt.Weights(path, budget=accrt.Budget(60))
        with pytest.raises(accrt.BudgetError, match=r"opening .*, header: it takes more than 10000 steps$"):
            accrt.Weights(path, budget=accrt.Budget(max_steps=10_000))
        with pytest.raises(accrt.BudgetError, match="bytes of host memory"):
            accrt.Weights(path, budget=accrt.Budget(max_memory=100_000))
        with pytest.raises(accrt.TimeoutError):
            accrt.Weights(path, budget=accrt.Budget(timeout=1e-6))


def test_programs_end_at_each_limit(tmp_path):
    path = save(tmp_path, many_functions(2000))
    bundle = accrt.Bundle(path)
    with pytest.raises(accrt.BudgetError, match=r"making a program of '.*', functions: it takes more than 100 steps$"):
        accrt.Program(bundle, budget=accrt.Budget(max_steps=100))
    with pytest.raises(accrt.BudgetError, match="making a program of .*bytes of host memory"):
        accrt.Program(bundle, budget=accrt.Budget(max_memory=1000))
    accrt.Program(bundle, budget=accrt.Budget(60))


def states(tmp_path, *mib):
    """A bundle of some hundred bytes whose states are as large as it likes."""
    b = BundleWriter()
    f = b.function("main")
    y = f.result("y", "u8", [1])
    for i, size in enumerate(mib):
        f.body.copy(f.state(b.state(f"state{i}", "u8", [size << 20], fill_pattern=i + 1)).read(), y.write(), 1)
    return save(tmp_path, b)


def resident_mib():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.parametrize("mib", [(64 << 10,), (12, 12), (9, 64 << 10), (1,) * 40])
def test_sessions_take_no_more_memory_than_the_budget_has(tmp_path, mib):
    """Each way to make a session: nothing of its states is there when it is refused, however many
    they are."""
    path, before = states(tmp_path, *mib), resident_mib()
    message = r"state '\w+': making a session of '.*': \d+ bytes of host memory after \d+ pass the limit of 16777216$"
    budget = accrt.Budget(max_memory=16 << 20)
    program = accrt.Program(path)
    for make in (lambda: accrt.load(path, budget=budget), lambda: program.session(budget=budget)):
        with pytest.raises(accrt.BudgetError, match=message):
            make()
    assert resident_mib() - before < 64


def test_sessions_end_at_their_time(tmp_path):
    """Filling 2 GiB takes longer than 20 ms everywhere."""
    path = states(tmp_path, 1024, 1024)
    program = accrt.Program(path)
    for make in (lambda: accrt.load(path, timeout=0.02), lambda: accrt.load(path, budget=accrt.Budget(timeout=0.02)),
                 lambda: program.session(budget=accrt.Budget(timeout=0.02))):
        begin = time.monotonic()
        with pytest.raises(accrt.TimeoutError, match="it takes longer than its limit of"):
            make()
        assert time.monotonic() - begin < 5
    budget = accrt.Budget()
    timer = threading.Timer(0.02, budget.cancel)
    timer.start()
    with pytest.raises(accrt.CancelledError, match="making a session of '.*': it was cancelled after"):
        program.session(budget=budget)
    timer.join()
    pool, small = accrt.Pool(program.device), accrt.Budget(timeout=0.02)
    with pytest.raises(accrt.TimeoutError):
        program.session(pool=pool, budget=small)
    pool.trim()
    assert pool.statistics["reserved_bytes"] == 0  # what the refused one had is given back


def test_a_loads_time_is_not_its_sessions(tmp_path):
    """Plans of what was loaded within a time have none; what is filled in pieces is filled to its
    end."""
    session = accrt.load(states(tmp_path, 130, 3), timeout=60)
    for i in range(2):
        state = session.state(f"state{i}").numpy()
        assert state.min() == state.max() == i + 1
    assert session.main().tolist() == [2]


def test_budgets_that_are_none():
    for bad in (dict(timeout=0), dict(timeout=-1), dict(timeout=math.nan), dict(max_steps=0), dict(max_memory=-5)):
        with pytest.raises(ValueError):
            accrt.Budget(**bad)
    with pytest.raises(TypeError, match="expected accrt.Budget"):
        accrt.Bundle(b"", budget=5)
    with pytest.raises(ValueError, match="timeout and budget"):
        accrt.load("x", timeout=1, budget=accrt.Budget())
    assert repr(accrt.Budget(2)) == "Budget(timeout=2, max_steps=None, max_memory=None)"


@needs_tool
def test_the_tool_has_a_time_limit(large):
    def accx(*arguments):
        return subprocess.run([ACCX, *arguments], capture_output=True, text=True, timeout=60)
    assert accx("--time-limit", "60", "verify", large).returncode == 0
    done = accx("--time-limit", "0.000001", "verify", large)
    assert done.returncode == 1 and "longer than its limit of 1000 ns" in done.stderr and "ACCRT_ERROR_TIMEOUT" in done.stderr
    for none in ("inf", "Infinity"):  # as timeout=math.inf in Python
        assert accx("--time-limit", none, "verify", large).returncode == 0
    for bad in ("0", "-1", "x", "1e10", "nan", "-inf", "inf ", "1e400", "infinite", "+1", " 1", "\t1", "0x10", ""):
        done = accx("--time-limit", bad, "verify", large)
        assert done.returncode == 2 and "seconds above 0, or inf" in done.stderr, done
    assert accx("--time-limit").returncode == 2


@needs_tool
def test_every_duration_of_the_tool_may_be_none(tmp_path):
    """Whole seconds, too: `inf` is no limit, and messages name it."""
    def accx(*arguments):
        return subprocess.run([ACCX, *arguments], capture_output=True, text=True, timeout=60)
    help_of = {verb: accx("help", verb).stdout for verb in ("run", "bench")}
    assert re.search(r"--sandbox-cpu SECONDS .*inf", help_of["run"]) and re.search(r"--seconds SECONDS .*inf", help_of["bench"])
    small = tmp_path / "small.accx"
    small.write_bytes(many_commands(1).to_bytes())
    done = accx("bench", small, "--seconds", "inf", "--warmup", "0", "--json")
    assert done.returncode == 0 and "100000" in done.stdout, done
    for verb, option in (("run", "--sandbox-cpu"), ("bench", "--seconds")):
        for bad in ("-inf", "nan", "0", "1.5", "infinite"):
            more = ["--sandbox"] if verb == "run" else []
            done = accx(verb, small, *more, option, bad)
            assert done.returncode == 2 and f"{option} is '{bad}'" in done.stderr and "or inf" in done.stderr, done


# ---- Prepare functions ----


def slow_to_prepare(path, copies=1 << 13):
    """Its prepare function copies 16 MiB 2^13 times: half a minute of work."""
    size = 1 << 24
    b = BundleWriter()
    w = b.constant("w", bytes(size), dtype="u8", shape=(size,))
    made = b.prepared("made", size, dtype="u8", shape=(size,), encoding=Encoding.PLAIN)
    f = b.function("make", prepare=True)
    source, product = f.source("w", w), f.product("made", made)
    f.body.repeat(copies).body.copy(source.read(), product.write(), size)
    main = b.function("main")
    y = main.result("y", "u8", [size])
    main.body.copy(main.constant(made).read(), y.write(), size)
    b.write(str(path))
    return str(path)


@pytest.mark.parametrize("threads", ["0", "2"])
@pytest.mark.parametrize("how", ["limit", "cancel"])
@pytest.mark.parametrize("call", ["swap", "load"])
def test_prepare_functions_end_when_weights_are_replaced(tmp_path, threads, how, call):
    """They ran to their end, however long: replacing weights took no budget."""
    path = slow_to_prepare(tmp_path / "slow.accx", copies=32)
    instance = accrt.Instance(options={"host.threads": threads, "prepare.cache": ""})
    program = accrt.Program(accrt.Bundle(path, instance), instance.device("host"))
    budget = accrt.Budget(timeout=0.001 if how == "limit" else None)
    if how == "cancel":
        budget.cancel()
    other = np.full(1 << 24, 7, np.uint8)
    (tmp_path / "other.safetensors").write_bytes(safetensors_bytes({"w": other}))
    replace = {"swap": lambda **limits: program.swap_weights({"w": other}, **limits),
               "load": lambda **limits: program.load_weights(tmp_path / "other.safetensors", names=["w"], by_name=True, **limits)}[call]
    with pytest.raises(TimeoutError if how == "limit" else accrt.CancelledError, match="replacing weights of|prepare function 'make'"):
        replace(budget=budget)
    assert program.session().main().tolist()[::1 << 20] == [0] * 16  # all weights are as they were
    replace()
    assert program.session().main().tolist()[::1 << 20] == [7] * 16


@pytest.mark.parametrize("threads", ["0", "2"])
@pytest.mark.parametrize("how", ["limit", "cancel"])
def test_prepare_functions_end_while_they_run(tmp_path, threads, how):
    """They ran to their end, and the limit was heard of then."""
    path = slow_to_prepare(tmp_path / "slow.accx")
    instance = accrt.Instance(options={"host.threads": threads, "prepare.cache": ""})
    budget = accrt.Budget(timeout=0.3 if how == "limit" else None)
    if how == "cancel":
        threading.Timer(0.3, budget.cancel).start()
    begin = time.process_time()
    wanted, words = (TimeoutError, "limit of 300000000 ns") if how == "limit" else (accrt.CancelledError, "it was cancelled")
    with pytest.raises(wanted, match=f"prepare function 'make': .*{words}"):
        accrt.Program(accrt.Bundle(path, instance), instance.device("host"), budget=budget)
    assert time.process_time() - begin < 4, "of processor time, which others do not lengthen"
    # Nothing is left behind: the same device makes and runs another one.
    b = BundleWriter()
    main = b.function("main")
    main.body.copy(main.input("x", "u8", [4]).read(), main.result("y", "u8", [4]).write(), 4)
    b.write(str(tmp_path / "other.accx"))
    session = accrt.Program(accrt.Bundle(str(tmp_path / "other.accx"), instance), instance.device("host")).session()
    assert session.main(bytearray(b"abcd")).tolist() == [97, 98, 99, 100]
