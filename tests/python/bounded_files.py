"""Bundles with n records of a kind, for each kind of record that a file may have: what
test_bounded.py opens at several sizes."""
from __future__ import annotations

from accrt.bundle_writer import BundleWriter, FileKind, ImageKind, Parameter, Predicate, Segment, SymbolClass


def slots(function, *inputs):
    return [function.input(name, "u8", shape) for name, shape in inputs]


def many_metadata(n):
    b = BundleWriter()
    for i in range(n):
        b.metadata(f"key{i:07}", f"value {i}")
    return b


def many_symbols(n):
    b = BundleWriter()
    symbols = [b.symbol(f"s{i:07}", SymbolClass.RUNTIME, maximum=8) for i in range(n)]
    f = b.function("main")
    for i, s in enumerate(symbols[:4000]):
        f.scalar(f"a{i}", s)
    return b


def many_buckets(n):
    b = BundleWriter()
    b.symbol("s", SymbolClass.BUCKET, maximum=n, buckets=range(1, n + 1))
    return b


def many_constants(n):
    b = BundleWriter()
    for i in range(n):
        b.constant(f"w{i:07}", b"abcd", dtype="f32", shape=[1])
    return b


def many_states(n):
    b = BundleWriter()
    for i in range(n):
        b.state(f"state{i:07}", "f32", [i % 7 + 1])
    return b


def many_functions(n):
    b = BundleWriter()
    for i in range(n):
        f = b.function(f"f{i:07}")
        f.body.barrier()
    return b


