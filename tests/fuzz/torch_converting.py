"""Models for the fuzzer of accrt.torch, from_torch and from_onnx (torch_surface.py): modules made
of bundles, graphs for the backend, and models that are converted, with what torch and onnx say of
them."""
from __future__ import annotations

import contextlib
import copy
import gc
import os
import traceback

import numpy as np
import torch

import accrt
import accrt.torch
from accrt import from_onnx, from_torch
from accrt.compiler import compile as compile_bundle, Interpreter, IRError, Module as IrModule

F = torch.nn.functional
ALLOWED = (accrt.Error, TypeError, ValueError, RuntimeError, NotImplementedError, IndexError, OverflowError, MemoryError, OSError, BufferError)
ROWS = 64  # most rows of the bundles of modules
MOST_MODULES = 40  # torch keeps what they register


class Finding(AssertionError):
    """Something came out that may not."""


class Refusing(torch.Tensor):
    """A subclass that no operation takes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError("it refuses")


def same(a, b, rtol: float) -> bool:
    """Whether two tensors are alike, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=rtol, equal_nan=True) if a.is_floating_point() else bool(torch.equal(a, b))


def readable(value) -> bool:
    """Whether a tensor has content that can be looked at."""
    from torch._subclasses.fake_tensor import FakeTensor

    return (isinstance(value, torch.Tensor) and not isinstance(value, (FakeTensor, Refusing)) and value.layout == torch.strided and value.device.type == "cpu"
            and not value.is_nested and not value.is_quantized and value.numel() <= 1 << 24)


def targets() -> list:
    """What this machine runs."""
    from accrt._kernel_source import target_of
    from accrt.instance import default_instance

    return [target_of(default_instance().device("host").info.arch)]


def describe(value) -> str:
    """A short text of anything."""
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe(v) for v in value) + ")"
    try:
        if isinstance(value, torch.Tensor):
            shown = value.detach().reshape(-1)[:3].tolist() if readable(value) else ""
            return f"{type(value).__name__} {value.dtype} {list(value.shape)} {value.device.type} {shown}{' grad' * value.requires_grad}"
        return f"{type(value).__name__} {value!r}"[:80]
    except Exception as error:  # noqa: BLE001 - of odd tensors
        return f"{type(value).__name__} ({type(error).__name__})"


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)).eval()


def trained_module() -> IrModule:
    """A function with a backward, for weights and an input that may be a parameter."""
    m = IrModule("train")
    n = m.symbol("n", minimum=0, maximum=ROWS)
    w = m.constant("proj.weight", np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
    f = m.function("forward")
    f.result("y", f.input("x", "f32", [n, 8]).linear(w) * f.input("scale", "f32", [4]))
    g = m.function("forward_backward")
    dy, x, scale = g.input("grad_y", "f32", [n, 4]), g.input("x", "f32", [n, 8]), g.input("scale", "f32", [4])
    g.result("grad_x", (dy * scale) @ g.constant(w))
    g.result("grad_proj.weight", (dy * scale).t() @ x)
    g.result("grad_scale", (dy * x.linear(w)).sum(0))
    return m


def trained_reference(values, x, scale):
    return F.linear(x, values["proj.weight"]) * scale


class Of(torch.nn.Module):
    """A module of a function."""

    def __init__(self, function, **tensors) -> None:
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args, **named):
        return self.function(self, *args, **named) if self._buffers else self.function(*args, **named)


def _counted(self, x):
    self.total.add_(x.sum())
    return x + self.total


