"""What a captured step fixes of a model besides its tensors: values in Python attributes and hooks of its modules.

A value is turned into a key that is hashable and equal for equal values: numbers, text, dtypes, containers of them, the
code of functions with the numbers that they take from outside, and the attributes of plain objects such as a
configuration. What is none of these has its type.
"""

from __future__ import annotations

import argparse
import dataclasses
import dis
import functools
import sys
import types
from collections.abc import Hashable, Iterator
from enum import Enum
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

MOST_MEMBERS = 1000
"""Members of a container that are compared; of a longer one only their number is."""
DEPTH = 4

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_WRAPPERS = ("_fsdp_", "_is_fsdp_")
"""How the names of attributes begin that `fully_shard` sets."""
_HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, Enum)
_EXACT_ATOMS = frozenset(_ATOMS)
_PLAIN_OBJECTS = (types.SimpleNamespace, argparse.Namespace)
_WITHOUT_ATTRIBUTES = sys.stdlib_module_names | {"torch", "numpy"}

Attributes = tuple[tuple[str, str, Hashable], ...]
"""Name of the module, name of the attribute, key of its value."""


def attributes_of(model: nn.Module) -> Attributes:
    """The attributes of all modules of `model`, without those that every module has."""
    known: dict[int, Hashable] = {}
    found: list[tuple[str, str, Hashable]] = []
    for place, module in model.named_modules():  # in each call: one plain loop, without a call for a number
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE or name in module._parameters or name.startswith(_OF_WRAPPERS):
                continue
            kind = type(value)
            found.append((place, name, (kind, value) if kind in _EXACT_ATOMS else key_of(value, known)))
    return tuple(found)


def hooks_of(model: nn.Module) -> Attributes:
    """The hooks of all modules of `model`, in the same form, without those by which PyTorch computes parameters."""
    each = [
        (place, kind, hooks)
        for place, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for kind in _HOOKS
        if (hooks := getattr(module, kind))
    ]
    of_all = [("", kind, getattr(torch_module, f"_global{kind}")) for kind in _HOOKS]
    return tuple(
        (place, _HOOKS[kind], _key(hook, DEPTH - 3))  # without what is in lists, in which hooks collect
        for place, kind, hooks in (*each, *of_all)
        for hook in hooks.values()
        if not type(hook).__module__.startswith("torch.nn.utils.")
    )


def first_difference(before: Attributes, after: Attributes) -> str:
    """The name of an attribute in which they differ, as `module.attribute`."""
    known = {(place, name): key for place, name, key in before}
    changed = [entry for entry in after if known.get(entry[:2], ...) != entry[2]]
    names = [entry[:2] for entry in changed] or sorted(known.keys() - {entry[:2] for entry in after})
    return ".".join(filter(None, (names or [("", "")])[0])) or "a number that the loss takes from outside"


def key_of(value: Any, known: dict[int, Hashable] | None = None) -> Hashable:
    """The key of `value`. Objects in `known`, by their id, are taken from there; those of attributes are added."""
    if type(value) in _EXACT_ATOMS:
        return type(value), value
    if type(value) is tuple and _EXACT_ATOMS.issuperset(kinds := tuple(map(type, value))):
        return kinds, value
    if known is None:
        return _key(value, 0)
    if id(value) not in known:
        fields = _fields(value)
        known[id(value)] = _key(value, 0) if fields is None else (_name(type(value)), _key(fields, 1))
    return known[id(value)]


def _key(value: Any, depth: int) -> Hashable:
    if isinstance(value, _ATOMS):
        return type(value), value
    if isinstance(value, Number) and type(value).__hash__ is not None:
        return type(value), value
    if depth >= DEPTH:
        return _name(type(value))
    if isinstance(value, list | tuple | dict | set | frozenset):
        return _name(type(value)), len(value), *(_members(value, depth) if len(value) <= MOST_MEMBERS else ())
    if isinstance(value, functools.partial):
        return "partial", *(_key(part, depth + 1) for part in (value.func, value.args, value.keywords))
    if isinstance(value, types.MethodType):
        return _key(value.__func__, depth)
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        taken = [value.__globals__.get(name) for name in _globals_of(value.__code__)]
        captured = (
            value.__defaults__,
            value.__kwdefaults__,
            cells,
            [each for each in taken if isinstance(each, _ATOMS)],
        )
        return _name(value), hash(value.__code__), _key(captured, depth + 1)
    return _name(value if isinstance(value, type | types.BuiltinFunctionType) else type(value))


def _members(value: Any, depth: int) -> Iterator[Hashable]:
    if isinstance(value, dict):
        yield from ((_key(name, depth + 1), _key(item, depth + 1)) for name, item in value.items())
    elif isinstance(value, set | frozenset):
        yield frozenset(_key(item, depth + 1) for item in value)
    else:
        yield from (_key(item, depth + 1) for item in value)


def _fields(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is no more than they are, such as a configuration; None for another value."""
    if isinstance(value, Tensor | nn.Module | type | types.FunctionType | functools.partial | dict | list | tuple):
        return None
    if isinstance(value, _PLAIN_OBJECTS):
        return vars(value)
    if type(value).__module__.partition(".")[0] in _WITHOUT_ATTRIBUTES:
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return getattr(value, "__dict__", None)


@functools.cache
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    return tuple(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
