"""The arguments of a call of a planned step: its inputs in order, or one line that names the first that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from treadle.planner.documents.values import Called, called_problems
from treadle.planner.errors import InputError
from treadle.runtime.objects import class_name, fields_of, is_object
from treadle.runtime.values import plain


def load_called(constant: Any, inputs: int, where: str) -> Called | None:
    """The constant `CALLED` of a generated step with this number of inputs, None where it has none. Raises InputError
    for what is none."""
    if constant is None:
        return None
    try:
        called = msgspec.convert(constant, Called)
    except msgspec.ValidationError as error:
        raise InputError(f"found CALLED that cannot be read: {error}", where=where) from error
    for path, found, expected in called_problems("CALLED", called, range(inputs)):
        raise InputError(f"found {found}, expected {expected}", where=where, path=path)
    return called


class _Part(NamedTuple):
    tree: Any
    place: str


def places(called: Called | None, inputs: int) -> list[str]:
    """What errors call each input."""
    if called is None:
        return [f"input {index}" for index in range(inputs)]
    pending = [_Part(tree, name(called, index)) for index, tree in enumerate(called.args)]
    pending += [_Part(tree, key) for key, tree in called.kwargs.items()]
    found = {}
    for part in pending:
        match part.tree:
            case {"tensor": number}:
                found[number] = part.place
            case [*items] | {"tuple": [*items]}:
                pending += [_Part(item, f"{part.place}[{index}]") for index, item in enumerate(items)]
            case {"dict": pairs}:
                pending += [_Part(item, f"{part.place}[{key!r}]") for key, item in pairs]
            case {"object": [_, pairs]}:
                pending += [_Part(item, f"{part.place}.{key}") for key, item in pairs]
    return [found[number] for number in range(inputs)]


def name(called: Called, index: int) -> str:
    """What errors call the argument at place `index`."""
    return called.parameters[index] if index < len(called.parameters) else f"input {index}"


def inputs_of(
    called: Called | None, inputs: int, args: Sequence[Any], kwargs: Mapping[str, Any], where: str
) -> list[Any]:
    """The inputs of a call. Raises InputError where an argument or a constant is not as when the step was captured."""
    if called is None:
        for key in kwargs:
            raise InputError(f"found the keyword {key!r}, expected {inputs} inputs by their place", where=where)
        return list(args)
    if not kwargs and called.in_order:
        return list(args)
    found: list[Any] = [None] * inputs
    values = _arranged(called, args, kwargs, where)
    for index, tree in enumerate(called.args):
        _take(tree, values[name(called, index)], name(called, index), found, where)
    for key, tree in called.kwargs.items():
        _take(tree, values[key], key, found, where)
    return found


def _arranged(called: Called, args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments by name, also where one that was captured by keyword comes by its place, or the reverse."""
    wanted = [*(name(called, index) for index in range(len(called.args))), *called.kwargs]
    given = {name(called, index): value for index, value in enumerate(args)}
    for key in kwargs:
        if key in given:
            raise InputError(f"found {key} twice, by its place and by keyword, expected it once", where=where)
    given.update(kwargs)
    for key in given:
        if key not in wanted:
            expected = f"expected {', '.join(wanted)} as when the step was captured"
            raise InputError(f"found {key}, {expected}; capture and plan again", where=where)
    for key in wanted:
        if key not in given:
            raise InputError(f"found no {key}, expected it as when the step was captured", where=where)
    return given


def _take(tree: Any, value: Any, place: str, found: list[Any], where: str) -> None:
    """Put the tensors of `value` into `found`, as `tree` numbers them."""
    match tree:
        case {"tensor": number}:
            if not isinstance(value, Tensor):
                raise _differs(place, _shown(value), "a tensor", where)
            found[number] = value
        case [*items] if type(value) is list:
            _take_items(items, value, place, found, where)
        case {"tuple": items} if type(value) is tuple:
            _take_items(items, value, place, found, where)
        case {"dict": pairs} if type(value) is dict:
            _take_fields(pairs, value, ("{}[{!r}]", place), found, where)
        case {"object": [cls, pairs]} if is_object(value) and class_name(type(value)) == cls:
            of_items = isinstance(value, dict)
            _take_fields(pairs, fields_of(value), ("{}[{!r}]" if of_items else "{}.{}", place), found, where)
        case list() | {"tuple": _} | {"dict": _} | {"object": _}:
            kind = tree.get("object", [*tree])[0] if isinstance(tree, dict) else "list"
            raise _differs(place, _shown(value), f"a {kind}", where)
        case {"float": word}:
            if not isinstance(value, float) or str(float(value)) != word:
                raise _differs(place, _shown(value), word, where)
        case constant:
            given = plain(value)
            if type(given) is not type(constant) or given != constant:
                raise _differs(place, _shown(value), repr(constant), where)


def _take_items(trees: Sequence[Any], values: Sequence[Any], place: str, found: list[Any], where: str) -> None:
    if len(trees) != len(values):
        raise _differs(place, f"{len(values)} items", f"{len(trees)}", where)
    for index, (tree, value) in enumerate(zip(trees, values, strict=True)):
        _take(tree, value, f"{place}[{index}]", found, where)


def _take_fields(
    pairs: Sequence[Any], values: Mapping[Any, Any], at: tuple[str, str], found: list[Any], where: str
) -> None:
    form, place = at
    trees = dict(map(tuple, pairs))
    for key in values:
        if key not in trees:
            raise InputError(
                f"found {form.format(place, key)}, which was not there at capture; plan again", where=where
            )
    for key, tree in trees.items():
        if key not in values:
            text = f"found no {form.format(place, key)}, expected it as when the step was captured"
            raise InputError(text, where=where)
        _take(tree, values[key], form.format(place, key), found, where)


def _differs(place: str, found: str, expected: str, where: str) -> InputError:
    text = f"found {place}: {found}, expected {expected} as when the step was captured; capture and plan again"
    return InputError(text, where=where)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {type(value).__name__}"
