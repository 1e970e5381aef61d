"""What steps are called with and what they return, taken apart into tensors and a tree of values.

The trees are those of `treadle.planner.documents.values` with the numbers of tensors in place of their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from treadle.planner.documents.values import DEPTH
from treadle.runtime.objects import class_name, fields_of, is_found, is_object, made

SCALARS = (bool, int, float, str)
EXPECTED = "expected tensors, numbers, text, None, and tuples, lists, dicts, named tuples and dataclasses of them"

Refuse = Callable[[str, str], Any]
"""Called with the place and the kind of what cannot be taken apart; returns the tree to take in its place."""


def take_apart(value: Any, tensors: list[Tensor], refuse: Refuse, place: str = "", depth: int = 0) -> Any:
    """The tree of `value`, inside `depth` containers; its tensors are appended to `tensors`, each time that one occurs.

    It is no closure that calls itself: such a one holds `tensors` in a cycle, so in memory until a garbage collection.
    """

    def inner(part: Any, at: str) -> Any:
        return take_apart(part, tensors, refuse, at, depth + 1)

    if depth > DEPTH:
        return refuse(place, f"more than {DEPTH} containers inside each other")
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, SCALARS):
        return plain(value)
    if type(value) in (list, tuple):
        items = [inner(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    if type(value) is not dict and not is_object(value):
        kind = f"a value of type {type(value).__name__}"
        of_numpy = type(value).__module__ == "numpy"
        return refuse(place, f"{kind}, of which torch.as_tensor makes a tensor" if of_numpy else kind)
    fields = value if type(value) is dict else fields_of(value)
    if not all(key is None or isinstance(key, bool | int | str) for key in fields):
        return refuse(place, "a dict with keys other than text and numbers")
    items_by_key = isinstance(value, dict)
    pairs = [
        [key, inner(item, f"{place}[{key!r}]" if items_by_key else f"{place}.{key}")] for key, item in fields.items()
    ]
    if type(value) is dict:
        return {"dict": pairs}
    if items_by_key:  # as in Transformers' ModelOutput, whose fields that are None are no items
        pairs = [[key, tree] for key, tree in pairs if tree is not None]
    if not all(isinstance(key, str) for key, _ in pairs):
        return refuse(place, f"a {type(value).__name__} with keys other than text")
    name = class_name(type(value))
    if not is_found(type(value)):
        return refuse(place, f"an object of the class {name}, which is not at the top of an imported module")
    return {"object": [name, pairs]}


def plain(value: Any) -> Any:
    """A number or text of a subclass, such as `numpy.float64` or `IntEnum`, as the plain one; else the value."""
    return next((kind(value) for kind in SCALARS if isinstance(value, kind)), value)


def put_together(tree: Any, tensors: Sequence[Any]) -> Any:
    """The value that `tree` stands for, with `tensors` in their places."""
    if isinstance(tree, list | tuple):
        return [put_together(item, tensors) for item in tree]
    match tree:
        case {"tensor": number}:
            return tensors[number]
        case {"float": word}:
            return float(word)
        case {"tuple": items}:
            return tuple(put_together(item, tensors) for item in items)
        case {"dict": pairs}:
            return {key: put_together(item, tensors) for key, item in pairs}
        case {"object": [name, pairs]}:
            return made(name, {key: put_together(item, tensors) for key, item in pairs})
    return tree


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in `value`, each time that one occurs; what is no container is left out."""
    tensors: list[Tensor] = []
    take_apart(value, tensors, lambda place, kind: None)
    return tensors


def loss_in(result: Any) -> Tensor | None:
    """The scalar `loss` in what a model returned, a dict or an object with names."""
    fields = result if type(result) is dict else fields_of(result) if is_object(result) else {}
    found = fields.get("loss")
    return found if isinstance(found, Tensor) and found.numel() == 1 and found.is_floating_point() else None


def differentiated(result: Any) -> list[Tensor]:
    """The tensors from which the backward pass of a step starts: its `loss` (see `loss_in`) if that requires a
    gradient, else all that require one."""
    loss = loss_in(result)
    return (
        [loss]
        if loss is not None and loss.requires_grad
        else [tensor for tensor in tensors_of(result) if tensor.requires_grad]
    )
