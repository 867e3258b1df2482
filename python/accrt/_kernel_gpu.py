"""Kernels of GPUs that are loaded on each GPU when it is first used: `Kernel.from_cuda`, `from_cubin`, `from_ptx`."""
from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Callable, Sequence

from ._files import regular
from ._kernel_source import _included, parsed, text_of
from ._library import describe, need, never_raises, shown
from .errors import NoVariantError
from .instance import Device, Instance
from .kernels import _SCALARS, DeviceKernel, Kernel, KernelPack
from .memory import Buffer
from .stream import Stream
from .tensor import Tensor

_CUDA = 2  # as DLPack numbers devices
#: (image, its kind, the kernel's name in it) for an architecture
Code = Callable[[str], "tuple[bytes | str, str, str]"]


class GpuKernel(Kernel):
    """A kernel of GPUs: `Kernel.from_cuda`, `from_cubin`, `from_ptx`. It is called as every Kernel, and is loaded on each GPU when it
    is first used there."""

    __slots__ = ("_code", "_described", "_known", "_on", "_root")

    def __init__(self, code: Code, described: DeviceKernel, known: Sequence[tuple[str, str, str]], grid: Callable | None, root: Instance | None) -> None:
        if not callable(code) or not isinstance(described, DeviceKernel):
            raise TypeError("a GpuKernel is made by Kernel.from_cuda, from_cubin or from_ptx")
        self._code, self._described, self._known, self._grid, self._root = code, described, tuple(known), grid, root
        self.name, self._definition, self._on = described.name, None, {}
        self._parameters = tuple((name, "scalar" if kind in ("scalar", "symbol") else "buffer", 8 if kind != "scalar" else _SCALARS[dtype])
                                 for name, kind, dtype in self._known)

    def image(self, arch: str) -> tuple[bytes | str, str]:
        """The machine code for an architecture ("sm_90") and its kind, "cubin" or "ptx". It needs no GPU."""
        if not isinstance(arch, str):
            raise TypeError(f"arch is {describe(arch)}, expected one as 'sm_90'")
        return self._code(arch)[:2]

    def on(self, device: Device) -> Kernel:
        """The kernel as it is loaded on one GPU: what `accrt.launch`, `accrt.Launch` and `accrt.Commands` take."""
        need(device, Device)
        key = id(device.instance), device.name
        found = self._on.get(key)
        if found is None:
            if device.info.driver != "cuda":
                raise ValueError(f"kernel {self.name} is for CUDA GPUs, and {device.name} is a device of {device.info.driver}")
            image, kind, entry = self._code(device.info.arch)
            found = KernelPack.of_module(device, image, [self._described._replace(name=entry)], kind).kernel(entry)
            found.name, found._grid = self.name, self._grid
            found._types = tuple(dtype for _name, _kind, dtype in self._known)
            self._on[key] = found  # it holds its instance: the number means no other one
        return found

    def __call__(self, *values, grid: Sequence[int] | int | None = None, stream: Stream | None = None, **named) -> None:
        from ._kernel_call import call
        device = need(stream, Stream) and stream.device if stream is not None else self._device_of((*values, *named.values()))
        call(self.on(device), values, grid, stream, named)

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
            found = tuple(map(int, ask())) if callable(ask) else (0, 0)
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
    def pack(self) -> KernelPack:
        raise TypeError(f"kernel {self.name} is loaded on each GPU apart: kernel.on(device) has the pack")

    @property
    def handle(self):
        raise TypeError(f"kernel {self.name} is loaded on each GPU apart: kernel.on(device) has the handle")

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.GpuKernel {self.name}({', '.join(f'{n}: {k}' for n, k, _ in self._parameters)})>"


def _described(name: str, parameters: Any, block: Any, shared_bytes: int, cluster: Any, cooperative: bool):
    """The record that the library checks the image against, and the parameters as `parsed` gives them."""
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

    def code(wanted: str) -> tuple[bytes, str, str]:
        from . import _nvrtc
        return _nvrtc.compiled(text, depends, file, entry or name, wanted, more, folder, f"kernel {name}")

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
    images = {arch: _content(one, what) for arch, one in (source.items() if isinstance(source, Mapping) else [("", source)])}

    def code(arch: str) -> tuple[bytes | str, str, str]:
        image = images[""] if "" in images else _fitting(images, arch, what)
        if ptx:
            return image if isinstance(image, str) else image.rstrip(b"\0").decode(), "ptx", entry or name
        return image, "cubin" if bytes(image[:4]) == b"\x7fELF" else "fatbin", entry or name

    if ptx is False and any(isinstance(one, str) for one in images.values()):
        raise TypeError(f"{what}: a cubin is bytes, and this is text: from_ptx takes PTX")
    return GpuKernel(code, described, known, grid, instance)


def borrowed(kernel: Kernel, values: Sequence, device: Device) -> Stream | None:
    """The current stream of the library whose tensors are given: torch's, or else CuPy's. None: there are none on this GPU."""
    if device.info.dlpack_device[0] != _CUDA:
        return None
    index = device.info.dlpack_device[1]
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return wrapped(kernel, device, torch.cuda.current_stream(index).cuda_stream)
    if cupy is not None and any(isinstance(value, cupy.ndarray) for value in values):
        return wrapped(kernel, device, cupy.cuda.get_current_stream(index).ptr)
    return None


_MOST_BORROWED = 64  # streams of others that a kernel knows


def wrapped(kernel: Kernel, device: Device, number: int) -> Stream:
    known: dict[int, Stream] = kernel._borrowed
    found = known.get(number)
    if found is None:
        if len(known) >= _MOST_BORROWED:
            known.clear()
        found = known[number] = Stream.wrap(device, number)
    return found
