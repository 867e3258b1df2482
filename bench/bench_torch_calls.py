"""What a call of a PyTorch operator costs over the kernel's own launch: z = x + y of 32 elements,
by every way into torch.

    python bench/bench_torch_calls.py                                 this processor, needs torch
    python bench/bench_torch_calls.py --device cuda --bundle FILE     a GPU; --write FILE --targets sm_90 makes the file, where nvcc is
    ... --seconds S; --batch N: calls of a measurement

All run interleaved in one process, N calls at a time, in an order that turns around. The function
of the plain ways is the shortest that Python can do: torch.empty_like, and an unbound call with
out=.
"""
from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys

import common

KINDS = ("launch alone", "accrt's operator, kernel in C", "accrt's operator, kernel in Python", "the same, torch's code for gradients", "define/impl",
         "custom_op", "torch.add", "accrt's operator, by torch's dispatcher")


def module():
    from accrt.compiler import Module

    m = Module("calls")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("add2")
    f.result("z", f.input("x", "f32", [n]) + f.input("y", "f32", [n]))
    g = m.function("add2_backward")
    dz = g.input("grad_z", "f32", [n])
    g.result("grad_x", dz * 1.0)
    g.result("grad_y", dz * 1.0)
    return m


def launch(torch, program, x, y, out):
    """A bound call, and what runs the function with a result of torch's."""
    import accrt

    if x.is_cuda:
        stream = accrt.Stream.wrap(program.device, torch.cuda.current_stream().cuda_stream)
        call = program.session(stream=stream).function("add2").bind(x, y, out=out)
        again = program.session(stream=stream).function("add2").bind(x, y, out=out)

        def plain(x, y):
            z = torch.empty_like(x)
            for at, value in enumerate((x, y, z)):
                again.set(at, value)
            again.submit()
            return z

        return call.submit, plain
    function = program.session().function("add2")

    def plain(x, y):
        z = torch.empty_like(x)
        function(x, y, out=z)
        return z

    return program.session().function("add2").bind(x, y, out=out), plain


def operators(bundle):
    """accrt's, by the kernel that it has."""
    import accrt.torch
    from accrt.torch import _shim

    made = {KINDS[1]: accrt.torch.operator(bundle, "add2", backward="add2_backward", name="calls::in_c")}
    shims, _shim.Kernels.shims = _shim.Kernels.shims, lambda self: (None, None)
    made[KINDS[7]] = accrt.torch.operator(bundle, "add2", backward="add2_backward", name="calls::dispatched")
    _shim.Kernels.shims = shims
    fits, _shim._fits = _shim._fits, lambda operator: False
    made[KINDS[2]] = accrt.torch.operator(bundle, "add2", backward="add2_backward", name="calls::in_python")
    enter, _shim.enter = _shim.enter, lambda *given: None
    made[KINDS[3]] = accrt.torch.operator(bundle, "add2", backward="add2_backward", name="calls::alone")
    _shim._fits, _shim.enter = fits, enter
    return made


def candidates(torch, bundle, program, device):
    x, y = torch.randn(32, device=device), torch.randn(32, device=device)
    run, plain = launch(torch, program, x, y, torch.empty_like(x))
    library = torch.library.Library("calls_plain", "FRAGMENT")
    library.define("add2(Tensor x, Tensor y) -> Tensor")
    library.impl("add2", plain, "CUDA" if x.is_cuda else "CPU")
    library.impl("add2", torch.library.fallthrough_kernel, "Autograd")
    plain.__annotations__ = {"x": torch.Tensor, "y": torch.Tensor, "return": torch.Tensor}
    custom = torch.library.custom_op("calls_custom::add2", plain, mutates_args=())
    calls = {KINDS[0]: run, **operators(bundle), KINDS[4]: torch.ops.calls_plain.add2.default, KINDS[5]: custom, KINDS[6]: torch.add}
    for name, call in calls.items():
        if name != KINDS[0]:
            for _ in range(20):
                torch.testing.assert_close(call(x, y), x + y)
    return library, {name: (lambda call=call: call()) if name == KINDS[0] else (lambda call=call: call(x, y)) for name, call in calls.items()}


def batched(torch, call, batch, device):
    def timed():
        for _ in itertools.repeat(None, batch):
            call()
        if device == "cuda":
            torch.cuda.current_stream().synchronize()

    return timed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bundle")
    parser.add_argument("--write")
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=20)
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench_torch_calls: torch is not installed (.venv/bin/pip install torch)")
    import torch

    import accrt
    from accrt.compiler import compile

    if arguments.write:
        return compile(module(), arguments.write, targets=arguments.targets)
    torch.set_num_threads(1)
    instance = accrt.Instance(host_code="all", options={"host.threads": "1"})
    bundle = accrt.Bundle(arguments.bundle or compile(module()), instance)
    program = accrt.Program(bundle, instance.device("cuda:0" if arguments.device == "cuda" else "host"))
    library, calls = candidates(torch, bundle, program, arguments.device)
    made = {name: batched(torch, call, arguments.batch, arguments.device) for name, call in calls.items()}
    times = common.interleaved(made, seconds=arguments.seconds, least=20)
    rows = {name: common.summary([t / arguments.batch for t in samples]) for name, samples in times.items()}
    common.show(f"32 x f32 on {arguments.device}, torch {torch.__version__}, {arguments.batch} calls at a time", rows, unit="us")
    alone = rows[KINDS[0]]
    print("\n  over the launch alone: " + ", ".join(f"{name} {(row['median_s'] - alone['median_s']) * 1e6:.2f} us" for name, row in rows.items()
                                                     if name != KINDS[0]))
    common.save(f"torch_calls_{arguments.device}", {"torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
