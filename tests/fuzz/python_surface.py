"""A fuzzer of the Python surface: random operations on random objects, right and wrong, in random
order.

    python3 tests/fuzz/python_surface.py --bundle B --pack P [--seed N] [--operations N] [--log FILE]

Every public class, method and function of the package is in OPERATIONS, with the kinds of its
arguments; python_modules.py has those of its modules. tests/python/test_python_surface.py compares
both with the package, so a new one fails there until it is here. Arguments are of the right kind
three times out of four, of any kind otherwise, and by position or, drawn from the signature, by
keyword. Objects are dropped, closed and changed at random, and the collector runs at random. The
bundles are B, and typed_bundle.py with other types, ranks and states.

What may come out: the package's errors and Python's own for wrong values. What may not: any other
exception, a crash (run it under ASan: ./dev soak python), a hang. Kernels that it launches do
nothing, since kernels read what their arguments say. The operation that is under way is the last
line of the log.
"""
from __future__ import annotations

import argparse
import array
import asyncio
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import inspect
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import types
from collections import Counter

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import accrt  # noqa: E402 - from the tree
import python_modules  # noqa: E402
import typed_bundle  # noqa: E402
from accrt import layouts, trust  # noqa: E402
from accrt.compiler.kernels.image import ImageError  # noqa: E402

ALLOWED = (accrt.Error, TypeError, ValueError, LookupError, OverflowError, OSError, AttributeError, BufferError, NotImplementedError, MemoryError,
           asyncio.TimeoutError, StopAsyncIteration, accrt.CompileError, ImageError)
HANDLES = ("instance", "device", "pool", "buffer", "stream", "event", "semaphore", "bundle", "weights", "program", "adapter", "session", "call",
           "pack", "launch", "commands")
MOST = 6  # of each kind are kept

