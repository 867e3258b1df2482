"""torch's tensors in and out, without a copy. Runs where torch is installed: `./dev torch-test`; skipped elsewhere, since no test
of the project may need it."""
import pytest

import accrt

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch


def test_tensors_go_in_without_a_copy(program):
    session = program.session()
    x, y = torch.arange(100, dtype=torch.float32), torch.ones(100)
    before = y.data_ptr()
    session.scale_add(x, y)
    assert y.data_ptr() == before and torch.equal(y, 2 * x + 1)


def test_results_come_out_without_a_copy(program):
    result = program.session().weighted(torch.ones(16))
    view = torch.from_dlpack(result)
    assert view.data_ptr() == result.address
    del result
    assert view[3].item() == 2 + 2 * 3


def test_import_keeps_the_producer_alive(program, device):
    tensor = accrt.from_dlpack(torch.full((16,), 3.0), device)
    assert program.session().weighted(tensor).tolist()[0] == 6


def test_types_and_strides_are_checked(program):
    session = program.session()
    with pytest.raises(accrt.TypeMismatchError):
        session.weighted(torch.ones(16, dtype=torch.float64))
    with pytest.raises(accrt.ShapeMismatchError, match="contiguous"):
        session.weighted(torch.ones(32)[::2])


def test_bfloat16_and_gradients(program, device):
    assert accrt.from_dlpack(torch.ones(4, dtype=torch.bfloat16), device).dtype == "bf16"
    with pytest.raises(Exception, match="grad"):
        program.session().weighted(torch.ones(16, requires_grad=True))
