"""Random bundles through accrt.bundle_writer, valid ones: every construct of the format turns up.
tests/golden/random.sha256 has what seeds 0 to 119 give: a change here is a change there."""

from __future__ import annotations

import random
import subprocess
import tempfile
from dataclasses import replace

from accrt import bundle_writer as bw
from accrt.bundle_writer import layouts

CLASSES = list(bw.SymbolClass)
PLAIN = list(bw.DTYPES)
ENCODINGS = [e for e in bw.Encoding if e > bw.Encoding.OPAQUE]
TRAITS = 32  #: all combinations of a kernel's own
#: What names and texts may hold, and YAML, messages and terminals have a meaning for.
ODD = ["'", '"', "\n", "\r\n", "\t", "\x01", "\x7f", "\x1b[31m", "\\", "\\n", "`", "$e0", "\x85", "\u2028", "\ufeff", "\ufffe", "\U0001f600", "e\u0301", "\ud7ff",
       "\ue000", "\U0010ffff", " ", "  ", ": ", " #", "- ", "? ", "{", "}", "[", ",", "&a", "*a", "!!str ", "|", ">", "%", "@", "true", "null", "0x10",
       "-1", "1e3", ".nan", "~", "<<", "=", "---", "...", "a" * 130, "中" * 300]  # fmt: skip
_elf = []


def elf() -> bytes:
    """A shared object without anything in it."""
    if not _elf:
        with tempfile.TemporaryDirectory() as folder:
            flags = ["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", f"{folder}/empty.so"]
            subprocess.run(["gcc", *flags], check=True)
            with open(f"{folder}/empty.so", "rb") as file:
                _elf.append(file.read())
    return _elf[0]


def not_negative(size):
    """Numbers are not; expressions are what they are when they run."""
    return 0 if isinstance(size, int) and size < 0 else size


