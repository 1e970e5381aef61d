"""Named tuples, dataclasses and ordered dicts by the names of their classes.

The name may come from a file. So the class is looked up among the modules that are imported, never imported, and none
of its own code runs: an object gets its fields and items as the built-in types store them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from treadle.planner.errors import InputError


def is_object(value: object) -> bool:
    """Whether `made` can make values like this one."""
    return not isinstance(value, type) and _is_known(type(value))


def fields_of(value: Any) -> dict[Any, Any]:
    """What `made` makes an equal object from. Fields of a dataclass that is a dict are its items."""
    if isinstance(value, tuple):
        return dict(zip(type(value)._fields, value, strict=True))  # type: ignore[attr-defined]
    if isinstance(value, OrderedDict):
        return dict(OrderedDict[Any, Any].items(value))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def class_name(cls: type) -> str:
    """`module:Class`, by which `made` finds it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def class_named(name: str) -> type:
    """The named tuple, dataclass or ordered dict `module:Class`. Raises InputError where no imported module has it."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        raise InputError(f"found no imported module {module!r}, expected it for the class {name}; import it first")
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type) or not _is_known(found):
        raise InputError(f"found no named tuple, dataclass or ordered dict {name}, expected one as when captured")
    return found


def is_found(cls: type) -> bool:
    """Whether `made` finds this class by its name, unlike one that a function defines."""
    try:
        return class_named(class_name(cls)) is cls
    except InputError:
        return False


def made(name: str, fields: Mapping[Any, Any]) -> Any:
    """An object of the class `name` with `fields`. Raises InputError where the class is not there or has others."""
    cls = class_named(name)
    known = [*getattr(cls, "_fields", ())] if issubclass(cls, tuple) else []
    if not issubclass(cls, tuple) and dataclasses.is_dataclass(cls):
        known = [field.name for field in dataclasses.fields(cls)]
    if cls is not OrderedDict:
        missing = [] if issubclass(cls, dict) else [key for key in known if key not in fields]
        for key in [key for key in fields if key not in known] + missing:
            raise InputError(f"found other fields in {name}, {key!r} is only in one, expected those of the capture")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [fields[key] for key in known])
    result: Any = OrderedDict.__new__(cls) if issubclass(cls, OrderedDict) else object.__new__(cls)
    if issubclass(cls, OrderedDict):
        for key, value in fields.items():
            OrderedDict.__setitem__(result, key, value)
    for key in known:
        object.__setattr__(result, key, fields.get(key))
    return result


def _is_known(cls: type) -> bool:
    if issubclass(cls, tuple):
        return isinstance(getattr(cls, "_fields", None), tuple)
    if issubclass(cls, dict):
        return cls is OrderedDict or (issubclass(cls, OrderedDict) and "__dataclass_fields__" in vars(cls))
    return dataclasses.is_dataclass(cls)
