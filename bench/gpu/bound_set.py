"""What an argument of a bound call costs: torch's tensors, CuPy's and numpy's arrays, set one after
the other; and a step of a loop, which sets all and submits.

    bound_set.py [STEP.accx] [--rounds R]

The bundle is that of torch_operator.py (`torch_operator.py --make STEP.accx`): out = 2 x + y on 32
elements. Times are those of the caller's thread: rounds of 200 calls, rows in turn, medians with
quartiles. "its stream": the session is on the stream that the library has as its current one;
"another": an event orders the two. Results are checked. JSON to gpu_bound_set.json in
$ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import os
import sys

import numpy as np

import accrt
import interleaved

BATCH, ELEMENTS = 200, 32
PACK = os.environ.get("ACCRT_GPU_PACK", os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))


class Rows(interleaved.Rows):
    def add(self, name: str, operation) -> None:
        for i in range(8):
            operation(i)
        super().add(name, operation, torch.cuda.synchronize)


def checked(call, x, y, out) -> None:
    """The call with these gives what it should."""
    call.set("x", x), call.set("y", y)
    if out is not None:
        call.set("out", out)
    found = call()
    as_host = [np.asarray(torch.as_tensor(v, device="cuda").cpu()) for v in (found, x, y)]
    np.testing.assert_array_equal(as_host[0], 2 * as_host[1] + as_host[2])


def add_rows(rows: Rows, step: str, program, stream, kind: str, make, places: str) -> None:
    session = program.session(stream=stream) if stream is not None else program.session()
    values, outs = [make(i) for i in range(4)], [make(9) for _ in range(4)]
    call = session.step.bind(values[0], values[1], out=outs[0])
    for value in sorted(values + outs, key=address):  # the lowest first
        for _ in range(3):
            call.set("x", value), call.set("out", value)
    checked(call, values[0], values[1], outs[1])
    call.set("x", values[0]), call.set("y", values[1]), call.set("out", outs[0])
    rows.add(f"set: {kind}, {places}", lambda i: call.set("x", values[i & 1]))

    def loop(i):
        call.set("x", values[i & 1]), call.set("y", values[2 + (i & 1)]), call.set("out", outs[i & 3])
        call.submit()

    call()
    rows.add(f"{step}: {kind}, {places}", loop)


def address(value) -> int:
    return value.data_ptr() if hasattr(value, "data_ptr") else value.data.ptr if hasattr(value.data, "ptr") else value.ctypes.data


def main(arguments: list[str]) -> int:
    if interleaved.says_help(__doc__):
        return 0
    global torch
    import torch

    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 21
    path = arguments[0] if arguments and arguments[0].endswith(".accx") else os.path.join(PACK, "bundles/torch_step.accx")
    instance = accrt.default_instance("all")
    device = instance.device("cuda:0")
    program = accrt.Program(accrt.Bundle(path, instance), device)
    torch_stream = accrt.Stream.wrap(device, torch.cuda.current_stream())
    rows, step = Rows(BATCH), "set all three and submit"

    def tensor(seed):
        return torch.rand(ELEMENTS, device="cuda")

    def array(seed):
        return np.random.default_rng(seed).random(ELEMENTS, np.float32)

    add_rows(rows, step, program, torch_stream, "torch tensor", tensor, "its stream")
    add_rows(rows, step, program, None, "torch tensor", tensor, "another")
    add_rows(rows, step, program, torch_stream, "numpy array", array, "any stream")
    try:
        import cupy
        add_rows(rows, step, program, accrt.Stream.wrap(device, cupy.cuda.get_current_stream().ptr), "CuPy array",
                 lambda seed: cupy.asarray(array(seed)), "its stream")
        add_rows(rows, step, program, None, "CuPy array", lambda seed: cupy.asarray(array(seed)), "another")
        x = cupy.asarray(array(0))
        rows.add("for scale: CuPy's __cuda_array_interface__", lambda i: x.__cuda_array_interface__)
    except ImportError as error:
        print(f"CuPy is left out: {error}")
    buffers = [accrt.Tensor(accrt.Pool(device).buffer(4 * ELEMENTS), "f32", (ELEMENTS,)) for _ in range(3)]
    bound, y = program.session(stream=torch_stream).step.bind(*buffers[:2], out=buffers[2]), torch.rand(ELEMENTS, device="cuda")
    rows.add("for scale: submit alone", lambda i: bound.submit())
    rows.add("for scale: torch.from_dlpack of a tensor", lambda i: torch.from_dlpack(y))
    rows.add("for scale: torch.add", lambda i: torch.add(y, y))
    rows.run(rounds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}; medians, ns")
    table = rows.table()
    for row in table:
        print(f"  {row['name']:48} {row['median']:9.0f}   p25 {row['p25']:9.0f}  p75 {row['p75']:9.0f}")
    interleaved.save("gpu_bound_set.json", "Arguments of bound calls", table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