class Maker:
    def __init__(self, rng: random.Random, newest: bool = True, odd: float = 0):
        self.r, self.b, self.newest, self.odd = rng, bw.BundleWriter(), newest, odd
        self.number = 0

    def name(self, stem: str, odd: bool = True) -> str:
        """In no order, and not all ASCII."""
        self.number += 1
        if odd and self.odd and self.r.random() < self.odd:
            return self.text() + str(self.number)
        return f"{self.r.choice('zqaZ_éß中')}{stem}{self.number}"

    def text(self, *usual: str) -> str:
        """One of the usual ones, or an odd one."""
        if usual and not (self.odd and self.r.random() < self.odd):
            return self.r.choice(usual)
        if not self.odd:
            return ""
        text = "".join(self.r.choice(ODD) for _ in range(self.r.randint(0, 4)))
        return text.encode()[:900].decode(errors="ignore")

    def some(self, low: int, high: int) -> range:
        return range(self.r.randint(low, high))

    def make(self) -> bw.BundleWriter:
        b, r = self.b, self.r
        for _ in self.some(0, 3):
            b.metadata(self.name("key"), self.text("", "value", "zwölf"))
        self.symbols = {kind: [self.symbol(kind) for _ in range(r.randint(1, 2))] for kind in CLASSES}
        self.constants = [self.constant() for _ in self.some(1, 6)]
        self.states = [self.state() for _ in self.some(0, 3)]
        if self.newest:
            self.extras()
        self.images()
        self.kernels = [self.kernel() for _ in self.some(1, 4)]
        self.prepare()
        self.functions = []
        for _ in self.some(1, 5):
            self.function()
        return b

    # -- data

    def symbol(self, kind):
        low = self.r.choice([0, 1, 4])
        buckets = [4, 16, 64][self.r.randrange(3) :] if kind == bw.SymbolClass.BUCKET else ()
        high = self.r.choice([60, 64]) if buckets else self.r.choice([64, 1 << 20, 1 << 48])
        if not buckets and self.r.random() < 0.1:
            low = high = 0
        return self.b.symbol(self.name("s"), kind, minimum=low, maximum=high, divisor=self.r.choice([1, 2]), buckets=buckets)

    def constant(self):
        r = self.r
        shape = [r.choice([0, 1, 3, 8, 300]) for _ in self.some(0, 3)] + [1] * r.choice([0, 0, 5])
        if r.random() < 0.35:
            return self.quantized()
        if r.random() < 0.2:
            size = r.choice([0, 1, 100, 5000])
            return self.b.constant(self.name("opaque"), r.randbytes(size), dtype="u8", shape=(size,), encoding=bw.Encoding.OPAQUE)
        dtype, elements = r.choice(PLAIN), 1
        for size in shape:
            elements *= size
        return self.b.constant(self.name("w"), r.randbytes(bw.dtype_size_bytes(dtype, elements)), dtype=dtype, shape=shape)

    def quantized(self):
        r = self.r
        encoding = r.choice(ENCODINGS if self.newest else [bw.Encoding.Q8_0, bw.Encoding.Q4_K])
        layout = layouts.of(encoding)
        shape, group = self.matrix(layout)
        parts = {}
        for role, dtypes in layout.components.items():
            if role in layout.optional and r.random() < 0.5:
                continue
            dtype = r.choice(dtypes)
            parts[role] = (r.randbytes(layouts.size_bytes(encoding, role, dtype, shape, group)), dtype)
        return self.b.constant(self.name("q"), parts, dtype=r.choice(["f32", "bf16", "f16"]), shape=shape, encoding=encoding, group_elements=group)

    def matrix(self, layout):
        """A shape that a layout takes, and a group size."""
        r = self.r
        more = (r.choice([1, 2]),) if layout.rows == 1 and r.random() < 0.3 else ()
        return (*more, r.choice([8, 16]), r.choice([256, 512])), r.choice([32, 128]) if layout.free_group else 0

    def state(self):
        session, dtype = self.symbols[bw.SymbolClass.SESSION][0], self.r.choice(["f32", *PLAIN])
        pattern = self.r.choice([0, 0x3F800000, 0x80000000, 1, 0x7FA00001, 0xFFFFFFFF, (1 << 64) - 1])
        return self.b.state(self.name("cache"), dtype, [self.r.choice([session, session * 2 + 1, 5]) for _ in self.some(0, 3)],
                            fill_pattern=pattern & ((1 << bw.DTYPES[dtype][1]) - 1))  # fmt: skip

    def extras(self):
        b, r = self.b, self.r
        files = [b.file(self.name("f", odd=False), r.choice(list(bw.FileKind)), size_bytes=r.choice([0, 77]),
                        digest=r.choice([None, r.randbytes(16)])) for _ in self.some(0, 2)]  # fmt: skip
        outside = [self.external(files) for _ in self.some(0, 3)]
        if r.random() < 0.5:
            degree = r.choice([1, 2, 4])
            for value in outside + r.sample(self.constants, r.randint(0, 1)):
                self.shard(value, degree)
        for _ in self.some(0, 3):
            b.asset(self.name("asset"), r.randbytes(r.choice([0, 1, 9])), media_type=self.text("", "text/plain"))
        if r.random() < 0.3:
            b.section(0x10000 + r.randrange(5), "acme.tuning", r.randbytes(24), record_bytes=8, record_count=3)
        if r.random() < 0.3:
            b.section(r.choice([34, 50, 61]), "later", r.randbytes(5))
        if r.random() < 0.3:
            b.string(self.name("loose"))
        b.optional_features(r.choice([0, 1 << 40, r.getrandbits(64)]))
        self.places = [b.location(self.name("m.py"), r.randrange(9), r.randrange(3), self.text("", "op")) for _ in self.some(1, 5)]

    def external(self, files):
        b, r = self.b, self.r
        fields = dict(file=r.choice(files + [None]), tensor=r.choice(["", "t"]), digest=r.choice([None, r.randbytes(16)]))
        if r.random() < 0.4:
            encoding = r.choice(ENCODINGS)
            layout = layouts.of(encoding)
            shape, group = self.matrix(layout)
            parts = {role: r.choice(dtypes) for role, dtypes in layout.components.items()
                     if role not in layout.optional or r.random() < 0.5}  # fmt: skip
            dtype = r.choice(["f32", "bf16"])
            return b.external(self.name("x"), dtype, shape, encoding=encoding, group_elements=group, components=parts, **fields)
        if r.random() < 0.2:
            return b.external(self.name("x"), "u8", (9,), encoding=bw.Encoding.OPAQUE, size_bytes=9, **fields)
        return b.external(self.name("x"), r.choice(PLAIN), (4, 6), **fields)

    def shard(self, value, degree):
        """All of it, or parts of an axis in one segment or two, some ranks sharing a part."""
        r, axes = self.r, [axis for axis, size in enumerate(value.shape) if size]
        axis = r.choice([*axes, None])
        if axis is None or value.encoding == bw.Encoding.OPAQUE:
            return self.b.shard(value, degree)
        unit, local, segments, end = layouts.unit_along(value.encoding, value.dtype, value.group_elements, len(value.shape), axis), value.shape[axis], [], 0
        if local % unit:
            return self.b.shard(value, degree)
        first = r.randrange(local // unit) * unit
        for part in [first, local - first] if first else [local]:
            replicas = r.choice([n for n in (1, 2, 4) if degree % n == 0])
            segments.append(bw.Segment(end, end + part * (degree // replicas), replicas))
            end = segments[-1].end
        return self.b.shard(value, degree, axis=axis, extent=end, segments=segments)

    # -- code

    def images(self):
        b, r, kind = self.b, self.r, bw.ImageKind
        self.host = [b.image(self.name("host"), elf()) for _ in range(r.randint(1, 2))]
        self.device = [b.image(self.name("code"), b"ptx\0", kind.PTX), b.image(self.name("code"), r.randbytes(5000), kind.CUBIN),
                       b.image(self.name("code"), r.randbytes(r.choice([1, 5000])), kind.FATBIN)]  # fmt: skip
        self.packs = [b.pack(f"acme.pack{i}") for i in self.some(0, 2)]

    def kernel(self):
        r, P = self.r, bw.Parameter
        kinds = [P("x", "buffer", "read"), P("y", "buffer", "write"), P("both", "buffer", "read_write"), P("maybe", "buffer", "read", optional=True),
                 P("t", "tensor", "read"), P("work", "workspace"), P("n", "symbol"), P("m", "symbol"),
                 P("a", "scalar", size_bytes=r.choice([1, 2, 4, 8])), P("flag", "scalar", size_bytes=1)]  # fmt: skip
        parameters = r.sample(kinds, r.randint(0, len(kinds)))
        if parameters and r.random() < 0.2:
            parameters[-1] = replace(parameters[-1], offset_bytes=2048)
        kernel = self.b.kernel(self.name("k"), parameters, traits=r.randrange(TRAITS), local_memory_bytes=r.choice([0, 64]))
        for i in self.some(1, 4):
            self.variant(kernel, first=i == 0)
        return kernel

    def variant(self, kernel, first):
        r, predicates = self.r, []
        for p in kernel.parameters:
            if p.kind in ("symbol", "scalar") and r.random() < 0.5:
                predicates.append(bw.Predicate(r.choice(["divisible", "equal", "at_most", "at_least"]), p.name, r.randint(1, 64)))
            if p.kind in ("buffer", "tensor") and r.random() < 0.3:
                predicates.append(bw.Predicate("aligned", p.name, 1 << r.randrange(9)))
        common = dict(predicates=predicates, priority=r.randint(-2, 2), entry=self.text("", "entry"))
        if self.newest and not first and r.random() < 0.2:
            common["required_features"] = r.choice([1 << 40, r.getrandbits(64)])
        choice = 0 if first else r.randrange(3)
        if choice == 0:
            arch = r.choice([dict(arch_kind="portable"), dict(arch="x86-64-v3", cpu_features=r.sample(sorted(bw.CPU_FEATURES), r.randrange(4))),
                             dict(arch="aarch64", arch_kind="exact", cpu_features=1 << 63)])  # fmt: skip
            kernel.variant(r.choice(self.host), **arch, **common)
        elif choice == 1:
            arch = r.choice([dict(arch_kind="portable", arch="sm_80"), dict(arch="sm_90"), dict(arch="sm_90a", arch_kind="exact")])
            kernel.variant(r.choice(self.device), driver="cuda", block=r.choice([1, (32, 4)]), cluster=r.choice([None, (2,), (2, 2, 1)]),
                           dynamic_shared_bytes=r.choice([0, 1024]), launch_traits=r.choice([0, bw.TRAIT_COOPERATIVE, bw.TRAIT_OVERLAPS_PREVIOUS]), **arch, **common)  # fmt: skip
        elif self.packs:
            kernel.variant(r.choice(self.packs), arch_kind="portable", driver=r.choice(["cuda", "host"]), **common)

    # -- functions

    def prepare(self):
        stored = [c for c in self.constants if not c.prepared and c.encoding <= bw.Encoding.OPAQUE]
        self.made = []
        for _ in self.some(0, 2):
            name, products = self.name("prepare"), [self.product() for _ in range(self.r.randint(1, 2))]
            sources = self.r.sample(stored, min(len(stored), self.r.randint(0, 2)))
            for target in self.r.choice([("",), ("", "cuda")]):
                f = self.b.function(name, prepare=True, target=target)
                slots = [f.source(c.name, c) for c in sources]
                for product in products:
                    out = f.product(product.name, product)
                    f.body.fill(out.write(), 7, 1)
                if slots and self.r.random() < 0.5:
                    f.body.copy(slots[0].read(), f.transient(64).write(), 4)
            self.made += products

    def product(self):
        made = [lambda: self.b.prepared(self.name("p"), 32), lambda: self.b.prepared(self.name("p"), 48, dtype="f16", shape=(4, 6), encoding=bw.Encoding.PLAIN)]
        if self.newest:
            made.append(lambda: self.b.prepared(self.name("p"), 0, dtype="f32", shape=(2, 64), encoding=bw.Encoding.Q8_0))
        return self.r.choice(made)()

    def expression(self, f, depth=0, decided=False):
        """Of what may be used at a repeat depth; `decided`: when the plan is made."""
        r, op = self.r, bw
        leaves = [lambda: r.randint(0, 9), lambda: self.bound[0], lambda: self.symbols[bw.SymbolClass.SESSION][0]]
        if not decided:
            leaves += [lambda: self.bound[1], lambda: self.bound[2]]
        if self.optional is not None:
            leaves.append(lambda: f.present(self.optional))
        if depth:
            leaves.append(lambda: bw.induction(r.randrange(depth)))

        def make(levels):
            if levels == 0 or r.random() < 0.3:
                return r.choice(leaves)()
            binary = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, op.ceildiv, op.minimum, op.maximum, op.equal, op.not_equal,
                      op.less, op.less_equal, op.logical_and, op.logical_or, lambda a, b: op.constant(a) // b, lambda a, b: op.constant(a) % b]  # fmt: skip
            pick = r.randrange(len(binary) + 2)
            if pick == len(binary):
                return op.logical_not(make(levels - 1))
            if pick == len(binary) + 1:
                return op.select(make(levels - 1), make(levels - 1), make(levels - 1))
            return binary[pick](make(levels - 1), make(levels - 1))

        return make(3)

    def function(self):
        r, b = self.r, self.b
        name, internal = self.name("f"), r.random() < 0.3
        targets = r.choice([("",), ("",), ("", "cuda"), ("cuda",)])
        self.bound = [self.symbols[kind][0] for kind in (bw.SymbolClass.SPECIALIZE, bw.SymbolClass.BUCKET, bw.SymbolClass.RUNTIME)]
        features = r.choice([0, 1 << 40, 1 << 63 | 2]) if self.newest and r.random() < 0.2 else 0
        other, scalar_optional = r.choice(PLAIN), r.random() < 0.2
        dims = [r.choice([self.bound[0], 7, self.bound[0] * 2 - 1]) for _ in self.some(0, 3)]
        shapes = [r.random() < 0.5, r.random() < 0.5, r.choice([None, bw.AliasKind.MAY, bw.AliasKind.MUST]), r.random() < 0.4]
        for target in targets:
            f = b.function(name, internal=internal, doc=self.text("", f"doc {target}"), target=target, required_features=features)
            self.slots = [f.input("x", "f32", [self.bound[0], self.bound[1]], doc=self.text("", "the input")),
                          f.input("u", "i64", [3], access="read_write"), f.input("other", other, dims)]  # fmt: skip
            f.scalar("count", self.bound[2], optional=scalar_optional and not internal)
            f.scalar("again", self.bound[2], doc=self.text("", "as before")) if scalar_optional else None
            self.optional = f.input("maybe", "f32", [self.bound[0] * 2], optional=True) if shapes[0] else None
            if shapes[1]:
                self.slots.append(f.input("d", "f16", [], access="donated"))
            y = f.result("y", "f32", [self.bound[0]], doc=self.text("", "the result"))
            if shapes[2] is not None:
                f.result("updated", "i64", [3], alias=self.slots[1], alias_kind=shapes[2])
            if shapes[3] and self.newest and target == targets[0] and self.optional is not None:
                b.adapter(self.name("lora"), "maybe", scaled=r.random() < 0.5)
            if r.random() < 0.6:
                f.transient(not_negative(self.expression(f)) if r.random() < 0.8 else None, align=r.choice([1, 256, 4096]))
            self.writable = [s for s in self.slots[1:] if s.name != "other"] + [y]
            self.block(f, f.body, 0, 0)
        self.functions.append((name, targets))

    def readable(self, f):
        r = self.r
        made = [lambda: r.choice(self.slots), lambda: r.choice(self.writable), lambda: f.transient()]
        usable = [c for c in self.constants if c.encoding <= bw.Encoding.OPAQUE] + self.made
        made += [lambda: f.constant(r.choice(usable))] if usable else []
        quantized = [c for c in self.constants if c.encoding > bw.Encoding.OPAQUE]
        made += [lambda: f.constant(c := r.choice(quantized), r.randrange(len(c.components)))] if quantized else []
        made += [lambda: f.state(r.choice(self.states))] if self.states else []
        return r.choice(made)()

    def target_slot(self, f):
        choices = [lambda: self.r.choice(self.writable), lambda: f.transient()]
        choices += [lambda: f.state(self.r.choice(self.states))] if self.states else []
        return self.r.choice(choices)()

    def span(self, f, access, depth, sized=True):
        slot = self.readable(f) if access == "read" else self.target_slot(f)
        call = {"read": slot.read, "write": slot.write, "read_write": slot.update}[access]
        offset = self.expression(f, depth)
        size = self.r.choice([None, 16, self.expression(f, depth)]) if sized else None
        return call(not_negative(offset), not_negative(size))

    def block(self, f, block, depth, nesting):
        made = []
        for _ in self.some(0 if nesting else 1, 5):
            after = self.r.sample(made, min(len(made), self.r.randint(0, 3)))
            command = self.command(f, block, depth, nesting, after)
            if command is None:
                continue
            if self.newest and self.r.random() < 0.3:
                command.at(self.r.choice(self.places))
            made.append(command)

    def command(self, f, block, depth, nesting, after):
        r = self.r
        name = self.text("", "named", self.name("c"))
        positive = lambda: r.choice([1, 4, bw.maximum(self.expression(f, depth), 0)])  # noqa: E731
        kind = r.randrange(9 if nesting < 3 else 6)
        if kind == 0:
            return self.dispatch(f, block, depth, after, name, positive)
        if kind == 1:
            rows = [positive() for _ in range(r.randint(1, 3))]
            strides = [[positive() for _ in range(2)] for _ in range(2)]
            return block.copy(self.span(f, "read", depth, False), self.span(f, "write", depth, False), rows, *strides, after=after, name=name)
        if kind == 2:
            return block.fill(self.span(f, "write", depth), r.randrange(256), r.choice([1, 2, 4, 8]), after=after, name=name)
        if kind == 3:
            return block.barrier(name=name)
        if kind == 4:
            return block.marker(self.text("", "here", self.name("mark")), after=after)
        if kind == 5:
            return self.call(f, block, depth, after, name) or (self.raw(f, block, after, name) if self.newest else None)
        if kind == 6:
            count = bw.maximum(self.expression(f, depth, decided=True), 0)
            repeat = block.repeat(count, after=after, name=name)
            self.block(f, repeat.body, depth + 1, nesting + 1)
            return repeat
        branch = block.branch(self.expression(f, depth, decided=True), after=after, name=name)
        self.block(f, branch.then, depth, nesting + 1)
        if r.random() < 0.5:
            self.block(f, branch.otherwise, depth, nesting + 1)
        return branch

    def raw(self, f, block, after, name):
        """What nobody knows: required only where the function says so."""
        required = f.required_features >> 1 != 0 and self.r.random() < 0.5
        return block.raw(0x8000 + self.r.randrange(3), self.r.randbytes(self.r.choice([0, 16])), after=after, name=name, required=required)

    def dispatch(self, f, block, depth, after, name, positive):
        r, kernel, arguments = self.r, self.r.choice(self.kernels), {}
        for p in kernel.parameters:
            if p.optional and r.random() < 0.5:
                continue
            if p.kind == "buffer":
                arguments[p.name] = self.span(f, p.access, depth)
            elif p.kind == "workspace":
                arguments[p.name] = f.transient().update(0, positive())
            elif p.kind == "tensor":
                shape = [positive() for _ in range(r.randint(0, 3))]
                strides = None if r.random() < 0.5 else [self.expression(f, depth) for _ in shape]
                arguments[p.name] = self.span(f, "read", depth).tensor(r.choice(PLAIN), shape, strides)
            elif p.kind == "symbol":
                arguments[p.name] = self.expression(f, depth)
            else:
                odd = [0x80000000, 0x7FA00001, 1, 0xFFC12345] if p.size_bytes >= 4 else []
                odd += [1 << 63, 0x7FF0000000000001, 0xFFF8000000012345] if p.size_bytes == 8 else []
                arguments[p.name] = r.choice([r.randrange(128), *odd])
        return block.dispatch(kernel, arguments, tuple(positive() for _ in range(3)), after=after, name=name)

    def call(self, f, block, depth, after, name):
        """A call of an earlier function of this bundle."""
        callable_ = [self.b._functions[n, t] for n, targets in self.functions for t in targets if t in ("", f.target)]
        if not callable_:
            return None
        callee, arguments = self.r.choice(callable_), {}
        for a in callee.arguments:
            if a.optional and self.r.random() < 0.5:
                continue
            if a.kind == 4:
                arguments[a.name] = self.expression(f, depth)
            else:
                access = {0: "read", 3: "write"}.get(a.kind, "read_write")
                arguments[a.name] = self.span(f, access, depth)
        return block.call(callee, arguments, after=after, name=name)


def random_bundle(rng: random.Random, newest: bool = True, odd: float = 0) -> bw.BundleWriter:
    """`newest`: with what came with container 0.3 too. `odd`: how many of the names and texts are
    odd ones."""
    return Maker(rng, newest, odd).make()


class RandomSigner(bw.Signer):
    """Signs with whatever comes: for the bytes of signatures, not for their worth."""

    def __init__(self, rng: random.Random):
        self.r, self.public_key = rng, rng.randbytes(32)

    def sign(self, message: bytes) -> bytes:
        return self.r.randbytes(64)
