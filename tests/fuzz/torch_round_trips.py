#!/usr/bin/env python3
"""Random torch tensors go into functions and operators of a bundle and come back, and nothing is
left behind: `./dev soak torch` runs this under ASan.

    torch_round_trips.py [--seed N] [--operations N]

Each round trip makes a tensor of a random type (with bf16, f16, bool, 8-bit and 4-bit floats),
shape (0 dimensions, 0 elements), layout (strided, transposed, expanded, at an odd offset) and
history (a leaf, a gradient's, an inference tensor), gives it in through DLPack's C exchange, a
capsule of either version, an accrt.Tensor or an operator of torch, and takes the result out in one
of those ways. The bytes must be the same, a view that shares memory must share it, and what was
given must stay as it was. At the end the memory of every tensor that was lent is free again, and
each was released once. Then some are done again until the heap no longer grows, and LeakSanitizer
may find nothing of accrt's (left_over.py).
"""
from __future__ import annotations

import argparse
import gc
import os
import pathlib
import random
import sys
import tempfile
import warnings
import weakref
from typing import Any, Callable, Dict, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python"), str(ROOT / "tests/fuzz")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import accrt  # noqa: E402
import accrt.torch  # noqa: E402
import left_over  # noqa: E402
from accrt import _fast, bundle_writer as bw  # noqa: E402

