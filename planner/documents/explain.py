"""Why a plain value does not fit a document type, in words: where, what was found, what was expected.

msgspec decides whether a value fits; this walk over the same types only finds words for its refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import inspect

from treadle.planner.documents.nearest import question

Misfit = tuple[str, str, str]
"""(path, found, expected)"""
MEANT = "did you mean "
"""Begins what is expected where a close name is offered."""


def refusal(seen: str, expected: str) -> str:
    """`found X, expected Y`, or `found X, did you mean Y?`."""
    return f"found {seen}, {expected if expected.startswith(MEANT) else f'expected {expected}'}"


def _meant(value: Any, names: Iterable[str], listed: str) -> str:
    """The close name of `names`, else `listed`."""
    return (question(value, names) if isinstance(value, str) else "") or listed


def misfit(value: Any, kind: type) -> Misfit | None:
    """The first place where `value` does not fit the struct type `kind`; None where every part fits."""
    return _misfit(value, _type_info(kind), "$")


_type_info = cache(inspect.type_info)


def child(path: str, key: str | int) -> str:
    """The path of a member: `$.a`, `$[0]`, `$['a b']`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if key.isidentifier() and key.isascii() and len(key) <= 60 else f"{path}[{short(key)}]"


def short(value: Any) -> str:
    """`value` as Python would write it, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:50] + "..." + text[-1 if isinstance(value, str) else -4 :]


def found(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return f"an array of {_values(len(value))}"
    return f"{short(value)} (text)" if isinstance(value, str) else short(value)


def _misfit(value: Any, kind: inspect.Type, path: str) -> Misfit | None:
    match kind:
        case inspect.UnionType():
            return _union(value, kind, path)
        case inspect.StructType():
            return (_array_struct if kind.array_like else _struct)(value, kind, path)
        case inspect.DictType():
            if not isinstance(value, dict):
                return path, found(value), "an object"
            for key, item in value.items():
                bad = _misfit(key, kind.key_type, child(path, key)) or _misfit(item, kind.value_type, child(path, key))
                if bad:
                    return bad
            return None
        case inspect.VarTupleType():
            if not isinstance(value, list | tuple):
                return path, found(value), "an array"
            if kind.min_length is not None and len(value) < kind.min_length:
                return path, found(value), f"an array of at least {_values(kind.min_length)}"
            if kind.max_length is not None and len(value) > kind.max_length:
                return path, found(value), f"an array of at most {_values(kind.max_length)}"
            return _items([(item, kind.item_type) for item in value], path)
        case inspect.TupleType():
            if not isinstance(value, list | tuple) or len(value) != len(kind.item_types):
                return path, found(value), f"an array of {_values(len(kind.item_types))}"
            return _items(list(zip(value, kind.item_types, strict=True)), path)
    return None if _fits(value, kind) else (path, found(value), _describe(kind, value))


def _items(pairs: list[tuple[Any, inspect.Type]], path: str, first: int = 0) -> Misfit | None:
    for index, (item, kind) in enumerate(pairs, first):
        if bad := _misfit(item, kind, child(path, index)):
            return bad
    return None


def _struct(value: Any, kind: inspect.StructType, path: str) -> Misfit | None:
    if not isinstance(value, dict):
        return path, found(value), "an object"
    fields = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        if key == kind.tag_field:
            if item != kind.tag:
                return child(path, key), found(item), repr(kind.tag)
        elif key in fields:
            if bad := _misfit(item, fields[key].type, child(path, key)):
                return bad
        elif kind.forbid_unknown_fields:
            return (
                child(path, key),
                "an unknown field",
                _meant(key, sorted(fields), f"one of {', '.join(sorted(fields))}"),
            )
    for name, field in fields.items():
        if field.required and name not in value:
            return child(path, name), "nothing", f"this required field: {_describe(field.type, None)}"
    return None


def _array_struct(value: Any, kind: inspect.StructType, path: str) -> Misfit | None:
    head = [] if kind.tag is None else [kind.tag]
    needed = len(head) + sum(field.required for field in kind.fields)
    most = len(head) + len(kind.fields)
    many = _values(needed) if needed == most else f"{needed} to {_values(most)}"
    if not isinstance(value, list | tuple) or len(value) < needed or (len(value) > most and kind.forbid_unknown_fields):
        return path, found(value), f"an array of {many}"
    types = [field.type for field in kind.fields]
    return _items(list(zip(value[len(head) :], types, strict=False)), path, len(head))


def _union(value: Any, kind: inspect.UnionType, path: str) -> Misfit | None:
    structs = [option for option in kind.types if isinstance(option, inspect.StructType)]
    tags = {option.tag: option for option in structs if option.tag is not None}
    if len(structs) > 1 and tags:
        names = sorted(map(str, tags))
        listed = f"one of {', '.join(map(repr, names))}"
        if structs[0].array_like:
            if not isinstance(value, list | tuple) or not value:
                return path, found(value), f"an array that begins with {listed}"
            place, tag = child(path, 0), value[0]
        else:
            if not isinstance(value, dict):
                return path, found(value), "an object"
            field = structs[0].tag_field or ""
            place, tag = child(path, field), value.get(field)
            if field not in value:
                return place, "nothing", listed
        if not isinstance(tag, str) or tag not in tags:
            return place, found(tag), _meant(tag, names, listed)
        return _misfit(value, tags[tag], path)
    misfits = [_misfit(value, option, path) for option in kind.types if not isinstance(option, inspect.NoneType)]
    if None in misfits or (value is None and len(misfits) < len(kind.types)):
        return None
    deepest = max((bad for bad in misfits if bad), key=lambda bad: len(bad[0]))
    return deepest if deepest[0] != path else (path, deepest[1], _describe(kind, value))


def _fits(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.AnyType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType() | inspect.FloatType():
            right = int if isinstance(kind, inspect.IntType) else int | float
            return isinstance(value, right) and not isinstance(value, bool) and _bound(kind, value) is None
        case inspect.StrType():
            return isinstance(value, str) and _text_rule(kind, value) is None
        case inspect.LiteralType():
            return type(value) in (str, int) and value in kind.values
    return True


def _bound(kind: inspect.IntType | inspect.FloatType, value: Any) -> str | None:
    if kind.ge is not None and value < kind.ge:
        return f"of at least {kind.ge}"
    if kind.gt is not None and value <= kind.gt:
        return f"above {kind.gt}"
    if kind.le is not None and value > kind.le:
        return f"of at most {kind.le}"
    if kind.lt is not None and value >= kind.lt:
        return f"below {kind.lt}"
    return None


def _text_rule(kind: inspect.StrType, value: str) -> str | None:
    if kind.min_length is not None and len(value) < kind.min_length:
        return "text that is not empty" if kind.min_length == 1 else f"text of at least {kind.min_length} characters"
    if kind.max_length is not None and len(value) > kind.max_length:
        return f"text of at most {kind.max_length} characters"
    if kind.pattern is not None and not re.search(kind.pattern, value):
        return f"text matching {kind.pattern}"
    return None


def _describe(kind: inspect.Type, value: Any) -> str:
    """What `kind` expects; of several rules the one that `value` breaks."""
    match kind:
        case inspect.UnionType():
            options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
            words = list(dict.fromkeys(_describe(option, value) for option in options))
            return next((word for word in words if word.startswith(MEANT)), " or ".join(words))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            number = value if isinstance(value, int | float) else float("-inf")
            rule = _bound(kind, number)
            return f"{noun} {rule}" if rule else noun
        case inspect.StrType():
            return (_text_rule(kind, value) if isinstance(value, str) else None) or "text"
        case inspect.LiteralType():
            choices = sorted(kind.values, key=str)
            words = list(map(repr, choices))
            return _meant(value, map(str, choices), words[0] if len(words) == 1 else f"one of {', '.join(words)}")
        case inspect.VarTupleType() | inspect.TupleType():
            return "an array"
        case inspect.StructType():
            return "an array" if kind.array_like else "an object"
        case inspect.DictType():
            return "an object"
    return "any value"


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
