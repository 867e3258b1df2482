"""Models as people have them, made into bundles that are served: a Hugging Face folder or a GGUF
file -> a bundle with external weights.

    from accrt import models

    opened = models.open("Qwen2.5-0.5B-Instruct")      # made once, then from the user's cache
    program = accrt.Bundle(opened.bundle).program(weights=opened.sources())

    python -m accrt.models Qwen2.5-0.5B-Instruct -o qwen.accx

docs/models.md says which models there are, what is refused, and how one is added;
docs/serving-model.md what the bundle has.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from .._files import read_small
from .._progress import Clock, Progress
from ._checkpoint import Checkpoint, Header, header, open_weights, read
from ._config import Refused
from ._options import Options

if TYPE_CHECKING:
    from ._blocks import Decoder
    from ._peft import Adapter, read_adapter
    from ._registry import decoder, families

#: Of what is made here. Sources are part of the key, so it need not change with them.
VERSION = 1
#: Files that are part of the key.
_SOURCES, _LARGEST_SOURCE = (".py", ".c", ".h", ".cu", ".cuh"), 1 << 24
#: What may end the making of a bundle: it is given the metadata, the assets and the paths of the
#: weights.
Check = Callable[[Dict[str, str], Dict[str, Tuple[bytes, str]], Sequence[str]], None]


class Opened(NamedTuple):
    """A model that can be served. `bundle`: the path of its program. `weights`: paths of what it
    takes its weights from. `tokenizer`: the folder that tokenizer.json and its companions lie in.
    `info`: the bundle's metadata, and how it was made."""

    bundle: str
    weights: List[str]
    tokenizer: str
    info: Dict[str, Any]

    def sources(self) -> List[Any]:
        """The weights, open."""
        return [open_weights(path) for path in self.weights]


def open(
    model: Union[str, "os.PathLike[str]"], *, options: Options = Options(), targets: Optional[Sequence[str]] = None, progress: Progress = None,
    output: Union[None, str, "os.PathLike[str]"] = None, check: "Optional[Check]" = None,
) -> Opened:  # fmt: skip
    """A model's bundle, from the user's cache where it has been made before.

    Args:
        model: a folder with config.json, a .gguf file, or a safetensors file whose metadata has the
            configuration.
        targets: as accrt.compiler.compile has them; None: all that can be built here.
        progress: called with what was done, and how many seconds it took. Methods `begins` and
            `goes_on`, if it has them, get what begins that may take long, and how far it is.
        output: where the bundle is written, if not to the cache.
        check: called with the metadata and the assets of a bundle and the paths of its weights
            before it is compiled; what it raises ends this. It is not called for a bundle that is
            in the cache.
    Raises:
        Refused: everything that stands against it. NotFoundError, InvalidFormatError and what else
            opening weights raises.
    """
    clock = Clock(progress)
    found = header(model) if os.fspath(model) else None
    read_yet = None if found is not None else read(model)
    clock.done(f"read {found.count if found is not None else len(read_yet.tensors)} tensors")
    signer = _signer()
    names = _targets(targets)
    folder = _cache_folder(_key(found or _facts(read_yet), options, names, signer)) if output is None else None
    path = os.fspath(output) if output is not None else os.path.join(folder, "model.accx") if folder is not None else ""
    if not path:
        raise OSError("there is no place for bundles: neither XDG_CACHE_HOME nor HOME is a path. output= names one")
    facts: Optional[Dict[str, str]] = None
    if folder is not None and signer is not None and os.path.isfile(path):
        # without the compiler, whose modules take longer to import than all else
        _need_private(folder)
        facts = _whole(path)
    cached = facts is not None
    if facts is not None:
        clock.done("found it in the cache")
    else:
        made = _decoder(read_yet or read(model), options)
        facts = made.metadata()
        if folder is None:
            _build(made, path, targets, names, clock, check)
        else:
            cached = _cached_or_built(made, folder, targets, names, signer is not None, clock, check)
    is_folder = read_yet is not None and read_yet.form == "folder"
    tokenizer = read_yet.path if is_folder else folder or os.path.dirname(os.path.abspath(path))
    if output is not None and not is_folder:
        tokenizer = ""  # what the bundle has as assets
    weights = [found.path] if found is not None else list(read_yet.weights)
    return Opened(path, weights, tokenizer, {**facts, "cached": cached, "seconds": clock.total})