def many_arguments(n):
    """Functions with as many arguments as there may be, of few symbols."""
    b = BundleWriter()
    m = [b.symbol(f"m{i}", SymbolClass.SPECIALIZE, maximum=64) for i in range(4)]
    for k in range(max(n // 500, 1)):
        f = b.function(f"f{k:05}")
        for i in range(min(n, 500)):
            f.input(f"argument{i}", "u8", [m[i % 4]])
    return b


def many_scalars(n):
    """Each input is a scalar of its own symbol, and the signature has as many expressions."""
    b = BundleWriter()
    f = b.function("main")
    symbols = [b.symbol(f"s{i:05}", SymbolClass.RUNTIME, maximum=8) for i in range(min(n, 4000))]
    for i, s in enumerate(symbols):
        f.scalar(f"scalar{i}", s)
    return b


def many_bound_symbols(n):
    """Inputs of rank 8, each dimension a symbol of its own."""
    b = BundleWriter()
    f = b.function("main")
    for i in range(n):
        f.input(f"x{i}", "u8", [b.symbol(f"s{i}_{d}", SymbolClass.SPECIALIZE, maximum=8) for d in range(8)])
    return b


def many_commands(n):
    b = BundleWriter()
    f = b.function("main")
    y = f.result("y", "u8", [4])
    for i in range(n):
        f.body.fill(y.write(), i % 256)
    return b


def many_predecessors(n):
    b = BundleWriter()
    f = b.function("main")
    y = f.result("y", "u8", [4])
    first = [f.body.fill(y.write(), 1) for _ in range(n)]
    f.body.fill(y.write(), 2, after=first)
    return b


def many_barriers(n):
    b = BundleWriter()
    f = b.function("main")
    for _ in range(n):
        f.body.barrier()
    return b


def many_markers(n):
    b = BundleWriter()
    f = b.function("main")
    for i in range(n):
        f.body.marker(f"marker {i}")
    return b


def many_blocks(n):
    b = BundleWriter()
    f = b.function("main")
    for _ in range(n):
        f.body.repeat(1)
    return b


def many_expressions(n):
    """Each is made of the one before it twice: written out it would have 2^n terms."""
    b = BundleWriter()
    s = b.symbol("s", SymbolClass.SPECIALIZE, maximum=1)
    f = b.function("main")
    f.scalar("s", s)
    y = f.result("y", "u8", [4])
    value = s
    for i in range(n):
        value = (value + value) % 2
        if i % 100 == 99:  # the writer of expressions is recursive
            f.body.fill(y.write(value), 1)
    return b


def many_locations(n):
    b = BundleWriter()
    f = b.function("main")
    for i in range(n):
        f.body.barrier().at(b.location("file", i + 1))
    return b


def many_assets(n):
    b = BundleWriter()
    for i in range(n):
        b.asset(f"asset{i:07}", b"x")
    return b


def many_files(n):
    b = BundleWriter()
    for i in range(n):
        b.file(f"file{i:07}", FileKind.SAFETENSORS)
    return b


def calls_and_symbols(n):
    """n calls of a function that needs n symbols: 6 MB of it took 10 s."""
    b = BundleWriter()
    symbols = [b.symbol(f"s{i:07}", SymbolClass.SPECIALIZE, maximum=8) for i in range(min(n, 4000))]
    inner = b.function("inner", internal=True)
    inner.body.repeat(sum_of(symbols))
    f = b.function("main")
    for i, s in enumerate(symbols):
        f.scalar(f"a{i}", s)
    for _ in range(n):
        f.body.call(inner, {})
    return b


def sum_of(values):
    while len(values) > 1:
        values = [values[i] + values[i + 1] if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def shards_of(shards, segments):
    """Constants of 2 ranks, each with segments that one rank has and that both have."""
    b = BundleWriter()
    pieces = [Segment(2 * i, 2 * i + 2, 1 + i % 2) for i in range(segments)]
    local = sum(2 // (2 // piece.replicas) for piece in pieces)
    for i in range(shards):
        b.shard(b.constant(f"w{i:07}", bytes(local), dtype="u8", shape=[local]), 2, axis=0, extent=2 * segments, segments=pieces)
    return b


def many_shards(n):
    return shards_of(n, 2)


def many_segments(n):
    return shards_of(4, n)


def many_adapters(n):
    """Slots of one input, and inputs that have none."""
    b = BundleWriter()
    for k in range(n // 500 + 1):
        f = b.function(f"f{k:05}")
        for i in range(500):
            f.input(f"lora{i}", "f32", [1], optional=True)
    for i in range(n):
        b.adapter(f"slot{i:07}", f"lora{i % 500}")
    return b


def kernels_of(kernels, variants, predicates, drivers):
    """Kernels with variants for several devices, which none of these can run."""
    b = BundleWriter()
    names = [f"driver{i:03}" for i in range(drivers)]
    image = b.image("code", b"ptx\0", ImageKind.PTX)
    for k in range(kernels):
        kernel = b.kernel(f"k{k:07}", [Parameter("y", "buffer", "write"), Parameter("n", "symbol")])
        for v in range(variants):
            kernel.variant(image, entry=f"entry{v}", driver=names[v % drivers], arch=f"arch{v}", block=1,
                           predicates=[Predicate("divisible", "n", v * predicates + p + 1) for p in range(predicates)])
    return b


def many_kernels(n):
    return kernels_of(n, 2, 1, 2)


def many_variants(n):
    return kernels_of(2, n, 2, 100)


def many_predicates(n):
    return kernels_of(2, 2, n, 2)


def versions_of(functions, drivers, dispatches=0):
    """Functions with a version for each of some drivers and for any, which call each other."""
    b = BundleWriter()
    for i in range(functions):
        for d in ["", *(f"driver{k:03}" for k in range(drivers))]:
            f = b.function(f"f{i:07}", target=d)
            y = f.result("y", "u8", [4])
            f.body.fill(y.write(), i % 256)
    return b


def many_versions(n):
    return versions_of(n // 8 + 1, 7)


def prepares_of(functions, sources, products):
    """Prepare functions, each of which reads constants and makes some; and a function that uses
    them all."""
    b = BundleWriter()
    stored = [b.constant(f"w{i:07}", b"abcd", dtype="f32", shape=[1]) for i in range(sources)]
    made = []
    for i in range(functions):
        f = b.function(f"prepare{i:07}", prepare=True)
        slots = [f.source(w.name, w) for w in stored]
        for p in range(products):
            made.append(b.prepared(f"p{i:06}.{p:06}", 4))
            out = f.product(made[-1].name, made[-1])
            if slots:
                f.body.copy(slots[p % len(slots)].read(), out.write(), 4)
            else:
                f.body.fill(out.write(), 7)
    main = b.function("main")
    y = main.result("y", "u8", [4])
    for value in made:
        main.body.copy(main.constant(value).read(), y.write(), 4)
    return b


def many_prepares(n):
    return prepares_of(n, 3, 1)


def many_products(n):
    return prepares_of(max(n // 500, 1), 2, min(n, 500))


def many_sources(n):
    """As many sources as a function may have, of each of some prepare functions."""
    return prepares_of(max(n // 500, 1), min(n, 500), 1)


KINDS = {f.__name__: f for f in (
    many_metadata, many_symbols, many_buckets, many_constants, many_states, many_functions, many_arguments, many_scalars,
    many_bound_symbols, many_commands, many_predecessors, many_barriers, many_markers, many_blocks, many_expressions, many_locations,
    many_assets, many_files, calls_and_symbols, many_shards, many_segments, many_adapters, many_kernels, many_variants, many_predicates,
    many_versions, many_prepares, many_products, many_sources,
)}  # fmt: skip
#: Kinds of which there may be few, and those whose expressions the writer makes slowly.
LARGEST = {"many_scalars": 1000, "many_bound_symbols": 500, "calls_and_symbols": 1000, "many_shards": 1000, "many_sources": 1000,
           "many_products": 1000, "many_prepares": 500}
