"""A fuzzer of accrt.torch, accrt.from_torch and accrt.from_onnx: random arguments, right and wrong,
beside torch's, numpy's and onnx's own results.

    python3 tests/fuzz/torch_surface.py [--seed N] [--operations N] [--only PART] [--log FILE]

It needs torch, and onnx for from_onnx. AREAS has the public names of the three, with what fuzzes
each; tests/python/test_torch_surface.py compares it with the packages. torch_converting.py has the
models that are converted.

Tensors come in any form: of another type, rank or size, with strides, of a size of 0 or beyond all
memory, meta, sparse, quantized, inference, negated, with NaN in them, that require a gradient, of a
subclass; or no tensors at all. Operators are called by position and keyword, in modes of torch, in
threads, and after what they were made of is gone.

What comes out has to be the reference's result, or an error. A call that is plainly right may not
be refused, and one that is plainly wrong may not succeed. What is only read stays as it is. What
may not come out: another exception, a crash (run it under ASan: ./dev soak torch), a hang.
"""
from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import logging
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import accrt  # noqa: E402 - from the tree
import accrt.torch  # noqa: E402
import torch_converting  # noqa: E402
from accrt.compiler import compile as compile_bundle, Module as IrModule  # noqa: E402
from torch_converting import describe, Finding, readable, Refusing, same, targets  # noqa: E402

F = torch.nn.functional
#: Public names, and the method of a part that calls each.
AREAS = {
    "torch.operator": "operators", "torch.Module": "modules", "torch.backend": "backends",
    "from_torch.from_torch": "from_torch", "from_torch.convert": "from_torch", "from_torch.exported": "from_torch", "from_torch.Method": "from_torch",
    "from_torch.UnsupportedOperations": "from_torch",
    "from_onnx.from_onnx": "from_onnx", "from_onnx.convert": "from_onnx", "from_onnx.Method": "from_onnx", "from_onnx.UnsupportedOperations": "from_onnx",
}
MOST_ROWS = 1 << 16
HUGE = 1 << 48  # rows: more than any memory


# ---- Operators: what each is called with, and what torch says of it


class Spec:
    """An operator. inputs: (name, type, dimensions, kind), where a dimension is a number or a
    symbol, and the kind is "read", "write", "optional" or "scalar"."""

    def __init__(self, inputs, reference, backward=False, rtol=1e-4, least=None) -> None:
        self.inputs, self.reference, self.backward, self.rtol = inputs, reference, backward, rtol
        self.least = least or {}  # of symbols, instead of 0
        self.writes = any(kind == "write" for *_rest, kind in inputs)

    def is_right(self, args, named) -> "bool | None":
        """Whether a call has to succeed (True) or to be refused (False); None: it may do either."""
        names = [name for name, *_rest in self.inputs]
        if len(args) > len(names) or any(not isinstance(key, str) for key in named) or set(named) - set(names[len(args):]):
            return False
        given = {**dict(zip(names, args)), **named}
        symbols: dict[str, int] = {}
        sure, devices = True, set()
        for name, dtype, dims, kind in self.inputs:
            if name not in given:
                return False  # also of what is optional: the schema has no default
            one = given[name]
            if kind == "optional" and one is None:
                continue
            if kind == "scalar":
                if type(one) is not int:
                    sure = False
                    continue
                symbols[name] = one
                continue
            if not isinstance(one, torch.Tensor) or type(one) is Refusing or one.is_nested or one.dtype != dtype or one.dim() != len(dims) or one.layout != torch.strided or one.device.type not in ("cpu", "meta"):
                return False
            devices.add(one.device.type)
            for dim, size in zip(dims, one.shape):
                if isinstance(dim, int):
                    if dim != size:
                        return False
                elif symbols.setdefault(dim, size) != size:
                    return False
                elif one.device.type == "cpu" and not is_fake(one) and not self.least.get(dim, 0) <= size <= MOST_ROWS:
                    return False
            if type(one) not in (torch.Tensor, torch.nn.Parameter):
                sure = False
            if kind == "write" and one.requires_grad and torch.is_grad_enabled():
                return False
            if kind == "write" and _overlaps(one) or one.is_inference() and not torch.is_inference_mode_enabled():
                sure = False  # torch has rules of its own
        if len(devices) > 1:
            return False
        if devices != {"cpu"} or any(is_fake(one) for one in given.values()):
            return None  # sizes that do not fit scalars are refused where the work is done
        if "count" in symbols and not 0 <= symbols["count"] <= symbols.get("n", 0):
            return False
        return True if sure else None


