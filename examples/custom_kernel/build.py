"""A bundle with a function that runs the kernel between two operations of the compiler."""
import argparse

from kernel import reference, squared_relu

from accrt.compiler import Module, TensorType, command_line

parser = argparse.ArgumentParser(description="compiles the bundle")
parser.add_argument("--triton", action="store_true", help="a second function, whose kernel on GPUs is the Triton function")
command_line.add_arguments(parser)
args = parser.parse_args()

m = Module("custom_kernel")
rows = m.symbol("rows", maximum=1 << 20)


def activate(name, kernel):
    f = m.function(name, doc="squared_relu(x + 1) / 2, by rows of 8")
    x = f.input("x", "f32", [rows, 8])
    (y,) = f.kernel(kernel, [x + 1.0], [TensorType("f32", (rows, 8))], reference=reference, n=rows * 8, scale=1.0)
    f.result("y", y * 0.5)


activate("activate", squared_relu)
if args.triton:
    from squared_relu_triton import squared_relu_by_triton

    activate("activate_by_triton", squared_relu_by_triton)
command_line.write(m, args)
