"""Keys of values: hashable, and equal for equal values.

Numbers, text, containers and small arrays are compared by value, objects by their attributes, functions by their code
and by what they take from closures and globals. Of an object that a function takes from outside, only attributes that
code names count, so that a trainer's counter of steps is no part of its loss. What cannot be compared says so in its
key.
"""

from __future__ import annotations

import argparse
import collections
import dis
import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from enum import Enum
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

MOST_MEMBERS = 1000
"""Members of a container that is compared, and objects inside one value."""
DEPTH = 8
NOT_COMPARED = "not compared"

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, Enum)
EXACT_ATOMS = frozenset(ATOMS)
OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_PLAIN_OBJECTS = (types.SimpleNamespace, argparse.Namespace)
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
_NO_STATE = (Tensor, nn.Module, type, types.BuiltinFunctionType, types.ModuleType, logging.Logger, weakref.ref)
"""Tensors and modules of the model are compared elsewhere; others cannot be captured."""
_METHODS = frozenset((types.FunctionType, property, classmethod, staticmethod))
_READ_ALL = frozenset(("getattr", "vars", "__dict__", "asdict", "attrgetter"))
_OWN = frozenset(f"__{name}__" for name in ("init", "new", "post_init", "call", "repr", "str", "eq", "hash", "setattr"))
"""Methods with double underscores besides which a class may read its attributes without naming them."""


def key_of(value: Any, known: Mapping[int, Hashable] | None = None) -> Hashable:
    """The key of `value` with all of its attributes. Objects in `known`, by their id, are taken from there."""
    return _Keys(known or {}, None).key(value)


def key_of_read(function: Any, known: Mapping[int, Hashable]) -> Hashable:
    """The key of a function, method or callable object, with what its code reads from outside."""
    names = {"__call__", "forward"}
    while True:
        count = len(names)
        key = _Keys(known, names).key(function)
        if len(names) == count:
            return key


def is_not_compared(key: Hashable) -> bool:
    """Whether a part of the key says that it was not compared."""
    return isinstance(key, tuple) and (key[:1] == (NOT_COMPARED,) or any(map(is_not_compared, key)))


def key_of_hook(hook: Any) -> Hashable:
    """The code of a hook and the numbers that it takes from outside; not what is in lists, in which hooks collect."""
    function = getattr(hook, "__func__", hook)
    if not isinstance(function, types.FunctionType):
        return name_of(type(function))
    outside = (*(function.__defaults__ or ()), *_cells(function), *_globals(function).values())
    numbers = tuple((type(value), value) for value in outside if isinstance(value, ATOMS))
    return name_of(function), hash(function.__code__), numbers


