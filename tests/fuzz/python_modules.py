"""The modules beside the runtime for the fuzzer of the Python surface (python_surface.py): what
their names take, and how values are made.

bundle_writer, bundle_reader, compiler, models, sandbox and serve, as far as they run without torch
and onnx. Nothing here starts a C compiler or a server: what would do so gets wrong arguments alone.
Kinds with a dot are objects of these modules.
"""
from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import json
import os
import pathlib
import random
import struct
import warnings

import numpy as np

from accrt import bundle_reader, bundle_writer as bw, compiler, models, sandbox, serve

MODULES = {"bundle_writer": bw, "bundle_reader": bundle_reader, "compiler": compiler, "models": models, "sandbox": sandbox, "serve": serve}
DTYPES = ("f32", "f32", "f16", "bf16", "f64", "i32", "i64", "u8", "i8", "u32", "bool")
SHAPES = ((2, 3), (2, 3), (3, 2), (4,), (), (2, 3, 4), (1, 2, 4, 4), (2, 2, 3, 3), (0, 3), (1, 3), ("n", 3), ("n",), (2, "n"))
MOST_OPS, MOST_ELEMENTS = 60, 1 << 16  # of a function; of a result that the interpreter calculates

_VALUE = {
    "": "sqrt rsqrt reciprocal floor ceil exp log tanh erf sin cos sigmoid silu neg abs relu logical_not cosh exp2 expm1 hardsigmoid hardswish "
        "isinf isnan log10 log1p log2 log_sigmoid mish relu6 sign bitwise_not sinh square tan trunc acos acosh asin asinh atan atanh erfc erfinv lgamma digamma selu clone contiguous t pack sample_greedy rank dtype shape",
    "v": "matmul mm bmm add sub mul maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
         "bitwise_xor hypot atan2 bitwise_left_shift bitwise_right_shift floor_divide remainder fmod div_trunc embedding",
    "v v": "addmm where grouped_linear", "v v?": "linear", "v rounding?": "div", "number flag?": "pow", "sizes": "view reshape expand", "dim? dim?": "flatten",
    "sizes?": "permute", "dim dim": "transpose", "dim size? size? size?": "slice", "dim size": "select", "dim": "unsqueeze cumsum cumprod cummax cummin logcumsumexp", "dim?": "squeeze softmax log_softmax glu", "number? number?": "clamp hardtanh softplus", "number?": "elu celu leaky_relu", "size?": "round",
    "size? dim? dim?": "diagonal", "sizes? sizes? flag?": "upsample_nearest", "sizes flag sizes?": "upsample_linear upsample_cubic upsample_filtered", "size? flag?": "bessel_i", "dim? flag? flag?": "median", "v size? size? flag?": "grid_sample",
    "v? v? v v number?": "batch_norm", "size ": "pixel_shuffle token_groups", "dim size size ": "unfold", "dims? number? flag?": "var",
    "size dim?": "split chunk topk", "dim size size": "narrow", "v v v? flag? number? size?": "scaled_dot_product_attention", "size? number?": "rope",
    "v v? size? size? size? size?": "conv2d", "size size? size? size?": "max_pool2d", "size size? size?": "avg_pool2d",
    "size v? v? number?": "group_norm", "s sizes": "state_write", "s v": "state_scatter", "s v number?": "state_scatter_e4m3", "name": "write_input component",
    "approximate?": "gelu", "dtype": "to_copy", "v v v? number?": "rms_norm_backward layer_norm_backward",
    "v dim? number?": "softmax_backward", "dim v": "index_select gather", "dim? flag?": "sort argmax prod mode", "v v dim flag?": "scatter", "v v ": "grouped_matmul",
    "dims? flag?": "sum mean amax amin logsumexp", "v? v? number?": "layer_norm", "v? number?": "rms_norm masked_softmax", "v v number? flag?": "rope_at",
    "s s v v v v number? size? number?": "paged_attention", "v v v s s v v v size v?": "paged_scan", "s v ": "lora_shrink", "v s v": "lora_expand", "s s v": "lora_shrink2", "v s s v": "lora_expand2",
    "s s s v": "lora_shrink3", "v s s s v": "lora_expand3",
    "v s s v v any": "lora_pair", "v s s s s v v any": "lora_pair2", "v s s s s s s v v any": "lora_pair3", "v v v size any any": "matmul_packed product", "v any": "embedding_packed",
    "v v v any any any any": "linear_quantized conv_packed", "v v any any any any": "grouped_quantized", "v v v any* ": "window group_norm_last", "v*": "sample",
    "v v? v? any any any any any": "step_product", "v v v v v s s any any": "rope_scatter", "v v v v v v v s s": "step_tokens", "s s s v v v v? v any any any any": "walked_attention", "v s": "greedy", "v v? v? v v v s s any any any any any": "turned_product",
    "compared": "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__", " ": "__bool__ __int__ __float__ __index__ __len__ __iter__", "index": "__getitem__",
}
_RECORDS = {
    "bundle_writer": "Adapter Asset Component Constant Encoding File FileKind AliasKind ImageKind Image Location Parameter Predicate Range Role Scalar "
                     "Segment Shard State SymbolClass TensorRange BundleError TargetError Command Slot Signer Kernel",
    "bundle_reader": "Argument Bundle Component Constant Function Image Kernel SectionRecord Signature State Symbol Variant FormatError",
    "compiler": "CSource Constant CudaSource CudaVariant External IRError KernelDef OperatorSource Param Quantized Segment Shard State SymbolClass TensorType",
    "models": "Adapter Opened Options Refused", "serve": "BadParameter Event Loaded",
}
OPERATIONS = {
    **{f"{module}.{name}": "any*" for module, names in _RECORDS.items() for name in names.split()},
    **{f"compiler.Value.{name}": f"self {kinds}" for kinds, names in _VALUE.items() for name in names.split()},
    **{f"{module}.{name}": "x x" for module in ("bundle_writer", "compiler") for name in ("ceildiv", "equal", "maximum", "minimum")},
    **{f"bundle_writer.{name}": "x x" for name in ("less", "less_equal", "logical_and", "logical_or", "not_equal")},
    **{f"{module}.select": "x x x" for module in ("bundle_writer", "compiler")},
    **{f"{module}.Expr": "name any* " for module in ("bundle_writer", "compiler")},
    **{f"{module}.Expr.{name}": "self x" for module in ("bundle_writer", "compiler") for name in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__")},
    **{f"{module}.Expr.{name}": "self" for module in ("bundle_writer", "compiler") for name in ("__bool__", "symbols")},
    # bundle_writer
    "bundle_writer.Block": "w.function", "bundle_writer.Block.dispatch": "self w.kernel arguments grid", "bundle_writer.Block.copy": "self w.range w.range x sizes? sizes?",
    "bundle_writer.Block.check": "self x x x w.slot", "bundle_writer.Block.fill": "self w.range number? width?", "bundle_writer.Block.barrier": "self",
    "bundle_writer.Block.call": "self w.function arguments", "bundle_writer.Block.repeat": "self x", "bundle_writer.Block.branch": "self x",
    "bundle_writer.Block.marker": "self name", "bundle_writer.Block.raw": "self small bytes",
    "bundle_writer.BundleWriter": "caps?", "bundle_writer.BundleWriter.metadata": "self name name", "bundle_writer.BundleWriter.symbol": "self name symbolclass?",
    "bundle_writer.BundleWriter.constant": "self name memory", "bundle_writer.BundleWriter.prepared": "self name size",
    "bundle_writer.BundleWriter.file": "self name any", "bundle_writer.BundleWriter.external": "self name dtype shape",
    "bundle_writer.BundleWriter.shard": "self w.constant small", "bundle_writer.BundleWriter.adapter": "self name name",
    "bundle_writer.BundleWriter.asset": "self name bytes", "bundle_writer.BundleWriter.location": "self name small? small? name?",
    "bundle_writer.BundleWriter.string": "self name", "bundle_writer.BundleWriter.section": "self small name bytes",
    "bundle_writer.BundleWriter.optional_features": "self size", "bundle_writer.BundleWriter.state": "self name dtype sizes",
    "bundle_writer.BundleWriter.image": "self name bytes any?", "bundle_writer.BundleWriter.pack": "self name",
    "bundle_writer.BundleWriter.kernel": "self name parameters", "bundle_writer.BundleWriter.function": "self name",
    "bundle_writer.BundleWriter.to_bytes": "self", "bundle_writer.BundleWriter.write": "self target",
    "bundle_writer.Command.at": "self any", **{f"bundle_writer.Command.{name}": "self" for name in ("body", "then", "otherwise")},
    "bundle_writer.Constant.prepared": "self", "bundle_writer.Constant.size_bytes": "self",
    "bundle_writer.Function": "w.writer name flag flag name name small", "bundle_writer.Function.arguments": "self",
    "bundle_writer.Function.input": "self name dtype sizes", "bundle_writer.Function.scalar": "self name x", "bundle_writer.Function.result": "self name dtype sizes",
    "bundle_writer.Function.source": "self name w.constant", "bundle_writer.Function.product": "self name w.constant",
    "bundle_writer.Function.commands": "self", "bundle_writer.Function.present": "self w.slot", "bundle_writer.Function.constant": "self w.constant small?",
    "bundle_writer.Function.state": "self w.state", "bundle_writer.Function.transient": "self x? width?", "bundle_writer.Image.is_device_code": "self",
    "bundle_writer.Kernel.variant": "self w.image", "bundle_writer.Range.tensor": "self dtype sizes sizes?", "bundle_writer.Signer.sign": "wrong bytes",
    **{f"bundle_writer.Slot.{name}": "self x? x?" for name in ("read", "write", "update")},
    "bundle_writer.TargetCaps": "caps", "bundle_writer.TargetCaps.of": "caps", "bundle_writer.TargetCaps.architectures": "self", "bundle_writer.TargetCaps.__eq__": "self any",
    "bundle_writer.constant": "x", "bundle_writer.dtype_size_bytes": "dtype size?", "bundle_writer.induction": "small?", "bundle_writer.logical_not": "x",
    "bundle_writer.present": "small", "bundle_writer.same": "x x", "bundle_writer.scalar": "number dtype",
    # bundle_reader
    "bundle_reader.read": "bytes", "bundle_reader.Bundle.data": "self r.constant small?", "bundle_reader.Bundle.code": "self r.image",
    "bundle_reader.Bundle.signatures": "self", "bundle_reader.Bundle.verify": "self",
    # compiler
    "compiler.CSource.unit": "wrong", "compiler.CSource.depends": "wrong", "compiler.CudaSource.unit": "wrong", "compiler.CudaSource.depends": "wrong",
    "compiler.Function": "c.module name flag? flag? name?", "compiler.Function.input": "self name dtype sizes", "compiler.Function.present": "self v",
    "compiler.Function.scalar": "self name x", "compiler.Function.result": "self name v", "compiler.Function.block": "self", "compiler.Function.inside": "self any",
    "compiler.Function.require": "self x name", "compiler.Function.label": "self name", "compiler.Function.constant": "self c.constant", "compiler.Function.as_value": "self any",
    "compiler.Function.needed_value": "self any name", "compiler.Function.add": "self op values attributes", "compiler.Function.repeat": "self x values body",
    "compiler.Function.cond": "self x body body", "compiler.Function.call": "self c.function v*", "compiler.Function.kernel": "self any values any any?",
    "compiler.Function.cat": "self values dim?", "compiler.Function.state_read": "self s sizes? sizes?", "compiler.Function.full": "self sizes number dtype?",
    "compiler.Function.arange": "self x x? size?", "compiler.Function.sample": "self v*", "compiler.Function.state_gather": "self s v small?",
    "compiler.Interpreter": "c.module sessionsizes? weightmap?", "compiler.Interpreter.run": "self functionname memory*",
    "compiler.KernelDef.params_size_bytes": "wrong", "compiler.KernelDef.param": "wrong name", "compiler.Param.align_log2": "wrong",
    "compiler.Module": "name?", "compiler.Module.symbol": "self name symbolclass?", "compiler.Module.constant": "self name memory dtype?",
    "compiler.Module.weight": "self name c.quantized", "compiler.Module.file": "self name name?", "compiler.Module.external": "self name dtype shape",
    "compiler.Module.state": "self name dtype sizes", "compiler.Module.function": "self name", "compiler.Module.ranges": "self",
    **{f"compiler.Quantized.{name}": "self" for name in ("rows", "columns", "effective_group", "groups")},
    "compiler.Quantized.component_type": "self role", "compiler.Quantized.part_shape": "self role", "compiler.Quantized.size_bytes": "self role",
    "compiler.TensorType.rank": "self", "compiler.TensorType.same": "self c.tensortype", "compiler.TensorType.elements": "self", "compiler.TensorType.size_bytes": "self",
    "compiler.Shard.part_of": "wrong any* ", "compiler.Value.__array__": "self any* ", "compiler.Value.__array_ufunc__": "self any* ",
    "compiler.Value": "c.function c.tensortype any? name?", "compiler.available_targets": "rare names", "compiler.cat": "values dim?", "compiler.verify": "c.module",
    "compiler.compile": "rare core path?", "compiler.compile_writer": "rare core names?", "compiler.declared": "layoutname shape",
    "compiler.dequantize": "c.quantized", "compiler.quantize": "weight layoutname",
    # models
    "models.families": "", "models.open": "rare path", "models.read": "folder", "models.read_adapter": "folder any",
    # sandbox: it starts a process, which is sandboxed
    "sandbox.helper": "", "sandbox.SandboxSession": "rare sandboxed", "sandbox.SandboxSession.close": "wrong", "sandbox.SandboxSession.functions": "wrong",
    "sandbox.SandboxSession.__getitem__": "wrong name", "sandbox.SandboxSession.__contains__": "wrong name", "sandbox.SandboxSession.__iter__": "wrong",
    # serve: engines of simulated models
    "serve.Bytes": "", "serve.Bytes.encode": "self name flag?", "serve.Bytes.special": "self name", "serve.Bytes.has": "self name", "serve.Bytes.decode": "self tokens", "serve.ChatTemplate": "template any?",
    "serve.ChatTemplate.close": "self", "serve.ChatTemplate.render": "self messages any?", "serve.Engine": "rare e.model", "serve.Engine.close": "self", "serve.Engine.constraint": "self any?", "serve.Engine.submit": "self e.request",
    "serve.Engine.cancel": "self size", "serve.Engine.fileno": "self", "serve.Engine.wait": "self seconds", "serve.Engine.poll": "self", "serve.Engine.stats": "self",
    "serve.Engine.drain": "self seconds", "serve.Hub": "e.engine", "serve.Hub.submit": "self e.request callback", "serve.Hub.pump": "self seconds", "serve.Hub.take": "self",
    "serve.Hub.take_if_free": "self", "serve.Hub.forget": "self size", "serve.Model": "wrong", "serve.Model.simulated": "rare", "serve.Model.info": "self",
    "serve.Request": "tokens requested small? ", "serve.Request.check": "self any", "serve.Request.adapter": "self", "serve.Server": "rare wrong any", **{f"serve.Server.{name}": "self" for name in (
        # there is none: tests/python/test_serve_http.py
        "name", "names", "port", "counts", "close")}, "serve.Server.drain": "self seconds",
    "serve.Text": "e.bytes e.chattemplate? any?", "serve.Text.prompt": "self prompt name?", "serve.Text.close": "self", "serve.Text.need_head": "self", "serve.Text.chat": "self messages any?",
    "serve.Tokenizer": "bytes", "serve.Tokenizer.encode": "wrong name", "serve.Tokenizer.special": "wrong name", "serve.Tokenizer.has": "wrong name", "serve.Tokenizer.decode": "wrong tokens", "serve.load": "rare path", "serve.simulated": "rare name? template?",
}
#: Classes whose objects are kept, and the kind that they are of.
KINDS = {
    bw.BundleWriter: "w.writer", bw.Function: "w.function", bw.Block: "w.block", bw.Slot: "w.slot", bw.Range: "w.range", bw.Command: "w.command",
    bw.Kernel: "w.kernel", bw.Image: "w.image", bw.State: "w.state", bw.Constant: "w.constant", bw.TargetCaps: "w.targetcaps", bw.Expr: "x",
    bundle_reader.Bundle: "r.bundle", bundle_reader.Constant: "r.constant", bundle_reader.Image: "r.image",
    compiler.Module: "c.module", compiler.Function: "c.function", compiler.Value: "v", compiler.State: "s", compiler.Constant: "c.constant",
    compiler.Interpreter: "c.interpreter", compiler.Quantized: "c.quantized", compiler.TensorType: "c.tensortype",
    serve.Bytes: "e.bytes", serve.ChatTemplate: "e.chattemplate", serve.Engine: "e.engine", serve.Hub: "e.hub", serve.Model: "e.model",
    serve.Request: "e.request", serve.Text: "e.text", serve.Server: "e.server",
}  # fmt: skip
#: Kinds of keywords by their names, also of python_surface's; others get anything.
KEYWORDS = {
    "timeout": "timeout", "dtype": "dtype", "out": "memory", "budget": "budget", "stream": "stream", "pool": "pool", "verify": "verify", "copy": "flag",
    "max_version": "version", "dl_device": "dldevice", "offset_bytes": "size", "size_bytes": "size", "after": "after", "label": "name", "name": "name",
    "alignment_bytes": "width", "symbols": "symbols", "waits": "points", "signals": "points", "shape": "shape", "strides": "shape", "instance": "instance",
    "device": "device", "policy": "policyname", "max_plans": "small", "limit_bytes": "limit", "read_only": "flag", "partial": "flag", "scale": "number",
    "alpha": "number", "importance": "memory", "scales": "dtype", "search": "flag", "group_elements": "small", "weight_dtype": "dtype", "trust": "policy",
    "weights": "weights", "isolated": "flag", "seconds": "seconds", "pattern_bytes": "width", "source_offset": "size", "target_offset": "size", "width": "width",
    "flag": "flag", "access": "access", "optional": "flag", "prepare": "flag", "internal": "flag", "doc": "name", "alias": "w.slot", "dim": "dim", "keepdim": "flag",
    "minimum": "size", "maximum": "size", "divisor": "size", "buckets": "sizes", "group": "small", "fill_pattern": "number", "digest": "bytes", "sha256": "bytes",
    "layout": "layoutname", "required": "flag", "record_bytes": "small", "record_count": "small", "media_type": "name", "file": "name", "tensor": "name",
    "eps": "number", "stride": "size", "padding": "size", "dilation": "size", "groups": "size", "is_causal": "flag", "rounding_mode": "rounding", "min": "number",
    "max": "number", "entry": "name", "driver": "name", "arch": "name", "priority": "small", "block": "grid", "target": "name", "required_features": "size",
    "axis": "dim", "extent": "size", "encoding": "small", "add": "flag", "descending": "flag", "count": "number", "n": "small", "x": "memory", "y": "memory",
    "sandbox": "no", "follow_links": "flag", "one_file": "flag",
}  # fmt: skip


def surface(special: tuple) -> set[str]:
    """Public classes, functions, methods and properties of the modules; `special`: methods with
    underscores that count."""
    found = set()
    for prefix, module in MODULES.items():
        names = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
        for name in names:
            value = getattr(module, name)
            if not callable(value):
                continue
            found.add(f"{prefix}.{name}")
            if not isinstance(value, type) or issubclass(value, (tuple, enum.Enum)):
                continue
            found |= {f"{prefix}.{name}.{member}" for member, what in vars(value).items()
                      if (not member.startswith("_") or member in special) and not inspect.ismemberdescriptor(what)
                      and not (member in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__") and dataclasses.is_dataclass(value))
                      and (callable(what) or isinstance(what, (property, classmethod, staticmethod)))}
    return found


def resolve(name: str):
    """The class or function of an operation, and its member or None."""
    module, first, *rest = name.split(".")
    return getattr(MODULES[module], first), rest[0] if rest else None


class Makers:
    """Values of the modules' kinds, for a Fuzzer (python_surface.py), whose pools they go to."""

    def __init__(self, fuzzer) -> None:
        self.fuzzer, self.random = fuzzer, fuzzer.random
        # the function whose values are drawn, and the type that half of them have
        self.owner = self.like = None
        self.checkpoint = pathlib.Path(fuzzer.folder.name, "checkpoint")
        self.checkpoint.mkdir()
        take = fuzzer.take
        self.make = {
            "w.writer": self.writer, "w.function": lambda: self.random.choice(list(take("w.writer")._functions.values())),
            "w.block": lambda: take("w.function").body, "w.slot": self.slot, "w.range": lambda: self.random.choice((take("w.slot").read, take("w.slot").write))(),
            "w.command": lambda: take("w.block").barrier(), "w.kernel": lambda: take("w.writer").kernel(self.new(), [bw.Parameter("x", "buffer", "read")]),
            "w.image": lambda: take("w.writer").image(self.new(), bytes(64)), "w.state": lambda: take("w.writer").state(self.new(), "f32", [4]),
            "w.constant": lambda: take("w.writer").constant(self.new(), bytes(16), dtype="f32", shape=[4]), "w.targetcaps": lambda: bw.TargetCaps.of(fuzzer.caps),
            "x": lambda: take("w.writer").symbol(self.new(), maximum=64), "r.bundle": lambda: bundle_reader.read(fuzzer.value("bundlebytes")),
            "r.constant": lambda: self.random.choice(list(take("r.bundle").constants.values())), "r.image": lambda: self.random.choice(list(take("r.bundle").images.values())),
            "c.module": self.module, "c.function": lambda: self.random.choice(list(take("c.module").functions.values())), "v": self.peer,
            "s": self.state, "c.constant": lambda: take("c.module").constant(self.new(), np.ones((2, 3), np.float32)),
            "c.interpreter": lambda: compiler.Interpreter(take("c.module"), {"n": 2}),
            "c.quantized": lambda: compiler.quantize(np.ones((4, 256), np.float32), self.random.choice(("q8_0", "q4_k", "mxfp4"))),
            "c.tensortype": lambda: compiler.TensorType(self.random.choice(DTYPES), (2, 3)),
            "e.bytes": serve.Bytes, "e.chattemplate": lambda: serve.ChatTemplate("{{ messages[0].content }}"), "e.model": serve.Model.simulated,
            "e.engine": lambda: serve.Engine(take("e.model")), "e.hub": lambda: serve.Hub(take("e.engine")), "e.text": lambda: serve.Text(serve.Bytes()),
            "e.request": lambda: serve.Request(self.value("tokens"), self.requested()),
        }

    def new(self) -> str:
        return f"a{self.random.randrange(1 << 40)}"

    # ---- bundle_writer

    def writer(self) -> bw.BundleWriter:
        writer = bw.BundleWriter()
        n = writer.symbol("n", maximum=64)
        function = writer.function("f")
        x, y = function.input("x", "f32", [n]), function.result("y", "f32", [n])
        function.body.copy(x.read(), y.write(), n * 4)
        writer.function("g").input("x", "i32", [2, n], access="read_write")
        return writer

    def slot(self):
        function = self.fuzzer.take("w.function")
        return self.random.choice([lambda: function.input(self.new(), self.random.choice(DTYPES), [4]), lambda: function.transient(256),
                                   lambda: function.result(self.new(), "f32", [4])])()

    # ---- compiler

    def module(self) -> compiler.Module:
        module = compiler.Module("fuzzed")
        n = module.symbol("n", maximum=8)
        module.state("kept", "f32", [4, 3])
        for name in ("f", "g"):
            function = module.function(name)
            for i, shape in enumerate(((2, 3), (2, 3), (2, 3), (3, 2), (3,), (1, 2, 4, 4), (2, 2, 3, 3), (2, 3, 4))):
                function.input(f"x{i}", "f32", shape)
            function.input("i", "i64", [2, 3]), function.input("j", "i32", [2])
            for i in range(8):
                shape = [n if size == "n" else size for size in self.random.choice(SHAPES)]
                function.input(f"y{i}", self.random.choice(DTYPES), shape)
        return module

    def state(self):
        module = self.owner.module if self.owner is not None else self.fuzzer.take("c.module")
        return self.random.choice(list(module.states.values()))

    def peer(self):
        """A value of the function that is being written, or of any."""
        function = self.owner if self.owner is not None and self.random.random() < 0.95 else self.fuzzer.take("c.function")
        if function is None:
            return None
        values = [*(given.value for given in function.inputs if given.value is not None), *(result for op in function.body.ops[-12:] for result in op.results)]
        alike = [value for value in values if self.like is not None and value.type.same(self.like)] if self.random.random() < 0.4 else values
        return self.random.choice(alike or values) if values else None

    def begin(self, kind: str, thing) -> None:
        """Before an operation on `thing`: whose values are drawn. A function that has grown is let
        go."""
        self.like = thing.type if kind == "v" else None
        self.owner = thing if kind == "c.function" else getattr(thing, "function", None) if kind == "v" else None
        if self.owner is not None and len(self.owner.body.ops) > MOST_OPS:
            for pool in ("v", "c.function", "c.module", "c.interpreter"):
                self.fuzzer.pools.pop(pool, None)

    def interpreted(self, interpreter) -> tuple[str, list]:
        """A function of an interpreter's and its inputs, as far as they are small."""
        module = interpreter.module
        function = self.random.choice(list(module.functions.values()))
        sizes = {name: 2 for name in module.symbols}
        for op in function.body.ops:
            for result in op.results:
                count = 1
                for size in result.shape:
                    count *= size if isinstance(size, int) else 8
                if count > MOST_ELEMENTS:
                    return "", []
        arrays = []
        for value in (given.value for given in function.inputs):
            if value is None:
                continue
            shape = [size if isinstance(size, int) else sizes.get(str(size), 2) for size in value.shape]
            arrays.append(np.asarray(self.random.choice((0, 1, 2, -1, np.inf, np.nan)) if value.dtype.startswith(("f", "b")) else self.random.randrange(3)) * np.ones(shape))
        return function.name, arrays

    # ---- models and serve

    def folder(self):
        """A folder like a model's, more or less."""
        config = {"architectures": [self.random.choice(("LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM", "Gemma2ForCausalLM", "X"))],
                  "model_type": self.random.choice(("llama", "gpt2", "qwen2", "x")), "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
                  "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 32, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
                  "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "r": 2, "peft_type": "LORA", "lora_alpha": 4}
        for _ in range(self.random.randrange(3)):
            config[self.random.choice(list(config))] = self.random.choice((None, -1, 0, 1 << 40, "x", [], {}, 1.5, True, [None], {"rope_type": "x"}, float("nan")))
        text = json.dumps(config)
        if self.random.random() < 0.1:
            text = text[: self.random.randrange(len(text))]
        header = json.dumps({"a.weight": {"dtype": self.random.choice(("F32", "BF16", "X", 3)), "shape": self.random.choice(([4], [2, 2], [-1], "x", [1 << 62])), "data_offsets": [0, 16]}}).encode()
        weights = struct.pack("<Q", self.random.choice((len(header), len(header), 0, 1 << 63))) + header + bytes(self.random.choice((16, 15, 0)))
        for name, content in (("config.json", text.encode()), ("adapter_config.json", text.encode()), ("model.safetensors", weights), ("adapter_model.safetensors", weights)):
            (self.checkpoint / name).write_bytes(content)
        return self.random.choice((str(self.checkpoint), str(self.checkpoint), self.checkpoint, str(self.checkpoint / "model.safetensors"), str(self.checkpoint / "config.json"),
                                   self.fuzzer.value("path")))

    def requested(self) -> dict:
        given = serve.parameters.checked({"max_tokens": 4})
        if self.random.random() < 0.3:
            given[self.random.choice(list(given))] = self.random.choice((0, 1, 5, 1 << 40, 1.5, None, True))
        return given

    # ---- kinds

    def value(self, kind: str):  # noqa: PLR0911, PLR0912 - a table with little code in each row
        """A value of a kind that the modules have, or NotImplemented."""
        pick, draw = self.random.choice, self.random.randrange
        if kind == "x":
            return self.fuzzer.take("x") if draw(2) else pick((0, 1, 2, 4, 16, 64, -1, 1 << 48, 1 << 63, 1.5, True))
        if kind == "sizes":
            return pick(([], [2], [2, 3], [3, 2], [6], [-1], [2, -1], [0], [1] * 9, [1 << 62, 4], (1, 2, 4, 4), [1, 0], 2, "ab", [self.fuzzer.take("x")], [None]))
        if kind == "dims":
            return pick((None, 0, 1, -1, [0, 1], [0, 0], [], (1,), 9, "x", [-1, 1]))
        if kind == "dim":
            return pick((0, 0, 1, -1, -1, 2, 3, -4, 9, 1 << 40, "x", None, True, 1.5))
        if kind == "index":
            return pick((0, -1, 1, slice(0, 1), slice(None, None, 2), (0, 1), (slice(None), 0), ..., None, (..., None), 1.5, "x", slice(None, None, -1), slice(None, None, 0)))
        if kind == "values":
            return pick(([self.peer(), self.peer()], [self.peer()], [], [self.peer(), 1.0], None, 3))
        if kind == "body":
            return pick((lambda *v: v, lambda *v: list(v), lambda *v: self.peer(), lambda *v: None, lambda: [], 3))
        if kind == "rounding":
            return pick((None, "trunc", "floor", "x", 1))
        if kind == "approximate":
            return pick(("none", "tanh", "x", 1, None))
        if kind == "op":
            return pick(("aten.add", "aten.relu", "aten.cat", "x", "", "aten.sum", 3))
        if kind == "attributes":
            return pick(({}, {"dim": 0}, {"x": 1}, None, {"dim": "x"}))
        if kind == "symbolclass":
            return pick((*bw.SymbolClass, 0, 9, "x"))
        if kind == "functionname":
            return pick(("f", "g", "x", "", 3))
        if kind == "sessionsizes":
            return pick(({}, {"n": 2}, {"n": 99}, {"n": "x"}, None, {"x": 1}, 3))
        if kind == "layoutname":
            return pick(("q8_0", "q4_k", "mxfp4", "nvfp4", "plain", "i4_group", "x", 3, "gptq_v1", "i8_channel"))
        if kind == "arguments":
            return pick(({}, {"x": self.fuzzer.take("w.range")}, {"x": 1, "y": 2.5}, {"x": self.fuzzer.take("x")}, None, {1: 2}, [("x", 1)]))
        if kind == "parameters":
            return pick(([], [bw.Parameter("x", "buffer", "read")], [bw.Parameter("x", "buffer", "read")] * 2, [1], None, "x"))
        if kind == "access":
            return pick(("read", "write", "read_write", "donated", "none", "x", 1))
        if kind == "caps":
            return pick((self.fuzzer.caps, {}, "x", "{}", "[]", 5, None, os.path.join(self.fuzzer.folder.name, "none"), self.damaged_caps()))
        if kind == "target":
            return pick((os.path.join(self.fuzzer.folder.name, "written.accx"), self.fuzzer.folder.name, 5, None, "a\0b"))
        if kind == "folder":
            return self.folder()
        if kind == "template":
            return pick(("{{ messages[0].content }}", "{% for m in messages %}{{ m.role }}{% endfor %}", "{{", "{{ 1 / 0 }}", "", "{{ raise_exception('x') }}", 3, None, "\udcff"))
        if kind == "messages":
            return pick(([{"role": "user", "content": "x"}], [], [{}], None, "x", [3], [{"role": "x", "content": "y"}], [{"role": "user", "content": [1]}],
                         [{"role": "user", "content": [{"type": "text", "text": "z"}]}], [{"role": "user", "content": "\udcff"}]))
        if kind == "prompt":
            return pick(("hello", "", [1, 2], [], [-1], [1 << 40], [1.5], [True], None, 5, "\udcff", (1,), np.ones(3, np.int64), ["x"]))
        if kind == "tokens":
            return pick(([1, 2, 3], [1], [65] * 40, [], [-1], [1 << 40], "x", None, (1, 2), [1.5]))
        if kind == "requested":
            return self.requested() if draw(4) else pick(({}, None, {"max_tokens": 3}, 5))
        if kind == "callback":
            return pick((lambda event: None, None, 3, lambda: None))
        if kind == "seconds":
            return pick((0, 0.0, 0.001, -1, -0.5, 0.002, "x", None, float("nan")))
        if kind == "sandboxed":
            return pick((bytes(32), "", b"", 5, None, os.path.join(self.fuzzer.folder.name, "none"), self.fuzzer.folder.name))
        if kind == "version":
            return pick(((1, 0), (0, 8), (1, 9), (2, 0), None, (1,), "x", 5, (1 << 40, 0), (-1, -1), ()))
        if kind == "dldevice":
            return pick(((1, 0), (2, 0), (1, 1), None, (1,), "x", (99, 99), (1 << 40, 0), 1, ()))
        if kind == "no":
            return pick((False, None, 0, "x"))
        return NotImplemented

    def damaged_caps(self):
        caps = dict(self.fuzzer.caps) if isinstance(self.fuzzer.caps, dict) else {}
        if caps:
            caps[self.random.choice(list(caps))] = self.random.choice((None, 3, "x", [], {}, [None], -1, [{}]))
        return caps

    def close(self) -> None:
        """Engines end before their models do."""
        for kind in ("e.hub", "e.engine"):
            for thing in self.fuzzer.pools.pop(kind, []):
                with contextlib.suppress(AttributeError, OSError):
                    thing.close()


warnings.simplefilter("ignore")
random.seed(0)  # what draws without a generator of its own draws the same
