"""Generated CUDA kernels for fused element-wise work: the programs, expressions and rules of
kernels/elementwise.py, one thread for a vector of elements.

A thread calculates N neighbours along the last axis (N fills 16 bytes of the smallest type, at most
8) where all that lies contiguous there is aligned, and N single elements, a whole grid apart, where
it is not: the kernel decides when it runs.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .. import select
from ..kernels import elementwise as ew
from ..kernels import expr as ex
from ..kernels.kerneldef import (
    DTYPE_SIZES, TRAIT_DETERMINISTIC, TRAIT_OVERLAPS_PREVIOUS, BufferArg, CudaSource, KernelDef, Launch, Param, TensorSpec, launch,
    layout, reads, scalar, symbol, writes,
)  # fmt: skip

THREADS = 256
TRAITS = TRAIT_DETERMINISTIC | TRAIT_OVERLAPS_PREVIOUS
MAX_VECTOR = 8
#: Functions that have a faster form, good enough for 16-bit types.
_ELEMENTARY = re.compile(r"\bm_(exp|sigmoid|silu|gelu|gelu_tanh)\(")


def vector_elements(dtypes: Sequence[str]) -> int:
    return min(MAX_VECTOR, 16 // min(DTYPE_SIZES[dtype] for dtype in dtypes))


def _step(name: str, axis: int, kind: str) -> str:
    """The stride of an operand along an axis; the last axis's 0 and 1 are known."""
    return kind if kind in "01" else f"{name}_s{axis}"


