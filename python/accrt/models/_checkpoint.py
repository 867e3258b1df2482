"""A model as people have it: a Hugging Face folder, a GGUF file, or a safetensors file whose
metadata has the configuration (bytelm).

All of them become a Checkpoint: a configuration with Hugging Face's keys, tensors by Hugging Face's
names, and the files of the tokenizer. No weight is read, their names, types and shapes are enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .. import _format
from .._files import read_beginning, read_small
from .._library import close
from ..errors import InvalidFormatError, IoError, NotFoundError, missing
from ..weights import Weight, Weights
from . import _mistakes
from ._config import Refused, parsed

#: Files of a folder that go into the bundle where they are there.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json",
                   "modules.json", "1_Pooling/config.json")
_INDEX = "model.safetensors.index.json"
_LIMIT = 256 << 20
#: What says that it is larger is no file that was cut short.
_LARGEST_FILE = 1 << 44
_FLOATS = ("f32", "f16", "bf16")
_LAYOUT_NAMES = {number: name for name, (number, *_facts) in _format.LAYOUTS.items() if number > _format.Encoding.OPAQUE}


@dataclass(frozen=True)
class Tensor:
    """`source`: what it is called in its file, which is the name that a program binds it by.
    `components`: data types of a layout's components where it leaves a choice."""

    source: str
    dtype: str
    shape: Tuple[int, ...]
    layout: str = "plain"
    group: int = 0
    components: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" + ("" if self.layout == "plain" else f" {self.layout}")


@dataclass
class Checkpoint:
    """`path`: the folder or file. `weights`: what a program takes its weights from. `files`: of the
    tokenizer, by name. `points`: what is refused already."""

    path: str
    form: str  # "folder", "gguf", "file"
    config: Dict[str, Any]
    tensors: Dict[str, Tensor]
    weights: List[str]
    files: Dict[str, bytes]
    points: List[str] = field(default_factory=list)
    #: What is refused of tensors, by their names, unless the family ignores them.
    unread: Dict[str, str] = field(default_factory=dict)
    #: Tensors that stand for something else than weights of the model: nothing is lost where no
    #: family reads them.
    unused: Tuple[str, ...] = ()
    #: Scales of keys and values in 8 bits, by the names of their tensors.
    kv_scales: Dict[str, float] = field(default_factory=dict)
    #: The model's name, where the path does not say it.
    called: str = ""

    @property
    def name(self) -> str:
        if self.called:
            return self.called
        base = os.path.basename(os.path.abspath(self.path))
        return base.rpartition(".")[0] or base if self.form != "folder" else base

    def json(self, name: str) -> Dict[str, Any]:
        """A file of the tokenizer; {} where it is not there."""
        if name not in self.files:
            return {}
        try:
            found = parsed(self.files[name])
        except ValueError as error:
            raise Refused(f"{self.path}/{name}", [f"it is not JSON: {error}"]) from None
        if not isinstance(found, dict):
            raise Refused(f"{self.path}/{name}", [f"it is {json.dumps(found):.40}, expected an object"])
        return found


def open_weights(path: str) -> Weights:
    """A source. Files of a set may be links, as download caches have them."""
    return Weights(path, follow_links=True)


def _opened(path: str) -> Weights:
    """A file that was given as a model."""
    try:
        return open_weights(path)
    except InvalidFormatError as error:
        what = _mistakes.no_weights_at_all(path, str(error))
        if not what:
            raise
        raise InvalidFormatError(f"{error}{what}") from None


def read(path: str) -> Checkpoint:
    """Raises Refused, MissingFileError, and what opening weights raises."""
    given = os.fspath(path)
    if not given:
        raise NotFoundError("the model's path is empty")
    path = os.path.abspath(given)
    if not os.path.exists(path):
        raise missing(path, f"{path}: there is no such folder or file{_meant(given)}")
    if os.path.isdir(path):
        return _folder(path)
    if path.endswith((".json", ".jinja", ".py", ".txt", ".model")):
        raise Refused(path, [f"it is no model: give the folder that it lies in, {os.path.dirname(path)}"])
    source = _opened(path)
    if source.info.kind == "gguf":
        from . import _gguf

        return _gguf.read(path, source)
    if source.info.kind == "safetensors" and "architecture" in source.metadata:
        return _file(path, source)
    raise Refused(path, [f"a file of {source.info.kind} without a configuration: give the folder that it lies in, with config.json"])


