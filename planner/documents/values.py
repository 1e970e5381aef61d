"""Trees of values: what a step is called with, and what it returns, over tensors that are named elsewhere.

Numbers, texts, booleans, null and lists stand for themselves, `{"tensor": ID}` for a tensor, `{"float": "-inf"}` for
what JSON cannot hold, `{"tuple": [...]}` and `{"dict": [[key, value], ...]}` for what it has no form of, and
`{"object": ["module:Class", [[field, value], ...]]}` for a named tuple, a dataclass or an ordered dict.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.arguments import FLOATS, Problem
from treadle.planner.documents.explain import child
from treadle.planner.documents.scalars import Record

DEPTH = 64
"""Most containers inside each other."""
_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_CLASS = re.compile(rf"{_DOTTED}:{_DOTTED}")


class Called(Record, frozen=True, kw_only=True):
    """What a step is called with, beyond its model: trees of values over the inputs."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    parameters: tuple[str, ...] = ()
    """Names of the parameters that take arguments by place, in their order, as the called function has them."""

    @property
    def in_order(self) -> bool:
        """Whether a call over the numbers of inputs takes them by their place, in their order, and nothing else."""
        return not self.kwargs and all(tree == {"tensor": number} for number, tree in enumerate(self.args))


def called_problems(path: str, called: Called, inputs: Sequence[Any]) -> Iterator[Problem]:
    """Yield every part of a call that stands for nothing (see `value_problems`), and what is not there once of
    `inputs`."""
    sound = True
    trees = [(f"{path}.args[{index}]", tree) for index, tree in enumerate(called.args)]
    for place, tree in trees + [(child(f"{path}.kwargs", key), tree) for key, tree in called.kwargs.items()]:
        for problem in value_problems(place, tree, inputs, "inputs"):
            sound = False
            yield problem
    for key in (*called.kwargs, *called.parameters):
        if not key.isidentifier():
            yield path, repr(key), "the name of an argument"
    by_place = called.parameters[: len(called.args)]
    for name in called.parameters:
        if called.parameters.count(name) > 1 or (name in by_place and name in called.kwargs):
            yield path, f"{name!r} twice", "every argument once"
    given = Counter(tensors_in([*called.args, *called.kwargs.values()])) if sound else Counter(inputs)
    for tensor in inputs:
        if given[tensor] != 1:
            yield path, f"input {tensor!r} {given[tensor]} times", "every input once"


def tensors_in(tree: Any) -> Iterator[Any]:
    """The names of the tensors in a tree of values, in its order."""
    if isinstance(tree, dict):
        ((kind, part),) = tree.items()
        if kind == "tensor":
            yield part
        else:
            yield from tensors_in(part)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors_in(item)


def renamed(tree: Any, names: Mapping[Any, Any]) -> Any:
    """The tree with other names of its tensors."""
    if isinstance(tree, list | tuple):
        return [renamed(item, names) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, part),) = tree.items()
    return {kind: names[part] if kind == "tensor" else renamed(part, names)}


def call_renamed(called: Called, names: Mapping[Any, Any]) -> Called:
    """The call with other names of its inputs; keywords are in the order of the alphabet."""
    kwargs = {key: renamed(called.kwargs[key], names) for key in sorted(called.kwargs)}
    return replace(called, args=tuple(renamed(tree, names) for tree in called.args), kwargs=kwargs)


def value_problems(path: str, tree: Any, tensors: Container[Any], kind: str) -> Iterator[Problem]:
    """Yield every part of a tree of values that stands for nothing. `tensors` are those that it may name; messages call
    them `kind`."""
    pending = [(path, tree, 0)]
    for place, part, depth in pending:
        if depth > DEPTH:
            yield place, f"more than {DEPTH} containers inside each other", "fewer"
            continue
        match part:
            case dict() if len(part) != 1:
                yield place, "an object of other than one field", "for example {'tensor': ID}"
            case None | bool() | int() | float() | str():
                pass
            case {"float": str(word)} if word in FLOATS:
                pass
            case {"tensor": key}:
                if not isinstance(key, str | int) or key not in tensors:
                    yield place, f"tensor {key!r}", f"one of the {kind}"
            case [*items]:
                pending += [(f"{place}[{index}]", item, depth + 1) for index, item in enumerate(items)]
            case {"tuple": [*items]}:
                pending += [(f"{place}.tuple[{index}]", item, depth + 1) for index, item in enumerate(items)]
            case {"dict": [*pairs]}:
                for index, pair in enumerate(pairs):
                    match pair:
                        case [None | bool() | int() | str(), value]:
                            pending.append((f"{place}.dict[{index}][1]", value, depth + 1))
                        case _:
                            yield f"{place}.dict[{index}]", "something else", "a key and its value"
            case {"object": [str(name), [*fields]]} if _CLASS.fullmatch(name):
                for index, pair in enumerate(fields):
                    match pair:
                        case [str(), value]:
                            pending.append((f"{place}.object[1][{index}][1]", value, depth + 1))
                        case _:
                            yield f"{place}.object[1][{index}]", "something else", "a field and its value"
            case {"object": _}:
                yield f"{place}.object", "something else", "['module:Class', [[field, value], ...]]"
            case _:
                yield place, "something else", f"a tree of {kind}, numbers, texts, lists, tuples, dicts and objects"
