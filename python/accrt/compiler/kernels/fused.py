"""Generated kernels of reductions and running sums whose elements are calculated where they are
read, and whose results go on from where they are made: neither is a tensor in memory.

Both are element-wise programs (elementwise.py): `before` makes a few hundred elements at a time,
`after` takes the results as its input 0. The loops between them are those of reduce.h and cumsum.h,
so that the order of additions is theirs.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import elementwise as ew
from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .ordering import lines_grid, three_sides
from .tensor_ops import reduce_grid

#: Results of one piece of a reduction, which one thread makes: COLUMNS of reduce.h, where the axis
#: that vectors walk is kept, and where it is reduced.
COLUMN_PIECE, ROW_PIECE = 128, 8
#: Lines of one piece of running sums: BLOCK of cumsum.h.
LINE_PIECE = 64


@dataclass(frozen=True)
class Work:
    """What is fused: the program before, with the types of its inputs and the values of its
    symbols; the program after, whose inputs follow the result."""

    before: ew.Program
    after: ew.Program
    before_dtypes: Tuple[str, ...]
    after_dtypes: Tuple[str, ...]
    before_symbols: Sequence[Any] = ()
    after_symbols: Sequence[Any] = ()

    @property
    def dtype(self) -> str:
        return self.before.nodes[self.before.outputs[0]].dtype

    @property
    def result_dtype(self) -> str:
        return self.after.nodes[self.after.outputs[0]].dtype

    def names(self) -> Tuple[List[str], List[str]]:
        """Of the operands of both programs; the result that goes from one to the other has none."""
        return [f"x{i}" for i in range(len(self.before_dtypes))], [f"z{i}" for i in range(len(self.after_dtypes))]


def same(dtype: str) -> ew.Program:
    """The program that changes nothing."""
    return ew.Program((ew.Node("input", dtype, (), 0),), (0,))


@dataclass(frozen=True)
class _Loop:
    """One of the two headers, as generated code needs it: names of axes of what is read and of what
    is written, the axes along which both go, and the definitions that the header asks for."""

    header: str
    struct: str
    sizes: Tuple[str, ...]
    read_axes: Tuple[str, ...]
    write_axes: Tuple[str, ...]
    along: Tuple[str, str]
    defines: Tuple[Tuple[str, str], ...]


def _kernel(op: str, work: Work, core_dtype: str, loop: _Loop, strides: Mapping[str, Sequence[Any]], grid: Any) -> Tuple[KernelDef, Dict[str, Any]]:
    """The kernel, and the values of its scalars. `core_dtype`: of the result between both."""
    (before, before_numbers), (after, after_numbers) = ew.with_arguments(work.before), ew.with_arguments(work.after)
    for program in (before, after):
        ew.verify(program)
        if program.takes() or any(node.op == "index" for node in program.nodes):
            raise ValueError(f"{op}: elements that depend on their place")
    x_names, z_names = work.names()
    step = {name: strides[name][_axes(loop, name).index(_along(loop, name))] for name in strides}
    read = ew._row_function(before, [*(ew.stride_class(step[name]) for name in x_names), "1"], work.before_dtypes, "row_in")
    write = ew._row_function(after, ["1", *(ew.stride_class(step[name]) for name in z_names), "s"], (core_dtype, *work.after_dtypes), "row_out")
    if "imports->" in read or "imports->" in write:
        raise ValueError(f"{op}: functions of f64")
    types = {name: ew.STORAGE[dtype] for name, dtype in (*zip(x_names, work.before_dtypes), *zip(z_names, work.after_dtypes))}
    types["out"] = ew.STORAGE[work.result_dtype]
    numbers = [(f"{letter}{i}", dtype) for letter, program in (("c", before), ("e", after)) for i, dtype in enumerate(ew._scalar_dtypes(program))]
    types.update({name: ew.COMPUTE[dtype] for name, dtype in numbers})
    params = [*map(reads, (*x_names, *z_names)), writes("out"), *map(symbol, loop.sizes)]
    params += [symbol(f"{name}_{axis}") for name in (*x_names, *z_names, "out") for axis in _axes(loop, name)]
    params += [symbol(f"{letter}{i}") for letter, program in (("n", before), ("m", after)) for i in range(program.count("symbol"))]
    placed = layout(params + [scalar(name, dtype) for name, dtype in numbers])
    calls = _calls(work, loop, core_dtype, before, after, step)
    text = "\n".join(
        ['#include "vmath.h"', *ew._helpers(read + write), ew._struct_text(placed, types, loop.struct), read, write, *calls, f'#include "{loop.header}"', ""]
    )
    defines = (("X_TAG", work.dtype), ("OUT_TAG", core_dtype), ("STAGED", "1"), *loop.defines)
    digest = hashlib.sha256((repr(defines) + text).encode()).hexdigest()[:10]
    name = f"{op}_with_{digest}"
    source = CSource(text=text, defines=(*defines, ("ENTRY", "accrt_" + name)), struct=loop.struct)
    values = {**{f"c{i}": v for i, v in enumerate(before_numbers)}, **{f"e{i}": v for i, v in enumerate(after_numbers)}}
    return KernelDef(name, op, source, placed, grid, entry="accrt_" + name), values


def _axes(loop: _Loop, name: str) -> Tuple[str, ...]:
    return loop.read_axes if name[0] == "x" else loop.write_axes


def _along(loop: _Loop, name: str) -> str:
    return loop.along[0] if name[0] == "x" else loop.along[1]


def _calls(work: Work, loop: _Loop, core_dtype: str, before: ew.Program, after: ew.Program, step: Mapping[str, Any]) -> List[str]:
    """read_run and write_run of the header."""
    x_names, z_names = work.names()

    def place(name: str) -> str:
        return f"p->{name} + ({' + '.join(f'{axis} * p->{name}_{axis}' for axis in _axes(loop, name))})"

    def arguments(names: Sequence[str]) -> List[str]:
        return [item for name in names for item in (place(name), f"p->{name}_{_along(loop, name)}")]

    def rest(letters: str, program: ew.Program) -> List[str]:
        numbers = [f"p->{letters[0]}{i}" for i in range(len(ew._scalar_dtypes(program)))]
        return numbers + [f"p->{letters[1]}{i}" for i in range(program.count("symbol"))]

    x_t, core_t = ew.STORAGE[work.dtype], ew.STORAGE[core_dtype]
    # A tensor that lies there as it is read is no tile.
    whole = len(before.nodes) == 1 and ew.stride_class(step["x0"]) == "1"
    read = f"  row_in({', '.join(['n_', '0', '0', *arguments(x_names), 'tile', '1', *rest('cn', before)])});"
    write = f"  row_out({', '.join(['n_', '0', '0', 'results', '1', *arguments(z_names), *arguments(['out']), *rest('em', after)])});"
    read_axes, write_axes = (", ".join(f"int64_t {axis}" for axis in axes) for axes in (loop.read_axes, loop.write_axes))
    return [
        f"ALWAYS_INLINE const {x_t}* read_run(const {loop.struct}* p, {x_t}* tile, {read_axes}, int64_t n_) {{",
        *(["  (void)tile;", "  (void)n_;", f"  return {place('x0')};"] if whole else [read, "  return tile;"]),
        "}",
        f"ALWAYS_INLINE void write_run(const {loop.struct}* p, const {core_t}* results, {write_axes}, int64_t n_) {{",
        write,
        "}",
    ]


def _bound(work: Work) -> Dict[str, str]:
    x_names, z_names = work.names()
    return {name: name for name in (*x_names, *z_names, "out")}


def _symbols(work: Work) -> Dict[str, Any]:
    return {**{f"n{i}": v for i, v in enumerate(work.before_symbols)}, **{f"m{i}": v for i, v in enumerate(work.after_symbols)}}


def lower_reduce(
    op: str, work: Work, core_dtype: str, shape: Sequence[Any], axes: Sequence[int], inputs: Sequence[TensorSpec], more: Sequence[TensorSpec], out: TensorSpec
) -> Launch:  # fmt: skip
    """sum, mean, max, min or argmax over `axes` of what `before` makes of `inputs`, which broadcast
    to `shape`. `more`: the other inputs of `after`, which broadcast to out. Operands: x0, ..., z0,
    ..., out."""
    reduced = sorted(axes)
    kept = [axis for axis in range(len(shape)) if axis not in reduced]
    left = kept if len(out.shape) == len(shape) else range(len(kept))
    x_names, z_names = work.names()
    walked = {name: ew.broadcast_strides(spec, shape) for name, spec in zip(x_names, inputs)}
    written = {name: ew.broadcast_strides(spec, out.shape) for name, spec in zip(z_names, more)}
    written["out"] = list(out.strides)
    kept_strides = [[walked[name][axis] for axis in kept] for name in x_names] + [[steps[axis] for axis in left] for steps in written.values()]
    k_shape, k_steps = ew.collapse([shape[axis] for axis in kept], kept_strides)
    r_shape, r_steps = ew.collapse([shape[axis] for axis in reduced], [[walked[name][axis] for axis in reduced] for name in x_names])
    if len(k_shape) > 3 or len(r_shape) > (1 if op == "argmax" else 2):
        raise ValueError(f"{op}: axes {reduced} of shape {tuple(shape)} do not join into two reduced and three kept ones")
    k_steps = [[0] * (3 - len(k_shape)) + steps for steps in k_steps]
    r_steps = [[0] * (2 - len(r_shape)) + steps for steps in r_steps]
    k_shape, r_shape = [1] * (3 - len(k_shape)) + k_shape, [1] * (2 - len(r_shape)) + r_shape
    strides = {name: [*k, *r] for name, k, r in zip(x_names, k_steps, r_steps)}
    strides.update(zip(written, k_steps[len(x_names) :]))
    # The last axis that is one is walked by vectors.
    last = next((axis for axis in reversed(range(len(shape))) if not (ex.is_static(shape[axis]) and shape[axis] == 1)), -1)
    by_columns = last in kept and op != "argmax"
    k_names, r_names = ("k0", "k1", "k2"), ("r0", "r1")
    loop = _Loop(
        "reduce.h", "reduce_params_t", (*k_names, *r_names), (*k_names, *r_names), k_names, ("k2" if by_columns else "r1", "k2"),
        (("BY_COLUMNS", str(int(by_columns))), ("OP", op.upper())),
    )  # fmt: skip
    grid = functools.partial(reduce_grid, columns=COLUMN_PIECE if by_columns else ROW_PIECE)
    kernel, values = _kernel(op, work, core_dtype, loop, strides, grid)
    values.update(zip((*k_names, *r_names), (*k_shape, *r_shape)))
    return _launch(kernel, work, loop, values, strides)


def lower_cumsum(work: Work, core_dtype: str, shape: Sequence[Any], axis: int, inputs: Sequence[TensorSpec], more: Sequence[TensorSpec], out: TensorSpec) -> Launch:
    """Running sums along an axis, likewise."""
    x_names, z_names = work.names()
    given = [ew.broadcast_strides(spec, shape) for spec in (*inputs, *more)]
    sizes, steps = three_sides("cumsum", tuple(shape), axis, *map(tuple, given), out.strides)
    strides = dict(zip((*x_names, *z_names, "out"), steps))
    by_columns = not (ex.is_static(sizes[2]) and sizes[2] == 1)
    axes = ("outer", "n", "inner")
    along = "inner" if by_columns else "n"
    total = "double" if core_dtype in ew.FLOATS else "uint64_t" if work.dtype == "u64" else "int64_t"
    loop = _Loop("cumsum.h", "cumsum_params_t", axes, axes, axes, (along, along), (("BY_COLUMNS", str(int(by_columns))), ("SUM", total)))
    kernel, values = _kernel("cumsum", work, core_dtype, loop, strides, lines_grid)
    values.update(zip(axes, sizes))
    return _launch(kernel, work, loop, values, strides)


def _launch(kernel: KernelDef, work: Work, loop: _Loop, values: Dict[str, Any], strides: Mapping[str, Sequence[Any]]) -> Launch:
    for name, steps in strides.items():
        values.update({f"{name}_{axis}": stride for axis, stride in zip(_axes(loop, name), steps)})
    return launch(kernel, _bound(work), {**values, **_symbols(work)})
