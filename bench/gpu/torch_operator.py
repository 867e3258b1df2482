"""What a torch operator costs over the launch of its kernel, eager: of a bundle, and of
torch.library's two ways, which launch the same kernel.

    torch_operator.py --make STEP.accx     compiles the bundle, where nvcc is (for sm_90, or the targets that follow)
    torch_operator.py STEP.accx [--rounds R] [--json FILE]

All rows calculate out = 2 x + y on 32 elements, on torch's current stream. The launch is a prepared
one of accrt's, the cheapest that there is in Python here, given addresses; the rows of
torch.library allocate the result as a user would, and call it. Submit side: rounds of 300 calls,
rows interleaved, medians with quartiles. Results are checked.
"""
import json
import sys
import unittest.mock

from gpu_python import BATCH, DEVICE, ELEMENTS, ptx, Rows
from interleaved import says_help


def make(path: str, targets: list[str]) -> int:
    from accrt.compiler import compile, Module

    m = Module("torch_step")
    n = m.symbol("n", maximum=1 << 20)
    for name in ("step", "step_trained"):
        f = m.function(name, doc="out = 2 x + y")
        f.result("out", f.input("x", "f32", [n]) * 2.0 + f.input("y", "f32", [n]))
    g = m.function("step_trained_backward")
    given = g.input("grad_out", "f32", [n])
    g.result("grad_x", given * 2.0)
    g.result("grad_y", given + 0.0)
    compile(m, path, targets=targets or ["sm_90"])
    return 0


def rows_of(path: str) -> tuple[Rows, list]:
    import torch

    import accrt.torch

    device = accrt.default_instance("all").device(DEVICE)
    pack = accrt.KernelPack.of_module(device, ptx(), [accrt.DeviceKernel(
        "step0", [("out", "write"), ("x", "read"), ("y", "read"), ("scale", "f32"), ("n", "i32")], (ELEMENTS,))])
    launch = accrt.Launch(device, pack.kernel("step0"))
    stream = accrt.Stream.wrap(device, torch.cuda.current_stream())
    fire = launch.on(stream, (1,))
    x, y = (torch.rand(ELEMENTS, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    addresses = out.data_ptr(), x.data_ptr(), y.data_ptr()

    def plain(x, y):
        out = torch.empty_like(x)
        fire(out.data_ptr(), x.data_ptr(), y.data_ptr(), 2.0, ELEMENTS)
        return out

    library = torch.library.Library("bench_step", "DEF")
    library.define("defined(Tensor x, Tensor y) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("defined", plain, "CUDA")
    torch.library.register_fake("bench_step::defined", lambda x, y: torch.empty_like(x), lib=library)

    @torch.library.custom_op("bench_step::custom", mutates_args=())
    def custom(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return plain(x, y)

    bundle = accrt.Bundle(path, accrt.default_instance("all"))
    operator = accrt.torch.operator(bundle, "step", name="bench_accrt::step")
    trained = accrt.torch.operator(bundle, "step_trained", backward="step_trained_backward", name="bench_accrt::step_trained")
    with unittest.mock.patch("accrt.torch._shim._knows_the_dispatcher", lambda: False):
        dispatched = accrt.torch.operator(bundle, "step", name="bench_accrt::dispatched")
    defined = torch.ops.bench_step.defined.default
    w = torch.rand(ELEMENTS, device="cuda", requires_grad=True)
    session = bundle.program(device).session(stream=stream)
    buffers = [accrt.Tensor(accrt.Pool(device).buffer(4 * ELEMENTS), "f32", (ELEMENTS,)) for _ in range(3)]
    bound = session.step.bind(*buffers[:2], out=buffers[2])
    rows = Rows(BATCH)
    done = torch.cuda.synchronize
    rows.add("bound call of the bundle's function, submitted", lambda i: bound.submit(), done)
    for name, run in (("launch alone, given addresses", lambda: fire(*addresses, 2.0, ELEMENTS)),
                      ("plain function: empty_like and launch", lambda: plain(x, y)),
                      ("operator of a bundle", lambda: operator(x, y)),
                      ("operator of a bundle, by torch's dispatcher", lambda: dispatched(x, y)),
                      ("torch.library define and impl", lambda: defined(x, y)),
                      ("torch.library custom_op", lambda: custom(x, y)),
                      ("operator of a bundle, whose result has a gradient", lambda: trained(w, y)),
                      ("torch.add of the same size", lambda: torch.add(x, y))):
        found = run()
        done()
        found = out if found is None else found
        want = x + y if name.startswith("torch.add") else 2 * (w if "gradient" in name else x) + y
        torch.testing.assert_close(found.detach(), want.detach())
        rows.add(name, lambda i, run=run: run(), done)
    return rows, [pack, launch, stream, library, x, y, out, bound]


def main(arguments: list[str]) -> int:
    if says_help(__doc__):
        return 0
    if arguments[:1] == ["--make"]:
        return make(arguments[1], arguments[2:])
    import torch

    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 21
    rows, kept = rows_of(arguments[0])
    rows.run(rounds)
    table = rows.table()
    own = next(row["median"] for row in table if row["name"] == "launch alone, given addresses")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}; us for one call")
    for row in table:
        row["over"] = row["median"] - own
        median, low, high, over = (row[key] / 1e3 for key in ("median", "p25", "p75", "over"))
        print(f"  {row['name']:52} {median:7.2f}   p25 {low:7.2f}  p75 {high:7.2f}   over the launch {over:7.2f}")
    if "--json" in arguments:
        with open(arguments[arguments.index("--json") + 1], "w") as file:
            json.dump({"title": "torch operators", "rows": table}, file, indent=1)
    del kept
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
