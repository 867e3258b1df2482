"""What a call does with arguments of every kind, as text: test_native.py runs this with
accrt._native and without, and compares.

    both_ways.py ECHO_BUNDLE GOLDEN_BUNDLE
"""
import sys

import numpy as np

import accrt

TYPES = "bool i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64".split()
NUMPY = {"bool": "bool", "f16": "float16", "f32": "float32", "f64": "float64"}


def shown(what, act):
    try:
        result = act()
        values = [one.tolist() if hasattr(one, "tolist") else one for one in (result if isinstance(result, tuple) else (result,))]
        print(what, values, [getattr(one, "dtype", type(one).__name__) for one in (result if isinstance(result, tuple) else (result,))])
    except Exception as error:
        print(what, type(error).__name__, error)


def numpy_type(name):
    return NUMPY.get(name, name.replace("i", "int") if name[0] == "i" else name.replace("u", "uint"))


def every_type(echo):
    for name in TYPES:
        array = (np.arange(6) % 2).astype(numpy_type(name))
        shown(f"{name} echo", lambda: echo[name](array))
        shown(f"{name} of a result", lambda: echo[name](echo[name](array)))
        out = np.zeros_like(array)
        shown(f"{name} out=", lambda: (echo[name](array, out=out) is out, out.tolist()))
        shown(f"{name} of another type", lambda: echo[name](np.ones(6, "complex64")))
        shown(f"{name} of f64", lambda: echo[name](np.ones(6)))


def every_form(f, given):
    """given: a function of f32, whose results are among the values."""
    x = np.arange(12, dtype=np.float32)
    right = f([1.0] * 12, copy=True)
    fixed = x.copy()
    fixed.setflags(write=False)
    for what, value in {
        "strided": x[::2], "backwards": x[::-1], "swapped": x.astype(">f4"), "read-only": fixed, "0-d": x[0].copy(), "scalar": x[0],
        "two dimensions": x.reshape(3, 4), "empty": x[:0], "Fortran": np.asfortranarray(x.reshape(3, 4)), "nine": x.reshape((1,) * 8 + (12,)),
        "masked": np.ma.array(x, mask=x > 3), "matrix": np.asmatrix(x), "list": [1.0, 2.0], "None": None, "text": "no", "int": 3,
        "bytes": b"12341234", "a Tensor's part": given(x)[2:5], "a Tensor backwards": given(x)[::-1], "misaligned": np.frombuffer(bytes(53), np.uint8)[1:49].view(np.float32),
        "bfloat16 bits": x.view(np.uint16), "dates": np.zeros(3, "M8[s]"), "objects": np.array([None, 1]), "a struct": np.zeros(2, "f4,i4"),
        "long": np.ones(3, np.longdouble), "no array": object(), "a class": np.ndarray, "broadcast": np.broadcast_to(np.float32(2), (5,)),
    }.items():  # fmt: skip
        for _ in range(2):  # the first time a class is learned
            shown(what, lambda: f(value))
        shown(f"{what} copied", lambda: f(value, copy=True))
        shown(f"{what} as out=", lambda: f(right, out=value))
        call = f.bind(right)
        shown(f"{what} bound", lambda: (call.set("x", value), call())[1])
        shown(f"{what} bound as a result", lambda: (call.set("y", value), call())[1])


def every_count(session, f):
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    shown("none", lambda: f())
    shown("two", lambda: f(x, x))
    shown("named", lambda: f(x=x))
    shown("twice", lambda: f(x, x=x))
    shown("out= of two", lambda: f(x, out=(y, y)))
    shown("out= in a tuple", lambda: f(x, out=(y,)))
    shown("out= in a list", lambda: f(x, out=[y]))
    shown("out= of None", lambda: f(x, out=(None,)))
    for values in ((x, y, 3), (x, y, -1), (x, y, True), (x, y, 2.5), (x, y, None), (x, y, 1 << 70), (x, y), (x, y, np.int64(2)), (x, y, y)):
        shown(f"steps {values[2:]}", lambda: session.steps(*values))
        shown("which wrote", lambda: y)
    for values in ((x, y, None, 1), (x, y, x, 1), (x, y, None, 0), (x, y, x), (x, y, x, 1, 2)):
        shown(f"gated {len(values)}", lambda: session.gated(*values))
        shown("which wrote", lambda: y)
    fixed = y.copy()
    fixed.setflags(write=False)
    shown("a read-only array that is written", lambda: session.scale_add(x, fixed))
    shown("the same array twice", lambda: session.scale_add(y, y))


def a_result(f):
    result = f(np.arange(6, dtype=np.float32))
    for name in ("shape", "strides", "dtype", "ndim", "size", "nbytes", "offset_bytes", "read_only", "_nothing", "nothing"):
        shown(name, lambda: getattr(f(np.arange(6, dtype=np.float32)), name))
    shown("same", lambda: (result.buffer is result.buffer, result.buffer.size_bytes, len(result), result[1:3].tolist(), repr(result)))
    shown("numpy", lambda: (np.asarray(result).sum().item(), np.from_dlpack(f(np.ones(3, np.float32))).tolist()))
    shown("empty", lambda: accrt.Tensor.__new__(accrt.Tensor).shape)


def main():
    options = {"host.threads": 1}
    echo = accrt.load(sys.argv[1], host_code="all", options=options)
    golden = accrt.load(sys.argv[2], host_code="all", options=options)
    every_type(echo)
    every_form(echo["f32"], echo["f32"])
    every_form(echo["bf16"], echo["f32"])
    every_count(golden, echo["f32"])
    a_result(echo["f32"])


if __name__ == "__main__":
    main()
