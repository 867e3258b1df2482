"""A bundle as objects with names: what `read` returns. The checks are in container.py and
verify.py."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Union

from . import records as r
from . import trust
from .container import Container, digest_of
from .verify import Tables

_CLASSES = ("specialize", "bucket", "runtime", "session")
_KINDS = ("read", "read_write", "donated", "result", "scalar")
_ARCH_KINDS = ("portable", "family", "exact")
_IMAGE_KINDS = ("?", "host_elf", "cubin", "ptx", "fatbin", "pack")


@dataclass(frozen=True)
class Symbol:
    name: str
    symbol_class: str  #: specialize, bucket, runtime or session
    minimum: int
    maximum: int
    divisor: int
    buckets: Tuple[int, ...]


@dataclass(frozen=True)
class Component:
    role: int
    dtype: str
    offset_bytes: int  #: within DATA
    size_bytes: int


@dataclass(frozen=True)
class Constant:
    name: str
    source: int
    dtype: str
    encoding: int
    shape: Tuple[int, ...]
    components: Tuple[Component, ...]


@dataclass(frozen=True)
class State:
    name: str
    dtype: str
    dims: Tuple[str, ...]  #: expressions as text
    fill_pattern: int


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str  #: read, read_write, donated, result or scalar
    dtype: str
    dims: Tuple[str, ...]  #: expressions as text
    optional: bool
    symbol: Optional[str]
    doc: str


@dataclass(frozen=True)
class Function:
    name: str
    target: str  #: the driver it is for, or ""
    flags: int
    doc: str
    inputs: Tuple[Argument, ...]
    results: Tuple[Argument, ...]
    required_features: int
    command_count: int


@dataclass(frozen=True)
class Image:
    name: str
    kind: str
    offset_bytes: int  #: within CODE
    size_bytes: int


@dataclass(frozen=True)
class Variant:
    driver: str
    arch_kind: str
    arch: str
    priority: int
    entry: str
    image: Image


@dataclass(frozen=True)
class Kernel:
    name: str
    traits: int
    parameters: Tuple[str, ...]
    variants: Tuple[Variant, ...]


@dataclass
class Bundle:
    """What is in a file. Everything but `data` was checked.

    Attributes:
        versions: the minimum that the file needs, by what: (major, minor).
        metadata: keys and values.
        symbols, constants, states, kernels, images: by name.
        functions: in the file's order; versions of one function have the same name.
        tables: the records themselves, for callers that need a field that is not here.
    """

    container: Container
    tables: Tables
    versions: Dict[str, Tuple[int, int]]
    metadata: Dict[str, str] = field(default_factory=dict)
    symbols: Dict[str, Symbol] = field(default_factory=dict)
    constants: Dict[str, Constant] = field(default_factory=dict)
    states: Dict[str, State] = field(default_factory=dict)
    kernels: Dict[str, Kernel] = field(default_factory=dict)
    images: Dict[str, Image] = field(default_factory=dict)
    functions: List[Function] = field(default_factory=list)

    def __reduce__(self) -> Any:
        return read, (bytes(self.container.data),)

    def data(self, constant: Constant, component: int = 0) -> memoryview:
        """The bytes of a component, as they are in the file, once the chunks that hold them match
        their digests.

        Raises:
            FormatError: rule 111.
        """
        part = constant.components[component]
        first, last = part.offset_bytes // r.CHUNK_BYTES, (part.offset_bytes + part.size_bytes - 1) // r.CHUNK_BYTES
        for chunk in range(first, last + 1):
            self._check_chunk(chunk)
        content = self.container.sections.get("data", memoryview(b""))
        return content[part.offset_bytes : part.offset_bytes + part.size_bytes]

    def code(self, image: Image) -> memoryview:
        """The bytes of an image."""
        content = self.container.sections.get("code", memoryview(b""))
        return content[image.offset_bytes : image.offset_bytes + image.size_bytes]

    def _check_chunk(self, chunk: int) -> None:
        content = self.container.sections["data"][chunk * r.CHUNK_BYTES : (chunk + 1) * r.CHUNK_BYTES]
        if digest_of(content) != self.tables.chunk_digests[chunk].bytes:
            raise self.container.fail(111, f"chunk {chunk} of data does not match its digest")

    def signatures(self) -> List[trust.Signature]:
        """Who has signed what, and whether the signatures are theirs (`valid`; None where the
        package `cryptography` is not installed). They are of the roots in the file's tree: `verify`
        says whether that is the file's. Whom to trust is not asked here: this reader runs nothing.
        """
        return trust.signatures(self.container, self.tables.signatures)

    def verify(self) -> None:
        """Checks what `read` does not: the weights, the bytes between them, the digests of unknown
        sections, and the cryptographic tree. Signatures are `signatures`' to check: a file is not
        malformed by one that is not its key's. Encrypted weights are checked as they lie in the
        file: nothing is decrypted, and their tags are not checked.

        Raises:
            FormatError: rule 20, 111, 112, 142, 143 or 144.
        """
        for section in self.container.table:
            kept = self.container.kept.get(section.type)
            if kept is not None and digest_of(kept) != section.digest:
                raise self.container.fail(20, f"the digest of section {section.name!r} does not match")
        for chunk in range(len(self.tables.chunk_digests)):
            self._check_chunk(chunk)
        trust.check(self.container)
        end = 0
        content = self.container.sections.get("data", memoryview(b""))
        if "encryption" in self.container.sections:
            return  # gaps are zero under the encryption
        for constant in self.constants.values():
            for part in constant.components if constant.source == 0 else ():
                if any(content[end : part.offset_bytes]):
                    raise self.container.fail(112, f"bytes of data before {part.offset_bytes} are not 0")
                end = part.offset_bytes + part.size_bytes


_INFIX = {3: "+", 4: "-", 5: "*", 6: "//", 8: "%", 11: "==", 12: "!=", 13: "<", 14: "<=", 15: "and", 16: "or"}
_CALLS = {7: "ceildiv", 9: "min", 10: "max", 17: "not", 18: "select"}


def _expression_text(tables: Tables, first: int, node: int, texts: List[str]) -> str:
    """An expression as text. `texts` has those of the scope's first nodes, and gets more. A node
    may be used many times: what would grow past 4096 characters is cut."""
    for record in tables.expressions[first + len(texts) : first + node + 1]:
        operands = [texts[operand] for operand in (record.a, record.b, record.c) if operand != r.NONE]
        if record.op == r.EXPR_CONSTANT:
            text = str(record.immediate)
        elif record.op == r.EXPR_SYMBOL:
            text = tables.text(tables.symbols[record.immediate].name)
        elif record.op == r.EXPR_INDUCTION:
            text = f"induction({record.immediate})"
        elif record.op == r.EXPR_PRESENT:
            text = f"present({record.immediate})"
        elif record.op in _INFIX:
            text = f"({operands[0]} {_INFIX[record.op]} {operands[1]})"
        else:
            text = f"{_CALLS[record.op]}({', '.join(operands)})"
        texts.append(text if len(text) <= 4096 else "...")
    return texts[node]


def _dims(tables: Tables, first: int, kind: Any, texts: List[str]) -> Tuple[str, ...]:
    return tuple(_expression_text(tables, first, node, texts) for node in kind[4 : 4 + kind.rank])


def _function(tables: Tables, record: Any, facts: Any) -> Function:
    texts: List[str] = []

    def argument(entry: Any) -> Argument:
        kind = r.TYPE.at(entry.type, 0)
        symbol = tables.text(tables.symbols[entry.symbol].name) if entry.kind == 4 else None
        return Argument(
            tables.text(entry.name), _KINDS[entry.kind], r.DTYPE_NAMES[kind.dtype],
            _dims(tables, record.expression_first, kind, texts), bool(entry.flags & 1), symbol, tables.text(entry.doc),
        )  # fmt: skip

    arguments = [argument(entry) for entry in tables._own_arguments(record)]
    return Function(
        tables.text(record.name), tables.text(record.target), record.flags, tables.text(record.doc),
        tuple(arguments[: record.input_count]), tuple(arguments[record.input_count :]), record.required_features, facts.commands,
    )  # fmt: skip


def _constant(tables: Tables, record: Any) -> Constant:
    parts = tables.components[record.component_first : record.component_first + record.component_count]
    components = tuple(Component(p.role, r.DTYPE_NAMES[p.dtype], p.offset_bytes, p.size_bytes) for p in parts)
    return Constant(
        tables.text(record.name), record.source, r.DTYPE_NAMES[record.dtype], record.encoding, tables.shape(record), components
    )


def _kernel(tables: Tables, record: Any, images: List[Image]) -> Kernel:
    parameters = tables.parameters[record.parameter_first : record.parameter_first + record.parameter_count]
    variants = tables.variants[record.variant_first : record.variant_first + record.variant_count]
    return Kernel(
        tables.text(record.name), record.traits, tuple(tables.text(p.name) for p in parameters),
        tuple(Variant(tables.text(v.driver), _ARCH_KINDS[v.arch_kind], tables.text(v.arch), v.priority, tables.text(v.entry),
                      images[v.image]) for v in variants),
    )  # fmt: skip


def _fill(bundle: Bundle) -> Bundle:
    tables, text = bundle.tables, bundle.tables.text
    bundle.metadata = {text(entry.key): text(entry.value) for entry in tables.metadata}
    for entry in tables.symbols:
        buckets = tables.buckets[entry.bucket_first : entry.bucket_first + entry.bucket_count]
        bundle.symbols[text(entry.name)] = Symbol(
            text(entry.name), _CLASSES[entry.symbol_class], entry.minimum, entry.maximum, entry.divisor,
            tuple(bucket.bound for bucket in buckets),
        )  # fmt: skip
    bundle.constants = {text(entry.name): _constant(tables, entry) for entry in tables.constants}
    texts: List[str] = []
    for entry in tables.states:
        kind = r.TYPE.at(entry.type, 0)
        bundle.states[text(entry.name)] = State(
            text(entry.name), r.DTYPE_NAMES[kind.dtype], _dims(tables, 0, kind, texts), entry.fill_pattern
        )
    images = [Image(text(i.name), _IMAGE_KINDS[i.kind], i.offset_bytes, i.size_bytes) for i in tables.images]
    bundle.images = {image.name: image for image in images}
    bundle.kernels = {text(entry.name): _kernel(tables, entry, images) for entry in tables.kernels}
    bundle.functions = [_function(tables, entry, facts) for entry, facts in zip(tables.functions, tables.facts)]
    return bundle


def _regular(path: Any, flags: int) -> int:
    """Waits for no FIFO, and takes no device."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a regular file", os.fspath(path))


def _read(path: Any) -> bytes:
    """All of it, not a mapping: a mapped file that is truncated while it is checked ends the
    process."""
    with open(path, "rb", opener=_regular) as file:
        return file.read()


def read(source: Union[str, "os.PathLike[str]", bytes, bytearray, memoryview]) -> Bundle:
    """Reads and checks a bundle.

    Args:
        source: a path, or the file's bytes.

    Returns:
        what is in it. The bytes of weights are checked when `Bundle.data` or `Bundle.verify` is
        called.

    Raises:
        FormatError: the first rule of the format that the file does not keep.
        OSError: the file cannot be read.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content: Any = source
    else:
        content = _read(source)
    container = Container(content)
    tables = Tables(container)
    header = container.header
    versions = {what: (getattr(header, what + "_major"), getattr(header, what + "_minor")) for what in r.VERSIONS}
    return _fill(Bundle(container, tables, versions))


__all__ = ["Argument", "Bundle", "Component", "Constant", "Function", "Image", "Kernel", "State", "Symbol",
           "Variant", "read"]  # fmt: skip