def __getattr__(name: str) -> Any:
    """What imports numpy or the compiler, when it is first named."""
    home = {"Adapter": "_peft", "read_adapter": "_peft", "decoder": "_registry", "families": "_registry"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("." + home, __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _decoder(checkpoint: Checkpoint, options: Options) -> "Decoder":
    from . import _registry

    return _registry.decoder(checkpoint, options)


def _whole(path: str) -> Optional[Dict[str, str]]:
    """The metadata of a bundle in the cache; None: a disk has damaged it, or it was removed
    meanwhile, and it is made again."""
    from ..bundle import Bundle
    from ..errors import DataCorruptError, InvalidFormatError, NotFoundError

    try:
        with Bundle(path) as bundle:
            bundle.verify()
            return bundle.metadata
    except (DataCorruptError, InvalidFormatError, NotFoundError):
        return None


# ---- making bundles ------------------------------------------------------------------------------


def assets(made: "Decoder") -> Dict[str, Tuple[bytes, str]]:
    """What goes into the bundle beside the program: the bytes of tokens, and the tokenizer's
    files."""
    from . import _tokens

    checkpoint = made.checkpoint
    found: Dict[str, Tuple[bytes, str]] = {}
    for name, content in checkpoint.files.items():
        found[name] = (content, "application/json" if name.endswith(".json") else "text/plain")
    template = checkpoint.json("tokenizer_config.json").get("chat_template")
    if "chat_template.jinja" not in found and template:
        try:
            found["chat_template.jinja"] = (_template(template).encode(), "text/plain")
        except (TypeError, ValueError) as error:
            raise Refused(checkpoint.path, [f"tokenizer_config.json: chat_template: {error}"]) from None
    if made.has_tokenizer:
        if "tokenizer.json" not in checkpoint.files:
            raise Refused(checkpoint.path, [_without_tokenizer(checkpoint.path)])
        try:
            tokens = _tokens.of_tokenizer(checkpoint.json("tokenizer.json"), made.vocabulary)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            words = str(error) if isinstance(error, ValueError) else f"it has not the form of a tokenizer ({error!r})"
            raise Refused(checkpoint.path, [f"tokenizer.json: {words}"]) from None
    else:
        tokens = _tokens.byte_tokens()
    found["serve.token_bytes"] = (_tokens.table(*tokens), "application/octet-stream")
    return found


def _without_tokenizer(folder: str) -> str:
    if os.path.isfile(os.path.join(folder, "tiktoken.model")):
        return ("there is no tokenizer.json, and tiktoken.model is not read: TikTokenConverter of transformers makes one, with the pattern and the special tokens that "
                "the folder's own code has")  # fmt: skip
    return "there is no tokenizer.json: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes it"


def _template(given: Any) -> str:
    """tokenizer_config.json has one, or several by name."""
    if isinstance(given, list):
        named = {str(item.get("name")): item.get("template", "") for item in given if isinstance(item, dict)}
        given = named.get("default") or next(iter(named.values()), "")
    if not isinstance(given, str):
        raise TypeError(f"it is {given!r:.40}, expected a text, or a list of objects with a name and a text")
    return given


def _build(made: "Decoder", path: str, targets: Optional[Sequence[str]], names: Sequence[str], clock: Clock, check: "Optional[Check]") -> None:
    from ..compiler import driver
    from ..compiler import progress as compiling
    from . import _peft

    module = made.build()  # first: it refuses a vocabulary that the file has no weights for
    clock.done(f"built {module.metadata['serve.layers']} layers of {module.metadata['serve.family']}")
    beside = assets(made)
    clock.done("made the table of tokens")
    if made.adapted:
        beside["serve.adapters"] = (json.dumps(_peft.layout_of(made)).encode(), "application/json")
    if check is not None:
        check(made.metadata(), beside, made.checkpoint.weights)
        clock.done("read the tokenizer, and looked at the options")
    clock.begins(f"compiling for {', '.join(names)}")
    with compiling.watching(lambda step: clock.goes_on(f"compiling for {', '.join(names)}: {_words(step)}")):
        driver.compile(module, path, targets=targets, assets=beside)
    clock.done(f"compiled for {', '.join(names)}")


def _words(step: Any) -> str:
    if step.part == "functions":
        return f"{step.done} of {step.total} functions"
    return f"{step.done} of {step.total} pieces of code" if step.part == "kernels" else "writing the bundle"


def _targets(targets: Optional[Sequence[str]]) -> List[str]:
    """Their names; of "host" that of this machine, which the key of the cache has."""
    if targets is None:
        from ..compiler import driver

        return driver.default_targets()
    from ..instance import caps

    return [str(caps()["cpu_arch"]) or name if name == "host" else name for name in targets]


def _signer() -> Any:
    from .. import trust

    return trust.signer_or_reason()[0]


# ---- the cache -----------------------------------------------------------------------------------


def _key(facts: Any, options: Options, targets: Sequence[str], signer: Any) -> str:
    """What a bundle follows from: nothing of the weights but their names, types and shapes, so none
    is read; but for scales of keys and values, which are a number each."""
    digest = hashlib.sha256(_sources_digest())
    if isinstance(facts, Header):
        facts = ["header", facts.called, facts.digest]
    digest.update(json.dumps([VERSION, facts, list(options.__dict__.items()), list(targets)], sort_keys=True).encode())
    digest.update(b"" if signer is None else bytes(signer.public_key))
    return digest.hexdigest()


def _facts(checkpoint: Checkpoint) -> List[Any]:
    tensors = {name: [t.source, t.dtype, list(t.shape), t.layout, t.group, dict(t.components)] for name, t in sorted(checkpoint.tensors.items())}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in checkpoint.files.items()}
    return [checkpoint.form, checkpoint.name, checkpoint.config, tensors, files, checkpoint.kv_scales]


def _sources_digest() -> bytes:
    """Of everything that writes: another version of it makes another bundle."""
    digest, package = hashlib.sha256(), os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for part in ("compiler", "models", "bundle_writer"):
        # not by pathlib: each start of a server reads these
        found = [os.path.join(folder, name) for folder, _folders, names in os.walk(os.path.join(package, part)) for name in names if name.endswith(_SOURCES)]
        for path in sorted(found):
            digest.update(f"{path[len(package) + 1 :]}\0".encode() + read_small(path, _LARGEST_SOURCE))
    return digest.digest()


def _cache_folder(key: str) -> Optional[str]:
    from .._paths import user_folder

    folder = user_folder("XDG_CACHE_HOME", "~/.cache")
    return os.path.join(folder, "models", key) if folder else None


def _cached_or_built(
    made: "Decoder", folder: str, targets: Optional[Sequence[str]], names: Sequence[str], signed: bool, clock: Clock,
    check: "Optional[Check]",
) -> bool:  # fmt: skip
    """Whether it was there. One process makes it, others that come meanwhile wait for that one. A
    bundle without a signature is made again: its code is trusted by the process alone that made
    it."""
    import fcntl

    from .._paths import make_private_folder, set_own_file

    make_private_folder(folder)
    _need_private(folder)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            clock.begins("waiting for another process that makes this bundle")
            fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(folder, "model.accx")
        if signed and os.path.isfile(path) and _whole(path) is not None:
            clock.done("found it in the cache")
            return True
        for name, content in made.checkpoint.files.items() if made.checkpoint.form != "folder" else ():
            make_private_folder(os.path.dirname(os.path.join(folder, name)))
            set_own_file(os.path.join(folder, name), content)
        _build(made, path, targets, names, clock, check)
        return False
    finally:
        os.close(lock)


def _need_private(folder: str) -> None:
    from .._paths import is_private

    if not is_private(folder):
        raise PermissionError(f"{folder}: another user may write to it or to a folder above it")


__all__ = ["Adapter", "Opened", "Options", "Refused", "families", "open", "read", "read_adapter"]
