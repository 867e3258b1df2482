"""bytelm reads text that it has not learned as well as examples/bytelm/README.md says, through the
runtime."""
import os
import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "bytelm"
BUNDLE = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", ROOT / "build" / "models")) / "bytelm.accx"
WINDOW = 1024
#: What `xz -9` needs for a byte of the same text.
XZ_BITS = 1.78


def bits(logits, following):
    """Bits that the model needs for each of the bytes that follow."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(1))
    return (log_sum - shifted[np.arange(len(following)), following]) / np.log(2)


@pytest.mark.skipif(not BUNDLE.exists(), reason=f"{BUNDLE} is not compiled (./dev demo does it)")
def test_bits_per_byte_are_those_of_the_readme():
    import accrt

    model = accrt.load(BUNDLE, host_code="all")
    text = np.frombuffer((EXAMPLE / "heldout.txt").read_bytes(), np.uint8)
    written = re.search(r"^\| `heldout.txt`, ([\d,]+) bytes \| ([\d.]+) \|", (EXAMPLE / "README.md").read_text(), re.M)
    assert int(written[1].replace(",", "")) == len(text)
    total = 0.0
    for start in range(0, len(text) - 1, WINDOW):
        window = text[start : start + WINDOW + 1]
        logits = np.asarray(model.prefill(window[: WINDOW].copy(), 0))
        total += bits(logits[: len(window) - 1], window[1:].astype(np.int64)).sum()
    per_byte = total / (len(text) - 1)
    assert per_byte < XZ_BITS
    # The README has four digits; float32 logits within 1e-4 of the reference move the mean by less
    # than one of the last.
    assert abs(per_byte - float(written[2])) < 2e-4
