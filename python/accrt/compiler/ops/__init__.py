"""The operations: schema, shape inference, float64 reference, and decomposition where one is
composite.

Named as ATen names them where ATen has them; `accrt.` marks our own. A schema lists what a builder
takes: `Tensor` and `Tensor?` parameters become operands, all others attributes. Each operation is a
method of Value under the last part of its name (`x.softmax(-1)`); those without a tensor operand
are methods of Function (`f.arange(n)`).

The reference of an operation calculates in float64 for every float type and exactly for integers;
reference.py runs whole functions with them. Nothing here knows kernels. One module for each kind of
operation; schema.py has what they share.
"""

from . import (
    attention, convolutions, effects, einsum, elementwise, factors, functions, gradients, indexing, lora, lowered, ordering, paged_scan, products, quotients, reductions,
    resampling, sampling, scans, serving, shapes, special, upsampling,
)  # fmt: skip
from .attention import causal_offset, window_mask
from .lowered import core_type
from .schema import OPS, OpDef, axes_of, axis_of, build, define, infer, states_of
from .shapes import cat, slice_bounds
