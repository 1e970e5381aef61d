"""Pickles that hold plain data only: dicts, lists, tuples, texts, numbers, booleans and None.

A pickle is a program, and one that names a class or a function can execute anything. So every operation is looked at
before the first one runs: only those that build plain data are accepted.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from treadle.planner.errors import InputError

_PLAIN = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP",
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT",
    "BINFLOAT",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT",
    "DICT", "SETITEM", "SETITEMS",
    "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
))  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Finds no class and no function."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("a reference to another file is no plain data")


def unpickle(data: bytes, where: str) -> Any:
    """The plain value in the pickle `data`. Raises InputError for anything else, before any of it is built."""
    try:
        for count, (operation, argument, place) in enumerate(pickletools.genops(data)):
            if operation.name not in _PLAIN:
                text = f"the operation {operation.name} at byte {place}, which can execute code"
                raise InputError(f"found a pickle with {text}, expected plain data", where=where)
            if operation.name.endswith("PUT") and int(argument or 0) > count:
                text = f"found a place {argument} in the memo of a pickle at byte {place}, expected at most {count}"
                raise InputError(text, where=where)
        return _Unpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle raises nearly any of them
        text = " ".join(str(error).split())[:200]
        raise InputError(f"found a broken pickle ({text}), expected a whole one", where=where) from error
