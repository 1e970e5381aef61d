"""Text to plain values: JSON (with `//` comment lines) or YAML 1.2's core schema.

Documents hold what JSON holds: objects with text keys, arrays, text, finite numbers, booleans and null. So YAML here
has no timestamps, tags, merge keys or `yes`/`no` booleans, `1e-3` is a number, and a key is the text it is written as.
Whatever the bytes are, the only error raised is InputError, in one line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    Event,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from treadle.planner.errors import InputError

MAX_DEPTH = 100
MAX_ALIASED = 1_000_000
MAX_DIGITS = 1000


def parse(text: str, where: str) -> Any:
    """The plain values of a JSON or YAML text; `where` is how errors call it.

    Raises InputError naming line and column where they are known.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise InputError("found an empty file, expected a document", where=where)
    try:
        raw = _from_json(text) if text.lstrip()[0] in "{[" else _Composer(text).document()
    except json.JSONDecodeError as error:
        problem = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise InputError(f"found broken JSON ({problem}), expected a whole document", where=where) from error
    except yaml.YAMLError as error:
        raise InputError(f"found broken YAML ({_reason(error)}), expected a whole document", where=where) from error
    except RecursionError as error:
        raise InputError(_TOO_DEEP, where=where) from error
    except ValueError as error:
        raise InputError(f"found {' '.join(str(error).split())}, expected a document", where=where) from error
    if _depth_over(raw, MAX_DEPTH):
        raise InputError(_TOO_DEEP, where=where)
    return raw


_TOO_DEEP = f"found nesting deeper than {MAX_DEPTH}, expected a document"
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _from_json(text: str) -> Any:
    if "//" in text:
        text = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else "", text)
    raw = json.loads(
        text, object_pairs_hook=_object, parse_float=_finite, parse_int=_whole, parse_constant=_no_constant
    )
    if _SURROGATE.search(text) and not _encodable(json.dumps(raw, ensure_ascii=False)):
        raise ValueError("half of a surrogate pair in a text")
    return raw


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} twice in one object")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]}, which is out of the range of numbers")
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, which is out of the range of numbers")
    return int(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which is not a number a document may hold")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth_over(raw: Any, limit: int) -> bool:
    level = [raw]
    for _ in range(limit + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return _whole(text)
    return _finite(text) if _FLOAT.fullmatch(text) else text


class _Composer:
    """Builds values from the parser's events: no tags, no duplicate keys, no alias that multiplies a small file."""

    def __init__(self, text: str) -> None:
        self.events: Iterator[Event] = iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.size = 0
        self.aliased = 0

    def document(self) -> Any:
        next(self.events)
        if isinstance(next(self.events), StreamEndEvent):
            return None
        value = self.node(next(self.events), 1)
        assert isinstance(next(self.events), DocumentEndEvent)
        event = next(self.events)
        if not isinstance(event, StreamEndEvent):
            raise _at(event, "a second document in one file")
        return value

    def node(self, event: Event, depth: int) -> Any:
        if isinstance(event, AliasEvent):
            return self.alias(event)
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        if depth > MAX_DEPTH:
            raise _at(event, f"nesting deeper than {MAX_DEPTH}")
        if event.tag is not None:
            raise _at(event, f"a tag {str(event.tag)[:60]!r}; tags mean nothing here, remove it")
        before = self.size
        self.size += 1
        if isinstance(event, ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, SequenceStartEvent):
            value = [self.node(item, depth + 1) for item in self.until(SequenceEndEvent)]
        else:
            value = self.mapping(depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.size - before)
        return value

    def until(self, end: type[Event]) -> Iterator[Event]:
        while not isinstance(event := next(self.events), end):
            yield event

    def scalar(self, event: ScalarEvent) -> Any:
        if not _encodable(event.value):
            raise _at(event, "half of a surrogate pair in a text")
        try:
            return _scalar(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            raise _at(event, " ".join(str(error).split())) from error

    def mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for event in self.until(MappingEndEvent):
            if not isinstance(event, ScalarEvent) or event.tag is not None:
                raise _at(event, "a key that is no plain word")
            self.scalar(event)
            if event.value in result:
                raise _at(event, f"key {event.value[:60]!r} twice in one object")
            result[event.value] = self.node(next(self.events), depth + 1)
        return result

    def alias(self, event: AliasEvent) -> Any:
        if event.anchor not in self.anchors:
            raise _at(event, f"alias *{event.anchor} without an earlier, finished anchor &{event.anchor}")
        value, size = self.anchors[event.anchor]
        self.size += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            raise _at(event, f"aliases that repeat over {MAX_ALIASED} values")
        return value


def _at(event: Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]


def _reason(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return " ".join(str(problem).split()) + place
