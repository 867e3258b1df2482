"""The oracle: runs a function of the IR in numpy, every float type as float64, integers exactly.

It knows no kernel, no pass and no file, so what it says is independent of how a bundle calculates.
It runs functions as they were built (before passes) and also what passes made of them, which is how
each pass is tested.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from .._bits import refuse_masked
from . import expr as ex
from . import ops
from .arguments import integer, near
from .encodings import Quantized, dequantize
from .declared import FLOATS, Constant
from .ir import Block, Function, IRError, Module, Op, Value
from .ops.lora import FACTORS, SECOND_FACTORS

NUMPY = {
    "bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64, "f16": np.float64, "bf16": np.float64, "f32": np.float64, "f64": np.float64,
}  # fmt: skip


def decode(data: Any, dtype: str) -> np.ndarray:
    """Stored data as the reference calculates with it; bf16 comes as uint16 bits or as numbers."""
    refuse_masked(data)
    array = np.asarray(data)
    if dtype == "bf16" and array.dtype == np.uint16:
        array = np.asarray(array.astype(np.uint32) << 16, np.uint32).view(np.float32)
    return array.astype(NUMPY[dtype])


class Interpreter:
    """Runs functions of one module; keeps the contents of states between runs, as a session
    does."""

    def __init__(self, module: Module, session: Optional[Mapping[str, int]] = None, weights: Optional[Mapping[str, Any]] = None):
        """`session`: sizes that are given when a session is made. `weights`: values of those that
        the module does not hold."""
        self.module = module
        self.session = dict(session or {})
        for s in module.symbols.values():
            if s.symbol_class.name == "SESSION":
                self.session.setdefault(s.name, s.maximum)
        self.constants: Dict[str, np.ndarray] = {name: np.asarray(w, np.float64) for name, w in (weights or {}).items()}
        self.states: Dict[str, np.ndarray] = {}
        for state in module.states.values():
            shape = [ex.evaluate(size, self.session) for size in state.type.shape]
            bits = state.fill_pattern
            width = {"bf16": 16}.get(state.type.dtype, 0)
            filled = decode(np.full(shape, bits, np.uint16), "bf16") if width else np.full(shape, _pattern(bits, state.type.dtype))
            self.states[state.name] = filled.astype(NUMPY[state.type.dtype])

    def run(self, name: str, *inputs: Any, **scalars: int) -> List[np.ndarray]:
        """Results of a function; tensor inputs in order, scalars by name."""
        if name not in self.module.functions:
            raise IRError(f"there is no function {name!r}{near(name, self.module.functions)}")
        function = self.module.functions[name]
        values, symbols = self._bind(function, inputs, scalars)
        return self._run(function, values, symbols)

    def _bind(self, function: Function, inputs: Sequence[Any], scalars: Mapping[str, int]):
        tensors = [i for i in function.inputs if i.value is not None]
        if len(tensors) != len(inputs):
            raise IRError(f"function {function.name!r} takes {len(tensors)} tensors, {len(inputs)} are given")
        symbols = dict(self.session)
        names = [i.name for i in function.inputs if i.symbol]
        if sorted(scalars) != sorted(names):
            raise IRError(f"function {function.name!r} takes the scalars {names}, {sorted(scalars)} are given")
        for i in function.inputs:
            if i.symbol:
                symbols[i.symbol] = integer(scalars[i.name], f"function {function.name!r}: scalar {i.name!r}")
        values: Dict[int, np.ndarray] = {}
        for index, i in enumerate(function.inputs):
            if i.optional:
                symbols[f"present({index})"] = int(inputs[tensors.index(i)] is not None)
        for i, data in zip(tensors, inputs):
            if data is None:
                continue
            try:
                array = decode(data, i.value.dtype)
            except (TypeError, ValueError) as error:
                raise IRError(f"function {function.name!r}, input {i.name!r}: {error}") from None
            values[id(i.value)] = array.copy() if i.access != "read" else array
            for size, actual in zip(i.value.shape, array.shape):
                if isinstance(size, ex.Expr) and size.op == "symbol":
                    symbols.setdefault(size.value, actual)
        for i, data in zip(tensors, inputs):
            if data is None:
                continue
            expected = tuple(ex.evaluate(size, symbols) for size in i.value.shape)
            if expected != values[id(i.value)].shape:
                raise IRError(f"function {function.name!r}, input {i.name!r}: {values[id(i.value)].shape}, not {expected}")
        return values, symbols

    def _run(self, function: Function, values: Dict[int, np.ndarray], symbols: Dict[str, int]) -> List[np.ndarray]:
        run = _Run(self, function, values, symbols)
        run.block(function.body, [])
        return [run.of(result.value) for result in function.results]


def _pattern(bits: int, dtype: str) -> Any:
    sizes = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    kind = np.dtype(sizes.get(dtype, NUMPY[dtype]))
    return np.frombuffer(bits.to_bytes(8, "little")[: kind.itemsize], kind)[0]


class _Run:
    def __init__(self, interpreter: Interpreter, function: Function, values: Dict[int, np.ndarray], symbols: Dict[str, int]):
        self.interpreter, self.function, self.values, self.symbols = interpreter, function, values, symbols

    def of(self, value: Optional[Value]) -> Optional[np.ndarray]:
        if value is None:
            return None
        if value.constant is not None:
            return self._constant(value.constant)
        return self.values[id(value)]

    def _constant(self, constant: Constant) -> np.ndarray:
        cache = self.interpreter.constants
        if constant.name not in cache:
            unknown = constant.data is None or isinstance(constant.data, Quantized) and constant.data.components["data"] is None
            if unknown and constant.external is not None:
                raise IRError(f"constant {constant.name!r} is outside the module: give its values in weights=")
            if constant.data is None:
                self._prepare(constant)
            elif isinstance(constant.data, Quantized):
                cache[constant.name] = dequantize(constant.data).astype(np.float64)
            else:
                cache[constant.name] = decode(constant.data, constant.type.dtype)
        return cache[constant.name]

    def _prepare(self, constant: Constant) -> None:
        """Runs the prepare function that makes a constant; its results carry the constants'
        names."""
        for function in self.interpreter.module.functions.values():
            if function.prepare and constant.name in [r.name for r in function.results]:
                for result, array in zip(function.results, self.interpreter._run(function, {}, dict(self.symbols))):
                    self.interpreter.constants[result.name] = array
                return
        raise IRError(f"constant {constant.name!r} has no data, and no prepare function makes it")

    def size(self, size: Any, inductions: Sequence[int]) -> int:
        return ex.evaluate(size, self.symbols, inductions)

    def block(self, block: Block, inductions: List[int]) -> List[np.ndarray]:
        for op in block.ops:
            with np.errstate(all="ignore"):
                results = self.op(op, inductions)
            for value, array in zip(op.results, results):
                self._check(op, value, array, inductions)
                self.values[id(value)] = array
        return [self.of(value) for value in block.yields]

    def _check(self, op: Op, value: Value, array: np.ndarray, inductions: Sequence[int]) -> None:
        expected = tuple(self.size(s, inductions) for s in value.shape)
        if array.shape != expected or array.dtype != np.dtype(NUMPY[value.dtype]):
            raise IRError(f"{op.where}: the reference gives {array.dtype}{array.shape}, inferred is {value.type} = {expected}")

    def op(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        special = getattr(self, "_" + op.name.replace(".", "_"), None)
        if special is not None:
            return special(op, inductions)
        definition = ops.OPS[op.name]
        args = [self.of(v) for v in op.operands]
        attrs = {k: self.size(v, inductions) if isinstance(v, ex.Expr) else v for k, v in op.attrs.items()}
        attrs.update({name: self.interpreter.states[op.attrs[name].name] for name, _written in definition.states})
        try:
            made = definition.reference(*args, **attrs)
        except IndexError as error:
            raise IRError(f"{op.where}: {error}") from None
        made = list(made) if isinstance(made, tuple) else [made] if op.results else []
        return [np.asarray(array).astype(NUMPY[value.dtype]) for value, array in zip(op.results, made)]

    # -- operations that need more than their operands

    def _shape(self, value: Value, inductions: Sequence[int]) -> List[int]:
        return [self.size(s, inductions) for s in value.shape]

    def _aten__to_copy(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, dtype = self.of(op.operands[0]), op.attrs["dtype"]
        if x.dtype.kind == "f" and dtype not in FLOATS and dtype != "bool":
            info = np.iinfo(NUMPY[dtype])
            whole = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
            low, high = whole <= float(info.min), whole >= float(info.max)
            safe = np.where(low | high, 0, whole).astype(NUMPY[dtype])
            return [np.where(low, info.min, np.where(high, info.max, safe)).astype(NUMPY[dtype])]
        return [(x != 0) if dtype == "bool" else x.astype(NUMPY[dtype])]

    def _aten_full(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        value = self.size(op.attrs["fill_value"], inductions) if isinstance(op.attrs["fill_value"], ex.Expr) else op.attrs["fill_value"]
        # wraps around
        return [np.full(self._shape(op.result, inductions), np.asarray(value).astype(NUMPY[op.result.dtype]))]

    def _aten_arange(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        start, step = self.size(op.attrs["start"], inductions), self.size(op.attrs["step"], inductions)
        count = self._shape(op.result, inductions)[0]
        return [(start + step * np.arange(count)).astype(NUMPY[op.result.dtype])]

    def _aten_view(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.of(op.operands[0]).reshape(self._shape(op.result, inductions))]

    def _aten_permute(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.of(op.operands[0]).transpose([ops.axis_of(d, op.result.rank) for d in op.attrs["dims"]])]

    def _aten_expand(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [np.broadcast_to(self.of(op.operands[0]), self._shape(op.result, inductions))]

    def _aten_slice(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        source = self.of(op.operands[0])
        axis = ops.axis_of(op.attrs["dim"], source.ndim)
        start, end = (self.size(s, inductions) for s in ops.slice_bounds(op))
        if not 0 <= start <= end <= source.shape[axis]:
            raise IRError(f"{op.where}: slice [{start}:{end}] of dimension {axis} of size {source.shape[axis]}")
        index = [slice(None)] * source.ndim
        index[axis] = slice(start, end, op.attrs["step"])
        return [source[tuple(index)]]

    def _aten_select(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        source = self.of(op.operands[0])
        return [np.take(source, self.size(op.attrs["index"], inductions), ops.axis_of(op.attrs["dim"], source.ndim))]

    def _aten_cat(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [np.concatenate([self.of(v) for v in op.operands], op.attrs["dim"])]

    def _aten_index_select(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        source, index = (self.of(v) for v in op.operands)
        return [np.take(source, index.astype(np.int64), ops.axis_of(op.attrs["dim"], source.ndim))]

    def _aten_gather(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        source, index = (self.of(v) for v in op.operands)
        axis = ops.axis_of(op.attrs["dim"], source.ndim)
        cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
        return [np.take_along_axis(source[cut], index.astype(np.int64), axis)]

    def _accrt_state_read(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.interpreter.states[op.attrs["state"].name].copy()]

    def _accrt_state_write(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        value, state = self.of(op.operands[0]), self.interpreter.states[op.attrs["state"].name]
        starts = [self.size(offset, inductions) for offset in op.attrs["offsets"]]
        place = tuple(slice(start, start + n) for start, n in zip(starts, value.shape))
        if state[place].shape != value.shape:
            raise IRError(f"{op.where}: {value.shape} at {starts} lies outside state {state.shape}")
        state[place] = value
        return []

    def _accrt_write_input(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        found = next(i for i in self.function.inputs if i.name == op.attrs["name"])
        self.values[id(found.value)] = self.of(op.operands[0]).copy()
        return []

    def _accrt_call(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        callee = self.interpreter.module.functions[op.attrs["callee"]]
        scalars = {name: self.size(size, inductions) for name, size in op.attrs["scalars"].items()}
        values, symbols = self.interpreter._bind(callee, [self.of(v) for v in op.operands], scalars)
        return self.interpreter._run(callee, values, {**self.symbols, **symbols})

    def _accrt_kernel(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        kernel, reference = op.attrs["kernel"], op.attrs["reference"]
        if reference is None:
            raise IRError(f"{op.where}: kernel {kernel.name!r} has no reference")
        values = {k: self.size(v, inductions) if isinstance(v, ex.Expr) else v for k, v in op.attrs["values"].items()}
        given = [self.of(v) for v in op.operands]
        for index, state in op.attrs["states"]:
            given.insert(index, self.interpreter.states[state.name])
        made = reference(*given, **values)
        return [] if not op.results else list(made) if isinstance(made, (list, tuple)) else [made]

    def _accrt_repeat(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        region, carried = op.regions[0], [self.of(v) for v in op.operands]
        for index in range(self.size(op.attrs["count"], inductions)):
            for value, array in zip(region.args, carried):
                self.values[id(value)] = array
            carried = self.block(region, inductions + [index])
        return carried

    def _accrt_cond(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return self.block(op.regions[0 if self.size(op.attrs["condition"], inductions) else 1], inductions)

    # -- what passes make

    def _accrt_elementwise(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        symbols = [self.size(s, inductions) for s in op.attrs["symbols"]]
        return self._program(op, op.attrs["program"], [self.of(v) for v in op.operands], symbols, self._shape(op.result, inductions))

    def _accrt_staged(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        at, inputs = op.attrs, [self.of(v) for v in op.operands]
        before, after = ([self.size(s, inductions) for s in at[name]] for name in ("before_symbols", "after_symbols"))
        shape = tuple(self.size(s, inductions) for s in at["shape"])
        (made,) = self._program(op, at["before"], inputs[: at["count"]], before, shape)
        core = np.asarray(ops.OPS[at["core"]].reference(made, **at["core_attrs"]))
        return self._program(op, at["after"], [core, *inputs[at["count"] :]], after, core.shape)

    def _program(self, op: Op, program: Any, inputs: List[np.ndarray], symbols: List[int], shape: Any) -> List[np.ndarray]:
        values: List[np.ndarray] = []
        for node in program.nodes:
            values.append(self._node(op, node, values, inputs, symbols, shape))
        return [np.array(np.broadcast_to(values[i], shape), NUMPY[program.nodes[i].dtype]) for i in program.outputs]

    def _node(self, op: Op, node: Any, values: List[np.ndarray], inputs: Any, symbols: Any, shape: Any) -> np.ndarray:
        from .passes.fuse import ATEN_OF

        kind = NUMPY[node.dtype]
        if node.op == "input":
            return inputs[node.value]
        if node.op == "take":
            return self._taken(op, inputs[node.value[0]], node.value[1], [values[i] for i in node.args], shape)
        if node.op in ("const", "symbol"):
            return np.asarray(symbols[node.value] if node.op == "symbol" else node.value).astype(kind)
        if node.op == "index":
            return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        args = [values[i] for i in node.args]
        if node.op == "cast":
            fake = Op("aten._to_copy", [], {"dtype": node.dtype}, op.block)
            return _cast(self, fake, args[0])
        if node.op == "clamp":
            return np.minimum(np.maximum(args[0], args[1]), args[2])
        aten = ATEN_OF[node.op]
        attrs = {"approximate": "tanh"} if node.op == "gelu_tanh" else {}
        return np.asarray(ops.OPS[aten].reference(*args, **attrs)).astype(kind)

    @staticmethod
    def _taken(op: Op, x: np.ndarray, axes: Sequence[int], places: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
        looked_up = dict(zip(axes, places))
        index: List[np.ndarray] = []
        for axis, size in enumerate(x.shape):
            place = looked_up.get(axis)
            if place is None:
                place = np.arange(size).reshape([size] + [1] * (x.ndim - 1 - axis))
            elif place.size and (place.min() < 0 or place.max() >= size):
                raise IRError(f"{op.where}: an index is outside an axis of size {size}")
            index.append(np.broadcast_to(place.astype(np.int64), shape))
        return x[tuple(index)]

    def _accrt_pack(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        """[k, n] as [panels, k, columns of a panel], the last panel padded with zeros."""
        matrix = self.of(op.operands[0])
        panels, k, width = op.result.shape
        padded = np.zeros((k, panels * width))
        padded[:, : matrix.shape[1]] = matrix
        return [padded.reshape(k, panels, width).transpose(1, 0, 2)]

    def _accrt_matmul_packed(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, packed, bias, residual = (self.of(v) for v in op.operands)
        return self._epilogue(op, x @ packed.transpose(1, 0, 2).reshape(packed.shape[1], -1)[:, : op.attrs["columns"]], bias, residual)

    def _accrt_component(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.of(op.operands[0])]  # the whole weight stands for each of its components

    def _accrt_pack_quantized(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.of(op.operands[0])]

    _accrt_dequantize = _accrt_pack_quantized

    def _accrt_embedding_quantized(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return [self.of(op.operands[0])[self.of(op.operands[-1]).astype(np.int64)]]

    _accrt_embedding_packed = _accrt_embedding_quantized

    def _accrt_linear_quantized(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, bias, residual = (self.of(v) for v in op.operands)
        return self._epilogue(op, x @ weight.T, bias, residual)

    def _accrt_grouped_quantized(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weights, ends = (self.of(v) for v in op.operands)
        form = op.attrs["form"]
        return [ops.OPS["accrt.grouped_linear"].reference(x, weights.reshape(op.attrs["matrices"], form.n, form.k), ends)]

    def _accrt_product(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, bias, residual = (self.of(v) for v in op.operands)
        return self._epilogue(op, x @ weight, bias, residual)

    def _accrt_step_product(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, norm, bias = (self.of(v) for v in op.operands)
        if op.attrs["eps"] is not None:
            x = ops.OPS["aten.rms_norm"].reference(x, norm, op.attrs["eps"])
        if not op.attrs["gated"]:
            return self._epilogue(op, x @ weight, bias, None)
        first, second = np.split(x @ weight, 2, -1)
        return [self._activated(first, op.attrs["activation"]) * second]

    def _accrt_lora_pair(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        y, x, index = (self.of(v) for v in op.operands[:3])
        first, second = ([self.interpreter.states[op.attrs[name].name] for name in names if name in op.attrs] for names in (FACTORS, SECOND_FACTORS))
        shrunk = ops.OPS["accrt.lora_shrink2"].reference(x, index, **dict(zip(FACTORS, first)))
        made = ops.OPS["accrt.lora_expand2"].reference(y, shrunk, index, **dict(zip(FACTORS, second)))
        if op.attrs["gate"] is None:
            return [made]
        gate, up = np.split(made, 2, -1)
        return [self._activated(gate, op.attrs["gate"]) * up]

    _accrt_lora_pair2 = _accrt_lora_pair3 = _accrt_lora_pair

    def _accrt_turned_product(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, norm, bias, *given = (None if v is None else self.of(v) for v in op.operands)
        if op.attrs["eps"] is not None:
            x = ops.OPS["aten.rms_norm"].reference(x, norm, op.attrs["eps"])
        y = x @ weight if bias is None else x @ weight + bias
        kv_heads, size = op.attrs["keys"].type.shape[-2:]
        parts = np.split(y, [op.attrs["heads"] * size, (op.attrs["heads"] + kv_heads) * size], -1)
        return self._turned_and_written(op, *(part.reshape(len(y), count, -1) for part, count in zip(parts, (op.attrs["heads"], kv_heads, kv_heads))), *given)

    def _accrt_rope_scatter(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        return self._turned_and_written(op, *(self.of(value) for value in op.operands))

    def _accrt_step_tokens(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        given, weight, rows, row_ids, pages, slots, starts, lengths = (self.of(value) for value in op.operands)
        states = self.interpreter.states
        ops.OPS["accrt.state_scatter"].reference(pages, slots, states[op.attrs["page_table"].name])
        ids = np.where(given < 0, states[op.attrs["last"].name].reshape(-1)[row_ids[rows]], given)
        alone = np.arange(len(given))[: len(lengths)]
        keys = np.zeros(len(given), np.int64)
        keys[alone] = np.where((starts[alone] == alone) & (starts[alone + 1] == alone + 1), lengths[alone], 0)
        return [weight[np.clip(ids, 0, len(weight) - 1)], np.argsort(-keys, kind="stable").astype(np.int32)]

    def _accrt_walked_attention(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        q, row_ids, row_starts, kv_lengths, sinks = (None if v is None else self.of(v) for v in op.operands[:5])
        states = {name: self.interpreter.states[op.attrs[name].name] for name in ("keys", "values", "page_table")}
        more = {name: op.attrs[name] for name in ("scale", "window", "soft_cap", "chunk")}
        return [ops.OPS["accrt.paged_attention"].reference(q, row_ids, row_starts, kv_lengths, sinks, **states, **more)]

    def _accrt_greedy(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, slots = (self.of(value) for value in op.operands)
        token = ops.OPS["aten.argmax"].reference(x, -1).astype(np.int32)
        ops.OPS["accrt.state_scatter"].reference(token, slots, self.interpreter.states[op.attrs["last"].name])
        return [token]

    def _turned_and_written(
        self, op: Op, q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, slots: np.ndarray
    ) -> List[np.ndarray]:
        turn, scatter = ops.OPS["accrt.rope_at"].reference, ops.OPS["accrt.state_scatter"].reference
        states = self.interpreter.states
        for value, name in ((turn(k, positions, frequencies, op.attrs["scale"], op.attrs["interleaved"]), "keys"), (v, "values")):
            scatter(value, slots, states[op.attrs[name].name])
        return [turn(q, positions, frequencies, op.attrs["scale"], op.attrs["interleaved"])]

    def _accrt_conv_packed(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, packed, bias, residual = (self.of(v) for v in op.operands)
        groups, (high, wide) = op.attrs["groups"], op.attrs["window"].kernel
        each = op.attrs["columns"] // groups
        if packed.ndim == 2:  # of CUDA: rows with zeros behind them
            weight = packed[:, : high * wide * (x.shape[3] // groups)].reshape(packed.shape[0], high, wide, -1).transpose(0, 3, 1, 2)
            return self._epilogue(op, self._convolved(op, x, weight, groups), bias, residual)
        matrices = [part.transpose(1, 0, 2).reshape(packed.shape[1], -1)[:, :each] for part in np.split(packed, groups)]
        weight = np.concatenate([m.reshape(high, wide, -1, each).transpose(3, 2, 0, 1) for m in matrices])
        return self._epilogue(op, self._convolved(op, x, weight, groups), bias, residual)

    def _accrt_window(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, bias, residual = (self.of(v) for v in op.operands)
        window, kind = op.attrs["window"], op.attrs["kind"]
        if kind == "depthwise":
            y = self._convolved(op, x, weight.T.reshape(-1, 1, *window.kernel), x.shape[3])
        else:
            at = {"kernel": window.kernel, "stride": window.stride, "padding": window.pads, **({"dilation": window.dilation} if kind == "max" else {})}
            y = ops.OPS["aten.max_pool2d" if kind == "max" else "aten.avg_pool2d"].reference(x.transpose(0, 3, 1, 2), **at).transpose(0, 2, 3, 1)
        return self._epilogue(op, y, bias, residual)

    def _accrt_group_norm_last(self, op: Op, inductions: List[int]) -> List[np.ndarray]:
        x, weight, bias, residual = (self.of(v) for v in op.operands)
        y = ops.OPS["aten.group_norm"].reference(x.transpose(0, 3, 1, 2), weight, None, op.attrs["groups"], op.attrs["eps"])
        return self._epilogue(op, y.transpose(0, 2, 3, 1), bias, residual)

    def _convolved(self, op: Op, x: np.ndarray, weight: np.ndarray, groups: int) -> np.ndarray:
        at = op.attrs["window"]
        made = ops.OPS["aten.conv2d"].reference(x.transpose(0, 3, 1, 2), weight, None, at.stride, at.pads, at.dilation, groups)
        return made.transpose(0, 2, 3, 1)

    def _epilogue(self, op: Op, y: np.ndarray, bias: Any, residual: Any) -> List[np.ndarray]:
        y = self._activated(y if bias is None else y + bias, op.attrs["activation"])
        return [self._activated(y if residual is None else y + residual, op.attrs.get("last", "none"))]

    @staticmethod
    def _activated(y: np.ndarray, activation: str) -> np.ndarray:
        if activation == "none":
            return y
        aten, attrs = {"gelu_tanh": ("aten.gelu", {"approximate": "tanh"})}.get(activation, ("aten." + activation, {}))
        return ops.OPS[aten].reference(y, **attrs)


def _cast(run: _Run, fake: Op, array: np.ndarray) -> np.ndarray:
    holder = Value.__new__(Value)
    run.values[id(holder)] = np.asarray(array)
    holder.constant = None
    fake.operands = [holder]
    result = run._aten__to_copy(fake, [])[0]
    del run.values[id(holder)]
    return result