# What a name takes: kinds, separated by spaces; "kind?" may be left out, "kind*" any number. "self"
# comes first in methods. None: only looked at, or made by others.
OPERATIONS = {
    # records, which hold what they are given
    **{name: "any*" for name in ("Argument", "Asset", "Constant", "Counter", "DeviceInfo", "PoolEntry", "Signature", "Symbol")},
    "Adapter": "program bytes number? number?",
    "Buffer": "wrong", "Buffer.borrowed": "wrong", "Buffer.read_only": "self", "Buffer.size_bytes": "self", "Buffer.address": "self",
    "Buffer.host_pointer": "self", "Buffer.kind": "self", "Buffer.memoryview": "self", "Buffer.read": "self size? size?", "Buffer.__len__": "self",
    "Budget": "number? number? number?", "Budget.cancel": "self", "Budget.cancelled": "self",
    "Bundle": "bytes instance? verify?", "Bundle.info": "self", "Bundle.program": "self device?", "Bundle.verify": "self",
    "Bundle.metadata": "self", "Bundle.symbols": "self", "Bundle.constants": "self", "Bundle.files": "self", "Bundle.assets": "self",
    "Bundle.adapters": "self", "Bundle.constant_bytes": "self name", "Bundle.function_names": "self flag?", "Bundle.function_targets": "self name",
    "Bundle.signature": "self name",
    "Call": "session wrong", "Call.close": "self", "Buffer.close": "self", "Call.function": "self", "Call.set": "self argument memory dtype?", "Call.__call__": "self",
    "Call.run": "self timeout", "Call.submit": "self points? points?", "Call.results": "self", "Call.wait": "self timeout",
    "Commands": "device small?", "Commands.binding": "self small size?", "Commands.dispatch": "self kernel grid memory memory number number",
    "Commands.copy": "self place place size after?", "Commands.fill": "self place size number width? after?", "Commands.barrier": "self",
    "Commands.marker": "self name after?", "Commands.finalize": "self", "Commands.submit": "self stream memory*",
    "Commands.run": "self stream memory*",
    "Device": "wrong instance", "Device.info": "self", "Device.name": "self", "Device.enable_peer": "self device",
    "DeviceKernel": "name any* ",
    "Event": "device flag?", "Event.done": "self", "Event.synchronize": "self timeout", "Event.elapsed_ns": "self event",
    "Function": "session wrong", "Function.index": "self name", "Function.bind": "self memory memory? number?",
    "Function.__call__": "self memory memory? number?", "Function.call_async": "self memory memory? number?",
    "Instance": "rare policy?", "Instance.device": "self devicename?", "Instance.devices": "self", "Instance.counters": "self", "Instance.load_driver": "self path",
    # A model that is served has threads of its own: tests/python/test_serve_llm.py
    "BadParameter": "any*", "LLM": "wrong", **{f"LLM.{name}": "wrong any*" for name in ("adapters", "chat", "close", "embed", "engine", "generate", "load_adapter", "name", "stream", "stream_chat", "unload_adapter")},
    "Kernel": "pack wrong", "Kernel.pack": "self", "Kernel.parameters": "self", "Kernel.handle": "self", "Kernel.arguments": "self values device",
    "Kernel.from_c": "wrong any*", "Kernel.from_pack": "bytes kernelname? instance?", "Kernel.from_module": "device bytes any kind?",
    "Kernel.from_cuda": "wrong any*", "Kernel.from_cubin": "wrong any*", "Kernel.from_ptx": "wrong any*", "Kernel.from_triton": "wrong any*", "CompileError": "name?",
    "GpuKernel": "wrong any*", "GpuKernel.__call__": "wrong any*", "GpuKernel.arguments": "wrong values device", "GpuKernel.on": "wrong device",
    "GpuKernel.image": "wrong any", "GpuKernel.check": "wrong", "GpuKernel.pack": "wrong", "GpuKernel.handle": "wrong", "GpuKernel.definition": "wrong",
    "Kernel.__call__": "self memory memory number number", "Kernel.check": "self memory memory number number", "Kernel.definition": "self",
    "KernelPack": "instance bytes name?", "KernelPack.of_module": "device bytes kernels kind?", "KernelPack.kernel": "self kernelname",
    "KernelPack.kernels": "self",
    "Launch": "device kernel", "Launch.kernel": "self", "Launch.set": "self small memory", "Launch.__call__": "self stream grid",
    "Launch.on": "self stream grid",
    "Pool": "device poolkind? limit? name?", "Pool.statistics": "self", "Pool.snapshot": "self", "Pool.trim": "self size?",
    "Pool.buffer": "self size width? name?",
    "Program": "bundle device? name?", "Program.session": "self symbols? stream? pool? small? name?", "Program.estimate": "self name symbols?",
    "Program.swap_weights": "self weightmap", "Program.load_weights": "self weights names? flag?", "Program.load_adapter": "self bytes",
    "Semaphore": "instance size?", "Semaphore.value": "self", "Semaphore.signal": "self size", "Semaphore.wait": "self size timeout policyname?",
    "Semaphore.fail": "self name? status?", "Semaphore.error": "self", "Semaphore.eventfd": "self size", "Semaphore.wait_async": "self size",
    "Session": "program symbols? stream? pool?", "Session.close": "self", "Session.clone": "self stream?", "Session.stream": "self",
    "Session.adapter": "self", "Session.reset": "self", "Session.cancel": "self", "Session.error": "self", "Session.state": "self statename",
    "Session.bind_state": "self statename buffer size?", "Session.warmup": "self name symbols?", "Session.function": "self name",
    "Session.__getitem__": "self name", "Session.__contains__": "self name", "Session.__iter__": "self", "Session.__call__": "self",
    "Stream": "device status? name?", "Stream.wrap": "device wrong", "Stream.native": "self", "Stream.id": "self", "Stream.done": "self",
    "Stream.synchronize": "self timeout policyname?", "Stream.error": "self", "Stream.reset": "self", "Stream.cancel": "self", "Stream.wait": "self semaphore size",
    "Stream.signal": "self semaphore size", "Stream.record": "self event", "Stream.wait_event": "self event",
    "Stream.copy": "self memory memory size? size? size?", "Stream.fill": "self memory number width? size? size?",
    "Stream.read_file": "self file memory size size? size?",
    "Tensor": "buffer dtype shape shape? size?", "Tensor.buffer": "self", "Tensor.offset_bytes": "self", "Tensor.dtype": "self",
    "Tensor.shape": "self", "Tensor.strides": "self", "Tensor.read_only": "self", "Tensor.ndim": "self", "Tensor.size": "self",
    "Tensor.nbytes": "self", "Tensor.address": "self", "Tensor.view": "self", "Tensor.__array__": "self", "Tensor.numpy": "self",
    "Tensor.memoryview": "self", "Tensor.tolist": "self", "Tensor.item": "self", "Tensor.__dlpack__": "self", "Tensor.__len__": "self",
    "Tensor.__getitem__": "self small", "Tensor.__iter__": "self", "Tensor.__contains__": "self compared",
    "Tensor.__index__": "self", "Tensor.__format__": "self format", "Tensor.__float__": "self", "Tensor.__int__": "self", "Tensor.__bool__": "self",
    **{f"Tensor.__{name}__": "self compared" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "Tensor.__array_ufunc__": "wrong any* ",
    "Weight": "weights small", "Weight.component": "self small?", "Weight.components": "self", "Weight.memoryview": "self",
    "Weight.read": "self size size small?", "Weight.numpy": "self", "Weight.__array__": "self", "Weight.dequantize": "self",
    "Weights": "bytes instance?", "Weights.open": "bytes", "Weights.info": "self", "Weights.metadata": "self", "Weights.__getitem__": "self name",
    "Weights.__contains__": "self name", "Weights.__eq__": "self any", "Weights.__iter__": "self", "Weights.__len__": "self", "Weights.load": "self",
    "caps": "", "default_instance": "rare policy?", "from_cuda_array": "cuda device stream?", "from_dlpack": "tensor device stream?",
    "launch": "stream kernel grid memory memory number number",
    "load": "rare path devicename?",
    "layouts.Info": "any*", "layouts.Component": "any any", "layouts.Packed": "any*", "layouts.Packed.size_bytes": "self", "layouts.Component.__eq__": "self any", "layouts.Report": "any*", "layouts.layout_id": "layout",
    "layouts.info": "layout", "layouts.all_layouts": "", "layouts.component_size": "layout shape role dtype",
    "layouts.dequantize": "packed size? size?", "layouts.quantize": "weight layout",
    "trust.SigningKey": "rare bytes", "trust.SigningKey.generate": "rare", "trust.SigningKey.read": "rare path", "trust.SigningKey.write": "wrong path",
    "trust.SigningKey.write_public": "wrong path", "trust.SigningKey.sign": "wrong bytes",
    "trust.TrustedKey": "any*", "trust.config": "", "trust.folder": "", "trust.paths": "path?", "trust.read_public_key": "rare path",
    "trust.read_secret_key": "rare path", "trust.signing_key": "rare", "trust.trust_code": "bytes", "trust.apply": "instance",
    "trust.keys": "rare", "trust.filled_key_trust": "rare instance bytes", "trust.set_role": "rare wrong wrong", "trust.expire": "rare wrong wrong",
    "trust.revoke": "rare wrong", "trust.floor": "rare wrong wrong", "trust.floors": "rare",
    "trust.sign": "rare path path?", "trust.encrypt": "rare path path bytes", "trust.decrypt": "rare path path bytes", "trust.key_id": "bytes",
    "trust.report": "bundle", "trust.signer_or_reason": "rare",
    **python_modules.OPERATIONS,
}
SPECIAL = ("__init__", "__call__", "__getitem__", "__len__", "__iter__", "__contains__", "__array__", "__dlpack__", "__array_ufunc__", "__eq__",
           "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__index__", "__format__", "__float__", "__int__", "__bool__")


#: Without a number they wait for ever.
FOR_EVER = ("timeout", "timeout_ns", "seconds")
#: Kinds that nothing else stands for: an engine would wait as long as it is told, a compiler be
#: started.
NEVER_OTHERS = ("seconds", "core")


_signatures: dict[str, tuple[tuple, tuple]] = {}


def parameters(name: str, function) -> tuple[tuple, tuple]:
    """Names of what the operation takes by position or keyword, and by keyword alone."""
    if name not in _signatures:
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            found = ()
        _signatures[name] = (tuple(p.name for p in found if p.kind == p.POSITIONAL_OR_KEYWORD), tuple(p.name for p in found if p.kind == p.KEYWORD_ONLY))
    return _signatures[name]


def surface() -> set[str]:
    """Every public class, function, method and property, from the package itself; a class's own
    slots are data and not among them."""
    found = set()
    modules = [("", {name: getattr(accrt, name) for name in accrt._HOME}),
               *((f"{m.__name__.split('.')[-1]}.", {n: v for n, v in vars(m).items() if getattr(v, "__module__", "") == m.__name__
                                                    and not n.startswith("_")}) for m in (layouts, trust))]
    for prefix, names in modules:
        for name, value in names.items():
            if not callable(value):
                continue
            found.add(prefix + name)
            if isinstance(value, type) and not issubclass(value, tuple):
                found |= {f"{prefix}{name}.{member}" for member, what in vars(value).items()
                          if (not member.startswith("_") or member in SPECIAL[1:]) and not inspect.ismemberdescriptor(what)
                          and not (member == "__eq__" and dataclasses.is_dataclass(value) and value is not layouts.Component)
                          and (callable(what) or isinstance(what, (property, classmethod, staticmethod)))}
    return found | python_modules.surface(SPECIAL[1:])


class Fuzzer:
    def __init__(self, bundle: str, pack: str, seed: int, log=None) -> None:
        self.random = random.Random(seed)
        self.log = log
        self.bundle_bytes, self.pack_path = pathlib.Path(bundle).read_bytes(), os.path.abspath(pack)
        self.folder = tempfile.TemporaryDirectory(prefix="accrt-fuzz-")
        os.chdir(self.folder.name)  # names without a folder are drawn as paths
        for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"):
            os.environ[variable] = self.folder.name
        self.file = open(os.path.join(self.folder.name, "data"), "w+b")  # noqa: SIM115 - lives as long as this
        self.file.write(bytes(4096))
        self.file.flush()
        self.pools: dict[str, list] = {}
        self.counts, self.errors = Counter(), Counter()
        self.gates: list[tuple[float, accrt.Semaphore]] = []
        self.typed_bytes, self.caps = typed_bundle.build().to_bytes(), accrt.caps()
        self.modules = python_modules.Makers(self)
        self.start()
        self.names = sorted(OPERATIONS)
        self.core = [name for name in self.names if name not in python_modules.OPERATIONS]

    def start(self) -> None:
        """Objects to begin with, and again whenever a kind has died out."""
        self.root = getattr(self, "root", None) or accrt.Instance(trust="all", options={"host.threads": 2})
        self.home = self.root.device("host")
        make = {
            "budget": lambda: accrt.Budget(1.0, 1 << 20), "packed": self.packed,
            "instance": lambda: self.root, "device": lambda: self.root.device("host"), "pool": lambda: accrt.Pool(self.home, limit_bytes=1 << 22),
            "buffer": lambda: accrt.Pool(self.home).buffer(self.random.choice((0, 4, 64, 4096))), "stream": lambda: accrt.Stream(self.home),
            "event": lambda: accrt.Event(self.home, timing=True), "semaphore": lambda: self.gate(accrt.Semaphore(self.root)),
            "bundle": lambda: accrt.Bundle(self.value("bundlebytes"), self.root), "weights": lambda: accrt.Weights(accrt.Bundle(self.bundle_bytes, self.root)),
            "program": lambda: accrt.Program(accrt.Bundle(self.value("bundlebytes"), self.root), self.home),
            "session": lambda: self.take("program").session(), "function": lambda: self.take("session").function(self.function_name()),
            "call": self.call,
            "pack": lambda: accrt.KernelPack(self.root, self.pack_path), "kernel": lambda: self.take("pack").kernels()[0],
            "launch": lambda: accrt.Launch(self.home, self.take("kernel")), "commands": lambda: accrt.Commands(self.home, 2),
            "tensor": lambda: accrt.Tensor(accrt.Pool(self.home).buffer(64), "f32", (16,)),
            "weight": lambda: accrt.Weight(self.take("weights"), 0),
        }
        self.make = {**make, **self.modules.make}
        self.core_kinds = tuple(make)

    def call(self):
        """A bound call of either bundle."""
        session = self.take("session")
        if "weighted" in session:
            return session.weighted.bind(np.ones(16, np.float32))
        dtype = self.random.choice(("uint8", "int16", "int32", "int64", "float64"))
        return session[f"echo_{dtype[0]}{8 * np.dtype(dtype).itemsize}_2"].bind(np.ones((2, 3), dtype))

    def gate(self, semaphore):
        """Whatever is waited for comes, or fails, soon: nothing may hang."""
        self.gates.append((time.monotonic(), semaphore))
        return semaphore

    @staticmethod
    def open_gate(thing) -> None:
        """Work that waits for a semaphore which is closed waits for ever: nobody can signal it any
        more."""
        if isinstance(thing, accrt.Semaphore):
            with contextlib.suppress(*ALLOWED):
                thing.fail("closed")

    def tend(self) -> None:
        now = time.monotonic()
        while self.gates and self.gates[0][0] < now - 0.02:
            _, semaphore = self.gates.pop(0)
            try:
                semaphore.fail("too long")
            except ALLOWED:
                pass

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.005):
            self.tend()

    # ---- values

    def take(self, kind: str):
        pool = self.pools.setdefault(kind, [])
        if pool and (len(pool) > 2 or self.random.random() < 0.9):
            return self.random.choice(pool)
        if kind not in self.make:
            return None
        try:
            made = self.make[kind]()
        except ALLOWED:
            return self.random.choice(pool) if pool else None
        self.keep(made)
        return made

    def keep(self, value) -> None:
        kind = self.owner_kind(type(value))
        if kind == "semaphore" and not any(value is s for _, s in self.gates):
            self.gate(value)
        if kind in self.make:
            pool = self.pools.setdefault(kind, [])
            pool.append(value)
            if len(pool) > MOST:
                pool.pop(self.random.randrange(len(pool)))

    @staticmethod
    def owner_kind(value: type) -> str:
        """The kind of a class's objects; those of the modules have kinds of their own."""
        among = value.__module__.split(".")
        if value in python_modules.KINDS or among[0] != "accrt" or len(among) > 1 and among[1] in python_modules.MODULES:
            return python_modules.KINDS.get(value, "")
        return {"KernelPack": "pack"}.get(value.__name__, value.__name__.lower())

    def function_name(self) -> str:
        if self.random.random() < 0.4:
            return self.random.choice(("choose", "fill", "two", "table", f"keep_{self.random.choice(tuple(typed_bundle.TYPES))}",
                                       f"echo_{self.random.choice(tuple(typed_bundle.TYPES))}_{self.random.choice(typed_bundle.RANKS)}"))
        return self.random.choice(("scale_add", "weighted", "steps", "gated", "count", "nothing", ""))

    def memory(self):
        choose = self.random.randrange(17)
        count = self.random.choice((16, 16, 16, 4, 0, 1, 17, 1000))
        if choose < 5:
            return np.ones(count, self.random.choice((np.float32, np.float32, np.float32, np.uint8, np.int64, ">f4", np.float16, "O", "S3", "M8[s]")))
        if choose == 5:
            found = np.ones(2 * count, np.float32)[::2]
            return found[::-1] if self.random.random() < 0.5 else found
        if choose == 6:
            found = np.ones(count, np.float32)
            found.flags.writeable = False
            return found
        if choose == 7:
            return self.random.choice((bytes(64), bytearray(64), memoryview(bytearray(64)), memoryview(bytes(64)), array.array("f", 16 * [1]),
                                       np.float32(1), np.ones((4, 4), np.float32), np.ones((4, 4), np.float32).T, (ctypes.py_object * 2)(),
                                       np.broadcast_to(np.float32(1), (16,)), b"", 1.5, 7))
        if choose == 8:
            return self.random.choice((Lying(self.random), np.ma.ones(count, np.float32), [1.0] * 16, self.take("weight")))
        if choose in (14, 15):
            return np.ones(self.random.choice(((2, 3), (2, 3), (2, 3, 2), (8, 3), (), (3,), (0, 3))),
                           self.random.choice((np.int32, np.int64, np.uint8, np.float64, np.int16, np.bool_, np.float16)))
        return self.take(self.random.choice(("tensor", "buffer", "buffer")))

    def value(self, kind: str):  # noqa: PLR0911, PLR0912 - a table with little code in each row
        pick = self.random.choice
        if kind in ("v", "s", "x"):  # of the function that is written
            return self.modules.value(kind) if kind == "x" else self.make[kind]()
        if kind in self.make:
            return self.take(kind)
        if kind == "bundlebytes":
            return self.bundle_bytes if self.random.random() < 0.6 else self.typed_bytes
        if kind == "core":
            return self.any(core=True)
        if kind == "size":
            return pick((0, 0, 1, 4, 8, 15, 16, 17, 60, 63, 64, 65, 100, 4096, 1 << 20, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -1,
                         self.random.randrange(70), self.random.randrange(1 << 66)))
        if kind in ("small", "argument"):
            return pick((0, 0, 1, 1, 2, 3, 4, 7, 63, 64, 1 << 31, 1 << 32, -1, "x", "y", "n") if kind == "argument" else (
                0, 0, 1, 1, 2, 3, 4, 7, 63, 64, 65535, 1 << 31, (1 << 32) - 1, 1 << 32, -1))
        if kind == "limit":
            return pick((1 << 16, 1 << 20, 1 << 22))
        if kind == "number":
            return pick((0, 1, 2, 3, 0.5, -1, 16, 255, 1 << 31, 1 << 40, 1 << 63, 1 << 64, -1 << 63, float("nan"), True))
        if kind == "width":
            return pick((1, 2, 4, 8, 0, 3, 16, 256, 4096, -1, 1 << 32))
        if kind == "status":
            return pick((0, 1, 11, -1, 5, 1 << 31, 99))
        if kind == "shape":
            return pick(((16,), (4, 4), (), (0,), (1,), (17,), (-1,), (64,), (2, 2, 2, 2), (1,) * 9, (1 << 62, 4), (1 << 63,), (1.5,), (4, 1), (1, 4), (-4, 1),
                         (0, 0), [16], 16, "ab", (np.int64(4),)))
        if kind == "cuda":
            parts = {"shape": self.value("shape"), "typestr": pick(("<f4", "|b1", ">f4", "<c8", "|V2", 3)), "version": pick((3, 2, 0, 9, "x")),
                     "data": pick(((0, False), (1 << 20, True), (-1, 0), None, ())), "strides": self.value("shape"),
                     "stream": pick((None, 0, 1, "x")), "mask": pick((None, None, 1))}
            return types.SimpleNamespace(__cuda_array_interface__={k: v for k, v in parts.items() if self.random.random() < 0.9})
        if kind == "dtype":
            return pick((*accrt.tensor.DTYPES, 0, 1, 12, 19, 20, 99, -1, "f33", "", None, "f32", "f32"))
        if kind == "memory":
            return self.memory()
        if kind == "format":
            return pick(("", ".2f", "d", ">8", "x", "%"))
        if kind == "compared":
            return pick((0, 1.5, True, None, "x", [1, 2], np.float32(1), np.ones(16), np.ma.ones(16), self.take("tensor"), self.memory()))
        if kind == "place":
            return pick((self.take("buffer"), accrt.Commands(self.home).binding(self.random.randrange(3)), self.memory()))
        if kind == "timeout":
            return pick((0, 0.0001, 0.001, 0.002, -1, float("nan"), "x"))
        if kind == "grid":
            return pick(((1,), (2, 2), (1, 1, 1), [3], (), (0,), (-1,), (1 << 32,), (1, 1, 1, 1), "ab", 5, (1.5,)))
        if kind == "points":
            return [(self.take("semaphore") if self.random.random() < 0.8 else self.any(), self.value("size")) for _ in range(self.random.randrange(3))]
        if kind == "after":
            return pick(([], [0], [1, 2], [-1], [1 << 32], None, "x", [1 << 31]))
        if kind == "symbols":
            return pick(({}, {"n": 4}, {"n": 2, "m": 3}, {"n": 16, "count": 2}, {"nothing": 1}, {"n": -1}, {"n": 1 << 64}, {"count": 1.5}, None, 3))
        if kind == "name":
            return pick((self.function_name(), "w", "w.doubled", "k", "", "x" * 300, "\udcff", "a\0b", b"x", "total"))
        if kind == "names":
            return pick((None, ["w"], [], "w", ["nothing"], [1], 5))
        if kind == "statename":
            return pick(("total", "total", "total", "kept_i64", "kept_f16", "kept_bool", "x", "", 3))
        if kind == "kernelname":
            return pick(("nothing", "nothing", "none", ""))
        if kind == "devicename":
            return pick(("host", "host:0", "host:7", "cuda", "", "x" * 100))
        if kind == "poolkind":
            return pick(("device", "host", "pinned", "mapped", "imported", "x"))
        if kind == "policy":
            return pick((None, "all", "signed", "none", "no-host-code", "x"))
        if kind == "policyname":
            return pick(("block", "yield", "spin", "x"))
        if kind == "verify":
            return pick(("default", "full", "no-data", "x"))
        if kind == "bytes":
            return pick((self.bundle_bytes, self.typed_bytes, self.typed_bytes, self.bundle_bytes[:1000], bytes(32), b"", b"GGUF" + bytes(60), bytearray(32), np.zeros(32, np.uint8),
                         self.damaged(), "x" * 32, 5 << 40))
        if kind == "weightmap":
            return pick(({"w": np.ones(16, np.float32)}, {"w": self.memory()}, {"x": self.memory()}, {}, {1: 2}, {"w": self.any()}))
        if kind == "file":
            return pick((self.file, self.file.fileno(), -1, 1 << 31, 1 << 32, "x", 999))
        if kind == "path":
            return pick((os.path.join(self.folder.name, "none"), self.folder.name, "", "a\0b", b"/nonexistent", 5, self.file.name, "/dev/null"))
        if kind == "layout":
            return pick(("q4_k", "q8_0", "plain", "mxfp4", "nvfp4", "gptq_v1", 0, 1, 2, 7, 19, 99, -1, 1 << 32, "x", "awq", "i4_group"))
        if kind == "role":
            return pick((*layouts.ROLES, "x"))
        if kind == "weight":
            return pick((np.ones((4, 256), np.float32), np.ones((2, 3, 128), np.float32), np.ones(32, np.float32), np.ones((0, 32), np.float32),
                         np.ones((4, 7), np.float32), np.full((2, 32), np.nan, np.float32), np.float32(1), "x"))
        if kind == "packed":
            return self.packed()
        if kind == "values":
            return [self.memory(), self.memory(), 1, 2.5][:pick((4, 4, 4, 3, 0))]
        if kind == "kernels":
            return pick(([], [1], None, [accrt.DeviceKernel("k", [("x", "read")], (32,))]))
        if kind == "kind":
            return pick(("", "cubin", "ptx", "fatbin", "x"))
        if kind == "flag":
            return pick((True, False, 0, 1, None, "x"))
        found = self.modules.value(kind)
        return self.any() if found is NotImplemented else found

    def damaged(self) -> bytes:
        data = bytearray(self.value("bundlebytes"))
        for _ in range(self.random.randrange(1, 4)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data)

    def packed(self):
        layout = self.random.choice((0, 2, 6, 7, 17, 19, 22, 24, 99))
        part = layouts.Component(self.random.choice(("u8", "f32", "f16", "x")), self.random.choice((
            np.zeros(144, np.uint8), np.zeros(288, np.uint8)[::2], np.zeros(0, np.uint8), np.zeros(18, np.uint8), np.zeros(36, np.float32))))
        names = [role for role in layouts.ROLES if self.random.random() < 0.4] + ["data"]
        return layouts.Packed(layout, self.random.choice(((1, 256), (256,), (2, 32), (-1, 256), (1 << 40, 1 << 40), (), (0, 32), (1 << 64,))),
                              dict.fromkeys(names, part), self.random.choice((0, 32, 128, -1, 1 << 32)), self.random.choice(("f32", "bf16", "x")))

    def any(self, core: bool = False):
        kinds = self.core_kinds if core or self.random.random() < 0.8 else tuple(self.make)
        kind = self.random.choice((*kinds, "size", "name", "memory", "shape", "bytes", "None", "object", "list"))
        return {"None": None, "object": object(), "list": [1, 2]}[kind] if kind in ("None", "object", "list") else self.value(kind)

    # ---- operations

    def arguments(self, kinds: list[str]) -> list:
        out = []
        for kind in kinds:
            if kind.endswith("?"):
                if self.random.random() < 0.5:
                    break
                kind = kind[:-1]
            many = self.random.randrange(4) if kind.endswith("*") else 1
            kind = kind.rstrip("*")
            out.extend(self.any() if kind in ("any", "wrong") or kind not in NEVER_OTHERS and self.random.random() < 0.2 else self.value(kind) for _ in range(many))
        return out

    def keywords(self, name: str, function, arguments: list) -> dict:
        """Keywords for a call: some of the arguments, from the last on, and others that the
        signature has. At times one that it has not."""
        if self.random.random() < 0.5:
            return {}
        names, others = parameters(name, function)
        found, often = {}, 0.5 if self.random.random() < 0.5 else 0.1
        while arguments and len(arguments) <= len(names) and self.random.random() < 0.3:
            found[names[len(arguments) - 1]] = arguments.pop()
        for one in (*names[len(arguments):], *others):
            if one not in found and self.random.random() < often:
                kind = python_modules.KEYWORDS.get(one)
                found[one] = self.any(core=True) if kind is None or kind not in NEVER_OTHERS and self.random.random() < 0.2 else self.value(kind)
        if self.random.random() < 0.05:
            found[self.random.choice(("nothing", "n", "self", "x", ""))] = self.any(core=True)
        return {key: value for key, value in found.items() if key not in FOR_EVER or value is not None}

    def target(self, name: str):
        parts = name.split(".")
        if parts[0] in python_modules.MODULES:
            return python_modules.resolve(name)
        root = {"layouts": layouts, "trust": trust}.get(parts[0])
        value = getattr(root, parts[1]) if root is not None else getattr(accrt, parts[0])
        rest = parts[2:] if root is not None else parts[1:]
        return value, rest[0] if rest else None

    def once(self, name: str) -> None:
        kinds = OPERATIONS[name].split()
        if kinds[:1] == ["rare"]:
            kinds = kinds[1:]
            if self.random.random() > 0.02:
                return
        value, member = self.target(name)
        thing = None
        if kinds[:1] == ["self"]:
            owner = self.owner_kind(value)
            thing = self.take(owner)
            if thing is None:
                return
            self.modules.begin(owner, thing)
            kinds = kinds[1:]
            if isinstance(inspect.getattr_static(value, member), property):
                self.use(name, getattr(thing, member))
                return
        function = getattr(value if thing is None else thing, member) if member else value
        arguments = self.arguments(kinds)
        if name == "from_dlpack":
            arguments = arguments[:3]
        if name == "compiler.Interpreter.run" and self.random.random() < 0.8:
            called, arrays = self.modules.interpreted(thing)
            arguments = [called, *arrays]
        named = self.keywords(name, function, arguments) if callable(function) else {}
        if member == "close":
            self.open_gate(thing if thing is not None else next(iter(arguments), None))
        with contextlib.suppress(*[ZeroDivisionError] * (name == "compiler.Interpreter.run")):
            # a size that divides by 0, as in a file
            result = function(*arguments, **named)
            self.use(name, result)

    def use(self, name: str, result) -> None:
        if inspect.iscoroutine(result):
            async def limited():
                await asyncio.wait_for(result, self.random.choice((0.0005, 0.005)))
            asyncio.run(limited())
            return
        if name == "Semaphore.eventfd":
            os.close(result)
        if name == "Launch.on":  # the kernel does nothing with what it is given
            result(*self.random.choice(((0, 0, 1, 1.0), (0, 0), ("x", 0, 0, 0), (1 << 64, 0, 1, 1))))
        if isinstance(result, memoryview):
            bytes(result[:64]), bytes(result[-64:])
        if isinstance(result, np.ndarray) and result.size and result.dtype != object:
            result.ravel()[[0, -1]]
        for one in (result if isinstance(result, (tuple, list)) else (result,))[:8]:
            self.keep(one)

    def disturb(self) -> None:
        """Drops, closes, changes."""
        what, pools = self.random.randrange(8), [p for p in self.pools.values() if p]
        if not pools:
            return
        pool = self.random.choice(pools)
        if what < 4:
            pool.pop(self.random.randrange(len(pool)))
        elif what == 4:
            gc.collect(self.random.randrange(2))
        elif what == 5 and hasattr(pool[0], "close") and pool is not self.pools.get("instance"):
            thing = self.random.choice(pool)
            self.open_gate(thing)
            thing.close()
        elif what == 6:
            thing = self.random.choice(pool)
            names = [n for n in dir(type(thing)) if not n.startswith("_") and n not in ("name",)]
            if names and not isinstance(thing, (accrt.Instance, accrt.Program, accrt.Bundle, accrt.Weight)):
                setattr(thing, self.random.choice(names), self.any())

    def run(self, operations: int, report=None) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self.watch, args=(stop,), daemon=True)
        thread.start()
        begin, last = time.monotonic(), time.monotonic()
        try:
            for done in range(operations):
                name = self.random.choice(self.core if self.random.random() < 0.6 else self.names)
                if self.log is not None:
                    self.log.seek(0)
                    self.log.write(f"{done} {name}".ljust(100) + "\n")
                    self.log.flush()
                try:
                    if self.random.random() < 0.08:
                        self.disturb()
                    self.once(name)
                except ALLOWED as error:
                    self.errors[type(error).__name__] += 1
                except BaseException:
                    print(f"operation {done}, {name}, ended as nothing may:", file=sys.stderr, flush=True)
                    raise
                self.counts[name] += 1
                if report is not None and time.monotonic() - last > report:
                    last = time.monotonic()
                    print(f"{done + 1} operations in {last - begin:.0f} s", flush=True)
        finally:
            stop.set()
            thread.join()
            self.finish()

    def finish(self) -> None:
        for _, semaphore in self.gates:
            try:
                semaphore.fail("the end")
            except ALLOWED:
                pass
        self.gates.clear()
        self.modules.close()
        self.pools.clear()
        gc.collect()


