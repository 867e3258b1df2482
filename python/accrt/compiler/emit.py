"""Emission: bufferized and planned functions become a bundle, through the public writer alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from .. import bundle_writer as bw
from . import expr as ex
from . import progress
from .bufferize import Access, Buffers, Command, Storage
from .cuda import nvcc
from .encodings import APART, LAYOUTS, Quantized
from .declared import Constant
from .ir import Module
from .verifier import late_symbols
from .kernels import image as images
from .kernels.kerneldef import TRAIT_COOPERATIVE, TRAIT_OVERLAPS_PREVIOUS, KernelDef, Launch
from .plan import ALIGN, Plan

#: Traits of a launch and not of what is calculated: they stand with the variant.
LAUNCH_TRAITS = TRAIT_COOPERATIVE | TRAIT_OVERLAPS_PREVIOUS
OPERATOR_PRIORITY = 2
#: Architectures whose code has no instruction to wait for the kernel ahead.
NO_OVERLAP = ("sm_80", "compute_80")


@dataclass
class Version:
    """The module as one family of targets runs it: after its passes, its functions planned, callees
    before callers."""

    family: str
    targets: Sequence[str]
    module: Module
    planned: Sequence[Tuple[Buffers, Plan]]


def used_kernels(planned: Sequence[Tuple[Buffers, Plan]]) -> List[KernelDef]:
    """The kernels of all launches, by name."""
    used: Dict[str, KernelDef] = {}
    for buffers, _plan in planned:
        for command in _walk(buffers.commands):
            for launch in command.launch.choices() if command.launch is not None else ():
                used.setdefault(launch.kernel.name, launch.kernel)
    return [used[name] for name in sorted(used)]


class Emitter:
    """Makes one bundle from the versions of one module. Functions for hosts have no target, those
    for CUDA are named after them; states and constants are shared by name."""

    def __init__(self, module: Module, versions: Sequence[Version], target_caps: Any = None):
        self.module, self.versions = module, versions
        self.bundle = bw.BundleWriter(target_caps)
        self.constants: Dict[str, bw.Constant] = {}
        self.files: Dict[str, bw.File] = {}
        self.states: Dict[str, bw.State] = {}
        self.kernels: Dict[str, bw.Kernel] = {}
        self.functions: Dict[str, bw.Function] = {}
        self.weights: Dict[str, Constant] = {}

    def run(self) -> bw.BundleWriter:
        metadata = {"producer": "accrt reference compiler 0.2", **self.module.metadata}
        for key, value in metadata.items():
            self.bundle.metadata(key, value)
        for s in self.module.symbols.values():
            if s.name in self._used_symbols():
                self.bundle.symbol(
                    s.name, s.symbol_class, minimum=s.minimum, maximum=s.maximum, divisor=s.divisor, buckets=s.buckets
                )
        for version in self.versions:
            self._declare_kernels(version)
        for version in self.versions:
            self.weights, self.functions = version.module.constants, {}
            for buffers, plan in version.planned:
                self._function(buffers, plan, "" if version.family == "host" else version.family)
        self._share_the_rest()
        self._adapters()
        return self.bundle

    def _used_symbols(self) -> Set[str]:
        if not hasattr(self, "_symbols"):
            found: Set[str] = set()
            for buffers, plan in (pair for version in self.versions for pair in version.planned):
                for i in buffers.function.inputs:
                    found |= {i.symbol} if i.symbol else set()
                for size in _sizes(buffers, plan):
                    found |= set(ex.symbols_of(size))
            self._symbols = found
        return self._symbols

    # -- kernels

    def _declare_kernels(self, version: Version) -> None:
        kernels = used_kernels(version.planned)
        for kernel in kernels:
            if kernel.name in self.kernels:
                raise ValueError(f"two kernels for different targets are named {kernel.name!r}")
            parameters = [
                bw.Parameter(p.name, p.kind, p.access, p.size, p.offset, p.optional) for p in kernel.params
            ]  # fmt: skip
            host = version.family == "host"
            self.kernels[kernel.name] = self.bundle.kernel(
                kernel.name, parameters, traits=kernel.traits & ~LAUNCH_TRAITS, local_memory_bytes=kernel.local_memory_bytes if host else 0
            )
        if version.family == "cuda":
            self._add_cuda_variants(kernels, version.targets)
            return
        for target in version.targets:
            self._add_variants(kernels, target)

    def _add_variants(self, kernels: Sequence[KernelDef], target: str) -> None:
        usable = images.usable_kernels(kernels, target)
        if not usable:
            return
        with progress.part("kernels", target):
            built = images.build_images(usable, target, self.module.name)
        for image in built:
            made = self.bundle.image(image.name, image.data)
            for kernel in image.kernels:
                features = [name.lower() for name in kernel.cpu_features]
                self.kernels[kernel.name].variant(made, entry=kernel.name, arch=target, cpu_features=features)

    def _add_cuda_variants(self, kernels: Sequence[KernelDef], targets: Sequence[str]) -> None:
        """An operator of a library is preferred, then what is for one architecture alone, then
        cubins, then PTX."""
        for kernel in kernels:
            if kernel.operator is not None:
                pack = self.bundle.pack(kernel.operator.pack)
                self.kernels[kernel.name].variant(
                    pack, entry=kernel.operator.name, driver="cuda", arch_kind="portable", priority=OPERATOR_PRIORITY
                )
        with progress.part("kernels", "cuda"):
            built = nvcc.build_images(kernels, targets, self.module.name)
        for image in built:
            kind = bw.ImageKind.PTX if image.kind == "ptx" else bw.ImageKind.CUBIN
            made = self.bundle.image(image.name, image.data, kind)
            for kernel in image.kernels:
                self._add_cuda_variant(kernel, image, made)
        for kernel in kernels:
            if kernel.operator is None and not any(kernel in image.kernels for image in built):
                raise nvcc.ImageError(f"kernel {kernel.name!r} has machine code for {', '.join(kernel.arch)}, and none for {', '.join(targets)}")

    def _add_cuda_variant(self, kernel: KernelDef, image: nvcc.CudaImage, made: bw.Image) -> None:
        at: Any = next(v for v in kernel.specials if v.arch == image.arch) if image.special else kernel
        kind = "portable" if image.kind == "ptx" else "exact" if image.arch.endswith("a") else "family"
        traits = kernel.traits & LAUNCH_TRAITS
        if image.arch in NO_OVERLAP:
            traits &= ~TRAIT_OVERLAPS_PREVIOUS
        self.kernels[kernel.name].variant(
            made, entry=nvcc.entry_of(kernel, image), driver="cuda", arch=image.arch.replace("compute_", "sm_"), arch_kind=kind,
            priority=int(image.special), block=at.block, cluster=at.cluster if any(at.cluster) else None, dynamic_shared_bytes=at.local_memory_bytes,
            launch_traits=traits,
        )  # fmt: skip

    # -- functions

    def _function(self, buffers: Buffers, plan: Plan, target: str) -> None:
        function = buffers.function
        made = self.bundle.function(
            function.name, prepare=function.prepare, internal=function.internal, doc=function.doc, target=target
        )
        self.functions[function.name] = made
        slots: Dict[Tuple[str, str], bw.Slot] = {}
        for i in function.inputs:
            if i.symbol:
                made.scalar(i.name, ex.symbol(i.symbol), doc=i.doc)
            else:
                slots[("input", i.name)] = made.input(
                    i.name, i.value.dtype, i.value.shape, access=i.access, optional=i.optional, doc=i.doc
                )
        if function.prepare:
            self._prepare_arguments(buffers, made, slots)
        else:
            self._results(buffers, made, slots)
        if not ex.same(plan.size, 0):
            made.transient(plan.size, ALIGN)
        _FunctionEmitter(self, buffers, plan, made, slots).block(buffers.commands, made.body)

    def _results(self, buffers: Buffers, made: bw.Function, slots: Dict[Tuple[str, str], bw.Slot]) -> None:
        for r in buffers.function.results:
            alias = slots[("input", r.alias)] if r.alias else None
            kind = bw.AliasKind.MUST if r.alias_must else bw.AliasKind.MAY
            value = r.value
            slots[("result", r.name)] = made.result(r.name, value.dtype, value.shape, alias=alias, alias_kind=kind, doc=r.doc)

    def _prepare_arguments(self, buffers: Buffers, made: bw.Function, slots: Dict[Tuple[str, str], bw.Slot]) -> None:
        for storage in buffers.storages:
            apart = storage.kind == "constant" and self.is_apart(storage.target)
            key = ("constant", f"{storage.target}\0{storage.role}" if apart else storage.target)
            if storage.kind == "constant" and key not in slots:
                value = self.part(storage.target, storage.role)
                slots[key] = made.source(value.name if apart else storage.target, value)
        for r in buffers.function.results:
            slots[("result", r.name)] = made.product(r.name, self.constant(r.name))

    def constant(self, name: str) -> bw.Constant:
        if name not in self.constants:
            source = self.weights[name]
            make = self._external if source.external is not None else self._quantized if isinstance(source.data, Quantized) else self._plain
            self.constants[name] = make(source)
        return self.constants[name]

    def _plain(self, source: Constant) -> bw.Constant:
        type_ = source.type
        if source.data is None:
            encoding = bw.Encoding.PLAIN if type_.encoding == "plain" else bw.Encoding.OPAQUE
            return self.bundle.prepared(source.name, type_.size_bytes, dtype=type_.dtype, shape=type_.shape, encoding=encoding)
        data = source.data if source.data.flags.c_contiguous else source.data.copy(order="C")
        return self.bundle.constant(source.name, data, dtype=type_.dtype, shape=type_.shape)

    def _quantized(self, source: Constant) -> bw.Constant:
        q = source.data
        parts = {role: (np.ascontiguousarray(array), q.component_type(role)) for role, array in q.components.items()}
        return self.bundle.constant(source.name, parts, dtype=q.dtype, shape=q.shape, **_layout(q))

    def _external(self, source: Constant) -> bw.Constant:
        at, q = source.external, source.data
        more: Dict[str, Any] = {}
        if isinstance(q, Quantized):
            more = {**_layout(q), "components": {role: q.component_type(role) for role in q.components}}
        more.update(file=self._file(at.file), tensor=at.tensor, digest=at.digest, sha256=at.sha256)
        made = self.bundle.external(source.name, source.type.dtype, source.type.shape, **more)
        if at.shard is not None:
            self.bundle.shard(made, at.shard.degree, axis=at.shard.axis, extent=at.extent, segments=at.shard.segments)
        return made

    def _file(self, name: str) -> Optional[bw.File]:
        if name and name not in self.files:
            facts = self.module.files[name]
            self.files[name] = self.bundle.file(facts.name, facts.kind, size_bytes=facts.size_bytes, digest=facts.digest, sha256=facts.sha256)
        return self.files[name] if name else None

    def _share_the_rest(self) -> None:
        """Where some weights are parts that ranks share, the bundle says of all others outside that
        each rank has all of them."""
        known = {name: c.external for v in self.versions for name, c in v.module.constants.items() if c.external and name in self.constants}
        degrees = [at.shard.degree for at in known.values() if at.shard is not None]
        for name, at in known.items():
            if degrees and at.shard is None:
                self.bundle.shard(self.constants[name], degrees[0])

    def _adapters(self) -> None:
        inputs = [i for function in self.module.functions.values() for i in function.inputs if i.adapter]
        for i in {i.adapter: i for i in inputs}.values():
            # functions have them alike: verify_adapters
            self.bundle.adapter(i.adapter, i.name, scaled=i.scaled)

    def part(self, name: str, role: str) -> bw.Constant:
        """The constant that has a component: where checkpoints have it as a tensor of its own, that
        alone."""
        q = self.weights[name].data
        if not self.is_apart(name):
            return self.constant(name)
        full, at, dtype, shape = name + APART[q.layout].endings[role], self.weights[name].external, q.component_type(role), q.part_shape(role)
        if full not in self.constants and at is None:
            self.constants[full] = self.bundle.constant(full, np.ascontiguousarray(q.components[role]).reshape(shape), dtype=dtype, shape=shape)
        elif full not in self.constants:
            tensor = at.tensor and at.tensor + APART[q.layout].endings[role]
            self.constants[full] = self.bundle.external(full, dtype, shape, file=self._file(at.file), tensor=tensor)
        return self.constants[full]

    def is_apart(self, name: str) -> bool:
        """Whether each component of a weight is a constant of its own."""
        data = self.weights[name].data
        return isinstance(data, Quantized) and data.layout in APART

    def component(self, name: str, role: str) -> int:
        """The place of a component among those that a constant has."""
        if self.is_apart(name):
            return 0
        present = self.weights[name].data.components
        return [r for r in LAYOUTS[self.weights[name].data.layout].roles if r in present].index(role)

    def state(self, name: str) -> bw.State:
        if name not in self.states:
            source = self.module.states[name]
            self.states[name] = self.bundle.state(
                name, source.type.dtype, source.type.shape, fill_pattern=source.fill_pattern
            )
        return self.states[name]


class _FunctionEmitter:
    def __init__(self, emitter: Emitter, buffers: Buffers, plan: Plan, made: bw.Function, slots: Dict[Tuple[str, str], bw.Slot]):
        self.emitter, self.buffers, self.plan, self.made, self.slots = emitter, buffers, plan, made, slots
        self.late = late_symbols(buffers.function)

    def slot(self, storage: Storage) -> bw.Slot:
        if storage.kind == "transient":
            return self.made.transient()
        key = (storage.kind, storage.target)
        if storage.role and (self.emitter.component(storage.target, storage.role) or self.emitter.is_apart(storage.target)):
            key = (storage.kind, f"{storage.target}\0{storage.role}")
        if key not in self.slots:
            if storage.kind == "constant":
                component = self.emitter.component(storage.target, storage.role) if storage.role else 0
                self.slots[key] = self.made.constant(self.emitter.part(storage.target, storage.role), component)
            else:
                self.slots[key] = self.made.state(self.emitter.state(storage.target))
        return self.slots[key]

    def range(self, access: Access, mode: str) -> bw.Range:
        base = self.plan.offsets.get(id(access.storage), 0) if access.storage.kind == "transient" else 0
        offset = ex.simplify(ex.constant(base) + access.offset)
        return bw.Range(self.slot(access.storage), mode, offset, ex.simplify(access.size))

    def block(self, commands: Sequence[Command], target: bw.Block) -> None:
        made: List[bw.Command] = []
        for command in commands:
            after = [made[index] for index in command.predecessors]
            made.append(getattr(self, "_" + command.kind)(command, target, after))

    def _dispatch(self, command: Command, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        made: List[bw.Command] = []
        for condition, launch in command.launch.alternatives:
            if not ex.is_known(condition, self.late):
                continue
            made.append(target.branch(condition, after=after, name=command.name))
            self._launch(command, launch, made[-1].then, [])
            target, after = made[-1].otherwise, []
        made.append(self._launch(command, command.launch, target, after))
        return made[0]

    def _launch(self, command: Command, launch: Launch, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        arguments: Dict[str, Any] = {}
        for param in launch.kernel.params:
            if param.kind == "workspace":
                arguments[param.name] = self.range(command.accesses[param.name], "read_write")
            elif param.kind == "buffer" and param.name in launch.buffers:
                bound = launch.buffers[param.name]
                access = command.accesses[bound.operand]
                arguments[param.name] = self._shifted(access, bound.offset, param.access)
            elif param.kind == "symbol":
                arguments[param.name] = ex.simplify(launch.values[param.name])
            elif param.kind == "scalar":
                arguments[param.name] = _scalar(launch.values[param.name], param)
        grid = [ex.simplify(size) for size in launch.grid]
        kernel = self.emitter.kernels[launch.kernel.name]
        return target.dispatch(kernel, arguments, grid, after=after, name=command.name)

    def _shifted(self, access: Access, offset: Any, mode: str) -> bw.Range:
        span = self.range(access, mode)
        if isinstance(offset, int) and offset == 0:
            return span
        raise ValueError("offsets of launches are given by places")

    def _call(self, command: Command, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        callee = self.emitter.functions[command.callee]
        arguments: Dict[str, Any] = dict(command.scalars)
        for name, access in command.accesses.items():
            arguments[name.partition(":")[2]] = self.range(access, access.mode)
        return target.call(callee, arguments, after=after, name=command.name)

    def _check(self, command: Command, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        return target.check(command.offset, command.size, command.limit, self._writable(), after=after, name=command.name)

    def _writable(self) -> bw.Slot:
        """Some memory that the function may write: a check names it and touches nothing."""
        for storage in self.buffers.storages:
            if storage.kind in ("result", "state"):
                return self.slot(storage)
        for i in self.buffers.function.inputs:
            if i.access != "read" and not i.optional and not i.symbol:
                return self.slots[("input", i.name)]
        return self.made.transient()

    def _repeat(self, command: Command, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        made = target.repeat(command.size, after=after, name=command.name)
        self.block(command.blocks[0], made.body)
        return made

    def _branch(self, command: Command, target: bw.Block, after: List[bw.Command]) -> bw.Command:
        made = target.branch(command.size, after=after, name=command.name)
        self.block(command.blocks[0], made.then)
        if command.blocks[1]:
            self.block(command.blocks[1], made.otherwise)
        return made


def _layout(q: Quantized) -> Dict[str, Any]:
    return {"encoding": bw.Encoding(LAYOUTS[q.layout].id), "group_elements": q.group}


def _scalar(value: Any, param: Any) -> bw.Scalar:
    dtype = {"f16": "f32", "bf16": "f32"}.get(param.dtype, param.dtype) if param.size == 4 else param.dtype
    number = float(value) if dtype.startswith("f") else int(value)
    return bw.scalar(number, dtype)


def _walk(commands: Sequence[Command]) -> Iterable[Command]:
    for command in commands:
        yield command
        for block in command.blocks:
            yield from _walk(block)


def _sizes(buffers: Buffers, plan: Plan) -> Iterable[Any]:
    """Every expression that the function's records will hold."""
    for i in buffers.function.inputs:
        if i.value is not None:
            yield from i.value.shape
    for r in buffers.function.results:
        yield from r.value.shape
    yield plan.size
    for storage in buffers.storages:
        yield storage.size_bytes
        if storage.kind == "state":
            yield from buffers.function.module.states[storage.target].type.shape
    for command in _walk(buffers.commands):
        yield command.size
        yield command.offset
        yield command.limit
        yield from command.scalars.values()
        for access in command.accesses.values():
            yield access.offset
            yield access.size
        for launch in command.launch.choices() if command.launch is not None else ():
            yield from launch.grid
            yield from launch.values.values()
        for condition, _launch in command.launch.alternatives if command.launch is not None else ():
            yield condition