def _overlaps(tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


def _rms(x, w, b):
    scale = ((x * x).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
    return x * scale * w + b, scale


F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SPECS = {
    "rms": Spec([("x", F32, ("n", 16), "read"), ("w", F32, (16,), "read"), ("b", F32, (16,), "read")], _rms, backward=True),
    "silu_mul": Spec([("x", F32, ("n", "k"), "read"), ("y", F32, ("n", "k"), "read")], lambda x, y: (F.silu(x) * y,), least={"k": 1}),
    "two": Spec([("x", F64, ("n", 8), "read")], lambda x: (x + 1.0, torch.cat([x, x], 0))),
    "add_one": Spec([("x", F32, ("n", 8), "write"), ("by", F32, (8,), "read")], lambda x, by: (x + by,)),
    "take": Spec([("x", F32, ("n", 8), "read"), ("count", None, (), "scalar")], lambda x, count: (x[: int(count)],)),
    "biased": Spec([("x", F32, ("n",), "read"), ("b", F32, ("n",), "optional")], lambda x, b: (x * 2.0 if b is None else x + b,)),
    "half": Spec([("x", BF16, ("n", 8), "read"), ("y2", BF16, ("n", 8), "read")], lambda x, y: (x + y,), rtol=1e-2),
    "given": Spec([("x", F32, ("n", 8), "read")], lambda x: (x * 3.0,)),
    "whole": Spec([("i", torch.int64, ("n",), "read"), ("m", torch.bool, ("n",), "read")], lambda i, m: (torch.where(m, i, i * 2),)),
}


def operators_module() -> IrModule:
    """The bundle of SPECS."""
    m = IrModule("fuzzed")
    n, k, count = m.symbol("n", minimum=0, maximum=MOST_ROWS), m.symbol("k", minimum=1, maximum=MOST_ROWS), m.symbol("count", minimum=0, maximum=MOST_ROWS)
    f = m.function("rms")
    x, w, b = f.input("x", "f32", [n, 16]), f.input("w", "f32", [16]), f.input("b", "f32", [16])
    scale = ((x * x).sum(-1, keepdim=True) * (1 / 16) + 1e-5).rsqrt()
    f.result("y", x * scale * w + b)
    f.result("scale", scale)
    g = m.function("rms_backward")
    dy, x, w, scale = g.input("grad_y", "f32", [n, 16]), g.input("x", "f32", [n, 16]), g.input("w", "f32", [16]), g.input("scale", "f32", [n, 1])
    unit = x * scale
    inner = (dy * w * unit).sum(-1, keepdim=True) * (1 / 16)
    g.result("grad_x", (dy * w - unit * inner) * scale)
    g.result("grad_w", (dy * unit).sum(0))
    g.result("grad_b", dy.sum(0))
    f = m.function("silu_mul")
    f.result("z", f.input("x", "f32", [n, k]).silu() * f.input("y", "f32", [n, k]))
    f = m.function("two")
    x = f.input("x", "f64", [n, 8])
    f.result("a", x + 1.0)
    f.result("b", f.cat([x, x], 0))
    f = m.function("add_one")
    (f.input("x", "f32", [n, 8], access="read_write") + f.input("by", "f32", [8])).write_input("x")
    f = m.function("take")
    x = f.input("x", "f32", [n, 8])
    f.scalar("count", count)
    f.result("y", x[:count])
    f = m.function("biased")
    x, b = f.input("x", "f32", [n]), f.input("b", "f32", [n], optional=True)
    f.result("y", f.cond(f.present(b), lambda: x + b, lambda: x * 2.0)[0])
    f = m.function("half")
    f.result("y", f.input("x", "bf16", [n, 8]) + f.input("y2", "bf16", [n, 8]))
    f = m.function("given")
    f.result("y", f.input("x", "f32", [n, 8], access="donated") * 3.0)
    f = m.function("whole")
    i, mask = f.input("i", "i64", [n]), f.input("m", "bool", [n])
    f.result("y", mask.where(i, i * 2))
    return m


class Named(torch.Tensor):
    """A subclass that does nothing."""


class Tensors:
    """Makes arguments."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def content(self, dtype, shape):
        made = torch.randn(shape) * self.random.choice((1, 1, 1, 0, 100))
        if made.numel() and self.one_in(6):
            made.view(-1)[self.random.randrange(made.numel())] = self.random.choice((float("nan"), float("inf"), -float("inf"), -0.0, 1e30, 1e-40))
        return made.to(dtype) if dtype.is_floating_point or dtype.is_complex else (made * 50).nan_to_num().clamp(-100, 100).to(dtype)

    def right(self, dtype, shape):
        """A tensor of this type and shape, which lies in memory in some way."""
        made, way = self.content(dtype, shape), self.random.randrange(14)
        if way == 1 and made.dim():
            wide = torch.zeros([2 * size for size in shape], dtype=dtype)
            wide[tuple(slice(None, None, 2) for _ in shape)] = made
            made = wide[tuple(slice(None, None, 2) for _ in shape)]
        elif way == 2 and made.dim() > 1:
            made = made.transpose(0, -1).contiguous().transpose(0, -1)
        elif way == 3:  # at an odd address
            flat = torch.zeros(made.numel() + 3, dtype=dtype)
            at = self.random.randrange(4)
            flat[at:at + made.numel()] = made.reshape(-1)
            made = flat[at:at + made.numel()].view(shape)
        elif way == 4 and made.dim() and shape[0]:
            made = made[:1].expand(shape)
        elif way == 5 and dtype.is_floating_point:
            made = made.requires_grad_()
        elif way == 6:
            made = torch.nn.Parameter(made, requires_grad=dtype.is_floating_point and self.one_in(2))
        elif way == 7:
            with torch.inference_mode():
                made = made.clone()
        elif way == 8 and dtype not in (torch.bool,):
            made = torch._neg_view(-made)
        elif way == 9:
            made = made.as_subclass(Named)
        elif way == 10 and made.numel():
            made = torch.from_numpy(made.contiguous().view(torch.uint8).numpy().copy()).view(dtype).view(shape) if made.dim() else made
        elif way == 11 and made.dim() == 2:
            made = torch.as_strided(torch.cat([made.reshape(-1), made.reshape(-1)]), shape, (shape[1], 1), 0)
        return made

    def wrong(self, dtype, shape):
        """Something else, at times right by chance."""
        pick, kind = self.random.choice, self.random.randrange(17)
        other = pick((torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.int8))
        near = self.content(dtype, shape)
        if kind == 0:
            return self.content(other, shape)
        if kind == 1:
            return self.content(dtype, [*shape, pick((0, 1, 3))])
        if kind == 2:
            return self.content(dtype, shape[1:])
        if kind == 3:
            return self.content(dtype, [pick((0, 1, size, size + 1, 7)) for size in shape])
        if kind == 4:
            return torch.empty(pick((shape, [HUGE, *shape[1:]], [])), dtype=pick((dtype, other)), device="meta")
        if kind == 5:
            return near.to_sparse() if near.numel() and dtype != torch.bool else None
        if kind == 6:
            return torch.zeros([1] * max(len(shape), 1), dtype=dtype).expand([pick((HUGE, 1 << 44, MOST_ROWS + 1)), *shape[1:]])
        if kind == 7:
            return torch.quantize_per_tensor(self.content(torch.float32, shape), 0.1, 10, torch.quint8)
        if kind == 8:
            return near.detach().float().numpy()
        if kind == 9:
            return near.as_subclass(Refusing)
        if kind == 10:
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) if self.one_in(2) else torch.nested.nested_tensor(
                [torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
        if kind == 11:
            return near.tolist()
        if kind == 12:
            return pick((None, 0, 1, -1, 1.5, float("nan"), True, "x", b"", object(), [], (), {}, [near], [None], 1 << 63, 1 << 70, np.float32(1), torch.Size([2]), torch.float32))
        if kind == 13:
            return torch.complex(self.content(torch.float32, shape), self.content(torch.float32, shape)).conj()
        if kind == 14:
            from torch._subclasses.fake_tensor import FakeTensorMode
            return FakeTensorMode().from_tensor(near)
        if kind == 15:
            return np.ones(shape, pick((np.float32, ">f4", "O", "S3"))) if self.one_in(2) else memoryview(bytes(16))
        return self.right(dtype, shape)


def plain(value):
    """The tensor as a reference takes it; another thing as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return value.as_subclass(torch.Tensor).detach().resolve_neg().clone()


class Fuzzer(torch_converting.Converting):
    def __init__(self, seed: int, log=None, only: str = "") -> None:
        self.random, self.log = random.Random(seed), log
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))
        logging.getLogger("accrt.torch").setLevel(logging.ERROR)
        logging.getLogger("torch").setLevel(logging.CRITICAL)
        warnings.simplefilter("ignore")
        self.tensors = Tensors(self.random)
        self.folder = tempfile.TemporaryDirectory(prefix="accrt-fuzz-")
        self.counts, self.errors, self.compared = Counter(), Counter(), 0
        self.instance = accrt.Instance(trust="all", options={"host.threads": 2})
        parts = {"operators": 300, "modules": 40, "backends": 4, "from_torch": 6, "from_onnx": 40}
        with contextlib.suppress(ImportError):
            import onnx  # noqa: F401
            self.has_onnx = True
        if not getattr(self, "has_onnx", False):
            del parts["from_onnx"]
        self.parts = {name: weight for name, weight in parts.items() if only in ("", name)}
        self.made = {}

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.seek(0)
            self.log.write(text[:800].replace("\n", " ").ljust(800) + "\n")
            self.log.flush()

    # ---- operators

    def bundle(self):
        if "bundle" not in self.made:
            path = os.path.join(self.folder.name, "fuzzed.accx")
            compile_bundle(operators_module(), path, targets=targets())
            self.made["bundle"] = path
        return self.made["bundle"]

    def registered(self, way: str) -> dict:
        """All operators, with kernels in Python or in C."""
        if way not in self.made:
            from accrt.torch import _shim

            fits, enter = _shim._fits, _shim.enter
            if way == "python":
                _shim._fits, _shim.enter = lambda operator: False, lambda *given: None
            try:
                program = accrt.Program(accrt.Bundle(self.bundle(), self.instance), self.instance.device("host"))
                self.made[way] = {name: accrt.torch.operator(program, name, backward="rms_backward" if spec.backward else None, name=f"fuzzed_{way}::{name}")
                                  for name, spec in SPECS.items()}
            finally:
                _shim._fits, _shim.enter = fits, enter
        return self.made[way]

    def operators(self) -> None:
        kind = self.random.randrange(40)
        if kind == 0:
            return self.make_operator()
        name, way = self.random.choice(list(SPECS)), self.random.choice(("python", "c", "c"))
        operator, spec = self.registered(way)[name], SPECS[name]
        args, named = self.operator_arguments(spec)
        self.note(f"{way} {name} {[describe(a) for a in args]} { {k: describe(v) for k, v in named.items()} }")
        with self.mode() as (mode, plainly):
            if mode == "threads":
                return self.in_threads(operator, spec)
            if mode == "vmap":
                return self.mapped(operator, spec)
            self.call(operator, spec, args, named, plainly)

    def operator_arguments(self, spec):
        sizes = {symbol: self.random.choice((0, 1, 2, 3, 5, 8, 8, 8, 17, 64)) for symbol in ("n", "k")}
        sizes["k"] = max(sizes["k"], spec.least.get("k", 0))
        args, often = [], self.random.choice((0, 0, 4, 2))
        for _name, dtype, dims, kind in spec.inputs:
            shape = [dim if isinstance(dim, int) else sizes[dim] for dim in dims]
            if kind == "scalar":
                value = self.random.randrange(sizes["n"] + 1) if not often or not self.one_in(often) else self.random.choice(
                    (-1, 0, 1, 8, 1 << 16, 1 << 31, (1 << 63) - 1, 1 << 63, -1 << 63, -(1 << 64), True, 1.0, 2.5, float("nan"), None, "1", torch.tensor(2),
                     torch.tensor(2.5), torch.tensor([1, 2]), np.int64(2), np.float32(2), [1], torch.float32))
            elif kind == "optional" and self.one_in(3):
                value = None
            elif often and self.one_in(often):
                value = self.tensors.wrong(dtype, shape)
            else:
                value = self.tensors.right(dtype, shape)
            args.append(value)
        if often and len(args) > 1 and self.one_in(6):  # one twice, or a part of another
            other = args[0]
            args[1] = other if self.one_in(2) or not readable(other) or other.dim() != 2 or not other.shape[0] else other[0]
        # torch's own message of fake tensors prints the others, and fails for ever if one is huge
        if any(type(a) is torch.Tensor and not a.is_nested and a.numel() > 1 << 24 for a in args):
            args = [None if is_fake(a) else a for a in args]
        named = {}
        while args and self.one_in(3):
            named[spec.inputs[len(args) - 1][0]] = args.pop()
        if often and self.one_in(8):
            named[self.random.choice(("nothing", "self", "out", "x", "weights"))] = None
        if often and self.one_in(8):
            args.append(self.random.choice((None, 1, torch.ones(2))))
        if often and args and self.one_in(8):
            args.pop()
        return args, named

    @contextlib.contextmanager
    def mode(self):
        """A mode of torch in which operators are called, and whether it changes nothing about what
        is right."""
        kind = self.random.randrange(16)
        if kind < 3:
            with torch.no_grad():
                yield "", True
        elif kind == 3:
            with torch.inference_mode():
                yield "", True
        elif kind == 4:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                yield "", False
        elif kind == 5:
            yield "threads", True
        elif kind == 6:
            yield "vmap", True
        elif kind == 7:
            with torch.device("meta"):
                yield "", False
        else:
            yield "", True

    def call(self, operator, spec, args, named, plainly: bool) -> None:
        given = [*args, *named.values()]
        right = spec.is_right(args, named) if plainly else None
        before = [plain(v) if readable(v) else None for v in given]
        try:
            made = operator(*args, **named)
        except Exception as error:
            self.refused(error)
            if right:
                raise Finding(f"a call that is right was refused: {type(error).__name__}: {error}") from error
            self.unchanged(spec, given, before, ())
            return
        if right is False:
            raise Finding(f"a call that is wrong gave {describe(made)}")
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        if any(is_meta(v) for v in given) and not spec.writes:
            values = {**dict(zip([n for n, *_rest in spec.inputs], given)), **named}
            if "count" in values and not 0 <= int(values["count"]) <= len(values["x"]):
                return  # sizes that do not fit scalars are refused where the work is done
            wanted = spec.reference(*[values[n] for n, *_rest in spec.inputs])
            if [(r.shape, r.dtype, r.device) for r in results] != [(w.shape, w.dtype, w.device) for w in wanted]:
                raise Finding(f"it gave {describe(results)}, and torch {describe(wanted)}")
        if not all(readable(v) for v in (*results, *(v for v in given if isinstance(v, torch.Tensor)))):
            return  # of meta tensors and their like, only the shapes are known
        seen = [v if old is None else old for v, old in zip(given, before)]
        values = {**dict(zip([name for name, *_rest in spec.inputs], seen)), **dict(zip(named, seen[len(args):]))}
        try:
            wanted = self.wanted(spec, values)
        except Exception as error:
            raise Finding(f"it gave {describe(results)}, and torch refuses: {error}") from error
        written = ()
        if spec.writes:
            written, results = wanted, ()
        elif len(results) != len(wanted) or not all(same(a.detach(), b, spec.rtol) for a, b in zip(results, wanted)):
            raise Finding(f"it gave {describe(results)}, and torch {describe(wanted)}")
        self.compared += 1
        self.unchanged(spec, given, before, written)
        if plainly and spec.backward and any(r.requires_grad for r in results):
            self.backward(spec, values, [*args, *named.values()], results)

    @staticmethod
    def wanted(spec, values):
        """What torch gives; of arguments that autocast changes, with the types that it makes."""
        cast = {name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() and dtype is not None and dtype.is_floating_point else value
                for (name, dtype, _dims, _kind) in spec.inputs for value in (values[name],)}
        # torch makes a number of what can be one
        cast.update({name: int(cast[name]) for name, _dtype, _dims, kind in spec.inputs if kind == "scalar"})
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return tuple(t.detach() for t in spec.reference(*[cast[name] for name, *_rest in spec.inputs]))

    def unchanged(self, spec, given, before, written) -> None:
        for at, (value, old) in enumerate(zip(given, before)):
            if isinstance(value, torch.Tensor) and old is not None:
                new, expected = plain(value), written[0] if written and at == 0 and not _overlaps(value) else old
                if written and at and _shares(value, given[0]):
                    continue
                if not (written and at == 0 and _overlaps(value)) and not same(new, expected, spec.rtol if written else 0):
                    raise Finding(f"argument {at} was changed: {describe(old)} is {describe(new)}")

    def backward(self, spec, values, given, results) -> None:
        grad = self.tensors.right(torch.float32, list(results[0].shape)).detach() if not self.one_in(4) else self.tensors.wrong(torch.float32, list(results[0].shape))
        leaves = [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad and v.is_leaf]
        try:
            found = torch.autograd.grad(results[0], leaves, grad, allow_unused=True)
        except Exception as error:
            return self.refused(error)
        if not readable(grad):
            return None
        copies = {name: values[name].clone().requires_grad_() for name, *_rest in spec.inputs}
        reference = spec.reference(*copies.values())[0]
        wanted = dict(zip(copies, torch.autograd.grad(reference, list(copies.values()), plain(grad))))
        for name, leaf, one in ((n, v, g) for n, v in zip(copies, given) for other, g in zip(leaves, found) if other is v):
            if sum(isinstance(other, torch.Tensor) and _shares(other, leaf) for other in given) == 1 and not same(one, wanted[name], 1e-2) and all(v.isfinite().all() for v in values.values()):
                raise Finding(f"the gradient of {name} is {describe(one)}, and torch's {describe(wanted[name])}")
        return None

    def right_arguments(self, spec, rows: int):
        sizes = {"n": rows, "k": self.random.choice((1, 3, 8))}
        return [self.random.randrange(rows + 1) if kind == "scalar" else self.tensors.content(dtype, [d if isinstance(d, int) else sizes[d] for d in dims])
                for _name, dtype, dims, kind in spec.inputs]

    def in_threads(self, operator, spec) -> None:
        sets, wrong = [self.right_arguments(spec, self.random.choice((1, 5, 33))) for _ in range(3)], []

        def work(args) -> None:
            for _ in range(3):
                mine = [plain(a) for a in args]
                try:
                    made = operator(*mine)
                except BaseException as error:  # noqa: BLE001 - it is told below
                    wrong.append(error)
                    return
                results = made if isinstance(made, tuple) else (made,) if made is not None else (mine[0],)
                wanted = spec.reference(*[plain(a) for a in args])
                wrong.extend([describe(a)] for a, b in zip(results, wanted) if not same(a, b, spec.rtol))

        threads = [threading.Thread(target=work, args=(args,)) for args in sets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            raise Finding(f"in threads: {wrong[0]!r}")
        self.compared += 9

    def mapped(self, operator, spec) -> None:
        if spec.writes or any(kind in ("scalar", "optional") for *_rest, kind in spec.inputs):
            return
        batch = self.random.choice((0, 1, 3))
        sets = [self.right_arguments(spec, 4) for _ in range(max(batch, 1))]
        shapes = [[a.shape for a in args] for args in sets]
        if any(shape != shapes[0] for shape in shapes):
            return
        stacked = [torch.stack(column)[:batch] for column in zip(*sets)]
        try:
            made = torch.vmap(operator)(*stacked)
        except Exception as error:
            self.refused(error)
            if batch:
                raise Finding(f"vmap was refused: {error}") from error
            return
        results = made if isinstance(made, tuple) else (made,)
        for at, args in enumerate(sets[:batch]):
            if not all(same(r[at], w, spec.rtol) for r, w in zip(results, spec.reference(*args))):
                raise Finding("vmap gave another result")

    def make_operator(self) -> None:
        pick = self.random.choice
        bundle = pick((lambda: self.bundle(), lambda: self.bundle(), lambda: accrt.Bundle(self.bundle(), self.instance),
                       lambda: accrt.Program(accrt.Bundle(self.bundle(), self.instance), self.instance.device("host")), lambda: None, lambda: 5,
                       lambda: "nothing.accx", lambda: self.folder.name, lambda: b"", lambda: self.bundle, lambda: "a\0b", lambda: object()))()
        name = pick((f"fuzzed_{len(self.counts)}::f{self.random.randrange(1 << 40)}", f"fuzzed_{len(self.counts)}::f{self.random.randrange(1 << 40)}", "", "x",
                     "a::b::c", "a::", "::b", "a b::c", "fuzzed_c::rms", 5, None, b"a::b", "a\0::b", "aten::add", "x" * 300 + "::y"))
        function = pick((*SPECS, *SPECS, "rms_backward", "none", "", "x" * 300, 5, None, "a\0b", "\udcff"))
        backward = pick((None, None, None, "rms_backward", "rms", "silu_mul", "none", 5, ""))
        if not name:  # the default is taken for ever then
            name = "fuzzed_default::f"
        made = None
        try:
            made = accrt.torch.operator(bundle, function, backward=backward, name=name)
        except Exception as error:
            self.note(f"operator({bundle!r}, {function!r}, backward={backward!r}, name={name!r})")
            self.refused(error)
        del bundle
        gc.collect()
        if made is not None and function in SPECS:
            spec = SPECS[function]
            self.call(made, spec, *self.operator_arguments(spec), plainly=True)

    # ---- a run

    def run(self, operations: int, report=None) -> None:
        names, weights = list(self.parts), list(self.parts.values())
        begin = last = time.monotonic()
        for done in range(operations):
            name = self.random.choices(names, weights)[0]
            self.note(f"{done} {name}")
            try:
                getattr(self, name)()
            except BaseException:
                print(f"operation {done}, {name}, ended as nothing may:", file=sys.stderr, flush=True)
                raise
            self.counts[name] += 1
            if self.one_in(500):
                gc.collect()
            if report is not None and time.monotonic() - last > report:
                last = time.monotonic()
                print(f"{done + 1} operations in {last - begin:.0f} s", flush=True)


def is_fake(value) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def is_meta(value) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "meta"


def _shares(a, b) -> bool:
    return readable(a) and readable(b) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--operations", type=int, default=5000)
    parser.add_argument("--only", default="", choices=("", *sorted(set(AREAS.values()))))
    parser.add_argument("--log", default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.operations} operations, torch {torch.__version__}, library {accrt.__version__} of {os.environ.get('ACCRT_LIBRARY', 'the tree')}", flush=True)
    faulthandler.enable()
    faulthandler.dump_traceback_later(600, repeat=True)
    log = open(options.log, "w", encoding="utf-8") if options.log else None  # noqa: SIM115 - until the end
    fuzzer = Fuzzer(seed, log, options.only)
    begin = time.monotonic()
    fuzzer.run(options.operations, report=30)
    faulthandler.cancel_dump_traceback_later()
    print(f"{sum(fuzzer.counts.values())} operations in {time.monotonic() - begin:.0f} s: {dict(fuzzer.counts)}; {fuzzer.compared} results compared; "
          f"{sum(fuzzer.errors.values())} were refused: {dict(fuzzer.errors.most_common())}", flush=True)


if __name__ == "__main__":
    main()
