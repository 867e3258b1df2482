"""Operations on quantized weights: products and lookups that read them packed where the family has
kernels, and plain weights made at load for everything else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .. import ops, packing
from ..encodings import Quantized
from ..declared import Constant
from ..ir import Block, Function, IRError, Module, Op, Value
from .rewrite import rewrite


def lower_quantized(module: Module, family: str = "host") -> None:
    work = [_Lowering(module, f, family) for f in module.functions.values() if _has_work(f)]
    for lowering in work:
        lowering.run()
    packed = {matrix for lowering in work for matrix, tiles in lowering.packed if not tiles}
    for lowering in work:
        lowering.share_packed(packed)


def _has_work(function: Function) -> bool:
    return any(_quantized(value) for value in function.constants.values()) or any(op.name == "accrt.grouped_linear" for op in function.body.walk())


def _quantized(value: Optional[Value]) -> bool:
    return value is not None and value.constant is not None and isinstance(value.constant.data, Quantized)


@dataclass(frozen=True)
class _Matrix:
    """A quantized constant, or (`index`) one of the matrices that it has."""

    constant: Constant
    index: Optional[int]

    @property
    def data(self) -> Quantized:
        q = self.constant.data
        return q if self.index is None else dataclasses.replace(q, shape=q.shape[-2:])


class _Lowering:
    def __init__(self, module: Module, function: Function, family: str):
        self.function, self.family = function, family
        #: What f32 work is done in, where it is not done as it is written.
        self.compute = module.compute.get(family, "")
        self.plain: Dict[str, Value] = {}
        #: By matrices and the tiles of a block (packing.Form).
        self.packed: Dict[Tuple[_Matrix, int], Value] = {}
        #: Matrices that lie one after the other.
        self.together: Dict[Tuple[Tuple[_Matrix, ...], int], Value] = {}
        self.heads: List[Op] = []

    def run(self) -> None:
        rewrite(self.function, self._visit)
        for result in self.function.results:
            if _quantized(result.value):
                result.value = self._dequantized(result.value)
        self._place_heads()

    def share_packed(self, packed: Set[_Matrix]) -> None:
        """Lookups in what products of any function read packed read that, too: nothing else holds
        the weight then."""
        rewrite(self.function, lambda op: self._shared(op, packed))
        self._place_heads()

    def _shared(self, op: Op, packed: Set[_Matrix]) -> Optional[Sequence[Value]]:
        if op.name != "accrt.embedding_quantized":
            return None
        matrix, form = _Matrix(op.operands[0].op.operands[0].constant, None), op.attrs["form"]
        if matrix not in packed or not packing.has_rows(form, self.family):
            return None
        return [ops.build(self.function, "accrt.embedding_packed", self._pack(matrix, form), op.operands[-1], form)]

    def _place_heads(self) -> None:
        """What is made of weights alone stands first, so that every block may use it."""
        self.function.body.ops[:0] = self.heads
        self.heads = []

    def _visit(self, op: Op) -> Optional[Sequence[Value]]:
        if op.name in ("accrt.component", "accrt.pack_quantized"):
            return None
        made = self._special(op)
        if made is not None:
            return [made]
        op.operands = [self._dequantized(v) if _quantized(v) else v for v in op.operands]
        for region in op.regions:
            region.yields = [self._dequantized(v) if _quantized(v) else v for v in region.yields]
        return None

    def _special(self, op: Op) -> Optional[Value]:
        if op.name == "aten.linear" and not _quantized(op.operands[0]):
            x, weight, bias = op.operands
            y = self._product(x, self._matrix(weight), op.result.dtype)
            return y if y is None or bias is None else y + bias
        if op.name in ("aten.matmul", "aten.mm") and op.operands[0].rank >= 2:
            view = op.operands[1].op
            turned = view is not None and view.name == "aten.permute" and list(view.attrs["dims"]) == [1, 0]
            return self._product(op.operands[0], self._matrix(view.operands[0]), op.result.dtype) if turned else None
        if op.name == "aten.embedding" and _quantized(op.operands[0]):
            form = packing.form_of(op.operands[0].constant.data)
            components = self._components(_Matrix(op.operands[0].constant, None))
            return ops.build(self.function, "accrt.embedding_quantized", [*components, op.operands[1]], form)
        if op.name != "accrt.grouped_linear":
            return None
        made = self._grouped(op)
        if made is None:
            op.operands = [self._dequantized(v) if _quantized(v) else v for v in op.operands]
            made = ops.OPS[op.name].decompose(op)
            turned = made.op.operands[1]
            if self.family == "host":
                # as the kernel reads them, once, when a program is made; not in each call
                made = op.operands[0].grouped_matmul(turned.clone(), op.operands[-1])
        return made

    def _original(self, value: Value) -> Optional[Constant]:
        """The quantized constant that a value is, or was made of."""
        if _quantized(value):
            return value.constant
        return next((self.function.constants[name].constant for name, plain in self.plain.items() if plain is value), None)

    def _matrix(self, value: Value) -> Optional[_Matrix]:
        """The quantized matrix that a product reads: a constant, or one of those that a constant of
        rank 3 has."""
        constant, view = self._original(value), value.op
        if constant is not None:
            return _Matrix(constant, None)
        if view is None or view.name != "aten.select" or view.attrs["dim"] != 0 or not isinstance(view.attrs["index"], int):
            return None
        constant = self._original(view.operands[0])
        return None if constant is None or constant.type.rank != 3 else _Matrix(constant, view.attrs["index"] % constant.type.shape[0])

    def _grouped(self, op: Op) -> Optional[Value]:
        """One product reads all matrices."""
        x, *weights, ends = op.operands
        found = self._matrices(weights)
        if not found or _quantized(x):
            return None
        forms = {packing.form_of(matrix.data) for matrix in found}
        form = forms.pop()
        low = self._taken(x, form)
        if forms or not low:
            return None
        form = packing.grouped_form(form, len(found), self.family)
        as_one = len(weights) == 1 and packing.packs_as_one(form, self.family)
        if as_one:
            matrix = _Matrix(found[0].constant, None)
            made = self._pack(matrix, dataclasses.replace(form, n=form.n * len(found)))
        else:
            made = self._packed_together(found, form)
        ends = ends if ends.dtype == "i64" else ends.to_copy("i64")
        x, result = self._lowered(x, low, op.result.dtype)
        y = ops.build(self.function, "accrt.grouped_quantized", x, made, ends, form, len(found), as_one, result)
        return y if result == op.result.dtype else y.to_copy(op.result.dtype)

    def _taken(self, x: Value, form: packing.Form) -> str:
        """The type that x has in a product with a packed weight; none: there is no such product."""
        taken = packing.activations(form, self.family)
        low = self.compute if x.dtype == "f32" and self.compute in taken else x.dtype
        return low if low in taken and packing.packed_bytes(form, self.family) is not None else ""

    @staticmethod
    def _lowered(x: Value, low: str, dtype: str) -> Tuple[Value, str]:
        """x in a type, and the type that a product has then, which is to be `dtype`."""
        result = low if dtype == "f32" and low != x.dtype else dtype
        return x if x.dtype == low else x.to_copy(low), result

    def _matrices(self, weights: Sequence[Value]) -> List[_Matrix]:
        """Those of a grouped product; none where one is no quantized matrix."""
        constants = [self._original(weight) for weight in weights]
        if len(constants) == 1 and constants[0] is not None and constants[0].type.rank == 3:
            return [_Matrix(constants[0], index) for index in range(constants[0].type.shape[0])]
        return [] if None in constants else [_Matrix(constant, None) for constant in constants]

    def _packed_together(self, found: Sequence[_Matrix], form: packing.Form) -> Value:
        key = (tuple(found), form.tiles)
        if key not in self.together:
            self.together[key] = self._head("aten.cat", [self._pack(matrix, form) for matrix in found], 0)
        return self.together[key]

    def _product(self, x: Value, weight: Optional[_Matrix], dtype: str) -> Optional[Value]:
        if weight is None:
            return None
        form = packing.form_of(weight.data)
        low = self._taken(x, form)
        if not low:
            return None
        flat, result = self._lowered(x if x.rank > 1 else x.unsqueeze(0), low, dtype)
        y = ops.build(self.function, "accrt.linear_quantized", flat, self._pack(weight, form), None, None, form, form.n, "none", result)
        y = y if result == dtype else y.to_copy(dtype)
        return y if x.rank > 1 else y.squeeze(0)

    # -- what is made of weights

    def _head(self, name: str, *args: Any) -> Value:
        """An operation before all others."""
        aside = Block(self.function)
        with self.function.inside(aside):
            made = ops.build(self.function, name, *args)
        for op in aside.ops:
            op.block = self.function.body
        self.heads += aside.ops
        return made

    def _components(self, matrix: _Matrix) -> List[Value]:
        return [self._component(matrix, role) for role, _type in packing.form_of(matrix.data).roles]

    def _component(self, matrix: _Matrix, role: str) -> Value:
        """Of one matrix of many it is a part, unless they share it."""
        whole = self._head("accrt.component", self.function.constant(matrix.constant), role)
        size = matrix.data.size_bytes(role)
        if matrix.index is None or size == whole.shape[0]:
            return whole
        return self._head("aten.slice", whole, 0, matrix.index * size, (matrix.index + 1) * size)

    def _pack(self, matrix: _Matrix, form: packing.Form) -> Value:
        key = (matrix, form.tiles)
        if key not in self.packed:
            self.packed[key] = self._head("accrt.pack_quantized", self._components(matrix), form, self.family)
        return self.packed[key]

    def _dequantized(self, weight: Value) -> Value:
        name = weight.constant.name
        if name not in self.plain:
            matrix = _Matrix(weight.constant, None)
            self.plain[name] = self._head("accrt.dequantize", self._components(matrix), packing.form_of(matrix.data))
        return self.plain[name]


def quantize_weights(module: Module, wanted: Dict[str, Any]) -> Tuple[Module, List[str]]:
    """A copy of the module whose plain matrices are quantized: `wanted` has patterns of names (as a
    shell's) and layouts, or functions from an array to a Quantized. Says which became so. The first
    pattern that fits a name holds; None leaves it as it is. A pattern that no name fits is an
    error."""
    import fnmatch

    from ..quantizers import quantize
    from .tidy import clone

    work, changed = clone(module), []
    for pattern in wanted:
        if not fnmatch.filter(work.constants, pattern):
            raise IRError(f"quantize: no constant's name fits {pattern!r}")
    for name, constant in list(work.constants.items()):
        pattern, layout = next(((p, layout) for p, layout in wanted.items() if fnmatch.fnmatchcase(name, p)), ("", None))
        plain = constant.type.encoding == "plain" and constant.data is not None and constant.type.rank >= 2 and constant.external is None
        if layout is None or not plain or constant.type.dtype not in ("f32", "f16", "bf16"):
            continue
        from ..reference import decode

        array = decode(constant.data, constant.type.dtype)
        try:
            made = layout(array) if callable(layout) else quantize(array, layout, dtype=constant.type.dtype)
        except ValueError as error:
            raise IRError(f"quantize: constant {name!r}, which fits {pattern!r}: {error}") from error
        del work.constants[name]
        replaced = work.weight(name, made)
        changed.append(name)
        for function in work.functions.values():
            value = function.constants.get(name)
            if value is not None:
                value.constant, value.type = replaced, replaced.type
    return work, changed