class Lying:
    """An array interface that is not one."""

    def __init__(self, chance: random.Random) -> None:
        interface = {"version": 3, "typestr": "<f4", "shape": (0,), "data": (64, False)}
        interface[chance.choice(list(interface))] = chance.choice((None, 5, "x", (), (-1,), (None, None), "|O", ">f4", "|V8", {}))
        if chance.random() < 0.5:
            interface.pop(chance.choice(list(interface)))
        if interface.get("shape") != (0,):
            # no elements: its address is never used
            interface["shape"] = chance.choice(((0,), (-1,), None, "x", (0, 5)))
        self.__array_interface__ = interface


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--operations", type=int, default=20000)
    parser.add_argument("--log", default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.operations} operations, library {accrt.__version__} of {os.environ.get('ACCRT_LIBRARY', 'the tree')}", flush=True)
    faulthandler.enable()
    faulthandler.dump_traceback_later(600, repeat=True)
    log = open(options.log, "w", encoding="utf-8") if options.log else None  # noqa: SIM115 - until the end
    fuzzer = Fuzzer(options.bundle, options.pack, seed, log)
    begin = time.monotonic()
    fuzzer.run(options.operations, report=30)
    faulthandler.cancel_dump_traceback_later()
    print(f"{sum(fuzzer.counts.values())} operations of {len(fuzzer.counts)} kinds in {time.monotonic() - begin:.0f} s; "
          f"{sum(fuzzer.errors.values())} were refused: {dict(fuzzer.errors.most_common())}", flush=True)


if __name__ == "__main__":
    main()
