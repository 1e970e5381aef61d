"""Trees of values: what a step is called with, and what it returns, over tensors that are named elsewhere.

Numbers, texts, booleans, null and lists stand for themselves, `{"tensor": ID}` for a tensor, `{"float": "-inf"}` for
what JSON cannot hold, `{"tuple": [...]}` and `{"dict": [[key, value], ...]}` for what it has no form of, and
`{"object": ["module:Class", [[field, value], ...]]}` for a named tuple, a dataclass or an ordered dict.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any

from treadle.planner.documents.arguments import FLOATS, Problem
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


def called_problems(path: str, called: Called, inputs: Container[Any]) -> Iterator[Problem]:
    """Yield every part of a call that stands for nothing, see `value_problems`."""
    for index, tree in enumerate(called.args):
        yield from value_problems(f"{path}.args[{index}]", tree, inputs, "inputs")
    for key, tree in called.kwargs.items():
        if not key.isidentifier():
            yield f"{path}.kwargs", repr(key), "the name of an argument"
        yield from value_problems(f"{path}.kwargs.{key}", tree, inputs, "inputs")
    for index, name in enumerate(called.parameters):
        if not name.isidentifier():
            yield f"{path}.parameters[{index}]", repr(name), "the name of an argument"


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
