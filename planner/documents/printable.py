"""Which characters the texts of a document may hold: those that people see, nearly everywhere on one line.

A name ends up in comments of generated programs, in tables and on terminals. A line break would end the comment, a
control sequence would control the terminal, and a change of direction would show another text than the one there is.
"""

from __future__ import annotations

import re
from typing import Any

from treadle.planner.documents.explain import child, found
from treadle.planner.errors import InputError

LONG = frozenset({"args", "called", "kwargs", "options", "program", "returned", "schedule", "sources"})
"""Fields whose texts, at any depth, may have several lines: arguments that are only quoted, programs, and prose."""

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def require_printable(raw: Any, text: str, where: str) -> None:
    """Raise InputError for the first text in the plain values `raw`, which `text` was read to, that is not readable."""
    if text[:1] in "{[" and text.isascii() and "\\" not in text and "\x7f" not in text:
        return  # only escapes hold such characters in JSON
    misfit = _first(raw, "$", _BREAKS)
    if misfit is not None:
        path, value, rule = misfit
        lines = " on one line" if rule is _BREAKS else ""
        raise InputError(f"found {found(value)}, expected printable text{lines}", where=where, path=path)


def _first(value: Any, path: str, rule: re.Pattern[str]) -> tuple[str, str, re.Pattern[str]] | None:
    if isinstance(value, str):
        return (path, value, rule) if rule.search(value) else None
    if isinstance(value, dict):
        for key, item in value.items():
            if _BREAKS.search(key):
                return path, key, _BREAKS
            if isinstance(item, str | dict | list):
                misfit = _first(item, child(path, key), _UNSEEN if key in LONG else rule)
                if misfit is not None:
                    return misfit
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, str | dict | list):
                misfit = _first(item, child(path, index), rule)
                if misfit is not None:
                    return misfit
    return None
