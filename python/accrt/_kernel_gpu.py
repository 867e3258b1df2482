"""Kernels of GPUs that are loaded on each GPU when it is first used: `Kernel.from_cuda`,
`from_cubin`, `from_ptx`."""
from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Mapping
from operator import index as _index
from typing import Any, Callable, Sequence

from . import _fast, _ffi, _window
from ._files import regular
from ._kernel_source import _included, parsed, text_of
from ._library import describe, filled, last_error, lib, need, never_raises, shown
from .errors import NoVariantError
from .instance import Device, Instance
from .kernels import _CODES, _SCALARS, DeviceKernel, Kernel, KernelPack, Launch
from .memory import Buffer
from .stream import Stream
from .tensor import DTYPES, Tensor

_CUDA = 2  # as DLPack numbers devices
_RECORD = struct.Struct("<BBHI")  # of a parameter, as launch.c has it
#: (image, its kind, the kernel's name in it, what else of its description follows from the
#: architecture)
Code = Callable[[str], "tuple[bytes | str, str, str, dict[str, Any]]"]


class GpuKernel(Kernel):
    """A kernel of GPUs: `Kernel.from_cuda`, `from_cubin`, `from_ptx`. It is called as every Kernel,
    and is loaded on each GPU when it is first used there."""

    __slots__ = ("_code", "_described", "_known", "_on", "_root", "_quick", "_taught", "_grid_takes", "_images", "_exact", "_forms")

    def __init__(self, code: Code, described: DeviceKernel, known: Sequence[tuple[str, str, str]], grid: Callable | None, root: Instance | None,
                 aligns: Sequence[int] = ()) -> None:
        if not callable(code) or not isinstance(described, DeviceKernel):
            raise TypeError("a GpuKernel is made by Kernel.from_cuda, from_triton, from_cubin or from_ptx")
        self._code, self._described, self._known, self._grid, self._root = code, described, tuple(known), grid, root
        # architectures that it is bound to; whether code is for one alone; what bundles ask for, if
        # not for all
        self._aligns, self._images, self._exact, self._forms = tuple(aligns), (), False, ()
        self.name, self._definition, self._on, self._quick = described.name, None, {}, None
        self._taught: set[tuple[int, int]] = set()  # GPUs and streams that the quick way knows
        self._grid_takes = [(name, index) for index, (name, kind, _dtype) in enumerate(self._known) if kind in ("scalar", "symbol")]
        self._parameters = tuple((name, "scalar" if kind in ("scalar", "symbol") else "buffer", 8 if kind != "scalar" else _SCALARS[dtype])
                                 for name, kind, dtype in self._known)

    def image(self, arch: str) -> tuple[bytes | str, str]:
        """The machine code for an architecture ("sm_90") and its kind, "cubin" or "ptx". It needs
        no GPU."""
        if not isinstance(arch, str):
            raise TypeError(f"arch is {describe(arch)}, expected one as 'sm_90'")
        image, kind, _entry, _more = self._code(arch)
        return image, kind

    def on(self, device: Device) -> Kernel:
        """The kernel as it is loaded on one GPU: what `accrt.launch`, `accrt.Launch` and
        `accrt.Commands` take."""
        need(device, Device)
        key = id(device.instance), device.name
        found = self._on.get(key)
        if found is None:
            if device.info.driver != "cuda":
                raise ValueError(f"kernel {self.name} is for CUDA GPUs, and {device.name} is a device of {device.info.driver}")
            image, kind, entry, more = self._code(device.info.arch)
            found = KernelPack.of_module(device, image, [self._described._replace(name=entry, **more)], kind).kernel(entry)
            found.name, found._grid, found._aligns = self.name, self._grid, self._aligns
            found._types = tuple(dtype for _name, _kind, dtype in self._known)
            # What is hidden comes last, and is 0.
            found._parameters, found._places = found._parameters[:len(self._known)], found._places[:len(self._known)]
            self._on[key] = found  # it holds its instance: the number means no other one
        return found

    def __call__(self, *values, grid: Sequence[int] | int | None = None, stream: Stream | None = None, **named) -> None:
        if self._quick is not None and stream is None and not named:
            done = self._quick(values, grid if grid is not None or self._grid is None else self._own_grid(values))
            if done is None:
                return
            if done is not NotImplemented and done != _ffi.ACCRT_ERROR_INVALID_STATE:
                # which a stream gives that is captured
                raise self._failure(done)
        from ._kernel_call import call
        device = need(stream, Stream) and stream.device if stream is not None else self._device_of((*values, *named.values()))
        values, named = [_plain(value) for value in values], {name: _plain(value) for name, value in named.items()}
        there = self.on(device)
        call(there, values, grid, stream, named)
        if _fast.native is not None and there._borrowed:
            self._teach(there, device, values)

    def _own_grid(self, values: Sequence) -> Any:
        """What the kernel's own function says; None: what is given does not fit, and is looked at
        in many steps."""
        try:
            return self._grid({name: values[index] for name, index in self._grid_takes})  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - comes again there
            return None

    def _failure(self, status: int) -> Exception:
        """Of the quick way. A stream that has failed is not used again."""
        error = last_error(status)
        self._quick = None
        self._taught.clear()
        for there in self._on.values():
            there._borrowed.clear()
        return error

    def _teach(self, there: Kernel, device: Device, values: Sequence) -> None:
        """Registers this GPU, and the streams that are known there, with the fast path."""
        index = device.info.dlpack_device[1]
        streams = {number: stream for number, stream in there._borrowed.items() if (index, number) not in self._taught}
        if not streams:
            return
        for value in values:
            for kind in type(value).__mro__:
                _fast.learn_class(kind)
        _window.connect(_fast.native)
        if self._quick is None:
            raw = filled(_ffi.accrt_kernel_info, lib.accrt_kernel_info, there.handle)
            records = b""
            for place, ((_name, kind, dtype), p) in enumerate(zip(self._known, raw.params[:raw.param_count])):
                memory = kind not in ("scalar", "symbol")
                align = max(lib.accrt_dtype_bits(DTYPES[dtype]) // 8 if dtype else 1, self._aligns[place] if self._aligns else 1)
                records += _RECORD.pack(0 if memory else ord(_CODES[dtype]), align.bit_length() - 1, DTYPES[dtype] if memory and dtype else 0,
                                        p.offset_bytes)
            self._quick = _fast.native.Launcher(records, raw.params_size_bytes)
        launch = Launch(device, there)
        while not any(gpu == index for gpu, _ in self._taught) and self._quick.learn_launch(index, launch.handle, _index(launch.handle)):
            launch = Launch(device, there)
        for number, stream in streams.items():
            self._quick.learn_stream(index, number, stream.handle, _index(stream.handle))
            self._taught.add((index, number))

    def _device_of(self, values: Sequence) -> Device:
        """The GPU that the first argument on a GPU lies on; without one, the first GPU."""
        index = 0
        for value in values:
            if isinstance(value, (Tensor, Buffer)):
                home = value.buffer.device if isinstance(value, Tensor) else value.device
                if home.info.dlpack_device[0] == _CUDA:
                    return home
                continue
            ask = getattr(value, "__dlpack_device__", None)
            try:
                found = tuple(map(int, ask())) if callable(ask) else (0, 0)
            except (ValueError, RuntimeError, BufferError):  # the argument is refused, by its name
                continue
            if found[0] == _CUDA:
                index = found[1]
                break
        root = self._root
        if root is None:
            from .instance import default_instance
            root = default_instance()
        return root.device(f"cuda:{index}")

    def check(self, *values, grid: Sequence[int] | int | None = None, **named) -> list[str]:
        raise TypeError(f"kernel {self.name} is a GPU's: compute-sanitizer checks those")

    def arguments(self, values: Sequence, device: Device):
        return self.on(device).arguments(values, device)

    @property
    def definition(self) -> Any:
        """Its record for the reference compiler, with the machine code for all targets of CUDA's
        that it has."""
        if self._definition is None:
            from ._kernel_bundle import definition
            self._definition = definition(self)
        return self._definition

    @property
    def pack(self) -> KernelPack:
        raise TypeError(f"kernel {self.name} is loaded on each GPU apart: kernel.on(device) has the pack")

    @property
    def handle(self):
        raise TypeError(f"kernel {self.name} is loaded on each GPU apart: kernel.on(device) has the handle")

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.GpuKernel {self.name}({', '.join(f'{n}: {k}' for n, k, _ in self._parameters)})>"


def _plain(value: Any) -> Any:
    """A tensor of torch's without its gradient, of which a kernel knows nothing."""
    return value.detach() if getattr(value, "requires_grad", False) is True else value


def _described(name: str, parameters: Any, block: Any, shared_bytes: int, cluster: Any, cooperative: bool):
    """The record that the library checks the image against, and the parameters as `parsed` gives
    them."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a kernel's name is {shown(name)}, expected a str")
    known = parsed(f"kernel {name}", parameters)
    block = (block,) if isinstance(block, int) else block
    kinds = [(one, kind if kind not in ("symbol", "scalar") else dtype) for one, kind, dtype in known]
    return DeviceKernel(name, kinds, tuple(block) if isinstance(block, list) else block, shared_bytes, tuple(cluster), bool(cooperative)), known


def _checked_grid(name: str, grid: Any) -> None:
    if grid is not None and not callable(grid):
        raise TypeError(f"kernel {name}: grid is {describe(grid)}, expected a function from the values to (x, y, z), as "
                        "lambda v: ((v['n'] + 255) // 256, 1, 1), or none, and then each call says it")


def from_cuda(source: Any, name: str, parameters: Any, grid: Any, block: Any, shared_bytes: int, options: Sequence[str], entry: str, arch: Any,
              cluster: Any, cooperative: bool, instance: Instance | None) -> GpuKernel:
    described, known = _described(name, parameters, block, shared_bytes, cluster, cooperative)
    _checked_grid(name, grid)
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise TypeError(f"kernel {name}: options is {options!r:.80}, expected a list of NVRTC's options, as ['--use_fast_math']")
    text, path = text_of(source)
    folder = os.path.dirname(path)
    depends, file, more = _included(text, folder) if path else "", os.path.basename(path) or name, tuple(options)

    def code(wanted: str) -> tuple[bytes, str, str, dict[str, Any]]:
        from . import _nvrtc
        return *_nvrtc.compiled(text, depends, file, entry or name, wanted, more, folder, f"kernel {name}"), {}

    self = GpuKernel(code, described, known, grid, instance)
    for wanted in (arch,) if isinstance(arch, str) else arch:
        self.image(wanted)
    return self


def _content(source: Any, what: str) -> bytes | str:
    """Machine code as bytes or text, or from the file of a path."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, str) and "\n" in source:
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"{what}: its machine code is {describe(source)}, expected bytes (PTX: text) or the path of a file")
    with open(source, "rb", opener=regular) as file:
        return file.read()


