"""The bytes that each token stands for, as the engine prints them: the asset serve.token_bytes.

    u32 count, u32 0, count + 1 offsets (u32) into the bytes, count flags (u8; 1: printed as nothing), the bytes; little-endian
"""

from __future__ import annotations

import re
import struct
from typing import Any, Dict, List, Mapping, Tuple

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE = "\u2581"
HIDDEN = 1


def _byte_letters() -> Dict[str, int]:
    """The letters that byte-level BPE writes bytes with: those that print stand for themselves, the
    others follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    letters.update({chr(256 + at): byte for at, byte in enumerate(byte for byte in range(256) if byte not in plain)})
    return letters


BYTE_LETTERS = _byte_letters()


def byte_tokens() -> Tuple[List[bytes], List[int]]:
    """Of a model whose ids are bytes."""
    return [bytes([byte]) for byte in range(256)], [0] * 256


def of_tokenizer(tokenizer: Mapping[str, Any], count: int) -> Tuple[List[bytes], List[int]]:
    """Bytes and flags of `count` ids from what tokenizer.json says. Ids without a token print
    nothing. ValueError: it does not say so."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise ValueError("there is no model")
    vocabulary = _vocabulary(model)
    parts = [part.get("type") for part in _parts(tokenizer.get("decoder"))]
    is_bytes = "ByteLevel" in parts or (not parts and "ByteLevel" in [p.get("type") for p in _parts(tokenizer.get("pre_tokenizer"))])
    prefix = next((str(part.get("prefix", "##")) for part in _parts(tokenizer.get("decoder")) if part.get("type") == "WordPiece"), None)
    suffix = next((str(part.get("suffix", "</w>")) for part in _parts(tokenizer.get("decoder")) if part.get("type") == "BPEDecoder"), "")
    last = max((at for _text, at in vocabulary), default=0)
    if last >= count + count // 4:  # some have a few more than the model
        raise ValueError(f"it has tokens up to the id {last}, and the model {count} tokens: it is another model's")
    tokens, flags = [b""] * count, [HIDDEN] * count
    for text, at in vocabulary:
        if at < count:
            spaced = text.removesuffix(suffix) + " " if suffix and text.endswith(suffix) else text
            tokens[at], flags[at] = _bytes_of(spaced, is_bytes, prefix), 0
    for added in tokenizer.get("added_tokens") or []:
        at = added["id"]
        if not _is_token(added["content"], at):
            raise ValueError(f"added token {added!r}")
        if at < count:
            tokens[at], flags[at] = added["content"].encode(), HIDDEN if added.get("special") else 0
    return tokens, flags


def _vocabulary(model: Mapping[str, Any]) -> List[Tuple[str, int]]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # Unigram: pieces and scores
        tokens = [(piece[0], at) for at, piece in enumerate(vocabulary)]
    elif isinstance(vocabulary, dict):
        tokens = list(vocabulary.items())
    else:
        raise ValueError(f"a tokenizer of type {model.get('type')!r} without a vocabulary")
    for text, at in tokens:
        if not _is_token(text, at):
            raise ValueError(f"token {text!r} with the id {at!r}")
    return tokens


def _is_token(text: Any, at: Any) -> bool:
    return isinstance(text, str) and isinstance(at, int) and not isinstance(at, bool) and at >= 0


def _parts(item: Any) -> List[Mapping[str, Any]]:
    """A decoder or pre-tokenizer, or those of a sequence, however deep."""
    found, rest = [], [item]
    while rest:
        one = rest.pop()
        if not isinstance(one, dict):
            continue
        inner = next((one[name] for name in ("decoders", "pretokenizers") if isinstance(one.get(name), list)), None)
        if inner is None:
            found.append(one)
        else:
            rest.extend(reversed(inner))
    return found


def _bytes_of(text: str, is_bytes: bool, prefix: Any) -> bytes:
    if is_bytes:
        if all(letter in BYTE_LETTERS for letter in text):
            return bytes(BYTE_LETTERS[letter] for letter in text)
        return text.encode()
    if prefix is not None:
        return text[len(prefix) :].encode() if text.startswith(prefix) else b" " + text.encode()
    byte = _BYTE.match(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()


def table(tokens: List[bytes], flags: List[int]) -> bytes:
    """The asset."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return struct.pack(f"<II{len(offsets)}I", len(tokens), 0, *offsets) + bytes(flags) + b"".join(tokens)


def parse(asset: bytes) -> Tuple[List[bytes], List[int]]:
    """What `table` made, taken apart."""
    count, _reserved = struct.unpack_from("<II", asset)
    offsets = struct.unpack_from(f"<{count + 1}I", asset, 8)
    first = 8 + 4 * (count + 1)
    data = asset[first + count :]
    return [data[offsets[at] : offsets[at + 1]] for at in range(count)], list(asset[first : first + count])