TYPES = {"bool": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32, "u32": torch.uint32,
         "i64": torch.int64, "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
         "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "f8e8m0": torch.float8_e8m0fnu}
if hasattr(torch, "float4_e2m1fn_x2"):
    TYPES["f4e2m1"] = torch.float4_e2m1fn_x2  # pairs
#: Those that operators of torch have.
OPERATORS = [name for name in TYPES if not name.startswith(("f8", "f4"))]
RANKS = range(5)
lent = {"given": 0, "released": 0}


def write_bundle(path: str) -> None:
    """For each type and number of dimensions a function that copies."""
    bundle = bw.BundleWriter()
    symbols = [bundle.symbol(name, maximum=1 << 8) for name in "abcd"]
    for name, dtype in TYPES.items():
        for rank in RANKS:
            f = bundle.function(f"{name}_{rank}")
            x, y = f.input("x", name, symbols[:rank]), f.result("y", name, symbols[:rank])
            count = 1
            for symbol in symbols[:rank]:
                count = symbol * count
            size = count * dtype.itemsize
            f.body.copy(x.read(), y.write(), (size + 1) // 2 if name == "f4e2m1" else size)
    bundle.write(path)


def _released() -> None:
    lent["released"] += 1


def memory(numbers: random.Random, size: int) -> torch.Tensor:
    """Random bytes, whose owner says when it is gone."""
    owner = np.frombuffer(numbers.randbytes(size), np.uint8).copy()
    lent["given"] += 1
    # a second call of a deleter would end in a crash: ASan sees it
    weakref.finalize(owner, _released)
    return torch.from_numpy(owner)


def random_tensor(numbers: random.Random, name: str, rank: int) -> torch.Tensor:
    """Of any layout: its bytes are those of memory with an owner of its own."""
    dtype, shape = TYPES[name], [numbers.choice((0, 1, 1, 2, 3, 5, 17)) for _ in range(rank)]
    # pairs lie side by side in the last dimension
    kind = numbers.randrange(6) if name != "f4e2m1" else 0
    wide = [2 * d + 1 for d in shape] if kind == 1 else shape
    count = int(np.prod(wide))
    if not count:
        return torch.empty(wide, dtype=dtype)[tuple(slice(0, d) for d in shape)]
    # an element's own alignment, which torch asks for
    start = numbers.choice((0, 0, 1, 3)) * dtype.itemsize
    flat = memory(numbers, start + count * dtype.itemsize)[start:]
    if name == "bool":
        flat.remainder_(2)
    whole = flat.view(dtype).view(wide)
    if kind == 1:
        made = whole[tuple(slice(1, None, 2) for _ in shape)]
    elif kind == 2 and rank > 1:
        made = whole.permute(*numbers.sample(range(rank), rank))
    elif kind == 3 and rank:
        made = whole[:1].expand(shape) if shape[0] else whole
    else:
        made = whole
    if made.is_floating_point() and not name.startswith(("f8", "f4")) and numbers.random() < 0.2:
        made = made.requires_grad_() if made.is_leaf and not made._is_view() else made.detach().requires_grad_()
    return made


def capsule(tensor: torch.Tensor, version: Any) -> Any:
    return tensor.__dlpack__(max_version=version) if version else torch.utils.dlpack.to_dlpack(tensor)


class Producer:
    """A tensor that has DLPack alone, in one version."""

    def __init__(self, tensor: torch.Tensor, version: Any) -> None:
        self.tensor, self.version = tensor, version

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        return capsule(self.tensor, self.version)


def ways_in(numbers: random.Random, tensor: torch.Tensor, device: Any) -> Any:
    """What is given for a tensor: it, or something that shares its memory."""
    way = numbers.randrange(6)
    plain = tensor.detach()
    if way == 0:
        return plain
    if way == 1:
        return Producer(plain, numbers.choice(((1, 0), None)))
    if way == 2:
        return accrt.from_dlpack(plain, device)
    if way == 3:
        return accrt.from_dlpack(Producer(plain, numbers.choice(((1, 0), None))), device)
    if way == 4:
        return accrt.from_dlpack(torch.from_dlpack(accrt.from_dlpack(plain, device)), device)
    return tensor


def way_out(numbers: random.Random, result: Any, device: Any) -> torch.Tensor:
    way = numbers.randrange(5)
    is_pairs = result.dtype == "f4e2m1"  # of DLPack 1 alone, and torch copies none
    if way == 0 or (is_pairs and way in (1, 4)):
        return torch.from_dlpack(result)
    if way == 1:
        return torch.utils.dlpack.from_dlpack(result.__dlpack__())
    if way == 2:
        return torch.utils.dlpack.from_dlpack(result.__dlpack__(max_version=(1, 0)))
    if way == 3:
        result.__dlpack__(max_version=numbers.choice((None, (1, 0))))  # nobody takes it
        return torch.from_dlpack(accrt.from_dlpack(result, device))
    return torch.from_dlpack(result).clone()


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach()
    plain = plain.view(torch.uint8) if plain.dtype == TYPES.get("f4e2m1") else plain
    whole = plain.clone(memory_format=torch.contiguous_format)
    return whole.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def check(found: torch.Tensor, tensor: torch.Tensor, wanted: bytes, what: str) -> None:
    if found.dtype != tensor.dtype or found.shape != tensor.shape or raw(found) != wanted:
        sys.exit(f"torch_round_trips: {what}: {tensor.dtype} {list(tensor.shape)} {tensor.stride()} came back as {found!r}, and was {tensor!r}")
    if raw(tensor) != wanted:
        sys.exit(f"torch_round_trips: {what}: {tensor!r} has changed")


def shares(numbers: random.Random, tensor: torch.Tensor, device: Any) -> None:
    """A tensor of accrt over torch's memory, and one of torch over that: a write to one is in all.
    Read-only memory cannot be had as one that is written."""
    plain = tensor.detach()
    if not plain.numel() or 0 in plain.stride() and plain.numel() > 1:
        return
    view = accrt.from_dlpack(plain, device)
    again = torch.from_dlpack(view)
    if again.data_ptr() != plain.data_ptr() or again.shape != plain.shape:
        sys.exit(f"torch_round_trips: {again!r} is no view of {plain!r}")
    if plain.dtype == TYPES.get("f4e2m1"):
        plain, again = plain.view(torch.uint8), again.view(torch.uint8)  # torch copies no pairs
    before = plain.clone()
    at = tuple(numbers.randrange(d) for d in plain.shape)
    again[at] = plain[tuple(numbers.randrange(d) for d in plain.shape)]
    if raw(again) != raw(plain):
        sys.exit("torch_round_trips: a write to a view is not in what it is of")
    plain.copy_(before)


def round_trip(numbers: random.Random, session: Any, operators: Dict[str, Callable[..., Any]], device: Any) -> None:
    name, rank = numbers.choice(list(TYPES)), numbers.choice(RANKS)
    if name == "f4e2m1" and rank == 0:
        rank = 1  # a pair is of a dimension
    tensor = random_tensor(numbers, name, rank)
    wanted, function = raw(tensor), f"{name}_{rank}"
    where = numbers.randrange(5)
    if where == 0 and function in operators:
        with torch.inference_mode(numbers.random() < 0.3):
            found = operators[function](tensor)
            check(found.detach(), tensor, wanted, "an operator")
        return
    if where == 1:
        shares(numbers, tensor, device)
    value = ways_in(numbers, tensor, device)
    try:
        call = session[function].bind(value) if numbers.random() < 0.3 else None
        result = call() if call is not None else session[function](value)
    except (accrt.Error, ValueError, TypeError, BufferError, RuntimeError) as error:
        # what is not contiguous, requires a gradient, or begins at an odd place
        if tensor.is_contiguous() and not tensor.requires_grad and tensor.data_ptr() % 16 == 0:
            raise
        text = str(error)
        if not any(word in text for word in ("contiguous", "stride", "grad", "is not a multiple of 16")):
            raise
        bits = torch.frombuffer(bytearray(wanted), dtype=torch.uint8).clone() if wanted else torch.empty(0, dtype=torch.uint8)
        result = session[function](bits.view(tensor.dtype).view(tensor.shape))
    check(way_out(numbers, result, device), tensor, wanted, "a session")


def passed(operations: int, seed: int, program: Any, operators: Dict[str, Callable[..., Any]], device: Any) -> None:
    """So many round trips in a session of their own."""
    pool = accrt.Pool(device)
    session = program.session(pool=pool)
    numbers = random.Random(seed)
    for _ in range(operations):
        round_trip(numbers, session, operators, device)
    session.close()
    del session
    gc.collect()
    used = pool.statistics["used_bytes"]
    if lent["given"] != lent["released"] or used:
        sys.exit(f"torch_round_trips: of {lent['given']} tensors {lent['released']} were released, {used} bytes are used")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--operations", type=int, default=10000)
    given = options.parse_args()
    print(f"torch_round_trips: seed {given.seed}", flush=True)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "round.accx")
        write_bundle(path)
        instance = accrt.Instance(host_code="all", options={"host.threads": 1})
        device = instance.device("host")
        bundle = accrt.Bundle(path, instance)
        program = accrt.Program(bundle, device)
        names: List[str] = [f"{name}_{rank}" for name in OPERATORS for rank in RANKS]
        operators = {name: accrt.torch.operator(bundle, name, name=f"round_trips::{name}") for name in names}
    passed(given.operations, given.seed, program, operators, device)
    lent_first, again = lent["given"], max(given.operations // 10, 300)
    heap = left_over.settles(lambda: passed(again, given.seed, program, operators, device), again, "torch_round_trips")
    print(f"{given.operations} round trips of torch {torch.__version__}, {lent_first} tensors lent and released, nothing left, "
          f"{'with' if _fast.native else 'without'} accrt._native; {heap}")


if __name__ == "__main__":
    main()