def _ptx_text(image: bytes | str, what: str) -> str:
    """PTX as text. The driver reads it up to its first NUL."""
    try:
        text = image if isinstance(image, str) else image.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: its PTX is no text: {error}") from None
    text = text.rstrip("\0")
    if "\0" in text:
        raise ValueError(f"{what}: its PTX has a NUL in it, which would end it")
    return text


def _fitting(images: Mapping[str, Any], arch: str, what: str) -> Any:
    """What runs on an architecture: its own, or one of the same generation that is not newer."""
    known = re.match(r"sm_(\d+)(\d)", arch)
    fitting = [one for one in images for m in [re.match(r"sm_(\d+)(\d)\Z", one)] if known and m and m[1] == known[1] and m[2] <= known[2]]
    best = arch if arch in images else max(fitting, default="")
    if not best:
        raise NoVariantError(f"{what}: there is no machine code for {arch}, but for {', '.join(images) or 'nothing'}")
    return images[best]


def from_image(source: Any, name: str, parameters: Any, grid: Any, block: Any, shared_bytes: int, entry: str, cluster: Any, cooperative: bool,
               instance: Instance | None, ptx: bool) -> GpuKernel:
    described, known = _described(name, parameters, block, shared_bytes, cluster, cooperative)
    _checked_grid(name, grid)
    what = f"kernel {name}"
    given = source if isinstance(source, Mapping) else {"": source}
    if not all(isinstance(arch, str) for arch in given):
        raise TypeError(f"{what}: machine code is given for {next(arch for arch in given if not isinstance(arch, str))!r:.80}, expected names as 'sm_90'")
    images = {arch: _ptx_text(_content(one, what), what) if ptx else _content(one, what) for arch, one in given.items()}

    def code(arch: str) -> tuple[bytes | str, str, str, dict[str, Any]]:
        image = images[""] if "" in images else _fitting(images, arch, what)
        if ptx:
            return image, "ptx", entry or name, {}
        return image, "cubin" if bytes(image[:4]) == b"\x7fELF" else "fatbin", entry or name, {}

    if ptx is False and any(isinstance(one, str) for one in images.values()):
        raise TypeError(f"{what}: a cubin is bytes, and this is text: from_ptx takes PTX")
    self = GpuKernel(code, described, known, grid, instance)
    self._images = tuple(arch for arch in images if arch)
    self._forms = self._images or (("compute_80",) if ptx else ())
    return self


def borrowed(kernel: Kernel, values: Sequence, device: Device) -> Stream | None:
    """The current stream of the library whose tensors are given: torch's, or else CuPy's. None:
    there are none on this GPU."""
    if device.info.dlpack_device[0] != _CUDA:
        return None
    index = device.info.dlpack_device[1]
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return wrapped(kernel, device, torch.cuda.current_stream(index).cuda_stream, None)
    if cupy is not None and any(isinstance(value, cupy.ndarray) for value in values):
        stream = cupy.cuda.get_current_stream(index)
        return wrapped(kernel, device, stream.ptr, stream)  # CuPy destroys a stream with its object
    return None


_MOST_BORROWED = 64  # streams of others that a kernel knows


def wrapped(kernel: Kernel, device: Device, number: int, owner: Any) -> Stream:
    """owner: the library's object for the stream, if the stream goes with it."""
    known: dict[int, Stream] = kernel._borrowed
    found = known.get(number)
    if found is None:
        if len(known) >= _MOST_BORROWED:
            known.clear()
        found = known[number] = Stream.wrap(device, number if owner is None else owner)
    return found
