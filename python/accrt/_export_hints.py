"""What accrt.from_torch adds to messages of torch.export, for models and sizes that people often
begin with."""

from __future__ import annotations

import traceback

_FIXED = (
    "\nfrom_torch: torch's export has a number where your dimension is to vary. An LSTM, GRU or RNN layer and Python loops over a dimension do that: leave it fixed, "
    "pad to it, and let the batch vary. torch.linspace does it too: write torch.arange(n) * step + first. Where the model allows some sizes only, give Dim.AUTO."
)
_SOME = (
    "\nfrom_torch: the export holds for some sizes only. Give torch.export.Dim.AUTO in the place of the Dim: from_torch then finds the sizes that are right, and calls "
    "with others are refused. Or say the relation, as in 2 * Dim('half')."
)


def explained(error: Exception) -> None:
    """Adds to the message of an error of torch.export what to write instead."""
    text = str(error)
    if "Constraints violated" in text:
        hint = _FIXED if "specialized it to be a constant" in text else _SOME if "satisfy the generated guard" in text else ""
        error.args = (text + hint, *error.args[1:])


def is_of_packed_sequences(error: BaseException) -> bool:
    """Whether it comes out of torch's packed sequences, whose sizes are the content of a tensor."""
    from torch.nn.utils.rnn import PackedSequence

    frames = list(traceback.walk_tb(error.__traceback__))
    if any(frame.f_code.co_name in ("pack_padded_sequence", "pad_packed_sequence") for frame, _line in frames):
        return True
    return any(isinstance(value, PackedSequence) for frame, _line in frames for value in frame.f_locals.values())