def name_of(thing: Any) -> str:
    """The module and name of a class or function."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


class _Keys:
    """Makes keys with the attributes in `names`, to which those that functions name are added; None for all."""

    def __init__(self, known: Mapping[int, Hashable], names: set[str] | None) -> None:
        self.base, self.names = known, names
        self.known: dict[int, Hashable] = {}

    def key(self, value: Any, depth: int = 0) -> Hashable:
        kind = type(value)
        if kind in EXACT_ATOMS or isinstance(value, ATOMS):
            return kind, value
        if id(value) in self.base or id(value) in self.known:
            return self.known.get(id(value)) or self.base[id(value)]
        if isinstance(value, Number) and kind.__hash__ is not None:
            return kind, value
        if depth > DEPTH or len(self.known) > MOST_MEMBERS:
            return NOT_COMPARED, name_of(kind)
        if isinstance(value, functools.partial):
            return "partial", *(self.key(part, depth + 1) for part in (value.func, value.args, value.keywords))
        if self.names is None and isinstance(value, types.FunctionType | types.MethodType):
            return key_of_read(value, self.base)
        if isinstance(value, types.MethodType):
            return self.key(value.__func__, depth), self.key(value.__self__, depth + 1)
        make = self._object
        if isinstance(value, _CONTAINERS):
            make = self._container
        elif isinstance(value, types.FunctionType):
            make = self._function
        elif (
            isinstance(value, types.ModuleType)
            and self.names is not None
            and not _is_library(value.__name__, getattr(value, "__file__", None) or "")
        ):
            make = self._namespace
        elif isinstance(value, nn.Module) and self.names is not None:
            make = self._module
        elif isinstance(value, _NO_STATE) or kind is object:
            return name_of(value if isinstance(value, type | types.BuiltinFunctionType) else kind)
        self.known[id(value)] = name_of(kind)  # for what refers to itself
        self.known[id(value)] = key = make(value, depth + 1)
        return key

    def _container(self, value: Any, depth: int) -> Hashable:
        kind = name_of(type(value))
        return (NOT_COMPARED, kind) if len(value) > MOST_MEMBERS else (kind, *self._members(value, depth))

    def _members(self, value: Any, depth: int) -> Iterator[Hashable]:
        if isinstance(value, dict):
            yield from ((self.key(name, depth), self.key(item, depth)) for name, item in value.items())
        elif isinstance(value, set | frozenset):
            yield frozenset(self.key(item, depth) for item in value)
        else:
            yield from (self.key(item, depth) for item in value)

    def _function(self, value: types.FunctionType, depth: int) -> Hashable:
        if self.names is not None:
            self.names |= _names(value.__code__)
        taken = _globals(value) if reads_outside(value) else {}
        outside = (value.__defaults__, value.__kwdefaults__, *_cells(value), *taken.values())
        return name_of(value), hash(value.__code__), *(self.key(part, depth) for part in outside)

    def _namespace(self, value: types.ModuleType, depth: int) -> Hashable:
        read = sorted((self.names or set()) & vars(value).keys())
        return value.__name__, *((name, self.key(vars(value)[name], depth)) for name in read)

    def _module(self, value: nn.Module, depth: int) -> Hashable:
        """A module that is none of the model's, such as a criterion, with all inside."""
        of_all = _Keys({**self.base, **self.known}, None)
        return tuple(
            (place, name, of_all.key(item, depth))
            for place, module in value.named_modules()
            for name, item in {**class_attributes(type(module)), **vars(module)}.items()
            if name not in OF_EVERY_MODULE
        ), self._methods(value, depth)

    def _methods(self, value: Any, depth: int) -> Hashable:
        """Those methods of an object that code names."""
        found = ((name, _function_of(member)) for name, member in _named(type(value), self.names or set()))
        return tuple((name, self.key(function, depth)) for name, function in found if function is not None)

    def _object(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if wrapped := getattr(value, "__wrapped__", None) if kind.__module__ == "functools" else None:
            return self.key(wrapped, depth)
        if _is_library(kind.__module__) and not isinstance(value, _PLAIN_OBJECTS):
            return _key_of_library_object(value)
        fields = class_attributes(kind) | _slots(value) | getattr(value, "__dict__", {})
        if self.names is None:
            return name_of(kind), *((name, self.key(item, depth)) for name, item in fields.items())
        methods = self._methods(value, depth)
        if not (self.names & _READ_ALL or _reads_unnamed(kind, self.names)):
            fields = {name: fields[name] for name in sorted(self.names & fields.keys())}
        return name_of(kind), methods, *((name, self.key(item, depth)) for name, item in fields.items())


def class_attributes(kind: type) -> dict[str, Any]:
    """The attributes that objects take from their class and its bases, without methods and those of PyTorch."""
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        found.update(own_attributes(each))
    return found


def own_attributes(kind: type) -> dict[str, Any]:
    """The attributes of a class itself, without methods; none of a class of PyTorch or the standard library."""
    if _is_library(kind.__module__):
        return {}
    return {
        name: item
        for name, item in vars(kind).items()
        if type(item) not in _METHODS and name[0] != "_" and not hasattr(type(item), "__get__")
    }


def reads_outside(function: Any) -> bool:
    """Whether it is a function that is not of a library, whose globals are part of what it computes."""
    is_function = isinstance(function, types.FunctionType)
    return is_function and not _is_library(function.__module__, function.__code__.co_filename)


def _slots(value: Any) -> dict[str, Any]:
    found = (
        (name, member)
        for each in type(value).__mro__
        if "__slots__" in vars(each)
        for name, member in vars(each).items()
        if isinstance(member, types.MemberDescriptorType)
    )
    return {name: getattr(value, name, None) for name, _ in found}


def _named(kind: type, names: set[str]) -> Iterator[tuple[str, Any]]:
    for each in kind.__mro__:
        if not _is_library(each.__module__):
            yield from ((name, vars(each)[name]) for name in sorted(names & vars(each).keys()))


def _function_of(member: Any) -> Callable[..., Any] | None:
    """The function of a method or property."""
    function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
    return function if isinstance(function, types.FunctionType) else None


def _reads_unnamed(kind: type, names: set[str]) -> bool:
    """Whether an object may read attributes that `names` does not have: in operators, or in methods of libraries."""
    for each in kind.__mro__[:-1]:
        for name, member in vars(each).items():
            function = _function_of(member)
            special = name.startswith("__") and name not in _OWN
            if function and (special or (name in names and _is_library(None, function.__code__.co_filename))):
                return True
    return False


def _key_of_library_object(value: Any) -> Hashable:
    """Values such as paths, dates and small arrays; the name alone of functions and locks."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    if root == "numpy" and isinstance(getattr(value, "size", None), int) and value.size <= MOST_MEMBERS:
        return kind, value.dtype.str, value.shape, value.tolist().__repr__()
    if any("__eq__" in vars(each) for each in kind.__mro__[:-1]):
        try:
            hash(value)
        except TypeError:
            return NOT_COMPARED, name_of(kind)
        return kind, value
    of_torch = root == "torch" and (callable(value) or not hasattr(value, "__dict__"))
    return name_of(kind) if of_torch or root in ("threading", "_thread") else (NOT_COMPARED, name_of(kind))


@functools.lru_cache(maxsize=10_000)
def _is_library(module: str | None, file: str = "") -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


@functools.lru_cache(maxsize=1000)
def _names(code: types.CodeType) -> frozenset[str]:
    return frozenset(name for each in _nested(code) for name in each.co_names)


@functools.lru_cache(maxsize=1000)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    found = (step.argval for each in _nested(code) for step in dis.get_instructions(each) if "GLOBAL" in step.opname)
    return tuple(dict.fromkeys(found))


def _globals(function: types.FunctionType) -> dict[str, Any]:
    known = function.__globals__
    return {name: known[name] for name in _global_names(function.__code__) if name in known}


def _cells(function: types.FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
