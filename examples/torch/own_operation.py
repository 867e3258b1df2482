"""A model with an operation that accrt.from_torch does not know, and a kernel that does it
(docs/missing-operations.md).

    python examples/torch/own_operation.py MODEL.accx
"""

import pathlib
import sys

import torch

import accrt
from accrt.compiler import expr
from accrt.from_torch.table import lowers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "custom_kernel"))
from kernel import reference, squared_relu  # noqa: E402


# The operation, as a model's library may have it.
@torch.library.custom_op("mylib::squared_relu", mutates_args=())
def operation(x: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * torch.relu(x) ** 2


@operation.register_fake
def _(x, scale):
    return torch.empty_like(x)


# Its lowering: torch's arguments come in, a value of the compiler goes out.
@lowers("mylib.squared_relu.default")
def lower(lowering, x, scale):
    x = lowering.value(x)
    (y,) = lowering.function.kernel(squared_relu, [x], [x.type], reference=reference, n=expr.product(x.shape), scale=scale)
    return y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 16)

    def forward(self, x):
        return operation(self.linear(x), 0.5) + 1


if __name__ == "__main__":
    torch.manual_seed(0)
    model, rows = Model().eval(), torch.export.Dim("rows", max=1024)
    accrt.from_torch(model, torch.randn(4, 8), sys.argv[1], dynamic_shapes=({0: rows},), targets=["host"])
    x = torch.randn(100, 8)
    ours = torch.from_dlpack(accrt.load(sys.argv[1]).forward(x))
    torch.testing.assert_close(ours, model(x).detach())
    print("the bundle gives what torch gives")