#: Functions that are compiled and converted, and the shapes of their arguments.
GRAPHS = {
    "add": (lambda x, y: x + y * 2, ((4, 8), (4, 8))), "matmul": (lambda x, y: (x @ y).relu(), ((4, 8), (8, 4))),
    "sums": (lambda x: (x.sum(-1), x.mean(0), x.amax()), ((4, 8),)), "softmax": (lambda x: x.softmax(-1) + 1, ((4, 8),)),
    "cat": (lambda x, y: torch.cat([x, y, x], 0), ((4, 8), (2, 8))), "views": (lambda x: (x.view(-1), x.t() + 1), ((4, 8),)),
    "input again": (lambda x: (x, x * 2), ((4, 8),)), "twice": (lambda x: (lambda z: (z, z))(x + 1), ((4, 8),)),
    "parts": (lambda x: torch.cumsum(x.exp(), 0).sort(-1)[0] - torch.linalg.matrix_norm(x), ((4, 8),)),
    "in place": (lambda x: x.add_(1).mul(2), ((4, 8),)), "index": (lambda x, i: x[i] + 1, ((4, 8), (5,))),
    "where": (lambda x, y: torch.where(x > y, x, y.neg()), ((4, 8), (1, 8))), "number": (lambda x: x * 3 if x.dim() == 2 else x, ((4, 8),)),
    "nothing": (lambda x: (), ((4, 8),)), "shape": (lambda x: x.new_zeros(x.shape[0], 3) + x[:, :3], ((4, 8),)),
    # what is not finite has no one transform
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(torch.where(x.abs() < 1e4, x, 0.0))), ((4, 8),)),
    "item": (lambda x: x * x.sum().item(), ((4, 8),)),
    "decides": (lambda x: x + 1 if x.sum() > 0 else x - 1, ((4, 8),)), "nested": (lambda x: {"a": x + 1, "b": [x * 2, (x,)]}, ((4, 8),)),
    # what no integer holds has no one result
    "long": (lambda x: (torch.where(x.abs() < 100, x, 0.0).long() // 3, x.bool(), x.half().float()), ((4, 8),)),
}


class Converting:
    """Part of the fuzzer: what needs a model."""

    # ---- modules

    def module_bundle(self, kind: str) -> str:
        if kind not in self.made:
            path = os.path.join(self.folder.name, f"{kind}.accx")
            if kind == "net":
                rows = torch.export.Dim("rows", max=ROWS)
                compile_bundle(from_torch.convert(network(), (torch.ones(4, 8),), dynamic_shapes=({0: rows},), name="net"), path, targets=targets())
            else:
                compile_bundle(trained_module(), path, targets=targets())
            self.made[kind] = path
        return self.made[kind]

    def modules(self) -> None:
        """One thing done with one of the modules."""
        pool = self.made.setdefault("modules", [])
        kind = self.random.randrange(24)
        if not pool or kind < 2 and self.made.get("module count", 0) < MOST_MODULES:
            return self.make_module(pool)
        module = self.random.choice(pool)
        self.note(f"module {kind}")
        if kind < 10:
            return self.call_module(module)
        if kind < 20:
            return self.change(module, pool)
        if kind == 20 and len(pool) > 1:
            pool.remove(module)
        elif kind == 21:
            self.results_outlive(module, pool)
        elif kind == 22:
            with contextlib.suppress(Exception):
                pool.append(copy.deepcopy(module))
                if len(pool) > 4:
                    pool.pop(self.random.randrange(4))
        else:
            module.refresh()
        return None

    def make_module(self, pool) -> None:
        pick = self.random.choice
        kind = pick(("net", "net", "trained"))
        right = not pool or self.one_in(2)
        path = self.module_bundle(kind)
        args, named = [path], {}
        if kind == "trained" and self.one_in(2):
            named["parameters"] = {"scale": torch.ones(4)}
        if not right:
            named = {key: value for key, value in (
                ("function", pick(("", "forward", "forward", "none", 5, None, "forward_backward"))), ("backward", pick((None, "", "forward_backward", "none", 5))),
                ("parameters", pick((None, {}, {"scale": torch.ones(3)}, {"scale": torch.ones(4, dtype=torch.float64)}, {"x": torch.ones(2, 8)}, {"none": torch.ones(1)},
                                     {"scale": 5}, {5: torch.ones(4)}, [torch.ones(4)], 5, {"scale": torch.ones(4, device="meta")}))),
                ("name", pick(("", "x", "a::b::c", 5, f"fuzzed_modules::m{self.random.randrange(1 << 40)}")))) if self.one_in(2)}
            args = [pick((path, path, accrt.Bundle(path, self.instance), None, 5, "none.accx", b"", self.folder.name,
                          accrt.Program(accrt.Bundle(path, self.instance), self.instance.device("host"))))]
        self.note(f"Module {args} {named}")
        try:
            made = accrt.torch.Module(*args, **named)
        except Exception as error:
            self.refused(error)
            if right:
                raise Finding(f"Module{tuple(args)} was refused") from error
            return
        self.made["module count"] = self.made.get("module count", 0) + 1
        if made.accrt_function == "forward" and "x" in made.accrt_given:
            made.fuzzed_kind = kind
            pool.append(made)
            del pool[:-4]

    def module_arguments(self, module):
        often, rows = self.random.choice((0, 0, 0, 3)), self.random.choice((1, 2, 5, 8, 8, 33, ROWS))
        make = self.tensors.wrong if often and self.one_in(often) else self.tensors.right
        args = [make(torch.float32, [rows, 8])]
        if module.fuzzed_kind == "trained" and "scale" in module.accrt_given:
            args.append((self.tensors.wrong if often and self.one_in(often) else self.tensors.right)(torch.float32, [4]))
        named = {}
        if self.one_in(4):
            named[module.accrt_given[len(args) - 1]] = args.pop()
        if often and self.one_in(6):
            named[self.random.choice(("nothing", "scale", "x", "0.weight"))] = None
        if often and self.one_in(6):
            args.append(None)
        return args, named

    def module_values(self, module):
        """The parameters that a call sees; None: it is not known, or they are wrong."""
        shapes = {"net": {"0.weight": (16, 8), "0.bias": (16,), "2.weight": (3, 16), "2.bias": (3,)}, "trained": {"proj.weight": (4, 8)}}[module.fuzzed_kind]
        if "scale" not in module.accrt_given and module.fuzzed_kind == "trained":
            shapes = {**shapes, "scale": (4,)}
        found = {}
        for name, shape in shapes.items():
            value = module
            for word in name.split("."):
                value = getattr(value, word, None)
            if not readable(value) or tuple(value.shape) != shape or value.dtype != torch.float32:
                return None
            found[name] = value
        return found

    def call_module(self, module) -> None:
        args, named = self.module_arguments(module)
        values = self.module_values(module) if callable(module.forward) and callable(module.accrt_operator) else None
        given = {**dict(zip(module.accrt_given, args)), **named}
        right = (values is not None and len(args) + len(named) == len(given) == len(module.accrt_given) and set(given) == set(module.accrt_given)
                 and all(readable(v) and v.dtype == torch.float32 for v in given.values())
                 and all(not v.is_inference() for v in (*given.values(), *values.values())) and given["x"].dim() == 2 and given["x"].shape[1] == 8
                 and 1 <= given["x"].shape[0] <= ROWS and ("scale" not in given or given["scale"].shape == (4,)))
        self.note(f"call {module.fuzzed_kind} {describe(list(args))} {named.keys()} parameters {values is not None}")
        with self.random.choice((torch.no_grad, torch.enable_grad))():
            try:
                made = module(*args, **named)
            except Exception as error:
                self.refused(error)
                if right:
                    raise Finding(f"a call of a module that is right was refused: {type(error).__name__}: {error}") from error
                return
            if values is None:
                if isinstance(made, torch.Tensor) and made.device.type == "meta":
                    return
                raise Finding(f"a module with wrong parameters gave {describe(made)}")
            if not right:
                if not all(readable(v) for v in given.values()):
                    if readable(made):
                        raise Finding(f"a call of a module that is wrong gave {describe(made)}")
                    return
            x = given["x"].as_subclass(torch.Tensor).resolve_neg()
            scale = given.get("scale", values.get("scale"))
            if module.fuzzed_kind == "net":
                wanted = torch.func.functional_call(network(), {k: v.detach() for k, v in values.items()}, (x.detach(),))
            else:
                wanted = trained_reference(values, x, scale.as_subclass(torch.Tensor).resolve_neg())
            if not same(made.detach(), wanted.detach(), 1e-3):
                raise Finding(f"a module gave {describe(made)}, and torch {describe(wanted)}")
            self.compared += 1
            leaves = [v for v in (*values.values(), *given.values()) if v.requires_grad and v.is_leaf] if module.fuzzed_kind == "trained" else []
            if made.requires_grad and wanted.requires_grad and leaves:
                grad = torch.randn(wanted.shape)
                found = torch.autograd.grad(made, leaves, grad, allow_unused=True)
                expected = torch.autograd.grad(wanted, leaves, grad, allow_unused=True)
                finite = all(v.detach().isfinite().all() for v in (*values.values(), *given.values()))
                for a, b in zip(found, expected):
                    if finite and a is not None and b is not None and not same(a, b, 2e-2):
                        raise Finding(f"a module's gradient is {describe(a)}, and torch's {describe(b)}")

    def change(self, module, pool) -> None:
        """Parameters get other values, or become what no call takes, for a while."""
        names = [name for name, _p in module.named_parameters()]
        if not names:
            pool.remove(module)
            return
        name, what = self.random.choice(names), self.random.randrange(14)
        folder, _, last = name.rpartition(".")
        holder = module.get_submodule(folder)
        old = getattr(holder, last)
        self.note(f"change {name} {what}")
        try:
            if what < 4:
                with torch.no_grad():
                    old.copy_(torch.randn(old.shape)) if what < 2 else old.mul_(1.5) if what == 2 else old.add_(1)
            elif what == 4:
                old.data = torch.randn(old.shape)
                module.refresh()
            elif what == 5:
                setattr(holder, last, torch.nn.Parameter(torch.randn(old.shape), requires_grad=old.requires_grad))
            elif what == 6:
                old.data = torch.randn([2 * s for s in old.shape])[tuple(slice(None, None, 2) for _ in old.shape)]
                module.refresh()
            elif what == 7:
                state = {k: torch.randn(v.shape) for k, v in module.state_dict().items()}
                if self.one_in(2):
                    state[self.random.choice((*state, "none", "num_batches_tracked"))] = self.random.choice((torch.ones(2), 5, None, torch.ones(3, 3, dtype=torch.float64)))
                module.load_state_dict(state, strict=self.random.choice((True, False)))
            elif what == 8:
                module.load_state_dict(self.random.choice((None, 5, {}, {5: 5}, [], {"0.weight": torch.ones(16, 8).to_sparse()})))
            else:
                pool.remove(module)
                broken = copy.deepcopy(module)
                pool.append(module)
                self.break_module(broken, name, what)
                self.call_module(broken)
        except Exception as error:
            if isinstance(error, Finding):
                raise
            self.refused(error)

    def break_module(self, module, name: str, what: int) -> None:
        folder, _, last = name.rpartition(".")
        holder = module.get_submodule(folder)
        if what == 9:
            module.to(self.random.choice((torch.float64, torch.bfloat16, torch.float16, "meta")))
        elif what == 10:
            delattr(holder, last)
        elif what == 11:
            value = self.tensors.wrong(torch.float32, list(getattr(holder, last).shape))
            holder._parameters[last] = value if isinstance(value, torch.Tensor) else None
        elif what == 12:
            setattr(module, self.random.choice(("forward", "accrt_operator")), self.random.choice((None, 5)))
        else:
            module.requires_grad_(True)

    def results_outlive(self, module, pool) -> None:
        x = torch.randn(3, 8)
        values = self.module_values(module)
        if values is None or module.fuzzed_kind != "net":
            return
        try:
            with torch.no_grad():
                made = module(x)
                wanted = torch.func.functional_call(network(), {k: v.detach() for k, v in values.items()}, (x,))
        except Exception as error:
            self.refused(error)
            return
        if len(pool) > 1:
            pool.remove(module)
        del module
        gc.collect()
        if not same(made, wanted, 1e-3):
            raise Finding("a result changed with its module's end")

    # ---- the backend of torch.compile

    def backends(self) -> None:
        pool = self.made.setdefault("compiled", [])
        if not pool or self.one_in(3):
            name = self.random.choice([n for n in GRAPHS if n not in ("item", "decides", "nested", "nothing")])
            function, shapes = GRAPHS[name]
            self.note(f"backend {name}")
            args = self.graph_arguments(name, shapes, True)
            wrong = self.one_in(6)
            try:
                graph = torch.fx.symbolic_trace((lambda x: _as_tuple(function(x))) if len(shapes) == 1 else lambda x, y: _as_tuple(function(x, y)))
            except Exception:  # of what cannot be traced so
                return
            try:
                made = accrt.torch.backend(graph if not wrong or self.one_in(2) else self.random.choice((None, 5)), args,
                                           **({} if not wrong else {self.random.choice(("mode", "x")): 5}))
            except Exception as error:
                self.refused(error)
                if not wrong:
                    raise
                return
            if wrong:
                return
            pool.append((name, shapes, graph, made))
            del pool[:-8]
        name, shapes, graph, made = self.random.choice(pool)
        args = self.graph_arguments(name, shapes, not self.one_in(3))
        self.note(f"backend {name} {describe(args)}")
        with self.random.choice((torch.no_grad, torch.no_grad, torch.enable_grad))():
            copies = [self.copied(a) for a in args]
            needs_grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and type(a) is not Refusing and a.requires_grad for a in args)
            try:
                wanted = graph(*copies)
            except Exception as error:  # noqa: BLE001 - torch's own
                wanted = error
            try:
                found = made(*args)
            except Exception as error:
                if isinstance(wanted, Exception):
                    self.errors[type(error).__name__] += 1
                    return
                self.refused(error)
                if not needs_grad and all(readable(a) for a in args):
                    raise Finding(f"the backend refuses {name} of {describe(args)}: {type(error).__name__}: {error}") from error
                return
            if isinstance(wanted, Exception):
                raise Finding(f"the backend gave {describe(found)} for {name} of {describe(args)}, and torch {wanted!r}")
            for a, b in zip(found, wanted):
                if readable(a) and not same(a.detach().as_subclass(torch.Tensor), b.detach().as_subclass(torch.Tensor), 2e-3):
                    raise Finding(f"the backend gave {describe(found)} for {name} of {describe(args)}, and torch {describe(wanted)}")
            self.compared += 1

    @staticmethod
    def copied(value):
        """A tensor's like for torch itself: an inference tensor stays one."""
        if not readable(value):
            return value
        with torch.inference_mode(value.is_inference()):
            return copy.deepcopy(value.detach().as_subclass(torch.Tensor))

    def graph_arguments(self, name: str, shapes, right: bool) -> list:
        args = []
        for at, shape in enumerate(shapes):
            if name == "index" and at == 1:
                args.append(torch.randint(-4, 4, shape) if right else self.random.choice((torch.tensor([9]), torch.tensor([0, 1, 3]), torch.tensor([-5]), 2, None)))
            elif right:
                args.append(torch.randn(shape))
            else:
                args.append(self.random.choice((self.tensors.right, self.tensors.right, self.tensors.wrong))(torch.float32, list(shape)))
        return args

    # ---- from_torch

    def from_torch(self) -> None:
        pick, name = self.random.choice, self.random.choice(list(GRAPHS))
        function, shapes = GRAPHS[name]
        args, right = tuple(self.graph_arguments(name, shapes, True)), not self.one_in(2)
        model = pick((Of(function), Of(function), network(), Of(_counted, total=torch.zeros(()))))
        if not isinstance(model, Of) or model._buffers:
            name, args = "net", (torch.randn(4, 8),)
        named = {}
        if not right:
            model, args, named = self.wrong_conversion(model, args)
        calls = {"convert": 12, "exported": 2, "from_torch": 1}
        call = self.random.choices(list(calls), list(calls.values()))[0]
        self.note(f"from_torch.{call} {name} {describe(model)} {describe(args)} {named}")
        if call == "exported":
            named.pop("name", None)
            named.pop("maximum", None)
        if call == "from_torch":
            named["path"] = pick((None, os.path.join(self.folder.name, "made.accx")))
            named["targets"] = targets() if right or self.one_in(2) else pick(([], ["none"], 5, None, "x86_64"))
        before = {key: value.clone() for key, value in model.state_dict().items()} if isinstance(model, torch.nn.Module) else {}
        try:
            made = getattr(from_torch, call)(model, args, **named)
        except Exception as error:
            self.conversion_refused(error, "torch.export")
            if right and name in ("add", "matmul", "sums", "softmax", "cat", "where", "net", "shape", "long"):
                raise Finding(f"from_torch refuses {name}") from error
            return
        if not isinstance(model, torch.nn.Module) or not right:
            return
        for key, value in before.items():
            if not same(model.state_dict()[key], value, 0):
                raise Finding(f"converting changed {key}")
        self.compare_converted(call, made, model, args)

    def compare_converted(self, call: str, made, model, args) -> None:
        given = [np.ascontiguousarray(a.detach().clone().numpy()) for a in args]
        if call == "exported":
            return
        if call == "convert":
            found = Interpreter(made).run("forward", *given)
        else:
            session = made.program().session()
            found = session["forward"](*given)
        found = [np.asarray(f) for f in (found if isinstance(found, (tuple, list)) else [found] if found is not None else [])]
        with torch.no_grad():
            wanted = [w for w in torch.utils._pytree.tree_leaves(copy.deepcopy(model)(*[a.clone() for a in args])) if isinstance(w, torch.Tensor)]
        if len(found) != len(wanted) or not all(f.shape == tuple(w.shape) and np.allclose(f.astype(np.float64), w.double().numpy(), rtol=2e-3, atol=2e-3, equal_nan=True)
                                                for f, w in zip(found, wanted)):
            raise Finding(f"from_torch gives {[f[:3] for f in found]}, and torch {describe(wanted)}")
        self.compared += 1

    def wrong_conversion(self, model, args):
        pick, tensors = self.random.choice, self.tensors
        named = {}
        if self.one_in(3):
            model = pick((None, 5, "none.pt2", "", self.folder.name, b"x", lambda x: x, torch.nn.Linear, {}, {"f": model}, {5: model}, {"f": None}, {"": model},
                          {"f": from_torch.Method(model, args), "g": from_torch.Method(model, args)}, {"f": from_torch.Method(None)}, from_torch.Method(model, args),
                          torch.nn.Module(), torch.nn.Sequential(), self.garbage_file(".pt2"), model.to("meta"), network().to(torch.float64), network().train()))
        if self.one_in(3):
            args = pick((None, 5, "x", {}, {"x": args[0]}, {"nothing": args[0]}, {5: args[0]}, [*args, *args], (), args[0], tuple(a.numpy() for a in args if readable(a)),
                         tuple(tensors.wrong(torch.float32, list(a.shape)) for a in args), tuple(tensors.right(a.dtype, list(a.shape)) for a in args), [None], [[args[0]]]))
        if self.one_in(3):
            named["dynamic_shapes"] = pick((None, {}, {0: 1}, ({0: torch.export.Dim("n", max=64)},), [{0: torch.export.Dim.AUTO}] * 2, "x", 5, ({9: torch.export.Dim("n")},),
                                            ({0: torch.export.Dim("n", min=9, max=10)},), {"x": {0: torch.export.Dim("n")}}, ({0: torch.export.Dim("n"), 1: torch.export.Dim("n")},)))
        if self.one_in(4):
            named["kwargs"] = pick((None, {}, {"y": torch.ones(2)}, 5, {5: 5}, {"x": None}))
        if self.one_in(4):
            named["maximum"] = pick((0, -1, 1, 3, 1 << 31, 1 << 70, 2.5, None, "x", float("nan"), True))
        if self.one_in(4):
            named["name"] = pick(("", "x" * 300, 5, None, "a\0b", "\udcff", b"x"))
        return model, args, named

    def garbage_file(self, ending: str) -> str:
        path = os.path.join(self.folder.name, f"garbage{ending}")
        with open(path, "wb") as file:
            file.write(self.random.choice((b"", b"PK\3\4" + bytes(40), self.random.randbytes(200), bytes(2000), b"{}", b"\x08\x08")))
        return path

    def conversion_refused(self, error: BaseException, *origins: str) -> None:
        """Errors of what was called by the conversion may be of any kind, as its documents say."""
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        own = max((at for at, file in enumerate(frames) if "accrt" in file.split(os.sep)), default=-1)
        beyond = frames[own + 1:]
        if beyond and not isinstance(error, ALLOWED):
            if any(os.path.join(*origin.split(".")) in file for origin in origins for file in beyond):
                self.errors[type(error).__name__] += 1
                return
        self.refused(error)

    def refused(self, error: BaseException) -> None:
        """Counts an error, unless it is of a kind that may not come out."""
        self.errors[type(error).__name__] += 1
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        if isinstance(error, Finding) or not isinstance(error, ALLOWED) and os.path.dirname(torch.__file__) not in last:
            raise error  # torch's own may be of any kind
        if not str(error) and not isinstance(error, MemoryError):
            raise Finding(f"{type(error).__name__} says nothing") from error

    # ---- from_onnx

    def from_onnx(self) -> None:
        import onnx

        pick = self.random.choice
        proto, feeds = self.onnx_model()
        right = self.one_in(3)
        given, named = proto, {}
        if not right:
            given, named = self.wrong_onnx(proto)
        calls = {"convert": 20, "from_onnx": 1}
        call = self.random.choices(list(calls), list(calls.values()))[0]
        self.note(f"from_onnx.{call} {[n.op_type for n in proto.graph.node]} right {right} {type(given).__name__} {named}")
        if call == "from_onnx":
            named["targets"] = targets() if right or self.one_in(2) else pick(([], ["none"], 5, None))
        try:
            made = getattr(from_onnx, call)(given, **named)
        except Exception as error:
            self.conversion_refused(error)
            if isinstance(error, (LookupError, ArithmeticError)) and not isinstance(error, accrt.MissingFileError):
                raise  # not among what the documents say
            if right and not isinstance(error, from_onnx.UnsupportedOperations) and self.onnx_results(proto, feeds) is not None:
                raise Finding(f"from_onnx refuses a right model:\n{onnx.printer.to_text(proto)}") from error
            return
        wanted = self.onnx_results(proto, feeds) if right and call == "convert" else None
        if wanted is None:
            return
        try:
            found = Interpreter(made).run("forward", *[feeds[i.name] for i in made.functions["forward"].inputs])
        except IRError as error:
            # a size that the program does not take: an end beyond a dimension that varies
            self.errors[type(error).__name__] += 1
            return
        for a, b in zip(found, wanted):
            a, b = np.asarray(a), np.asarray(b)
            if a.shape != b.shape or not np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-3, equal_nan=True):
                raise Finding(f"from_onnx gives {a.ravel()[:4]} {a.shape}, and onnx {b.ravel()[:4]} {b.shape}:\n{onnx.printer.to_text(proto)}")
        self.compared += 1

    @staticmethod
    def onnx_results(proto, feeds):
        """What onnx itself says; None: it cannot do it."""
        from onnx.reference import ReferenceEvaluator

        try:
            with np.errstate(all="ignore"):
                return ReferenceEvaluator(proto).run(None, feeds)
        except Exception:  # noqa: BLE001 - of numpy's, onnx's and others
            return None

    def onnx_model(self):
        """A chain of operations on a few inputs, and arrays for them."""
        from onnx import helper, numpy_helper, TensorProto

        pick, rng = self.random.choice, np.random.default_rng(self.random.randrange(1 << 32))
        rows = pick((1, 3, 4))
        nodes, live = [], ["x", "y"]
        weights = {"w": rng.standard_normal((8, 8)).astype(np.float32), "b": rng.standard_normal(8).astype(np.float32), "axis": np.array([pick((0, 1, -1))]),
                   "shape": np.array(pick(([8, -1], [-1], [2, -1], [0, 8])), np.int64), "start": np.array([0]), "end": np.array([2])}
        simple = {
            "Add": 2, "Sub": 2, "Mul": 2, "Relu": 1, "Sigmoid": 1, "Tanh": 1, "Exp": 1, "Neg": 1, "Abs": 1, "Erf": 1, "Softmax": 1, "MatMul": -1, "Transpose": 1, "Identity": 1,
            "Floor": 1, "Max": 2, "Min": 2, "Where": -2, "Reshape": -3, "ReduceSum": -4, "Slice": -5, "Concat": -6, "Cast": -7, "LayerNormalization": -8, "Gemm": -9, "Clip": 1,
            "Shape": -10, "Det": 1, "Einsum": -11, "CumSum": -12, "Pow": 2, "Sqrt": 1, "Gather": -13,
        }
        for at in range(self.random.randrange(1, 6)):
            kind, out = pick(list(simple)), f"t{at}"
            a, b, how = pick(live), pick(live), simple[kind]
            a = pick(("x", "y")) if kind == "Cast" else a  # what no integer holds has no one result
            if how == -7:
                nodes += [helper.make_node("Cast", [a], [out + "i"], to=pick((TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32))),
                          helper.make_node("Cast", [out + "i"], [out], to=TensorProto.FLOAT)]
            elif how == -10:
                nodes += [helper.make_node("Shape", [a], [out + "s"]), helper.make_node("Cast", [out + "s"], [out], to=TensorProto.FLOAT)]
            else:
                given = {1: [a], 2: [a, b], -1: [a, "w"], -2: [out + "c", a, b], -3: [a, "shape"], -4: [a, "axis"], -5: [a, "start", "end"], -6: [a, b],
                         -8: [a, "b"], -9: [a, "w", "b"], -11: [a, "w"], -12: [a, "start"], -13: [a, "start"]}[how]
                more = {-4: {"keepdims": pick((0, 1))}, -6: {"axis": pick((0, 1))}, -11: {"equation": "ij,jk->ik"}, -13: {"axis": pick((0, 1))}}.get(how, {})
                if how == -2:
                    nodes.append(helper.make_node("Less", [a, b], [out + "c"]))
                nodes.append(helper.make_node(kind, given, [out], **more))
            live.append(out)
        graph = helper.make_graph(nodes, "fuzzed", [helper.make_tensor_value_info(n, TensorProto.FLOAT, [pick(("n", rows, rows)), 8]) for n in ("x", "y")],
                                  [helper.make_tensor_value_info(live[-1], TensorProto.FLOAT, None)], [numpy_helper.from_array(v, k) for k, v in weights.items()])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", pick((17, 20, 20, 21)))], ir_version=10)
        return proto, {n: rng.standard_normal((rows, 8)).astype(np.float32) for n in ("x", "y")}

    def wrong_onnx(self, proto):
        pick = self.random.choice
        kind, named, given = self.random.randrange(8), {}, proto
        if kind < 4:  # fields that are changed
            for _ in range(self.random.randrange(1, 4)):
                self.change_proto(proto)
        elif kind == 4:  # bytes that are changed
            data = bytearray(proto.SerializeToString())
            for _ in range(self.random.randrange(1, 8)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
            given = os.path.join(self.folder.name, "changed.onnx")
            with open(given, "wb") as file:
                file.write(data[:self.random.choice((len(data), len(data), self.random.randrange(len(data))))])
        elif kind == 5:
            given = pick((None, 5, "none.onnx", "", self.folder.name, b"x", {}, {"f": proto}, {5: proto}, {"f": None}, {"f": from_onnx.Method(proto), "g": proto},
                          {"": proto}, from_onnx.Method(proto), self.garbage_file(".onnx"), [proto], proto.graph))
        if self.one_in(3):
            named["sizes"] = pick((None, {}, {"n": 4}, {"n": (1, 8)}, {"n": (8, 1)}, {"n": 0}, {"n": -1}, {"n": "x"}, {"n": (1, 2, 3)}, {"n": (0, 1 << 70)}, {"m": 3}, 5, {"n": 2.5},
                                   {5: 5}, {"n": None}, {"n": (1.5, "x")}))
        if self.one_in(3):
            named["constants"] = pick((None, {}, {"x": np.ones((3, 8), np.float32)}, {"x": 5}, {"x": None}, {"x": "text"}, {"none": 1}, 5, {"x": np.ones((3, 8), np.float64)},
                                       {"x": np.ones(3, "O")}, {"x": np.zeros((0, 8), np.float32)}, {"x": torch.ones(3, 8)}, {"y": [[1.0] * 8]}, {"w": np.ones((8, 8), np.float32)}))
        if self.one_in(5):
            named["maximum"] = pick((0, -1, 1, 1 << 31, 1 << 70, 2.5, None, "x", float("nan")))
        if self.one_in(5):
            named["name"] = pick(("", "x" * 300, 5, None, "a\0b", "\udcff", b"x"))
        return given, named

    def change_proto(self, proto) -> None:
        """One field of the model gets another value."""
        pick, graph = self.random.choice, proto.graph
        node = pick(graph.node) if graph.node else None
        what = self.random.randrange(16)
        number = pick((0, 1, -1, 2, 7, 99, 1 << 31, (1 << 62), (1 << 63) - 1, -(1 << 63)))
        weight = pick(graph.initializer) if graph.initializer else None
        if what == 0 and weight is not None:
            weight.dims[:] = pick(([], [1], [number], [8, 8], [8, -1], [1 << 40, 1 << 40], [0], [*weight.dims, 1]))
        elif what == 1 and weight is not None:
            weight.data_type = pick((0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17, 22, 99, 1 << 20))
        elif what == 2 and weight is not None:
            weight.raw_data = weight.raw_data[:self.random.randrange(len(weight.raw_data) + 1)] if self.one_in(2) else self.random.randbytes(pick((0, 1, 7, 32, 256)))
        elif what == 3 and weight is not None:
            weight.name = pick(("x", "", "t0", weight.name + "x", "a\0b"))
        elif what == 4 and node is not None:
            node.op_type = pick(("", "None", "If", "Loop", "Scan", "Constant", "Range", "Reshape", "Expand", "Gather", "Conv", "Resize", "Split", "TopK", "Attention", "Pad", "Tile",
                                 "OneHot", "ConstantOfShape", "NonZero", "SequenceAt", "LSTM", "QuantizeLinear", "DequantizeLinear", "Squeeze", "Unsqueeze", "Flatten", "Slice"))
        elif what == 5 and node is not None:
            node.input[:] = pick(([], list(node.input)[:-1], [*node.input, "x"], ["none"], ["", *node.input], [node.output[0]] if node.output else [], ["shape", "axis", "end"]))
        elif what == 6 and node is not None:
            node.output[:] = pick(([], ["x"], ["", ""], [*node.output, "more"], ["w"]))
        elif what == 7 and node is not None:
            attribute = node.attribute.add()
            attribute.name = pick(("axis", "axes", "keepdims", "to", "perm", "value", "equation", "alpha", "kernel_shape", "nothing", "", "then_branch", "epsilon", "mode", "pads"))
            attribute.type = pick((0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
            attribute.i, attribute.f, attribute.s = number, pick((0.0, float("nan"), 1e38)), pick((b"", b"x", b"ij,jk->ik", b"\xff\xfe"))
            attribute.ints[:] = pick(([], [0], [1, 0], [number], [number] * 3))
        elif what == 8 and node is not None and node.attribute:
            attribute = pick(node.attribute)
            attribute.type = pick((1, 2, 3, 4, 7))
            attribute.i = number
            attribute.ints[:] = [number]
        elif what == 9 and node is not None:
            node.domain = pick(("", "ai.onnx", "com.microsoft", "x", "ai.onnx.ml"))
        elif what == 10 and proto.opset_import:
            proto.opset_import[0].version = pick((0, 1, 6, 9, 11, 13, 17, 23, 99, -1, 1 << 40))
        elif what == 11:
            proto.ClearField(pick(("opset_import", "graph", "ir_version")))
        elif what == 12 and graph.input:
            one = pick(graph.input)
            one.type.tensor_type.elem_type = pick((0, 1, 7, 8, 9, 10, 11, 14, 16, 17, 99))
        elif what == 13 and graph.input:
            shape = pick(graph.input).type.tensor_type.shape
            if self.one_in(4):
                shape.Clear()
            elif shape.dim:
                pick(shape.dim).dim_value = number
        elif what == 14 and graph.node:
            graph.node.add().CopyFrom(pick(graph.node))
        elif graph.output:
            pick(graph.output).name = pick(("none", "", "x", "w", "t0"))


def _as_tuple(made):
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)