class Header(NamedTuple):
    """A GGUF file as far as a bundle follows from it: its name, how many tensors it has, and the
    digest of all that stands before its weights. What these mean is read with the compiler's
    modules, which takes far longer."""

    path: str
    called: str
    count: int
    digest: str


def header(given: "str | os.PathLike[str]") -> Optional[Header]:
    """Of a GGUF file, or of a folder that has nothing else. None: it is another form, or several
    files."""
    path = os.path.abspath(os.fspath(given))
    called = ""
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json")):
        found = [name for name in os.listdir(path) if name.endswith((".gguf", ".safetensors"))]
        called, path = os.path.basename(path), os.path.join(path, found[0]) if len(found) == 1 else path
    if not path.endswith(".gguf") or not os.path.isfile(path):
        return None
    source = _opened(path)
    size = source.info.size_bytes - source.info.data_size_bytes
    if source.info.kind != "gguf" or len(source.info.files) > 1 or not 0 < size <= _LIMIT:
        return None
    name = called or os.path.basename(path).rpartition(".")[0]
    return Header(path, name, len(source), hashlib.sha256(read_beginning(path, size)).hexdigest())


def _meant(given: str) -> str:
    """What may have been meant by a path at which there is nothing."""
    folder, name = os.path.split(os.path.abspath(given))
    with contextlib.suppress(OSError):
        near = close(name, os.listdir(folder))
        if near:
            return f"; is it {near[0]}?"
    if re.fullmatch(r"[\w-]+/[\w.-]+", given) and not os.path.isdir(folder):
        # a name on Hugging Face's hub
        return f". Models are read from this machine: hf download {given} --local-dir {name}"
    return ""


def _pointer(path: str) -> str:
    """The file of weights that git left out of a clone, if there is one."""
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors") and os.path.getsize(os.path.join(path, name)) < 1024:
            with contextlib.suppress(OSError, ValueError):
                if read_small(os.path.join(path, name), 1024).startswith(b"version https://git-lfs"):
                    return name
    return ""


