"""Which device the tests of this folder run on, and why they cannot."""
import os
import pathlib

import accrt

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
#: The C tests' bundles for devices.
DATA = pathlib.Path(os.environ.get("ACCRT_TEST_DATA", pathlib.Path(__file__).resolve().parents[2] / "build/tests/bundles"))


def why_not(*files):
    """Why there is no such device, or none of these files; "" if all are there."""
    missing = next((path for path in files if not path.exists()), None)
    if missing is not None:
        return f"no {missing}"
    try:
        accrt.Instance().device(DEVICE)
    except accrt.Error as error:
        return str(error)
    return ""