class _Writer:
    """The text of one kernel. `classes`: "0", "1" or "s" (any) for the stride of each operand along
    the last axis."""

    def __init__(self, program: ew.Program, rank: int, input_dtypes: Sequence[str], classes: Sequence[str]):
        self.program, self.rank, self.classes = program, rank, list(classes)
        self.inputs = [f"x{i}" for i in range(len(input_dtypes))]
        self.outputs = [f"y{i}" for i in range(len(program.outputs))]
        self.names = self.inputs + self.outputs
        self.dtypes = [*input_dtypes, *(program.nodes[i].dtype for i in program.outputs)]
        self.width = vector_elements(self.dtypes)
        self.scalars = ew._scalar_dtypes(program)
        self.params = self._params()

    def _params(self) -> Tuple[Param, ...]:
        params = [reads(name) for name in self.inputs] + [writes(name) for name in self.outputs]
        params += [symbol(f"d{axis}") for axis in range(self.rank)]
        for name, kind in zip(self.names, self.classes):
            params += [symbol(f"{name}_s{axis}") for axis in range(self.rank) if axis < self.rank - 1 or kind == "s"]
        params += [symbol(f"n{i}") for i in range(self.program.count("symbol"))]
        params += [scalar(f"c{i}", dtype) for i, dtype in enumerate(self.scalars)]
        return layout(params)

    def declarations(self, types: bool = True) -> str:
        found = []
        for param in self.params:
            if param.kind == "buffer":
                constant = "const " if param.access == "read" else ""
                text = f"{constant}{ew.STORAGE[self.dtypes[self.names.index(param.name)]]}* {param.name}"
            else:
                text = f"{ew.COMPUTE[param.dtype] if param.kind == 'scalar' else 'index_t'} {param.name}"
            found.append(text if types else param.name)
        return ", ".join(found)

    def text(self, entry: str) -> str:
        return "\n".join(['#include "elementwise.cuh"', self._piece(), self._entry(entry), ""])

    # -- one vector

    def _piece(self) -> str:
        """Function of N elements from place `first` of the row-major index space on."""
        lines = [
            "template <int N, class I>",
            f"static __device__ __forceinline__ void piece(index_t first, {self.declarations()}) {{",
            "  const imports_f64* const imports = nullptr;",
            "  (void)imports;",
        ]
        lines += self._places()
        for name, dtype, kind in zip(self.inputs, self.dtypes, self.classes):
            lines.append("  " + self._load(name, dtype, kind))
        for name, dtype, kind in zip(self.outputs, self.dtypes[len(self.inputs) :], self.classes[len(self.inputs) :]):
            lines.append(f"  vector_t<{ew.STORAGE[dtype]}, N> {name}_v;")
        lines += ["#pragma unroll", "  for (int i = 0; i < N; i++) {", *self._body(), "  }"]
        for name, dtype, kind in zip(self.outputs, self.dtypes[len(self.inputs) :], self.classes[len(self.inputs) :]):
            lines.append("  " + self._store(name, dtype, kind))
        return "\n".join(lines + ["}"])

    def _places(self) -> List[str]:
        """Pointers of all operands at the first element."""
        last = self.rank - 1
        if self.rank == 1:
            return [f"  {name} += first * {_step(name, last, kind)};" for name, kind in zip(self.names, self.classes) if kind != "0"]
        lines = [f"  const I column = (I)first % (I)d{last};", f"  I rest = (I)first / (I)d{last};"]
        for axis in range(last - 1, 0, -1):
            lines += [f"  const I i{axis} = rest % (I)d{axis};", f"  rest /= (I)d{axis};"]
        lines.append("  const I i0 = rest;")
        for name, kind in zip(self.names, self.classes):
            terms = [f"(index_t)i{axis} * {name}_s{axis}" for axis in range(last)]
            if kind != "0":
                terms.append(f"(index_t)column * {_step(name, last, kind)}")
            lines.append(f"  {name} += {' + '.join(terms)};")
        return lines

    def _load(self, name: str, dtype: str, kind: str) -> str:
        storage = ew.STORAGE[dtype]
        if kind == "0":
            return f"const {storage} {name}_v = *{name};"
        if kind == "1":
            return f"const vector_t<{storage}, N> {name}_v = *(const vector_t<{storage}, N>*){name};"
        step = f"{name}_s{self.rank - 1}"
        return (
            f"vector_t<{storage}, N> {name}_v; _Pragma(\"unroll\") for (int i = 0; i < N; i++) {name}_v.at[i] = {name}[i * {step}];"
        )

    def _store(self, name: str, dtype: str, kind: str) -> str:
        if kind == "1":
            return f"*(vector_t<{ew.STORAGE[dtype]}, N>*){name} = {name}_v;"
        step = "0" if kind == "0" else f"{name}_s{self.rank - 1}"
        return f"_Pragma(\"unroll\") for (int i = 0; i < N; i++) {name}[i * {step}] = {name}_v.at[i];"

    def _body(self) -> List[str]:
        lines = []
        for at, node in enumerate(self.program.nodes):
            if node.op == "input":
                place = f"x{node.value}_v" if self.classes[node.value] == "0" else f"x{node.value}_v.at[i]"
                text = ew._load(node.dtype, place)
            elif node.op == "const":
                text = ew._literal(node.dtype, node.value)
            elif node.op in ("scalar", "symbol"):
                text = f"{'c' if node.op == 'scalar' else 'n'}{node.value}"
            elif node.op == "index":
                text = "first + i"
            else:
                text = ew._expression(self.program, node)
                if node.dtype in ("f16", "bf16"):
                    text = _ELEMENTARY.sub(r"m_\1_16(", text)
            lines.append(f"    const {ew.COMPUTE[node.dtype]} v{at} = {text};")
        for name, index in zip(self.outputs, self.program.outputs):
            lines.append(f"    {name}_v.at[i] = {ew._store(self.program.nodes[index].dtype, f'v{index}')};")
        return lines if any(node.op != "input" for node in self.program.nodes) else self._moved()

    def _moved(self) -> List[str]:
        """A copy moves bits: no NaN changes."""
        places = [f"x{i}_v" if self.classes[i] == "0" else f"x{i}_v.at[i]" for i in range(len(self.inputs))]
        values = [places[self.program.nodes[index].value] for index in self.program.outputs]
        return [f"    {name}_v.at[i] = {value};" for name, value in zip(self.outputs, values)]

    # -- the kernel

    def _entry(self, entry: str) -> str:
        last = self.rank - 1
        total = " * ".join(f"d{axis}" for axis in range(self.rank))
        lines = [
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {entry}({self.declarations()}) {{',
            "  begin_kernel();",
            f"  const index_t total = {total};",
            f"  index_t at = (index_t)blockIdx.x * {THREADS} + threadIdx.x;",
            f"  bool wide = {self._wide()};",
        ]
        calls = self.declarations(types=False)
        if self.rank == 1:
            lines += [
                f"  if (wide && (at + 1) * {self.width} <= total) {{",
                f"    piece<{self.width}, index_t>(at * {self.width}, {calls});",
                "    return;",
                "  }",
                "  if (wide) { // the rest that fills no vector",
                "#pragma unroll 1",
                f"    for (index_t i = at * {self.width}; i < total; i++) piece<1, index_t>(i, {calls});",
                "    return;",
                "  }",
            ]
            step = f"(index_t)gridDim.x * {THREADS}"
            return "\n".join(lines + ["#pragma unroll 1", f"  for (; at < total; at += {step}) piece<1, index_t>(at, {calls});", "}"])
        lines += [
            f"  wide = wide && d{last} % {self.width} == 0 && total <= 0x7fffffff;",
            "  if (wide) {",
            f"    if (at * {self.width} < total) piece<{self.width}, uint32_t>(at * {self.width}, {calls});",
            "    return;",
            "  }",
            f"  const index_t step = (index_t)gridDim.x * {THREADS};",
            "  if (total <= 0x7fffffff) {",
            "#pragma unroll 1",
            f"    for (; at < total; at += step) piece<1, uint32_t>(at, {calls});",
            "    return;",
            "  }",
            "#pragma unroll 1",
            f"  for (; at < total; at += step) piece<1, index_t>(at, {calls});",
            "}",
        ]
        return "\n".join(lines)

    def _wide(self) -> str:
        """Whether every operand that is contiguous along the last axis is aligned at each
        vector."""
        terms = []
        for name, dtype, kind in zip(self.names, self.dtypes, self.classes):
            if kind != "1":
                continue
            terms.append(f"is_aligned<{ew.STORAGE[dtype]}, {self.width}>({name})")
            terms += [f"{name}_s{axis} % {self.width} == 0" for axis in range(self.rank - 1)]
        return " && ".join(terms) or "true"


@functools.lru_cache(maxsize=None)
def make_kernel(program: ew.Program, rank: int, input_dtypes: Tuple[str, ...], classes: Tuple[str, ...]) -> KernelDef:
    ew.verify(program)
    writer = _Writer(program, rank, input_dtypes, classes)
    if len(writer.params) > ew.MAX_PARAMS:
        raise ValueError(f"element-wise work of {len(writer.names)} operands of rank {rank}: {len(writer.params)} parameters")
    ops = [node.op for node in program.nodes if node.op not in ("input", "const", "scalar", "symbol")]
    digest = hashlib.sha256(writer.text("entry").encode()).hexdigest()[:10]
    name = "_".join(["ew", *ops[:5], *(["etc"] if len(ops) > 5 else []), digest])
    width = writer.width

    def grid(values: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        total = ex.product(values[f"d{axis}"] for axis in range(rank))
        return (ex.maximum(ex.ceildiv(total, THREADS * width), 1), 1, 1)

    entry = "accrt_" + name
    source = CudaSource(text=writer.text(entry))
    return KernelDef("cuda." + name, "elementwise", source, writer.params, grid, traits=TRAITS, entry=entry, family="cuda", block=(THREADS, 1, 1))


def lower(
    program: ew.Program,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    symbols: Sequence[Any] = (),
    scalars: Sequence[Any] = (),
) -> Launch:
    """One launch of `program`. Operands are named x0, x1, ... and y0, y1, ...; all outputs have the
    same shape."""
    shape = outputs[0].shape
    walked = [ew.broadcast_strides(spec, shape) for spec in inputs] + [list(spec.strides) for spec in outputs]
    joined_shape, joined = ew.collapse(shape, walked)
    classes = tuple(ew.stride_class(strides[-1]) for strides in joined)
    kernel = make_kernel(program, len(joined_shape), tuple(spec.dtype for spec in inputs), classes)
    names = [f"x{i}" for i in range(len(inputs))] + [f"y{i}" for i in range(len(outputs))]
    values: Dict[str, Any] = {f"d{axis}": size for axis, size in enumerate(joined_shape)}
    for name, strides in zip(names, joined):
        values.update({f"{name}_s{axis}": stride for axis, stride in enumerate(strides)})
    values.update({f"n{i}": value for i, value in enumerate(symbols)})
    values.update({f"c{i}": value for i, value in enumerate(scalars)})
    return launch(kernel, {name: BufferArg(name) for name in names}, values)


@select.rule("accrt.elementwise", "cuda")
def _elementwise(op: Any, operands: select.Specs, results: select.Specs) -> select.Lowering:
    program, numbers = ew.with_arguments(op.attrs["program"])
    made = lower(program, operands, results, symbols=op.attrs["symbols"], scalars=numbers)
    bindings: Dict[str, select.Binding] = {f"x{i}": ("in", i) for i in range(len(operands))}
    bindings.update({f"y{i}": ("out", i) for i in range(len(results))})
    return select.Lowering(made, bindings)
