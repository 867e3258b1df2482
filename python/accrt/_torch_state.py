"""What a model keeps between its calls, and gets again after calls that only try something, for
accrt.from_torch."""

from __future__ import annotations

import collections
import contextlib
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

_CONTAINERS = (dict, list, set, collections.OrderedDict, collections.defaultdict, collections.deque)
#: Packages whose objects belong to the process, and not to a model.
_SHARED = frozenset(("torch", "builtins", *getattr(sys, "stdlib_module_names", ())))


@contextlib.contextmanager
def kept(model: Any, given: Sequence[Any] = ()) -> Iterator[Callable[[], None]]:
    """Within, calls of a model may change what its modules hold, in containers and in objects of
    its own classes as well: the function gives it back, which the end does, too. The end gives
    torch its random state as well.

    Args:
        given: what the model is called with: the random state of its GPUs is kept, too.
    """
    import torch

    containers = [(item, _copied(item)) for item in _containers(model)]
    tensors = [*model.parameters(), *model.buffers(), *given] if isinstance(model, torch.nn.Module) else given
    gpus = {item.device.index for item in tensors if isinstance(item, torch.Tensor) and item.is_cuda}

    def restore() -> None:
        for container, content in containers:
            _give(container, content)

    with torch.random.fork_rng(devices=sorted(gpus)):
        try:
            yield restore
        finally:
            restore()


@contextlib.contextmanager
def kept_content(tensors: Iterable[Any]) -> Iterator[Callable[[], None]]:
    """As kept(), of the content of tensors."""
    import torch

    before = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore() -> None:
        with torch.no_grad():
            for tensor, content in before:
                tensor.copy_(content)

    try:
        yield restore
    finally:
        restore()


def _containers(model: Any) -> List[Any]:
    """The attributes of a model's modules and of objects of its own classes, as dicts, and the
    containers in them."""
    import torch

    seen: Dict[int, Any] = {}  # with the items, so that no id comes again
    found, made = [model], []
    while found:
        item = found.pop()
        if id(item) in seen:
            continue
        if type(item) in _CONTAINERS:
            made.append(item)
            found += [*item.values()] if isinstance(item, dict) else item
        elif type(item) is tuple:
            found += item
        elif isinstance(item, torch.nn.Module) or _is_own(item):
            found.append(vars(item))
        else:
            continue
        seen[id(item)] = item
    return made


def _is_own(item: Any) -> bool:
    """Whether it is an object with attributes, of a class of the model's."""
    if isinstance(item, type) or str(type(item).__module__).partition(".")[0] in _SHARED:
        return False
    try:
        return type(object.__getattribute__(item, "__dict__")) is dict
    except AttributeError:
        return False


def _copied(container: Any) -> Tuple[Any, ...]:
    return tuple(container.items() if isinstance(container, dict) else container)


def _give(container: Any, content: Tuple[Any, ...]) -> None:
    """Nothing where a container has these very items."""
    if _marks(container, _copied(container)) == _marks(container, content):
        return
    container.clear()
    if isinstance(container, (list, collections.deque)):
        container.extend(content)
    else:
        container.update(content)


def _marks(container: Any, content: Tuple[Any, ...]) -> List[Any]:
    """What tells items apart. They are not compared: of tensors that is no one answer."""
    return [(id(key), id(value)) for key, value in content] if isinstance(container, dict) else [*map(id, content)]
