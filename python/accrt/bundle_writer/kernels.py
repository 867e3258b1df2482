"""Kernels: declared parameters, and the variants that implement them in images of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

from .common import (
    ARCH_KINDS, CPU_FEATURES, MAX_BLOCK_THREADS, MAX_CLUSTER_BLOCKS, MAX_LOCAL_MEMORY_BYTES, MAX_PARAMETER_BYTES, MAX_PARAMETERS, MAX_SHARED_BYTES,
    PARAMETER_KINDS, ACCESSES, PREDICATES, TENSOR_PARAMETER_BYTES, TRAIT_COOPERATIVE, TRAIT_OVERLAPS_PREVIOUS, BundleError,
    ImageKind, align_up, whole,
)  # fmt: skip

@dataclass(frozen=True)
class Parameter:
    """One declared parameter of a kernel.

    `kind`: buffer, tensor, scalar, symbol or workspace; `access`: none, read, write, read_write (of
    buffers, tensors and workspaces; a workspace is read_write). `size_bytes`: of a scalar (1, 2, 4,
    8). `offset_bytes` None: where a C compiler would place the next member of the parameter struct.
    """

    name: str
    kind: str
    access: str = "none"
    size_bytes: int = 0
    offset_bytes: Optional[int] = None
    optional: bool = False


@dataclass(frozen=True)
class Predicate:
    """A condition of a variant on an argument: divisible, aligned, equal, at_most or at_least
    `value`."""

    kind: str
    parameter: str
    value: int


@dataclass(eq=False)
class Image:
    name: str
    data: Any
    kind: ImageKind

    @property
    def is_device_code(self) -> bool:
        return self.kind not in (ImageKind.HOST_ELF, ImageKind.PACK)


@dataclass(eq=False)
class Launch:
    traits: int
    block: Tuple[int, int, int]
    cluster: Tuple[int, int, int]
    dynamic_shared_bytes: int


@dataclass(eq=False)
class Variant:
    image: Image
    entry: str
    driver: str
    arch_kind: int
    arch: str
    priority: int
    cpu_features: int
    predicates: Tuple[Predicate, ...]
    launch: Optional[Launch]
    required_features: int


def three(value: Union[int, Sequence[int], None], limit: int, where: str) -> Tuple[int, int, int]:
    """A size in up to three dimensions, the others 1; None is (0, 0, 0)."""
    if value is None:
        return (0, 0, 0)
    sizes = [value] if isinstance(value, int) else [int(size) for size in value]
    volume = 1
    for size in sizes:
        volume *= size
    if not 1 <= len(sizes) <= 3 or min(sizes, default=0) < 1 or volume > limit:
        raise BundleError(f"{where} {value!r}: one to three sizes of at least 1, together at most {limit}")
    return tuple(sizes + [1] * (3 - len(sizes)))  # type: ignore[return-value]


def features(bits: int, where: str) -> int:
    return whole(bits, 0, (1 << 64) - 1, f"{where}: required_features")


class Kernel:
    """A kernel: its declared parameters and the variants that implement it."""

    def __init__(self, name: str, parameters: Sequence[Parameter], traits: int, local_memory_bytes: int):
        self.name = name
        self.traits = whole(traits, 0, 31, f"kernel {name!r}: traits (TRAIT_*, without those of launches)")
        self.local_memory_bytes = whole(local_memory_bytes, 0, MAX_LOCAL_MEMORY_BYTES, f"kernel {name!r}: local_memory_bytes")
        self.parameters = self._place(parameters)
        self.variants: List[Variant] = []
        end = max((p.offset_bytes + p.size_bytes for p in self.parameters), default=0)
        self.params_size_bytes = align_up(end, 8)
        if len(self.parameters) > MAX_PARAMETERS or self.params_size_bytes > MAX_PARAMETER_BYTES:
            raise BundleError(
                f"kernel {name!r}: {len(self.parameters)} parameters in {self.params_size_bytes} bytes; "
                f"at most {MAX_PARAMETERS} in {MAX_PARAMETER_BYTES} are allowed"
            )

    def _place(self, parameters: Sequence[Parameter]) -> Tuple[Parameter, ...]:
        placed: List[Parameter] = []
        end = 0
        for given in parameters:
            where = f"kernel {self.name!r}, parameter {given.name!r}"
            if given.kind not in PARAMETER_KINDS or given.access not in ACCESSES:
                raise BundleError(f"{where}: kind {given.kind!r} with access {given.access!r}")
            if not given.name or any(p.name == given.name for p in placed):
                raise BundleError(f"{where}: the name is empty or used twice")
            access = "read_write" if given.kind == "workspace" else given.access
            if (given.kind in ("scalar", "symbol")) != (access == "none"):
                raise BundleError(f"{where}: a {given.kind} with access {access!r}")
            if given.optional and given.kind != "buffer":
                raise BundleError(f"{where}: only a buffer may be optional, this is a {given.kind}")
            size = self._size(given, where)
            offset = align_up(end, min(size, 8)) if given.offset_bytes is None else given.offset_bytes
            if offset < end or offset % min(size, 8):
                raise BundleError(f"{where}: offset {offset} overlaps the parameter before it or is not aligned")
            placed.append(Parameter(given.name, given.kind, access, size, offset, given.optional))
            end = offset + size
        return tuple(placed)

    @staticmethod
    def _size(parameter: Parameter, where: str) -> int:
        if parameter.kind == "tensor":
            return TENSOR_PARAMETER_BYTES
        if parameter.kind != "scalar":
            return 8
        if parameter.size_bytes not in (1, 2, 4, 8):
            raise BundleError(f"{where}: a scalar of {parameter.size_bytes} bytes; 1, 2, 4 and 8 are allowed")
        return parameter.size_bytes

    def variant(
        self,
        image: Image,
        *,
        entry: str = "",
        driver: str = "host",
        arch: str = "",
        arch_kind: str = "family",
        priority: int = 0,
        cpu_features: Union[int, Iterable[str]] = 0,
        predicates: Iterable[Predicate] = (),
        block: Union[int, Sequence[int], None] = None,
        cluster: Union[int, Sequence[int], None] = None,
        dynamic_shared_bytes: int = 0,
        launch_traits: int = 0,
        required_features: int = 0,
    ) -> "Kernel":
        """Adds an implementation: `entry` (the kernel's name by default) in `image`, for devices of
        `driver` and `arch` (`arch_kind`: portable, family or exact), where all predicates hold.
        Among equals the earlier is preferred. For CUDA, `sm_90` as family runs on all devices of
        that major from that minor up, exact on that one (`sm_90a` is always exact); portable PTX
        may name the least architecture ("sm_80").

        Device code (CUBIN, PTX, FATBIN) needs `block`, the threads of a workgroup, and may have a
        `cluster` of workgroups, dynamic shared memory, and `launch_traits`: TRAIT_COOPERATIVE (all
        workgroups run at once), TRAIT_OVERLAPS_PREVIOUS (the kernel may start before the previous
        one has ended, and itself waits for it). Nothing else has them.

        `required_features`: bits of the format at variant scope; a reader that does not know one
        never chooses the variant."""
        where = f"kernel {self.name!r}, variant for {driver} {arch!r}"
        if arch_kind not in ARCH_KINDS:
            raise BundleError(f"{where}: no architecture kind {arch_kind!r}")
        if arch_kind != "portable" and not arch:
            raise BundleError(f"{where}: only a portable variant may name no architecture")
        if driver == "host" and image.kind not in (ImageKind.HOST_ELF, ImageKind.PACK):
            raise BundleError(f"{where}: image {image.name!r} is of kind {image.kind.name}; the host runs HOST_ELF and PACK")
        launch = self._launch(image, block, cluster, dynamic_shared_bytes, launch_traits, where)
        names = [p.name for p in self.parameters]
        for predicate in predicates:
            self._check_predicate(predicate, names, where)
        ordered = tuple(sorted(set(predicates), key=lambda p: (PREDICATES[p.kind], names.index(p.parameter), p.value)))
        if not isinstance(cpu_features, int):
            unknown = [f for f in cpu_features if f not in CPU_FEATURES]
            if unknown:
                raise BundleError(f"{where}: no CPU feature {unknown[0]!r}; there are {', '.join(CPU_FEATURES)}")
            cpu_features = sum(CPU_FEATURES[f] for f in set(cpu_features))
        cpu_features = whole(cpu_features, 0, (1 << 64) - 1, f"{where}: cpu_features")
        priority = whole(priority, -(1 << 31), (1 << 31) - 1, f"{where}: priority")
        self.variants.append(
            Variant(
                image, entry or self.name, driver, ARCH_KINDS[arch_kind], arch, priority, cpu_features, ordered, launch,
                features(required_features, where),
            )  # fmt: skip
        )
        return self

    @staticmethod
    def _launch(image: Image, block: Any, cluster: Any, shared: int, traits: int, where: str) -> Optional[Launch]:
        if not image.is_device_code:
            if block is not None or cluster is not None or shared or traits:
                raise BundleError(f"{where}: image {image.name!r} is of kind {image.kind.name}, which is not launched in blocks")
            return None
        if block is None:
            raise BundleError(f"{where}: device code needs block=, the threads of a workgroup")
        if not 0 <= shared <= MAX_SHARED_BYTES:
            raise BundleError(f"{where}: {shared} bytes of dynamic shared memory; at most {MAX_SHARED_BYTES}")
        if traits & ~(TRAIT_COOPERATIVE | TRAIT_OVERLAPS_PREVIOUS):
            raise BundleError(f"{where}: launch traits {traits:#x}; TRAIT_COOPERATIVE and TRAIT_OVERLAPS_PREVIOUS are allowed")
        sizes = three(block, MAX_BLOCK_THREADS, f"{where}: block"), three(cluster, MAX_CLUSTER_BLOCKS, f"{where}: cluster")
        return Launch(traits, *sizes, shared)

    def _check_predicate(self, predicate: Predicate, names: List[str], where: str) -> None:
        if predicate.kind not in PREDICATES or predicate.parameter not in names:
            raise BundleError(f"{where}: no predicate {predicate.kind!r} on a parameter {predicate.parameter!r}")
        kind = self.parameters[names.index(predicate.parameter)].kind
        wanted = ("buffer", "tensor") if predicate.kind == "aligned" else ("symbol", "scalar")
        if kind not in wanted:
            raise BundleError(f"{where}: {predicate.kind} is not for {predicate.parameter!r}, a {kind}")
        if predicate.kind in ("divisible", "aligned") and predicate.value < 1:
            raise BundleError(f"{where}: {predicate.kind} by {predicate.value} on {predicate.parameter!r}")