def _folder(path: str) -> Checkpoint:
    files = {name: _small(os.path.join(path, name)) for name in TOKENIZER_FILES if os.path.exists(os.path.join(path, name))}
    if not os.path.exists(os.path.join(path, "config.json")):
        return _folder_of_one(path)
    content = _small(os.path.join(path, "config.json"))
    try:
        config = parsed(content)
    except ValueError as error:
        raise Refused(f"{path}/config.json", [f"it is not JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise Refused(f"{path}/config.json", [f"it is {json.dumps(config):.40}, expected an object"])
    pointer = _pointer(path)
    if pointer:
        raise Refused(path, [f"{pointer} is a pointer of git-lfs and no weights: git lfs pull fetches them"])
    _stop_if_adapter(path)
    try:
        source = open_weights(path)
    except NotFoundError:
        if os.path.exists(os.path.join(path, _INDEX)):
            _stop_if_parts_are_missing(path)
            raise
        parts = sorted(name for name in os.listdir(path) if name.endswith(".safetensors") and name != "model.safetensors")
        if parts:
            raise Refused(path, [f"there is {parts[0]}, and neither model.safetensors nor model.safetensors.index.json, which says where each weight is"]) from None
        raise Refused(path, [_mistakes.without_weights(path)]) from None
    except (InvalidFormatError, IoError) as error:
        _stop_if_cut(path)
        if "(index rule" in str(error):
            raise InvalidFormatError(f"{error}: this is what {_INDEX} says. Download it again, and the files that it names") from None
        only = os.path.join(path, "model.safetensors")
        if os.path.isdir(only):
            raise Refused(path, ["model.safetensors is a folder, expected a file"]) from None
        if os.path.isfile(only) and not os.path.exists(only + ".index.json"):
            open_weights(only).close()  # fails in the same way, with the file's name
        raise
    made = Checkpoint(path, "folder", config, {}, [path], files)
    from . import _quantized

    _quantized.gather(made, source)
    return made


def _stop_if_parts_are_missing(path: str) -> None:
    """Files that the index of a folder names, and that are not there."""
    # What is wrong with the index itself is said by who opens it.
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        named = {str(name) for name in parsed(_small(os.path.join(path, _INDEX)))["weight_map"].values()}
        left = [os.path.join(path, name) for name in sorted(named) if not os.path.exists(os.path.join(path, name))]
        if left:
            raise missing(left[0], f"{left[0]}: there is no such file. {_INDEX} names it; of its {len(named)} files {len(left)} {'is' if len(left) == 1 else 'are'} missing. Download the model again")


def _stop_if_adapter(path: str) -> None:
    """A folder that has an adapter, and no model beside it."""
    if not os.path.exists(os.path.join(path, "adapter_config.json")) or any(os.path.exists(os.path.join(path, name)) for name in ("model.safetensors", _INDEX)):
        return
    base = None
    with contextlib.suppress(ValueError, AttributeError):  # it is named without its model
        base = parsed(_small(os.path.join(path, "adapter_config.json"))).get("base_model_name_or_path")
    own = f" ({base})" if base else ""
    raise Refused(path, [f"it is an adapter and no model: give the folder of the model that it is for{own}, and the adapter beside it (--adapter NAME={path} of accrt-serve)"])


def _stop_if_cut(path: str) -> None:
    """A download that was broken off is the likeliest reason why weights cannot be read."""
    for file in sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors")):
        size, whole = 0, 0
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, LookupError):
            size = os.path.getsize(file)
            beginning = 8 + int.from_bytes(read_beginning(file, min(size, 8)), "little")
            header = parsed(read_beginning(file, beginning)[8:]) if 8 < beginning <= min(size, _LIMIT) else {}
            whole = max([beginning, *(beginning + item["data_offsets"][1] for key, item in header.items() if key != "__metadata__")])
        if size < whole <= _LARGEST_FILE:
            raise InvalidFormatError(f"{file} has {size} bytes and says that it has {whole}: it is cut short. Download it again") from None


def _folder_of_one(path: str) -> Checkpoint:
    """A folder without config.json may have one file that has everything."""
    _stop_if_adapter(path)
    found = sorted(name for name in os.listdir(path) if name.endswith((".gguf", ".safetensors")))
    if len(found) == 1 and (found[0].endswith(".gguf") or _has_configuration(os.path.join(path, found[0]))):
        return replace(read(os.path.join(path, found[0])), called=os.path.basename(path))
    meant = _mistakes.without_configuration(path)
    if len(found) == 1:
        raise Refused(path, [f"there is no config.json beside {found[0]}" + (meant or ": the model's own folder has one")])
    raise Refused(path, ["there is no config.json" + meant if meant else "there is no config.json" + (f", and more than one file of weights: name one of {', '.join(found)}" if found else "")])


def _has_configuration(path: str) -> bool:
    return "architecture" in open_weights(path).metadata


def _file(path: str, source: Weights) -> Checkpoint:
    """A safetensors file with the configuration in its metadata, as text."""
    config: Dict[str, Any] = {}
    for key, value in source.metadata.items():
        try:
            config[key] = parsed(str(value))
        except ValueError:
            config[key] = value
    config["model_type"] = "bytelm" if config.get("vocab_size") == 256 and config["architecture"] == "llama" else config["architecture"]
    made = Checkpoint(path, "file", config, {}, [path], {})
    for name in source:
        add_plain(made, name, source[name])
    return made


def _small(path: str) -> bytes:
    try:
        return read_small(path, _LIMIT)
    except ValueError as error:
        raise Refused(path, [str(error)]) from None


def twice(name: str) -> str:
    """Of two tensors that become one: neither is chosen."""
    return f"tensor {name}: two tensors of the file are this weight"


def add_plain(made: Checkpoint, name: str, weight: Weight, source: str = "") -> None:
    """A tensor as it is in its file; what has no layout or a type that nothing computes with is
    refused."""
    layout = _LAYOUT_NAMES.get(weight.encoding, "plain" if weight.encoding == 0 else "")
    dtype = weight.dtype or "f32"
    if not layout or (layout == "plain" and dtype not in _FLOATS):
        made.unread[name] = f"tensor {weight.name}: its type is {weight.type_name}, which no operation reads"
        dtype = "f32"
    if name in made.tensors:
        made.points.append(twice(name))
    made.tensors[name] = Tensor(source or weight.name, dtype, weight.shape, layout or "plain", weight.group_elements)


__all__ = ["Checkpoint", "Tensor", "add_plain", "open_weights", "read"]
