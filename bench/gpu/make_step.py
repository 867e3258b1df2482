"""Compiles step.accx: one function, step(x f32[32]) -> out = 2 x + 1, for calls in gpu_python.py.
Usage: make_step.py PATH"""
import sys

from accrt.compiler import Module, compile

m = Module("step")
f = m.function("step", doc="out = 2 x + 1")
x = f.input("x", "f32", [32])
f.result("out", x * 2.0 + 1.0)
compile(m, sys.argv[1])
